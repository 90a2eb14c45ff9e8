"""Answers to the exercises of lesson 1 · The dummy model: right ones, and wrong ones with what is said."""

import torch
import torch.nn.functional as F
from torch import nn


def right_1_2_loop(ids, token_table, position_table):
    texts = []
    for text in ids.tolist():
        rows = [
            token_table[token_id] + position_table[position]
            for position, token_id in enumerate(text)
        ]
        texts.append(torch.stack(rows))
    return torch.stack(texts)


def right_1_2_in_place(ids, token_table, position_table):
    x = token_table.double()[ids]
    x += position_table[: ids.size(1)]
    return x


def right_1_2_layers(ids, token_table, position_table):
    tok_emb = nn.Embedding.from_pretrained(token_table)
    pos_emb = nn.Embedding.from_pretrained(position_table)
    positions = torch.arange(ids.shape[-1]).expand_as(ids)
    return tok_emb(ids) + pos_emb(positions)


def right_1_2_one_hot(ids, token_table, position_table):
    one_hot = F.one_hot(ids, len(token_table)).to(token_table.dtype)
    places = torch.eye(ids.shape[1], len(position_table))
    return one_hot @ token_table + places @ position_table


def wrong_1_2_batch_axis_loop(ids, token_table, position_table):
    x = token_table[ids]
    for number, text in enumerate(x):
        text += position_table[number]
    return x


def wrong_1_2_from_one(ids, token_table, position_table):
    return F.embedding(ids, token_table) + position_table[1 : len(ids[0]) + 1]


def wrong_1_2_extra_axis(ids, token_table, position_table):
    rows = torch.stack([position_table[t] for t in range(ids.shape[1])]).unsqueeze(1)
    return rows + token_table[ids]


def wrong_1_2_float_embedding(ids, token_table, position_table):
    positions = torch.linspace(0, ids.shape[1] - 1, ids.shape[1])
    return F.embedding(ids, token_table) + F.embedding(positions, position_table)


def wrong_1_2_float_select(ids, token_table, position_table):
    positions = torch.cumsum(torch.ones(ids.shape[1]), dim=0) - 1
    return token_table[ids] + position_table.index_select(0, positions)


def wrong_1_2_running_on(ids, token_table, position_table):
    flat = ids.flatten()
    x = token_table[flat] + position_table[: len(flat)]
    return x.view(*ids.shape, -1)


def wrong_1_2_doubled(ids, token_table, position_table):
    return 2 * (token_table[ids] + position_table[: ids.shape[1]])


def wrong_1_2_third_axis(ids, token_table, position_table):
    return token_table[ids] + position_table[torch.arange(ids.shape[2])]


def right_1_3_sum(cfg):
    total = 0
    for rows in cfg.vocab_size, cfg.context_length, cfg.vocab_size:
        for _ in range(cfg.emb_dim):
            total += rows
    return float(total)


def right_1_3_layers(cfg):
    with torch.device("meta"):
        parts = [
            nn.Embedding(cfg.vocab_size, cfg.emb_dim),
            nn.Embedding(cfg.context_length, cfg.emb_dim),
            nn.Linear(cfg.emb_dim, cfg.vocab_size, bias=False),
        ]
    return sum(p.numel() for part in parts for p in part.parameters())


def wrong_1_3_head_with_bias(cfg):
    table, places = cfg.vocab_size * cfg.emb_dim, cfg.context_length * cfg.emb_dim
    with torch.device("meta"):
        head = nn.Linear(cfg.emb_dim, cfg.vocab_size)
    return table + places + head.weight.numel() + head.bias.numel()


def wrong_1_3_places(cfg):
    return cfg.context_length * cfg.emb_dim


def wrong_1_3_tied(cfg):
    shared = cfg.emb_dim * cfg.vocab_size
    return sum([shared, cfg.context_length * cfg.emb_dim])


