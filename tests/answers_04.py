"""Answers to the exercises of lesson 4: right ones, and wrong ones with what is said."""

import math

import torch
import torch.nn.functional as F
from torch import nn

import gpt_helpers


def right_4_2_built_in(linears, x):
    stream = x
    for i in range(len(linears)):
        branch = F.gelu(linears[i](stream), approximate="tanh")
        keeps = branch.shape[-1] == stream.shape[-1]
        stream = torch.add(branch, stream) if keeps else branch
    return stream


def right_4_2_recursive(linears, x):
    if len(linears) == 0:
        return x
    output = gpt_helpers.GELU().forward(linears[0](x))
    kept = x if output.size() == x.size() else torch.zeros_like(output)
    return right_4_2_recursive(list(linears)[1:], kept + output)


def gradient_4_3(depth, use_shortcut, seed, double=False):
    torch.manual_seed(seed)
    layers = nn.ModuleList(
        nn.Sequential(nn.Linear(3, 3), gpt_helpers.GELU()) for _ in range(depth)
    )
    x = torch.tensor([[1.0, 0.0, -1.0]])
    if double:
        layers, x = layers.double(), x.double()
    for layer in layers:
        x = x + layer(x) if use_shortcut else layer(x)
    weight = layers[0][0].weight
    (gradient,) = torch.autograd.grad(x.mean(), weight)
    return gradient.abs().mean().item()


