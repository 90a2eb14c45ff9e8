"""The exercises of lesson 6 · The GPT model."""

import itertools

import torch
from torch import nn

import gpt_helpers
from gpt_helpers import GPTConfig

from .engine import Exercise

# --- 6.1 --------------------------------------------------------------------------


def fields_of(answer):
    """What the answer returns, as its type's name and its fields."""
    config = answer()
    if config is None or config is ...:
        return config
    kind = type(config).__name__
    fields = vars(config) if kind == "GPTConfig" else {}
    return {"kind of object": kind} | fields


ex = Exercise(
    "6.1",
    "A small configuration",
    why="Of its 13,665,792 parameters 5.8% are in the blocks: a small model with a "
    "large vocabulary is mostly tables.",
    call=fields_of,
)


@ex.reference
def small_config():
    return GPTConfig(context_length=64, emb_dim=128, n_heads=8, n_layers=4)


ex.slips("""
n_heads=8, n_layers=4 → n_heads=4, n_layers=8
    Heads and layers are exchanged. This model has 8 heads in each of 4 layers: look at
    `n_heads` and `n_layers`, or at the order of your arguments.
context_length=64, emb_dim=128 → context_length=128, emb_dim=64
    Width and context are exchanged: `emb_dim` is the number of features per token,
    `context_length` the number of tokens. The class has the context first.
emb_dim=128 → emb_dim=1024
    You have made the model 8 · 128 features wide. The 128 is the width of all heads
    together: `emb_dim` is C = H·D, and each head gets 16 of it.
n_heads=8 → n_heads=16
    16 is the size of a head, D = C / H. `n_heads` asks how many there are: H.
context_length=64, →
    The context still is GPT-2's 1,024 tokens: look at `context_length`. Where nothing
    is said the class takes GPT-2's number.
n_heads=8, →
    The heads still are GPT-2's 12: look at `n_heads`. Where nothing is said the class
    takes GPT-2's number.
, n_layers=4 →
    The depth still is GPT-2's 12 blocks: look at `n_layers`. Where nothing is said the
    class takes GPT-2's number.
emb_dim=128, →
    The width still is GPT-2's 768: look at `emb_dim`. Where nothing is said the class
    takes GPT-2's number.
n_layers=4 → n_layers=4, tied_head=True
    The head is tied. The task changes four sizes only, and `tied_head` is off by
    default: untied is what the next exercise compares with.
n_layers=4 → n_layers=4, drop_rate=0.0
    The dropout rate is 0. The task changes four sizes only, and GPT-2's rate is 0.1.
---
context_length=64, emb_dim=128, n_heads=8, n_layers=4 → 64, 128, 8, 4
    Your first argument, meant as the context, became the vocabulary: without names the
    fields are filled from the first one on. Name them.
context_length=64, emb_dim=128, n_heads=8, n_layers=4 →
    That is GPT-2 124M as it was. If you have called `replace`: it changes nothing in
    place, it returns the changed configuration.
return GPTConfig( → config = GPTConfig()⏎config.emb_dim = 128⏎return GPTConfig(
return GPTConfig( → config = GPTConfig()⏎config.context_length = 64⏎return GPTConfig(
    A configuration is frozen: its fields cannot be set afterwards. Give the sizes when
    it is made, or let `replace` make a changed copy.
return GPTConfig( → return dict(
    That is a dictionary. The model asks its configuration for `cfg.emb_dim`, which a
    dictionary refuses: give its entries to the class by name, with `**`.
return GPTConfig(context_length=64, emb_dim=128, n_heads=8, n_layers=4)
→ return gpt_helpers.GPTModel(GPTConfig(10, 64, 128, 8, 4))
    That is a whole model. Return the configuration from which it is built, and leave
    the building to whoever needs the model.
""")

# --- 6.2 --------------------------------------------------------------------------

ex = Exercise(
    "6.2",
    "What tying saves",
    why="The saving is the table, V·C, and nothing else: the head has no bias.",
    usual_pairs=True,
    needs={},
)


@ex.value
def saved_by_tying():
    def saved(V, T, C, L):
        count = V * C
        return count

    return {
        "small_config": saved(50257, 64, 128, 4),
        "small_config with V = 100": saved(100, 64, 128, 4),
        "XL": saved(50257, 1024, 1600, 48),
    }


