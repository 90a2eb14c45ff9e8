"""The shapes and lesson numbers that docstrings name, run on small distinct sizes."""

import re
from unittest.mock import patch

import pytest
import torch
from shape_comments import agrees

import gpt_helpers as gpt
from test_lessons import MODULE, TAUGHT

SIZES = {"B": 2, "T": 5, "C": 12, "H": 3, "D": 4, "V": 13, "N": 40, "I": 64, "O": 9}
SIZES |= {
    "R": 5,
    "I/32": 2,
    "D/2": 2,
    "max_new_tokens": 4,
    "n": 4,
    "P": 2,
    "in": 7,
    "out": 9,
}
CFG = gpt.GPTConfig(13, 9, emb_dim=12, n_heads=3, n_layers=1, drop_rate=0.0)


def random(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


IDS, TEXT = torch.arange(10).view(2, 5), torch.arange(40) % 13
STREAM, LOGITS, ROWS = random(2, 5, 12), random(2, 13), random(2, 5, 64)
HEADS, MODEL = random(2, 3, 5, 4), gpt.GPTModel(CFG)
WEIGHT, BIAS = random(9, 64), random(9)


def share_of_two(batch):
    with patch("gpt_helpers.rank_and_size", return_value=(1, 2)):
        return gpt.own_rows(batch)


# {name: (arguments with a shape, in the docstring's order; what is called on them)}
EXAMPLES = {
    "LayerNorm": ([STREAM], gpt.LayerNorm(12)),
    "GELU": ([STREAM], gpt.GELU()),
    "FeedForward": ([STREAM], gpt.FeedForward(CFG)),
    "rotate_pairs": ([HEADS], gpt.rotate_pairs),
    "MultiHeadAttention": ([STREAM], gpt.MultiHeadAttention(CFG)),
    "TransformerBlock": ([STREAM], gpt.TransformerBlock(CFG)),
    "check_text": ([TEXT], lambda ids: gpt.check_text(ids, CFG)),
    "check_token_ids": ([IDS], lambda ids: gpt.check_token_ids(ids, CFG)),
    "GPTModel": ([IDS], MODEL),
    "generate_text_simple": (
        [IDS],
        lambda ids: gpt.generate_text_simple(MODEL, ids, 4, 9),
    ),
    "keep_top_k": ([LOGITS], lambda logits: gpt.keep_top_k(logits, 3)),
    "keep_top_p": ([LOGITS], lambda logits: gpt.keep_top_p(logits, 0.5)),
    "sample_next_token": ([LOGITS], gpt.sample_next_token),
    "next_logits": ([IDS], lambda ids: gpt.next_logits(MODEL, ids)),
    "generate_text": ([IDS], lambda ids: gpt.generate_text(MODEL, ids, 4)),
    "blocks_right": ([ROWS[0], WEIGHT, BIAS], gpt.blocks_right),
    "blocks_left": ([ROWS[0], WEIGHT, BIAS], gpt.blocks_left),
    "quantize_groups_of_32": (
        [random(9, 64)],
        lambda w: gpt.quantize_groups_of_32(w)[:2],
    ),
    "QuickGPT": ([IDS], gpt.quicken(MODEL)),
    "quantize_rows": ([ROWS], gpt.quantize_rows),
    "draw_windows": ([TEXT], lambda ids: gpt.draw_windows(ids, 2, 5)),
    "next_token_loss": ([IDS, IDS], lambda a, b: gpt.next_token_loss(MODEL, a, b)),
    "own_rows": ([IDS], share_of_two),
    "mean_over_processes": ([STREAM], gpt.mean_over_processes),
    "add_gradients": (
        [IDS[:1], IDS[1:]],
        lambda a, b: gpt.add_gradients(MODEL, a, b),
    ),
    "turn_matrix": ([random(7, 9)], lambda m: gpt.turn_matrix("h.0.c_fc.weight", m)),
}
# What takes or returns no single tensor.
NOT_RUN = {"evaluate_loss", "train", "join", "make_turns"}
DOCUMENTED = {
    name: re.search(r"Shapes: (.+?)\n *(?:[A-Z]\w+:|$)", doc, re.DOTALL)[1]
    for name in MODULE
    if "Shapes:" in (doc := getattr(gpt, name).__doc__ or "")
}


def test_every_documented_shape_has_an_example():
    assert set(EXAMPLES) == set(DOCUMENTED) - NOT_RUN


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_docstrings_shapes_are_the_tensors(name):
    arguments, function = EXAMPLES[name]
    results = function(*arguments)
    results = results if isinstance(results, tuple) else (results,)
    tensors = [t for t in (*arguments, *results) if t is not None]
    shapes = re.findall(r"\(([^()]*)\)", DOCUMENTED[name].split(", T at least")[0])
    assert len(shapes) == len(tensors)
    for said, tensor in zip(shapes, tensors, strict=True):
        names, shape = [part.strip() for part in said.split(",") if part], tensor.shape
        if names[:1] == ["..."]:
            names, shape = names[1:], shape[len(shape) + 1 - len(names) :]
        assert agrees(tuple(shape), names, dict(SIZES)), f"({said}), not {shape}"


@pytest.mark.parametrize("name", TAUGHT)
def test_the_docstring_names_the_lessons_that_build_it(name):
    if name.isupper():
        return
    line = re.search(r"Lesson: (.+)", getattr(gpt, name).__doc__)[1]
    places = [number for number, _ in TAUGHT[name]]
    assert [int(number) for number in re.findall(r"\d+", line)] == places
