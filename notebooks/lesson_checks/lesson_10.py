"""The exercises of lesson 10 · The KV cache."""

import torch

import gpt_helpers

from .engine import Exercise, as_tensor

# 10.1


def new_and_cached_counts():
    return [(1, 0), (1, 2), (2, 1), (3, 0), (3, 5), (4, 2), (5, 1)]


def square_of_ones(T, cached=0):
    return torch.ones(T, cached + T, dtype=torch.bool)


def old_keys_beside(first, second):
    return torch.cat([first, second], dim=1)


ex = Exercise(
    "10.1",
    "The mask of a chunk",
    why="With nothing cached it is the mask you know, and for a single token nothing "
    "is hidden: only chunks after a first one show whether the offset is right.",
    inputs=new_and_cached_counts,
)


@ex.reference
def _(T, cached):
    return torch.arange(cached + T) > torch.arange(T)[:, None] + cached


ex.mistake(
    "Your mask is cut from row 0, as if nothing were cached. New token i stands at "
    "position i + cached: how far to the right does that move the diagonal?"
)(lambda T, cached: square_of_ones(T, cached).triu(1))

ex.mistake(
    "One off: each new token is hidden from itself. Key j at the token's own position "
    "is the last one that it may read; look at > and ≥, or at the diagonal."
)(lambda T, cached: square_of_ones(T, cached).triu(cached))

ex.mistake(
    "One off: each token reads one key that lies in its future. The first key that is "
    "hidden stands directly after the token's own position."
)(lambda T, cached: square_of_ones(T, cached).triu(cached + 2))

ex.mistake(
    "Your offset points the wrong way and hides cached keys: key j is compared with "
    "i − cached. New tokens stand behind the cached ones, not before them."
)(lambda T, cached: square_of_ones(T, cached).triu(1 - cached))

ex.mistake(
    "The shape is (T, T): the cached keys have no columns. Each row needs a column for "
    "every key, cached and new."
)(lambda T, cached: square_of_ones(T).triu(1))

ex.mistake(
    "The shape is (T, T), and True marks what may be read. Each row needs a column for "
    "every key, cached and new, and True stands for hidden."
)(lambda T, cached: square_of_ones(T).tril())

ex.mistake(
    "Right, but inside out: your True marks the keys that may be read. Here True marks "
    "the hidden ones, as `masked_fill` wants them."
)(lambda T, cached: square_of_ones(T, cached).tril(cached))

ex.mistake(
    "Two things: your True marks the keys that may be read, not the hidden ones; and "
    "the mask is cut from row 0, as if nothing were cached."
)(lambda T, cached: square_of_ones(T, cached).tril())

ex.mistake(
    "Rows and columns are exchanged. A row belongs to a new token, T of them; a column "
    "belongs to a key, cached + T of them."
)(lambda T, cached: square_of_ones(T, cached).triu(cached + 1).T)

ex.mistake(
    "That is the whole square mask. The cached tokens ask nothing any more: keep only "
    "the rows of the new ones."
)(lambda T, cached: square_of_ones(cached + T).triu(1))

ex.mistake(
    "The ones stand where they should, but they are numbers. `masked_fill` wants True "
    "and False: look at the `dtype`."
)(lambda T, cached: square_of_ones(T, cached).triu(cached + 1).float())

ex.mistake(
    "That is a mask to be added to the scores, 0 and minus infinity. Here it should be "
    "boolean: True where a key is hidden."
)(
    lambda T, cached: torch.zeros(T, cached + T).masked_fill(
        square_of_ones(T, cached).triu(cached + 1), -torch.inf
    )
)

ex.mistake(
    "All cached keys are hidden, so that the chunk reads only itself. The past is what "
    "a cache is for: only later keys are hidden."
)(
    lambda T, cached: old_keys_beside(
        torch.ones(T, cached, dtype=torch.bool), square_of_ones(T).triu(1)
    )
)

ex.mistake(
    "The columns of the cached keys stand at the end. Columns follow positions: the "
    "cached keys are older and come first."
)(
    lambda T, cached: old_keys_beside(
        square_of_ones(T).triu(1), torch.zeros(T, cached, dtype=torch.bool)
    )
)

ex.mistake(
    "Nothing is hidden. Inside the chunk a token would read the tokens that follow it."
)(lambda T, cached: torch.zeros(T, cached + T, dtype=torch.bool))

