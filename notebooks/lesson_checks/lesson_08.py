"""The exercises of lesson 8 · Training a tiny GPT."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .engine import Exercise

# --- 8.1 --------------------------------------------------------------------------


def texts_with_starts():
    """The last three have windows that begin and end with the text."""
    generator = torch.Generator().manual_seed(81)
    made = [(torch.arange(10, 20), torch.tensor([2]), 3)]
    for N, starts, T in (
        (15, [4, 1], 3),
        (24, [1, 9, 5], 5),
        (16, [7, 2, 7, 3], 2),
        (30, [12, 3, 1, 8, 20], 4),
        (12, [0, 8, 3], 3),
        (9, [7, 0, 4], 1),
        (6, [0, 1], 4),
    ):
        made.append((torch.randperm(N, generator=generator), torch.tensor(starts), T))
    return made


def inputs_and_targets(answer, ids, starts, length):
    try:
        found = answer(ids, starts, length)
    except RuntimeError as error:  # slices past the end are short and cannot be stacked
        raise IndexError(str(error)).with_traceback(error.__traceback__) from None
    if isinstance(found, Tensor) and found.ndim != 3:
        return {"inputs": found}
    if not isinstance(found, (tuple, list, Tensor)):
        return found
    if len(found) != 2:
        raise ValueError(f"two tensors are asked for, not {len(found)}")
    return {"inputs": found[0], "targets": found[1]}


ex = Exercise(
    "8.1",
    "Windows and their targets",
    why="A wrong shift raises no error and often trains well: the model learns to "
    "answer another question than yours.",
    inputs=texts_with_starts,
    call=inputs_and_targets,
)


@ex.reference
def cut_windows(ids, starts, length):
    places = starts[:, None] + torch.arange(length + 1)
    windows = ids[places]
    inputs = windows[:, :-1]
    targets = windows[:, 1:]
    return inputs, targets


ex.slips("""
targets = windows[:, 1:] → targets = inputs
    Your targets are the inputs, not shifted. The model would learn to copy what it
    reads. The target of a character is the one that follows it.
targets = windows[:, 1:] → targets = ids[places[:, 1:] + 1]
    Your targets are shifted twice: they ask for the character after next. Is a part
    that began one later cut once more?
windows[:, :-1] → windows[:, :-2] ; windows[:, 1:] → windows[:, 2:]
    Your targets are shifted twice, and one is missing in each window: both parts were
    cut once more. One column less on either side is all.
targets = windows[:, 1:] → targets = ids[places[:, :-1] - 1]
targets = windows[:, 1:]
→ targets = torch.stack([ids[s - 1 : s - 1 + length] for s in starts.tolist()])
    Your targets are shifted the wrong way: they are the characters before the inputs,
    which the model has already seen. Where does a target stand?
return inputs, targets → return targets, inputs
    Inputs and targets are exchanged. The inputs begin at the start, the targets one
    later; inputs are returned first.
starts[:, None] → starts[:, None] + 1
    Your windows begin one too late. The first input stands at the start itself.
length + 1 → length
    One short: T − 1 inputs and as many targets. To ask T questions a window takes one
    character more than T.
length + 1 → length + 2
    One too long: T + 1 inputs and as many targets. Look at where your slices end.
windows[:, :-1] → windows
    The inputs are one too long. They hold the whole window, with its last target.
targets = windows[:, 1:] → targets = inputs.roll(-1, dims=1)
    Your last target comes round from the front of the window: that is what `roll` does.
    It stands in the text, one place after the window's inputs.
targets = windows[:, 1:] → targets = ids[places[:, :-1] + length]
    Your targets are the window after this one. Each input has its own target, the very
    next character: inputs and targets overlap in all but one.
return inputs, targets → return inputs
    The targets are missing. Return two tensors, the inputs first.
return inputs, targets → return windows
    These are whole windows of characters. Two tensors are asked for: the inputs and the
    targets, cut out of them.
return inputs, targets → return list(inputs), list(targets)
    You return lists of windows. The model wants a tensor of shape (B, T): look at
    `torch.stack`.
return inputs, targets → return list(zip(inputs, targets))
    You return a pair for each window. Two tensors are asked for, all inputs and all
    targets, each of shape (B, T).
targets = windows[:, 1:] → targets = inputs + 1
    You add 1 to the ids. That is the next character of the alphabet, not of the text:
    it is the place that moves by one.
