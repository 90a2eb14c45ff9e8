"""What judges an answer, says what is wrong with it, and keeps the progress.

An answer is right if it agrees with the one right source on every input, however it
is written. A mistake is an edit of that source, with what to say of it; an answer is
named by the mistake if it agrees with the edited source on every input. Mistakes that
come together need no words of their own: edits are combined.

To write an exercise, take one of lesson 2 as a pattern:

1. Inputs: a function that returns argument tuples, the smallest first, edges included.
2. ``ex = Exercise(number, title, why, inputs)``; ``why`` follows "correct".
3. The right answer, under ``@ex.reference``, or, where a value is asked for, a function
   that computes it, under ``@ex.value``. Give it a name of its own, and spread it over
   lines and variables so that each mistake is one short edit.
4. ``ex.slips(page)``. A line ``old → new`` changes ``old`` wherever it stands; several
   edits at once are parted by `` ; ``, a line break in a snippet is ``⏎``, and a long
   line goes on in one that begins with ``→`` or ``;``. Edits in a row share the indented message
   below them. Its first sentence must hold alone, and be true of any such answer.
5. Order: the usual mistakes, a line ``---``, the rarer ones. All pairs are tried, and
   threes of usual ones; with ``usual_pairs=True``, for counts, only usual pairs are.
6. "Find the bug": ``given: old → new`` is the code in the lesson, a slip like others.
7. ``@ex.mistake(message)`` takes a whole wrong answer: another algorithm, or a value.
8. ``call(answer, *arguments)`` makes what is compared: of a class, of side effects. If
   it returns a dictionary, its keys are what the learner reads: write them as such.
9. ``needs={key: [keys]}`` says on which keys of a dictionary another one rests; without
   it, on all before. A key is explained only where those that it rests on are.
10. Add answers to ``tests/answers_*.py``: two right ones, and for the usual mistakes
    wrong ones, written in another way, each with words that must be said.
"""

import dis
import itertools
import textwrap
import warnings
from collections.abc import Callable, Iterable
from types import CodeType

import torch

from . import notes
from .compare import as_tensor, contains_ellipsis, different_keys, same
from .report import functions_of, own_line, plain_report, what_was_raised
from .slips import Slip, edited, groups, joined, read_slips, run_source, source_of

EXERCISES: dict[str, "Exercise"] = {}
STILL_OPEN = "not complete yet. Your code still returns `...`."

__all__ = ["EXERCISES", "Exercise", "as_tensor", "check", "judge", "progress", "same"]


class Exercise:
    """One exercise; creating it registers it. The module's docstring says how."""

    def __init__(
        self,
        number: str,
        title: str,
        why: str,
        inputs: Callable[[], list[tuple]] = lambda: [()],
        call: Callable | None = None,
        tolerance: float = 1e-5,
        usual_pairs: bool = False,
        needs: dict[str, list[str]] | None = None,
    ):
        self.number, self.title, self.why = number, title, why
        self.inputs, self.tolerance = inputs, tolerance
        self.call = call or (lambda answer, *args: answer(*args))
        self.usual_pairs, self.needs, self.n = usual_pairs, needs, None
        self.right, self.given, self.source = None, None, None
        self.mistakes: list[tuple[str, object]] = []
        self.edits: list[Slip] = []
        self.made: dict[tuple[Slip, ...], Outcomes | None] = {}
        if number in EXERCISES:
            raise ValueError(f"there are two exercises {number}")
        EXERCISES[number] = self

    def reference(self, answer):
        """Register the answer that is right."""
        self.right = answer
        return answer

    def value(self, compute):
        """Register the function that computes the value asked for."""
        self.right, self.source = compute(), compute
        return compute

    def slips(self, page: str) -> None:
        """Register edits of the right source, each with what to say of it."""
        self.source = self.source or self.right
        self.edits += read_slips(page)
        for slip in self.edits:
            if slip.given:
                self.given = self.spoiled((slip,))

    def mistake(self, message: str):
        """Register an answer that is wrong as a whole, and what to say of it."""

        def register(answer):
            self.mistakes.append((message, answer))
            return answer

        return register

    def bug(self, message: str):
        """Register the faulty code that the learner is given, as it stands there."""

        def register(answer):
            self.given = answer
            return self.mistake(message)(answer)

        return register

    def spoiled(self, group: tuple[Slip, ...]):
        """The answer with these slips; None if the edits have no place together."""
        edits = tuple(edit for slip in group for edit in slip.edits)
        source = edited(source_of(self.source), edits)
        if source is None:
            return None
        made = run_source(source, self.source)
        return made if self.source is self.right else made()

    def outcomes_of(self, group: tuple[Slip, ...]) -> "Outcomes | None":
        """What these slips lead to, kept from one check to the next."""
        if group not in self.made:
            try:
                answer = self.spoiled(group)
            except Exception:  # noqa: BLE001 - a pair of edits need not make sense
                answer = None
            self.made[group] = None if answer is None else Outcomes(self, answer)
        return self.made[group]

    def n_inputs(self) -> int:
        if self.n is None:
            self.n = len(list(self.inputs()))
        return self.n

    def arguments(self, number: int) -> tuple:
        return list(self.inputs())[number]

    def outcome(self, answer, number: int):
        """What the answer makes of one input: a value, or the exception raised."""
        if not callable(answer):
            return answer
        arguments = self.arguments(number)
        torch.default_generator.manual_seed(0)
        try:
            return self.call(answer, *arguments)
        except Exception as error:  # noqa: BLE001 - whatever the learner's code does
            return error

    def agree(self, first: Iterable, second: Iterable) -> bool:
        pairs = zip(first, second, strict=False)
        return all(same(a, b, self.tolerance) for a, b in pairs)


