"""The exercises of lesson 1 · The dummy model."""

import torch
from torch import nn

import gpt_helpers

from .engine import Exercise

ex = Exercise(
    "1.1",
    "Shapes from ids to logits",
    why="The parts that you build from here on go between the sum and the logits, "
    "and none of them changes these shapes.",
)

ex.reference(
    {
        "ids": (2, 3),
        "token vectors": (2, 3, 64),
        "position vectors": (3, 64),
        "sum": (2, 3, 64),
        "blocks and norm": (2, 3, 64),
        "logits": (2, 3, 50),
    }
)

ex.mistake(
    "The position vectors have no batch axis: all texts share them. Look at what is "
    "given to the position embedding; how many axes has it?"
)(ex.right | {"position vectors": (2, 3, 64)})

ex.mistake(
    "The position vectors have no axis of length 1 in front. With one the sum would be "
    "the same, but look at what is given to the position embedding."
)(ex.right | {"position vectors": (1, 3, 64)})

ex.mistake(
    'For "position vectors" you gave the shape of the whole position table. Only as '
    "many of its rows are fetched as a text has tokens."
)(ex.right | {"position vectors": (8, 64)})

ex.mistake(
    'For "token vectors" you gave the shape of the whole token table. Each id fetches '
    "one row of it: how many ids are there, and in what arrangement?"
)(ex.right | {"token vectors": (50, 64)})

ex.mistake(
    "For both kinds of vectors you gave the shapes of the tables. The stations are what "
    "is fetched from the tables: a row for each id, and a row for each position."
)(ex.right | {"token vectors": (50, 64), "position vectors": (8, 64)})

ex.mistake(
    'For "position vectors" you gave the shape of the positions themselves. The '
    "embedding turns each of them into a row of C numbers."
)(ex.right | {"position vectors": (3,)})

ex.mistake(
    "The logits of the last position are all that is needed to continue a text, but the "
    "model scores every position: an axis is missing from the logits."
)(ex.right | {"logits": (2, 50)})

ex.mistake(
    "The logits' middle axis is not 1: the model scores every position, not the last "
    "one only."
)(ex.right | {"logits": (2, 1, 50)})

ex.mistake(
    "The logits are not one list of scores for everything: each position of each text "
    "gets a list of its own."
)(ex.right | {"logits": (50,)})

ex.mistake(
    "The logits still have C numbers per position, as if there were no output head. "
    "What does the head make of the C numbers?"
)(ex.right | {"logits": (2, 3, 64)})

ex.mistake(
    "For the logits you gave the shape of the head's matrix. Asked is what comes out of "
    "the head."
)(ex.right | {"logits": (50, 64)})

ex.mistake(
    "The head puts the scores where the features were, on the last axis; the positions "
    "keep theirs. Look at the order of the logits' axes."
)(ex.right | {"logits": (2, 50, 3)})

ex.mistake(
    "The logits keep the features and the scores as two axes. Each score is a dot "
    "product over the features, and the axis that is summed over goes."
)(ex.right | {"logits": (2, 3, 64, 50)})

ex.mistake(
    "Two of the shapes differ. The position vectors have no batch axis, since all texts "
    "share them; and the logits keep the axis of the positions, since each is scored."
)(ex.right | {"position vectors": (2, 3, 64), "logits": (2, 50)})

ex.mistake(
    "Two of the shapes differ. The position vectors have no axis for the batch, not "
    "even of length 1; and the logits keep the axis of the positions."
)(ex.right | {"position vectors": (1, 3, 64), "logits": (2, 50)})

ex.mistake(
    "Two of the shapes differ. The position vectors have no batch axis, since all texts "
    "share them; and the head turns the C numbers of a position into one per token of "
    "the vocabulary."
)(ex.right | {"position vectors": (2, 3, 64), "logits": (2, 3, 64)})

ex.mistake(
    "You have as many position vectors as there are texts. Positions count along the "
    "tokens of a text."
)(ex.right | {"position vectors": (2, 64)})

