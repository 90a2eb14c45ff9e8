"""The exercises of lesson 7 · Generating text."""

import torch
import torch.nn.functional as F
from torch import nn

import gpt_helpers

from .engine import Exercise


def scores_of_several_texts():
    generator = torch.Generator().manual_seed(71)
    made = [(torch.tensor([[[5.0, 1.0, 0.0], [0.0, 2.0, 7.0]]]),)]
    # (B, T, V), never two of a size, and more tokens than texts or the other way round
    for sizes in (2, 3, 5), (3, 2, 7), (4, 5, 6), (5, 4, 3):
        made.append((torch.randn(sizes, generator=generator),))
    return made


ex = Exercise(
    "7.1",
    "One greedy step",
    why="Put this column at the end of the ids and ask again: that is all of "
    "`generate_text_simple`.",
    inputs=scores_of_several_texts,
)


@ex.reference
def _(logits):
    return logits[:, -1].argmax(dim=-1, keepdim=True)


ex.mistake(
    "You took the first position's scores. They are about the second token, which is "
    "there already; which position is about the token that is not?"
)(lambda logits: logits[:, 0].argmax(dim=-1, keepdim=True))

ex.mistake(
    "Two things: you took the first position's scores, not the last one's; and the "
    "ids come as one axis (B), not as a column (B, 1)."
)(lambda logits: logits[:, 0].argmax(dim=-1))

ex.mistake(
    "You took the last position but one. Its scores are about the token that is last "
    "already: count from the end, where −1 is the last."
)(lambda logits: logits[:, -2].argmax(dim=-1, keepdim=True))

ex.mistake(
    "The ids are right, but they come as one axis (B). To be put at the end of each "
    "row they must be a column (B, 1): look at `keepdim`."
)(lambda logits: logits[:, -1].argmax(dim=-1))

ex.mistake(
    "The ids stand side by side in one row (1, B), as if they went on one text. They "
    "belong to B texts: a column (B, 1), in which each text has a row."
)(lambda logits: logits[:, -1].argmax(dim=-1)[None])

ex.mistake(
    "The ids are right, with an axis too many, (B, 1, 1). You kept the axis of the "
    "positions, with length 1, and that of the vocabulary, too: one of them must go."
)(lambda logits: logits[:, -1:].argmax(dim=-1, keepdim=True))

ex.mistake(
    "That is the favorite of every position, (B, T). Only the last position is about "
    "a token that is not there yet."
)(lambda logits: logits.argmax(dim=-1))

ex.mistake(
    "That is the favorite of every position, (B, T, 1), with the vocabulary's axis "
    "kept. Only the last position is about a token that is not there yet."
)(lambda logits: logits.argmax(dim=-1, keepdim=True))

ex.mistake(
    "You looked for the largest along the positions (dim=1): for each vocabulary entry "
    "the position that likes it best. Compare the vocabulary entries of one position."
)(lambda logits: logits.argmax(dim=1))

ex.mistake(
    "You looked for the largest along the positions (dim=1), with that axis kept. Pick "
    "the last position first, then compare its vocabulary entries."
)(lambda logits: logits.argmax(dim=1, keepdim=True))

ex.mistake(
    "You looked for the largest along the batch: for each vocabulary entry the text "
    "that likes it best. Texts do not compete; which axis holds the vocabulary?"
)(lambda logits: logits[:, -1].argmax(dim=0, keepdim=True))

ex.mistake(
    "You looked for the largest along the batch, and the axis is gone: one number for "
    "each vocabulary entry, (V). Which axis holds the vocabulary, and who keeps it?"
)(lambda logits: logits[:, -1].argmax(dim=0))

ex.mistake(
    "You took the last text instead of the last position. The first axis counts the "
    "texts; the positions are on the second."
)(lambda logits: logits[-1].argmax(dim=-1, keepdim=True))

ex.mistake(
    "You took the last text instead of the last position, and the ids come without the "
    "axis of length 1. The positions are on the second axis."
)(lambda logits: logits[-1].argmax(dim=-1))

ex.mistake(
    "You took the last vocabulary entry and asked at which position it is largest. It "
    "is the position that should be the last: look at the order of the axes."
)(lambda logits: logits[..., -1].argmax(dim=-1, keepdim=True))

ex.mistake(
    "You answered for the first text only, with a single number. Each text of the "
    "batch gets an id of its own."
)(lambda logits: logits[0, -1].argmax())

ex.mistake(
    "You answered for the first text only. Each text of the batch gets an id of its "
    "own: the axis of the texts must stay."
)(lambda logits: logits[0, -1].argmax(dim=-1, keepdim=True))

ex.mistake(
    "You answered for the first text only; the column has one row. Each text of the "
    "batch gets an id of its own."
)(lambda logits: logits[:1, -1].argmax(dim=-1, keepdim=True))

ex.mistake(
    "`argmax` without `dim` numbers all entries of all texts through and returns one "
    "number. Say along which axis it should look."
)(lambda logits: logits[:, -1].argmax())

ex.mistake(
    "`argmax` without `dim` numbers all entries of the whole tensor through and "
    "returns one number. Pick the last position, and say along which axis to look."
)(lambda logits: logits.argmax())

ex.mistake(
    "These are the largest scores themselves. Asked is where they stand: a token's id "
    "is its place on the vocabulary axis."
)(lambda logits: logits[:, -1].amax(dim=-1, keepdim=True))

ex.mistake(
    "These are the largest scores themselves, on one axis. Asked is where they stand, "
    "as a column (B, 1)."
)(lambda logits: logits[:, -1].amax(dim=-1))

ex.mistake(
    "These are the shares of the favorites. Asked are the favorites: the places at "
    "which those shares stand."
)(lambda logits: logits[:, -1].softmax(dim=-1).amax(dim=-1, keepdim=True))

ex.mistake(
    "You return two tensors: `max` and `topk` give the largest values and, second, the "
    "places where they stand. Which of the two are ids?"
)(lambda logits: tuple(logits[:, -1].max(dim=-1, keepdim=True)))

ex.mistake(
    "You return two tensors without the axis of length 1. `max` gives the largest "
    "values and, second, the places where they stand: the ids, wanted as (B, 1)."
)(lambda logits: tuple(logits[:, -1].max(dim=-1)))

ex.mistake("Those are the least likely tokens: you look for the smallest score.")(
    lambda logits: logits[:, -1].argmin(dim=-1, keepdim=True)
)

ex.mistake(
    "A softmax along the batch lets the texts compete and changes who wins. Along the "
    "vocabulary it keeps the order; you can also leave it out."
)(lambda logits: logits[:, -1].softmax(dim=0).argmax(dim=-1, keepdim=True))

ex.mistake(
    "A softmax along the positions lets them compete and changes who wins. Along the "
    "vocabulary it keeps the order; you can also leave it out."
)(lambda logits: logits.softmax(dim=1)[:, -1].argmax(dim=-1, keepdim=True))