ex.mistake(
    "Your diagonal stands at T + 1. How far the mask moves to the right does not depend "
    "on how many tokens are new, but on how many are cached."
)(lambda T, cached: square_of_ones(T, cached).triu(T + 1))

ex.mistake(
    "All rows are alike: each has the mask of the first new token. Row i may read i "
    "keys more than row 0."
)(lambda T, cached: (torch.arange(cached + T) > cached).repeat(T, 1))

ex.mistake(
    "True marks the keys before a token, and leaves open those behind it. The hidden "
    "ones are the later ones: look at > and <."
)(lambda T, cached: square_of_ones(T, cached).tril(cached - 1))


# 10.2


def memories_with_new_keys():
    generator = torch.Generator().manual_seed(102)
    small = torch.tensor([5.0, 50, 99, 99, 6, 60, 99, 99]).view(1, 2, 4, 1)
    made = [(small, 2, torch.tensor([7.0, 8.0]).view(1, 2, 1, 1))]
    # (B, H, places, D), the places that are taken, and how many keys are new
    for B, H, places, D, length, T in (
        (2, 1, 6, 1, 3, 2),
        (2, 2, 7, 3, 2, 3),
        (2, 3, 6, 4, 0, 4),
        (3, 2, 8, 5, 1, 4),
        (4, 3, 9, 2, 5, 2),
        (2, 4, 6, 3, 3, 1),
    ):
        memory = torch.randn(B, H, places, D, generator=generator)
        memory[:, :, length:] = 99
        made.append((memory, length, torch.randn(B, H, T, D, generator=generator)))
    return made


def returned_and_stored(answer, memory, length, new):
    found = {"returned": answer(memory, length, new), "memory afterward": memory}
    for name, part in found.items():
        part = as_tensor(part)
        if isinstance(part, torch.Tensor):
            found[name] = part.double().round(decimals=4).tolist()  # short if shown
    return found


def storing(start=0, returned=lambda memory, length, T: memory[:, :, : length + T]):
    """Make an answer that writes ``start`` places late and returns this."""

    def answer(memory, length, new):
        T = new.shape[2]
        memory[:, :, length + start : length + start + T] = new
        return returned(memory, length, T)

    return answer


ex = Exercise(
    "10.2",
    "Append to the memory",
    why="A slice of the memory costs no copy, so only the new keys are written; "
    "`KVCache.extend` does this for each layer, and for the values, too.",
    inputs=memories_with_new_keys,
    call=returned_and_stored,
)

ex.reference(storing())

ex.mistake(
    "What you return is right, but nothing was stored: the memory is as it was. What "
    "`torch.cat` or `clone` makes is a new tensor beside it, which the next token "
    "will not find."
)(lambda memory, length, new: torch.cat([memory[:, :, :length], new], dim=2))

ex.mistake(
    "You put the new keys behind all places of the memory, the free ones included, "
    "and nothing was stored. They belong into the memory, from place `length` on."
)(lambda memory, length, new: torch.cat([memory, new], dim=2))


@ex.mistake(
    "You write from place 0 on, over the oldest keys. The first free place is the one "
    "after all that was read: which number says where?"
)
def _(memory, length, new):
    T = new.shape[2]
    memory[:, :, :T] = new
    return memory[:, :, : length + T]


@ex.mistake(
    "You write from place 0 on, over the oldest keys, and return just what you wrote. "
    "The new keys belong behind the `length` old ones, and all are returned."
)
def _(memory, length, new):
    T = new.shape[2]
    memory[:, :, :T] = new
    return memory[:, :, :T]


ex.mistake(
    "One off: you leave a free place between the old keys and the new ones. Places are "
    "counted from 0, so the first free one is number `length`."
)(storing(start=1))

ex.mistake(
    "One off: you leave a free place between the old keys and the new ones, and return "
    "it with them. Counted from 0, the first free place is number `length`."
)(storing(start=1, returned=lambda memory, length, T: memory[:, :, : length + 1 + T]))

ex.mistake(
    "One off: you write over the newest of the old keys. Places are counted from 0, so "
    "the last one taken is number `length` − 1."
)(storing(start=-1))