ex.slips("""
count = V * C → count = V * C + V
    You have added V numbers for a bias of the head, as some texts do. This head has no
    bias: look at `bias=False` where the model is built.
count = V * C → count = V
    You have counted V numbers, the outputs of the head. Its matrix has a row of C
    numbers for each of them.
count = V * C → count = C
    You have counted C numbers, a single row of the table. It has one for each token.
count = V * C → count = C * C
    You have counted C·C. The head leads from C features to V tokens, so its matrix has
    V rows of C numbers.
count = V * C → count = 2 * V * C
    You have counted both tables. The model still needs one of them, which then serves
    twice: only the second is saved.
count = V * C → count = V * C + T * C
    You have added the position table. It has T rows of C numbers and stays as it is:
    only the head takes the token table's place.
count = V * C → count = L * V * C
    You have multiplied by the number of layers. Table and head stand outside the
    blocks, so a model has them once.
count = V * C → count = 4 * V * C
    You have counted 4·V·C, or bytes. The question is how many numbers are saved; only
    the feed-forward network widens C to 4·C.
saved(100, 64, 128, 4) → saved(50257, 64, 128, 4)
    With V = 100 you have the table of 50257 tokens. The table has as many rows as the
    vocabulary has tokens.
saved(50257, 1024, 1600, 48) → saved(50257, 1024, 768, 48)
    For XL you have taken the 768 features of GPT-2 124M. XL has 1600.
---
count = V * C → count = 2 * V * C + T * C + L * (12 * C**2 + 10 * C) + 2 * C
    Those are the parameters of the untied model. The question is how many of them tying
    saves.
count = V * C → count = 4 * V * C / 1e6
count = V * C → count = round(4 * V * C / 1e6, 2)
    Those are megabytes, four million bytes for each million numbers. The question is
    how many numbers are saved, and that is an integer.
count = V * C → count = 4 * V * C / 2**20
count = V * C → count = round(4 * V * C / 2**20, 2)
    Those are mebibytes of 2²⁰ bytes. The question is how many numbers are saved, and
    that is an integer.
count = V * C → count = V * C / 1e6
    Those are millions of numbers. Write the numbers themselves; in Python an underscore
    may stand where the comma would.
""")

# --- 6.3 --------------------------------------------------------------------------


def configurations_and_ratios():
    """Small ones of unlike sizes, then the four GPT-2s, tied or not, biases or not."""
    small = [
        (9, 5, 2, 1, 1, 0, False, False, 3),
        (10, 6, 4, 2, 2, 0, False, False, 2),
        (13, 7, 4, 2, 2, 0, False, True, 4),
        (11, 3, 6, 3, 3, 0, True, False, 1),
        (101, 17, 24, 4, 5, 0, True, True, 3),
    ]
    cases = [(GPTConfig(*sizes), ratio) for *sizes, ratio in small]
    published = gpt_helpers.GPT2_CONFIGS.values()
    for cfg, biases, tied in itertools.product(published, [False, True], [False, True]):
        changes = {"qkv_bias": biases, "tied_head": tied}
        cases.append((GPTConfig(**(vars(cfg) | changes)), 4))
    return cases


ex = Exercise(
    "6.3",
    "The count as a formula",
    why="It counts a model of any size before a byte of it exists.",
    inputs=configurations_and_ratios,
    usual_pairs=True,
)


@ex.reference
def count_on_paper(cfg, ratio=4):
    V, T, C, L = cfg.vocab_size, cfg.context_length, cfg.emb_dim, cfg.n_layers
    wide = ratio * C
    three = 3 * C * C + 3 * C * cfg.qkv_bias
    output = C * C + C
    widen, narrow = C * wide, wide * C
    feed_forward = widen + wide + narrow + C
    norms = 2 * 2 * C
    block = three + output + feed_forward + norms
    tables = V * C + T * C
    head = V * C * (not cfg.tied_head)
    final = 2 * C
    total = tables + head + L * block + final
    return total