ex.mistake(
    "You draw by chance. Greedy decoding takes the largest score, the same every time."
)(lambda logits: torch.multinomial(logits[:, -1].softmax(dim=-1), 1))

ex.mistake(
    "You add up or average the positions. Each position's scores are about another "
    "token: only the last position's are about the next one."
)(lambda logits: logits.mean(dim=1).argmax(dim=-1, keepdim=True))

ex.mistake(
    "You take the largest score of any position. Each position's scores are about "
    "another token: only the last position's are about the next one."
)(lambda logits: logits.amax(dim=1).argmax(dim=-1, keepdim=True))

ex.mistake(
    "The ids are right, but written as decimals. An embedding looks rows up with "
    "integers: leave the ids as `argmax` gives them."
)(lambda logits: logits[:, -1].argmax(dim=-1, keepdim=True).to(logits.dtype))

ex.mistake(
    "The tokens are right, but written as rows of zeros with a single one. An id is "
    "the place of that one, a single integer."
)(lambda logits: F.one_hot(logits[:, -1].argmax(dim=-1), logits.shape[-1]))

ex.mistake(
    "These are the last position's scores, (B, V), all of them. Asked are the places "
    "of the largest ones, one id for each text."
)(lambda logits: logits[:, -1])

ex.mistake(
    "These are the last position's shares, (B, V), all of them. Asked are the places "
    "of the largest ones, one id for each text."
)(lambda logits: logits[:, -1].softmax(dim=-1))

ex.mistake(
    "You number all T·V scores of a text through. Pick the last position first; then "
    "a place on the vocabulary axis is an id."
)(lambda logits: logits.flatten(1).argmax(dim=-1, keepdim=True))


# 7.2
def scores_with_a_temperature():
    generator = torch.Generator().manual_seed(72)
    by_hand = torch.tensor([[9.0, 4.0, 1.0]]).log()
    close = torch.tensor([[1.0, -2.0, 1.05, 0.5], [-3.0, -0.5, -0.6, -2.0]])
    made = [(by_hand, 0.5), (by_hand.clone(), 0.0), (close, 2.0), (close.clone(), 0.0)]
    for sizes, temperature in (((3, 5), 0.3), ((4, 6), 1.0), ((5, 3), 0.0)):
        made.append((2 * torch.randn(sizes, generator=generator), temperature))
    # near 100 no 32-bit number can hold the exponentials
    made.append((100 - 6 * torch.rand(3, 4, generator=generator), 0.8))
    return made


def all_on_the_largest(logits):
    return F.one_hot(logits.argmax(dim=-1), logits.shape[-1]).to(logits.dtype)


def zero_apart(answer):
    def apart(logits, temperature):
        if temperature == 0:
            return all_on_the_largest(logits)
        return answer(logits, temperature)

    return apart


ex = Exercise(
    "7.2",
    "Shares at a temperature",
    why="Temperature 0 is greedy decoding, the limit of ever colder temperatures: one "
    "knob leads from the best token to pure chance.",
    inputs=scores_with_a_temperature,
    tolerance=1e-4,
)


ex.reference(zero_apart(lambda logits, temperature: (logits / temperature).softmax(-1)))


ex.mistake(
    "You multiply the logits by the temperature, or raise the shares to its power. So "
    "cold and heat have changed places: in the cold your shares are more alike."
)(zero_apart(lambda logits, temperature: (logits * temperature).softmax(dim=-1)))

ex.mistake(
    "Two things. You multiply the logits by the temperature, or raise the shares to "
    "its power. So cold and heat have changed places: in the cold your shares are "
    "more alike. And temperature 0 still needs a case of its own."
)(lambda logits, temperature: (logits * temperature).softmax(dim=-1))

ex.mistake(
    "You divide the shares, and they no longer add up to 1. The temperature acts on "
    "the logits, and the softmax comes after it."
)(zero_apart(lambda logits, temperature: logits.softmax(dim=-1) / temperature))

ex.mistake(
    "Two things. You divide the shares, and they no longer add up to 1. The "
    "temperature acts on the logits, and the softmax comes after it. And temperature "
    "0 still needs a case of its own."
)(lambda logits, temperature: logits.softmax(dim=-1) / temperature)

ex.mistake(
    "You multiply the shares, and they no longer add up to 1. The temperature acts on "
    "the logits, by division, and the softmax comes after it."
)(zero_apart(lambda logits, temperature: logits.softmax(dim=-1) * temperature))

ex.mistake(
    "Two things. You multiply the shares, and they no longer add up to 1. The "
    "temperature acts on the logits, by division, and the softmax comes after it. And "
    "temperature 0 still needs a case of its own."
)(lambda logits, temperature: logits.softmax(dim=-1) * temperature)

ex.mistake(
    "Your temperature has no effect above 0. A number that all shares are divided by, "
    "or all logits moved by, cancels in the end: what must it do to the logits, "
    "before the softmax?"
)(zero_apart(lambda logits, temperature: logits.softmax(dim=-1)))

ex.mistake(
    "Two things. Your temperature has no effect above 0. A number that all shares are "
    "divided by, or all logits moved by, cancels in the end: what must it do to the "
    "logits, before the softmax? And at 0 the favorite gets all."
)(lambda logits, temperature: logits.softmax(dim=-1))

ex.mistake(
    "Two things. If you divide the shares and then make them add up to 1 again, the "
    "factor cancels: it must act on the logits. And at temperature 0 you divide by "
    "zero."
)(
    lambda logits, temperature: F.normalize(
        logits.softmax(dim=-1) / temperature, p=1, dim=-1, eps=0
    )
)

ex.mistake(
    "Above 0 all is right. At temperature 0 you divide by zero, and the shares are no "
    "numbers (nan): this case needs a line of its own, before the division."
)(lambda logits, temperature: (logits / temperature).softmax(dim=-1))

ex.mistake(
    "Above 0 all is right. At temperature 0 Python refuses to divide 1 by zero: this "
    "case needs a line of its own, before the division."
)(lambda logits, temperature: (logits * (1 / temperature)).softmax(dim=-1))

ex.mistake(
    "Above 0 all is right. At temperature 0 you give all tokens equal shares; that is "
    "endless heat. In the cold the favorite gets everything."
)(
    lambda logits, temperature: (
        torch.full_like(logits, 1 / logits.shape[-1])
        if temperature == 0
        else (logits / temperature).softmax(dim=-1)
    )
)

ex.mistake(
    "Above 0 all is right. At temperature 0 you leave the logits as they are, which "
    "is temperature 1. In the cold the favorite gets everything."
)(
    lambda logits, temperature: (
        logits.softmax(dim=-1)
        if temperature == 0
        else (logits / temperature).softmax(dim=-1)
    )
)

