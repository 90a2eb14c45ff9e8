"""Answers to the exercises of lesson 10 · The KV cache: right ones, and wrong ones with what is said."""

import torch

import gpt_helpers


def right_10_1_loop(T, cached):
    rows = []
    for i in range(T):
        visible = i + cached + 1
        rows.append([False] * visible + [True] * (cached + T - visible))
    return torch.tensor(rows)


def right_10_1_triangle(T, cached):
    return torch.ones(T, cached + T).triu(diagonal=cached + 1).bool()


def right_10_1_strip_of_the_square(T, cached):
    square = torch.ones(cached + T, cached + T, dtype=torch.bool).triu_(1)
    return square[-T:]


def right_10_1_joined(T, cached):
    inside = ~torch.tril(torch.ones(T, T)).bool()
    return torch.hstack([torch.zeros(T, cached, dtype=bool), inside])


def wrong_10_1_row_zero(T, cached):
    square = torch.ones(cached + T, cached + T).triu(diagonal=1) == 1
    return square[:T]


def wrong_10_1_not_itself(T, cached):
    i, j = torch.arange(T), torch.arange(cached + T)
    return i[:, None] + cached <= j


def wrong_10_1_future(T, cached):
    columns = [torch.arange(T) + cached + 1 < j for j in range(cached + T)]
    return torch.stack(columns, dim=1)


def wrong_10_1_short(T, cached):
    return torch.arange(T) > torch.arange(T).unsqueeze(-1)


def wrong_10_1_inside_out(T, cached):
    return torch.arange(cached, cached + T)[:, None] >= torch.arange(cached + T)


def wrong_10_1_numbers(T, cached):
    return right_10_1_loop(T, cached).int()


def wrong_10_1_upside_down(T, cached):
    return right_10_1_loop(T, cached).flip(0)


def right_10_2_loop(memory, length, new):
    for i in range(new.shape[2]):
        memory[:, :, length + i] = new[:, :, i]
    return memory[:, :, : length + new.shape[2]].clone()


def right_10_2_cat_and_copy(memory, length, new):
    filled = torch.cat([memory[:, :, :length], new], dim=-2)
    memory[:, :, : filled.shape[2]] = filled
    return filled


def right_10_2_narrow(memory, length, new):
    memory.narrow(2, length, new.size(2)).copy_(new)
    return memory.narrow(2, 0, length + new.size(2))


def right_10_2_index(memory, length, new):
    places = torch.arange(length, length + new.shape[-2])
    memory.index_copy_(2, places, new)
    return memory.double()[..., : places[-1] + 1, :]


def wrong_10_2_beside(memory, length, new):
    memory = memory.narrow(2, 0, length)
    return torch.concat((memory, new), -2)


def wrong_10_2_behind_all(memory, length, new):
    memory = torch.cat((memory, new), 2)
    return memory


def wrong_10_2_from_zero(memory, length, new):
    for i, keys in enumerate(new.unbind(2)):
        memory[:, :, i] = keys
    return memory[:, :, : length + new.shape[2]]


def wrong_10_2_one_late(memory, length, new):
    for i, keys in enumerate(new.unbind(2), start=length + 1):
        memory[:, :, i] = keys
    return memory[:, :, : length + new.shape[2]]


def wrong_10_2_whole(memory, length, new):
    right_10_2_narrow(memory, length, new)
    return memory


def wrong_10_2_nothing(memory, length, new):
    right_10_2_loop(memory, length, new)


def wrong_10_2_batch_axis(memory, length, new):
    end = length + new.shape[2]
    memory[length:end] = new
    return memory[:end]


def wrong_10_2_heads_axis(memory, length, new):
    turned = memory.transpose(1, 2)
    turned[:, :, length : length + new.shape[2]] = new
    return memory


def wrong_10_2_first_row(memory, length, new):
    memory[0, :, length : length + new.shape[2]] = new[0]
    return memory[:, :, : length + new.shape[2]]


RIGHT_10_3 = {
    "one row, bytes": 4.0 * 2 * 1024 * 48 * 25 * 64,
    "8 rows with 100 tokens read, MiB": 8 * 2 * 48 * 1600 * 1024 * 4 / 2**20,
    "rows in 6 GiB, 2 bytes per number": 6 * 2**30 // (2 * 48 * 1600 * 1024 * 2),
}


@torch.no_grad()
def right_10_4_first_or_not(model, ids, cache):
    T = ids.shape[1]
    start = 0 if cache.length == 0 else cache.length
    x = model.tok_emb(ids) + model.pos_emb.weight[start : start + T]
    for layer, block in enumerate(model.trf_blocks):
        x = block(x, cache, layer)
    cache.length = start + T
    return model.out_head(model.final_norm(x))


def right_10_4_model(model, ids, cache):
    with torch.no_grad():
        return model(ids, cache)


def right_10_4_one_by_one(model, ids, cache):
    logits = [gpt_helpers.next_logits(model, ids[:, :1], None)[:, None]] * 0
    for token in ids.split(1, dim=1):
        logits.append(right_10_4_first_or_not(model, token, cache))
    return torch.cat(logits, dim=1)


def wrong_10_4(positions, length):
    """Make a wrong answer from ``(cached, T) -> …`` for both."""

    @torch.no_grad()
    def answer(model, ids, cache):
        cached, T = cache.length, ids.shape[1]
        x = model.tok_emb(ids) + model.pos_emb(positions(cached, T))
        for layer in range(len(model.trf_blocks)):
            x = model.trf_blocks[layer](x, cache, layer)
        cache.length = length(cached, T)
        return model.out_head(model.final_norm(x))

    return answer


