"""The exercises of lesson 5 · Attention and the transformer block."""

import torch
import torch.nn.functional as F
from torch import nn

import gpt_helpers

from .engine import Exercise

# --- 5.1 --------------------------------------------------------------------------


def tables_of_scores():
    """Square tables, alone and with batch and heads in front; one visible score is 0."""
    generator = torch.Generator().manual_seed(51)
    normal = lambda *shape: torch.randn(*shape, generator=generator)
    return [
        (torch.tensor([[1.0, 2.0], [0.0, 1.5]]),),
        (torch.tensor([[0.5]]),),
        (normal(3, 3),),
        (2 * normal(4, 4),),
        (normal(2, 3, 4, 4),),
        (normal(1, 2, 5, 5) - 1,),
        (normal(3, 3).double() - 120,),
    ]


ex = Exercise(
    "5.1",
    "Hide the future",
    why="These lines let one pass over a text of 1024 tokens practice 1024 predictions.",
    inputs=tables_of_scores,
)


@ex.reference
def causal_weights(scores):
    T = scores.shape[-1]
    square = torch.ones(T, T, dtype=torch.bool)
    hidden = square.triu(diagonal=1)
    masked = scores.masked_fill(hidden, -torch.inf)
    weights = masked.softmax(dim=-1)
    return weights


ex.slips("""
masked = scores.masked_fill(hidden, -torch.inf) → masked = scores
    The future is not hidden: each token still gives weight to those on its right.
diagonal=1 → diagonal=2
    Each token still sees one of the future, the next: the visible part reaches one
    diagonal too far. Which diagonal is the first to be hidden?
diagonal=1 → diagonal=0
    The diagonal is hidden too, though a token may read itself. If nothing is left in a
    row, a softmax over −∞ alone is nan. Where does the hidden part begin?
square.triu(diagonal=1) → square.tril(diagonal=-1)
    You hide the past and leave the future open. Have `tril` and `triu` changed places?
square.triu(diagonal=1) → square.tril()
    The mask is inverted: it hides what a token may look at, and leaves the rest. A fill
    acts where the mask is True.
-torch.inf → 0.0
    The hidden scores are 0, not −∞, before the softmax. 0 is a score like any other,
    and buys a weight: what does the softmax make of it?
scores.masked_fill(hidden, -torch.inf) → scores
; return weights → return weights.masked_fill(hidden, 0)
    You hide after the softmax, and what is left of a row no longer adds up to 1. Hide
    before the softmax, or divide each row by its new sum.
dim=-1 → dim=-2
    Your softmax runs down the columns. Each row, the weights that one token gives,
    must add up to 1: look at `dim`.
dim=-1 → dim=1
    Your softmax runs along axis 1. In a table that is the last axis; with batch and
    heads in front it is the heads: which `dim` is always the last? (Without a `dim`,
    `F.softmax` takes 1 here.)
dim=-1 → dim=0
    Your softmax runs along axis 0, the columns of a table and the texts of a batch.
    Each row must add up to 1: look at `dim`.
---
scores.masked_fill(hidden, -torch.inf) → scores
; return weights → return weights.masked_fill(hidden, -torch.inf)
    The softmax comes first, so the −∞ stays in the result. In which order do the two
    steps belong?
masked.softmax(dim=-1) → masked
    The softmax is missing: a row of scores does not add up to 1.
scores.masked_fill → scores.softmax(dim=-1).masked_fill
return weights → return weights.softmax(dim=-1)
    The softmax is applied twice. The second one takes the weights of the first for
    scores, and weights differ too little for that: mask first, then one softmax.
masked = scores.masked_fill(hidden, -torch.inf) → masked = scores * torch.nan
    Every weight is nan. That happens if no score is left in any row, or if a mask of
    zeros and ones is multiplied by −∞: 0 · −∞ is nan. Fill where the mask is True.
-torch.inf → torch.inf
    Each row with a hidden place is nan. Is what you put there −∞, sign included?
-torch.inf → -100.0
    The hidden scores are −100, not −∞. Where the visible ones are as small, that is a
    score like any other.
diagonal=1 → diagonal=0 ; return weights → return weights.nan_to_num()
diagonal=1 → diagonal=0 ; -torch.inf → -1e9
    The diagonal is hidden too. A token may read itself, and the first has nothing else
    to read.
hidden = square.triu(diagonal=1) → scores = scores.tril()⏎hidden = scores == 0
    You find the hidden places by looking for the value 0, but a score that may be seen
    can be 0 too, as in the smallest input. Find them by their position.
torch.ones(T, T, dtype=torch.bool) → torch.ones(4, 4, dtype=torch.bool)
    Your mask has four rows and four columns, for any text; the `hidden` of the lesson
    is such a one. Make it as large as the last two axes of `scores`.
T = scores.shape[-1] → T = scores.shape[0]
torch.ones(T, T, dtype=torch.bool) → torch.ones(scores.shape[:2]).bool()
    A table comes out right, but with batch and heads in front the mask has the wrong
    size: the first axes are then batch and heads. Which axes of `scores` are T and T?
masked = scores.masked_fill(hidden, -torch.inf)
→ masked = scores⏎for i in range(T):⏎    scores[i, i + 1 :] = -torch.inf
masked = scores.masked_fill(hidden, -torch.inf)
→ masked = scores⏎for i in range(len(scores)):⏎    scores[i, i + 1 :] = -torch.inf
    A table comes out right, but with batch and heads in front `scores[i]` is text i.
    Count the axes from the end: what does `[..., i, i + 1 :]` mean?
""")

