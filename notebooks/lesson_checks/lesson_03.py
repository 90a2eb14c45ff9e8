"""The exercises of lesson 3 · GELU and the feed-forward network."""

import math

import torch
import torch.nn.functional as F
from torch import nn

import gpt_helpers

from .engine import Exercise


def numbers_to_bend():
    generator = torch.Generator().manual_seed(31)
    return [
        (torch.tensor([-1.0, 0.0, 2.0]),),
        (torch.linspace(-6, 6, 101),),
        (torch.randn(2, 5, generator=generator),),
        (2 * torch.randn(2, 3, 4, generator=generator),),
    ]


def what_tanh_gets(x, factor=(2 / math.pi) ** 0.5, constant=0.044715, power=3):
    return factor * (x + constant * x**power)


ex = Exercise(
    "3.1",
    "GELU in the tanh form",
    why="In one pass of GPT-2 124M it bends 36,864 numbers for every token.",
    inputs=numbers_to_bend,
    tolerance=2e-6,
)
ex.reference(lambda x: 0.5 * x * (1 + torch.tanh(what_tanh_gets(x))))

# Another form altogether.
ex.mistake(
    "This is the exact form, with the error function, as in `F.gelu(x)`. GPT-2 was "
    "trained with the tanh form; the two differ by up to 4.7e-4, and nothing warns you."
)(lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))))
ex.mistake(
    "This is the exact form, with the error function and without its half in front. "
    "GPT-2 was trained with the tanh form."
)(lambda x: x * (1 + torch.erf(x / math.sqrt(2))))
ex.mistake(
    "The error function of x itself stands where the tanh should. GPT-2 was trained "
    "with the tanh form."
)(lambda x: 0.5 * x * (1 + torch.erf(x)))
ex.mistake(
    "The error function stands where the tanh should. The cube is there to mend the "
    "tanh; the error function needs no mending."
)(lambda x: 0.5 * x * (1 + torch.erf(what_tanh_gets(x))))
ex.mistake(
    "This is the coarser approximation by a sigmoid, with a factor of 1.702 and no cube. "
    "GPT-2 was trained with the tanh form."
)(lambda x: x * torch.sigmoid(1.702 * x))
ex.mistake("This is SiLU, x·σ(x). Look at the formula of the tanh form.")(
    lambda x: x * torch.sigmoid(x)
)
ex.mistake(
    "This is ReLU, which multiplies by 0 or 1. GELU multiplies by a share in between."
)(lambda x: x.clamp(min=0))

# Around the tanh.
ex.mistake(
    "All values are twice too large. 1 + tanh runs from 0 to 2, the share from 0 to 1: "
    "look for the half in front."
)(lambda x: x * (1 + torch.tanh(what_tanh_gets(x))))
ex.mistake(
    "The 1 is missing beside the tanh. As it stands, negative numbers come out "
    "positive, and large ones are halved."
)(lambda x: 0.5 * x * torch.tanh(what_tanh_gets(x)))
ex.mistake("Both the half in front and the 1 beside the tanh are missing.")(
    lambda x: x * torch.tanh(what_tanh_gets(x))
)
ex.mistake(
    "This is the tanh alone, from −1 to 1. It still has to become a share from 0 to 1, "
    "and the share a factor of x."
)(lambda x: torch.tanh(what_tanh_gets(x)))
ex.mistake(
    "The sign is wrong at every place: large positive numbers must come out as they are."
)(lambda x: -0.5 * x * (1 + torch.tanh(what_tanh_gets(x))))
ex.mistake(
    "The tanh is subtracted from 1, so negative numbers pass and positive ones are "
    "muted. Look at the sign."
)(lambda x: 0.5 * x * (1 - torch.tanh(what_tanh_gets(x))))
ex.mistake(
    "This is the share alone. GELU is the number times its share: x is missing as a "
    "factor."
)(lambda x: 0.5 * (1 + torch.tanh(what_tanh_gets(x))))
ex.mistake("Both the factor x and the half in front are missing.")(
    lambda x: 1 + torch.tanh(what_tanh_gets(x))
)
ex.mistake(
    "The tanh is added to x/2 instead of multiplying it: look at the brackets around "
    "1 + tanh."
)(lambda x: 0.5 * x * 1 + torch.tanh(what_tanh_gets(x)))
ex.mistake(
    "The tanh is not multiplied by x: it is added to x, and the half taken of the sum. "
    "Look at the brackets around 1 + tanh."
)(lambda x: 0.5 * (x + torch.tanh(what_tanh_gets(x))))
ex.mistake(
    "x/2 is added where it should multiply: a star is missing before the bracket with "
    "1 + tanh."
)(lambda x: 0.5 * x + (1 + torch.tanh(what_tanh_gets(x))))
ex.mistake(
    "The half acts on the 1 alone, not on the tanh: look at the brackets around "
    "1 + tanh."
)(lambda x: x * (0.5 * 1 + torch.tanh(what_tanh_gets(x))))
ex.mistake(
    "The half acts on the tanh alone, not on the 1: look at the brackets around "
    "1 + tanh."
)(lambda x: x * (1 + 0.5 * torch.tanh(what_tanh_gets(x))))
ex.mistake(
    "A sigmoid stands where the tanh should. It runs from 0 to 1, the tanh from −1 to 1."
)(lambda x: 0.5 * x * (1 + torch.sigmoid(what_tanh_gets(x))))
ex.mistake("This is what the tanh gets. The steps around it are left to do.")(
    what_tanh_gets
)

