"""The exercises of lesson 7 · Generating text."""

import torch
import torch.nn.functional as F
from torch import nn

import gpt_helpers

from .engine import Exercise

# --- 7.1 --------------------------------------------------------------------------


def scores_of_several_texts():
    """(B, T, V), the last with one text of one token; else no two sizes are equal."""
    generator = torch.Generator().manual_seed(71)
    made = [(torch.tensor([[[5.0, 1.0, 0.0], [0.0, 2.0, 7.0]]]),)]
    for sizes in (2, 3, 5), (3, 2, 7), (4, 5, 6), (5, 4, 3), (1, 1, 4):
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
def greedy_step(logits):
    last = logits[:, -1]
    ids = last.argmax(dim=-1, keepdim=True)
    return ids


ex.slips("""
logits[:, -1] → logits[:, 0]
    You took the first position's scores. They are about the second token, which is
    there already; which position is about the token that is not?
dim=-1, keepdim=True → dim=-1
    The axis of length 1 is missing. To be put at the end of each row, the ids must be a
    column (B, 1): look at `keepdim`.
ids = last.argmax(dim=-1, keepdim=True) → ids = last.argmax(dim=-1)[None]
    The ids stand side by side in one row (1, B), as if they went on one text. They
    belong to B texts: a column (B, 1), in which each text has a row.
logits[:, -1] → logits[:, -1:]
    There is an axis too many. `-1:` keeps the axis of the positions, with length 1, and
    `keepdim` that of the vocabulary: one of them must go.
logits[:, -1] → logits
    You ask for the favorite of every position. Only the last position is about a token
    that is not there yet.
logits[:, -1] → logits ; dim=-1 → dim=1
    You looked for the largest along the positions (dim=1): for each vocabulary entry
    the position that likes it best. Compare the vocabulary entries of one position.
dim=-1 → dim=0
    You looked for the largest along the batch. Texts do not compete: which axis holds
    the vocabulary?
logits[:, -1] → logits[-1]
    You took the last text instead of the last position. The first axis counts the
    texts; the positions are on the second.
logits[:, -1] → logits[..., -1]
    You took the last vocabulary entry instead of the last position. Look at the order
    of the axes.
logits[:, -1] → logits[0, -1]
logits[:, -1] → logits[:1, -1]
logits[:, -1] → logits[0, -1] ; dim=-1, keepdim=True → dim=-1
    You answered for the first text only. Each text of the batch gets an id of its own:
    the axis of the texts must stay.
dim=-1, keepdim=True → dim=None
    `argmax` without `dim` numbers all entries through and returns one number. Say along
    which axis it should look.
last.argmax → last.amax
    These are the largest scores themselves. Asked is where they stand: a token's id is
    its place on the vocabulary axis.
ids = last.argmax(dim=-1, keepdim=True) → ids = tuple(last.max(dim=-1, keepdim=True))
    You return two tensors. `max` and `topk` give the largest values and, second, the
    places where they stand: which of the two are ids?
---
logits[:, -1] → logits[:, -2]
    You took the last position but one. Its scores are about the token that is last
    already: count from the end, where −1 is the last.
last.argmax → last.argmin
    Those are the least likely tokens: you look for the smallest score.
logits[:, -1] → logits.mean(dim=1)
logits[:, -1] → logits.amax(dim=1)
    You mix the positions. Each position's scores are about another token: only the last
    position's are about the next one.
return ids → return ids.float()
    The ids are written as decimals. An embedding looks rows up with integers: leave the
    ids as `argmax` gives them.
return ids → return last
return ids → return last.softmax(dim=-1)
    You return a number for every vocabulary entry. Asked is the place of the largest
    one, one id for each text.
""")

# --- 7.2 --------------------------------------------------------------------------


