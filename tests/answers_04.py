"""Answers to the exercises of lesson 4 · Shortcut connections: right ones, and wrong ones with what is said."""

import math

import torch
import torch.nn.functional as F
from torch import nn

import gpt_helpers

# --- right ------------------------------------------------------------------------


def right_4_2_names(linears, x):
    gelu = gpt_helpers.GELU()
    for linear in linears:
        given, x = x, gelu(linear(x))
        if linear.in_features == linear.out_features:
            x = given + x
    return x


def right_4_2_built_in(linears, x):
    stream = x
    for i in range(len(linears)):
        branch = F.gelu(linears[i](stream), approximate="tanh")
        keeps = branch.shape[-1] == stream.shape[-1]
        stream = torch.add(branch, stream) if keeps else branch
    return stream


def right_4_2_double(linears, x):
    stream = x.double()
    for linear in linears:
        summed = stream @ linear.weight.double().T + linear.bias.double()
        inner = math.sqrt(2 / math.pi) * (summed + 0.044715 * summed.pow(3))
        output = summed / 2 * (1 + torch.tanh(inner))
        if len(linear.weight) == linear.weight.shape[1]:
            output += stream
        stream = output
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


def right_4_3_double(depth, seeds):
    ratios = []
    for seed in seeds:
        ratios.append(gradient_4_3(depth, True, seed, double=True))
        ratios[-1] /= gradient_4_3(depth, False, seed, double=True)
    return float(torch.tensor(ratios, dtype=torch.float64).quantile(0.5))


def right_4_4_book(block, x):
    shortcut = x
    x = block.att(block.norm1(x))
    x = x + shortcut
    shortcut = x
    x = block.ff(block.norm2(x))
    x = x + shortcut
    return x


def right_4_4_two_names(block, x):
    middle = block.att(block.norm1(x)).add(x)
    total = block.ff(block.norm2(middle))
    total += middle
    return total


def right_4_4_whole(block, x):
    return block(x)


def right_4_5_data(blocks):
    for block in blocks:
        for ending in (block.att.out_proj, block.ff.layers[-1]):
            for parameter in ending.parameters():
                parameter.data = parameter.data / math.sqrt(2 * len(blocks))


def right_4_5_by_name(blocks):
    endings = "out_proj.weight", "out_proj.bias", "layers.2.weight", "layers.2.bias"
    with torch.no_grad():
        for name, parameter in blocks.named_parameters():
            if name.endswith(endings):
                parameter.mul_(1 / (2 * len(blocks)) ** 0.5)
    return blocks


def right_4_5_state(blocks):
    state = blocks.state_dict()
    for name in state:
        if "out_proj" in name or "ff.layers.2" in name:
            state[name] = (state[name].double() * (2 * len(blocks)) ** -0.5).float()
    blocks.load_state_dict(state)


def right_4_5_new_parameters(blocks):
    for block in blocks:
        for ending in (block.att.out_proj, block.ff.layers[2]):
            ending.weight = nn.Parameter(ending.weight / (2 * len(blocks)) ** 0.5)
            ending.bias = nn.Parameter(ending.bias / (2 * len(blocks)) ** 0.5)


RIGHT = {
    "4.1": [
        {
            "no shortcuts": 1 / 1024,
            "one around each layer": math.pow(1 + 1 / 2, 10),
            "one around each pair": (1 + 0.5 * 0.5) ** 5,
            "ratio": 3**10,
        },
        {
            "no shortcuts": 0.000977,
            "one around each layer": 57.665,
            "one around each pair": 3.052,
            "ratio": 59049,
        },
    ],
    "4.2": [
        right_4_2_names,
        right_4_2_built_in,
        right_4_2_double,
        right_4_2_recursive,
    ],
    "4.3": [right_4_3_sorted, right_4_3_tensors, right_4_3_double],
    "4.4": [right_4_4_book, right_4_4_two_names, right_4_4_whole],
    "4.5": [
        right_4_5_data,
        right_4_5_by_name,
        right_4_5_state,
        right_4_5_new_parameters,
    ],
}


# --- wrong ------------------------------------------------------------------------


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


def wrong_4_2_overwritten_always(linears, x):
    for linear in linears:
        x = gpt_helpers.GELU()(linear(x))
        shortcut = x
        if shortcut.shape == x.shape:
            x = shortcut + x
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


def wrong_4_2_product(linears, x):
    for linear in linears:
        output = gpt_helpers.GELU()(linear(x))
        if output.shape == x.shape:
            output = torch.mul(output, x)
        x = output
    return x


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


def wrong_4_2_positions(linears, x):
    for i, linear in enumerate(linears):
        if i == len(linears) - 1:
            x = gpt_helpers.GELU()(linear(x))
        else:
            x = gpt_helpers.GELU()(linear(x)) + x
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


@torch.inference_mode()
def wrong_4_2_nothing_recorded(linears, x):
    return right_4_2_built_in(linears, x)


def wrong_4_2_order_of_the_product(linears, x):
    for linear in linears:
        x = gpt_helpers.GELU()(linear.weight @ x + linear.bias)
    return x


