"""Answers to the exercises of lesson 3: right ones, and wrong ones with what is said."""

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


def right_3_1_double(x):
    x = x.double()
    share = torch.sigmoid((8 / math.pi) ** 0.5 * x * (1 + 0.044715 * x.square()))
    return share * x


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


def wrong_3_1_doubled(x):
    inner = 0.79788456 * x * (1 + 0.044715 * x * x)
    return x + x * inner.tanh()


def wrong_3_1_square(x):
    gate = torch.tanh((x + 0.044715 * x * x) * (2 / math.pi) ** 0.5)
    return x / 2 + x / 2 * gate


def wrong_3_1_no_one(x):
    return torch.tanh(0.79788456 * (x + 0.044715 * x**3)).mul(x).div(2)


def wrong_3_1_share(x):
    return torch.sigmoid(2 * 0.7978845608 * (x + 0.044715 * x**3))


class wrong_3_3_narrow_inside(nn.Module):
    def __init__(self, emb_dim, ratio):
        super().__init__()
        inside = int(emb_dim / ratio)
        self.steps = nn.ModuleList(
            [nn.Linear(emb_dim, inside), nn.Linear(inside, emb_dim)]
        )

    def forward(self, x):
        return self.steps[1](F.gelu(self.steps[0](x), approximate="tanh"))


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


class wrong_3_4_half(right_3_4_base):
    width = staticmethod(lambda emb_dim: 4 * emb_dim // 2)


class wrong_3_4_full(right_3_4_base):
    width = staticmethod(lambda emb_dim: emb_dim * 4)


class wrong_3_4_sum(right_3_4_base):
    def forward(self, x):
        return self.output(torch.add(self.value(x), F.silu(self.gate(x))))


class wrong_3_4_gelu(right_3_4_base):
    def forward(self, x):
        return self.output(nn.GELU()(self.gate(x)) * self.value(x))


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


class wrong_3_4_no_output(right_3_4_base):
    def forward(self, x):
        return self.value(x) * F.silu(self.gate(x))


class wrong_3_4_unknown_width(right_3_4_base):
    width = staticmethod(lambda emb_dim: 5 * emb_dim)


class right_3_3_one_line(nn.Module):
    def __init__(self, emb_dim, ratio):
        super().__init__()
        self.a = nn.Linear(emb_dim, ratio * emb_dim)
        self.b = nn.Linear(ratio * emb_dim, emb_dim)

    def forward(self, x):
        return self.b(F.gelu(self.a(x), approximate="tanh"))


def forward_3_3(between=lambda x: x, after=lambda x: x):
    class Network(right_3_3_one_line):
        def forward(self, x):
            return after(self.b(between(self.a(x))))

    return Network


def gelu_3_1(factor=0.7978845608, constant=0.044715):
    return lambda x: x / 2 * (1 + torch.tanh(factor * (x + constant * x * x * x)))


gelu = gpt_helpers.GELU()
at_ratio_2 = {
    "hidden": [2, 3, 128],
    "output": [2, 3, 64],
    "first weight": torch.Size([128, 64]),
    "parameters": 64 * 128 + 128 + 128 * 64 + 64,
}

RIGHT = {
    "3.1": [right_3_1_loop, right_3_1_double, nn.GELU(approximate="tanh")],
    "3.2": [at_ratio_2, at_ratio_2 | {"output": torch.tensor([2, 3, 64])}],
    "3.3": [right_3_3_one_line, right_3_3_matrices],
    "3.4": [right_3_4_sigmoid, right_3_4_double],
    "3.5": [1.7017, torch.tensor(1.702)],
}

WRONG = {
    "3.1": [
        ("the exact form", F.gelu),
        ("The half in front is missing", wrong_3_1_doubled),
        ("has the power 2", wrong_3_1_square),
        ("root is taken of 2π", gelu_3_1(factor=2.5066282746)),
        ("root is taken of π/2", gelu_3_1(factor=1 / 0.7978845608)),
        ("square root is missing", gelu_3_1(factor=0.6366197724)),
        ("count its zeros", gelu_3_1(constant=0.0044715)),
        ("cube is subtracted", gelu_3_1(constant=-0.044715)),
        ("The term with the cube is missing", gelu_3_1(constant=0)),
        ("The 1 is missing", wrong_3_1_no_one),
        ("The factor x is missing", wrong_3_1_share),
        ("This is ReLU", F.relu),
        ("This is SiLU", F.silu),
        ("2 of 3 numbers differ", gelu_3_1(constant=0.05)),
    ],
    "3.2": [
        (
            "wrong side",
            {
                "hidden": (2, 3, 32),
                "output": (2, 3, 64),
                "first weight": (32, 64),
                "parameters": 64 * 32 + 32 + 32 * 64 + 64,
            },
        ),
        ("weight is transposed", at_ratio_2 | {"first weight": (64, 128)}),
        ("lacks the biases", at_ratio_2 | {"parameters": 2 * 64 * 128}),
        ("The second layer narrows", at_ratio_2 | {"output": (2, 3, 128)}),
        ("first layer has widened", at_ratio_2 | {"hidden": (2, 3, 64)}),
        ("1 of 4 values are not right", at_ratio_2 | {"parameters": 17_000}),
    ],
    "3.3": [
        ("no bend between", forward_3_3()),
        ("after the second layer", forward_3_3(after=gelu)),
        ("one bend too many", forward_3_3(between=gelu, after=gelu)),
        ("twice in a row", forward_3_3(between=lambda x: gelu(gelu(x)))),
        ("exact GELU", forward_3_3(between=F.gelu)),
        ("another function", forward_3_3(between=F.relu)),
        ("wrong side", wrong_3_3_narrow_inside),
        ("2 of 2 numbers differ", forward_3_3(between=torch.sin)),
    ],
    "3.4": [
        ("half of 4·C", wrong_3_4_half),
        ("a decimal", wrong_3_4_decimal),
        ("The width is 4·C, as with two", wrong_3_4_full),
        ("The two branches are added", wrong_3_4_sum),
        ("by another function than SiLU", wrong_3_4_gelu),
        ("the wrong branch", wrong_3_4_other_branch),
        ("product of both branches", wrong_3_4_brackets),
        ("the older GLU", wrong_3_4_glu),
        ("`output` is missing", wrong_3_4_no_output),
        ("expected 72, got 135", wrong_3_4_unknown_width),
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
