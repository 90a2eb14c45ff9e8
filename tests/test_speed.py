"""The layers of lesson 11 against PyTorch's own, and the quick copies of a model."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gpt_helpers
from gpt_helpers import (
    GPTConfig,
    GPTModel,
    Int8Linear,
    KVCache,
    MultiHeadAttention,
    RowLinear,
    generate_text,
    generate_text_simple,
    next_logits,
    next_token_loss,
    quantize_rows,
    quicken,
)
from test_positions_and_cache import TINY, model_of, ways_to_cut


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


# --- the layers -------------------------------------------------------------------


def linear(inner, outer, bias=True, dtype=None):
    """A RowLinear and PyTorch's layer with the same weights."""
    ours = RowLinear(inner, outer, bias=bias, dtype=dtype)
    theirs = nn.Linear(inner, outer, bias=bias, dtype=dtype)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


# Multiples of 32, 29 · 1733 as GPT-2's vocabulary, primes, one.
OUTER = 768, 96, 29 * 11, 58, 37, 31, 2, 1


@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 1, 1), (3,), (2, 1), (2, 3, 1)])
@torch.no_grad()
def test_one_row_gives_the_layers_own_result(outer, bias, shape):
    ours, theirs = linear(40, outer, bias)
    x = torch.randn(*shape[:-1], 40) if shape[-1] == 1 else torch.randn(3, 40)
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-5, rtol=1e-5)
    assert ours(x).shape == theirs(x).shape


@torch.no_grad()
def test_blocks_are_used_for_a_single_row_in_float32_only(monkeypatch):
    own_way = []
    forward = nn.Linear.forward
    spy = lambda self, x: own_way.append(x.shape) or forward(self, x)
    monkeypatch.setattr(nn.Linear, "forward", spy)
    layer, prime = RowLinear(8, 64), RowLinear(8, 37)
    layer(torch.randn(1, 1, 8))
    assert not own_way, "blocks for one row"
    layer(torch.randn(2, 8))
    prime(torch.randn(1, 8))
    layer.double()(torch.randn(1, 8).double())
    with torch.enable_grad():
        layer.float()(torch.randn(1, 8))
    assert len(own_way) == 4


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@torch.no_grad()
def test_other_number_formats_are_the_layers_own(dtype):
    ours, theirs = linear(40, 96, dtype=dtype)
    x = torch.randn(1, 40, dtype=dtype)
    assert torch.equal(ours(x), theirs(x))


@torch.no_grad()
def test_several_rows_of_float16_are_multiplied_in_float32(monkeypatch):
    formats, linear_function = [], F.linear
    monkeypatch.setattr(
        gpt_helpers.F,
        "linear",
        lambda *x: formats.append({t.dtype for t in x[:2]}) or linear_function(*x),
    )
    ours, _ = linear(40, 96, dtype=torch.float16)
    x = torch.randn(2, 3, 40, dtype=torch.float16)
    expected = x.double() @ ours.weight.double().T + ours.bias.double()
    torch.testing.assert_close(ours(x).double(), expected, atol=2e-3, rtol=1e-3)
    assert formats == [{torch.float32}]
    assert RowLinear(40, 7, bias=False).half()(x).shape == (2, 3, 7)


@torch.no_grad()
def test_one_row_of_any_strides():
    ours, theirs = linear(40, 96)
    x = torch.randn(40, 3)[:, 1][None]  # (1, 40), with gaps between the numbers
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-5, rtol=1e-5)
    turned = torch.randn(40, 96)
    ours.weight, theirs.weight = (nn.Parameter(turned.T) for _ in range(2))
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-5, rtol=1e-5)


def test_gradients_through_one_row_are_the_layers_own():
    ours, theirs = linear(40, 96)
    x = torch.randn(1, 40, requires_grad=True)
    for layer in (ours, theirs):
        layer(x).square().sum().backward()
    assert torch.equal(ours.weight.grad, theirs.weight.grad)
    assert torch.equal(ours.bias.grad, theirs.bias.grad)


# --- 8 bits -----------------------------------------------------------------------


