"""The exercises of lesson 6 · The GPT model."""

import itertools

import torch
from torch import nn

import gpt_helpers

from .engine import Exercise


def fields_of(answer):
    """What the answer returns, as its type's name and its fields."""
    config = answer()
    if config is None or config is ...:
        return config
    kind = type(config).__name__
    return {"type": kind} | (vars(config) if kind == "GPTConfig" else {})


def small_config(**changes):
    sizes = {"context_length": 64, "emb_dim": 128, "n_heads": 8, "n_layers": 4}
    return gpt_helpers.GPTConfig(**(sizes | changes))


ex = Exercise(
    "6.1",
    "A small configuration",
    why="Of its 13,665,792 parameters 5.8% are in the blocks: a small model with a "
    "large vocabulary is mostly tables.",
    call=fields_of,
)


@ex.reference
def _():
    return small_config()


@ex.mistake(
    "Heads and layers are exchanged. This model has 8 heads in each of 4 layers: "
    "look at `n_heads` and `n_layers`, or at the order of your arguments."
)
def _():
    return small_config(n_heads=4, n_layers=8)


@ex.mistake(
    "Width and context are exchanged: `emb_dim` is the number of features per token, "
    "`context_length` the number of tokens. The class has the context first."
)
def _():
    return small_config(context_length=128, emb_dim=64)


@ex.mistake(
    "You have made the model 8 · 128 features wide. The 128 is the width of all heads "
    "together: `emb_dim` is C = H·D, and each head gets 16 of it."
)
def _():
    return small_config(emb_dim=1024)


@ex.mistake(
    "16 is the size of a head, D = C / H. `n_heads` asks how many there are: H."
)
def _():
    return small_config(n_heads=16)


@ex.mistake(
    "64 is the context, and you have made the features 64 as well. `emb_dim` is C, the "
    "width of all heads together."
)
def _():
    return small_config(emb_dim=64)


@ex.mistake(
    "The context still is GPT-2's 1,024 tokens: look at `context_length`. Where "
    "nothing is said the class takes GPT-2's number."
)
def _():
    return small_config(context_length=1024)


@ex.mistake(
    "The depth still is GPT-2's 12 blocks: look at `n_layers`. Where nothing is said "
    "the class takes GPT-2's number."
)
def _():
    return small_config(n_layers=12)


@ex.mistake(
    "The width still is GPT-2's 768: look at `emb_dim`. Where nothing is said the "
    "class takes GPT-2's number."
)
def _():
    return small_config(emb_dim=768)


@ex.mistake(
    "Your first argument, meant as the context, became the vocabulary: without names "
    "the fields are filled from the first one on. Name them."
)
def _():
    return gpt_helpers.GPTConfig(64, 128, 8, 4)


@ex.mistake(
    "The vocabulary has 100 tokens; the task leaves it as GPT-2's tokenizer has it. "
    "Look at `vocab_size`."
)
def _():
    return small_config(vocab_size=100)


@ex.mistake(
    "The head is tied. The task changes four sizes only, and `tied_head` is off by "
    "default: untied is what the next exercise compares with."
)
def _():
    return small_config(tied_head=True)


@ex.mistake(
    "That is GPT-2 124M as it was. If you have called `replace`: it changes nothing in "
    "place, it returns the changed configuration."
)
def _():
    return gpt_helpers.GPT_CONFIG_124M


@ex.mistake(
    "A configuration is frozen: its fields cannot be set afterwards. Give the sizes "
    "when it is made, or let `replace` make a changed copy."
)
def _():
    config = gpt_helpers.GPTConfig()
    config.emb_dim = 128
    return config


@ex.mistake(
    "That is a dictionary. The model asks its configuration for `cfg.emb_dim`, which "
    "a dictionary refuses: give its entries to the class by name, with `**`."
)
def _():
    return {"emb_dim": 128}


@ex.mistake(
    "That is a whole model. Return the configuration from which it is built, and "
    "leave the building to whoever needs the model."
)
def _():
    return gpt_helpers.GPTModel(small_config(vocab_size=10, n_layers=1))


@ex.mistake(
    "That is the class itself. Call it with the sizes: a configuration is one object "
    "of that class."
)
def _():
    return gpt_helpers.GPTConfig


