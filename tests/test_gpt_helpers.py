"""The module's parts against PyTorch's own functions, papers and recorded figures."""

import ast
import copy
import math
import os
import re
import shutil
import subprocess
import sys
from dataclasses import FrozenInstanceError, asdict, replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import gpt_helpers
from gpt_helpers import (
    GELU,
    GPT2_CONFIGS,
    GPT_CONFIG_124M,
    VOCABULARY_FILES,
    FeedForward,
    GPTConfig,
    GPTModel,
    KVCache,
    LayerNorm,
    MultiHeadAttention,
    TransformerBlock,
    check_token_ids,
    count_parameters,
    evaluating,
    generate_text,
    generate_text_simple,
    get_tokenizer,
    keep_top_k,
    keep_top_p,
    next_token_loss,
    sample_next_token,
)

MODULE = Path(gpt_helpers.__file__)
TINY = GPTConfig(
    vocab_size=11, context_length=7, emb_dim=20, n_heads=4, n_layers=2, drop_rate=0.5
)


@pytest.fixture
def tiny():
    torch.manual_seed(0)
    return GPTModel(TINY).eval()


# --- configuration ---------------------------------------------------------------


def test_default_configuration_is_the_books():
    book = {
        "vocab_size": 50257,
        "context_length": 1024,
        "emb_dim": 768,
        "n_heads": 12,
        "n_layers": 12,
        "drop_rate": 0.1,
        "qkv_bias": False,
    }
    assert GPTConfig(**book) == GPT_CONFIG_124M
    added = {"tied_head": False, "positions": "learned"}
    assert asdict(GPT_CONFIG_124M) == book | added


@pytest.mark.parametrize("field", ["vocab_size", "context_length", "n_layers"])
@pytest.mark.parametrize("value", [0, -3, 2.0, True, "12", None])
def test_sizes_must_be_positive_integers(field, value):
    with pytest.raises(ValueError, match=f"{field} .*{value!r}"):
        GPTConfig(**{field: value})


def test_other_bad_configurations_name_field_and_value():
    with pytest.raises(ValueError, match="n_heads=7 .*emb_dim=768"):
        GPTConfig(n_heads=7)
    for rate in (1.0, -0.1, 5, math.nan, "0.1", None, [0.1]):
        with pytest.raises(ValueError, match=f"drop_rate .*{re.escape(repr(rate))}"):
            GPTConfig(drop_rate=rate)
    for switch in ("qkv_bias", "tied_head"):
        for value in ("False", 0, 1, None):
            with pytest.raises(ValueError, match=f"{switch} .*{value!r}"):
                GPTConfig(**{switch: value})
    with pytest.raises(TypeError, match="emb_dimm"):
        GPTConfig(emb_dimm=768)
    with pytest.raises(FrozenInstanceError):
        GPT_CONFIG_124M.n_layers = 3


# --- the parts against PyTorch ----------------------------------------------------


@pytest.mark.parametrize("spread", [1.0, 1e-3])
def test_layer_norm_is_the_papers_formula_and_pytorchs(spread):
    torch.manual_seed(0)
    x = spread * torch.randn(2, 3, 20) + 0.3 * spread
    norm = LayerNorm(20)
    torch.nn.init.normal_(norm.scale)
    torch.nn.init.normal_(norm.shift)
    centered = x.double() - x.double().mean(dim=-1, keepdim=True)
    variance = centered.square().sum(dim=-1, keepdim=True) / 20
    formula = centered / torch.sqrt(variance + 1e-5) * norm.scale + norm.shift
    torch.testing.assert_close(norm(x), formula.float(), atol=1e-6, rtol=1e-5)
    theirs = torch.nn.LayerNorm(20)
    theirs.load_state_dict({"weight": norm.scale, "bias": norm.shift})
    torch.testing.assert_close(norm(x), theirs(x), atol=1e-6, rtol=1e-5)


def test_gelu_is_the_papers_tanh_form_and_not_the_exact_one():
    x = torch.linspace(-6, 6, 2001, dtype=torch.float64)
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    tanh_form = 0.5 * x * (1 + torch.tanh(inner))
    torch.testing.assert_close(GELU()(x.float()), tanh_form.float(), atol=1e-6, rtol=0)
    assert (GELU()(x) - F.gelu(x)).abs().max() > 4e-4


def test_feed_forward_is_two_linears_around_gelu():
    torch.manual_seed(0)
    feed_forward, x = FeedForward(TINY), torch.randn(2, 3, 20)
    w1, b1, w2, b2 = feed_forward.parameters()
    assert w1.shape == (80, 20)
    expected = F.linear(F.gelu(F.linear(x, w1, b1), approximate="tanh"), w2, b2)
    torch.testing.assert_close(feed_forward(x), expected)


