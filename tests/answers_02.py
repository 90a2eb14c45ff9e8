"""Answers to the exercises of lesson 2 · Layer normalization: right ones, and wrong ones with what is said."""

import math

import torch
import torch.nn.functional as F

import gpt_helpers


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
    x *= scale
    x += shift
    return x


def right_2_2_float64(x, scale, shift, eps=1e-5):
    x = x.double()
    mean = x.sum(-1) / x.shape[-1]
    variance = (x**2).sum(-1) / x.shape[-1] - mean**2
    return (x - mean[..., None]) / (variance[..., None] + eps) ** 0.5 * scale + shift


def right_2_2_var_mean(x, scale, shift, eps=1e-5):
    variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
    return torch.addcmul(shift, scale, (x - mean) / torch.sqrt(variance + eps))


def right_2_2_last_axis_first(x, scale, shift, eps=1e-5):
    columns = x.movedim(-1, 0)
    spread = columns.std(0, unbiased=False)
    columns = (columns - columns.mean(0)) / torch.sqrt(spread.square() + eps)
    return columns.movedim(0, -1) * scale + shift


def right_2_2_built_in(x, scale, shift, eps=1e-5):
    return F.layer_norm(x, (x.shape[-1],), weight=scale, bias=shift, eps=eps)


def right_2_2_class(x, scale, shift, eps=1e-5):
    norm = gpt_helpers.LayerNorm(x.shape[-1])
    norm.eps, norm.scale.data, norm.shift.data = eps, scale, shift
    return norm(x)


def wrong_2_2_corrected(x, scale, shift, eps=1e-5):
    deviations = x - x.mean(-1, keepdim=True)
    variance = deviations.pow(2).sum(-1, keepdim=True) / (x.shape[-1] - 1)
    return deviations * torch.rsqrt(variance + eps) * scale + shift


def wrong_2_2_annotated(x, scale, shift, eps=1e-5):
    mean, std = x.mean(-1, keepdim=True), x.var(-1, keepdim=True) ** 0.5
    return scale * (x - mean) / (std + eps) + shift


def wrong_2_2_outside(x, scale, shift, eps=1e-5):
    x = x - x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) ** 0.5 + eps) * scale + shift


def wrong_2_2_no_eps(x, scale, shift, eps=1e-5):
    variance, mean = torch.var_mean(x, -1, keepdim=True, correction=0)
    return (x - mean) * variance.rsqrt() * scale + shift


def wrong_2_2_over_batch(x, scale, shift, eps=1e-5):
    mean, variance = x.mean(0, keepdim=True), x.var(0, keepdim=True, unbiased=False)
    return (x - mean) * (variance + eps).rsqrt() * scale + shift


def wrong_2_2_whole(x, scale, shift, eps=1e-5):
    return F.layer_norm(x, x.shape, eps=eps) * scale + shift


def wrong_2_2_no_keepdim_once(x, scale, shift, eps=1e-5):
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(x.var(-1, correction=0) + eps) * scale + shift


def wrong_2_2_variance(x, scale, shift, eps=1e-5):
    x = x - x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + eps) * scale + shift


def wrong_2_2_no_scale(x, scale, shift, eps=1e-5):
    x = x - x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + eps) ** 0.5 + shift


def wrong_2_2_swapped(x, scale, shift, eps=1e-5):
    x = x - x.mean(-1, keepdim=True)
    x /= torch.sqrt(x.square().mean(-1, keepdim=True) + eps)
    return scale + shift * x


def wrong_2_2_std_alone(x, scale, shift, eps=1e-5):
    x = x - x.mean(-1, keepdim=True)
    return x / (x.square().sum(-1, keepdim=True) / (x.size(-1) - 1)).sqrt()


def wrong_2_2_whole_std(x, scale, shift, eps=1e-5):
    return scale * ((x - torch.mean(x)) / (torch.std(x) + eps)) + shift


def wrong_2_2_positions(x, scale, shift, eps=1e-5):
    return F.layer_norm(x, x.shape[1:], eps=eps) * scale + shift


def wrong_2_2_halved(x, scale, shift, eps=1e-5):
    return F.layer_norm(x, x.shape[-1:], scale, shift, eps) / 2


def wrong_2_2_no_return(x, scale, shift, eps=1e-5):
    F.layer_norm(x, x.shape[-1:], scale, shift, eps)


def right_2_3_new_tensor(x, scale, shift, eps=1e-5):
    x = x.float()
    x = x - x.mean(dim=-1, keepdim=True)
    x /= torch.sqrt((x**2).mean(dim=-1, keepdim=True) + eps)
    return x * scale + shift


