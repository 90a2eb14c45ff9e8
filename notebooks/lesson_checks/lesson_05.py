"""The exercises of lesson 5 · Attention and the transformer block."""

import itertools

import torch
import torch.nn.functional as F
from torch import nn

import gpt_helpers

from .engine import Exercise


def tables_of_scores():
    """Square tables, alone and with batch and heads in front; one visible score is 0."""
    generator = torch.Generator().manual_seed(51)
    normal = lambda *shape: torch.randn(*shape, generator=generator)
    return [
        (torch.tensor([[1.0, 2.0], [0.0, 1.5]]),),
        (normal(3, 3),),
        (2 * normal(4, 4),),
        (normal(2, 3, 4, 4),),
        (normal(1, 2, 5, 5) - 1,),
        (normal(4, 4) - 120,),  # −100 is no −∞
    ]


def future_of(scores, diagonal=1):
    """True above the given diagonal of the last two axes."""
    return torch.ones(scores.shape[-2:], dtype=torch.bool).triu(diagonal)


# 5.1
ex = Exercise(
    "5.1",
    "Hide the future",
    why="These lines let one pass over a text of 1024 tokens practice 1024 predictions.",
    inputs=tables_of_scores,
)


@ex.reference
def _(scores):
    return scores.masked_fill(future_of(scores), -torch.inf).softmax(dim=-1)


@ex.mistake(
    "The future is not hidden: each token still gives weight to those on its right."
)
def _(scores):
    return scores.softmax(dim=-1)


@ex.mistake(
    "Each token still sees one of the future, the next: the visible part reaches one "
    "diagonal too far. Which diagonal is the first to be hidden?"
)
def _(scores):
    return scores.masked_fill(future_of(scores, 2), -torch.inf).softmax(dim=-1)


@ex.mistake(
    "The diagonal is hidden too, so no token may read itself, and the first may read "
    "nothing at all: its row is nan. Where does the hidden part begin?"
)
def _(scores):
    return scores.masked_fill(future_of(scores, 0), -torch.inf).softmax(dim=-1)


@ex.mistake(
    "You hide the past and leave the future open: the first row is spread over all, "
    "the last token reads itself alone. Have `tril` and `triu` changed places?"
)
def _(scores):
    return scores.masked_fill(~future_of(scores, 0), -torch.inf).softmax(dim=-1)


@ex.mistake(
    "The mask is inverted: `masked_fill` fills where the mask is True, and yours is "
    "True where a token may look. In the last row nothing is left, so it is nan."
)
def _(scores):
    return scores.masked_fill(~future_of(scores), -torch.inf).softmax(dim=-1)


@ex.mistake(
    "The hidden scores are 0, not −∞, before the softmax. 0 is a score like any other, "
    "and buys a weight: what does the softmax make of it?"
)
def _(scores):
    return scores.tril().softmax(dim=-1)


@ex.mistake(
    "You remove the future's weights after the softmax, and what is left of a row no "
    "longer adds up to 1. Hide before the softmax, or divide each row by its new sum."
)
def _(scores):
    return scores.softmax(dim=-1).tril()


@ex.mistake(
    "Two things at once. The hidden scores are 0, not −∞, and 0 is a score like any "
    "other; and the hidden part begins one diagonal too late, behind the next token."
)
def _(scores):
    return scores.tril(1).softmax(dim=-1)


@ex.mistake(
    "Two things at once. The hidden scores are 0, not −∞, and 0 is a score like any "
    "other; and the diagonal is among them, though a token may read itself."
)
def _(scores):
    return scores.tril(-1).softmax(dim=-1)


@ex.mistake(
    "Two things at once. The hidden scores are 0, not −∞, and 0 is a score like any "
    "other; and they are those of the past, not of the future."
)
def _(scores):
    return scores.triu().softmax(dim=-1)


@ex.mistake(
    "Two things at once. The hidden scores are 0, not −∞, and 0 is a score like any "
    "other; and the mask is inverted, with the past and the diagonal hidden."
)
def _(scores):
    return scores.triu(1).softmax(dim=-1)


@ex.mistake(
    "Two things at once. The mask acts after the softmax, so the rows do not add up to "
    "1; and it begins one diagonal too late, behind the next token."
)
def _(scores):
    return scores.softmax(dim=-1).tril(1)


@ex.mistake(
    "Two things at once. The mask acts after the softmax, so the rows do not add up to "
    "1; and it takes the diagonal away, though a token may read itself."
)
def _(scores):
    return scores.softmax(dim=-1).tril(-1)


@ex.mistake(
    "Two things at once. The mask acts after the softmax, so the rows do not add up to "
    "1; and it takes away the past, not the future."
)
def _(scores):
    return scores.softmax(dim=-1).triu()


@ex.mistake(
    "Two things at once. The mask acts after the softmax, so the rows do not add up to "
    "1; and it is inverted: what is left is the future."
)
def _(scores):
    return scores.softmax(dim=-1).triu(1)


@ex.mistake(
    "The mask is right, but your softmax runs down the columns. Each row, the weights "
    "that one token gives, must add up to 1: look at `dim`."
)
def _(scores):
    return scores.masked_fill(future_of(scores), -torch.inf).softmax(dim=-2)


@ex.mistake(
    "The mask is right, but your softmax runs along axis 1. In a table that is the last "
    "axis; with batch and heads in front it is the heads: which `dim` is always the "
    "last? (Without a `dim`, `F.softmax` takes 1 here.)"
)
def _(scores):
    return scores.masked_fill(future_of(scores), -torch.inf).softmax(dim=1)


@ex.mistake(
    "The mask is right, but your softmax runs along axis 0, the columns of a table and "
    "the texts of a batch. Each row must add up to 1: look at `dim`."
)
def _(scores):
    return scores.masked_fill(future_of(scores), -torch.inf).softmax(dim=0)


@ex.mistake(
    "Two things at once. Your softmax runs down the columns, though each row must add "
    "up to 1; and the future's weights are removed only after it."
)
def _(scores):
    return scores.softmax(dim=-2).tril()


@ex.mistake(
    "The rows are divided by the sums of the columns. The weights that one token gives "
    "stand in a row: along which `dim` do you sum?"
)
def _(scores):
    weights = scores.softmax(dim=-1).tril()
    return weights / weights.sum(dim=-2, keepdim=True)


@ex.mistake(
    "After the softmax you divide by sums that have lost their axis, so they stand "
    "along the rows instead of beside them. Look at `keepdim`."
)
def _(scores):
    weights = scores.softmax(dim=-1).tril()
    return weights / weights.sum(dim=-1).unsqueeze(-2)


