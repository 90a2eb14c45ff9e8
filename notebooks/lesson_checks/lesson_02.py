"""The exercises of lesson 2 · Layer normalization."""

import math

import torch

from .engine import Exercise

# --- 2.1 --------------------------------------------------------------------------

ex = Exercise(
    "2.1",
    "What the norm lets through",
    why="Whatever a block adds to a whole row, or multiplies it by, the next norm "
    "takes away, all but the sign.",
    tolerance=0.01,
    needs={
        "x + 100": ["x"],
        "10 * x": ["x"],
        "-x": ["x"],
        "x above the row [100, 100, 100, 100]": ["x"],
        "x, with scale 2 and shift 3": ["x"],
    },
)


@ex.value
def first_outputs():
    def spread(deviations):
        return torch.sqrt((deviations**2).mean())

    def first(*row):
        deviations = torch.tensor(row).float() - sum(row) / 4
        return (deviations[0] / spread(deviations)).item()

    changed = first(3, 9, 11, 9)
    return {
        "x": first(3, 9, 11, 17),
        "x + 100": first(103, 109, 111, 117),
        "10 * x": first(30, 90, 110, 170),
        "-x": first(-3, -9, -11, -17),
        "x with 9 as its last feature": changed,
        "x above the row [100, 100, 100, 100]": first(3, 9, 11, 17),
        "x, with scale 2 and shift 3": 2 * first(3, 9, 11, 17) + 3,
    }


ex.slips("""
(deviations**2).mean() → (deviations**2).sum() / 3
    The variance divides by n − 1, the number of deviations less one. LayerNorm divides
    by n: four features, so a quarter of the sum of squares.
torch.sqrt((deviations**2).mean()) → (deviations**2).mean()
    You divided by the variance. Divide by its root, the spread: only that grows as the
    numbers do.
deviations[0] / spread(deviations) → deviations[0]
    You subtracted the mean and stopped there. The deviations are still to be divided by
    their spread.
"x + 100": first(103, 109, 111, 117) → "x + 100": first(3, 9, 11, 17) + 100
    For `x + 100` the shift is still in your answer. The mean has grown by 100 too: what
    is left of the shift in the deviations?
"10 * x": first(30, 90, 110, 170) → "10 * x": 10 * first(3, 9, 11, 17)
    For `10 * x` the factor is still in your answer. The spread has grown tenfold as
    well: what is left of the factor once you have divided?
first(-3, -9, -11, -17) → first(3, 9, 11, 17)
    For `-x` the sign is lost. The spread is never negative, so dividing by it cannot
    turn the deviations back: which is the lowest now?
changed = first(3, 9, 11, 9) → changed = first(3, 9, 11, 17)
    With 9 as the last feature your first number is the old one. The first feature has
    not changed, but the row's mean and spread have.
100]": first(3, 9, 11, 17) → 100]": -1.0
    Above the row of hundreds you took mean and variance over the two rows, column by
    column. That is batch normalization; here each row is normalized by itself.
2 * first(3, 9, 11, 17) + 3 → first(3, 9, 11, 17)
    Scale and shift act after the normalization, so it does not take them away: your
    last answer leaves both out.
2 * first(3, 9, 11, 17) + 3 → 2 * (first(3, 9, 11, 17) + 3)
    In your last answer the shift is added before the scale multiplies, and so it is
    doubled too. Which comes first?
---
deviations[0] / spread(deviations) → row[0] / spread(deviations)
    You divided by the spread without subtracting the mean. Start from the deviations:
    how far each number lies from the mean.
deviations[0] / spread(deviations) → -deviations[0] / spread(deviations)
    The signs are the wrong way round. A deviation is the number minus the mean, and 3
    lies below the mean of its row.
first(-3, -9, -11, -17) → first(3, 9, 11, 17) ; 2 * first(3, 9, 11, 17) + 3
→ first(3, 9, 11, 17) ; changed = first(3, 9, 11, 9) → changed = first(3, 9, 11, 17)
    You gave the same number everywhere. The norm takes away a shift of the row and a
    positive factor, and nothing else: look again at `-x`, at the changed feature, and
    at scale and shift, which come after the normalization.
"10 * x": first(30, 90, 110, 170) → "10 * x": first(3, 9, 11, 17) / 10
    For `10 * x` your answer is ten times too small. The variance has grown a
    hundredfold, but its root, by which you divide, only tenfold.
changed = first(3, 9, 11, 9) → changed = (3 - 8) / 5
    With 9 as the last feature you used the new mean and the old spread. Compute both
    from the row as it is now.
changed = first(3, 9, 11, 9) → changed = (3 - 10) / 3
    With 9 as the last feature you used the old mean and the new spread. Compute both
    from the row as it is now.
changed = first(3, 9, 11, 9) → changed = (3 - 8) / 9
    With 9 as the last feature you divided by the variance. Divide by its root.
100]": first(3, 9, 11, 17) → 100]": (3 - 55) / math.sqrt(2037.5)
    Above the row of hundreds you took one mean and one variance of all eight numbers.
    Each row has a mean and a variance of its own.
2 * first(3, 9, 11, 17) + 3 → 2 * first(3, 9, 11, 17)
    In your last answer the shift is missing; only the scale is there.
2 * first(3, 9, 11, 17) + 3 → first(3, 9, 11, 17) + 3
    In your last answer the scale is missing; only the shift is there.
2 * first(3, 9, 11, 17) + 3 → 3 * first(3, 9, 11, 17) + 2
    In your last answer scale and shift are swapped: 2 is the factor, 3 is added.
""")

