"""Answers to the exercises of lesson 7 · Generating text: right ones, and wrong ones with what is said."""

import math

import torch
import torch.nn.functional as F

import gpt_helpers


def right_7_1_loop(logits):
    ids = []
    for text in logits:
        scores = text[-1].tolist()
        ids.append([scores.index(max(scores))])
    return torch.tensor(ids)


def right_7_1_topk(logits):
    return logits[:, -1, :].double().softmax(dim=-1).topk(1).indices


def wrong_7_1_no_column(logits):
    return torch.tensor([int(text[-1].argmax()) for text in logits])


def wrong_7_1_batch(logits):
    return logits[:, logits.shape[1] - 1].max(dim=0, keepdim=True).indices


def wrong_7_1_values(logits):
    return logits[:, -1].sort(dim=-1, descending=True).values[:, :1]


def wrong_7_1_last_text(logits):
    return torch.topk(logits[len(logits) - 1], 1).indices


def wrong_7_1_misspelt(logits):
    return logits[:, -1].argmax(dim=-1, keepdims=1).item()


def right_7_2_powers(logits, temperature):
    rows = []
    for row in logits.double():
        if temperature == 0:
            rows.append([float(x == row.max()) for x in row])
        else:
            weights = [math.exp(x - row.max()) ** (1 / temperature) for x in row]
            rows.append([weight / sum(weights) for weight in weights])
    return torch.tensor(rows)


def right_7_2_nearly_zero(logits, temperature):
    return torch.softmax(logits / max(temperature, 1e-6), -1)


def with_greedy(warm):
    """An answer that is right at temperature 0."""

    def answer(logits, temperature):
        if temperature == 0:
            return torch.eye(logits.shape[-1])[logits.argmax(dim=-1)]
        return warm(logits, temperature)

    return answer


def wrong_7_2_times(logits, temperature):
    weights = logits.double().exp() ** temperature
    return weights / weights.sum(dim=-1, keepdim=True)


def wrong_7_2_after_again(logits, temperature):
    shares = logits.softmax(dim=-1)
    shares /= temperature
    return shares / shares.sum(dim=-1, keepdim=True)


def wrong_7_2_overflow(logits, temperature):
    weights = torch.exp(logits.div(temperature))
    return weights / weights.sum(dim=-1, keepdim=True)


def wrong_7_2_one_largest(logits, temperature):
    weights = torch.exp((logits - logits.max()).div(temperature))
    return F.normalize(weights, p=1, dim=-1, eps=0)


def right_7_3_order(logits, k):
    order = logits.argsort(dim=-1, descending=True)
    return logits.scatter(-1, order[:, k:], -torch.inf)


def right_7_3_loop(logits, k):
    rows = []
    for row in logits.tolist():
        best = sorted(row, reverse=True)[:k]
        rows.append([x if x in best else -math.inf for x in row])
    return torch.tensor(rows, dtype=torch.float64)


def keep_places(many, fill=-torch.inf):
    """An answer that keeps this many of the best, by their places."""

    def answer(logits, k):
        order = logits.argsort(dim=-1, descending=True)
        return logits.scatter(-1, order[:, many(k, logits.shape[-1]) :], fill)

    return answer


def wrong_7_3_batch(logits, k):
    best, _ = torch.topk(logits, min(k, logits.size(-1)))
    return torch.where(logits < best.min(), torch.tensor(-torch.inf), logits)


def wrong_7_3_refused(logits, k):
    best, places = torch.topk(logits, k)
    return torch.full_like(logits, -torch.inf).scatter(1, places, best)


def wrong_7_3_no_place(logits, k):
    ordered, _ = torch.sort(logits, descending=True)
    return logits.masked_fill(logits < ordered[:, [k - 1]], -torch.inf)


def wrong_7_3_no_column(logits, k):
    least = logits.topk(min(logits.shape[-1], k)).values.amin(dim=-1)
    return torch.where(logits >= least, logits, -torch.inf)


def wrong_7_3_large_number(logits, k):
    return gpt_helpers.keep_top_k(logits, k).clamp(min=-1000)


def walk(table, first):
    text = [first]
    for _ in range(len(table)):
        text.append(table[text[-1]].argmax().item())
    return text


def right_7_4_places(table, first):
    places = {}
    for place, word in enumerate(walk(table, first)):
        if word in places:
            return places[word], place - places[word]
        places[word] = place
    return None


def right_7_4_backward(table, first):
    text = walk(table, first)
    last = text.pop()
    around = text[::-1].index(last) + 1
    return [len({*text, last}) - around, around]


def wrong_7_4(change):
    """An answer that changes the two right numbers."""
    return lambda table, first: change(*right_7_4_places(table, first))


def wrong_7_4_more_than_once(table, first):
    text = walk(table, first)
    loop = [word for word in range(len(table)) if text.count(word) >= 2]
    return len(set(text)) - len(loop), len(loop)


def wrong_7_4_last_word(table, first):
    text = walk(table, first)
    start = next(n for n, word in enumerate(text) if word == text[-1])
    return start, len(text[start:-1])


def continued(step):
    """A loop of 7.5 in which ``step`` returns the ids, what has ended, and the stop."""

    def answer(model, idx, max_new_tokens, eos_id):
        ended = torch.zeros(len(idx), 1, dtype=torch.bool)
        for _ in range(max_new_tokens):
            next_id = model(idx[:, -8:])[:, -1].argmax(dim=-1, keepdim=True)
            filled = torch.where(ended, eos_id, next_id)
            ids, ended, stop = step(filled, next_id, ended, next_id.eq(eos_id))
            idx = torch.cat([idx, ids], dim=1)
            if stop:
                break
        return idx

    return answer


