"""The README, the commands it gives, CI, the settings, and the code's style."""

import base64
import hashlib
import os
import re
import subprocess
import sys
import tomllib

import nbformat
import pytest

from stored_notebooks import LESSONS, ROOT, SOLUTIONS


def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8")


README = text_of("README.md")
PYPROJECT = tomllib.loads(text_of("pyproject.toml"))
WORKFLOW = text_of(".github/workflows/test.yml")
REQUIREMENTS = dict(
    re.findall(r"(?m)^([\w-]+)==(\S+) +# .+$", text_of("requirements.txt"))
)

# The stored outputs were recorded with these. After a change, record all of them anew.
RECORDED_WITH = {"torch": "2.13.0", "tiktoken": "0.14.0", "matplotlib": "3.11.2"}
TOOLS = (
    "jupyterlab",
    "pytest",
    "pytest-xdist",
    "nbval",
    "ruff",
    "filelock",
    "safetensors",
    "huggingface_hub",
)
INSTALL = (
    "python3 -m venv .venv && . .venv/bin/activate && pip install -r requirements.txt"
)


def test_the_readme_is_short_and_lists_every_lesson():
    words = [word for word in README.split() if re.search(r"\w", word)]
    assert len(words) < 500
    for path in LESSONS:
        title = nbformat.read(path, as_version=4).cells[0].source
        minutes = re.search(r"(\d+) minutes to read", title)[1]
        number = int(path.name[:2])
        row = rf"\| {number} \| \[[^|]+\]\(notebooks/{path.name}\) \| {minutes} \| "
        row += rf"\[{number}\]\(exercise-solutions/{number:02}_solutions.ipynb\) \|"
        assert re.search(row, README), f"no row for lesson {number}, {minutes} minutes"


def test_the_readmes_commands_install_and_open_the_first_lesson_or_test():
    lab = f"jupyter lab --ServerApp.root_dir=. notebooks/{LESSONS[0].name}"
    commands = re.findall(r"```sh\n(.+?)\n```", README)
    assert commands == [f"{INSTALL} && {lab}", f"{INSTALL} && pytest"]


def test_every_file_that_the_readme_names_is_there():
    code = " ".join(re.findall(r"`([^`]+)`", README.replace("```", "")))
    named = set(re.findall(r"(?<![\w/.])(?:tests|notebooks|\.ci)/[\w./-]+\w", code))
    named = {name for name in named if not name.startswith("notebooks/my-")}
    assert len(named - {"notebooks/02"}) >= 5
    assert all((ROOT / name).exists() for name in named - {"notebooks/02"}), named


def test_the_same_versions_of_python_are_named_everywhere():
    oldest, newest = map(
        int, re.search(r"Python 3\.(\d+) to 3\.(\d+)", README).groups()
    )
    assert PYPROJECT["project"]["requires-python"] == f">=3.{oldest}"
    assert PYPROJECT["tool"]["ruff"]["target-version"] == f"py3{oldest}"
    tried = re.search(r"python: \[(.+)\]", WORKFLOW)[1].replace('"', "").split(", ")
    assert tried == [f"3.{minor}" for minor in range(oldest, newest + 1)]
    refusal = f'need%20Python%203.{oldest}%20or%20newer ; python_version < "3.{oldest}"'
    first, *_ = re.findall("(?m)^[^#].+", text_of("requirements.txt"))
    assert first.endswith(refusal), "before all that is fetched"


