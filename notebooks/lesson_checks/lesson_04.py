"""The exercises of lesson 4 · Shortcut connections."""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gpt_helpers

from .engine import EXERCISES, Exercise, same

ex = Exercise(
    "4.1",
    "The ratio for 10 layers",
    why="Each layer brings a factor of 3, so ten bring 3 to the power of ten; and a "
    "branch of two layers helps less than two branches of one.",
    tolerance=4e-4,
)

ex.reference(
    {
        "no shortcuts": 0.5**10,
        "one around each layer": 1.5**10,
        "one around each pair": 1.25**5,
        "ratio": 3.0**10,
    }
)

ex.mistake(
    "You multiply a slope by the number of layers. Layers in a row multiply their "
    "slopes with each other: ten equal slopes make a power."
)(
    {
        "no shortcuts": 0.5 * 10,
        "one around each layer": 1.5 * 10,
        "one around each pair": 1.25 * 5,
        "ratio": 3.0,
    }
)

ex.mistake(
    "With shortcuts you count the branches only. The slope of x + f(x) is 1 + f'(x): "
    "the 1 of the path around the branch is missing."
)(
    {
        "no shortcuts": 0.5**10,
        "one around each layer": 0.5**10,
        "one around each pair": 0.25**5,
        "ratio": 1.0,
    }
)

ex.mistake(
    "With shortcuts you add the slopes of the branches to a single 1. Sums in a row "
    "multiply their slopes too: write down the slope of one sum, then its power."
)(
    {
        "no shortcuts": 0.5**10,
        "one around each layer": 1 + 10 * 0.5,
        "one around each pair": 1 + 5 * 0.25,
        "ratio": (1 + 10 * 0.5) / 0.5**10,
    }
)

ex.mistake(
    "In 'one around each layer' you put one shortcut around all ten layers. Every "
    "layer has its own, so there are ten slopes of the form 1 + f'(x) to multiply."
)(
    {
        "no shortcuts": 0.5**10,
        "one around each layer": 1 + 0.5**10,
        "one around each pair": 1.25**5,
        "ratio": (1 + 0.5**10) / 0.5**10,
    }
)

ex.mistake(
    "You raise to the power of nine. All ten layers lie between the input and the "
    "output, and the slope asked for is the output's with respect to the input."
)(
    {
        "no shortcuts": 0.5**9,
        "one around each layer": 1.5**9,
        "one around each pair": 1.25**5,
        "ratio": 3.0**9,
    }
)

ex.mistake(
    "Look again at 'one around each layer': you take ten times the slope of one sum. "
    "Slopes in a row multiply each other, which makes a power."
)(
    {
        "no shortcuts": 0.5**10,
        "one around each layer": 1.5 * 10,
        "one around each pair": 1.25**5,
        "ratio": 1.5 * 10 / 0.5**10,
    }
)

ex.mistake(
    "Look again at 'one around each layer': one sum has not the slope 2. The path "
    "around the layer adds 1 to the layer's slope, which is one half."
)(
    {
        "no shortcuts": 0.5**10,
        "one around each layer": 2.0**10,
        "one around each pair": 1.25**5,
        "ratio": 2.0**10 / 0.5**10,
    }
)

ex.mistake(
    "Look again at 'one around each pair': you put a shortcut around every layer. "
    "Here it leads around two layers at once, and between the two nothing is added."
)(
    {
        "no shortcuts": 0.5**10,
        "one around each layer": 1.5**10,
        "one around each pair": 1.5**10,
        "ratio": 3.0**10,
    }
)

ex.mistake(
    "Look again at 'one around each pair': you count ten sums. Ten layers make five "
    "pairs."
)(
    {
        "no shortcuts": 0.5**10,
        "one around each layer": 1.5**10,
        "one around each pair": 1.25**10,
        "ratio": 3.0**10,
    }
)

ex.mistake(
    "Look again at 'one around each pair': the branch's slope is not 1. Its two "
    "layers stand one behind the other, and such slopes multiply instead of adding up."
)(
    {
        "no shortcuts": 0.5**10,
        "one around each layer": 1.5**10,
        "one around each pair": 2.0**5,
        "ratio": 3.0**10,
    }
)

ex.mistake(
    "Look again at 'one around each pair': you give the branch the slope of one layer, "
    "but two layers stand in it."
)(
    {
        "no shortcuts": 0.5**10,
        "one around each layer": 1.5**10,
        "one around each pair": 1.5**5,
        "ratio": 3.0**10,
    }
)

ex.mistake(
    "Look again at 'one around each pair': the 1 is missing. A pair with a shortcut is "
    "a sum too, of the input and of what its two layers make of it."
)(
    {
        "no shortcuts": 0.5**10,
        "one around each layer": 1.5**10,
        "one around each pair": 0.25**5,
        "ratio": 3.0**10,
    }
)

ex.mistake(
    "Look again at 'one around each pair': you put one shortcut around all five pairs. "
    "Each pair has its own."
)(
    {
        "no shortcuts": 0.5**10,
        "one around each layer": 1.5**10,
        "one around each pair": 1 + 0.25**5,
        "ratio": 3.0**10,
    }
)

ex.mistake(
    "Look again at 'one around each pair': you add the slopes of the pairs' branches "
    "to a single 1. Each pair is a sum with a 1 of its own, and such slopes multiply."
)(
    {
        "no shortcuts": 0.5**10,
        "one around each layer": 1.5**10,
        "one around each pair": 1 + 5 * 0.25,
        "ratio": 3.0**10,
    }
)

