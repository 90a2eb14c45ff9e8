"""The exercises of lesson 2 · Layer normalization."""

import itertools
import math

import torch
import torch.nn.functional as F

from .engine import Exercise

ex = Exercise(
    "2.1",
    "What the norm lets through",
    why="Whatever a block adds to a whole row, or multiplies it by, the next norm "
    "takes away, all but the sign.",
    tolerance=0.01,
)
ex.reference(
    {
        "x": -7 / 5,
        "x + 100": -7 / 5,
        "10 * x": -7 / 5,
        "-x": 7 / 5,
        "x with 9 as its last feature": -5 / 3,
        "x above the row [100, 100, 100, 100]": -7 / 5,
        "x, with scale 2 and shift 3": 2 * -7 / 5 + 3,
    }
)
ex.mistake(
    "The variance divides by n − 1, the number of deviations less one. LayerNorm "
    "divides by n: four features, so a quarter of the sum of squares."
)(dict(zip(ex.right, [-1.212, -1.212, -1.212, 1.212, -1.443, -1.212, 0.575])))
ex.mistake(
    "You divided by the variance. Divide by its root, the spread: only that grows as "
    "the numbers do."
)(dict(zip(ex.right, [-0.28, -0.28, -0.028, 0.28, -0.556, -0.28, 2.44])))
ex.mistake(
    "You subtracted the mean and stopped there. The deviations are still to be "
    "divided by their spread."
)(dict(zip(ex.right, [-7, -7, -70, 7, -5, -7, -11])))
ex.mistake(
    "You divided by the spread without subtracting the mean. Start from the "
    "deviations: how far each number lies from the mean."
)(dict(zip(ex.right, [0.6, 20.6, 0.6, -0.6, 1, 0.6, 4.2])))
ex.mistake(
    "The signs are the wrong way round. A deviation is the number minus the mean, and "
    "3 lies below the mean of its row."
)(dict(zip(ex.right, [1.4, 1.4, 1.4, -1.4, 5 / 3, 1.4, 5.8])))
ex.mistake(
    "The norm takes away a shift of the row and a positive factor, and nothing else. "
    "You gave the same number everywhere: look again at `-x`, at the changed feature, "
    "and at scale and shift, which come after the normalization."
)(dict.fromkeys(ex.right, -7 / 5))
ex.mistake(
    "Each answer is one number, the first of the output row: no list, no string."
)({key: [number] for key, number in ex.right.items()})


def slips_by_change():
    """For each change of the input: the wrong numbers, and what to say of each."""
    return {
        "x + 100": {
            98.6: "For `x + 100` the shift is still in your answer. The mean has grown "
            "by 100 too: what is left of the shift in the deviations?",
        },
        "10 * x": {
            -14: "For `10 * x` the factor is still in your answer. The spread has "
            "grown tenfold as well: what is left of the factor once you have divided?",
            -0.14: "For `10 * x` your answer is ten times too small. The variance has "
            "grown a hundredfold, but its root, by which you divide, only tenfold.",
        },
        "-x": {
            -7 / 5: "For `-x` the sign is lost. The spread is never negative, so "
            "dividing by it cannot turn the deviations back: which is the lowest now?",
        },
        "x with 9 as its last feature": {
            -7 / 5: "With 9 as the last feature your first number is the old one. The "
            "first feature has not changed, but the row's mean and spread have.",
            -1: "With 9 as the last feature you used the new mean and the old spread. "
            "Compute both from the row as it is now.",
            -7 / 3: "With 9 as the last feature you used the old mean and the new "
            "spread. Compute both from the row as it is now.",
            -5 / 9: "With 9 as the last feature you divided by the variance. Divide by "
            "its root.",
        },
        "x above the row [100, 100, 100, 100]": {
            -1: "Above the row of hundreds you took mean and variance over the two "
            "rows, column by column. That is batch normalization; here each row is "
            "normalized by itself.",
            -1.152: "Above the row of hundreds you took one mean and one variance of "
            "all eight numbers. Each row has a mean and a variance of its own.",
        },
        "x, with scale 2 and shift 3": {
            -7 / 5: "Scale and shift act after the normalization, so it does not take "
            "them away: your last answer leaves both out.",
            3.2: "In your last answer the shift is added before the scale multiplies, "
            "and so it is doubled too. Which comes first?",
            -2.8: "In your last answer the shift is missing; only the scale is there.",
            1.6: "In your last answer the scale is missing; only the shift is there.",
            -2.2: "In your last answer scale and shift are swapped: 2 is the factor, 3 "
            "is added.",
        },
    }


