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


def right_7_1_max(logits):
    return logits[:, -1].max(dim=1)[1].unsqueeze(1)


def right_7_1_kept_position(logits):
    return logits[:, -1:].argmax(2)


def right_7_1_sort(logits):
    return logits.argsort(dim=-1)[:, -1, -1:]


def wrong_7_1_no_column(logits):
    return torch.tensor([int(text[-1].argmax()) for text in logits])


def wrong_7_1_batch(logits):
    return logits[:, logits.shape[1] - 1].max(dim=0, keepdim=True).indices


def wrong_7_1_values(logits):
    return logits[:, -1].sort(dim=-1, descending=True).values[:, :1]


def wrong_7_1_first(logits):
    return logits.argmax(dim=-1)[:, :1]


def wrong_7_1_second_best(logits):
    return logits[:, -1].topk(2).indices[:, 1:]


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


def right_7_2_in_place(logits, temperature):
    if not temperature:
        best = logits.argmax(dim=-1, keepdim=True)
        return logits.zero_().scatter_(-1, best, 1)
    logits /= temperature
    return F.softmax(logits, dim=1)


def right_7_2_nearly_zero(logits, temperature):
    return torch.softmax(logits / max(temperature, 1e-6), -1)


def right_7_2_exponentials(logits, temperature):
    logits = logits.double() - logits.amax(dim=-1, keepdim=True)
    weights = (logits / (temperature + 1e-9)).exp()
    return weights / weights.sum(dim=-1, keepdim=True)


def right_7_2_one_hot(logits, temperature):
    if temperature < 1e-6:
        return F.one_hot(logits.argmax(dim=-1), logits.size(-1))
    return logits.div(temperature).log_softmax(dim=-1).exp()


def wrong_7_2_times(logits, temperature):
    if temperature == 0.0:
        return torch.eye(logits.shape[-1])[logits.argmax(dim=-1)]
    weights = logits.double().exp() ** temperature
    return weights / weights.sum(dim=-1, keepdim=True)


def wrong_7_2_times_no_case(logits, temperature):
    return F.softmax(temperature * logits, dim=-1)


def wrong_7_2_after(logits, temperature):
    shares = F.softmax(logits, dim=-1)
    if temperature > 0:
        return shares.div(temperature)
    return (shares == shares.amax(dim=-1, keepdim=True)).float()


def wrong_7_2_after_again(logits, temperature):
    shares = logits.softmax(dim=-1)
    shares /= temperature
    return shares / shares.sum(dim=-1, keepdim=True)


def wrong_7_2_no_case(logits, temperature):
    weights = (logits - logits.amax(dim=-1, keepdim=True)) / temperature
    return F.softmax(weights, dim=-1)


def wrong_7_2_python_zero(logits, temperature):
    return torch.softmax(logits.mul(1.0 / temperature), dim=-1)


def wrong_7_2_batch(logits, temperature):
    if temperature == 0:
        return torch.eye(logits.shape[-1])[logits.argmax(dim=-1)]
    return logits.div(temperature).T.softmax(dim=-1).T


def wrong_7_2_overflow(logits, temperature):
    if temperature == 0:
        return torch.eye(logits.shape[-1])[logits.argmax(dim=-1)]
    weights = torch.exp(logits.div(temperature))
    return weights / weights.sum(dim=-1, keepdim=True)


def wrong_7_2_square(logits, temperature):
    if temperature == 0:
        return torch.eye(logits.shape[-1])[logits.argmax(dim=-1)]
    return (logits / temperature**2).softmax(dim=-1)


def right_7_3_order(logits, k):
    order = logits.argsort(dim=-1, descending=True)
    return logits.scatter(-1, order[:, k:], -torch.inf)


def right_7_3_in_place(logits, k):
    if k >= logits.shape[1]:
        return logits
    smallest = logits.sort(dim=-1).values[:, -k].unsqueeze(-1)
    logits[logits < smallest] = float("-inf")
    return logits


def right_7_3_loop(logits, k):
    rows = []
    for row in logits.tolist():
        best = sorted(row, reverse=True)[:k]
        rows.append([x if x in best else -math.inf for x in row])
    return torch.tensor(rows, dtype=torch.float64)


def right_7_3_ranks(logits, k):
    better = (logits[:, None, :] > logits[:, :, None]).sum(dim=-1)
    return torch.where(better < k, logits, -torch.inf)