ex.mistake(
    "All is stored in its place, but you return the whole memory. What stands behind "
    "the new keys is no key: return the filled part."
)(storing(returned=lambda memory, length, T: memory))

ex.mistake(
    "All is stored in its place, but you return one place too many: the end of a slice "
    "is the first place that is left out."
)(storing(returned=lambda memory, length, T: memory[:, :, : length + T + 1]))

ex.mistake(
    "All is stored in its place, but you return a single new key with the old ones. "
    "There are T of them."
)(storing(returned=lambda memory, length, T: memory[:, :, : length + 1]))

ex.mistake(
    "Nothing was stored: the memory is as it was, and you return a part of it in which "
    "the new keys are missing."
)(lambda memory, length, new: memory[:, :, : length + new.shape[2]])


@ex.mistake(
    "You add the new keys to what stood in the free places. That is no key: write over "
    "it."
)
def _(memory, length, new):
    end = length + new.shape[2]
    memory[:, :, length:end] += new
    return memory[:, :, :end]


ex.mistake(
    "All is stored in its place, but you return the new keys alone. The queries are "
    "going to ask the old ones, too."
)(storing(returned=lambda memory, length, T: memory[:, :, length : length + T]))

ex.mistake(
    "All is stored in its place, but you return the old keys alone. After the writing "
    "more places are filled than `length` says."
)(storing(returned=lambda memory, length, T: memory[:, :, :length]))

ex.mistake(
    "All is stored in its place, but what you return lacks the last key. The end of a "
    "slice is not part of it."
)(storing(returned=lambda memory, length, T: memory[:, :, : length + T - 1]))

ex.mistake(
    "All is stored in its place, but your function returns nothing. Return the filled "
    "part of the memory."
)(storing(returned=lambda memory, length, T: None))

ex.mistake(
    "Batch and heads are exchanged in what you return. Keys stay (B, H, T, D): only "
    "the third axis grows."
)(
    storing(
        returned=lambda memory, length, T: memory[:, :, : length + T].transpose(0, 1)
    )
)


@ex.mistake(
    "Batch and heads of the new keys are exchanged before they are written. Both "
    "tensors have the axes (B, H, T, D) already: nothing has to be turned."
)
def _(memory, length, new):
    end = length + new.shape[2]
    memory[:, :, length:end] = new.transpose(0, 1)
    return memory[:, :, :end]


@ex.mistake(
    "You count the heads instead of the new tokens. In (B, H, T, D) T is the size of "
    "the third axis, whose number is 2."
)
def _(memory, length, new):
    end = length + new.shape[1]
    memory[:, :, length:end] = new
    return memory[:, :, :end]


@ex.mistake(
    "Your slice has no end. From `length` on there are more free places than new keys: "
    "PyTorch refuses, or fills all of them with a single new key."
)
def _(memory, length, new):
    memory[:, :, length:] = new
    return memory[:, :, : length + new.shape[2]]


@ex.mistake(
    "PyTorch refuses on every input, since two shapes do not fit. Tokens are on the "
    "third axis of both tensors, (B, H, …, D): do your colons leave batch and heads "
    "whole, and is the slice that you write to T places long?"
)
def _(memory, length, new):
    end = length + new.shape[2]
    memory[:, length:end] = new
    return memory[:, :end]


@ex.mistake(
    "Your slice is not on the axis of the places. The axes are (B, H, places, D), and "
    "each axis before the third needs a colon of its own."
)
def _(memory, length, new):
    end = length + new.shape[2]
    memory[length:end] = new
    return memory[:end]


# 10.3
ex = Exercise(
    "10.3",
    "The memory of XL",
    why="What limits a server is often this memory and not the arithmetic: it grows "
    "with each text that is written at the same time.",
)

ex.reference(
    {
        "one row, bytes": 2 * 48 * 1600 * 1024 * 4,
        "8 rows with 100 tokens read, MiB": 8 * 600,
        "rows in 6 GiB, 2 bytes per number": 20,
    }
)

ex.mistake(
    "In 'one row, bytes' you have half. Keys and values are both kept, which makes "
    "a factor of 2; and in this row each number takes 4 bytes, not 2."
)(ex.right | {"one row, bytes": 48 * 1600 * 1024 * 4})

