"""The comparison of outputs: rounding passes, a changed value does not."""

import os
import re
import shutil
import subprocess
import sys

import nbformat
import pytest

from output_tolerance import settle_text
from plot_data import MIME as PLOT_DATA
from record import record
from stored_notebooks import ROOT

SAME = [
    ("tensor([0.1324, 0.2170])", "tensor([0.1325, 0.2169])"),
    ("loss 1.0000", "loss 0.9999"),
    ("tensor([[-0.0000,  0.5000]])", "tensor([[0.0000, 0.5000]])"),
    ("10952.123", "10952.201"),
    ("9.999e-01 and 1.000e+00", "1.000e+00 and 9.999e-01"),
]
DIFFERENT = [
    ("0.1324", "0.1326"),
    ("0.13", "0.14"),
    ("163,009,536", "163,009,537"),
    ("[6109, 3626]", "[6109, 3627]"),
    ("tensor([0.1324])", "tensor([0.13240])"),
    ("1.234e-05", "1.234e-04"),
    ("0.500", "-0.500"),
    ("10952.123", "10952.234"),
    ("True", "False"),
    ("W_query.0.5000", "W_key.0.5000"),
    ("a b", "a\nb"),
    ("same", "same\nmore"),
]


@pytest.mark.parametrize(("stored", "fresh"), SAME)
def test_rounding_is_settled_to_the_stored_spelling(stored, fresh):
    assert settle_text(stored, fresh) == stored


@pytest.mark.parametrize(("stored", "fresh"), DIFFERENT)
def test_a_changed_value_is_kept(stored, fresh):
    assert settle_text(stored, fresh) == fresh
    assert settle_text(fresh, stored) == stored


def test_only_the_lines_that_moved_differ():
    assert settle_text("a 0.1234\nb 0.5\n", "a 0.1235\nb 0.6\n") == "a 0.1234\nb 0.6\n"


PLOT = """\
import matplotlib.pyplot as plt

fig, ax = plt.subplots()
ax.plot([1, 2, 3], [1.0, 4.0, 9.0])
ax.bar([1, 2], [3.0, 5.0])
ax.imshow([[0.0, 1.0], [2.0, 3.0]], aspect="auto")
ax.text(1, 5, "ours", color="black")
ax.set_title("Squares")
assert len(ax.patches) == 2
plt.show()"""
SHAPES = """\
import numpy as np

def outer(a, b):
    x = a[:, None] * b  # (B, T)
    return x.T  # (T, B)

print(outer(np.ones(2), np.ones(3)).shape[0])"""


@pytest.fixture
def notebook(tmp_path):
    """A recorded notebook with a printed number and a figure."""
    made = nbformat.v4.new_notebook()
    made.cells = [
        nbformat.v4.new_code_cell("print(f'{1 / 3:.4f}', 1099)"),
        nbformat.v4.new_code_cell(PLOT),
        nbformat.v4.new_code_cell(SHAPES),
    ]
    path = tmp_path / "small.ipynb"
    nbformat.write(made, path)
    record(path)
    return path


def edit(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


EDITS = {
    "nothing": None,
    "last digit": ("0.3333", "0.3334"),
    "integer": ("1099\\n", "1098\\n"),
    "plotted value": ("4.0, 9.0", "4.5, 9.0"),
    "bar": ("[3.0, 5.0]", "[3.0, 5.5]"),
    "pixel": ("[2.0, 3.0]", "[2.5, 3.0]"),
    "white text": ('color=\\"black', 'color=\\"white'),
    "assertion": ("assert len(ax.patches) == 2", "assert ax.patches"),
    "shape comment": ("# (T, B)", "# (B, T)"),
    "title": ('Squares\\"', 'Cubes\\"'),
}


def test_nbval_sees_changed_values_and_figures_but_no_rounding(notebook):
    for name, change in EDITS.items():
        copy = notebook.with_name(f"{name}.ipynb")
        shutil.copy(notebook, copy)
        if change:
            edit(copy, *change)
    notebook.unlink()
    options = "-c", ROOT / "pyproject.toml"
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-rf", "-n0", *options, "."],
        cwd=notebook.parent,
        capture_output=True,
        check=False,
        text=True,
        encoding="utf-8",
    )
    failed = set(re.findall(r"FAILED .*?([\w ]+)\.ipynb::", result.stdout))
    assert failed == set(EDITS) - {"nothing", "last digit"}, result.stdout
    assert f"{3 * len(EDITS) - len(failed)} passed" in result.stdout


def test_recording_stores_what_cells_show_and_no_more(tmp_path):
    code = nbformat.v4.new_code_cell
    first = code(
        "import sys\nfor n in f'{1 / 3:.4f}', '1099':\n    print(n, flush=True)"
    )
    old = "0.3334\n1098\n", "of a run before\n"
    first.outputs = [nbformat.v4.new_output("stream", text=text) for text in old]
    first.metadata = {"tags": ["a-tag"], "collapsed": True, "execution": {"a": "b"}}
    second = code("6 * 7", execution_count=9, metadata={"tags": []})
    made = nbformat.v4.new_notebook(cells=[first, second, code(PLOT)])
    made.metadata = {
        "kernelspec": {"name": "theirs", "display_name": "Theirs"},
        "widgets": {},
    }
    path = tmp_path / "small.ipynb"
    nbformat.write(made, path)
    record(path)
    stored = nbformat.read(path, as_version=4)
    assert stored.metadata == {
        "kernelspec": {
            "display_name": "Python 3",
            "language": "python",
            "name": "python3",
        },
        "language_info": {"name": "python"},
    }
    assert [cell.metadata for cell in stored.cells] == [{"tags": ["a-tag"]}, {}, {}]
    assert [cell.execution_count for cell in stored.cells] == [1, 2, 3]
    (printed,), (result,), (figure,) = [cell.outputs for cell in stored.cells]
    assert printed.text == "0.3334\n1099\n", "rounding keeps its spelling"
    assert result.data == {"text/plain": "42"}
    assert figure.data.keys() == {"image/png", "text/plain", PLOT_DATA}
    assert "Squares" in figure.data[PLOT_DATA]
    assert os.listdir(tmp_path) == [path.name]


def test_recording_again_changes_nothing(notebook):
    before = notebook.read_bytes()
    record(notebook)
    assert notebook.read_bytes() == before


def test_a_failing_notebook_is_left_as_it_was(notebook):
    edit(notebook, "1 / 3", "1 / 0")
    before = notebook.read_bytes()
    command = [sys.executable, ROOT / "tests/record.py", notebook]
    result = subprocess.run(command, capture_output=True, check=False, text=True)
    assert result.returncode == 1
    assert "ZeroDivisionError" in result.stderr and str(notebook) in result.stderr
    assert notebook.read_bytes() == before
    assert [p.name for p in notebook.parent.iterdir()] == [notebook.name]