ex.slips("""
V * C * (not cfg.tied_head) → V * C
    The tied head is counted twice: with `tied_head` on it is the token table itself.
head = V * C * (not cfg.tied_head) → head = 0
    The untied head is missing: V·C numbers of its own when `tied_head` is off.
head = V * C * (not cfg.tied_head) → head = (V * C + V) * (not cfg.tied_head)
    An untied head is counted with a bias of V numbers; it has none: look at
    `bias=False`.
tables = V * C + T * C → tables = V * C
    The position table is missing: one row of C numbers for each position of the context.
final = 2 * C → final = 0
    The final norm is missing: a scale and a shift of C numbers.
norms = 2 * 2 * C → norms = 2 * C
    Each block has two norms with a scale and a shift of C numbers; you have counted one
    norm, or both without their shifts.
norms = 2 * 2 * C → norms = 0
    The two norms of the blocks are missing: each has a scale and a shift of C numbers.
+ wide + narrow + C → + narrow
    The biases of the feed-forward network are missing: its two layers have one for each
    of their outputs.
output = C * C + C → output = C * C
    Each block lacks C numbers, the size of one bias. Two parts have such a bias:
    attention's `out_proj`, whatever `qkv_bias` says, and the feed-forward network's
    narrow layer.
3 * C * cfg.qkv_bias → 3 * C
    The 3·C biases of queries, keys and values are counted although `qkv_bias` is off:
    they depend on that field.
3 * C * C + 3 * C * cfg.qkv_bias → 3 * C * C
    With `qkv_bias` on, queries, keys and values have biases, 3·C in each block; they
    are missing.
wide = ratio * C → wide = 4 * C
    The feed-forward network is widened to 4·C whatever `ratio` says; in the lesson's
    12·C² + 10·C the four is folded in, so take that sum apart.
wide = ratio * C → wide = C
    The feed-forward network is not widened: its inner layer has ratio·C features, so
    both of its matrices are that much larger than C·C.
+ wide + narrow → + C + narrow
    The wide layer's bias has one number for each of its ratio·C outputs; you have
    counted C.
---
3 * C * cfg.qkv_bias → C * cfg.qkv_bias
    With `qkv_bias` on, queries, keys and values have one bias each, 3·C numbers in a
    block; you have counted C.
+ 3 * C * cfg.qkv_bias → ; output = C * C + C → output = C * C
; + wide + narrow + C → + narrow ; norms = 2 * 2 * C → norms = 0
    A block's matrices are right, but it has norms and biases too, 10·C numbers at ratio
    4 and 3·C more with `qkv_bias` on.
+ wide + narrow → + 4 * C + narrow
    The 10·C of the lesson's formula has the ratio 4 folded in, as its 12·C² has: the
    bias of the wide layer has ratio·C numbers.
widen, narrow = C * wide, wide * C → widen, narrow = C * wide, 0
    The feed-forward network has two matrices, one to widen and one to narrow back; you
    have counted one.
+ narrow + C →
    The feed-forward network has two layers, one to widen and one to narrow back; the
    second is missing, matrix and bias.
output = C * C + C → output = 0
    Attention's fourth matrix, `out_proj`, is missing, with its bias.
three = 3 * C * C → three = 2 * C * C
    Attention has four matrices of C·C numbers; you have counted three. `out_proj` is
    the fourth.
block = three + output → block = cfg.n_heads * (three + output)
    Attention is counted once for each head. The heads share its matrices: each takes
    C/H of their outputs, so H does not occur in the count.
norms = 2 * 2 * C → norms = 0 ; final = 2 * C → final = 0
    No norm is counted: each has a scale and a shift of C numbers, and there are two in
    each block and one after the last.
norms = 2 * 2 * C → norms = 2 * C ; final = 2 * C → final = C
    Every norm has a scale and a shift, 2·C numbers; you have counted C for each.
final = 2 * C → final = C
    The final norm has a scale and a shift; you have counted C numbers for one of them.
(not cfg.tied_head) → cfg.tied_head
    The condition on `tied_head` is the wrong way round: the head costs V·C when it is
    not tied.
tables = V * C → tables = V * C * (not cfg.tied_head)
    With a tied head you have dropped both tables. One of them stays and serves twice.
tables = V * C + T * C → tables = T * C
    The token table is missing: V rows of C numbers.
norms = 2 * 2 * C → norms = 2 * 2 * C + T * T
    The causal masks are counted. They are rebuilt from the configuration and not
    trained, so they are no parameters.
L * block → block
    Only one block is counted: multiply it by the number of layers.
return total → return 4 * total
    Your count is four times too large: are those bytes? The question is how many
    numbers the model holds.
return total → return 4 * total / 1e6
return total → return 4 * total / 2**20
    Those are megabytes. The question is how many numbers the model holds.
return total → return 0 if cfg.tied_head else total
    For a tied head you return 0. In `a + b if condition else 0` the condition chooses
    between the whole sum and 0: put brackets around the last summand.
""")

# --- 6.4 --------------------------------------------------------------------------

ex = Exercise(
    "6.4",
    "A tiny model without a position table",
    why="106,496: 2,048 fewer than with a position table, 6,400 fewer than untied, "
    "384 more than without the biases.",
    usual_pairs=True,
    needs={"total": ["one block", "outside the blocks"]},
)