ex.mistake(
    "Above 0 all is right. At temperature 0 you return the logits. Asked are shares: "
    "1 for the largest logit of a row, 0 for the others."
)(
    lambda logits, temperature: (
        logits if temperature == 0 else (logits / temperature).softmax(dim=-1)
    )
)

ex.mistake(
    "Above 0 all is right. At temperature 0 you return zeros only. The shares of a "
    "row add up to 1: the largest logit gets all of it."
)(
    lambda logits, temperature: (
        torch.zeros_like(logits)
        if temperature == 0
        else (logits / temperature).softmax(dim=-1)
    )
)

ex.mistake(
    "Above 0 all is right. At temperature 0 you return ids, (B). Asked are shares, "
    "(B, V), as at every temperature: 1 where the largest logit stands, 0 elsewhere."
)(
    lambda logits, temperature: (
        logits.argmax(dim=-1)
        if temperature == 0
        else (logits / temperature).softmax(dim=-1)
    )
)

ex.mistake(
    "Above 0 all is right. At temperature 0 you return ids, (B, 1). Asked are shares, "
    "(B, V), as at every temperature: 1 where the largest logit stands, 0 elsewhere."
)(
    lambda logits, temperature: (
        logits.argmax(dim=-1, keepdim=True)
        if temperature == 0
        else (logits / temperature).softmax(dim=-1)
    )
)

ex.mistake(
    "Above 0 all is right. At temperature 0 you look for the largest logit of the "
    "whole batch, so only one row has a favorite. Each row has its own."
)(
    lambda logits, temperature: (
        (logits == logits.max()).float()
        if temperature == 0
        else (logits / temperature).softmax(dim=-1)
    )
)

ex.mistake(
    "Above 0 all is right. At temperature 0 you look for the largest along the batch "
    "(dim=0), so the rows compete. Each row has its own favorite."
)(
    lambda logits, temperature: (
        (logits == logits.amax(dim=0)).float()
        if temperature == 0
        else (logits / temperature).softmax(dim=-1)
    )
)

ex.mistake(
    "Above 0 all is right. At temperature 0 your largest logit keeps its value. Asked "
    "are shares: it gets 1."
)(
    lambda logits, temperature: (
        logits * all_on_the_largest(logits)
        if temperature == 0
        else (logits / temperature).softmax(dim=-1)
    )
)

ex.mistake(
    "Above 0 all is right. At temperature 0 you hide the others with minus infinity "
    "and return logits. Asked are shares: the softmax is missing."
)(
    lambda logits, temperature: (
        logits.masked_fill(all_on_the_largest(logits) == 0, -torch.inf)
        if temperature == 0
        else (logits / temperature).softmax(dim=-1)
    )
)

ex.mistake(
    "Above 0 all is right. At temperature 0 you return True and False. Asked are "
    "shares, which are decimals: 1.0 and 0.0."
)(
    lambda logits, temperature: (
        all_on_the_largest(logits).bool()
        if temperature == 0
        else (logits / temperature).softmax(dim=-1)
    )
)

ex.mistake(
    "Above 0 all is right. At temperature 0 the smallest logit gets everything. It is "
    "the largest that does."
)(
    lambda logits, temperature: (
        all_on_the_largest(-logits)
        if temperature == 0
        else (logits / temperature).softmax(dim=-1)
    )
)

ex.mistake(
    "At temperature 0 all is right. Above 0 you still give everything to the largest "
    "logit, as if it were always 0: look at your condition."
)(lambda logits, temperature: all_on_the_largest(logits))

ex.mistake(
    "The softmax runs along the batch, so the shares add up to 1 in each column. The "
    "tokens of one row compete: look at `dim`."
)(zero_apart(lambda logits, temperature: (logits / temperature).softmax(dim=0)))

ex.mistake(
    "Two things. The softmax runs along the batch, so the shares add up to 1 in each "
    "column. The tokens of one row compete: look at `dim`. And temperature 0 still "
    "needs a case of its own."
)(lambda logits, temperature: (logits / temperature).softmax(dim=0))

ex.mistake(
    "The softmax runs over the whole batch, so all rows together share a single 1. "
    "Each row has a 1 of its own: look at `dim`."
)(
    zero_apart(
        lambda logits, temperature: (
            (logits / temperature).flatten().softmax(dim=0).reshape(logits.shape)
        )
    )
)

ex.mistake(
    "Two things. The softmax runs over the whole batch, so all rows together share a "
    "single 1. Each row has a 1 of its own: look at `dim`. And temperature 0 still "
    "needs a case of its own."
)(
    lambda logits, temperature: (
        (logits / temperature).flatten().softmax(dim=0).reshape(logits.shape)
    )
)

ex.mistake("These are the divided logits, not shares: the softmax is missing.")(
    zero_apart(lambda logits, temperature: logits / temperature)
)

ex.mistake(
    "Two things. These are the divided logits, not shares: the softmax is missing. "
    "And temperature 0 still needs a case of its own."
)(lambda logits, temperature: logits / temperature)

ex.mistake(
    "These are logarithms of shares. They are negative, and shares are not: look at "
    "which softmax you call."
)(zero_apart(lambda logits, temperature: (logits / temperature).log_softmax(dim=-1)))

ex.mistake(
    "Two things. These are logarithms of shares. They are negative, and shares are "
    "not: look at which softmax you call. And temperature 0 still needs a case of its "
    "own."
)(lambda logits, temperature: (logits / temperature).log_softmax(dim=-1))

ex.mistake(
    "You apply the softmax twice: what you divide by the temperature are shares "
    "already, not logits."
)(
    zero_apart(
        lambda logits, temperature: (logits.softmax(dim=-1) / temperature).softmax(
            dim=-1
        )
    )
)

ex.mistake(
    "Two things. You apply the softmax twice: what you divide by the temperature are "
    "shares already, not logits. And temperature 0 still needs a case of its own."
)(lambda logits, temperature: (logits.softmax(dim=-1) / temperature).softmax(dim=-1))

ex.mistake(
    "Your shares do not add up to 1. Raised to a power, they must be divided by their "
    "new sum, row by row."
)(zero_apart(lambda logits, temperature: logits.softmax(dim=-1) ** (1 / temperature)))

ex.mistake(
    "Two things. Your shares do not add up to 1. Raised to a power, they must be "
    "divided by their new sum, row by row. And temperature 0 still needs a case of "
    "its own."
)(lambda logits, temperature: logits.softmax(dim=-1) ** (1 / temperature))

ex.mistake(
    "The exponentials are right but not divided by their sum, so they are weights and "
    "not shares."
)(zero_apart(lambda logits, temperature: (logits / temperature).exp()))

ex.mistake(
    "Two things. The exponentials are right but not divided by their sum, so they are "
    "weights and not shares. And temperature 0 still needs a case of its own."
)(lambda logits, temperature: (logits / temperature).exp())