# --- 2.2 --------------------------------------------------------------------------


def rows_to_normalize():
    """Ordinary, tiny and equal features, with scale, shift and at times an eps."""
    generator = torch.Generator().manual_seed(2)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    two_rows = torch.tensor([[1.0, 2.0, 6.0], [4.0, 4.0, 4.0]])
    scale, shift = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, 0.0, -0.5])
    return [
        (torch.tensor([[1.0, 2.0, 3.0]]), torch.ones(3), torch.zeros(3)),
        (two_rows, scale, shift),
        (normal(4, 5) + 3, normal(5), normal(5)),
        (2 * normal(2, 3, 7) - 1, normal(7), normal(7)),
        (0.001 * normal(3, 2, 5), normal(5), normal(5)),
        (normal(3, 4, 6), normal(6), normal(6), 0.5),
    ]


ex = Exercise(
    "2.2",
    "Normalize each row",
    why="GPT-2 124M runs these lines 25 times for each token that it predicts.",
    inputs=rows_to_normalize,
)


@ex.reference
def layer_norm(x, scale, shift, eps=1e-5):
    mean = x.mean(dim=-1, keepdim=True)
    variance = x.var(dim=-1, keepdim=True, correction=0)
    root = torch.sqrt(variance + eps)
    rows = (x - mean) / root
    return scale * rows + shift