ex.mistake(
    "Look again at 'one around each pair': you let the shortcut lead around one layer "
    "of the two. It leads from the first one's input to the second one's output."
)(
    {
        "no shortcuts": 0.5**10,
        "one around each layer": 1.5**10,
        "one around each pair": 0.75**5,
        "ratio": 3.0**10,
    }
)

ex.mistake(
    "Look again at 'ratio': it is upside down. It should say how many times larger the "
    "slope is with shortcuts than without."
)(
    {
        "no shortcuts": 0.5**10,
        "one around each layer": 1.5**10,
        "one around each pair": 1.25**5,
        "ratio": 3.0**-10,
    }
)

ex.mistake("Look again at 'ratio': you subtracted. A ratio is a quotient.")(
    {
        "no shortcuts": 0.5**10,
        "one around each layer": 1.5**10,
        "one around each pair": 1.25**5,
        "ratio": 1.5**10 - 0.5**10,
    }
)

ex.mistake(
    "Look again at 'ratio': that is the ratio for one layer. Ten layers multiply it "
    "ten times."
)(
    {
        "no shortcuts": 0.5**10,
        "one around each layer": 1.5**10,
        "one around each pair": 1.25**5,
        "ratio": 3.0,
    }
)

ex.mistake(
    "Look again at 'ratio': you took 10 times the ratio for one layer. The factors of "
    "ten layers multiply each other."
)(
    {
        "no shortcuts": 0.5**10,
        "one around each layer": 1.5**10,
        "one around each pair": 1.25**5,
        "ratio": 30.0,
    }
)

ex.mistake(
    "Look again at 'ratio': you compare the shortcuts around pairs. The ratio asked "
    "for is that of 'one around each layer' to 'no shortcuts'."
)(
    {
        "no shortcuts": 0.5**10,
        "one around each layer": 1.5**10,
        "one around each pair": 1.25**5,
        "ratio": 1.25**5 / 0.5**10,
    }
)


# 4.2
def stacks_with_inputs():
    generator = torch.Generator().manual_seed(42)
    shapes = (
        ("3 → 3", (1, 3)),
        ("3 → 3 → 1", (2, 3)),
        ("4 → 4 → 2 → 2", (3, 4)),
        ("3 → 1 → 3 → 3 → 3", (2, 3)),
        ("5 → 5 → 5 → 5", (2, 4, 5)),
    )
    return [
        (sizes, 2 * torch.randn(shape, generator=generator)) for sizes, shape in shapes
    ]


def run_forward_and_backward(answer, sizes, x):
    """What the answer returns; an exception if that is right but its gradients not."""
    widths = [int(width) for width in sizes.split(" → ")]
    linears = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(widths))
    expected = EXERCISES["4.2"].right(linears, x.clone())
    output = answer(linears, x)
    if not (isinstance(output, Tensor) and same(expected, output, 1e-5)):
        return output
    weights = [linear.weight for linear in linears]
    wanted = torch.autograd.grad(expected.sum(), weights)
    if not output.requires_grad:
        raise ArithmeticError("the output is right, but it has no gradient")
    try:
        got = torch.autograd.grad(output.sum(), weights, allow_unused=True)
    except RuntimeError as error:
        raise BufferError("a tensor was overwritten that backward needs") from error
    if any(g is None or not same(w, g, 1e-4) for w, g in zip(wanted, got, strict=True)):
        raise ArithmeticError("the output is right, but its gradient is not")
    return output


ex = Exercise(
    "4.2",
    "The forward of a deep network",
    why="This sum is why the first of 50 layers still learns.",
    inputs=stacks_with_inputs,
    call=run_forward_and_backward,
)


@ex.reference
def _(linears, x):
    for linear in linears:
        output = gpt_helpers.GELU()(linear(x))
        x = x + output if output.shape == x.shape else output
    return x


@ex.mistake(
    "There is no shortcut at all: each layer replaces what it was given. Where a layer "
    "keeps the shape, its input must be added to its output."
)
def _(linears, x):
    for linear in linears:
        x = gpt_helpers.GELU()(linear(x))
    return x


@ex.mistake(
    "You add the input where the shapes differ, too. PyTorch broadcasts it (3 → 1 then "
    "gives 3 numbers again) or raises an error (4 → 2). Compare the shapes of a "
    "layer's input and output before you add."
)
def _(linears, x):
    for linear in linears:
        x = x + gpt_helpers.GELU()(linear(x))
    return x


@ex.mistake(
    "You add the layer's input after it has been overwritten: the sum is the layer's "
    "output twice, in every layer. Keep the input under a name of its own until the "
    "sum is made."
)
def _(linears, x):
    for linear in linears:
        x = 2 * gpt_helpers.GELU()(linear(x))
    return x


@ex.mistake(
    "Where you add, you add the layer's output to itself, because its input has been "
    "overwritten by then. Keep the input under a name of its own until the sum is made."
)
def _(linears, x):
    for linear in linears:
        output = gpt_helpers.GELU()(linear(x))
        x = 2 * output if output.shape == x.shape else output
    return x


@ex.mistake(
    "The shortcut ends inside the activation: the sum goes through GELU, whose slope "
    "multiplies the whole path again. Add the input to what GELU returns."
)
def _(linears, x):
    for linear in linears:
        summed = linear(x)
        x = gpt_helpers.GELU()(summed + x if summed.shape == x.shape else summed)
    return x


@ex.mistake(
    "Two things: the shortcut ends inside the activation, so that GELU acts on the "
    "sum; and you add where the shapes differ, too."
)
def _(linears, x):
    for linear in linears:
        x = gpt_helpers.GELU()(linear(x) + x)
    return x


