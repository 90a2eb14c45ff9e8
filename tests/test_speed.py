"""The products of lesson 11 against PyTorch's own, and quick models against plain ones."""

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
    KVCache,
    MultiHeadAttention,
    TrainingPlan,
    blocks_left,
    blocks_right,
    fastest_way,
    generate_text,
    generate_text_simple,
    in_float16,
    in_float32,
    in_int4,
    in_int8,
    load_checkpoint,
    make_optimizer,
    next_logits,
    next_token_loss,
    quantize_groups_of_32,
    quantize_rows,
    quicken,
    save_checkpoint,
)
from test_positions_and_cache import TINY, model_of, ways_to_cut

FORMATS = [None, torch.float16, torch.int8, "int4"]
WIDE = replace(TINY, vocab_size=101, emb_dim=96, qkv_bias=True, tied_head=True)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def weight_and_bias(outer, inner):
    return torch.randn(outer, inner), torch.randn(outer)


# --- the products in float32 --------------------------------------------------------

# Multiples of 32, 29 · 1733 as GPT-2's vocabulary, primes, one.
OUTER = 768, 96, 29 * 11, 58, 37, 31, 2, 1


@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("way", [blocks_left, blocks_right])
def test_a_product_in_blocks_is_pytorchs_linear(way, outer, rows):
    weight, bias = weight_and_bias(outer, 40)
    x = torch.randn(rows, 3, 40)[:, 1]  # rows that do not touch in memory
    expected = (x.double() @ weight.double().T + bias.double()).float()
    torch.testing.assert_close(way(x, weight, bias), expected, atol=1e-4, rtol=0)
    strided = weight.T.contiguous().T
    torch.testing.assert_close(way(x, strided, bias), expected, atol=1e-4, rtol=0)


def test_each_number_of_rows_has_its_way():
    asked = []
    one, few = (lambda *_: asked.append("one")), (lambda *_: asked.append("few"))
    product = in_float32(*weight_and_bias(8, 40), (one, few))
    for rows in (1, 2, 16):
        product(torch.randn(rows, 40))
    assert asked == ["one", "few", "few"]
    assert product(torch.randn(17, 40)).shape == (17, 8)


def test_the_fastest_way_is_the_one_that_took_least(monkeypatch):
    clock = [0.0]

    def taking(name, way):
        def slow(x, weight, bias):
            clock[0] += seconds[name]
            return way(x, weight, bias)

        return slow

    ways = {
        n: taking(n, getattr(gpt_helpers, n)) for n in ("blocks_left", "blocks_right")
    }
    ways["linear"] = taking("linear", F.linear)
    monkeypatch.setattr(gpt_helpers, "blocks_left", ways["blocks_left"])
    monkeypatch.setattr(gpt_helpers, "blocks_right", ways["blocks_right"])
    monkeypatch.setattr(gpt_helpers.F, "linear", ways["linear"])
    monkeypatch.setattr(gpt_helpers.time, "perf_counter", lambda: clock[0])
    for best, way in ways.items():
        seconds = dict.fromkeys(ways, 2.0) | {best: 1.0}
        layers = [nn.Linear(40, 8), nn.Linear(40, 8)]
        assert fastest_way(layers, 4) is way


# --- 16, 8 and 4 bits ---------------------------------------------------------------


@pytest.mark.parametrize("engine", torch.backends.quantized.supported_engines)
@pytest.mark.parametrize("rows", [1, 3])
def test_float16_rounds_the_weight_and_nothing_else(engine, rows, monkeypatch):
    """Also where PyTorch has no such product: on Arm its engine is qnnpack."""
    monkeypatch.setattr(torch.backends.quantized, "engine", engine)
    weight, bias = weight_and_bias(16, 4000)
    x = torch.randn(rows, 4000)
    expected = x.double() @ weight.half().double().T + bias.double()
    got = in_float16(weight, bias)(x)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), expected, atol=1e-3, rtol=0)


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


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_8_bits_stay_within_the_bound_of_rounding(rows):
    """Half a step per number, in the weight and in x, added up over the row.

    x has 127 steps or 255 from its smallest number, or 0, to its largest, in all
    rows; its zero is rounded too, so half a step is not enough.
    """
    weight, bias = weight_and_bias(33, 64)
    x = torch.randn(rows, 64)
    got, exact = in_int8(weight, bias)(x), F.linear(x, weight, bias)
    step_x = (x.max().clamp(min=0) - x.min().clamp(max=0)) / 127
    step_w = weight.abs().amax(dim=1) / 127 / 2
    x_part = step_x * weight.abs().sum(dim=1)
    w_part = step_w * x.abs().sum(dim=-1, keepdim=True)
    bound = x_part + w_part + 64 * step_x * step_w
    assert got.shape == exact.shape
    assert ((got - exact).abs() <= bound + 1e-5).all()
    assert (got - exact).abs().max() > 0, "8 bits are fewer than 32"