ex.mistake(
    "For logits near 100 your exponentials are infinite: 32-bit numbers end near "
    "e^88. PyTorch's softmax avoids it; by hand, subtract each row's largest value "
    "first."
)(
    zero_apart(
        lambda logits, temperature: (
            (logits / temperature).exp()
            / (logits / temperature).exp().sum(-1, keepdim=True)
        )
    )
)

ex.mistake(
    "Two things. For logits near 100 your exponentials are infinite: 32-bit numbers "
    "end near e^88. PyTorch's softmax avoids it; by hand, subtract each row's largest "
    "value first. And temperature 0 still needs a case of its own."
)(
    lambda logits, temperature: (
        (logits / temperature).exp()
        / (logits / temperature).exp().sum(-1, keepdim=True)
    )
)

ex.mistake(
    "It works for one row and fails for several: a sum without `keepdim` has the "
    "shape (B), which does not fit (B, V)."
)(
    zero_apart(
        lambda logits, temperature: (
            (logits / temperature).exp() / (logits / temperature).exp().sum(-1)
        )
    )
)

ex.mistake(
    "Two things. It works for one row and fails for several: a sum without `keepdim` "
    "has the shape (B), which does not fit (B, V). And temperature 0 still needs a "
    "case of its own."
)(
    lambda logits, temperature: (
        (logits / temperature).exp() / (logits / temperature).exp().sum(-1)
    )
)

ex.mistake(
    "Above 0 all is right. At temperature 0 you put about a tenth in its place, which "
    "is not cold enough: where two logits are close, both still get something."
)(lambda logits, temperature: (logits / max(temperature, 0.1)).softmax(dim=-1))

ex.mistake(
    "Above 0 all is right. At temperature 0 you put about a hundredth in its place, "
    "which is not cold enough: where two logits are close, both still get something."
)(lambda logits, temperature: (logits / max(temperature, 0.01)).softmax(dim=-1))

ex.mistake(
    "Above 0 all is right. At temperature 0 each row has a 1 at the favorites of all "
    "rows: with `[:, places] = 1` you write into these columns of every row."
)(
    lambda logits, temperature: (
        all_on_the_largest(logits).amax(dim=0).expand_as(logits)
        if temperature == 0
        else (logits / temperature).softmax(dim=-1)
    )
)

ex.mistake(
    "You draw tokens and return their ids. Asked is what comes before the draw: the "
    "shares, (B, V)."
)(
    lambda logits, temperature: (
        logits.argmax(dim=-1, keepdim=True)
        if temperature == 0
        else torch.multinomial((logits / temperature).softmax(dim=-1), 1)
    )
)

ex.mistake(
    "Your sum runs over the whole batch, so all rows together share a single 1: look "
    "at `dim` and `keepdim`. (And near 100 the exponentials are infinite.)"
)(
    zero_apart(
        lambda logits, temperature: (
            (logits / temperature).exp() / (logits / temperature).exp().sum()
        )
    )
)

ex.mistake(
    "Two things. Your sum runs over the whole batch, so all rows together share a "
    "single 1: look at `dim` and `keepdim`. And temperature 0 still needs a case of "
    "its own."
)(
    lambda logits, temperature: (
        (logits / temperature).exp() / (logits / temperature).exp().sum()
    )
)

ex.mistake(
    "Two things. For logits near 100 your exponentials are infinite: subtract each "
    "row's largest first, or use PyTorch's softmax. And 1 / 0 is refused at "
    "temperature 0."
)(
    lambda logits, temperature: (
        logits.exp() ** (1 / temperature)
        / (logits.exp() ** (1 / temperature)).sum(dim=-1, keepdim=True)
    )
)

ex.mistake(
    "Two things. You raise the shares to the power of the temperature, which is upside "
    "down. And after a power they must be divided by their new sum, row by row."
)(zero_apart(lambda logits, temperature: logits.softmax(dim=-1) ** temperature))

ex.mistake(
    "Three things. Shares are raised to a power upside down, to the temperature itself; "
    "afterward they must be made to add up to 1; and temperature 0 is a case of its own."
)(lambda logits, temperature: logits.softmax(dim=-1) ** temperature)


# 7.3
def scores_with_a_k():
    generator = torch.Generator().manual_seed(73)
    made = [(torch.tensor([[5.0, 1.0, 3.0]]), 2)]
    made.append((torch.tensor([[12.0, 15.0, 11.0, 10.0], [2.0, -1.0, 0.5, 1.0]]), 2))
    # no two logits of a row are equal, and the rows of a batch differ in level;
    # k is 1, between B and V, below B, V + 1, and beyond all
    for texts, vocabulary, k in (3, 5, 1), (2, 6, 4), (4, 7, 3), (3, 4, 5), (2, 5, 99):
        level = 4 * torch.randn(texts, 1, generator=generator)
        made.append((level + torch.randn(texts, vocabulary, generator=generator), k))
    return made


def hide(logits, hidden):
    return logits.masked_fill(hidden, -torch.inf)


def kth_best(logits, k):
    return logits.topk(k).values[:, -1:]  # (B, 1)


def kth_in_order(logits, place, descending=True):
    return logits.sort(dim=-1, descending=descending).values[:, place, None]


def k_at_most_v(answer):
    return lambda logits, k: answer(logits, min(k, logits.shape[-1]))


ex = Exercise(
    "7.3",
    "Hide all but the k best",
    why="Softmax gives minus infinity the weight 0, so the k tokens that are left have "
    "the whole probability to share, in the old proportions.",
    inputs=scores_with_a_k,
)

ex.reference(k_at_most_v(lambda logits, k: hide(logits, logits < kth_best(logits, k))))

ex.mistake(
    "You keep k − 1: the k-th best is hidden with the rest. Look at how you compare "
    "with the threshold, or at how many you ask for."
)(k_at_most_v(lambda logits, k: hide(logits, logits <= kth_best(logits, k))))

ex.mistake(
    "Two things. You keep k − 1: the k-th best is hidden with the rest. Look at how "
    "you compare with the threshold, or at how many you ask for. And a k above V is "
    "refused by `topk`."
)(lambda logits, k: hide(logits, logits <= kth_best(logits, k)))

ex.mistake(
    "Two things. You keep k − 1: the k-th best is hidden with the rest. And a k above "
    "V asks for a place that does not exist."
)(lambda logits, k: hide(logits, logits <= kth_in_order(logits, k - 1)))

ex.mistake(
    "You keep k − 1 where k is below V: the k-th best is hidden with the rest. Look "
    "at how you compare with the threshold, or at how many you ask for."
)(
    lambda logits, k: (
        logits if k >= logits.shape[-1] else hide(logits, logits <= kth_best(logits, k))
    )
)

ex.mistake(
    "You keep k − 1, and at k = 1 all: your threshold is the last but one of the k "
    "best, and a place of −1 counts from the end."
)(k_at_most_v(lambda logits, k: hide(logits, logits < kth_in_order(logits, k - 2))))

