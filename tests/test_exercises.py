"""Every exercise: unsolved, solved, and wrong in each of the ways that have a name."""

import importlib
import json
import os
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import nbformat
import pytest
import torch

from lesson_checks import check, engine, notes, progress
from lesson_checks.engine import EXERCISES, judge
from lesson_checks.slips import edited, first_sentence, groups, joined, read_slips
from stored_notebooks import LESSONS, ROOT, SOLUTIONS

# {exercise: [right answer, …]} and {exercise: [(words of what is said, wrong answer), …]}
RIGHT, WRONG = {}, {}
for answers in sorted(Path(__file__).parent.glob("answers_*.py")):
    module = importlib.import_module(answers.stem)
    RIGHT |= module.RIGHT
    WRONG |= module.WRONG

KINDS = "Predict", "Write", "Find the bug", "Explore"


def tagged_cells(paths, kind):
    """{exercise: cell} of the cells tagged ``kind:exercise``."""
    found = {}
    for path in paths:
        for cell in nbformat.read(path, as_version=4).cells:
            for tag in cell.metadata.get("tags", []):
                name, _, number = tag.partition(":")
                if name == kind:
                    assert number not in found, f"two cells tagged {tag}"
                    assert int(number.partition(".")[0]) == int(path.name[:2])
                    found[number] = cell
    return found


HOLES, CHECKS = tagged_cells(LESSONS, "exercise"), tagged_cells(LESSONS, "check")
SOLVED = tagged_cells(SOLUTIONS, "exercise")
SOLVED_CHECKS = tagged_cells(SOLUTIONS, "check")

each_exercise = pytest.mark.parametrize("number", EXERCISES)