# The factor.
ex.mistake(
    "The root is taken of 2π, which gives about 2.5. Look at what stands under the "
    "root: a fraction below 1."
)(
    lambda x: (
        0.5 * x * (1 + torch.tanh(what_tanh_gets(x, factor=math.sqrt(2 * math.pi))))
    )
)
ex.mistake(
    "The root is taken of π/2, so the fraction is upside down: the factor must be "
    "below 1."
)(
    lambda x: (
        0.5 * x * (1 + torch.tanh(what_tanh_gets(x, factor=math.sqrt(math.pi / 2))))
    )
)
ex.mistake(
    "The factor inside the tanh is nearly right: was π cut short to 3.14? Take `math.pi`."
)(lambda x: 0.5 * x * (1 + torch.tanh(what_tanh_gets(x, factor=math.sqrt(2 / 3.14)))))
ex.mistake(
    "The factor inside the tanh is rounded to 0.8. Let Python compute the root; the "
    "difference shows."
)(lambda x: 0.5 * x * (1 + torch.tanh(what_tanh_gets(x, factor=0.8))))
ex.mistake(
    "The factor inside the tanh is rounded to 0.798. Let Python compute the root; the "
    "difference shows."
)(lambda x: 0.5 * x * (1 + torch.tanh(what_tanh_gets(x, factor=0.798))))
ex.mistake(
    "The factor inside the tanh is rounded to 0.7979. Let Python compute the root; the "
    "difference is small, but it shows."
)(lambda x: 0.5 * x * (1 + torch.tanh(what_tanh_gets(x, factor=0.7979))))
ex.mistake(
    "The root covers the sum with the cube as well, and has no value for negative "
    "numbers (nan). It covers the fraction alone: look at where its bracket closes."
)(lambda x: 0.5 * x * (1 + torch.tanh(what_tanh_gets(x, factor=2 / math.pi).sqrt())))
ex.mistake("The factor inside the tanh is 2/π: its square root is missing.")(
    lambda x: 0.5 * x * (1 + torch.tanh(what_tanh_gets(x, factor=2 / math.pi)))
)
ex.mistake("The factor inside the tanh is π/2: upside down, and without its root.")(
    lambda x: 0.5 * x * (1 + torch.tanh(what_tanh_gets(x, factor=math.pi / 2)))
)
ex.mistake(
    "The root covers only the 2, so the factor is √2/π. It covers the whole fraction: "
    "look at where its bracket closes."
)(
    lambda x: (
        0.5 * x * (1 + torch.tanh(what_tanh_gets(x, factor=math.sqrt(2) / math.pi)))
    )
)
ex.mistake(
    "The factor inside the tanh is 1/√2. That one belongs to the error function; the "
    "tanh needs another to have the same slope at 0."
)(lambda x: 0.5 * x * (1 + torch.tanh(what_tanh_gets(x, factor=math.sqrt(0.5)))))
ex.mistake(
    "What the tanh gets is half of what it should be. If the factor is 1/√(2π), the 2 "
    "belongs above the line of the fraction; if a sigmoid stands for the tanh, "
    "(1 + tanh(z))/2 is the sigmoid of 2z."
)(lambda x: x * torch.sigmoid(what_tanh_gets(x)))
ex.mistake(
    "There is no factor in front of the sum inside the tanh. Look at the root in the "
    "formula."
)(lambda x: 0.5 * x * (1 + torch.tanh(what_tanh_gets(x, factor=1))))
ex.mistake(
    "The root multiplies only x, not the cube: look at the brackets around the sum."
)(lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * x + 0.044715 * x**3)))
ex.mistake(
    "The root multiplies only the cube, not x: look at the brackets around the sum."
)(lambda x: 0.5 * x * (1 + torch.tanh(x + math.sqrt(2 / math.pi) * 0.044715 * x**3)))

