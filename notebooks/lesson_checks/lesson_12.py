"""The exercises of lesson 12 · Pretrained GPT-2."""

import math
import re

import torch
import torch.nn.functional as F

import gpt_helpers

from .engine import Exercise

# 12.1

ex = Exercise(
    "12.1",
    "Count before you load",
    why="Counts like these are the first thing to compare when a file does not fit.",
)

tensors_of_five_blocks = ex.reference(
    {
        "tensors in the file": 2 + 5 * 12 + 2,
        "with both old masks": 2 + 5 * 14 + 2,
        "parameters of our model": 2 + 5 * 16 + 2,
        "matrices to be turned": 5 * 4,
        "turned ones that are square": 5,
    }
)


def instead(**counts):
    return tensors_of_five_blocks | {k.replace("_", " "): v for k, v in counts.items()}


ex.mistake(
    "A tied head is not stored: `lm_head.weight` is the token table. Take it out of the "
    "count of tensors."
)(instead(tensors_in_the_file=65, with_both_old_masks=75))

ex.mistake(
    "The tied head is the token table, one tensor under two names: our parameters count "
    "it once, too."
)(instead(parameters_of_our_model=85))

ex.mistake(
    "The file holds four tensors outside its blocks, and you count two: the tables `wte` "
    "and `wpe`, and a weight and a bias of the last norm, `ln_f`."
)(instead(tensors_in_the_file=62, with_both_old_masks=72))

ex.mistake(
    "Our model has four parameters outside its blocks, and you count two: two tables, "
    "and the scale and the shift of the last norm."
)(instead(parameters_of_our_model=82))

ex.mistake(
    "The last norm is two tensors of the file, a weight and a bias, as every norm is."
)(instead(tensors_in_the_file=63, with_both_old_masks=73))

ex.mistake("The last norm has two parameters, a scale and a shift, as every norm has.")(
    instead(parameters_of_our_model=83)
)

ex.mistake(
    "You count the blocks of the file alone. The two tables and the last norm "
    "are missing."
)(instead(tensors_in_the_file=60, with_both_old_masks=70))

ex.mistake(
    "You count the blocks of our model alone. The two tables and the last norm "
    "are missing."
)(instead(parameters_of_our_model=80))

ex.mistake(
    "You count twelve blocks, as GPT-2 124M has them. The model asked about has five."
)(
    instead(
        tensors_in_the_file=148,
        with_both_old_masks=172,
        parameters_of_our_model=196,
        matrices_to_be_turned=48,
        turned_ones_that_are_square=12,
    )
)

ex.mistake(
    "In the file queries, keys and values are one matrix and one bias. You have counted "
    "them as three, as in our model."
)(instead(tensors_in_the_file=84, with_both_old_masks=94))

ex.mistake(
    "In our model queries, keys and values are three matrices and three biases. You "
    "have counted them as one, as in the file."
)(instead(parameters_of_our_model=64))

ex.mistake(
    "The biases of queries, keys and values are missing in our model's count. Published "
    "weights have them: `qkv_bias` is true."
)(instead(parameters_of_our_model=69))

ex.mistake(
    "Each block has two old masks, `attn.bias` and `attn.masked_bias`. You have added "
    "one per block."
)(instead(with_both_old_masks=69))

ex.mistake("Each block has masks of its own. You have added them once.")(
    instead(with_both_old_masks=66)
)

ex.mistake(
    "The tables `wte` and `wpe` are matrices, but they lie as ours do. Only those of "
    "the blocks are turned."
)(instead(matrices_to_be_turned=22))

ex.mistake(
    "Queries, keys and values are turned while they are still one matrix. A block has "
    "four matrices."
)(instead(matrices_to_be_turned=30))

ex.mistake(
    "Three matrices of a block do not fit as they lie, but the fourth, `attn.c_proj`, "
    "must be turned too: a square one fits either way."
)(instead(matrices_to_be_turned=15))

ex.mistake(
    "One of the four in each block is square: (C, C) is the shape in the table."
)(instead(turned_ones_that_are_square=0))

ex.mistake(
    "Only `attn.c_proj` is square as it stands in the file. The three that are cut out "
    "of `attn.c_attn` are square too, but only after the cut."
)(instead(turned_ones_that_are_square=20))


# 12.2