def test_the_readmes_picture_is_the_output_of_a_lesson():
    picture = (ROOT / re.search(r"!\[.+\]\((.+?)\)", README)[1]).read_bytes()
    drawn = [
        base64.b64decode(output.data["image/png"])
        for path in LESSONS
        for cell in nbformat.read(path, as_version=4).cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert picture in drawn, "extract it again from the lesson that was recorded"


def test_every_requirement_is_pinned_and_has_its_reason():
    assert RECORDED_WITH.items() <= REQUIREMENTS.items()
    assert set(REQUIREMENTS) == {*RECORDED_WITH, *TOOLS}
    lines = re.findall("(?m)^[^#].+", text_of("requirements.txt"))
    assert len(lines) == len(REQUIREMENTS) + 2 and re.match("-e . +#", lines[-1])


def test_what_the_lessons_show_is_promised_for_no_older_versions():
    """An older matplotlib draws other ticks, an older safetensors words its errors."""
    floors = dict(d.split(">=") for d in PYPROJECT["project"]["dependencies"])
    pins = {name: REQUIREMENTS[name].rpartition(".")[0] for name in floors}
    tried = {"filelock": "3.12"}  # draws and prints nothing
    assert floors == pins | tried and len(floors) == 7


def test_pytest_runs_all_tests_and_notebooks():
    places = PYPROJECT["tool"]["pytest"]["ini_options"]["testpaths"]
    folders = [path.parent for path in LESSONS + SOLUTIONS] + [ROOT / "tests"]
    assert {ROOT / place for place in places} == set(folders)


def test_git_and_ruff_pass_over_a_learners_copies():
    ignored = text_of(".gitignore").splitlines()
    excluded = PYPROJECT["tool"]["ruff"]["extend-exclude"]
    copies = {"my-*", "*-Copy*", "Untitled*"}
    assert copies <= set(ignored) and copies == set(excluded)


# --- where the data comes from ----------------------------------------------------

SOURCES = re.findall(
    r"(?m)^\* `([\w.-]+/?)`: .+?, ([\d,]+) bytes\.(?:.+ SHA-256: `(\w{64})`)?",
    text_of("notebooks/data/SOURCES.md"),
)


def test_sources_lists_all_that_lies_beside_it():
    data = ROOT / "notebooks/data"
    own = {p.name for p in data.iterdir() if not p.name.startswith((".", "my-"))}
    assert {name.strip("/") for name, *_ in SOURCES} == own - {
        "SOURCES.md",
        "speed.txt",
    }


@pytest.mark.parametrize(("name", "size", "digest"), SOURCES)
def test_sources_gives_sizes_and_sums_as_they_are(name, size, digest):
    place = ROOT / "notebooks/data" / name
    files = sorted(place.iterdir()) if place.is_dir() else [place]
    assert sum(file.stat().st_size for file in files) == int(size.replace(",", ""))
    if not place.is_dir():
        assert hashlib.sha256(place.read_bytes()).hexdigest() == digest


# --- CI ---------------------------------------------------------------------------

# Stands for git, python3, pip and the rest: notes how it was called, fails if asked.
STAND_IN = """#!/usr/bin/env bash
call="${ATEN_CPU_CAPABILITY:-} ${PYTHONPATH:+newest} $(basename "$0") $*"
echo "$call" >> "$CALLS"
case "$call" in
  *"git clone"*) mkdir -p "${@: -1}" && cp -r "$SOURCE"/{README.md,tests} "${@: -1}" ;;
  *"-m venv"*) mkdir -p "${@: -1}/bin" && touch "${@: -1}/bin/activate" &&
    cp "$0" "${@: -1}/bin/python" ;;
esac
[ -z "$FAIL" ] || [[ ! "$call" =~ $FAIL ]]
"""
STEPS = (
    "git clone",
    "python3 -m venv .venv",
    "pip install -r requirements.txt",
    "  pytest $",
    "python -m pip install .*--target .* torch$",
    "default  pytest .*notebooks$",
    "avx2 newest pytest .*notebooks$",
    "pip install .*transformers==[0-9.]+$",
    "python -c import transformers",
    "  pytest .*tests/test_against_transformers.py$",
)


def run_ci(folder, fail):
    """Run ``.ci/run`` with stand-ins; return its exit status and the calls it made."""
    for name in "git", "python3", "python", "pip", "pytest":
        (folder / name).write_text(STAND_IN)
        (folder / name).chmod(0o755)
    calls = folder / "calls"
    environment = {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": "",
        "CALLS": str(calls),
        "SOURCE": str(ROOT),
        "FAIL": fail,
    }
    result = subprocess.run(
        ["bash", ROOT / ".ci/run"],
        env=os.environ | environment,
        capture_output=True,
        check=False,
    )
    return result.returncode, calls.read_text().splitlines()


unix_only = pytest.mark.skipif(os.name == "nt", reason="stand-ins are shell scripts")


@unix_only
def test_ci_runs_the_readmes_test_command_and_then_its_own(tmp_path):
    status, calls = run_ci(tmp_path, fail="")
    assert status == 0
    for step in STEPS:
        assert any(re.search(step, call) for call in calls), step
    assert "bash .ci/run" in WORKFLOW


@unix_only
@pytest.mark.parametrize("step", STEPS)
def test_a_step_that_fails_fails_ci(tmp_path, step):
    status, calls = run_ci(tmp_path, fail=step)
    assert status != 0, calls


# --- style ------------------------------------------------------------------------


def test_the_code_keeps_its_style():
    for command in (["format", "--check"], ["check"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--no-cache", "."]
        result = subprocess.run(
            ruff, cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