---
targets = windows[:, 1:] → targets = windows[:, -1]
targets = windows[:, 1:] → targets = windows[:, -1:]
    You keep one target per window, the character after its end. Every one of the T
    inputs has a target: the mask lets one pass answer all of them.
windows[:, :-1] → windows[:-1] ; windows[:, 1:] → windows[1:]
    The shift goes along the batch: you leave out the last window and the first. A
    character follows another within its row, along the second axis.
inputs = windows[:, :-1] → inputs = ids[starts + torch.arange(length)]
; targets = windows[:, 1:] → targets = ids[starts + 1 + torch.arange(length)]
    Starts and counting numbers are both rows, and are added pair by pair. For every
    start with every number one of them must be a column.
inputs = windows[:, :-1] → inputs = ids[starts : starts + length]
; targets = windows[:, 1:] → targets = ids[starts + 1 : starts + 1 + length]
    You cut with the tensor `starts` as it is. A slice has a single start: loop over
    them, or look up a table of places.
windows = ids[places] → windows = places
    These are the places in the text, not what stands there. With them `ids` is still to
    be looked up.
return inputs, targets → return inputs.T, targets.T
    Rows and columns are exchanged: (T, B). Each window is a row, so the starts are the
    column and the counting numbers the row.
return inputs, targets → return inputs.float(), targets.float()
    Your ids have become decimals, as in a `torch.zeros` without a `dtype`. An embedding
    looks up whole numbers only.
""")

# --- 8.2 --------------------------------------------------------------------------


def logits_with_targets():
    generator = torch.Generator().manual_seed(82)
    made = []
    sizes = (2, 3, 4), (4, 3, 6), (3, 3, 5), (3, 8, 4), (6, 2, 9), (1, 4, 5), (3, 1, 4)
    for B, T, V in sizes:
        logits = 3 * torch.randn(B, T, V, generator=generator)
        made.append((logits, torch.randint(V, (B, T), generator=generator)))
    return made


ex = Exercise(
    "8.2",
    "The loss at each place",
    why="`view` cuts a row of numbers from the front and knows nothing of windows: the "
    "sizes must come in the order in which they were flattened.",
    inputs=logits_with_targets,
)


@ex.reference
def loss_at_each_place(logits, targets):
    B, T, V = logits.shape
    rows, came = logits.reshape(B * T, V), targets.reshape(B * T)
    losses = F.cross_entropy(rows, came, reduction="none")
    return losses.view(B, T).mean(dim=0)


ex.slips("""
given: view(B, T).mean(dim=0) → view(T, B).mean(dim=1)
    `view(T, B)` takes B neighbors of the flat row for one place. In which order did
    `reshape` lay the questions: which comes second, the next character or the next
    window?
mean(dim=0) → mean(dim=1)
    The mean runs over the wrong axis: you return the loss of each window, B numbers.
    Which axis has to disappear?
view(B, T) → view(T, B)
    You changed the axis of the mean and left the view: B numbers, each a mixture. Which
    shape had the targets before they were flattened?
.mean(dim=0) → .mean()
    That is one loss for the whole batch. A number for each of the T places is asked
    for: only one of two axes is averaged.
.mean(dim=0) →
    The mean over the windows is missing. These are the single losses.
mean(dim=0) → sum(dim=0)
    These are sums over the windows, B times too large. The mean was asked for.