def scores_with_a_temperature():
    generator = torch.Generator().manual_seed(72)
    by_hand = torch.tensor([[9.0, 4.0, 1.0]]).log()
    close = torch.tensor([[1.0, -2.0, 1.05, 0.5], [-3.0, -0.5, -0.6, -2.0]])
    far_apart = torch.tensor([[0.0, 1.0, 3.0], [200.0, 199.0, 197.0]])
    made = [(by_hand, 0.5), (by_hand.clone(), 0.0), (close, 2.0), (close.clone(), 0.0)]
    for sizes, temperature in (((3, 5), 0.3), ((4, 6), 1.0), ((5, 3), 0.0)):
        made.append((2 * torch.randn(sizes, generator=generator), temperature))
    # near 100 no 32-bit number can hold the exponentials
    made.append((100 - 6 * torch.rand(3, 4, generator=generator), 0.8))
    return [*made, (close.clone(), 0.05), (far_apart, 1.0)]


ex = Exercise(
    "7.2",
    "Shares at a temperature",
    why="Temperature 0 is greedy decoding, the limit of ever colder temperatures: one "
    "knob leads from the best token to pure chance.",
    inputs=scores_with_a_temperature,
    tolerance=1e-4,
)


@ex.reference
def shares_at(logits, temperature):
    if temperature == 0:
        best = logits.argmax(dim=-1)
        ones = F.one_hot(best, logits.shape[-1])
        return ones.float()
    scaled = logits / temperature
    shares = scaled.softmax(dim=-1)
    return shares


ex.slips("""
if temperature == 0: → if False:
if temperature == 0: → if False: ; logits / temperature → logits * (1 / temperature)
    Temperature 0 has no case of its own. A division by zero gives no shares: put this
    case before it, with 1 at each row's largest logit and 0 elsewhere.
logits / temperature → logits * temperature
    Cold and heat have changed places. You multiply the logits by the temperature, or
    raise the shares to its power: in the cold your shares are more alike.
logits / temperature → logits ; return shares → return shares / temperature
logits / temperature → logits ; return shares → return shares * temperature
    The temperature acts on the shares, and they no longer add up to 1. It acts on the
    logits, by division, and the softmax comes after it.
logits / temperature → logits
    Above 0 your temperature has no effect. A number that all shares are divided by, or
    all logits moved by, cancels: what must it do to the logits, before the softmax?
if temperature == 0: → if False: ; logits / temperature → logits
; return shares → return (shares / temperature) / (shares / temperature).sum(-1, True)
    The factor cancels if you divide the shares and then make them add up to 1 again. It
    must act on the logits. And at temperature 0 you divide by zero.
logits / temperature → logits / temperature**2
    You divide by the square of the temperature. Divide by the temperature itself: one
    of 0.5 doubles the logits, and that squares the weights.
scaled.softmax(dim=-1) → scaled.softmax(dim=0)
    The softmax runs along the batch, so the shares add up to 1 in each column. The
    tokens of one row compete: look at `dim`.
scaled.softmax(dim=-1) → scaled
    The softmax is missing. Logits, divided or not, are no shares yet.
scaled.softmax(dim=-1) → scaled.exp() / scaled.exp().sum(dim=-1, keepdim=True)
    Your exponentials become infinite, for logits near 100: 32-bit numbers end near
    e^88. PyTorch's softmax avoids it; by hand, subtract each row's largest value first.
if temperature == 0: → temperature = max(temperature, 0.1)⏎if False:
if temperature == 0: → temperature = max(temperature, 0.01)⏎if False:
    A small number in place of temperature 0 is not cold enough. Where two logits are
    close, both still get something.
if temperature == 0: → if True:
    Above 0 you still give everything to the largest logit. Look at your condition.
return ones.float() → return best
return ones.float() → return best[:, None]
    At temperature 0 you return ids. Asked are shares, (B, V), as at every temperature:
    1 where the largest logit stands, 0 elsewhere.
---
return ones.float() → return torch.full_like(logits, 1 / logits.shape[-1])
return ones.float() → return logits.softmax(dim=-1)
return ones.float() → return torch.zeros_like(logits)
    At temperature 0 the favorite does not get everything. Its share is 1, and 0 is left
    for the others.
return ones.float() → return logits
return ones.float() → return logits.masked_fill(ones == 0, -torch.inf)
    At temperature 0 you return the logits. Asked are shares: 1 for the largest logit of
    a row, 0 for the others.
ones = F.one_hot(best, logits.shape[-1]) → ones = logits == logits.max()
ones = F.one_hot(best, logits.shape[-1]) → ones = logits == logits.amax(dim=0)
    At temperature 0 you let the rows compete. Each row has a favorite of its own: look
    for the largest along the last axis.
logits.argmax → logits.argmin
    At temperature 0 the smallest logit gets everything. It is the largest that does.
scaled.softmax(dim=-1) → scaled.flatten().softmax(dim=0).reshape(logits.shape)
scaled.softmax(dim=-1) → scaled.exp() / scaled.exp().sum()
    All rows together share a single 1. Each row has a 1 of its own: look at `dim`.
scaled.softmax(dim=-1)
→ (scaled - scaled.max()).exp() / (scaled - scaled.max()).exp().sum(-1, True)
    You subtract the largest logit of the whole batch. A row far below it then has
    nothing but zeros, and 0 / 0 is nan: subtract each row's own largest.
scaled.softmax(dim=-1) → scaled.log_softmax(dim=-1)
    These are logarithms of shares. They are negative, and shares are not: look at which
    softmax you call.
logits / temperature → logits.softmax(dim=-1) / temperature
    You apply the softmax twice. What you divide by the temperature are shares already,
    not logits.
scaled.softmax(dim=-1) → logits.softmax(dim=-1) ** (1 / temperature)
scaled.softmax(dim=-1) → logits.softmax(dim=-1) ** temperature
    Raised to a power, your shares do not add up to 1. They must be divided by their new
    sum, row by row, and the power is one over the temperature.
scaled.softmax(dim=-1) → scaled.exp()
    The exponentials are not divided by their sum. They are weights and not shares.
scaled.softmax(dim=-1) → scaled.exp() / scaled.exp().sum(dim=-1)
    The sum has lost its axis. It works for one row and fails for several, as (B) does
    not fit (B, V): look at `keepdim`.
""")