for changed, slips in slips_by_change().items():
    for wrong_number, sentence in slips.items():
        ex.mistake(sentence)(ex.right | {changed: wrong_number})


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
def _(x, scale, shift, eps=1e-5):
    deviations = x - x.mean(dim=-1, keepdim=True)
    variance = (deviations**2).mean(dim=-1, keepdim=True)
    return scale * deviations / torch.sqrt(variance + eps) + shift


def layer_norm_faults():
    """What can go wrong in a layer norm, by itself or in company."""
    return {
        "n - 1": "The variance divides by n − 1. LayerNorm divides by n, the number of "
        "features: look at what `var` and `std` do unless told otherwise.",
        "sum": "The squared deviations are summed and not averaged. The variance is "
        "their mean: divide the sum by the number of features.",
        "eps outside": "eps is added to the root. It belongs under the root, added to "
        "the variance; for inputs with a small spread that makes a large difference.",
        "no eps": "eps is missing. A row of equal features has the variance 0 and "
        "becomes nan, and a row with a small spread comes out too large.",
        "eps fixed": "Your eps is always 1e-5. The caller may pass another: use the "
        "parameter `eps`.",
        "eps squared": "eps is squared. Add it to the variance as it is.",
        "no root": "You divide by the variance. Divide by its root: the variance grows "
        "with the square of the numbers, its root as they do.",
        "axis 0": "Mean and variance run along the first axis, over the rows. Take "
        "them within each row, along the last axis: look at `dim`.",
        "axis 1": "Mean and variance run along axis 1. With two axes that is the last "
        "one, with three it is not: which `dim` is the last axis of any tensor?",
        "axis -2": "Mean and variance run along the last axis but one, over positions. "
        "Take them over the features of each position, along the last: look at `dim`.",
        "per feature": "Mean and variance are taken for each feature, over all rows: "
        "that is batch normalization. Take them for each row, over its features.",
        "last two": "Mean and variance are taken over all positions of a text "
        "together. Each position is normalized by itself: `dim` is the last axis alone.",
        "not the first": "Mean and variance run over all axes but the first. With two "
        "axes that is right; with three, each position of a text needs its own.",
        "whole": "Mean and variance are one number each for the whole tensor. Each row "
        "needs its own: tell them the axis.",
        "keepdim": "With more than one row PyTorch cannot line up the shapes: the mean "
        "or the variance has lost its last axis. Look at `keepdim`.",
        "parentheses": "Only the mean is divided by the spread, because `/` binds "
        "tighter than `-`. Put the deviations in parentheses.",
        "no scale": "The scale is not used.",
        "no shift": "The shift is not used.",
        "neither": "Neither scale nor shift is used.",
        "swapped": "Scale and shift are swapped: the scale multiplies and the shift is "
        "added. In which order are they passed?",
        "shift first": "The shift is added before the scale multiplies, so it is "
        "scaled too. Scale first, then shift.",
        "shift subtracted": "The shift is subtracted. It is added, as the bias of a "
        "linear layer is.",
    }


