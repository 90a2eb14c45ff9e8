"""The exercises of lesson 1 · The dummy model."""

import torch
from torch import nn

import gpt_helpers

from .engine import Exercise

# --- 1.1 --------------------------------------------------------------------------

ex = Exercise(
    "1.1",
    "Shapes from ids to logits",
    why="The parts that you build from here on go between the sum and the logits, "
    "and none of them changes these shapes.",
    needs={
        "sum": ["token vectors", "position vectors"],
        "blocks and norm": ["sum"],
        "logits": ["blocks and norm"],
    },
)


@ex.value
def shapes_at_the_stations():
    texts, tokens, features, vocabulary = 2, 3, 64, 50
    rows = tokens, features
    added = texts, tokens, features
    after = added
    return {
        "ids": (texts, tokens),
        "token vectors": (texts, tokens, features),
        "position vectors": rows,
        "sum": added,
        "blocks and norm": after,
        "logits": (*after[:-1], vocabulary),
    }


ex.slips("""
rows = tokens, features → rows = texts, tokens, features
    The position vectors have no batch axis: all texts share them. Look at what is given
    to the position embedding; how many axes has it?
rows = tokens, features → rows = 1, tokens, features
    The position vectors have no axis of length 1 in front. With one the sum would be
    the same, but look at what is given to the position embedding.
rows = tokens, features → rows = 8, features
    For "position vectors" you gave the shape of the whole position table. Only as many
    of its rows are fetched as a text has tokens.
rows = tokens, features → rows = (tokens,)
    For "position vectors" you gave the shape of the positions themselves. The embedding
    turns each of them into a row of C numbers.
"token vectors": (texts, tokens, features) → "token vectors": (vocabulary, features)
    For "token vectors" you gave the shape of the whole token table. Each id fetches one
    row of it: how many ids are there, and in what arrangement?
(*after[:-1], vocabulary) → (texts, vocabulary)
    The logits lack the axis of the positions. Those of the last position are all that
    is needed to continue a text, but the model scores every position.
(*after[:-1], vocabulary) → (texts, 1, vocabulary)
    The logits' middle axis is not 1: the model scores every position, not the last one
    only.
(*after[:-1], vocabulary) → (vocabulary,)
    The logits are not one list of scores for everything: each position of each text
    gets a list of its own.
(*after[:-1], vocabulary) → after
    The logits still have C numbers per position, as if there were no output head. What
    does the head make of the C numbers?
added = texts, tokens, features → added = tokens, features
"sum": added → "sum": added[1:]
    The sum has the batch axis of the token vectors. Where one side of an addition lacks
    an axis, PyTorch repeats it along that axis.
texts, tokens, features, vocabulary = 2, 3, → texts, tokens, features, vocabulary = 3, 2,
    B and T have changed places: the first axis counts the texts, the second the tokens
    of each.
vocabulary = 2, 3, 64, 50 → vocabulary = 2, 3, 50, 64
    V and C have changed places: V counts the tokens of the vocabulary, C the numbers
    that stand for one token.
---
texts, tokens, features, vocabulary = 2, 3, → texts, tokens, features, vocabulary = 3, 2,
; rows = tokens, features → rows = 3, features
    B and T have changed places in all shapes but one: the first axis counts the texts,
    the second the tokens of each.
(*after[:-1], vocabulary) → (features, vocabulary)
(*after[:-1], vocabulary) → (vocabulary, features)
    For the logits you gave the shape of the head's matrix. Asked is what comes out of
    the head.
(*after[:-1], vocabulary) → (texts, vocabulary, tokens)
    The logits' axes stand in another order. The head puts the scores where the features
    were, on the last axis; the positions keep theirs.
(*after[:-1], vocabulary) → (*after, vocabulary)
    The logits keep the features and the scores as two axes. Each score is a dot product
    over the features, and the axis that is summed over goes.
(*after[:-1], vocabulary) → (texts, tokens)
    The logits lack the axis of the scores. They are not yet a choice: for each position
    there is a score for every token of the vocabulary.
rows = tokens, features → rows = texts, features
    You have as many position vectors as there are texts. Positions count along the
    tokens of a text.
"token vectors": (texts, tokens, features) → "token vectors": (texts, tokens, vocabulary)
    The token vectors have V numbers each, as if they were scores. A row of the token
    table is fetched for each id; how long is a row?
added = texts, tokens, features → added = texts, tokens, 2 * features
    The two embeddings are added, not joined end to end: look at the length of the
    feature axis from the sum on.
after = added → after = (12, *added) ; *after[:-1] → *added[:-1]
    The blocks run one after the other, each on what the last one returned, so their
    number is no axis.
(texts, tokens) → (tokens,) ; (texts, tokens, features) → (tokens, features)
; added = texts, tokens, features → added = tokens, features
    Your shapes are those of one text. The batch holds two, which stay apart on the
    first axis all the way.
vocabulary = 2, 3, 64, 50 → vocabulary = 2, 3, 768, 50257
vocabulary = 2, 3, 64, 50 → vocabulary = 2, 4, 768, 50257
    These are GPT-2's own sizes. This model is smaller: V = 50 and C = 64.
vocabulary = 2, 3, 64, 50 → vocabulary = 2, 8, 64, 50
    The texts have three tokens; the context length, 8, is only the most that they could
    have.
""")

