"""Answers to the exercises of lesson 8 · Training a tiny GPT: right ones, and wrong ones with what is said."""

import math

import torch
import torch.nn.functional as F


def right_8_1_loop(ids, starts, length):
    inputs = torch.stack([ids[start : start + length] for start in starts])
    targets = torch.stack([ids[start + 1 : start + 1 + length] for start in starts])
    return inputs, targets


def right_8_1_unfold(ids, starts, length):
    windows = ids.unfold(0, length + 1, 1)[starts]
    return [windows[:, :length], windows[:, 1:]]


def right_8_1_lists(ids, starts, length):
    text = ids.tolist()
    inputs = [text[s : s + length] for s in starts.tolist()]
    return inputs, [text[s + 1 : s + length + 1] for s in starts.tolist()]


def wrong_8_1_twice(ids, starts, length):
    y = right_8_1_loop(ids[1:], starts, length)[1]
    return right_8_1_loop(ids, starts, length)[0], y


def wrong_8_1_back(ids, starts, length):
    windows = [ids[s - 1 : s + length - 1] for s in starts.tolist()]
    return right_8_1_loop(ids, starts, length)[0], torch.stack(windows)


def wrong_8_1_short(ids, starts, length):
    windows = torch.stack([ids[s : s + length] for s in starts.tolist()])
    return windows[:, :-1], windows[:, 1:]


def wrong_8_1_roll(ids, starts, length):
    x, _ = right_8_1_loop(ids, starts, length)
    return x, torch.cat([x[:, 1:], x[:, :1]], dim=1)


def wrong_8_1_next_window(ids, starts, length):
    x = torch.stack([ids[s : s + length] for s in starts])
    y = torch.stack([ids[s + length : s + 2 * length] for s in starts])
    return x, y


def wrong_8_1_lists_of_tensors(ids, starts, length):
    x, y = [], []
    for s in starts:
        x.append(ids[s : s + length])
        y.append(ids[s + 1 : s + length + 1])
    return x, y


def wrong_8_1_pairs(ids, starts, length):
    return [(ids[s : s + length], ids[s + 1 : s + length + 1]) for s in starts]


def wrong_8_1_in_order(ids, starts, length):
    x, y = right_8_1_loop(ids, starts.sort(descending=True).values, length)
    return x.flip(1), y


def right_8_2_loop(logits, targets):
    places = range(targets.shape[1])
    return torch.stack([F.cross_entropy(logits[:, t], targets[:, t]) for t in places])


def right_8_2_by_hand(logits, targets):
    shares = logits.double().log_softmax(dim=-1)
    return -shares.gather(-1, targets[..., None])[..., 0].mean(0)


def wrong_8_2_transposed_view(logits, targets):
    B, T, V = logits.shape
    losses = F.cross_entropy(logits.view(-1, V), targets.view(-1), reduction="none")
    return losses.view(T, B).T.mean(0)


def wrong_8_2_by_window(logits, targets):
    return torch.stack([F.cross_entropy(*pair) for pair in zip(logits, targets)])


def wrong_8_2_mixed(logits, targets):
    B, T, V = logits.shape
    rows = logits.permute(0, 2, 1).reshape(B * T, V)
    losses = F.cross_entropy(rows, targets.flatten(), reduction="none")
    return losses.unflatten(0, (B, T)).mean(0)


def wrong_8_2_only_logits_turned(logits, targets):
    B, T = targets.shape
    rows = logits.permute(1, 0, 2).flatten(0, 1)
    losses = F.cross_entropy(rows, targets.flatten(), reduction="none")
    return losses.view(T, B).mean(dim=1)