class Outcomes:
    """What an answer makes of each input, computed when first asked for and kept."""

    def __init__(self, exercise: Exercise, answer):
        self.exercise, self.answer, self.known = exercise, answer, []
        self.n = exercise.n_inputs() if callable(answer) else 1

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, number: int):
        if number >= self.n:
            raise IndexError(number)
        while len(self.known) <= number:
            with warnings.catch_warnings(action="ignore"):
                found = self.exercise.outcome(self.answer, len(self.known))
            self.known.append(found)
        return self.known[number]


def is_open(answer, exercise: Exercise) -> bool:
    """Whether the hole in the exercise's cell is still there."""
    if contains_ellipsis(answer):
        return True
    if exercise.given is not None and compiled(answer) == compiled(exercise.given):
        return True
    return callable(answer) and contains_ellipsis(exercise.outcome(answer, 0))


def compiled(answer) -> list:
    """What Python made of a function, or of a class's functions, names aside."""
    return [essence(function.__code__) for function in functions_of(answer)]


def essence(code: CodeType) -> list[tuple]:
    """The instructions, without what depends on how a name was imported."""
    found = []
    for instruction in dis.get_instructions(code):
        operation, argument = instruction.opname, instruction.argval
        if operation in ("PUSH_NULL", "RESUME", "NOP"):
            continue
        if isinstance(argument, CodeType):
            argument = essence(argument)
        if instruction.opcode in dis.hasjrel + dis.hasjabs:
            argument = None
        found.append((operation.replace("LOAD_METHOD", "LOAD_ATTR"), argument))
    return found


# --- what is said -----------------------------------------------------------------


def check(number: str, answer) -> None:
    """Judge an answer to an exercise, say what was found, and note the progress."""
    number = str(number)
    if number not in EXERCISES:
        print(f"There is no exercise {number}; there are {', '.join(EXERCISES)}.")
        return
    exercise = EXERCISES[number]
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for tensors this small a second thread only waits
    try:
        with torch.random.fork_rng(devices=[]):
            state, text = judge(exercise, answer)
    finally:
        torch.set_num_threads(n_threads)
    for line in text.splitlines():  # JupyterLab breaks long lines inside words
        print(textwrap.fill(line, 88, break_long_words=False, break_on_hyphens=False))
    notes.note_progress(number, state)


def judge(exercise: Exercise, answer) -> tuple[str, str]:
    """Return the state, "open", "done" or "failing", and what to say."""
    if is_open(answer, exercise):
        return "open", what_is_missing(answer, exercise)
    if callable(exercise.right) != callable(answer):
        wanted = "a function or class" if callable(exercise.right) else "a value"
        shown = "a function" if callable(answer) else repr(answer)
        return "failing", f"not yet. The answer should be {wanted}, not {shown}."
    expected = list(Outcomes(exercise, exercise.right))
    got = list(Outcomes(exercise, answer))
    if exercise.agree(expected, got):
        return "done", f"correct. {exercise.why}"
    if message := name_of(exercise, expected, got) or by_key(exercise, answer):
        lines = [f"not yet. {message}"]
        if isinstance(got[0], Exception) and own_line(got[0], answer):
            lines.append(what_was_raised(got[0], answer))
        return "failing", "\n".join(lines)
    return "failing", f"not yet. {plain_report(exercise, answer, expected, got)}"


