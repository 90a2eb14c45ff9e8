"""The exercises of lesson 4 · Shortcut connections."""

import functools
import itertools
import math

import torch
from torch import nn

import gpt_helpers

from .engine import Exercise

# --- 4.1 --------------------------------------------------------------------------

ex = Exercise(
    "4.1",
    "The ratio for 10 layers",
    why="Each layer brings a factor of 3, so ten bring 3 to the power of ten; and a "
    "branch of two layers helps less than two branches of one.",
    tolerance=4e-4,
    needs={"ratio": ["no shortcuts", "one around each layer"]},
)


@ex.value
def slopes_of_ten_layers():
    slope = 0.5
    around = 1 + slope
    around_two = 1 + slope * slope
    plain = slope**10
    singles = around**10
    pairs = around_two**5
    return {
        "no shortcuts": plain,
        "one around each layer": singles,
        "one around each pair": pairs,
        "ratio": singles / plain,
    }


ex.slips("""
slope**10 → slope * 10 ; around**10 → around * 10 ; around_two**5 → around_two * 5
slope**10 → slope * 10
slope**10 → slope * 10 ; singles / plain → 59049.0
around**10 → around * 10
around_two**5 → around_two * 5
    You multiply a slope by the number of layers or pairs. Slopes in a row multiply each
    other: equal slopes make a power.
around = 1 + slope → around = slope
; around_two = 1 + slope * slope → around_two = slope * slope
around = 1 + slope → around = slope
around_two = 1 + slope * slope → around_two = slope * slope
    The 1 of the path around a branch is missing. The slope of x + f(x) is 1 + f'(x).
around**10 → 1 + 10 * 0.5 ; around_two**5 → 1 + 5 * 0.25
around**10 → 1 + 10 * 0.5
around_two**5 → 1 + 5 * 0.25
    You add the slopes of the branches to a single 1. Sums in a row multiply their
    slopes too: write down the slope of one sum, then its power.
around**10 → 1 + 0.5**10
around_two**5 → 1 + 0.25**5
    You put one shortcut around all the layers. Each layer or pair has its own, so there
    are several slopes of the form 1 + f'(x) to multiply.
slope**10 → slope**9 ; around**10 → around**9
slope**10 → slope**9
around**10 → around**9
    You raise to the power of nine. All ten layers lie between the input and the output,
    and the slope asked for is the output's with respect to the input.
around_two**5 → around**10
    In 'one around each pair' you put a shortcut around every layer. Here it leads
    around two layers at once, and between the two nothing is added.
around_two**5 → around_two**10
    In 'one around each pair' you count ten sums. Ten layers make five pairs.
around_two = 1 + slope * slope → around_two = 1 + slope
    In 'one around each pair' you give the branch the slope of one layer. Two layers
    stand in it.
around_two = 1 + slope * slope → around_two = 1 + 2 * slope
    In 'one around each pair' you add up the slopes of the two layers. They stand one
    behind the other, and such slopes multiply.
singles / plain → plain / singles
    Your ratio is upside down. It should say how many times larger the slope is with
    shortcuts than without.
singles / plain → singles - plain
    For the ratio you subtracted. A ratio is a quotient.
---
around = 1 + slope → around = 2
    One sum has not the slope 2. The path around the layer adds 1 to the layer's slope,
    which is one half.
around_two = 1 + slope * slope → around_two = slope * (1 + slope)
    In 'one around each pair' the shortcut leads around one layer of the two. It leads
    from the first one's input to the second one's output.
singles / plain → 3.0
singles / plain → 30.0
    Your ratio is that for one layer, or ten times that. The factors of ten layers
    multiply each other.
singles / plain → pairs / plain
singles / plain → singles / pairs
    For the ratio you use the shortcuts around pairs. The ratio asked for is that of
    'one around each layer' to 'no shortcuts'.
""")

# --- 4.2 --------------------------------------------------------------------------


def stacks_with_inputs():
    generator = torch.Generator().manual_seed(42)
    shapes = (
        ("3 → 3", (1, 3)),
        ("3 → 3 → 1", (2, 3)),
        ("4 → 4 → 2 → 2", (3, 4)),
        ("3 → 1 → 3 → 3 → 3", (2, 3)),
        ("5 → 5 → 5 → 5", (2, 4, 5)),
    )
    stacks = [
        (sizes, 2 * torch.randn(shape, generator=generator)) for sizes, shape in shapes
    ]
    asked = "the output", "the gradients of the weights"
    return [(sizes, x.clone(), what) for what in asked for sizes, x in stacks]


