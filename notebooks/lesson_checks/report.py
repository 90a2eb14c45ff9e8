"""The plain report: what is said of an answer whose mistake has no name.

At most eight lines of a hundred characters: how the answer differs, on which input,
and the numbers around the first difference.
"""

import inspect
import itertools
import traceback

import torch
from torch import Tensor

from .compare import accepted_kinds, as_tensor, different_keys, kind_of, same

WIDTH, LINES = 100, 8


def plain_report(exercise, answer, expected: list, got: list) -> str:
    """The smallest failing input, expected and got."""
    pairs = list(zip(expected, got, strict=False))
    tolerance = exercise.tolerance
    failing = [i for i, pair in enumerate(pairs) if not same(*pair, tolerance)]
    first = failing[0]
    wanted, found = pairs[first]
    if isinstance(found, Exception) and not isinstance(wanted, Exception):
        lines = what_was_raised(found, answer).splitlines()
    elif found is None and callable(exercise.right) and wanted is not None:
        lines = ["Your function returns None: is a `return` missing, or never reached?"]
    elif not callable(exercise.right):
        lines = wrong_value(wanted, found, tolerance)
    else:
        lines = [difference([pairs[i] for i in failing], tolerance)]
        shown = contrast(wanted, found, tolerance)
        arguments = named_arguments(exercise, answer, first, LINES - 2 - len(shown))
        if arguments:
            lines.append(f"It fails on {len(failing)} of {len(got)} inputs, first on:")
        lines += arguments + shown
    return "\n".join(clipped(line) for line in lines[:LINES])


def clipped(line: str, width: int = WIDTH) -> str:
    line = line.replace("\n", " ")
    return line if len(line) <= width else line[: width - 1] + "…"


def wrong_value(expected, got, tolerance: float) -> list[str]:
    """Of a value that the learner works out, the right one stays untold."""
    if not (isinstance(expected, dict) and isinstance(got, dict)):
        return [difference([(expected, got)], tolerance)]
    if unknown := got.keys() - expected.keys():
        return [f"Nobody asked for {', '.join(map(repr, unknown))}."]
    wrong = different_keys(expected, got, tolerance)
    lines = [f"{len(wrong)} of {len(expected)} values are not right yet:"]
    lines += [f"  {key}: {show(got.get(key))}" for key in wrong]
    return lines if len(lines) <= LINES else lines[: LINES - 1] + ["  …"]


def named_arguments(exercise, answer, number: int, room: int) -> list[str]:
    """The arguments of one input, by the names that the learner's function has."""
    arguments = exercise.arguments(number)
    named = [
        parameters(exercise.call)[1:],
        parameters(answer),
        parameters(exercise.right),
    ]
    names = next((n for n in named if len(n) >= len(arguments)), [])
    names = names or [f"argument {i}" for i in range(1, len(arguments) + 1)]
    return [
        f"  {name} = {show(argument)}"
        for name, argument in zip(names, arguments, strict=False)
    ][: max(room, 0)]


def parameters(function) -> list[str]:
    """The names that a function's arguments have, as far as each has one."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    single = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [p.name for p in found if p.kind in single]


# --- what was raised --------------------------------------------------------------


def what_was_raised(error: Exception, answer) -> str:
    """Show an exception as the learner's own, with the line of the answer it left."""
    said = f"{type(error).__name__}: {error}".splitlines()[0]
    if line := own_line(error, answer):
        return f"Line {line.lineno} of your code raised {said}\n    {line.line}"
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, TypeError) and (not frames or "engine" in frames[-1].filename):
        return f"Your answer could not be called as the task says: {said}"
    return f"The check could not use what your answer made: {said}"


def own_line(error: Exception, answer) -> traceback.FrameSummary | None:
    files = {function.__code__.co_filename for function in functions_of(answer)}
    frames = traceback.extract_tb(error.__traceback__)
    return next((f for f in reversed(frames) if f.filename in files), None)