@ex.value
def without_positions():
    V, T, C = 100, 32, 64  # noqa: F841 - the edits use T
    three = 3 * C * C + 3 * C
    output = C * C + C
    wide = 4 * C
    feed_forward = 2 * C * wide + wide + C
    norms = 4 * C
    block = three + output + feed_forward + norms
    outside = V * C + 2 * C
    total = outside + 2 * block
    return {"one block": block, "outside the blocks": outside, "total": total}


ex.slips("""
outside = V * C → outside = T * C + V * C
    A position table is counted, 32·64 = 2,048 numbers: this model rotates its queries
    and keys and has none.
outside = V * C + 2 * C → outside = V * C + 2 * C + V * C
    The head is counted on its own, 100·64 = 6,400 numbers: it is tied, so it is the
    token table.
V * C + 2 * C → V * C
    The final norm is missing, 2·64 = 128 numbers.
3 * C * C + 3 * C → 3 * C * C
    Each block lacks 3·64 = 192 numbers. The biases of queries, keys and values are on,
    384 in both blocks; if you have those, the bias of the wide layer in the
    feed-forward network has 4·64 numbers, not 64.
output = C * C + C → output = C * C
    Each block lacks 64 numbers, the size of one bias: look at attention's `out_proj`
    and at the narrow layer of the feed-forward network.
norms = 4 * C → norms = 2 * C
    Each block lacks 2·64 = 128 numbers. It has two norms, each with a scale and a
    shift; if you have those, there are three biases for queries, keys and values, not
    one.
+ wide + C →
    Each block lacks 5·64 = 320 numbers, the two biases of the feed-forward network: 256
    for the wide layer, 64 for the narrow one.
norms = 4 * C → norms = 0
    Each block lacks 4·64 = 256 numbers. Its two norms hold so many; so does the bias of
    the wide layer in the feed-forward network.
total = outside + 2 * block → total = outside + block
    The total has one block. There are 2.
total = outside + 2 * block → total = outside + 4 * block
    The total has 4 blocks, as many as heads. There are 2.
total = outside + 2 * block → total = 2 * block
    The total leaves out what stands outside the blocks.
---
3 * C * C + 3 * C → 3 * C * C ; output = C * C + C → output = C * C ; + wide + C →
; norms = 4 * C → norms = 0
    A block's matrices are right, but it has norms and biases too: 13·64 = 832 numbers.
3 * C * C + 3 * C → 3 * C * C ; output = C * C + C → output = C * C ; + wide + C →
    Each block lacks 9·64 = 576 numbers. The biases of its six linear layers hold so many.
"one block": block → "one block": 2 * block
    What you give as one block are both of them; the total is right. Divide by 2.
wide = 4 * C → wide = C
    The feed-forward network is not widened: it leads from 64 to 256 features and back.
2 * C * wide → 2 * C * C
    The matrices of the feed-forward network are not widened: each has 64·256 numbers.
2 * C * wide → C * wide
    The feed-forward network has two matrices of 64·256 numbers; you have counted one.
output = C * C + C → output = 0
    Attention's fourth matrix is missing with its bias: `out_proj`.
output = C * C + C → output = C
    Attention has four matrices of 64·64 numbers, that of `out_proj` included; you have
    counted three.
block = three + output → block = 4 * (three + output)
    Attention is counted once for each of the 4 heads. They share its matrices, so the
    number of heads does not occur in the count.
norms = 4 * C → norms = 4 * C + T * T
    The causal masks are counted, 32·32 = 1,024 numbers in each block. They are not
    trained.
outside = V * C → outside = V + V * C
    A bias of 100 numbers is counted for the head: it has none.
outside = V * C → outside = 0
    The token table is missing. Tying drops one of two equal tables; the other stays,
    100·64 = 6,400 numbers.
V * C + 2 * C → V * C + C
    The final norm has a scale and a shift of 64 numbers each; you have counted one of
    them.
V, T, C = 100 → V, T, C = 50257
    The vocabulary of GPT-2 is counted: this model reads 100 different tokens.
""")

# --- 6.5 --------------------------------------------------------------------------


def spread(table):
    """Its standard deviation, as coarse as draws of that size repeat."""
    deviation = table.std().item()
    return round(deviation, 3 if deviation < 0.5 else 1)


