"""Answers to the exercises of lesson 3 · GELU and the feed-forward network: right ones, and wrong ones with what is said."""

import math

import torch
import torch.nn.functional as F
from torch import nn

import gpt_helpers


def right_3_1_loop(x):
    bent = []
    for value in x.flatten().tolist():
        push = value + 0.044715 * value * value * value
        bent.append(value / 2 * (1 + math.tanh((2 / math.pi) ** 0.5 * push)))
    return torch.tensor(bent).reshape(x.shape)


def right_3_1_builtin(x):
    return F.gelu(x, approximate="tanh")


def right_3_1_double(x):
    x = x.double()
    share = torch.sigmoid((8 / math.pi) ** 0.5 * x * (1 + 0.044715 * x.square()))
    return share * x


def right_3_1_in_place(x):
    inner = x.pow(3).mul_(0.044715).add_(x).mul_(0.7978845608028654)
    return x.mul_(inner.tanh_().add_(1)).div_(2)


class right_3_3_one_line(nn.Module):
    def __init__(self, emb_dim, ratio):
        super().__init__()
        self.widen = nn.Linear(emb_dim, ratio * emb_dim)
        self.gelu = nn.GELU(approximate="tanh")
        self.narrow = nn.Linear(ratio * emb_dim, emb_dim)

    def forward(self, x):
        return self.narrow(self.gelu(self.widen(x)))


class right_3_3_matrices(nn.Module):
    def __init__(self, emb_dim, ratio):
        super().__init__()
        self.back = nn.Linear(emb_dim * ratio, emb_dim)
        self.out = nn.Linear(emb_dim, emb_dim * ratio)

    def forward(self, x):
        hidden = x @ self.out.weight.T + self.out.bias
        hidden = (
            hidden / 2 * (1 + torch.tanh(0.79788456 * (hidden + 0.044715 * hidden**3)))
        )
        return hidden @ self.back.weight.T + self.back.bias


class right_3_4_sigmoid(nn.Module):
    def __init__(self, emb_dim):
        super().__init__()
        hidden = int(2 / 3 * 4 * emb_dim)
        self.gate = nn.Linear(emb_dim, hidden, bias=False)
        self.value = nn.Linear(emb_dim, hidden, bias=False)
        self.output = nn.Linear(hidden, emb_dim, bias=False)

    def forward(self, x):
        gate = self.gate(x)
        gate = gate / (1 + torch.exp(-gate))
        return self.output(gate.mul_(self.value(x)))


class right_3_4_double(nn.Module):
    def __init__(self, emb_dim):
        super().__init__()
        hidden = round(8 * emb_dim**2 / (3 * emb_dim))
        self.output = nn.Linear(hidden, emb_dim, bias=False)
        self.value = nn.Linear(emb_dim, hidden, bias=False)
        self.gate = nn.Linear(emb_dim, hidden, bias=False)

    def forward(self, x):
        gate = x.double() @ self.gate.weight.double().T
        value = x.double() @ self.value.weight.double().T
        mixed = value * nn.SiLU()(gate)
        return torch.stack([mixed @ row for row in self.output.weight.double()], dim=-1)


RIGHT = {
    "3.1": [
        right_3_1_loop,
        right_3_1_builtin,
        right_3_1_double,
        right_3_1_in_place,
        nn.GELU(approximate="tanh"),
    ],
    "3.2": [
        {
            "hidden": torch.Size([2, 3, 2 * 64]),
            "output": [2, 3, 64],
            "first weight": torch.zeros(128, 64).shape,
            "parameters": 64 * 128 + 128 + 128 * 64 + 64,
        },
        {
            "parameters": torch.tensor(16_576),
            "first weight": [128, 64],
            "output": torch.tensor([2, 3, 64]),
            "hidden": (2, 3, 128.0),
        },
    ],
    "3.3": [right_3_3_one_line, right_3_3_matrices],
    "3.4": [right_3_4_sigmoid, right_3_4_double],
    "3.5": [1.7017, torch.tensor(1.702), torch.tensor(1.7017, dtype=torch.float64)],
}


def wrong_3_1_exact_by_distribution(x):
    return x * torch.distributions.Normal(0.0, 1.0).cdf(x)


