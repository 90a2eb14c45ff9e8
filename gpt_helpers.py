"""The parts of GPT-2 that the lessons build, kept in one importable place.

Each part is built step by step in the lesson its docstring names; what stands here
is that lesson's final version, letter for letter. Sizes in the shape notes: B batch,
T tokens, C embedding size, H heads, D head size (C = H·D), V vocabulary, L layers.

``python gpt_helpers.py "Hello, I am"`` continues a text with an untrained GPT-2.
"""

import argparse
import hashlib
import math
import os
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

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
    output head use the token embedding's matrix, as the published weights do.

    Raises: ValueError, naming the field and its value, for a size that is not a
        positive integer, heads that do not divide the width, dropout outside [0, 1).
    Lesson: 1; ``tied_head`` in 6.
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


GPT_CONFIG_124M = GPTConfig()


class LayerNorm(nn.Module):
    """Bring each position's features to mean 0 and variance 1, then rescale them.

    The variance divides by n, not n − 1, and ``eps`` stands inside the root: both
    must stay so for GPT-2's weights.

    Shapes: (..., C) -> (..., C).
    Lesson: 2.
    Source: Ba, Kiros, Hinton 2016, Layer Normalization, section 3.
    """

    def __init__(self, emb_dim: int):
        super().__init__()
        self.eps = 1e-5
        self.scale = nn.Parameter(torch.ones(emb_dim))
        self.shift = nn.Parameter(torch.zeros(emb_dim))

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=-1, keepdim=True)  # (B, T, 1)
        variance = x.var(dim=-1, keepdim=True, correction=0)  # (B, T, 1)
        normalized = (x - mean) / torch.sqrt(variance + self.eps)  # (B, T, C)
        return self.scale * normalized + self.shift


class GELU(nn.Module):
    """The smooth gate x·Φ(x), in the tanh approximation that GPT-2 was trained with.

    The exact form differs by up to 4.7e-4 per activation: do not mix the two.

    Shapes: (...) -> (...).
    Lesson: 3.
    Source: Hendrycks, Gimpel 2016, Gaussian Error Linear Units, section 2.
    """

    def forward(self, x: Tensor) -> Tensor:
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return 0.5 * x * (1 + torch.tanh(inner))


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


class MultiHeadAttention(nn.Module):
    """Let each position mix in the values of itself and of earlier positions.

    ``mask`` is True where a key is hidden. It is not part of the state dict, and a
    mask saved by another implementation under the same name is ignored.

    Shapes: (B, T, C) -> (B, T, C).
    Lesson: 5.
    Source: Vaswani et al. 2017, sections 3.2.1 to 3.2.3.
    """

    def __init__(self, cfg: GPTConfig):
        super().__init__()
        self.n_heads = cfg.n_heads
        self.head_dim = cfg.emb_dim // cfg.n_heads
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

    def forward(self, x: Tensor) -> Tensor:
        T = x.shape[1]
        queries = self._split_heads(self.W_query(x))  # (B, H, T, D)
        keys = self._split_heads(self.W_key(x))  # (B, H, T, D)
        values = self._split_heads(self.W_value(x))  # (B, H, T, D)
        scores = queries @ keys.transpose(-2, -1)  # (B, H, T, T)
        scores = scores / self.head_dim**0.5
        scores = scores.masked_fill(self.mask[:T, :T], -torch.inf)
        weights = self.dropout(scores.softmax(dim=-1))
        mixed = (weights @ values).transpose(1, 2).flatten(2)  # (B, T, C)
        return self.out_proj(mixed)


