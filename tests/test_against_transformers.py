"""Our logits against those of an installed transformers, over random configurations.

Needs ``requirements-peers.txt``; skipped without it.
"""

import os
import random

import pytest
import torch
from safetensors.torch import load_file, save_file

from gpt_helpers import (
    DATA_FOLDER,
    GPTConfig,
    GPTModel,
    find_gpt2,
    load_gpt2,
    save_gpt2,
)

transformers = pytest.importorskip("transformers")

N_CONFIGURATIONS = 60
WRITERS = "save_pretrained", "published layout", "save_gpt2"


def drawn(number):
    """The facts of one random configuration; all writers and kinds come in turn."""
    chance = random.Random(number)
    n_head, head_dim = chance.randint(1, 6), chance.choice([3, 4, 8, 16])
    return {
        "writer": WRITERS[number % 3],
        "dtype": (torch.float32, torch.float16)[number // 3 % 2],
        "prefix": ("", "transformer.")[number // 6 % 2],
        "tied": bool(number // 12 % 2),
        "n_head": n_head,
        "n_embd": n_head * head_dim,
        "n_layer": chance.randint(1, 4),
        "n_positions": chance.randint(2, 20),
        "vocab_size": chance.randint(5, 70),
    }


@torch.no_grad()
def randomize(model, seed):
    """Weights so wide that no bias, scale or position goes unnoticed."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        is_scale = name.endswith(("scale", "ln_1.weight", "ln_2.weight", "ln_f.weight"))
        parameter.copy_(0.3 * noise + is_scale)


def theirs(folder):
    """transformers' model of a folder, in float32, with nothing missing or left over."""
    model, notes = transformers.GPT2LMHeadModel.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not any(notes.values()), notes
    return model.eval()


def new_model_of_theirs(facts):
    sizes = {k: facts[k] for k in ("n_embd", "n_head", "n_layer", "n_positions")}
    config = transformers.GPT2Config(
        **sizes,
        vocab_size=facts["vocab_size"],
        tie_word_embeddings=facts["tied"],
        bos_token_id=None,
        eos_token_id=None,
    )
    return transformers.GPT2LMHeadModel(config)


def write_checkpoint(facts, folder, seed):
    if facts["writer"] == "save_gpt2":
        cfg = GPTConfig(
            facts["vocab_size"],
            facts["n_positions"],
            facts["n_embd"],
            facts["n_head"],
            facts["n_layer"],
            qkv_bias=bool(seed % 2),
            tied_head=facts["tied"],
        )
        model = GPTModel(cfg)
        randomize(model, seed)
        save_gpt2(model, folder, facts["dtype"])
        return
    model = new_model_of_theirs(facts)
    randomize(model, seed)
    model.to(facts["dtype"]).save_pretrained(folder)
    if facts["writer"] == "published layout":
        file = folder / "model.safetensors"
        tensors, T = load_file(file), facts["n_positions"]
        for i in range(facts["n_layer"]):
            mask = torch.ones(1, 1, T, T).tril()
            tensors[f"transformer.h.{i}.attn.bias"] = mask
        names = {n: n.replace("transformer.", facts["prefix"]) for n in tensors}
        save_file({names[n]: t for n, t in tensors.items()}, file, {"format": "pt"})


def largest_gap(ours, theirs, seed):
    generator = torch.Generator().manual_seed(seed)
    shape = (2, ours.cfg.context_length)
    ids = torch.randint(ours.cfg.vocab_size, shape, generator=generator)
    with torch.no_grad():
        return (ours(ids) - theirs(ids).logits).abs().max().item()


@pytest.mark.parametrize("number", range(N_CONFIGURATIONS))
def test_logits_are_those_of_transformers(number, tmp_path):
    facts = drawn(number)
    write_checkpoint(facts, tmp_path, seed=number)
    ours = load_gpt2(tmp_path)
    assert ours.cfg.tied_head == facts["tied"] and ours.cfg.n_heads == facts["n_head"]
    assert largest_gap(ours, theirs(tmp_path), number) < 1e-4, facts


def test_the_configurations_hold_every_combination():
    kinds = "writer", "dtype", "prefix", "tied"
    combinations = {tuple(drawn(i)[kind] for kind in kinds) for i in range(60)}
    assert len(combinations) == 3 * 2 * 2 * 2


def test_transformers_reads_the_stored_tiny_gpt():
    folder = DATA_FOLDER / "tiny-alice"
    assert largest_gap(load_gpt2(folder), theirs(folder), seed=0) < 1e-4


@pytest.mark.skipif(not os.environ.get("GPT2_DIR"), reason="no GPT2_DIR is set")
def test_the_file_in_gpt2_dir_gives_the_logits_of_transformers():
    assert largest_gap(load_gpt2(), theirs(find_gpt2().parent), seed=0) < 1e-4