ex.slips("""
correction=0 → correction=1
    The variance divides by n − 1. LayerNorm divides by n, the number of features: look
    at what `var` and `std` do unless told otherwise.
torch.sqrt(variance + eps) → torch.sqrt(variance) + eps
    eps is added to the root. It belongs under the root, added to the variance; for
    inputs with a small spread that makes a large difference.
variance + eps → variance
    eps is missing. A row of equal features has the variance 0 and becomes nan, and a
    row with a small spread comes out too large.
torch.sqrt(variance + eps) → variance + eps
    You divide by the variance. Divide by its root: the variance grows with the square
    of the numbers, its root as they do.
dim=-1 → dim=0
    Mean and variance run along the first axis, over the rows. Take them within each
    row, along the last axis: look at `dim`.
dim=-1, keepdim=True → dim=None
    Mean and variance are one number each for the whole tensor. Each row needs its own:
    tell them the axis.
mean = x.mean(dim=-1, keepdim=True) → mean = x.mean(dim=-1)
x.var(dim=-1, keepdim=True → x.var(dim=-1
    With more than one row PyTorch cannot line up the shapes: the mean or the variance
    has lost its last axis. Look at `keepdim`.
scale * rows → rows
    The scale is not used.
rows + shift → rows
    The shift is not used.
scale * rows + shift → rows
    Neither scale nor shift is used.
scale * rows + shift → shift * rows + scale
    Scale and shift are swapped: the scale multiplies and the shift is added. In which
    order are they passed?
---
x.var(dim=-1, keepdim=True, correction=0)
→ x.shape[-1] * x.var(dim=-1, keepdim=True, correction=0)
    The squared deviations are summed and not averaged. The variance is their mean:
    divide the sum by the number of features.
variance + eps → variance + 1e-5
    Your eps is always 1e-5. The caller may pass another: use the parameter `eps`.
dim=-1 → dim=-2
    Mean and variance run along the last axis but one, over positions. Take them over
    the features of each position, along the last: look at `dim`.
dim=-1 → dim=1
dim=-1 → dim=tuple(range(1, x.ndim))
    Mean and variance run along axis 1, or over all axes but the first. With two axes
    that is the last one, with three it is not: which `dim` is the last of any tensor?
rows = (x - mean) / root → rows = x - mean / root
    Only the mean is divided by the spread, because `/` binds tighter than `-`. Put the
    deviations in parentheses.
scale * rows + shift → scale * (rows + shift)
    The shift is added before the scale multiplies, so it is scaled too. Scale first,
    then shift.
mean = x.mean → x = scale * x⏎mean = x.mean ; scale * rows + shift → rows + shift
rows = (x - mean) / root → rows = (scale * x - mean) / root
; scale * rows + shift → rows + shift
    The scale multiplies the input, before the mean is subtracted. It comes last, on the
    normalized rows.
rows = (x - mean) / root → rows = (scale * x + shift - mean) / root
; scale * rows + shift → rows
mean = x.mean → x = scale * x + shift⏎mean = x.mean ; scale * rows + shift → rows
    Scale and shift act on the input, and the norm takes part of them away again. They
    come last, on the normalized rows.
torch.sqrt(variance + eps) → torch.sqrt(torch.sqrt(variance) + eps)
    The root is taken twice: a standard deviation is a root already. Which one of the
    two, variance or standard deviation, stands under your root?
(x - mean) / root → (x - mean) * root
    You multiply by the root of the variance. Normalizing divides by it: is there a
    `sqrt` where you want its inverse, `rsqrt`?
(x - mean) / root → x - mean
    The mean is subtracted, but nothing is divided by the spread: the rows keep their
    size.
(x - mean) / root → x / root
    The mean is not subtracted from what you divide: look at the numerator.
x.var(dim=-1, keepdim=True, correction=0) → (x**2).mean(-1, keepdim=True)
    What you divide by is the root of the mean of `x**2`. The variance is the mean of
    the squared deviations: subtract the mean before you square.
x.var(dim=-1, keepdim=True, correction=0) → (x**2).mean(-1, keepdim=True)
; (x - mean) / root → x / root
    The mean is nowhere subtracted, neither above the fraction bar nor in the variance.
    That is RMSNorm, which comes in a later exercise.
x.var(dim=-1, keepdim=True, correction=0) → (x - mean).mean(-1, keepdim=True) ** 2
x.var(dim=-1, keepdim=True, correction=0) → (x - mean).mean(-1, keepdim=True)
    Your variance is always zero, because the deviations of a row have the mean zero.
    Square each of them first, then average the squares.
torch.sqrt(variance + eps) → (x - mean).abs().mean(dim=-1, keepdim=True) + eps
    Your spread is the mean of the absolute deviations. Square the deviations, average
    the squares, and take the root last, of their mean.
rows = (x - mean) / root → rows = (mean - x) / root
    The signs are the wrong way round: a deviation is the number minus the mean.
x.var(dim=-1, keepdim=True, correction=0) → ((x - mean) ** 2).mean()
x.var(dim=-1, keepdim=True, correction=0) → x.var(correction=0)
    The mean belongs to each row, but the variance is one number for the whole tensor.
    Tell both the axis.
mean = x.mean(dim=-1, keepdim=True) → mean = x.mean()
    The mean is one number for the whole tensor. Each row needs its own, as you gave it
    a variance of its own.
mean = x.mean → x = x.half()⏎mean = x.mean
    The input is rounded to half precision first. Compute in the precision that it comes
    in.
mean = x.mean(dim=-1, keepdim=True) → mean = x.median(-1, keepdim=True).values
    You subtract the median of the row. The mean is what LayerNorm takes.
""")