class TransformerBlock(nn.Module):
    """Attention, then feed-forward, each normalized before and added back after.

    Shapes: (B, T, C) -> (B, T, C).
    Lesson: 5.
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

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_shortcut(self.att(self.norm1(x)))  # (B, T, C)
        x = x + self.drop_shortcut(self.ff(self.norm2(x)))  # (B, T, C)
        return x


def check_token_ids(idx: Tensor, cfg: GPTConfig) -> None:
    """Refuse token ids that a model of this configuration cannot read.

    Shapes: (B, T), integers, B and T at least 1, T at most the context length.
    Raises: ValueError with the offending shape, length or id; TypeError for ids
        that are no integers.
    Lesson: 6.
    """
    if idx.ndim != 2 or idx.numel() == 0:
        raise ValueError(
            f"token ids must have a shape (B, T) without zeros, not {tuple(idx.shape)}"
        )
    if idx.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"token ids must be int64 or int32, not {idx.dtype}")
    if idx.shape[1] > cfg.context_length:
        raise ValueError(
            f"{idx.shape[1]} tokens are more than context_length={cfg.context_length}"
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
    under two names.

    Shapes: token ids (B, T) -> logits (B, T, V).
    Raises: what ``check_token_ids`` raises.
    Lesson: 6.
    Source: Radford et al. 2019, section 2.3; Press, Wolf 2017, Using the Output
        Embedding to Improve Language Models, section 3 (the tied head).
    """

    def __init__(self, cfg: GPTConfig):
        super().__init__()
        self.cfg = cfg
        self.tok_emb = nn.Embedding(cfg.vocab_size, cfg.emb_dim)
        self.pos_emb = nn.Embedding(cfg.context_length, cfg.emb_dim)
        self.drop_emb = nn.Dropout(cfg.drop_rate)
        blocks = [TransformerBlock(cfg) for _ in range(cfg.n_layers)]
        self.trf_blocks = nn.Sequential(*blocks)
        self.final_norm = LayerNorm(cfg.emb_dim)
        self.out_head = nn.Linear(cfg.emb_dim, cfg.vocab_size, bias=False)
        if cfg.tied_head:
            self.out_head.weight = self.tok_emb.weight

    def forward_hidden(self, idx: Tensor) -> Tensor:
        """Return what the output head reads: (B, T) -> (B, T, C)."""
        check_token_ids(idx, self.cfg)
        positions = torch.arange(idx.shape[1], device=idx.device)  # (T)
        x = self.tok_emb(idx) + self.pos_emb(positions)  # (B, T, C)
        x = self.trf_blocks(self.drop_emb(x))  # (B, T, C)
        return self.final_norm(x)  # (B, T, C)

    def forward(self, idx: Tensor) -> Tensor:
        return self.out_head(self.forward_hidden(idx))  # (B, T, V)


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
) -> Tensor:
    """Continue each row of token ids by up to ``max_new_tokens`` tokens.

    The model reads the last ``context_length`` tokens only. A row that has drawn
    ``eos_id`` is filled up with it, and generation ends when every row has. The model
    works in eval mode and gets its own mode back; ``idx`` is left as it is.

    Shapes: (B, T) -> (B, T + n), n at most ``max_new_tokens``.
    Raises: what ``check_sampling`` and ``check_token_ids`` raise.
    Lesson: 7.
    Source: Radford et al. 2019, section 3; Holtzman et al. 2020, section 3.
    """
    check_sampling(max_new_tokens, temperature, top_k, top_p, eos_id, model.cfg)
    context_length = model.cfg.context_length
    check_token_ids(idx[..., -context_length:], model.cfg)
    ended = torch.zeros(idx.shape[0], 1, dtype=torch.bool, device=idx.device)
    options = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    with evaluating(model):
        for _ in range(max_new_tokens):
            logits = model(idx[:, -context_length:])[:, -1, :]  # (B, V)
            next_id = sample_next_token(logits, **options, generator=generator)
            if eos_id is not None:
                next_id = next_id.masked_fill(ended, eos_id)
                ended = ended | (next_id == eos_id)  # (B, 1)
            idx = torch.cat([idx, next_id], dim=1)
            if ended.all():
                break
    return idx


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
