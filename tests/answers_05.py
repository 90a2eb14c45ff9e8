"""Answers to the exercises of lesson 5 · Attention and the transformer block: right ones, and wrong ones with what is said."""

import math

import torch
import torch.nn.functional as F
from torch import nn

import gpt_helpers


def right_5_1_loop(scores):
    T = scores.shape[-1]
    for i in range(T):
        scores[..., i, i + 1 :] = float("-inf")
    return torch.softmax(scores, dim=-1)


def right_5_1_renormalized(scores):
    weights = torch.tril(F.softmax(scores.double(), dim=-1))
    return weights / weights.sum(-1, keepdim=True)


def right_5_1_by_exponents(scores):
    visible = torch.tril(torch.ones_like(scores))
    powers = torch.exp(scores - scores.amax(-1, keepdim=True)) * visible
    return powers / powers.sum(-1)[..., None]


def right_5_1_added(scores):
    T = scores.size(-1)
    return F.softmax(scores + torch.full((T, T), -math.inf).triu(1), dim=-1)


def right_5_1_large_number(scores):
    T = scores.size(-1)
    visible = torch.tril(torch.ones(T, T)).bool()
    return torch.where(visible, scores, torch.tensor(-1e9)).softmax(dim=scores.ndim - 1)


def right_5_1_row_by_row(scores):
    out = torch.zeros_like(scores)
    for i in range(scores.shape[-2]):
        out[..., i, : i + 1] = scores[..., i, : i + 1].softmax(dim=-1)
    return out


def wrong_5_1_zero(scores):
    future = torch.arange(scores.shape[-1])[:, None] < torch.arange(scores.shape[-1])
    scores[..., future] = 0
    return F.softmax(scores, dim=-1)


def wrong_5_1_multiplied(scores):
    T = scores.shape[-1]
    return F.softmax(scores * torch.tril(torch.ones(T, T)), dim=-1)


def wrong_5_1_late(scores):
    T = scores.shape[-1]
    weights = F.softmax(scores, dim=-1)
    for i in range(T):
        weights[..., i, i + 1 :] = 0
    return weights


def wrong_5_1_one_more(scores):
    T = scores.shape[-1]
    for i in range(T):
        scores[..., i, i + 2 :] = -torch.inf
    return scores.softmax(-1)


def wrong_5_1_not_itself(scores):
    T = scores.shape[-1]
    for i in range(T):
        scores[..., i, i:] = -torch.inf
    return scores.softmax(-1)


def wrong_5_1_lower(scores):
    T = scores.shape[-1]
    past = torch.tril(torch.ones(T, T), diagonal=-1) == 1
    return scores.masked_fill(past, float("-inf")).softmax(-1)


def wrong_5_1_inverted(scores):
    T = scores.shape[-1]
    mask = torch.tril(torch.ones(T, T))
    return F.softmax(scores.masked_fill(mask == 1, float("-inf")), dim=-1)


def wrong_5_1_times_infinity(scores):
    T = scores.shape[-1]
    return F.softmax(scores + torch.ones(T, T).triu(1) * float("-inf"), dim=-1)


def wrong_5_1_by_value(scores):
    lower = torch.tril(scores)
    lower[lower == 0] = float("-inf")
    return F.softmax(lower, dim=-1)


def wrong_5_1_columns(scores):
    T = scores.shape[-1]
    hidden = torch.ones(T, T).triu(1).bool()
    powers = scores.masked_fill(hidden, -math.inf).exp()
    return powers / powers.sum(-2, keepdim=True)


def wrong_5_1_first_axis(scores):
    T = len(scores)
    return scores.masked_fill(torch.triu(torch.ones(T, T), 1) > 0, -math.inf).softmax(
        -1
    )


def wrong_5_1_unknown(scores):
    T = scores.shape[-1]
    hidden = torch.ones(T, T).triu(1).bool()
    return (2 * scores).masked_fill(hidden, -math.inf).softmax(-1)


def right_5_2_einsum(queries, keys):
    scores = torch.einsum("bhid,bhjd->bhij", queries, keys)
    return F.softmax(scores / math.sqrt(queries.size(-1)), dim=3)