def test_quantized_rows_by_hand():
    rows = torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0], [127.0, 63.4, -0.6]])
    whole, scale = quantize_rows(rows)
    assert whole.dtype == torch.int8 and scale.shape == (3, 1)
    assert whole.tolist() == [[64, -127, 32], [0, 0, 0], [127, 63, -1]]
    assert (scale > 0).all(), "nothing is divided by zero"
    torch.testing.assert_close(scale[[0, 2], 0], torch.tensor([2 / 127, 1.0]))


def test_no_number_moves_by_more_than_half_a_step():
    rows = torch.randn(50, 300) * torch.logspace(-20, 20, 50)[:, None]
    whole, scale = quantize_rows(rows)
    gaps = (whole * scale - rows).abs()
    assert (gaps <= 0.5001 * scale).all()
    assert (whole.abs().amax(dim=1) == 127).all()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1,), (1, 1), (3, 5), (40,)])
@torch.no_grad()
def test_8_bits_stay_within_the_bound_of_rounding(shape, bias):
    """Half a step per number, in the weight and in x, added up over the row.

    x has 127 steps or 255 from its smallest number, or 0, to its largest, in all
    rows; its zero is rounded too, so half a step is not enough.
    """
    layer = nn.Linear(64, 33, bias=bias)
    x = torch.randn(*shape, 64)
    got, exact = Int8Linear(layer)(x), layer(x)
    step_x = (x.max().clamp(min=0) - x.min().clamp(max=0)) / 127
    step_w = layer.weight.abs().amax(dim=1) / 127 / 2
    x_part = step_x * layer.weight.abs().sum(dim=1)
    w_part = step_w * x.abs().sum(dim=-1, keepdim=True)
    bound = x_part + w_part + 64 * step_x * step_w
    assert got.shape == exact.shape
    assert ((got - exact).abs() <= bound + 1e-5).all()
    assert (got - exact).abs().max() > 0, "8 bits are fewer than 32"


@torch.no_grad()
def test_8_bits_are_the_quantized_rows_weight():
    """With an x that any number of bits holds exactly, nothing else is rounded."""
    layer = nn.Linear(3072, 16)
    x = torch.randint(0, 2, (1, 3072)).float()
    whole, scale = quantize_rows(layer.weight)
    expected = (x.double() @ (whole * scale).double().T).float() + layer.bias
    torch.testing.assert_close(Int8Linear(layer)(x), expected, atol=1e-4, rtol=1e-5)


# --- quick copies of a model ------------------------------------------------------

kinds = pytest.mark.parametrize("positions", ["learned", "rotary"])
ties = pytest.mark.parametrize("tied_head", [False, True])


@kinds
@ties
@pytest.mark.parametrize("B", [1, 3])
@torch.no_grad()
def test_a_quick_copy_reads_a_text_however_it_is_cut(positions, tied_head, B):
    model = model_of(positions, tied_head)
    quick = quicken(model)
    idx = torch.randint(0, 17, (B, TINY.context_length))
    expected = model(idx[:, :6])
    for lengths in ways_to_cut(6):
        cache = KVCache(model.cfg, B)
        parts = [quick(part, cache) for part in idx[:, :6].split(lengths, dim=1)]
        torch.testing.assert_close(torch.cat(parts, 1), expected, atol=1e-5, rtol=0)


@kinds
@ties
@pytest.mark.parametrize("B", [1, 3])
@pytest.mark.parametrize("T", [1, 9, 14])
def test_a_quick_copy_writes_the_same_tokens(positions, tied_head, B, T):
    model = model_of(positions, tied_head)
    idx = torch.randint(0, 17, (B, T))
    expected = generate_text_simple(model, idx, 25, TINY.context_length)
    assert torch.equal(generate_text(quicken(model), idx, 25), expected)