def wrong_3_1_doubled(x):
    inner = 0.79788456 * x * (1 + 0.044715 * x * x)
    return x + x * inner.tanh()


def wrong_3_1_square(x):
    gate = torch.tanh((x + 0.044715 * x * x) * (2 / math.pi) ** 0.5)
    return x / 2 + x / 2 * gate


def wrong_3_1_root_of_two_pi(x):
    return x / 2 * (1 + torch.tanh((x + x.pow(3) * 0.044715) * 2.5066282746))


def wrong_3_1_root_upside_down(x):
    return x / 2 * (torch.tanh((x + x.pow(3) * 0.044715) / 0.7978845608) + 1)


def wrong_3_1_zeros(x):
    inner = 0.79788456 * x + 0.79788456 * 0.0044715 * x**3
    return (x + x * inner.tanh()) / 2


def wrong_3_1_no_one(x):
    return torch.tanh(0.79788456 * (x + 0.044715 * x**3)).mul(x).div(2)


def wrong_3_1_share(x):
    return torch.sigmoid(2 * 0.7978845608 * (x + 0.044715 * x**3))


def wrong_3_1_raises(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * x.cube()))


def wrong_3_1_unknown(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.05 * x**3)))


class wrong_3_3_functional(right_3_3_one_line):
    def forward(self, x):
        hidden = F.linear(x, self.widen.weight, self.widen.bias)
        return F.linear(hidden, self.narrow.weight, self.narrow.bias)


class wrong_3_3_sequential(nn.Module):
    def __init__(self, emb_dim, ratio):
        super().__init__()
        self.a = nn.Linear(emb_dim, ratio * emb_dim)
        self.b = nn.Linear(ratio * emb_dim, emb_dim)

    def forward(self, x):
        return nn.Sequential(self.a, self.b, gpt_helpers.GELU())(x)


class wrong_3_3_exact(right_3_3_one_line):
    def forward(self, x):
        return self.narrow(nn.GELU()(self.widen(x)))


class wrong_3_3_narrow_inside(nn.Module):
    def __init__(self, emb_dim, ratio):
        super().__init__()
        inside = int(emb_dim / ratio)
        self.steps = nn.ModuleList(
            [nn.Linear(emb_dim, inside), nn.Linear(inside, emb_dim)]
        )

    def forward(self, x):
        return self.steps[1](F.gelu(self.steps[0](x), approximate="tanh"))


class wrong_3_3_raises(right_3_3_one_line):
    def forward(self, x):
        return self.narrow(self.gelu(x))


class wrong_3_3_unknown(right_3_3_one_line):
    def forward(self, x):
        return self.narrow(self.gelu(self.widen(x)) / 2)