# --- 2.3 --------------------------------------------------------------------------


def rows_of_both_kinds():
    """As for 2.2, and once in half precision."""
    coarse = torch.tensor([[60.0, 61.0, 300.0], [-2.0, 0.0, 5.0]]).half()
    halves = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, 0.0, -0.5])
    return [*rows_to_normalize(), (coarse, *halves)]


ex = Exercise(
    "2.3",
    "Right by itself, wrong in a model",
    why="Every block of GPT-2 adds the output of a part to the very tensor that its "
    "norm has read, so a norm must leave that tensor alone.",
    inputs=rows_of_both_kinds,
    call=lambda answer, x, *others: x + answer(x, *others),
)


@ex.reference
def norm_in_float32(x, scale, shift, eps=1e-5):
    x = x.float()
    x = x - x.mean(dim=-1, keepdim=True)
    x = x / ((x**2).mean(dim=-1, keepdim=True) + eps).sqrt()
    return x * scale + shift


ex.slips("""
given: x = x - x.mean → x -= x.mean ; x = x / ((x**2) → x /= ((x**2)
    The caller's `x` still changes. `-=` and `/=` write into the tensor they are given,
    and that is still the caller's: a second name or a view is no copy, and neither is a
    conversion to the type that the tensor has already.
x = x - x.mean → x -= x.mean
    Half repaired: the division now makes a new tensor, but the mean is still subtracted
    from the caller's `x`.
x = x - x.mean → y = x - x.mean ; x = x / ((x**2) → x /= ((y**2)
    Half repaired: the mean is subtracted into a new tensor, but the division still
    writes into the caller's `x`, and it is that one which you return, with its mean.
x = x - x.mean → y = x - x.mean ; x = x / ((x**2) → y = y / ((x**2) ; x * scale → y * scale
    The caller's `x` is left alone now, but you divide by the root of the mean of
    `x**2`. The squares must be those of the deviations.
---
x = x - x.mean → y = x - x.mean ; x = x / ((x**2) → x = x / ((y**2)
    The caller's `x` is left alone now, but the mean is not subtracted any more from
    what you divide.
x = x - x.mean → y = x - x.mean ; x = x / ((x**2) → x /= ((y**2) ; x * scale → y * scale
    The deviations are a new tensor now, but the division still writes into the caller's
    `x`, and what you return has never been divided.
x = x - x.mean → y = x - x.mean ; x = x / ((x**2) → y = y / ((y**2)
    The caller's `x` is left alone now, but it is also what you scale and return: use
    the new tensor, the one that you have normalized.
x = x - x.mean → x -= x.mean ; x = x / ((x**2) → x /= ((x**2)
; return x * scale + shift → return x.mul_(scale).add_(shift)
    Now scale and shift are written into the caller's `x` as well. It must not change at
    all: which lines write into a tensor, and into which one?
return x * scale + shift → return x * scale + shift + given ; x = x.float()
→ x = x.float()⏎given = x
    Your function adds the input itself. The check computes `x` plus what you return, so
    the input is now there twice: return the normalized rows alone.
x = x / ((x**2).mean(dim=-1, keepdim=True) → x = x / (x.var(dim=-1, keepdim=True)
    The caller's `x` is left alone now, but the variance divides by n − 1. The formula
    that you were given was right.
x = x - x.mean → x -= x.mean
; x = x / ((x**2).mean(dim=-1, keepdim=True) → x /= (x.var(dim=-1, keepdim=True)
    The variance divides by n − 1 now; the formula that you were given was right. And
    the caller's `x` still changes: which tensor do `-=` and `/=` write into?
x = x - x.mean → x -= x.mean ; x = x / ((x**2) → x /= ((x**2) ; + eps).sqrt() → ).sqrt() + eps
    eps stands outside the root now; the formula that you were given was right. And the
    caller's `x` still changes: which tensor do `-=` and `/=` write into?
x = x.float() → x = x
    Nothing converts `x` to float32 any more. In half precision the mean and the squares
    come out too coarse.
""")

# --- 2.4 --------------------------------------------------------------------------


