"""Rotary positions against their paper, and the cache against the model without it."""

import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import gpt_helpers
from gpt_helpers import (
    GPTConfig,
    GPTModel,
    KVCache,
    MultiHeadAttention,
    count_parameters,
    generate_text,
    generate_text_simple,
    initialize_like_gpt2,
    make_turns,
    next_logits,
    rotate_pairs,
)

TINY = GPTConfig(
    vocab_size=17, context_length=9, emb_dim=24, n_heads=3, n_layers=2, drop_rate=0.1
)


# --- rotary positions: Su et al. 2021, section 3.4 --------------------------------


def rotation_by_the_paper(x, position):
    """Equation 15: the block-diagonal rotation matrix, written out."""
    D = len(x)
    matrix = torch.zeros(D, D, dtype=torch.float64)
    for i in range(D // 2):
        angle = torch.tensor(position * 10000.0 ** (-2 * i / D), dtype=torch.float64)
        cos, sin = angle.cos(), angle.sin()
        matrix[2 * i, 2 * i], matrix[2 * i, 2 * i + 1] = cos, -sin
        matrix[2 * i + 1, 2 * i], matrix[2 * i + 1, 2 * i + 1] = sin, cos
    return matrix @ x.double()


def test_rotation_is_the_papers_matrix():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5, 8)
    rotated = rotate_pairs(x, start=7)
    for b, h, t in itertools.product(range(2), range(3), range(5)):
        expected = rotation_by_the_paper(x[b, h, t], 7 + t).float()
        torch.testing.assert_close(rotated[b, h, t], expected, atol=1e-5, rtol=0)


def test_rotation_keeps_lengths_and_sees_distances_only():
    torch.manual_seed(0)
    queries, keys = torch.randn(1, 1, 6, 10), torch.randn(1, 1, 6, 10)
    lengths = rotate_pairs(queries, 100).norm(dim=-1)
    torch.testing.assert_close(lengths, queries.norm(dim=-1))
    near = rotate_pairs(queries, 0) @ rotate_pairs(keys, 0).mT
    far = rotate_pairs(queries, 50) @ rotate_pairs(keys, 50).mT
    torch.testing.assert_close(near, far, atol=1e-4, rtol=0)
    shifted = rotate_pairs(queries, 3) @ rotate_pairs(keys, 0).mT
    assert (near - shifted).abs().max() > 0.1


def test_rotation_is_multiplication_by_a_complex_number():
    torch.manual_seed(0)
    x = torch.randn(1, 2, 4, 6)
    angles = torch.arange(4.0)[:, None] * 10000 ** (-torch.arange(0, 6, 2) / 6)
    turns = torch.polar(torch.ones_like(angles), angles)
    product = torch.view_as_complex(x.unflatten(-1, (3, 2))) * turns
    expected = torch.view_as_real(product).flatten(-2)
    torch.testing.assert_close(rotate_pairs(x), expected, atol=1e-5, rtol=0)


def test_half_precision_keeps_far_positions_apart():
    torch.manual_seed(0)
    x = torch.randn(1, 1, 4, 8)
    half = rotate_pairs(x.bfloat16(), start=1000).float()
    torch.testing.assert_close(half, rotate_pairs(x, start=1000), atol=0.05, rtol=0)


@torch.no_grad()
def test_attention_turns_queries_and_keys_and_leaves_values():
    torch.manual_seed(0)
    attention = MultiHeadAttention(replace(TINY, positions="rotary")).eval()
    x = torch.randn(2, 5, 24)
    queries, keys, values = (
        layer(x).view(2, 5, 3, 8).transpose(1, 2)
        for layer in (attention.W_query, attention.W_key, attention.W_value)
    )
    for part, (b, h, t) in itertools.product(
        (queries, keys), itertools.product(range(2), range(3), range(5))
    ):
        part[b, h, t] = rotation_by_the_paper(part[b, h, t], t)
    mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    expected = attention.out_proj(mixed.transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x), expected, atol=1e-5, rtol=0)


def test_a_rotary_model_has_no_position_table_and_still_sees_the_order():
    torch.manual_seed(0)
    model = GPTModel(replace(TINY, positions="rotary")).eval()
    assert not any("pos_emb" in name for name in model.state_dict())
    there, back = torch.tensor([[1, 2, 3, 4]]), torch.tensor([[3, 2, 1, 4]])
    assert not torch.allclose(model(there)[:, -1], model(back)[:, -1], atol=1e-4)


def test_bad_positions_are_refused():
    with pytest.raises(ValueError, match="rotery"):
        GPTConfig(positions="rotery")
    with pytest.raises(ValueError, match="15/3 = 5"):
        GPTConfig(emb_dim=15, n_heads=3, positions="rotary")
    with pytest.raises(ValueError, match="18/6 = 3"):
        GPTConfig(emb_dim=18, n_heads=6, positions="rotary")


def test_the_tiny_rotary_model_has_the_published_count():
    """64 wide, 4 heads, 2 layers, V=100, biases, tied, no position table."""
    cfg = GPTConfig(100, 32, 64, 4, 2, 0.0, True, True, "rotary")
    assert count_parameters(GPTModel(cfg)) == 106_496