def attention_by_pytorch(x, weights, prefix, n_heads, dropout=1.0):
    heads = []
    for name in ("W_query", "W_key", "W_value"):
        bias = weights.get(f"{prefix}{name}.bias")
        projected = F.linear(x, weights[f"{prefix}{name}.weight"], bias)
        heads.append(torch.stack(projected.chunk(n_heads, dim=-1), dim=1))
    mixed = dropout * F.scaled_dot_product_attention(*heads, is_causal=True)
    joined = torch.cat(mixed.unbind(dim=1), dim=-1)
    out = weights[f"{prefix}out_proj.weight"], weights[f"{prefix}out_proj.bias"]
    return F.linear(joined, *out)


@pytest.mark.parametrize("qkv_bias", [False, True])
def test_attention_is_pytorchs(qkv_bias):
    torch.manual_seed(0)
    attention = MultiHeadAttention(replace(TINY, qkv_bias=qkv_bias)).eval()
    x = torch.randn(2, 3, 20)
    expected = attention_by_pytorch(x, attention.state_dict(), "", 4)
    torch.testing.assert_close(attention(x), expected, atol=1e-6, rtol=1e-5)


def model_by_pytorch(idx, weights, cfg, dropout=1.0):
    """GPT-2 written with PyTorch's functions alone, from a state dict.

    ``dropout`` multiplies wherever GPT-2 has dropout: the embeddings, the attention
    weights (and so what they mix), and what each part adds to the shortcut.
    """

    def norm(x, name):
        scale, shift = weights[f"{name}.scale"], weights[f"{name}.shift"]
        return F.layer_norm(x, (cfg.emb_dim,), scale, shift, eps=1e-5)

    def linear(x, name):
        return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    x = F.embedding(idx, weights["tok_emb.weight"])
    x = dropout * (x + weights["pos_emb.weight"][: idx.shape[1]])
    for i in range(cfg.n_layers):
        block = f"trf_blocks.{i}"
        normed = norm(x, f"{block}.norm1")
        parts = normed, weights, f"{block}.att.", cfg.n_heads, dropout
        x = x + dropout * attention_by_pytorch(*parts)
        inner = linear(norm(x, f"{block}.norm2"), f"{block}.ff.layers.0")
        gate = F.gelu(inner, approximate="tanh")
        x = x + dropout * linear(gate, f"{block}.ff.layers.2")
    return norm(x, "final_norm") @ weights["out_head.weight"].T


def randomized(cfg):
    """A model in which no parameter has a special value, norms included."""
    torch.manual_seed(0)
    model = GPTModel(cfg)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("tied_head", [False, True])
def test_model_is_the_one_written_with_pytorchs_functions(tied_head):
    cfg = replace(TINY, tied_head=tied_head, qkv_bias=True)
    model = randomized(cfg).eval()
    idx = torch.randint(0, 11, (3, 7))
    expected = model_by_pytorch(idx, model.state_dict(), cfg)
    torch.testing.assert_close(model(idx), expected, atol=1e-4, rtol=1e-4)
    hidden = model.forward_hidden(idx)
    assert hidden.shape == (3, 7, 20)
    torch.testing.assert_close(
        hidden @ model.out_head.weight.T, expected, atol=1e-4, rtol=1e-4
    )


def test_dropout_stands_in_gpt2s_places(monkeypatch):
    """A dropout that only multiplies makes its places visible."""
    monkeypatch.setattr(torch.nn.Dropout, "forward", lambda self, x: (1 + self.p) * x)
    model, idx = randomized(TINY), torch.randint(0, 11, (2, 7))
    expected = model_by_pytorch(idx, model.state_dict(), TINY, dropout=1.5)
    torch.testing.assert_close(model(idx), expected, atol=1e-4, rtol=1e-4)


def test_a_model_without_memory_computes_shapes():
    with torch.device("meta"):
        model, idx = GPTModel(TINY), torch.zeros(2, 3, dtype=torch.long)
        assert model(idx).shape == (2, 3, 11)


@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize("mode", [True, False])
@torch.no_grad()
def test_what_to_empty_leaves_is_all_in_the_state_dict(positions, mode):
    """Whatever the memory held, here 1, loading mends it: nothing else is kept."""
    cfg = replace(TINY, n_heads=2, drop_rate=0.0, positions=positions)
    model, idx = randomized(cfg).train(mode), torch.randint(0, 11, (2, 7))
    with torch.device("meta"):
        built = GPTModel(cfg).train(mode)
    built.to_empty(device="cpu")
    for tensor in [*built.parameters(), *built.buffers()]:
        tensor.fill_(1)
    built.load_state_dict(model.state_dict())
    assert torch.equal(built(idx), model(idx))
    chunks = []
    for reader in built, model:
        cache = KVCache(cfg, 2)
        chunks.append([reader(part, cache) for part in idx.split([2, 3, 2], dim=1)])
    assert all(map(torch.equal, *chunks))