# --- 7.3 --------------------------------------------------------------------------


def scores_with_a_k():
    """No two logits of a row are equal, and the rows of a batch differ in level."""
    generator = torch.Generator().manual_seed(73)
    made = [(torch.tensor([[5.0, 1.0, 3.0]]), 2)]
    made.append((torch.tensor([[12.0, 15.0, 11.0, 10.0], [2.0, -1.0, 0.5, 1.0]]), 2))
    # k is 1, between B and V, below B, V, V + 1, and beyond all
    sizes = (3, 5, 1), (2, 6, 4), (4, 7, 3), (3, 4, 4), (3, 4, 5), (2, 5, 99)
    for texts, vocabulary, k in sizes:
        level = 4 * torch.randn(texts, 1, generator=generator)
        made.append((level + torch.randn(texts, vocabulary, generator=generator), k))
    return made


ex = Exercise(
    "7.3",
    "Hide all but the k best",
    why="Softmax gives minus infinity the weight 0, so the k tokens that are left have "
    "the whole probability to share, in the old proportions.",
    inputs=scores_with_a_k,
)


@ex.reference
def hide_all_but(logits, k):
    k = min(k, logits.shape[-1])
    best = logits.topk(k, dim=-1).values
    threshold = best[:, -1:]
    hidden = logits < threshold
    return logits.masked_fill(hidden, -torch.inf)


