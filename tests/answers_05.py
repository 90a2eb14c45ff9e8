"""Answers to the exercises of lesson 5 · Attention and the transformer block: right ones, and wrong ones with what is said."""

import math

import torch
import torch.nn.functional as F
from torch import nn

import gpt_helpers


def right_5_1_loop(scores):
    for i in range(scores.shape[-1]):
        scores[..., i, i + 1 :] = float("-inf")
    return torch.softmax(scores, dim=-1)


def right_5_1_renormalized(scores):
    weights = torch.tril(F.softmax(scores.double(), dim=-1))
    return weights / weights.sum(-1, keepdim=True)


def right_5_1_large_number(scores):
    visible = torch.ones(scores.size(-1), scores.size(-1)).tril().bool()
    return torch.where(visible, scores, torch.tensor(-1e9)).softmax(dim=scores.ndim - 1)


def wrong_5_1(first=1, fill=-math.inf, dim=-1):
    """Hide row by row, from the place ``first`` behind the diagonal on."""

    def weights(scores):
        for i in range(scores.shape[-1]):
            scores[..., i, i + first :] = fill
        powers = torch.exp(scores.double())
        return powers / powers.sum(dim, keepdim=True)

    return weights


def wrong_5_1_times_infinity(scores):
    T = scores.shape[-1]
    return F.softmax(scores + torch.ones(T, T).triu(1) * float("-inf"), dim=-1)


def wrong_5_1_by_value(scores):
    lower = torch.tril(scores)
    lower[lower == 0] = float("-inf")
    return F.softmax(lower, dim=-1)


def wrong_5_1_first_axis(scores):
    hidden = torch.ones(len(scores), len(scores)).triu(1) > 0
    return scores.masked_fill(hidden, -math.inf).softmax(-1)


def right_5_2_loop(queries, keys):
    scores = torch.zeros(*queries.shape[:-1], keys.shape[-2], dtype=torch.float64)
    for i in range(queries.shape[-2]):
        for j in range(keys.shape[-2]):
            scores[..., i, j] = (queries[..., i, :] * keys[..., j, :]).sum(-1)
    return (scores / math.sqrt(queries.shape[-1])).softmax(-1)


def right_5_2_half_each(queries, keys):
    root = keys.shape[-1] ** 0.25
    return torch.softmax((queries / root) @ (keys / root).mT, dim=-1)


def wrong_5_2(divisor=lambda B, H, T, D: math.sqrt(D), dim=3, pairs="bhid,bhjd->bhij"):
    """Divide by what is given, then the softmax along ``dim``."""

    def weights(queries, keys):
        scores = torch.einsum(pairs, queries, keys)
        return F.softmax(scores / divisor(*queries.shape), dim=dim)

    return weights


def cut(keys):
    """The keys as they are after they were viewed as (B, H, D, T)."""
    B, H, T, D = keys.shape
    return keys.view(B, H, D, T).mT


def nudged(weights):
    """Each query's own key counts e times as much."""
    weights = weights * torch.eye(weights.shape[-1]).exp()
    return weights / weights.sum(dim=-1, keepdim=True)


def right_5_3_slices(queries, keys, values, n_heads):
    D = queries.shape[-1] // n_heads
    parts = []
    for h in range(n_heads):
        q, k, v = (t[..., h * D : (h + 1) * D] for t in (queries, keys, values))
        parts.append(F.scaled_dot_product_attention(q, k, v, is_causal=True))
    return torch.cat(parts, dim=-1)


def right_5_3_chunks(queries, keys, values, n_heads):
    q, k, v = (torch.stack(t.chunk(n_heads, -1), 1) for t in (queries, keys, values))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return torch.cat(mixed.unbind(1), dim=-1)


def wrong_5_3(split, merge=lambda mixed: mixed.movedim(1, 2), causal=True):
    """Split with ``split(x, n_heads)``, attend, merge."""

    def attend(queries, keys, values, n_heads):
        q, k, v = (split(x, n_heads) for x in (queries, keys, values))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return merge(mixed).reshape(queries.shape)

    return attend


def heads_first(x, n_heads):
    return torch.stack(x.chunk(n_heads, dim=-1), dim=1)