@torch.no_grad()
def test_a_bfloat16_model_reads_alike_in_both_modes():
    model, idx = randomized(replace(TINY, drop_rate=0.0)), torch.tensor([[1, 2, 3]])
    exact = model.eval()(idx)
    for mode in True, False:
        out = model.bfloat16().train(mode)(idx)
        assert out.dtype == torch.bfloat16
        assert (out - exact).abs().max() < 0.1 * exact.std()


def test_no_output_depends_on_a_later_token(tiny):
    idx = torch.randint(0, 11, (2, 7))
    changed = idx.clone()
    changed[:, 4] = (idx[:, 4] + 1) % 11
    before, after = tiny(idx), tiny(changed)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.equal(before[:, 4:], after[:, 4:])


# --- names, counts, sharing -------------------------------------------------------


def books_state_dict(cfg):
    """A state dict as the book's own GPTModel saves it, masks included."""
    C, V, T = cfg.emb_dim, cfg.vocab_size, cfg.context_length
    shapes = {"tok_emb.weight": (V, C), "pos_emb.weight": (T, C)}
    for i in range(cfg.n_layers):
        block = f"trf_blocks.{i}."
        shapes[block + "att.mask"] = (T, T)
        for name in ("W_query", "W_key", "W_value", "out_proj"):
            shapes[f"{block}att.{name}.weight"] = (C, C)
        shapes[block + "att.out_proj.bias"] = (C,)
        shapes[block + "ff.layers.0.weight"] = (4 * C, C)
        shapes[block + "ff.layers.0.bias"] = (4 * C,)
        shapes[block + "ff.layers.2.weight"] = (C, 4 * C)
        shapes[block + "ff.layers.2.bias"] = (C,)
        for norm in ("norm1", "norm2"):
            shapes[f"{block}{norm}.scale"] = shapes[f"{block}{norm}.shift"] = (C,)
    shapes["final_norm.scale"] = shapes["final_norm.shift"] = (C,)
    shapes["out_head.weight"] = (V, C)
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def test_a_state_dict_of_the_books_code_loads(tiny):
    saved = books_state_dict(TINY)
    tiny.load_state_dict(saved)
    assert "trf_blocks.0.att.mask" in saved, "the caller's dictionary stays whole"
    ours = tiny.state_dict()
    assert set(ours) == {name for name in saved if not name.endswith("mask")}
    assert all(torch.equal(ours[name], saved[name]) for name in ours)


def test_a_missing_or_unknown_weight_is_still_reported(tiny):
    saved = books_state_dict(TINY)
    saved["trf_blocks.0.att.W_keys.weight"] = saved.pop("trf_blocks.0.att.W_key.weight")
    with pytest.raises(RuntimeError, match="(?s)W_key.weight.*W_keys.weight"):
        tiny.load_state_dict(saved)


# Total and tied: Radford et al. 2019 with the corrected figures of OpenAI's
# repository (124M, 355M, 774M, 1.56B); with biases, as in the published checkpoints.
PUBLISHED = {
    "small": (163_009_536, 124_412_160, 124_439_808),
    "medium": (406_212_608, 354_749_440, 354_823_168),
    "large": (838_220_800, 773_891_840, 774_030_080),
    "XL": (1_637_792_000, 1_557_380_800, 1_557_611_200),
}


def test_the_four_sizes_are_the_published_ones():
    """Radford et al. 2019, table 2; the heads from OpenAI's repository."""
    sizes = {n: (c.emb_dim, c.n_layers, c.n_heads) for n, c in GPT2_CONFIGS.items()}
    assert sizes == {
        "small": (768, 12, 12),
        "medium": (1024, 24, 16),
        "large": (1280, 36, 20),
        "XL": (1600, 48, 25),
    }


@pytest.mark.parametrize("size", PUBLISHED)
def test_parameter_counts_of_the_four_sizes(size):
    cfg, (total, tied, with_biases) = GPT2_CONFIGS[size], PUBLISHED[size]
    with torch.device("meta"):
        assert count_parameters(GPTModel(cfg)) == total
        assert count_parameters(GPTModel(replace(cfg, tied_head=True))) == tied
        like_openai = replace(cfg, tied_head=True, qkv_bias=True)
        assert count_parameters(GPTModel(like_openai)) == with_biases