def test_8_bits_are_the_quantized_rows_weight():
    """With an x that any number of bits holds exactly, nothing else is rounded."""
    weight, bias = weight_and_bias(16, 3072)
    x = torch.randint(0, 2, (1, 3072)).float()
    whole, scale = quantize_rows(weight)
    expected = (x.double() @ (whole * scale).double().T).float() + bias
    torch.testing.assert_close(in_int8(weight, bias)(x), expected, atol=1e-3, rtol=0)


def test_x_keeps_8_bits_where_the_processor_can_sum_them():
    product = in_int8(torch.ones(1, 1), torch.zeros(1))
    levels = product(torch.linspace(0, 1, 2001)[:, None]).unique()
    x86 = torch.backends.quantized.engine == "x86"
    seven_bits = x86 and not torch.cpu._is_vnni_supported()
    assert len(levels) == (128 if seven_bits else 256)


def test_groups_of_32_by_hand():
    """From −8 to 7 in steps of 1: all 16 levels, exactly. Then from 0 to 30."""
    row = torch.arange(-8.0, 8).repeat(4)
    row[32:] = 2 * (row[32:] + 8)
    levels, scale, middle = quantize_groups_of_32(row[None])
    assert levels.dtype == torch.int32 and levels.shape == (1, 2, 32)
    assert levels[0].tolist() == [[*range(16), *range(16)]] * 2
    assert scale.tolist() == [[[1.0], [2.0]]] and middle.tolist() == [[[0.0], [16.0]]]


def test_4_bits_move_no_number_by_more_than_half_a_step():
    """Half a step of 1/15, and what bfloat16 takes from scale and middle."""
    weight = torch.randn(50, 96) * torch.logspace(-9, 9, 50)[:, None] + 0.1
    weight[7, 32:64] = 3.0  # a group of one number
    levels, scale, middle = quantize_groups_of_32(weight)
    groups = weight.view(50, 3, 32)
    wide = groups.amax(-1, keepdim=True) - groups.amin(-1, keepdim=True)
    coarse = groups.abs().amax(-1, keepdim=True) / 256
    gap = ((levels - 8) * scale + middle - groups).abs()
    assert (gap <= wide / 30 * 1.01 + 16 * wide / 15 / 256 + coarse).all()
    assert levels.min() == 0 and levels.max() == 15


@pytest.mark.parametrize("outer", [16, 33, 101])
def test_4_bits_are_the_quantized_groups_weight(outer):
    """With an x that bfloat16 holds exactly, the weight's levels give the sums."""
    weight, bias = weight_and_bias(outer, 96)
    x = torch.randint(-2, 3, (3, 96)).float()
    levels, scale, middle = quantize_groups_of_32(weight)
    rounded = ((levels - 8) * scale + middle).flatten(1).double()
    expected = (x.double() @ rounded.T).float() + bias
    product = in_int4(weight, bias)
    one = torch.cat([product(row[None]) for row in x])
    assert one.dtype == torch.float32 and one.shape == (3, outer)
    torch.testing.assert_close(one, expected, atol=0.05, rtol=0.01)
    several = product(x)
    torch.testing.assert_close(several, expected, atol=0.5, rtol=0)
    assert (expected - F.linear(x, weight, bias)).abs().max() > 1, "4 bits are few"


# --- quick models -------------------------------------------------------------------