def wrong_7_3_one_too_few(logits, k):
    k = min(k, logits.shape[-1])
    order = logits.argsort(dim=-1, descending=True)
    return logits.scatter(-1, order[:, k - 1 :], -torch.inf)


def wrong_7_3_one_too_many(logits, k):
    order = logits.argsort(dim=-1, descending=True)
    return logits.scatter(-1, order[:, k + 1 :], -torch.inf)


def wrong_7_3_batch(logits, k):
    best, _ = torch.topk(logits, min(k, logits.size(-1)))
    return torch.where(logits < best.min(), torch.tensor(-torch.inf), logits)


def wrong_7_3_zero(logits, k):
    best = logits.topk(min(k, logits.shape[-1]))
    return torch.zeros_like(logits).scatter(-1, best.indices, best.values)


def wrong_7_3_refused(logits, k):
    best, places = torch.topk(logits, k)
    return torch.full_like(logits, -torch.inf).scatter(1, places, best)


def wrong_7_3_no_place(logits, k):
    ordered, _ = torch.sort(logits, descending=True)
    return logits.masked_fill(logits < ordered[:, [k - 1]], -torch.inf)


def wrong_7_3_no_column(logits, k):
    k = min(logits.shape[-1], k)
    least = logits.topk(k).values.amin(dim=-1)
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


def right_7_4_tensor(table, first):
    favorites, word = table.argmax(dim=-1), torch.tensor(first)
    for _ in table:
        word = favorites[word]
    loop = {int(word)}
    while int(word := favorites[word]) not in loop:
        loop.add(int(word))
    before = len(set(walk(table, first)) - loop)
    return torch.tensor([before, len(loop)])


def wrong_7_4_counted_twice(table, first):
    text = walk(table, first)
    end = next(n for n, word in enumerate(text) if word in text[:n])
    start = text.index(text[end])
    return start, len(text[start : end + 1])


def wrong_7_4_all(table, first):
    return 0, len(set(walk(table, first)))


def wrong_7_4_more_than_once(table, first):
    text = walk(table, first)
    loop = [word for word in range(len(table)) if text.count(word) >= 2]
    return len(set(text)) - len(loop), len(loop)


def wrong_7_4_last_word(table, first):
    text = walk(table, first)
    start = next(n for n, word in enumerate(text) if word == text[-1])
    return start, len(text[start:-1])


def wrong_7_4_half(table, first):
    return len(table) // 2, len(table) // 2


def continue_rows(model, idx, max_new_tokens, eos_id, step):
    ended = torch.zeros(len(idx), 1, dtype=torch.bool)
    for _ in range(max_new_tokens):
        next_id = model(idx[:, -8:])[:, -1].argmax(dim=-1, keepdim=True)
        idx, ended, stop = step(idx, next_id, ended, eos_id)
        if stop:
            break
    return idx


def right_7_5_filled_first(model, idx, max_new_tokens, eos_id):
    def step(idx, next_id, ended, eos_id):
        next_id[ended] = eos_id
        ended = next_id == eos_id
        return torch.cat([idx, next_id], dim=1), ended, ended.all()

    return continue_rows(model, idx, max_new_tokens, eos_id, step)


def right_7_5_in_place(model, idx, max_new_tokens, eos_id):
    def step(idx, next_id, ended, eos_id):
        idx = torch.cat([idx, torch.where(ended, eos_id, next_id)], dim=1)
        ended |= next_id == eos_id
        return idx, ended, bool(ended.min())

    return continue_rows(model, idx, max_new_tokens, eos_id, step)


def right_7_5_row_by_row(model, idx, max_new_tokens, eos_id):
    rows = []
    for row in idx.tolist():
        new = []
        while len(new) < max_new_tokens and eos_id not in new:
            new.append(model(torch.tensor([row + new]))[0, -1].argmax().item())
        rows.append(row + new)
    longest = max(map(len, rows))
    return torch.tensor([row + [eos_id] * (longest - len(row)) for row in rows])


def wrong_7_5_any(model, idx, max_new_tokens, eos_id):
    def step(idx, next_id, ended, eos_id):
        return torch.cat([idx, next_id], dim=1), ended, eos_id in next_id

    return continue_rows(model, idx, max_new_tokens, eos_id, step)


