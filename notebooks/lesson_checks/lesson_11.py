"""The exercises of lesson 11 · Speed."""

import torch
import torch.nn.functional as F

from .engine import Exercise

# 11.1
XL_NUMBERS = 48 * 12 * 1600**2 + 50257 * 1600

ex = Exercise(
    "11.1",
    "The ceilings of XL",
    why="Divide the bytes by the rate before you optimize anything: it tells what is "
    "left to gain, and whether fewer bytes or fewer operations will gain it.",
    tolerance=0.005,
)

ex.reference(
    {
        "bytes per token": 4.0 * XL_NUMBERS,
        "tokens per second": 30e9 / (4 * XL_NUMBERS),
        "tokens per second in int8": 30e9 / XL_NUMBERS,
        "rows until arithmetic is slower": 14,
    }
)


def xl(**changed):
    """The right answer but for these entries, their names written with underscores."""
    return ex.right | {name.replace("_", " "): value for name, value in changed.items()}


ex.mistake("'bytes per token' is the count of numbers. In float32 each takes 4 bytes.")(
    xl(bytes_per_token=1.0 * XL_NUMBERS)
)
ex.mistake(
    "In 'bytes per token' the head is missing. It is tied, so it is no extra parameter, "
    "but its product still reads all V · C numbers."
)(xl(bytes_per_token=4.0 * 48 * 12 * 1600**2))
ex.mistake(
    "In 'bytes per token' you count the embedding beside the head. A token picks one "
    "row of it; only the head reads the whole matrix."
)(xl(bytes_per_token=4.0 * (XL_NUMBERS + 50257 * 1600)))
ex.mistake(
    "In 'bytes per token' the feed-forward is missing: it has 8 · C² of the 12 · C² "
    "numbers of a block."
)(xl(bytes_per_token=4.0 * (48 * 4 * 1600**2 + 50257 * 1600)))
ex.mistake(
    "'tokens per second' is the time of one token. Turn it over: how many of them fit "
    "into a second?"
)(xl(tokens_per_second=4 * XL_NUMBERS / 30e9))
ex.mistake(
    "'tokens per second' divides the arithmetic, not the bytes. At one token per step "
    "memory is the slower one: compare the two times."
)(xl(tokens_per_second=200e9 / (2 * XL_NUMBERS)))
ex.mistake(
    "'tokens per second in int8' is that of 2 bytes per number. int8 has 8 bits: 1 byte."
)(xl(tokens_per_second_in_int8=30e9 / (2 * XL_NUMBERS)))
ex.mistake(
    "'tokens per second in int8' is 8 times the float32 one. 8 bits are one byte in "
    "place of four, so a quarter is read."
)(xl(tokens_per_second_in_int8=8 * 30e9 / (4 * XL_NUMBERS)))
ex.mistake(
    "In 'rows until arithmetic is slower' you are one short: with 13 rows the weights "
    "still take longer to read than to use."
)(xl(rows_until_arithmetic_is_slower=13))
ex.mistake(
    "'rows until arithmetic is slower' should be a whole number of rows: the first with "
    "which arithmetic takes longer."
)(xl(rows_until_arithmetic_is_slower=40 / 3))
ex.mistake(
    "In 'rows until arithmetic is slower' each weight takes part in two operations for "
    "each row, a multiplication and an addition. You counted one."
)(xl(rows_until_arithmetic_is_slower=27))


# 11.2


def weights_and_group_sizes():
    generator = torch.Generator().manual_seed(112)
    made = [(torch.tensor([[1.0, -2.0, 30.0, 40.0]]), 2)]
    for O, I, size in ((3, 6, 3), (2, 12, 4), (5, 8, 8), (4, 10, 2)):
        weight = torch.randn(O, I, generator=generator)
        weight *= torch.logspace(-2, 2, O)[:, None] * torch.linspace(0.1, 3, I)
        made.append((weight, size))
    return made


