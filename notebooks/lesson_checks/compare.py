"""Whether two results are equal, however they are written."""

from decimal import Decimal
from fractions import Fraction

import torch
from torch import Tensor


def same(expected, got, tolerance: float) -> bool:
    """Whether two results are equal, to rounding where they are decimals."""
    if isinstance(expected, Exception) or isinstance(got, Exception):
        return type(expected) is type(got)
    if isinstance(expected, dict) and isinstance(got, dict):
        return not different_keys(expected, got, tolerance)
    if isinstance(expected, (tuple, list)) and isinstance(got, (tuple, list)):
        pairs = zip(expected, got, strict=False)
        equal_length = len(expected) == len(got)
        return equal_length and all(same(a, b, tolerance) for a, b in pairs)
    a_number = isinstance(expected, (int, float, Fraction))
    expected, got = as_tensor(expected), as_tensor(got)
    if not (isinstance(expected, Tensor) and isinstance(got, Tensor)):
        return type(expected) is type(got) and expected == got
    if a_number and got.numel() == 1:
        got = got.reshape(())
    if expected.shape != got.shape or kind_of(got) not in accepted_kinds(expected):
        return False
    if kind_of(expected) == "integer":
        return torch.equal(expected.double(), got.double())
    bounds = {"rtol": tolerance, "atol": tolerance, "equal_nan": True}
    return torch.allclose(expected.double(), got.double(), **bounds)


def different_keys(expected: dict, got: dict, tolerance: float) -> list:
    """The keys whose values differ, or that one of the two lacks, in order."""
    missing = object()
    return [
        key
        for key in expected | got
        if not same(expected.get(key, missing), got.get(key, missing), tolerance)
    ]


def as_tensor(result):
    """A tensor where the result is one, a number, or numbers in a list; else itself."""
    if isinstance(result, Tensor):
        return result.detach().cpu()
    if isinstance(result, (float, Fraction, Decimal)):
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


def contains_ellipsis(value) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return any(contains_ellipsis(item) for item in value)
    return value is ...