@ex.mistake(
    "GELU acts twice: once in the layer and once more on the sum. Nothing may come "
    "after the sum, or the path around the layer is no longer open."
)
def _(linears, x):
    gelu = gpt_helpers.GELU()
    for linear in linears:
        output = gelu(linear(x))
        x = gelu(x + output) if output.shape == x.shape else output
    return x


@ex.mistake(
    "You multiply input and output instead of adding them. Only a sum has a path of "
    "slope 1; look at the operator."
)
def _(linears, x):
    for linear in linears:
        output = gpt_helpers.GELU()(linear(x))
        x = x * output if output.shape == x.shape else output
    return x


@ex.mistake(
    "Where you add, the layer's input comes in twice: there are two sums for one "
    "shortcut. Look for a line that adds again what is in the output already."
)
def _(linears, x):
    for linear in linears:
        output = gpt_helpers.GELU()(linear(x))
        x = x + x + output if output.shape == x.shape else output
    return x


@ex.mistake(
    "You subtract where you should add: the path around the layer keeps its 1, but the "
    "layer's output has the wrong sign."
)
def _(linears, x):
    for linear in linears:
        output = gpt_helpers.GELU()(linear(x))
        x = x - output if output.shape == x.shape else output
    return x


@ex.mistake(
    "You subtract the input from the output. The path around the layer then has the "
    "slope −1; look at the operator."
)
def _(linears, x):
    for linear in linears:
        output = gpt_helpers.GELU()(linear(x))
        x = output - x if output.shape == x.shape else output
    return x


@ex.mistake(
    "You take the mean of input and output, so that each shortcut has the slope one "
    "half and the path through all of them vanishes. Add, without dividing."
)
def _(linears, x):
    for linear in linears:
        output = gpt_helpers.GELU()(linear(x))
        x = (x + output) / 2 if output.shape == x.shape else output
    return x


@ex.mistake(
    "There is one shortcut around the whole stack. Each layer that keeps the shape "
    "needs its own: the sum belongs inside the loop."
)
def _(linears, x):
    output = x
    for linear in linears:
        output = gpt_helpers.GELU()(linear(output))
    return x + output if output.shape == x.shape else output


@ex.mistake(
    "There is one shortcut around the whole stack, and it is added even if the shapes "
    "differ. Each layer that keeps the shape needs its own, inside the loop."
)
def _(linears, x):
    output = x
    for linear in linears:
        output = gpt_helpers.GELU()(linear(output))
    return x + output


@ex.mistake(
    "Every layer adds the input of the whole network. A shortcut leads around one "
    "layer: add what this layer was given."
)
def _(linears, x):
    start = x
    for linear in linears:
        output = gpt_helpers.GELU()(linear(x))
        x = start + output if output.shape == start.shape else output
    return x


@ex.mistake(
    "The input of the whole network is added in every layer, whatever the shapes. A "
    "shortcut leads around one layer: add its own input, where the shapes agree."
)
def _(linears, x):
    start = x
    for linear in linears:
        x = start + gpt_helpers.GELU()(linear(x))
    return x


@ex.mistake(
    "A layer that changes the shape is left out. It has no shortcut, but it still has "
    "to run: its output replaces x."
)
def _(linears, x):
    for linear in linears:
        output = gpt_helpers.GELU()(linear(x))
        if output.shape == x.shape:
            x = x + output
    return x


@ex.mistake(
    "A layer that changes the shape is left out because you compare its sizes before "
    "you run it. It has no shortcut, but its output has to replace x."
)
def _(linears, x):
    for linear in linears:
        if linear.in_features == linear.out_features:
            x = x + gpt_helpers.GELU()(linear(x))
    return x


@ex.mistake(
    "Your comparison is the wrong way round: you add where the shapes differ and "
    "replace where they agree."
)
def _(linears, x):
    for linear in linears:
        output = gpt_helpers.GELU()(linear(x))
        x = output if output.shape == x.shape else x + output
    return x


@ex.mistake(
    "You leave the last layer without a shortcut because it is the last, and add in "
    "all the others. What decides is whether a layer keeps the shape, wherever it "
    "stands."
)
def _(linears, x):
    for linear in linears[:-1]:
        x = x + gpt_helpers.GELU()(linear(x))
    return gpt_helpers.GELU()(linears[-1](x))


@ex.mistake(
    "The last layer never gets a shortcut. What decides is whether a layer keeps the "
    "shape, wherever it stands: 4 → 4 at the end has one, too."
)
def _(linears, x):
    for linear in linears[:-1]:
        output = gpt_helpers.GELU()(linear(x))
        x = x + output if output.shape == x.shape else output
    return gpt_helpers.GELU()(linears[-1](x))


@ex.mistake("GELU is missing: a layer is the linear part and the GELU behind it.")
def _(linears, x):
    for linear in linears:
        output = linear(x)
        x = x + output if output.shape == x.shape else output
    return x


@ex.mistake("GELU is missing in the last layer. Here every layer ends with it.")
def _(linears, x):
    for i, linear in enumerate(linears):
        output = linear(x)
        if i + 1 < len(linears):
            output = gpt_helpers.GELU()(output)
        x = x + output if output.shape == x.shape else output
    return x


@ex.mistake(
    "GELU is missing where a layer changes the shape. Such a layer has no shortcut, "
    "but it does end with GELU."
)
def _(linears, x):
    for linear in linears:
        output = linear(x)
        same_shape = output.shape == x.shape
        x = x + gpt_helpers.GELU()(output) if same_shape else output
    return x


@ex.mistake(
    "The last layer is a bare Linear in your code, with neither GELU nor shortcut. "
    "Here it is a layer like the others: GELU, and a shortcut if it keeps the shape."
)
def _(linears, x):
    for linear in linears[:-1]:
        output = gpt_helpers.GELU()(linear(x))
        x = x + output if output.shape == x.shape else output
    return linears[-1](x)