ex.mistake(
    "Each position vector has C numbers, since it is to be added to a token vector: "
    "look at the last axis."
)(ex.right | {"position vectors": (3, 1)})

ex.mistake(
    "The logits are not yet a choice: for each position there is a score for every "
    "token of the vocabulary, so an axis is missing."
)(ex.right | {"logits": (2, 3)})

ex.mistake(
    "The logits' first two axes have become one. The head works on the last axis alone "
    "and leaves the others as they were."
)(ex.right | {"logits": (6, 50)})

ex.mistake(
    "The sum has the batch axis of the token vectors: where one side of an addition "
    "lacks an axis, PyTorch repeats it along that axis."
)(ex.right | {"sum": (3, 64)})

ex.mistake(
    "The blocks run one after the other, each on what the last one returned, so their "
    "number is no axis."
)(ex.right | {"blocks and norm": (12, 2, 3, 64)})

ex.mistake(
    "The two embeddings are added, not joined end to end: look at the length of the "
    "feature axis from the sum on."
)(ex.right | {"sum": (2, 3, 128), "blocks and norm": (2, 3, 128)})

ex.mistake(
    "The two embeddings are added, not joined end to end: look at the length of the "
    "token axis from the sum on."
)(ex.right | {"sum": (2, 6, 64), "blocks and norm": (2, 6, 64), "logits": (2, 6, 50)})

ex.mistake(
    "The batch axis is lost in your sum. Where one side of an addition has an axis that "
    "the other lacks, PyTorch repeats the other along it."
)(ex.right | {"sum": (3, 64), "blocks and norm": (3, 64), "logits": (3, 50)})

ex.mistake(
    "Your shapes are those of one text. The batch holds two, which stay apart on the "
    "first axis all the way."
)(
    {
        "ids": (3,),
        "token vectors": (3, 64),
        "position vectors": (3, 64),
        "sum": (3, 64),
        "blocks and norm": (3, 64),
        "logits": (3, 50),
    }
)

ex.mistake(
    "B and T have changed places: the first axis counts the texts, the second the "
    "tokens of each."
)(
    {
        "ids": (3, 2),
        "token vectors": (3, 2, 64),
        "position vectors": (2, 64),
        "sum": (3, 2, 64),
        "blocks and norm": (3, 2, 64),
        "logits": (3, 2, 50),
    }
)

ex.mistake(
    "B and T have changed places in all shapes but one: the first axis counts the "
    "texts, the second the tokens of each."
)(
    {
        "ids": (3, 2),
        "token vectors": (3, 2, 64),
        "position vectors": (3, 64),
        "sum": (3, 2, 64),
        "blocks and norm": (3, 2, 64),
        "logits": (3, 2, 50),
    }
)

ex.mistake(
    "The features stand on the last axis, after the tokens, and the scores take their "
    "place there: look at the order of the axes."
)(
    {
        "ids": (2, 3),
        "token vectors": (2, 64, 3),
        "position vectors": (64, 3),
        "sum": (2, 64, 3),
        "blocks and norm": (2, 64, 3),
        "logits": (2, 50, 3),
    }
)

ex.mistake(
    "V and C have changed places: V counts the tokens of the vocabulary, C the numbers "
    "that stand for one token."
)(
    {
        "ids": (2, 3),
        "token vectors": (2, 3, 50),
        "position vectors": (3, 50),
        "sum": (2, 3, 50),
        "blocks and norm": (2, 3, 50),
        "logits": (2, 3, 64),
    }
)

ex.mistake(
    "The token vectors have V numbers each, as if they were scores. A row of the token "
    "table is fetched for each id; how long is a row?"
)(ex.right | {"token vectors": (2, 3, 50)})

