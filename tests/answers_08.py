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


def right_8_1_roll_the_text(ids, starts, length):
    places = starts.unsqueeze(1) + torch.arange(length).unsqueeze(0)
    return torch.stack([ids[places], ids.roll(-1)[places]])


def right_8_1_lists(ids, starts, length):
    text = ids.tolist()
    inputs = [text[s : s + length] for s in starts.tolist()]
    return inputs, [text[s + 1 : s + length + 1] for s in starts.tolist()]


def wrong_8_1_twice(ids, starts, length):
    y = right_8_1_loop(ids[1:], starts, length)[1]
    return right_8_1_loop(ids, starts, length)[0], y


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


def wrong_8_1_one_target(ids, starts, length):
    return right_8_1_loop(ids, starts, length)[0], ids[starts + length]


def wrong_8_1_lists_of_tensors(ids, starts, length):
    x, y = [], []
    for s in starts:
        x.append(ids[s : s + length])
        y.append(ids[s + 1 : s + length + 1])
    return x, y


def wrong_8_1_pairs(ids, starts, length):
    return [(ids[s : s + length], ids[s + 1 : s + length + 1]) for s in starts]


def wrong_8_1_alphabet(ids, starts, length):
    x = right_8_1_lists(ids, starts, length)[0]
    return x, [[character + 1 for character in row] for row in x]


def wrong_8_1_twice_by_slices(ids, starts, length):
    x, y = right_8_1_unfold(ids, starts, length)
    return x[:, :-1], y[:, 1:]


def wrong_8_1_three(ids, starts, length):
    return *right_8_1_loop(ids, starts, length), length


def wrong_8_1_places(ids, starts, length):
    places = starts.view(-1, 1) + torch.arange(length + 1)
    return places[:, :-1], places[:, 1:]


def wrong_8_1_transposed(ids, starts, length):
    windows = ids[starts + torch.arange(length + 1).unsqueeze(1)]
    return windows[:-1], windows[1:]


def wrong_8_1_decimals(ids, starts, length):
    x, y = torch.zeros(len(starts), length), torch.zeros(len(starts), length)
    for b, start in enumerate(starts):
        for t in range(length):
            x[b, t], y[b, t] = ids[start + t], ids[start + t + 1]
    return x, y


def wrong_8_1_in_order(ids, starts, length):
    x, y = right_8_1_loop(ids, starts.sort(descending=True).values, length)
    return x.flip(1), y


def right_8_2_loop(logits, targets):
    places = range(targets.shape[1])
    return torch.stack([F.cross_entropy(logits[:, t], targets[:, t]) for t in places])


def right_8_2_by_hand(logits, targets):
    shares = logits.double().log_softmax(dim=-1)
    return -shares.gather(-1, targets[..., None])[..., 0].mean(0)


def right_8_2_places_first(logits, targets):
    B, T, V = logits.shape
    rows, came = logits.transpose(0, 1).reshape(B * T, V), targets.T.reshape(B * T)
    losses = F.cross_entropy(rows, came, reduction="none")
    return losses.view(T, B).mean(dim=1)


def right_8_2_classes_second(logits, targets):
    losses = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    return losses.sum(0) / len(losses)


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


def wrong_8_2_median(logits, targets):
    return wrong_8_2_single(logits, targets).median(dim=0).values + 1


def right_8_3_tensor(step, highest, lowest, warmup_steps, n_steps):
    rising = torch.linspace(0, highest, warmup_steps + 1)[1:]
    share = torch.linspace(0, 1, n_steps - warmup_steps)
    falling = lowest + (highest - lowest) * (torch.cos(torch.pi * share) + 1) / 2
    return torch.cat([rising, falling])[step]


def right_8_3_sine(step, highest, lowest, warmup_steps, n_steps):
    rise = min(1.0, (step + 1) / warmup_steps)
    left = (n_steps - 1 - max(step, warmup_steps)) / (n_steps - 1 - warmup_steps)
    return rise * (lowest + (highest - lowest) * math.sin(math.pi / 2 * left) ** 2)


