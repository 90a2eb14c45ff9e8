"""The parts of GPT-2 that the lessons build, kept in one importable place.

Each part is built step by step in the lesson its docstring names; what stands here
is that lesson's final version, letter for letter. Sizes in the shape notes: B batch,
T tokens, C embedding size, H heads, D head size (C = H·D), V vocabulary, L layers.

``python gpt_helpers.py "Hello, I am"`` continues a text with an untrained GPT-2.
"""

import argparse
import atexit
import functools
import hashlib
import json
import math
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

DATA_FOLDER = Path(__file__).resolve().parent / "notebooks" / "data"

# What tiktoken calls the two files of GPT-2's vocabulary, and the SHA-256 it demands.
VOCABULARY_FILES = {
    "6d1cbeee0f20b3d9449abfede4726ed8212e3aee": (
        "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"
    ),
    "6c7ea1a7e38e3a7f062df639a5b80947f075ffe6": (
        "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"
    ),
}

_WITHOUT_DATA = (
    " (gpt_helpers stands apart from the project's notebooks/data: install it from the "
    "project's folder by pip install -e .)"
)


@contextmanager
def _environment_variable(name: str, value: str):
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def get_tokenizer():
    """Return GPT-2's tokenizer: tiktoken's "gpt2" encoding, without the network.

    tiktoken deletes a damaged vocabulary file and downloads it again; here both
    files are checked first, and left as they are. They are read from the folder in
    ``TIKTOKEN_CACHE_DIR`` if you have set it and it holds them, else from the
    project's own ``notebooks/data``.

    Raises: ValueError, naming the file, if one is missing or damaged.
    Lesson: 1.
    Source: Radford et al. 2019, Language Models are Unsupervised Multitask Learners,
        section 2.2 (byte-level BPE).
    """
    import tiktoken

    folder = Path(os.environ.get("TIKTOKEN_CACHE_DIR") or DATA_FOLDER)
    if not any((folder / name).exists() for name in VOCABULARY_FILES):
        folder = DATA_FOLDER
    for name, expected in VOCABULARY_FILES.items():
        path = folder / name
        if not path.is_file():
            hint = "" if DATA_FOLDER.is_dir() else _WITHOUT_DATA
            raise ValueError(f"vocabulary file missing: {path}{hint}")
        if hashlib.sha256(path.read_bytes()).hexdigest() != expected:
            raise ValueError(
                f"vocabulary file damaged (its SHA-256 is not {expected}): {path}"
            )
    with _environment_variable("TIKTOKEN_CACHE_DIR", str(folder)):
        return tiktoken.get_encoding("gpt2")


@dataclass(frozen=True)
class GPTConfig:
    """The sizes of a GPT. The defaults are GPT-2 124M's.

    A dictionary with the book's seven keys becomes a configuration by
    ``GPTConfig(**dictionary)``; a misspelt key is an error. ``tied_head`` makes the
    output head use the token embedding's matrix, as the published weights do;
    ``positions="rotary"`` rotates queries and keys instead of adding a table's rows.

    Raises: ValueError, naming the field and its value, for a size that is not a
        positive integer, heads that do not divide the width, dropout outside [0, 1), a
        switch that is no bool, positions of another kind, rotary ones with an odd head size.
    Lesson: 1; ``tied_head`` in 6, ``positions`` in 9.
    Source: Radford et al. 2019, section 2.3 and table 2.
    """

    vocab_size: int = 50257
    context_length: int = 1024
    emb_dim: int = 768
    n_heads: int = 12
    n_layers: int = 12
    drop_rate: float = 0.1
    qkv_bias: bool = False
    tied_head: bool = False
    positions: str = "learned"

    def __post_init__(self):
        sizes = "vocab_size", "context_length", "emb_dim", "n_heads", "n_layers"
        for name in sizes:
            if type(size := getattr(self, name)) is not int or size < 1:
                raise ValueError(f"{name} must be a positive integer, not {size!r}")
        C, H = self.emb_dim, self.n_heads
        if C % H:
            raise ValueError(f"n_heads={H} does not divide emb_dim={C}")
        if not (isinstance(self.drop_rate, int | float) and 0 <= self.drop_rate < 1):
            raise ValueError(f"drop_rate must be in [0, 1), not {self.drop_rate!r}")
        for name in ("qkv_bias", "tied_head"):
            if type(value := getattr(self, name)) is not bool:
                raise ValueError(f"{name} must be True or False, not {value!r}")
        if self.positions not in ("learned", "rotary"):
            raise ValueError(f"positions: learned or rotary, not {self.positions!r}")
        if self.positions == "rotary" and C // H % 2:
            raise ValueError(
                f"rotary positions need an even head size, not {C}/{H} = {C // H}"
            )


GPT_CONFIG_124M = GPTConfig()


class LayerNorm(nn.Module):
    """Bring each position's features to mean 0 and variance 1, then rescale them.

    The variance divides by n, not n − 1, and ``eps`` stands inside the root: both
    must stay so for GPT-2's weights.

    Shapes: (..., C) -> (..., C).
    Lesson: 2; as one call in 8.
    Source: Ba, Kiros, Hinton 2016, Layer Normalization, section 3.
    """

    def __init__(self, emb_dim: int):
        super().__init__()
        self.eps = 1e-5
        self.scale = nn.Parameter(torch.ones(emb_dim))
        self.shift = nn.Parameter(torch.zeros(emb_dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.scale.shape, self.scale, self.shift, self.eps)


class GELU(nn.Module):
    """The smooth gate x·Φ(x), in the tanh approximation that GPT-2 was trained with.

    The exact form differs by up to 4.7e-4 per activation: do not mix the two.

    Shapes: (...) -> (...).
    Lesson: 3; as one call in 8.
    Source: Hendrycks, Gimpel 2016, Gaussian Error Linear Units, section 2.
    """

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")


class FeedForward(nn.Module):
    """Widen each position to 4·C features, apply GELU, and narrow back to C.

    It works on each position alone.

    Shapes: (B, T, C) -> (B, T, C).
    Lesson: 3.
    Source: Vaswani et al. 2017, Attention Is All You Need, section 3.3.
    """

    def __init__(self, cfg: GPTConfig):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(cfg.emb_dim, 4 * cfg.emb_dim),
            GELU(),
            nn.Linear(4 * cfg.emb_dim, cfg.emb_dim),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@functools.cache
def make_turns(n: int, D: int, base: float, device: torch.device) -> Tensor:
    """The turn of each pair at the positions −n to n − 1: complex numbers of length 1.

    The table is made once for all layers and models, in float32, and kept outside of
    them: so it is not trained, not saved, and stays exact in a model of bfloat16.

    Shapes: -> (2n, D/2), complex.
    Lesson: 9.
    Source: Su et al. 2021, RoFormer, section 3.4.2.
    """
    with torch.inference_mode(False):
        pairs = torch.arange(0, D, 2, device=device, dtype=torch.float32)
        positions = torch.arange(-n, n, device=device, dtype=torch.float32)
        angles = torch.outer(positions, base ** (-pairs / D))
        return torch.polar(torch.ones_like(angles), angles)


def rotate_pairs(x: Tensor, start: int = 0, base: float = 10_000.0) -> Tensor:
    """Turn each pair of neighboring numbers by an angle that grows with the position.

    Pair i of D/2 turns by position · base^(−2i/D). The first token stands at
    position ``start``. Scores of rotated queries and keys then depend on the distance
    of their positions alone.

    Shapes: (B, H, T, D) -> (B, H, T, D), D even.
    Lesson: 9.
    Source: Su et al. 2021, RoFormer, sections 3.2.2 and 3.4.2.
    """
    (T, D), device = x.shape[-2:], x.device
    n = 1024 * math.ceil(max(start + T, -start) / 1024)
    turns = make_turns(n, D, base, device)[n + start : n + start + T]  # (T, D/2)
    exact = x if x.dtype == torch.float64 else x.float()
    pairs = exact.contiguous().unflatten(-1, (-1, 2))  # (B, H, T, D/2, 2)
    pairs = torch.view_as_complex(pairs)  # (B, H, T, D/2)
    return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)


class KVCache:
    """The keys and values of the tokens that a model has read, for every layer.

    It owns the position: ``length`` tokens have been read, and the next one stands at
    position ``length``. Its memory, 2·L·B·C·context_length numbers, is taken at once.
    For inference, under ``torch.no_grad()``: it is written in place, so no gradient can
    go back through two layers. ``check_token_ids`` sees to its batch size and length.

    Lesson: 10.
    Source: Shazeer 2019, Fast Transformer Decoding, section 2.4 (incremental).
    """

    def __init__(self, cfg: GPTConfig, batch_size: int, device=None, dtype=None):
        D = cfg.emb_dim // cfg.n_heads
        shape = cfg.n_layers, batch_size, cfg.n_heads, cfg.context_length, D
        self.keys = torch.empty(shape, device=device, dtype=dtype)
        self.values = torch.empty(shape, device=device, dtype=dtype)
        self.length = 0

    def extend(self, layer: int, keys: Tensor, values: Tensor):
        """Store a layer's new keys and values; return all that it has so far."""
        start, end = self.length, self.length + keys.shape[2]
        self.keys[layer, :, :, start:end] = keys
        self.values[layer, :, :, start:end] = values
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]