# --- 1.2 --------------------------------------------------------------------------


def ids_and_two_tables():
    """One text and several, of one token and as long as the position table."""
    token_table = torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    position_table = torch.tensor([[10.0, 0.0], [20.0, 0.0], [30.0, 0.0]])
    generator = torch.Generator().manual_seed(102)
    made = [(torch.tensor([[2, 0]]), token_table, position_table)]
    # (B, T, C, V, context length); a row for each token of the batch, but for the last
    sizes = (2, 1, 3, 5, 6), (3, 2, 4, 7, 9), (2, 5, 3, 13, 12), (4, 3, 3, 8, 14)
    for texts, tokens, features, vocabulary, context in [*sizes, (1, 4, 3, 5, 4)]:
        ids = torch.randint(vocabulary, (texts, tokens), generator=generator)
        tables = [
            torch.randn(rows, features, generator=generator)
            for rows in (vocabulary, context)
        ]
        made.append((ids, *tables))
    return made


ex = Exercise(
    "1.2",
    "Token rows plus position rows",
    why="This sum is all that the rest of GPT-2 ever sees of a text.",
    inputs=ids_and_two_tables,
)


@ex.reference
def embed(ids, token_table, position_table):
    length = ids.shape[1]
    positions = torch.arange(length)
    token_rows = token_table[ids]
    position_rows = position_table[positions]
    return token_rows + position_rows


ex.slips("""
length = ids.shape[1] → length = ids.shape[0]
    You took as many position rows as there are texts. `ids` has the axes (B, T), and
    positions count along the tokens: look at the axis whose length you take.
length = ids.shape[1] → length = ids.shape[0]
; position_table[positions] → position_table[positions][:, None]
    Your positions run along the batch: all tokens of a text got the same position row,
    numbered by the text. They count along the second axis of `ids`.
position_table[positions] → position_table[positions + 1]
position_table[positions] → position_table[1 : length + 1]
    Your positions start at 1. They count from 0: a text's first token gets the first
    row of the position table.
position_table[positions] → positions[:, None]
    You added the position's number itself. A position is a row number, as an id is:
    what is added is the row that stands there in the position table.
position_table[positions] → position_table[ids]
    You looked up the position table with the ids. Its rows belong to places, so the
    same word in two places needs two of them.
token_rows + position_rows → token_rows
    These are the token rows alone, so the order of the words is lost. Where do the rows
    of `position_table` come in?
position_table[positions] → position_table
    The whole position table is added. A text of T tokens uses its first T rows only.
positions = torch.arange(length)
→ positions = torch.arange(ids.numel()).reshape(ids.shape)
    The positions of the second text go on where the first text ended. Every text of a
    batch starts again at position 0.
token_rows + position_rows → token_rows * position_rows
    The two rows are multiplied. GPT-2 adds them.
---
positions = torch.arange(length) → positions = torch.arange(length - 1)
    You fetched one position row too few. `torch.arange(n)` and a slice up to n hold n
    numbers, from 0 to n − 1.
positions = torch.arange(length) → positions = torch.arange(length).float()
    The rows are looked up with decimals, and PyTorch refuses them as row numbers.
    Positions, like ids, must be integers: look at what makes yours floating point.
token_rows + position_rows → token_rows + position_rows[:, None]
    The position rows got an axis of length 1 between T and C, so that T stands where B
    should. They fit as they are, (T, C); an extra axis would belong in front.
token_rows + position_rows → position_rows
token_rows + position_rows → position_rows.expand(*ids.shape, -1)
    These are the position rows alone, without the token rows that the ids ask for.
token_rows + position_rows → token_rows - position_rows
    The two rows are subtracted. GPT-2 adds them, so that every text goes through the
    same plus.
token_rows + position_rows → (token_rows + position_rows) / 2
    The average of the two rows is half of what is asked for: they are added, no more.
token_table[ids] → token_table[ids] * token_table.shape[1] ** 0.5
    The token rows are multiplied by √C, as in the first Transformer. GPT-2 adds them as
    they stand in the table.
token_rows + position_rows → (token_rows + position_rows).sum(1)
    The tokens of each text are summed up into one row. Every token keeps a row of its
    own: (B, T, C).
token_rows + position_rows
→ torch.cat([token_rows, position_rows.expand(*ids.shape, -1)], dim=-1)
    The two rows stand side by side, which doubles the features. They are added, number
    by number.
positions = torch.arange(length) → positions = torch.arange(length).flip(0)
    The positions run backward: the first token got the last of them. Count up from 0.
position_table[positions] → position_table[0]
    Every token got the first row of the position table. Each place has a row of its
    own.
position_table[positions] → position_table[length]
position_table[positions] → position_table[length - 1]
    Every token got the same row of the position table, picked by the text's length.
    Each place 0, 1, 2, … has a row of its own.
position_table[positions] → position_table[-length:]
    You took the last rows of the position table. A text starts at its first row.
token_table[ids] → position_table[ids]
; position_table[positions] → token_table[positions]
    The tables have changed roles: ids fetch rows of `token_table`, positions rows of
    `position_table`.
""")

