"""Another user's settings, folders and saved lessons: nothing of theirs gets in."""

import json
import os
import shutil
import subprocess
import sys

import nbformat
import pytest

import stored_notebooks
import test_lessons
from clean_kernel import clean_environment
from output_tolerance import SLOW_FIRST
from plot_data import MIME as PLOT_DATA
from stored_notebooks import LESSONS, ROOT, refuse_what_was_run

FOLDERS = "notebooks", "exercise-solutions", "tests"


def run(*arguments, folder, **environment):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        check=False,
        text=True,
        encoding="utf-8",
    )


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


# --- settings ---------------------------------------------------------------------

# Each line of the cells and what it shows, on every machine.
SHOWN = {
    "'left by PYTHONSTARTUP' in globals()": "False",
    "plt.rcParams['axes.xmargin']": "0.05",
    "Path(os.environ['GPT2_DIR']).name": "tiny-alice",
    "Path.cwd().name": "lessons",
    "notes.PROGRESS_FILE.name": "my-progress.json",
    "notes.PROGRESS_FILE.parent == Path(notes.__file__).parents[1]": "False",
} | {
    f"os.environ.get({name!r})": "None"
    for name in ("GPT_PRESET", "COLUMNS", "MATPLOTLIBRC", "PYTHONWARNINGS")
}
CELLS = (
    "import os\nfrom pathlib import Path\nimport matplotlib.pyplot as plt\n"
    "from lesson_checks import notes\n"
    + "\n".join(f"print({expression})" for expression in SHOWN),
    "'first'\n'last'",
    "plt.plot([1.0, 4.0])\nplt.show()",
)


@pytest.fixture
def settings(tmp_path):
    """What a user may have set; each would change what one of the cells shows."""
    rc = "axes.xmargin: 0.4\n"
    write(tmp_path / "lessons/matplotlibrc", rc)
    startup = "globals()['left by PYTHONSTARTUP'] = True"
    write(tmp_path / "startup.py", startup)
    write(tmp_path / "a file", "")
    every_line = "c.InteractiveShell.ast_node_interactivity = 'all'"
    write(tmp_path / "ipython/profile_default/ipython_config.py", every_line)
    kernel = {"argv": ["no-such-python"], "display_name": "3", "language": "python"}
    write(tmp_path / "jupyter/kernels/python3/kernel.json", json.dumps(kernel))
    return {
        "MPLBACKEND": "Agg",
        "MATPLOTLIBRC": str(write(tmp_path / "rc/matplotlibrc", rc)),
        "MPLCONFIGDIR": str(tmp_path / "a file/cannot be made"),
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "JUPYTER_PATH": str(tmp_path / "jupyter"),
        "PYTHONSTARTUP": str(tmp_path / "startup.py"),
        "PYTHONWARNINGS": "ignore",
        "GPT2_DIR": str(tmp_path),
        "GPT_PRESET": "1 hour",
        "COLUMNS": "40",
    }


def shown_by(cell):
    return [o.get("text") or o.data.get("text/plain") for o in cell.outputs]


def test_a_users_settings_reach_no_kernel(tmp_path, settings):
    path = write(tmp_path / "lessons/small.ipynb", "")
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    result = run(ROOT / "tests/record.py", path, folder=tmp_path, **settings)
    assert result.returncode == 0, result.stderr
    values, expression, figure = nbformat.read(path, as_version=4).cells
    assert shown_by(values)[0].splitlines() == list(SHOWN.values())
    assert shown_by(expression) == ["'last'"]
    assert {"image/png", PLOT_DATA} <= figure.outputs[0].data.keys()
    options = "-n", "0", "-c", ROOT / "pyproject.toml"
    result = run("-m", "pytest", *options, path, folder=tmp_path, **settings)
    assert result.returncode == 0, result.stdout


def test_no_colors_or_options_reach_a_pytest_that_a_test_starts(monkeypatch):
    names = "FORCE_COLOR", "NO_COLOR", "PY_COLORS", "PYTEST_ADDOPTS"
    for name in names:
        monkeypatch.setenv(name, "1")
    clean_environment()
    assert not set(names) & os.environ.keys()


def test_a_worker_has_one_thread_whatever_the_user_says(tmp_path):
    test = "import torch\n\ndef test_it():\n    assert torch.get_num_threads() == 1\n"
    path = write(tmp_path / "test_threads.py", test)
    options = "-n", "1", "-c", ROOT / "pyproject.toml"
    result = run("-m", "pytest", *options, path, folder=tmp_path, OMP_NUM_THREADS="2")
    assert "1 passed" in result.stdout, result.stdout


def test_what_is_started_first_is_there():
    files = {path.stem for path in [*LESSONS, *(ROOT / "tests").glob("test_*.py")]}
    assert set(SLOW_FIRST) <= files and len(SLOW_FIRST) == len(set(SLOW_FIRST))