def wrong_4_3_inverse(depth, seeds):
    return median_4_3(
        [gradient_4_3(depth, False, s) / gradient_4_3(depth, True, s) for s in seeds]
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


def wrong_4_3_one_network(depth, seeds):
    return median_4_3(
        gradient_4_3(depth, True, s) / gradient_4_3(depth, True, s) for s in seeds
    )


def wrong_4_3_no_return(depth, seeds):
    right_4_3_sorted(depth, seeds)


def wrong_4_3_smallest(depth, seeds):
    return min(
        gradient_4_3(depth, True, s) / gradient_4_3(depth, False, s) for s in seeds
    )


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


def wrong_4_5_forgot_two(blocks):
    for block in blocks:
        for ending in (block.att.out_proj, block.ff.layers[2]):
            ending.weight.data /= math.sqrt(len(blocks))
            ending.bias.data /= math.sqrt(len(blocks))


def wrong_4_5_no_root(blocks):
    with torch.no_grad():
        for block in blocks:
            for ending in (block.att.out_proj, block.ff.layers[2]):
                ending.weight.div_(2 * len(blocks))
                ending.bias.div_(2 * len(blocks))


def wrong_4_5_copy(blocks):
    for block in blocks:
        for ending in (block.att.out_proj, block.ff.layers[2]):
            for parameter in ending.parameters():
                parameter = parameter / math.sqrt(2 * len(blocks))
    return blocks


def wrong_4_5_leaf(blocks):
    for block in blocks:
        for ending in (block.att.out_proj, block.ff.layers[2]):
            ending.bias /= math.sqrt(2 * len(blocks))


def wrong_4_5_assigned(blocks):
    for block in blocks:
        for ending in (block.att.out_proj, block.ff.layers[2]):
            ending.weight = ending.weight * (2 * len(blocks)) ** -0.5


def wrong_4_5_whole_feed_forward(blocks):
    for block in blocks:
        for part in (block.att.out_proj, block.ff):
            for parameter in part.parameters():
                parameter.data *= (2 * len(blocks)) ** -0.5


def wrong_4_5_only_weights(blocks):
    for block in blocks:
        block.att.out_proj.weight.data /= (2 * len(blocks)) ** 0.5
        block.ff.layers[2].weight.data /= (2 * len(blocks)) ** 0.5


def wrong_4_5_place(blocks):
    for i, block in enumerate(blocks):
        for ending in (block.att.out_proj, block.ff.layers[2]):
            ending.weight.data /= math.sqrt(2 * (i + 1))
            ending.bias.data /= math.sqrt(2 * (i + 1))


def wrong_4_5_root_of_a_number(blocks):
    return torch.sqrt(2 * len(blocks))


def wrong_4_5_unknown(blocks):
    for block in blocks:
        for ending in (block.att.out_proj, block.ff.layers[2]):
            ending.weight.data *= 0.02
            ending.bias.data *= 0.02


WRONG = {
    "4.1": [
        (
            "Ten layers make five pairs",
            {
                "no shortcuts": 2**-10,
                "one around each layer": 57.665,
                "one around each pair": (1 + 0.25) ** 10,
                "ratio": 59049,
            },
        ),
        (
            "you subtracted",
            {
                "no shortcuts": 1 / 1024,
                "one around each layer": 1.5**10,
                "one around each pair": 1.25**5,
                "ratio": 57.664,
            },
        ),
        (
            "  no shortcuts: 0.5",
            {
                "no shortcuts": 0.5,
                "one around each layer": 1.5**10,
                "one around each pair": 1.25**5,
                "ratio": 3**10,
            },
        ),
    ],
    "4.2": [
        ("PyTorch broadcasts it", wrong_4_2_broadcast),
        ("add the layer's output to itself", wrong_4_2_overwritten),
        ("the layer's output twice, in every layer", wrong_4_2_overwritten_always),
        ("ends inside the activation: the sum", wrong_4_2_inside),
        ("no shortcut at all", wrong_4_2_none),
        ("multiply input and output", wrong_4_2_product),
        ("one shortcut around the whole stack. Each", wrong_4_2_once),
        ("the way back is broken", wrong_4_2_in_place),
        ("because it is the last", wrong_4_2_positions),
        ("the exact one", wrong_4_2_exact),
        ("the shortcut carries no gradient", wrong_4_2_detached),
        ("nothing is recorded", wrong_4_2_nothing_recorded),
        ("numbers differ", wrong_4_2_weighted),
        ("of your code raised RuntimeError", wrong_4_2_order_of_the_product),
    ],
    "4.3": [
        ("upside down", wrong_4_3_inverse),
        ("different seeds", wrong_4_3_medians),
        ("the mean of the ratios", wrong_4_3_mean),
        ("Only the first seed", wrong_4_3_first),
        ("a network with itself", wrong_4_3_one_network),
        ("returns None", wrong_4_3_no_return),
        ("that is not the expected one", wrong_4_3_smallest),
    ],
    "4.4": [
        ("still there in other words", wrong_4_4_same),
        ("too late", wrong_4_4_late),
        ("too early", wrong_4_4_early),
        ("second shortcut now starts behind the norm", wrong_4_4_behind_norm),
        ("twice: once in the first sum", wrong_4_4_both),
        ("The second sum is gone", wrong_4_4_without_second),
        ("numbers differ", wrong_4_4_unknown),
    ],
    "4.5": [
        ("by 1/√L. The number", wrong_4_5_forgot_two),
        ("by 1/(2L)", wrong_4_5_no_root),
        ("keep their old numbers", wrong_4_5_copy),
        ("refuses to change a parameter in place", wrong_4_5_leaf),
        ("refuses a plain tensor", wrong_4_5_assigned),
        ("both layers of the feed-forward", wrong_4_5_whole_feed_forward),
        ("the biases are not", wrong_4_5_only_weights),
        ("the block's place in the stack", wrong_4_5_place),
        ("of your code raised TypeError", wrong_4_5_root_of_a_number),
        ("att.out_proj.weight: expected", wrong_4_5_unknown),
    ],
}