# --- 1.3 --------------------------------------------------------------------------


def sizes_of_models():
    sizes = (5, 3, 2, 1, 4), (50, 8, 64, 4, 3), (101, 16, 48, 6, 5)
    small = [(gpt_helpers.GPTConfig(*size),) for size in sizes]
    return [*small, (gpt_helpers.GPT_CONFIG_124M,)]


ex = Exercise(
    "1.3",
    "Count the dummy model",
    why="At GPT-2's sizes the formula gives 77,981,184, the number that the lesson "
    "counted in the finished model.",
    inputs=sizes_of_models,
    usual_pairs=True,
)


@ex.reference
def count_parameters(cfg):
    token_rows = cfg.vocab_size
    places = cfg.context_length
    head_rows = cfg.vocab_size
    rows = token_rows + places + head_rows
    blocks = 0
    final_norm = 0
    head_bias = 0
    return rows * cfg.emb_dim + blocks + final_norm + head_bias


ex.slips("""
+ head_rows →
    One matrix with a row per vocabulary token is missing. Either the output head was
    forgotten, or counted as one with the token table: in this model they are two.
+ places →
    The position table is missing. It has a row of C numbers for every place up to the
    context length.
head_bias = 0 → head_bias = cfg.vocab_size
    You count V too many: the output head is built with `bias=False`, so it has no
    number of its own per token besides its row.
blocks = 0 → blocks = 12 * cfg.n_layers * cfg.emb_dim**2
    You included 12·C² for each block, as the lesson does for a real GPT-2. The dummy
    model's blocks are `nn.Identity`: what do they store?
final_norm = 0 → final_norm = 2 * cfg.emb_dim
    You included 2·C for the final norm, as it will have in lesson 2. Here it is
    `nn.Identity`: what does that store?
rows * cfg.emb_dim → token_rows + head_rows + places * cfg.emb_dim
    The multiplication by C reaches the context length only, as `*` comes before `+`.
    Every row has C numbers: look at your parentheses.
rows * cfg.emb_dim → (token_rows + head_rows) * cfg.emb_dim + places
    You counted the context length once for all, but each of its places has a row of C
    numbers in the position table.
rows * cfg.emb_dim → rows
    That is the number of rows in the three matrices. How many numbers does a row have?
---
places = cfg.context_length → places = cfg.vocab_size
    The position table has a row per place, not per vocabulary token: its height is
    another size.
+ places → + 2 * places
    The position table is counted twice. Which of the three matrices have a row per
    vocabulary token, and which a row per place?
+ places → + 1
    You counted one position row. The table has one for each place up to the context
    length, whatever the length of a text.
+ places + head_rows →
    That is the token table alone, or the head alone. What else has parameters?
rows * cfg.emb_dim
→ (token_rows + head_rows) * cfg.emb_dim + places * cfg.vocab_size
    The position table has V columns in your formula. It is added to the token vectors,
    so its rows are as long as theirs.
head_bias = 0 → head_bias = cfg.emb_dim
    You count C too many: the output head is built with `bias=False`. (A bias would have
    one number per token, too, not one per feature.)
+ head_rows → ; head_bias = 0 → head_bias = cfg.vocab_size
    For the output head you counted V numbers, as if it were a bias alone. It has a row
    of C numbers for each token of the vocabulary, and no bias.
blocks = 0 → blocks = 12 * cfg.emb_dim**2
    You included 12·C² for one block. The dummy model's blocks are `nn.Identity`: what
    do they store?
blocks = 0 → blocks = cfg.n_layers * cfg.emb_dim**2
    You included C² for each block, as for an identity matrix. `nn.Identity` hands its
    input on and multiplies nothing: what does it store?
blocks = 0 → blocks = cfg.n_layers
    You included one parameter per block. `nn.Identity` hands its input on: what does it
    store?
final_norm = 0 → final_norm = 2 * cfg.emb_dim * (2 * cfg.n_layers + 1)
    You included norms: two in each block and the final one, 2·C for each. The dummy
    model has none yet; `nn.Identity` stands in their place, and what does that store?
final_norm = 0 → final_norm = 2 * cfg.emb_dim ; blocks = 0
→ blocks = cfg.n_layers * (12 * cfg.emb_dim + (13 if cfg.qkv_bias else 10)) * cfg.emb_dim
    That is the finished GPT-2 with real blocks and norms. In the dummy model they are
    `nn.Identity`: what does that store?
rows * cfg.emb_dim → cfg.n_layers * rows * cfg.emb_dim
    The ends of the model stand there once, not once for each layer: look at where
    `n_layers` enters your formula.
rows * cfg.emb_dim → 4 * rows * cfg.emb_dim
    That is the number of bytes, at 4 for each number. Count the numbers.
rows * cfg.emb_dim → token_rows * places * cfg.emb_dim
    You multiplied sizes of different matrices with each other. Each matrix has rows
    times columns; the matrices are added.
rows * cfg.emb_dim → (2 * 50257 + 1024) * 768
    Your count is GPT-2's own at every size. Take the sizes from `cfg`: the letters V, T
    and C of the lesson belong to GPT-2, and a plain number to one model only.
""")

