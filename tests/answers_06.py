"""Answers to the exercises of lesson 6 · The GPT model: right ones, and wrong ones with what is said."""

import copy

import torch
from torch import nn

import gpt_helpers


def right_6_1_by_position():
    return gpt_helpers.GPTConfig(50257, 64, 128, 8, 4)


def right_6_1_from_a_dictionary():
    sizes = dict(vars(gpt_helpers.GPT_CONFIG_124M))
    sizes.update(emb_dim=128, n_heads=8, n_layers=4, context_length=64)
    return gpt_helpers.GPTConfig(**sizes)


def right_6_3_by_counting(cfg, ratio):
    """Build the model without memory, and count what PyTorch sees."""
    total = 0
    with torch.device("meta"):
        model = gpt_helpers.GPTModel(cfg)
        for block in model.trf_blocks:
            block.ff = nn.Sequential(
                nn.Linear(cfg.emb_dim, ratio * cfg.emb_dim),
                nn.Linear(ratio * cfg.emb_dim, cfg.emb_dim),
            )
    for parameter in model.parameters():
        total += parameter.nelement()
    return total


def right_6_3_by_layers(cfg, ratio=4):
    def linear(n, m, bias=True):
        return torch.tensor(n * m + (m if bias else 0), dtype=torch.float64)

    C, wide = cfg.emb_dim, ratio * cfg.emb_dim
    total = linear(cfg.vocab_size, C, False) + linear(cfg.context_length, C, False)
    for _ in range(cfg.n_layers):
        total += sum(linear(C, C, cfg.qkv_bias) for _ in range(3)) + linear(C, C)
        total += linear(C, wide) + linear(wide, C) + 2 * (C + C)
    total += 2 * C
    if not cfg.tied_head:
        total += linear(C, cfg.vocab_size, bias=False)
    return total


def right_6_5_in_place(model):
    model.out_head.weight = model.tok_emb.weight
    model.tok_emb.weight.data.mul_(0.02)
    model.pos_emb.weight.data.mul_(0.01)
    return model


def right_6_5_drawn_anew(model):
    nn.init.normal_(model.tok_emb.weight, std=0.02)
    nn.init.normal_(model.pos_emb.weight, std=0.01)
    model.out_head.weight = model.tok_emb.weight
    return model


RIGHT = {
    "6.1": [right_6_1_by_position, right_6_1_from_a_dictionary],
    "6.2": [
        {
            "XL": 80_411_200,
            "small_config": torch.tensor(6_432_896),
            "small_config with V = 100": 12_800.0,
        }
    ],
    "6.3": [right_6_3_by_counting, right_6_3_by_layers],
    "6.4": [
        {"total": 106_496, "one block": 49_984.0, "outside the blocks": 6_400 + 128}
    ],
    "6.5": [right_6_5_in_place, right_6_5_drawn_anew],
}


def wrong_6_3_lessons_formula(cfg, ratio):
    V, C = cfg.vocab_size, cfg.emb_dim
    tables = V * C + cfg.context_length * C + V * C * (not cfg.tied_head)
    return tables + cfg.n_layers * (12 * C**2 + 10 * C + 3 * C * cfg.qkv_bias) + 2 * C


def wrong_6_3_by_layers(head=True, position=True, norms=2, ff_bias=True, **other):
    """Count layer by layer with the parts that the arguments leave."""
    out_bias, last_norm = other.get("out_bias", True), other.get("last_norm", True)
    head_bias, qkv_bias = other.get("head_bias", False), other.get("qkv_bias")

    def count(cfg, ratio):
        C, V = cfg.emb_dim, cfg.vocab_size
        biases = cfg.qkv_bias if qkv_bias is None else qkv_bias
        with torch.device("meta"):
            block = [nn.Linear(C, C, bias=biases) for _ in range(3)]
            block += [nn.Linear(C, C, bias=out_bias)]
            block += [nn.Linear(C, ratio * C, bias=ff_bias)]
            block += [nn.Linear(ratio * C, C, bias=ff_bias)]
            block += [nn.LayerNorm(C) for _ in range(norms)]
            ends = [nn.Embedding(V, C)]
            ends += [nn.Embedding(cfg.context_length, C)] * position
            ends += [nn.LayerNorm(C)] * last_norm
            if head == "always" or (head and not cfg.tied_head):
                ends += [nn.Linear(C, V, bias=head_bias)]
        numbers = [
            sum(p.numel() for layer in layers for p in layer.parameters())
            for layers in (block, ends)
        ]
        return numbers[0] * cfg.n_layers + numbers[1]

    return count


