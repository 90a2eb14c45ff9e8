"""What judges an answer, says what is wrong with it, and keeps the progress.

Each exercise has a reference, inputs, and the mistakes that learners make, each an
answer that makes it and the sentence to say. An answer is right if it agrees with the reference on every input, however it is
written; it is named by a mistake if it agrees with that one on every input.
"""

import dis
import inspect
import itertools
import textwrap
import traceback
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from types import CodeType

import torch
from torch import Tensor

from . import notes

EXERCISES: dict[str, "Exercise"] = {}


class Exercise:
    """One exercise; creating it registers it.

    ``inputs()`` makes the argument tuples, the smallest first; ``call(answer, *args)``
    applies an answer to one of them, for answers that are classes, say. An exercise
    without inputs asks for a value. ``why`` follows "correct".
    """

    def __init__(
        self,
        number: str,
        title: str,
        why: str,
        inputs: Callable[[], list[tuple]] = lambda: [()],
        call: Callable | None = None,
        tolerance: float = 1e-5,
    ):
        self.number, self.title, self.why = number, title, why
        self.inputs, self.tolerance = inputs, tolerance
        self.call = call or (lambda answer, *args: answer(*args))
        self.right, self.given = None, None
        self.mistakes: list[tuple[str, object]] = []
        if number in EXERCISES:
            raise ValueError(f"there are two exercises {number}")
        EXERCISES[number] = self

    def reference(self, answer):
        """Register the answer that is right."""
        self.right = answer
        return answer

    def mistake(self, message: str):
        """Register an answer that is wrong, and what to say of it."""

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

    def outcomes(self, answer) -> Iterator:
        """What the answer makes of each input: a value, or the exception raised."""
        if not callable(answer):
            yield answer
            return
        for arguments in self.inputs():
            torch.default_generator.manual_seed(0)
            try:
                outcome = self.call(answer, *arguments)
            except Exception as error:  # noqa: BLE001 - whatever the learner's code does
                outcome = error
            yield outcome

    def agree(self, first: Iterable, second: Iterable) -> bool:
        pairs = zip(first, second, strict=False)
        return all(same(a, b, self.tolerance) for a, b in pairs)


def same(expected, got, tolerance: float) -> bool:
    """Whether two results are equal, to rounding where they are decimals."""
    if isinstance(expected, Exception) or isinstance(got, Exception):
        return type(expected) is type(got)
    if isinstance(expected, dict) and isinstance(got, dict):
        keys = expected.keys() | got.keys()
        missing = object()
        pairs = [(expected.get(k, missing), got.get(k, missing)) for k in keys]
        return all(same(a, b, tolerance) for a, b in pairs)
    if isinstance(expected, (tuple, list)) and isinstance(got, (tuple, list)):
        pairs = zip(expected, got, strict=False)
        equal_length = len(expected) == len(got)
        return equal_length and all(same(a, b, tolerance) for a, b in pairs)
    expected, got = as_tensor(expected), as_tensor(got)
    if not (isinstance(expected, Tensor) and isinstance(got, Tensor)):
        return type(expected) is type(got) and expected == got
    if expected.shape != got.shape or kind_of(got) not in accepted_kinds(expected):
        return False
    if kind_of(expected) == "integer":
        return torch.equal(expected.double(), got.double())
    bounds = {"rtol": tolerance, "atol": tolerance, "equal_nan": True}
    return torch.allclose(expected.double(), got.double(), **bounds)


def as_tensor(result):
    """A tensor where the result is one, a number, or numbers in a list; else itself."""
    if isinstance(result, Tensor):
        return result.detach().cpu()
    if isinstance(result, (float, Fraction)):
        return torch.tensor(float(result), dtype=torch.float64)
    try:
        return torch.as_tensor(result)
    except (TypeError, ValueError, RuntimeError):
        return result


def kind_of(tensor: Tensor) -> str:
    if tensor.dtype == torch.bool:
        return "bool"
    return "decimal" if tensor.is_floating_point() else "integer"


def accepted_kinds(expected: Tensor) -> tuple[str, ...]:
    kind = kind_of(expected)
    if kind == "decimal" or (kind == "integer" and expected.ndim == 0):
        return "decimal", "integer"
    return (kind,)