# --- 1.4 --------------------------------------------------------------------------


def sizes_and_ids_for_both_modes():
    generator = torch.Generator().manual_seed(104)
    # a context length, a width and a rate; and ids of shape (B, T)
    sizes = (4, 16, 0.5, 1, 2), (6, 24, 0.2, 2, 5), (9, 20, 0.3, 3, 4)
    return [
        (
            gpt_helpers.GPTConfig(3 * width, context, width, 1, 1, rate),
            torch.randint(3 * width, (texts, tokens), generator=generator),
        )
        for context, width, rate, texts, tokens in sizes
    ]


@torch.no_grad()
def behavior_in_both_modes(answer, cfg, ids):
    frame = answer(cfg).eval()
    head = frame.out_head.weight
    head[: cfg.emb_dim] = torch.eye(cfg.emb_dim)  # the first logits show the features
    one, other = frame(ids), frame(ids)
    x = frame.tok_emb.weight[ids] + frame.pos_emb.weight[: ids.shape[1]]
    calm = torch.allclose(one, other, atol=1e-5)
    quiet = torch.allclose(one, x @ head.T, atol=1e-5)
    frame.train()
    one, other = frame(ids), frame(ids)
    features = one[..., : cfg.emb_dim]
    dropped = features.abs() < 1e-5
    whole_rows = dropped.all(-1) | ~dropped.any(-1)
    enlarged = torch.isclose(features, x / (1 - cfg.drop_rate), atol=1e-5)
    state = "something else"
    if torch.allclose(features @ head.T, one, atol=1e-5):
        if torch.allclose(features, x, atol=1e-5):
            state = "all as they were"
        elif dropped.all():
            state = "all zero"
        elif (dropped == dropped[:1, :1]).all() or whole_rows.all():
            state = "whole rows or columns zero"
        elif (dropped | enlarged).all():
            state = "some zero, the rest enlarged"
    return {
        "eval mode: two calls agree": calm,
        "eval mode: the logits are those without dropout": calm and quiet,
        "train mode: two calls agree": torch.allclose(one, other, atol=1e-5),
        "train mode: the features that reach the head": state,
    }