# --- folders ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The project in a folder with an awkward name, with a learner's copies in it."""
    folder = tmp_path_factory.mktemp("machines") / "GPT [2] für mich"
    for name in FOLDERS:
        unwanted = shutil.ignore_patterns("__pycache__", ".*", "my-*")
        shutil.copytree(ROOT / name, folder / name, ignore=unwanted)
    for name in "pyproject.toml", "gpt_helpers.py":
        shutil.copyfile(ROOT / name, folder / name)
    for copy in "my-02", "01_dummy_gpt_model-Copy1", "Untitled", "Untitled1":
        write(folder / f"notebooks/{copy}.ipynb", "no notebook")
    return folder


def pytest_in(project, folder, *arguments):
    places = [project, *(project / name for name in FOLDERS)]
    path = os.pathsep.join(map(str, places))
    command = "-m", "pytest", "-n", "0", "-q", *arguments
    return run(*command, folder=folder, PYTHONPATH=path)


@pytest.mark.parametrize(
    ("folder", "selected"), [(".", "notebooks"), ("notebooks", ".")]
)
def test_pytest_finds_the_lessons_but_no_copies(project, folder, selected):
    result = pytest_in(project, project / folder, "--collect-only", selected)
    found = {line.partition(".ipynb")[0] for line in result.stdout.splitlines()}
    found = {name.rpartition("/")[2] for name in found if "_" in name}
    assert found == {path.stem for path in LESSONS}, result.stdout


def test_style_does_not_depend_on_the_folders_name(project):
    command = "-m", "ruff", "check", "--no-cache", "."
    result = run(*command, folder=project)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("folder", [".", "..", "notebooks/data"])
def test_a_lesson_finds_its_style_from_any_folder(project, folder):
    path = os.pathsep.join([str(project), str(project / "notebooks")])
    cells = nbformat.read(LESSONS[0], as_version=4).cells
    (line,) = [
        line
        for cell in cells
        for line in cell.source.splitlines()
        if "style.use" in line
    ]
    code = f"import matplotlib.pyplot as plt\n{line}\nprint(plt.rcParams['axes.titlelocation'])"
    result = run("-c", code, folder=project / folder, PYTHONPATH=path)
    assert result.stdout == "left\n", result.stderr


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_every_lesson_names_its_style_and_data_without_a_folder(path):
    text = path.read_text(encoding="utf-8")
    assert 'style.use(\\"notebooks.lesson\\")' in text
    assert "mplstyle" not in text and 'Path(\\"data' not in text


# --- lessons saved by JupyterLab --------------------------------------------------

# What JupyterLab 4.6 makes of a lesson's metadata when it opens it.
JUPYTERLABS = {
    "kernelspec": {
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "name": "python3",
    },
    "language_info": {
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
        "version": "3.13.1",
    },
}


def open_only(notebook):
    notebook.metadata = nbformat.from_dict(JUPYTERLABS)


def run_all(notebook):
    open_only(notebook)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(PLOT_DATA, None)


def run_one(notebook):
    open_only(notebook)
    [c for c in notebook.cells if c.cell_type == "code"][4].execution_count = 1


def saved(project, change):
    """Rewrite a lesson of the copy as ``change`` says; return its path."""
    path = project / "notebooks" / LESSONS[1].name
    notebook = nbformat.read(LESSONS[1], as_version=4)
    change(notebook)
    nbformat.write(notebook, path)
    return path


@pytest.fixture
def of_the_copy(project, monkeypatch):
    """Let this process take the copy for the project."""
    monkeypatch.setattr(stored_notebooks, "ROOT", project)
    paths = [project / path.relative_to(ROOT) for path in LESSONS]
    monkeypatch.setattr(stored_notebooks, "LESSONS", paths)


def test_a_lesson_that_was_only_opened_passes(project, of_the_copy):
    path = saved(project, open_only)
    refuse_what_was_run([str(project)])
    test_lessons.test_metadata_names_the_kernel_and_nothing_else(path)


@pytest.mark.parametrize("change", [run_all, run_one])
@pytest.mark.parametrize(
    "selected",
    [".", "notebooks", f"notebooks/{LESSONS[1].name}::Cell 1", "tests/test_lessons.py"],
)
def test_a_lesson_that_was_run_is_refused(project, of_the_copy, change, selected):
    saved(project, change)
    with pytest.raises(pytest.UsageError, match="was run and saved"):
        refuse_what_was_run([f"{project}/{selected}"])
    refuse_what_was_run([f"{project}/tests/test_speed.py"])


def test_what_is_said_of_a_lesson_that_was_run_is_one_line(project):
    name = f"notebooks/{saved(project, run_all).name}"
    result = pytest_in(project, project, "notebooks")
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith(f"ERROR: {name} was run") and f"git restore {name}" in line
    assert "notebooks/my-02.ipynb" in line and f"tests/record.py {name}" in line
    assert result.returncode != 0 and not result.stdout.strip()