def is_open(exercise: Exercise, answer) -> bool:
    """Whether the hole in the exercise's cell is still there."""
    if contains_ellipsis(answer):
        return True
    if exercise.given is not None and compiled(answer) == compiled(exercise.given):
        return True
    return callable(answer) and contains_ellipsis(next(exercise.outcomes(answer)))


def contains_ellipsis(value) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return any(contains_ellipsis(item) for item in value)
    return value is ...


def functions_of(answer) -> list:
    """A function, or the functions of a class, without decorators."""
    found = vars(answer).values() if isinstance(answer, type) else [answer]
    found = [inspect.unwrap(f) for f in found if callable(f)]
    return [f for f in found if hasattr(f, "__code__")]


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
    if is_open(exercise, answer):
        return "open", what_is_missing(answer)
    if callable(exercise.right) != callable(answer):
        wanted = "a function or class" if callable(exercise.right) else "a value"
        shown = "a function" if callable(answer) else repr(answer)
        return "failing", f"not yet. The answer should be {wanted}, not {shown}."
    expected = list(exercise.outcomes(exercise.right))
    got = list(exercise.outcomes(answer))
    if exercise.agree(expected, got):
        return "done", f"correct. {exercise.why}"
    for message, wrong in exercise.mistakes:
        if exercise.agree(exercise.outcomes(wrong), got):
            lines = [f"not yet. {message}"]
            if isinstance(got[0], Exception) and own_line(got[0], answer):
                lines.append(what_was_raised(got[0], answer))
            return "failing", "\n".join(lines)
    if sentences := by_key(exercise, answer):
        return "failing", f"not yet. {sentences}"
    return "failing", f"not yet. {report(exercise, answer, expected, got)}"


def by_key(exercise: Exercise, answer) -> str | None:
    """What is wrong with each part of a dictionary, if a mistake explains a part."""
    if not (isinstance(answer, dict) and isinstance(exercise.right, dict)):
        return None
    open_keys, sentences = wrong_keys(exercise, answer), []
    for message, wrong in exercise.mistakes:
        keys = wrong_keys(exercise, wrong) if isinstance(wrong, dict) else []
        explained = [
            same(wrong.get(k), answer.get(k), exercise.tolerance) for k in keys
        ]
        if keys and all(explained) and set(keys) <= set(open_keys):
            open_keys = [key for key in open_keys if key not in keys]
            sentences.append(message)
    if not sentences:
        return None
    return " ".join(sentences + [f"Look again at {key!r}." for key in open_keys])


def wrong_keys(exercise: Exercise, answer: dict) -> list:
    tolerance = exercise.tolerance
    return [
        key
        for key, value in exercise.right.items()
        if not same(value, answer.get(key), tolerance)
    ]


def what_is_missing(answer) -> str:
    if isinstance(answer, dict):
        missing = [repr(k) for k, value in answer.items() if contains_ellipsis(value)]
        if len(missing) < len(answer):
            return f"not complete yet. Still to fill in: {', '.join(missing)}."
    return "not attempted yet"


def report(exercise: Exercise, answer, expected: list, got: list) -> str:
    """The plain report: the smallest failing input, expected and got."""
    failing = [
        i
        for i, (a, b) in enumerate(zip(expected, got, strict=False))
        if not same(a, b, exercise.tolerance)
    ]
    first = failing[0]
    if isinstance(got[first], Exception):
        return what_was_raised(got[first], answer)
    if got[first] is None and callable(exercise.right):
        return "Your function returns None: is a `return` missing, or never reached?"
    lines = [difference(expected[first], got[first], exercise.tolerance)]
    arguments = exercise.inputs()[first]
    if arguments:
        lines.append(f"It fails on {len(failing)} of {len(got)} inputs; the smallest:")
        lines += [
            f"  argument {i}: {show(a)}" for i, a in enumerate(arguments, start=1)
        ]
        lines.append(f"  expected:   {show(expected[first])}")
        lines.append(f"  got:        {show(got[first])}")
    return "\n".join(lines)


def what_was_raised(error: Exception, answer) -> str:
    """Show an exception as the learner's own, with the line of the answer it left."""
    said = f"{type(error).__name__}: {error}"
    line = own_line(error, answer)
    if line is None:
        return f"Your answer could not be called as the task says: {said}"
    return f"Line {line.lineno} of your code raised {said}\n    {line.line}"