def right_7_5_row_by_row(model, idx, max_new_tokens, eos_id):
    rows = []
    for row in idx.tolist():
        new = []
        while len(new) < max_new_tokens and eos_id not in new:
            new.append(model(torch.tensor([(row + new)[-8:]]))[0, -1].argmax().item())
        rows.append(row + new)
    longest = max(map(len, rows))
    return torch.tensor([row + [eos_id] * (longest - len(row)) for row in rows])


right_7_5_sum = continued(lambda f, n, e, ends: (f, e + ends, (e + ends).min()))

RIGHT = {
    "7.1": [right_7_1_loop, right_7_1_topk],
    "7.2": [right_7_2_powers, right_7_2_nearly_zero],
    "7.3": [gpt_helpers.keep_top_k, right_7_3_order, right_7_3_loop],
    "7.4": [right_7_4_places, right_7_4_backward],
    "7.5": [right_7_5_sum, right_7_5_row_by_row],
}

WRONG = {
    "7.1": [
        ("look at `keepdim`", wrong_7_1_no_column),
        ("which axis holds the vocabulary", wrong_7_1_batch),
        ("the largest scores themselves", wrong_7_1_values),
        ("first position's scores", lambda logits: logits.argmax(dim=-1)[:, :1]),
        ("side by side", lambda logits: wrong_7_1_no_column(logits).unsqueeze(0)),
        ("the last text instead", wrong_7_1_last_text),
        ("favorite of every position", lambda logits: logits.topk(1).indices),
        ("two tensors", lambda logits: tuple(logits[:, -1].topk(1))),
        (
            "for the first text only",
            lambda logits: logits[0][-1].sort().indices[-1],
        ),
        (
            "It fails on 6 of 6 inputs",
            lambda logits: logits[:, -1].topk(2).indices[:, 1:],
        ),
        ("of your code raised", wrong_7_1_misspelt),
    ],
    "7.2": [
        ("Cold and heat have changed places", with_greedy(wrong_7_2_times)),
        ("no longer add up to 1", with_greedy(lambda x, t: x.softmax(1).div(t))),
        ("The factor cancels", wrong_7_2_after_again),
        ("your temperature has no effect", with_greedy(wrong_7_2_after_again)),
        ("Temperature 0 has no case", lambda x, t: torch.softmax(x.mul(1.0 / t), -1)),
        ("the square", with_greedy(lambda x, t: F.softmax(x / t / t, dim=1))),
        ("in each column", with_greedy(lambda x, t: (x / t).T.softmax(dim=-1).T)),
        ("32-bit numbers end", with_greedy(wrong_7_2_overflow)),
        ("of the whole batch", with_greedy(wrong_7_2_one_largest)),
        (
            "not cold enough",
            lambda x, t: F.softmax(x / torch.tensor(t).clamp(0.01), -1),
        ),
        ("Two things at once. Temperature 0 has", lambda x, t: F.softmax(t * x, -1)),
        ("numbers differ", with_greedy(lambda x, t: F.softmax(x / t**3, -1))),
    ],
    "7.3": [
        ("You keep k − 1", keep_places(lambda k, V: min(k, V) - 1)),
        ("You keep k + 1", keep_places(lambda k, V: k + 1)),
        ("only minus infinity stands for weight 0", keep_places(lambda k, V: k, 0.0)),
        ("a large negative number", keep_places(lambda k, V: k, -1e9)),
        ("One threshold serves the whole batch", wrong_7_3_batch),
        ("A k above V is refused by `topk`", wrong_7_3_refused),
        ("a place that does not exist", wrong_7_3_no_place),
        ("keep it as (B, 1)", wrong_7_3_no_column),
        ("the best values alone", lambda x, k: x.sort(descending=True).values[:, :k]),
        ("Nothing is hidden", lambda logits, k: logits.clone()),
        ("= [5, -inf, 3]", wrong_7_3_large_number),
    ],
    "7.4": [
        ("counted twice", wrong_7_4(lambda before, around: (before, around + 1))),
        ("in the loop is one too small", wrong_7_4(lambda b, a: (b, a - 1))),
        ("before the loop is one too large", wrong_7_4(lambda b, a: (1 + b, a))),
        ("have changed places", wrong_7_4(lambda before, around: [around, before])),
        ("The first word need not come back", wrong_7_4(lambda b, a: (0, a + b))),
        ("may be in it only once", wrong_7_4_more_than_once),
        ("You start from the text's last word", wrong_7_4_last_word),
        ("inputs, first on:", lambda table, first: (len(table) // 2, len(table) // 2)),
    ],
    "7.5": [
        ("all rows, not any", continued(lambda f, n, e, ends: (n, e, ends.any()))),
        ("end is forgotten", continued(lambda f, n, e, ends: (f, ends, all(ends)))),
        (
            "Nothing fills up",
            continued(lambda f, n, e, ends: (n, e | ends, all(e | ends))),
        ),
        ("always runs to", continued(lambda f, n, e, ends: (f, e + ends, False))),
        ("No row ever ends", continued(lambda f, n, e, ends: (n, e, False))),
        ("with 0", continued(lambda f, n, e, ends: (n * ~e, e | ends, all(e | ends)))),
    ],
}