def right_5_2_loop(queries, keys):
    B, H, T, D = queries.shape
    scores = torch.zeros(B, H, T, T, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            for i in range(T):
                for j in range(T):
                    product = queries[b, h, i] * keys[b, h, j]
                    scores[b, h, i, j] = product.sum() / D**0.5
    return scores.softmax(-1)


def right_5_2_scaled_before(queries, keys):
    queries *= queries.shape[-1] ** -0.5
    powers = (queries @ keys.permute(0, 1, 3, 2)).exp()
    return powers / powers.sum(dim=-1, keepdim=True)


def right_5_2_half_each(queries, keys):
    root = keys.shape[-1] ** 0.25
    return torch.softmax((queries / root) @ (keys / root).mT, dim=-1)


def right_5_2_built_in(queries, keys):
    everything = torch.eye(keys.shape[-2]).expand(*keys.shape[:-1], -1)
    return F.scaled_dot_product_attention(queries, keys, everything)


def wrong_5_2_all_features(queries, keys):
    _, H, _, D = keys.shape
    scores = torch.einsum("bhid,bhjd->bhij", queries, keys)
    return F.softmax(scores / math.sqrt(H * D), dim=-1)


def wrong_5_2_both_divided(queries, keys):
    root = math.sqrt(keys.shape[-1])
    return F.softmax((queries / root) @ (keys / root).transpose(-1, -2), dim=-1)


def wrong_5_2_larger(queries, keys):
    return F.softmax(queries @ keys.mT / keys.shape[-1] ** -0.5, dim=-1)


def wrong_5_2_precedence(queries, keys):
    D = keys.shape[-1]
    return F.softmax(queries @ keys.mT / (D**1 / 2), dim=-1)


def wrong_5_2_columns(queries, keys):
    scores = queries @ keys.transpose(2, 3) * keys.size(3) ** -0.5
    return scores.softmax(2)


def wrong_5_2_tokens(queries, keys):
    transposed = keys.transpose(2, 3)
    return (queries @ transposed / transposed.shape[-1] ** 0.5).softmax(-1)


def wrong_5_2_left_over(queries, keys):
    D = 1024
    return (queries @ keys.mT / D**0.5).softmax(-1)


def wrong_5_2_swapped(queries, keys):
    scores = torch.einsum("bhid,bhjd->bhij", keys, queries)
    return (scores / keys.shape[-1] ** 0.5).softmax(-1)


def wrong_5_2_wrong_axes(queries, keys):
    return (queries @ keys.transpose(1, 2) / keys.shape[-1] ** 0.5).softmax(-1)


def wrong_5_2_view(queries, keys):
    B, H, T, D = keys.shape
    return F.softmax(queries @ keys.view(B, H, D, T) * D**-0.5, dim=-1)


def wrong_5_2_unscaled(queries, keys):
    return torch.einsum("bhid,bhjd->bhij", queries, keys).softmax(-1)


def wrong_5_2_unknown(queries, keys):
    scores = queries @ keys.mT / keys.shape[-1] ** 0.5
    return (scores + torch.eye(keys.shape[-2])).softmax(-1)


def right_5_3_slices(queries, keys, values, n_heads):
    D = queries.shape[-1] // n_heads
    parts = []
    for h in range(n_heads):
        q, k, v = (t[..., h * D : (h + 1) * D] for t in (queries, keys, values))
        parts.append(F.scaled_dot_product_attention(q, k, v, is_causal=True))
    return torch.cat(parts, dim=-1)


def right_5_3_einsum(queries, keys, values, n_heads):
    B, T, C = queries.shape
    split = (B, T, n_heads, C // n_heads)
    q, k, v = (t.double().reshape(split) for t in (queries, keys, values))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / split[-1] ** 0.5
    scores += torch.full((T, T), -torch.inf).triu(1)
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).flatten(2)


def right_5_3_chunks(queries, keys, values, n_heads):
    q, k, v = (torch.stack(t.chunk(n_heads, -1), 1) for t in (queries, keys, values))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return torch.cat(mixed.unbind(1), dim=-1)


def right_5_3_repaired(queries, keys, values, n_heads):
    B, T, C = queries.shape
    split = (B, T, n_heads, C // n_heads)
    q, k, v = (x.reshape(split).transpose(1, 2) for x in (queries, keys, values))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixed.transpose(1, 2).reshape(B, T, C)


def wrong_5_3_chunks_of_tokens(queries, keys, values, n_heads):
    B, T, C = queries.shape
    q, k, v = (t.contiguous().view(B, n_heads, T, -1) for t in (queries, keys, values))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixed.contiguous().view(B, T, C)


def wrong_5_3_way_back(queries, keys, values, n_heads):
    B, T, C = queries.shape
    q, k, v = (
        t.unflatten(2, (n_heads, -1)).movedim(2, 1) for t in (queries, keys, values)
    )
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).reshape(B, T, C)


def wrong_5_3_way_in(queries, keys, values, n_heads):
    B, T, C = queries.shape
    split = (B, n_heads, T, C // n_heads)
    q, k, v = (x.view(split) for x in (queries, keys, values))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixed.permute(0, 2, 1, 3).flatten(2)


def wrong_5_3_old_cut(queries, keys, values, n_heads):
    B, T, C = queries.shape
    split = (B, n_heads, T, C // n_heads)
    q, k, v = (x.reshape(split).transpose(1, 2) for x in (queries, keys, values))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixed.transpose(1, 2).reshape(B, T, C)


def wrong_5_3_no_swap(queries, keys, values, n_heads):
    q, k, v = (t.unflatten(-1, (n_heads, -1)) for t in (queries, keys, values))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).flatten(2)


def wrong_5_3_sizes(queries, keys, values, n_heads):
    q, k, v = (
        t.unflatten(-1, (-1, n_heads)).transpose(1, 2) for t in (queries, keys, values)
    )
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixed.transpose(1, 2).flatten(2)


def wrong_5_3_alternating(queries, keys, values, n_heads):
    q, k, v = (
        torch.stack([t[..., h::n_heads] for h in range(n_heads)], dim=1)
        for t in (queries, keys, values)
    )
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixed.transpose(1, 2).flatten(2)


def wrong_5_3_unknown(queries, keys, values, n_heads):
    mixed = right_5_3_slices(queries, queries, values, n_heads)
    return mixed


def counts_5_4(attention, with_bias, more_heads, feed_forward):
    return {
        "attention": attention,
        "attention with qkv_bias=True": with_bias,
        "attention with 24 heads": more_heads,
        "feed-forward": feed_forward,
    }


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

    def embed(self, idx):
        return self.tok_emb(idx) + self.pos_emb(torch.arange(idx.shape[1]))

    def forward(self, idx):
        return self.block(self.drop_emb(self.embed(idx)))


class Right_5_5_NewModules(Right_5_5):
    """New modules in a block that was made with another configuration."""

    def __init__(self, cfg, rates):
        super().__init__(cfg, rates)
        changed = gpt_helpers.replace(cfg, drop_rate=rates["attention"])
        self.block = gpt_helpers.TransformerBlock(changed)
        self.block.drop_shortcut = nn.Dropout(p=rates["shortcut"], inplace=True)
        self.drop_emb = None
        self.rate = rates["embedding"]

    def forward(self, idx):
        return self.block(F.dropout(self.embed(idx), self.rate, self.training))


class Right_5_5_ByHand(Right_5_5):
    """The embeddings dropped by a mask, and the block's steps written out."""

    def __init__(self, cfg, rates):
        super().__init__(cfg, rates)
        for module in self.block.modules():
            if isinstance(module, nn.Dropout):
                module.p = rates["shortcut"]
        self.block.att.dropout = nn.Dropout(rates["attention"])
        self.rate = rates["embedding"]

    def forward(self, idx):
        x = self.embed(idx)
        if self.training:
            x = x * (torch.rand_like(x) >= self.rate) / (1 - self.rate)
        x = x + self.block.drop_shortcut(self.block.att(self.block.norm1(x)))
        return x + self.block.drop_shortcut(self.block.ff(self.block.norm2(x)))


class Wrong_5_5_Swapped(Right_5_5):
    def __init__(self, cfg, rates):
        super().__init__(cfg, rates)
        self.block.att.dropout = nn.Dropout(rates["shortcut"])
        self.block.drop_shortcut = nn.Dropout(rates["attention"])


class Wrong_5_5_OneForAll(Right_5_5):
    def __init__(self, cfg, rates):
        super().__init__(cfg, rates)
        for module in self.modules():
            if isinstance(module, nn.Dropout):
                module.p = rates["embedding"]


class Wrong_5_5_Replaced(Right_5_5):
    def __init__(self, cfg, rates):
        super().__init__(cfg, rates)
        changed = gpt_helpers.replace(cfg, drop_rate=rates["shortcut"])
        self.block = gpt_helpers.TransformerBlock(changed)


class Wrong_5_5_OtherName(Right_5_5):
    def __init__(self, cfg, rates):
        super().__init__(cfg, rates)
        self.block = gpt_helpers.TransformerBlock(cfg)
        self.block.drop_shortcut.p = rates["shortcut"]
        self.block.att.drop_attention = nn.Dropout(rates["attention"])


class Wrong_5_5_Functional(Right_5_5):
    def __init__(self, cfg, rates):
        super().__init__(cfg, rates)
        self.rate = rates["embedding"]

    def forward(self, idx):
        return self.block(nn.Dropout(self.rate)(self.embed(idx)))


class Wrong_5_5_NotUsed(Right_5_5):
    def forward(self, idx):
        x = self.embed(idx)
        self.drop_emb(x)
        return self.block(x)


class Wrong_5_5_Separately(Right_5_5):
    def forward(self, idx):
        tokens = self.drop_emb(self.tok_emb(idx))
        return self.block(tokens + self.drop_emb(self.pos_emb.weight[: idx.shape[1]]))


class Wrong_5_5_Kept(Right_5_5):
    def __init__(self, cfg, rates):
        super().__init__(cfg, rates)
        for module in (self.drop_emb, self.block.att.dropout, self.block.drop_shortcut):
            module.p = 1 - module.p


class Wrong_5_5_NoBlock(Right_5_5):
    def forward(self, idx):
        return self.drop_emb(self.embed(idx))


class Wrong_5_5_Unknown(Right_5_5):
    def __init__(self, cfg, rates):
        super().__init__(cfg, rates)
        self.block.att.dropout.p = rates["attention"] / 2


RIGHT = {
    "5.1": [
        right_5_1_loop,
        right_5_1_renormalized,
        right_5_1_by_exponents,
        right_5_1_added,
        right_5_1_large_number,
        right_5_1_row_by_row,
    ],
    "5.2": [
        right_5_2_einsum,
        right_5_2_loop,
        right_5_2_scaled_before,
        right_5_2_half_each,
        right_5_2_built_in,
    ],
    "5.3": [
        right_5_3_slices,
        right_5_3_einsum,
        right_5_3_chunks,
        right_5_3_repaired,
    ],
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
        ("hidden scores are 0, not −∞", wrong_5_1_zero),
        ("hidden scores are 0, not −∞", wrong_5_1_multiplied),
        ("no longer adds up to 1", wrong_5_1_late),
        ("one diagonal too far", wrong_5_1_one_more),
        ("no token may read itself", wrong_5_1_not_itself),
        ("hide the past and leave the future open", wrong_5_1_lower),
        ("The mask is inverted", wrong_5_1_inverted),
        ("0 · −∞ is nan", wrong_5_1_times_infinity),
        ("looking for the value 0", wrong_5_1_by_value),
        ("runs down the columns", wrong_5_1_columns),
        ("first axis is then the batch", wrong_5_1_first_axis),
        ("It fails on 5 of 5 inputs", wrong_5_1_unknown),
    ],
    "5.2": [
        ("root of C, all features of all heads", wrong_5_2_all_features),
        ("D itself, or by its root twice", wrong_5_2_both_divided),
        ("multiply by the root of D", wrong_5_2_larger),
        ("divide by D / 2", wrong_5_2_precedence),
        ("runs down the columns, over the queries", wrong_5_2_columns),
        ("root of T, the number of tokens", wrong_5_2_tokens),
        ("table of spreads left behind", wrong_5_2_left_over),
        ("Queries and keys have changed places: your row", wrong_5_2_swapped),
        ("of your code raised RuntimeError", wrong_5_2_wrong_axes),
        ("no column is a key any more", wrong_5_2_view),
        ("scores are not scaled. The longer", wrong_5_2_unscaled),
        ("= [0.8176, 0.1824]", wrong_5_2_unknown),
    ],
    "5.3": [
        ("still without the swap", wrong_5_3_chunks_of_tokens),
        ("on the way back they are not swapped", wrong_5_3_way_back),
        ("on the way in `reshape` alone", wrong_5_3_way_in),
        ("There are two swaps now", wrong_5_3_old_cut),
        ("no token reads its neighbors", wrong_5_3_no_swap),
        ("D heads of H numbers", wrong_5_3_sizes),
        ("every H-th feature on the way in", wrong_5_3_alternating),
        ("inputs, first on:", wrong_5_3_unknown),
    ],
    "5.4": [
        (
            "Attention: the bias of `out_proj` is missing",
            counts_5_4(2359296, 2361600, 2359296, 4722432),
        ),
        (
            "You count four biases everywhere. Feed-forward: the biases are missing",
            counts_5_4(2362368, 2362368, 2362368, 4718592),
        ),
        (
            "divide by the number of heads",
            counts_5_4(738048, 738240, 664320, 4722432),
        ),
        (
            "Feed-forward: the widening is missing. In between",
            counts_5_4(2360064, 2362368, 2360064, 2 * (768 * 768 + 768)),
        ),
        ("changed places", counts_5_4(4722432, 4724736, 4722432, 2360064)),
        (
            "  feed-forward: 4722431",
            counts_5_4(2360064, 2362368, 2360064, 4722431),
        ),
        ("  attention: 2360065", counts_5_4(2360065, 2362368, 2360064, 4722432)),
    ],
    "5.5": [
        ("rates of attention and shortcut are swapped", Wrong_5_5_Swapped),
        ("Every dropout has the embeddings' rate", Wrong_5_5_OneForAll),
        ("Both dropouts of the block have the shortcut's rate", Wrong_5_5_Replaced),
        ("A new attribute of another name", Wrong_5_5_OtherName),
        ("in evaluation the embeddings are still dropped", Wrong_5_5_Functional),
        ("reach it whole", Wrong_5_5_NotUsed),
        ("does not act on the sum", Wrong_5_5_Separately),
        ("the shares that are kept", Wrong_5_5_Kept),
        ("forward does not run self.block", Wrong_5_5_NoBlock),
        ("attention: expected 0.3, got 0.15", Wrong_5_5_Unknown),
    ],
}