def faulty_layer_norm(faults, x, scale, shift, eps=1e-5):
    axes = {
        "axis 0": 0,
        "axis 1": 1,
        "axis -2": -2,
        "per feature": tuple(range(x.ndim - 1)),
        "last two": (-2, -1),
        "not the first": tuple(range(1, x.ndim)),
        "whole": tuple(range(x.ndim)),
    }
    axis = next((axes[fault] for fault in faults if fault in axes), -1)
    statistic = {"dim": axis, "keepdim": "keepdim" not in faults}
    mean = x.mean(**statistic)
    variance = ((x - mean) ** 2).mean(**statistic)
    n = x.numel() // variance.numel()
    if "n - 1" in faults:
        variance = variance * n / (n - 1 if n > 1 else math.nan)
    if "sum" in faults:
        variance = variance * n
    eps = 1e-5 if "eps fixed" in faults else eps
    eps = eps**2 if "eps squared" in faults else eps
    root = torch.sqrt(variance + eps)
    if "eps outside" in faults:
        root = torch.sqrt(variance) + eps
    if "no eps" in faults:
        root = torch.sqrt(variance)
    if "no root" in faults:
        root = variance + eps
    rows = x - mean / root if "parentheses" in faults else (x - mean) / root
    if "swapped" in faults:
        scale, shift = shift, scale
    if "shift first" in faults:
        shift = scale * shift
    if "shift subtracted" in faults:
        shift = -shift
    if "no scale" in faults or "neither" in faults:
        scale = 1
    if "no shift" in faults or "neither" in faults:
        shift = 0
    return scale * rows + shift


def pairs_of_layer_norm_faults():
    """Faults that come together: one each of two kinds, or all that `std` brings."""
    axis = "axis 0", "whole"
    root = "eps outside", "no eps", "eps fixed", "no root"
    last = "no scale", "no shift", "neither"
    kinds = itertools.combinations([axis, root, last, ["n - 1"]], 2)
    pairs = [pair for two_kinds in kinds for pair in itertools.product(*two_kinds)]
    pairs += itertools.product(["sum"], ["eps outside", "no eps"])
    pairs += itertools.product(["keepdim"], ["n - 1", "no root"])
    pairs += [("parentheses", "n - 1")]
    pairs += itertools.product(["n - 1"], ["eps outside", "no eps"], axis + last)
    return pairs


def register_faults(exercise, faulty, sentences, pairs):
    """Name each fault and those that come together, as made by ``faulty``."""
    for faults in [(fault,) for fault in sentences] + pairs:
        opening = ["", "Two things at once. ", "Three things at once. "][
            len(faults) - 1
        ]
        message = opening + " ".join(sentences[fault] for fault in faults)
        exercise.mistake(message)(
            lambda *arguments, faults=faults: faulty(faults, *arguments)
        )


register_faults(
    ex, faulty_layer_norm, layer_norm_faults(), pairs_of_layer_norm_faults()
)


@ex.mistake(
    "eps is added under the root and once more outside it. It belongs under the root "
    "only."
)
def _(x, scale, shift, eps=1e-5):
    root = torch.sqrt(x.var(dim=-1, keepdim=True, correction=0) + eps)
    return scale * (x - x.mean(dim=-1, keepdim=True)) / (root + eps) + shift


@ex.mistake(
    "eps is added to the quotient, after the division. It belongs in the denominator, "
    "under the root, where it keeps you from dividing by zero."
)
def _(x, scale, shift, eps=1e-5):
    spread = x.std(dim=-1, keepdim=True, correction=0)
    return scale * ((x - x.mean(dim=-1, keepdim=True)) / spread + eps) + shift


@ex.mistake(
    "The root is taken twice: a standard deviation is a root already. Which one of the "
    "two, variance or standard deviation, stands under your root?"
)
def _(x, scale, shift, eps=1e-5):
    spread = x.std(dim=-1, keepdim=True, correction=0)
    return scale * (x - x.mean(dim=-1, keepdim=True)) / torch.sqrt(spread + eps) + shift