def test_parameter_counts_of_the_parts():
    assert count_parameters(FeedForward(GPT_CONFIG_124M)) == 4_722_432
    assert count_parameters(MultiHeadAttention(GPT_CONFIG_124M)) == 2_360_064
    assert count_parameters(TransformerBlock(GPT_CONFIG_124M)) == 7_085_568


def test_a_tied_head_is_one_tensor_and_stays_one():
    model = GPTModel(replace(TINY, tied_head=True))
    assert model.out_head.weight is model.tok_emb.weight
    twin = copy.deepcopy(model).to(torch.float64)
    twin.load_state_dict(model.state_dict())
    assert twin.out_head.weight is twin.tok_emb.weight
    assert twin.out_head.weight is not model.out_head.weight
    assert count_parameters(twin) == count_parameters(GPTModel(TINY)) - 11 * 20


def test_frozen_parameters_count_too():
    model = GPTModel(TINY)
    expected = count_parameters(model)
    assert count_parameters(model.requires_grad_(False)) == expected > 0


# --- bad token ids ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "error", "words"),
    [
        (torch.zeros(3, dtype=torch.long), ValueError, r"\(3,\)"),
        (torch.zeros(1, 2, 3, dtype=torch.long), ValueError, r"\(1, 2, 3\)"),
        (torch.zeros(1, 0, dtype=torch.long), ValueError, r"\(1, 0\)"),
        (torch.zeros(0, 4, dtype=torch.long), ValueError, r"\(0, 4\)"),
        (torch.zeros(1, 2), TypeError, "float32"),
        (torch.zeros(1, 2, dtype=torch.bool), TypeError, "bool"),
        (torch.tensor([[3, 11]]), ValueError, "11 is outside 0..10"),
        (torch.tensor([[3, -1]]), ValueError, "-1 is outside 0..10"),
        (
            torch.zeros(1, 8, dtype=torch.long),
            ValueError,
            "^8 tokens .*context_length=7",
        ),
    ],
)
def test_bad_token_ids_are_refused_at_the_door(tiny, ids, error, words):
    for call in (tiny, tiny.forward_hidden, lambda ids: check_token_ids(ids, TINY)):
        with pytest.raises(error, match=words):
            call(ids)


@pytest.mark.parametrize("ids", ["Hello", None, [[1, 2]], 3])
def test_ids_that_are_no_tensor_are_named(tiny, ids):
    for call in (
        tiny,
        lambda ids: check_token_ids(ids, TINY),
        lambda ids: generate_text(tiny, ids, 3),
        lambda ids: generate_text_simple(tiny, ids, 3, 7),
    ):
        with pytest.raises(TypeError, match=f"tensor, not {type(ids).__name__}"):
            call(ids)


def test_int32_ids_are_welcome(tiny):
    idx = torch.tensor([[1, 2, 3]])
    assert torch.equal(tiny(idx.int()), tiny(idx))
    loss = next_token_loss(tiny, idx.int(), idx.int())
    assert torch.equal(loss, next_token_loss(tiny, idx, idx))
    assert torch.equal(generate_text(tiny, idx.int(), 3), generate_text(tiny, idx, 3))


# --- generation -------------------------------------------------------------------


def test_untrained_124m_continues_as_the_book_prints_it():
    tokenizer = get_tokenizer()
    ids = tokenizer.encode("Hello, I am")
    assert ids == [15496, 11, 314, 716]
    torch.manual_seed(123)
    model = GPTModel(GPT_CONFIG_124M).eval()
    expected = [*ids, 27018, 24086, 47843, 30961, 42348, 7267]
    idx = torch.tensor([ids])
    assert generate_text_simple(model, idx, 6, 1024).tolist() == [expected]
    assert generate_text(model, idx, 6).tolist() == [expected]


class TableModel(torch.nn.Module):
    """Predicts the next token from the last one alone, by a table (V, V) of scores."""

    def __init__(self, table):
        super().__init__()
        self.cfg = GPTConfig(
            vocab_size=len(table), context_length=4, emb_dim=1, n_heads=1
        )
        self.table = torch.as_tensor(table, dtype=torch.float32)

    def forward(self, idx):
        assert idx.shape[1] <= self.cfg.context_length, "fed past the context"
        assert not torch.is_grad_enabled(), "generation needs no gradient"
        return self.table[idx]


# After 0 comes 1, after 1 comes 2, after 2 comes 3, after 3 comes 0.
CIRCLE = TableModel([[0, 9, 0, 0], [0, 0, 9, 0], [0, 0, 0, 9], [9, 0, 0, 0]])


