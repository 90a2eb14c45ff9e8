"""Answers to lesson 1's exercises: right ones, and wrong ones with what is said."""

import torch
import torch.nn.functional as F
from torch import nn

# --- 1.1 --------------------------------------------------------------------------

SHAPES = {
    "ids": [2, 3],
    "token vectors": [2, 3, 64],
    "position vectors": [3, 64],
    "sum": [2, 3, 64],
    "blocks and norm": [2, 3, 64],
    "logits": [2, 3, 50],
}

WRONG_SHAPES = [
    ("all texts share them", {"position vectors": [2, 3, 64]}),
    ("no axis of length 1 in front", {"position vectors": [1, 3, 64]}),
    ("the whole position table", {"position vectors": torch.zeros(8, 64).shape}),
    ("the shape of the whole token table", {"token vectors": [50, 64]}),
    ("lack the axis of the positions", {"logits": [2, 50]}),
    ("as if there were no output head", {"logits": [2, 3, 64]}),
    ("one list of scores for everything", {"logits": (50,)}),
    ("PyTorch repeats it along that axis", {"sum": [3, 64]}),
    ("their number is no axis", {"blocks and norm": (12, 2, 3, 64)}),
    ("all texts share them. The logits", {"position vectors": (2, 3, 64),
                                          "logits": (2, 50)}),
    ("1 of 6 values", {"logits": "(2, 3, 50)"}),
]  # fmt: skip

# --- 1.2 --------------------------------------------------------------------------


def right_1_2_loop(ids, token_table, position_table):
    texts = [
        [token_table[i] + position_table[t] for t, i in enumerate(text)]
        for text in ids.tolist()
    ]
    return torch.stack([torch.stack(rows) for rows in texts])


def right_1_2_layers(ids, token_table, position_table):
    tok_emb = nn.Embedding.from_pretrained(token_table)
    pos_emb = nn.Embedding.from_pretrained(position_table)
    return tok_emb(ids) + pos_emb(torch.arange(ids.shape[-1]).expand_as(ids))


def wrong_1_2_batch_axis(ids, token_table, position_table):
    x = token_table[ids]
    for number, text in enumerate(x):
        text += position_table[number]
    return x


def wrong_1_2_number(ids, token_table, position_table):
    x = F.embedding(ids, token_table)
    for t in range(ids.shape[1]):
        x[:, t] += t
    return x


def wrong_1_2_running_on(ids, token_table, position_table):
    flat = ids.flatten()
    x = token_table[flat] + position_table[: len(flat)]
    return x.view(*ids.shape, -1)


WRONG_SUMS = [
    ("as there are texts", lambda i, t, p: F.embedding(i, t) + p[: len(i)]),
    ("numbered by the text", wrong_1_2_batch_axis),
    ("start at 1", lambda i, t, p: F.embedding(i, t) + p[1 : len(i[0]) + 1]),
    ("added the position's number", wrong_1_2_number),
    ("These are the token rows alone", lambda i, t, p: F.embedding(i, t)),
    ("starts again at position 0", wrong_1_2_running_on),
    ("The two rows are multiplied", lambda i, t, p: F.embedding(i, t) * p[: len(i.T)]),
    ("T stands where B should", lambda i, t, p: p[: len(i.T)].unsqueeze(1) + t[i]),
    ("Count up from 0", lambda i, t, p: t[i] + torch.flip(p[: len(i.T)], [0])),
    ("Every number is 2 times", lambda i, t, p: 2 * (t[i] + p[: i.shape[1]])),
    ("tuple index out of range", lambda i, t, p: t[i] + p[: i.shape[2]]),
]

# --- 1.3 --------------------------------------------------------------------------


def right_1_3_sum(cfg):
    total = 0
    for rows in cfg.vocab_size, cfg.context_length, cfg.vocab_size:
        for _ in range(cfg.emb_dim):
            total += rows
    return float(total)


def layers(cfg, **head):
    """The parameters of the three layers themselves, without their memory."""
    with torch.device("meta"):
        parts = [
            nn.Embedding(cfg.vocab_size, cfg.emb_dim),
            nn.Embedding(cfg.context_length, cfg.emb_dim),
            nn.Linear(cfg.emb_dim, cfg.vocab_size, **head),
        ]
    return [sum(p.numel() for p in part.parameters()) for part in parts]


def wrong_1_3_blocks(cfg):
    block = 4 * cfg.emb_dim**2 + 2 * cfg.emb_dim * 4 * cfg.emb_dim
    return sum(layers(cfg, bias=False)) + sum([block] * cfg.n_layers)