@ex.mistake(
    "The root is taken twice, since a standard deviation is a root already; and `std` "
    "divides by n − 1 unless told otherwise. What should stand under your root?"
)
def _(x, scale, shift, eps=1e-5):
    spread = x.std(dim=-1, keepdim=True)
    return scale * (x - x.mean(dim=-1, keepdim=True)) / torch.sqrt(spread + eps) + shift


@ex.mistake(
    "You multiply by the root of the variance. Normalizing divides by it: is there a "
    "`sqrt` where you want its inverse, `rsqrt`?"
)
def _(x, scale, shift, eps=1e-5):
    root = torch.sqrt(x.var(dim=-1, keepdim=True, correction=0) + eps)
    return scale * (x - x.mean(dim=-1, keepdim=True)) * root + shift


@ex.mistake(
    "The mean is subtracted, but nothing is divided by the spread: the rows keep their "
    "size."
)
def _(x, scale, shift, eps=1e-5):
    return scale * (x - x.mean(dim=-1, keepdim=True)) + shift


@ex.mistake(
    "The division is right, but the mean is not subtracted from what you divide: look "
    "at the numerator."
)
def _(x, scale, shift, eps=1e-5):
    return scale * x / (x.var(dim=-1, keepdim=True, correction=0) + eps).sqrt() + shift


@ex.mistake(
    "What you divide by is the root of the mean of `x**2`. The variance is the mean "
    "of the squared deviations: subtract the mean before you square."
)
def _(x, scale, shift, eps=1e-5):
    square = (x**2).mean(dim=-1, keepdim=True)
    return scale * (x - x.mean(dim=-1, keepdim=True)) / (square + eps).sqrt() + shift


@ex.mistake(
    "The mean is nowhere subtracted, neither above the fraction bar nor in the "
    "variance. That is RMSNorm, which comes in a later exercise."
)
def _(x, scale, shift, eps=1e-5):
    return scale * x / ((x**2).mean(dim=-1, keepdim=True) + eps).sqrt() + shift


@ex.mistake(
    "Your variance is always zero, because the deviations of a row have the mean zero. "
    "Square each of them first, then average the squares."
)
def _(x, scale, shift, eps=1e-5):
    return scale * (x - x.mean(dim=-1, keepdim=True)) / math.sqrt(eps) + shift


@ex.mistake(
    "The deviations are averaged without being squared, and their mean is always zero, "
    "up to rounding. Square each of them first."
)
def _(x, scale, shift, eps=1e-5):
    deviations = x - x.mean(dim=-1, keepdim=True)
    variance = deviations.mean(dim=-1, keepdim=True)
    return scale * deviations / torch.sqrt(variance + eps) + shift


@ex.mistake(
    "The sum of the squared deviations is divided by the number of rows. Their mean "
    "divides by the number of features, the size of the last axis."
)
def _(x, scale, shift, eps=1e-5):
    deviations = x - x.mean(dim=-1, keepdim=True)
    variance = (deviations**2).sum(dim=-1, keepdim=True) / len(x)
    return scale * deviations / torch.sqrt(variance + eps) + shift


@ex.mistake(
    "The sum of the squared deviations is divided by the size of axis 1. With three "
    "axes that is not the number of features: count them on the last axis."
)
def _(x, scale, shift, eps=1e-5):
    deviations = x - x.mean(dim=-1, keepdim=True)
    variance = (deviations**2).sum(dim=-1, keepdim=True) / x.shape[1]
    return scale * deviations / torch.sqrt(variance + eps) + shift


@ex.mistake(
    "`/` and `*` bind tighter than `-`, so in your line the division and the scale act "
    "on the mean alone. Put the deviations in parentheses."
)
def _(x, scale, shift, eps=1e-5):
    root = torch.sqrt(x.var(dim=-1, keepdim=True, correction=0) + eps)
    return x - x.mean(dim=-1, keepdim=True) / root * scale + shift


@ex.mistake(
    "Your spread is the mean of the absolute deviations. Square the deviations, "
    "average the squares, and take the root last, of their mean."
)
def _(x, scale, shift, eps=1e-5):
    deviations = x - x.mean(dim=-1, keepdim=True)
    return scale * deviations / (deviations.abs().mean(-1, keepdim=True) + eps) + shift