def own_line(error: Exception, answer) -> traceback.FrameSummary | None:
    files = {function.__code__.co_filename for function in functions_of(answer)}
    frames = traceback.extract_tb(error.__traceback__)
    return next((f for f in reversed(frames) if f.filename in files), None)


def difference(expected, got, tolerance: float) -> str:
    """Say in one sentence how a result differs from the expected one."""
    if isinstance(expected, Exception):
        wanted = f"{type(expected).__name__} ({expected})"
        return f"This input should be refused with a {wanted}."
    if isinstance(expected, dict) and isinstance(got, dict):
        if unknown := got.keys() - expected.keys():
            return f"Nobody asked for {', '.join(map(repr, unknown))}."
        wrong = [k for k in expected if not same(expected[k], got.get(k), tolerance)]
        return f"Look again at {', '.join(map(repr, wrong))}."
    expected_tensor, got_tensor = as_tensor(expected), as_tensor(got)
    if not (isinstance(expected_tensor, Tensor) and isinstance(got_tensor, Tensor)):
        if type(expected) is not type(got):
            wanted = type(expected).__name__
            return f"The answer should be of type {wanted}, not {type(got).__name__}."
        return "That is not the expected value."
    if expected_tensor.shape != got_tensor.shape:
        return shape_difference(expected_tensor, got_tensor, tolerance)
    if kind_of(got_tensor) not in accepted_kinds(expected_tensor):
        wanted = kind_of(expected_tensor)
        return f"The numbers should be of kind {wanted}, not {kind_of(got_tensor)}."
    return value_difference(expected_tensor.double(), got_tensor.double(), tolerance)


def shape_difference(expected: Tensor, got: Tensor, tolerance: float) -> str:
    shapes = f"The shape is {tuple(got.shape)}, not {tuple(expected.shape)}"
    for order in itertools.permutations(range(got.ndim)):
        if same(expected, got.permute(order), tolerance):
            return f"{shapes}; the axes are in another order."
    reshaped = got.reshape(expected.shape) if got.numel() == expected.numel() else got
    if same(expected, reshaped, tolerance):
        return f"{shapes}; the numbers of this input are right."
    return f"{shapes}."


def value_difference(expected: Tensor, got: Tensor, tolerance: float) -> str:
    bounds = {"rtol": tolerance, "atol": tolerance}
    if not got.isfinite().all() and expected.isfinite().all():
        bad = int((~got.isfinite()).sum())
        return f"{bad} of {got.numel()} numbers are nan or infinite."
    if expected.ndim == 0:
        return f"The value is {show(got)}; that is not the expected one."
    where = ~torch.isclose(expected, got, **bounds)
    ratio, gap = got / expected, got - expected
    for what, size in (("times", ratio), ("more than", gap)):
        usual = size[where].median() if where.any() else None
        if usual is not None and usual.isfinite() and where.sum() > 1:
            restored = expected * usual if what == "times" else expected + usual
            if torch.allclose(restored, got, **bounds):
                return f"Every number is {usual:.4g} {what} the expected one."
    if torch.allclose(expected.flatten().sort()[0], got.flatten().sort()[0], **bounds):
        return "The right numbers stand in the wrong places."
    place = tuple(where.nonzero()[0].tolist())
    return (
        f"{int(where.sum())} of {where.numel()} numbers differ, the first at index "
        f"{place}: expected {expected[place]:.6g}, got {got[place]:.6g}."
    )


def show(value) -> str:
    """A value in a line or two, with its shape if it is a tensor."""
    if isinstance(value, dict):
        return "; ".join(f"{key}: {show(part)}" for key, part in value.items())
    value = as_tensor(value)
    if not isinstance(value, Tensor):
        return repr(value)
    if value.ndim == 0:
        return f"{value:.6g}" if kind_of(value) == "decimal" else str(value.item())
    numbers = value.flatten()[:8].tolist()
    written = ", ".join(f"{n:.4f}" if isinstance(n, float) else str(n) for n in numbers)
    more = ", …" if value.numel() > 8 else ""
    return f"[{written}{more}], shape {tuple(value.shape)}"


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
