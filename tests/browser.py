"""Run the lessons as a reader does, in JupyterLab: ``python tests/browser.py [8 …]``.

Without numbers, all lessons. A headless Chromium opens each one in a copy of the
project, from which the stored outputs are removed, chooses *Run All Cells* and looks
at what the page then shows. The table lists seconds and findings; the exit status is
the number of lessons with findings. Needs playwright, ``tests/requirements-peers.txt``.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import nbformat
from playwright.sync_api import Error, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 900  # seconds that a lesson's cells may take
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]
FLAGS += ["--disable-sync"]
# No news from the network; every cell in the page, also those out of sight.
SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "notebook-extension/tracker": {"windowingMode": "none"},
}

# What a page shows, as {finding: number or list}; empty or 0 is as it should be.
LOOK = """() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const notebook = document.querySelector(".jp-Notebook");
  const text = all(".jp-MarkdownOutput", notebook).map(shown => {
    const copy = shown.cloneNode(true);
    all("code, pre, mjx-container", copy).forEach(part => part.remove());
    return copy.textContent;
  }).join(" ");
  const wide = [document.documentElement, ...all(".jp-WindowedPanel-outer, "
    + ".cm-scroller, .jp-RenderedHTMLCommon, .jp-RenderedText, .jp-RenderedImage",
    notebook)].filter(e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth);
  const sees = image => image.naturalWidth > 99 && image.width > 99
    && image.checkVisibility({opacityProperty: true, visibilityProperty: true});
  return {
    "errors or warnings": all("[data-mime-type='application/vnd.jupyter.stderr']",
      notebook).map(shown => shown.textContent.trim().split("\\n").at(-1)),
    "cells not run": all(".jp-CodeCell .jp-InputPrompt", notebook)
      .filter(prompt => !/[0-9]/.test(prompt.textContent)).length,
    "figures seen": all(".jp-OutputArea img", notebook).filter(sees).length,
    "unfolded hints": all("details[open]", notebook).length,
    "formulas seen": all("mjx-container", notebook)
      .filter(formula => formula.offsetWidth && formula.offsetHeight).length,
    "formulas with errors": all("mjx-merror, [data-mjx-error]", notebook).length,
    "formulas not rendered": text.match(/\\$[^$]+\\$/g) ?? [],
    "visible marks": text.match(/<!--|-->/g) ?? [],
    "too wide": wide.map(e => (e.innerText || e.className).slice(0, 60)),
  };
}"""


@contextmanager
def jupyterlab(folder: Path):
    """Copy the project, start JupyterLab on it, yield its address and the copy."""
    copy, config = folder / "project", folder / "config"
    leave = shutil.ignore_patterns(".*", "my-*", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, copy, ignore=leave)
    for path in (copy / "notebooks").glob("[0-9]*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.update(outputs=[], execution_count=None)
        nbformat.write(notebook, path)
    for name, values in SETTINGS.items():
        path = config / f"lab/user-settings/@jupyterlab/{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {"JUPYTER_CONFIG_DIR": config, "IPYTHONDIR": folder / "ipython"}
    own |= {"JUPYTER_RUNTIME_DIR": folder / "runtime"}
    own |= {"PYTHONPATH": os.pathsep.join([str(copy), str(copy / "notebooks")])}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += ["--IdentityProvider.token=", f"--ServerApp.root_dir={copy}"]
    command += ["--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}"]
    with (folder / "server.log").open("w") as log:
        environment = os.environ | {name: str(value) for name, value in own.items()}
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        wait_until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, 120)
        yield f"http://127.0.0.1:{port}", copy
    finally:
        server.terminate()
        server.wait()


def wait_until(condition, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("JupyterLab was not ready in time")
        time.sleep(0.3)


def is_ready(page: Page, address: str, path: Path) -> bool:
    """Whether the lesson's kernel waits, in the server's eyes and in the page's."""
    sessions = page.request.get(f"{address}/api/sessions").json()
    states = [
        s["kernel"]["execution_state"] for s in sessions if path.name in s["path"]
    ]
    shown = page.locator(".jp-Notebook-ExecutionIndicator").first
    return states == ["idle"] and shown.get_attribute("data-status") == "idle"