# --- 5.2 --------------------------------------------------------------------------


def queries_and_keys():
    """Pairs of shape (B, H, T, D): small, of unlike sizes, one token, all sizes equal."""
    generator = torch.Generator().manual_seed(52)
    normal = lambda *shape: torch.randn(*shape, generator=generator)
    queries = torch.tensor([[[[1.0, 1, 1, 1], [2, 0, 0, 0]]]])
    keys = torch.tensor([[[[1.0, 1, 1, 1], [0, 0, 0, 1]]]])
    sizes = (1, 2, 3, 5), (2, 3, 4, 6), (3, 2, 5, 7), (2, 4, 3, 9), (1, 1, 1, 4)
    shapes = [*sizes, (3, 3, 3, 3)]
    return [(queries, keys), *((normal(*s), normal(*s)) for s in shapes)]


ex = Exercise(
    "5.2",
    "Scores of the right size",
    why="GPT-2's heads have 64 numbers each: without the root its scores would be eight "
    "times as large, and the softmax that much closer to saturation.",
    inputs=queries_and_keys,
)


@ex.reference
def attention_weights(queries, keys):
    B, H, T, D = queries.shape  # noqa: RUF059 - the edits use them
    scores = queries @ keys.mT
    scaled = scores / D**0.5
    weights = scaled.softmax(dim=-1)
    return weights