def right_2_3_clone(x, scale, shift, eps=1e-5):
    x = x.float().clone()
    x -= x.mean(dim=-1, keepdim=True)
    x /= torch.sqrt((x**2).mean(dim=-1, keepdim=True) + eps)
    return x * scale + shift


def right_2_3_float64(x, scale, shift, eps=1e-5):
    x = x.double()
    x -= x.mean(dim=-1, keepdim=True)
    x /= torch.sqrt((x**2).mean(dim=-1, keepdim=True) + eps)
    return (x * scale + shift).float()


def wrong_2_3_alias(x, scale, shift, eps=1e-5):
    y = x
    y -= y.mean(dim=-1, keepdim=True)
    y /= torch.sqrt((y**2).mean(dim=-1, keepdim=True) + eps)
    return y * scale + shift


def wrong_2_3_view(x, scale, shift, eps=1e-5):
    x = x.detach()[:]
    x -= x.mean(dim=-1, keepdim=True)
    x /= torch.sqrt((x**2).mean(dim=-1, keepdim=True) + eps)
    return (x * scale + shift).clone()


def wrong_2_3_second_line(x, scale, shift, eps=1e-5):
    x = x.float()
    x.sub_(x.mean(dim=-1, keepdim=True))
    return F.rms_norm(x, x.shape[-1:], scale, eps) + shift


def wrong_2_3_squares(x, scale, shift, eps=1e-5):
    y = x - x.mean(dim=-1, keepdim=True)
    y /= torch.sqrt((x**2).mean(dim=-1, keepdim=True) + eps)
    return y * scale + shift


def wrong_2_3_returns_input(x, scale, shift, eps=1e-5):
    y = x.float() - x.mean(dim=-1, keepdim=True)
    y /= ((y**2).mean(dim=-1, keepdim=True) + eps).sqrt()
    return x * scale + shift


def wrong_2_3_all_in_place(x, scale, shift, eps=1e-5):
    x -= x.mean(dim=-1, keepdim=True)
    x /= ((x**2).mean(dim=-1, keepdim=True) + eps).sqrt()
    x *= scale
    x += shift
    return x


def wrong_2_3_zero(x, scale, shift, eps=1e-5):
    return torch.zeros_like(x) + shift


def right_2_4_loop(x, scale, eps=1e-5):
    result = torch.empty_like(x)
    for place in range(x[..., 0].numel()):
        row = x.view(-1, x.shape[-1])[place]
        mean_square = torch.dot(row, row) / len(row)
        result.view(-1, x.shape[-1])[place] = row / (mean_square + eps).sqrt() * scale
    return result


def right_2_4_norm(x, scale, eps=1e-5):
    length = torch.linalg.vector_norm(x.double(), dim=-1, keepdim=True)
    return x * (length**2 / x.shape[-1] + eps) ** -0.5 * scale


def right_2_4_in_place(x, scale, eps=1e-5):
    x *= x.square().mean(-1).add_(eps).rsqrt_().unsqueeze(-1)
    x *= scale
    return x


def right_2_4_built_in(x, scale, eps=1e-5):
    return F.rms_norm(x, (x.shape[-1],), scale, eps)


def wrong_2_4_centered(x, scale, eps=1e-5):
    x = x - x.mean(-1, keepdim=True)
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * scale


def wrong_2_4_std(x, scale, eps=1e-5):
    deviations = x - x.mean(-1, keepdim=True)
    return x / (deviations.square().mean(-1, keepdim=True) + eps) ** 0.5 * scale


def wrong_2_4_sum(x, scale, eps=1e-5):
    return x * (x * x).sum(-1, keepdim=True).add(eps).rsqrt() * scale


def wrong_2_4_normalize(x, scale, eps=1e-5):
    return x / x.square().sum(-1, keepdim=True).sqrt() * scale


def wrong_2_4_outside(x, scale, eps=1e-5):
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / (length / x.shape[-1] ** 0.5 + eps) * scale


def wrong_2_4_no_keepdim(x, scale, eps=1e-5):
    return x * torch.rsqrt(x.square().mean(-1) + eps) * scale


def wrong_2_4_torch_std(x, scale, eps=1e-5):
    return x / (torch.std(x, dim=-1, keepdim=True) + eps) * scale


def wrong_2_4_bare(x, scale, eps=1e-5):
    return x / torch.sqrt(torch.square(x).mean(-1, keepdim=True))


def wrong_2_4_doubled(x, scale, eps=1e-5):
    return 2 * F.rms_norm(x, (x.shape[-1],), scale, eps)