def test_a_quick_copy_shares_the_weights_and_their_names():
    model = model_of("learned", tied_head=True)
    quick = quicken(model)
    state, own = quick.state_dict(), model.state_dict()
    assert list(state) == list(own)
    assert all(state[n].data_ptr() == own[n].data_ptr() for n in own)
    assert quick.out_head.weight is quick.tok_emb.weight
    with torch.no_grad():
        model.tok_emb.weight += 1
    assert torch.equal(quick.out_head.weight, model.tok_emb.weight)


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.int8])
def test_the_model_itself_is_left_as_it_is(dtype):
    model = model_of("learned", tied_head=True).train()
    kinds = [type(module) for module in model.modules()]
    before = {n: p.clone() for n, p in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    quick = quicken(model, dtype)
    generate_text(quick, torch.tensor([[1, 2]]), 5)
    assert [type(module) for module in model.modules()] == kinds
    assert [module.training for module in model.modules()] == modes
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[n], before[n]) for n in before)
    assert all(p.requires_grad for p in model.parameters())
    assert not any(p.requires_grad for p in quick.parameters())
    assert not any(module.training for module in quick.modules())


def test_training_of_the_model_is_not_touched_by_its_copies():
    def gradients(model):
        torch.manual_seed(5)  # for dropout
        idx = torch.arange(8).view(2, 4)
        loss = next_token_loss(model.train(), idx, idx + 1)
        return torch.autograd.grad(loss, list(model.parameters()))

    model = model_of("learned", tied_head=True)
    before = gradients(model)
    for dtype in (None, torch.bfloat16, torch.int8):
        quicken(model, dtype)
    assert all(map(torch.equal, gradients(model), before))


def test_a_quick_copy_can_be_copied():
    quick = quicken(model_of("learned", tied_head=True))
    again = copy.deepcopy(quick)
    assert again.out_head.weight is again.tok_emb.weight
    assert again.out_head.weight is not quick.out_head.weight
    idx = torch.tensor([[1, 2, 3]])
    assert torch.equal(generate_text(again, idx, 9), generate_text(quick, idx, 9))


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("first", [None, torch.float16])
@torch.no_grad()
def test_a_quick_copy_of_a_quick_copy_is_one_of_the_model(first, dtype):
    model, idx = model_of("learned", tied_head=True), torch.tensor([[1, 2, 3]])
    twice = quicken(quicken(model, first), dtype)
    kinds = {type(m) for m in twice.modules()} & {nn.Linear, RowLinear, Int8Linear}
    assert kinds == {Int8Linear if dtype == torch.int8 else RowLinear}
    expected = quicken(model.to(first), dtype)(idx)
    assert torch.equal(twice(idx), expected)