def wrong_5_3_cut(x, H):
    B, T, C = x.shape
    return x.contiguous().view(B, H, T, C // H)


def counts_5_4(attention, with_bias, more_heads, feed_forward=4_722_432):
    return {
        "attention": attention,
        "attention with qkv_bias=True": with_bias,
        "attention with 24 heads": more_heads,
        "feed-forward": feed_forward,
    }


ATTENTION = 2_360_064, 2_362_368, 2_360_064


class Right_5_5(nn.Module):
    """The rates set where the block keeps them."""

    def __init__(self, cfg, rates):
        super().__init__()
        self.tok_emb = nn.Embedding(cfg.vocab_size, cfg.emb_dim)
        self.pos_emb = nn.Embedding(cfg.context_length, cfg.emb_dim)
        self.block = gpt_helpers.TransformerBlock(cfg)
        self.drop_emb = nn.Dropout(rates["embedding"])
        self.block.att.dropout.p = rates["attention"]
        self.block.drop_shortcut.p = rates["shortcut"]
        self.rate = rates["embedding"]

    def embed(self, idx):
        return self.tok_emb(idx) + self.pos_emb(torch.arange(idx.shape[1]))

    def forward(self, idx):
        return self.block(self.drop_emb(self.embed(idx)))


class Right_5_5_ByHand(Right_5_5):
    """The embeddings dropped by a mask, and the block's steps written out."""

    def forward(self, idx):
        x = self.embed(idx)
        if self.training:
            x = x * (torch.rand_like(x) >= self.rate) / (1 - self.rate)
        x = x + self.block.drop_shortcut(self.block.att(self.block.norm1(x)))
        return x + self.block.drop_shortcut(self.block.ff(self.block.norm2(x)))


class Right_5_5_NewModules(Right_5_5):
    """New modules in a block that was made with another configuration."""

    def __init__(self, cfg, rates):
        super().__init__(cfg, rates)
        changed = gpt_helpers.replace(cfg, drop_rate=rates["attention"])
        self.block = gpt_helpers.TransformerBlock(changed)
        self.block.drop_shortcut = nn.Dropout(p=rates["shortcut"], inplace=True)


def wrong_5_5(change=lambda model, rates: None, forward=Right_5_5.forward):
    """A model changed after it was made, or with another ``forward``."""

    class Wrong(Right_5_5):
        def __init__(self, cfg, rates):
            super().__init__(cfg, rates)
            change(self, rates)

    Wrong.forward = forward
    return Wrong


def one_rate_for_the_block(model, rates):
    changed = gpt_helpers.GPTConfig(50, 4, 8, 2, drop_rate=rates["shortcut"])
    model.block = gpt_helpers.TransformerBlock(changed)


def set_shortcut(model, rates):
    model.block.drop_shortcut = nn.Dropout(rates["attention"])


def set_embedding(model, rates):
    model.drop_emb = nn.Dropout(rates["shortcut"])


def drops_words(model, rates):
    model.drop_emb = nn.Dropout1d(rates["embedding"])


def keeps(model, rates):
    for module in model.drop_emb, model.block.att.dropout, model.block.drop_shortcut:
        module.p = 1 - module.p


def other_name(model, rates):
    model.block.att.dropout = nn.Dropout(0.6)
    model.block.att.drop_attention = nn.Dropout(rates["attention"])


def half_of_attention(model, rates):
    model.block.att.dropout.p = rates["attention"] / 2


def separately(self, idx):
    positions = self.pos_emb.weight[: idx.shape[1]]
    return self.block(self.drop_emb(self.tok_emb(idx)) + self.drop_emb(positions))


RIGHT = {
    "5.1": [right_5_1_loop, right_5_1_renormalized, right_5_1_large_number],
    "5.2": [right_5_2_loop, right_5_2_half_each],
    "5.3": [right_5_3_slices, right_5_3_chunks],
    "5.4": [
        counts_5_4(
            4 * 768**2 + 768,
            4 * (768**2 + 768),
            4 * 768**2 + 768,
            768 * 4 * 768 + 4 * 768 + 4 * 768 * 768 + 768,
        ),
        counts_5_4(2360064.0, 2362368.0, 2360064.0, 7_085_568 - 2 * 1536 - 2_360_064),
    ],
    "5.5": [Right_5_5, Right_5_5_NewModules, Right_5_5_ByHand],
}

WRONG = {
    "5.1": [
        ("The hidden scores are 0, not −∞", wrong_5_1(fill=0)),
        ("no longer adds up to 1", lambda scores: scores.softmax(-1).tril()),
        ("one of the future, the next", wrong_5_1(first=2)),
        ("hidden too, though a token", wrong_5_1(first=0)),
        (
            "leave the future open",
            lambda s: (s - torch.ones_like(s).tril(-1) * 1e30).softmax(-1),
        ),
        ("0 · −∞ is nan", wrong_5_1_times_infinity),
        ("looking for the value 0", wrong_5_1_by_value),
        ("runs down the columns", wrong_5_1(dim=-2)),
        ("scores are −100", wrong_5_1(fill=-100)),
        ("Is what you put there −∞", wrong_5_1(fill=math.nan)),
        ("the first axes are then batch", wrong_5_1_first_axis),
        ("Two things at once. Each token still", wrong_5_1(first=2, fill=0)),
        ("inputs, first on:", lambda scores: right_5_1_loop(2 * scores)),
    ],
    "5.2": [
        ("The scores are not scaled", wrong_5_2(lambda *_: 1)),
        ("D itself, or by its root twice", wrong_5_2(lambda *shape: shape[3])),
        ("root of C", wrong_5_2(lambda B, H, T, D: math.sqrt(H * D))),
        ("multiply by the root of D", wrong_5_2(lambda B, H, T, D: 1 / D**0.5)),
        ("by D / 2", wrong_5_2(lambda B, H, T, D: D**1 / 2)),
        ("down the columns, over the queries", wrong_5_2(dim=-2)),
        ("root of T, the number", wrong_5_2(lambda *shape: math.sqrt(shape[2]))),
        ("table of spreads left", wrong_5_2(lambda *_: 1024**0.5)),
        ("what key i gets", wrong_5_2(pairs="bhjd,bhid->bhij")),
        ("the queries with themselves", lambda q, k: right_5_2_loop(q, q)),
        ("the keys with themselves", lambda q, k: right_5_2_loop(k, k)),
        ("no column is a key any more", lambda q, k: right_5_2_loop(q, cut(k))),
        (
            "other axes of the keys than the last two",
            lambda q, k: (q @ k.permute(0, 2, 1, 3) / k.size(3) ** 0.5).softmax(-1),
        ),
        ("= [0.8176, 0.1824]", lambda q, k: nudged(right_5_2_loop(q, k))),
    ],
    "5.3": [
        ("still without the swap", wrong_5_3(wrong_5_3_cut, lambda mixed: mixed)),
        ("glued from several tokens", wrong_5_3(heads_first, lambda mixed: mixed)),
        ("in `reshape` alone makes", wrong_5_3(wrong_5_3_cut)),
        (
            "is still the old one",
            wrong_5_3(lambda x, H: wrong_5_3_cut(x, H).movedim(1, 2)),
        ),
        ("no token reads its", wrong_5_3(lambda x, H: x.unflatten(2, (H, -1)))),
        (
            "D heads of H numbers",
            wrong_5_3(lambda x, H: x.unflatten(2, (-1, H)).movedim(1, 2)),
        ),
        ("no longer hidden", wrong_5_3(heads_first, causal=False)),
        ("Keys and values", lambda q, k, v, H: right_5_3_slices(q, v, k, H)),
        ("inputs, first on:", lambda q, k, v, H: right_5_3_slices(q, q, v, H)),
    ],
    "5.4": [
        ("is missing. It is always there", counts_5_4(2359296, 2361600, 2359296)),
        ("count four biases everywhere", counts_5_4(2362368, 2362368, 2362368)),
        ("changes nothing in your count", counts_5_4(2360064, 2360064, 2360064)),
        ("you add one bias", counts_5_4(2360064, 2360832, 2360064)),
        ("divided by the number of heads", counts_5_4(738048, 740352, 664320)),
        ("count twice as many", counts_5_4(2360064, 2362368, 4720128)),
        ("one for each of the two layers", counts_5_4(*ATTENTION, 4718592)),
        ("bias of the second layer", counts_5_4(*ATTENTION, 4721664)),
        ("widening is missing", counts_5_4(*ATTENTION, 2 * (768 * 768 + 768))),
        ("changed places", counts_5_4(4722432, 4724736, 4722432, 2360064)),
        ("Those are megabytes", counts_5_4(9.440256, 9.449472, 9.440256, 18.889728)),
        (
            "by default it is not. Feed-forward: the biases are missing",
            counts_5_4(2362368, 2362368, 2362368, 4718592),
        ),
        ("  feed-forward: 4722431", counts_5_4(*ATTENTION, 4722431)),
        ("  attention: 2360065", counts_5_4(2360065, 2362368, 2360064)),
    ],
    "5.5": [
        ("The shortcut has attention's", wrong_5_5(set_shortcut)),
        ("Attention has the shortcut's", wrong_5_5(one_rate_for_the_block)),
        ("have the shortcut's rate", wrong_5_5(set_embedding)),
        ("Attention still has", wrong_5_5(other_name)),
        (
            "In evaluation the embeddings are",
            wrong_5_5(forward=lambda m, i: m.block(nn.Dropout(m.rate)(m.embed(i)))),
        ),
        ("block whole. Is", wrong_5_5(forward=lambda m, i: m.block(m.embed(i)))),
        ("does not act on the sum", wrong_5_5(forward=separately)),
        ("shares that are kept", wrong_5_5(keeps)),
        ("takes whole tokens", wrong_5_5(drops_words)),
        ("not run self.block", wrong_5_5(forward=lambda m, i: m.drop_emb(m.embed(i)))),
        ("attention weights: expected 0.3, got 0.15", wrong_5_5(half_of_attention)),
    ],
}