def wrong_6_4(block, outside):
    return {
        "one block": block,
        "outside the blocks": outside,
        "total": outside + block + block,
    }


def wrong_6_5_fresh_head(model):
    for table, std in (model.tok_emb, 0.02), (model.pos_emb, 0.01):
        table.weight = nn.Parameter(table.weight.data * std)
    V, C = model.tok_emb.weight.shape
    model.out_head = nn.Linear(C, V, bias=False)
    model.out_head.weight.data.copy_(model.tok_emb.weight.data)
    return model


def wrong_6_5_tie_and_cut(model):
    weight = model.tok_emb.weight
    model.out_head.weight = weight
    with torch.no_grad():
        small = weight * 0.02
        model.pos_emb.weight.mul_(0.01)
    model.tok_emb.weight = nn.Parameter(small)
    return model


def wrong_6_5_both_scaled(model):
    model.out_head.weight = model.tok_emb.weight
    with torch.no_grad():
        model.tok_emb.weight.mul_(0.02)
        model.out_head.weight.mul_(0.02)
        model.pos_emb.weight.mul_(0.01)
    return model


def wrong_6_5_leaf(model):
    model.out_head.weight = model.tok_emb.weight
    model.tok_emb.weight *= 0.02
    return model


def wrong_6_5_modules(model):
    for table, factor in (model.tok_emb, 0.02), (model.pos_emb, 0.01):
        table.weight = nn.Parameter(factor * table.weight.detach())
    model.out_head = model.tok_emb
    return model


def wrong_6_5_shared_data(model):
    model.tok_emb.weight.data = 0.02 * model.tok_emb.weight.data
    model.out_head.weight.data = model.tok_emb.weight.data
    model.pos_emb.weight.data = 0.01 * model.pos_emb.weight.data
    return model


def changed_6_1(**changes):
    """The right configuration, but for some fields, made with ``replace``."""
    right = right_6_1_by_position()
    return lambda: gpt_helpers.replace(right, **changes)


def in_place_6_1():
    config = gpt_helpers.GPTConfig()
    config.emb_dim = 128
    return config


def saved_6_2(small, few, xl):
    return {"small_config": small, "small_config with V = 100": few, "XL": xl}


def after_6_5(change):
    """The right answer, and then something more is done to the model."""

    def answer(model):
        model = right_6_5_in_place(model)
        return change(model) or model

    return answer


def as_copies(model):
    for table in model.tok_emb, model.out_head:
        table.weight = nn.Parameter(model.tok_emb.weight.detach() + 0)


def frozen(model):
    model.tok_emb.weight.requires_grad_(False)


def new_model(model):
    cfg = gpt_helpers.replace(model.cfg, tied_head=True)
    return gpt_helpers.GPTModel(cfg)


def blocks_small(model):
    for weight in model.trf_blocks.parameters():
        weight.data *= 0.02


