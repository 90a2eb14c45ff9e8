"""Tokens per second of a training step: ``python tests/benchmark_training.py``.

The published Tiny-GPT (4 layers, 4 heads, 256 wide, context 256, 73 characters) is
trained by the same ``training_step``, on the same windows, as our model and as its
peers, in float32 and with the same line of bf16 autocast. The engines take turns, one
step each, so that a disturbance hits all of them; the table shows medians, and ratios
within each precision. transformers comes from ``tests/requirements-peers.txt``; without
it the table names it as missing.
"""

import argparse
import math
import statistics
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt_helpers import (
    GPTConfig,
    GPTModel,
    MultiHeadAttention,
    TrainingPlan,
    initialize_like_gpt2,
    make_optimizer,
    training_step,
)


class Lesson5Attention(MultiHeadAttention):
    """Our attention step by step, as lesson 5 writes it."""

    def forward(self, x: Tensor, cache=None, layer=0) -> Tensor:
        queries, keys, values = heads_of(self, x)
        scores = queries @ keys.transpose(-2, -1) / self.head_dim**0.5
        scores = scores.masked_fill(self._hidden(x, 0), -torch.inf)
        mixed = self.dropout(scores.softmax(dim=-1)) @ values
        return self.out_proj(mixed.transpose(1, 2).flatten(2))


class OneCallAttention(MultiHeadAttention):
    """Our attention as PyTorch's single call."""

    def forward(self, x: Tensor, cache=None, layer=0) -> Tensor:
        p = self.dropout.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(
            *heads_of(self, x), dropout_p=p, is_causal=True
        )
        return self.out_proj(mixed.transpose(1, 2).flatten(2))


def heads_of(attention: MultiHeadAttention, x: Tensor) -> list[Tensor]:
    roles = attention.W_query, attention.W_key, attention.W_value
    return [attention._split_heads(role(x)) for role in roles]


class PyTorchsParts(nn.Module):
    """The same sizes from PyTorch's own layers and one fused QKV, as nanoGPT has it."""

    def __init__(self, cfg: GPTConfig):
        super().__init__()
        self.cfg, C = cfg, cfg.emb_dim
        self.tok_emb = nn.Embedding(cfg.vocab_size, C)
        self.pos_emb = nn.Embedding(cfg.context_length, C)
        self.drop = nn.Dropout(cfg.drop_rate)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm1": nn.LayerNorm(C),
                    "qkv": nn.Linear(C, 3 * C),
                    "out_proj": nn.Linear(C, C),
                    "norm2": nn.LayerNorm(C),
                    "ff": nn.Sequential(
                        nn.Linear(C, 4 * C), nn.GELU(), nn.Linear(4 * C, C)
                    ),
                }
            )
            for _ in range(cfg.n_layers)
        )
        self.final_norm = nn.LayerNorm(C)
        self.out_head = nn.Linear(C, cfg.vocab_size)

    def forward(self, idx: Tensor) -> Tensor:
        T, H = idx.shape[1], self.cfg.n_heads
        p = self.cfg.drop_rate if self.training else 0.0
        x = self.drop(self.tok_emb(idx) + self.pos_emb.weight[:T])
        for block in self.blocks:
            qkv = block["qkv"](block["norm1"](x)).unflatten(-1, (3, H, -1))
            heads = qkv.permute(2, 0, 3, 1, 4)  # (3, B, H, T, D)
            mixed = F.scaled_dot_product_attention(*heads, dropout_p=p, is_causal=True)
            x = x + self.drop(block["out_proj"](mixed.transpose(1, 2).flatten(2)))
            x = x + self.drop(block["ff"](block["norm2"](x)))
        return self.out_head(self.final_norm(x))


class Transformers(nn.Module):
    """GPT2LMHeadModel of the same sizes, called as our model is."""

    def __init__(self, cfg: GPTConfig, attention: str):
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        self.cfg = cfg
        rates = dict.fromkeys(
            ["resid_pdrop", "embd_pdrop", "attn_pdrop"], cfg.drop_rate
        )
        sizes = {
            "vocab_size": cfg.vocab_size,
            "n_positions": cfg.context_length,
            "n_embd": cfg.emb_dim,
            "n_layer": cfg.n_layers,
            "n_head": cfg.n_heads,
        }
        theirs = GPT2Config(**sizes, **rates, tie_word_embeddings=False)
        theirs._attn_implementation = attention
        self.model = GPT2LMHeadModel(theirs)
        self.tok_emb = self.model.transformer.wte

    def forward(self, idx: Tensor) -> Tensor:
        return self.model(idx, use_cache=False).logits


def ours(cfg: GPTConfig, attention=MultiHeadAttention) -> GPTModel:
    model = GPTModel(cfg)
    model.out_head = nn.Linear(cfg.emb_dim, cfg.vocab_size)
    initialize_like_gpt2(model, torch.Generator().manual_seed(1))
    for block in model.trf_blocks:
        block.att.__class__ = attention
    return model


ENGINES = {
    "ours": ours,
    "ours, attention as in lesson 5": lambda cfg: ours(cfg, Lesson5Attention),
    "ours, attention as PyTorch's one call": lambda cfg: ours(cfg, OneCallAttention),
    "PyTorch's layers, fused QKV, one call": PyTorchsParts,
    "transformers GPT2LMHeadModel, sdpa": lambda cfg: Transformers(cfg, "sdpa"),
    "transformers GPT2LMHeadModel, eager": lambda cfg: Transformers(cfg, "eager"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument(
        "--steps", type=int, default=15, help="rounds, after two unmeasured"
    )
    parser.add_argument("--dropout", type=float, default=0.0)
    options = parser.parse_args()
    cfg = GPTConfig(73, 256, 256, 4, 4, options.dropout, qkv_bias=True)
    ids = torch.randint(73, (100_000,), generator=torch.Generator().manual_seed(0))
    runs, missing = {}, []
    for name, make in ENGINES.items():
        try:
            for bf16 in (False, True):
                torch.manual_seed(0)
                model = make(cfg).train()
                plan = TrainingPlan(10_000, options.batch_size, bf16=bf16)
                runs[name, bf16] = model, make_optimizer(model, plan), plan, []
        except ImportError as error:
            missing.append(f"{name}: {error}")
    for step in range(options.steps + 2):
        for model, optimizer, plan, times in runs.values():
            begun = time.perf_counter()
            loss = training_step(model, optimizer, ids, plan, step)
            times.append(time.perf_counter() - begun)
            if step == 0 and abs(loss - math.log(73)) > 0.5:
                raise SystemExit(
                    f"a first loss of {loss:.2f}, not ln 73: not comparable"
                )
    tokens = options.batch_size * cfg.context_length
    print(f"batch {options.batch_size}, dropout {cfg.drop_rate}, ", end="")
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    print(f"{'':44}{'float32':>10}{'ratio':>7}{'bf16':>10}{'ratio':>7}  tokens/s")
    medians = {key: statistics.median(run[-1][2:]) for key, run in runs.items()}
    first = next(iter(ENGINES))
    for name in dict.fromkeys(name for name, _ in runs):
        print(f"{name:44}", end="")
        for bf16 in (False, True):
            ratio = medians[first, bf16] / medians[name, bf16]
            print(f"{tokens / medians[name, bf16]:10,.0f}{ratio:7.2f}", end="")
        print()
    for line in missing:
        print(f"not installed: {line}")


if __name__ == "__main__":
    main()