def rows_for_rms():
    """Ordinary, tiny and zero features, with a scale and at times an eps."""
    generator = torch.Generator().manual_seed(4)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    two_rows = torch.tensor([[1.0, -2.0, 6.0], [0.0, 0.0, 0.0]])
    return [
        (torch.tensor([[1.0, 2.0, 2.0, 4.0]]), torch.ones(4)),
        (two_rows, torch.tensor([1.0, 2.0, 3.0])),
        (normal(4, 5) + 2, normal(5)),
        (2 * normal(2, 3, 7) - 1, normal(7)),
        (0.001 * normal(3, 2, 5), normal(5)),
        (normal(3, 4, 6), normal(6), 0.5),
    ]


ex = Exercise(
    "2.4",
    "RMSNorm",
    why="Llama and many other models after GPT-2 use it: one statistic for each row "
    "instead of two, and the size of the input is still divided away.",
    inputs=rows_for_rms,
)


@ex.reference
def rms_norm(x, scale, eps=1e-5):
    squares = x**2
    mean_square = squares.mean(dim=-1, keepdim=True)
    root = torch.sqrt(mean_square + eps)
    rows = x / root
    return scale * rows


ex.slips("""
squares = x**2 → x = x - x.mean(dim=-1, keepdim=True)⏎squares = x**2
    The mean is subtracted: that is LayerNorm without its shift. RMSNorm knows no mean,
    neither above the fraction bar nor below it.
squares = x**2 → squares = (x - x.mean(dim=-1, keepdim=True)) ** 2
    You divide by the standard deviation, the root of the variance. RMSNorm takes the
    squares of the numbers themselves, not of their deviations from the mean.
squares.mean(dim=-1, keepdim=True) → squares.sum(dim=-1, keepdim=True)
    The squares are summed and not averaged, so you divide by the length of the row. The
    M in RMS is the mean: the number of features must not matter.
torch.sqrt(mean_square + eps) → mean_square + eps
    You divide by the mean of the squares. Divide by its root: a square does not grow as
    the numbers do.
torch.sqrt(mean_square + eps) → torch.sqrt(mean_square) + eps
    eps is added to the root. It belongs under it, added to the mean square.
mean_square + eps → mean_square
    eps is missing. A row of zeros becomes nan, and a row of small numbers comes out too
    large.
squares.mean(dim=-1, keepdim=True) → squares.mean(dim=-1)
    With more than one row PyTorch cannot line up the shapes: the mean square has lost
    its last axis. Look at `keepdim`.
scale * rows → rows
    The scale is not used.
squares.mean(dim=-1, keepdim=True) → squares.sum(-1, keepdim=True) / (x.shape[-1] - 1)
    The sum of the squares is divided by n − 1, as `var` and `std` do unless told
    otherwise. Their mean divides by n, the number of features.
squares.mean(dim=-1, keepdim=True) → squares.mean()
    The mean square is one number for the whole tensor. Each row needs its own: tell
    `mean` the axis.
---
rows = x / root → rows = (x - x.mean(dim=-1, keepdim=True)) / root
    What you divide by is right, but the mean is subtracted from what you divide.
    RMSNorm leaves the mean where it is.
mean_square + eps → mean_square + 1e-5
    Your eps is always 1e-5. The caller may pass another: use the parameter `eps`.
squares.mean(dim=-1 → squares.mean(dim=0
    The mean square runs along the first axis, over the rows. Take it within each row,
    along the last axis: look at `dim`.
squares.mean(dim=-1 → squares.mean(dim=1
    The mean square runs along axis 1. With two axes that is the last one, with three it
    is not: which `dim` is the last axis of any tensor?
squares.mean(dim=-1 → squares.mean(dim=-2
    The mean square runs along the last axis but one, over positions. Take it over the
    features of each position, along the last: look at `dim`.
scale * rows → scale + rows
    The scale is added. It multiplies: one factor per feature.
scale * rows → rows / scale
    You divide by the scale. It multiplies: one factor per feature.
scale * rows → (1 + scale) * rows
    You multiply by 1 + scale, as some models do whose scale starts at zero. Ours starts
    at one: multiply by the scale itself.
squares = x**2 → x = scale * x⏎squares = x**2 ; scale * rows → rows
    The scale acts on the input, and the norm takes part of it away again. It comes
    last, on the normalized rows.
x / root → x * root
    You multiply by the root. Normalizing divides by it: is there a `sqrt` where you
    want its inverse, `rsqrt`?
squares.mean(dim=-1, keepdim=True) → x.mean(dim=-1, keepdim=True) ** 2
    You square the mean. It is the other way round: square each number first, then
    average the squares.
squares = x**2 → squares = x
    The square is missing: under your root stands the mean of the numbers, which can be
    negative, and then the result is nan.
torch.sqrt(mean_square + eps) → x.abs().mean(dim=-1, keepdim=True) + eps
    You divide by the mean of the absolute values. Square, average, and take the root
    last, of the mean.
mean_square + eps → mean_square + torch.finfo(x.dtype).eps
    Your eps is smaller than it should be. PyTorch's `rms_norm` takes the smallest step
    of the number type unless told otherwise: pass `eps` on.
squares.mean(dim=-1, keepdim=True) → squares.sum(dim=-1, keepdim=True) / len(x)
    The sum of the squares is divided by the number of rows. Their mean divides by the
    number of features, the size of the last axis.
squares.mean(dim=-1, keepdim=True) → squares.sum(dim=-1, keepdim=True) / x.shape[1]
    The sum of the squares is divided by the size of axis 1. With three axes that is not
    the number of features: count them on the last axis.
rows = x / root → rows = torch.nn.functional.normalize(x, dim=-1, eps=eps)
    `F.normalize` divides by the length of the row, the root of the *sum* of squares,
    and knows eps only as a smallest length. RMSNorm takes the mean of the squares, with
    eps added to it.
""")