def numbers_and_scales(answer, weight, size):
    result = answer(weight, size)
    if result is None or result is ...:
        return result
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise TypeError("two tensors are asked for: whole numbers and scales")
    whole, scales = result
    kind = str(getattr(whole, "dtype", type(whole).__name__))
    return {"whole numbers": whole, "their type": kind, "scales": scales}


ex = Exercise(
    "11.2",
    "A scale for each group",
    why="This is how llama.cpp's Q8_0 stores weights, with groups of 32: a single large "
    "number spoils the steps of its group only, not those of its whole row.",
    inputs=weights_and_group_sizes,
    call=numbers_and_scales,
)


@ex.reference
def scales_of_groups(weight, size):
    groups = weight.unflatten(1, (-1, size))
    top = groups.abs().amax(dim=-1, keepdim=True)
    scale = top / 127
    whole = (groups / scale).round()
    whole = whole.to(torch.int8)
    scales = scale.squeeze(-1)
    return whole.flatten(1), scales


ex.slips("""
top / 127 → top / 128
top / 127 → top / 128 ; whole.to( → whole.clamp(-128, 127).to(
    You divide by 128. The largest number then becomes 128, which int8 does not have:
    its range is −128 to 127.
top / 127 → top / 255
top / 127 → top / 255 ; whole.to( → whole.clamp(-128, 127).to(
    Your scale uses 255 steps from zero. int8 has 255 values in all, 127 on each side.
scale).round() → scale).trunc()
    You cut decimals off. Round to the nearest whole number before you convert.
scale).round() → scale).floor()
    You round down. Round to the nearest whole number.
groups.abs() → groups
groups.abs() → groups ; whole.to( → whole.clamp(-128, 127).to(
    Your scale is taken from the largest number, sign included. A group whose largest
    magnitude is negative overflows: look at `abs`.
amax(dim=-1, keepdim=True) → amax((1, 2), True).expand(*groups.shape[:2], 1)
amax(dim=-1, keepdim=True) → amax((1, 2), True)
    Your scale belongs to the whole row. Each group of `size` neighbors has its own.
amax(dim=-1, keepdim=True) → amax().expand(*groups.shape[:2], 1)
    Your scale belongs to the whole matrix. Each group has its own.
amax(dim=-1, keepdim=True) → amax((0, 2), True).expand(*groups.shape[:2], 1)
    Your groups run down the columns. A group is `size` neighbors within a row: those
    that one sum adds up.
amax(dim=-1, keepdim=True) → amax(dim=1, keepdim=True)
    Your maximum runs over the groups, not within them. A group's numbers are on the
    last axis.
scales = scale.squeeze(-1) → scales = scale
    Your scales still have the axis of length 1 that you kept for the division. Their
    shape is (O, I / size).
whole = whole.to(torch.int8) → whole = whole
    The whole numbers are floats. Convert them to `torch.int8`.
scales = scale.squeeze(-1) → scales = top.squeeze(-1)
    Your second result is the largest magnitude. The scale is a 127th of it.
---
torch.int8 → torch.int64
torch.int8 → torch.int32
torch.int8 → torch.int16
    The whole numbers are of a larger integer type. `torch.int8` takes one byte for
    each.
return whole.flatten(1), scales → return (whole * scale).flatten(1)
    You do not return two tensors. Return the whole numbers and the scales, which take
    a quarter of the memory.
scales = scale.squeeze(-1) → scales = 1 / scale.squeeze(-1)
    Your second result is 127 / largest, by which you multiplied. The scale is what
    leads back: whole · scale is near the weight.
return whole.flatten(1), scales → return scales, whole.flatten(1)
    The two are in the other order: first the whole numbers, then the scales.
""")


# 11.3