class MultiHeadAttention(nn.Module):
    """Let each position mix in the values of itself and of earlier positions.

    The causal mask, True where a key is hidden, is made where it is used: nothing has
    to be saved, moved or kept whole. A mask that another implementation saved under
    the name ``mask`` is ignored. With a ``cache``, x holds only the tokens that follow
    the cached ones. In training the weights are written out; else PyTorch's own
    attention computes the same without storing them.

    Shapes: (B, T, C) -> (B, T, C); S keys, the cached ones and T new.
    Lesson: 5; rotation in 9, the cache in 10, PyTorch's own attention in 11.
    Source: Vaswani et al. 2017, sections 3.2.1 to 3.2.3.
    """

    def __init__(self, cfg: GPTConfig):
        super().__init__()
        self.n_heads = cfg.n_heads
        self.head_dim = cfg.emb_dim // cfg.n_heads
        self.rotary = cfg.positions == "rotary"
        self.W_query = nn.Linear(cfg.emb_dim, cfg.emb_dim, bias=cfg.qkv_bias)
        self.W_key = nn.Linear(cfg.emb_dim, cfg.emb_dim, bias=cfg.qkv_bias)
        self.W_value = nn.Linear(cfg.emb_dim, cfg.emb_dim, bias=cfg.qkv_bias)
        self.out_proj = nn.Linear(cfg.emb_dim, cfg.emb_dim)
        self.dropout = nn.Dropout(cfg.drop_rate)
        self.register_load_state_dict_pre_hook(self._ignore_saved_mask)

    @staticmethod
    def _ignore_saved_mask(module, state_dict, prefix, *_):
        state_dict.pop(prefix + "mask", None)

    def _split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.n_heads, self.head_dim)).transpose(1, 2)

    def _hidden(self, x: Tensor, start: int) -> Tensor:
        T, S = x.shape[1], start + x.shape[1]
        return torch.ones(T, S, dtype=torch.bool, device=x.device).triu(start + 1)

    def forward(self, x: Tensor, cache: KVCache | None = None, layer=0) -> Tensor:
        start = cache.length if cache is not None else 0
        queries = self._split_heads(self.W_query(x))  # (B, H, T, D)
        keys = self._split_heads(self.W_key(x))  # (B, H, T, D)
        values = self._split_heads(self.W_value(x))  # (B, H, T, D)
        if self.rotary:
            queries, keys = rotate_pairs(queries, start), rotate_pairs(keys, start)
        if cache is not None:
            keys, values = cache.extend(layer, keys, values)  # (B, H, S, D)
        if self.training:
            hidden = torch.where(self._hidden(x, start), -torch.inf, 0.0)  # (T, S)
            scores = torch.baddbmm(
                hidden.to(queries.dtype),
                queries.flatten(0, 1),
                keys.flatten(0, 1).mT,
                alpha=self.head_dim**-0.5,
            )
            weights = scores.softmax(dim=-1).unflatten(0, (-1, self.n_heads))
            mixed = self.dropout(weights) @ values  # (B, H, T, D)
        else:
            chunk = start > 0 and x.shape[1] > 1  # is_causal would start at row 0
            mixed = F.scaled_dot_product_attention(
                queries,
                keys,
                values,
                attn_mask=~self._hidden(x, start) if chunk else None,
                is_causal=start == 0,
            )
        return self.out_proj(mixed.transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    """Attention, then feed-forward, each normalized before and added back after.

    Shapes: (B, T, C) -> (B, T, C).
    Lesson: 5; rotation in 9, the cache in 10.
    Source: Radford et al. 2019, section 2.3 (the norm moved to each part's input);
        He et al. 2015, Deep Residual Learning, section 3.1 (shortcuts).
    """

    def __init__(self, cfg: GPTConfig):
        super().__init__()
        self.att = MultiHeadAttention(cfg)
        self.ff = FeedForward(cfg)
        self.norm1 = LayerNorm(cfg.emb_dim)
        self.norm2 = LayerNorm(cfg.emb_dim)
        self.drop_shortcut = nn.Dropout(cfg.drop_rate)

    def forward(self, x: Tensor, cache: KVCache | None = None, layer=0) -> Tensor:
        x = x + self.drop_shortcut(self.att(self.norm1(x), cache, layer))  # (B, T, C)
        x = x + self.drop_shortcut(self.ff(self.norm2(x)))  # (B, T, C)
        return x


def check_token_ids(idx: Tensor, cfg: GPTConfig, cache: KVCache | None = None) -> None:
    """Refuse token ids that a model of this configuration cannot read.

    Shapes: (B, T), integers, B and T at least 1, T at most the context length, with
        the cached tokens counted in.
    Raises: ValueError with the offending shape, length or id; TypeError for ids
        that are no integers.
    Lesson: 6; the cache in 10.
    """
    if not isinstance(idx, Tensor):
        raise TypeError(f"token ids must be a tensor, not {type(idx).__name__}")
    if idx.ndim != 2 or idx.numel() == 0:
        raise ValueError(
            f"token ids must have a shape (B, T) without zeros, not {tuple(idx.shape)}"
        )
    if idx.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"token ids must be int64 or int32, not {idx.dtype}")
    cached = 0 if cache is None else cache.length
    if cached + idx.shape[1] > cfg.context_length:
        shown = f"{cached} cached and {idx.shape[1]} new" if cached else idx.shape[1]
        raise ValueError(
            f"{shown} tokens are more than context_length={cfg.context_length}"
        )
    if cache is not None and cache.keys.shape[1] != idx.shape[0]:
        raise ValueError(
            f"the cache is for a batch of {cache.keys.shape[1]}, not {idx.shape[0]}"
        )
    if idx.is_meta:
        return
    for token_id in torch.stack(idx.aminmax()).tolist():
        if not 0 <= token_id < cfg.vocab_size:
            raise ValueError(
                f"token id {token_id} is outside 0..{cfg.vocab_size - 1}, "
                f"the vocabulary of size {cfg.vocab_size}"
            )


class GPTModel(nn.Module):
    """GPT-2: embeddings, a stack of transformer blocks, a norm and an output head.

    With ``cfg.tied_head`` the head's matrix is the token embedding's: one tensor
    under two names. With rotary positions there is no ``pos_emb``. With a ``cache``,
    idx holds only the tokens that follow the cached ones, and the cache takes them in.

    Shapes: token ids (B, T) -> logits (B, T, V).
    Raises: what ``check_token_ids`` raises.
    Lesson: 6; rotary positions in 9, the cache in 10.
    Source: Radford et al. 2019, section 2.3; Press, Wolf 2017, Using the Output
        Embedding to Improve Language Models, section 3 (the tied head).
    """

    def __init__(self, cfg: GPTConfig):
        super().__init__()
        self.cfg = cfg
        self.tok_emb = nn.Embedding(cfg.vocab_size, cfg.emb_dim)
        if cfg.positions == "learned":
            self.pos_emb = nn.Embedding(cfg.context_length, cfg.emb_dim)
        self.drop_emb = nn.Dropout(cfg.drop_rate)
        blocks = [TransformerBlock(cfg) for _ in range(cfg.n_layers)]
        self.trf_blocks = nn.Sequential(*blocks)
        self.final_norm = LayerNorm(cfg.emb_dim)
        self.out_head = nn.Linear(cfg.emb_dim, cfg.vocab_size, bias=False)
        if cfg.tied_head:
            self.out_head.weight = self.tok_emb.weight

    def forward_hidden(self, idx: Tensor, cache: KVCache | None = None) -> Tensor:
        """Return what the output head reads: (B, T) -> (B, T, C)."""
        check_token_ids(idx, self.cfg, cache)
        start = cache.length if cache is not None else 0
        end = start + idx.shape[1]
        x = self.tok_emb(idx)  # (B, T, C)
        if self.cfg.positions == "learned":
            x = x + self.pos_emb(torch.arange(start, end, device=idx.device))
        x = self.drop_emb(x)
        for layer, block in enumerate(self.trf_blocks):
            x = block(x, cache, layer)  # (B, T, C)
        if cache is not None:
            cache.length = end
        return self.final_norm(x)  # (B, T, C)

    def forward(self, idx: Tensor, cache: KVCache | None = None) -> Tensor:
        return self.out_head(self.forward_hidden(idx, cache))  # (B, T, V)


def count_parameters(model: nn.Module) -> int:
    """Count a model's parameters, frozen ones too. A shared tensor counts once.

    Lesson: 6.
    """
    return sum(parameter.numel() for parameter in model.parameters())


GPT2_CONFIGS = {
    "small": GPT_CONFIG_124M,
    "medium": replace(GPT_CONFIG_124M, emb_dim=1024, n_layers=24, n_heads=16),
    "large": replace(GPT_CONFIG_124M, emb_dim=1280, n_layers=36, n_heads=20),
    "XL": replace(GPT_CONFIG_124M, emb_dim=1600, n_layers=48, n_heads=25),
}


@torch.no_grad()
def generate_text_simple(
    model: nn.Module, idx: Tensor, max_new_tokens: int, context_size: int
) -> Tensor:
    """Append the likeliest next token, ``max_new_tokens`` times.

    The model reads the last ``context_size`` tokens only. Its train or eval mode is
    left as it is: call ``model.eval()`` first, or dropout has its say.

    Shapes: (B, T) -> (B, T + max_new_tokens).
    Raises: ValueError for a negative ``max_new_tokens`` or a ``context_size`` below
        1, with the number; and what the model raises.
    Lesson: 7.
    Source: Radford et al. 2019, section 3 (greedy decoding).
    """
    if not isinstance(idx, Tensor):
        raise TypeError(f"token ids must be a tensor, not {type(idx).__name__}")
    if type(max_new_tokens) is not int or max_new_tokens < 0:
        raise ValueError(f"max_new_tokens must be 0 or more, not {max_new_tokens!r}")
    if type(context_size) is not int or context_size < 1:
        raise ValueError(f"context_size must be 1 or more, not {context_size!r}")
    for _ in range(max_new_tokens):
        logits = model(idx[..., -context_size:])[:, -1, :]  # (B, V)
        next_id = logits.argmax(dim=-1, keepdim=True)  # (B, 1)
        idx = torch.cat([idx, next_id], dim=1)
    return idx


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Set all but the k largest logits of each row to −inf; keep all if k ≥ V.

    Shapes: (B, V) -> (B, V).
    Lesson: 7.
    Source: Fan, Lewis, Dauphin 2018, Hierarchical Neural Story Generation,
        section 5.4.
    """
    best = logits.topk(min(k, logits.shape[-1]), dim=-1)  # (B, k)
    hidden = torch.full_like(logits, -torch.inf)
    return hidden.scatter(-1, best.indices, best.values)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """Keep each row's smallest set of likeliest tokens whose probability reaches p.

    Shapes: (B, V) -> (B, V); the others become −inf.
    Lesson: 7.
    Source: Holtzman et al. 2020, The Curious Case of Neural Text Degeneration,
        section 3.1 (nucleus sampling).
    """
    if p == 1:
        return logits
    ordered, order = logits.sort(dim=-1, descending=True)  # (B, V)
    probabilities = ordered.softmax(dim=-1, dtype=torch.float32)
    mass_before = probabilities.cumsum(dim=-1) - probabilities
    ordered = ordered.masked_fill(mass_before >= p, -torch.inf)
    ordered[:, 0] = logits.amax(dim=-1)
    return torch.empty_like(logits).scatter(-1, order, ordered)


def sample_next_token(
    logits: Tensor,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw one token id per row; at a temperature below 1e-6 take the likeliest.

    The temperature acts first, then ``top_k``, then ``top_p``.

    Shapes: (B, V) -> (B, 1).
    Lesson: 7.
    Source: Holtzman et al. 2020, sections 3.1 to 3.3.
    """
    if temperature < 1e-6:
        return logits.argmax(dim=-1, keepdim=True)
    logits = logits.float()
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / temperature
    if top_k is not None:
        logits = keep_top_k(logits, top_k)
    if top_p is not None:
        logits = keep_top_p(logits, top_p)
    return torch.multinomial(logits.softmax(dim=-1), 1, generator=generator)