def names_of_ours():
    block = ["norm1.scale", "norm1.shift", "norm2.scale", "norm2.shift"]
    block += [f"att.W_{role}.weight" for role in ("query", "key", "value")]
    block += ["att.W_key.bias", "att.out_proj.weight", "att.out_proj.bias"]
    block += [f"ff.layers.{i}.{kind}" for i in (0, 2) for kind in ("weight", "bias")]
    names = ["tok_emb.weight", "pos_emb.weight", "final_norm.scale", "final_norm.shift"]
    names += [f"trf_blocks.{i}.{name}" for i in (0, 7, 11) for name in block]
    return [(name,) for name in names]


def published_name(ours):
    cfg = gpt_helpers.GPTConfig(9, 9, 8, 2, 12, qkv_bias=True, tied_head=True)
    for published, (_, names) in gpt_helpers.gpt2_tensors(cfg).items():
        if ours in names:
            return published


def exchanged(first, second):
    """The right names, but one part of them taken for another, and back."""

    def answer(ours):
        name = published_name(ours)
        pattern = f"{re.escape(first)}|{re.escape(second)}"
        return re.sub(pattern, lambda m: second if m[0] == first else first, name)

    return answer


ex = Exercise(
    "12.2",
    "The name map",
    why="Whoever can name each tensor can read the checkpoints of other models too.",
    inputs=names_of_ours,
)

ex.reference(published_name)

ex.mistake(
    "`c_fc` and `c_proj` of the feed-forward network are exchanged: `c_fc` widens, so "
    "it is layer 0; layer 1 is the GELU."
)(exchanged("mlp.c_fc", "mlp.c_proj"))

ex.mistake("The two norms of a block are exchanged: `norm1` is `ln_1`.")(
    exchanged("ln_1", "ln_2")
)

ex.mistake("`wte` is the table of tokens, `wpe` the table of positions.")(
    exchanged("wte", "wpe")
)

ex.mistake(
    "In the norms, weight and bias are exchanged: our `scale` multiplies and is their "
    "`weight`."
)(
    lambda ours: (
        exchanged("weight", "bias")(ours) if "norm" in ours else published_name(ours)
    )
)

ex.mistake(
    "Norms have no `scale` and `shift` in the file. There, whatever multiplies is called "
    "`weight` and whatever is added `bias`."
)(lambda ours: published_name(ours).rpartition(".")[0] + "." + ours.rpartition(".")[2])

ex.mistake(
    "Queries, keys and values have no names of their own in the file: all three lie in "
    "`attn.c_attn`."
)(lambda ours: published_name(ours).replace("c_attn", ours.split(".")[-2]))

ex.mistake(
    "Block 11 becomes block 1: you take one digit of the number. Cut the name at its "
    "dots instead."
)(lambda ours: re.sub(r"h\.(\d)\d*", r"h.\1", published_name(ours)))

ex.mistake(
    "The number of the block is lost: every block's name begins with `h.0`. Take it over "
    "from our name."
)(lambda ours: re.sub(r"h\.\d+", "h.0", published_name(ours)))

ex.mistake("The file counts its blocks from 0, as we do.")(
    lambda ours: (
        re.sub(r"\d+", lambda m: str(int(m[0]) + 1), published_name(ours), count=1)
        if "trf" in ours
        else published_name(ours)
    )
)

ex.mistake(
    "Leave the prefix `transformer.` out: the question is for the file without it."
)(lambda ours: "transformer." + published_name(ours))

ex.mistake(
    "`out_proj` is `attn.c_proj`: it belongs to attention. `mlp.c_proj` is the matrix "
    "that narrows."
)(
    lambda ours: (
        published_name(ours).replace("attn.c_proj", "mlp.c_proj")
        if "out_proj" in ours
        else published_name(ours)
    )
)

ex.mistake("The last part is missing: a tensor's name ends in `weight` or `bias`.")(
    lambda ours: published_name(ours).rpartition(".")[0]
)


# 12.3


def blocks_to_fill():
    """(width, heads, seed) of a block: `filled` makes its tensors and its input."""
    return [(4, 1, 1), (8, 2, 2), (12, 3, 3)]


@torch.no_grad()
def filled(answer, width, n_heads, seed):
    """What a block makes of an input, once the answer has filled it."""
    generator = torch.Generator().manual_seed(seed)
    cfg = gpt_helpers.GPTConfig(9, 6, width, n_heads, 1, 0.0, qkv_bias=True)
    tensors = {
        published.removeprefix("h.0."): torch.randn(shape, generator=generator)
        for published, (shape, _) in gpt_helpers.gpt2_tensors(cfg).items()
        if published.startswith("h.0.")
    }
    block = gpt_helpers.TransformerBlock(cfg)
    for parameter in block.parameters():
        parameter.fill_(0.1)  # what is added to, not replaced, shows
    answer(block, tensors)
    return block(torch.randn(2, 6, width, generator=generator))