def test_generation_slides_its_window_past_the_context():
    start = torch.tensor([[0], [2]])
    expected = [[0, 1, 2, 3, 0, 1, 2, 3, 0, 1], [2, 3, 0, 1, 2, 3, 0, 1, 2, 3]]
    assert generate_text(CIRCLE, start, 9, use_cache=False).tolist() == expected
    assert generate_text_simple(CIRCLE, start, 9, 4).tolist() == expected
    assert start.tolist() == [[0], [2]], "the caller's tensor stays as it is"


def test_each_step_reads_the_last_tokens_of_the_window(tiny):
    idx = torch.randint(0, 11, (2, 5))
    expected = idx
    with torch.no_grad():
        for _ in range(6):
            next_id = tiny(expected[:, -4:])[:, -1].argmax(dim=-1, keepdim=True)
            expected = torch.cat([expected, next_id], dim=1)
    assert torch.equal(generate_text_simple(tiny, idx, 6, 4), expected)


def test_each_row_ends_on_its_own():
    start = torch.tensor([[0], [2]])
    out = generate_text(CIRCLE, start, 9, eos_id=3, use_cache=False)
    assert out.tolist() == [[0, 1, 2, 3], [2, 3, 3, 3]]


def test_a_prompt_that_ends_in_the_end_of_text_goes_on():
    start = torch.tensor([[3], [1]])
    out = generate_text(CIRCLE, start, 9, eos_id=3, use_cache=False)
    assert out.tolist() == [[3, 0, 1, 2, 3], [1, 2, 3, 3, 3]]


def test_generation_restores_every_modes_even_after_an_error(tiny):
    tiny.train()
    tiny.trf_blocks[1].eval()
    modes = [module.training for module in tiny.modules()]
    generate_text(tiny, torch.tensor([[1]]), 2)
    assert [module.training for module in tiny.modules()] == modes
    with pytest.raises(RuntimeError, match="inside"), evaluating(tiny):
        assert not tiny.training
        raise RuntimeError("inside")
    assert [module.training for module in tiny.modules()] == modes


def test_generation_in_train_mode_is_not_disturbed_by_dropout(tiny):
    idx = torch.tensor([[1, 2]])
    expected = generate_text(tiny, idx, 5)
    assert torch.equal(generate_text(tiny.train(), idx, 5), expected)


def test_sampling_follows_the_softmax_of_the_tempered_logits():
    logits = torch.tensor([[1.0, 2.0, 0.0]]).repeat(20_000, 1)
    generator = torch.Generator().manual_seed(0)
    drawn = sample_next_token(logits, temperature=2.0, generator=generator)
    share = torch.bincount(drawn[:, 0], minlength=3) / len(drawn)
    weights = [math.exp(0.5), math.exp(1.0), math.exp(0.0)]
    expected = torch.tensor(weights) / sum(weights)
    torch.testing.assert_close(share, expected, atol=0.015, rtol=0)


@pytest.mark.parametrize(
    ("settings", "possible"),
    [
        ({"temperature": 1.0, "top_p": 0.65}, {0, 1}),
        ({"temperature": 2.0, "top_p": 0.65}, {0, 1, 2}),  # the temperature comes first
        ({"temperature": 1.0, "top_k": 3, "top_p": 0.8}, {0, 1}),  # then k, then p
        ({"temperature": 0.005}, {0}),
    ],
)
def test_temperature_then_k_then_p(settings, possible):
    """By hand: square roots of the shares at temperature 2, renormalized after k."""
    logits = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log().repeat(3000, 1)
    generator = torch.Generator().manual_seed(0)
    drawn = sample_next_token(logits, **settings, generator=generator)
    assert set(drawn.flatten().tolist()) == possible


def test_a_low_temperature_still_draws_and_does_not_overflow():
    even = torch.zeros(200, 2, dtype=torch.float16)
    drawn = sample_next_token(even + 60.0, temperature=1e-4)
    assert set(drawn.flatten().tolist()) == {0, 1}


def test_from_a_millionth_on_the_temperature_counts():
    even = torch.zeros(200, 2)
    assert sample_next_token(even, temperature=2e-6).unique().tolist() == [0, 1]
    assert sample_next_token(even, temperature=9e-7).unique().tolist() == [0]


DTYPES = torch.float16, torch.bfloat16, torch.float32, torch.float64