def queries_keys_and_values():
    generator = torch.Generator().manual_seed(113)
    made = []
    for T, S in ((1, 2), (2, 2), (1, 1), (2, 5), (4, 4), (3, 7)):
        queries = torch.randn(2, 3, T, 4, generator=generator)
        made.append((queries, *torch.randn(2, 2, 3, S, 4, generator=generator)))
    return made


ex = Exercise(
    "11.3",
    "Fast, and blind for the newest keys",
    why="Row i of the chunk stands at position i + S − T, and `is_causal` counts it from "
    "0. The text it leads to is fluent and wrong, so only a test of chunks finds it.",
    inputs=queries_keys_and_values,
)


@ex.reference
def mixed_values(queries, keys, values):
    T, S = queries.shape[2], keys.shape[2]
    seen = torch.ones(T, S, dtype=torch.bool).tril(S - T)
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=seen)


ex.slips("""
given: T, S = queries.shape[2], keys.shape[2] →
; seen = torch.ones(T, S, dtype=torch.bool).tril(S - T) → ; attn_mask=seen → is_causal=True
    The mask still begins at row 0: with fewer queries than keys the first of them sees
    a single key. Its own key is number S − T.
attn_mask=seen → is_causal=False
    Now nothing is hidden, and a token of a chunk reads those that follow it. That is
    right for one token only.
attn_mask=seen → is_causal=T == S
    Prompts and single tokens are right. A chunk of several tokens behind cached ones
    still sees its own future: it needs a mask with an offset.
attn_mask=seen → is_causal=T > 1
    Single tokens are right now. A chunk of several tokens behind cached ones still
    begins at row 0: it needs a mask with an offset.
attn_mask=seen → attn_mask=~seen
    Your mask is inside out. For this function True means that a key may be seen; for
    `masked_fill` it meant hidden.
attn_mask=seen → attn_mask=seen.float()
    Your mask is made of numbers, 0 and 1. Such a mask is added to the scores and hides
    nothing: it should be boolean.
tril(S - T) → tril(S - T - 1)
    One off: a token does not see its own key. Key j is seen up to j = i + S − T.
tril(S - T) → tril(S - T + 1)
    One off: a token sees one key of its future. Key j is seen up to j = i + S − T.
---
tril(S - T) → tril(S - T).triu(S - T)
    Each token reads its own key alone. The past may be seen: only later keys are
    hidden.
tril(S - T) → tril(S - T) & (torch.arange(S) >= S - T)
    The old keys are hidden, and the chunk reads only itself. The past may be seen: only
    later keys are hidden.
""")


# 11.4
ex = Exercise(
    "11.4",
    "What a bit is worth",
    why="One more bit halves the step, and so the error. With 8 bits it stays below one "
    "percent here; each further tenth takes more than three bits.",
    tolerance=0.035,
)
ex.reference({"factor per bit": 2.0, "bits for one percent": 8, "bits for a tenth": 11})
ex.mistake(
    "'factor per bit' compares bits that are two apart, or squares. Compare the error "
    "at 7 bits with that at 8."
)(ex.right | {"factor per bit": 4.0})
ex.mistake(
    "'factor per bit' is turned over: how many times larger is the error with one bit "
    "less?"
)(ex.right | {"factor per bit": 0.5})
ex.mistake(
    "In the bits you left out the sign. Symmetric numbers of b bits go from "
    "−(2^(b−1) − 1) to 2^(b−1) − 1: 127 for 8 bits."
)(ex.right | {"bits for one percent": 7, "bits for a tenth": 10})
ex.mistake(
    "In 'bits for one percent' the error is still above it. Look for the first number "
    "of bits with an error below 0.01."
)(ex.right | {"bits for one percent": 7})
ex.mistake(
    "In 'bits for a tenth' the error is still above it. Look for the first number of "
    "bits with an error below 0.001."
)(ex.right | {"bits for a tenth": 10})
ex.mistake(
    "'bits for a tenth' means a tenth of a percent, an error below 0.001, not 0.1."
)(ex.right | {"bits for a tenth": 5})