@ex.mistake(
    "The signs are the wrong way round: a deviation is the number minus the mean."
)
def _(x, scale, shift, eps=1e-5):
    return F.layer_norm(-x, x.shape[-1:], scale, shift, eps)


@ex.mistake(
    "The mean belongs to each row, but the variance is one number for the whole "
    "tensor. Tell both the axis."
)
def _(x, scale, shift, eps=1e-5):
    deviations = x - x.mean(dim=-1, keepdim=True)
    return scale * deviations / torch.sqrt(x.var(correction=0) + eps) + shift


@ex.mistake(
    "The squared deviations of all rows are averaged together. Each row has a variance "
    "of its own: tell that `mean` the axis too."
)
def _(x, scale, shift, eps=1e-5):
    deviations = x - x.mean(dim=-1, keepdim=True)
    return scale * deviations / torch.sqrt((deviations**2).mean() + eps) + shift


@ex.mistake(
    "The variance belongs to each row, but the mean is one number for the whole "
    "tensor. Tell both the axis."
)
def _(x, scale, shift, eps=1e-5):
    variance = x.var(dim=-1, keepdim=True, correction=0)
    return scale * (x - x.mean()) / torch.sqrt(variance + eps) + shift


@ex.mistake(
    "Scale and shift act on the input, and the norm takes part of them away again. "
    "They come last, on the normalized rows."
)
def _(x, scale, shift, eps=1e-5):
    return F.layer_norm(scale * x + shift, x.shape[-1:], None, None, eps)


ex = Exercise(
    "2.3",
    "Right by itself, wrong in a model",
    why="Every block of GPT-2 adds the output of a part to the very tensor that its "
    "norm has read, so a norm must leave that tensor alone.",
    inputs=rows_to_normalize,
    call=lambda answer, x, *others: x + answer(x, *others),
)


@ex.reference
def _(x, scale, shift, eps=1e-5):
    deviations = x.float() - x.mean(dim=-1, keepdim=True)
    variance = (deviations**2).mean(dim=-1, keepdim=True)
    return scale * deviations / torch.sqrt(variance + eps) + shift


@ex.bug(
    "The caller's `x` still changes. `-=` and `/=` write into the tensor they are "
    "given, and that is still the caller's: a second name or a view is no copy, and "
    "neither is a conversion to the type that the tensor has already."
)
def _(x, scale, shift, eps=1e-5):
    x = x.float()
    x -= x.mean(dim=-1, keepdim=True)
    x /= ((x**2).mean(dim=-1, keepdim=True) + eps).sqrt()
    return x * scale + shift


@ex.mistake(
    "Half repaired: the division now makes a new tensor, but the mean is still "
    "subtracted from the caller's `x`."
)
def _(x, scale, shift, eps=1e-5):
    x -= x.mean(dim=-1, keepdim=True)
    x = x / torch.sqrt((x**2).mean(dim=-1, keepdim=True) + eps)
    return x * scale + shift


@ex.mistake(
    "Half repaired: the mean is subtracted into a new tensor, but the division still "
    "writes into the caller's `x`, and it is that one which you return, with its mean."
)
def _(x, scale, shift, eps=1e-5):
    deviations = x - x.mean(dim=-1, keepdim=True)
    x /= torch.sqrt((deviations**2).mean(dim=-1, keepdim=True) + eps)
    return x * scale + shift


@ex.mistake(
    "The caller's `x` is left alone now, but you divide by the root of the mean of "
    "`x**2`. The squares must be those of the deviations."
)
def _(x, scale, shift, eps=1e-5):
    deviations = x - x.mean(dim=-1, keepdim=True)
    square = (x**2).mean(dim=-1, keepdim=True)
    return scale * deviations / torch.sqrt(square + eps) + shift