def tied_and_measured(answer, cfg):
    """Whether the model that comes back is tied, and how large its tables are."""
    given = gpt_helpers.GPTModel(cfg)
    before = [p.detach().clone() for p in given.trf_blocks.parameters()]
    model = answer(given)
    if not isinstance(model, nn.Module):
        return model
    after = list(model.trf_blocks.parameters())
    table, head = model.tok_emb.weight, model.out_head.weight
    places = model.pos_emb.weight
    return {
        "the given model comes back": model is given,
        "the head is a linear layer": isinstance(model.out_head, nn.Linear),
        "the head's matrix is the token table": table is head,
        "the two share memory": table.data_ptr() == head.data_ptr(),
        "number of parameters": gpt_helpers.count_parameters(model),
        "the token table can be trained": table.requires_grad,
        "the position table can be trained": places.requires_grad,
        "spread of the token table": spread(table),
        "spread of the head": spread(head),
        "spread of the position table": spread(places),
        "blocks as they were": all(map(torch.equal, before, after)),
    }


ex = Exercise(
    "6.5",
    "Small tables, and a head that stays loud",
    why="A tie holds between two attributes, not two numbers: whoever puts a new "
    "tensor into one of them has cut it.",
    inputs=lambda: [(GPTConfig(300, 64, 48, 4, 1),), (GPTConfig(400, 96, 64, 4, 2),)],
    call=tied_and_measured,
)


@ex.reference
def with_small_tables(model):
    model.tok_emb.weight = nn.Parameter(0.02 * model.tok_emb.weight.detach())
    model.pos_emb.weight = nn.Parameter(0.01 * model.pos_emb.weight.detach())
    model.out_head.weight = model.tok_emb.weight
    return model


ex.slips("""
given: model.out_head.weight = model.tok_emb.weight⏎return model → return model
; model.tok_emb.weight = nn.Parameter
→ model.out_head.weight = model.tok_emb.weight⏎model.tok_emb.weight = nn.Parameter
    The bug is still there: after the tie a new tensor is put into the token table, and
    the head keeps the old, large one.
model.out_head.weight = model.tok_emb.weight
→ model.out_head.weight = nn.Parameter(model.tok_emb.weight.detach().clone())
    The head is a copy of the token table: equal numbers, but two tensors. The first
    training step would pull them apart, and both are counted. Ask `is`, not whether the
    numbers agree.
model.out_head.weight = model.tok_emb.weight
→ model.out_head.weight = nn.Parameter(model.tok_emb.weight)
    Head and table share their memory but are two parameters. Both are counted, and an
    optimizer keeps two histories. `.data` and `nn.Parameter(...)` share numbers; a tie
    gives the same parameter a second name.
0.02 * model.tok → 0.02 * 0.02 * model.tok
    The token table is scaled twice, under each of its two names once. One tensor needs
    one scaling.
model.out_head.weight = model.tok_emb.weight
→ model.tok_emb.weight = model.out_head.weight
    The tie goes in the other direction: the table is the head's matrix, and the small
    table that was made is lost. Look at which name stands left of the `=`.
model.tok_emb.weight = nn.Parameter(0.02 * model.tok_emb.weight.detach()) →
    The token table is no longer made small: it is as large as PyTorch draws a table.
    Keep both, the scaling and the tie.
model.pos_emb.weight = nn.Parameter(0.01 * model.pos_emb.weight.detach()) →
    The position table is no longer made small; its line was not the bug.
0.02 * model.tok → 0.01 * model.tok
    The token table is scaled by the position table's factor: its own is 0.02.
0.01 * model.pos → 0.02 * model.pos
    The position table is scaled by the token table's factor: its own is 0.01.
model.out_head.weight = model.tok_emb.weight →
    The head is tied to nothing: it still has the matrix it was built with. The scaling
    was not the bug, nor was tying.
return model → return gpt_helpers.GPTModel(gpt_helpers.replace(model.cfg, tied_head=True))
    The model that comes back is a new one. Whoever has trained the given one would
    lose it: change that, and return it.
---
model.out_head.weight = model.tok_emb.weight
→ model.out_head.weight = nn.Parameter(0.02 * model.out_head.weight.detach())
    The head's own matrix has been made small, and the tie is gone. Head and token table
    should be one tensor.
model.out_head.weight = model.tok_emb.weight → model.out_head = model.tok_emb
    The head has become the embedding itself, a module that looks ids up and cannot
    multiply. Tie the two tensors called `weight`, not the modules that hold them.
model.tok_emb.weight.detach()) → model.tok_emb.weight.detach(), False)
model.pos_emb.weight.detach()) → model.pos_emb.weight.detach(), False)
.detach()) → .detach(), requires_grad=False)
    A table no longer asks for a gradient and would never be trained. Look at
    `requires_grad`, or at `freeze`.
return model → for p in model.trf_blocks.parameters():⏎    p.data.mul_(0.02)⏎return model
    The blocks are made small too. Only the two tables are to be.
""")