@pytest.fixture(autouse=True)
def one_thread():
    """As ``check`` does; a second thread only waits for the first."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def text_of(cell):
    return "".join(output.get("text", "") for output in cell.outputs)


def test_lessons_solutions_checks_and_answers_hold_the_same_exercises():
    everywhere = [HOLES, CHECKS, SOLVED, SOLVED_CHECKS, RIGHT]
    assert [list(numbers) for numbers in everywhere] == 5 * [list(EXERCISES)]


@pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
def test_each_lesson_ends_with_three_to_five_exercises_of_known_kinds(path):
    lesson = str(int(path.name[:2]))
    expected = [n for n in EXERCISES if n.partition(".")[0] == lesson]
    assert 3 <= len(expected) <= 5
    cells = nbformat.read(path, as_version=4).cells
    headings = [
        line
        for cell in cells
        for line in cell.source.splitlines()
        if line.startswith("### Exercise ")
    ]
    titles = [
        f"### Exercise {number} · {kind}: {EXERCISES[number].title}"
        for number in expected
        for kind in KINDS
    ]
    assert len(headings) == len(expected) and set(headings) <= set(titles)


# --- the notebooks ----------------------------------------------------------------


@each_exercise
def test_the_unsolved_lesson_says_not_attempted_and_nothing_else(number):
    assert text_of(HOLES[number]) == ""
    said = text_of(CHECKS[number])
    assert said in ("not attempted yet\n", engine.STILL_OPEN + "\n")


@each_exercise
def test_the_solution_is_the_lessons_cell_with_its_hole_filled(number):
    hole = HOLES[number].source.splitlines()
    solved = SOLVED[number].source.splitlines()
    assert SOLVED_CHECKS[number].source == CHECKS[number].source
    assert text_of(SOLVED_CHECKS[number]).startswith("correct. ")
    if EXERCISES[number].given is not None:
        kept = [line for line in hole if line in solved]
        assert len(hole) - len(kept) <= 3, "more than the bug was changed"
        return
    gaps = [i for i, line in enumerate(hole) if "..." in line]
    assert gaps, "nothing to fill in"
    before, after = hole[: gaps[0]], hole[gaps[-1] + 1 :]
    assert solved[: len(before)] == before
    assert not after or solved[-len(after) :] == after


@each_exercise
def test_the_hole_is_recognized_when_the_cell_is_run(number):
    """The stored outputs say so too; this runs the cell against the checks."""
    exercise = EXERCISES[number]
    if exercise.given is not None:
        assert judge(exercise, exercise.given)[0] == "open"
    else:
        assert judge(exercise, ...)[0] == "open"
        if callable(exercise.right):
            assert judge(exercise, lambda *_: ...)[0] == "open"


# --- the checks -------------------------------------------------------------------


@each_exercise
def test_every_right_answer_is_accepted(number):
    exercise = EXERCISES[number]
    if callable(exercise.right):
        assert len(RIGHT[number]) >= 2, "write two different right answers"
    for answer in [exercise.right, *RIGHT[number]]:
        assert judge(exercise, answer) == ("done", f"correct. {exercise.why}")


@each_exercise
def test_every_mistake_is_called_by_its_own_name(number):
    exercise = EXERCISES[number]
    spoiled = [
        (slip.message, exercise.spoiled((slip,)))
        for slip in exercise.edits
        if not slip.given
    ]
    wholes = [(m, wrong) for m, wrong in exercise.mistakes if wrong != exercise.given]
    assert spoiled or wholes
    for message, wrong in spoiled + wholes:
        assert wrong is not None, f"an edit finds no place: {message}"
        state, text = judge(exercise, wrong)
        assert state == "failing" and text.splitlines()[0] == f"not yet. {message}"


@pytest.mark.parametrize(
    ("number", "words", "answer"),
    [(n, words, answer) for n, wrongs in WRONG.items() for words, answer in wrongs],
)
def test_mistakes_written_otherwise_are_named_too(number, words, answer):
    state, text = judge(EXERCISES[number], answer)
    assert state == "failing" and words in text


@each_exercise
def test_a_third_of_an_exercises_edits_are_pinned_to_their_messages(number):
    """By words that no other of its messages holds: two exchanged turn a test red."""
    exercise = EXERCISES[number]
    messages = {slip.message for slip in exercise.edits}
    said = messages | {message for message, _ in exercise.mistakes}
    found = [[m for m in said if words in m] for words, _ in WRONG[number]]
    pinned = {m for found_in in found if len(found_in) == 1 for m in found_in}
    assert 3 * len(pinned & messages) >= len(messages)


def a_little_off(result, tolerance):
    """The result with its decimals off by five times the tolerance."""
    if isinstance(result, dict):
        return {key: a_little_off(part, tolerance) for key, part in result.items()}
    if isinstance(result, (tuple, list)):
        return [a_little_off(part, tolerance) for part in result]
    decimal = result.is_floating_point() if isinstance(result, torch.Tensor) else False
    if not (decimal or isinstance(result, float)):
        return result
    return result + 5 * tolerance * (1 + abs(result))


def spoiled_a_little(exercise):
    """The right answer with every decimal a little off."""
    right, tolerance = exercise.right, exercise.tolerance
    if not callable(right):
        return a_little_off(right, tolerance)
    if not isinstance(right, type):
        return lambda *arguments: a_little_off(right(*arguments), tolerance)

    class Off(right):
        def forward(self, *arguments):
            return a_little_off(super().forward(*arguments), tolerance)

    return Off


@each_exercise
def test_an_answer_off_by_five_times_the_tolerance_is_refused(number):
    exercise = EXERCISES[number]
    with_effects = {"4.5", "6.1", "6.5", "12.3"}  # what is returned is not judged
    expected = list(engine.Outcomes(exercise, exercise.right))
    if decimals(expected) and number not in with_effects:
        assert judge(exercise, spoiled_a_little(exercise))[0] == "failing"


def decimals(result):
    parts = result.values() if isinstance(result, dict) else result
    if isinstance(result, (dict, tuple, list)):
        return any(decimals(part) for part in parts)
    return isinstance(result, float) or (
        isinstance(result, torch.Tensor) and result.is_floating_point()
    )


@pytest.fixture
def made(monkeypatch):
    """An exercise outside the lessons: double the numbers."""
    monkeypatch.setattr(engine, "EXERCISES", {})

    def inputs():
        return [(torch.tensor([[1.0, 2.0]]),), (torch.arange(6.0).reshape(2, 3),)]

    exercise = engine.Exercise("0.1", "Double", "Twice is twice.", inputs)
    exercise.reference(lambda x: 2 * x)
    exercise.mistake("Once more.")(lambda x: x)
    return exercise


@pytest.mark.parametrize(
    ("answer", "state", "words"),
    [
        (lambda x: x + x, "done", "Twice is twice."),
        (lambda x: x.mul_(2), "done", ""),
        (lambda x: 2 * x.double(), "done", ""),
        (lambda x: (2 * x).tolist(), "done", ""),
        (lambda x: ..., "open", "not attempted yet"),
        (lambda x: x.clone(), "failing", "Once more."),
        (lambda x: None, "failing", "returns None"),
        (lambda x: 2 * x.T, "failing", "axes are in another order"),
        (lambda x: 2 * x[None], "failing", "(1, 1, 2), not (1, 2)"),
        (lambda x: 2 * x[:, :1], "failing", "(1, 1), not (1, 2)"),
        (lambda x: 6 * x, "failing", "Every number is 3 times"),
        (lambda x: 2 * x + 0.5, "failing", "Every number is 0.5 more than"),
        (lambda x: 2 * x.flip(-1), "failing", "wrong places"),
        (lambda x: x / 0, "failing", "nan or infinite"),
        (lambda x: 2 * x + x**9, "failing", "got     [0, 0:2] = [3, 516]"),
        (lambda x: "two", "failing", "of type Tensor, not str"),
        (lambda: 2, "failing", "could not be called"),
        (lambda x: x.no_such_thing, "failing", "of your code raised AttributeError"),
        (lambda x: torch.zeros(2) @ torch.zeros(3), "failing", "@ torch.zeros(3)"),
        (7, "failing", "should be a function or class, not 7"),
    ],
)
def test_what_is_said_of_an_answer(made, answer, state, words):
    said_state, text = judge(made, answer)
    assert said_state == state and words in text


def test_slips_in_several_parts_of_an_answer_are_each_named(made):
    exercise = engine.Exercise("0.3", "Three counts", "So it is.")
    exercise.reference({"a": 1, "b": 2, "c": 3})
    exercise.mistake("One too many in a.")(exercise.right | {"a": 2})
    exercise.mistake("Twice b.")(exercise.right | {"b": 4})
    exercise.mistake("All the same.")({"a": 1, "b": 1, "c": 1})

    def said(**answer):
        return judge(exercise, exercise.right | answer)[1]

    assert said(a=2, b=4) == "not yet. One too many in a. Twice b."
    assert said(b=4, c=9) == "not yet. Twice b. Look again at 'c'."
    assert said(b=1, c=1) == "not yet. All the same."
    assert said(a=7, c=9) == "not yet. 2 of 3 values are not right yet:\n  a: 7\n  c: 9"
    assert said(d=7) == "not yet. Nobody asked for 'd'."


def test_a_key_is_shown_as_the_learner_reads_it(made):
    exercise = engine.Exercise("0.4", "Both modes", "Both.", call=lambda a: a())
    exercise.reference(lambda: {"in eval mode": 1, "in train mode": 2})
    text = judge(exercise, lambda: {"in eval mode": 1, "in train mode": 3})[1]
    assert "  in train mode: expected 2, got 3" in text
    assert "in eval mode" not in text


def test_a_half_finished_function_is_more_than_no_attempt(made):
    def half(x):
        x = 2 * x
        return ...

    expected = "open", "not complete yet. Your code still returns `...`."
    assert judge(made, half) == expected
    assert judge(made, lambda x: ...) == ("open", "not attempted yet")


def test_a_bug_left_as_it_was_given_is_no_attempt(made):
    """Whichever way the lesson and the checks import a name."""
    given, same_bug, fixed = {}, {}, {}
    body = "def answer(x):\n    for _ in range(2):\n        x = {}\n    return x"
    exec("import torch\n" + body.format("torch.neg(torch.neg(x))"), given)
    same_bug["torch"] = fixed["torch"] = torch
    exec(body.format("torch.neg(torch.neg(x))  # why?"), same_bug)
    exec(body.format("torch.neg(x.neg())"), fixed)
    made.bug("Still once.")(given["answer"])
    assert judge(made, same_bug["answer"])[0] == "open"
    assert judge(made, fixed["answer"])[0] == "failing"


def helper_of_the_lesson(x):
    raise ValueError("from the lesson")


def test_the_line_shown_is_the_answers_own(made):
    """Also where the exception comes from a function that another cell defines."""
    namespace = {"helper_of_the_lesson": helper_of_the_lesson}
    code = "def answer(x):\n    x = 2 * x\n    return helper_of_the_lesson(x)\n"
    exec(compile(code, "learners-cell", "exec"), namespace)
    text = judge(made, namespace["answer"])[1]
    assert "Line 3 of your code raised ValueError: from the lesson" in text


def test_the_plain_report_shows_the_first_failing_input_around_its_difference(made):
    """By the name that the learner gave the argument, with digits enough to differ."""
    text = judge(made, lambda numbers: 2 * numbers + (numbers > 4) * 0.0012)[1]
    assert text.splitlines() == [
        "not yet. 1 of 6 numbers differ.",
        "It fails on 1 of 2 inputs, first on:",
        "  numbers = [[0, 1, 2], [3, 4, 5]]",
        "  expected[1, 0:3] = [6, 8, 10]",
        "  got     [1, 0:3] = [6, 8, 10.001]",
    ]


ODD_ANSWERS = [
    lambda *arguments: torch.randn(40, 50) * 1e-9,
    lambda *arguments: {f"a finding of mine {i}": "long " * 50 for i in range(30)},
    lambda *arguments: "a text of\nmany lines\n" * 50,
    lambda *arguments: [[1, 2], [3]],
    lambda *arguments: torch.zeros(0),
    lambda *arguments: torch.tensor(float("nan")),
    lambda *arguments: [None] * 100,
    lambda: None,
]


@each_exercise
def test_a_plain_report_has_at_most_eight_lines_of_a_hundred_characters(number):
    exercise = EXERCISES[number]
    for function in ODD_ANSWERS:
        answer = function if callable(exercise.right) else function()
        assert judge(exercise, answer)[0] == "failing"
        sides = [list(engine.Outcomes(exercise, a)) for a in (exercise.right, answer)]
        if not exercise.agree(*sides):
            lines = engine.plain_report(exercise, answer, *sides).splitlines()
            assert len(lines) <= 8 and max(map(len, lines)) <= 100


def test_an_integer_must_be_exact_and_may_be_written_as_a_quotient(made):
    exercise = engine.Exercise("0.2", "Count", "So many.")
    exercise.reference(163_009_536)
    assert judge(exercise, 2 * 163_009_536 / 2)[0] == "done"
    for kind in Fraction, Decimal, float, torch.tensor, lambda n: torch.tensor([[n]]):
        assert judge(exercise, kind(163_009_536))[0] == "done"
        assert judge(exercise, kind(163_009_537))[0] == "failing"
    assert judge(exercise, "163009536")[0] == "failing"
    assert judge(exercise, {"total": ...}) == ("open", "not attempted yet")
    half = judge(exercise, {"total": ..., "matrices": 3})
    assert half == ("open", "not complete yet. Still to fill in: 'total'.")


# --- mistakes as edits ------------------------------------------------------------

PAGE = """
a → b ; c⏎d →
e
→ f
    Said of two.
    It goes on.