PARTS_OF_A_BLOCK = {
    "norm1.scale": "ln_1.weight",
    "norm1.shift": "ln_1.bias",
    "att.out_proj.weight": "attn.c_proj.weight",
    "att.out_proj.bias": "attn.c_proj.bias",
    "norm2.scale": "ln_2.weight",
    "norm2.shift": "ln_2.bias",
    "ff.layers.0.weight": "mlp.c_fc.weight",
    "ff.layers.0.bias": "mlp.c_fc.bias",
    "ff.layers.2.weight": "mlp.c_proj.weight",
    "ff.layers.2.bias": "mlp.c_proj.bias",
}


def filling(turn, joint=lambda matrix: matrix.T.chunk(3)):
    """Make an answer from what it does with a tensor, and with the joint matrix."""

    @torch.no_grad()
    def answer(block, tensors):
        parameters = dict(block.named_parameters())
        matrices = joint(tensors["attn.c_attn.weight"])
        biases = tensors["attn.c_attn.bias"].chunk(3)
        for role, matrix, bias in zip(("query", "key", "value"), matrices, biases):
            parameters[f"att.W_{role}.weight"].copy_(matrix)
            parameters[f"att.W_{role}.bias"].copy_(bias)
        for ours, published in PARTS_OF_A_BLOCK.items():
            parameters[ours].copy_(turn(tensors[published], parameters[ours]))

    return answer


ex = Exercise(
    "12.3",
    "The matrix nobody missed",
    why="A rule that asks what fits turns three matrices of four; the layout turns all.",
    inputs=blocks_to_fill,
    call=filled,
    tolerance=1e-4,
)


@ex.bug(
    "The square matrix still goes in as it lies in the file. It fits either way, so a "
    "shape cannot decide whether it is turned. What can?"
)
@torch.no_grad()
def _(block, tensors):
    parameters = dict(block.named_parameters())
    matrices = tensors["attn.c_attn.weight"].T.chunk(3)
    biases = tensors["attn.c_attn.bias"].chunk(3)
    for role, matrix, bias in zip(("query", "key", "value"), matrices, biases):
        parameters[f"att.W_{role}.weight"].copy_(matrix)
        parameters[f"att.W_{role}.bias"].copy_(bias)
    for ours, published in PARTS_OF_A_BLOCK.items():
        tensor = tensors[published]
        if tensor.shape != parameters[ours].shape:
            tensor = tensor.T
        parameters[ours].copy_(tensor)


ex.reference(filling(lambda tensor, target: tensor.T if tensor.ndim == 2 else tensor))

ex.mistake(
    "Now a tensor does not fit, or cannot be turned. Turn the four matrices of a block, "
    "each of them once, and leave the vectors as they are."
)(
    filling(
        lambda tensor, target: tensor.t() if tensor.shape == target.shape else tensor
    )
)

ex.mistake(
    "The square matrix is right now, but the joint one is not: cut along its last axis, "
    "each third is square and must be turned, too. That line was right."
)(
    filling(
        lambda tensor, target: tensor.T if tensor.ndim == 2 else tensor,
        lambda matrix: matrix.chunk(3, dim=-1),
    )
)

ex.mistake(
    "The square matrix is right now, but queries and keys are exchanged. In the file the "
    "order is queries, keys, values: that line was right."
)(
    filling(
        lambda tensor, target: tensor.T if tensor.ndim == 2 else tensor,
        lambda matrix: [matrix.T.chunk(3)[i] for i in (1, 0, 2)],
    )
)

ex.mistake(
    "The tensors go into the dictionary `parameters`, and never into the block: there "
    "`copy_` puts them."
)(
    filling(
        lambda tensor, target: target  # as it was: only the joint parts are filled
    )
)

ex.mistake(
    "The square matrix is not filled any more. It must be copied, and turned before."
)(
    filling(
        lambda tensor, target: (
            (tensor.T if tensor.shape[0] != tensor.shape[-1] else 0 * tensor)
            if tensor.ndim == 2
            else tensor
        )
    )
)


# 12.4


def logits_and_targets():
    generator = torch.Generator().manual_seed(4)
    made = []
    for B, T, V in ((1, 1, 3), (1, 2, 3), (2, 3, 5), (3, 4, 7)):
        logits = torch.randn(B, T, V, generator=generator)
        made.append((logits, torch.randint(V, (B, T), generator=generator)))
    return made


def losses(logits, targets):
    flat = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return flat.view(targets.shape)  # (B, T)