@pytest.mark.parametrize("dtype", DTYPES)
def test_tokens_are_drawn_in_float32_with_none_for_the_forbidden(monkeypatch, dtype):
    """In 16 bits multinomial draws, now and then, what has no probability."""
    shares, multinomial = [], torch.multinomial
    monkeypatch.setattr(
        torch, "multinomial", lambda p, *a, **k: shares.append(p) or multinomial(p, *a)
    )
    logits = torch.zeros(3, 5000, dtype=dtype)
    logits[:, 7], logits[:, 9] = 9, 8
    sample_next_token(logits, temperature=1.0, top_k=2)
    assert shares[0].dtype == torch.float32
    assert shares[0].nonzero()[:, 1].unique().tolist() == [7, 9]
    expected = torch.tensor([1, math.exp(-1)]) / (1 + math.exp(-1))
    torch.testing.assert_close(shares[0][0, [7, 9]], expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_top_p_reaches_p_in_every_format_and_1_keeps_all(dtype):
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(4, 50257, generator=generator)).to(dtype)
    shares = logits.double().softmax(dim=-1)
    for p in (0.5, 0.9, 0.99, 0.999):
        out = keep_top_p(logits, p)
        kept = out.isfinite()
        assert out.dtype == dtype and torch.equal(out[kept], logits[kept])
        mass = (shares * kept).sum(dim=-1)
        least = shares.masked_fill(~kept, 1).amin(dim=-1)
        assert (mass > p - 1e-5).all() and (mass - least < p + 1e-5).all()
    for p in (1, 1.0):
        assert torch.equal(keep_top_p(logits, p), logits)


def test_a_seeded_generator_repeats_itself(tiny):
    def draw(seed):
        generator = torch.Generator().manual_seed(seed)
        idx = torch.tensor([[1], [2]])
        return generate_text(tiny, idx, 20, temperature=2.0, generator=generator)

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


def test_top_k_keeps_k_in_every_row():
    logits = torch.tensor([[3.0, 1.0, 2.0], [30.0, 10.0, 20.0], [5.0, 5.0, 5.0]])
    kept = keep_top_k(logits, 2)
    assert kept.isfinite().sum(dim=-1).tolist() == [2, 2, 2]
    assert kept[:2].tolist() == [[3, -math.inf, 2], [30, -math.inf, 20]]
    assert torch.equal(keep_top_k(logits, 99), logits)


def test_top_p_keeps_the_smallest_set_that_reaches_p():
    logits = torch.tensor([[0.1, 0.5, 0.15, 0.25], [0.97, 0.01, 0.01, 0.01]]).log()

    def kept(p):
        return keep_top_p(logits, p).isfinite().tolist()

    assert kept(0.7)[0] == [False, True, False, True]
    assert kept(0.8)[0] == [False, True, True, True]
    assert kept(1e-60) == [[False, True, False, False], [True, False, False, False]]
    assert torch.equal(keep_top_p(logits, 1.0), logits)
    halves = keep_top_p(torch.zeros(1, 2), 0.5)
    assert halves.isfinite().sum() == 1, "one half reaches p = 0.5"


@pytest.mark.parametrize("temperature", [0, 1e-50, 1e-30, 1e-7, 1e-5])
def test_a_vanishing_temperature_is_greedy(tiny, temperature):
    idx = torch.tensor([[1, 2], [3, 4]])
    greedy = generate_text_simple(tiny, idx, 5, 7)
    out = generate_text(tiny, idx, 5, temperature=temperature, top_k=50, top_p=0.9)
    assert torch.equal(out, greedy)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens .*-1"),
        ({"temperature": -0.5}, "temperature .*-0.5"),
        ({"temperature": math.nan}, "temperature .*nan"),
        ({"top_k": 0}, "top_k .*0"),
        ({"top_k": 2.5}, "top_k .*2.5"),
        ({"top_p": 0.0}, "top_p .*0.0"),
        ({"top_p": 1.5}, "top_p .*1.5"),
        ({"eos_id": 11}, "eos_id 11 .*0..10"),
        ({"eos_id": -1}, "eos_id -1 .*0..10"),
        ({"eos_id": True}, "eos_id True .*0..10"),
        ({"eos_id": 3.0}, "eos_id 3.0 .*0..10"),
        ({"eos_id": "3"}, "eos_id '3' .*0..10"),
        ({"temperature": math.inf}, "temperature .*inf"),
        ({"temperature": "1"}, "temperature .*'1'"),
        ({"temperature": None}, "temperature .*None"),
        ({"temperature": [1.0]}, r"temperature .*\[1.0\]"),
        ({"top_k": True}, "top_k .*True"),
        ({"top_k": "5"}, "top_k .*'5'"),
        ({"top_p": math.nan}, "top_p .*nan"),
        ({"top_p": "0.9"}, "top_p .*'0.9'"),
        ({"top_p": [0.9]}, r"top_p .*\[0.9\]"),
        ({"max_new_tokens": 2.5}, "max_new_tokens .*2.5"),
        ({"max_new_tokens": True}, "max_new_tokens .*True"),
        ({"max_new_tokens": None}, "max_new_tokens .*None"),
    ],
)
def test_senseless_sampling_settings_name_the_value(tiny, settings, words):
    with pytest.raises(ValueError, match=words):
        generate_text(tiny, torch.tensor([[1]]), **{"max_new_tokens": 3} | settings)