given: g → h
    The bug.
---
i → j
    Rare.
"""


def test_a_page_of_slips_is_read():
    first, second, bug, rare = read_slips(PAGE)
    assert first.edits == (("a", "b"), ("c⏎d", ""))
    assert second.edits == (("e", "f"),)
    assert first.message == second.message == "Said of two. It goes on."
    assert bug.given and bug.usual and not rare.usual


@pytest.mark.parametrize(
    "page", ["a → b", "a\n    No arrow.", "a → b\n    Said.\n c → d\n    Not indented."]
)
def test_a_page_that_cannot_be_read_is_refused(page):
    with pytest.raises(ValueError):
        read_slips(page)


def test_edits_find_every_place_and_the_longest_comes_first():
    source = "def f(x):\n    y = x + 1\n    return y + x\n"
    assert edited(source, (("x + 1", "x"), ("x", "z"))).count("z") == 3
    assert edited(source, (("y = x + 1⏎return", "return"),)).count("\n") == 2
    assert edited(source, (("return y", "y *= 2⏎return y"),)).endswith(
        "    y *= 2\n    return y + x\n"
    )
    assert edited(source, (("y", "z"), ("w", "v"))) is None


def test_slips_come_together_unless_they_share_words_or_a_place():
    page = "a → b\n    One. More.\na → c\n    Two.\nd → e\n    One. More.\n"
    one, two, three = read_slips(page)
    assert list(groups([one, two, three], 2, usual_only=False)) == [(two, three)]
    assert joined((two, three)) == "Two things at once. Two. One."
    assert first_sentence("It is 1.5 long? `x` is. So.") == "It is 1.5 long?"


def test_two_slips_at_once_are_named_and_an_edit_without_a_place_is_found(made):
    exercise = engine.Exercise("0.5", "Line", "So it is.", made.inputs)
    exercise.reference(right_line)
    exercise.slips(
        "3 * x → 2 * x\n    The factor is wrong. Look.\n1 → 2\n    The shift is wrong.\n"
    )
    text = judge(exercise, lambda x: x + x + 2)[1]
    assert (
        text == "not yet. Two things at once. The factor is wrong. The shift is wrong."
    )
    (slip,) = read_slips("5 * x → x\n    It is not there.")
    assert exercise.spoiled((slip,)) is None


def right_line(x):
    return 3 * x + 1


# --- progress ---------------------------------------------------------------------


@pytest.fixture
def progress_file(monkeypatch, tmp_path):
    monkeypatch.setattr(notes, "PROGRESS_FILE", tmp_path / "my-progress.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "my-progress.json"


def test_progress_is_kept_in_a_file_and_shown(made, progress_file, capsys):
    check("0.1", lambda x: x + x)
    assert json.loads(progress_file.read_text()) == {"0.1": "done"}
    progress()
    said = capsys.readouterr().out
    assert "0       0.1                 -                   -\n1 of 1 done" in said
    check("0.1", lambda x: x)
    progress()
    assert "1 of 1 done" in capsys.readouterr().out, "solved once is solved"
    assert all(name.startswith("my-") for name in os.listdir(progress_file.parent))


def test_progress_lies_beside_the_lessons_under_the_name_that_the_readme_gives():
    assert notes.PROGRESS_FILE == ROOT / "notebooks/my-progress.json"
    assert "`notebooks/my-progress.json`" in (ROOT / "README.md").read_text("utf-8")


def test_a_write_that_breaks_off_leaves_the_progress_whole(
    made, progress_file, monkeypatch, capsys
):
    def full(descriptor_or_path, text, **_):
        descriptor_or_path.open("w").write(text[:3])
        raise OSError("disk full")

    progress_file.write_text('{"0.1": "failing"}')
    monkeypatch.setattr(Path, "write_text", full)
    check("0.1", lambda x: x + x)
    assert (
        "progress not noted in my-progress.json: disk full" in capsys.readouterr().out
    )
    assert json.loads(progress_file.read_text()) == {"0.1": "failing"}


NOTE_MANY = """
import pathlib, sys
from lesson_checks import notes
notes.PROGRESS_FILE = pathlib.Path(sys.argv[1])
for i in range(100):
    notes.note_progress(f"{sys.argv[2]}.{i}", "done")