ex.mistake(
    "You put all tokens of the batch in one row. The texts stay apart: B and T are two "
    "axes at every station but one."
)(
    {
        "ids": (6,),
        "token vectors": (6, 64),
        "position vectors": (6, 64),
        "sum": (6, 64),
        "blocks and norm": (6, 64),
        "logits": (6, 50),
    }
)

ex.mistake(
    "These are GPT-2's own sizes. This model is smaller: V = 50 and C = 64, and the "
    "texts have three tokens."
)(
    {
        "ids": (2, 4),
        "token vectors": (2, 4, 768),
        "position vectors": (4, 768),
        "sum": (2, 4, 768),
        "blocks and norm": (2, 4, 768),
        "logits": (2, 4, 50257),
    }
)

ex.mistake(
    "T and C are those of the task, but the width or the vocabulary is GPT-2's own: "
    "this model has V = 50 and C = 64."
)(
    {
        "ids": (2, 3),
        "token vectors": (2, 3, 768),
        "position vectors": (3, 768),
        "sum": (2, 3, 768),
        "blocks and norm": (2, 3, 768),
        "logits": (2, 3, 50257),
    }
)

ex.mistake(
    "The texts have three tokens; the context length, 8, is only the most that they "
    "could have."
)(
    {
        "ids": (2, 8),
        "token vectors": (2, 8, 64),
        "position vectors": (8, 64),
        "sum": (2, 8, 64),
        "blocks and norm": (2, 8, 64),
        "logits": (2, 8, 50),
    }
)


def ids_and_two_tables():
    token_table = torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    position_table = torch.tensor([[10.0, 0.0], [20.0, 0.0], [30.0, 0.0]])
    generator = torch.Generator().manual_seed(102)
    made = [(torch.tensor([[2, 0]]), token_table, position_table)]
    # (B, T, C, V, context length), every table longer than all the tokens of a batch
    sizes = (2, 1, 3, 5, 6), (3, 2, 4, 7, 9), (2, 5, 3, 13, 12), (4, 3, 3, 8, 14)
    for texts, tokens, features, vocabulary, context in sizes:
        ids = torch.randint(vocabulary, (texts, tokens), generator=generator)
        tables = [
            torch.randn(rows, features, generator=generator)
            for rows in (vocabulary, context)
        ]
        made.append((ids, *tables))
    return made


def embed_or_name_the_refused_index(answer, *arguments):
    try:
        return answer(*arguments)
    except (IndexError, RuntimeError) as error:
        text = str(error)  # an index of decimals, in the words of each way to look up
        if any(
            w in text for w in ("used as indices", "for index", "arguments for emb")
        ):
            raise FloatingPointError(text) from error
        raise


ex = Exercise(
    "1.2",
    "Token rows plus position rows",
    why="This sum is all that the rest of GPT-2 ever sees of a text.",
    inputs=ids_and_two_tables,
    call=embed_or_name_the_refused_index,
)


@ex.reference
def _(ids, token_table, position_table):
    return token_table[ids] + position_table[torch.arange(ids.shape[1])]


@ex.mistake(
    "You took as many position rows as there are texts. `ids` has the axes (B, T), and "
    "positions count along the tokens: look at the axis whose length you take."
)
def _(ids, token_table, position_table):
    return token_table[ids] + position_table[torch.arange(ids.shape[0])]


@ex.mistake(
    "All tokens of a text got the same position row, numbered by the text: your "
    "positions run along the batch. They count along the second axis of `ids`."
)
def _(ids, token_table, position_table):
    return token_table[ids] + position_table[torch.arange(ids.shape[0])][:, None]


@ex.mistake(
    "Your positions start at 1. They count from 0: a text's first token gets the first "
    "row of the position table."
)
def _(ids, token_table, position_table):
    return token_table[ids] + position_table[torch.arange(1, ids.shape[1] + 1)]


@ex.mistake(
    "Two things: your positions run along the batch, and they start at 1. They count "
    "along the second axis of `ids`, from 0."
)
def _(ids, token_table, position_table):
    return token_table[ids] + position_table[torch.arange(1, len(ids) + 1)][:, None]