@pytest.mark.parametrize("p", [1, 1.0])
def test_settings_at_the_edge_of_their_range_are_welcome(tiny, p):
    settings = {"temperature": 0, "top_k": 1, "top_p": p, "eos_id": 0}
    assert generate_text(tiny, torch.tensor([[1]]), 0, **settings).tolist() == [[1]]
    last = generate_text(tiny, torch.tensor([[1]]), 1, temperature=1, eos_id=10)
    assert last.shape == (1, 2)


def test_generation_checks_its_prompt_even_when_it_adds_nothing(tiny):
    with pytest.raises(ValueError, match=r"\(1, 0\)"):
        generate_text(tiny, torch.zeros(1, 0, dtype=torch.long), 0)
    for call in (generate_text, generate_text_simple):
        settings = () if call is generate_text else (7,)
        with pytest.raises(ValueError, match=r"\(2,\)"):
            call(tiny, torch.tensor([1, 2]), 3, *settings)
    with pytest.raises(ValueError, match="max_new_tokens .*-2"):
        generate_text_simple(tiny, torch.tensor([[1]]), -2, 7)
    with pytest.raises(ValueError, match="context_size .*0"):
        generate_text_simple(tiny, torch.tensor([[1]]), 2, 0)
    for wrong in (2.5, "2", None, True):
        with pytest.raises(ValueError, match=f"max_new_tokens .*{wrong!r}"):
            generate_text_simple(tiny, torch.tensor([[1]]), wrong, 7)
        with pytest.raises(ValueError, match=f"context_size .*{wrong!r}"):
            generate_text_simple(tiny, torch.tensor([[1]]), 2, wrong)


# --- the tokenizer ----------------------------------------------------------------