def check_sampling(max_new_tokens, temperature, top_k, top_p, eos_id, cfg) -> None:
    """Refuse settings of ``generate_text`` that have no meaning, with the value.

    Raises: ValueError.
    Lesson: 7.
    """
    if type(max_new_tokens) is not int or max_new_tokens < 0:
        raise ValueError(f"max_new_tokens must be 0, 1, 2 …, not {max_new_tokens!r}")
    if not (isinstance(temperature, int | float) and 0 <= temperature < math.inf):
        raise ValueError(f"temperature must be in [0, ∞), not {temperature!r}")
    if top_k is not None and (type(top_k) is not int or top_k < 1):
        raise ValueError(f"top_k must be 1, 2, 3 … or None, not {top_k!r}")
    if top_p is not None and not (isinstance(top_p, int | float) and 0 < top_p <= 1):
        raise ValueError(f"top_p must be in (0, 1] or None, not {top_p!r}")
    known = type(eos_id) is int and 0 <= eos_id < cfg.vocab_size
    if eos_id is not None and not known:
        raise ValueError(f"eos_id {eos_id!r} is outside 0..{cfg.vocab_size - 1}")


@contextmanager
def evaluating(model: nn.Module):
    """Switch the model to eval mode for a while, then each part back to its own.

    Lesson: 7.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield model
    finally:
        for module, mode in modes:
            module.training = mode


def next_logits(model: nn.Module, idx: Tensor, cache: KVCache | None = None) -> Tensor:
    """Return the logits of the token that follows idx, of which the cache has a part.

    The cache holds the first ``cache.length`` tokens of the window that the model
    reads, the last ``context_length`` of idx. Once it is full the window slides, each
    token gets another position, and the cache is filled anew. With a cache the head
    reads the last position alone; without one, any module that maps ids to logits will
    do as a model.

    Shapes: (B, T) -> (B, V).
    Lesson: 10; the head on the last position in 11.
    """
    window = idx[:, -model.cfg.context_length :]
    if cache is None:
        return model(window)[:, -1, :]
    if cache.length == model.cfg.context_length:
        cache.length = 0
    hidden = model.forward_hidden(window[:, cache.length :], cache)  # (B, T, C)
    return model.out_head(hidden[:, -1, :])


@torch.no_grad()
def generate_text(
    model: nn.Module,
    idx: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    eos_id: int | None = None,
    generator: torch.Generator | None = None,
    use_cache: bool = True,
) -> Tensor:
    """Continue each row of token ids by up to ``max_new_tokens`` tokens.

    The model reads the last ``context_length`` tokens only: past that, the window
    slides, and the cache is filled anew for each token. With or without the cache the
    tokens are the same. A row that has drawn ``eos_id`` is filled up with it, and
    generation ends when every row has. The model works in eval mode and gets its own
    mode back; ``idx`` is left as it is.

    Shapes: (B, T) -> (B, T + n), n at most ``max_new_tokens``.
    Raises: what ``check_sampling`` and ``check_token_ids`` raise.
    Lesson: 7; the cache in 10.
    Source: Radford et al. 2019, section 3; Holtzman et al. 2020, section 3.
    """
    check_sampling(max_new_tokens, temperature, top_k, top_p, eos_id, model.cfg)
    is_tensor = isinstance(idx, Tensor)
    window = idx[..., -model.cfg.context_length :] if is_tensor else idx
    check_token_ids(window, model.cfg)
    ended = torch.zeros(idx.shape[0], 1, dtype=torch.bool, device=idx.device)
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    cache = None
    if use_cache:
        weight = model.tok_emb.weight
        cache = KVCache(model.cfg, idx.shape[0], weight.device, weight.dtype)
    with evaluating(model):
        for _ in range(max_new_tokens):
            logits = next_logits(model, idx, cache)  # (B, V)
            next_id = sample_next_token(logits, **options, generator=generator)
            if eos_id is not None:
                next_id = next_id.masked_fill(ended, eos_id)
                ended = ended | (next_id == eos_id)  # (B, 1)
            idx = torch.cat([idx, next_id], dim=1)
            if ended.all():
                break
    return idx


@functools.cache
def count_blocks(rows: int) -> int:
    """The largest number of equal blocks, at most 32, that a matrix's rows make.

    Lesson: 11.
    """
    return next(n for n in range(32, 0, -1) if rows % n == 0)


def blocks_right(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``F.linear`` for few rows: a batch of products, each block on the right.

    Shapes: x (R, I), weight (O, I), bias (O) -> (R, O).
    Lesson: 11.
    """
    n = count_blocks(len(weight))
    blocks = weight.reshape(n, -1, x.shape[1]).mT  # (n, I, O/n)
    product = torch.baddbmm(bias.view(n, 1, -1), x.expand(n, -1, -1), blocks)
    return product.transpose(0, 1).flatten(1)  # (R, O)