@ex.mistake(
    "After the softmax you divide by sums that have lost their axis: in a table they "
    "stand along the rows, and behind batch and heads they do not fit. Look at "
    "`keepdim`."
)
def _(scores):
    weights = scores.softmax(dim=-1).tril()
    return weights / weights.sum(dim=-1)


@ex.mistake(
    "The softmax is applied twice. The second one takes the weights of the first for "
    "scores, and weights differ too little for that: mask first, then one softmax."
)
def _(scores):
    weights = scores.softmax(dim=-1)
    return weights.masked_fill(future_of(scores), -torch.inf).softmax(dim=-1)


@ex.mistake(
    "The softmax is applied twice. The second one takes the weights of the first for "
    "scores, and gives even the hidden ones, now 0, a share: one softmax is enough."
)
def _(scores):
    masked = scores.masked_fill(future_of(scores), -torch.inf)
    return masked.softmax(dim=-1).softmax(dim=-1)


@ex.mistake(
    "The softmax comes first, so the −∞ stays in the result. In which order do the two "
    "steps belong?"
)
def _(scores):
    return scores.softmax(dim=-1).masked_fill(future_of(scores), -torch.inf)


@ex.mistake("The scores are masked as they should be, but the softmax is missing.")
def _(scores):
    return scores.masked_fill(future_of(scores), -torch.inf)


@ex.mistake("These are the logarithms of the weights: the softmax itself is asked for.")
def _(scores):
    return scores.masked_fill(future_of(scores), -torch.inf).log_softmax(dim=-1)


@ex.mistake(
    "Every weight is nan. That happens if no score is left in any row, or if a mask of "
    "zeros and ones is multiplied by −∞: 0 · −∞ is nan. Fill where the mask is True."
)
def _(scores):
    return scores.masked_fill(torch.ones_like(scores).bool(), -torch.inf).softmax(
        dim=-1
    )


@ex.mistake(
    "The hidden scores are 0 and the softmax is missing. They are to be −∞, and then a "
    "softmax makes shares of each row."
)
def _(scores):
    return scores.tril()


@ex.mistake(
    "The diagonal is hidden too. A token may read itself: the first then gives itself "
    "everything, and not nothing to anyone."
)
def _(scores):
    hidden = future_of(scores, 0)
    return scores.masked_fill(hidden, -torch.inf).softmax(dim=-1).nan_to_num()


@ex.mistake(
    "The diagonal is hidden too. A token may read itself; the first has nothing else to "
    "read, and now spreads its weight evenly over what is hidden."
)
def _(scores):
    return scores.masked_fill(future_of(scores, 0), -1e9).softmax(dim=-1)


@ex.mistake(
    "The mask is multiplied with the scores: its zeros wipe out the visible ones, and "
    "−∞ times a negative score is +∞. A mask of 0 and −∞ is to be added."
)
def _(scores):
    factors = torch.zeros_like(scores).masked_fill(future_of(scores), -torch.inf)
    return (scores * factors).softmax(dim=-1)


@ex.mistake(
    "All weights of the table together add up to 1. Each token has a weight of 1 to "
    "give: divide each row by its own sum."
)
def _(scores):
    weights = scores.exp().tril()
    return weights / weights.sum()


@ex.mistake(
    "After the softmax you divide by the sum of the whole table. Each token has a weight "
    "of 1 to give: divide each row by its own sum."
)
def _(scores):
    weights = scores.softmax(dim=-1).tril()
    return weights / weights.sum()


@ex.mistake(
    "The softmax is applied twice, with the mask in between. The second one takes the "
    "weights of the first for scores, and gives even the hidden ones, now 0, a share."
)
def _(scores):
    return scores.softmax(dim=-1).tril().softmax(dim=-1)


@ex.mistake(
    "You find the hidden places by looking for the value 0, but a score that may be "
    "seen can be 0 too, as in the smallest input. Find them by their position."
)
def _(scores):
    scores = scores.tril()
    return scores.masked_fill(scores == 0, -torch.inf).softmax(dim=-1)


@ex.mistake(
    "The hidden scores are +∞: the softmax would give them everything, and what it "
    "computes is nan. Look at the sign."
)
def _(scores):
    return scores.masked_fill(future_of(scores), torch.inf).softmax(dim=-1)


@ex.mistake(
    "The hidden scores become −1, not −∞. e to the −1 is a third and more: what must "
    "the exponent be, for nothing to be left?"
)
def _(scores):
    return scores.masked_fill(future_of(scores), -1.0).softmax(dim=-1)


@ex.mistake(
    "The hidden scores become −10, not −∞. e to the −10 is little, but where the "
    "visible scores are small too, it is a weight."
)
def _(scores):
    return scores.masked_fill(future_of(scores), -10.0).softmax(dim=-1)


@ex.mistake(
    "You subtract 1 from the hidden scores. Whatever finite number you take off, a "
    "weight remains: only −∞ removes it."
)
def _(scores):
    return (scores - future_of(scores).float()).softmax(dim=-1)


@ex.mistake(
    "You add 1 to the hidden scores and so raise them. A mask of ones says where; what "
    "must stand there is −∞."
)
def _(scores):
    return (scores + future_of(scores).float()).softmax(dim=-1)


@ex.mistake(
    "The visible scores are all taken for equal: each row spreads its weight evenly "
    "over what it may see. Where are the scores used?"
)
def _(scores):
    visible = (~future_of(scores)).float() + 0 * scores
    return visible / visible.sum(dim=-1, keepdim=True)


@ex.mistake(
    "Your mask has four rows and four columns, for any text; the `hidden` of the "
    "lesson is such a one. Make it as large as the last two axes of `scores`."
)
def _(scores):
    hidden = torch.ones(4, 4, dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)


@ex.mistake(
    "Your mask is cut to size, but has only four rows and columns to be cut from, as "
    "the `hidden` of the lesson. For five tokens it is too small: make one for any T."
)
def _(scores):
    T = scores.shape[-1]
    hidden = torch.ones(4, 4, dtype=torch.bool).triu(1)[:T, :T]
    return scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)


@ex.mistake(
    "A table comes out right, but with batch and heads in front the mask has the wrong "
    "size: the first two axes are then batch and heads. Which axes are T and T?"
)
def _(scores):
    hidden = torch.ones(scores.shape[:2], dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)


@ex.mistake(
    "A table comes out right, but with batch and heads in front the mask has the wrong "
    "size: the first axis is then the batch. Which axes of `scores` are T and T?"
)
def _(scores):
    T = scores.shape[0]
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)


@ex.mistake(
    "A table comes out right, but with batch and heads in front `[i, j]` is text i and "
    "head j, and soon there is no such one (IndexError). Count the axes from the end: "
    "what does `[..., i, j]` mean?"
)
def _(scores):
    T = scores.shape[-1]
    for i, j in itertools.combinations(range(T), 2):
        scores[i, j] = -torch.inf
    return scores.softmax(dim=-1)