# The cube.
ex.mistake(
    "The second term inside the tanh has the power 2. A square has the same sign on "
    "both sides of 0 and pushes negative numbers the wrong way: look at the exponent."
)(lambda x: 0.5 * x * (1 + torch.tanh(what_tanh_gets(x, power=2))))
ex.mistake(
    "Two things are wrong: the second term inside the tanh has the power 2 instead of 3, "
    "and the half in front is missing."
)(lambda x: x * (1 + torch.tanh(what_tanh_gets(x, power=2))))
ex.mistake("x is multiplied by 3 instead of raised to the power 3: look at the stars.")(
    lambda x: 0.5 * x * (1 + torch.tanh(what_tanh_gets(x, constant=0.134145, power=1)))
)
ex.mistake("The second term inside the tanh has no power: look at the exponent.")(
    lambda x: 0.5 * x * (1 + torch.tanh(what_tanh_gets(x, power=1)))
)
ex.mistake("The constant before the cube is ten times too small: count its zeros.")(
    lambda x: 0.5 * x * (1 + torch.tanh(what_tanh_gets(x, constant=0.0044715)))
)
ex.mistake("The constant before the cube is ten times too large: count its zeros.")(
    lambda x: 0.5 * x * (1 + torch.tanh(what_tanh_gets(x, constant=0.44715)))
)
ex.mistake(
    "The constant before the cube lost a digit: after the zero come two fours in a row."
)(lambda x: 0.5 * x * (1 + torch.tanh(what_tanh_gets(x, constant=0.04715))))
ex.mistake("Two digits of the constant before the cube have changed places.")(
    lambda x: 0.5 * x * (1 + torch.tanh(what_tanh_gets(x, constant=0.044175)))
)
ex.mistake(
    "The constant before the cube is the textbook's 2/(3π) − 1/6. GPT-2's is a little "
    "smaller."
)(
    lambda x: (
        0.5 * x * (1 + torch.tanh(what_tanh_gets(x, constant=2 / 3 / math.pi - 1 / 6)))
    )
)
ex.mistake(
    "The constant before the cube is cut short to 0.0447. Keep all of its digits: the "
    "difference shows."
)(lambda x: 0.5 * x * (1 + torch.tanh(what_tanh_gets(x, constant=0.0447))))
ex.mistake(
    "The cube stands outside the tanh, beside it. It belongs inside, where it can only "
    "bend the curve, not carry it away: look at the brackets."
)(lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * x) + 0.044715 * x**3))
ex.mistake("The cube comes without its constant.")(
    lambda x: 0.5 * x * (1 + torch.tanh(what_tanh_gets(x, constant=1)))
)
ex.mistake(
    "The constant is raised to the power 3 together with x. The power acts on x alone: "
    "look at the brackets."
)(lambda x: 0.5 * x * (1 + torch.tanh(what_tanh_gets(x, constant=0.044715**3))))
ex.mistake(
    "The whole sum is raised to the power 3: look at the brackets. The power acts on "
    "one x alone."
)(
    lambda x: (
        0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x) ** 3))
    )
)
ex.mistake(
    "The cube is subtracted. The tanh lags behind the error function further out, so "
    "the push must go outward."
)(lambda x: 0.5 * x * (1 + torch.tanh(what_tanh_gets(x, constant=-0.044715))))
ex.mistake(
    "The constant is added to x, and their sum multiplies the cube: look at the brackets."
)(lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715) * x**3)))
ex.mistake("x and the cube are multiplied with each other, not added.")(
    lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * 0.044715 * x**4))
)
ex.mistake(
    "The cube stands alone inside the tanh: the x before it is missing from the sum."
)(lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * 0.044715 * x**3)))
ex.mistake(
    "The term with the cube is missing. Without it the tanh lags behind, by up to "
    "0.0336."
)(lambda x: 0.5 * x * (1 + torch.tanh(what_tanh_gets(x, constant=0))))
ex.mistake("The tanh is taken of x itself: its factor and the cube are missing.")(
    lambda x: 0.5 * x * (1 + torch.tanh(x))
)


# 3.2