@ex.mistake(
    "The caller's `x` is left alone now, but the mean is not subtracted any more from "
    "what you divide."
)
def _(x, scale, shift, eps=1e-5):
    return scale * x / (x.var(dim=-1, keepdim=True, correction=0) + eps).sqrt() + shift


@ex.mistake(
    "The deviations are a new tensor now, but the division still writes into the "
    "caller's `x`, and what you return has never been divided."
)
def _(x, scale, shift, eps=1e-5):
    deviations = x - x.mean(dim=-1, keepdim=True)
    x /= torch.sqrt((deviations**2).mean(dim=-1, keepdim=True) + eps)
    return deviations * scale + shift


@ex.mistake(
    "The caller's `x` is left alone now, but it is also what you scale and return: use "
    "the new tensor, the one that you have normalized."
)
def _(x, scale, shift, eps=1e-5):
    return x * scale + shift


@ex.mistake(
    "Now scale and shift are written into the caller's `x` as well. It must not change "
    "at all: which lines write into a tensor, and into which one?"
)
def _(x, scale, shift, eps=1e-5):
    return x.copy_(F.layer_norm(x, x.shape[-1:], scale, shift, eps))


@ex.mistake(
    "Your function adds the input itself. The check computes `x` plus what you return, "
    "so the input is now there twice: return the normalized rows alone."
)
def _(x, scale, shift, eps=1e-5):
    return x + F.layer_norm(x, x.shape[-1:], scale, shift, eps)


@ex.mistake(
    "The caller's `x` is left alone now, but the variance divides by n − 1. The "
    "formula that you were given was right."
)
def _(x, scale, shift, eps=1e-5):
    variance = x.var(dim=-1, keepdim=True)
    return scale * (x - x.mean(dim=-1, keepdim=True)) / (variance + eps).sqrt() + shift


@ex.mistake(
    "The variance divides by n − 1 now; the formula that you were given was right. And "
    "the caller's `x` still changes: which tensor do `-=` and `/=` write into?"
)
def _(x, scale, shift, eps=1e-5):
    x -= x.mean(dim=-1, keepdim=True)
    x /= torch.sqrt(x.var(dim=-1, keepdim=True) + eps)
    return x * scale + shift


@ex.mistake(
    "eps stands outside the root now; the formula that you were given was right. And "
    "the caller's `x` still changes: which tensor do `-=` and `/=` write into?"
)
def _(x, scale, shift, eps=1e-5):
    x -= x.mean(dim=-1, keepdim=True)
    x /= torch.sqrt((x**2).mean(dim=-1, keepdim=True)) + eps
    return x * scale + shift


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
def _(x, scale, eps=1e-5):
    return scale * x / torch.sqrt((x**2).mean(dim=-1, keepdim=True) + eps)


def rms_norm_faults():
    """What can go wrong in an RMSNorm, by itself or in company."""
    return {
        "centered": "The mean is subtracted: that is LayerNorm without its shift. "
        "RMSNorm knows no mean, neither above the fraction bar nor below it.",
        "centered above": "What you divide by is right, but the mean is subtracted "
        "from what you divide. RMSNorm leaves the mean where it is.",
        "centered below": "You divide by the standard deviation, the root of the "
        "variance. RMSNorm takes the squares of the numbers themselves, not of their "
        "deviations from the mean.",
        "n - 1": "The sum of the squares is divided by n − 1, as `var` and `std` do "
        "unless told otherwise. Their mean divides by n, the number of features.",
        "sum": "The squares are summed and not averaged, so you divide by the length "
        "of the row. The M in RMS is the mean: the number of features must not matter.",
        "no root": "You divide by the mean of the squares. Divide by its root: a "
        "square does not grow as the numbers do.",
        "eps outside": "eps is added to the root. It belongs under it, added to the "
        "mean square.",
        "no eps": "eps is missing. A row of zeros becomes nan, and a row of small "
        "numbers comes out too large.",
        "eps fixed": "Your eps is always 1e-5. The caller may pass another: use the "
        "parameter `eps`.",
        "axis 0": "The mean square runs along the first axis, over the rows. Take it "
        "within each row, along the last axis: look at `dim`.",
        "axis 1": "The mean square runs along axis 1. With two axes that is the last "
        "one, with three it is not: which `dim` is the last axis of any tensor?",
        "axis -2": "The mean square runs along the last axis but one, over positions. "
        "Take it over the features of each position, along the last: look at `dim`.",
        "whole": "The mean square is one number for the whole tensor. Each row needs "
        "its own: tell `mean` the axis.",
        "keepdim": "With more than one row PyTorch cannot line up the shapes: the mean "
        "square has lost its last axis. Look at `keepdim`.",
        "no scale": "The scale is not used.",
        "scale added": "The scale is added. It multiplies: one factor per feature.",
        "scale below": "You divide by the scale. It multiplies: one factor per feature.",
        "1 + scale": "You multiply by 1 + scale, as some models do whose scale starts "
        "at zero. Ours starts at one: multiply by the scale itself.",
        "scale first": "The scale acts on the input, and the norm takes part of it "
        "away again. It comes last, on the normalized rows.",
    }