def blocks_left(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``F.linear`` for few rows: a batch of products, each block on the left.

    Shapes: x (R, I), weight (O, I), bias (O) -> (R, O).
    Lesson: 11.
    """
    n = count_blocks(len(weight))
    blocks = weight.reshape(n, -1, x.shape[1])  # (n, O/n, I)
    product = torch.baddbmm(bias.view(n, -1, 1), blocks, x.mT.expand(n, -1, -1))
    return product.flatten(0, 1).mT  # (R, O)


@torch.no_grad()
def fastest_way(layers: list[nn.Linear], rows: int) -> Callable:
    """Find out which function multiplies so many rows fastest on this machine.

    That depends on the processor and on the library that multiplies, so each of three
    is timed five times on the layers' own weights. Their results agree up to rounding.

    Lesson: 11.
    """
    x, least = layers[0].weight.new_ones(rows, layers[0].in_features), {}
    for way in 5 * (F.linear, blocks_right, blocks_left):
        begin = time.perf_counter()
        for layer in layers:
            way(x, layer.weight, layer.bias)
        least[way] = min(least.get(way, math.inf), time.perf_counter() - begin)
    return min(least, key=least.get)


def in_float32(weight: Tensor, bias: Tensor, ways=(F.linear, F.linear)) -> Callable:
    """A linear layer as a function; ``ways`` multiply one row, and 2 to 16.

    Lesson: 11.
    """

    def multiply(x: Tensor) -> Tensor:
        way = ways[len(x) > 1] if len(x) <= 16 else F.linear
        return way(x, weight, bias)

    return multiply


def in_float16(weight: Tensor, bias: Tensor) -> Callable:
    """A linear layer as a function: weights in float16, sums in float32.

    PyTorch has this product for x86 processors; elsewhere the weight is turned into
    float32 each time.

    Lesson: 11.
    """
    if torch.backends.quantized.engine not in ("x86", "fbgemm"):
        half = weight.half()
        return lambda x: F.linear(x, half.float(), bias)
    packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)
    return lambda x: torch.ops.quantized.linear_dynamic_fp16(x, packed)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Round each row to whole numbers from −127 to 127, times the row's own scale.

    Shapes: (..., I) -> (..., I) in int8, (..., 1).
    Lesson: 11.
    Source: Dettmers et al. 2022, LLM.int8(), section 2.1 (absmax quantization).
    """
    scale = x.abs().amax(dim=-1, keepdim=True).clamp(min=1e-30) / 127
    return (x / scale).round().to(torch.int8), scale


def in_int8(weight: Tensor, bias: Tensor) -> Callable:
    """A linear layer as a function: 8 bits per weight, for a CPU.

    The rows of the weight are quantized once, x when it comes (in 7 bits on x86
    processors whose 8-bit sums would overflow); the sums are of whole numbers. PyTorch
    2.13 warns that it will remove the type which its packing takes: silenced here.

    Lesson: 11.
    Source: Dettmers et al. 2022, LLM.int8(), section 3.1 (vector-wise quantization).
    """
    whole, scale = quantize_rows(weight)
    scale = scale.flatten().double()
    zero = torch.zeros_like(scale).long()
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        whole = torch._make_per_channel_quantized_tensor(whole, scale, zero, 0)
    packed = torch.ops.quantized.linear_prepack(whole, bias)
    x86 = torch.backends.quantized.engine == "x86"
    seven_bits = x86 and not torch.cpu._is_vnni_supported()
    return lambda x: torch.ops.quantized.linear_dynamic(x, packed, seven_bits)


def quantize_groups_of_32(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Round each 32 neighbors in a row to 16 levels between their least and greatest.

    A level from 0 to 15 stands for (level − 8) · scale + middle. Scale and middle are
    rounded to bfloat16 before they are used, as the 4-bit product stores them so.

    Shapes: (O, I) -> levels (O, I/32, 32), scale and middle (O, I/32, 1).
    Lesson: 11.
    """
    groups = weight.unflatten(1, (-1, 32))  # (O, I/32, 32)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scale = ((high - low) / 15).clamp(min=1e-30).bfloat16().float()
    middle = (low + 8 * scale).bfloat16().float()
    levels = ((groups - middle) / scale).round().clamp(-8, 7) + 8
    return levels.int(), scale, middle


def in_int4(weight: Tensor, bias: Tensor) -> Callable:
    """A linear layer as a function: 4 bits per weight, for a CPU.

    A single row is rounded to bfloat16, and so is its product. With several rows
    PyTorch's 4-bit product is slow: the same levels, in 8 bits, multiply them.

    Lesson: 11.
    Source: Dettmers, Zettlemoyer 2023, The Case for 4-bit Precision, section 2.
    """
    rows = len(weight)
    weight = F.pad(weight, (0, 0, 0, -rows % 16))  # PyTorch's packing wants it so
    levels, scale, middle = quantize_groups_of_32(weight)
    several = in_int8(((levels - 8) * scale + middle).flatten(1)[:rows], bias)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels.flatten(1), 1)
    steps = torch.cat([scale, middle], -1).transpose(0, 1).bfloat16().contiguous()

    def multiply(x: Tensor) -> Tensor:
        if len(x) > 1:
            return several(x)
        x, one = x.bfloat16(), torch.ops.aten._weight_int4pack_mm_for_cpu
        return one(x, packed, 32, steps)[:, :rows] + bias

    return multiply


def join(parts: list[nn.Parameter]) -> Tensor:
    """Move parameters of one shape one behind another in memory, and return them as one.

    Each stays a parameter of its layer, with its numbers: nothing is stored twice, and
    what training changes is changed in the joint tensor.

    Shapes: k times (O, …) -> (k·O, …).
    Lesson: 11.
    """
    first = parts[0].detach()
    starts = {
        (part.untyped_storage().data_ptr(), part.storage_offset() - i * part.numel())
        for i, part in enumerate(parts)
    }
    if len(starts) > 1 or not all(part.is_contiguous() for part in parts):
        first = torch.cat([part.detach() for part in parts])
        for part, piece in zip(parts, first.chunk(len(parts)), strict=True):
            part.data = piece
    rows = len(parts) * len(parts[0])
    return first.as_strided((rows, *first.shape[1:]), first.stride())


def make_product(make: Callable, *layers: nn.Linear) -> Callable:
    """Make one function of linear layers that read the same x. No bias means zeros.

    Lesson: 11.
    """
    weight = join([layer.weight for layer in layers]).float()
    bias = weight.new_zeros(len(weight))
    if layers[0].bias is not None:
        bias = join([layer.bias for layer in layers]).float()
    return make(weight, bias)


def norm_parts(norm: nn.Module) -> tuple:
    """What ``F.layer_norm`` wants to know of a norm.

    Lesson: 11.
    """
    scale, shift = norm.scale.detach().float(), norm.shift.detach().float()
    return scale.shape, scale, shift, norm.eps


def block_parts(block: nn.Module, make: Callable) -> tuple:
    """A block's two norms and four products, in the order of their use.

    Lesson: 11.
    """
    att, (up, _, down) = block.att, block.ff.layers
    qkv = make_product(make, att.W_query, att.W_key, att.W_value)
    products = (make_product(make, layer) for layer in (att.out_proj, up, down))
    return norm_parts(block.norm1), qkv, norm_parts(block.norm2), *products


class QuickGPT(nn.Module):
    """All that a trained GPT computes, in one function: what ``quicken`` returns.

    It takes the place of a ``GPTModel`` for reading and writing text, not for training.
    Whatever the format of the weights, the cache and attention are in float32.

    Shapes: token ids (B, T) -> logits (B, T, V).
    Raises: what ``check_token_ids`` raises; TypeError if it is to be moved or converted.
    Lesson: 11.
    """

    def __init__(self, model: nn.Module, make: Callable, make_head: Callable):
        super().__init__()
        self.cfg, self.positions = model.cfg, None
        table = model.tok_emb.weight.detach().float()
        self.tok_emb = nn.Embedding.from_pretrained(table)
        if self.cfg.positions == "learned":
            self.positions = model.pos_emb.weight.detach().float()
        self.blocks = [block_parts(block, make) for block in model.trf_blocks]
        self.final_norm = norm_parts(model.final_norm)
        self.out_head = make_product(make_head, model.out_head)

    def _apply(self, *_):
        raise TypeError("move or convert the model first, then quicken it")

    @torch.no_grad()
    def forward_hidden(self, idx: Tensor, cache: KVCache | None = None) -> Tensor:
        """Return what the output head reads: (B, T) -> (B, T, C)."""
        check_token_ids(idx, self.cfg, cache)
        (B, T), start = idx.shape, 0 if cache is None else cache.length
        end, seen = start + T, None
        if start > 0 and T > 1:
            seen = torch.ones(T, end, dtype=torch.bool, device=idx.device).tril(start)
        x = self.tok_emb(idx)  # (B, T, C)
        if self.positions is not None:
            x = x + self.positions[start:end]
        x = x.flatten(0, 1)  # (R, C)
        for layer, (norm1, qkv, norm2, out, up, down) in enumerate(self.blocks):
            heads = qkv(F.layer_norm(x, *norm1)).view(B, T, 3, self.cfg.n_heads, -1)
            heads = heads.permute(2, 0, 3, 1, 4)  # (3, B, H, T, D)
            queries, keys, values = heads.unbind()
            if self.positions is None:
                queries, keys = rotate_pairs(queries, start), rotate_pairs(keys, start)
            if cache is not None:
                keys, values = cache.extend(layer, keys, values)  # (B, H, S, D)
            mixed = F.scaled_dot_product_attention(
                queries, keys, values, attn_mask=seen, is_causal=start == 0
            )
            x = x + out(mixed.transpose(1, 2).reshape(B * T, -1))
            inner = F.gelu(up(F.layer_norm(x, *norm2)), approximate="tanh")
            x = x + down(inner)
        if cache is not None:
            cache.length = end
        return F.layer_norm(x, *self.final_norm).view(B, T, -1)

    def forward(self, idx: Tensor, cache: KVCache | None = None) -> Tensor:
        hidden = self.forward_hidden(idx, cache)
        return self.out_head(hidden.flatten(0, 1)).unflatten(0, idx.shape)  # (B, T, V)


def quicken(model: nn.Module, dtype: torch.dtype | str | None = None) -> QuickGPT:
    """Return a copy of the model that reads and writes faster, for inference only.

    Without a ``dtype`` the weights are the model's own, in float32: they take no
    memory, and follow the model if that is trained. float16, int8 and "int4" are packed
    copies of the matrices, for a CPU. The model keeps its numbers.

    Raises: ValueError for another ``dtype`` or kind of model, one of the three formats
        away from a CPU, or "int4" with an ``emb_dim`` that is no multiple of 32.
    Lesson: 11.
    """
    if dtype not in (None, torch.float16, torch.int8, "int4"):
        raise ValueError(f'dtype: float16, int8, "int4" or None, not {dtype}')
    if not hasattr(model, "trf_blocks"):
        raise ValueError(f"quicken a GPTModel, not a {type(model).__name__}")
    device = model.tok_emb.weight.device
    if dtype is not None and device.type != "cpu":
        raise ValueError(f"{dtype} is for a model on the CPU, not on {device}")
    if dtype == "int4" and model.cfg.emb_dim % 32:
        raise ValueError(f"int4 needs emb_dim % 32 == 0, not {model.cfg.emb_dim}")
    if dtype == torch.float16:
        make = make_head = in_float16
    elif dtype == torch.int8:
        make = make_head = in_int8
    elif dtype == "int4":
        make, make_head = in_int4, in_int8  # bfloat16 is too coarse for logits
    elif device.type == "cpu":
        layers = [block.ff.layers[0] for block in model.trf_blocks]
        ways = fastest_way(layers, 1), fastest_way(layers, 4)
        make = make_head = functools.partial(in_float32, ways=ways)
    else:
        make = make_head = in_float32
    return QuickGPT(model, make, make_head).eval()


class CharTokenizer:
    """A vocabulary of the distinct characters of a text, numbered in code order.

    Raises: ValueError, showing them, for characters that the text did not have or ids
        outside the vocabulary.
    Lesson: 8.
    """

    def __init__(self, text: str):
        self.characters = sorted(set(text))
        self.ids = {character: i for i, character in enumerate(self.characters)}
        self.n_vocab = len(self.characters)

    def encode(self, text: str) -> list[int]:
        unknown = sorted(set(text) - self.ids.keys())
        if unknown:
            raise ValueError(f"not in the vocabulary: {' '.join(map(repr, unknown))}")
        return [self.ids[character] for character in text]

    def decode(self, ids: list[int]) -> str:
        outside = [i for i in ids if not 0 <= i < self.n_vocab]
        if outside:
            raise ValueError(f"ids outside 0..{self.n_vocab - 1}: {outside[:5]}")
        return "".join(self.characters[i] for i in ids)


def draw_windows(
    ids: Tensor,
    batch_size: int,
    length: int,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw stretches of a text at random, and for each the same one token later.

    Shapes: (N) -> inputs (B, T), targets (B, T), with T = length.
    Raises: ValueError if the text has no ``length`` + 1 tokens.
    Lesson: 8.
    """
    if len(ids) <= length:
        raise ValueError(f"{len(ids)} tokens hold no window of {length} + 1")
    size, cpu = (batch_size, 1), torch.device("cpu")
    starts = torch.randint(len(ids) - length, size, generator=generator, device=cpu)
    places = starts + torch.arange(length + 1, device=cpu)
    windows = ids[places]
    return windows[:, :-1], windows[:, 1:]


def next_token_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy, in nats, of each next token.

    Shapes: inputs (B, T), targets (B, T) -> ().
    Lesson: 8.
    Source: Radford et al. 2018, Improving Language Understanding by Generative
        Pre-Training, section 3.1.
    """
    logits = model(inputs)  # (B, T, V)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten().long())


def check_text(ids: Tensor, cfg: GPTConfig) -> None:
    """Refuse a text that a model of this configuration cannot be trained on.

    Shapes: (N), integers, N more than the context length.
    Raises: ValueError for another shape or length; what ``check_token_ids`` raises.
    Lesson: 8.
    """
    if not isinstance(ids, Tensor) or ids.ndim != 1:
        shape = list(ids.shape) if isinstance(ids, Tensor) else type(ids).__name__
        raise ValueError(f"a text must be a tensor (N) of token ids, not {shape}")
    if len(ids) <= (T := cfg.context_length):
        raise ValueError(f"{len(ids)} tokens hold no window of {T} + 1")
    check_token_ids(ids[:, None], cfg)


@torch.no_grad()
def evaluate_loss(model: nn.Module, ids: Tensor, batch_size: int = 32) -> float:
    """The loss over a whole text, in windows side by side, in eval mode.

    A last stretch shorter than the context length is left out.

    Shapes: (N) -> a number, in nats per token.
    Raises: what ``check_text`` raises.
    Lesson: 8.
    """
    check_text(ids, model.cfg)
    T = model.cfg.context_length
    n_windows = (len(ids) - 1) // T
    ids = ids.to(model.tok_emb.weight.device)
    inputs = ids[: n_windows * T].view(n_windows, T)
    targets = ids[1 : n_windows * T + 1].view(n_windows, T)
    total = 0.0
    with evaluating(model):
        pairs = zip(inputs.split(batch_size), targets.split(batch_size), strict=True)
        for x, y in pairs:
            total += next_token_loss(model, x, y).item() * len(x)
    return total / n_windows


@dataclass(frozen=True)
class TrainingPlan:
    """How a model is trained. A stopped run goes on only under the same plan.

    Raises: ValueError, naming the field and its value, for numbers without meaning.
    Lesson: 8.
    Source: Loshchilov, Hutter 2017 (cosine) and 2019 (AdamW); Brown et al. 2020,
        Language Models are Few-Shot Learners, appendix B (warm-up, clipping, betas).
    """

    n_steps: int
    batch_size: int = 32
    learning_rate: float = 1e-3
    warmup_steps: int = 50
    final_rate: float = 0.1
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    eval_every: int = 100
    bf16: bool = False
    seed: int = 123

    def __post_init__(self):
        least = {"n_steps": 1, "batch_size": 1, "eval_every": 1}
        for name, low in (least | {"warmup_steps": 0, "seed": 0}).items():
            value = getattr(self, name)
            if type(value) is not int or not low <= value < 2**64:
                raise ValueError(f"{name} is no integer in [{low}, 2**64): {value!r}")
        for name in ("learning_rate", "clip_norm"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and 0 < value < math.inf):
                raise ValueError(f"{name} must be in (0, ∞), not {value!r}")
        rate, decay = self.final_rate, self.weight_decay
        if not (isinstance(rate, int | float) and 0 <= rate <= 1):
            raise ValueError(f"final_rate must be in [0, 1], not {rate!r}")
        if not (isinstance(decay, int | float) and 0 <= decay < math.inf):
            raise ValueError(f"weight_decay must be in [0, ∞), not {decay!r}")
        if type(self.bf16) is not bool:
            raise ValueError(f"bf16 must be True or False, not {self.bf16!r}")


def learning_rate_at(step: int, plan: TrainingPlan) -> float:
    """Rise in a line for ``warmup_steps``, then fall along half a cosine.

    The last step stands at ``final_rate`` times the highest rate.

    Lesson: 8.
    Source: Loshchilov, Hutter 2017, SGDR, equation 5.
    """
    if step < plan.warmup_steps:
        return plan.learning_rate * (step + 1) / plan.warmup_steps
    share = (step - plan.warmup_steps) / max(1, plan.n_steps - 1 - plan.warmup_steps)
    lowest = plan.final_rate * plan.learning_rate
    return lowest + (plan.learning_rate - lowest) * (1 + math.cos(math.pi * share)) / 2


@torch.no_grad()
def initialize_like_gpt2(model: nn.Module, generator: torch.Generator) -> None:
    """Draw the weights as the papers on GPT say: 0.02, less where a branch ends.

    A tied head on PyTorch's own tables, of standard deviation 1, starts with logits
    that are far too large. OpenAI's published code differs from the papers: it draws
    the position table with 0.01 and has no 1/√N.

    Lesson: 8.
    Source: Radford et al. 2019, section 2.3 (1/√N at the end of the N residual
        branches); Radford et al. 2018, section 4.1 (normal with 0.02).
    """
    branch_ends = "out_proj.weight", "ff.layers.2.weight"
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            parameter.zero_()
        elif name.endswith(".weight"):
            ends_a_branch = name.endswith(branch_ends)
            width = 0.02 / math.sqrt(2 * model.cfg.n_layers) if ends_a_branch else 0.02
            parameter.normal_(0.0, width, generator=generator)


def rank_and_size() -> tuple[int, int]:
    """The number of this process and how many there are: 0 and 1 without torchrun.

    Lesson: 13.
    """
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a file beside ``path``, then put it in its place at once.

    A kill at any moment leaves the old file or the new one, never a part. The file's
    mode stays as it was; a new file gets the usual one, whatever ``write`` gives it.
    Of several processes only rank 0 writes.

    Lesson: 8; several processes in 13.
    """
    if rank_and_size()[0]:
        return
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.unlink(missing_ok=True)
    unfinished.touch()  # with the mode that your new files have
    mode = (path if path.exists() else unfinished).stat().st_mode
    write(unfinished)
    with open(unfinished, "rb+") as file:
        os.fsync(file.fileno())
    unfinished.chmod(mode)
    os.replace(unfinished, path)


def _leave() -> None:
    """End at once: a thread of gloo that outlives Python would abort the process."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(hasattr(sys, "last_value"))  # 1 after an exception that nobody caught


@contextmanager
def joined_processes(timeout: float = 60.0):
    """Join the processes that torchrun has started, and yield this one's device.

    That is a GPU of its own, if the machine has one for each process, else the CPU.
    What is sent goes by nccl from GPUs and by gloo from CPUs. Only rank 0 prints.
    A process that waits for ``timeout`` seconds in vain raises an error. Those that
    ``launch`` has started end with the program that started them. Without torchrun
    a process is alone, and nothing is joined.

    Lesson: 13.
    """
    if "RANK" not in os.environ:
        yield pick_device()
        return
    if os.environ.get("GPT_ENDS_WITH_STDIN"):
        watch = threading.Thread(target=lambda: os.read(0, 1) or os._exit(1))
        watch.daemon = True
        watch.start()
    local_rank, n_local = (
        int(os.environ[f"LOCAL_{x}"]) for x in ("RANK", "WORLD_SIZE")
    )
    device = torch.device("cpu")
    if torch.cuda.device_count() >= n_local:
        torch.cuda.set_device(local_rank)
        device = pick_device()
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    try:
        with (
            open(os.devnull, "w") as nowhere,
            redirect_stdout(nowhere if dist.get_rank() else sys.stdout),
        ):
            yield device
    finally:
        dist.destroy_process_group()
    atexit.register(_leave)


def own_rows(batch: Tensor) -> Tensor:
    """This process's share of a batch that all processes have drawn alike.

    Shapes: (B, T) -> (B/P, T) in each of P processes.
    Lesson: 13.
    """
    rank, size = rank_and_size()
    return batch.chunk(size)[rank]


def mean_over_processes(x: Tensor) -> Tensor:
    """Replace a tensor, in every process, by its mean over all of them.

    Shapes: (...) -> (...).
    Lesson: 13.
    """
    size = rank_and_size()[1]
    if size > 1:
        dist.all_reduce(x)
        x /= size
    return x


def check_agreement(what: str, number: int) -> None:
    """Refuse to go on if the processes hold different numbers.

    Raises: ValueError, in every process, with the numbers by rank.
    Lesson: 13.
    """
    numbers = [number] * rank_and_size()[1]
    if len(numbers) > 1:
        dist.all_gather_object(numbers, number)
    if len(set(numbers)) > 1:
        raise ValueError(f"the processes disagree about {what}: {numbers} by rank")


class Replicated(DistributedDataParallel):
    """A whole model in every process; the backward pass averages the gradients.

    Rank 0's weights are sent to the others at the start. Everything but the call is
    the model's own, names of parameters included.

    Lesson: 13.
    Source: Li et al. 2020, PyTorch Distributed, section 3.2.
    """

    def __getattr__(self, name: str):
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module":
                raise
            return getattr(self.module, name)

    def named_parameters(self, *args, **options):
        return self.module.named_parameters(*args, **options)


def shard(model: nn.Module) -> nn.Module:
    """Keep a part of each parameter in every process, in place; return the model.

    Weights, gradients and optimizer state are all cut along their first axis. A block
    is put together when it is needed, and its gradients are averaged and cut again.

    Lesson: 13.
    Source: Rajbhandari et al. 2020, ZeRO, section 5; Zhao et al. 2023, PyTorch FSDP,
        section 3.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    mesh = init_device_mesh(device, (rank_and_size()[1],))
    for block in model.trf_blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh, reshard_after_forward=True)


def whole_tensor(x: Tensor) -> Tensor:
    """Put a sharded tensor together; all processes must call it. Others stay.

    Lesson: 13.
    """
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def cut_like(whole: Tensor, parameter: Tensor) -> Tensor:
    """This process's part of a tensor, if the parameter it belongs to is sharded.

    Lesson: 13.
    """
    if whole.ndim == 0 or not hasattr(parameter, "placements"):
        return whole
    from torch.distributed.tensor import distribute_tensor

    mesh, places = parameter.device_mesh, parameter.placements
    whole = whole.to(parameter.device)
    return distribute_tensor(whole, mesh, places, src_data_rank=None)


def named_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters by name, without what ``torch.compile`` adds to the names.

    Lesson: 8.
    """
    return {n.replace("_orig_mod.", ""): p for n, p in model.named_parameters()}


def digest_texts(train_ids: Tensor, validation_ids: Tensor) -> dict[str, str]:
    """What a checkpoint notes of its two texts: 16 digits of a SHA-256 each.

    Lesson: 8.
    """
    texts = {"train": train_ids, "validation": validation_ids}
    whole = {name: ids.cpu().long().numpy().tobytes() for name, ids in texts.items()}
    return {name: hashlib.sha256(w).hexdigest()[:16] for name, w in whole.items()}


def save_checkpoint(path, model, optimizer, plan, text, history: list[dict]) -> None:
    """Write model, optimizer, plan, text and history into one safetensors file.

    ``text`` is what ``digest_texts`` says of the texts. AdamW's averages lie under the
    names of their parameters, as zeros where there are none yet. Of several processes
    all must call it, as sharded tensors are put together.

    Lesson: 8; sharded tensors in 13.
    """
    tensors = {}
    for name, weight in named_weights(model).items():
        tensors[f"model.{name}"] = weight.detach()
        if weight.requires_grad:
            state = {k: torch.zeros_like(weight) for k in ("exp_avg", "exp_avg_sq")}
            state |= {"step": torch.zeros(())} | optimizer.state.get(weight, {})
            tensors |= {f"optimizer.{name}.{k}": value for k, value in state.items()}
    facts = {"config": asdict(model.cfg), "plan": asdict(plan)}
    facts |= {"text": text, "history": history}
    tensors = {name: whole_tensor(t).contiguous() for name, t in tensors.items()}
    metadata = {name: json.dumps(fact) for name, fact in facts.items()}
    write_whole(Path(path), lambda file: save_file(tensors, file, metadata))


@torch.no_grad()
def load_checkpoint(path, model, optimizer=None, plan=None, text=None) -> list[dict]:
    """Fill model and optimizer from a checkpoint and return its history.

    Nothing is changed unless all of it fits. Without an optimizer only the model is
    filled; plan and text are compared if they are given.

    Raises: ValueError, naming the file and what is wrong: damaged or no checkpoint, of
        another configuration, plan or text, or with other tensors.
    Lesson: 8; sharded tensors in 13.
    """
    try:
        with safe_open(path, "pt") as file:
            facts = {k: json.loads(v) for k, v in (file.metadata() or {}).items()}
            tensors = {k: file.get_tensor(k).clone() for k in file.keys()}
        kinds = {"config": dict, "plan": dict, "text": dict, "history": list}
        missing = [k for k, kind in kinds.items() if type(facts.get(k)) is not kind]
        if missing:
            raise ValueError(f"without {', '.join(missing)}")
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"checkpoint damaged: {path} ({error})") from error
    ours = {"config": asdict(model.cfg), "plan": plan and asdict(plan), "text": text}
    for name, expected in ours.items():
        saved = facts[name]
        differing = [k for k in expected or () if saved.get(k) != expected[k]]
        if differing:
            shown = ", ".join(
                f"{k} {saved.get(k)!r}, not {expected[k]!r}" for k in differing
            )
            raise ValueError(f"checkpoint of another {name}: {path} has {shown}")
    weights = named_weights(model)
    shapes = {f"model.{name}": weight.shape for name, weight in weights.items()}
    if optimizer is None:
        tensors = {n: t for n, t in tensors.items() if n.startswith("model.")}
    else:
        names = {p: name for name, p in weights.items()}
        order = [names[p] for group in optimizer.param_groups for p in group["params"]]
        for name in order:
            averages = dict.fromkeys(("exp_avg", "exp_avg_sq"), weights[name].shape)
            averages["step"] = ()
            shapes |= {f"optimizer.{name}.{k}": s for k, s in averages.items()}
    found = {name: tensor.shape for name, tensor in tensors.items()}
    if shapes != found:
        wrong = [n for n in shapes | found if shapes.get(n) != found.get(n)]
        raise ValueError(f"checkpoint with other tensors: {path}: {sorted(wrong)[:5]}")
    if optimizer is not None:
        state = {
            number: {
                k: cut_like(tensors[f"optimizer.{name}.{k}"], weights[name])
                for k in averages
            }
            for number, name in enumerate(order)
        }
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
    for name, weight in weights.items():
        weight.copy_(cut_like(tensors[f"model.{name}"], weight))
    return facts["history"]


def pick_device() -> torch.device:
    """The accelerator, if it computes a small model as the processor does.

    Logits and a gradient of a seeded model may differ by a thousandth of the largest
    number; an accelerator that fails is named in a warning and not used.

    Lesson: 8.
    """
    cpu = torch.device("cpu")
    if not torch.accelerator.is_available():
        return cpu
    device = torch.accelerator.current_accelerator()
    cfg = GPTConfig(32, 16, emb_dim=32, n_heads=4, n_layers=2, drop_rate=0.0)
    with torch.random.fork_rng(devices=[]), cpu:
        torch.default_generator.manual_seed(0)
        model = GPTModel(cfg).float()
    results = []
    try:
        for place in (cpu, device):
            model.to(place).zero_grad()
            logits = model(torch.arange(16, device=place).view(2, 8))
            logits.square().mean().backward()
            gradient = model.trf_blocks[0].att.W_query.weight.grad
            results.append([part.detach().cpu() for part in (logits, gradient)])
    except RuntimeError as error:
        warnings.warn(f"{device} cannot compute a small model: not used ({error})")
        return cpu
    gaps = [(a - b).abs().max() / a.abs().max() for a, b in zip(*results, strict=True)]
    if all(gap < 1e-3 for gap in gaps):  # max would overlook a gap that is no number
        return device
    warnings.warn(f"{device} computes other numbers than the processor: not used")
    return cpu


def make_optimizer(model: nn.Module, plan: TrainingPlan) -> torch.optim.AdamW:
    """AdamW that shrinks matrices only, not biases and norms.

    Parameters that are frozen, without ``requires_grad``, are left out.

    Raises: ValueError if all of them are.
    Lesson: 8.
    Source: Loshchilov, Hutter 2019, Decoupled Weight Decay Regularization, algorithm 2.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("nothing to train: every parameter is frozen")
    matrices = [p for p in parameters if p.ndim >= 2]
    vectors = [p for p in parameters if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": plan.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=plan.learning_rate, betas=(0.9, 0.95))


def check_shares(model: nn.Module, plan: TrainingPlan, pieces: int) -> None:
    """Refuse a batch without equal shares, or processes that would train apart.

    With unequal shares the mean of the means would not be the mean.

    Raises: ValueError, with the numbers.
    Lesson: 13.
    """
    size = rank_and_size()[1]
    if type(pieces) is not int or pieces < 1:
        raise ValueError(f"pieces must be 1, 2, 3 …, not {pieces!r}")
    if plan.batch_size % (size * pieces):
        raise ValueError(
            f"batch_size={plan.batch_size} does not go into {size} equal shares of "
            f"{pieces} equal pieces"
        )
    sharded = hasattr(next(model.parameters()), "placements")
    if size > 1 and not sharded and not isinstance(model, Replicated):
        raise ValueError(f"{size} processes need a Replicated or a sharded model")


def add_gradients(model, inputs, targets, pieces: int = 1, bf16=False) -> Tensor:
    """Go forward and backward through this process's windows, in pieces.

    The gradients become those of the mean over all windows of all processes, and the
    loss that is returned is that mean. Replicas exchange gradients once, after the
    last piece.

    Shapes: inputs (B/P, T), targets (B/P, T) -> (), in each of P processes.
    Lesson: 13.
    Source: Goyal et al. 2017, Accurate, Large Minibatch SGD, section 3.
    """
    total = torch.zeros((), device=inputs.device)
    parts = list(zip(inputs.chunk(pieces), targets.chunk(pieces), strict=True))
    for number, (x, y) in enumerate(parts, start=1):
        waits = number < len(parts) and isinstance(model, Replicated)
        with model.no_sync() if waits else nullcontext():
            with torch.autocast(x.device.type, torch.bfloat16, enabled=bf16):
                loss = next_token_loss(model, x, y) / len(parts)
            loss.backward()
        total += loss.detach()
    return mean_over_processes(total)


def training_step(
    model, optimizer, train_ids, plan: TrainingPlan, step: int, pieces: int = 1
) -> float:
    """Draw windows, move the weights once, and return the loss before the move.

    All processes draw the same batch, and each takes its own rows of it.

    Raises: FloatingPointError, naming the step, if the loss is no number any more.
    Lesson: 8; several processes and pieces in 13.
    Source: Pascanu, Mikolov, Bengio 2013, On the Difficulty of Training Recurrent
        Neural Networks, section 3.2 (clipping).
    """
    for group in optimizer.param_groups:
        group["lr"] = learning_rate_at(step, plan)
    device = model.tok_emb.weight.device
    windows = draw_windows(train_ids, plan.batch_size, model.cfg.context_length)
    inputs, targets = (own_rows(part).to(device) for part in windows)
    if rank := rank_and_size()[0]:  # each rank has its own dropout
        torch.manual_seed((torch.initial_seed() + rank * 2**40) % 2**64)
    optimizer.zero_grad()
    loss = add_gradients(model, inputs, targets, pieces, plan.bf16)
    if not loss.isfinite():
        raise FloatingPointError(f"the loss is {loss.item()} at step {step}")
    nn.utils.clip_grad_norm_(model.parameters(), plan.clip_norm)
    optimizer.step()
    return loss.item()


def check_place(path: Path) -> None:
    """Refuse a path at which ``write_whole`` could not put a file.

    Raises: ValueError, naming it and what is wrong.
    Lesson: 8.
    """
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"checkpoint must be a file in a folder, not {path}")
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        unfinished.touch()
        unfinished.unlink()
    except OSError as error:
        raise ValueError(f"no checkpoint can be written: {path} ({error})") from error


def train(
    model: nn.Module,
    train_ids: Tensor,
    validation_ids: Tensor,
    plan: TrainingPlan,
    *,
    checkpoint: str | Path | None = None,
    show: Callable[[int, list[dict]], None] | None = None,
    pieces: int = 1,
) -> list[dict]:
    """Train in place and return the history, a row per evaluation.

    Each row has the ``step``, the mean training loss since the row before, and the
    loss over all validation windows. With a ``checkpoint``, each row is also saved
    there, and a file that is there already is continued, if plan and texts are the
    same: to the losses of a run without the stop, as each step draws its windows and
    dropout from its own seed.
    ``show(step, history)`` is called after every step. With ``pieces`` a process goes
    through its windows in as many parts, to save memory. Several processes, a
    ``Replicated`` or a sharded model in each, share every batch and the checkpoint's
    file, and another number of them may go on from it: to the same losses, to
    rounding, without dropout.

    Shapes: train_ids (N), validation_ids (M).
    Raises: before anything is changed, what ``check_text``, ``check_shares``,
        ``check_place``, ``load_checkpoint`` and ``check_agreement`` raise;
        FloatingPointError, naming the step, for a loss that is no number any more. The
        last checkpoint stays as it was.
    Lesson: 8; several processes and pieces in 13.
    """
    for ids in (train_ids, validation_ids):
        check_text(ids, model.cfg)
    check_shares(model, plan, pieces)
    optimizer = make_optimizer(model, plan)
    history: list[dict] = []
    if checkpoint is not None:
        place = Path(checkpoint)
        if not rank_and_size()[0]:
            check_place(place)
        text = digest_texts(train_ids, validation_ids)
        if place.exists():
            history = load_checkpoint(place, model, optimizer, plan, text)
    first = history[-1]["step"] if history else 0
    check_agreement("the first step", first)
    losses = []
    model.train()
    with torch.random.fork_rng():
        for step in range(first, plan.n_steps):
            torch.manual_seed((plan.seed * 1_000_003 + step) % 2**64)
            loss = training_step(model, optimizer, train_ids, plan, step, pieces)
            losses.append(loss)
            if (step + 1) % plan.eval_every == 0 or step + 1 == plan.n_steps:
                row = {"step": step + 1, "train": sum(losses) / len(losses)}
                row["validation"] = loss = evaluate_loss(model, validation_ids)
                if not math.isfinite(loss):
                    raise FloatingPointError(f"validation loss {loss} at step {step}")
                history.append(row)
                losses.clear()
                if checkpoint is not None:
                    save_checkpoint(place, model, optimizer, plan, text, history)
            if show is not None:
                show(step + 1, history)
    return history


def torchrun_command(program, n_processes, arguments, n_nodes: int) -> list[str]:
    """What ``launch`` starts: torchrun on this machine alone, with a free port.

    Lesson: 13.
    """
    port = 0  # torchrun finds one; several must be told the same
    if n_nodes > 1:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run"]
    command += [f"--nnodes={n_nodes}", f"--nproc-per-node={n_processes}"]
    command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]
    command += ["--rdzv-id=gpt", "--local-addr=127.0.0.1"]
    return [*command, str(program), *map(str, arguments)]