# `logits < threshold` stays as it is in k + 1, so that k − 1 does not come with it
ex.slips("""
logits < threshold → logits <= threshold
k = min(k, logits.shape[-1]) → if k >= logits.shape[-1]:⏎    return logits
; logits < threshold → logits <= threshold
k = min(k, logits.shape[-1]) → if k > logits.shape[-1]:⏎    return logits
; logits < threshold → logits <= threshold
logits.topk(k, → logits.topk(k - 1,
    You keep k − 1: the k-th best is hidden with the rest. Look at how you compare with
    the threshold, or at how many you ask for.
k = min(k, logits.shape[-1]) →
    A k above V is refused by `topk`. Such a k should keep everything.
k = min(k, logits.shape[-1]) → ; logits.topk(k, dim=-1).values
→ logits.sort(dim=-1, descending=True).values ; best[:, -1:] → best[:, k - 1, None]
    A k above V asks for a place that does not exist. Such a k should keep everything.
logits.topk(k, → logits.topk(min(k + 1, logits.shape[-1]),
; logits < threshold → logits < threshold
logits.topk(k, → logits.topk(k + 1, ; logits < threshold → logits < threshold
logits.topk(k, dim=-1).values → logits.sort(dim=-1, descending=True).values
; best[:, -1:] → best[:, k, None] ; logits < threshold → logits < threshold
    You keep k + 1. The k-th best stands at place k − 1, since places count from 0.
best[:, -1:] → best.min()
    One threshold serves the whole batch, the lowest of all rows, so rows with high
    logits keep too many. Each row needs its own, as a column (B, 1).
best[:, -1:] → best[0, -1]
best[:, -1:] → best[-1, -1]
best[:, -1:] → best[:, -1].max()
    The threshold of one row serves the whole batch. Each row needs its own, as a column
    (B, 1).
best[:, -1:] → best[:, -1]
    The threshold has lost its axis. It works for one row and fails for several, as (B)
    does not fit (B, V): keep it as (B, 1).
hidden, -torch.inf → hidden, 0
    You put 0 in place of what is hidden. A logit of 0 is the weight 1, often more than
    others have: only minus infinity stands for weight 0.
hidden, -torch.inf → hidden, -1e9
hidden, -torch.inf → hidden, torch.finfo(logits.dtype).min
    You hide with a large negative number. After a softmax it looks the same, but the
    task asks for minus infinity, which is the logarithm of 0.
logits < threshold → logits >= threshold
logits < threshold → logits > threshold
    It is the other way round: you hide the best and keep the rest. Look at the sense of
    your mask.
return logits.masked_fill(hidden, -torch.inf) → return best
    These are the best values alone, and nobody knows any more which tokens they belong
    to. Return all V places, with minus infinity in the others.
return logits.masked_fill(hidden, -torch.inf) → return logits.topk(k, dim=-1).indices
    These are the places of the best. Return logits: theirs as they are, minus infinity
    at all other places.
return logits.masked_fill(hidden, -torch.inf) → return logits
    Nothing is hidden: you return the logits as they came. Does what you call change its
    tensor, or does it return a new one?
---
best[:, -1:] → best[:, :1]
    You keep the single best of each row, whatever k is. Look at which column you take.
best[:, -1:] → logits.flatten().topk(k).values[-1]
    You keep the k best of the whole batch. Each row keeps k of its own, whatever the
    others hold: do not flatten.
logits.topk(k, dim=-1) → logits.topk(k, dim=-1, largest=False)
; logits < threshold → logits > threshold
    You keep the k smallest logits. The likeliest tokens have the largest.
logits.topk(k, dim=-1) → logits.topk(k, dim=-1, largest=False)
    Your threshold is the k-th smallest. `sort` goes upward unless you tell it
    otherwise.
min(k, logits.shape[-1]) → min(k, logits.shape[0])
    A k above the number of rows is cut down to it. You took the length of the batch
    axis for that of the vocabulary.
return logits.masked_fill(hidden, -torch.inf)
→ return torch.where(hidden, logits * torch.inf, logits)
return logits.masked_fill(hidden, -torch.inf) → return logits + hidden * -torch.inf
    You calculate with infinity: 0 times infinity is no number (nan), and a product with
    it takes the sign of the logit. Put minus infinity in its place instead.
return logits.masked_fill(hidden, -torch.inf) → return ~hidden
return logits.masked_fill(hidden, -torch.inf) → return hidden
    You return the mask. Return logits: minus infinity where they are hidden, the others
    as they are.
hidden, -torch.inf) → hidden, -torch.inf).softmax(dim=-1)
    You return shares. The softmax comes later: return logits.
return logits.masked_fill(hidden, -torch.inf) → return tuple(logits.topk(k, dim=-1))
    You return two tensors. `topk` gives the k best values and their places; return
    logits of the old shape, minus infinity where a logit is hidden.
logits < threshold → logits.argsort(dim=-1, descending=True) >= k
    `argsort` tells which token stands at each rank; you use it as the rank of each
    token. Compare the logits themselves with the k-th best.
""")