class right_3_4_base(nn.Module):
    """The layers of SwiGLU, with another width where a subclass says so."""

    width = staticmethod(lambda emb_dim: emb_dim * 8 // 3)

    def __init__(self, emb_dim):
        super().__init__()
        hidden = self.width(emb_dim)
        self.gate = nn.Linear(emb_dim, hidden, bias=False)
        self.value = nn.Linear(emb_dim, hidden, bias=False)
        self.output = nn.Linear(hidden, emb_dim, bias=False)

    def forward(self, x):
        return self.output(self.value(x) * F.silu(self.gate(x)))


class wrong_3_4_width_and_gate(right_3_4_base):
    width = staticmethod(lambda emb_dim: emb_dim << 2)

    def forward(self, x):
        return self.output(self.gate(x) * self.value(x))


class wrong_3_4_half(right_3_4_base):
    width = staticmethod(lambda emb_dim: 4 * emb_dim // 2)


class wrong_3_4_decimal(right_3_4_base):
    width = staticmethod(lambda emb_dim: 2 / 3 * 4 * emb_dim)


class wrong_3_4_other_branch(right_3_4_base):
    def forward(self, x):
        value = self.value(x)
        return self.output(value * torch.sigmoid(value) * self.gate(x))


class wrong_3_4_brackets(right_3_4_base):
    def forward(self, x):
        return self.output(nn.functional.silu(self.value(x) * self.gate(x)))


class wrong_3_4_glu(right_3_4_base):
    def forward(self, x):
        both = torch.cat([self.value(x), self.gate(x)], dim=-1)
        return self.output(F.glu(both))


class wrong_3_4_sum(right_3_4_base):
    def forward(self, x):
        return self.output(F.silu(self.gate(x))) + self.output(self.value(x))


class wrong_3_4_no_output(right_3_4_base):
    def forward(self, x):
        return self.value(x) * F.silu(self.gate(x))


class wrong_3_4_module_for_tensor(right_3_4_base):
    def forward(self, x):
        return self.output(F.silu(self.gate) * self.value(x))


class wrong_3_4_unknown(right_3_4_base):
    def forward(self, x):
        return self.output(F.softplus(self.gate(x)) * self.value(x))


class wrong_3_4_unknown_width(right_3_4_base):
    width = staticmethod(lambda emb_dim: 5 * emb_dim)


WRONG = {
    "3.1": [
        ("the exact form", F.gelu),
        ("the exact form", wrong_3_1_exact_by_distribution),
        ("twice too large", wrong_3_1_doubled),
        ("has the power 2", wrong_3_1_square),
        ("root is taken of 2π", wrong_3_1_root_of_two_pi),
        ("root is taken of π/2", wrong_3_1_root_upside_down),
        ("count its zeros", wrong_3_1_zeros),
        ("The 1 is missing", wrong_3_1_no_one),
        ("x is missing as a factor", wrong_3_1_share),
        ("This is ReLU", F.relu),
        ("This is SiLU", F.silu),
        ("raised AttributeError", wrong_3_1_raises),
        ("numbers differ.", wrong_3_1_unknown),
        ("returns None", lambda x: None),
    ],
    "3.2": [
        (
            "wrong side",
            {
                "hidden": [2, 3, 64 // 2],
                "output": [2, 3, 64],
                "first weight": [64 // 2, 64],
                "parameters": 64 * 32 + 32 + 32 * 64 + 64,
            },
        ),
        (
            "that is transposed",
            {
                "hidden": torch.Size([2, 3, 128]),
                "output": torch.Size([2, 3, 64]),
                "first weight": torch.Size([64, 128]),
                "parameters": 16_576,
            },
        ),
        (
            "lacks the biases",
            {
                "hidden": [2, 3, 128],
                "output": [2, 3, 64],
                "first weight": [128, 64],
                "parameters": 2 * 64 * 128,
            },
        ),
        (
            "  parameters: 17000",
            {
                "hidden": [2, 3, 128],
                "output": [2, 3, 64],
                "first weight": [128, 64],
                "parameters": 17_000,
            },
        ),
    ],
    "3.3": [
        ("no bend between", wrong_3_3_functional),
        ("after the second layer", wrong_3_3_sequential),
        ("exact GELU", wrong_3_3_exact),
        ("wrong side", wrong_3_3_narrow_inside),
        ("of your code raised RuntimeError", wrong_3_3_raises),
        ("numbers differ.", wrong_3_3_unknown),
    ],
    "3.4": [
        ("half as large again", wrong_3_4_width_and_gate),
        ("half of 4·C", wrong_3_4_half),
        ("a decimal", wrong_3_4_decimal),
        ("the wrong branch", wrong_3_4_other_branch),
        ("product of both branches", wrong_3_4_brackets),
        ("the older GLU", wrong_3_4_glu),
        ("branches are added", wrong_3_4_sum),
        ("`output` is missing", wrong_3_4_no_output),
        ("of your code raised TypeError", wrong_3_4_module_for_tensor),
        ("numbers differ.", wrong_3_4_unknown),
        ("The value is 135; that is not the expected one", wrong_3_4_unknown_width),
    ],
    "3.5": [
        ("slope at 0", 2 * math.sqrt(2 / math.pi)),
        ("x·σ(kx) with GELU", 1.773),
        ("x·σ(kx) with GELU", 1.774),
        ("mean of the squared errors", torch.tensor(1.701)),
        ("smallest mean error", 1.705),
        ("steps of a thousandth", 1.70),
        ("inside a tanh", 1.702 / 2),
        ("The value is 1.65; that is not the expected one", 1.65),
    ],
}