ex = Exercise(
    "3.2",
    "A feed-forward network with another ratio",
    why="At GPT-2's ratio of 4, nearly two thirds of a block's weights lie in this part.",
)
ex.reference(
    {
        "hidden": (2, 3, 128),
        "output": (2, 3, 64),
        "first weight": (128, 64),
        "parameters": 16_576,
    }
)
ex.mistake(
    "The ratio is applied to the wrong side: the first layer makes room, it has more "
    "outputs than inputs. Multiply C by the ratio."
)(ex.right | {"hidden": (2, 3, 32), "first weight": (32, 64), "parameters": 4_192})
ex.mistake("These are the sizes at ratio 4, as in GPT-2. Here the ratio is 2.")(
    ex.right | {"hidden": (2, 3, 256), "first weight": (256, 64), "parameters": 33_088}
)
ex.mistake(
    "All but the first weight is right, and that is transposed. A linear layer's weight "
    "has one row for each output and one column for each input."
)(ex.right | {"first weight": (64, 128)})
ex.mistake(
    "All but the output is right. The second layer narrows: what shape must the output "
    "have to be added to the input?"
)(ex.right | {"output": (2, 3, 128)})
ex.mistake(
    "The shapes of hidden and output are exchanged. The first layer makes the hidden "
    "units and widens, the second makes the output and narrows."
)(ex.right | {"hidden": (2, 3, 64), "output": (2, 3, 128)})
ex.mistake(
    "All but the first weight is right, and that is a square. How many features go into "
    "the first layer, and how many come out?"
)(ex.right | {"first weight": (64, 64)})
ex.mistake(
    "The shapes are right, the count lacks the biases: each layer has one for each of "
    "its outputs."
)(ex.right | {"parameters": 16_384})
ex.mistake(
    "The count lacks the biases, one for each output of a layer; and the first weight "
    "is transposed: it has one row for each output, one column for each input."
)(ex.right | {"first weight": (64, 128), "parameters": 16_384})
ex.mistake(
    "The shapes are right, the count has 128 biases. Each layer has its own, one for "
    "each of its outputs; the two layers do not have equally many."
)(ex.right | {"parameters": 16_512})
ex.mistake(
    "The count has 128 biases, but the two layers have one for each of their outputs; "
    "and the first weight is transposed: one row for each output, one column for each "
    "input."
)(ex.right | {"first weight": (64, 128), "parameters": 16_512})
ex.mistake("These are the sizes for GPT-2's C = 768. Here C is 64.")(
    {
        "hidden": (2, 3, 1536),
        "output": (2, 3, 768),
        "first weight": (1536, 768),
        "parameters": 2_361_600,
    }
)
ex.mistake(
    "The shapes are right, the count has only the second layer's biases. The first "
    "layer has some too."
)(ex.right | {"parameters": 16_448})
ex.mistake(
    "The shapes are right, the count has 256 biases. The second layer has fewer outputs "
    "than the first."
)(ex.right | {"parameters": 16_640})
ex.mistake("The shapes are right, the count is that of the first layer alone.")(
    ex.right | {"parameters": 8_320}
)
ex.mistake("The shapes are right, the count is that of one layer's weight alone.")(
    ex.right | {"parameters": 8_192}
)
ex.mistake("The shapes are right, the count is that of the second layer alone.")(
    ex.right | {"parameters": 8_256}
)
ex.mistake(
    "The shapes are right, but the parameters are counted once for each of the six "
    "positions. All positions share one network."
)(ex.right | {"parameters": 6 * 16_576})
ex.mistake(
    "The shapes are right, but the parameters are counted once for each position of a "
    "text. All positions share one network."
)(ex.right | {"parameters": 3 * 16_576})
ex.mistake(
    "The shapes are right, but the parameters are counted once for each text. All texts "
    "share one network."
)(ex.right | {"parameters": 2 * 16_576})
ex.mistake(
    "The hidden shape has twice the positions. The network widens the features, which "
    "are the last dimension, and works on each position alone."
)(ex.right | {"hidden": (2, 6, 64)})
ex.mistake(
    "The hidden shape counts the features alone. The two texts and their three positions "
    "are still there."
)(ex.right | {"hidden": (128,)})
ex.mistake(
    "The shapes count the features alone. The two texts and their three positions stay "
    "from the input to the output."
)(ex.right | {"hidden": (128,), "output": (64,)})
ex.mistake(
    "All but the hidden shape is right: that is the input's. Look at it again after the "
    "first layer has widened it."
)(ex.right | {"hidden": (2, 3, 64)})


# 3.3


def positions_to_widen():
    generator = torch.Generator().manual_seed(33)
    sizes = [(2, 2, 1, 1), (3, 3, 2, 4), (6, 2, 3, 1), (8, 5, 2, 3)]
    return [
        (emb_dim, ratio, 2 * torch.randn(texts, length, emb_dim, generator=generator))
        for emb_dim, ratio, texts, length in sizes
    ]


def set_parameters(network):
    """Give a network known parameters, in whatever order it creates them."""
    generator = torch.Generator().manual_seed(3)
    by_shape = [(tuple(p.shape), name, p) for name, p in network.named_parameters()]
    for shape, _, parameter in sorted(by_shape, key=lambda entry: entry[:2]):
        parameter.data = 0.5 * torch.randn(shape, generator=generator)
    return network


def run_with_ratio(answer, emb_dim, ratio, x):
    network = answer(emb_dim, ratio)
    return ... if network is ... else set_parameters(network)(x)


ex = Exercise(
    "3.3",
    "A network that cannot bend",
    why="GELU returns its result and leaves its input alone; nothing warns you when "
    "the result goes nowhere.",
    inputs=positions_to_widen,
    call=run_with_ratio,
)


