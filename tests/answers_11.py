"""Answers to the exercises of lesson 11 · Speed: right ones, and wrong ones with what is said."""

import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right

from gpt_helpers import quantize_rows

RIGHT_11_1 = {
    "bytes per token": 6_219_884_800,
    "tokens per second": 4.82,
    "tokens per second in int8": 19.3,
    "rows until arithmetic is slower": 14,
}
RIGHT_11_4 = {"factor per bit": 2.01, "bits for one percent": 8, "bits for a tenth": 11}


def right_11_2_loop(weight, size):
    whole, scales = torch.empty(weight.shape, dtype=torch.int8), []
    for o, row in enumerate(weight):
        for start in range(0, len(row), size):
            group = row[start : start + size]
            scale = max(group.max().item(), -group.min().item()) / 127
            whole[o, start : start + size] = (group / scale).round()
            scales.append(scale)
    return whole, torch.tensor(scales).view(len(weight), -1)


def right_11_2_double(weight, size):
    groups = weight.double().reshape(-1, size)
    scale = groups.norm(p=torch.inf, dim=1, keepdim=True).div(127)
    whole = torch.round(groups / scale).char().view(weight.shape)
    return whole, scale.view(weight.shape[0], -1)


def wrong_11_2(limit=127.0, rounded=torch.round, dim=(2,), signed=False):
    def answer(weight, size):
        groups = weight.view(len(weight), -1, size)
        top = (groups if signed else groups.abs()).amax(dim=dim, keepdim=True)
        scale = (top / limit).expand(len(weight), weight.shape[1] // size, 1)
        whole = rounded(groups / scale).clamp(-128, 127)
        return whole.to(torch.int8).view_as(weight), scale[..., 0]

    return answer


def overflowing(weight, size, limit, magnitude):
    groups = weight.reshape(-1, size)
    scale = magnitude(groups).max(dim=1, keepdim=True).values / limit
    whole = torch.round(groups / scale).type(torch.int8)
    return whole.reshape(weight.shape), scale.reshape(len(weight), -1)


def kept_axis(whole, scale):
    return whole, scale.unsqueeze(2)


def right_11_3_written(queries, keys, values):
    T, S = queries.shape[2], keys.shape[2]
    hidden = torch.ones(T, S).triu(S - T + 1).bool()
    scores = queries @ keys.mT / keys.shape[-1] ** 0.5
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ values


def right_11_3_lower_right(queries, keys, values):
    mask = causal_lower_right(queries.shape[2], keys.shape[2])
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)


def right_11_3_rows(queries, keys, values):
    T, S, rows = queries.shape[2], keys.shape[2], []
    for i in range(T):
        end = S - T + i + 1
        row = queries[:, :, i : i + 1], keys[:, :, :end], values[:, :, :end]
        rows.append(F.scaled_dot_product_attention(*row))
    return torch.cat(rows, dim=2)


def wrong_11_3(mask_of, is_causal=lambda T, S: False):
    def answer(queries, keys, values):
        T, S = queries.shape[2], keys.shape[2]
        options = {"attn_mask": mask_of(T, S), "is_causal": is_causal(T, S)}
        return F.scaled_dot_product_attention(queries, keys, values, **options)

    return answer


def nothing(T, S):
    return None


RIGHT = {
    "11.1": [RIGHT_11_1, RIGHT_11_1 | {"bytes per token": 6.22e9}],
    "11.2": [right_11_2_loop, right_11_2_double],
    "11.3": [right_11_3_written, right_11_3_lower_right, right_11_3_rows],
    "11.4": [RIGHT_11_4, RIGHT_11_4 | {"factor per bit": 2.1}],
}

WRONG = {
    "11.1": [
        ("4 bytes", RIGHT_11_1 | {"bytes per token": 1_554_971_200}),
        ("the head is missing", RIGHT_11_1 | {"bytes per token": 5.898e9}),
        ("picks one row", RIGHT_11_1 | {"bytes per token": 6.5415e9}),
        ("Turn it over", RIGHT_11_1 | {"tokens per second": 0.2073}),
        ("one short", RIGHT_11_1 | {"rows until arithmetic is slower": 13}),
        ("You counted one", RIGHT_11_1 | {"rows until arithmetic is slower": 27}),
        ("1 of", RIGHT_11_1 | {"rows until arithmetic is slower": 20}),
    ],
    "11.2": [
        ("You divide by 128", wrong_11_2(limit=128)),
        ("You divide by 128", lambda w, size: overflowing(w, size, 128, torch.abs)),
        ("sign included", lambda w, size: overflowing(w, size, 127, torch.clone)),
        ("belongs to the whole row", lambda w, size: quantize_rows(w)),
        ("axis of length 1", lambda w, size: kept_axis(*right_11_2_loop(w, size))),
        ("cut decimals off", wrong_11_2(rounded=torch.fix)),
        ("round down", wrong_11_2(rounded=torch.floor)),
        ("sign included", wrong_11_2(signed=True)),
        ("the whole row", wrong_11_2(dim=(1, 2))),
        ("the whole matrix", wrong_11_2(dim=(0, 1, 2))),
        ("down the columns", wrong_11_2(dim=(0, 2))),
        (
            "do not return two tensors",
            lambda w, size: dequantized(*right_11_2_loop(w, size)),
        ),
        ("first on:", wrong_11_2(limit=100)),
    ],
    "11.3": [
        ("still begins at row 0", wrong_11_3(nothing, lambda T, S: True)),
        ("nothing is hidden", wrong_11_3(nothing)),
        ("Prompts and single", wrong_11_3(nothing, lambda T, S: T == S)),
        ("Single tokens are right now", wrong_11_3(nothing, lambda T, S: T != 1)),
        (
            "inside out",
            wrong_11_3(lambda T, S: torch.ones(T, S).triu(S - T + 1).bool()),
        ),
        ("does not see its own", wrong_11_3(lambda T, S: tril(T, S, S - T - 1))),
        ("one key of its future", wrong_11_3(lambda T, S: tril(T, S, S - T + 1))),
        (
            "its own key alone",
            lambda queries, keys, values: values[:, :, -queries.shape[2] :],
        ),
    ],
    "11.4": [
        ("two apart", RIGHT_11_4 | {"factor per bit": 4}),
        ("turned over", RIGHT_11_4 | {"factor per bit": 0.498}),
        (
            "the sign",
            RIGHT_11_4 | {"bits for one percent": 7, "bits for a tenth": 10},
        ),
        ("1 of", RIGHT_11_4 | {"bits for one percent": 4}),
    ],
}


def dequantized(whole, scale):
    return whole * scale.repeat_interleave(whole.shape[1] // scale.shape[1], dim=1)


def tril(T, S, diagonal):
    return torch.ones(T, S, dtype=torch.bool).tril(diagonal)
