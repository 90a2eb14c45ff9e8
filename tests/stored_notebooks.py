"""Which notebooks are the project's, and whether they are as ``record.py`` left them."""

import json
import re
from pathlib import Path

import pytest

from plot_data import MIME as PLOT_DATA

ROOT = Path(__file__).resolve().parent.parent
KERNELSPEC = {"display_name": "Python 3", "language": "python", "name": "python3"}
METADATA = {"kernelspec": KERNELSPEC, "language_info": {"name": "python"}}

# A learner's own: the copies that the README names, and those that JupyterLab makes.
COPY = re.compile(r"my-|Untitled|.*-Copy\d+\.")


def notebooks_in(folder: str) -> list[Path]:
    paths = sorted((ROOT / folder).glob("[0-9]*.ipynb"))
    return [path for path in paths if not COPY.match(path.name)]


LESSONS, SOLUTIONS = notebooks_in("notebooks"), notebooks_in("exercise-solutions")


def was_run(path: Path) -> bool:
    """Whether cells were run and saved elsewhere; opened and saved does not count."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    shown = [output.get("data", {}) for cell in code for output in cell["outputs"]]
    counts = [cell["execution_count"] for cell in code]
    return counts != list(range(1, len(code) + 1)) or any(
        "image/png" in data and PLOT_DATA not in data for data in shown
    )


def refuse_what_was_run(selected: list[str]) -> None:
    """Say in a line what to do, instead of a failure for each output that differs.

    Raises: pytest.UsageError if such a notebook is selected, or the tests that read
    them all.
    """
    places = {Path(name.partition("::")[0]).resolve() for name in selected}
    for path in LESSONS + SOLUTIONS:
        readers = path, ROOT / "tests/test_lessons.py"
        covered = {place for reader in readers for place in (reader, *reader.parents)}
        if covered & places and was_run(path):
            name = path.relative_to(ROOT).as_posix()
            raise pytest.UsageError(
                f"{name} was run and saved: `git restore {name}` brings it back (work "
                f"in {path.parent.name}/my-{path.name[:2]}.ipynb), or "
                f"`python tests/record.py {name}` keeps what you changed."
            )