@ex.reference
class _(nn.Module):
    def __init__(self, emb_dim, ratio):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(emb_dim, ratio * emb_dim),
            gpt_helpers.GELU(),
            nn.Linear(ratio * emb_dim, emb_dim),
        )

    def forward(self, x):
        return self.layers(x)


@ex.bug(
    "There is still no bend between the two layers: what `narrow` reads is what `widen` "
    "gave. Follow the result of the GELU: where does it go?"
)
class _(nn.Module):
    def __init__(self, emb_dim, ratio):
        super().__init__()
        self.widen = nn.Linear(emb_dim, ratio * emb_dim)
        self.gelu = nn.GELU(approximate="tanh")
        self.narrow = nn.Linear(ratio * emb_dim, emb_dim)

    def forward(self, x):
        hidden = self.widen(x)
        self.gelu(hidden)
        return self.narrow(hidden)


@ex.mistake(
    "The GELU comes after the second layer. The two layers before it are still one "
    "linear layer: the bend belongs between them."
)
class _(ex.given):
    def forward(self, x):
        return self.gelu(self.narrow(self.widen(x)))


@ex.mistake(
    "The GELU bends the input, before the first layer. The two layers behind it are "
    "still one linear layer: the bend belongs between them."
)
class _(ex.given):
    def forward(self, x):
        return self.narrow(self.widen(self.gelu(x)))


@ex.mistake("There are two bends: one between the layers and one too many at the end.")
class _(ex.given):
    def forward(self, x):
        return self.gelu(self.narrow(self.gelu(self.widen(x))))


@ex.mistake(
    "There are two bends: one between the layers and one too many before the first."
)
class _(ex.given):
    def forward(self, x):
        return self.narrow(self.gelu(self.widen(self.gelu(x))))


@ex.mistake("The GELU is applied twice in a row between the layers.")
class _(ex.given):
    def forward(self, x):
        return self.narrow(self.gelu(self.gelu(self.widen(x))))


@ex.mistake(
    "The GELU's result is added to its input. It takes the place of the hidden units, "
    "it does not come on top of them."
)
class _(ex.given):
    def forward(self, x):
        hidden = self.widen(x)
        return self.narrow(hidden + self.gelu(hidden))


@ex.mistake(
    "The GELU's result multiplies the hidden units. The number is already a factor "
    "inside GELU: its result takes their place."
)
class _(ex.given):
    def forward(self, x):
        hidden = self.widen(x)
        return self.narrow(hidden * self.gelu(hidden))


@ex.mistake("The bend is in place, but it is the exact GELU now, not the tanh form.")
class _(ex.given):
    def forward(self, x):
        return self.narrow(F.gelu(self.widen(x)))


@ex.mistake("The bend is in place, but it is a SiLU now, not the GELU.")
class _(ex.given):
    def forward(self, x):
        return self.narrow(F.silu(self.widen(x)))


@ex.mistake("The bend is in place, but it is a tanh now, not the GELU.")
class _(ex.given):
    def forward(self, x):
        return self.narrow(self.widen(x).tanh())


@ex.mistake("The bend is in place, but it is a ReLU now, not the GELU.")
class _(ex.given):
    def forward(self, x):
        return self.narrow(self.widen(x).relu())


@ex.mistake(
    "The bend is in place, but the second layer is gone: the hidden units are returned."
)
class _(ex.given):
    def forward(self, x):
        return self.gelu(self.widen(x))


@ex.mistake(
    "The bend is in place, but the input is added to the output. That is the shortcut, "
    "which is the next lesson's and stands outside this part."
)
class _(ex.given):
    def forward(self, x):
        return x + self.narrow(self.gelu(self.widen(x)))


