"""Every part follows its model to another device: PyTorch's meta device stands in.

Its tensors have no values, so what asks for values gets a 1, and an operation on
tensors of two devices is refused, as an accelerator refuses it.
"""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpt_helpers import (
    GPTModel,
    KVCache,
    TrainingPlan,
    evaluate_loss,
    generate_text,
    generate_text_simple,
    quicken,
    train,
)
from test_positions_and_cache import TINY

IDS = torch.arange(40) % 17  # on the processor, as a text is


class OneDevice(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        places = {t.device.type for t in tensors if t.ndim}
        moving = func is torch.ops.aten._to_copy.default
        if len(places) > 1 and not moving:
            raise RuntimeError(f"{func} on tensors of two devices")
        return func(*args, **(kwargs or {}))


@pytest.fixture(params=["learned", "rotary"])
def model(request, monkeypatch):
    """A model away from the processor, under the eyes of ``OneDevice``."""
    monkeypatch.setattr(Tensor, "item", lambda self: 1.0)
    monkeypatch.setattr(Tensor, "tolist", lambda self: [1] * self.numel())
    monkeypatch.setattr(Tensor, "__bool__", lambda self: self.dtype == torch.bool)
    monkeypatch.setattr(Tensor, "is_meta", False)
    model = GPTModel(replace(TINY, positions=request.param)).to("meta")
    with OneDevice():
        yield model


def test_two_devices_are_told_apart():
    with OneDevice(), pytest.raises(RuntimeError, match="two devices"):
        torch.ones(2, 3, device="meta") @ torch.ones(3, 2)


@pytest.mark.parametrize("mode", [True, False])
@torch.no_grad()
def test_the_model_reads_where_it_is_at_once_and_in_chunks(model, mode):
    idx, cache = IDS[None, :5].to("meta"), KVCache(TINY, 1, device="meta")
    assert model.train(mode)(idx).device.type == "meta"
    assert model(idx[:, :2], cache).device.type == "meta"
    assert model(idx[:, 2:], cache).shape == (1, 3, 17)


@pytest.mark.parametrize("use_cache", [True, False])
def test_text_is_written_where_the_model_is(model, monkeypatch, use_cache):
    monkeypatch.setattr(Tensor, "__bool__", lambda self: False)  # no row has ended
    settings = {"temperature": 1.0, "top_k": 5, "top_p": 0.9, "eos_id": 3}
    idx = IDS[None, :7].to("meta")
    for writer in model, quicken(model):
        written = generate_text(writer, idx, 4, **settings, use_cache=use_cache)
        assert written.device.type == "meta" and written.shape == (1, 11)
    assert generate_text_simple(model, idx, 4, 9).shape == (1, 11)


@pytest.mark.parametrize("bf16", [True, False])
def test_a_model_is_trained_and_measured_where_it_is(model, monkeypatch, bf16):
    asked = []
    monkeypatch.setattr(
        torch, "autocast", lambda *a, **k: asked.append((a, k)) or nullcontext()
    )
    plan = TrainingPlan(2, 3, eval_every=1, bf16=bf16)
    history = train(model, IDS, IDS.int(), plan)
    assert [row["step"] for row in history] == [1, 2]
    assert asked == 2 * [(("meta", torch.bfloat16), {"enabled": bf16})]
    assert evaluate_loss(model, IDS) == 1.0


def test_a_quick_copy_works_where_its_model_is(model):
    assert quicken(model)(IDS[None, :3].to("meta")).device.type == "meta"
    with pytest.raises(ValueError, match="on the CPU, not on meta"):
        quicken(model, torch.float16)