def functions_of(answer) -> list:
    """A function, or the functions of a class, without decorators."""
    found = vars(answer).values() if isinstance(answer, type) else [answer]
    found = [inspect.unwrap(f) for f in found if callable(f)]
    return [f for f in found if hasattr(f, "__code__")]


# --- how results differ -----------------------------------------------------------


def difference(pairs: list[tuple], tolerance: float) -> str:
    """Say in one sentence how the first result differs from the expected one."""
    expected, got = pairs[0]
    if isinstance(expected, Exception):
        wanted = f"{type(expected).__name__} ({expected})"
        return f"This input should be refused with a {wanted}."
    if isinstance(expected, dict) and isinstance(got, dict):
        wrong = different_keys(expected, got, tolerance)
        return f"{len(wrong)} of {len(expected)} findings differ."
    lists = all(isinstance(side, (tuple, list)) for side in pairs[0])
    if lists and len(expected) != len(got):
        return f"There should be {len(expected)} results, not {len(got)}."
    wanted, found = as_tensor(expected), as_tensor(got)
    if not (isinstance(wanted, Tensor) and isinstance(found, Tensor)):
        if type(expected) is not type(got):
            kind = type(expected).__name__
            return f"The answer should be of type {kind}, not {type(got).__name__}."
        return "The results differ."
    if wanted.shape != found.shape:
        return shape_difference(wanted, found, tolerance)
    if kind_of(found) not in accepted_kinds(wanted):
        return f"The numbers should be of kind {kind_of(wanted)}, not {kind_of(found)}."
    if wanted.ndim == 0:
        return f"The value is {show(got)}; that is not the expected one."
    return value_difference(pairs, tolerance)


def shape_difference(expected: Tensor, got: Tensor, tolerance: float) -> str:
    shapes = f"The shape is {tuple(got.shape)}, not {tuple(expected.shape)}"
    for order in itertools.permutations(range(got.ndim)):
        if same(expected, got.permute(order), tolerance):
            return f"{shapes}; the axes are in another order."
    reshaped = got.reshape(expected.shape) if got.numel() == expected.numel() else got
    if same(expected, reshaped, tolerance):
        return f"{shapes}; the numbers of this input are right."
    return f"{shapes}."


def value_difference(pairs: list[tuple], tolerance: float) -> str:
    expected, got = (as_tensor(side).double() for side in pairs[0])
    if not got.isfinite().all() and expected.isfinite().all():
        bad = int((~got.isfinite()).sum())
        return f"{bad} of {got.numel()} numbers are nan or infinite."
    if of_all := common_change(pairs, tolerance):
        return of_all
    bounds = {"rtol": tolerance, "atol": tolerance}
    if torch.allclose(expected.flatten().sort()[0], got.flatten().sort()[0], **bounds):
        return "The right numbers stand in the wrong places."
    where = ~torch.isclose(expected, got, **bounds)
    return f"{int(where.sum())} of {where.numel()} numbers differ."


def common_change(pairs: list[tuple], tolerance: float) -> str | None:
    """One positive factor or one summand that explains the results of all inputs."""
    if not all(isinstance(side, Tensor) for pair in pairs for side in pair):
        return None
    if any(a.shape != b.shape for a, b in pairs):
        return None
    expected, got = (torch.cat([s.detach().cpu().double().flatten() for s in side])
                     for side in zip(*pairs, strict=True))  # fmt: skip
    bounds = {"rtol": tolerance, "atol": tolerance}
    where = ~torch.isclose(expected, got, **bounds)
    if where.sum() < 2:
        return None
    factor = (got / expected)[where].median()
    if factor > 0 and torch.allclose(expected * factor, got, **bounds):
        return f"Every number is {factor:.4g} times the expected one."
    gap = (got - expected)[where].median()
    if torch.allclose(expected + gap, got, **bounds):
        more = "more" if gap > 0 else "less"
        return f"Every number is {gap.abs():.4g} {more} than the expected one."
    return None


