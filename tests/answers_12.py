"""Answers to the exercises of lesson 12 · Pretrained GPT-2: right ones, and wrong ones."""

import math

import torch
import torch.nn.functional as F

from gpt_helpers import GPT2_LAYOUT

RIGHT_12_1 = {
    "tensors in the file": 64,
    "with both old masks": 74,
    "parameters of our model": 84,
    "matrices to be turned": 20,
    "turned ones that are square": 5,
}


def wrong_12_1(**counts):
    return RIGHT_12_1 | {key.replace("_", " "): value for key, value in counts.items()}


def right_12_2_rules(ours):
    names = {"tok_emb": "wte", "pos_emb": "wpe", "final_norm": "ln_f", "norm1": "ln_1"}
    names |= {"norm2": "ln_2", "att.out_proj": "attn.c_proj", "ff.layers.0": "mlp.c_fc"}
    names |= {"ff.layers.2": "mlp.c_proj"}
    names |= {f"att.W_{r}": "attn.c_attn" for r in ("query", "key", "value")}
    path, kind = ours.rsplit(".", 1)
    kind = {"scale": "weight", "shift": "bias"}.get(kind, kind)
    if not path.startswith("trf_blocks."):
        return f"{names[path]}.{kind}"
    _, number, part = path.split(".", 2)
    return f"h.{number}.{names[part]}.{kind}"


def right_12_2_search(ours):
    parts = ours.split(".")
    number = parts[1] if parts[0] == "trf_blocks" else None
    parts[1] = "{}" if number else parts[1]
    for published, (_, *held) in GPT2_LAYOUT.items():
        if ".".join(parts) in held:
            return published.format(number)
    raise KeyError(ours)


def wrong_12_2_norms_kept(ours):
    kind = ours.rsplit(".", 1)[1]
    return right_12_2_rules(ours).rsplit(".", 1)[0] + "." + kind


def wrong_12_2_one_digit(ours):
    name = right_12_2_rules(ours)
    return "h." + ours[11] + name[name.index(".", 2) :] if name[0] == "h" else name


def wrong_12_2_underscores(ours):
    return right_12_2_rules(ours).replace(".", "_")


def right_12_3_by_rank(block, tensors, turn=lambda tensor: tensor.ndim == 2):
    rows = {"query": 0, "key": 1, "value": 2}
    parts = {"norm1.scale": "ln_1.weight", "norm1.shift": "ln_1.bias"}
    parts |= {"norm2.scale": "ln_2.weight", "norm2.shift": "ln_2.bias"}
    for kind in ("weight", "bias"):
        parts[f"att.out_proj.{kind}"] = f"attn.c_proj.{kind}"
        parts[f"ff.layers.0.{kind}"] = f"mlp.c_fc.{kind}"
        parts[f"ff.layers.2.{kind}"] = f"mlp.c_proj.{kind}"
    C = block.norm1.scale.numel()
    with torch.no_grad():
        for role, i in rows.items():
            layer = block.att.get_submodule(f"W_{role}")
            layer.weight.copy_(tensors["attn.c_attn.weight"][:, i * C : (i + 1) * C].T)
            layer.bias.copy_(tensors["attn.c_attn.bias"][i * C : (i + 1) * C])
        for ours, published in parts.items():
            tensor = tensors[published]
            tensor = tensor.mT if turn(tensor) else tensor
            block.get_parameter(ours).copy_(tensor)


def right_12_3_data(block, tensors):
    right_12_3_by_rank(block, tensors)
    block.att.out_proj.weight.data = tensors["attn.c_proj.weight"].t().contiguous()


def wrong_12_3_by_shape(block, tensors):
    def not_square(tensor):
        return tensor.ndim == 2 and tensor.shape[0] != tensor.shape[1]

    right_12_3_by_rank(block, tensors, not_square)


def wrong_12_3_square_only(block, tensors):
    right_12_3_by_rank(
        block,
        tensors,
        lambda tensor: tensor.shape == tensor.t().shape and tensor.ndim > 1,
    )


def wrong_12_3_vectors_too(block, tensors):
    with torch.no_grad():
        for parameter, tensor in zip(
            block.parameters(), tensors.values(), strict=False
        ):
            parameter.copy_(tensor.mT)


def wrong_12_3_not_copied(block, tensors):
    before = {name: p.detach().clone() for name, p in block.named_parameters()}
    right_12_3_by_rank(block, tensors)
    for name, parameter in block.named_parameters():
        if ".W_" not in name:
            parameter.data = before[name]