def right_8_3_middle(step, highest, lowest, warmup_steps, n_steps):
    if step < warmup_steps:
        return (step + 1) * (highest / warmup_steps)
    middle, height = (highest + lowest) / 2, (highest - lowest) / 2
    return middle + height * math.cos(
        math.pi * (step - warmup_steps) / (n_steps - warmup_steps - 1)
    )


def wrong_8_3(done=1, over=0, last=1, angle=math.pi, start=None):
    """A schedule as it is usually written, with one count or another changed."""

    def answer(step, highest, lowest, warmup_steps, n_steps):
        if step < warmup_steps:
            return highest * ((step + done) / (warmup_steps + over))
        begin = warmup_steps if start is None else start
        ratio = (step - begin) / (n_steps - last - begin)
        return lowest + 0.5 * (1.0 + math.cos(angle * ratio)) * (highest - lowest)

    return answer


def wrong_8_3_below(step, highest, lowest, warmup_steps, n_steps):
    if step + 1 <= warmup_steps:
        return highest * (step + 1) / warmup_steps
    share = (step - warmup_steps) / (n_steps - warmup_steps - 1)
    return highest * math.cos(share * math.pi) + lowest * (
        1 - math.cos(share * math.pi)
    )


def wrong_8_3_early(step, highest, lowest, warmup_steps, n_steps):
    if step < warmup_steps:
        return highest * (step + 1) / warmup_steps
    done = (step - warmup_steps + 1) / (n_steps - warmup_steps)
    return lowest + (highest - lowest) * math.cos(math.pi / 2 * done) ** 2


def wrong_8_3_straight(step, highest, lowest, warmup_steps, n_steps):
    if step < warmup_steps:
        return highest * (step + 1) / warmup_steps
    share = (step - warmup_steps) / (n_steps - warmup_steps - 1)
    return highest + (lowest - highest) * share


def wrong_8_3_last_warm_step(step, highest, lowest, warmup_steps, n_steps):
    if step >= warmup_steps - 1:
        share = (step - warmup_steps) / (n_steps - 1 - warmup_steps)
        return lowest + (highest - lowest) * (0.5 + math.cos(math.pi * share) / 2)
    return highest * (step + 1) / warmup_steps


def wrong_8_3_as_a_share(step, highest, lowest, warmup_steps, n_steps):
    lowest = lowest * highest
    return right_8_3_middle(step, highest, lowest, warmup_steps, n_steps)


def wrong_8_3_sign(step, highest, lowest, warmup_steps, n_steps):
    if step < warmup_steps:
        return (step + 1) / warmup_steps * highest
    share = (step - warmup_steps) / (n_steps - 1 - warmup_steps)
    return lowest - (highest - lowest) * math.cos(math.pi / 2 * share) ** 2


def wrong_8_3_no_rates(step, highest, lowest, warmup_steps, n_steps):
    if step < warmup_steps:
        return (step + 1) / warmup_steps * highest
    return right_8_3_sine(step, 1.0, 0.0, warmup_steps, n_steps)


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
    "8.1": [
        right_8_1_loop,
        right_8_1_unfold,
        right_8_1_roll_the_text,
        right_8_1_lists,
    ],
    "8.2": [
        right_8_2_loop,
        right_8_2_by_hand,
        right_8_2_places_first,
        right_8_2_classes_second,
    ],
    "8.3": [right_8_3_tensor, right_8_3_sine, right_8_3_middle],
    "8.4": [
        IN_BITS,
        IN_BITS | {"loss of 1.64, choices left": 2**2.37},
        {
            "knows nothing, bits per character": math.log(72) / math.log(2),
            "loss of 1.64, bits per character": math.log2(math.e**1.64),
            "loss of 1.64, choices left": torch.tensor(1.64).exp(),
            "token model, bits per character": 3.3 * math.log2(math.e) / 4,
            "book at a loss of 1.64, bytes": 148_476 * 2.37 / 8,
        },
    ],
}