# --- how values are shown ---------------------------------------------------------


def contrast(expected, got, tolerance: float) -> list[str]:
    """Expected and got, around the first difference, or key by key."""
    if isinstance(expected, dict) and isinstance(got, dict):
        wrong = different_keys(expected, got, tolerance)
        return [
            f"  {key}: expected {show(expected.get(key))}, got {show(got.get(key))}"
            for key in wrong
        ][: LINES - 3]
    if isinstance(expected, (tuple, list)) and isinstance(got, (tuple, list)):
        pairs = enumerate(zip(expected, got, strict=False))
        wrong = [(i, p) for i, p in pairs if not same(*p, tolerance)]
        if wrong and any(isinstance(part, Tensor) for part in expected):
            lines = contrast(*wrong[0][1], tolerance)
            return [f"  result {wrong[0][0] + 1} of {len(expected)}:", *lines]
    wanted, found = as_tensor(expected), as_tensor(got)
    both = isinstance(wanted, Tensor) and isinstance(found, Tensor)
    if not both or wanted.shape != found.shape or wanted.ndim == 0:
        numbers_both = both and wanted.numel() == found.numel() == 1
        digits = digits_to_differ(wanted, found) if numbers_both else 6
        return [
            f"  expected: {show(expected, digits)}",
            f"  got:      {show(got, digits)}",
        ]
    return around_difference(wanted, found, tolerance)


def around_difference(expected: Tensor, got: Tensor, tolerance: float) -> list[str]:
    """Up to five numbers of the row in which the first difference stands."""
    bounds = {"rtol": tolerance, "atol": tolerance, "equal_nan": True}
    where = ~torch.isclose(expected.double(), got.double(), **bounds)
    if not where.any():
        where = torch.ones_like(where)  # only the kind of number differs
    *row, column = where.nonzero()[0].tolist()
    start = max(0, min(column - 2, expected.shape[-1] - 5))
    here = tuple(row) + (slice(start, start + 5),)
    place = tuple(row) + (column,)
    digits = digits_to_differ(expected[place], got[place])
    stop = min(start + 5, expected.shape[-1])
    at = ", ".join([*map(str, row), f"{start}:{stop}"])
    before = "…, " if start else ""
    after = ", …" if stop < expected.shape[-1] else ""
    return [
        f"  {name}[{at}] = [{before}{numbers(side[here], digits)}{after}]"
        for name, side in (("expected", expected), ("got     ", got))
    ]


def digits_to_differ(expected: Tensor, got: Tensor) -> int:
    digits = range(4, 17)
    a, b = expected.item(), got.item()
    return next((d for d in digits if f"{a:.{d}g}" != f"{b:.{d}g}"), 6)


def numbers(tensor: Tensor, digits: int = 4) -> str:
    return ", ".join(number(n, digits) for n in tensor.flatten().tolist())


def number(n, digits: int) -> str:
    return f"{n:.{digits}g}" if isinstance(n, float) else str(n)


def show(value, digits: int = 6) -> str:
    """A value in one line, with its shape if it is a larger tensor."""
    if isinstance(value, Exception):
        return f"{type(value).__name__}: {value}"
    if value is None or isinstance(value, (str, bool, dict, torch.nn.Module)):
        return type(value).__name__ if hasattr(value, "forward") else repr(value)
    tensor = as_tensor(value)
    if not isinstance(tensor, Tensor):
        return repr(value)
    if tensor.ndim == 0:
        return number(tensor.item(), digits)
    if tensor.numel() <= 12 and isinstance(value, Tensor):
        return nested(tensor.tolist())
    if isinstance(value, (tuple, list)) and tensor.ndim == 1 and tensor.numel() <= 12:
        return repr(value)
    return f"[{numbers(tensor.flatten()[:6])}, …], shape {tuple(tensor.shape)}"


def nested(value) -> str:
    if isinstance(value, list):
        return f"[{', '.join(nested(item) for item in value)}]"
    return number(value, 4)