# What a V·C table means for the three models that exercise 6.2 asks about.
def for_each_tied_model(count):
    sizes = {
        "small_config": (50257, 64, 128, 4),
        "small_config with V = 100": (100, 64, 128, 4),
        "XL": (50257, 1024, 1600, 48),
    }
    return {name: count(*numbers) for name, numbers in sizes.items()}


ex = Exercise(
    "6.2",
    "What tying saves",
    why="The saving is the table, V·C, and nothing else: the head has no bias.",
)
ex.reference(for_each_tied_model(lambda V, T, C, L: V * C))
ex.mistake(
    "You have added V numbers for a bias of the head, as some texts do. This head has "
    "no bias: look at `bias=False` where the model is built."
)(for_each_tied_model(lambda V, T, C, L: V * C + V))
ex.mistake(
    "You have added a bias of C numbers. A head's bias would have one number for each "
    "token, and this head has none: look at `bias=False` where the model is built."
)(for_each_tied_model(lambda V, T, C, L: V * C + C))
ex.mistake(
    "You have counted C·C. The head leads from C features to V tokens, so its matrix "
    "has V rows of C numbers."
)(for_each_tied_model(lambda V, T, C, L: C * C))
ex.mistake(
    "You have counted V·V. The head leads from C features to V tokens, so its matrix "
    "has V rows of C numbers."
)(for_each_tied_model(lambda V, T, C, L: V * V))
ex.mistake(
    "You have counted both tables. The model still needs one of them, which then "
    "serves twice: only the second is saved."
)(for_each_tied_model(lambda V, T, C, L: 2 * V * C))
ex.mistake(
    "You have added the position table. It has T rows of C numbers and stays as it "
    "is: only the head takes the token table's place."
)(for_each_tied_model(lambda V, T, C, L: V * C + T * C))
ex.mistake(
    "You have multiplied by the number of layers. Table and head stand outside the "
    "blocks, so a model has them once."
)(for_each_tied_model(lambda V, T, C, L: L * V * C))
ex.mistake(
    "You have counted 4·V·C, or bytes. The question is how many numbers are saved; "
    "only the feed-forward network widens C to 4·C."
)(for_each_tied_model(lambda V, T, C, L: 4 * V * C))
ex.mistake(
    "That is what the tied model still holds. The question is how many numbers it has "
    "fewer than the untied one."
)(
    for_each_tied_model(
        lambda V, T, C, L: V * C + T * C + L * (12 * C**2 + 10 * C) + 2 * C
    )
)
ex.mistake(
    "Those are the parameters of the untied model. The question is how many of them "
    "tying saves."
)(
    for_each_tied_model(
        lambda V, T, C, L: 2 * V * C + T * C + L * (12 * C**2 + 10 * C) + 2 * C
    )
)
ex.mistake(
    "Those are megabytes, four million bytes for each million numbers. The question is "
    "how many numbers are saved, and that is an integer."
)(for_each_tied_model(lambda V, T, C, L: 4 * V * C / 1e6))
ex.mistake(
    "Those are megabytes, rounded. The question is how many numbers are saved, and "
    "that is an integer: it needs no unit."
)(for_each_tied_model(lambda V, T, C, L: round(4 * V * C / 1e6, 2)))
ex.mistake(
    "Those are mebibytes of 2²⁰ bytes. The question is how many numbers are saved, "
    "and that is an integer."
)(for_each_tied_model(lambda V, T, C, L: 4 * V * C / 2**20))
ex.mistake(
    "Those are mebibytes, rounded. The question is how many numbers are saved, and "
    "that is an integer: it needs no unit."
)(for_each_tied_model(lambda V, T, C, L: round(4 * V * C / 2**20, 2)))
ex.mistake(
    "Those are millions of numbers. Write the numbers themselves; in Python an "
    "underscore may stand where the comma would."
)(for_each_tied_model(lambda V, T, C, L: V * C / 1e6))
ex.mistake(
    "Your numbers are negative. The question is how many numbers are saved: what the "
    "untied model has more than the tied one."
)(for_each_tied_model(lambda V, T, C, L: -V * C))