WRONG = {
    "6.1": [
        ("Heads and layers are exchanged", changed_6_1(n_heads=4, n_layers=8)),
        ("width of all heads together", changed_6_1(emb_dim=128 * 8)),
        ("The context still is", changed_6_1(context_length=1024)),
        ("The depth still is", changed_6_1(n_layers=12)),
        ("The head is tied", changed_6_1(tied_head=True)),
        ("The dropout rate is 0", changed_6_1(drop_rate=0)),
        ("That is a dictionary", lambda: vars(right_6_1_by_position())),
        ("A configuration is frozen", in_place_6_1),
        (
            "Two things at once. The context",
            changed_6_1(context_length=1024, tied_head=True),
        ),
        ("n_layers: expected 4, got 5", changed_6_1(n_layers=5)),
        ("returns None", lambda: None),
        ("a function or class", gpt_helpers.GPTConfig(50257, 64, 128, 8, 4)),
    ],
    "6.2": [
        ("for a bias of the head", saved_6_2(50257 * 129, 12_900, 50257 * 1601)),
        ("the outputs of the head", saved_6_2(50257, 100, 50257)),
        ("a single row of the table", saved_6_2(128, 128, 1600)),
        ("counted both tables", saved_6_2(12_865_792, 25_600, 160_822_400)),
        ("added the position table", saved_6_2(6_441_088, 20_992, 82_049_600)),
        ("mebibytes", saved_6_2(24.54, 0.05, 306.74)),
        ("768 features of GPT-2", saved_6_2(50257 * 128, 12_800, 50257 * 768)),
        ("  XL: 38597377", saved_6_2(50257 * 128, 12_800, 50257 * 768 + 1)),
    ],
    "6.3": [
        ("the four is folded in", wrong_6_3_lessons_formula),
        ("The untied head is missing", wrong_6_3_by_layers(head=False)),
        ("tied head is counted twice", wrong_6_3_by_layers(head="always")),
        ("An untied head is counted with a bias", wrong_6_3_by_layers(head_bias=True)),
        ("The position table is missing", wrong_6_3_by_layers(position=False)),
        ("counted one norm, or both", wrong_6_3_by_layers(norms=1)),
        ("The two norms of the blocks are missing", wrong_6_3_by_layers(norms=0)),
        ("biases of the feed-forward network", wrong_6_3_by_layers(ff_bias=False)),
        ("Each block lacks C numbers", wrong_6_3_by_layers(out_bias=False)),
        ("The final norm is missing", wrong_6_3_by_layers(last_norm=False)),
        ("although `qkv_bias` is off", wrong_6_3_by_layers(qkv_bias=True)),
        ("they are missing", wrong_6_3_by_layers(qkv_bias=False)),
        ("Two things at once.", wrong_6_3_by_layers(norms=1, last_norm=False)),
        ("Two things at once.", wrong_6_3_by_layers(position=False, head="always")),
        ("first on:", lambda cfg, ratio: right_6_3_by_layers(cfg, ratio) + 1),
        ("returns None", lambda cfg, ratio: None),
    ],
    "6.4": [
        ("A position table is counted", wrong_6_4(49_984, 6528 + 2048)),
        ("The head is counted on its own", wrong_6_4(49_984, 12_928)),
        ("The final norm is missing", wrong_6_4(49_984, 6400)),
        ("lacks 3·64 = 192", wrong_6_4(12 * 64 * 64 + 10 * 64, 6528)),
        ("lacks 64 numbers", wrong_6_4(49_920, 6528)),
        ("lacks 2·64 = 128", wrong_6_4(49_856, 6528)),
        ("lacks 4·64 = 256", wrong_6_4(49_728, 6528)),
        ("as many as heads", wrong_6_4(49_984, 6528) | {"total": 206_464}),
        ("The total has one block", wrong_6_4(49_984, 6528) | {"total": 56_512}),
        ("Two things at once. A position table", wrong_6_4(49_792, 8576)),
        ("  one block: 50000", wrong_6_4(50_000, 6528)),
        ("  total: 106469", wrong_6_4(49_984, 6528) | {"total": 106_469}),
    ],
    "6.5": [
        ("but two tensors", wrong_6_5_fresh_head),
        ("The bug is still there", wrong_6_5_tie_and_cut),
        ("scaled twice", wrong_6_5_both_scaled),
        ("not the modules that hold them", wrong_6_5_modules),
        ("share their memory but are two", wrong_6_5_shared_data),
        ("The model that comes back is a new one", after_6_5(new_model)),
        ("two tensors", after_6_5(as_copies)),
        ("no longer asks for a gradient", after_6_5(frozen)),
        ("The blocks are made small too", after_6_5(blocks_small)),
        ("a leaf Variable that requires grad", wrong_6_5_leaf),
        ("the given model comes back: expected", after_6_5(copy.deepcopy)),
    ],
}