@contextmanager
def running(command: list[str], n_times: int, **streams):
    """Start a command several times, and leave none of them running in the end.

    Lesson: 13.
    """
    paths = [str(DATA_FOLDER.parents[1]), os.environ.get("PYTHONPATH")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    env |= {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}
    env |= {"GPT_ENDS_WITH_STDIN": "1", "USE_LIBUV": "0" if os.name == "nt" else "1"}
    streams |= {"stdin": subprocess.PIPE, "start_new_session": True}
    processes = []
    try:
        for _ in range(n_times):
            processes.append(subprocess.Popen(command, env=env, **streams))
        yield processes
    finally:
        for process in processes:
            process.stdin.close()  # what torchrun has started watches for that
            if process.poll() is None:
                process.terminate()
        for process in processes:
            process.wait()


def launch(
    program: str | Path, n_processes: int, *arguments, n_nodes=1, timeout: float = 300.0
) -> str:
    """Run a Python program in several processes with torchrun; return what it prints.

    Each process has one thread. With ``n_nodes`` several torchruns find each other, as
    they would on several machines, and each starts ``n_processes``. None of them is
    left when this returns or raises, also when it is interrupted.

    Raises: RuntimeError, with all that was said, if a process fails; TimeoutError if
        one still runs after ``timeout`` seconds.
    Lesson: 13.
    """
    command = torchrun_command(program, n_processes, arguments, n_nodes)
    text = {"mode": "w+", "encoding": "utf-8", "errors": "replace"}
    with tempfile.TemporaryFile(**text) as out, tempfile.TemporaryFile(**text) as err:
        ends = time.monotonic() + timeout
        with running(command, n_nodes, stdout=out, stderr=err) as started:
            try:
                codes = [p.wait(max(0, ends - time.monotonic())) for p in started]
            except subprocess.TimeoutExpired:
                codes = None
        out.seek(0), err.seek(0)
        printed, said = out.read(), err.read()
    if codes is None:
        raise TimeoutError(f"{program} was ended after {timeout} s:\n{printed}{said}")
    if any(codes):
        raise RuntimeError(f"a process of {program} failed:\n{printed}{said}")
    return printed


# The smallest GPT-2 on Hugging Face: its name there today and before 2024, the commit,
# and the SHA-256 of its model.safetensors.
GPT2_REPOSITORIES = "openai-community/gpt2", "gpt2"
GPT2_REVISION = "607a30d783dfa663caf39e06633721c8d4cfcd7e"
GPT2_SHA256 = "248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707"

# GPT-2 as published: each tensor's name, its shape in letters, and the parameters of
# ours that it holds, {} being the number of a layer.
GPT2_LAYOUT = {
    "wte.weight": ("V C", "tok_emb.weight"),
    "wpe.weight": ("T C", "pos_emb.weight"),
    "h.{}.ln_1.weight": ("C", "trf_blocks.{}.norm1.scale"),
    "h.{}.ln_1.bias": ("C", "trf_blocks.{}.norm1.shift"),
    "h.{}.attn.c_attn.weight": (
        "C 3C",
        "trf_blocks.{}.att.W_query.weight",
        "trf_blocks.{}.att.W_key.weight",
        "trf_blocks.{}.att.W_value.weight",
    ),
    "h.{}.attn.c_attn.bias": (
        "3C",
        "trf_blocks.{}.att.W_query.bias",
        "trf_blocks.{}.att.W_key.bias",
        "trf_blocks.{}.att.W_value.bias",
    ),
    "h.{}.attn.c_proj.weight": ("C C", "trf_blocks.{}.att.out_proj.weight"),
    "h.{}.attn.c_proj.bias": ("C", "trf_blocks.{}.att.out_proj.bias"),
    "h.{}.ln_2.weight": ("C", "trf_blocks.{}.norm2.scale"),
    "h.{}.ln_2.bias": ("C", "trf_blocks.{}.norm2.shift"),
    "h.{}.mlp.c_fc.weight": ("C 4C", "trf_blocks.{}.ff.layers.0.weight"),
    "h.{}.mlp.c_fc.bias": ("4C", "trf_blocks.{}.ff.layers.0.bias"),
    "h.{}.mlp.c_proj.weight": ("4C C", "trf_blocks.{}.ff.layers.2.weight"),
    "h.{}.mlp.c_proj.bias": ("C", "trf_blocks.{}.ff.layers.2.bias"),
    "ln_f.weight": ("C", "final_norm.scale"),
    "ln_f.bias": ("C", "final_norm.shift"),
    "lm_head.weight": ("V C", "out_head.weight"),
}

# What a config.json must say, or leave out, besides its sizes. Under any other value
# the same weights would have to be computed with differently.
GPT2_FIXED = {
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}


# The kinds of numbers that a published file may hold.
GPT2_KINDS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


def gpt2_tensors(cfg: GPTConfig) -> dict[str, tuple[tuple[int, ...], list[str]]]:
    """Map each published name to its shape and the parameters of ours it holds.

    Lesson: 12.
    """
    C = cfg.emb_dim
    sizes = {"V": cfg.vocab_size, "T": cfg.context_length}
    sizes |= {"C": C, "3C": 3 * C, "4C": 4 * C}
    tensors = {}
    for published, (letters, *ours) in GPT2_LAYOUT.items():
        shape = tuple(sizes[letter] for letter in letters.split())
        for i in range(cfg.n_layers) if "{}" in published else [0]:
            tensors[published.format(i)] = shape, [name.format(i) for name in ours]
    if cfg.tied_head:
        del tensors["lm_head.weight"]
    return tensors


def turn_matrix(published: str, tensor: Tensor) -> Tensor:
    """Transpose a matrix of a block: published it is (in, out), with us (out, in).

    Tables, head, biases and norms stay as they are.

    Shapes: (in, out) <-> (out, in).
    Lesson: 12.
    """
    is_matrix = published.startswith("h.") and tensor.ndim == 2
    return tensor.mT if is_matrix else tensor


def read_gpt2_header(file: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The name, kind of number and shape of each tensor in a file; no tensor is read.

    Raises: ValueError, naming the file, if it is no safetensors file or not whole.
    Lesson: 12.
    """
    try:
        with safe_open(file, "pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}
            return {
                name: (part.get_dtype(), tuple(part.get_shape()))
                for name, part in slices.items()
            }
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"damaged, or no safetensors file: {file} ({error}). Other formats, such "
            "as a pickled .bin, which could run code, are not read."
        ) from error


def gpt2_config(file: Path, header: dict) -> GPTConfig:
    """The configuration of a checkpoint, from its shapes and from ``config.json``.

    Shapes show all sizes but the number of heads. Without a ``config.json`` beside
    the file, only the four published widths have a known one, C/64.

    Raises: ValueError, naming the file and the field: for another kind of model, or
        sizes that contradict the shapes.
    Lesson: 12.
    """
    tables = [header.get(name, ("", ()))[1] for name in ("wte.weight", "wpe.weight")]
    if [len(shape) for shape in tables] != [2, 2]:
        found = ", ".join(sorted(header)[:3]) or "nothing"
        raise ValueError(
            f"not GPT-2: {file} has no tables wte.weight, wpe.weight; it has {found} …"
        )
    (V, C), (T, _) = tables
    L = len({name.split(".")[1] for name in header if name.startswith("h.")})
    sizes = {"vocab_size": V, "n_positions": T, "n_embd": C, "n_layer": L}
    facts = {"n_head": C // 64} if C in (768, 1024, 1280, 1600) else {}
    config = file.with_name("config.json")
    try:
        if config.exists():
            facts = dict(json.loads(config.read_text(encoding="utf-8-sig")))
        for name, expected in (GPT2_FIXED | sizes).items():
            if facts.get(name, expected) != expected:
                raise ValueError(f"{name} is {facts[name]!r}, not {expected!r}")
        if "n_head" not in facts:
            raise ValueError("n_head is missing, and shapes do not show it")
        tied = bool(facts.get("tie_word_embeddings", True))
        rate = facts.get("resid_pdrop", 0.1)
        return GPTConfig(
            V, T, C, facts["n_head"], L, rate, qkv_bias=True, tied_head=tied
        )
    except (ValueError, TypeError) as error:
        raise ValueError(f"{config}: {error}") from error


def check_gpt2_tensors(
    file: Path, header: dict[str, tuple[str, tuple[int, ...]]], cfg: GPTConfig
) -> None:
    """Refuse a checkpoint with a missing, unexpected or mis-shaped tensor.

    Raises: ValueError, naming the file and the tensors.
    Lesson: 12.
    """
    expected, wrong = {n: s for n, (s, _) in gpt2_tensors(cfg).items()}, []
    for name in expected | header:
        kind, shape = header.get(name, ("", ()))
        if name not in header:
            wrong.append(f"{name} is missing")
        elif name not in expected:
            wrong.append(f"{name} is unexpected")
        elif shape != expected[name]:
            wrong.append(f"{name} has shape {shape}, not {expected[name]}")
        elif kind not in GPT2_KINDS:
            wrong.append(f"{name} has numbers of kind {kind}")
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise ValueError(f"not this GPT-2: {file}: {', '.join(wrong[:5])}{more}")


def _sha256(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _discard(cached: Path) -> None:
    cached.resolve().unlink(missing_ok=True)  # where the cache's link leads
    cached.unlink(missing_ok=True)


def _hub():
    """Import huggingface_hub where it is needed: that takes a while.

    Its progress bar warns in a notebook that ipywidgets would draw a prettier one.
    """
    with warnings.catch_warnings(action="ignore"):
        from huggingface_hub import file_download
    return file_download


def find_gpt2(path: str | Path | None = None, *, download: bool = False) -> Path | None:
    """Find the file with GPT-2's weights, or return None.

    Only the first of these that is there is looked at: ``path``, a folder or a file;
    the same in the environment variable ``GPT2_DIR``; the cache of huggingface_hub,
    whose file counts if its SHA-256 is that of the published 124M. With
    ``download=True`` alone, and if the cache lacks it, the file is fetched into there.

    Raises: FileNotFoundError for a given path without the file, with ``GPT2_DIR`` if
        it came from there; ValueError for another file in the cache; what
        ``download_gpt2`` raises.
    Lesson: 12.
    """
    if given := path or os.environ.get("GPT2_DIR"):
        file = Path(os.path.expanduser(given)).absolute()
        if file.suffix != ".safetensors" and not file.is_file():
            file = file / "model.safetensors"
        if not file.is_file():
            there = sorted(p.name for p in file.parent.glob("*"))[:5]
            no = "no" if path else "GPT2_DIR: no"
            raise FileNotFoundError(f"{no} {file}; in its folder: {there or 'nothing'}")
        return file
    others = {}
    for name in GPT2_REPOSITORIES:
        for revision in (GPT2_REVISION, "main"):
            load = _hub().try_to_load_from_cache
            file = load(name, "model.safetensors", revision=revision)
            if isinstance(file, str) and file not in others:
                others[file] = _sha256(Path(file))
                if others[file] == GPT2_SHA256:
                    return Path(file)
    if download:
        return download_gpt2()
    for file, sha256 in others.items():
        raise ValueError(
            f"damaged, or not the published GPT-2: {file}: its SHA-256 is {sha256}, not "
            f"{GPT2_SHA256}; download=True fetches the right one"
        )
    return None


def download_gpt2() -> Path:
    """Fetch the published GPT-2 124M, 548 MB, into the cache of huggingface_hub.

    That library's own settings count, such as HF_HOME (the place), HF_ENDPOINT (a
    mirror), HF_HUB_OFFLINE and HF_HUB_DISABLE_TELEMETRY. It goes on after a broken
    connection, but not after the program has ended.

    Raises: OSError, saying why and what to do, if the download stops; ValueError if
        another file comes, which is deleted.
    Lesson: 12.
    """
    place = GPT2_REPOSITORIES[0], "model.safetensors"
    hub, commit = _hub(), GPT2_REVISION
    if isinstance(old := hub.try_to_load_from_cache(*place, revision=commit), str):
        _discard(Path(old))
    try:
        fetched = hub.hf_hub_download(*place, revision=commit, force_download=True)
    except Exception as error:
        first = error  # the library's later ones say less
        while cause := first.__cause__ or first.__context__:
            first = cause
        reason = str(first).partition("\n")[0].rstrip(".") or type(first).__name__
        raise OSError(
            f"the download of {place[0]} stopped: {reason}. Try again, or fetch its "
            "model.safetensors in another way and give the file's path."
        ) from error
    if (sha256 := _sha256(Path(fetched))) != GPT2_SHA256:
        _discard(Path(fetched))
        raise ValueError(
            f"another file came from {place[0]}, and was deleted: its SHA-256 is "
            f"{sha256}, not {GPT2_SHA256}"
        )
    return Path(fetched)


def inspect_gpt2(file: Path) -> tuple[GPTConfig, dict[str, str]]:
    """Tell from a file's header which model it holds, and each tensor's name in it.

    All names may begin with "transformer."; the masks that older files hold are left
    out. ``tied_head`` is what ``config.json`` says.

    Raises: ValueError, naming the file and what is wrong, unless all of it fits.
    Lesson: 12.
    """
    header = read_gpt2_header(file)
    body = [name for name in header if name != "lm_head.weight"]
    prefix = "transformer."
    if not all(name.startswith(prefix) for name in body):
        prefix = ""
    masks = re.compile(r"h\.\d+\.attn\.(masked_)?bias")
    stored = {name.removeprefix(prefix): name for name in header}
    stored = {n: name for n, name in stored.items() if not masks.fullmatch(n)}
    header = {n: header[name] for n, name in stored.items()}
    cfg = gpt2_config(file, header)
    no_head = cfg.tied_head and "lm_head.weight" not in header
    check_gpt2_tensors(file, header, replace(cfg, tied_head=no_head))
    return cfg, stored


@torch.no_grad()
def load_gpt2(path: str | Path | None = None, *, download: bool = False) -> GPTModel:
    """Return the GPT-2 in a safetensors file: on the CPU, in float32, in eval mode.

    Everything is checked in the file's header first. Then one tensor at a time is
    copied, so that memory never holds the weights twice. ``find_gpt2`` says where the
    file is looked for. A head that differs from the token table makes the model untied.

    Raises: FileNotFoundError if there are no weights; ValueError, naming the file and
        the tensor or field, for a file that is damaged or holds another model.
    Lesson: 12.
    Source: Radford et al. 2019, section 2.3.
    """
    file = find_gpt2(path, download=download)
    if file is None:
        raise FileNotFoundError(
            "no GPT-2 weights on this computer: give a path, set GPT2_DIR, or say "
            "download=True (548 MB)"
        )
    cfg, stored = inspect_gpt2(file)

    def read(name: str) -> Tensor:
        with safe_open(file, "pt") as opened:  # no longer open, it takes no memory
            return opened.get_tensor(stored[name])

    if cfg.tied_head and "lm_head.weight" in stored:
        is_table = torch.equal(read("lm_head.weight"), read("wte.weight"))
        cfg = replace(cfg, tied_head=is_table)
    with torch.device("cpu"):
        model = GPTModel(cfg).float().eval()
    parameters = dict(model.named_parameters())
    for published, (_, ours) in gpt2_tensors(cfg).items():
        parts = turn_matrix(published, read(published)).chunk(len(ours))
        for name, part in zip(ours, parts, strict=True):
            parameters[name].copy_(part)
    return model


@torch.no_grad()
def join_gpt2_tensors(model: GPTModel, dtype=torch.float32) -> dict[str, Tensor]:
    """Return a model's weights as GPT-2 is published: joined, turned and named so.

    A model without biases for queries, keys and values gets zeros there, which change
    nothing.

    Raises: ValueError, naming the parameters, for a model that the layout cannot hold.
    Lesson: 12.
    """
    cfg, tensors = model.cfg, {}
    layout, parameters = gpt2_tensors(cfg), dict(model.named_parameters())
    ours = [name for _, names in layout.values() for name in names]
    for name in ours:
        if not cfg.qkv_bias and ".W_" in name and name.endswith(".bias"):
            parameters[name] = model.tok_emb.weight.new_zeros(cfg.emb_dim)
    if wrong := parameters.keys() ^ set(ours):
        raise ValueError(f"GPT-2's layout differs in {sorted(wrong)[:5]}")
    for published, (shape, names) in layout.items():
        joined = torch.cat([parameters[name] for name in names]).to("cpu", dtype)
        tensors[published] = turn_matrix(published, joined).contiguous()
        if tensors[published].shape != shape:
            raise ValueError(f"{names[0]}: GPT-2's {published} has shape {shape}")
    return tensors


def _config_text(cfg: GPTConfig) -> str:
    """What the ``config.json`` of a model says."""
    facts = {"vocab_size": cfg.vocab_size, "n_positions": cfg.context_length}
    facts |= {"n_embd": cfg.emb_dim, "n_layer": cfg.n_layers, "n_head": cfg.n_heads}
    facts |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), cfg.drop_rate)
    facts |= GPT2_FIXED | {"tie_word_embeddings": cfg.tied_head}
    end = 50256 if cfg.vocab_size == 50257 else None  # <|endoftext|>
    facts |= {"bos_token_id": end, "eos_token_id": end}
    facts |= {"architectures": ["GPT2LMHeadModel"]}
    return json.dumps(facts, indent=2) + "\n"


def save_gpt2(model: GPTModel, path: str | Path, dtype=torch.float32) -> None:
    """Write a model as GPT-2 is published: a safetensors file and a ``config.json``.

    ``path`` is a folder, or a file that ends in .safetensors. If one of the two files
    cannot be written, both stay as they were.

    Raises: before a file is touched, what ``join_gpt2_tensors`` raises; ValueError for
        a ``dtype`` that is not in ``GPT2_KINDS``; FileExistsError if the
        ``config.json`` there is another model's, whose weights could then be read with
        the wrong number of heads.
    Lesson: 12.
    """
    if dtype not in GPT2_KINDS.values():
        kinds = ", ".join(
            str(kind).removeprefix("torch.") for kind in GPT2_KINDS.values()
        )
        raise ValueError(f"dtype: {kinds}, not {dtype}")
    file = Path(path).expanduser()
    file = file if file.suffix == ".safetensors" else file / "model.safetensors"
    tensors, config = join_gpt2_tensors(model, dtype), file.with_name("config.json")
    new = _config_text(model.cfg).encode()
    old = config.read_bytes() if config.exists() else None
    if old not in (None, new) and not file.exists():
        raise FileExistsError(f"{config} is another model's: save in another folder")

    def write_both(unfinished: Path) -> None:
        save_file(tensors, unfinished, {"format": "pt"})
        write_whole(config, lambda f: f.write_bytes(new))

    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        write_whole(file, write_both)
    except BaseException:
        if old is None:
            config.unlink(missing_ok=True)
        elif config.read_bytes() != old:
            config.write_bytes(old)
        raise


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Continue a text with an untrained GPT-2 124M."
    )
    parser.add_argument("text", help='for instance "Hello, I am"')
    text = parser.parse_args(arguments).text
    tokenizer = get_tokenizer()
    ids = tokenizer.encode(text, disallowed_special=())
    if not ids:
        parser.error("the text is empty")
    torch.manual_seed(123)
    model = GPTModel(GPT_CONFIG_124M)
    print("This model is untrained: its weights are random, so expect nonsense.")
    print(tokenizer.decode(generate_text(model, torch.tensor([ids]), 6)[0].tolist()))


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="replace")  # some terminals lack some characters
    main()