def faulty_rms_norm(faults, x, scale, eps=1e-5):
    axes = {"axis 0": 0, "axis 1": 1, "axis -2": -2, "whole": tuple(range(x.ndim))}
    axis = next((axes[fault] for fault in faults if fault in axes), -1)
    statistic = {"dim": axis, "keepdim": "keepdim" not in faults}
    if "scale first" in faults:
        x, scale = scale * x, 1
    deviations = x - x.mean(dim=-1, keepdim=True)
    below = "centered" in faults or "centered below" in faults
    square = ((deviations if below else x) ** 2).mean(**statistic)
    n = x.numel() // square.numel()
    if "n - 1" in faults:
        square = square * n / (n - 1)
    if "sum" in faults:
        square = square * n
    eps = 1e-5 if "eps fixed" in faults else eps
    root = torch.sqrt(square + eps)
    if "eps outside" in faults:
        root = torch.sqrt(square) + eps
    if "no eps" in faults:
        root = torch.sqrt(square)
    if "no root" in faults:
        root = square + eps
    above = "centered" in faults or "centered above" in faults
    rows = (deviations if above else x) / root
    if "scale added" in faults:
        return rows + scale
    if "scale below" in faults:
        return rows / scale
    if "1 + scale" in faults:
        return rows * (1 + scale)
    return rows if "no scale" in faults else rows * scale


def pairs_of_rms_norm_faults():
    """Faults that come together: one each of two kinds, or all that `std` brings."""
    below = "centered", "centered below", "sum"
    axis = "axis 0", "whole"
    eps = "eps outside", "no eps", "eps fixed"
    pairs = list(itertools.product(below + axis, eps + ("no scale",)))
    pairs += itertools.product(eps + ("no root",), ["no scale"])
    pairs += itertools.product(below[:2], ["n - 1"])
    pairs += itertools.product(below[:2], ["n - 1"], eps[:2])
    return pairs + [("keepdim", "no root")]


register_faults(ex, faulty_rms_norm, rms_norm_faults(), pairs_of_rms_norm_faults())


@ex.mistake(
    "You multiply by the root. Normalizing divides by it: is there a `sqrt` where you "
    "want its inverse, `rsqrt`?"
)
def _(x, scale, eps=1e-5):
    return scale * x * torch.sqrt((x**2).mean(dim=-1, keepdim=True) + eps)


@ex.mistake(
    "You square the mean. It is the other way round: square each number first, then "
    "average the squares."
)
def _(x, scale, eps=1e-5):
    return scale * x / torch.sqrt(x.mean(dim=-1, keepdim=True) ** 2 + eps)


@ex.mistake(
    "The square is missing: under your root stands the mean of the numbers, which can "
    "be negative, and then the result is nan."
)
def _(x, scale, eps=1e-5):
    return scale * x / torch.sqrt(x.mean(dim=-1, keepdim=True) + eps)