ex.mistake(
    "In 'one row, bytes' you have a quarter. If you counted the numbers: each takes "
    "4 bytes. If not: keys and values are both kept, and 4 bytes is not 2."
)(ex.right | {"one row, bytes": 2 * 48 * 1600 * 1024})

ex.mistake(
    "In 'one row, bytes' the layers are missing. Each block makes keys and values "
    "of its own, and all of them are kept."
)(ex.right | {"one row, bytes": 2 * 1600 * 1024 * 4})

ex.mistake(
    "In 'one row, bytes' you multiplied by the heads. Heads divide the C features "
    "among them, C = H·D: they add none."
)(ex.right | {"one row, bytes": 2 * 48 * 25 * 1600 * 1024 * 4})

ex.mistake(
    "In 'one row, bytes' you counted one head, D numbers. A key has D numbers in "
    "each of the H heads, so C in all."
)(ex.right | {"one row, bytes": 2 * 48 * 64 * 1024 * 4})

ex.mistake(
    "In 'one row, bytes' the tokens are missing: that is the memory of a single token."
)(ex.right | {"one row, bytes": 2 * 48 * 1600 * 4})

ex.mistake(
    "In 'one row, bytes' you kept three roles. Which of queries, keys and values "
    "is asked once and let go?"
)(ex.right | {"one row, bytes": 3 * 48 * 1600 * 1024 * 4})

ex.mistake(
    "In 'one row, bytes' you answered in MiB. The name says bytes, and a MiB has "
    "2**20 of them."
)(ex.right | {"one row, bytes": 600})

ex.mistake(
    "In '8 rows with 100 tokens read, MiB' you counted the tokens that were read. "
    "When is the memory taken, and for how many tokens?"
)(ex.right | {"8 rows with 100 tokens read, MiB": 8 * 100 * 600 / 1024})

ex.mistake(
    "In '8 rows with 100 tokens read, MiB' you have half. Keys and values are both "
    "kept, which makes a factor of 2; and here each number takes 4 bytes, not 2."
)(ex.right | {"8 rows with 100 tokens read, MiB": 2400})

ex.mistake(
    "In '8 rows with 100 tokens read, MiB' you have the memory of a single row. Do "
    "rows of a batch share keys?"
)(ex.right | {"8 rows with 100 tokens read, MiB": 600})

ex.mistake(
    "In '8 rows with 100 tokens read, MiB' you have millions of bytes, MB. A MiB "
    "has 2**20 bytes, a little more than a million."
)(ex.right | {"8 rows with 100 tokens read, MiB": 8 * 600 * 2**20 / 1e6})

ex.mistake(
    "In 'rows in 6 GiB, 2 bytes per number' you went on with 4 bytes. How much does "
    "a row need with half of that?"
)(ex.right | {"rows in 6 GiB, 2 bytes per number": 10})

ex.mistake(
    "In 'rows in 6 GiB, 2 bytes per number' you rounded up. The last row does not "
    "fit as a whole."
)(ex.right | {"rows in 6 GiB, 2 bytes per number": 21})

ex.mistake(
    "In 'rows in 6 GiB, 2 bytes per number' you gave the quotient. A part of a row "
    "is of no use: how many whole ones fit?"
)(ex.right | {"rows in 6 GiB, 2 bytes per number": 6 * 1024 / 300})

ex.mistake(
    "In 'rows in 6 GiB, 2 bytes per number' you have twice as many as fit. Keys and "
    "values both need their room; and 2 bytes are half of 4, not a quarter."
)(ex.right | {"rows in 6 GiB, 2 bytes per number": 40})


# 10.4
def texts_cut_into_chunks():
    generator = torch.Generator().manual_seed(104)
    made = []
    # a chunk of several tokens stands alone, first, or behind others
    for B, sizes in (
        (1, [2]),
        (1, [1, 2]),
        (1, [2, 1, 1]),
        (1, [2, 2]),
        (2, [3, 1, 2]),
        (3, [1, 6]),
        (2, [2, 2, 2, 2]),
    ):
        made.append((torch.randint(20, (B, sum(sizes)), generator=generator), sizes))
    return made


