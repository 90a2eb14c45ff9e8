"""The parts of GPT-2 that the lessons build, kept in one importable place.

Each part is built step by step in the lesson its docstring names; what stands here
is that lesson's final version, letter for letter. Sizes in the shape notes: B batch,
T tokens, C embedding size, H heads, D head size (C = H·D), V vocabulary, L layers.

``python gpt_helpers.py "Hello, I am"`` continues a text with an untrained GPT-2.
"""

import argparse
import atexit
import copy
import functools
import hashlib
import http.client
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
import urllib.request
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
            raise ValueError(f"vocabulary file missing: {path}")
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
        positive integer, heads that do not divide the width, dropout outside [0, 1),
        positions of another kind, rotary ones with an odd head size.
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
            size = getattr(self, name)
            if type(size) is not int or size < 1:
                raise ValueError(f"{name} must be a positive integer, not {size!r}")
        if self.emb_dim % self.n_heads:
            raise ValueError(
                f"n_heads={self.n_heads} does not divide emb_dim={self.emb_dim}"
            )
        if not 0 <= self.drop_rate < 1:
            raise ValueError(f"drop_rate must be in [0, 1), not {self.drop_rate!r}")
        if self.positions not in ("learned", "rotary"):
            raise ValueError(f"positions: learned or rotary, not {self.positions!r}")
        if self.positions == "rotary" and self.emb_dim // self.n_heads % 2:
            raise ValueError(
                f"rotary positions need an even head size, not "
                f"{self.emb_dim}/{self.n_heads} = {self.emb_dim // self.n_heads}"
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


def rotate_pairs(x: Tensor, start: int = 0, base: float = 10_000.0) -> Tensor:
    """Turn each pair of neighboring numbers by an angle that grows with the position.

    Pair i of D/2 turns by position · base^(−2i/D). The first token stands at
    position ``start``. Scores of rotated queries and keys then depend on the distance
    of their positions alone.

    Shapes: (B, H, T, D) -> (B, H, T, D), D even.
    Lesson: 9.
    Source: Su et al. 2021, RoFormer, sections 3.2.2 and 3.4.2.
    """
    T, D = x.shape[-2:]
    pairs = torch.arange(0, D, 2, device=x.device, dtype=torch.float32)
    positions = torch.arange(start, start + T, device=x.device, dtype=torch.float32)
    angles = torch.outer(positions, base ** (-pairs / D))
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., 0::2], x[..., 1::2]
    turned = torch.stack([first * cos - second * sin, first * sin + second * cos], -1)
    return turned.flatten(-2)  # (B, H, T, D)


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

    ``mask`` is True where a key is hidden. It is not part of the state dict, and a
    mask saved by another implementation under the same name is ignored. With a
    ``cache``, x holds only the tokens that follow the cached ones. In training the
    weights are written out, as dropout acts on them; else PyTorch's own attention
    computes the same without storing them.

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
        square = torch.ones(cfg.context_length, cfg.context_length, dtype=torch.bool)
        self.register_buffer("mask", square.triu(diagonal=1), persistent=False)
        self.register_load_state_dict_pre_hook(self._ignore_saved_mask)

    @staticmethod
    def _ignore_saved_mask(module, state_dict, prefix, *_):
        state_dict.pop(prefix + "mask", None)

    def _split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.n_heads, self.head_dim)).transpose(1, 2)

    def forward(self, x: Tensor, cache: KVCache | None = None, layer=0) -> Tensor:
        start = cache.length if cache is not None else 0
        queries = self._split_heads(self.W_query(x))  # (B, H, T, D)
        keys = self._split_heads(self.W_key(x))  # (B, H, T, D)
        values = self._split_heads(self.W_value(x))  # (B, H, T, D)
        if self.rotary:
            queries, keys = rotate_pairs(queries, start), rotate_pairs(keys, start)
        if cache is not None:
            keys, values = cache.extend(layer, keys, values)  # (B, H, S, D)
        end = start + x.shape[1]
        if self.training:
            hidden = torch.where(self.mask[start:end, :end], -torch.inf, 0.0)  # (T, S)
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
                attn_mask=~self.mask[start:end, :end] if chunk else None,
                is_causal=start == 0,
            )
        return self.out_proj(mixed.transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    """Attention, then feed-forward, each normalized before and added back after.

    Shapes: (B, T, C) -> (B, T, C).
    Lesson: 5; the cache in 10.
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
    """Count the numbers that training would set. A shared tensor counts once.

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
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens must be 0 or more, not {max_new_tokens}")
    if context_size < 1:
        raise ValueError(f"context_size must be 1 or more, not {context_size}")
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
    ordered, order = logits.sort(dim=-1, descending=True)  # (B, V)
    probabilities = ordered.softmax(dim=-1)
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
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature must be in [0, ∞), not {temperature!r}")
    if top_k is not None and (type(top_k) is not int or top_k < 1):
        raise ValueError(f"top_k must be 1, 2, 3 … or None, not {top_k!r}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must be in (0, 1] or None, not {top_p!r}")
    if eos_id is not None and eos_id not in range(cfg.vocab_size):
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
    check_token_ids(idx[..., -model.cfg.context_length :], model.cfg)
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


class RowLinear(nn.Linear):
    """``nn.Linear`` for inference on a CPU, where PyTorch's own is slow in two places.

    A single float32 row is multiplied with blocks of the weight's rows: PyTorch's
    product for one row reads the weight with one core on many x86 processors, but a
    batch of blocks with all. Several float16 rows are multiplied in float32. All else,
    gradients and other devices included, goes PyTorch's own way.

    Shapes: (..., I) -> (..., O).
    Lesson: 11.
    """

    def forward(self, x: Tensor) -> Tensor:
        n, one_row = count_blocks(self.out_features), x.numel() == self.in_features
        if x.device.type != "cpu" or torch.is_grad_enabled():
            return super().forward(x)
        if x.dtype == torch.float16 and not one_row:
            bias = None if self.bias is None else self.bias.float()
            return F.linear(x.float(), self.weight.float(), bias).half()
        if x.dtype != torch.float32 or not one_row or n == 1:
            return super().forward(x)
        blocks = self.weight.view(n, -1, self.in_features)  # (n, O/n, I)
        column = x.reshape(1, 1, -1).mT.expand(n, -1, -1)  # (n, I, 1)
        if self.bias is None:
            product = torch.bmm(blocks, column)  # (n, O/n, 1)
        else:
            bias = self.bias.view(n, -1, 1)  # (n, O/n, 1)
            product = torch.baddbmm(bias, blocks, column)  # (n, O/n, 1)
        return product.view(*x.shape[:-1], -1)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Round each row to whole numbers from −127 to 127, times the row's own scale.

    Shapes: (..., I) -> (..., I) in int8, (..., 1).
    Lesson: 11.
    Source: Dettmers et al. 2022, LLM.int8(), section 2.1 (absmax quantization).
    """
    scale = x.abs().amax(dim=-1, keepdim=True).clamp(min=1e-30) / 127
    return (x / scale).round().to(torch.int8), scale


class Int8Linear(nn.Module):
    """A linear layer whose weight takes 8 bits per number, for inference on a CPU.

    The rows of the weight are quantized once, x when it comes (in 7 bits on x86
    processors whose 8-bit sums would overflow); the sums are of whole numbers. PyTorch
    2.13 warns that it will remove the type which its packing takes: silenced here.

    Shapes: (..., T, I) -> (..., T, O).
    Lesson: 11.
    Source: Dettmers et al. 2022, LLM.int8(), section 3.1 (vector-wise quantization).
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        whole, scale = quantize_rows(linear.weight.detach())
        scale, zero = scale.flatten().double(), torch.zeros(len(whole)).long()
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            whole = torch._make_per_channel_quantized_tensor(whole, scale, zero, 0)
        bias = None if linear.bias is None else linear.bias.detach()
        self.packed = torch.ops.quantized.linear_prepack(whole, bias)
        x86 = torch.backends.quantized.engine == "x86"
        self.seven_bits = x86 and not torch.cpu._is_vnni_supported()

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.quantized.linear_dynamic(x, self.packed, self.seven_bits)


def quicken(model: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """Return a copy of the model that decodes faster, for inference only.

    Without a ``dtype`` it shares the model's weights: it takes no memory, and follows
    the model if that is trained. float16 and bfloat16 copy all weights in that format,
    int8 those of the linear layers. The model itself is left as it is.

    Raises: ValueError for another ``dtype``, or int8 away from a CPU.
    Lesson: 11.
    """
    if dtype not in (None, torch.float16, torch.bfloat16, torch.int8):
        raise ValueError(f"dtype: float16, bfloat16, int8 or None, not {dtype}")
    device = next(model.parameters()).device
    if dtype == torch.int8 and device.type != "cpu":
        raise ValueError(f"int8 is for a model on the CPU, not on {device}")
    kept = dtype if dtype in (torch.float16, torch.bfloat16) else None
    tensors = {id(buffer): buffer for buffer in model.buffers()}
    for weight in model.parameters():
        tensors[id(weight)] = nn.Parameter(
            weight.detach().to(kept or weight.dtype), False
        )
    quick = copy.deepcopy(model, tensors)
    for module in list(quick.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear and dtype == torch.int8:
                setattr(module, name, Int8Linear(child))
            elif type(child) is nn.Linear:
                child.__class__ = RowLinear
    return quick.eval()


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
    starts = torch.randint(len(ids) - length, (batch_size, 1), generator=generator)
    places = starts + torch.arange(length + 1)
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
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def evaluate_loss(model: nn.Module, ids: Tensor, batch_size: int = 32) -> float:
    """The loss over a whole text, in windows side by side, in eval mode.

    A last stretch shorter than the context length is left out.

    Shapes: (N) -> a number, in nats per token.
    Raises: ValueError if the text is shorter than one window and its last target.
    Lesson: 8.
    """
    T = model.cfg.context_length
    n_windows = (len(ids) - 1) // T
    if n_windows < 1:
        raise ValueError(f"{len(ids)} tokens hold no window of {T} + 1")
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
            if type(value) is not int or value < low:
                raise ValueError(f"{name} must be an integer ≥ {low}, not {value!r}")
        for name in ("learning_rate", "clip_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be > 0, not {getattr(self, name)!r}")
        if not 0 <= self.final_rate <= 1:
            raise ValueError(f"final_rate must be in [0, 1], not {self.final_rate!r}")
        if not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"weight_decay must be ≥ 0, not {self.weight_decay!r}")
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
    """Draw the weights as GPT-2 does: 0.02 wide, narrower where a branch ends.

    PyTorch's own tables are 1 wide, so that a tied head starts with wild logits.

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

    A kill at any moment leaves the old file or the new one, never a part. Of several
    processes only rank 0 writes.

    Lesson: 8; several processes in 13.
    """
    if rank_and_size()[0]:
        return
    unfinished = path.with_name(path.name + ".unfinished")
    write(unfinished)
    with open(unfinished, "rb+") as file:
        os.fsync(file.fileno())
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

    Shapes: (B, ...) -> (B/n, ...) in each of n processes.
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

    Shapes: as the model's.
    Lesson: 13.
    Source: Li et al. 2020, PyTorch Distributed, section 3.2.
    """

    def __init__(self, model: nn.Module, **options):
        super().__init__(model, forward_sync_buffers=False, **options)

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


def save_checkpoint(path, model, optimizer, plan, history: list[dict]) -> None:
    """Write model, optimizer, plan and history into one safetensors file.

    Of several processes all must call it, as sharded tensors are put together.

    Lesson: 8; sharded tensors in 13.
    """
    tensors = {f"model.{name}": p.detach() for name, p in model.named_parameters()}
    for number, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            tensors[f"optimizer.{number}.{key}"] = value
    facts = {"config": asdict(model.cfg), "plan": asdict(plan), "history": history}
    tensors = {name: whole_tensor(t).contiguous() for name, t in tensors.items()}
    metadata = {name: json.dumps(fact) for name, fact in facts.items()}
    write_whole(Path(path), lambda file: save_file(tensors, file, metadata))


@torch.no_grad()
def load_checkpoint(path, model, optimizer=None, plan=None) -> list[dict]:
    """Fill model and optimizer from a checkpoint and return its history.

    Nothing is changed unless all of it fits. Without an optimizer only the model is
    filled, and the plan is not compared.

    Raises: ValueError, naming the file and what is wrong: damaged or no checkpoint, of
        another configuration, of another plan, or with other tensors.
    Lesson: 8; sharded tensors in 13.
    """
    try:
        with safe_open(path, "pt") as file:
            facts = {k: json.loads(v) for k, v in (file.metadata() or {}).items()}
            tensors = {k: file.get_tensor(k).clone() for k in file.keys()}  # noqa: SIM118
        kinds = {"config": dict, "plan": dict, "history": list}
        missing = [k for k, kind in kinds.items() if type(facts.get(k)) is not kind]
        if missing:
            raise ValueError(f"without {', '.join(missing)}")
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"checkpoint damaged: {path} ({error})") from error
    ours = {"config": asdict(model.cfg)} | ({"plan": asdict(plan)} if plan else {})
    for name, expected in ours.items():
        saved = facts[name]
        differing = [k for k in expected if saved.get(k) != expected[k]]
        if differing:
            shown = ", ".join(
                f"{k} {saved.get(k)!r}, not {expected[k]!r}" for k in differing
            )
            raise ValueError(f"checkpoint of another {name}: {path} has {shown}")
    weights = {f"model.{name}": p.detach() for name, p in model.named_parameters()}
    shapes = {name: weight.shape for name, weight in weights.items()}
    if optimizer is None:
        tensors = {n: t for n, t in tensors.items() if n.startswith("model.")}
    else:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for number, p in enumerate(parameters):
            averages = {"step": (), "exp_avg": p.shape, "exp_avg_sq": p.shape}
            shapes |= {f"optimizer.{number}.{k}": s for k, s in averages.items()}
    found = {name: tensor.shape for name, tensor in tensors.items()}
    if shapes != found:
        wrong = [n for n in shapes | found if shapes.get(n) != found.get(n)]
        raise ValueError(f"checkpoint with other tensors: {path}: {sorted(wrong)[:5]}")
    if optimizer is not None:
        numbers = range(len(parameters))
        state = {
            i: {
                k: cut_like(tensors[f"optimizer.{i}.{k}"], parameters[i])
                for k in averages
            }
            for i in numbers
        }
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
    for name, weight in weights.items():
        weight.copy_(cut_like(tensors[name], weight))
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
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = GPTModel(cfg)
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
    if max(gaps) < 1e-3:
        return device
    warnings.warn(f"{device} computes other numbers than the processor: not used")
    return cpu


def make_optimizer(model: nn.Module, plan: TrainingPlan) -> torch.optim.AdamW:
    """AdamW that shrinks matrices only, not biases and norms.

    Lesson: 8.
    Source: Loshchilov, Hutter 2019, Decoupled Weight Decay Regularization, algorithm 2.
    """
    parameters = list(model.parameters())
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

    Shapes: inputs (B/n, T), targets (B/n, T) -> ().
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
        torch.manual_seed(torch.initial_seed() + rank * 2**40)
    optimizer.zero_grad()
    loss = add_gradients(model, inputs, targets, pieces, plan.bf16)
    if not loss.isfinite():
        raise FloatingPointError(f"the loss is {loss.item()} at step {step}")
    nn.utils.clip_grad_norm_(model.parameters(), plan.clip_norm)
    optimizer.step()
    return loss.item()


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
    there, and a file that is there already is continued: to the same losses as
    without the stop, as each step draws its windows and dropout from its own seed.
    ``show(step, history)`` is called after every step. With ``pieces`` a process goes
    through its windows in as many parts, to save memory. Several processes, a
    ``Replicated`` or a sharded model in each, share every batch and the checkpoint's
    file, and another number of them may go on from it: to the same losses, to
    rounding, without dropout.

    Shapes: train_ids (N), validation_ids (M).
    Raises: before anything is changed, ValueError for texts shorter than a window and
        a checkpoint without a folder, and what ``check_token_ids``, ``check_shares``,
        ``load_checkpoint`` and ``check_agreement`` raise; FloatingPointError, naming
        the step, for a loss that is no number any more. The last checkpoint stays.
    Lesson: 8; several processes and pieces in 13.
    """
    for ids in (train_ids, validation_ids):
        check_token_ids(ids[:, None], model.cfg)
        if len(ids) <= (T := model.cfg.context_length):
            raise ValueError(f"{len(ids)} tokens hold no window of {T} + 1")
    check_shares(model, plan, pieces)
    optimizer = make_optimizer(model, plan)
    history: list[dict] = []
    if checkpoint is not None:
        place = Path(checkpoint)
        if place.is_dir() or not place.parent.is_dir():
            raise ValueError(f"checkpoint must be a file in a folder, not {place}")
        if place.exists():
            history = load_checkpoint(place, model, optimizer, plan)
    first = history[-1]["step"] if history else 0
    check_agreement("the first step", first)
    losses = []
    model.train()
    with torch.random.fork_rng():
        for step in range(first, plan.n_steps):
            torch.manual_seed(plan.seed * 1_000_003 + step)
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
                    save_checkpoint(checkpoint, model, optimizer, plan, history)
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


GPT2_ADDRESS = (
    "https://huggingface.co/openai-community/gpt2/resolve/main/model.safetensors"
)
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
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
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
            facts = dict(json.loads(config.read_text(encoding="utf-8")))
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
        elif kind not in ("F64", "F32", "F16", "BF16"):
            wrong.append(f"{name} has numbers of kind {kind}")
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise ValueError(f"not this GPT-2: {file}: {', '.join(wrong[:5])}{more}")


def find_gpt2(path: str | Path | None = None, *, download: bool = False) -> Path | None:
    """Find the file with GPT-2's weights, or return None.

    Only the first of these that is there is looked at: ``path``, a folder or a file;
    the same in the environment variable ``GPT2_DIR``; the cache of Hugging Face's
    programs; what ``download=True`` has fetched before. The network is used with
    ``download=True`` alone, if the file is not there.

    Raises: FileNotFoundError for a given path without the file, with ``GPT2_DIR`` if
        it came from there; what ``download_gpt2`` raises.
    Lesson: 12.
    """
    if given := path or os.environ.get("GPT2_DIR"):
        file = Path(given).expanduser().absolute()
        if file.suffix != ".safetensors" and not file.is_file():
            file = file / "model.safetensors"
        if not file.is_file() and not download:
            there = sorted(p.name for p in file.parent.glob("*"))[:5]
            no = "no" if path else "GPT2_DIR: no"
            raise FileNotFoundError(f"{no} {file}; in its folder: {there or 'nothing'}")
    else:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        home = Path(os.environ.get("HF_HOME") or home / "huggingface")
        cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
        file = DATA_FOLDER / "my-gpt2" / "model.safetensors"
        for name in ("models--gpt2", "models--openai-community--gpt2"):
            for cached in sorted(cache.glob(f"{name}/snapshots/*/{file.name}")):
                file = cached if cached.is_file() else file
    if not file.is_file():
        return download_gpt2(file) if download else None
    return file


def receive(address: str, part: Path, timeout: float) -> None:
    """Append to a file what it still lacks of ``address``, and show how far it is.

    Raises: OSError if the connection fails, is silent for ``timeout`` seconds, or is
        closed too early.
    Lesson: 12.
    """
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address)
    if done:
        request.add_header("Range", f"bytes={done}-")
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        if answer.status != 206:  # all of it comes, not the rest
            done = 0
        total = done + int(answer.headers.get("Content-Length", 0))
        with open(part, "ab" if done else "wb") as file:
            while piece := answer.read(1 << 20):
                file.write(piece)
                done += len(piece)
                print(f"\r{done / 1e6:,.0f} of {total / 1e6:,.0f} MB", end="")
        print()
    if done < total:
        raise ConnectionError(f"closed after {done:,} of {total:,} bytes")


def download_gpt2(
    file: str | Path,
    address: str = GPT2_ADDRESS,
    sha256: str = GPT2_SHA256,
    timeout: float = 30.0,
) -> Path:
    """Fetch the published GPT-2 124M, 548 MB.

    What has come is kept beside ``file``, under a name that ends in .part; after an
    interruption the next call goes on there. The file gets its name once its SHA-256
    is right. In a folder that is there the file is called model.safetensors.

    Raises: OSError, saying why and what to do, if the download stops; ValueError if
        another file comes.
    Lesson: 12.
    """
    file = Path(file).expanduser()
    file = file / "model.safetensors" if file.is_dir() else file
    part = file.with_name(file.name + ".part")
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        receive(address, part, timeout)
    except (OSError, http.client.HTTPException) as error:
        if getattr(error, "code", None) != 416:  # 416: nothing is lacking
            raise OSError(
                f"the download stopped: {error}. Whatever has come is in {part}; the "
                f"next call goes on there. Or fetch {address} in another way and give "
                "the file's path."
            ) from error
    with open(part, "rb") as finished:
        found = hashlib.file_digest(finished, "sha256").hexdigest()
    if found != sha256:
        part.unlink()
        raise ValueError(
            f"another file came from {address}, and was deleted: its SHA-256 is "
            f"{found}, not {sha256}"
        )
    os.replace(part, file)
    return file


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
    """Return the GPT-2 in a safetensors file, in float32 and in eval mode.

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
    model = GPTModel(cfg).eval()
    parameters = dict(model.named_parameters())
    for published, (_, ours) in gpt2_tensors(cfg).items():
        parts = turn_matrix(published, read(published)).chunk(len(ours))
        for name, part in zip(ours, parts, strict=True):
            parameters[name].copy_(part)
    return model


@torch.no_grad()
def save_gpt2(model: GPTModel, path: str | Path, dtype=torch.float32) -> None:
    """Write a model as GPT-2 is published: a safetensors file and a ``config.json``.

    ``path`` is a folder, or a file that ends in .safetensors. A model without biases
    for queries, keys and values gets zeros there, which change nothing.

    Raises: ValueError, naming the parameters, for a model that the layout cannot hold;
        FileExistsError if the ``config.json`` there is another model's, whose weights
        could then be read with the wrong number of heads.
    Lesson: 12.
    """
    cfg, file, tensors = model.cfg, Path(path).expanduser(), {}
    file = file if file.suffix == ".safetensors" else file / "model.safetensors"
    layout, parameters = gpt2_tensors(cfg), dict(model.named_parameters())
    ours = [name for _, names in layout.values() for name in names]
    for name in ours:
        if not cfg.qkv_bias and ".W_" in name and name.endswith(".bias"):
            parameters[name] = torch.zeros(cfg.emb_dim)
    if wrong := parameters.keys() ^ set(ours):
        raise ValueError(f"GPT-2's layout differs in {sorted(wrong)[:5]}")
    for published, (shape, names) in layout.items():
        joined = torch.cat([parameters[name] for name in names]).to("cpu", dtype)
        tensors[published] = turn_matrix(published, joined).contiguous()
        if tensors[published].shape != shape:
            raise ValueError(f"{names[0]}: GPT-2's {published} has shape {shape}")
    facts = {"vocab_size": cfg.vocab_size, "n_positions": cfg.context_length}
    facts |= {"n_embd": cfg.emb_dim, "n_layer": cfg.n_layers, "n_head": cfg.n_heads}
    facts |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), cfg.drop_rate)
    facts |= GPT2_FIXED | {"tie_word_embeddings": cfg.tied_head}
    end = 50256 if cfg.vocab_size == 50257 else None  # <|endoftext|>
    facts |= {"bos_token_id": end, "eos_token_id": end}
    facts |= {"architectures": ["GPT2LMHeadModel"]}
    text, config = json.dumps(facts, indent=2) + "\n", file.with_name("config.json")
    if config.exists() and not file.exists() and config.read_bytes() != text.encode():
        raise FileExistsError(f"{config} is another model's: save in another folder")
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, lambda f: save_file(tensors, f, {"format": "pt"}))
    write_whole(config, lambda f: f.write_bytes(text.encode()))


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
    main()