@ex.mistake(
    "The bend is in place, but the ratio is on the wrong side: the first layer must "
    "have more outputs than inputs. Look at the sizes in `__init__`."
)
class _(ex.right):
    def __init__(self, emb_dim, ratio):
        nn.Module.__init__(self)
        first = nn.Linear(emb_dim, emb_dim // ratio)
        second = nn.Linear(emb_dim // ratio, emb_dim)
        self.layers = nn.Sequential(first, gpt_helpers.GELU(), second)


@ex.mistake("The bend is in place, but the layers have lost their biases.")
class _(ex.right):
    def __init__(self, emb_dim, ratio):
        nn.Module.__init__(self)
        first = nn.Linear(emb_dim, ratio * emb_dim, bias=False)
        second = nn.Linear(ratio * emb_dim, emb_dim, bias=False)
        self.layers = nn.Sequential(first, gpt_helpers.GELU(), second)


@ex.mistake(
    "The bend is in place, but the width is 4·C whatever the ratio. Look at the sizes "
    "in `__init__`."
)
class _(ex.right):
    def __init__(self, emb_dim, ratio):
        super().__init__(emb_dim, 4)


# 3.4


def sizes_and_positions():
    generator = torch.Generator().manual_seed(34)
    shapes = [(1, 1, 3), (2, 3, 6), (3, 2, 12)]
    inputs = [torch.randn(shape, generator=generator) for shape in shapes]
    return [(3,), (768,), *((x.shape[-1], x) for x in inputs)]


def count_then_run(answer, emb_dim, x=None):
    """The number of weights; if it is right and there is an input, the output."""
    code = getattr(answer.__init__, "__code__", None)
    if code is not None and ... in code.co_consts:
        return ...
    with torch.device("meta" if x is None else "cpu"):  # meta: sizes without numbers
        network = answer(emb_dim)
    if network is ...:
        return ...
    count = gpt_helpers.count_parameters(network)
    if x is None or count != 8 * emb_dim**2:
        return count
    return set_parameters(network)(x)


ex = Exercise(
    "3.4",
    "A SwiGLU of equal size",
    why="With hidden widths near 8/3·C it stands in LLaMA's blocks, in the place of "
    "the part you built.",
    inputs=sizes_and_positions,
    call=count_then_run,
)


@ex.reference
class _(nn.Module):
    def __init__(self, emb_dim):
        super().__init__()
        hidden = self.width(emb_dim)
        self.gate = nn.Linear(emb_dim, hidden, bias=False)
        self.value = nn.Linear(emb_dim, hidden, bias=False)
        self.output = nn.Linear(hidden, emb_dim, bias=False)

    def width(self, emb_dim):
        return 8 * emb_dim // 3

    def forward(self, x):
        return self.output(F.silu(self.gate(x)) * self.value(x))


@ex.mistake(
    "The width is 4·C, as with two matrices. A third matrix of that size makes the "
    "network half as large again: compare the weights of both."
)
class _(ex.right):
    def width(self, emb_dim):
        return 4 * emb_dim


@ex.mistake(
    "The width is half of 4·C. Only one matrix is new: there are three in place of two, "
    "not four. (Or was a fraction rounded down to 2 before it was multiplied?)"
)
class _(ex.right):
    def width(self, emb_dim):
        return 2 * emb_dim


@ex.mistake(
    "The width is a third of 4·C. Three matrices together must have as many weights as "
    "two of width 4·C: by which factor must each shrink?"
)
class _(ex.right):
    def width(self, emb_dim):
        return 4 * emb_dim // 3


@ex.mistake(
    "The width is 4·C divided by the factor it should be multiplied with, so the network "
    "grows. More matrices must be narrower, not wider."
)
class _(ex.right):
    def width(self, emb_dim):
        return 6 * emb_dim


@ex.mistake(
    "The width is 2/3 of C. It is to be 2/3 of the width it had before, and that was "
    "more than C."
)
class _(ex.right):
    def width(self, emb_dim):
        return 2 * emb_dim // 3


@ex.mistake(
    "The width is 8·C: the weights of both old matrices, over C, without dividing them "
    "among the three new ones."
)
class _(ex.right):
    def width(self, emb_dim):
        return 8 * emb_dim


@ex.mistake(
    "The width is 3·C. Close, but count: three matrices of C by 3·C have more weights "
    "than two of C by 4·C. (Or was a fraction rounded to 3 before it was multiplied?)"
)
class _(ex.right):
    def width(self, emb_dim):
        return 3 * emb_dim


@ex.mistake(
    "The width is two thirds of 8·C. 4·C is the width it had before: two thirds of that."
)
class _(ex.right):
    def width(self, emb_dim):
        return 16 * emb_dim // 3


@ex.mistake(
    "The width is one too large. Were the biases of `FeedForward` counted in? Compare "
    "the weights alone."
)
class _(ex.right):
    def width(self, emb_dim):
        return (8 * emb_dim + 5) // 3


@ex.mistake(
    "The width is 2048 for every C. That is right at C = 768; compute it from `emb_dim`."
)
class _(ex.right):
    def width(self, emb_dim):
        return 2048


@ex.mistake(
    "The width is a little too small: a rounded decimal has crept in. Compute it from "
    "whole numbers, and divide last."
)
class _(ex.right):
    def width(self, emb_dim):
        return int(2.66 * emb_dim)


@ex.mistake(
    "The width is a little too large: a rounded decimal has crept in. Compute it from whole "
    "numbers, and divide last."
)
class _(ex.right):
    def width(self, emb_dim):
        return int(2.67 * emb_dim)


@ex.mistake(
    "The width is 0: there are no weights at all. `//` rounds down, so 2 // 3 is 0: "
    "multiply first, divide last."
)
class _(ex.right):
    def __init__(self, emb_dim):
        nn.Module.__init__(self)


@ex.mistake("The width is C: nothing is widened.")
class _(ex.right):
    def width(self, emb_dim):
        return emb_dim


@ex.mistake(
    "The width is the square of what a layer needs: 8·C² is the number of weights to "
    "be shared out. Divide it by what one hidden unit costs."
)
class _(ex.right):
    def width(self, emb_dim):
        return 8 * emb_dim**2 // 3


@ex.mistake(
    "The layers could not be built. Is `hidden` a decimal? `nn.Linear` wants a whole "
    "number, and a division with `/` always gives a decimal."
)
class _(ex.right):
    def width(self, emb_dim):
        return 8 * emb_dim / 3


@ex.mistake(
    "The width is right, but there are biases in the layers. SwiGLU has none; leave "
    "`bias=False` as it was."
)
class _(ex.right):
    def __init__(self, emb_dim):
        super().__init__(emb_dim)
        self.gate = nn.Linear(emb_dim, self.width(emb_dim))
        self.value = nn.Linear(emb_dim, self.width(emb_dim))
        self.output = nn.Linear(self.width(emb_dim), emb_dim)


@ex.mistake("The width is right. Now fill the hole in `forward`.")
class _(ex.right):
    def forward(self, x):
        return ...


@ex.mistake(
    "The width is right, but the SiLU is missing: without it nothing decides what the "
    "gate lets through. Look at what is done to `gate`'s result."
)
class _(ex.right):
    def forward(self, x):
        return self.output(self.gate(x) * self.value(x))


@ex.mistake(
    "The width is right, but the SiLU bends the wrong branch: the value passes straight, "
    "the gate is bent."
)
class _(ex.right):
    def forward(self, x):
        return self.output(self.gate(x) * F.silu(self.value(x)))


@ex.mistake(
    "The width is right, but both branches are bent. The value passes straight; only "
    "the gate gets the SiLU."
)
class _(ex.right):
    def forward(self, x):
        return self.output(F.silu(self.gate(x)) * F.silu(self.value(x)))


@ex.mistake(
    "The width is right, but the SiLU is applied to the product of both branches. It "
    "belongs on the gate alone, before the product: look at the brackets."
)
class _(ex.right):
    def forward(self, x):
        return self.output(F.silu(self.gate(x) * self.value(x)))


@ex.mistake(
    "The width is right, but the SiLU comes last, after `output`. It belongs on the "
    "gate, before the product."
)
class _(ex.right):
    def forward(self, x):
        return F.silu(self.output(self.gate(x) * self.value(x)))


@ex.mistake(
    "The width is right, but the SiLU bends the input before the layer `gate` reads it. "
    "It belongs on the layer's result."
)
class _(ex.right):
    def forward(self, x):
        return self.output(self.gate(F.silu(x)) * self.value(x))


@ex.mistake(
    "The width is right, but the two branches are added. A gate multiplies: look at "
    "the ⊙ in the formula."
)
class _(ex.right):
    def forward(self, x):
        return self.output(F.silu(self.gate(x)) + self.value(x))


@ex.mistake(
    "The width is right, but the gate is a bare sigmoid, which gives the older GLU. "
    "SiLU is a number times its sigmoid."
)
class _(ex.right):
    def forward(self, x):
        return self.output(torch.sigmoid(self.gate(x)) * self.value(x))


@ex.mistake(
    "The width is right, but the sigmoid is taken of the value instead of the gate, and "
    "it is a bare one. SiLU is a number times its own sigmoid."
)
class _(ex.right):
    def forward(self, x):
        return self.output(self.gate(x) * torch.sigmoid(self.value(x)))


@ex.mistake("The width is right, but the SiLU is applied twice in a row to the gate.")
class _(ex.right):
    def forward(self, x):
        return self.output(F.silu(F.silu(self.gate(x))) * self.value(x))


@ex.mistake(
    "The width is right, but each branch goes through `output` by itself. Multiply them "
    "first, while they are wide, and narrow the product."
)
class _(ex.right):
    def forward(self, x):
        return self.output(F.silu(self.gate(x))) * self.output(self.value(x))


@ex.mistake(
    "The width is right, but the gate is bent by the GELU, which gives the paper's "
    "GEGLU. SwiGLU takes the SiLU."
)
class _(ex.right):
    def forward(self, x):
        return self.output(gpt_helpers.GELU()(self.gate(x)) * self.value(x))


@ex.mistake(
    "The width is right, but the gate is bent by the exact GELU, which gives the "
    "paper's GEGLU. SwiGLU takes the SiLU."
)
class _(ex.right):
    def forward(self, x):
        return self.output(F.gelu(self.gate(x)) * self.value(x))


@ex.mistake(
    "The width is right, but the gate is bent by a ReLU, which gives the paper's ReGLU. "
    "SwiGLU takes the SiLU."
)
class _(ex.right):
    def forward(self, x):
        return self.output(self.gate(x).relu() * self.value(x))


@ex.mistake(
    "The width is right, but the SiLU has the wrong sign in its exponent: this sigmoid "
    "falls. It must let large numbers pass."
)
class _(ex.right):
    def forward(self, x):
        gate = self.gate(x)
        return self.output(gate * torch.sigmoid(-gate) * self.value(x))


@ex.mistake(
    "The width is right, but the gate is a softmax over the hidden units. SiLU bends "
    "each number on its own."
)
class _(ex.right):
    def forward(self, x):
        return self.output(self.gate(x).softmax(dim=-1) * self.value(x))


@ex.mistake(
    "The width is right, but the branches are added before the SiLU. Only the gate is "
    "bent, and it multiplies: look at the ⊙ in the formula."
)
class _(ex.right):
    def forward(self, x):
        return self.output(F.silu(self.gate(x) + self.value(x)))


@ex.mistake(
    "The width is right, but the gate is bent by a tanh. SwiGLU takes the SiLU, a "
    "number times its sigmoid."
)
class _(ex.right):
    def forward(self, x):
        return self.output(self.gate(x).tanh() * self.value(x))


@ex.mistake(
    "The width is right, but `gate` stands on both sides of the product, and `value` "
    "is never used."
)
class _(ex.right):
    def forward(self, x):
        return self.output(F.silu(self.gate(x)) * self.gate(x))


@ex.mistake(
    "The width is right, but `value` stands on both sides of the product, and `gate` "
    "is never used."
)
class _(ex.right):
    def forward(self, x):
        return self.output(F.silu(self.value(x)) * self.value(x))


@ex.mistake(
    "The width is right, but `value` is never used: what is left is the usual network "
    "with a SiLU, narrower than before."
)
class _(ex.right):
    def forward(self, x):
        return self.output(F.silu(self.gate(x)))


@ex.mistake(
    "The width is right, but the product is returned as it is: the layer `output` is "
    "missing, which narrows it to C."
)
class _(ex.right):
    def forward(self, x):
        return F.silu(self.gate(x)) * self.value(x)


@ex.mistake(
    "The width is right, but the input is added to the output. That is the shortcut, "
    "which is the next lesson's and stands outside this part."
)
class _(ex.right):
    def forward(self, x):
        return x + self.output(F.silu(self.gate(x)) * self.value(x))


# 3.5

ex = Exercise(
    "3.5",
    "A sigmoid in place of the share",
    why="x·σ(1.702·x) is the second approximation that the GELU paper offers, coarser "
    "than the tanh form.",
    tolerance=2.2e-4,  # 1.7014 … 1.7026
)
ex.reference(1.702)
ex.mistake(
    "With the factor 1 this is the sigmoid as it comes, and its error is more than ten "
    "times the smallest. Let other factors compete."
)(1.0)
ex.mistake(
    "This factor, √(8/π), gives both curves the same slope at 0. It is a good start, but "
    "further out the sigmoid lags behind: measure the largest error."
)(math.sqrt(8 / math.pi))
ex.mistake(
    "This factor, π/√3, gives both curves the same spread (a variance of 1). That is not "
    "what is asked: measure the largest error."
)(math.pi / math.sqrt(3))
ex.mistake(
    "You compared x·σ(kx) with GELU, a fair question with another answer: the factor x "
    "gives more weight to errors far out. Compare the shares themselves."
)(1.7735)
ex.mistake(
    "This factor has the smallest mean of the squared errors. Asked is the smallest "
    "largest error: take the maximum over x, not the mean."
)(1.701)
ex.mistake(
    "This factor has the smallest mean error. Asked is the smallest largest error: take "
    "the maximum over x, not the mean."
)(1.7045)
ex.mistake(
    "You took the mean of the squared gaps between x·σ(kx) and GELU. Asked is the "
    "largest gap, not the mean, and between the shares, without the factor x."
)(1.78)
ex.mistake(
    "You compared x·σ(kx) with GELU, and in coarse steps. Asked are the shares "
    "themselves, without the factor x, and steps of a thousandth."
)(1.77)
ex.mistake("Right to one decimal. Search again around it, in steps of a thousandth.")(
    1.7
)
ex.mistake(
    "This is the factor inside a tanh: (1 + tanh(z))/2 is the sigmoid of 2z. How large "
    "is the sigmoid's own factor?"
)(0.851)
ex.mistake(
    "This is the lesson's factor for the tanh, √(2/π). The sigmoid has a slope of its "
    "own, so it needs another: measure."
)(math.sqrt(2 / math.pi))
ex.mistake(
    "The factor divides x here, or you have given its inverse. Asked is what x is "
    "multiplied by inside the sigmoid."
)(1 / 1.702)
ex.mistake(
    "This is the smallest largest error itself. Asked is the factor that has it."
)(0.00949)