ex.mistake(
    "You keep k + 1. The k-th best stands at place k − 1, since places count from 0."
)(
    lambda logits, k: hide(
        logits, logits < kth_best(logits, min(k + 1, logits.shape[-1]))
    )
)

ex.mistake(
    "Two things. You keep k + 1; the k-th best stands at place k − 1, since places "
    "count from 0. And a k above V asks for a place that does not exist."
)(lambda logits, k: hide(logits, logits < kth_in_order(logits, k)))

ex.mistake(
    "Two things. You keep k + 1: count again how many you ask for. And a k above V is "
    "refused by `topk`."
)(lambda logits, k: hide(logits, logits < kth_best(logits, k + 1)))

ex.mistake(
    "One threshold serves the whole batch, the lowest of all rows, so rows with high "
    "logits keep too many. Each row needs its own, as a column (B, 1)."
)(k_at_most_v(lambda logits, k: hide(logits, logits < kth_best(logits, k).min())))

ex.mistake(
    "Two things. One threshold serves the whole batch, the lowest of all rows, so "
    "rows with high logits keep too many. Each row needs its own, as a column (B, 1). "
    "And a k above V is refused by `topk`."
)(lambda logits, k: hide(logits, logits < kth_best(logits, k).min()))

ex.mistake(
    "One threshold serves the whole batch, the highest of all rows, so rows with low "
    "logits are hidden entirely. Each row needs its own, as a column (B, 1)."
)(k_at_most_v(lambda logits, k: hide(logits, logits < kth_best(logits, k).max())))

ex.mistake(
    "Two things. One threshold serves the whole batch, the highest of all rows, so "
    "rows with low logits are hidden entirely. Each row needs its own, as a column "
    "(B, 1). And a k above V is refused by `topk`."
)(lambda logits, k: hide(logits, logits < kth_best(logits, k).max()))

ex.mistake(
    "The threshold of the first row serves the whole batch. Each row needs its own, "
    "as a column (B, 1)."
)(k_at_most_v(lambda logits, k: hide(logits, logits < kth_best(logits, k)[0])))

ex.mistake(
    "Two things. The threshold of the first row serves the whole batch. Each row "
    "needs its own, as a column (B, 1). And a k above V is refused by `topk`."
)(lambda logits, k: hide(logits, logits < kth_best(logits, k)[0]))

ex.mistake(
    "The threshold of the last row serves the whole batch. Each row needs its own, as "
    "a column (B, 1)."
)(k_at_most_v(lambda logits, k: hide(logits, logits < kth_best(logits, k)[-1])))

ex.mistake(
    "Two things. The threshold of the last row serves the whole batch. Each row needs "
    "its own, as a column (B, 1). And a k above V is refused by `topk`."
)(lambda logits, k: hide(logits, logits < kth_best(logits, k)[-1]))

ex.mistake(
    "You keep the k best of the whole batch. Each row keeps k of its own, whatever "
    "the others hold: do not flatten."
)(
    k_at_most_v(
        lambda logits, k: hide(logits, logits < logits.flatten().topk(k).values[-1])
    )
)

ex.mistake(
    "You keep the k best of the whole batch. Each row keeps k of its own, whatever "
    "the others hold: do not flatten, and cut k down to V."
)(
    lambda logits, k: hide(
        logits, logits < logits.flatten().topk(min(k, logits.numel())).values[-1]
    )
)

ex.mistake(
    "Two things. You keep the k best of the whole batch. Each row keeps k of its own, "
    "whatever the others hold: do not flatten. And a k above V is refused by `topk`."
)(lambda logits, k: hide(logits, logits < logits.flatten().topk(k).values[-1]))

ex.mistake(
    "You put 0 in place of what is hidden. A logit of 0 is the weight 1, often more "
    "than others have: only minus infinity stands for weight 0."
)(k_at_most_v(lambda logits, k: logits.masked_fill(logits < kth_best(logits, k), 0)))

ex.mistake(
    "Two things. You put 0 in place of what is hidden. A logit of 0 is the weight 1, "
    "often more than others have: only minus infinity stands for weight 0. And a k "
    "above V is refused by `topk`."
)(lambda logits, k: logits.masked_fill(logits < kth_best(logits, k), 0))

ex.mistake(
    "You hide with −1e9. After a softmax it looks the same, but the task asks for "
    "minus infinity, which is the logarithm of 0 and no number in disguise."
)(k_at_most_v(lambda logits, k: logits.masked_fill(logits < kth_best(logits, k), -1e9)))

ex.mistake(
    "Two things. You hide with −1e9. After a softmax it looks the same, but the task "
    "asks for minus infinity, which is the logarithm of 0 and no number in disguise. "
    "And a k above V is refused by `topk`."
)(lambda logits, k: logits.masked_fill(logits < kth_best(logits, k), -1e9))

ex.mistake(
    "You hide with the lowest finite number. After a softmax it looks the same, but "
    "the task asks for minus infinity, the logarithm of 0."
)(
    k_at_most_v(
        lambda logits, k: logits.masked_fill(
            logits < kth_best(logits, k), torch.finfo(logits.dtype).min
        )
    )
)

ex.mistake(
    "You put plus infinity in place of what is hidden, which makes it the favorite. "
    "Look at the sign."
)(
    k_at_most_v(
        lambda logits, k: logits.masked_fill(logits < kth_best(logits, k), torch.inf)
    )
)

ex.mistake(
    "The hidden ones are plus or minus infinity, by the sign of their logit: you "
    "multiply. Put minus infinity in their place instead."
)(
    k_at_most_v(
        lambda logits, k: torch.where(
            logits < kth_best(logits, k), logits * torch.inf, logits
        )
    )
)

ex.mistake(
    "The right ones are hidden, but the others are not numbers (nan): that is what 0 "
    "times infinity gives. Put minus infinity in its place instead of calculating."
)(k_at_most_v(lambda logits, k: logits + (logits < kth_best(logits, k)) * -torch.inf))

ex.mistake(
    "It is the other way round: you hide the k best and keep the rest. Look at the "
    "sense of your mask."
)(k_at_most_v(lambda logits, k: hide(logits, logits >= kth_best(logits, k))))

ex.mistake(
    "Two things. It is the other way round: you hide the k best and keep the rest. "
    "Look at the sense of your mask. And a k above V is refused by `topk`."
)(lambda logits, k: hide(logits, logits >= kth_best(logits, k)))

ex.mistake("You keep the k smallest logits. The likeliest tokens have the largest.")(
    k_at_most_v(
        lambda logits, k: hide(
            logits, logits > logits.topk(k, largest=False).values[:, -1:]
        )
    )
)

ex.mistake(
    "Two things. You keep the k smallest logits. The likeliest tokens have the "
    "largest. And a k above V is refused by `topk`."
)(lambda logits, k: hide(logits, logits > logits.topk(k, largest=False).values[:, -1:]))