kinds = pytest.mark.parametrize("positions", ["learned", "rotary"])
ties = pytest.mark.parametrize("tied_head", [False, True])
formats = pytest.mark.parametrize("dtype", FORMATS)


@kinds
@ties
@pytest.mark.parametrize("qkv_bias", [False, True])
@pytest.mark.parametrize("B", [1, 3])
@torch.no_grad()
def test_a_quick_model_reads_a_text_however_it_is_cut(
    positions, tied_head, qkv_bias, B
):
    cfg = replace(TINY, positions=positions, tied_head=tied_head, qkv_bias=qkv_bias)
    model = GPTModel(cfg).eval()
    for block in model.trf_blocks:  # norms that are not the identity
        block.norm1.shift.normal_()
        block.norm2.scale.normal_()
    quick = quicken(model)
    idx = torch.randint(0, 17, (B, TINY.context_length))
    expected = model(idx[:, :6])
    torch.testing.assert_close(quick(idx[:, :6]), expected, atol=1e-5, rtol=0)
    for lengths in ways_to_cut(6):
        cache = KVCache(model.cfg, B)
        parts = [quick(part, cache) for part in idx[:, :6].split(lengths, dim=1)]
        torch.testing.assert_close(torch.cat(parts, 1), expected, atol=1e-5, rtol=0)
        assert cache.length == 6


@kinds
@ties
@pytest.mark.parametrize("B", [1, 3])
@pytest.mark.parametrize("T", [1, 9, 14])
def test_a_quick_model_writes_the_same_tokens(positions, tied_head, B, T):
    model = model_of(positions, tied_head)
    idx = torch.randint(0, 17, (B, T))
    expected = generate_text_simple(model, idx, 25, TINY.context_length)
    assert torch.equal(generate_text(quicken(model), idx, 25), expected)
    slow = generate_text(quicken(model), idx, 25, use_cache=False)
    assert torch.equal(slow, expected)


@pytest.mark.parametrize("one", [F.linear, blocks_left, blocks_right])
@pytest.mark.parametrize("few", [F.linear, blocks_left, blocks_right])
def test_the_tokens_do_not_depend_on_the_way_that_was_fastest(one, few, monkeypatch):
    model = model_of("learned", tied_head=True)
    monkeypatch.setattr(
        gpt_helpers, "fastest_way", lambda _, rows: one if rows == 1 else few
    )
    quick = quicken(model)
    for B in (1, 3):
        idx = torch.randint(0, 17, (B, 4))
        expected = generate_text(model, idx, 20)
        assert torch.equal(generate_text(quick, idx, 20), expected)


def test_a_quick_model_shares_the_weights_and_follows_training():
    model = GPTModel(WIDE)
    quick, again = quicken(model), quicken(model)
    plan = TrainingPlan(1, learning_rate=0.1)
    optimizer = make_optimizer(model.train(), plan)
    idx = torch.randint(0, 101, (2, 9))
    before = quick(idx)
    next_token_loss(model, idx, idx).backward()
    optimizer.step()
    assert (quick(idx) - before).abs().max() > 0.1
    with torch.no_grad():
        expected = model.eval()(idx)
    torch.testing.assert_close(quick(idx), expected, atol=1e-4, rtol=0)
    assert torch.equal(again(idx), quick(idx)), "a second copy moves nothing"


def test_a_model_whose_weights_were_moved_is_saved_and_loaded(tmp_path):
    model, other = GPTModel(WIDE).eval(), GPTModel(WIDE).eval()
    quicken(model)
    plan, idx = TrainingPlan(1), torch.randint(0, 101, (1, 9))
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, model, make_optimizer(model, plan), plan, {}, [])
    load_checkpoint(path, other)
    assert torch.equal(other(idx), model(idx))
    copied = copy.deepcopy(model)
    assert torch.equal(copied(idx), model(idx))


@formats
def test_the_model_itself_keeps_its_numbers(dtype):
    model = GPTModel(WIDE).train()
    before = {n: p.clone() for n, p in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    quick = quicken(model, dtype)
    generate_text(quick, torch.tensor([[1, 2]]), 5)
    assert [module.training for module in model.modules()] == modes
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[n], before[n]) for n in before)
    assert all(p.requires_grad for p in model.parameters())
    assert model.out_head.weight is model.tok_emb.weight
    assert not any(p.requires_grad for p in quick.parameters())
    assert not any(module.training for module in quick.modules())