def wrong_12_3_no_bias(block, tensors):
    right_12_3_by_rank(block, tensors)
    block.att.out_proj.bias.data.zero_()


def wrong_12_3_added(block, tensors):
    before = {name: p.detach().clone() for name, p in block.named_parameters()}
    right_12_3_by_rank(block, tensors)
    for name, parameter in block.named_parameters():
        parameter.data += before[name]


def right_12_4_loop(logits, targets):
    total, count = 0.0, 0
    for rows, row_targets in zip(logits, targets, strict=True):
        for row, target in zip(rows, row_targets, strict=True):
            total -= math.log(row.double().softmax(dim=-1)[target])
            count += 1
    return math.exp(total / count)


def right_12_4_axes(logits, targets):
    return torch.exp(F.cross_entropy(logits.permute(0, 2, 1), targets))


def right_12_4_product(logits, targets):
    shares = logits.softmax(-1).gather(-1, targets[..., None])
    return shares.prod() ** (-1 / targets.numel())


def wrong_12_4(result):
    """Make a wrong answer from what it does with the shares of the tokens that came."""

    def answer(logits, targets):
        return result(logits.softmax(-1).gather(-1, targets[..., None]).squeeze(-1))

    return answer


RIGHT = {
    "12.1": [RIGHT_12_1],
    "12.2": [right_12_2_rules, right_12_2_search],
    "12.3": [right_12_3_by_rank, right_12_3_data],
    "12.4": [right_12_4_loop, right_12_4_axes, right_12_4_product],
}

WRONG = {
    "12.1": [
        (
            "A tied head is not stored",
            wrong_12_1(tensors_in_the_file=65, with_both_old_masks=75),
        ),
        ("one per block", wrong_12_1(with_both_old_masks=64 + 5)),
        ("they lie as ours do", wrong_12_1(matrices_to_be_turned=5 * 4 + 2)),
        (
            "  parameters of our model: 79",
            wrong_12_1(turned_ones_that_are_square=20, parameters_of_our_model=79),
        ),
        ("  tensors in the file: 60", wrong_12_1(tensors_in_the_file=60)),
        (
            "you count two: the tables",
            wrong_12_1(
                tensors_in_the_file=5 * 12 + 2,
                with_both_old_masks=5 * 14 + 2,
                parameters_of_our_model=5 * 16 + 2,
            ),
        ),
        (
            "blocks of our model alone",
            wrong_12_1(
                tensors_in_the_file=5 * 12,
                with_both_old_masks=5 * 14,
                parameters_of_our_model=5 * 16,
            ),
        ),
        ("a square one fits either way", wrong_12_1(matrices_to_be_turned=5 * 3)),
    ],
    "12.2": [
        ("Norms have no `scale`", wrong_12_2_norms_kept),
        ("you take one digit", wrong_12_2_one_digit),
        (
            "last part is missing",
            lambda ours: right_12_2_search(ours).rsplit(".", 1)[0],
        ),
        ("The results differ.", wrong_12_2_underscores),
    ],
    "12.3": [
        ("still goes in as it lies", wrong_12_3_by_shape),
        ("does not fit", wrong_12_3_square_only),
        ("of your code raised RuntimeError", wrong_12_3_vectors_too),
        ("never into the block", wrong_12_3_not_copied),
        ("first on:", wrong_12_3_no_bias),
        ("first on:", wrong_12_3_added),
    ],
    "12.4": [
        ("mean loss", wrong_12_4(lambda shares: -shares.log().mean())),
        ("then the mean", wrong_12_4(lambda shares: (1 / shares).mean())),
        ("grows with the length", wrong_12_4(lambda shares: 1 / shares.prod())),
        ("below 1", wrong_12_4(lambda shares: shares.log().mean().exp())),
        ("invert the mean share", wrong_12_4(lambda shares: 1 / shares.mean())),
        ("first on:", wrong_12_4(lambda shares: 1 / shares.median())),
        ("one number per token", wrong_12_4(lambda shares: 1 / shares.flatten())),
        ("logarithm is missing", wrong_12_4(lambda shares: (-shares.mean()).exp())),
        ("in bits", wrong_12_4(lambda shares: -shares.log2().mean())),
        (
            "Flatten B and T of both",
            lambda logits, targets: F.nll_loss(logits.log_softmax(-1), targets).exp(),
        ),
        (
            "do not exchange axes",
            lambda logits, targets: F.nll_loss(
                logits.view(len(logits), -1, targets.shape[1]).log_softmax(1), targets
            ).exp(),
        ),
    ],
}