def run_forward_or_backward(answer, sizes, x, asked):
    widths = [int(width) for width in sizes.split(" → ")]
    linears = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(widths))
    output = answer(linears, x)
    if asked == "the output" or not isinstance(output, torch.Tensor):
        return output
    if not output.requires_grad:
        raise LookupError("nothing is recorded for the way back")
    weights = [linear.weight for linear in linears]
    gradients = torch.autograd.grad(output.sum(), weights, materialize_grads=True)
    return torch.cat([gradient.flatten() for gradient in gradients])


ex = Exercise(
    "4.2",
    "The forward of a deep network",
    why="This sum is why the first of 50 layers still learns.",
    inputs=stacks_with_inputs,
    call=run_forward_or_backward,
    tolerance=3e-5,
)


@ex.reference
def forward_with_shortcuts(linears, x):
    for linear in linears:
        output = gpt_helpers.GELU()(linear(x))
        if output.shape == x.shape:
            output = x + output
        x = output
    return x


ex.slips("""
output = x + output → pass
    There is no shortcut at all: each layer replaces what it was given. Where a layer
    keeps the shape, its input must be added to its output.
if output.shape == x.shape: → if True:
    You add the input where the shapes differ, too. PyTorch broadcasts it (3 → 1 then
    gives 3 numbers again) or raises an error (4 → 2). Compare the shapes of a layer's
    input and output before you add.
x + output → output + output
    Where you add, you add the layer's output to itself, because its input has been
    overwritten by then. Keep the input under a name of its own until the sum is made.
gpt_helpers.GELU()(linear(x)) → linear(x) ; x = output → x = gpt_helpers.GELU()(output)
    The shortcut ends inside the activation: the sum goes through GELU, whose slope
    multiplies the whole path again. Add the input to what GELU returns.
x + output → x * output
    You multiply input and output instead of adding them. Only a sum has a path of slope
    1; look at the operator.
x + output → x - output
x + output → output - x
    You subtract where you should add: look at the operator.
in linears: → in linears:⏎    start = x if linear is linears[0] else start
; output = x + output → pass ; return x → return start + x if x.shape == start.shape else x
    There is one shortcut around the whole stack. Each layer that keeps the shape needs
    its own: the sum belongs inside the loop.
in linears: → in linears:⏎    start = x if linear is linears[0] else start
; output.shape == x.shape → output.shape == start.shape ; x + output → start + output
    Every layer adds the input of the whole network. A shortcut leads around one layer:
    add what this layer was given.
output = x + output⏎x = output → x = x + output
    A layer that changes the shape is left out. It has no shortcut, but it still has to
    run: its output replaces x.
gpt_helpers.GELU()(linear(x)) → linear(x)
    GELU is missing: a layer is the linear part and the GELU behind it.
GELU()(linear(x)) → GELU()(linear(x)) if linear is not linears[-1] else linear(x)
    GELU is missing in the last layer. Here every layer ends with it.
gpt_helpers.GELU()(linear(x)) → nn.functional.gelu(linear(x))
    Your GELU is the exact one. `nn.GELU()` and `F.gelu` compute it unless told
    otherwise; GPT-2 uses the tanh form, the `GELU` of lesson 3.
x + output → x.add_(output)
    The output is right, but the way back is broken: something like `x += …` writes the
    sum into the very tensor that a layer has read, and backward needs what was read.
    Put the sum into a new tensor.
x + output → x.detach() + output
    The output is right, but the shortcut carries no gradient: something like
    `.detach()` or `.data` cuts it off from the way back, which is what it is for.
---
if output.shape == x.shape:⏎output = x + output → output = output + output
    In every layer the output is added to itself, whatever the shapes. Keep the layer's
    input under a name of its own, and add it where the shapes agree.
x + output → gpt_helpers.GELU()(x + output)
    GELU acts twice: once in the layer and once more on the sum. Nothing may come after
    the sum, or the path around the layer is no longer open.
x + output → x + x + output
    Where you add, the layer's input comes in twice: there are two sums for one
    shortcut.
output.shape == x.shape → output.shape != x.shape
    Your comparison is the wrong way round: you add where the shapes differ and replace
    where they agree.
if output.shape == x.shape: → if linear is not linears[-1]:
if output.shape == x.shape: → if linear is not linears[-1] and output.shape == x.shape:
    The last layer is an exception in your code. What decides is whether a layer keeps
    the shape, wherever it stands: 4 → 4 at the end has a shortcut, too.
gpt_helpers.GELU()(linear(x)) → linear(gpt_helpers.GELU()(x))
    GELU comes before the linear part. In a layer it comes after it.
linear(x) → linear(nn.functional.layer_norm(x, x.shape[-1:]))
    You normalize the input of each branch. That is what the lesson ends with, but this
    task asks for the layers and shortcuts alone.
x = output⏎return x → return output
    Only the first layer runs: your `return` stands inside the loop. Look at its
    indentation.
return x → return x.detach()
    The output is right, but it has no gradient: under something like `torch.no_grad()`
    nothing is recorded for the way back.
""")