ex.slips("""
scores / D**0.5 → scores
    The scores are not scaled. The longer the vectors, the larger the dot products: what
    are they divided by?
scores / D**0.5 → scores / D
    You divide by D itself, or by its root twice, for queries and for keys. Dot products
    grow as the root of D: divide by that, once.
scores / D**0.5 → scores / (H * D) ** 0.5
    You divide by the root of C, all features of all heads. A score is a dot product
    within one head, over D numbers.
scores / D**0.5 → scores * D**0.5
    You multiply by the root of D, and the scores grow even larger. Scaling is to make
    them smaller.
scores / D**0.5 → scores / T**0.5
    You divide by the root of T, the number of tokens. It is the length of the vectors
    that makes dot products large: which axis of `queries` is D?
scores / D**0.5 → scores / (D / 2)
    You divide by D / 2. In Python `D ** 1/2` is D, then halved: set the exponent in
    parentheses, or write it as a decimal.
scores / D**0.5 → scores ; return weights → return weights / D**0.5
    You scale after the softmax. That makes the weights smaller, so that they no longer
    add up to 1; it is the scores that are too large.
scaled.softmax(dim=-1) → scaled
    The softmax is missing: scores are no shares, and a row of them does not add up to 1.
dim=-1 → dim=-2
    Your softmax runs down the columns, over the queries. Each query shares itself out
    over the keys: look at `dim`.
dim=-1 → dim=1
    Your softmax runs along axis 1, over the heads. Each query shares itself out over
    the keys, the last axis of the scores. (Without a `dim`, `F.softmax` takes 1 here.)
queries @ keys.mT → keys @ queries.mT
    Queries and keys have changed places: your row i holds what key i gets from each
    query. Row i must hold the scores that query i gives.
queries @ keys.mT → queries @ queries.mT
    You multiply the queries with themselves. Where are the keys?
queries @ keys.mT → keys @ keys.mT
    You multiply the keys with themselves. Where are the queries?
keys.mT → keys.reshape(B, H, D, T)
    The keys are brought to (B, H, D, T) by `view` or `reshape`. That cuts the numbers
    anew, and no column is a key any more: it is two axes that must be swapped.
keys.mT → keys
    The keys are not transposed, and most shapes cannot be multiplied so. A product of
    T × D needs D × something: swap the last two axes of the keys.
keys.mT → keys.transpose(1, 2)
keys.mT → keys.permute(3, 2, 1, 0)
keys.mT → keys.transpose(1, -1)
    You swap other axes of the keys than the last two, and most shapes cannot be
    multiplied so. Batch and heads stay where they are; `.T` reverses all four axes.
---
dim=-1 → dim=0
    Your softmax runs along axis 0, over the texts. Each query shares itself out over
    the keys, the last axis of the scores.
scores / D**0.5 → scores / H**0.5
scores / D**0.5 → scores / B**0.5
    You divide by the root of another size than D. It is the length of the vectors that
    makes dot products large: which axis of `queries` is D?
scores / D**0.5 → scores / 32
    You divide by 32, the root of 1024. That is the `D` which the lesson's table of
    spreads left behind: take D from the shape of the queries.
scores / D**0.5 → scores / D**0.25
    You divide by the fourth root of D. If you scale queries and keys, both need it;
    the scores themselves need the root, once.
return weights → return weights / D**0.5
    The weights are divided by the root of D. After the softmax they are shares that
    add up to 1: leave them so.
scaled.softmax(dim=-1) → scaled.log_softmax(dim=-1)
    These are the logarithms of the weights: the softmax itself is asked for.
queries @ keys.mT → queries.mT @ keys
    You transpose the queries, so features meet features, in a table of D × D. Tokens
    are to meet tokens: it is the keys whose last two axes are swapped.
return weights → return weights.mT
    The weights stand in columns: what query i gives must stand in row i.
scores / D**0.5 → (scores / D**0.5 + torch.full((T, T), -torch.inf).triu(1))
    The future is hidden. This exercise has no mask: every query may look at every key.
""")

# --- 5.3 --------------------------------------------------------------------------


def queries_keys_values_heads():
    """Three tensors (B, T, C) and a number of heads; at last one token, one head."""
    generator = torch.Generator().manual_seed(53)
    normal = lambda *shape: torch.randn(*shape, generator=generator)
    values = torch.tensor([[[1.0, 2, 3, 4], [5, 6, 7, 8]]])
    sizes = (1, 3, 6, 2), (2, 4, 6, 3), (2, 5, 12, 3), (1, 7, 8, 4), (2, 1, 6, 3)
    drawn = [(*(normal(*shape) for _ in range(3)), H) for *shape, H in sizes]
    one_head = (*(normal(2, 3, 4) for _ in range(3)), 1)
    return [(torch.ones(1, 2, 4), torch.ones(1, 2, 4), values, 2), *drawn, one_head]