@ex.mistake(
    "GELU acts only once, on what leaves the stack. Every layer ends with its own, "
    "before the shortcut is added."
)
def _(linears, x):
    for linear in linears:
        output = linear(x)
        x = x + output if output.shape == x.shape else output
    return gpt_helpers.GELU()(x)


@ex.mistake(
    "Two things are missing: the GELU at the end of each layer, and the shortcut "
    "around each layer that keeps the shape."
)
def _(linears, x):
    return nn.Sequential(*linears)(x)


@ex.mistake("GELU comes before the linear part. In a layer it comes after it.")
def _(linears, x):
    for linear in linears:
        output = linear(gpt_helpers.GELU()(x))
        x = x + output if output.shape == x.shape else output
    return x


@ex.mistake(
    "Your GELU is the exact one. `nn.GELU()` and `F.gelu` compute it unless told "
    "otherwise; GPT-2 uses the tanh form, the `GELU` of lesson 3."
)
def _(linears, x):
    for linear in linears:
        output = F.gelu(linear(x))
        x = x + output if output.shape == x.shape else output
    return x


@ex.mistake("The activation is ReLU. Use the `GELU` of lesson 3.")
def _(linears, x):
    for linear in linears:
        output = torch.relu(linear(x))
        x = x + output if output.shape == x.shape else output
    return x


@ex.mistake(
    "You normalize the input of each branch. That is what the lesson ends with, but "
    "this task asks for the layers and shortcuts alone."
)
def _(linears, x):
    for linear in linears:
        output = gpt_helpers.GELU()(linear(F.layer_norm(x, x.shape[-1:])))
        x = x + output if output.shape == x.shape else output
    return x


@ex.mistake(
    "Each layer runs twice: once to replace x, and once more, on its own output, for "
    "the sum. Keep the layer's input and add it to the output of the first run."
)
def _(linears, x):
    for linear in linears:
        output = gpt_helpers.GELU()(linear(x))
        if output.shape == x.shape:
            output = output + gpt_helpers.GELU()(linear(output))
        x = output
    return x


@ex.mistake(
    "Only the first layer runs: your `return` stands inside the loop. Look at its "
    "indentation."
)
def _(linears, x):
    output = gpt_helpers.GELU()(linears[0](x))
    return x + output if output.shape == x.shape else output


@ex.mistake(
    "The output is right, but the way back is broken: something like `x += …` writes "
    "the sum into the very tensor that a layer has read, and backward needs what was "
    "read. Put the sum into a new tensor."
)
def _(linears, x):
    for linear in linears:
        output = gpt_helpers.GELU()(linear(x))
        if output.shape == x.shape:
            x += output
        else:
            x = output
    return x


@ex.mistake(
    "The output is right, but the shortcut carries no gradient: something like "
    "`.detach()` or `.data` cuts it off from the way back, which is what it is for."
)
def _(linears, x):
    for linear in linears:
        output = gpt_helpers.GELU()(linear(x))
        x = x.detach() + output if output.shape == x.shape else output
    return x


@ex.mistake(
    "The output is right, but it has no gradient: under something like "
    "`torch.no_grad()` nothing is recorded for the way back."
)
@torch.no_grad()
def _(linears, x):
    return EXERCISES["4.2"].right(linears, x)


@ex.mistake(
    "The last layer is missing: the loop must run through all of `linears`, and the "
    "comparison of shapes sees to the shortcut."
)
def _(linears, x):
    return EXERCISES["4.2"].right(linears[:-1], x)


@ex.mistake(
    "The first layer has no shortcut. It keeps the shape as the others do, so it gets "
    "one too."
)
def _(linears, x):
    x = gpt_helpers.GELU()(linears[0](x))
    return EXERCISES["4.2"].right(linears[1:], x)


# 4.3
def depths_and_seeds():
    return [(2, [0, 1, 2]), (3, [4, 1, 7, 2, 5]), (4, [3, 8, 6])]


def first_gradient_of_stack(depth, seed, use_shortcut, normed):
    torch.manual_seed(seed)
    linears = [nn.Linear(3, 3) for _ in range(depth)]
    x = torch.tensor([[1.0, 0.0, -1.0]])
    for linear in linears:
        read = gpt_helpers.LayerNorm(3)(x) if normed else x
        output = gpt_helpers.GELU()(linear(read))
        x = x + output if use_shortcut else output
    x.mean().backward()
    return linears[0].weight.grad.abs().mean().item()


def first_gradients(depth, seeds, use_shortcut, normed=False):
    """The gradients, seed by seed; each is computed once for all the mistakes."""
    networks = [(depth, seed, use_shortcut, normed) for seed in seeds]
    for network in networks:
        if network not in first_gradients.known:
            first_gradients.known[network] = first_gradient_of_stack(*network)
    return [first_gradients.known[network] for network in networks]


first_gradients.known = {}


def ratios_by_seed(depth, seeds, normed=False):
    large = first_gradients(depth, seeds, True, normed)
    small = first_gradients(depth, seeds, False, normed)
    return [a / b for a, b in zip(large, small, strict=True)]


ex = Exercise(
    "4.3",
    "The ratio in a real network",
    why="One seed can be ten times off, the median of many is not.",
    inputs=depths_and_seeds,
    tolerance=1e-3,
)