def wrong_7_5_still_forgets(model, idx, max_new_tokens, eos_id):
    def step(idx, next_id, ended, eos_id):
        idx = torch.cat([idx, next_id.masked_fill(ended, eos_id)], dim=1)
        ended = next_id.eq(eos_id)
        return idx, ended, ended.sum() == len(idx)

    return continue_rows(model, idx, max_new_tokens, eos_id, step)


def wrong_7_5_not_filled(model, idx, max_new_tokens, eos_id):
    def step(idx, next_id, ended, eos_id):
        ended = ended + (next_id == eos_id)
        return torch.cat([idx, next_id], dim=1), ended, ended.all()

    return continue_rows(model, idx, max_new_tokens, eos_id, step)


def wrong_7_5_no_end(model, idx, max_new_tokens, eos_id):
    def step(idx, next_id, ended, eos_id):
        idx = torch.cat([idx, next_id.masked_fill(ended, eos_id)], dim=1)
        return idx, ended | (next_id == eos_id), False

    return continue_rows(model, idx, max_new_tokens, eos_id, step)


def wrong_7_5_filled_with_zero(model, idx, max_new_tokens, eos_id):
    def step(idx, next_id, ended, eos_id):
        idx = torch.cat([idx, next_id * ~ended], dim=1)
        ended = ended | (next_id == eos_id)
        return idx, ended, ended.all()

    return continue_rows(model, idx, max_new_tokens, eos_id, step)


RIGHT = {
    "7.1": [
        right_7_1_loop,
        right_7_1_topk,
        right_7_1_max,
        right_7_1_kept_position,
        right_7_1_sort,
    ],
    "7.2": [
        right_7_2_powers,
        right_7_2_in_place,
        right_7_2_nearly_zero,
        right_7_2_exponentials,
        right_7_2_one_hot,
    ],
    "7.3": [
        gpt_helpers.keep_top_k,
        right_7_3_order,
        right_7_3_in_place,
        right_7_3_loop,
        right_7_3_ranks,
    ],
    "7.4": [right_7_4_places, right_7_4_backward, right_7_4_tensor],
    "7.5": [right_7_5_filled_first, right_7_5_in_place, right_7_5_row_by_row],
}

WRONG = {
    "7.1": [
        ("look at `keepdim`", wrong_7_1_no_column),
        ("which axis holds the vocabulary", wrong_7_1_batch),
        ("the largest scores themselves", wrong_7_1_values),
        ("first position's scores", wrong_7_1_first),
        ("It fails on 5 of 5 inputs", wrong_7_1_second_best),
        ("of your code raised", wrong_7_1_misspelt),
    ],
    "7.2": [
        ("cold and heat have changed places", wrong_7_2_times),
        ("temperature 0 still needs a case", wrong_7_2_times_no_case),
        ("no longer add up to 1", wrong_7_2_after),
        ("the factor cancels", wrong_7_2_after_again),
        ("are no numbers (nan)", wrong_7_2_no_case),
        ("refuses to divide 1 by zero", wrong_7_2_python_zero),
        ("add up to 1 in each column", wrong_7_2_batch),
        ("32-bit numbers end", wrong_7_2_overflow),
        ("It fails on 4 of 8 inputs", wrong_7_2_square),
    ],
    "7.3": [
        ("You keep k − 1", wrong_7_3_one_too_few),
        ("You keep k + 1", wrong_7_3_one_too_many),
        ("One threshold serves the whole batch", wrong_7_3_batch),
        ("only minus infinity stands for weight 0", wrong_7_3_zero),
        ("`topk` refuses a k", wrong_7_3_refused),
        ("a place that does not exist", wrong_7_3_no_place),
        ("Keep it as (B, 1)", wrong_7_3_no_column),
        ("= [5, -1000, 3]", wrong_7_3_large_number),
    ],
    "7.4": [
        ("counted twice", wrong_7_4_counted_twice),
        ("The first word need not come back", wrong_7_4_all),
        ("may be in it only once", wrong_7_4_more_than_once),
        ("You start from the text's last word", wrong_7_4_last_word),
        ("of 10 inputs, first on:", wrong_7_4_half),
    ],
    "7.5": [
        ("all rows, not any", wrong_7_5_any),
        ("is silent for one step", wrong_7_5_still_forgets),
        ("goes on writing until the last", wrong_7_5_not_filled),
        ("always runs to `max_new_tokens`", wrong_7_5_no_end),
        ("of 10 inputs, first on:", wrong_7_5_filled_with_zero),
    ],
}