# --- 7.4 --------------------------------------------------------------------------


def tables_with_a_first_word():
    generator = torch.Generator().manual_seed(74)
    # the favorite that follows each word, and the first word
    favorites = [([1, 0], 0), ([1, 2, 1], 0), ([0, 2, 1], 0), ([1, 2, 3, 1], 0)]
    favorites += [([2, 0, 2, 1], 3), ([1, 2, 3, 4, 0], 2), ([1, 0, 3, 4, 2], 2)]
    favorites += [([3, 0, 1, 4, 3, 2], 5), ([0], 0)]
    made = [(torch.eye(len(after))[after], first) for after, first in favorites]
    for size in (9, 40):
        made.append((torch.randn(size, size, generator=generator), size // 2))
    return made


ex = Exercise(
    "7.4",
    "How soon greedy text comes round",
    why="The text must come round within V steps, and in random tables it does so much "
    "sooner, after about 1.25·√V.",
    inputs=tables_with_a_first_word,
)


@ex.reference
def loop_lengths(table, first):
    text = [first]
    for _ in range(len(table)):
        text.append(table[text[-1]].argmax().item())
    again = next(n for n, word in enumerate(text) if word in text[:n])
    start = text.index(text[again])
    before = start
    around = again - start
    return before, around


ex.slips("""
around = again - start → around = again - start + 1
    The number of words in the loop is one too large: the word that comes back is
    counted twice, when it is new and when it returns.
around = again - start → around = again - start - 1
    The number of words in the loop is one too small. From the place where a word stands
    first to the place where it returns, count the steps.
before = start → before = start + 1
    The number of words before the loop is one too large. Places count from 0, so the
    loop's first word has as many words before it as its place says.
before = start → before = start - 1
    The number of words before the loop is one too small. As many words stand before a
    word as its place says, counted from 0.
return before, around → return around, before
    The two numbers have changed places. First come the words before the loop, then the
    words in it.
before = start → before = 0 ; around = again - start → around = again
    You count all words as part of the loop. The first word need not come back: look for
    where the word that comes back has been before.
around = again - start → around = again
    As the number of words in the loop you give that of all different words. Those
    before the loop are not part of it.
before = start → before = text.index(text[-1])
; around = again - start → around = len(text) - 1 - text.index(text[-1])
before = start → before = text.index(text[-1])
    You start from the text's last word. It lies in the loop, but need not be where the
    loop begins: look for the first word that has been there before.
start = text.index(text[again]) → loop = [w for w in set(text) if text.count(w) > 1]
; before = start → before = len(set(text)) - len(loop)
; around = again - start → around = len(loop)
    You count the words that occur more than once. The text breaks off after V steps, so
    a word of the loop may be in it only once.
around = again - start → around = len(text) - start
around = again - start → around = len(text) - 1 - start
    Your loop lasts to the end of the text, which may go round several times. One round
    ends where a word comes back for the first time.
---
before = start → before = again
    As the number of words before the loop you give that of all different words. Those
    in the loop do not stand before it.
return before, around → return again
return before, around → return around
return before, around → return before
    You return one number. Asked are two: the words before the loop and the words in it.
return before, around → return text[:start], text[start:again]
    You return the words themselves. Asked are two numbers: how many stand before the
    loop and how many in it.
before = start → before = 0 ; around = again - start → around = text.index(text[0], 1)
    You look for the return of the first word, and it need not come back. Look for the
    first word, whichever it is, that has been there before.
""")

# --- 7.5 --------------------------------------------------------------------------


class WordTable(nn.Module):
    """Score the next word by the last one, in texts no longer than the window."""

    def __init__(self, favorites):
        super().__init__()
        self.cfg = gpt_helpers.GPTConfig(len(favorites), context_length=8)
        self.register_buffer("table", torch.eye(len(favorites))[favorites])

    def forward(self, idx):
        if idx.shape[1] > self.cfg.context_length:
            raise ValueError(f"{idx.shape[1]} ids, but the window has 8")
        return self.table[idx]


def tables_with_texts_that_end():
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
        (lesson, [[3, 2], [1, 0]], 12, 4),  # the second outgrows the window
    )
    return [(WordTable(t), torch.tensor(idx), *rest) for t, idx, *rest in texts]


ex = Exercise(
    "7.5",
    "A row that does not stay silent",
    why="A row that has ended stays so, and the batch is done when all have: each row "
    "reads as it would alone.",
    inputs=tables_with_texts_that_end,
)


@ex.reference
def continue_until_end(model, idx, max_new_tokens, eos_id):
    ended = torch.zeros(len(idx), 1, dtype=torch.bool)
    for _ in range(max_new_tokens):
        with torch.no_grad():
            logits = model(idx[:, -model.cfg.context_length :])[:, -1]  # (B, V)
        next_id = logits.argmax(dim=-1, keepdim=True)  # (B, 1)
        idx = torch.cat([idx, next_id.masked_fill(ended, eos_id)], dim=1)
        ended = ended | (next_id == eos_id)
        if ended.all():
            break
    return idx


ex.slips("""
given: ended = ended | (next_id == eos_id) → ended = next_id == eos_id
    A row's end is forgotten one step later. Then the row speaks again: what does your
    code still know about its end?
ended.all() → ended.any()
    The first row that ends stops all the others. The loop may stop when every row has
    ended; all rows, not any.
next_id.masked_fill(ended, eos_id) → next_id
    Nothing fills up a row that has ended. It goes on writing until the last one ends.
ended.all() → False
    The loop always runs to `max_new_tokens`. Once all rows have ended, it adds columns
    with nothing but the end of text.
ended | (next_id == eos_id) → ended & (next_id == eos_id)
    No row ever ends. `ended` starts with False everywhere, and nothing makes it True:
    look at how the new ends are joined to the old ones.
torch.zeros(len(idx), 1, dtype=torch.bool) → (idx == eos_id).any(dim=1, keepdim=True)
    An end of text in the prompt silences its row from the first step. A row ends when
    the id is drawn, not when the prompt holds it.
ended | (next_id == eos_id) → (idx == eos_id).any(dim=1, keepdim=True)
    An end of text in the prompt silences its row from the second step. A row ends when
    the id is drawn, not when the prompt holds it.
ended | (next_id == eos_id) → ended or (next_id == eos_id)
    `or` cannot join two columns of several rows. It wants a single True or False, and
    `ended` has one per row, (B, 1): which operator works number by number?
ended | (next_id == eos_id) → ended | next_id == eos_id
    Python reads `ended | next_id == eos_id` as `(ended | next_id) == eos_id`. Put
    brackets around the comparison.
---
break → return idx[:, :-1]
    The end of text itself is missing from the last column. The loop stops before it has
    appended what it drew.
ended | (next_id == eos_id) → ended ^ (next_id == eos_id)
    A second end undoes the first. Once True, `ended` must stay True, whatever comes:
    look at how the new ends are joined to the old ones.
masked_fill(ended, eos_id) → masked_fill(ended, 0)
    A row that has ended is filled up with 0. Fill it up with the end of text, `eos_id`.
idx[:, -model.cfg.context_length :] → idx
    The text outgrows the model's window. Give the model only the last
    `context_length` ids, as the cell did.
""")