@ex.mistake(
    "The position rows got an axis of length 1 between T and C, so that T stands where "
    "B should. They fit as they are, (T, C); an extra axis would belong in front."
)
def _(ids, token_table, position_table):
    return token_table[ids] + position_table[: ids.shape[1]][:, None]


@ex.mistake(
    "You fetched one position row too few. `torch.arange(n)` and a slice up to n hold n "
    "numbers, from 0 to n − 1."
)
def _(ids, token_table, position_table):
    return token_table[ids] + position_table[: ids.shape[1] - 1]


@ex.mistake(
    "The rows are looked up with decimals, and PyTorch refuses them as row numbers. "
    "Positions, like ids, must be integers: look at what makes yours floating point."
)
def _(ids, token_table, position_table):
    return token_table[ids] + position_table[torch.arange(ids.shape[1]).float()]


@ex.mistake(
    "You added the position's number itself. A position is a row number, as an id is: "
    "what is added is the row that stands there in the position table."
)
def _(ids, token_table, position_table):
    return token_table[ids] + torch.arange(ids.shape[1])[:, None]


@ex.mistake(
    "You looked up the position table with the ids. Its rows belong to places, so the "
    "same word in two places needs two of them."
)
def _(ids, token_table, position_table):
    return token_table[ids] + position_table[ids]


@ex.mistake(
    "These are the token rows alone, so the order of the words is lost. Where do the "
    "rows of `position_table` come in?"
)
def _(ids, token_table, position_table):
    return token_table[ids]


@ex.mistake(
    "These are the position rows alone, without the token rows that the ids ask for."
)
def _(ids, token_table, position_table):
    return position_table[: ids.shape[1]]


@ex.mistake(
    "These are the position rows alone, once for each text. Add the token rows that "
    "the ids ask for."
)
def _(ids, token_table, position_table):
    return position_table[: ids.shape[1]].expand(*ids.shape, -1)


@ex.mistake("The two rows are multiplied. GPT-2 adds them.")
def _(ids, token_table, position_table):
    return token_table[ids] * position_table[: ids.shape[1]]


@ex.mistake(
    "The two rows are subtracted. GPT-2 adds them, so that every text goes through the "
    "same plus."
)
def _(ids, token_table, position_table):
    return token_table[ids] - position_table[: ids.shape[1]]


@ex.mistake(
    "The average of the two rows is half of what is asked for: they are added, no more."
)
def _(ids, token_table, position_table):
    return (token_table[ids] + position_table[: ids.shape[1]]) / 2


@ex.mistake(
    "The token rows are multiplied by √C, as in the first Transformer. GPT-2 adds them "
    "as they stand in the table."
)
def _(ids, token_table, position_table):
    scale = token_table.shape[1] ** 0.5
    return token_table[ids] * scale + position_table[: ids.shape[1]]


@ex.mistake(
    "The tokens of each text are summed up into one row. Every token keeps a row of its "
    "own: (B, T, C)."
)
def _(ids, token_table, position_table):
    return (token_table[ids] + position_table[: ids.shape[1]]).sum(1)


@ex.mistake(
    "The two rows stand side by side, which doubles the features. They are added, "
    "number by number."
)
def _(ids, token_table, position_table):
    rows = position_table[: ids.shape[1]].expand(*ids.shape, -1)
    return torch.cat([token_table[ids], rows], dim=-1)


@ex.mistake(
    "The positions of the second text go on where the first text ended. Every text of "
    "a batch starts again at position 0."
)
def _(ids, token_table, position_table):
    positions = torch.arange(ids.numel()).reshape(ids.shape)
    return token_table[ids] + position_table[positions]


@ex.mistake(
    "The positions are mixed up among the texts: (T, B) was filled and then read as "
    "(B, T), or the other way round. Each text counts 0, 1, 2, … by itself."
)
def _(ids, token_table, position_table):
    positions = torch.arange(ids.shape[1]).repeat_interleave(ids.shape[0])
    return token_table[ids] + position_table[positions.reshape(ids.shape)]