def run_python(*arguments, folder=None, **environment):
    """Run a new Python process, where tiktoken has loaded nothing yet."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"} | environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


ENCODE = (
    "import os, gpt_helpers; t = gpt_helpers.get_tokenizer();"
    "print(t.encode('Every effort moves you'), os.environ.get('TIKTOKEN_CACHE_DIR'))"
)
IDS = "[6109, 3626, 6100, 345]"


@pytest.fixture
def own_cache(tmp_path):
    for name in VOCABULARY_FILES:
        shutil.copyfile(gpt_helpers.DATA_FOLDER / name, tmp_path / name)
    return tmp_path


def test_a_cache_folder_of_ones_own_is_used_and_kept(own_cache, tmp_path_factory):
    result = run_python("-c", ENCODE, TIKTOKEN_CACHE_DIR=str(own_cache))
    assert f"{IDS} {own_cache}" in result.stdout
    other = tmp_path_factory.mktemp("other")
    result = run_python("-c", ENCODE, TIKTOKEN_CACHE_DIR=str(other))
    assert f"{IDS} {other}" in result.stdout
    assert not list(other.iterdir()), "a folder that holds other things is left alone"


@pytest.mark.parametrize("name", VOCABULARY_FILES)
@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_a_bad_vocabulary_file_is_named_and_never_deleted(own_cache, name, harm):
    path = own_cache / name
    if harm == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n")[:-1])
    result = run_python("-c", ENCODE, TIKTOKEN_CACHE_DIR=str(own_cache))
    assert result.returncode == 1
    last_line = result.stderr.strip().splitlines()[-1]
    assert last_line.startswith("ValueError") and harm in last_line
    assert str(path) in last_line
    assert path.exists() == (harm == "damaged")


def test_a_module_without_its_data_says_so_in_one_sentence(tmp_path):
    """As ``pip install .`` leaves it."""
    shutil.copy(MODULE, tmp_path)
    result = run_python("-c", ENCODE, folder=tmp_path, TIKTOKEN_CACHE_DIR="")
    last_line = result.stderr.strip().splitlines()[-1]
    assert last_line.startswith("ValueError: vocabulary file missing")
    assert last_line.endswith("by pip install -e .)")
    assert "pip" not in run_python("-c", ENCODE, folder=MODULE.parent).stderr


# --- the module as a program and as a text ----------------------------------------


def test_importing_the_module_leaves_matplotlib_alone():
    code = "import gpt_helpers, sys; print('matplotlib' in sys.modules)"
    assert run_python("-c", code).stdout.strip() == "False"


def test_the_module_as_a_program_says_that_it_is_untrained(capsys):
    gpt_helpers.main(["Hello, I am"])
    warning, text = capsys.readouterr().out.splitlines()
    assert warning.startswith("This model is untrained")
    assert text == "Hello, I am Featureiman Byeswickattribute argue"
    with pytest.raises(SystemExit):
        gpt_helpers.main([""])
    assert "the text is empty" in capsys.readouterr().err


def test_the_program_takes_the_end_of_text_for_letters(monkeypatch, capsys):
    read = []
    monkeypatch.setattr(
        gpt_helpers, "GPT_CONFIG_124M", GPTConfig(emb_dim=2, n_heads=1, n_layers=1)
    )
    monkeypatch.setattr(
        gpt_helpers, "generate_text", lambda _, idx, n: read.append((idx, n)) or idx
    )
    gpt_helpers.main(["<|endoftext|>"])
    (idx, n), *_ = read
    assert idx.tolist() == [[27, 91, 437, 1659, 5239, 91, 29]] and n == 6
    assert "\n<|endoftext|>\n" in capsys.readouterr().out


def test_the_program_runs_in_a_terminal_that_lacks_the_characters(tmp_path):
    result = run_python(str(MODULE), "你好", folder=tmp_path, PYTHONIOENCODING="cp1252")
    assert result.returncode == 0, result.stderr
    assert "\n??" in result.stdout


# All different. S, the keys of attention, are T new tokens and two in the cache; R are
# all rows, B · T. A linear layer from I to O numbers works in n blocks of O/n rows.
SIZES = {"B": 2, "T": 3, "C": 24, "H": 4, "D": 6, "V": 11, "k": 7, "S": 5}
SIZES |= {"I": 10, "O": 64, "n": 32, "O/n": 2, "R": 6, "D/2": 3, "I/32": 9}


def shape_comments():
    """{line number: (the name assigned there, None for a return; its shape)}."""
    lines = MODULE.read_text(encoding="utf-8").splitlines()
    found = {}
    for node in ast.walk(ast.parse("\n".join(lines))):
        if not isinstance(node, (ast.Assign, ast.Return)):
            continue
        comment = lines[node.end_lineno - 1].partition("#")[2].strip()
        if comment.startswith("("):
            shape = comment.strip("()").split(", ")
            target = node.targets[0] if isinstance(node, ast.Assign) else None
            if isinstance(target, ast.Tuple):
                target = target.elts[0]
            found[node.lineno] = target and target.id, shape
            assert node.lineno == node.end_lineno
    return found


def test_shape_comments_hold_in_a_real_run():
    comments, seen, last_line = shape_comments(), set(), {}

    def check(frame, value_returned=None):
        line = last_line.get(id(frame))
        if line not in comments:
            return
        name, shape = comments[line]
        if name is not None:
            value = frame.f_locals[name]
        elif value_returned is not None:
            value = value_returned
        else:
            return
        if isinstance(value, tuple):
            value = value[0]
        expected = [sizes[d] if d in sizes else int(d) for d in shape]
        assert list(value.shape) == expected, f"line {line}: {tuple(value.shape)}"
        seen.add(line)

    def trace(frame, event, argument):
        if frame.f_code.co_filename != str(MODULE):
            return None
        if event in ("line", "return"):
            check(frame, argument if event == "return" else None)
            last_line[id(frame)] = frame.f_lineno
        if event in ("call", "return"):
            last_line.pop(id(frame), None)
        return trace

    changes = {"drop_rate": 0.0, "positions": "rotary", "emb_dim": SIZES["C"]}
    model = GPTModel(replace(TINY, **changes))
    idx = torch.randint(0, 11, (2, 3))
    sizes, cache = dict(SIZES), KVCache(model.cfg, batch_size=2)
    plain = gpt_helpers.in_float32
    quick, its_cache = gpt_helpers.QuickGPT(model, plain, plain), KVCache(model.cfg, 2)
    with torch.no_grad():
        model(idx[:, :2], cache)
        quick(idx[:, :2], its_cache)
    sys.settrace(trace)
    try:
        with torch.no_grad():
            model(idx, cache)
            quick(idx, its_cache)
            for way in gpt_helpers.blocks_right, gpt_helpers.blocks_left:
                way(torch.ones(6, 10), torch.ones(64, 10), torch.ones(64))
            gpt_helpers.quantize_groups_of_32(torch.ones(64, 9 * 32))
        sizes["S"] = sizes["T"]
        generate_text_simple(model, idx, 1, 7)
        generate_text(model, idx, 1, temperature=1.0, top_k=7, top_p=0.9, eos_id=0)
        next_token_loss(model, idx, idx)
    finally:
        sys.settrace(None)
    assert len(comments) > 15
    assert seen == set(comments), "a shape comment that no run reached"
