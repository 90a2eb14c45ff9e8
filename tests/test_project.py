"""The README, the commands it gives, and the code's style."""

import base64
import re
import subprocess
import sys

import nbformat

from test_lessons import LESSONS, ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


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


def test_ci_runs_the_readmes_own_test_command():
    """`.ci/run` takes the command from the README, by this pattern."""
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    pattern = re.search(r"grep -E '(.+?)' README.md", script)[1]
    commands = re.findall(pattern, README, flags=re.MULTILINE)
    assert len(commands) == 1
    workflow = (ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8")
    assert "bash .ci/run" in workflow


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
    text = (ROOT / "requirements.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"(\S+==[\d.]+|-e \.) +# .+", line) for line in lines)


def test_the_code_keeps_its_style():
    for command in (["format", "--check"], ["check"]):
        ruff = [sys.executable, "-m", "ruff", *command, ROOT]
        result = subprocess.run(ruff, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