logits.reshape( → logits.softmax(dim=-1).reshape(
    You apply a softmax before `cross_entropy`. It wants logits, and has a softmax of
    its own.
reduction="none" → reduction="mean"
    `cross_entropy` returns a single mean, and nothing is left to take apart. Keep
    `reduction="none"`.
---
view(B, T) → view(B, T)[:, :-1]
    The last place is dropped. Each of the T places has a target.
logits.reshape(B * T, V), targets.reshape(B * T)
→ logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten() ; view(B, T) → view(B, T - 1)
    You shift the targets once more. They are the next characters already.
logits.reshape( → logits.transpose(1, 2).reshape(
    The rows of logits are now mixtures: if V is moved to the middle, each row of the
    reshaped tensor has scores of several characters. V must stay last.
logits.reshape( → logits.transpose(0, 1).reshape(
; view(B, T).mean(dim=0) → view(T, B).mean(dim=1)
    You exchanged B and T of the logits, and not of the targets, so that questions and
    answers no longer belong together. Both must be flattened in the same order.
targets.reshape( → targets.T.reshape(
; view(B, T).mean(dim=0) → view(T, B).mean(dim=1)
    You exchanged B and T of the targets, and not of the logits, so that questions and
    answers no longer belong together. Both must be flattened in the same order.
""")

# --- 8.3 --------------------------------------------------------------------------


def schedules():
    return [
        (1.0, 0.2, 2, 7),
        (0.5, 0.1, 1, 6),
        (2.0, 0.5, 4, 9),
        (3.0, 0.7, 3, 14),
        (0.05, 0.004, 10, 40),
        (1.0, 0.0, 1, 3),
    ]


def rates_at_all_steps(answer, highest, lowest, warmup_steps, n_steps):
    plan = highest, lowest, warmup_steps, n_steps
    return [answer(step, *plan) for step in range(n_steps)]


ex = Exercise(
    "8.3",
    "Up in a line, down along a cosine",
    why="Small steps while Adam's averages have seen next to nothing, small steps again "
    "where it should settle: most language models are trained on such a curve.",
    inputs=schedules,
    call=rates_at_all_steps,
    tolerance=1e-6,
)


@ex.reference
def rate_at(step, highest, lowest, warmup_steps, n_steps):
    if step < warmup_steps:
        part = (step + 1) / warmup_steps
        return highest * part
    share = (step - warmup_steps) / (n_steps - 1 - warmup_steps)
    wave = math.cos(math.pi * share)
    height = (1 + wave) / 2
    span = highest - lowest
    return lowest + span * height


ex.slips("""
part = (step + 1) → part = step
    The warm-up begins at 0, so the first step moves nothing. Step 0 is the first of
    `warmup_steps`, and has one part of the way behind it.
(step + 1) / warmup_steps → (step + 1) / (warmup_steps + 1)
    The warm-up reaches the highest rate one step too late. Its last step, number
    `warmup_steps` − 1, has it already: look at what you divide by.
(step + 1) / warmup_steps → step / (warmup_steps - 1)
    You divide the warm-up by `warmup_steps` − 1. Then step 0 has nothing, and a warm-up
    of one step divides by 0. Each of its steps is one part of `warmup_steps`.
step < warmup_steps → step <= warmup_steps
    The warm-up is one step too long. Counted from 0, does step number `warmup_steps`
    still belong to it?
step < warmup_steps → step < warmup_steps - 1
    The warm-up is one step short: its last step, number `warmup_steps` − 1, is left to
    the cosine. It is the one that reaches the highest rate.
return highest * part → return lowest + (highest - lowest) * part
    The warm-up rises from the lowest rate. It should rise from nothing: the lowest rate
    is where the cosine ends.
(n_steps - 1 - warmup_steps) → (n_steps - warmup_steps)
    The cosine does not get to its end. The last step has the number `n_steps` − 1, and
    its share should be 1.
(step - warmup_steps) / (n_steps - 1 - warmup_steps) → step / (n_steps - 1)
(step - warmup_steps) / (n_steps - 1 - warmup_steps) → step / n_steps
    The cosine counts its steps from the beginning of training, so the rate jumps down
    where the warm-up ends. Its share is 0 at step number `warmup_steps`.
(n_steps - 1 - warmup_steps) → (n_steps - 1)
(n_steps - 1 - warmup_steps) → n_steps
    You divide as if the cosine ran over all of training. How many steps lie between the
    warm-up's end and the last one?
math.cos(math.pi * share) → math.cos(share)
    The angle ends at 1. Half a cosine runs to π: what is the share to be multiplied
    with?
math.cos(math.pi * share) → math.cos(2 * math.pi * share)
    That is a whole wave: it comes up again at the end. Half a cosine runs from the
    angle 0 to π.
height = (1 + wave) / 2 → height = wave
height = (1 + wave) / 2 → height = wave / 2
    Your cosine is not lifted: it falls below 0. Which sum and which factor make of 1
    down to −1 a fall from 1 down to 0?
(1 + wave) / 2 → (1 + wave)
    1 plus the cosine goes from 2 down to 0, so it is twice too high. It should go from
    1 down to 0.
span = highest - lowest → span = highest ; lowest + span * → span *
    The fall ends at 0: you have not used the lowest rate. The cosine runs between the
    highest and the lowest.
lowest + span → span
    The lowest rate is still to be added. What you return in the fall is the height
    above it.
span = highest - lowest → span = highest
    The fall begins above the highest rate, by the lowest. What the cosine spans is only
    the difference of the two.
---
(step - warmup_steps) / → (step - warmup_steps + 1) /
(step - warmup_steps) / (n_steps - 1 - warmup_steps)
→ (step - warmup_steps + 1) / (n_steps - warmup_steps)
    The fall begins one step too early. Step number `warmup_steps` has the highest rate
    once more, so its share is 0.
height = (1 + wave) / 2 → height = math.cos(math.pi / 2 * share)
    That is a quarter of a wave: it is steepest at the end. Half a cosine runs from the
    angle 0 to π, and has to be lifted above 0.
1 + wave → 1 - wave
    Upside down: your cosine rises where it should fall. At share 0 the cosine is 1:
    which sign should it have?
height = (1 + wave) / 2 → height = 1 - share
    The rate falls in a straight line. Where is the cosine, which falls hardly, then
    fast, then hardly?
span = highest - lowest → lowest = lowest * highest⏎span = highest - lowest
    You take the lowest rate for a share of the highest, as the lesson's `final_rate` is
    one. Here it is a rate itself.
span = highest - lowest → span = lowest - highest
    The difference has the wrong sign: your rate falls as far below the lowest as it
    should stand above it. The highest rate comes first.
return lowest + span * height → return height
    Your fall runs from 1 to 0 whatever the rates are. Make of it one that runs from the
    highest rate to the lowest.
""")

# --- 8.4 --------------------------------------------------------------------------

ex = Exercise(
    "8.4",
    "Bits per character",
    why="Bits per character compare models whatever they read; the token model, with "
    "twice the loss, is the better one here.",
    tolerance=2.5e-3,
    needs={},
)


@ex.value
def in_bits_and_choices():
    nats, bit, characters = 1.64, math.log(2), 148_476
    knows_nothing = math.log(72) / bit
    trained = nats / bit
    choices = math.exp(nats)
    token_model = 3.3 / bit / 4
    book = characters * nats / bit / 8
    return {
        "knows nothing, bits per character": knows_nothing,
        "loss of 1.64, bits per character": trained,
        "loss of 1.64, choices left": choices,
        "token model, bits per character": token_model,
        "book at a loss of 1.64, bytes": book,
    }


ex.slips("""
math.log(72) / bit → math.log(72)
    For the model that knows nothing you have the loss in nats. How often does ln 2 go
    into it?
math.log(72) / bit → 7
    For the model that knows nothing you rounded up to whole bits. On average a part of
    a bit counts too.
math.log(72) / bit → math.log(72) * bit
    For the model that knows nothing you multiplied by ln 2. There are more bits than nats.
trained = nats / bit → trained = nats * bit
    For the loss of 1.64 you multiplied by ln 2. There are more bits than nats.
trained = nats / bit → trained = nats
    For the loss of 1.64 you have nats still. A bit is ln 2 of them.
trained = nats / bit → trained = math.log2(nats)
    You took the logarithm of the loss. The loss is a logarithm already: divide it by
    the size of a bit.
trained = nats / bit → trained = math.exp(nats)
    In place of the bits you have the choices left. How often can they be halved?
math.exp(nats) → 2**nats
    For the choices left you raised 2 to a loss in nats. Its base is e; 2 is that of
    bits.
math.exp(nats) → math.exp(nats / bit)
    For the choices left you raised e to a loss in bits. e is the base for nats.
math.exp(nats) → nats / bit
    In place of the choices left you have the bits. With each bit the choices double.
3.3 / bit / 4 → 3.3 / bit
    For the token model you have bits per token. A token has 4 characters.
3.3 / bit / 4 → 3.3 / 4
    For the token model you have nats per character. A bit is ln 2 of them.
3.3 / bit / 4 → 3.3 * bit / 4
    For the token model you multiplied by ln 2. There are more bits than nats.
nats / bit / 8 → nats / bit
    For the book you have bits. A byte has 8 of them.
nats / bit / 8 → nats / 8
    For the book you took the loss for bits. It is in nats.
nats / bit / 8 → nats * bit / 8
    For the book you multiplied by ln 2. There are more bits than nats.
---
3.3 / bit / 4 → 3.3 * 4 / bit
    For the token model you multiplied by the 4 characters. They share a token's bits.
characters * nats / bit / 8 → characters * nats
    For the book you have nats. Change to bits, and then to bytes.
""")