# --- 2.5 --------------------------------------------------------------------------

ex = Exercise(
    "2.5",
    "How small an input may be",
    why="The norm forgets the size of a row whose spread is beyond ten times √eps, "
    "about 0.03; below that, size begins to come through.",
    tolerance=0.01,
    usual_pairs=True,
)


@ex.value
def spread_in_units_of_root_eps():
    wanted = 0.99
    times_eps = wanted / (1 - wanted)  # variance / (variance + eps) is the wanted one
    return math.sqrt(times_eps)


ex.slips("""
wanted = 0.99 → wanted = 0.5
    There the norm returns half the variance, as the lesson's figure shows. How much
    larger must the spread be for 0.99?
math.sqrt(times_eps) → times_eps
    That is how many times eps the *variance* of the input must be. The question is for
    its spread, in units of √eps.
math.sqrt(times_eps) → math.sqrt(1e-5 * times_eps)
    That is the spread itself. In units of √eps, how much is it?
math.sqrt(times_eps) → 1e-5 * times_eps
    So small a number can hardly be a multiple of √eps: is it a spread, or a variance?
    Divide the spread by √eps.
wanted = 0.99 → wanted = 0.9
    There the variance of the output is 0.9. You are asked for 0.99.
wanted = 0.99 → wanted = 0.9878
    There the variance of the output is 0.988. Rounded that is 0.99, but it is not
    reached: look at the third decimal.
---
math.sqrt(times_eps) → math.sqrt(times_eps) / math.sqrt(1e-5)
    You divided the spread by eps. The unit is its root.
math.sqrt(times_eps) → 1 / math.sqrt(times_eps)
    Upside down: that is √eps in units of the spread. The spread is the larger one.
wanted = 0.99 → wanted = 0.99**2
    There the *spread* of the output is 0.99. The question is for its variance, the
    square of that.
math.sqrt(times_eps) → math.sqrt(1e-5 * wanted) / (1 - math.sqrt(wanted))
    That fits a norm with eps outside the root. Ours has it inside: measure with the
    `LayerNorm` of the lesson.
wanted = 0.99 → wanted = 0.99 * 767 / 768
    You measured the variance of the output with n − 1, which makes it a little too
    large: look at `correction`.
wanted = 0.99 → wanted = 0.99 * 255 / 256
    You measured the variance of 256 features with n − 1, which makes it a little too
    large: look at `correction`.
""")