@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16, torch.int8])
def test_a_copy_whose_weights_are_rounded_is_not_copied_again(dtype):
    rounded = quicken(model_of("learned", tied_head=True), torch.int8)
    with pytest.raises(ValueError, match="int8 layers already: quicken its original"):
        quicken(rounded, dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@torch.no_grad()
def test_int8_is_for_models_of_every_format(dtype):
    model, idx = model_of("learned", tied_head=True).to(dtype), torch.tensor([[1, 2]])
    quick = quicken(model, torch.int8)
    assert torch.equal(quick(idx), quicken(model.float(), torch.int8)(idx))
    assert generate_text(quick, idx, 9).shape == (1, 11)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@torch.no_grad()
def test_half_precision_takes_half_the_memory_and_stays_close(dtype):
    model = model_of("learned", tied_head=True)
    quick = quicken(model, dtype)
    assert quick.out_head.weight is quick.tok_emb.weight
    sizes = [sum(p.nbytes for p in m.parameters()) for m in (model, quick)]
    assert sizes[0] == 2 * sizes[1]
    idx = torch.randint(0, 17, (2, 8))
    gap = (quick(idx).float() - model(idx)).abs().max()
    assert 0 < gap < 0.02 * model(idx).std()
    assert generate_text(quick, idx, 5).shape == (2, 13)


@torch.no_grad()
def test_x_keeps_8_bits_where_the_processor_can_sum_them():
    layer = Int8Linear(nn.Linear(1, 1, bias=False))
    levels = layer(torch.linspace(0, 1, 2001)[:, None]).unique()
    assert len(levels) == (128 if layer.seven_bits else 256)
    assert not (layer.seven_bits and torch.cpu._is_vnni_supported())


@torch.no_grad()
def test_8_bits_take_a_quarter_of_the_linear_weights_and_stay_close():
    cfg = replace(TINY, vocab_size=101, emb_dim=96, tied_head=True)
    model = GPTModel(cfg).eval()
    quick = quicken(model, torch.int8)
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    eight = [m for m in quick.modules() if isinstance(m, Int8Linear)]
    assert len(layers) == len(eight) == 2 * 6 + 1, "the head as well"
    for layer, small in zip(layers, eight, strict=True):
        whole, bias = torch.ops.quantized.linear_unpack(small.packed)
        assert whole.int_repr().nbytes * 4 == layer.weight.nbytes
        assert (bias is None) == (layer.bias is None)
    assert quick.tok_emb.weight.data_ptr() == model.tok_emb.weight.data_ptr()
    idx = torch.randint(0, 101, (3, 8))
    gap = (quick(idx) - model(idx)).abs().max()
    assert 0 < gap < 0.1 * model(idx).std()
    again = copy.deepcopy(quick)
    assert torch.equal(again(idx), quick(idx))


def test_other_formats_are_refused():
    model = model_of("learned", tied_head=True)
    for dtype in (torch.float64, torch.int16, torch.float32):
        with pytest.raises(ValueError, match=str(dtype)):
            quicken(model, dtype)
    with pytest.raises(ValueError, match="on meta"):
        quicken(model.to("meta"), torch.int8)


# --- attention and the head -------------------------------------------------------


@pytest.mark.parametrize("mode", [True, False])
@torch.no_grad()
def test_written_out_attention_and_pytorchs_own_agree(mode):
    """Every split of the text in two: nothing, one or several cached, one or more new."""
    cfg = GPTConfig(13, 9, 20, 4, 1, 0.0)
    attention = MultiHeadAttention(cfg).train(mode)
    x = torch.randn(2, 7, 20)
    q, k, v = (
        attention._split_heads(role(x))
        for role in (attention.W_query, attention.W_key, attention.W_value)
    )
    hidden = torch.ones(7, 7, dtype=torch.bool).triu(1)
    weights = (q @ k.mT / 5**0.5).masked_fill(hidden, -torch.inf).softmax(-1)
    expected = attention.out_proj((weights @ v).transpose(1, 2).flatten(2))
    for first in range(7):
        cache, parts = KVCache(cfg, 2), []
        for part in (x[:, :first], x[:, first:]):
            if part.shape[1]:
                parts.append(attention(part, cache))
                cache.length += part.shape[1]
        torch.testing.assert_close(torch.cat(parts, 1), expected, atol=1e-5, rtol=0)


def test_training_keeps_the_attention_that_is_written_out(monkeypatch):
    calls = []
    own = F.scaled_dot_product_attention
    monkeypatch.setattr(
        gpt_helpers.F,
        "scaled_dot_product_attention",
        lambda *a, **k: calls.append(k) or own(*a, **k),
    )
    model = model_of("learned", tied_head=False)
    idx = torch.tensor([[1, 2, 3]])
    model.train()(idx)
    assert not calls
    model.eval()(idx)
    assert len(calls) == TINY.n_layers and all(k["is_causal"] for k in calls)


@torch.no_grad()
def test_the_head_reads_the_last_position_alone():
    model = model_of("learned", tied_head=False)
    read = []
    model.out_head.register_forward_hook(lambda _, x, y: read.append(y.shape))
    idx = torch.randint(0, 17, (2, 6))
    logits = next_logits(model, idx, KVCache(TINY, 2))
    assert [tuple(shape) for shape in read] == [(2, 17)]
    torch.testing.assert_close(logits, model(idx)[:, -1], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("dtype", "kind"), [(None, RowLinear), (torch.int8, Int8Linear)]
)
def test_every_linear_layer_is_exchanged(dtype, kind):
    quick = quicken(model_of("learned", tied_head=True), dtype)
    assert sum(type(m) is kind for m in quick.modules()) == 13
    assert not any(type(m) is nn.Linear for m in quick.modules())
