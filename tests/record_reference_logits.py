"""Record what transformers computes: ``python tests/record_reference_logits.py``.

It needs ``requirements-peers.txt``, and pytest does not run it. It writes to
``notebooks/data/reference-gpt2`` a small checkpoint with seeded random weights, in the
layout of the published file, masks included, and the logits that transformers computes
from it.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

FOLDER = Path(__file__).parent.parent / "notebooks/data/reference-gpt2"
SIZES = {"vocab_size": 40, "n_positions": 12, "n_embd": 32, "n_head": 4, "n_layer": 2}


@torch.no_grad()
def main():
    generator = torch.Generator().manual_seed(123)
    config = GPT2Config(**SIZES, bos_token_id=None, eos_token_id=None)
    model = GPT2LMHeadModel(config).eval()
    for name, parameter in model.named_parameters():
        # Wide enough that each mistake shows: no bias is 0, no norm's scale is 1.
        is_scale = "ln_" in name and name.endswith("weight")
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(0.3 * noise + is_scale)
    tensors = dict(model.transformer.state_dict())  # as published: without the head
    for i in range(config.n_layer):
        mask = torch.ones(1, 1, config.n_positions, config.n_positions).tril()
        tensors[f"h.{i}.attn.bias"] = mask
    ids = torch.randint(config.vocab_size, (3, 12), generator=generator)
    FOLDER.mkdir(parents=True, exist_ok=True)
    config.to_json_file(FOLDER / "config.json")
    save_file(tensors, FOLDER / "model.safetensors", {"format": "pt"})
    logits = {"ids": ids, "logits": model(ids).logits}
    save_file(logits, FOLDER / "logits.safetensors")


if __name__ == "__main__":
    main()
