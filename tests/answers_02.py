"""Answers to lesson 2's exercises: right ones, and wrong ones with what is said."""

import math

import torch
import torch.nn.functional as F

# --- 2.1 --------------------------------------------------------------------------

ABOVE, SCALED = "x above the row [100, 100, 100, 100]", "x, with scale 2 and shift 3"
CHANGED = "x with 9 as its last feature"
FIRST = {
    "x": -1.4,
    "x + 100": -1.4,
    "10 * x": -1.4,
    "-x": 1.4,
    CHANGED: -1.67,
    ABOVE: -1.4,
    SCALED: 0.2,
}
CORRECTED = {key: value * 0.75**0.5 for key, value in FIRST.items()}

WRONG_FIRST = [
    ("divides by n − 1", CORRECTED | {SCALED: 3 - 2 * 1.21}),
    ("the shift is still in your answer", {"x + 100": 98.6}),
    ("the factor is still in your answer", {"10 * x": -14}),
    ("the sign is lost", {"-x": -7 / 5}),
    ("your first number is the old one", {CHANGED: -1.4}),
    ("batch normalization", {ABOVE: -1.0}),
    ("leaves both out", {SCALED: -1.4}),
    ("and so it is doubled too", {SCALED: 3.2}),
    ("For `-x` the sign is lost", {"10 * x": 3, "-x": -1.4}),
    ("You gave the same number everywhere", dict.fromkeys(FIRST, -1.4)),
]

# --- 2.2 --------------------------------------------------------------------------


def right_2_2_loop(x, scale, shift, eps=1e-5):
    rows = []
    for row in x.reshape(-1, x.shape[-1]).tolist():
        mean = sum(row) / len(row)
        root = math.sqrt(sum((v - mean) ** 2 for v in row) / len(row) + eps)
        rows.append([(v - mean) / root for v in row])
    return torch.tensor(rows).reshape(x.shape) * scale + shift


def right_2_2_in_place(x, scale, shift, eps=1e-5):
    x -= x.mean(-1, keepdim=True)
    x *= x.square().mean(-1, keepdim=True).add(eps).rsqrt()
    return x.mul_(scale).add_(shift)


def right_2_2_float64(x, scale, shift, eps=1e-5):
    columns = x.double().movedim(-1, 0)
    columns = columns - columns.mean(0)
    return (columns / (columns.square().mean(0) + eps) ** 0.5).movedim(0, -1) * scale + shift  # fmt: skip


def wrong_2_2_corrected(x, scale, shift, eps=1e-5):
    x = x - x.mean(-1, keepdim=True)
    variance = x.pow(2).sum(-1, keepdim=True) / (x.shape[-1] - 1)
    return x * torch.rsqrt(variance + eps) * scale + shift


def centered(spread, last=lambda x, scale, shift: x * scale + shift):
    """The norm with a given spread of the deviations, and a given end."""

    def norm(x, scale, shift, eps=1e-5):
        x = x - x.mean(-1, keepdim=True)
        return last(x / spread(x.square().mean(-1, keepdim=True), eps), scale, shift)

    return norm


def root(variance, eps):
    return (variance + eps) ** 0.5


def wrong_2_2_keepdim(x, scale, shift, eps=1e-5):
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(x.var(-1, correction=0) + eps) * scale + shift


def wrong_2_2_std_alone(x, scale, shift, eps=1e-5):
    x = x - x.mean(-1, keepdim=True)
    return x / (x.square().sum(-1, keepdim=True) / (x.size(-1) - 1)).sqrt()


WRONG_NORMS = [
    ("The variance divides by n − 1", wrong_2_2_corrected),
    ("eps is added to the root", centered(lambda v, eps: v**0.5 + eps)),
    ("eps is missing", centered(lambda v, eps: v**0.5)),
    ("You divide by the variance", centered(lambda v, eps: v + eps)),
    (
        "last axis but one",
        lambda x, a, b, e=1e-5: right_2_2_float64(x.mT, 1, 0, e).mT * a + b,
    ),
    (
        "number each for",
        lambda x, a, b, e=1e-5: F.layer_norm(x, x.shape, eps=e) * a + b,
    ),
    ("Look at `keepdim`", wrong_2_2_keepdim),
    ("The scale is not used", centered(root, lambda x, scale, shift: x + shift)),
    ("The shift is not used", centered(root, lambda x, scale, shift: x * scale)),
    ("are swapped", centered(root, lambda x, scale, shift: scale + shift * x)),
    ("so it is scaled too", centered(root, lambda x, a, b: a * x + a * b)),
    (
        "all axes but",
        lambda x, a, b, e=1e-5: F.layer_norm(x, x.shape[1:], eps=e) * a + b,
    ),
    ("n − 1. eps is missing. Neither scale nor", wrong_2_2_std_alone),
    ("0.5 times", lambda x, a, b, e=1e-5: F.layer_norm(x, x.shape[-1:], a, b, e) / 2),
    ("returns None", lambda x, scale, shift, eps=1e-5: None),
]