def run_all_cells(page: Page, address: str, path: Path) -> set[str]:
    """Run the open notebook; return the lines of a progress bar that were seen."""
    page.locator(".jp-Toolbar-kernelName", has_text="Python 3").wait_for()
    wait_until(lambda: is_ready(page, address, path), 60)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    prompts = page.locator(".jp-CodeCell .jp-InputPrompt")
    wait_until(lambda: any("[ ]" not in p for p in prompts.all_text_contents()), 60)
    bars = page.locator(".jp-OutputArea-output", has_text="█")
    seen, end = set(), time.monotonic() + PATIENCE
    while any("*" in prompt for prompt in prompts.all_text_contents()):
        seen.update(bars.all_text_contents())
        if time.monotonic() > end:
            raise TimeoutError("the cells take too long")
        time.sleep(0.3)
    wait_until(lambda: is_ready(page, address, path), 60)
    return seen


def links_that_fail(page: Page, address: str) -> list[str]:
    """The links to files that the server has not, or that are no notebook by name."""
    hrefs = page.locator(".jp-MarkdownOutput a[href]").evaluate_all(
        "links => links.map(link => link.href)"
    )
    failing = []
    for path in {h.split("/files/")[1].split("?")[0] for h in hrefs if "/files/" in h}:
        answer = page.request.get(f"{address}/api/contents/{path}?content=0")
        kind = "notebook" if path.endswith(".ipynb") else "file"
        if not answer.ok or answer.json()["type"] != kind:
            failing.append(path)
    return failing


def hints_that_stay_folded(page: Page) -> list[str]:
    """The hints that the keyboard does not open."""
    failing = []
    for hint in page.locator(".jp-MarkdownOutput details").all():
        summary = hint.locator("summary")
        summary.focus()
        page.keyboard.press("Enter")
        if hint.get_attribute("open") is None:
            failing.append(summary.inner_text())
    return failing


def findings(page: Page, address: str, path: Path) -> list[str]:
    """Open and run one lesson; list what is not as it should be."""
    cells = nbformat.read(ROOT / "notebooks" / path.name, as_version=4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    n_figures = sum("image/png" in output.get("data", {}) for output in outputs)
    code = "".join(cell.source for cell in cells if cell.cell_type == "code")
    prose = "".join(cell.source for cell in cells if cell.cell_type == "markdown")
    page.goto(f"{address}/lab/tree/notebooks/{path.name}?reset")
    page.locator(".jp-Notebook .jp-CodeCell").first.wait_for()
    bars = run_all_cells(page, address, path)
    seen = page.evaluate(LOOK)
    found = []
    if (figures := seen.pop("figures seen")) != n_figures:
        found.append(f"{figures} of {n_figures} figures seen")
    if not seen.pop("formulas seen") and "$" in prose:
        found.append("no formula seen")
    if "█" in code and len(bars) < 3:
        found.append(f"the progress bar had {len(bars)} states")
    found += [f"{name}: {value}" for name, value in seen.items() if value]
    if failing := hints_that_stay_folded(page):
        found.append(f"hints that Enter does not open: {failing}")
    if failing := links_that_fail(page, address):
        found.append(f"links that lead nowhere: {failing}")
    link = page.locator(".jp-MarkdownOutput a[href*='.ipynb']").first
    target = link.get_attribute("href").split("?")[0].rpartition("/")[2]
    link.click()
    front = page.locator("#jp-main-dock-panel .lm-TabBar-tab.lm-mod-current")
    front.filter(has_text=target).wait_for()  # the other notebook's tab
    return found


def main(numbers: list[str]) -> int:
    failed = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        jupyterlab(Path(folder)) as (address, copy),
        sync_playwright() as playwright,
    ):
        # Debian's chromium where there is one, else the one that playwright installs.
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=FLAGS
        )
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        print("lesson  seconds  findings")
        for path in sorted((copy / "notebooks").glob("[0-9]*.ipynb")):
            number = str(int(path.name[:2]))
            if numbers and number not in numbers:
                continue
            begun = time.monotonic()
            page = context.new_page()
            page.set_default_timeout(60_000)  # milliseconds
            try:
                found = findings(page, address, path)
            except (Error, TimeoutError) as error:
                found = [f"{type(error).__name__}: {error}"]
            seconds = time.monotonic() - begun
            print(f"{number:6}  {seconds:7.0f}  {'; '.join(found) or '-'}", flush=True)
            failed += bool(found)
            page.close()
            for session in context.request.get(f"{address}/api/sessions").json():
                context.request.delete(f"{address}/api/sessions/{session['id']}")
        browser.close()
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