@ex.reference
def _(depth, seeds):
    return sorted(ratios_by_seed(depth, seeds))[len(seeds) // 2]


@ex.mistake(
    "Your ratio is upside down: it should be large when the shortcuts help. Divide the "
    "gradient with shortcuts by the one without."
)
def _(depth, seeds):
    return 1 / sorted(ratios_by_seed(depth, seeds))[len(seeds) // 2]


@ex.mistake(
    "You divide the median of one kind by the median of the other. The two medians "
    "may come from different seeds: divide first, seed by seed, then take the median."
)
def _(depth, seeds):
    middle = len(seeds) // 2
    large = sorted(first_gradients(depth, seeds, True))[middle]
    return large / sorted(first_gradients(depth, seeds, False))[middle]


@ex.mistake(
    "You take the mean of the ratios. One lucky seed carries it away; the median is "
    "the value in the middle."
)
def _(depth, seeds):
    return sum(ratios_by_seed(depth, seeds)) / len(seeds)


@ex.mistake(
    "You divide the mean of one kind by the mean of the other. Divide seed by seed, "
    "and take the median of the ratios."
)
def _(depth, seeds):
    large = sum(first_gradients(depth, seeds, True))
    return large / sum(first_gradients(depth, seeds, False))


@ex.mistake("You subtract the two gradients. A ratio is a quotient.")
def _(depth, seeds):
    large = first_gradients(depth, seeds, True)
    small = first_gradients(depth, seeds, False)
    return sorted(a - b for a, b in zip(large, small, strict=True))[len(seeds) // 2]


@ex.mistake(
    "Only the first seed counts in your result. Is a `return` inside the loop, or the "
    "loop over the seeds missing?"
)
def _(depth, seeds):
    return ratios_by_seed(depth, seeds)[0]


@ex.mistake(
    "Only the last seed counts in your result. Collect the ratios of all seeds in a "
    "list before you take the median."
)
def _(depth, seeds):
    return ratios_by_seed(depth, seeds)[-1]


@ex.mistake(
    "You take the middle of an unsorted list. The median is the middle after sorting."
)
def _(depth, seeds):
    return ratios_by_seed(depth, seeds)[len(seeds) // 2]


@ex.mistake(
    "You sort the ratios, but the one you take stands one place before the middle."
)
def _(depth, seeds):
    return sorted(ratios_by_seed(depth, seeds))[len(seeds) // 2 - 1]


@ex.mistake(
    "You sort the ratios, but the one you take stands one place behind the middle. The "
    "first place has the index 0."
)
def _(depth, seeds):
    return sorted(ratios_by_seed(depth, seeds))[len(seeds) // 2 + 1]


@ex.mistake(
    "You return the largest ratio. That is one lucky seed; take the one in the middle."
)
def _(depth, seeds):
    return max(ratios_by_seed(depth, seeds))


@ex.mistake(
    "That is the median gradient with shortcuts, not a ratio. It still has to be "
    "compared, seed by seed, with the gradient without them."
)
def _(depth, seeds):
    return sorted(first_gradients(depth, seeds, True))[len(seeds) // 2]


@ex.mistake(
    "That is the median gradient without shortcuts, not a ratio. Each seed needs both "
    "networks."
)
def _(depth, seeds):
    return sorted(first_gradients(depth, seeds, False))[len(seeds) // 2]


@ex.mistake(
    "Your ratio is always 1: you compare a network with itself. Look at what you pass "
    "as `use_shortcut` the second time."
)
def _(depth, seeds):
    return 1.0


@ex.mistake(
    "You return the power of ten. That is the way to read it, but the function should "
    "return the ratio itself."
)
def _(depth, seeds):
    return math.log10(sorted(ratios_by_seed(depth, seeds))[len(seeds) // 2])


@ex.mistake(
    "You return all the ratios; one number is wanted, the one in the middle of them "
    "when they are sorted."
)
def _(depth, seeds):
    return ratios_by_seed(depth, seeds)


@ex.mistake(
    "Your networks have one layer too few: between n sizes there are n − 1 layers. "
    "The lesson's `square_network` takes the number of layers."
)
def _(depth, seeds):
    return sorted(ratios_by_seed(depth - 1, seeds))[len(seeds) // 2]


@ex.mistake(
    "Your networks have one layer too many. The lesson's `square_network` takes the "
    "number of layers and adds the 1 for the sizes itself."
)
def _(depth, seeds):
    return sorted(ratios_by_seed(depth + 1, seeds))[len(seeds) // 2]


@ex.mistake(
    "You measure the networks with a norm in each layer. The question is about Linear "
    "and GELU alone: the lesson's `square_network`."
)
def _(depth, seeds):
    return sorted(ratios_by_seed(depth, seeds, normed=True))[len(seeds) // 2]


@ex.mistake(
    "You use the seeds 0, 1, 2 … as many as there are, instead of the numbers in "
    "`seeds`. Loop over the seeds themselves."
)
def _(depth, seeds):
    return sorted(ratios_by_seed(depth, range(len(seeds))))[len(seeds) // 2]


@ex.mistake(
    "Your result does not depend on `seeds`: you always use the lesson's 15. Loop over "
    "what the function is given."
)
def _(depth, seeds):
    return sorted(ratios_by_seed(depth, range(15)))[7]


@ex.mistake(
    "Your result does not depend on `seeds`: you always use 123, the seed of the "
    "example. Loop over what the function is given."
)
def _(depth, seeds):
    return ratios_by_seed(depth, [123])[0]


@ex.mistake(
    "Your result does not depend on `depth`: you always build 10 layers. Use what the "
    "function is given, and pass the 10 when you call it."
)
def _(depth, seeds):
    return sorted(ratios_by_seed(10, seeds))[len(seeds) // 2]


# 4.4
def stream_inputs():
    generator = torch.Generator().manual_seed(44)
    shapes = (1, 2, 4), (2, 3, 8), (3, 5, 6)
    return [
        (
            f"a TransformerBlock of {shape[-1]} features",
            torch.randn(shape, generator=generator),
        )
        for shape in shapes
    ]


def run_on_small_block(answer, description, x):
    cfg = gpt_helpers.GPTConfig(
        emb_dim=x.shape[-1], n_heads=2, context_length=8, drop_rate=0.0
    )
    block = gpt_helpers.TransformerBlock(cfg)
    for norm in block.norm1, block.norm2:
        nn.init.normal_(norm.scale, mean=1.0, std=0.5)
        nn.init.normal_(norm.shift, std=0.5)
    return answer(block, x)


ex = Exercise(
    "4.4",
    "A block that forgets its attention",
    why="The second shortcut starts where the first sum ends, so the stream carries "
    "attention's result on to all later blocks.",
    inputs=stream_inputs,
    call=run_on_small_block,
)


@ex.reference
def _(block, x):
    x = x + block.att(block.norm1(x))
    return x + block.ff(block.norm2(x))


@ex.bug(
    "The bug is still there in other words: the last sum adds the block's input. What "
    "was the residual stream just before the second part read it?"
)
def _(block, x):
    shortcut = x
    x = block.att(block.norm1(x))
    x = x + shortcut
    x = block.ff(block.norm2(x))
    x = x + shortcut
    return x


@ex.mistake(
    "The second shortcut now starts behind the norm: what is added must be the stream "
    "as it was, not the normalized one."
)
def _(block, x):
    x = block.norm2(x + block.att(block.norm1(x)))
    return x + block.ff(x)


@ex.mistake(
    "The first shortcut now starts behind the norm: what is added must be the stream "
    "as it was, not the normalized one."
)
def _(block, x):
    x = block.norm1(x)
    x = x + block.att(x)
    return x + block.ff(block.norm2(x))


@ex.mistake(
    "Both shortcuts start behind their norms. What is added must be the stream as it "
    "was; only the branch reads the normalized one."
)
def _(block, x):
    x = block.norm1(x)
    x = x + block.att(x)
    x = block.norm2(x)
    return x + block.ff(x)


@ex.mistake(
    "You renew the shortcut too late: the feed-forward network has replaced x already, "
    "so its output is added to itself."
)
def _(block, x):
    x = x + block.att(block.norm1(x))
    return 2 * block.ff(block.norm2(x))


@ex.mistake(
    "You renew the shortcut too early, before the first sum: attention's result is "
    "added to itself, and the block's input is lost."
)
def _(block, x):
    attended = block.att(block.norm1(x))
    return attended + block.ff(block.norm2(attended + attended))


@ex.mistake(
    "Both sums add a tensor to itself: each part has replaced x before its input was "
    "kept."
)
def _(block, x):
    x = 2 * block.att(block.norm1(x))
    return 2 * block.ff(block.norm2(x))


@ex.mistake(
    "The block's input is in the result twice: once in the first sum, and once more "
    "because you add both the old shortcut and the new one at the end."
)
def _(block, x):
    attended = x + block.att(block.norm1(x))
    return x + attended + block.ff(block.norm2(attended))


@ex.mistake(
    "The second shortcut carries attention's result without the block's input. Keep "
    "the stream after the first sum, not before it."
)
def _(block, x):
    attended = block.att(block.norm1(x))
    return attended + block.ff(block.norm2(x + attended))


@ex.mistake(
    "The second sum is gone. Each of the two parts has its own; the bug is in what the "
    "second one adds."
)
def _(block, x):
    x = x + block.att(block.norm1(x))
    return block.ff(block.norm2(x))


@ex.mistake(
    "The first sum is gone, and the last one adds the block's input. Each of the two "
    "parts has a sum of its own, with what that part was given."
)
def _(block, x):
    attended = block.att(block.norm1(x))
    return x + block.ff(block.norm2(attended))


@ex.mistake(
    "The first sum is gone, so the block's input is lost. Each of the two parts has a "
    "sum of its own."
)
def _(block, x):
    attended = block.att(block.norm1(x))
    return attended + block.ff(block.norm2(attended))


@ex.mistake("Both sums are gone. The bug is in what the second one adds.")
def _(block, x):
    return block.ff(block.norm2(block.att(block.norm1(x))))


@ex.mistake(
    "Your feed-forward network reads the block's input, so the two parts run side by "
    "side. It should read what the first sum made."
)
def _(block, x):
    return x + block.att(block.norm1(x)) + block.ff(block.norm2(x))


@ex.mistake(
    "Attention's result has gone from the block: neither the feed-forward network nor "
    "the last sum reads it any more. Both should read what the first sum made."
)
def _(block, x):
    return x + block.ff(block.norm2(x))


@ex.mistake(
    "The feed-forward network reads the stream without its norm. The norms were in "
    "their places; the bug is in what the second sum adds."
)
def _(block, x):
    x = x + block.att(block.norm1(x))
    return x + block.ff(x)


@ex.mistake(
    "You moved the norms behind the sums. In GPT-2 they stand at the start of each "
    "branch, as they did; the bug is in what the second sum adds."
)
def _(block, x):
    x = block.norm1(x + block.att(x))
    return block.norm2(x + block.ff(x))


@ex.mistake(
    "The second part uses the first norm. The norms were in their places; the bug is "
    "in what the second sum adds."
)
def _(block, x):
    x = x + block.att(block.norm1(x))
    return x + block.ff(block.norm1(x))


@ex.mistake(
    "You multiply where the second sum was. It is a sum; the bug is in what it adds."
)
def _(block, x):
    x = x + block.att(block.norm1(x))
    return x * block.ff(block.norm2(x))


@ex.mistake(
    "The feed-forward network has gone from the result. Keep both parts; the bug is in "
    "what the second sum adds."
)
def _(block, x):
    return x + block.att(block.norm1(x))


# 4.5
def numbers_of_blocks():
    return [("1 block",), ("3 blocks",), ("5 blocks",)]


def factors_of_scaling(answer, description):
    """By which factor the answer multiplies each ending, block by block."""
    cfg = gpt_helpers.GPTConfig(
        vocab_size=5, emb_dim=4, n_heads=2, context_length=4, drop_rate=0.0
    )
    n_layers = int(description.split()[0])
    blocks = [gpt_helpers.TransformerBlock(cfg) for _ in range(n_layers)]
    before = [
        {name: p.detach().clone() for name, p in block.named_parameters()}
        for block in blocks
    ]
    blocks = nn.Sequential(*blocks)
    try:
        result = answer(blocks)
    except (RuntimeError, TypeError) as error:
        if "leaf Variable" in str(error):
            raise PermissionError(str(error)) from error
        if "cannot assign" in str(error):
            raise BufferError(str(error)) from error
        raise
    if result is ...:
        return result
    endings = "att.out_proj", "ff.layers.2"
    names = [f"{e}.{kind}" for e in endings for kind in ("weight", "bias")]
    factors, others = {name: [] for name in names}, set()
    for block, old in zip(blocks, before, strict=True):
        new = {name: p.detach() for name, p in block.named_parameters()}
        for name in names:
            a, b = old[name].double().flatten(), new[name].double().flatten()
            factor = (a @ b / (a @ a)).item()
            proportional = torch.allclose(factor * a, b, rtol=1e-4, atol=1e-7)
            factors[name].append(round(factor, 5) if proportional else math.nan)
        others |= {n for n in old if n not in names and not torch.equal(old[n], new[n])}
    return factors | {"also changed": sorted(others)}


ex = Exercise(
    "4.5",
    "Scale the branches by 1/√(2L)",
    why="Variances of independent additions add up, so what all 2L branches add has "
    "now the variance of a single one.",
    inputs=numbers_of_blocks,
    call=factors_of_scaling,
    tolerance=1e-4,
)


@ex.reference
@torch.no_grad()
def _(blocks):
    scale = (2 * len(blocks)) ** -0.5
    for block in blocks:
        for ending in block.att.out_proj, block.ff.layers[2]:
            ending.weight *= scale
            ending.bias *= scale


@ex.mistake(
    "The blocks keep their old numbers. `weight * scale` makes a new tensor, and so "
    "does a copy of a block: the parameters themselves must change."
)
def _(blocks):
    return blocks


@ex.mistake(
    "PyTorch refuses to change a parameter in place while it records for backward. "
    "Look at how the lesson's `spread_after` is allowed to."
)
def _(blocks):
    blocks[0].att.out_proj.weight *= 0.5


@ex.mistake(
    "PyTorch refuses a plain tensor where a parameter was. Change the parameter in "
    "place, as the lesson's `spread_after` does, instead of assigning a new tensor."
)
def _(blocks):
    blocks[0].att.out_proj.weight = torch.zeros(4, 4)


@ex.mistake(
    "You scale by 1/√L. The number under the root is that of the branches, and each "
    "block has two."
)
@torch.no_grad()
def _(blocks):
    scale = len(blocks) ** -0.5
    for block in blocks:
        for ending in block.att.out_proj, block.ff.layers[2]:
            ending.weight *= scale
            ending.bias *= scale


@ex.mistake(
    "You scale by 1/(2L). Variances add up, so it is the variance that must shrink by "
    "2L, and the numbers by its root."
)
@torch.no_grad()
def _(blocks):
    scale = 1 / (2 * len(blocks))
    for block in blocks:
        for ending in block.att.out_proj, block.ff.layers[2]:
            ending.weight *= scale
            ending.bias *= scale


@ex.mistake(
    "You scale by 1/L: neither the 2 nor the root is there. Variances add up, one for "
    "each of the 2L branches, and a standard deviation is the root of a variance."
)
@torch.no_grad()
def _(blocks):
    scale = 1 / len(blocks)
    for block in blocks:
        for ending in block.att.out_proj, block.ff.layers[2]:
            ending.weight *= scale
            ending.bias *= scale


@ex.mistake(
    "You scale by √(2L): the branches grow with the depth. Divide where you multiply, "
    "or look at the sign of the exponent."
)
@torch.no_grad()
def _(blocks):
    scale = (2 * len(blocks)) ** 0.5
    for block in blocks:
        for ending in block.att.out_proj, block.ff.layers[2]:
            ending.weight *= scale
            ending.bias *= scale


@ex.mistake(
    "You scale by 2/√L: a power binds more tightly than a product, so only L went "
    "under the root. Put parentheses around 2 times L."
)
@torch.no_grad()
def _(blocks):
    scale = 2 * len(blocks) ** -0.5
    for block in blocks:
        for ending in block.att.out_proj, block.ff.layers[2]:
            ending.weight *= scale
            ending.bias *= scale


@ex.mistake(
    "You scale by L/√2: in `1 / root * L` the L is multiplied, not divided by. Put "
    "the whole product under the root first."
)
@torch.no_grad()
def _(blocks):
    scale = 2**-0.5 * len(blocks)
    for block in blocks:
        for ending in block.att.out_proj, block.ff.layers[2]:
            ending.weight *= scale
            ending.bias *= scale


@ex.mistake(
    "Your factor is always that of 12 blocks. It has to follow the number of blocks "
    "that the function is given."
)
@torch.no_grad()
def _(blocks):
    for block in blocks:
        for ending in block.att.out_proj, block.ff.layers[2]:
            ending.weight *= 24**-0.5
            ending.bias *= 24**-0.5


@ex.mistake(
    "Your factor is always 1/√2, that of a single block. It has to follow the number "
    "of blocks that the function is given."
)
@torch.no_grad()
def _(blocks):
    for block in blocks:
        for ending in block.att.out_proj, block.ff.layers[2]:
            ending.weight *= 2**-0.5
            ending.bias *= 2**-0.5


@ex.mistake(
    "Your factor follows the block's place in the stack. All blocks add to one sum, so "
    "all share one factor, which follows the number of blocks."
)
@torch.no_grad()
def _(blocks):
    for i, block in enumerate(blocks, start=1):
        for ending in block.att.out_proj, block.ff.layers[2]:
            ending.weight *= (2 * i) ** -0.5
            ending.bias *= (2 * i) ** -0.5


@ex.mistake(
    "Only the attention branch is scaled. The feed-forward network ends a branch, too: "
    "each block has two sums."
)
@torch.no_grad()
def _(blocks):
    scale = (2 * len(blocks)) ** -0.5
    for block in blocks:
        block.att.out_proj.weight *= scale
        block.att.out_proj.bias *= scale


@ex.mistake(
    "Only the feed-forward branch is scaled. Attention ends a branch, too, with "
    "`out_proj`: each block has two sums."
)
@torch.no_grad()
def _(blocks):
    scale = (2 * len(blocks)) ** -0.5
    for block in blocks:
        block.ff.layers[2].weight *= scale
        block.ff.layers[2].bias *= scale


@ex.mistake(
    "In the feed-forward network you scale the layer that opens the branch. What is "
    "added to the stream comes out of its last layer, behind the GELU."
)
@torch.no_grad()
def _(blocks):
    scale = (2 * len(blocks)) ** -0.5
    for block in blocks:
        for ending in block.att.out_proj, block.ff.layers[0]:
            ending.weight *= scale
            ending.bias *= scale


@ex.mistake(
    "You scale both layers of the feed-forward network. The first one lies inside the "
    "branch; only the layer that ends a branch is scaled."
)
@torch.no_grad()
def _(blocks):
    scale = (2 * len(blocks)) ** -0.5
    for block in blocks:
        for ending in block.att.out_proj, block.ff.layers[0], block.ff.layers[2]:
            ending.weight *= scale
            ending.bias *= scale


@ex.mistake(
    "The right factor, but on too many parameters: layers inside the branches changed, "
    "too. Only the linear layer that ends each branch is scaled."
)
@torch.no_grad()
def _(blocks):
    scale = (2 * len(blocks)) ** -0.5
    for parameter in blocks.parameters():
        parameter *= scale


@ex.mistake(
    "You scale every linear layer of the blocks. Only two of the six in a block end a "
    "branch; the other four lie inside."
)
@torch.no_grad()
def _(blocks):
    scale = (2 * len(blocks)) ** -0.5
    for part in blocks.modules():
        if isinstance(part, nn.Linear):
            for parameter in part.parameters():
                parameter *= scale


@ex.mistake(
    "The weights are scaled, the biases are not. The bias of the last layer is part of "
    "what the branch adds."
)
@torch.no_grad()
def _(blocks):
    scale = (2 * len(blocks)) ** -0.5
    for block in blocks:
        for ending in block.att.out_proj, block.ff.layers[2]:
            ending.weight *= scale


@ex.mistake(
    "The biases are scaled, the weights are not. What a branch adds comes from both."
)
@torch.no_grad()
def _(blocks):
    scale = (2 * len(blocks)) ** -0.5
    for block in blocks:
        for ending in block.att.out_proj, block.ff.layers[2]:
            ending.bias *= scale


@ex.mistake(
    "Only the first block is scaled. Is a `return` inside the loop?",
)
@torch.no_grad()
def _(blocks):
    scale = (2 * len(blocks)) ** -0.5
    for ending in blocks[0].att.out_proj, blocks[0].ff.layers[2]:
        ending.weight *= scale
        ending.bias *= scale


@ex.mistake(
    "Only the last block is scaled. Are the lines that scale inside the loop?",
)
@torch.no_grad()
def _(blocks):
    scale = (2 * len(blocks)) ** -0.5
    for ending in blocks[-1].att.out_proj, blocks[-1].ff.layers[2]:
        ending.weight *= scale
        ending.bias *= scale


@ex.mistake(
    "Every ending is scaled once for each block, L times in all: there is a loop over "
    "the blocks inside another one."
)
@torch.no_grad()
def _(blocks):
    scale = (2 * len(blocks)) ** -(0.5 * len(blocks))
    for block in blocks:
        for ending in block.att.out_proj, block.ff.layers[2]:
            ending.weight *= scale
            ending.bias *= scale


@ex.mistake(
    "You put the factor itself in place of the weights and biases. Multiply the "
    "numbers that are there by it."
)
@torch.no_grad()
def _(blocks):
    scale = (2 * len(blocks)) ** -0.5
    for block in blocks:
        for ending in block.att.out_proj, block.ff.layers[2]:
            ending.weight.fill_(scale)
            ending.bias.fill_(scale)


@ex.mistake(
    "You draw new weights and set the biases to zero. That is how GPT-2 starts, but "
    "here the numbers that are there should be multiplied."
)
@torch.no_grad()
def _(blocks):
    for block in blocks:
        for ending in block.att.out_proj, block.ff.layers[2]:
            ending.weight.normal_(std=0.02)
            ending.bias.zero_()