@ex.mistake(
    "The whole position table is added. A text of T tokens uses its first T rows only."
)
def _(ids, token_table, position_table):
    return token_table[ids] + position_table


@ex.mistake(
    "You took the last rows of the position table. A text starts at its first row."
)
def _(ids, token_table, position_table):
    return token_table[ids] + position_table[-ids.shape[1] :]


@ex.mistake(
    "The positions run backward: the first token got the last of them. Count up from 0."
)
def _(ids, token_table, position_table):
    return token_table[ids] + position_table[: ids.shape[1]].flip(0)


@ex.mistake(
    "Every token got the first row of the position table. Each place has a row of its "
    "own."
)
def _(ids, token_table, position_table):
    return token_table[ids] + position_table[0]


@ex.mistake(
    "Every token got the same row of the position table, the one numbered by the "
    "text's length. Each place 0, 1, 2, … has a row of its own."
)
def _(ids, token_table, position_table):
    return token_table[ids] + position_table[ids.shape[1]]


@ex.mistake(
    "Every token got the row of the text's last place. Each place 0, 1, 2, … has a row "
    "of its own."
)
def _(ids, token_table, position_table):
    return token_table[ids] + position_table[ids.shape[1] - 1]


@ex.mistake(
    "The tables have changed roles: ids fetch rows of `token_table`, positions rows of "
    "`position_table`."
)
def _(ids, token_table, position_table):
    return position_table[ids] + token_table[: ids.shape[1]]


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
)


@ex.reference
def _(cfg):
    return (2 * cfg.vocab_size + cfg.context_length) * cfg.emb_dim


@ex.mistake(
    "The multiplication by C reaches the context length only, as `*` comes before `+`. "
    "Every row has C numbers: look at your parentheses."
)
def _(cfg):
    return 2 * cfg.vocab_size + cfg.context_length * cfg.emb_dim


@ex.mistake(
    "The position table has V columns in your formula. It is added to the token vectors, "
    "so its rows are as long as theirs."
)
def _(cfg):
    return 2 * cfg.vocab_size * cfg.emb_dim + cfg.context_length * cfg.vocab_size


@ex.mistake(
    "Two things: the blocks are `nn.Identity` here and store nothing; and the head's "
    "matrix is one of its own, not the token table used again."
)
def _(cfg):
    rows = cfg.vocab_size + cfg.context_length
    return rows * cfg.emb_dim + 12 * cfg.n_layers * cfg.emb_dim**2


@ex.mistake(
    "Two things: the blocks are `nn.Identity` here and store nothing; and the position "
    "table is missing."
)
def _(cfg):
    rows = 2 * cfg.vocab_size
    return rows * cfg.emb_dim + 12 * cfg.n_layers * cfg.emb_dim**2


@ex.mistake(
    "One matrix with a row per vocabulary token is missing. Either the output head was "
    "forgotten, or counted as one with the token table: in this model they are two."
)
def _(cfg):
    return (cfg.vocab_size + cfg.context_length) * cfg.emb_dim


@ex.mistake(
    "You count V too many: the output head is built with `bias=False`, so it has no "
    "number of its own per token besides its row."
)
def _(cfg):
    rows = 2 * cfg.vocab_size + cfg.context_length
    return rows * cfg.emb_dim + cfg.vocab_size


@ex.mistake(
    "You count C too many: the output head is built with `bias=False`. (A bias would "
    "have one number per token, too, not one per feature.)"
)
def _(cfg):
    return (2 * cfg.vocab_size + cfg.context_length + 1) * cfg.emb_dim


@ex.mistake(
    "For the output head you counted V numbers, as if it were a bias alone. It has a row "
    "of C numbers for each token of the vocabulary, and no bias."
)
def _(cfg):
    return (cfg.vocab_size + cfg.context_length) * cfg.emb_dim + cfg.vocab_size