# --- the cache --------------------------------------------------------------------


def model_of(positions, tied_head):
    torch.manual_seed(1)
    cfg = replace(TINY, positions=positions, tied_head=tied_head)
    return GPTModel(cfg).eval()


def ways_to_cut(T):
    """Every list of positive lengths with sum T."""
    for cuts in itertools.product([False, True], repeat=T - 1):
        lengths = [1]
        for cut in cuts:
            if cut:
                lengths.append(1)
            else:
                lengths[-1] += 1
        yield lengths


every_model = [
    pytest.mark.parametrize("positions", ["learned", "rotary"]),
    pytest.mark.parametrize("tied_head", [False, True]),
]


@every_model[0]
@every_model[1]
@pytest.mark.parametrize("B", [1, 3])
@torch.no_grad()
def test_cached_logits_are_the_uncached_ones_however_the_text_is_cut(
    positions, tied_head, B
):
    model = model_of(positions, tied_head)
    idx = torch.randint(0, 17, (B, TINY.context_length))
    for T in (1, 6, TINY.context_length):
        expected = model(idx[:, :T])
        for lengths in ways_to_cut(T):
            cache = KVCache(model.cfg, B)
            parts = [model(part, cache) for part in idx[:, :T].split(lengths, dim=1)]
            assert cache.length == T
            torch.testing.assert_close(
                torch.cat(parts, dim=1), expected, atol=1e-5, rtol=0
            )


@every_model[0]
@every_model[1]
@pytest.mark.parametrize("B", [1, 3])
@pytest.mark.parametrize("T", [1, 5, 9, 14])
def test_generation_is_the_same_with_and_without_cache(positions, tied_head, B, T):
    """Also past the context, where all three slide their window."""
    model = model_of(positions, tied_head)
    idx = torch.randint(0, 17, (B, T))
    expected = generate_text_simple(model, idx, 25, TINY.context_length)
    assert torch.equal(generate_text(model, idx, 25, use_cache=True), expected)
    assert torch.equal(generate_text(model, idx, 25, use_cache=False), expected)


@torch.no_grad()
def test_next_logits_are_those_of_the_whole_window_past_the_context():
    model = model_of("rotary", tied_head=True)
    idx = torch.randint(0, 17, (2, 13))
    cache = KVCache(model.cfg, 2)
    for T in range(1, 14):
        expected = model(idx[:, :T][:, -9:])[:, -1]
        got = next_logits(model, idx[:, :T], cache)
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)


@torch.no_grad()
def test_the_cache_refuses_what_does_not_fit():
    model = model_of("learned", tied_head=False)
    cache = KVCache(model.cfg, 2)
    model(torch.zeros(2, 6, dtype=torch.long), cache)
    with pytest.raises(ValueError, match="6 cached and 4 new .*context_length=9"):
        model(torch.zeros(2, 4, dtype=torch.long), cache)
    with pytest.raises(ValueError, match="batch of 2, not 1"):
        model(torch.zeros(1, 1, dtype=torch.long), cache)
    assert cache.length == 6, "a refused call leaves the cache as it was"


def test_with_a_cache_only_new_tokens_are_read_until_the_window_slides():
    idx = torch.zeros(1, 4, dtype=torch.long)
    model, read = model_of("learned", tied_head=False), []
    model.tok_emb.register_forward_hook(lambda _, x, y: read.append(y.shape[1]))
    generate_text(model, idx, 8)
    assert read == [4, 1, 1, 1, 1, 1, 9, 9]
    read.clear()
    generate_text(model, idx, 8, use_cache=False)
    assert read == [4, 5, 6, 7, 8, 9, 9, 9]


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_the_cache_has_the_models_own_number_format(positions):
    model = model_of(positions, tied_head=True).bfloat16()
    idx = torch.zeros(1, 3, dtype=torch.long)
    assert generate_text(model, idx, 3).shape == (1, 6)
    with torch.no_grad():
        cache = KVCache(model.cfg, 1, dtype=torch.bfloat16)
        assert model(idx, cache).dtype == torch.bfloat16


def test_the_caches_are_made_on_the_device_that_is_asked_for():
    cache = KVCache(TINY, 1, device="meta", dtype=torch.float16)
    assert {t.device.type for t in (cache.keys, cache.values)} == {"meta"}
    assert {t.dtype for t in (cache.keys, cache.values)} == {torch.float16}


def test_the_rotation_has_its_base_and_its_inputs_format():
    torch.manual_seed(0)
    x = torch.randn(1, 1, 2, 4)
    turned = rotate_pairs(x, start=1, base=100.0)[0, 0, 0]
    first = torch.view_as_complex(x[0, 0, 0].view(2, 2))
    expected = first * torch.exp(1j * torch.tensor([1.0, 0.1]))
    torch.testing.assert_close(turned, torch.view_as_real(expected).flatten())
    assert rotate_pairs(x.bfloat16()).dtype == torch.bfloat16