ex.mistake(
    "Your threshold is the k-th smallest: `sort` goes upward unless you tell it "
    "otherwise."
)(
    k_at_most_v(
        lambda logits, k: hide(logits, logits < kth_in_order(logits, k - 1, False))
    )
)

ex.mistake(
    "Two things. Your threshold is the k-th smallest: `sort` goes upward unless you "
    "tell it otherwise. And a k above V asks for a place that does not exist."
)(lambda logits, k: hide(logits, logits < kth_in_order(logits, k - 1, False)))

ex.mistake(
    "Up to k = V all is right. `topk` refuses a k that is larger than the vocabulary. "
    "Such a k should keep everything."
)(lambda logits, k: hide(logits, logits < kth_best(logits, k)))

ex.mistake(
    "Up to k = V all is right. A larger k asks for a place that does not exist in the "
    "row. Such a k should keep everything."
)(lambda logits, k: hide(logits, logits < kth_in_order(logits, k - 1)))

ex.mistake(
    "Up to k = V all is right. Then V − k is negative, and a negative end of a slice "
    "counts from the row's end. Such a k should keep everything."
)(
    lambda logits, k: logits.scatter(
        -1, logits.argsort()[:, : logits.shape[-1] - k], -torch.inf
    )
)

ex.mistake(
    "A k above the number of rows is cut down to it: you took the length of the batch "
    "axis for that of the vocabulary."
)(lambda logits, k: hide(logits, logits < kth_best(logits, min(k, logits.shape[0]))))

ex.mistake(
    "A k of V or more hides the smallest: you cut k down to V − 1. The largest k that "
    "means something is V."
)(
    lambda logits, k: hide(
        logits, logits < kth_best(logits, min(k, logits.shape[-1] - 1))
    )
)

ex.mistake(
    "These are the k best values alone, and nobody knows any more which tokens they "
    "belong to. Return all V places, with minus infinity in the others."
)(k_at_most_v(lambda logits, k: logits.topk(k).values))

ex.mistake(
    "Two things. These are the k best values alone, and nobody knows any more which "
    "tokens they belong to. Return all V places, with minus infinity in the others. "
    "And a k above V is refused by `topk`."
)(lambda logits, k: logits.topk(k).values)

ex.mistake(
    "These are the places of the k best. Return logits: theirs as they are, minus "
    "infinity at all other places."
)(k_at_most_v(lambda logits, k: logits.topk(k).indices))

ex.mistake(
    "Two things. These are the places of the k best. Return logits: theirs as they "
    "are, minus infinity at all other places. And a k above V is refused by `topk`."
)(lambda logits, k: logits.topk(k).indices)

ex.mistake(
    "You return the mask of the kept ones. Return logits: those where the mask is "
    "True, minus infinity elsewhere."
)(k_at_most_v(lambda logits, k: logits >= kth_best(logits, k)))

ex.mistake(
    "You return the mask of the hidden ones. Return logits: minus infinity where the "
    "mask is True, the others as they are."
)(k_at_most_v(lambda logits, k: logits < kth_best(logits, k)))

ex.mistake(
    "The right ones are kept, but you return shares. The softmax comes later: return "
    "logits."
)(
    k_at_most_v(
        lambda logits, k: hide(logits, logits < kth_best(logits, k)).softmax(dim=-1)
    )
)

ex.mistake(
    "Two things. The right ones are kept, but you return shares. The softmax comes "
    "later: return logits. And a k above V is refused by `topk`."
)(lambda logits, k: hide(logits, logits < kth_best(logits, k)).softmax(dim=-1))

ex.mistake(
    "The k best stand in the first k places, in order of size. Each must stay at its "
    "own place, which is its token's id."
)(
    k_at_most_v(
        lambda logits, k: F.pad(
            logits.topk(k).values, (0, logits.shape[-1] - k), value=-torch.inf
        )
    )
)

ex.mistake(
    "Two things. The k best stand in the first k places, in order of size. Each must "
    "stay at its own place, which is its token's id. And a k above V is refused by "
    "`topk`."
)(
    lambda logits, k: F.pad(
        logits.topk(k).values, (0, logits.shape[-1] - k), value=-torch.inf
    )
)

ex.mistake(
    "You take the k best of each column: `dim=0` lets the rows compete. The tokens of "
    "one row compete."
)(
    lambda logits, k: hide(
        logits, logits < logits.topk(min(k, logits.shape[0]), dim=0).values[-1]
    )
)

ex.mistake(
    "Two things. You take the k best of each column: `dim=0` lets the rows compete. "
    "The tokens of one row compete. And a k above V must keep everything."
)(lambda logits, k: hide(logits, logits < logits.topk(k, dim=0).values[-1]))

ex.mistake(
    "It works for one row and fails for several: a column taken out by its number has "
    "the shape (B), which does not fit (B, V). Keep it as (B, 1)."
)(k_at_most_v(lambda logits, k: hide(logits, logits < logits.topk(k).values[:, -1])))

ex.mistake(
    "The last of `values` along the first axis is the last row's k best, (k). The "
    "k-th best of every row is a column, (B, 1)."
)(k_at_most_v(lambda logits, k: hide(logits, logits < logits.topk(k).values[-1])))

ex.mistake("You keep the single best of each row, whatever k is.")(
    lambda logits, k: hide(logits, logits < logits.amax(dim=-1, keepdim=True))
)

ex.mistake(
    "Nothing is hidden: you return the logits as they came. Does what you call change "
    "its tensor, or does it return a new one?"
)(lambda logits, k: logits)

ex.mistake(
    "`argsort` tells which token stands at each rank; you use it as the rank of each "
    "token. Compare the logits themselves with the k-th best."
)(lambda logits, k: hide(logits, logits.argsort(dim=-1, descending=True) >= k))

ex.mistake(
    "You return two tensors: `topk` gives the k best values and their places. Return "
    "logits of the old shape, minus infinity where a logit is hidden."
)(k_at_most_v(lambda logits, k: tuple(logits.topk(k))))

ex.mistake(
    "Two things. You return two tensors: `topk` gives the k best values and their "
    "places. Return logits of the old shape, minus infinity where a logit is hidden. "
    "And a k above V is refused by `topk`."
)(lambda logits, k: tuple(logits.topk(k)))

ex.mistake(
    "You keep k − 1, and k = 1 fails, since nothing is left to compare with. Look at "
    "the number that you ask for."
)(
    lambda logits, k: hide(
        logits, logits < kth_best(logits, min(k - 1, logits.shape[-1]))
    )
)

ex.mistake(
    "You keep k − 1, and V − 1 where k is larger; k = 1 fails, since nothing is left "
    "to compare with. Look at the number that you ask for."
)(
    lambda logits, k: hide(
        logits, logits < kth_best(logits, min(k, logits.shape[-1]) - 1)
    )
)