@ex.mistake(
    "The position table is missing: it has a row of C numbers for every place up to the "
    "context length."
)
def _(cfg):
    return 2 * cfg.vocab_size * cfg.emb_dim


@ex.mistake(
    "Two things: the position table is missing, and the output head has no bias, as "
    "`bias=False` says."
)
def _(cfg):
    return 2 * cfg.vocab_size * cfg.emb_dim + cfg.vocab_size


@ex.mistake(
    "That is the token table alone. The position table and the output head have "
    "parameters, too."
)
def _(cfg):
    return cfg.vocab_size * cfg.emb_dim


@ex.mistake(
    "You counted the context length once for all, but each of its places has a row of "
    "C numbers in the position table."
)
def _(cfg):
    return 2 * cfg.vocab_size * cfg.emb_dim + cfg.context_length


@ex.mistake(
    "You counted one position row. The table has one for each place up to the context "
    "length, whatever the length of a text."
)
def _(cfg):
    return (2 * cfg.vocab_size + 1) * cfg.emb_dim


@ex.mistake(
    "The position table has a row per place, not per vocabulary token: its height is "
    "another size."
)
def _(cfg):
    return 3 * cfg.vocab_size * cfg.emb_dim


@ex.mistake(
    "The position table is counted twice. Which of the three matrices have a row per "
    "vocabulary token, and which a row per place?"
)
def _(cfg):
    return (cfg.vocab_size + 2 * cfg.context_length) * cfg.emb_dim


@ex.mistake(
    "Both tables are counted twice. There are three matrices: which of the tables has "
    "the same number of rows as the head?"
)
def _(cfg):
    return 2 * (cfg.vocab_size + cfg.context_length) * cfg.emb_dim


@ex.mistake(
    "That is the number of rows in the three matrices. How many numbers does a row have?"
)
def _(cfg):
    return 2 * cfg.vocab_size + cfg.context_length


@ex.mistake(
    "You included 12·C² for each block, as the lesson does for a real GPT-2. The dummy "
    "model's blocks are `nn.Identity`: what do they store?"
)
def _(cfg):
    rows = 2 * cfg.vocab_size + cfg.context_length
    return rows * cfg.emb_dim + 12 * cfg.n_layers * cfg.emb_dim**2


@ex.mistake(
    "You included 12·C² for one block. The dummy model's blocks are `nn.Identity`: "
    "what do they store?"
)
def _(cfg):
    rows = 2 * cfg.vocab_size + cfg.context_length
    return rows * cfg.emb_dim + 12 * cfg.emb_dim**2


@ex.mistake(
    "You included C² for each block, as for an identity matrix. `nn.Identity` hands its "
    "input on and multiplies nothing: what does it store?"
)
def _(cfg):
    rows = 2 * cfg.vocab_size + cfg.context_length
    return rows * cfg.emb_dim + cfg.n_layers * cfg.emb_dim**2


@ex.mistake(
    "You included one parameter per block. `nn.Identity` hands its input on: what does "
    "it store?"
)
def _(cfg):
    rows = 2 * cfg.vocab_size + cfg.context_length
    return rows * cfg.emb_dim + cfg.n_layers


@ex.mistake(
    "You included 2·C for the final norm, as it will have in lesson 2. Here it is "
    "`nn.Identity`: what does that store?"
)
def _(cfg):
    return (2 * cfg.vocab_size + cfg.context_length + 2) * cfg.emb_dim


@ex.mistake(
    "You included norms: two in each block and the final one, 2·C for each. The dummy "
    "model has none yet; `nn.Identity` stands in their place, and what does that store?"
)
def _(cfg):
    rows = 2 * cfg.vocab_size + cfg.context_length + 2 * (2 * cfg.n_layers + 1)
    return rows * cfg.emb_dim