def told_wrong_10_4(start, moves=lambda cached, T: cached + T):
    return wrong_10_4(lambda cached, T: torch.arange(T) + start(cached, T), moves)


@torch.no_grad()
def wrong_10_4_early(model, ids, cache):
    positions = torch.arange(ids.shape[1]) + cache.length
    x = model.tok_emb(ids) + model.pos_emb(positions)
    cache.length += ids.shape[1]
    for layer, block in enumerate(model.trf_blocks):
        x = block(x, cache, layer)
    return model.out_head(model.final_norm(x))


@torch.no_grad()
def wrong_10_4_every_layer(model, ids, cache):
    positions = torch.arange(cache.length, cache.length + ids.shape[1])
    x = model.tok_emb(ids) + model.pos_emb(positions)
    for layer, block in enumerate(model.trf_blocks):
        x = block(x, cache, layer)
        cache.length += ids.shape[1]
    return model.out_head(model.final_norm(x))


def wrong_10_1_moved(T, cached, by):
    return torch.arange(cached + T)[None] > torch.arange(T)[:, None] + by


def wrong_10_1_alike(T, cached):
    return torch.tensor([[key > cached for key in range(cached + T)]] * T)


def wrong_10_1_past(T, cached):
    return torch.arange(cached + T)[None] < torch.arange(T)[:, None] + cached


def wrong_10_2_returned(end):
    def answer(memory, length, new):
        right_10_2_loop(memory, length, new)
        return memory[:, :, : end(length, new.shape[2])]

    return answer


RIGHT = {
    "10.1": [
        right_10_1_loop,
        right_10_1_triangle,
        right_10_1_strip_of_the_square,
        right_10_1_joined,
    ],
    "10.2": [
        right_10_2_loop,
        right_10_2_cat_and_copy,
        right_10_2_narrow,
        right_10_2_index,
        lambda memory, length, new: right_10_2_loop(memory, length, new).tolist(),
    ],
    "10.3": [RIGHT_10_3],
    "10.4": [right_10_4_first_or_not, right_10_4_model, right_10_4_one_by_one],
}

WRONG = {
    "10.1": [
        ("cut from row 0", wrong_10_1_row_zero),
        ("hidden from itself", wrong_10_1_not_itself),
        ("reads one key that lies in its future", wrong_10_1_future),
        ("the cached keys have no columns", wrong_10_1_short),
        ("Right, but inside out", wrong_10_1_inside_out),
        ("but they are numbers", wrong_10_1_numbers),
        ("stands at T + 1", lambda T, cached: wrong_10_1_moved(T, cached, by=T)),
        ("All rows are alike", wrong_10_1_alike),
        ("True marks the keys before", wrong_10_1_past),
        ("It fails on 5 of 7 inputs", wrong_10_1_upside_down),
    ],
    "10.2": [
        ("nothing was stored: the memory is as it was", wrong_10_2_beside),
        ("behind all places of the memory", wrong_10_2_behind_all),
        ("over the oldest keys", wrong_10_2_from_zero),
        ("you leave a free place", wrong_10_2_one_late),
        ("you return the whole memory", wrong_10_2_whole),
        ("your function returns nothing", wrong_10_2_nothing),
        ("not on the axis of the places", wrong_10_2_batch_axis),
        ("of your code raised RuntimeError", wrong_10_2_heads_axis),
        ("one place too many", wrong_10_2_returned(lambda length, T: length + T + 1)),
        ("a single new key", wrong_10_2_returned(lambda length, T: length + 1)),
        ("memory afterward: expected", wrong_10_2_first_row),
    ],
    "10.3": [
        ("you have half", RIGHT_10_3 | {"one row, bytes": 600 * 2**20 // 2}),
        ("a quarter", RIGHT_10_3 | {"one row, bytes": 150 * 2**20}),
        ("layers are missing", RIGHT_10_3 | {"one row, bytes": 600 * 2**20 / 48}),
        ("divide the C features", RIGHT_10_3 | {"one row, bytes": 25 * 600 * 2**20}),
        ("you counted one head", RIGHT_10_3 | {"one row, bytes": 24 * 2**20}),
        (
            "MB. A MiB has 2**20 bytes, a little more than a million. In 'rows in 6",
            RIGHT_10_3
            | {
                "8 rows with 100 tokens read, MiB": 8 * 629.1456,
                "rows in 6 GiB, 2 bytes per number": 20.48,
            },
        ),
        (
            "  rows in 6 GiB, 2 bytes per number: 5",
            RIGHT_10_3 | {"rows in 6 GiB, 2 bytes per number": 5},
        ),
    ],
    "10.4": [
        (
            "of several tokens still starts at position 0",
            told_wrong_10_4(lambda cached, T: cached * (T == 1)),
        ),
        ("Now every chunk starts", told_wrong_10_4(lambda cached, T: 0)),
        ("condition round", told_wrong_10_4(lambda cached, T: cached * (T > 1))),
        ("one too far", told_wrong_10_4(lambda cached, T: cached + 1)),
        ("behind the chunk itself", told_wrong_10_4(lambda cached, T: cached + T)),
        ("or the cache is not used", torch.no_grad()(lambda m, ids, cache: m(ids))),
        (
            "the range ends at T",
            wrong_10_4(torch.arange, lambda cached, T: cached + T),
        ),
        ("before the blocks have stored", wrong_10_4_early),
        ("moves with each layer", wrong_10_4_every_layer),
        (
            "`length` never moves",
            told_wrong_10_4(lambda cached, T: cached, lambda cached, T: cached),
        ),
        (
            "the size of the newest chunk",
            told_wrong_10_4(lambda cached, T: cached, lambda cached, T: T),
        ),
        ("first on:", told_wrong_10_4(lambda cached, T: cached // 2)),
    ],
}