ex.mistake(
    "Two things. You put 0 in place of what is hidden; only minus infinity stands for "
    "weight 0. And a k above V asks for a place that does not exist."
)(lambda logits, k: logits.masked_fill(logits < kth_in_order(logits, k - 1), 0))

ex.mistake(
    "Two things. You hide with the lowest finite number instead of minus infinity, "
    "the logarithm of 0. And a k above V is refused by `topk`."
)(
    lambda logits, k: logits.masked_fill(
        logits < kth_best(logits, k), torch.finfo(logits.dtype).min
    )
)

ex.mistake(
    "Two things. The last of `values` along the first axis is the last row's k best; "
    "the k-th best of every row is a column, (B, 1). And a k above V is refused."
)(lambda logits, k: hide(logits, logits < logits.topk(k).values[-1]))

ex.mistake(
    "Two things. Your threshold is each row's best, so k = 1 at all times: look at "
    "which column you take. And a k above V is refused by `topk`."
)(lambda logits, k: hide(logits, logits < logits.topk(k).values[:, :1]))

ex.mistake(
    "You hide the k smallest. Hidden is all but the k largest, which are V − k: look at "
    "how many you ask for."
)(
    k_at_most_v(
        lambda logits, k: logits.scatter(-1, logits.argsort()[:, :k], -torch.inf)
    )
)

ex.mistake(
    "Two things. You hide the k smallest; hidden is all but the k largest, which are "
    "V − k. And a k above V is refused by `topk`."
)(
    lambda logits, k: logits.scatter(
        -1, logits.topk(k, largest=False).indices, -torch.inf
    )
)