WRONG_COUNTS = [
    ("counted as one with the token table", lambda c: sum(layers(c)[:2])),
    ("The position table is missing", lambda c: sum(layers(c, bias=False)[::2])),
    ("You count V too many", lambda c: sum(layers(c))),
    ("for each block, as the lesson does", wrong_1_3_blocks),
    ("for the final norm", lambda c: sum(layers(c, bias=False), 2 * c.emb_dim)),
    ("parentheses", lambda c: c.vocab_size * 2 + layers(c)[1]),
    ("once for all", lambda c: layers(c)[0] * 2 + c.context_length),
    ("the number of rows", lambda c: sum(layers(c, bias=False)) // c.emb_dim),
    ("is counted twice", lambda c: 2 * (c.vocab_size + c.context_length) * c.emb_dim),
    ("GPT-2's own at every size", lambda c: 77_981_184),
    ("It fails on 4 of 4 inputs", lambda c: c.vocab_size**2),
    ("missing. You count V too many", lambda c: sum(layers(c)[::2])),
]

# --- 1.4 --------------------------------------------------------------------------


class RightFrame(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.drop_emb = nn.Dropout(cfg.drop_rate)
        self.out_head = nn.Linear(cfg.emb_dim, cfg.vocab_size, bias=False)
        self.pos_emb = nn.Embedding(cfg.context_length, cfg.emb_dim)
        self.tok_emb = nn.Embedding(cfg.vocab_size, cfg.emb_dim)

    def rows(self, idx):
        return self.tok_emb(idx) + self.pos_emb(torch.arange(idx.shape[1]))

    def forward(self, idx):
        return self.out_head(self.drop_emb(self.rows(idx)))


class RightFrameOwnMask(RightFrame):
    def forward(self, idx):
        x = self.rows(idx)
        if self.training:
            kept = torch.rand(x.shape) >= self.drop_emb.p
            x = x * kept / (1 - self.drop_emb.p)
        return self.out_head(x)


class WrongFrameNewDropout(RightFrame):
    def forward(self, idx):
        x = self.rows(idx)
        dropout = nn.Dropout(self.drop_emb.p)
        return self.out_head(dropout(x))


class WrongFrameNoGradient(RightFrame):
    def forward(self, idx):
        x = self.rows(idx)
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
        x = self.rows(idx)
        kept = torch.rand(x.shape, generator=generator) >= self.drop_emb.p
        return self.out_head(x * kept / (1 - self.drop_emb.p))


class WrongFrameReversed(RightFrame):
    def forward(self, idx):
        x = self.rows(idx)
        return self.out_head(x if self.training else F.dropout(x, self.drop_emb.p))


class WrongFrameNotEnlarged(RightFrame):
    def forward(self, idx):
        x = self.rows(idx)
        if self.training:
            x[torch.rand(x.shape) < self.drop_emb.p] = 0
        return self.out_head(x)


class WrongFrameRateFromMode(RightFrame):
    def forward(self, idx):
        x = self.rows(idx)
        return self.out_head(F.dropout(x, self.training))


class WrongFrameMisspelt(RightFrame):
    def forward(self, idx):
        return self.out_head(self.dropout(self.tok_emb(idx)))


class WrongFrameWholeTokens(RightFrame):
    def forward(self, idx):
        x = self.rows(idx)
        kept = F.dropout1d(torch.ones(*idx.shape, 1), self.drop_emb.p, self.training)
        return self.out_head(x * kept)


WRONG_FRAMES = [
    ("a new module is in train mode", WrongFrameNewDropout),
    ("nothing is dropped in train mode", WrongFrameAlwaysEval),
    ("makes every call drop the same", WrongFrameSeeded),
    ("Dropout belongs between the sum and the head", WrongFrameNotEnlarged),
    ("`True` counts as 1 there", WrongFrameRateFromMode),
    ("have changed places", WrongFrameReversed),
    ("whole tokens are dropped", WrongFrameWholeTokens),
    ("no attribute 'dropout'", WrongFrameMisspelt),
]

# ----------------------------------------------------------------------------------

RIGHT = {
    "1.1": [SHAPES, {name: torch.zeros(shape).shape for name, shape in SHAPES.items()}],
    "1.2": [right_1_2_loop, right_1_2_layers],
    "1.3": [right_1_3_sum, lambda cfg: sum(layers(cfg, bias=False))],
    "1.4": [RightFrame, RightFrameOwnMask],
    "1.5": [sum([33_134, 1]), 33_135.0],
}

WRONG = {
    "1.1": [(words, SHAPES | wrong) for words, wrong in WRONG_SHAPES],
    "1.2": WRONG_SUMS,
    "1.3": WRONG_COUNTS,
    "1.4": WRONG_FRAMES,
    "1.5": [
        ("turn your condition around", 50_257 - 33_135),
        ("your test takes for a space", 33_135 + 17),
        ("the first 50,000 ids only", 33_135 - 178),
        ("That is the share of the tokens. ", 0.66),
        ("The value is 5", 5),
    ],
}
