"""Answers to the exercises of lesson 9 · RoPE and a tied head: right ones, and wrong ones with what is said."""

import math

import torch
from torch import nn

from gpt_helpers import rotate_pairs


def right_9_1_module(queries, keys, values):
    return rotate_pairs(queries), rotate_pairs(keys), values


def complex_turn(x, sign=1, base=10_000):
    T, D = x.shape[-2:]
    speeds = torch.tensor([base ** (-2 * i / D) for i in range(D // 2)])
    angles = sign * torch.arange(T)[:, None] * speeds
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles))


def right_9_1_complex(queries, keys, values):
    return [complex_turn(queries).flatten(-2), complex_turn(keys).flatten(-2), values]


def loop_turn(x, angle):
    x = x.double()
    result = x.clone()
    for t in range(x.shape[2]):
        for i in range(x.shape[3] // 2):
            cos, sin = math.cos(angle(t, i, x)), math.sin(angle(t, i, x))
            a, b = x[:, :, t, 2 * i], x[:, :, t, 2 * i + 1]
            result[:, :, t, 2 * i] = a * cos - b * sin
            result[:, :, t, 2 * i + 1] = a * sin + b * cos
    return result


def right_9_1_loop(queries, keys, values):
    def angle(t, i, x):
        return t / 10_000 ** (2 * i / x.shape[-1])

    return loop_turn(queries, angle), loop_turn(keys, angle), values


def right_9_1_in_place(queries, keys, values):
    for x in (queries, keys):
        T, D = x.shape[-2:]
        speeds = torch.exp(-math.log(10_000) * torch.arange(0, D, 2) / D)
        angles = torch.arange(T).view(T, 1) * speeds
        a, b = x[..., ::2].clone(), x[..., 1::2].clone()
        x[..., ::2] = a * angles.cos() - b * angles.sin()
        x[..., 1::2] = b * angles.cos() + a * angles.sin()
    return torch.stack([queries, keys, values])


def wrong_9_1_values(queries, keys, values):
    return [complex_turn(x).flatten(-2) for x in (queries, keys, values)]


def wrong_9_1_clock(queries, keys, values):
    turned = (complex_turn(x, sign=-1).flatten(-2) for x in (queries, keys))
    return *turned, values


def wrong_9_1_base(queries, keys, values):
    turned = (complex_turn(x, base=1e3).flatten(-2) for x in (queries, keys))
    return *turned, values


def wrong_9_1_order(queries, keys, values):
    turned = (complex_turn(x).transpose(-1, -2).flatten(-2) for x in (queries, keys))
    return *turned, values


def turned_by_head(x):
    return rotate_pairs(x.transpose(1, 2)).transpose(1, 2)


def wrong_9_1_angle(angle):
    return lambda q, k, v: (loop_turn(q, angle), loop_turn(k, angle), v)


def wrong_9_1_halves(queries, keys, values):
    turned = []
    for x in (queries, keys):
        T, D = x.shape[-2:]
        angles = torch.outer(torch.arange(T), 10_000 ** (-torch.arange(0, D, 2) / D))
        angles = torch.cat([angles, angles], -1)
        other = torch.cat([-x[..., D // 2 :], x[..., : D // 2]], -1)
        turned.append(x * angles.cos() + other * angles.sin())
    return *turned, values


def wrong_9_1_old_and_new(queries, keys, values):
    for x in (queries, keys):
        T, D = x.shape[-2:]
        angles = torch.outer(torch.arange(T), 10_000 ** (-torch.arange(0, D, 2) / D))
        cos, sin = angles.cos(), angles.sin()
        x[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
        x[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
    return queries, keys, values


def scores_9_2(query_start=0, key_start=0, hidden_start=0):
    """Make an answer; each start is a number of tokens or ``(T, S) -> number``."""

    def answer(queries, keys):
        T, S = queries.size(2), keys.size(2)
        q, k, h = (
            start if isinstance(start, int) else start(T, S)
            for start in (query_start, key_start, hidden_start)
        )
        queries, keys = rotate_pairs(queries, q), rotate_pairs(keys, k)
        scores = torch.einsum("bhtd,bhsd->bhts", queries, keys)
        scores = scores / math.sqrt(keys.shape[-1])
        hidden = torch.arange(S) > torch.arange(T)[:, None] + h
        return scores.where(~hidden, float("-inf"))

    return answer


def old(T, S):
    return S - T


def right_9_2_whole_text(queries, keys):
    """Fill up the queries, and keep the last rows."""
    T, S, D = queries.shape[2], keys.shape[2], keys.shape[3]
    filled = torch.cat([keys[:, :, : S - T], queries], dim=2)
    scores = rotate_pairs(filled) @ rotate_pairs(keys).mT / D**0.5
    hidden = torch.ones(S, S, dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -torch.inf)[:, :, S - T :]


def right_9_3_order(W, n_heads):
    D = len(W) // n_heads
    head = torch.arange(D).view(2, D // 2).T.flatten()
    return W[torch.cat([h * D + head for h in range(n_heads)])]


def right_9_3_loop(W, n_heads):
    D, new = len(W) // n_heads, torch.empty_like(W)
    for h in range(n_heads):
        for i in range(D // 2):
            new[h * D + 2 * i] = W[h * D + i]
            new[h * D + 2 * i + 1] = W[h * D + i + D // 2]
    return new.double()


def right_9_3_argsort(W, n_heads):
    D = len(W) // n_heads
    order = torch.cat([torch.arange(0, D, 2), torch.arange(1, D, 2)]).argsort()
    return W.view(n_heads, D, -1)[:, order].reshape(W.shape)


def wrong_9_3(order_of_head, columns=False):
    def answer(W, n_heads):
        D = len(W) // n_heads
        order = torch.cat([h * D + order_of_head(D) for h in range(n_heads)])
        return W[:, order] if columns else W[order]

    return answer


def evens_first(D):
    return torch.cat([torch.arange(0, D, 2), torch.arange(1, D, 2)])


def halves_mixed(D):
    return torch.arange(D).view(2, -1).T.flatten()


def second_first(D):
    return torch.arange(D).view(2, -1).flip(0).T.flatten()


def wrong_9_3_all_rows(W, n_heads):
    return W[halves_mixed(len(W))]


def right_9_4_by_name(model):
    model.out_head._parameters["weight"] = model.get_parameter("tok_emb.weight")
    return model


def right_9_4_registered(model):
    del model.out_head.weight
    model.out_head.register_parameter("weight", model.tok_emb.weight)
    return model


def wrong_9_4_clone(model):
    model.out_head.weight = nn.Parameter(model.tok_emb.weight.detach().clone())
    return model


def wrong_9_4_loaded(model):
    model.out_head.load_state_dict(model.tok_emb.state_dict())
    return model


def wrong_9_4_same_memory(model):
    model.out_head.weight = nn.Parameter(model.tok_emb.weight)
    return model


def wrong_9_4_backward(model):
    model.tok_emb.weight = model.out_head.weight
    return model


def wrong_9_4_whole_table(model):
    model.register_module("out_head", model.tok_emb)
    return model


def wrong_9_4_frozen(model):
    right_9_4_by_name(model).tok_emb.weight.requires_grad = False
    return model


def wrong_9_4_spare(model):
    model.spare = nn.Parameter(torch.zeros(3))
    return right_9_4_by_name(model)


def wrong_9_4_transposed(model):
    model.out_head.weight = nn.Parameter(model.tok_emb.weight.T)
    return model


def right_9_5_loop(D, base):
    alike = {}
    for distance in range(32, 96):
        cosines = [math.cos(distance / base ** (2 * i / D)) for i in range(D // 2)]
        alike[distance] = sum(cosines) / len(cosines)
    best = max(alike, key=alike.get)
    return best, alike[best]


def right_9_5_turned_hands(D, base):
    """Turn equal hands and take the dot product."""
    hands = rotate_pairs(torch.tensor([1.0, 0.0]).repeat(96, D // 2), base=base)
    alike = (hands @ hands[0] / (D // 2))[32:]
    return [alike.argmax().item() + 32, alike.max().item()]


def told_wrong_9_5(distances, last=lambda best, alike: (best, alike), base_of=None):
    def answer(D, base):
        base = base_of or base
        alike = [
            sum(math.cos(d / base ** (2 * i / D)) for i in range(D // 2)) * 2 / D
            for d in distances
        ]
        return last(distances[alike.index(max(alike))], max(alike))

    return answer


RIGHT = {
    "9.1": [
        right_9_1_module,
        right_9_1_complex,
        right_9_1_loop,
        right_9_1_in_place,
    ],
    "9.2": [
        scores_9_2(old, 0, old),
        scores_9_2(0, lambda T, S: T - S, old),
        right_9_2_whole_text,
    ],
    "9.3": [right_9_3_order, right_9_3_loop, right_9_3_argsort],
    "9.4": [right_9_4_by_name, right_9_4_registered],
    "9.5": [
        right_9_5_loop,
        right_9_5_turned_hands,
        lambda D, base: [round(part, 3) for part in right_9_5_loop(D, base)],
    ],
}

WRONG = {
    "9.1": [
        ("You turn the values, too", wrong_9_1_values),
        ("with the clock", wrong_9_1_clock),
        ("as with base 1000", wrong_9_1_base),
        ("stands in another order", wrong_9_1_order),
        ("made of two halves", wrong_9_1_halves),
        ("after it has been turned", wrong_9_1_old_and_new),
        (
            "yours is i/D",
            wrong_9_1_angle(lambda t, i, x: t * 10_000 ** (-i / x.shape[-1])),
        ),
        (
            "yours is 4i/D",
            wrong_9_1_angle(lambda t, i, x: t * 10_000 ** (-2 * i / (x.shape[-1] / 2))),
        ),
        ("not divided by D", wrong_9_1_angle(lambda t, i, x: t * 10_000 ** (-2 * i))),
        ("with one speed", wrong_9_1_angle(lambda t, i, x: t)),
        (
            "positions from 1",
            wrong_9_1_angle(lambda t, i, x: (t + 1) * 1e4 ** (-2 * i / x.shape[-1])),
        ),
        ("Nothing is turned", lambda *roles: roles),
        ("The queries are as they were", lambda q, k, v: (q, rotate_pairs(k), v)),
        ("exchanged in what you return", lambda q, k, v: right_9_1_module(k, q, v)),
        (
            "in opposite directions",
            lambda q, k, v: (rotate_pairs(q), complex_turn(k, -1).flatten(-2), v),
        ),
        (
            "a factor of 2π",
            wrong_9_1_angle(
                lambda t, i, x: 2 * math.pi * t * 1e4 ** (-2 * i / x.shape[-1])
            ),
        ),
        (
            "for degrees",
            wrong_9_1_angle(
                lambda t, i, x: math.radians(t * 1e4 ** (-2 * i / x.shape[-1]))
            ),
        ),
        (
            "Cosine and sine are exchanged",
            wrong_9_1_angle(
                lambda t, i, x: math.pi / 2 - t * 1e4 ** (-2 * i / x.shape[-1])
            ),
        ),
        (
            "count the heads",
            lambda q, k, v: (turned_by_head(q), turned_by_head(k), v),
        ),
        ("2 of 3 findings differ", wrong_9_1_angle(lambda t, i, x: t * i)),
    ],
    "9.2": [
        ("The distances are what they were", scores_9_2(old, old, old)),
        ("start at S, behind all keys", scores_9_2(lambda T, S: S, 0, old)),
        ("where the last one stands", scores_9_2(lambda T, S: S - 1, 0, old)),
        ("the number of the new tokens", scores_9_2(lambda T, S: T, 0, old)),
        ("one position too far", scores_9_2(lambda T, S: 1 + S - T, 0, old)),
        ("moved the keys ahead", scores_9_2(0, old, old)),
        ("You changed the mask, and it was right", scores_9_2(old, 0, 0)),
        ("hides from each query its own", scores_9_2(old, 0, lambda T, S: S - T - 1)),
        ("first on:", scores_9_2(5, 0, old)),
    ],
    "9.3": [
        ("the way back, from neighbors to halves", wrong_9_3(evens_first)),
        ("all rows as one head", wrong_9_3_all_rows),
        ("reordered the columns", wrong_9_3(halves_mixed, columns=True)),
        ("exchange the halves", wrong_9_3(lambda D: torch.arange(D).roll(D // 2))),
        ("No row has moved", wrong_9_3(torch.arange)),
        ("second of two partners comes", wrong_9_3(second_first)),
        (
            "the rows of head 0",
            lambda W, n: W[halves_mixed(len(W) // n).repeat(n)],
        ),
        ("first on:", wrong_9_3(lambda D: torch.arange(D).flip(0))),
    ],
    "9.4": [
        ("two tensors with equal numbers", wrong_9_4_clone),
        ("two tensors with equal numbers", wrong_9_4_loaded),
        ("share their memory", wrong_9_4_same_memory),
        ("replaced the head itself", wrong_9_4_whole_table),
        ("the table's numbers are lost", wrong_9_4_backward),
        ("You transposed the table", wrong_9_4_transposed),
        ("You return the shared tensor", lambda m: right_9_4_by_name(m).tok_emb.weight),
        ("but frozen", wrong_9_4_frozen),
        ("parameters of the model: expected", wrong_9_4_spare),
    ],
    "9.5": [
        (
            "counted from 32",
            told_wrong_9_5(range(32, 96), lambda best, alike: (best - 32, alike)),
        ),
        ("distance 0, at which", told_wrong_9_5(range(96))),
        ("nearer than 32", told_wrong_9_5(range(1, 96))),
        ("distance 95, the last", told_wrong_9_5(range(32, 95))),
        ("is 95, not 96", told_wrong_9_5(range(32, 97))),
        ("distance 32 itself", told_wrong_9_5(range(33, 96))),
        ("always 10 000", told_wrong_9_5(range(32, 96), base_of=1e4)),
        ("exchanged", told_wrong_9_5(range(32, 96), lambda best, alike: (alike, best))),
        (
            "one too small",
            told_wrong_9_5(range(32, 96), lambda best, alike: (best - 1, alike)),
        ),
        (
            "divided the sum by D",
            told_wrong_9_5(range(32, 96), lambda best, alike: (best, alike / 2)),
        ),
        ("The distance is missing", told_wrong_9_5(range(32, 96), lambda _, a: a)),
        ("first on:", told_wrong_9_5(range(32, 60))),
    ],
}