def median_4_3(numbers):
    numbers = sorted(numbers)
    return numbers[(len(numbers) - 1) // 2]


def right_4_3_sorted(depth, seeds):
    return median_4_3(
        gradient_4_3(depth, True, s) / gradient_4_3(depth, False, s) for s in seeds
    )


def right_4_3_tensors(depth, seeds):
    large = torch.tensor([gradient_4_3(depth, True, s) for s in seeds])
    small = torch.tensor([gradient_4_3(depth, False, s) for s in seeds])
    return (large / small).median()


def right_4_4_two_names(block, x):
    middle = block.att(block.norm1(x)).add(x)
    total = block.ff(block.norm2(middle))
    total += middle
    return total


def right_4_4_whole(block, x):
    return block(x)


def right_4_5_by_name(blocks):
    endings = "out_proj.weight", "out_proj.bias", "layers.2.weight", "layers.2.bias"
    with torch.no_grad():
        for name, parameter in blocks.named_parameters():
            if name.endswith(endings):
                parameter.mul_(1 / (2 * len(blocks)) ** 0.5)
    return blocks


def wrong_4_2_broadcast(linears, x):
    for linear in linears:
        output = F.gelu(linear(x), approximate="tanh")
        if output.ndim == x.ndim:
            output = output + x
        x = output
    return x


def wrong_4_2_overwritten(linears, x):
    for linear in linears:
        x = F.gelu(linear(x), approximate="tanh")
        if linear.in_features == linear.out_features:
            x = x + x
    return x


def wrong_4_2_inside(linears, x):
    for linear in linears:
        n_out, n_in = linear.weight.shape
        summed = F.linear(x, linear.weight, linear.bias)
        if n_out == n_in:
            summed = summed.add(x)
        x = F.gelu(summed, approximate="tanh")
    return x


def wrong_4_2_none(linears, x):
    parts = [part for linear in linears for part in (linear, gpt_helpers.GELU())]
    return nn.Sequential(*parts)(x)


def wrong_4_2_once(linears, x):
    start = x.clone()
    for linear in linears:
        x = gpt_helpers.GELU()(linear(x))
    if linears[0].in_features == linears[-1].out_features:
        x = x + start
    return x


def wrong_4_2_in_place(linears, x):
    x = x.clone()
    for linear in linears:
        output = gpt_helpers.GELU()(linear(x))
        if output.shape != x.shape:
            x = output
        else:
            x.add_(output)
    return x


def wrong_4_2_exact(linears, x):
    for linear in linears:
        output = nn.GELU()(linear(x))
        x = output + x if output.shape == x.shape else output
    return x


def wrong_4_2_weighted(linears, x):
    for linear in linears:
        output = gpt_helpers.GELU()(linear(x))
        x = 0.9 * x + output if output.shape == x.shape else output
    return x


def wrong_4_2_detached(linears, x):
    for linear in linears:
        output = F.gelu(linear(x), approximate="tanh")
        if output.shape == x.shape:
            output = torch.add(x.data, output)
        x = output
    return x


def wrong_4_3_inverse(depth, seeds):
    return median_4_3(
        [gradient_4_3(depth, False, s) / gradient_4_3(depth, True, s) for s in seeds]
    )


def wrong_4_3_difference(depth, seeds):
    return median_4_3(
        [gradient_4_3(depth, True, s) - gradient_4_3(depth, False, s) for s in seeds]
    )


def wrong_4_3_medians(depth, seeds):
    def middle(kind):
        return median_4_3([gradient_4_3(depth, kind, s) for s in seeds])

    return middle(True) / middle(False)


def wrong_4_3_mean(depth, seeds):
    ratios = [
        gradient_4_3(depth, True, s) / gradient_4_3(depth, False, s) for s in seeds
    ]
    return torch.tensor(ratios).mean()


def wrong_4_3_first(depth, seeds):
    for seed in seeds:
        return gradient_4_3(depth, True, seed) / gradient_4_3(depth, False, seed)


def wrong_4_4_same(block, x):
    start = x.clone()
    x = start + block.att(block.norm1(start))
    return block.ff(block.norm2(x)) + start


def wrong_4_4_late(block, x):
    shortcut = x
    x = block.att(block.norm1(x))
    x = x + shortcut
    x = block.ff(block.norm2(x))
    shortcut = x
    x = x + shortcut
    return x


def wrong_4_4_early(block, x):
    x = block.att(block.norm1(x))
    shortcut = x
    x = x + shortcut
    x = block.ff(block.norm2(x))
    return x + shortcut


def wrong_4_4_behind_norm(block, x):
    shortcut = x
    x = block.att(block.norm1(x))
    x = x + shortcut
    x = block.norm2(x)
    shortcut = x
    x = block.ff(x)
    return x + shortcut


def wrong_4_4_both(block, x):
    shortcut = x
    x = block.att(block.norm1(x))
    x = x + shortcut
    x = block.ff(block.norm2(x)) + x
    return x + shortcut


def wrong_4_4_without_second(block, x):
    shortcut = x
    x = block.att(block.norm1(x))
    x = x + shortcut
    return block.ff(block.norm2(x))


def wrong_4_4_unknown(block, x):
    return block(block(x))


def right_4_5_state(blocks):
    state = blocks.state_dict()
    for name in state:
        if "out_proj" in name or "ff.layers.2" in name:
            state[name] = (state[name].double() * (2 * len(blocks)) ** -0.5).float()
    blocks.load_state_dict(state)
    return blocks


def scaled_4_5(factor, of=("weight", "bias"), parts=("att.out_proj", "ff.layers.2")):
    """Multiply by ``factor(L)``, in place, the named parameters of the named parts."""

    def answer(blocks):
        names = {f"{part}.{kind}" for part in parts for kind in of}
        for name, parameter in blocks.named_parameters():
            if name.partition(".")[2] in names:
                parameter.data *= factor(len(blocks))
        return blocks

    return answer


def right_factor(n_blocks):
    return 1 / math.sqrt(2 * n_blocks)


def wrong_4_5_copy(blocks):
    for parameter in blocks.parameters():
        parameter = parameter * 2
    return blocks


def wrong_4_5_leaf(blocks):
    for block in blocks:
        block.ff.layers[2].bias /= math.sqrt(2 * len(blocks))
    return blocks


def wrong_4_5_no_return(blocks):
    right_4_5_by_name(blocks)


def wrong_4_5_new(blocks):
    for block in blocks:
        for ending in (block.att.out_proj, block.ff.layers[2]):
            for name, old in list(ending.named_parameters()):
                new = nn.Parameter(old.detach() * right_factor(len(blocks)))
                ending.register_parameter(name, new)
    return blocks


def wrong_4_4_overwrites(block, x):
    x += block.att(block.norm1(x.clone()))
    return x + block.ff(block.norm2(x))


slopes = {
    "no shortcuts": 2**-10,
    "one around each layer": 57.665,
    "one around each pair": 3.052,
    "ratio": 59049,
}

RIGHT = {
    "4.1": [slopes, slopes | {"one around each layer": math.pow(3 / 2, 10)}],
    "4.2": [right_4_2_built_in, right_4_2_recursive],
    "4.3": [right_4_3_sorted, right_4_3_tensors],
    "4.4": [right_4_4_two_names, right_4_4_whole],
    "4.5": [right_4_5_by_name, right_4_5_state, scaled_4_5(right_factor)],
}

WRONG = {
    "4.1": [
        ("You multiply a slope by", slopes | {"no shortcuts": 5, "ratio": 11.533}),
        ("The 1 of the path", slopes | {"one around each pair": 4**-5}),
        ("to a single 1", slopes | {"one around each pair": 2.25}),
        ("a shortcut around every layer", slopes | {"one around each pair": 57.665}),
        ("Ten layers make five pairs", slopes | {"one around each pair": 9.3132}),
        ("Two layers stand in it", slopes | {"one around each pair": 7.59375}),
        ("upside down", slopes | {"ratio": 3**-10}),
        ("you subtracted", slopes | {"ratio": 57.664}),
        (
            "you count ten sums. For the ratio you subtracted.",
            slopes | {"one around each pair": 9.3132, "ratio": 57.664},
        ),
        ("1 of 4 values are not right yet", slopes | {"no shortcuts": 0.25}),
    ],
    "4.2": [
        ("PyTorch broadcasts it", wrong_4_2_broadcast),
        ("add the layer's output to itself", wrong_4_2_overwritten),
        ("ends inside the activation: the sum", wrong_4_2_inside),
        ("no shortcut at all", wrong_4_2_none),
        ("one shortcut around the whole stack", wrong_4_2_once),
        ("the way back is broken", wrong_4_2_in_place),
        ("the exact one", wrong_4_2_exact),
        ("the shortcut carries no gradient", wrong_4_2_detached),
        ("nothing is recorded", torch.no_grad()(right_4_2_built_in)),
        ("numbers differ", wrong_4_2_weighted),
    ],
    "4.3": [
        ("upside down", wrong_4_3_inverse),
        ("different seeds: divide", wrong_4_3_medians),
        ("You take the mean of the ratios", wrong_4_3_mean),
        ("Only one seed", wrong_4_3_first),
        ("not depend on `depth`", lambda depth, seeds: right_4_3_sorted(10, seeds)),
        ("You subtract the two gradients", wrong_4_3_difference),
        ("that is not the expected one", lambda depth, seeds: 7.5),
    ],
    "4.4": [
        ("still there in other words", wrong_4_4_same),
        ("too late", wrong_4_4_late),
        ("too early", wrong_4_4_early),
        ("now starts behind the norm", wrong_4_4_behind_norm),
        ("twice: once in the first sum", wrong_4_4_both),
        ("The second sum is gone", wrong_4_4_without_second),
        ("1 of 5 inputs", wrong_4_4_overwrites),
        ("numbers differ", wrong_4_4_unknown),
    ],
    "4.5": [
        ("by 1/√L. The number", scaled_4_5(lambda n: n**-0.5)),
        ("by 1/(2L)", scaled_4_5(lambda n: 0.5 / n)),
        ("by 1/L", scaled_4_5(lambda n: 1 / n)),
        ("by √(2L)", scaled_4_5(lambda n: math.sqrt(2 * n))),
        ("Only the attention", scaled_4_5(right_factor, parts=["att.out_proj"])),
        ("Only the feed-forward", scaled_4_5(right_factor, parts=["ff.layers.2"])),
        ("the biases are not", scaled_4_5(right_factor, of=["weight"])),
        ("the weights are not", scaled_4_5(right_factor, of=["bias"])),
        ("keep their old numbers", wrong_4_5_copy),
        ("raised RuntimeError", wrong_4_5_leaf),
        ("Nothing is returned", wrong_4_5_no_return),
        ("new parameters in place", wrong_4_5_new),
        ("expected [0.70711], got [0.02]", scaled_4_5(lambda n: 0.02)),
    ],
}