def name_of(exercise: Exercise, expected: list, got: list) -> str | None:
    """The mistake, or the mistakes at once, that lead to what the answer does."""

    def explains(outcomes) -> bool:
        return outcomes is not None and alike(exercise, outcomes, got)

    def matching(found: Iterable[tuple[Slip, ...]]) -> list[str]:
        return [
            joined(group) for group in found if explains(exercise.outcomes_of(group))
        ]

    for slip in exercise.edits:
        if explains(exercise.outcomes_of((slip,))):
            return slip.message
    for message, wrong in exercise.mistakes:
        if explains(Outcomes(exercise, wrong)):
            return message
    usual = {group for group in groups(exercise.edits, 2, usual_only=True)}
    pairs = list(groups(exercise.edits, 2, exercise.usual_pairs))
    for found in (
        [pair for pair in pairs if pair in usual],
        [pair for pair in pairs if pair not in usual],
        groups(exercise.edits, 3, usual_only=True),
    ):
        if messages := matching(found):
            return messages[0] if len(set(messages)) == 1 else None
    return None


def alike(exercise: Exercise, outcomes: Iterable, got: list) -> bool:
    """Whether outcomes are the answer's; where each is raised, to the very words."""
    if all(isinstance(outcome, Exception) for outcome in got):
        pairs = zip(outcomes, got, strict=False)
        return all(type(a) is type(b) and str(a) == str(b) for a, b in pairs)
    return exercise.agree(outcomes, got)


def by_key(exercise: Exercise, answer) -> str | None:
    """What is wrong with each part of a dictionary, if a mistake explains a part."""
    right = exercise.right
    if not (isinstance(answer, dict) and isinstance(right, dict)):
        return None
    wrong = different_keys(right, answer, exercise.tolerance)
    named = [(slip.message, exercise.outcomes_of((slip,))) for slip in exercise.edits]
    named = [(message, outcomes[0]) for message, outcomes in named if outcomes]
    explained: dict = {}
    for message, spoiled in named + exercise.mistakes:
        keys = different_keys(right, spoiled, exercise.tolerance)
        pairs = [(spoiled.get(key), answer.get(key)) for key in keys]
        if set(keys) <= set(wrong) - set(explained) and exercise.agree(*zip(*pairs)):
            explained |= dict.fromkeys(keys, message)
    while shaky := [
        key for key in explained if unexplained(exercise, key, wrong, explained)
    ]:
        gone = {explained[key] for key in shaky}
        explained = {key: said for key, said in explained.items() if said not in gone}
    if not explained:
        return None
    said = list(dict.fromkeys(explained.values()))
    if rest := [repr(key) for key in wrong if key not in explained]:
        said.append(f"Look again at {', '.join(rest)}.")
    return " ".join(said)


def unexplained(exercise: Exercise, key, wrong: list, explained: dict) -> list:
    """The wrong keys without an explanation on which a key rests."""
    keys = list(exercise.right)
    before = keys[: keys.index(key)] if key in keys else keys
    needed = before if exercise.needs is None else exercise.needs.get(key, [])
    return [k for k in needed if k in wrong and k not in explained]


def what_is_missing(answer, exercise: Exercise) -> str:
    if isinstance(answer, dict):
        missing = [repr(k) for k, value in answer.items() if contains_ellipsis(value)]
        if len(missing) < len(answer):
            return f"not complete yet. Still to fill in: {', '.join(missing)}."
    if (
        any(len(compiled(f)[0]) > 2 for f in functions_of(answer))
        and not exercise.given
        and not isinstance(answer, type)  # its other functions are the lesson's
    ):
        return STILL_OPEN
    return "not attempted yet"


# --- progress ---------------------------------------------------------------------


def progress() -> None:
    """Print which exercises are done, open and failing, lesson by lesson."""
    name = notes.PROGRESS_FILE.name
    try:
        noted = notes.read_progress()
    except (OSError, ValueError, TypeError) as error:
        print(f"{name} cannot be read ({error}); delete it to start anew.")
        return
    print(f"{'lesson':8}{'done':20}{'failing':20}open")
    for lesson, numbers in itertools.groupby(EXERCISES, lambda n: n.partition(".")[0]):
        states: dict[str, list] = {"done": [], "failing": [], "open": []}
        for number in numbers:
            states.get(noted.get(number), states["open"]).append(number)
        columns = [" ".join(column) or "-" for column in states.values()]
        print(f"{lesson:8}{columns[0]:20}{columns[1]:20}{columns[2]}")
    done = sum(noted.get(number) == "done" for number in EXERCISES)
    print(f"{done} of {len(EXERCISES)} done; delete {name} to start anew.")