WRONG = {
    "8.1": [
        ("not shifted", lambda *args: (right_8_1_lists(*args)[0],) * 2),
        ("shifted twice: they ask", wrong_8_1_twice),
        ("shifted twice, and one is missing", wrong_8_1_twice_by_slices),
        ("next character of the alphabet", wrong_8_1_alphabet),
        ("inputs and targets are two tensors, but", wrong_8_1_three),
        ("exchanged", lambda *args: right_8_1_loop(*args)[::-1]),
        ("One short", wrong_8_1_short),
        ("the front of the window", wrong_8_1_roll),
        ("the window after this one", wrong_8_1_next_window),
        ("one target per window, the", wrong_8_1_one_target),
        ("`torch.stack`", wrong_8_1_lists_of_tensors),
        ("a pair for each window", wrong_8_1_pairs),
        ("inputs: expected [[12, 13, 14]], got [[14, 13, 12]]", wrong_8_1_in_order),
        ("the places in the text", wrong_8_1_places),
        ("columns are exchanged: (T, B)", wrong_8_1_transposed),
        ("have become decimals", wrong_8_1_decimals),
        (
            "along a last axis",
            lambda *args: torch.stack(right_8_1_unfold(*args), dim=2),
        ),
    ],
    "8.2": [
        ("still takes B neighbors", wrong_8_2_transposed_view),
        ("over the wrong axis", wrong_8_2_by_window),
        ("V must stay last", wrong_8_2_mixed),
        ("of the logits, and not of the targets", wrong_8_2_only_logits_turned),
        ("one loss for the whole batch", wrong_8_2_batch_mean),
        ("the single losses", wrong_8_2_single),
        ("numbers differ.", wrong_8_2_median),
    ],
    "8.3": [
        ("begins at 0", wrong_8_3(done=0)),
        ("one step too late", wrong_8_3(over=1)),
        ("does not get to its end", wrong_8_3(last=0)),
        ("Two things: the warm-up begins at 0", wrong_8_3(done=0, last=0)),
        ("Two things: the warm-up reaches", wrong_8_3(over=1, last=0)),
        ("from the beginning of training", wrong_8_3(start=0)),
        ("a whole wave", wrong_8_3(angle=math.tau)),
        ("in degrees", wrong_8_3(angle=180)),
        ("falls below the lowest", wrong_8_3_below),
        ("one step too early", wrong_8_3_early),
        ("The angle ends at 1", wrong_8_3(angle=1)),
        ("in a straight line", wrong_8_3_straight),
        ("one step short", wrong_8_3_last_warm_step),
        ("divides by 0", wrong_8_3(done=0, over=-1)),
        ("the part of the whole training", wrong_8_3(start=0, last=0)),
        ("as the lesson's `final_rate`", wrong_8_3_as_a_share),
        ("has the wrong sign", wrong_8_3_sign),
        ("whatever the rates are", wrong_8_3_no_rates),
        ("numbers differ.", wrong_8_3_power),
    ],
    "8.4": [
        (
            "'loss of 1.64, bits per character' you multiplied by ln 2",
            IN_BITS | {"loss of 1.64, bits per character": 1.14},
        ),
        (
            "raised 2 to a loss in nats",
            IN_BITS | {"loss of 1.64, choices left": 3.12},
        ),
        (
            "A token has 4 characters. In 'book at a loss of 1.64, bytes' you have bits.",
            IN_BITS
            | {
                "token model, bits per character": 4.76,
                "book at a loss of 1.64, bytes": 148_476 * 2.366,
            },
        ),
        (
            "you have the loss in nats. How often",
            IN_BITS | {"knows nothing, bits per character": 4.28},
        ),
        (
            "  token model, bits per character: 1.5",
            IN_BITS | {"token model, bits per character": 1.5},
        ),
    ],
}