def configurations_and_ratios():
    """Small ones of unlike sizes, then the four GPT-2s, tied or not, biases or not."""
    small = [
        (9, 5, 2, 1, 1, 0, False, False, 3),
        (10, 6, 4, 2, 2, 0, False, False, 2),
        (13, 7, 4, 2, 2, 0, False, True, 4),
        (11, 3, 6, 3, 3, 0, True, False, 1),
        (101, 17, 24, 4, 5, 0, True, True, 3),
    ]
    cases = [(gpt_helpers.GPTConfig(*sizes), ratio) for *sizes, ratio in small]
    published = gpt_helpers.GPT2_CONFIGS.values()
    for cfg, biases, tied in itertools.product(published, [False, True], [False, True]):
        changes = {"qkv_bias": biases, "tied_head": tied}
        cases.append((gpt_helpers.GPTConfig(**(vars(cfg) | changes)), 4))
    return cases


def name_slips(exercise, slips, usual, answer_with):
    """Register each slip, and each two of the first ``usual`` ones made at once.

    ``answer_with(made)`` is the answer that contains the slips of the list ``made``.
    Pairs that come to the same as something named already are left out.
    """

    def mark(answer):
        return str(
            [answer(*arguments) for arguments in exercise.inputs()]
            if callable(answer)
            else answer
        )

    named = {mark(exercise.right)}
    for message, slip in slips.items():
        exercise.mistake(message)(answer_with([slip]))
        named.add(mark(answer_with([slip])))
    for (first, a), (second, b) in itertools.combinations(
        list(slips.items())[:usual], 2
    ):
        answer = answer_with([a, b])
        if mark(answer) not in named:
            named.add(mark(answer))
            exercise.mistake(f"Two slips at once. {first} {second}")(answer)