@ex.mistake(
    "That is the finished GPT-2 with real blocks and norms. In the dummy model they "
    "are `nn.Identity`: what does that store?"
)
def _(cfg):
    rows = 2 * cfg.vocab_size + cfg.context_length + 2
    block = 12 * cfg.emb_dim**2 + (13 if cfg.qkv_bias else 10) * cfg.emb_dim
    return rows * cfg.emb_dim + cfg.n_layers * block


@ex.mistake(
    "The ends of the model stand there once, not once for each layer: look at where "
    "`n_layers` enters your formula."
)
def _(cfg):
    rows = 2 * cfg.vocab_size + cfg.context_length
    return cfg.n_layers * rows * cfg.emb_dim


@ex.mistake("That is the number of bytes, at 4 for each number. Count the numbers.")
def _(cfg):
    return 4 * (2 * cfg.vocab_size + cfg.context_length) * cfg.emb_dim


@ex.mistake(
    "Dropout takes features away while the model trains; the parameters stay all there. "
    "`drop_rate` has no place in the count."
)
def _(cfg):
    rows = 2 * cfg.vocab_size + cfg.context_length
    return rows * cfg.emb_dim * (1 - cfg.drop_rate)


@ex.mistake(
    "You multiplied sizes of different matrices with each other. Each matrix has rows "
    "times columns; the matrices are added."
)
def _(cfg):
    return cfg.vocab_size * cfg.context_length * cfg.emb_dim


@ex.mistake(
    "Your count is GPT-2's own at every size. Take the sizes from `cfg`: the letters V, "
    "T and C of the lesson belong to GPT-2, and a plain number to one model only."
)
def _(cfg):
    return (2 * 50257 + 1024) * 768


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
    enlarged = torch.isclose(features, x / (1 - cfg.drop_rate), atol=1e-5)
    state = "something else"
    if torch.allclose(features @ head.T, one, atol=1e-5):
        if torch.allclose(features, x, atol=1e-5):
            state = "all as they were"
        elif dropped.all():
            state = "all zero"
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
x = nn.functional.dropout(x → x = nn.functional.dropout(self.out_head(x)
; return self.out_head(x) → return x
    In train mode the head does not get what dropout makes of the features: some zero,
    the rest enlarged. Dropout belongs between the sum and the head, with the rate that
    the configuration names.
+ self.pos_emb(positions) →
    The logits are wrong in both modes, although two calls agree in eval mode only. Are
    the rows of the positions still added to those of the tokens?
""")


ex = Exercise(
    "1.5",
    "Spaces in the vocabulary",
    why="About two thirds of the tokens begin with a space, so a space too few or too "
    "many gives the model other tokens.",
    tolerance=2e-3,  # for a share that was rounded; a count has to be exact
)

ex.reference(33_135)
ex.mistake("That is how many do not begin with a space: turn your condition around.")(
    17_122
)
ex.mistake(
    "You also count tokens that begin with a line break or another blank. Asked is the "
    "plain space, so look at what your test takes for a space."
)(33_152)
ex.mistake(
    "You looked at the first 50,000 ids only. The vocabulary has 257 more: take its "
    "size from the tokenizer."
)(32_957)
ex.mistake("The token that is one space and nothing else counts too.")(33_134)
ex.mistake(
    "You count tokens in which a space is followed by letters only. Tokens such as a "
    "space and a number begin with a space, too."
)(32_104)
ex.mistake(
    "You count the tokens that end with a space. Look at the other end of the text."
)(1)
ex.mistake("That is the size of the whole vocabulary: your condition is always true.")(
    50_257
)
ex.mistake("Your condition is never true. Decode each id to its text before you test.")(
    0
)
ex.mistake("That is the share of the tokens. Asked is their number.")(33_135 / 50_257)
ex.mistake("That is the share of the tokens in percent. Asked is their number.")(
    100 * 33_135 / 50_257
)
ex.mistake(
    "You count the words that exist twice, with a space in front and without. Asked "
    "are all tokens that begin with a space."
)(8_537)