FIRST_OUTPUT = dict.fromkeys(
    ["x", "x + 100", "10 * x", "x above the row [100, 100, 100, 100]"], -1.4
) | {
    "-x": 1.4,
    "x with 9 as its last feature": -1.67,
    "x, with scale 2 and shift 3": 0.2,
}

RIGHT = {
    "2.1": [FIRST_OUTPUT, {k: torch.tensor(v) for k, v in FIRST_OUTPUT.items()}],
    "2.2": [
        right_2_2_loop,
        right_2_2_in_place,
        right_2_2_float64,
        right_2_2_var_mean,
        right_2_2_last_axis_first,
        right_2_2_built_in,
        right_2_2_class,
    ],
    "2.3": [right_2_3_new_tensor, right_2_3_clone, right_2_3_float64],
    "2.4": [
        right_2_4_loop,
        right_2_4_norm,
        right_2_4_in_place,
        right_2_4_built_in,
    ],
    "2.5": [10, 9.9, 9.95, torch.tensor(9.95), 0.0315 / 1e-5**0.5],
}

WRONG = {
    "2.1": [
        (
            "divides by n − 1",
            {k: v * 0.75**0.5 for k, v in FIRST_OUTPUT.items()}
            | {"x, with scale 2 and shift 3": 3 - 2 * 1.21},
        ),
        ("sign is lost", FIRST_OUTPUT | {"-x": -1.4}),
        ("is the old one", FIRST_OUTPUT | {"x with 9 as its last feature": -1.4}),
        (
            "batch normalization",
            FIRST_OUTPUT | {"x above the row [100, 100, 100, 100]": -1.0},
        ),
        ("leaves both out", FIRST_OUTPUT | {"x, with scale 2 and shift 3": -1.4}),
        ("sign is lost", FIRST_OUTPUT | {"-x": -1.4, "x + 100": 98.6}),
        ("For `-x` the sign is lost", FIRST_OUTPUT | {"10 * x": 3, "-x": -1.4}),
        ("You gave the same number everywhere", dict.fromkeys(FIRST_OUTPUT, -1.4)),
    ],
    "2.2": [
        ("The variance divides by n − 1", wrong_2_2_corrected),
        (
            "Two things at once. The variance divides by n − 1. eps is",
            wrong_2_2_annotated,
        ),
        ("eps is added to the root", wrong_2_2_outside),
        ("eps is missing", wrong_2_2_no_eps),
        ("along the first axis", wrong_2_2_over_batch),
        ("one number each for the whole tensor", wrong_2_2_whole),
        ("Look at `keepdim`", wrong_2_2_no_keepdim_once),
        ("You divide by the variance", wrong_2_2_variance),
        ("The scale is not used", wrong_2_2_no_scale),
        ("swapped", wrong_2_2_swapped),
        ("Neither scale nor shift is used.", wrong_2_2_std_alone),
        ("Three things at once. The variance divides by n − 1", wrong_2_2_std_alone),
        ("are one number each for the whole tensor", wrong_2_2_whole_std),
        ("run over all axes but the first", wrong_2_2_positions),
        ("Every number is 0.5 times", wrong_2_2_halved),
        ("returns None", wrong_2_2_no_return),
    ],
    "2.3": [
        ("The caller's `x` still changes. Nothing converts", wrong_2_3_alias),
        ("The caller's `x` still changes. Nothing converts", wrong_2_3_view),
        ("the mean is still subtracted from the caller's", wrong_2_3_second_line),
        ("you divide by the root of the mean of `x**2`", wrong_2_3_squares),
        ("it is also what you scale and return", wrong_2_3_returns_input),
        ("written into the caller's `x` as well", wrong_2_3_all_in_place),
        ("numbers differ", wrong_2_3_zero),
    ],
    "2.4": [
        ("LayerNorm without its shift", wrong_2_4_centered),
        ("by the standard deviation", wrong_2_4_std),
        ("summed and not averaged", wrong_2_4_sum),
        ("eps is missing", wrong_2_4_normalize),
        ("eps is added to the root", wrong_2_4_outside),
        ("Look at `keepdim`", wrong_2_4_no_keepdim),
        ("Three things at once. You divide by the standard", wrong_2_4_torch_std),
        ("The scale is not used", wrong_2_4_bare),
        ("Every number is 2 times", wrong_2_4_doubled),
    ],
    "2.5": [
        ("half the variance", 1),
        ("That is the spread itself", 0.032),
        ("a spread, or a variance", 0.00099),
        ("with n − 1", 9.4),
        ("Rounded that is", 9),
        ("not the expected one", 20),
    ],
}