def slips_in_a_count():
    """{what is wrong: what it adds to the right count}, the usual ones first."""
    blocks = {
        "Each block has two norms with a scale and a shift of C numbers; you have "
        "counted one norm, or both without their shifts.": (
            lambda C, r, H, biases: -2 * C
        ),
        "The biases of the feed-forward network are missing: its two layers have one "
        "for each of their outputs.": lambda C, r, H, biases: -(r + 1) * C,
        "Each block lacks C numbers, the size of one bias. Two parts have such a bias: "
        "attention's `out_proj`, whatever `qkv_bias` says, and the feed-forward "
        "network's narrow layer.": lambda C, r, H, biases: -C,
        "The 3·C biases of queries, keys and values are counted although `qkv_bias` "
        "is off: they depend on that field.": (
            lambda C, r, H, biases: 3 * C * (not biases)
        ),
        "With `qkv_bias` on, queries, keys and values have biases, 3·C in each block; "
        "they are missing.": lambda C, r, H, biases: -3 * C * biases,
        "The feed-forward network is widened to 4·C whatever `ratio` says; in the "
        "lesson's 12·C² + 10·C the four is folded in, so take that sum apart.": (
            lambda C, r, H, biases: (4 - r) * (2 * C**2 + C)
        ),
        "The feed-forward network is not widened: its inner layer has ratio·C "
        "features, so both of its matrices are that much larger than C·C.": (
            lambda C, r, H, biases: (1 - r) * (2 * C**2 + C)
        ),
        "The wide layer's bias has one number for each of its ratio·C outputs; you "
        "have counted C.": lambda C, r, H, biases: (1 - r) * C,
        "With `qkv_bias` on, queries, keys and values have one bias each, 3·C numbers "
        "in a block; you have counted C.": (lambda C, r, H, biases: -2 * C * biases),
    }
    rare = {
        "A block's matrices are right, but it has norms and biases too, 10·C numbers "
        "at ratio 4 and 3·C more with `qkv_bias` on.": (
            lambda C, r, H, biases: -(r + 6 + 3 * biases) * C
        ),
        "No bias is counted in the blocks. All their linear layers have one, but for "
        "queries, keys and values, where it depends on `qkv_bias`.": (
            lambda C, r, H, biases: -(r + 2 + 3 * biases) * C
        ),
        "The 10·C of the lesson's formula has the ratio 4 folded in, as its 12·C² has: "
        "the bias of the wide layer has ratio·C numbers.": (
            lambda C, r, H, biases: (4 - r) * C
        ),
        "The bias of `out_proj` is counted only with `qkv_bias` on. That field is "
        "about queries, keys and values; `out_proj` has its bias always.": (
            lambda C, r, H, biases: -C * (not biases)
        ),
        "With `qkv_bias` on you have counted one bias too many in each block: it adds "
        "three, and `out_proj` has its own anyway.": (
            lambda C, r, H, biases: C * biases
        ),
        "The two norms of the blocks are missing: each has a scale and a shift of C "
        "numbers.": lambda C, r, H, biases: -4 * C,
        "The matrices of the feed-forward network are not widened, its biases are: "
        "both matrices have C·ratio·C numbers.": (
            lambda C, r, H, biases: (1 - r) * 2 * C**2
        ),
        "The feed-forward network has two matrices, one to widen and one to narrow "
        "back; you have counted one.": lambda C, r, H, biases: -r * C**2,
        "The feed-forward network has two layers, one to widen and one to narrow "
        "back; the second is missing, matrix and bias.": (
            lambda C, r, H, biases: -r * C**2 - C
        ),
        "Both biases of the feed-forward network are counted as wide; the second "
        "layer has C outputs.": lambda C, r, H, biases: (r - 1) * C,
        "You have squared ratio·C. The matrices lead from C to ratio·C and back, so "
        "each has ratio·C² numbers.": lambda C, r, H, biases: 2 * (r**2 - r) * C**2,
        "Attention's fourth matrix, `out_proj`, is missing, with its bias.": (
            lambda C, r, H, biases: -(C**2) - C
        ),
        "Attention has four matrices of C·C numbers; you have counted three. "
        "`out_proj` is the fourth.": lambda C, r, H, biases: -(C**2),
        "Attention is counted once for each head. The heads share its matrices: each "
        "takes C/H of their outputs, so H does not occur in the count.": (
            lambda C, r, H, biases: (H - 1) * (4 * C**2 + C + 3 * C * biases)
        ),
        "The matrices of queries, keys and values are counted once for each head. The "
        "heads share them, so H does not occur in the count.": (
            lambda C, r, H, biases: (H - 1) * 3 * C**2
        ),
        "Queries, keys and values are counted for a single head of C/H features. All "
        "heads together have C, so H does not occur in the count.": (
            lambda C, r, H, biases: 3 * C * (C // H - C)
        ),
    }

    def in_every_block(slip):
        return lambda cfg, r: (
            cfg.n_layers * slip(cfg.emb_dim, r, cfg.n_heads, cfg.qkv_bias)
        )

    outside = {
        "The untied head is missing: V·C numbers of its own when `tied_head` is off.": (
            lambda cfg, r: -cfg.vocab_size * cfg.emb_dim * (not cfg.tied_head)
        ),
        "The tied head is counted twice: with `tied_head` on it is the token table "
        "itself.": lambda cfg, r: cfg.vocab_size * cfg.emb_dim * cfg.tied_head,
        "A bias of V numbers is counted for the head, which has none: look at "
        "`bias=False`.": lambda cfg, r: cfg.vocab_size,
        "The position table is missing: one row of C numbers for each position of the "
        "context.": lambda cfg, r: -cfg.context_length * cfg.emb_dim,
        "The final norm is missing: a scale and a shift of C numbers.": (
            lambda cfg, r: -2 * cfg.emb_dim
        ),
    }
    outside_rare = {
        "No norm is counted: each has a scale and a shift of C numbers, and there are "
        "two in each block and one after the last.": lambda cfg, r: (
            -(4 * cfg.n_layers + 2) * cfg.emb_dim
        ),
        "The norms of one block are counted, and those of the others are missing: "
        "multiply them by the number of layers as well.": lambda cfg, r: (
            -(cfg.n_layers - 1) * 4 * cfg.emb_dim
        ),
        "The biases of queries, keys and values are counted for one block: multiply "
        "them by the number of layers as well.": lambda cfg, r: (
            -(cfg.n_layers - 1) * 3 * cfg.emb_dim * cfg.qkv_bias
        ),
        "An untied head is counted with a bias of V numbers; it has none: look at "
        "`bias=False`.": lambda cfg, r: cfg.vocab_size * (not cfg.tied_head),
        "The condition on `tied_head` is the wrong way round: the head costs V·C when "
        "it is not tied.": lambda cfg, r: (
            cfg.vocab_size * cfg.emb_dim * (2 * cfg.tied_head - 1)
        ),
        "With a tied head you have dropped both tables. One of them stays and serves "
        "twice.": lambda cfg, r: -cfg.vocab_size * cfg.emb_dim * cfg.tied_head,
        "The token table is missing: V rows of C numbers.": (
            lambda cfg, r: -cfg.vocab_size * cfg.emb_dim
        ),
        "The position table is counted as one number for each position; each has a "
        "row of C.": lambda cfg, r: cfg.context_length * (1 - cfg.emb_dim),
        "The position table is counted as large as the token table: it has a row for "
        "each position of the context, not for each token of the vocabulary.": (
            lambda cfg, r: (cfg.vocab_size - cfg.context_length) * cfg.emb_dim
        ),
        "The final norm is counted with every block. There is one, after the last.": (
            lambda cfg, r: (cfg.n_layers - 1) * 2 * cfg.emb_dim
        ),
        "The final norm has a scale and a shift; you have counted C numbers for one "
        "of them.": lambda cfg, r: -cfg.emb_dim,
        "Every norm has a scale and a shift, 2·C numbers; you have counted C for "
        "each.": lambda cfg, r: -(2 * cfg.n_layers + 1) * cfg.emb_dim,
        "The position table is counted in every block. It is added once, before the "
        "first.": lambda cfg, r: (cfg.n_layers - 1) * cfg.context_length * cfg.emb_dim,
        "The causal masks are counted. They are rebuilt from the configuration and "
        "not trained, so they are no parameters.": lambda cfg, r: (
            cfg.n_layers * cfg.context_length**2
        ),
        "Only one block is counted: multiply it by the number of layers.": (
            lambda cfg, r: (
                (1 - cfg.n_layers)
                * cfg.emb_dim
                * ((4 + 2 * r) * cfg.emb_dim + 6 + r + 3 * cfg.qkv_bias)
            )
        ),
    }
    usual = outside | {said: in_every_block(slip) for said, slip in blocks.items()}
    seldom = {said: in_every_block(slip) for said, slip in rare.items()}
    return usual | seldom | outside_rare, len(usual)


ex = Exercise(
    "6.3",
    "The count as a formula",
    why="It counts a model of any size before a byte of it exists.",
    inputs=configurations_and_ratios,
)


@ex.reference
def count_by_formula(cfg, ratio=4):
    V, C = cfg.vocab_size, cfg.emb_dim
    attention = 4 * C**2 + C + 3 * C * cfg.qkv_bias
    feed_forward = 2 * ratio * C**2 + (ratio + 1) * C
    block = attention + feed_forward + 4 * C
    tables = V * C + cfg.context_length * C + V * C * (not cfg.tied_head)
    return tables + cfg.n_layers * block + 2 * C


name_slips(
    ex,
    *slips_in_a_count(),
    lambda made: (
        lambda cfg, ratio=4: (
            count_by_formula(cfg, ratio) + sum(slip(cfg, ratio) for slip in made)
        )
    ),
)
ex.mistake(
    "Those are bytes, four for each number. The question is how many numbers the "
    "model holds."
)(lambda cfg, ratio=4: 4 * count_by_formula(cfg, ratio))

ex.mistake(
    "For a tied head you return 0. In `a + b if condition else 0` the condition "
    "chooses between the whole sum and 0: put brackets around the last summand."
)(lambda cfg, ratio=4: 0 if cfg.tied_head else count_by_formula(cfg, ratio))


def count_without_positions(made=()):
    """The answer to 6.4 with slips: what they add outside the blocks and in each."""
    outside = 100 * 64 + 2 * 64 + sum(added for added, _ in made)
    block = 12 * 64**2 + 13 * 64 + sum(added for _, added in made)
    total = outside + 2 * block
    return {"one block": block, "outside the blocks": outside, "total": total}


ex = Exercise(
    "6.4",
    "A tiny model without a position table",
    why="106,496: 2,048 fewer than with a position table, 6,400 fewer than untied, "
    "384 more than without the biases.",
)
ex.reference(count_without_positions())
name_slips(
    ex,
    {
        "A position table is counted, 32·64 = 2,048 numbers: this model rotates its "
        "queries and keys and has none.": (32 * 64, 0),
        "The head is counted on its own, 100·64 = 6,400 numbers: it is tied, so it is "
        "the token table.": (100 * 64, 0),
        "A bias of 100 numbers is counted for the head: it has none.": (100, 0),
        "The final norm is missing, 2·64 = 128 numbers.": (-2 * 64, 0),
        "Each block lacks 3·64 = 192 numbers. The biases of queries, keys and values "
        "are on, 384 in both blocks; if you have those, the bias of the wide layer in "
        "the feed-forward network has 4·64 numbers, not 64.": (0, -3 * 64),
        "Each block lacks 64 numbers, the size of one bias: look at attention's "
        "`out_proj` and at the narrow layer of the feed-forward network.": (0, -64),
        "Each block lacks 2·64 = 128 numbers. It has two norms, each with a scale and "
        "a shift; if you have those, there are three biases for queries, keys and "
        "values, not one.": (0, -2 * 64),
        "Each block lacks 5·64 = 320 numbers, the two biases of the feed-forward "
        "network: 256 for the wide layer, 64 for the narrow one.": (0, -5 * 64),
        "Each block lacks 4·64 = 256 numbers. Its two norms hold so many; so does the "
        "bias of the wide layer in the feed-forward network.": (0, -4 * 64),
        "A block's matrices are right, but it has norms and biases too: 13·64 = 832 "
        "numbers.": (0, -13 * 64),
        "A block has 13·64 numbers beside its matrices, 4·64 of them in its two norms "
        "and the rest in the biases of its six linear layers; those are missing.": (
            0,
            -9 * 64,
        ),
        "The biases of queries, keys and values are counted for one head of 16 "
        "features. All 4 heads together have 64.": (0, -3 * 48),
        "The feed-forward network is not widened: it leads from 64 to 256 features "
        "and back.": (0, -6 * 64**2 - 3 * 64),
        "The matrices of the feed-forward network are not widened: each has 64·256 "
        "numbers.": (0, -6 * 64**2),
        "Attention's fourth matrix is missing with its bias: `out_proj`.": (
            0,
            -(64**2) - 64,
        ),
        "Attention has four matrices of 64·64 numbers, that of `out_proj` included; "
        "you have counted three.": (0, -(64**2)),
        "The feed-forward network has two matrices of 64·256 numbers; you have "
        "counted one.": (0, -4 * 64**2),
        "Attention is counted once for each of the 4 heads. They share its matrices, "
        "so the number of heads does not occur in the count.": (
            0,
            3 * (4 * 64**2 + 4 * 64),
        ),
        "The matrices of queries, keys and values are counted once for each of the 4 "
        "heads. They share them, so the number of heads does not occur in the count.": (
            0,
            9 * 64**2,
        ),
        "Queries, keys and values are counted for one head of 16 features. All 4 heads "
        "together have 64.": (0, 3 * 64 * (16 - 64)),
        "The causal masks are counted, 32·32 = 1,024 numbers in each block. They are "
        "not trained.": (0, 32 * 32),
        "The rotation is counted, its 32·16 sines and cosines. They follow from the "
        "position and are not trained.": (32 * 16, 0),
        "The token table is missing. Tying drops one of two equal tables; the other "
        "stays, 100·64 = 6,400 numbers.": (-100 * 64, 0),
        "The final norm has a scale and a shift of 64 numbers each; you have counted "
        "one of them.": (-64, 0),
        "The vocabulary of GPT-2 is counted: this model reads 100 different tokens.": (
            (50257 - 100) * 64,
            0,
        ),
    },
    9,
    count_without_positions,
)
ex.mistake(
    "The parts are right, the total is not: there are 2 blocks, and you have counted "
    "one of them."
)(count_without_positions() | {"total": 6528 + 49984})
ex.mistake(
    "The parts are right, the total is not: there are 2 blocks, and you have counted "
    "4, as many as heads."
)(count_without_positions() | {"total": 6528 + 4 * 49984})
ex.mistake(
    "The parts are right, the total is not: it holds the blocks and leaves out what "
    "stands outside them."
)(count_without_positions() | {"total": 2 * 49984})
ex.mistake(
    "What you give as one block are both of them; the total is right. Divide by 2."
)(count_without_positions() | {"one block": 2 * 49984})
ex.mistake(
    "What you give as one block are both of them, and the total has them twice. Divide "
    "by 2."
)(count_without_positions() | {"one block": 2 * 49984, "total": 6528 + 4 * 49984})
ex.mistake(
    "The final norm stands in each block in your count. There is one, after the last: "
    "it belongs outside the blocks."
)({"one block": 50112, "outside the blocks": 6400, "total": 106624})


def spread(table):
    """Its standard deviation, as coarse as draws of that size repeat."""
    deviation = table.std().item()
    return round(deviation, 3 if deviation < 0.5 else 1)


def tied_and_measured(answer, cfg):
    """Whether the model that comes back is tied, and how large its tables are."""
    model = given = gpt_helpers.GPTModel(cfg)
    before = model.trf_blocks[0].att.W_query.weight.std().item()
    model = answer(model)
    if not isinstance(model, nn.Module):
        return model
    after = model.trf_blocks[0].att.W_query.weight.std().item()
    table, head = model.tok_emb.weight, model.out_head.weight
    return {
        "the model that was given": model is given,
        "head is a linear layer": isinstance(model.out_head, nn.Linear),
        "head is the token table": table is head,
        "memory shared": table.data_ptr() == head.data_ptr(),
        "number of parameters": gpt_helpers.count_parameters(model),
        "trained": [p.requires_grad for p in (table, head, model.pos_emb.weight)],
        "spread of the token table": spread(table),
        "spread of the head": spread(head),
        "spread of the position table": spread(model.pos_emb.weight),
        "blocks as they were": 0.9 < after / before < 1.1,
    }


ex = Exercise(
    "6.5",
    "Small tables, and a head that stays loud",
    why="A tie holds between two attributes, not two numbers: whoever puts a new "
    "tensor into one of them has cut it.",
    inputs=lambda: [
        (gpt_helpers.GPTConfig(300, 64, 48, 4, 1),),
        (gpt_helpers.GPTConfig(400, 96, 64, 4, 2),),
    ],
    call=tied_and_measured,
)


@ex.reference
def _(model):
    with torch.no_grad():
        model.tok_emb.weight *= 0.02
        model.pos_emb.weight *= 0.01
    model.out_head.weight = model.tok_emb.weight
    return model


@ex.bug(
    "The bug is still there: after the tie a new tensor is put into the token table, "
    "and the head keeps the old, large one."
)
def with_small_tables(model):
    model.out_head.weight = model.tok_emb.weight
    model.tok_emb.weight = nn.Parameter(0.02 * model.tok_emb.weight.detach())
    model.pos_emb.weight = nn.Parameter(0.01 * model.pos_emb.weight.detach())
    return model


@ex.mistake(
    "Now both are small and equal, but two tensors: the first training step would "
    "pull them apart, and both are counted. Ask `is`, not whether the numbers agree."
)
def _(model):
    model.tok_emb.weight = nn.Parameter(0.02 * model.tok_emb.weight.detach())
    model.pos_emb.weight = nn.Parameter(0.01 * model.pos_emb.weight.detach())
    model.out_head.weight = nn.Parameter(model.tok_emb.weight.detach().clone())
    return model


@ex.mistake(
    "Head and table share their memory but are two parameters: both are counted, and "
    "an optimizer keeps two histories. `.data` and `nn.Parameter(...)` share numbers; "
    "a tie gives the same parameter a second name."
)
def _(model):
    model.tok_emb.weight = nn.Parameter(0.02 * model.tok_emb.weight.detach())
    model.pos_emb.weight = nn.Parameter(0.01 * model.pos_emb.weight.detach())
    model.out_head.weight = nn.Parameter(model.tok_emb.weight)
    return model


@ex.mistake(
    "The tie holds now, but the token table is scaled twice, under each of its two "
    "names once. One tensor needs one scaling."
)
def _(model):
    with torch.no_grad():
        model.tok_emb.weight *= 0.02 * 0.02
        model.pos_emb.weight *= 0.01
    model.out_head.weight = model.tok_emb.weight
    return model


@ex.mistake(
    "The tie holds now, but in the other direction: the table is the head's matrix, "
    "which was drawn smaller than a table and has been scaled on top of it."
)
def _(model):
    model.tok_emb.weight = model.out_head.weight
    with torch.no_grad():
        model.tok_emb.weight *= 0.02
        model.pos_emb.weight *= 0.01
    return model


@ex.mistake(
    "The tie holds now, but in the other direction: the table is the head's matrix, "
    "and the small table that was made is lost. Look at which name stands left of "
    "the `=`."
)
def _(model):
    with torch.no_grad():
        model.pos_emb.weight *= 0.01
    model.tok_emb.weight = model.out_head.weight
    return model


@ex.mistake(
    "The tie holds now because the token table is no longer made small: head and "
    "table are as large as PyTorch draws a table. Keep both, the scaling and the tie."
)
def _(model):
    model.out_head.weight = model.tok_emb.weight
    with torch.no_grad():
        model.pos_emb.weight *= 0.01
    return model


@ex.mistake(
    "The tie holds now because nothing is made small any more: the tables are as "
    "large as PyTorch draws them. Keep both, the scaling and the tie."
)
def _(model):
    model.out_head.weight = model.tok_emb.weight
    return model


@ex.mistake(
    "The tie holds now, but the position table is no longer made small; its line was "
    "not the bug."
)
def _(model):
    with torch.no_grad():
        model.tok_emb.weight *= 0.02
    model.out_head.weight = model.tok_emb.weight
    return model


@ex.mistake(
    "The tie holds now, but the factors are exchanged: 0.02 is the token table's, "
    "0.01 the position table's."
)
def _(model):
    with torch.no_grad():
        model.tok_emb.weight *= 0.01
        model.pos_emb.weight *= 0.02
    model.out_head.weight = model.tok_emb.weight
    return model


@ex.mistake(
    "The tables are small now, but the head is tied to nothing: it still has the "
    "matrix it was built with. The scaling was not the bug, nor was tying."
)
def _(model):
    with torch.no_grad():
        model.tok_emb.weight *= 0.02
        model.pos_emb.weight *= 0.01
    return model


@ex.mistake(
    "The tie is gone, and the head's own matrix has been made small instead. Scaling "
    "it was not the point: head and token table should be one tensor."
)
def _(model):
    with torch.no_grad():
        model.tok_emb.weight *= 0.02
        model.pos_emb.weight *= 0.01
        model.out_head.weight *= 0.02
    return model


@ex.mistake(
    "The tie holds now, but the position table is scaled by the token table's factor: "
    "its own is 0.01."
)
def _(model):
    with torch.no_grad():
        model.tok_emb.weight *= 0.02
        model.pos_emb.weight *= 0.02
    model.out_head.weight = model.tok_emb.weight
    return model


@ex.mistake(
    "The head has become the embedding itself, a module that looks ids up and cannot "
    "multiply. Tie the two tensors called `weight`, not the modules that hold them."
)
def _(model):
    with torch.no_grad():
        model.tok_emb.weight *= 0.02
        model.pos_emb.weight *= 0.01
    model.out_head = model.tok_emb
    return model


@ex.mistake(
    "The tie holds and the tables are small, but the token table does not ask for a "
    "gradient any more: it would never be trained. Look at `requires_grad`."
)
def _(model):
    small = 0.02 * model.tok_emb.weight.detach()
    model.tok_emb.weight = nn.Parameter(small, requires_grad=False)
    model.pos_emb.weight = nn.Parameter(0.01 * model.pos_emb.weight.detach())
    model.out_head.weight = model.tok_emb.weight
    return model


@ex.mistake(
    "The tie holds and the tables are small, but neither asks for a gradient any "
    "more: they would never be trained. Look at `requires_grad`, or at `freeze`."
)
def _(model):
    for table, factor in (model.tok_emb, 0.02), (model.pos_emb, 0.01):
        small = factor * table.weight.detach()
        table.weight = nn.Parameter(small, requires_grad=False)
    model.out_head.weight = model.tok_emb.weight
    return model


@ex.mistake(
    "The function returns None: the caller needs the model back, so keep the `return`."
)
def _(model):
    return None