def test_half_precision_angles_are_as_good_as_they_can_be():
    """Exactly the rotation with cosines and sines that were rounded once."""
    x = torch.ones(1, 1, 1, 16, dtype=torch.bfloat16)
    angles = 1001.0 * 10000.0 ** (-torch.arange(0, 16, 2) / 16)
    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
    expected = torch.stack([cos - sin, sin + cos], -1).flatten()
    torch.testing.assert_close(
        rotate_pairs(x, start=1001).flatten(), expected, atol=0.01, rtol=0
    )


def test_the_caches_memory_is_the_formulas():
    """2·L·B·C·T numbers of 4 bytes, taken at once."""
    cache = KVCache(TINY, batch_size=3)
    assert cache.keys.nbytes + cache.values.nbytes == 2 * 2 * 3 * 24 * 9 * 4
    half = KVCache(TINY, batch_size=3, dtype=torch.float16)
    assert half.keys.nbytes + half.values.nbytes == 2 * 2 * 3 * 24 * 9 * 2


# --- the table of turns -------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_table_of_turns_stays_exact_in_a_model_of_any_format(dtype):
    """Half precision in a buffer would lose position 1000 among its neighbors."""
    x = torch.ones(1, 1, 1, 8, dtype=dtype)
    expected = rotation_by_the_paper(torch.ones(8), 1050)
    turned = rotate_pairs(x, 1050)[0, 0, 0]
    assert turned.dtype == dtype
    assert torch.equal(turned, expected.float().to(dtype)) or dtype == torch.float64
    torch.testing.assert_close(turned.double(), expected, atol=4e-3, rtol=4e-3)


def test_the_table_of_turns_is_made_once_and_belongs_to_no_model():
    make_turns.cache_clear()
    model = GPTModel(replace(TINY, positions="rotary"))
    idx = torch.arange(6)[None]
    with torch.inference_mode():
        model(idx)
    model(idx).sum().backward()
    assert make_turns.cache_info().misses == 1
    tensors = [*model.parameters(), *model.buffers()]
    assert not any(tensor.is_complex() for tensor in tensors)
    learned = GPTModel(TINY).state_dict()
    assert set(model.state_dict()) == set(learned) - {"pos_emb.weight"}


@torch.no_grad()
def test_the_table_of_turns_follows_the_model_to_another_device_and_back():
    torch.manual_seed(0)
    model = GPTModel(replace(TINY, positions="rotary")).eval()
    idx = torch.arange(9)[None]
    expected, state = model(idx), model.state_dict()
    with torch.device("meta"):
        empty = GPTModel(replace(TINY, positions="rotary")).eval()
    assert empty(idx.to("meta")).is_meta
    empty.to_empty(device="cpu").load_state_dict(state)
    assert torch.equal(empty(idx), expected)


@torch.no_grad()
def test_logits_are_those_of_cosines_and_sines_for_every_token(monkeypatch):
    def by_cosines(x, start=0):
        T, D = x.shape[-2:]
        turned = [
            rotation_matrices(D, start + t) @ x[..., t, :, None] for t in range(T)
        ]
        return torch.stack(turned, -3)[..., 0]

    def rotation_matrices(D, position):
        eye = torch.eye(D, dtype=torch.float64)
        rows = [rotation_by_the_paper(column, position) for column in eye]
        return torch.stack(rows, 1).float()

    torch.manual_seed(0)
    model = GPTModel(replace(TINY, positions="rotary")).eval()
    initialize_like_gpt2(model, torch.Generator().manual_seed(0))
    idx = torch.randint(0, 17, (2, 9))
    logits = model(idx)
    monkeypatch.setattr(gpt_helpers, "rotate_pairs", by_cosines)
    torch.testing.assert_close(logits, model(idx), atol=1e-6, rtol=0)


def test_gradients_go_back_through_a_turn():
    x = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: rotate_pairs(x, 5), x, atol=1e-5)
    strided = torch.randn(1, 3, 2, 8)[..., 1:7].transpose(1, 2)  # odd first number
    assert torch.equal(rotate_pairs(strided), rotate_pairs(strided.clone()))


@pytest.mark.parametrize("start", [-3, -1024, -1025, 1022, 5000])
def test_positions_far_away_and_before_the_first(start):
    x = torch.randn(1, 1, 5, 8)
    turned = rotate_pairs(x, start)
    for t in range(5):
        expected = rotation_by_the_paper(x[0, 0, t], start + t).float()
        torch.testing.assert_close(turned[0, 0, t], expected, atol=2e-3, rtol=0)


class Counting(TorchDispatchMode):
    """Count operations, views left out, as lesson 11 does."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        aliases = [r.alias_info for r in function._schema.returns]
        self.count += not any(a and not a.is_write for a in aliases)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("positions", ["learned", "rotary"])
@torch.no_grad()
def test_a_token_takes_at_most_200_operations(positions):
    cfg = replace(TINY, n_layers=12, qkv_bias=True, positions=positions)
    model = GPTModel(cfg).eval()
    cache, idx = KVCache(cfg, 1), torch.arange(5)[None]
    next_logits(model, idx[:, :4], cache)
    with Counting() as counting:
        next_logits(model, idx, cache)
    assert 150 < counting.count <= 200