def logits_of_the_chunks(answer, ids, sizes):
    cfg = gpt_helpers.GPTConfig(20, 8, emb_dim=8, n_heads=2, n_layers=2, drop_rate=0.0)
    model = gpt_helpers.GPTModel(cfg).eval()
    cache = gpt_helpers.KVCache(cfg, batch_size=len(ids))
    cache.keys.fill_(1.0)
    cache.values.fill_(1.0)
    logits = [answer(model, chunk, cache) for chunk in ids.split(sizes, dim=1)]
    if any(part is None or part is ... for part in logits):
        return logits[0]
    return torch.cat(logits, dim=1)


def reading(first, last=lambda start, T: start + T, moved=None):
    """Make an answer: the first position, the range's end, what moves ``length``."""

    def answer(model, ids, cache):
        T, layers = ids.shape[1], len(model.trf_blocks)
        before, start = cache.length, first(cache.length, ids.shape[1])
        positions = torch.arange(start, last(start, T))
        x = model.tok_emb(ids) + model.pos_emb(positions)
        for layer, block in enumerate(model.trf_blocks):
            if moved == "before the blocks":
                cache.length = before + T
            elif moved == "by each layer":
                cache.length = before + layer * T
            x = block(x, cache, layer)
        cache.length = {
            "never": before,
            "to T": T,
            "by one": before + 1,
            "by each layer": before + layers * T,
        }.get(moved, before + T)
        return model.out_head(model.final_norm(x))

    return torch.no_grad()(answer)


def after_the_cached(cached, T):
    return cached


ex = Exercise(
    "10.4",
    "The second question starts at 0",
    why="A position does not depend on how many tokens come at once: `length` alone "
    "says where a chunk begins, and every way of cutting gives the same logits.",
    inputs=texts_cut_into_chunks,
    call=logits_of_the_chunks,
    tolerance=1e-4,
)


@ex.bug(
    "A chunk of several tokens still starts at position 0, even if others were read "
    "before it. What do the number of new tokens and their place have to do with each "
    "other?"
)
def _(model, ids, cache):
    T = ids.shape[1]
    start = 0 if T > 1 else cache.length  # a prompt, or one more token
    positions = torch.arange(start, start + T)
    x = model.tok_emb(ids) + model.pos_emb(positions)  # (B, T, C)
    for layer, block in enumerate(model.trf_blocks):
        x = block(x, cache, layer)
    cache.length += T
    return model.out_head(model.final_norm(x))  # (B, T, V)


ex.reference(reading(after_the_cached))

ex.mistake(
    "Now every chunk starts at position 0, the single tokens, too. Only a chunk that "
    "nothing was read before starts there."
)(reading(lambda cached, T: 0))

ex.mistake(
    "You have turned the condition round: now single tokens start at position 0. Does "
    "the place depend on how many tokens come at once?"
)(reading(lambda cached, T: cached if T > 1 else 0))

ex.mistake(
    "One off: your positions are one too far. Counted from 0, the token after `length` "
    "others stands at position `length`."
)(reading(lambda cached, T: cached + 1))

ex.mistake(
    "One off: after the first chunk your positions are one too low. Counted from 0, "
    "the last token that was read stands at `length` − 1; the new one follows it."
)(reading(lambda cached, T: max(cached - 1, 0)))

ex.mistake(
    "Your positions begin behind the chunk itself, at `length` + T. `length` alone "
    "counts what was read before it."
)(reading(lambda cached, T: cached + T))

ex.mistake(
    "The start is right, but the range ends at T. It needs T positions, counted from "
    "the start."
)(reading(after_the_cached, last=lambda start, T: T))

ex.mistake(
    "`length` moves before the blocks have stored their keys. They write where "
    "`length` points: it may move when the last block is done."
)(reading(after_the_cached, moved="before the blocks"))

ex.mistake(
    "`length` moves with each layer. All layers store the keys of the same tokens at "
    "the same places: it may move once per chunk, after the last block."
)(reading(after_the_cached, moved="by each layer"))

ex.mistake(
    "Each chunk is read as if it were the first: `length` never moves, or the cache is "
    "not used. Those lines were right."
)(reading(after_the_cached, moved="never"))

ex.mistake(
    "You set `length` to the size of the newest chunk. It counts all tokens that were "
    "read: that line was right."
)(reading(after_the_cached, moved="to T"))

ex.mistake(
    "`length` grows by one per chunk. It counts tokens, not chunks: that line was "
    "right."
)(reading(after_the_cached, moved="by one"))