@ex.mistake(
    "You divide by the mean of the absolute values. Square, average, and take the root "
    "last, of the mean."
)
def _(x, scale, eps=1e-5):
    return scale * x / (x.abs().mean(dim=-1, keepdim=True) + eps)


@ex.mistake(
    "Your eps is smaller than it should be. PyTorch's `rms_norm` takes the smallest "
    "step of the number type unless told otherwise: pass `eps` on."
)
def _(x, scale, eps=1e-5):
    return F.rms_norm(x, x.shape[-1:], scale)


@ex.mistake(
    "`F.normalize` divides by the length of the row, the root of the *sum* of squares, "
    "and knows eps only as a smallest length. RMSNorm takes the mean of the squares, "
    "with eps added to it."
)
def _(x, scale, eps=1e-5):
    return scale * F.normalize(x, dim=-1, eps=eps)


@ex.mistake(
    "The sum of the squares is divided by the number of rows. Their mean divides by "
    "the number of features, the size of the last axis."
)
def _(x, scale, eps=1e-5):
    square = (x**2).sum(dim=-1, keepdim=True) / len(x)
    return scale * x / torch.sqrt(square + eps)


@ex.mistake(
    "The sum of the squares is divided by the size of axis 1. With three axes that is "
    "not the number of features: count them on the last axis."
)
def _(x, scale, eps=1e-5):
    square = (x**2).sum(dim=-1, keepdim=True) / x.shape[1]
    return scale * x / torch.sqrt(square + eps)


ex = Exercise(
    "2.5",
    "How small an input may be",
    why="The norm forgets the size of a row whose spread is beyond ten times √eps, "
    "about 0.03; below that, size begins to come through.",
    tolerance=0.01,
)
ex.reference(math.sqrt(0.99 / 0.01))
ex.mistake(
    "There the norm returns half the variance, as the lesson's figure shows. How much "
    "larger must the spread be for 0.99?"
)(1.0)
ex.mistake(
    "That is how many times eps the *variance* of the input must be. The question is "
    "for its spread, in units of √eps."
)(0.99 / 0.01)
ex.mistake("That is the spread itself. In units of √eps, how much is it?")(
    math.sqrt(1e-5 * 0.99 / 0.01)
)
ex.mistake(
    "So small a number can hardly be a multiple of √eps: is it a spread, or a variance? "
    "Divide the spread by √eps."
)(0.001)
ex.mistake("You divided the spread by eps. The unit is its root.")(
    math.sqrt(0.99 / 0.01) / math.sqrt(1e-5)
)
ex.mistake(
    "Upside down: that is √eps in units of the spread. The spread is the larger one."
)(math.sqrt(0.01 / 0.99))
ex.mistake(
    "There the *spread* of the output is 0.99. The question is for its variance, the "
    "square of that."
)(math.sqrt(0.99**2 / (1 - 0.99**2)))
ex.mistake("There the variance of the output is 0.9. You are asked for 0.99.")(3.0)
ex.mistake(
    "There the variance of the output is 0.988. Rounded that is 0.99, but it is not "
    "reached: look at the third decimal."
)(9.0)
ex.mistake(
    "That fits a norm with eps outside the root. Ours has it inside: measure with the "
    "`LayerNorm` of the lesson."
)(math.sqrt(1e-5) * math.sqrt(0.99) / (1 - math.sqrt(0.99)))
ex.mistake(
    "You measured the variance of the output with n − 1, which makes it a little too "
    "large: look at `correction`."
)(math.sqrt(0.99 * 767 / 768 / (1 - 0.99 * 767 / 768)))
ex.mistake(
    "You measured the variance of 256 features with n − 1, which makes it a little too "
    "large: look at `correction`."
)(math.sqrt(0.99 * 255 / 256 / (1 - 0.99 * 255 / 256)))