ex = Exercise(
    "1.4",
    "Two calls differ in eval mode",
    why="Dropout now follows `train()` and `eval()`, as every random part of a model "
    "must.",
    inputs=sizes_and_ids_for_both_modes,
    call=behavior_in_both_modes,
)


@ex.reference
class NoisyFrame(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok_emb = nn.Embedding(cfg.vocab_size, cfg.emb_dim)
        self.pos_emb = nn.Embedding(cfg.context_length, cfg.emb_dim)
        self.out_head = nn.Linear(cfg.emb_dim, cfg.vocab_size, bias=False)
        self.drop_rate = cfg.drop_rate

    def forward(self, idx):
        positions = torch.arange(idx.shape[1], device=idx.device)
        x = self.tok_emb(idx) + self.pos_emb(positions)
        x = nn.functional.dropout(x, p=self.drop_rate, training=self.training)
        return self.out_head(x)


ex.slips("""
given: , training=self.training →
    In eval mode two calls still differ, so something is still drawn there. How could
    `nn.functional.dropout` know the mode of your model? Look up its parameters. (A new
    `nn.Dropout` inside `forward` does not know it either: a new module is in train
    mode.)
training=self.training → training=False
    Now nothing is dropped in train mode either, so training would go without dropout.
    It has to act in train mode and to rest in eval mode.
training=self.training → training=not self.training
    The modes have changed places: dropout rests in train mode and acts in eval mode.
    Look at the sense of your condition.
p=self.drop_rate, training=self.training → p=float(self.training)
    In train mode every feature is dropped, though eval mode is right. The second
    argument of `nn.functional.dropout` is the rate, and `True` counts as 1 there: give
    arguments by name.
x = nn.functional.dropout(x, p=self.drop_rate, training=self.training)
→ torch.manual_seed(123)⏎x = nn.functional.dropout(x, p=self.drop_rate)
    In eval mode the logits are not those without dropout, although two calls agree. A
    seed makes every call drop the same; it does not stop dropping.
x = nn.functional.dropout → torch.manual_seed(123)⏎x = nn.functional.dropout
    In train mode every call drops the same features. Is there a seed left in `forward`?
    Each call has to draw anew.
---
x = nn.functional.dropout
→ x = x * (1 if self.training else 1 - self.drop_rate)⏎x = nn.functional.dropout
    In eval mode the features are changed, although two calls agree. Dropout enlarges
    what it keeps while it trains, so that in eval mode nothing is left to scale.
nn.functional.dropout( → nn.functional.dropout1d(
    In train mode whole tokens are dropped: `dropout1d` draws once for each row. Dropout
    draws for every feature by itself.
x = nn.functional.dropout(x → x = nn.functional.dropout(self.out_head(x)
; return self.out_head(x) → return x
    In train mode the head does not get what dropout makes of the features: some zero,
    the rest enlarged. Dropout belongs between the sum and the head, with the rate that
    the configuration names.
+ self.pos_emb(positions) →
    The logits are wrong in both modes, although two calls agree in eval mode only. Are
    the rows of the positions still added to those of the tokens?
""")

# --- 1.5 --------------------------------------------------------------------------

ex = Exercise(
    "1.5",
    "Spaces in the vocabulary",
    why="About two thirds of the tokens begin with a space, so a space too few or too "
    "many gives the model other tokens.",
    tolerance=2e-3,  # for a share that was rounded; a count has to be exact
)


@ex.value
def tokens_with_space():
    return 33_135


ex.slips("""
33_135 → 17_122
    That is how many do not begin with a space: turn your condition around.
33_135 → 33_152
    You also count tokens that begin with a line break or another blank. Asked is the
    plain space, so look at what your test takes for a space.
33_135 → 32_957
    You looked at the first 50,000 ids only. The vocabulary has 257 more: take its size
    from the tokenizer.
33_135 → 33_135 / 50_257
    That is the share of the tokens. Asked is their number.
33_135 → 100 * 33_135 / 50_257
    That is the share of the tokens in percent. Asked is their number.
33_135 → 50_257
    That is the size of the whole vocabulary: your condition is always true.
33_135 → 0
    Your condition is never true. Decode each id to its text before you test.
---
33_135 → 33_134
    The token that is one space and nothing else counts too.
33_135 → 32_104
    You count tokens in which a space is followed by letters only. Tokens such as a
    space and a number begin with a space, too.
33_135 → 1
    You count the tokens that end with a space. Look at the other end of the text.
33_135 → 8_537
    You count the words that exist twice, with a space in front and without. Asked are
    all tokens that begin with a space.
""")