def wrong_8_2_batch_mean(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def wrong_8_2_single(logits, targets):
    return F.cross_entropy(logits.mT, targets, reduction="none")


def right_8_3_tensor(step, highest, lowest, warmup_steps, n_steps):
    rising = torch.linspace(0, highest, warmup_steps + 1)[1:]
    share = torch.linspace(0, 1, n_steps - warmup_steps)
    falling = lowest + (highest - lowest) * (torch.cos(torch.pi * share) + 1) / 2
    return torch.cat([rising, falling])[step]


def right_8_3_sine(step, highest, lowest, warmup_steps, n_steps):
    rise = min(1.0, (step + 1) / warmup_steps)
    left = (n_steps - 1 - max(step, warmup_steps)) / (n_steps - 1 - warmup_steps)
    return rise * (lowest + (highest - lowest) * math.sin(math.pi / 2 * left) ** 2)


def wrong_8_3(done=1, over=0, last=1, angle=math.pi, start=None):
    """A schedule as it is usually written, with one count or another changed."""

    def answer(step, highest, lowest, warmup_steps, n_steps):
        if step < warmup_steps:
            return highest * ((step + done) / (warmup_steps + over))
        begin = warmup_steps if start is None else start
        ratio = (step - begin) / (n_steps - last - begin)
        return lowest + 0.5 * (1.0 + math.cos(angle * ratio)) * (highest - lowest)

    return answer


def wrong_8_3_from_lowest(step, highest, lowest, warmup_steps, n_steps):
    right = right_8_3_tensor(step, highest, lowest, warmup_steps, n_steps)
    return lowest + (1 - lowest / highest) * right if step < warmup_steps else right


def wrong_8_3_power(step, highest, lowest, warmup_steps, n_steps):
    return right_8_3_sine(step, highest, lowest, warmup_steps, n_steps) ** 1.1


IN_BITS = {
    "knows nothing, bits per character": 6.17,
    "loss of 1.64, bits per character": 2.37,
    "loss of 1.64, choices left": 5.16,
    "token model, bits per character": 1.19,
    "book at a loss of 1.64, bytes": 43_912,
}

RIGHT = {
    "8.1": [right_8_1_loop, right_8_1_unfold, right_8_1_lists],
    "8.2": [right_8_2_loop, right_8_2_by_hand],
    "8.3": [right_8_3_tensor, right_8_3_sine],
    "8.4": [IN_BITS, IN_BITS | {"loss of 1.64, choices left": 2**2.37}],
}

WRONG = {
    "8.1": [
        ("not shifted", lambda *args: (right_8_1_lists(*args)[0],) * 2),
        ("shifted twice: they ask", wrong_8_1_twice),
        ("the wrong way", wrong_8_1_back),
        ("exchanged", lambda *args: right_8_1_loop(*args)[::-1]),
        ("One short", wrong_8_1_short),
        ("the front of the window", wrong_8_1_roll),
        ("the window after this one", wrong_8_1_next_window),
        ("`torch.stack`", wrong_8_1_lists_of_tensors),
        ("a pair for each window", wrong_8_1_pairs),
        ("are asked for, not 3", lambda *args: (*right_8_1_loop(*args), 3)),
        ("inputs: expected", wrong_8_1_in_order),
    ],
    "8.2": [
        ("takes B neighbors", wrong_8_2_transposed_view),
        ("over the wrong axis", wrong_8_2_by_window),
        ("V must stay last", wrong_8_2_mixed),
        ("of the logits, and not of the targets", wrong_8_2_only_logits_turned),
        ("one loss for the whole batch", wrong_8_2_batch_mean),
        ("the single losses", wrong_8_2_single),
        (
            "a softmax before",
            lambda x, y: right_8_2_loop(x.exp() / x.exp().sum(2, True), y),
        ),
        ("Every number is 1 more", lambda x, y: right_8_2_loop(x, y) + 1),
    ],
    "8.3": [
        ("begins at 0", wrong_8_3(done=0)),
        ("one step too late", wrong_8_3(over=1)),
        ("does not get to its end", wrong_8_3(last=0)),
        (
            "The warm-up begins at 0, so the first step moves nothing. The cosine does",
            wrong_8_3(done=0, last=0),
        ),
        ("from the beginning of training", wrong_8_3(start=0)),
        ("a whole wave", wrong_8_3(angle=math.tau)),
        ("The angle ends at 1", wrong_8_3(angle=1)),
        ("divides by 0", wrong_8_3(done=0, over=-1)),
        ("The warm-up rises from the lowest rate", wrong_8_3_from_lowest),
        ("numbers differ", wrong_8_3_power),
    ],
    "8.4": [
        (words, IN_BITS | dict(zip(IN_BITS, values, strict=True)))
        for words, values in (
            ("For the loss of 1.64 you multiplied", (6.17, 1.14, 5.16, 1.19, 43_912)),
            ("raised 2 to a loss in nats", (6.17, 2.37, 3.12, 1.19, 43_912)),
            ("raised e to a loss in bits", (6.17, 2.37, 10.66, 1.19, 43_912)),
            (
                "per token. For the book you have bits",
                (6.17, 2.37, 5.16, 4.76, 351_299),
            ),
            ("loss in nats. How often", (4.28, 2.37, 5.16, 1.19, 43_912)),
            ("For the loss of 1.64 you have nats", (6.17, 1.64, 5.16, 1.19, 43_912)),
            ("For the token model you have bits", (6.17, 2.37, 5.16, 4.76, 43_912)),
            ("rounded up to whole bits", (7, 2.37, 5.16, 1.19, 43_912)),
            ("1 of 5 values are not right yet", (6.17, 2.37, 5.16, 1.5, 43_912)),
        )
    ],
}
