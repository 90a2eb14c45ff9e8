"""Answers to the exercises of lesson 6 · The GPT model: right ones, and wrong ones with what is said."""

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


def right_6_5_order(model):
    model.tok_emb.weight = nn.Parameter(0.02 * model.tok_emb.weight.detach())
    model.pos_emb.weight = nn.Parameter(0.01 * model.pos_emb.weight.detach())
    model.out_head.weight = model.tok_emb.weight
    return model


def right_6_5_new_modules(model):
    V, C = model.tok_emb.weight.shape
    model.tok_emb, model.pos_emb = (
        nn.Embedding(V, C),
        nn.Embedding(*model.pos_emb.weight.shape),
    )
    with torch.no_grad():
        for table, std in (model.tok_emb, 0.02), (model.pos_emb, 0.01):
            table.weight.normal_(0, std)
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
    "6.5": [
        right_6_5_in_place,
        right_6_5_drawn_anew,
        right_6_5_order,
        right_6_5_new_modules,
    ],
}


def wrong_6_1_swapped():
    return gpt_helpers.GPTConfig(50257, 64, 128, 4, 8)


def wrong_6_1_width_per_head():
    return gpt_helpers.GPTConfig(
        context_length=64, emb_dim=128 * 8, n_heads=8, n_layers=4
    )


def wrong_6_1_book_dictionary():
    return {"vocab_size": 50257, "context_length": 64, "emb_dim": 128}


def wrong_6_1_context_forgotten():
    return gpt_helpers.replace(
        gpt_helpers.GPT_CONFIG_124M, emb_dim=128, n_heads=8, n_layers=4
    )


def wrong_6_1_in_place():
    config = gpt_helpers.GPTConfig()
    config.emb_dim = 128
    return config


def wrong_6_1_two_fields():
    return gpt_helpers.GPTConfig(
        context_length=64, emb_dim=128, n_heads=8, n_layers=5, drop_rate=0.0
    )


def wrong_6_1_nothing():
    gpt_helpers.GPTConfig(50257, 64, 128, 8, 4)


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


def wrong_6_3_no_return(cfg, ratio):
    12 * cfg.emb_dim**2 + 10 * cfg.emb_dim


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


def wrong_6_5_frozen(model):
    model.tok_emb = nn.Embedding.from_pretrained(0.02 * model.tok_emb.weight.detach())
    model.pos_emb = nn.Embedding.from_pretrained(0.01 * model.pos_emb.weight.detach())
    model.out_head.weight = model.tok_emb.weight
    return model


def wrong_6_5_leaf(model):
    model.out_head.weight = model.tok_emb.weight
    model.tok_emb.weight *= 0.02
    return model


def wrong_6_5_all_small(model):
    model.out_head.weight = model.tok_emb.weight
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.02)
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


def wrong_6_5_configured(model):
    cfg = gpt_helpers.replace(model.cfg, tied_head=True)
    return wrong_6_5_tie_and_cut(gpt_helpers.GPTModel(cfg))


WRONG = {
    "6.1": [
        ("Heads and layers are exchanged", wrong_6_1_swapped),
        ("width of all heads together", wrong_6_1_width_per_head),
        ("That is a dictionary", wrong_6_1_book_dictionary),
        ("The context still is", wrong_6_1_context_forgotten),
        ("A configuration is frozen", wrong_6_1_in_place),
        ("n_layers: expected 4, got 5", wrong_6_1_two_fields),
        ("returns None", wrong_6_1_nothing),
        ("a function or class", gpt_helpers.GPTConfig(50257, 64, 128, 8, 4)),
    ],
    "6.2": [
        (
            "for a bias of the head",
            {
                "small_config": 50257 * 129,
                "small_config with V = 100": 100 * 129,
                "XL": 50257 * 1601,
            },
        ),
        (
            "mebibytes, rounded",
            {
                "small_config": 24.54,
                "small_config with V = 100": 0.05,
                "XL": 306.74,
            },
        ),
        (
            "counted both tables",
            {
                "small_config": 12_865_792,
                "small_config with V = 100": 25_600,
                "XL": 160_822_400,
            },
        ),
        (
            "  XL: 38597376",
            {
                "small_config": 50257 * 128,
                "small_config with V = 100": 100 * 128,
                "XL": 50257 * 768,
            },
        ),
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
        ("Two slips at once.", wrong_6_3_by_layers(norms=1, last_norm=False)),
        ("Two slips at once.", wrong_6_3_by_layers(position=False, head="always")),
        (
            "first on:",
            wrong_6_3_by_layers(norms=1, last_norm=False, position=False),
        ),
        ("returns None", wrong_6_3_no_return),
    ],
    "6.4": [
        ("A position table is counted", wrong_6_4(49_984, 6528 + 2048)),
        ("The head is counted on its own", wrong_6_4(49_984, 12_928)),
        ("Each block lacks 3·64", wrong_6_4(12 * 64 * 64 + 10 * 64, 6528)),
        ("Two slips at once. A position table", wrong_6_4(49_792, 8576)),
        ("Two slips at once. The head", wrong_6_4(49_792, 12_928)),
        ("counted one of them", wrong_6_4(49_984, 6528) | {"total": 56_512}),
        ("  one block: 50000", wrong_6_4(50_000, 6528)),
        ("  total: 106469", wrong_6_4(49_984, 6528) | {"total": 106_469}),
    ],
    "6.5": [
        ("two tensors", wrong_6_5_fresh_head),
        ("The bug is still there", wrong_6_5_tie_and_cut),
        ("scaled twice", wrong_6_5_both_scaled),
        ("not the modules that hold them", wrong_6_5_modules),
        ("share their memory but are two", wrong_6_5_shared_data),
        ("The bug is still there", wrong_6_5_configured),
        ("requires_grad", wrong_6_5_frozen),
        ("a leaf Variable that requires grad", wrong_6_5_leaf),
        ("blocks as they were: expected True, got False", wrong_6_5_all_small),
    ],
}