"""


def test_two_kernels_that_note_progress_at_once_lose_nothing(progress_file):
    commands = [[sys.executable, "-c", NOTE_MANY, progress_file, n] for n in "12"]
    kernels = [subprocess.Popen(command) for command in commands]
    assert [kernel.wait(timeout=120) for kernel in kernels] == [0, 0]
    assert len(json.loads(progress_file.read_text())) == 200


def test_an_attempt_that_fails_is_listed_so(made, progress_file, capsys):
    check(0.1, lambda x: x)
    progress()
    assert (
        "0       -                   0.1                 -" in capsys.readouterr().out
    )


@pytest.mark.parametrize("content", ["{half", "[1]", "", '{"1.1": ["done"]}'])
def test_a_damaged_progress_file_is_named_and_kept(
    made, progress_file, capsys, content
):
    progress_file.write_text(content)
    check("0.1", lambda x: x + x)
    progress()
    said = capsys.readouterr().out
    assert said.startswith("correct. ") and said.count("my-progress.json") == 2
    assert progress_file.read_text() == content


def test_running_a_solution_is_no_progress(made, progress_file, monkeypatch):
    folder = progress_file.parent / "exercise-solutions"
    folder.mkdir()
    monkeypatch.chdir(folder)
    check("0.1", lambda x: x + x)
    assert not progress_file.exists()


def test_checking_leaves_the_notebooks_random_numbers_alone(made, progress_file):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    check("0.1", lambda x: x + torch.rand_like(x))
    assert torch.equal(torch.rand(1), expected)


def test_an_unknown_exercise_is_named(made, progress_file, capsys):
    check("9.9", 1)
    assert "no exercise 9.9; there are 0.1" in capsys.readouterr().out