ex = Exercise(
    "12.4",
    "Perplexity",
    why="It is the number of equally likely choices that would be as hard to guess.",
    inputs=logits_and_targets,
)

ex.reference(lambda logits, targets: losses(logits, targets).mean().exp())

ex.mistake(
    "That is the mean loss. Perplexity is its exponential: a number of choices, never "
    "below 1."
)(lambda logits, targets: losses(logits, targets).mean())

ex.mistake(
    "You take the exponential of each loss and then the mean. A few tokens that came as "
    "a surprise then rule the result: take the mean first."
)(lambda logits, targets: losses(logits, targets).exp().mean())

ex.mistake(
    "The exponential of the sum grows with the length of the text. Take the mean of the "
    "losses."
)(lambda logits, targets: losses(logits, targets).sum().exp())

ex.mistake(
    "The loss is in nats, so its exponential has the base e. Two to the power of it "
    "would need bits."
)(lambda logits, targets: 2 ** losses(logits, targets).mean())

ex.mistake(
    "Your result is below 1, a mean share. The loss is minus the logarithm of the share: "
    "look at the sign."
)(lambda logits, targets: (-losses(logits, targets)).mean().exp())

ex.mistake(
    "You invert the mean share. That is another mean: take the mean of the logarithms, "
    "and the exponential after."
)(lambda logits, targets: 1 / (-losses(logits, targets)).exp().mean())

ex.mistake(
    "You take the share of the likeliest token. The question is how much the token that "
    "came had been given: look it up with the targets."
)(lambda logits, targets: losses(logits, logits.argmax(dim=-1)).mean().exp())

ex.mistake(
    "The softmax is taken twice. `F.cross_entropy` takes logits and does it itself."
)(lambda logits, targets: losses(logits.softmax(dim=-1), targets).mean().exp())

ex.mistake(
    "You take a perplexity per row and then the mean of the rows. Take the mean over all "
    "tokens first."
)(lambda logits, targets: losses(logits, targets).mean(dim=-1).exp().mean())

ex.mistake(
    "You judge the last token of each row alone. All B·T tokens count: flatten B and T."
)(lambda logits, targets: losses(logits[:, -1:], targets[:, -1:]).mean().exp())

ex.mistake(
    "The targets are shifted once more. They are given as the tokens that came next: use "
    "them as they are."
)(lambda logits, targets: losses(logits[:, :-1], targets[:, 1:]).mean().exp())

ex.mistake(
    "The tokens are mixed up: after a transpose, `reshape` or `view` gives the right "
    "shape and rows of several tokens' logits. Flatten B and T, and leave V last."
)(
    lambda logits, targets: (
        losses(logits.transpose(1, 2).reshape(logits.shape), targets).mean().exp()
    )
)

ex.mistake(
    "The tokens are mixed up: `reshape` and `view` do not exchange axes. Use "
    "`transpose(1, 2)` for (B, V, T), or flatten B and T."
)(
    lambda logits, targets: F.cross_entropy(
        logits.reshape(logits.mT.shape), targets
    ).exp()
)

ex.mistake(
    "If it is `F.cross_entropy` that complains: it takes logits as (rows, V) and targets "
    "as (rows). Flatten B and T of both."
)(lambda logits, targets: F.cross_entropy(logits, targets).exp())

ex.mistake(
    "You return one number per token. Take the mean of the losses before the "
    "exponential: one number for all."
)(lambda logits, targets: losses(logits, targets).flatten().exp())

ex.mistake(
    "You use the logits as if they were logarithms of shares. `log_softmax` makes them so."
)(lambda logits, targets: (-logits.gather(-1, targets[..., None])).mean().exp())

ex.mistake(
    "The logarithm is missing: a loss is minus the logarithm of the share, and "
    "`F.nll_loss` does not take it. `log_softmax` or `F.cross_entropy` does."
)(lambda logits, targets: (-(-losses(logits, targets)).exp().mean()).exp())

ex.mistake(
    "You divide after the exponential. Take the mean of the losses first, then its "
    "exponential."
)(lambda logits, targets: losses(logits, targets).sum().exp() / targets.numel())

ex.mistake("You divide by the number of rows. The mean is over all B·T tokens.")(
    lambda logits, targets: (losses(logits, targets).sum() / len(targets)).exp()
)

ex.mistake(
    "That is the mean loss in bits. Perplexity is 2 to the power of it, or e to the "
    "power of the loss in nats."
)(lambda logits, targets: losses(logits, targets).mean() / math.log(2))