# --- 2.3 --------------------------------------------------------------------------


def right_2_3_clone(x, scale, shift, eps=1e-5):
    x = x.float().clone()
    x -= x.mean(dim=-1, keepdim=True)
    x /= torch.sqrt((x**2).mean(dim=-1, keepdim=True) + eps)
    return x * scale + shift


def right_2_3_float64(x, scale, shift, eps=1e-5):
    return right_2_3_clone(x.double(), scale, shift, eps).float()


def wrong_2_3_alias(x, scale, shift, eps=1e-5):
    y = x
    y -= y.mean(dim=-1, keepdim=True)
    y /= torch.sqrt((y**2).mean(dim=-1, keepdim=True) + eps)
    return y * scale + shift


def wrong_2_3_view(x, scale, shift, eps=1e-5):
    return wrong_2_3_alias(x.float().detach()[:], scale, shift, eps)


def wrong_2_3_mean(x, scale, shift, eps=1e-5):
    x = x.float()
    x.sub_(x.mean(dim=-1, keepdim=True))
    return F.rms_norm(x, x.shape[-1:], scale, eps) + shift


def wrong_2_3_squares(x, scale, shift, eps=1e-5):
    x = x.float()
    y = x - x.mean(dim=-1, keepdim=True)
    return y / torch.sqrt((x**2).mean(dim=-1, keepdim=True) + eps) * scale + shift


WRONG_REPAIRS = [
    ("and neither is a conversion", wrong_2_3_view),
    ("The caller's `x` still changes. Nothing converts", wrong_2_3_alias),
    ("the mean is still subtracted from the caller's", wrong_2_3_mean),
    ("you divide by the root of the mean of `x**2`", wrong_2_3_squares),
    ("the input is now there twice", lambda x, *a: x + right_2_3_clone(x, *a)),
    ("come out too coarse", centered(root)),
    ("numbers differ", lambda x, scale, shift, eps=1e-5: 0 * x + shift),
]

# --- 2.4 --------------------------------------------------------------------------


def right_2_4_loop(x, scale, eps=1e-5):
    rows = [
        row / (torch.dot(row, row) / len(row) + eps).sqrt() * scale
        for row in x.reshape(-1, x.shape[-1])
    ]
    return torch.stack(rows).reshape(x.shape)


def right_2_4_norm(x, scale, eps=1e-5):
    length = torch.linalg.vector_norm(x.double(), dim=-1, keepdim=True)
    return x * (length**2 / x.shape[-1] + eps) ** -0.5 * scale


def by(divisor):
    """RMSNorm with another divisor, made of the row's length, its size and eps."""

    def norm(x, scale, eps=1e-5):
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x / divisor(length, x.shape[-1], eps) * scale

    return norm


def wrong_2_4_std(x, scale, eps=1e-5):
    return x / (torch.std(x, dim=-1, keepdim=True) + eps) * scale


WRONG_RMS = [
    (
        "without its shift",
        lambda x, a, e=1e-5: F.layer_norm(x, x.shape[-1:], a, None, e),
    ),
    ("averaged, so you divide", by(lambda length, n, eps: root(length**2, eps))),
    ("by the mean of the squares", by(lambda length, n, eps: length**2 / n + eps)),
    ("eps is added to the root", by(lambda length, n, eps: length / n**0.5 + eps)),
    ("A row of zeros becomes nan", by(lambda length, n, eps: length / n**0.5)),
    ("is divided by n − 1", by(lambda length, n, eps: root(length**2 / (n - 1), eps))),
    (
        "lost its last axis",
        by(lambda length, n, eps: root(length[..., 0] ** 2 / n, eps)),
    ),
    ("The scale is not used", lambda x, a, e=1e-5: F.rms_norm(x, x.shape[-1:], eps=e)),
    (
        "one number for the whole",
        lambda x, a, e=1e-5: F.rms_norm(x, x.shape, eps=e) * a,
    ),
    ("Three things at once. You divide by the standard", wrong_2_4_std),
    ("2 times", lambda x, a, e=1e-5: 2 * F.rms_norm(x, x.shape[-1:], a, e)),
]

# ----------------------------------------------------------------------------------

RIGHT = {
    "2.1": [FIRST, {key: torch.tensor([value]) for key, value in FIRST.items()}],
    "2.2": [right_2_2_loop, right_2_2_in_place, right_2_2_float64],
    "2.3": [right_2_3_clone, right_2_3_float64],
    "2.4": [right_2_4_loop, right_2_4_norm],
    "2.5": [10, 9.9, torch.tensor([9.95]), 0.0315 / 1e-5**0.5],
}

WRONG = {
    "2.1": [(words, FIRST | wrong) for words, wrong in WRONG_FIRST],
    "2.2": WRONG_NORMS,
    "2.3": WRONG_REPAIRS,
    "2.4": WRONG_RMS,
    "2.5": [
        ("half the variance", 1),
        ("That is the spread itself", 0.032),
        ("a spread, or a variance", 0.00099),
        ("Rounded that is", 9),
        ("not the expected one", 20),
    ],
}
