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


def in_groups(
    limit=127, to=torch.round, top=lambda g: g.abs().amax(-1, True), clamp=True
):
    """An answer that divides each group by ``top`` / ``limit`` and rounds by ``to``."""

    def answer(weight, size):
        groups = weight.unflatten(1, (-1, size))
        scale = top(groups) / limit
        whole = to(groups / scale)
        whole = (whole.clamp(-128, 127) if clamp else whole).to(torch.int8)
        return whole.flatten(1), scale.expand(*groups.shape[:2], 1).squeeze(-1)

    return answer


ex = Exercise(
    "11.2",
    "A scale for each group",
    why="This is how llama.cpp's Q8_0 stores weights, with groups of 32: a single large "
    "number spoils the steps of its group only, not those of its whole row.",
    inputs=weights_and_group_sizes,
)
ex.reference(in_groups())
ex.mistake(
    "You divide by 128. The largest number then becomes 128, which int8 does not have: "
    "its range is −128 to 127."
)(in_groups(limit=128))
ex.mistake(
    "You divide by 128. The largest number then becomes 128, which int8 does not have, "
    "and which therefore turned into −128."
)(in_groups(limit=128, clamp=False))
ex.mistake(
    "Your scale uses 255 steps from zero. int8 has 255 values in all, 127 on each side."
)(in_groups(limit=255))
ex.mistake(
    "You cut decimals off. Round to the nearest whole number before you convert."
)(in_groups(to=torch.trunc))
ex.mistake("You round down. Round to the nearest whole number.")(
    in_groups(to=torch.floor)
)
ex.mistake(
    "Your scale is taken from the largest number, sign included. A group whose largest "
    "magnitude is negative overflows: look at `abs`."
)(in_groups(top=lambda groups: groups.amax(-1, True)))
ex.mistake(
    "Your scale is taken from the largest number, sign included. Where the largest "
    "magnitude is negative, the whole numbers ran past −128 and wrapped around."
)(in_groups(top=lambda groups: groups.amax(-1, True), clamp=False))
ex.mistake(
    "Your scale belongs to the whole row. Each group of `size` neighbors has its own."
)(in_groups(top=lambda groups: groups.abs().amax((1, 2), True)))
ex.mistake("Your scale belongs to the whole matrix. Each group has its own.")(
    in_groups(top=lambda groups: groups.abs().amax().view(1, 1, 1))
)
ex.mistake(
    "Your groups run down the columns. A group is `size` neighbors within a row: those "
    "that one sum adds up."
)(in_groups(top=lambda groups: groups.abs().amax((0, 2), True)))


@ex.mistake(
    "Your scale belongs to the whole row: you return one per row. Each group of `size` "
    "neighbors has its own."
)
def _(weight, size):
    scale = weight.abs().amax(1, keepdim=True) / 127
    return (weight / scale).round().to(torch.int8), scale


@ex.mistake(
    "The numbers are right. Your scales still have the axis of length 1 that you kept "
    "for the division: their shape is (O, I / size)."
)
def _(weight, size):
    whole, scale = in_groups()(weight, size)
    return whole, scale[..., None]


@ex.mistake("The whole numbers are right, but as floats. Convert them to `torch.int8`.")
def _(weight, size):
    whole, scale = in_groups()(weight, size)
    return whole.float(), scale


@ex.mistake(
    "You return the weights multiplied back. Return the whole numbers and the scales, "
    "which take a quarter of the memory."
)
def _(weight, size):
    whole, scale = in_groups()(weight, size)
    return (whole.unflatten(1, (-1, size)) * scale[..., None]).flatten(1)


@ex.mistake(
    "Your second result is 127 / largest, by which you multiplied. The scale is what "
    "leads back: whole · scale is near the weight."
)
def _(weight, size):
    whole, scale = in_groups()(weight, size)
    return whole, 1 / scale


@ex.mistake("The two are in the other order: first the whole numbers, then the scales.")
def _(weight, size):
    return in_groups()(weight, size)[::-1]


# 11.3


def queries_keys_and_values():
    generator = torch.Generator().manual_seed(113)
    made = []
    for T, S in ((1, 2), (2, 2), (1, 1), (2, 5), (4, 4), (3, 7)):
        queries = torch.randn(2, 3, T, 4, generator=generator)
        made.append((queries, *torch.randn(2, 2, 3, S, 4, generator=generator)))
    return made


def mixing(seen):
    """An answer that lets row i of T see the keys j for which ``seen(i, j, T, S)``."""

    def answer(queries, keys, values):
        T, S = queries.shape[2], keys.shape[2]
        i, j = torch.arange(T)[:, None], torch.arange(S)
        mask = seen(i, j, T, S).expand(T, S)
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)

    return answer


ex = Exercise(
    "11.3",
    "Fast, and blind for the newest keys",
    why="Row i of the chunk stands at position i + S − T, and `is_causal` counts it from "
    "0. The text it leads to is fluent and wrong, so only a test of chunks finds it.",
    inputs=queries_keys_and_values,
)
ex.reference(mixing(lambda i, j, T, S: j <= i + S - T))


@ex.bug(
    "The mask still begins at row 0: with fewer queries than keys the first of them "
    "sees a single key. Its own key is number S − T."
)
def _(queries, keys, values):
    return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)


ex.mistake(
    "Now nothing is hidden, and a token of a chunk reads those that follow it. That is "
    "right for one token only."
)(mixing(lambda i, j, T, S: j >= 0))


@ex.mistake(
    "Prompts and single tokens are right. A chunk of several tokens behind cached ones "
    "still sees its own future: it needs a mask with an offset."
)
def _(queries, keys, values):
    whole = queries.shape[2] == keys.shape[2]
    return F.scaled_dot_product_attention(queries, keys, values, is_causal=whole)


@ex.mistake(
    "Single tokens are right now. A chunk of several tokens behind cached ones still "
    "begins at row 0: it needs a mask with an offset."
)
def _(queries, keys, values):
    several = queries.shape[2] > 1
    return F.scaled_dot_product_attention(queries, keys, values, is_causal=several)


ex.mistake(
    "Your mask is inside out. For this function True means that a key may be seen; for "
    "`masked_fill` it meant hidden."
)(mixing(lambda i, j, T, S: j > i + S - T))
ex.mistake(
    "One off: a token does not see its own key. Key j is seen up to j = i + S − T."
)(mixing(lambda i, j, T, S: j < i + S - T))
ex.mistake(
    "One off: a token sees one key of its future. Key j is seen up to j = i + S − T."
)(mixing(lambda i, j, T, S: j <= i + S - T + 1))
ex.mistake(
    "The old keys are hidden, and the chunk reads only itself. The past may be seen: "
    "only later keys are hidden."
)(mixing(lambda i, j, T, S: (j <= i + S - T) & (j >= S - T)))


# 11.4
ex = Exercise(
    "11.4",
    "What a bit is worth",
    why="One more bit halves the step, and so the error. With 8 bits it stays below one "
    "percent here; each further tenth takes more than three bits.",
    tolerance=0.03,
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