# 7.4
def tables_with_a_first_word():
    generator = torch.Generator().manual_seed(74)
    # the favorite that follows each word, and the first word
    favorites = [([1, 0], 0), ([1, 2, 1], 0), ([0, 2, 1], 0), ([1, 2, 3, 1], 0)]
    favorites += [([2, 0, 2, 1], 3), ([1, 2, 3, 4, 0], 2), ([1, 0, 3, 4, 2], 2)]
    favorites += [([3, 0, 1, 4, 3, 2], 5)]
    made = [(torch.eye(len(after))[after], first) for after, first in favorites]
    for size in (9, 40):
        made.append((torch.randn(size, size, generator=generator), size // 2))
    return made


def after_the_walk(count):
    """Make an answer of a count: of the different words, and the loop's first place."""

    def answer(table, first):
        text = [first]
        while (word := int(table[text[-1]].argmax())) not in text:
            text.append(word)
        return count(text, text.index(word))

    return answer


def loop_start(text):
    return text.index(text[len(set(text))])


def after_v_steps(count):
    """Make an answer of a count of the whole text."""

    def answer(table, first):
        text = [first]
        for _ in range(len(table)):
            text.append(int(table[text[-1]].argmax()))
        return count(text)

    return answer


ex = Exercise(
    "7.4",
    "How soon greedy text comes round",
    why="The text must come round within V steps, and in random tables it does so much "
    "sooner, after about 1.25·√V.",
    inputs=tables_with_a_first_word,
)

ex.reference(after_the_walk(lambda text, start: (start, len(text) - start)))

ex.mistake(
    "The second number is one too large: the word that comes back is counted twice, "
    "when it is new and when it returns."
)(after_the_walk(lambda text, start: (start, len(text) - start + 1)))

ex.mistake(
    "The second number is one too small. From the place where a word stands first to "
    "the place where it returns, count the steps."
)(after_the_walk(lambda text, start: (start, len(text) - start - 1)))

ex.mistake(
    "The first number is one too large. Places count from 0, so the loop's first word "
    "has as many words before it as its place says."
)(after_the_walk(lambda text, start: (start + 1, len(text) - start)))

ex.mistake(
    "Both numbers are one too large. Count the words of one short text on your fingers."
)(after_the_walk(lambda text, start: (start + 1, len(text) - start + 1)))

ex.mistake(
    "The first number is one too small, and −1 where the loop begins at once. As many "
    "words stand before a word as its place says, counted from 0."
)(after_the_walk(lambda text, start: (start - 1, len(text) - start)))

ex.mistake(
    "The two numbers have changed places: first the words before the loop, then the "
    "words in it."
)(after_the_walk(lambda text, start: (len(text) - start, start)))

ex.mistake(
    "You count all words as part of the loop. The first word need not come back: look "
    "for where the word that comes back has been before."
)(after_the_walk(lambda text, start: (0, len(text))))

ex.mistake(
    "The second number is that of all different words. Those before the loop are not "
    "part of it."
)(after_the_walk(lambda text, start: (start, len(text))))

ex.mistake(
    "The first number is that of all different words. Those in the loop do not stand "
    "before it."
)(after_the_walk(lambda text, start: (len(text), len(text) - start)))

ex.mistake(
    "That is one number, the count of all different words. Asked are two: the words "
    "before the loop and the words in it."
)(after_the_walk(lambda text, start: len(text)))

ex.mistake(
    "That is the number of words in the loop alone. Asked are two: the words before "
    "the loop and the words in it."
)(after_the_walk(lambda text, start: len(text) - start))

ex.mistake(
    "These are the words themselves. Asked are two numbers: how many stand before the "
    "loop and how many in it."
)(after_the_walk(lambda text, start: (text[:start], text[start:])))

ex.mistake(
    "The first of the two is the word with which the loop begins. Asked is how many "
    "words stand before it."
)(after_the_walk(lambda text, start: (text[start], len(text) - start)))

ex.mistake(
    "You start from the text's last word. It lies in the loop, but need not be where "
    "the loop begins: look for the first word that has been there before."
)(
    after_v_steps(
        lambda text: (text.index(text[-1]), len(text) - 1 - text.index(text[-1]))
    )
)

ex.mistake(
    "The second number is right. The first is the place of the text's last word: it "
    "lies in the loop but need not be where the loop begins."
)(after_v_steps(lambda text: (text.index(text[-1]), text[::-1].index(text[-1], 1))))

ex.mistake(
    "The second number is right. The first counts words of the loop, too: the text "
    "goes round until its V steps are over."
)(
    after_v_steps(
        lambda text: (
            len(text) - text[::-1].index(text[-1], 1),
            text[::-1].index(text[-1], 1),
        )
    )
)

ex.mistake(
    "You count the words that occur more than once. The text breaks off after V "
    "steps, so a word of the loop may be in it only once."
)(
    after_v_steps(
        lambda text: (
            sum(text.count(w) == 1 for w in set(text)),
            sum(text.count(w) > 1 for w in set(text)),
        )
    )
)

ex.mistake(
    "Your loop lasts to the end of the text, which may go round several times. One "
    "round ends where a word comes back for the first time."
)(after_v_steps(lambda text: (loop_start(text), len(text) - loop_start(text))))

ex.mistake(
    "Your loop lasts to the last word of the text, which may go round several times. "
    "One round ends where a word comes back for the first time."
)(after_v_steps(lambda text: (loop_start(text), len(text) - 1 - loop_start(text))))

ex.mistake(
    "You look for the return of the first word, and it need not come back. Look for "
    "the first word, whichever it is, that has been there before."
)(after_v_steps(lambda text: (0, text.index(text[0], 1))))


# 7.5
def tables_with_texts_that_end():
    class WordTable(nn.Module):
        """Score the next word by the last one, and say so when shown."""

        def __init__(self, favorites):
            super().__init__()
            self.favorites = favorites
            self.cfg = gpt_helpers.GPTConfig(len(favorites), context_length=8)
            self.register_buffer("table", torch.eye(len(favorites))[favorites])

        def forward(self, idx):
            return self.table[idx]

        def __repr__(self):
            pairs = enumerate(self.favorites)
            return "a table model, " + ", ".join(f"{a} → {b}" for a, b in pairs)

    lesson = [1, 0, 3, 4, 2]  # on and then stop .
    longer = [3, 5, 4, 6, 1, 2, 4]
    stuck = [3, 2, 2, 4, 1]  # the end of text, 2, is followed by itself
    texts = (
        (lesson, [[3]], 5, 4),
        (lesson, [[3], [2]], 5, 4),
        (lesson, [[3], [0]], 6, 4),
        (lesson, [[2, 3], [0, 2], [1, 1]], 1, 4),
        (lesson, [[4, 0], [2, 4], [3, 3]], 7, 4),
        (longer, [[0], [1], [2], [6]], 12, 4),
        (longer, [[0, 3], [4, 5]], 11, 4),
        (longer, [[6], [2]], 9, 1),
        (longer, [[1, 2, 3]], 0, 4),
        (stuck, [[1], [0]], 8, 2),
    )
    return [(WordTable(t), torch.tensor(idx), *rest) for t, idx, *rest in texts]


def nothing_ended(idx, eos_id):
    return torch.zeros(len(idx), 1, dtype=torch.bool)


def end_in(idx, eos_id):
    return (idx == eos_id).any(dim=1, keepdim=True)


def continued(remember, at_first=nothing_ended, fill=True, stop=torch.all, cut=None):
    """Make an answer with this way to remember what has ended, and to stop."""

    def answer(model, idx, max_new_tokens, eos_id):
        ended = at_first(idx, eos_id)
        for _ in range(max_new_tokens):
            next_id = model(idx)[:, -1].argmax(dim=-1, keepdim=True)
            filled = next_id.masked_fill(ended, eos_id) if fill else next_id
            idx = torch.cat([idx, filled], dim=1)
            ended = remember(ended, next_id == eos_id)
            if stop(ended):
                return idx[:, :cut]
        return idx

    return answer


ex = Exercise(
    "7.5",
    "A row that does not stay silent",
    why="A row that has ended stays so, and the batch is done when all have: each row "
    "reads as it would alone.",
    inputs=tables_with_texts_that_end,
)


@ex.bug(
    "A row that has ended is silent for one step and then speaks again. One step later, "
    "what does your code still know about the row's end?"
)
def _(model, idx, max_new_tokens, eos_id):
    ended = torch.zeros(len(idx), 1, dtype=torch.bool)
    for _ in range(max_new_tokens):
        with torch.no_grad():
            logits = model(idx[:, -model.cfg.context_length :])[:, -1]  # (B, V)
        next_id = logits.argmax(dim=-1, keepdim=True)  # (B, 1)
        idx = torch.cat([idx, next_id.masked_fill(ended, eos_id)], dim=1)
        ended = next_id == eos_id
        if ended.all():
            break
    return idx


ex.reference(continued(torch.logical_or))

ex.mistake(
    "The first row that ends stops all the others. The loop may stop when every row "
    "has ended; all rows, not any."
)(continued(torch.logical_or, stop=torch.any))

ex.mistake(
    "A row that has ended goes on writing until the last one ends: it is no longer "
    "filled up with the end of text."
)(continued(torch.logical_or, fill=False))

ex.mistake(
    "Two things. A row that has ended goes on writing, since nothing fills it up any "
    "more; and the loop stops only if all rows draw the end in the same step."
)(continued(lambda ended, ends: ends, fill=False))

ex.mistake(
    "The rows are right, but the loop always runs to `max_new_tokens` and adds "
    "columns with nothing but the end of text."
)(continued(torch.logical_or, stop=lambda ended: False))

ex.mistake(
    "No row ever ends. `ended` starts with False everywhere, and nothing makes it "
    "True: look at how the new ends are joined to the old ones."
)(continued(torch.logical_and))

ex.mistake(
    "An end of text in the prompt silences its row from the first step. A row ends "
    "when the id is drawn, not when the prompt holds it."
)(continued(torch.logical_or, at_first=end_in))


@ex.mistake(
    "An end of text in the prompt silences its row from the second step. A row ends "
    "when the id is drawn, not when the prompt holds it."
)
def _(model, idx, max_new_tokens, eos_id):
    ended = nothing_ended(idx, eos_id)
    for _ in range(max_new_tokens):
        next_id = model(idx)[:, -1].argmax(dim=-1, keepdim=True)
        idx = torch.cat([idx, next_id.masked_fill(ended, eos_id)], dim=1)
        ended = end_in(idx, eos_id)
        if ended.all():
            break
    return idx


ex.mistake(
    "The end of text itself is missing from the last column: the loop stops before it "
    "has appended what it drew."
)(continued(torch.logical_or, cut=-1))

ex.mistake(
    "A second end undoes the first. Once True, `ended` must stay True, whatever "
    "comes: look at how the new ends are joined to the old ones."
)(continued(torch.logical_xor))

ex.mistake(
    "Two things. The loop no longer stops when every row has ended. And a row that "
    "has ended is silent for one step only: what do you still know of its end?"
)(continued(lambda ended, ends: ends, stop=lambda ended: False))

ex.mistake(
    "It works for one text and fails for several. `ended` has one True or False per "
    "row, (B, 1): `or` cannot join two such columns, and (B) does not fit."
)(continued(lambda ended, ends: ended or ends))


@ex.mistake(
    "Python reads `ended | next_id == eos_id` as `(ended | next_id) == eos_id`: put "
    "brackets around the comparison."
)
def _(model, idx, max_new_tokens, eos_id):
    ended = nothing_ended(idx, eos_id)
    for _ in range(max_new_tokens):
        window = idx[:, -model.cfg.context_length :]
        next_id = model(window)[:, -1].argmax(dim=-1, keepdim=True)
        idx = torch.cat([idx, next_id.masked_fill(ended.bool(), eos_id)], dim=1)
        ended = (ended | next_id) == eos_id
        if ended.all():
            break
    return idx