ex = Exercise(
    "5.3",
    "Heads that undo themselves",
    why="Splitting and merging must not only undo each other: in between, each row has "
    "to be one token, or tokens cannot read one another.",
    inputs=queries_keys_values_heads,
)


@ex.reference
def attend_in_heads(queries, keys, values, n_heads):
    B, T, C = queries.shape
    split = (B, T, n_heads, C // n_heads)
    q, k, v = (x.reshape(split).transpose(1, 2) for x in (queries, keys, values))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixed.transpose(1, 2).reshape(B, T, C)


ex.slips("""
given: B, T, n_heads, → B, n_heads, T, ; (split).transpose(1, 2) → (split)
; mixed.transpose(1, 2) → mixed
    Both ways are still without the swap, in other words than before. `view` and
    `reshape` cut the numbers in the order in which they lie in memory, token by token.
    Which axis has to be cut in two, and what has to move then?
mixed.transpose(1, 2) → mixed
    On the way back heads and tokens are not swapped, so each output row is glued from
    several tokens. What did the way in swap?
B, T, n_heads, → B, n_heads, T, ; x.reshape(split).transpose(1, 2) → x.reshape(split)
    On the way in `reshape` alone makes the heads, and each of their rows is a piece of
    a token. Cut the features in two, then swap tokens and heads.
B, T, n_heads, → B, n_heads, T,
    The cut on the way in is still the old one, though a swap follows it. The features
    are the last axis of (B, T, C): only that one is to be cut in two.
x.reshape(split).transpose(1, 2) → x.reshape(split)
    The features are cut as they should be, into (B, T, H, D), but tokens and heads do
    not change places before attention. Attention works on the last two axes, so now the
    heads of one token read one another, and no token reads its neighbors.
B, T, n_heads, → B, n_heads, T, ; x.reshape(split).transpose(1, 2)
→ x.transpose(1, 2).reshape(split)
    On the way in the swap comes before the cut, so the cut goes through the tokens of a
    feature. First cut the features in two, then swap tokens and heads.
n_heads, C // n_heads → C // n_heads, n_heads
    Heads and head size have changed places: you cut the features into D heads of H
    numbers each. The number of heads comes first, then what is left for each.
is_causal=True → is_causal=False
    The future is no longer hidden. Leave `is_causal` as you found it.
---
(split).transpose(1, 2) → (split).transpose(2, 3)
    On the way in you swap the last two axes of (B, T, H, D). Tokens and heads are to
    change places, so that each head has a row for each token.
mixed.transpose(1, 2).reshape(B, T, C) → mixed.flatten(2)
    On the way back you flatten tokens and features of each head into one: before the
    swap these are the last two axes. Swap first.
n_heads, C // n_heads → C // n_heads, n_heads ; (split).transpose(1, 2)
→ (split).permute(0, 3, 1, 2) ; mixed.transpose(1, 2) → mixed.permute(0, 2, 3, 1)
    Your heads take every H-th feature. Head 0 is to have the first D features of each
    token, head 1 the next D: in which order do you name the two sizes in the cut?
(x.reshape(split).transpose(1, 2) for x in (queries, keys, values))
→ (queries, keys, values) ; mixed.transpose(1, 2) → mixed
    There are no heads any more: the whole width attends at once, with one softmax. Each
    head is to attend on its own slice.
q, k, v = → q, v, k =
    Keys and values have changed places. The weights come from queries and keys, and
    what they mix is the values.
q, k, v = → k, q, v =
    Queries and keys have changed places. Row i belongs to the token that asks, and the
    mask guards that order.
""")

# --- 5.4 --------------------------------------------------------------------------

ex = Exercise(
    "5.4",
    "Parameters of attention and feed-forward",
    why="Feed-forward holds twice as many as attention; with the norms they make the "
    "7,085,568 of a block.",
    usual_pairs=True,
    needs={
        "attention with qkv_bias=True": ["attention"],
        "attention with 24 heads": ["attention"],
    },
)


@ex.value
def parameter_counts():
    C = 768

    def attention(heads, qkv_bias):
        inputs = 3 * C * C
        biases = 3 * C * qkv_bias
        output = C * C
        return inputs + biases + output + C

    wide = 4 * C
    first, second = C * wide, wide * C
    counts = {
        "attention": attention(12, False),
        "attention with qkv_bias=True": attention(12, True),
        "attention with 24 heads": attention(24, False),
        "feed-forward": first + wide + second + C,
    }
    return counts


ex.slips("""
output + C → output
    Attention: the bias of `out_proj` is missing. It is always there; `qkv_bias` is
    about the other three.
output + C → output + C * qkv_bias
    Attention: the bias of `out_proj` is missing where `qkv_bias` is False. That field
    is about queries, keys and values; `out_proj` always has its own.
* qkv_bias →
    Attention: queries, keys and values have a bias only if `qkv_bias` is True, and by
    default it is not. You count four biases everywhere.
biases = 3 * C * qkv_bias → biases = 0
    Attention: `qkv_bias=True` changes nothing in your count. It gives a bias to each of
    three layers.
3 * C * qkv_bias → C * qkv_bias
    Attention: with `qkv_bias=True` you add one bias. There are three layers that get
    one.
3 * C * qkv_bias → 4 * C * qkv_bias
    Attention: with `qkv_bias=True` you add four biases. That of `out_proj` was there
    before.
output = C * C → output = 0 ; output + C → output
    Attention: `out_proj` is missing altogether, a fourth matrix with a bias.
inputs = 3 * C * C → inputs = 3 * C * C // heads
    Attention: the matrices of queries, keys and values are divided by the number of
    heads. A layer makes the queries of all heads at once, so it is C × C.
attention(24, False) → 2 * attention(12, False)
    Attention: with 24 heads you count twice as many. More heads are thinner slices of
    the same features: which layer would change its shape?
attention(24, False) → attention(12, False) // 2
    Attention: with 24 heads you count half as many. More heads are thinner slices of
    the same features: which layer would change its shape?
+ wide + second + C → + second
    Feed-forward: the biases are missing, one for each of the two layers.
second + C → second
    Feed-forward: the bias of the second layer is missing, one number for each of its
    outputs.
+ wide + second → + second
    Feed-forward: the bias of the first layer is missing, one number for each of its 4·C
    outputs.
wide = 4 * C → wide = C
    Feed-forward: the widening is missing. In between there are 4·C features.
+ second + C →
    Feed-forward: you count the layer that widens; a second one narrows again.
---
output + C → output + 1 ; biases = 3 * C → biases = 3
biases = 3 * C → biases = 3
    Attention: a bias is not one number. It has one for each feature that the layer
    returns.
output = C * C → output = 0
    Attention: `out_proj` is the fourth matrix. You count three matrices, but its bias
    with them.
inputs = 3 * C * C → inputs = 3 * heads * C * C
    Attention: you count three full matrices for each head. One C × C matrix makes the
    queries of all heads: heads are slices of what it returns.
return inputs + biases + output + C → return heads * (inputs + biases + output + C)
    Attention: you multiply by the number of heads. The layers serve all heads at once:
    heads are slices of what they return.
return inputs → return 1024 * 1024 + inputs
    Attention: you count the mask. It is a buffer, which no training sets.
+ wide + second + C → + wide + second + wide
    Feed-forward: you give both layers a bias of 4·C. A bias has as many numbers as its
    layer has outputs: how many has the second?
+ wide + second + C → + C + second + C
    Feed-forward: you give both layers a bias of C. A bias has as many numbers as its
    layer has outputs: how many has the first?
+ wide + second + C →
    Feed-forward: you count one matrix of C × 4·C and no bias. A second matrix narrows
    again, and each layer has a bias.
attention(12, False) → (first + wide + second + C)
; attention(24, False) → (first + wide + second + C)
; attention(12, True) → (first + wide + second + 4 * C)
; "feed-forward": first + wide + second + C → "feed-forward": attention(12, 0)
    The numbers of attention and feed-forward have changed places. Which of the two
    works on four times the width?
return counts → return {part: 12 * count for part, count in counts.items()}
    You count all twelve blocks. Asked is one.
return counts → return {part: 4 * count for part, count in counts.items()}
    Your numbers are four times too large: are they bytes? Asked is how many numbers.
return counts → return {part: 4 * count / 1e6 for part, count in counts.items()}
return counts → return {part: 4 * count / 2**20 for part, count in counts.items()}
    Those are megabytes. Asked is how many numbers there are.
""")

# --- 5.5 --------------------------------------------------------------------------


def three_rates():
    """Rates for embedding, attention and shortcut, all different."""
    rows = (0.2, 0.3, 0.4), (0.4, 0.2, 0.3)
    return [({"embedding": e, "attention": a, "shortcut": s},) for e, a, s in rows]


def rate_between(before, after, alone=True):
    """The rate of the dropout that made one out of the other, or what else it is."""
    factors = torch.where(before.abs() > 1e-4, after / before, torch.nan)
    largest = factors.nan_to_num().max().item()
    if (factors * (factors - largest)).nan_to_num().abs().max() > 1e-6:
        return "not one dropout"
    rate = round(1 - 1 / largest, 4) if largest else 1.0
    gone = factors == 0
    if abs(gone.float().mean().item() - rate) > 0.3:
        return "enlarged for another rate than is dropped"
    whole_rows = gone.all(dim=-1).float().mean().item()
    return "drops whole tokens" if alone and 0.1 < whole_rows < 1 else rate


@torch.no_grad()
def rates_in_effect(answer, rates):
    """Run the answer in training and in evaluation; which rate acts at which place?"""
    cfg = gpt_helpers.GPTConfig(
        vocab_size=50, context_length=4, emb_dim=8, n_heads=2, drop_rate=0.6
    )
    model = answer(cfg, rates)
    if model is ... or model is None:
        return model
    model, block, seen, found = model.double(), model.block, {}, []
    for linear in block.att.W_value, block.att.out_proj:
        nn.init.eye_(linear.weight)
    nn.init.zeros_(block.att.out_proj.bias)
    keep = lambda **tensors: seen.update({k: t.clone() for k, t in tensors.items()})
    block.norm1.register_forward_pre_hook(lambda _, x: keep(start=x[0]))
    block.att.register_forward_hook(lambda _, x, y: keep(read=x[0], att=y))
    block.norm2.register_forward_pre_hook(lambda _, x: keep(halfway=x[0]))
    block.ff.register_forward_hook(lambda _, x, y: keep(ff=y))
    ids = torch.arange(96).reshape(24, 4) % 50
    embedded = model.tok_emb(ids) + model.pos_emb(torch.arange(4))
    for training in (True, False):
        end = model.train(training)(ids)
        if end is ... or end is None:
            return end
        if not seen:
            raise RuntimeError("forward does not run self.block")
        read, att = seen["read"][:, 0], seen["att"][:, 0]  # row 0 reads itself alone
        found.append(
            {
                "embeddings": rate_between(embedded, seen["start"]),
                "attention weights": rate_between(read, att, alone=False),
                "first shortcut": rate_between(
                    seen["att"], seen["halfway"] - seen["start"]
                ),
                "second shortcut": rate_between(seen["ff"], end - seen["halfway"]),
            }
        )
    return found[0] | {"dropped in evaluation": [k for k, r in found[1].items() if r]}


ex = Exercise(
    "5.5",
    "Three dropout rates",
    why="Now each kind of place can be tried with a rate of its own, and none of them "
    "drops anything once the model is in use.",
    inputs=three_rates,
    call=rates_in_effect,
)


@ex.reference
class ThreeRates(nn.Module):
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
        x = self.embed(idx)
        x = self.drop_emb(x)
        return self.block(x)


ex.slips("""
att.dropout.p = rates["attention"] → att.dropout.p = rates["shortcut"]
    Attention has the shortcut's rate. Which of the block's dropouts acts on the
    weights, and which on what is added to the shortcut?
drop_shortcut.p = rates["shortcut"] → drop_shortcut.p = rates["attention"]
    The shortcut has attention's rate. Which of the block's dropouts acts on the
    weights, and which on what is added to the shortcut?
att.dropout.p = rates["attention"] → att.dropout.p = rates["embedding"]
    Attention has the embeddings' rate. There is one for each place.
drop_shortcut.p = rates["shortcut"] → drop_shortcut.p = rates["embedding"]
    The shortcut has the embeddings' rate. There is one for each place.
Dropout(rates["embedding"]) → Dropout(rates["attention"])
    The embeddings have attention's rate. There is one for each place.
Dropout(rates["embedding"]) → Dropout(rates["shortcut"])
    The embeddings have the shortcut's rate. There is one for each place.
self.block.att.dropout.p = → self.own =
    Attention still has the configuration's `drop_rate`. Which module of the block drops
    attention weights, and what is its rate called there? A new attribute of another
    name is used by nobody.
self.block.drop_shortcut.p = → self.another =
    The shortcut still has the configuration's `drop_rate`. Which module of the block
    acts on what is added, and what is its rate called there? A new attribute of another
    name is used by nobody.
Dropout(rates["embedding"]) → Dropout(cfg.drop_rate)
    The embeddings have the configuration's `drop_rate`. Their own stands in `rates`.
x = self.drop_emb(x) →
    The embeddings reach the block whole. Is there a dropout for them, and does
    `forward` use it?
x = self.drop_emb(x) → x = F.dropout(x, self.drop_emb.p)
    In evaluation the embeddings are still dropped. `F.dropout` drops unless it is told
    that training is over, and an `nn.Dropout` made in `forward` is always new and in
    training mode: make it in `__init__`.
---
x = self.drop_emb(x) → x = F.dropout(x, self.drop_emb.p, not self.training)
    The embeddings are dropped only in evaluation, and not in training: is the flag that
    you give to `F.dropout` the right way round?
super().__init__() → super().__init__()⏎rates = {k: 1 - p for k, p in rates.items()}
    Your rates are the shares that are kept. `nn.Dropout` wants the share that is
    dropped, and that is what `rates` holds.
x = self.embed(idx)⏎x = self.drop_emb(x)
→ x = self.drop_emb(self.tok_emb(idx)) + self.pos_emb.weight[: idx.shape[1]]
    The embeddings' dropout does not act on the sum. Add token and position vectors
    first, then drop once: a number is to vanish with both of its parts.
x = self.drop_emb(x) → ; return self.block(x) → return self.drop_emb(self.block(x))
    The embeddings reach the block whole, and something is dropped from what comes out
    of it. Their dropout belongs between the embeddings and the block.
return self.block(x) → return self.drop_emb(self.block(x))
    Something is dropped from what comes out of the block, too. The block has its own
    dropouts inside, and what it returns is the output.
nn.Dropout(rates["embedding"]) → nn.Dropout1d(rates["embedding"])
    The embeddings' dropout takes whole tokens. `nn.Dropout` drops number by number.
self.block.drop_shortcut.p = rates["shortcut"]
→ self.block.drop_shortcut = nn.Dropout1d(rates["shortcut"])
    What is added to the shortcuts is dropped token by token. `nn.Dropout` drops number
    by number.
""")
