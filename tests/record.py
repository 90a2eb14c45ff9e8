"""Run notebooks and store their outputs: ``python tests/record.py [NOTEBOOK …]``.

Without arguments, all of them. A diff then shows only what changed: numbers that
agree with the stored ones to rounding keep their spelling, metadata is reduced to
the kernel's name. A notebook in which a cell fails is left as it was.
"""

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbval.kernel import CURRENT_ENV_KERNEL_NAME

from clean_kernel import KERNEL_SETUP, KernelManager, check_setup, clean_environment
from output_tolerance import settle_outputs
from plot_data import MIME as PLOT_DATA
from plot_data import digest
from stored_notebooks import LESSONS, METADATA, SOLUTIONS


def record(path: Path) -> None:
    """Execute one notebook from a fresh kernel and replace the file whole."""
    notebook = nbformat.read(path, as_version=4)
    stored = [cell.get("outputs", []) for cell in notebook.cells]

    async def set_up(notebook):
        quiet = {"silent": True, "store_history": False, "timeout": 60}
        check_setup(await client.kc.execute_interactive(KERNEL_SETUP, **quiet))

    client = NotebookClient(
        notebook,
        timeout=600,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
        kernel_manager_class=KernelManager,
        kernel_name=CURRENT_ENV_KERNEL_NAME,  # not what the user calls "python3"
        on_notebook_start=set_up,
    )
    client.execute()
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell, old in zip(notebook.cells, stored, strict=True):
        tags = cell.metadata.get("tags")
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})
        settle_outputs(old, cell.get("outputs", []))
        for output in cell.get("outputs", []):
            if PLOT_DATA in output.get("data", {}):
                output.metadata["digest"] = digest(output.data)
    unfinished = path.with_suffix(".recording")
    nbformat.write(notebook, unfinished)
    os.replace(unfinished, path)


def main(arguments: list[str]) -> int:
    """Record the named notebooks; return how many failed."""
    clean_environment()
    failed = 0
    for path in [Path(a).resolve() for a in arguments] or LESSONS + SOLUTIONS:
        try:
            record(path)
            print(f"recorded {path.name}")
        except Exception as error:  # noqa: BLE001 - the next notebook may be sound
            failed += 1
            print(f"not recorded, left as it was: {path}\n{error}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