@ex.mistake(
    "A table comes out right, but with batch and heads in front your loop runs over "
    "texts, and `[i, j]` is a whole head. Count the axes from the end."
)
def _(scores):
    for i, j in itertools.combinations(range(len(scores)), 2):
        scores[i, j] = -torch.inf
    return scores.softmax(dim=-1)


@ex.mistake(
    "A table comes out right, but with batch and heads in front your loop runs over "
    "texts, and `[i, i + 1 :]` are whole heads. Count the axes from the end."
)
def _(scores):
    for i in range(len(scores)):
        scores[i, i + 1 :] = -torch.inf
    return scores.softmax(dim=-1)


@ex.mistake(
    "The mask is right, but the scores are divided by the root of T. They come scaled "
    "already, and the root would be that of D."
)
def _(scores):
    scores = scores / scores.shape[-1] ** 0.5
    return scores.masked_fill(future_of(scores), -torch.inf).softmax(dim=-1)


def queries_and_keys():
    """Pairs of shape (B, H, T, D), no two of the four sizes equal but in the first."""
    generator = torch.Generator().manual_seed(52)
    normal = lambda *shape: torch.randn(*shape, generator=generator)
    queries = torch.tensor([[[[1.0, 1, 1, 1], [2, 0, 0, 0]]]])
    keys = torch.tensor([[[[1.0, 1, 1, 1], [0, 0, 0, 1]]]])
    shapes = (1, 2, 3, 5), (2, 3, 4, 6), (3, 2, 5, 7), (2, 4, 3, 9)
    return [(queries, keys), *((normal(*s), normal(*s)) for s in shapes)]


def dot_products(queries, keys):
    """Each query with each key: (B, H, T, T)."""
    return queries @ keys.mT


# 5.2
ex = Exercise(
    "5.2",
    "Scores of the right size",
    why="GPT-2's heads have 64 numbers each: without the root its scores would be eight "
    "times as large, and the softmax that much closer to saturation.",
    inputs=queries_and_keys,
)


@ex.reference
def _(queries, keys):
    return (dot_products(queries, keys) / queries.shape[-1] ** 0.5).softmax(dim=-1)


@ex.mistake(
    "The scores are not scaled. The longer the vectors, the larger the dot products: "
    "what are they divided by?"
)
def _(queries, keys):
    return dot_products(queries, keys).softmax(dim=-1)


@ex.mistake(
    "You divide by D itself, or by its root twice, for queries and for keys. Dot "
    "products grow as the root of D: divide by that, once."
)
def _(queries, keys):
    return (dot_products(queries, keys) / queries.shape[-1]).softmax(dim=-1)


@ex.mistake(
    "You divide by the root of C, all features of all heads. A score is a dot product "
    "within one head, over D numbers."
)
def _(queries, keys):
    C = queries.shape[1] * queries.shape[-1]
    return (dot_products(queries, keys) / C**0.5).softmax(dim=-1)


@ex.mistake(
    "You divide by C, all features of all heads. A score is a dot product within one "
    "head, over D numbers, and grows as their root."
)
def _(queries, keys):
    C = queries.shape[1] * queries.shape[-1]
    return (dot_products(queries, keys) / C).softmax(dim=-1)


@ex.mistake(
    "You multiply by the root of D, and the scores grow even larger. Scaling is to "
    "make them smaller."
)
def _(queries, keys):
    return (dot_products(queries, keys) * queries.shape[-1] ** 0.5).softmax(dim=-1)


@ex.mistake(
    "You multiply by D, and the scores grow even larger. Scaling is to make them "
    "smaller, by the root of D."
)
def _(queries, keys):
    return (dot_products(queries, keys) * queries.shape[-1]).softmax(dim=-1)


@ex.mistake(
    "You divide by the root of T, the number of tokens. It is the length of the vectors "
    "that makes dot products large: which axis of `queries` is D?"
)
def _(queries, keys):
    return (dot_products(queries, keys) / queries.shape[-2] ** 0.5).softmax(dim=-1)


@ex.mistake(
    "You divide by the root of H, the number of heads. It is the length of the vectors "
    "that makes dot products large: which axis of `queries` is D?"
)
def _(queries, keys):
    return (dot_products(queries, keys) / queries.shape[1] ** 0.5).softmax(dim=-1)


@ex.mistake(
    "You divide by the root of B, the number of texts. It is the length of the vectors "
    "that makes dot products large: which axis of `queries` is D?"
)
def _(queries, keys):
    return (dot_products(queries, keys) / queries.shape[0] ** 0.5).softmax(dim=-1)


@ex.mistake(
    "You divide by 32, the root of 1024. That is the `D` which the lesson's table of "
    "spreads left behind: take D from the shape of the queries."
)
def _(queries, keys):
    return (dot_products(queries, keys) / 32).softmax(dim=-1)


@ex.mistake(
    "You divide by 8, whatever is given: that is the root of GPT-2's head size. Take D "
    "from the shape of the queries."
)
def _(queries, keys):
    return (dot_products(queries, keys) / 8).softmax(dim=-1)


@ex.mistake(
    "You divide by 64, whatever is given: that is GPT-2's head size. Take D from the "
    "shape of the queries, and divide by its root."
)
def _(queries, keys):
    return (dot_products(queries, keys) / 64).softmax(dim=-1)


@ex.mistake(
    "You divide by the root of 768, GPT-2's C. It is the size of one head that counts: "
    "take D from the shape of the queries."
)
def _(queries, keys):
    return (dot_products(queries, keys) / 768**0.5).softmax(dim=-1)


@ex.mistake(
    "You divide by D / 2. In Python `D ** 1/2` is D, then halved: set the exponent in "
    "parentheses, or write it as a decimal."
)
def _(queries, keys):
    return (dot_products(queries, keys) / (queries.shape[-1] / 2)).softmax(dim=-1)


@ex.mistake(
    "You divide by D and then by 2. In Python `/ D ** 1/2` means `/ D / 2`: set the "
    "exponent in parentheses, or write it as a decimal."
)
def _(queries, keys):
    return (dot_products(queries, keys) / queries.shape[-1] / 2).softmax(dim=-1)


@ex.mistake("You divide by D squared. The dot products grow as its root.")
def _(queries, keys):
    return (dot_products(queries, keys) / queries.shape[-1] ** 2).softmax(dim=-1)


@ex.mistake(
    "Either the queries or the keys are divided by the fourth root of D, but not both "
    "(or the scores by the root of the root): the root itself is needed, once."
)
def _(queries, keys):
    return (dot_products(queries, keys) / queries.shape[-1] ** 0.25).softmax(dim=-1)