# --- 4.3 --------------------------------------------------------------------------


def depths_and_seeds():
    return [(2, [6]), (2, [0, 1, 2]), (3, [4, 1, 7, 2, 5]), (4, [3, 8, 6])]


@functools.cache
def first_gradient(depth, use_shortcut, seed):
    torch.manual_seed(seed)
    linears = [nn.Linear(3, 3) for _ in range(depth)]
    x = torch.tensor([[1.0, 0.0, -1.0]])
    for linear in linears:
        output = gpt_helpers.GELU()(linear(x))
        x = x + output if use_shortcut else output
    x.mean().backward()
    return linears[0].weight.grad.abs().mean().item()


ex = Exercise(
    "4.3",
    "The ratio in a real network",
    why="One seed can be ten times off, the median of many is not.",
    inputs=depths_and_seeds,
    tolerance=1e-3,
)


@ex.reference
def median_ratio(depth, seeds):
    ratios, others = [], []
    for seed in seeds:
        helped = first_gradient(depth, True, seed)
        plain = first_gradient(depth, False, seed)
        ratios.append(helped / plain)
        others.append(plain)
    ratios, others = sorted(ratios), sorted(others)
    return ratios[len(seeds) // 2]


ex.slips("""
helped / plain → plain / helped
    Your ratio is upside down: it should be large when the shortcuts help. Divide the
    gradient with shortcuts by the one without.
helped / plain → helped ; ratios[len(seeds) // 2] → ratios[len(seeds) // 2] / others[len(seeds) // 2]
    You divide the median of one kind by the median of the other. The two medians may
    come from different seeds: divide first, seed by seed, then take the median.
return ratios[len(seeds) // 2] → return sum(ratios) / len(ratios)
    You take the mean of the ratios. One lucky seed carries it away; the median is the
    value in the middle.
return ratios[len(seeds) // 2] → return math.prod(ratios) ** (1 / len(ratios))
    You take the geometric mean of the ratios. The median is the value in the middle.
helped / plain → helped - plain
    You subtract the two gradients. A ratio is a quotient.
in seeds: → in seeds[:1]: ; // 2] → // len(seeds) - 1]
in seeds: → in seeds[-1:]: ; // 2] → // len(seeds) - 1]
    Only one seed counts in your result. Is a `return` inside the loop, or does each
    turn overwrite the ratio of the last? Collect the ratios in a list.
ratios, others = sorted(ratios), sorted(others) →
    You take the middle of an unsorted list. The median is the middle after sorting.
// 2] → // 2 - 1]
// 2] → // 2 + 1]
    The ratio you take stands beside the middle of the sorted list. The first place has
    the index 0.
return ratios[len(seeds) // 2] → return ratios[-1]
return ratios[len(seeds) // 2] → return ratios[0]
    You return the ratio at one end of the sorted list. Take the one in the middle.
depth, False → depth, True
    Your ratio is always 1: you compare a network with itself. Look at what you pass as
    `use_shortcut` the second time.
depth, False, seed → depth, False, seed + 1
    The two gradients of a ratio come from different seeds. Pass the same one to both,
    so that both networks start from the same weights.
---
helped / plain → helped
helped / plain → plain
    That is a gradient, not a ratio. Each seed needs both networks, and their gradients
    a quotient.
return ratios[len(seeds) // 2] → return ratios
    You return all the ratios; one number is wanted, the one in the middle of them when
    they are sorted.
depth, True → depth - 1, True ; depth, False → depth - 1, False
depth, True → depth + 1, True ; depth, False → depth + 1, False
    Your networks have a layer too few or too many. The lesson's `square_network` takes
    the number of layers and adds the 1 for the sizes itself.
in seeds: → in range(len(seeds)):
    You use the seeds 0, 1, 2 … as many as there are, instead of the numbers in `seeds`.
    Loop over the seeds themselves.
in seeds: → in range(15): ; // 2] → * 0 + 7]
in seeds: → in [123]: ; // 2] → * 0]
    Your result does not depend on `seeds`: you use the lesson's. Loop over what the
    function is given.
depth, True → 10, True ; depth, False → 10, False
    Your result does not depend on `depth`: you always build 10 layers. Use what the
    function is given, and pass the 10 when you call it.
""")

# --- 4.4 --------------------------------------------------------------------------


def stream_inputs():
    generator = torch.Generator().manual_seed(44)
    shapes = (1, 1, 4), (2, 3, 8), (3, 5, 6)
    streams = [torch.randn(shape, generator=generator) for shape in shapes]
    asked = "x afterwards", "the gradient of x"
    found = [(x, "what is returned") for x in streams]
    return found + [(streams[1].clone(), what) for what in asked]


def run_on_small_block(answer, x, asked):
    cfg = gpt_helpers.GPTConfig(
        emb_dim=x.shape[-1], n_heads=2, context_length=8, drop_rate=0.0
    )
    block = gpt_helpers.TransformerBlock(cfg)
    for norm in block.norm1, block.norm2:
        nn.init.normal_(norm.scale, mean=1.0, std=0.5)
        nn.init.normal_(norm.shift, std=0.5)
    start = x.requires_grad_()
    x = start.clone()
    returned = answer(block, x)
    if asked == "x afterwards":
        return x
    if asked == "the gradient of x" and isinstance(returned, torch.Tensor):
        return torch.autograd.grad((returned**2).sum(), start)[0]
    return returned


ex = Exercise(
    "4.4",
    "A block that forgets its attention",
    why="The second shortcut starts where the first sum ends, so the stream carries "
    "attention's result on to all later blocks.",
    inputs=stream_inputs,
    call=run_on_small_block,
    tolerance=3e-5,
)


@ex.reference
def run_block(block, x):
    shortcut = x
    x = block.att(block.norm1(x))
    x = x + shortcut
    shortcut = x
    x = block.ff(block.norm2(x))
    x = x + shortcut
    return x


ex.slips("""
given: x = x + shortcut⏎shortcut = x → x = x + shortcut
    The bug is still there in other words: the last sum adds the block's input. What was
    the residual stream just before the second part read it?
shortcut = x⏎x = block.ff(block.norm2(x)) → x = block.norm2(x)⏎shortcut = x⏎x = block.ff(x)
shortcut = x⏎x = block.att(block.norm1(x)) → x = block.norm1(x)⏎shortcut = x⏎x = block.att(x)
    A shortcut now starts behind the norm: what is added must be the stream as it was,
    not the normalized one.
shortcut = x⏎x = block.ff(block.norm2(x)) → x = block.ff(block.norm2(x))⏎shortcut = x
    You renew the shortcut too late: the feed-forward network has replaced x already, so
    its output is added to itself.
x = x + shortcut⏎shortcut = x → shortcut = x⏎x = x + shortcut
    You renew the shortcut too early, before the first sum: attention's result is added
    to itself, and the block's input is lost.
x = x + shortcut⏎shortcut = x → start = shortcut⏎x = x + shortcut⏎shortcut = x + start
    The block's input is in the result twice: once in the first sum, and once more
    because you add both the old shortcut and the new one at the end.
x = x + shortcut⏎return x → return x
    The second sum is gone. Each of the two parts has its own; the bug is in what the
    second one adds.
x = x + shortcut⏎shortcut = x → shortcut = x
    The first sum is gone, so the block's input is lost. Each of the two parts has a sum
    of its own.
block.norm1(x) → x
block.norm2(x) → x
    A part reads the stream without its norm. The norms were in their places; the bug is
    in what the second sum adds.
block.att(block.norm1(x)) → block.att(block.norm2(x)) ; block.ff(block.norm2(x)) → block.ff(block.norm1(x))
    The two norms are swapped. They were in their places; the bug is in what the second
    sum adds.
block.ff(block.norm2(x)) → block.ff(block.norm1(x))
block.att(block.norm1(x)) → block.att(block.norm2(x))
    One norm is used twice. The norms were in their places; the bug is in what the
    second sum adds.
shortcut = x⏎x = block.att(block.norm1(x))⏎x = x + shortcut → x += block.att(block.norm1(x))
shortcut = x⏎x = block.att(block.norm1(x))⏎x = x + shortcut⏎shortcut = x⏎x = block.ff(block.norm2(x))⏎x = x + shortcut
→ x += block.att(block.norm1(x))⏎x += block.ff(block.norm2(x))
    What is returned is right, but `+=` writes into the caller's x. The
    caller may still need it: put the sum into a new tensor.
---
shortcut = x⏎x = block.att → start = shortcut = x⏎x = block.att ; block.norm2(x) → block.norm2(start)
    Your feed-forward network reads the block's input, so the two parts run side by
    side. It should read what the first sum made.
x = block.att(block.norm1(x))⏎x = x + shortcut⏎shortcut = x⏎x = block.ff(block.norm2(x))
→ x = block.ff(block.norm2(x))⏎x = x + shortcut⏎shortcut = x⏎x = block.att(block.norm1(x))
    The feed-forward network comes first now. Attention was in its place; the bug is in
    what the second sum adds.
block.norm1(x) → x ; x = x + shortcut⏎shortcut = x → x = block.norm1(x + shortcut)⏎shortcut = x
; block.norm2(x) → x ; x = x + shortcut⏎return x → return block.norm2(x + shortcut)
    You moved the norms behind the sums. In GPT-2 they stand at the start of each
    branch, as they did; the bug is in what the second sum adds.
x = block.ff(block.norm2(x))⏎x = x + shortcut⏎return x → return x
    The feed-forward network has gone from the result. Keep both parts; the bug is in
    what the second sum adds.
""")

# --- 4.5 --------------------------------------------------------------------------


def factors_of_scaling(answer, stack):
    """By which factor the answer multiplies each ending, block by block."""
    cfg = gpt_helpers.GPTConfig(5, 4, 4, 2, 1, 0.0)
    n_blocks = int(stack.split()[0])
    blocks = nn.Sequential(
        *(gpt_helpers.TransformerBlock(cfg) for _ in range(n_blocks))
    )
    given = dict(blocks.named_parameters())
    before = {name: p.detach().clone() for name, p in given.items()}
    result = answer(blocks)
    if result is ...:
        return result
    found = {
        "what is returned": "the blocks" if result is blocks else type(result).__name__,
        "new parameters": [
            name for name, p in blocks.named_parameters() if p is not given[name]
        ],
        "changed though inside a branch": [],
    }
    for name, new in blocks.named_parameters():
        ending = name.partition(".")[2]
        if ending.startswith(("att.out_proj", "ff.layers.2")):
            a, b = before[name].double().flatten(), new.detach().double().flatten()
            factor = (a @ b / (a @ a)).item()
            multiplied = torch.allclose(factor * a, b, rtol=1e-4, atol=1e-7)
            factor = round(factor, 5) if multiplied else math.nan
            found.setdefault(f"factors of {ending}", []).append(factor)
        elif not torch.equal(before[name], new):
            found["changed though inside a branch"].append(name)
    return found


ex = Exercise(
    "4.5",
    "Scale the branches by 1/√(2L)",
    why="Variances of independent additions add up, so what all 2L branches add has "
    "now the variance of a single one.",
    inputs=lambda: [("1 block",), ("3 blocks",), ("5 blocks",)],
    call=factors_of_scaling,
    tolerance=1e-4,
)


@ex.reference
def scale_branch_endings(blocks):
    scale = (2 * len(blocks)) ** -0.5
    with torch.no_grad():
        for block in blocks:
            for ending in block.att.out_proj, block.ff.layers[2]:
                ending.weight *= scale
                ending.bias *= scale
    return blocks


ex.slips("""
return blocks →
    Nothing is returned. The task asks for `blocks` back.
ending.weight *= scale → ending.weight * scale ; ending.bias *= scale → ending.bias * scale
    The blocks keep their old numbers. `weight * scale` makes a new tensor, and so does
    a copy of a block: the parameters themselves must change.
torch.no_grad() → torch.enable_grad()
    PyTorch refuses to change a parameter in place while it records for backward. Look
    at how the lesson's `spread_after` is allowed to.
ending.weight *= scale → ending.weight = ending.weight * scale
ending.bias *= scale → ending.bias = ending.bias * scale
    PyTorch refuses a plain tensor where a parameter was. Change the parameter in place,
    as the lesson's `spread_after` does, instead of assigning a new tensor.
ending.weight *= scale → ending.weight = nn.Parameter(ending.weight * scale)
; ending.bias *= scale → ending.bias = nn.Parameter(ending.bias * scale)
    There are new parameters in place of the old ones. An optimizer that was given the
    old ones would train them on: change the parameters of these blocks themselves.
(2 * len(blocks)) ** -0.5 → len(blocks) ** -0.5
    You scale by 1/√L. The number under the root is that of the branches, and each block
    has two.
(2 * len(blocks)) ** -0.5 → 1 / (2 * len(blocks))
    You scale by 1/(2L). Variances add up, so it is the variance that must shrink by 2L,
    and the numbers by its root.
(2 * len(blocks)) ** -0.5 → 1 / len(blocks)
    You scale by 1/L: neither the 2 nor the root is there. Variances add up, one for
    each of the 2L branches, and a standard deviation is the root of a variance.
(2 * len(blocks)) ** -0.5 → (2 * len(blocks)) ** 0.5
    You scale by √(2L): the branches grow with the depth. Divide where you multiply, or
    look at the sign of the exponent.
(2 * len(blocks)) ** -0.5 → 2 * len(blocks) ** -0.5
    You scale by 2/√L: a power binds more tightly than a product, so only L went under
    the root. Put parentheses around 2 times L.
block.att.out_proj, block.ff.layers[2] → [block.att.out_proj]
    Only the attention branch is scaled. The feed-forward network ends a branch, too:
    each block has two sums.
block.att.out_proj, block.ff.layers[2] → [block.ff.layers[2]]
    Only the feed-forward branch is scaled. Attention ends a branch, too, with
    `out_proj`: each block has two sums.
block.ff.layers[2] → block.ff.layers[0]
    In the feed-forward network you scale the layer that opens the branch. What is added
    to the stream comes out of its last layer, behind the GELU.
block.ff.layers[2] → block.ff.layers[0], block.ff.layers[2]
    You scale both layers of the feed-forward network. The first one lies inside the
    branch; only the layer that ends a branch is scaled.
ending.bias *= scale → pass
    The weights are scaled, the biases are not. The bias of the last layer is part of
    what the branch adds.
ending.weight *= scale → pass
    The biases are scaled, the weights are not. What a branch adds comes from both.
---
(2 * len(blocks)) ** -0.5 → 24**-0.5
(2 * len(blocks)) ** -0.5 → 2**-0.5
    Your factor does not follow the number of blocks: it is always that of 12, or of
    one.
in blocks: → in blocks:⏎    scale = (2 * (1 + list(blocks).index(block))) ** -0.5
    Your factor follows the block's place in the stack. All blocks add to one sum, so
    all share one factor, which follows the number of blocks.
in block.att.out_proj, block.ff.layers[2] → in [block]
; ending.weight *= scale⏎ending.bias *= scale → [p.mul_(scale) for p in ending.parameters()]
    The right factor, but on too many parameters: layers inside the branches changed,
    too. Only the linear layer that ends each branch is scaled.
in block.att.out_proj, block.ff.layers[2] → in [m for m in block.modules() if type(m) is nn.Linear]
; ending.weight *= scale⏎ending.bias *= scale → [p.mul_(scale) for p in ending.parameters()]
    You scale every linear layer of the blocks. Only two of the six in a block end a
    branch; the other four lie inside.
in blocks: → in blocks[:1]:
in blocks: → in blocks[-1:]:
    Only one block is scaled. Is a `return` inside the loop, or are the lines that scale
    outside?
ending.weight *= scale → ending.weight.fill_(scale) ; ending.bias *= scale → ending.bias.fill_(scale)
ending.weight *= scale → ending.weight.normal_(std=0.02) ; ending.bias *= scale → ending.bias.zero_()
    You put other numbers in place of the weights and biases. Multiply the numbers that
    are there by the factor.
""")