class RightFrame(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.drop_emb = nn.Dropout(cfg.drop_rate)
        self.out_head = nn.Linear(cfg.emb_dim, cfg.vocab_size, bias=False)
        self.pos_emb = nn.Embedding(cfg.context_length, cfg.emb_dim)
        self.tok_emb = nn.Embedding(cfg.vocab_size, cfg.emb_dim)

    def forward(self, idx):
        x = self.tok_emb(idx) + self.pos_emb(torch.arange(idx.shape[1]))
        return self.out_head(self.drop_emb(x))


class RightFrameOwnMask(RightFrame):
    def forward(self, idx):
        x = self.tok_emb(idx) + self.pos_emb.weight[: idx.shape[1]]
        if self.training:
            kept = torch.rand(x.shape) >= self.drop_emb.p
            x = x * kept / (1 - self.drop_emb.p)
        return self.out_head(x)


class WrongFrameNewDropout(RightFrame):
    def forward(self, idx):
        x = self.tok_emb(idx) + self.pos_emb(torch.arange(idx.shape[1]))
        dropout = nn.Dropout(self.drop_emb.p)
        return self.out_head(dropout(x))


class WrongFrameNoGradient(RightFrame):
    def forward(self, idx):
        x = self.tok_emb(idx) + self.pos_emb(torch.arange(idx.shape[1]))
        with torch.no_grad():
            x = F.dropout(x, self.drop_emb.p)
        return self.out_head(x)


class WrongFrameAlwaysEval(RightFrame):
    def forward(self, idx):
        self.eval()
        return super().forward(idx)


class WrongFrameSeeded(RightFrame):
    def forward(self, idx):
        generator = torch.Generator().manual_seed(5)
        x = self.tok_emb(idx) + self.pos_emb(torch.arange(idx.shape[1]))
        kept = torch.rand(x.shape, generator=generator) >= self.drop_emb.p
        return self.out_head(x * kept / (1 - self.drop_emb.p))


class WrongFrameReversed(RightFrame):
    def forward(self, idx):
        x = self.tok_emb(idx) + self.pos_emb(torch.arange(idx.shape[1]))
        return self.out_head(x if self.training else F.dropout(x, self.drop_emb.p))


class WrongFrameNotEnlarged(RightFrame):
    def forward(self, idx):
        x = self.tok_emb(idx) + self.pos_emb(torch.arange(idx.shape[1]))
        if self.training:
            x[torch.rand(x.shape) < self.drop_emb.p] = 0
        return self.out_head(x)


class WrongFrameRateFromMode(RightFrame):
    def forward(self, idx):
        x = self.tok_emb(idx) + self.pos_emb(torch.arange(idx.shape[1]))
        return self.out_head(F.dropout(x, self.training))


class WrongFrameMisspelt(RightFrame):
    def forward(self, idx):
        return self.out_head(self.dropout(self.tok_emb(idx)))


right_1_1 = {
    "ids": [2, 3],
    "token vectors": [2, 3, 64],
    "position vectors": [3, 64],
    "sum": [2, 3, 64],
    "blocks and norm": [2, 3, 64],
    "logits": [2, 3, 50],
}

RIGHT = {
    "1.1": [
        right_1_1,
        {name: torch.zeros(shape).shape for name, shape in right_1_1.items()},
    ],
    "1.2": [
        right_1_2_loop,
        right_1_2_in_place,
        right_1_2_layers,
        right_1_2_one_hot,
    ],
    "1.3": [right_1_3_sum, right_1_3_layers],
    "1.4": [RightFrame, RightFrameOwnMask],
    "1.5": [sum([33_134, 1]), 33_135.0],
}

WRONG = {
    "1.1": [
        ("all texts share them", right_1_1 | {"position vectors": [2, 3, 64]}),
        ("an axis is missing from the logits", right_1_1 | {"logits": [2, 50]}),
        ("their number is no axis", right_1_1 | {"blocks and norm": (12, 2, 3, 64)}),
        ("Look again at 'logits'", right_1_1 | {"sum": (3, 64), "logits": (3, 50)}),
        ("Look again at 'logits'", right_1_1 | {"logits": "(2, 3, 50)"}),
    ],
    "1.2": [
        ("numbered by the text", wrong_1_2_batch_axis_loop),
        ("start at 1", wrong_1_2_from_one),
        ("T stands where B should", wrong_1_2_extra_axis),
        ("looked up with decimals", wrong_1_2_float_embedding),
        ("looked up with decimals", wrong_1_2_float_select),
        ("starts again at position 0", wrong_1_2_running_on),
        ("Every number is 2 times", wrong_1_2_doubled),
        ("IndexError: tuple index out of range", wrong_1_2_third_axis),
    ],
    "1.3": [
        ("`bias=False`", wrong_1_3_head_with_bias),
        ("counted as one with the token table", wrong_1_3_tied),
        (
            "look at your parentheses",
            lambda cfg: cfg.vocab_size * 2 + wrong_1_3_places(cfg),
        ),
        ("GPT-2's own at every size", lambda cfg: 77_981_184),
        ("It fails on 4 of 4 inputs", lambda cfg: cfg.vocab_size**2),
    ],
    "1.4": [
        ("a new module is in train mode", WrongFrameNewDropout),
        ("Look up its parameters", WrongFrameNoGradient),
        ("nothing is dropped in train mode", WrongFrameAlwaysEval),
        ("makes every call drop the same", WrongFrameSeeded),
        ("Dropout belongs between the sum and the head", WrongFrameNotEnlarged),
        ("`True` counts as 1 there", WrongFrameRateFromMode),
        ("have changed places", WrongFrameReversed),
        ("no attribute 'dropout'", WrongFrameMisspelt),
    ],
    "1.5": [
        ("turn your condition around", 50_257 - 33_135),
        ("your test takes for a space", 33_135 + 17),
        ("That is the share of the tokens. ", 0.66),
        ("The value is 5", 5),
    ],
}