@ex.mistake(
    "You scale after the softmax. That makes the weights smaller, so that they no "
    "longer add up to 1; it is the scores that are too large."
)
def _(queries, keys):
    return dot_products(queries, keys).softmax(dim=-1) / queries.shape[-1] ** 0.5


@ex.mistake(
    "You multiply after the softmax. The weights are then larger than shares can be; it "
    "is the scores that are scaled, and made smaller."
)
def _(queries, keys):
    return dot_products(queries, keys).softmax(dim=-1) * queries.shape[-1] ** 0.5


@ex.mistake("Your scores are whole numbers: `//` cuts the decimals off. Divide by `/`.")
def _(queries, keys):
    return (dot_products(queries, keys) // queries.shape[-1] ** 0.5).softmax(dim=-1)


@ex.mistake(
    "The scores are scaled, and the weights once more. After the softmax they are "
    "shares that add up to 1: leave them so."
)
def _(queries, keys):
    root = queries.shape[-1] ** 0.5
    return (dot_products(queries, keys) / root).softmax(dim=-1) / root


@ex.mistake("These are the logarithms of the weights: the softmax itself is asked for.")
def _(queries, keys):
    scores = dot_products(queries, keys) / queries.shape[-1] ** 0.5
    return scores.log_softmax(dim=-1)


@ex.mistake(
    "You transpose the queries, so features meet features, in a table of D × D. Tokens "
    "are to meet tokens: it is the keys whose last two axes are swapped."
)
def _(queries, keys):
    return (queries.mT @ keys / queries.shape[-1] ** 0.5).softmax(dim=-1)


@ex.mistake(
    "These are the scaled scores. To turn them into shares, a softmax has to follow."
)
def _(queries, keys):
    return dot_products(queries, keys) / queries.shape[-1] ** 0.5


@ex.mistake(
    "These are the dot products as they come: they still have to be scaled, and a "
    "softmax has to turn them into shares."
)
def _(queries, keys):
    return dot_products(queries, keys)


@ex.mistake(
    "The scores are right, but your softmax runs down the columns, over the queries. "
    "Each query shares itself out over the keys: look at `dim`."
)
def _(queries, keys):
    return (dot_products(queries, keys) / queries.shape[-1] ** 0.5).softmax(dim=-2)


@ex.mistake(
    "The scores are right, but your softmax runs along axis 1, over the heads. Each "
    "query shares itself out over the keys, the last axis of the scores. (Without a "
    "`dim`, `F.softmax` takes 1 here.)"
)
def _(queries, keys):
    return (dot_products(queries, keys) / queries.shape[-1] ** 0.5).softmax(dim=1)


@ex.mistake(
    "The scores are right, but your softmax runs along axis 0, over the texts. Each "
    "query shares itself out over the keys, the last axis of the scores."
)
def _(queries, keys):
    return (dot_products(queries, keys) / queries.shape[-1] ** 0.5).softmax(dim=0)


@ex.mistake(
    "The scores are right, but each query shares itself out over the keys of all heads "
    "or of all texts at once. The softmax runs along the last axis alone."
)
def _(queries, keys):
    scores = dot_products(queries, keys) / queries.shape[-1] ** 0.5
    return scores.flatten().softmax(dim=0).view(scores.shape)


@ex.mistake(
    "Two things at once. The scores are not scaled, and your softmax runs down the "
    "columns, over the queries: look at `dim`."
)
def _(queries, keys):
    return dot_products(queries, keys).softmax(dim=-2)


@ex.mistake(
    "Queries and keys have changed places: your row i holds what key i gets from each "
    "query. Row i must hold the scores that query i gives."
)
def _(queries, keys):
    return (dot_products(keys, queries) / queries.shape[-1] ** 0.5).softmax(dim=-1)


@ex.mistake(
    "The weights are right, but in columns: what query i gives must stand in row i."
)
def _(queries, keys):
    weights = (dot_products(queries, keys) / queries.shape[-1] ** 0.5).softmax(dim=-1)
    return weights.mT


@ex.mistake(
    "Two things at once. Queries and keys have changed places, so that row i belongs to "
    "key i, and the scores are not scaled."
)
def _(queries, keys):
    return dot_products(keys, queries).softmax(dim=-1)


@ex.mistake(
    "The keys are brought to (B, H, D, T) by `view` or `reshape`. That cuts the numbers "
    "anew, and no column is a key any more: it is two axes that must be swapped."
)
def _(queries, keys):
    B, H, T, D = keys.shape
    return (queries @ keys.reshape(B, H, D, T) / D**0.5).softmax(dim=-1)


@ex.mistake(
    "PyTorch cannot multiply the two as they stand (RuntimeError): a product of T × D "
    "needs D × something. Swap the last two axes of the keys, and only those: `.T` "
    "reverses all four."
)
def _(queries, keys):
    return queries @ keys


@ex.mistake(
    "Your scores hold each query's product with its own key only. Every query meets "
    "every key: that is a matrix product."
)
def _(queries, keys):
    return ((queries * keys).sum(dim=-1) / queries.shape[-1] ** 0.5).softmax(dim=-1)


@ex.mistake(
    "The future is hidden. This exercise has no mask: every query may look at every key."
)
def _(queries, keys):
    scores = dot_products(queries, keys) / queries.shape[-1] ** 0.5
    return scores.masked_fill(future_of(scores), -torch.inf).softmax(dim=-1)


@ex.mistake(
    "Queries and keys are brought to length 1 first, so all scores lie between −1 and 1. "
    "The lengths are to count: only the root of D is divided out."
)
def _(queries, keys):
    queries, keys = F.normalize(queries, dim=-1), F.normalize(keys, dim=-1)
    return dot_products(queries, keys).softmax(dim=-1)


def queries_keys_values_heads():
    """Three tensors (B, T, C) and a number of heads; at last one token, one head."""
    generator = torch.Generator().manual_seed(53)
    normal = lambda *shape: torch.randn(*shape, generator=generator)
    values = torch.tensor([[[1.0, 2, 3, 4], [5, 6, 7, 8]]])
    sizes = (1, 3, 6, 2), (2, 4, 6, 3), (2, 5, 12, 3), (1, 7, 8, 4), (2, 1, 6, 3)
    drawn = [(*(normal(*shape) for _ in range(3)), H) for *shape, H in sizes]
    one_head = (*(normal(2, 3, 4) for _ in range(3)), 1)
    return [(torch.ones(1, 2, 4), torch.ones(1, 2, 4), values, 2), *drawn, one_head]


def attend_with(split, merge, queries, keys, values, n_heads, is_causal=True):
    """Split the features into heads, attend in each, merge, in the ways given."""
    B, T, C = queries.shape
    sizes = B, T, n_heads, C // n_heads
    q, k, v = (split(x, *sizes) for x in (queries, keys, values))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    return merge(mixed).reshape(B, T, C)


def split_well(x, B, T, H, D):
    return x.reshape(B, T, H, D).transpose(1, 2)


# 5.3
ex = Exercise(
    "5.3",
    "Heads that undo themselves",
    why="Splitting and merging must not only undo each other: in between, each row has "
    "to be one token, or tokens cannot read one another.",
    inputs=queries_keys_values_heads,
)


@ex.reference
def _(*args):
    return attend_with(split_well, lambda mixed: mixed.transpose(1, 2), *args)


@ex.bug(
    "Both ways are still without the swap, in other words than before. `view` and "
    "`reshape` cut the numbers in the order in which they lie in memory, token by "
    "token. Which axis has to be cut in two, and what has to move then?"
)
def _(queries, keys, values, n_heads):
    B, T, C = queries.shape
    split = (B, n_heads, T, C // n_heads)
    q, k, v = (x.reshape(split) for x in (queries, keys, values))  # (B, H, T, D)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixed.reshape(B, T, C)


@ex.mistake(
    "Half repaired: the heads are split as they should be, but on the way back they are "
    "not swapped with the tokens, and each output row is glued from several tokens."
)
def _(*args):
    return attend_with(split_well, lambda mixed: mixed, *args)


@ex.mistake(
    "Half repaired: on the way back heads and tokens are swapped, but on the way in "
    "`reshape` alone makes the heads, and each of their rows is a piece of a token."
)
def _(*args):
    split = lambda x, B, T, H, D: x.reshape(B, H, T, D)
    return attend_with(split, lambda mixed: mixed.transpose(1, 2), *args)


@ex.mistake(
    "There is a swap on the way in now, but the cut before it is still the old one. The "
    "features are the last axis of (B, T, C): only that one is to be cut in two, and "
    "then tokens and heads change places. The way back still has no swap."
)
def _(*args):
    split = lambda x, B, T, H, D: x.reshape(B, H, T, D).transpose(1, 2)
    return attend_with(split, lambda mixed: mixed, *args)


@ex.mistake(
    "There are two swaps now, but the cut before the first is still the old one. The "
    "features are the last axis of (B, T, C): only that one is to be cut in two, and "
    "then tokens and heads change places."
)
def _(*args):
    split = lambda x, B, T, H, D: x.reshape(B, H, T, D).transpose(1, 2)
    return attend_with(split, lambda mixed: mixed.transpose(1, 2), *args)


@ex.mistake(
    "The features are cut as they should be, into (B, T, H, D), but tokens and heads do "
    "not change places. Attention works on the last two axes, so now the heads of one "
    "token read one another, and no token reads its neighbors."
)
def _(*args):
    return attend_with(lambda x, *sizes: x.reshape(sizes), lambda mixed: mixed, *args)


@ex.mistake(
    "The features are cut as they should be, into (B, T, H, D), and swapped on the way "
    "back, but not on the way in. Attention works on the last two axes, and those must "
    "be tokens and the features of one head."
)
def _(*args):
    split = lambda x, *sizes: x.reshape(sizes)
    return attend_with(split, lambda mixed: mixed.transpose(1, 2), *args)


@ex.mistake(
    "The swap comes before the cut, so the cut goes through the tokens of a feature. "
    "First cut the features in two, then swap tokens and heads. The way back still has "
    "no swap."
)
def _(*args):
    split = lambda x, B, T, H, D: x.transpose(1, 2).reshape(B, H, T, D)
    return attend_with(split, lambda mixed: mixed, *args)


@ex.mistake(
    "On the way in the swap comes before the cut, so the cut goes through the tokens of "
    "a feature. First cut the features in two, then swap tokens and heads."
)
def _(*args):
    split = lambda x, B, T, H, D: x.transpose(1, 2).reshape(B, H, T, D)
    return attend_with(split, lambda mixed: mixed.transpose(1, 2), *args)


@ex.mistake(
    "You swap the last two axes of (B, T, H, D). Tokens and heads are to change places, "
    "so that each head has a row for each token."
)
def _(*args):
    split = lambda x, *sizes: x.reshape(sizes).transpose(2, 3)
    return attend_with(split, lambda mixed: mixed, *args)


@ex.mistake(
    "The heads are right, but on the way back you flatten tokens and features of each "
    "head into one: before the swap these are the last two axes. Swap first."
)
def _(queries, keys, values, n_heads):
    B, T, C = queries.shape
    split = (B, T, n_heads, C // n_heads)
    q, k, v = (x.reshape(split).transpose(1, 2) for x in (queries, keys, values))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).flatten(2)


@ex.mistake(
    "Heads and head size have changed places: you cut the features into D heads of H "
    "numbers each. The number of heads comes first, then what is left for each."
)
def _(*args):
    split = lambda x, B, T, H, D: x.reshape(B, T, D, H).transpose(1, 2)
    return attend_with(split, lambda mixed: mixed.transpose(1, 2), *args)


@ex.mistake(
    "Heads and head size have changed places, and on the way back nothing is swapped. "
    "The number of heads comes first, then what is left for each."
)
def _(*args):
    split = lambda x, B, T, H, D: x.reshape(B, T, D, H).transpose(1, 2)
    return attend_with(split, lambda mixed: mixed, *args)


@ex.mistake(
    "Your heads take every H-th feature. Head 0 is to have the first D features of each "
    "token, head 1 the next D: in which order do you name the two sizes in the cut?"
)
def _(*args):
    split = lambda x, B, T, H, D: x.reshape(B, T, D, H).permute(0, 3, 1, 2)
    return attend_with(split, lambda mixed: mixed.permute(0, 2, 3, 1), *args)


@ex.mistake(
    "Your heads take every H-th feature on the way in, but give back whole slices. Head "
    "0 is to have the first D features of each token: in which order do you name the "
    "two sizes in the cut?"
)
def _(*args):
    split = lambda x, B, T, H, D: x.reshape(B, T, D, H).permute(0, 3, 1, 2)
    return attend_with(split, lambda mixed: mixed.transpose(1, 2), *args)


@ex.mistake(
    "The heads are split as they should be, but merged with their features alternating. "
    "Merged, the features of one head stand side by side: which two axes do you flatten?"
)
def _(*args):
    return attend_with(split_well, lambda mixed: mixed.permute(0, 2, 3, 1), *args)


@ex.mistake(
    "The heads are split as they should be, but on the way back the wrong two axes are "
    "swapped. Which two did the way in swap?"
)
def _(*args):
    return attend_with(split_well, lambda mixed: mixed.transpose(2, 3), *args)


@ex.mistake(
    "There are no heads any more: the whole width attends at once, with one softmax. "
    "Each head is to attend on its own slice."
)
def _(queries, keys, values, n_heads):
    return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)


@ex.mistake(
    "The heads are right now, but the future is no longer hidden. Leave `is_causal` as "
    "you found it."
)
def _(*args):
    merge = lambda mixed: mixed.transpose(1, 2)
    return attend_with(split_well, merge, *args, is_causal=False)


@ex.mistake(
    "The future is no longer hidden, and the heads are as wrong as before. Leave "
    "`is_causal` as you found it, and look at what `reshape` puts into a head."
)
def _(*args):
    split = lambda x, B, T, H, D: x.reshape(B, H, T, D)
    return attend_with(split, lambda mixed: mixed, *args, is_causal=False)


def slips_in_counting(C=768, H=12):
    """Sentences with the counts that follow from them.

    The counts are those of attention, with biases, with 24 heads, and feed-forward.
    """
    square, piece = C * C, C * C // H
    right, biased = 4 * square + C, 4 * square + 4 * C
    wide = 8 * square + 5 * C
    attention = [
        (
            (
                "Attention: the bias of `out_proj` is missing. It is always there; "
                "`qkv_bias` is about the other three."
            ),
            (right - C, biased - C, right - C),
        ),
        (
            (
                "Attention: the biases are missing where `qkv_bias` is False. It is about "
                "queries, keys and values; `out_proj` always has its own."
            ),
            (right - C, biased, right - C),
        ),
        (
            (
                "Attention: you count matrices only. `out_proj` always has a bias, and the "
                "other three have one each if `qkv_bias` is True."
            ),
            (right - C, right - C, right - C),
        ),
        (
            (
                "Attention: queries, keys and values have a bias only if `qkv_bias` is "
                "True, and by default it is not. You count four biases everywhere."
            ),
            (biased, biased, biased),
        ),
        (
            (
                "Attention: `qkv_bias=True` changes nothing in your count. It gives a bias "
                "to each of three layers."
            ),
            (right, right, right),
        ),
        (
            (
                "Attention: with `qkv_bias=True` you add one bias. There are three layers "
                "that get one."
            ),
            (right, right + C, right),
        ),
        (
            (
                "Attention: with `qkv_bias=True` you add three biases of one head's "
                "size. Each layer returns the features of all heads."
            ),
            (right, right + 3 * C // H, right),
        ),
        (
            (
                "Attention: with `qkv_bias=True` you add three numbers. A bias has one "
                "number for each feature that its layer returns."
            ),
            (right, right + 3, right),
        ),
        (
            (
                "Attention: with `qkv_bias=True` three biases are counted, but that of "
                "`out_proj`, which was there before, is lost."
            ),
            (right, biased - C, right),
        ),
        (
            (
                "Attention: with `qkv_bias=True` you add four biases. That of `out_proj` "
                "was there before."
            ),
            (right, biased + C, right),
        ),
        (
            "Attention: `out_proj` is missing altogether, a fourth matrix with a bias.",
            (3 * square, 3 * square + 3 * C, 3 * square),
        ),
        (
            (
                "Attention: `out_proj` is the fourth matrix. You count three matrices, but "
                "its bias with them."
            ),
            (right - square, biased - square, right - square),
        ),
        (
            (
                "Attention: there are three matrices beside `out_proj`, one each for "
                "queries, keys and values. You count one."
            ),
            (2 * square + C, 2 * square + 2 * C, 2 * square + C),
        ),
        (
            (
                "Attention: you divide by the number of heads. A layer makes the queries of "
                "all heads at once, so it is C × C: heads are slices of what it returns."
            ),
            (
                3 * piece + square + C,
                3 * piece + 3 * C // H + square + C,
                3 * piece // 2 + square + C,
            ),
        ),
        (
            (
                "Attention: the matrices of queries, keys and values are too small, as if "
                "the number of heads divided them. Each makes all C numbers out of all C."
            ),
            (
                3 * piece + square + C,
                3 * piece + square + 4 * C,
                3 * piece // 2 + square + C,
            ),
        ),
        (
            (
                "Attention: you divide all four matrices by the number of heads. Each layer "
                "serves all heads at once, so it is C × C."
            ),
            (4 * piece + C, 4 * piece + 4 * C, 2 * piece + C),
        ),
        (
            (
                "Attention: you count three full matrices for each head. One C × C matrix "
                "makes the queries of all heads: heads are slices of what it returns."
            ),
            (
                3 * H * square + square + C,
                3 * H * (square + C) + square + C,
                6 * H * square + square + C,
            ),
        ),
        (
            (
                "Attention: you multiply by the number of heads. The layers serve all heads "
                "at once: heads are slices of what they return."
            ),
            (H * right, H * biased, 2 * H * right),
        ),
        (
            (
                "Attention: with 24 heads you count twice as many. More heads are thinner "
                "slices of the same features: which layer would change its shape?"
            ),
            (right, biased, 2 * right),
        ),
        (
            (
                "Attention: with 24 heads you count half as many. More heads are thinner "
                "slices of the same features: which layer would change its shape?"
            ),
            (right, biased, right // 2),
        ),
        (
            (
                "Attention: with 24 heads you count the biases too. By default `qkv_bias` "
                "is False, and the number of heads does not change that."
            ),
            (right, biased, biased),
        ),
        (
            (
                "Attention: a bias is not one number. It has one for each feature that the "
                "layer returns."
            ),
            (4 * square + 1, 4 * square + 4, 4 * square + 1),
        ),
        (
            "Attention: you count the mask. It is a buffer, which no training sets.",
            (right + 1024**2, biased + 1024**2, right + 1024**2),
        ),
        (
            (
                "Attention: you count a norm with it. The norms belong to the block, beside "
                "attention, not in it."
            ),
            (right + 2 * C, biased + 2 * C, right + 2 * C),
        ),
        (
            "Attention: you count all twelve blocks. Asked is one.",
            (12 * right, 12 * biased, 12 * right),
        ),
    ]
    feed_forward = [
        (
            "Feed-forward: the biases are missing, one for each of the two layers.",
            wide - 5 * C,
        ),
        (
            (
                "Feed-forward: the bias of the second layer is missing, one number for each "
                "of its outputs."
            ),
            wide - C,
        ),
        (
            (
                "Feed-forward: the bias of the first layer is missing, one number for each "
                "of its 4·C outputs."
            ),
            wide - 4 * C,
        ),
        (
            (
                "Feed-forward: you give both layers a bias of 4·C. A bias has as many "
                "numbers as its layer has outputs: how many has the second?"
            ),
            wide + 3 * C,
        ),
        (
            (
                "Feed-forward: you give both layers a bias of C. A bias has as many numbers "
                "as its layer has outputs: how many has the first?"
            ),
            wide - 3 * C,
        ),
        (
            (
                "Feed-forward: a bias is not one number. It has one for each feature that "
                "the layer returns."
            ),
            wide - 5 * C + 2,
        ),
        (
            "Feed-forward: the widening is missing. In between there are 4·C features.",
            2 * square + 2 * C,
        ),
        (
            (
                "Feed-forward: the widening is missing, since in between there are 4·C "
                "features; and so are the biases of the two layers."
            ),
            2 * square,
        ),
        (
            "Feed-forward: it widens to 4·C features in between. You count with 2·C.",
            4 * square + 3 * C,
        ),
        (
            "Feed-forward: you count the layer that widens; a second one narrows again.",
            4 * square + 4 * C,
        ),
        (
            "Feed-forward: you count the layer that narrows; a first one widens.",
            4 * square + C,
        ),
        (
            (
                "Feed-forward: you count one matrix of C × 4·C and no bias. A second matrix "
                "narrows again, and each layer has a bias."
            ),
            4 * square,
        ),
        (
            (
                "Feed-forward: you count both biases, but one matrix. The layer that "
                "narrows has a matrix of its own, as large as the first."
            ),
            4 * square + 5 * C,
        ),
        (
            (
                "Feed-forward: you square 4·C. Each matrix has C on one side and 4·C on "
                "the other."
            ),
            16 * square + 5 * C,
        ),
        (
            (
                "Feed-forward: you square 4·C, and count no bias. Each matrix has C on "
                "one side and 4·C on the other, and each layer has a bias."
            ),
            16 * square,
        ),
        (
            (
                "Feed-forward: you count a third layer, from 4·C to 4·C. GELU stands there, "
                "and has no parameters."
            ),
            24 * square + 9 * C,
        ),
        (
            (
                "Feed-forward: you count a norm with it. The norms belong to the block, "
                "beside feed-forward, not in it."
            ),
            wide + 2 * C,
        ),
        (
            "Feed-forward: you count all twelve blocks. Asked is one.",
            12 * wide,
        ),
    ]
    parts = (
        "attention",
        "attention with qkv_bias=True",
        "attention with 24 heads",
        "feed-forward",
    )
    all_right = (right, biased, right)
    slips = [(said, (*counts, wide)) for said, counts in attention]
    slips += [(said, (*all_right, count)) for said, count in feed_forward]
    return [(said, dict(zip(parts, counts, strict=True))) for said, counts in slips]


# 5.4
ex = Exercise(
    "5.4",
    "Parameters of attention and feed-forward",
    why="Feed-forward holds twice as many as attention; with the norms they make the "
    "7,085,568 of a block.",
)
ex.reference(
    {
        "attention": 2_360_064,
        "attention with qkv_bias=True": 2_362_368,
        "attention with 24 heads": 2_360_064,
        "feed-forward": 4_722_432,
    }
)
ex.mistake(
    "The numbers of attention and feed-forward have changed places. Which of the two "
    "works on four times the width?"
)(
    {
        "attention": 4_722_432,
        "attention with qkv_bias=True": 4_722_432 + 3 * 768,
        "attention with 24 heads": 4_722_432,
        "feed-forward": 2_360_064,
    }
)
ex.mistakes += slips_in_counting()


def three_rates():
    """Rates for embedding, attention and shortcut, all different."""
    rows = (0.2, 0.3, 0.4), (0.4, 0.2, 0.3)
    return [({"embedding": e, "attention": a, "shortcut": s},) for e, a, s in rows]


def rate_between(before, after):
    """The rate of the dropout that made one out of the other, or what else it is."""
    factors = (after / before)[before.abs() > 1e-4]
    largest = factors.max().item()
    if (factors * (factors - largest)).abs().max() > 1e-6:
        return "not one dropout"
    return round(1 - 1 / largest, 4) if largest else 1.0


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
        if training:  # by nn.Dropout1d, say
            whole_tokens = seen["start"].eq(0).all(dim=-1).double().mean().item()
        before_and_after = {
            "embedding": (embedded, seen["start"]),
            "attention": (seen["read"][:, 0], seen["att"][:, 0]),
            "first shortcut": (seen["att"], seen["halfway"] - seen["start"]),
            "second shortcut": (seen["ff"], end - seen["halfway"]),
        }
        found.append({k: rate_between(*pair) for k, pair in before_and_after.items()})
    return found[0] | {
        "whole tokens dropped": whole_tokens > 0.1,
        "active in eval": [k for k, rate in found[1].items() if rate],
    }


def model_with_rates(embedding, attention, shortcut):
    """A model that takes each rate from the entry named; "cfg" is the config's."""

    class Model(nn.Module):
        def __init__(self, cfg, rates):
            super().__init__()
            self.rates = rates | {"cfg": cfg.drop_rate, "none": 0.0}
            self.tok_emb = nn.Embedding(cfg.vocab_size, cfg.emb_dim)
            self.pos_emb = nn.Embedding(cfg.context_length, cfg.emb_dim)
            self.block = gpt_helpers.TransformerBlock(cfg)
            self.drop_emb = nn.Dropout(self.rates[embedding])
            self.block.att.dropout.p = self.rates[attention]
            self.block.drop_shortcut.p = self.rates[shortcut]

        def embed(self, idx):
            return self.tok_emb(idx) + self.pos_emb(torch.arange(idx.shape[1]))

        def forward(self, idx):
            return self.block(self.drop_emb(self.embed(idx)))

    return Model


# 5.5
ex = Exercise(
    "5.5",
    "Three dropout rates",
    why="Now each kind of place can be tried with a rate of its own, and none of them "
    "drops anything once the model is in use.",
    inputs=three_rates,
    call=rates_in_effect,
)
ex.reference(model_with_rates("embedding", "attention", "shortcut"))

ex.mistake(
    "The rates of attention and shortcut are swapped. Which of the block's dropouts "
    "acts on the weights, and which on what is added to the shortcut?"
)(model_with_rates("embedding", "shortcut", "attention"))
ex.mistake(
    "The rates of embedding and attention are swapped. The embeddings' dropout is the "
    "one that acts before the block."
)(model_with_rates("attention", "embedding", "shortcut"))
ex.mistake(
    "The rates of embedding and shortcut are swapped. The embeddings' dropout is the "
    "one that acts before the block."
)(model_with_rates("shortcut", "attention", "embedding"))
ex.mistake(
    "No dropout has its own rate: the embeddings have the shortcut's, attention the "
    "embeddings', the shortcut attention's. Match the three names one by one."
)(model_with_rates("shortcut", "embedding", "attention"))
ex.mistake(
    "No dropout has its own rate: the embeddings have attention's, attention the "
    "shortcut's, the shortcut the embeddings'. Match the three names one by one."
)(model_with_rates("attention", "shortcut", "embedding"))
ex.mistake("Every dropout has the embeddings' rate. There is one for each place.")(
    model_with_rates("embedding", "embedding", "embedding")
)
ex.mistake("Every dropout has attention's rate. There is one for each place.")(
    model_with_rates("attention", "attention", "attention")
)
ex.mistake("Every dropout has the shortcut's rate. There is one for each place.")(
    model_with_rates("shortcut", "shortcut", "shortcut")
)
ex.mistake(
    "Both dropouts of the block have attention's rate. A configuration with another "
    "`drop_rate` changes both at once; the shortcut's needs a rate of its own."
)(model_with_rates("embedding", "attention", "attention"))
ex.mistake(
    "Both dropouts of the block have the shortcut's rate. A configuration with another "
    "`drop_rate` changes both at once; attention's needs a rate of its own."
)(model_with_rates("embedding", "shortcut", "shortcut"))
ex.mistake("Attention has the embeddings' rate. There is one for each place.")(
    model_with_rates("embedding", "embedding", "shortcut")
)
ex.mistake("The shortcut has the embeddings' rate. There is one for each place.")(
    model_with_rates("embedding", "attention", "embedding")
)
ex.mistake("The embeddings have attention's rate. There is one for each place.")(
    model_with_rates("attention", "attention", "shortcut")
)
ex.mistake("The embeddings have the shortcut's rate. There is one for each place.")(
    model_with_rates("shortcut", "attention", "shortcut")
)
ex.mistake(
    "Attention still has the configuration's `drop_rate`. Which module of the block "
    "drops attention weights, and what is it called there? A new attribute of another "
    "name is used by nobody."
)(model_with_rates("embedding", "cfg", "shortcut"))
ex.mistake(
    "The shortcut still has the configuration's `drop_rate`. Which module of the block "
    "acts on what is added, and what is it called there? A new attribute of another "
    "name is used by nobody."
)(model_with_rates("embedding", "attention", "cfg"))
ex.mistake(
    "The embeddings have their rate, but the block's two dropouts still have the "
    "configuration's `drop_rate`. Which two modules drop, and what is their rate called "
    "in there? A new attribute of another name, or on another module, is used by nobody."
)(model_with_rates("embedding", "cfg", "cfg"))
ex.mistake(
    "The embeddings have the configuration's `drop_rate`. Their own stands in `rates`."
)(model_with_rates("cfg", "attention", "shortcut"))
ex.mistake(
    "Every dropout has the configuration's `drop_rate`: your class does not look into "
    "`rates`."
)(model_with_rates("cfg", "cfg", "cfg"))
ex.mistake(
    "The block is right, but the embeddings reach it whole. Is there a dropout for "
    "them, and does `forward` use it?"
)(model_with_rates("none", "attention", "shortcut"))
ex.mistake(
    "The embeddings reach the block whole, and its dropouts still have the "
    "configuration's `drop_rate`. Give all three places their rates."
)(model_with_rates("none", "cfg", "cfg"))
ex.mistake(
    "The embeddings reach the block whole, and the block has attention's rate at both "
    "of its places. Three places, three rates."
)(model_with_rates("none", "attention", "attention"))
ex.mistake(
    "Your rates are the shares that are kept. `nn.Dropout` wants the share that is "
    "dropped, and that is what `rates` holds."
)(
    lambda cfg, rates: model_with_rates("embedding", "attention", "shortcut")(
        cfg, {place: 1 - rate for place, rate in rates.items()}
    )
)


@ex.mistake(
    "The rates are right, but in evaluation the embeddings are still dropped. "
    "`F.dropout` drops unless it is told that training is over, and an `nn.Dropout` "
    "made in `forward` is always new and in training mode: make it in `__init__`."
)
class _(model_with_rates("embedding", "attention", "shortcut")):
    def forward(self, idx):
        return self.block(F.dropout(self.embed(idx), self.rates["embedding"]))


@ex.mistake(
    "Two things at once. In evaluation the embeddings are still dropped, because "
    "`F.dropout` is not told that training is over; and the block's two dropouts have "
    "kept the configuration's `drop_rate`."
)
class _(model_with_rates("embedding", "cfg", "cfg")):
    def forward(self, idx):
        return self.block(F.dropout(self.embed(idx), self.rates["embedding"]))


@ex.mistake(
    "The embeddings are dropped only in evaluation, and not in training: is the flag "
    "that you give to `F.dropout` the right way round?"
)
class _(model_with_rates("embedding", "attention", "shortcut")):
    def forward(self, idx):
        rate = self.rates["embedding"]
        return self.block(F.dropout(self.embed(idx), rate, not self.training))


@ex.mistake(
    "The embeddings' dropout does not act on the sum. Add token and position vectors "
    "first, then drop once: a number is to vanish with both of its parts."
)
class _(model_with_rates("embedding", "attention", "shortcut")):
    def forward(self, idx):
        positions = torch.arange(idx.shape[1])
        return self.block(self.drop_emb(self.tok_emb(idx)) + self.pos_emb(positions))


@ex.mistake(
    "The embeddings' dropout acts twice, so that more is dropped than its rate says."
)
class _(model_with_rates("embedding", "attention", "shortcut")):
    def forward(self, idx):
        return self.block(self.drop_emb(self.drop_emb(self.embed(idx))))


@ex.mistake(
    "The embeddings reach the block whole, and something is dropped from what comes out "
    "of it. Their dropout belongs between the embeddings and the block."
)
class _(model_with_rates("embedding", "attention", "shortcut")):
    def forward(self, idx):
        return self.drop_emb(self.block(self.embed(idx)))


@ex.mistake(
    "Something is dropped from what comes out of the block, too. The block has its own "
    "dropouts inside, and what it returns is the output."
)
class _(model_with_rates("embedding", "attention", "shortcut")):
    def forward(self, idx):
        return self.drop_emb(self.block(self.drop_emb(self.embed(idx))))


@ex.mistake(
    "Your dropout for the shortcut stands behind the block, and the block's own still "
    "has the configuration's `drop_rate`. Find the one that acts inside."
)
class _(model_with_rates("embedding", "attention", "cfg")):
    def forward(self, idx):
        x = self.block(self.drop_emb(self.embed(idx)))
        return F.dropout(x, self.rates["shortcut"], self.training)


@ex.mistake(
    "You put dropouts of your own before and behind the block. Those of attention and "
    "shortcut are inside it, and still have the configuration's `drop_rate`."
)
class _(model_with_rates("embedding", "cfg", "cfg")):
    def forward(self, idx):
        drop_attention = nn.Dropout(self.rates["attention"]).train(self.training)
        x = drop_attention(self.drop_emb(self.embed(idx)))
        return F.dropout(self.block(x), self.rates["shortcut"], self.training)