def test_training_of_the_model_is_not_touched_by_its_copies():
    def gradients(model):
        torch.manual_seed(5)  # for dropout
        idx = torch.arange(8).view(2, 4)
        loss = next_token_loss(model.train(), idx, idx + 1)
        return torch.autograd.grad(loss, list(model.parameters()))

    model = GPTModel(WIDE)
    before = gradients(model)
    for dtype in FORMATS:
        quicken(model, dtype)
    assert all(map(torch.equal, gradients(model), before))


@formats
def test_a_quick_copy_is_refused_by_name(dtype):
    with pytest.raises(ValueError, match="quicken a GPTModel, not a QuickGPT"):
        quicken(quicken(GPTModel(WIDE)), dtype)


@formats
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
@torch.no_grad()
def test_models_of_every_kind_of_number_are_quickened(kind, dtype):
    model, idx = GPTModel(WIDE).to(kind), torch.tensor([[1, 2, 3]])
    quick = quicken(model, dtype)
    expected = quicken(model.float(), dtype)(idx)
    torch.testing.assert_close(quick(idx), expected, atol=1e-5, rtol=0)
    assert generate_text(quick, idx, 5).shape == (1, 8)


NEAR = {None: 1e-5, torch.float16: 0.005, torch.int8: 0.1, "int4": 0.6}


@formats
@torch.no_grad()
def test_each_format_stays_as_close_as_its_bits_allow(dtype):
    """To the logits of the model, in standard deviations; a prompt and single rows."""
    model = GPTModel(WIDE).eval()
    quick, idx = quicken(model, dtype), torch.randint(0, 101, (3, 8))
    exact = model(idx)
    gap = (quick(idx) - exact).abs().max() / exact.std()
    assert gap < NEAR[dtype]
    cache, parts = KVCache(WIDE, 1), []
    for token in idx[:1].split(1, dim=1):
        parts.append(quick(token, cache))
    gap = (torch.cat(parts, 1) - exact[:1]).abs().max() / exact.std()
    assert gap < NEAR[dtype]
    assert dtype is None or gap > NEAR[dtype] / 100
    again = copy.deepcopy(quick)
    assert torch.equal(again(idx), quick(idx))


@formats
def test_the_cache_of_a_quick_model_is_in_float32(dtype, monkeypatch):
    made, init = [], KVCache.__init__
    spy = lambda self, *a: init(self, *a) or made.append(self.keys.dtype)
    monkeypatch.setattr(KVCache, "__init__", spy)
    for model in (GPTModel(WIDE), GPTModel(WIDE).bfloat16()):
        text = generate_text(quicken(model, dtype), torch.tensor([[1, 2, 3]]), 4)
        assert text.shape == (1, 7)
    assert made == [torch.float32] * 2


def test_other_formats_and_places_are_refused():
    model = model_of("learned", tied_head=True)
    for dtype in (torch.float64, torch.bfloat16, torch.float32, "int8"):
        with pytest.raises(ValueError, match=str(dtype)):
            quicken(model, dtype)
    with pytest.raises(ValueError, match="not a QuickGPT"):
        quicken(quicken(model))
    with pytest.raises(ValueError, match="int4 .* not 24"):
        quicken(model, "int4")
    for move in (lambda quick: quick.half(), lambda quick: quick.to("meta")):
        with pytest.raises(TypeError, match="first"):
            move(quicken(model))
    for dtype in FORMATS[1:]:
        with pytest.raises(ValueError, match="on meta"):
            quicken(model.to("meta"), dtype)


def test_bad_ids_are_refused_as_by_the_model():
    quick = quicken(model_of("learned", tied_head=True))
    with pytest.raises(ValueError, match="token id 17"):
        quick(torch.tensor([[17]]))
    cache = KVCache(TINY, 1)
    with pytest.raises(ValueError, match="10 tokens"):
        quick(torch.zeros(1, 10, dtype=torch.long), cache)
    assert cache.length == 0


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
