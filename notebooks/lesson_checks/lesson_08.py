"""The exercises of lesson 8 · Training a tiny GPT."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .engine import Exercise

# 8.1


def texts_with_starts():
    """No window touches an end of its text, so that a shift by one never leaves it."""
    generator = torch.Generator().manual_seed(81)
    made = [(torch.arange(10, 20), torch.tensor([2]), 3)]
    for N, starts, T in (
        (15, [4, 1], 3),
        (24, [1, 9, 5], 5),
        (16, [7, 2, 7, 3], 2),
        (30, [12, 3, 1, 8, 20], 4),
    ):
        made.append((torch.randperm(N, generator=generator), torch.tensor(starts), T))
    return made


def inputs_and_targets(answer, ids, starts, length):
    found = answer(ids, starts, length)
    if isinstance(found, Tensor) and found.ndim != 3:
        return {"inputs": found}
    if not isinstance(found, (tuple, list, Tensor)):
        return found
    if len(found) != 2:
        raise ValueError(f"inputs and targets are two tensors, but {len(found)} came")
    return {"inputs": found[0], "targets": found[1]}


def stretches(ids, starts, length):
    return ids[starts[:, None] + torch.arange(length)]


def ids_at_pairs(ids, starts, length, shift):
    return ids[starts + torch.arange(length) + shift]


def targets_from(change):
    """Make an answer with right inputs; ``change`` makes the targets from T + 1."""

    def answer(ids, starts, length):
        windows = stretches(ids, starts, length + 1)
        return windows[:, :-1], change(windows)

    return answer


def moved(first, second, longer=0):
    """Make an answer whose inputs and targets begin this much after the starts."""

    def answer(ids, starts, length):
        parts = starts + first, starts + second
        return tuple(stretches(ids, part, length + longer) for part in parts)

    return answer


ex = Exercise(
    "8.1",
    "Windows and their targets",
    why="A wrong shift raises no error and often trains well: the model learns to "
    "answer another question than yours.",
    inputs=texts_with_starts,
    call=inputs_and_targets,
)

ex.reference(moved(0, 1))

ex.mistake(
    "Your targets are the inputs, not shifted. The model would learn to copy what it "
    "reads. The target of a character is the one that follows it."
)(moved(0, 0))

ex.mistake(
    "Your targets are shifted twice: they ask for the character after next. Is a part "
    "that began one later cut once more?"
)(moved(0, 2))

ex.mistake(
    "Your targets are shifted twice, and one is missing in each window: both parts were "
    "cut once more. One column less on either side is all."
)(moved(0, 2, longer=-1))

ex.mistake(
    "Your targets are shifted the wrong way: they are the characters before the "
    "inputs, which the model has already seen. Where does a target stand?"
)(moved(0, -1))

ex.mistake(
    "Inputs and targets are exchanged. The inputs begin at the start, the targets one "
    "later; inputs are returned first."
)(moved(1, 0))

ex.mistake(
    "Inputs and targets fit each other, but both begin one too late. The first input "
    "stands at the start itself."
)(moved(1, 2))

ex.mistake(
    "One short: T − 1 inputs and as many targets. To ask T questions a window takes "
    "one character more than T."
)(moved(0, 1, longer=-1))

ex.mistake(
    "One too long: T + 1 inputs and as many targets. Look at where your slices end."
)(moved(0, 1, longer=1))


@ex.mistake(
    "The targets are right, but the inputs are one too long: they hold the whole "
    "window, with its last target."
)
def _(ids, starts, length):
    windows = stretches(ids, starts, length + 1)
    return windows, windows[:, 1:]


@ex.mistake(
    "Your targets are the window after this one. Each input has its own target, the "
    "very next character: inputs and targets overlap in all but one."
)
def _(ids, starts, length):
    return tuple(stretches(ids, part, length) for part in (starts, starts + length))


ex.mistake(
    "You keep one target per window, the character after its end. Every one of the T "
    "inputs has a target: the mask lets one pass answer all of them."
)(targets_from(lambda windows: windows[:, -1]))

ex.mistake(
    "Your last target comes round from the front of the window: that is what `roll` "
    "does. It stands in the text, one place after the window's inputs."
)(targets_from(lambda windows: windows[:, :-1].roll(-1, dims=1)))


@ex.mistake(
    "The shift goes along the batch: you leave out the last window and the first. A "
    "character follows another within its row, along the second axis."
)
def _(ids, starts, length):
    windows = stretches(ids, starts, length + 1)
    return windows[:-1], windows[1:]


@ex.mistake(
    "Your windows stand side by side from the front of the text. `starts` says where "
    "each of them begins."
)
def _(ids, starts, length):
    places = torch.arange(len(starts) * length).view(-1, length)
    return ids[places], ids[places + 1]


ex.mistake(
    "You add 1 to the ids. That is the next character of the alphabet, not of the text: "
    "it is the place that moves by one."
)(lambda *args: (stretches(*args), stretches(*args) + 1))

ex.mistake(
    "Starts and counting numbers are both rows, and are added pair by pair. For every "
    "start with every number one of them must be a column."
)(lambda *args: tuple(ids_at_pairs(*args, shift) for shift in (0, 1)))

ex.mistake(
    "You cut with the tensor `starts` as it is. A slice has a single start: loop over "
    "them, or look up a table of places."
)(lambda ids, starts, T: (ids[starts : starts + T], ids[starts + 1 : starts + 1 + T]))

ex.mistake(
    "All windows lie in one long row, so that one runs into the next. Each window is a "
    "row of its own: (B, T)."
)(lambda *args: tuple(part.flatten() for part in moved(0, 1)(*args)))

ex.mistake("These are the inputs alone. The targets are asked for as well.")(stretches)

ex.mistake(
    "These are windows of T + 1 characters. Two tensors are asked for: the inputs and "
    "the targets, cut out of them."
)(lambda ids, starts, length: stretches(ids, starts, length + 1))

ex.mistake(
    "Each window is right, but you return lists of windows. The model wants a tensor "
    "of shape (B, T): look at `torch.stack`."
)(lambda *args: tuple(list(part) for part in moved(0, 1)(*args)))

ex.mistake(
    "You return a pair for each window. Two tensors are asked for, all inputs and all "
    "targets, each of shape (B, T)."
)(lambda *args: list(zip(*moved(0, 1)(*args), strict=True)))


ex.mistake(
    "These are the places in the text, not what stands there. With them `ids` is still "
    "to be looked up."
)(lambda ids, *args: moved(0, 1)(torch.arange(len(ids)), *args))

ex.mistake(
    "Rows and columns are exchanged: (T, B). Each window is a row, so the starts are "
    "the column and the counting numbers the row."
)(lambda *args: tuple(part.T for part in moved(0, 1)(*args)))

ex.mistake(
    "Your ids have become decimals, as in a `torch.zeros` without a `dtype`. An "
    "embedding looks up whole numbers only."
)(lambda *args: tuple(part.float() for part in moved(0, 1)(*args)))

ex.mistake(
    "Inputs and targets are joined along a last axis. Two tensors are asked for, each "
    "of shape (B, T)."
)(lambda *args: torch.stack(moved(0, 1)(*args), -1))


# 8.2


def logits_with_targets():
    generator = torch.Generator().manual_seed(82)
    made = []
    for B, T, V in (2, 3, 4), (4, 3, 6), (3, 3, 5), (3, 8, 4), (6, 2, 9):
        logits = 3 * torch.randn(B, T, V, generator=generator)
        made.append((logits, torch.randint(V, (B, T), generator=generator)))
    return made


def losses_of(logits, targets):
    """One loss per question, in the shape of the targets."""
    rows = logits.reshape(-1, logits.shape[-1])
    losses = F.cross_entropy(rows, targets.reshape(-1), reduction="none")
    return losses.view(targets.shape)


def from_losses(change):
    return lambda logits, targets: change(losses_of(logits, targets))


ex = Exercise(
    "8.2",
    "The loss at each place",
    why="`view` cuts a row of numbers from the front and knows nothing of windows: the "
    "sizes must come in the order in which they were flattened.",
    inputs=logits_with_targets,
)


@ex.bug(
    "`view(T, B)` still takes B neighbors of the flat row for one place. In which order "
    "did `reshape` lay the questions: which comes second, the next character or the "
    "next window?"
)
def _(logits, targets):
    B, T, V = logits.shape
    rows, came = logits.reshape(B * T, V), targets.reshape(B * T)
    losses = F.cross_entropy(rows, came, reduction="none")  # (B·T)
    return losses.view(T, B).mean(dim=1)  # (T)


ex.reference(from_losses(lambda losses: losses.mean(dim=0)))

ex.mistake(
    "The view is right now, but the mean runs over the wrong axis: you return the loss "
    "of each window, B numbers. Which axis has to disappear?"
)(from_losses(lambda losses: losses.mean(dim=1)))

ex.mistake(
    "You changed the axis of the mean and left the view: B numbers, each a mixture. "
    "Which shape had the targets before they were flattened?"
)(from_losses(lambda losses: losses.view(losses.T.shape).mean(dim=0)))

ex.mistake(
    "That is one loss for the whole batch. A number for each of the T places is asked "
    "for: only one of two axes is averaged."
)(from_losses(lambda losses: losses.mean()))

ex.mistake(
    "These are the single losses, (B, T), all right. Their mean over the windows is "
    "still missing."
)(from_losses(lambda losses: losses))

ex.mistake(
    "These are sums over the windows, B times too large. The mean was asked for."
)(from_losses(lambda losses: losses.sum(dim=0)))

ex.mistake(
    "The rows of logits are now mixtures: if V is moved to the middle, each row of the "
    "reshaped tensor has scores of several characters. V must stay last."
)(
    lambda logits, targets: losses_of(
        logits.transpose(1, 2).reshape(logits.shape), targets
    ).mean(dim=0)
)

ex.mistake(
    "You exchanged B and T of the logits, and not of the targets, so that questions "
    "and answers no longer belong together. Both must be flattened in the same order."
)(
    lambda logits, targets: losses_of(
        logits.transpose(0, 1), targets.reshape(targets.T.shape)
    ).mean(dim=1)
)

ex.mistake(
    "You exchanged B and T of the targets, and not of the logits, so that questions "
    "and answers no longer belong together. Both must be flattened in the same order."
)(
    lambda logits, targets: losses_of(
        logits.reshape(logits.transpose(0, 1).shape), targets.T
    ).mean(dim=1)
)


# 8.3


def schedules():
    made = []
    for n_steps, highest, lowest, warmup_steps in (
        (7, 1.0, 0.2, 2),
        (6, 0.5, 0.1, 1),
        (9, 2.0, 0.5, 4),
        (14, 3.0, 0.7, 3),
        (40, 0.05, 0.004, 10),
    ):
        made.append((list(range(n_steps)), highest, lowest, warmup_steps, n_steps))
    return made


def rates_at_all_steps(answer, steps, *plan):
    return [answer(step, *plan) for step in steps]


def plan_with(
    rise=lambda step, warmup, highest, lowest: highest * (step + 1) / warmup,
    share=lambda step, warmup, n_steps: (step - warmup) / (n_steps - 1 - warmup),
    fall=lambda height, highest, lowest: lowest + (highest - lowest) * height,
    height=lambda share: (1 + math.cos(math.pi * share)) / 2,
    warm=lambda step, warmup: step < warmup,
):
    """Make an answer of the parts of a schedule."""

    def answer(step, highest, lowest, warmup_steps, n_steps):
        if warm(step, warmup_steps):
            return rise(step, warmup_steps, highest, lowest)
        return fall(height(share(step, warmup_steps, n_steps)), highest, lowest)

    return answer


def rise_from_zero(step, warmup, highest, lowest):
    return highest * step / warmup


def rise_over_one_more(step, warmup, highest, lowest):
    return highest * (step + 1) / (warmup + 1)


def share_past_the_end(step, warmup, n_steps):
    return (step - warmup) / (n_steps - warmup)


ex = Exercise(
    "8.3",
    "Up in a line, down along a cosine",
    why="Small steps while Adam's averages have seen next to nothing, small steps again "
    "where it should settle: most language models are trained on such a curve.",
    inputs=schedules,
    call=rates_at_all_steps,
    tolerance=1e-6,
)

ex.reference(plan_with())

ex.mistake(
    "The warm-up begins at 0, so the first step moves nothing. Step 0 is the first of "
    "`warmup_steps`, and has one part of the way behind it."
)(plan_with(rise=rise_from_zero))

ex.mistake(
    "The warm-up reaches the highest rate one step too late. Its last step, number "
    "`warmup_steps` − 1, has it already: look at what you divide by."
)(plan_with(rise=rise_over_one_more))

ex.mistake(
    "The warm-up rises from the lowest rate. It should rise from nothing: the lowest "
    "rate is where the cosine ends."
)(
    plan_with(
        rise=lambda step, warmup, highest, lowest: (
            lowest + (highest - lowest) * (step + 1) / warmup
        )
    )
)

ex.mistake(
    "The warm-up rises to 1 and not to the highest rate. What is the share of the way "
    "to be multiplied with?"
)(plan_with(rise=lambda step, warmup, *_: (step + 1) / warmup))

ex.mistake(
    "The warm-up is one step too long: at step number `warmup_steps` your rate is above "
    "the highest. Counted from 0, does that step still belong to it?"
)(plan_with(warm=lambda step, warmup: step <= warmup))

ex.mistake(
    "The warm-up is one step short: its last step, number `warmup_steps` − 1, is left "
    "to the cosine. It is the one that reaches the highest rate."
)(plan_with(warm=lambda step, warmup: step < warmup - 1))

ex.mistake(
    "You divide the warm-up by `warmup_steps` − 1. Then step 0 has nothing, and a "
    "warm-up of one step divides by 0. Each of its steps is one part of `warmup_steps`."
)(plan_with(rise=lambda step, warmup, highest, _: highest * step / (warmup - 1)))

ex.mistake(
    "There is no warm-up: you begin with the highest rate. The first `warmup_steps` "
    "steps rise to it in a line."
)(
    plan_with(
        warm=lambda step, warmup: False,
        share=lambda step, warmup, n_steps: step / (n_steps - 1),
    )
)

ex.mistake(
    "The cosine counts its steps from the beginning of training, so the rate jumps "
    "down where the warm-up ends. Its share is 0 at step number `warmup_steps`."
)(plan_with(share=lambda step, warmup, n_steps: step / (n_steps - 1)))

ex.mistake(
    "You divide by `n_steps` − 1, as if the cosine ran from the beginning of training. "
    "How many steps lie between the warm-up's end and the last one?"
)(plan_with(share=lambda step, warmup, n_steps: (step - warmup) / (n_steps - 1)))

ex.mistake(
    "You divide by `n_steps`, as if the cosine ran over all of training. How many steps "
    "lie between the warm-up's end and the last one?"
)(plan_with(share=lambda step, warmup, n_steps: (step - warmup) / n_steps))

ex.mistake(
    "Your share is the part of the whole training that is done. It should be 0 at step "
    "number `warmup_steps` and 1 at step number `n_steps` − 1."
)(plan_with(share=lambda step, warmup, n_steps: step / n_steps))

ex.mistake(
    "Your fall is one step ahead: it begins below the highest rate, and the last step "
    "rises again. Its share is 0 at step number `warmup_steps`."
)(plan_with(share=lambda step, warmup, n: (step - warmup + 1) / (n - 1 - warmup)))

ex.mistake(
    "The fall begins one step too early: step number `warmup_steps` has the highest "
    "rate once more, so its share is 0."
)(plan_with(share=lambda step, warmup, n: (step - warmup + 1) / (n - warmup)))

ex.mistake(
    "The cosine does not get to its end: the last step has the number `n_steps` − 1, "
    "and its share should be 1."
)(plan_with(share=share_past_the_end))

ex.mistake(
    "Two things: the warm-up begins at 0, so the first step moves nothing; and the "
    "last step, number `n_steps` − 1, does not have the lowest rate."
)(plan_with(rise=rise_from_zero, share=share_past_the_end))

ex.mistake(
    "Two things: the warm-up reaches the highest rate one step too late; and the last "
    "step, number `n_steps` − 1, does not have the lowest rate."
)(plan_with(rise=rise_over_one_more, share=share_past_the_end))

ex.mistake(
    "Your share is rounded down to a whole number, 0 until the last step. `//` rounds, "
    "`/` does not."
)(plan_with(share=lambda step, warmup, n: (step - warmup) // (n - 1 - warmup)))

ex.mistake(
    "That is a whole wave: it comes up again at the end. Half a cosine runs from the "
    "angle 0 to π."
)(plan_with(height=lambda share: (1 + math.cos(2 * math.pi * share)) / 2))

ex.mistake(
    "That is a quarter of a wave: it is steepest at the end. Half a cosine runs from "
    "the angle 0 to π, and has to be lifted above 0."
)(plan_with(height=lambda share: math.cos(math.pi / 2 * share)))

ex.mistake(
    "Your angle is in degrees. `math.cos` wants radians, in which half a turn is π."
)(plan_with(height=lambda share: (1 + math.cos(180 * share)) / 2))

ex.mistake(
    "The angle ends at 1. Half a cosine runs to π: what is the share to be multiplied "
    "with?"
)(plan_with(height=lambda share: (1 + math.cos(share)) / 2))

ex.mistake(
    "Your rate falls below the lowest: a cosine goes from 1 down to −1. Which sum and "
    "which factor make of that 1 down to 0?"
)(plan_with(height=lambda share: math.cos(math.pi * share)))

ex.mistake(
    "Half a cosine goes from 1/2 down to −1/2. It has to be lifted first, so that it "
    "goes from 1 down to 0."
)(plan_with(height=lambda share: math.cos(math.pi * share) / 2))

ex.mistake(
    "1 plus the cosine goes from 2 down to 0, so the fall begins too high. It should "
    "go from 1 down to 0."
)(plan_with(height=lambda share: 1 + math.cos(math.pi * share)))

ex.mistake(
    "Upside down: after the warm-up your rate jumps to the lowest and rises. At share 0 "
    "the cosine is 1: which sign should it have?"
)(plan_with(height=lambda share: (1 - math.cos(math.pi * share)) / 2))

ex.mistake(
    "The rate falls in a straight line. Where is the cosine, which falls hardly, then "
    "fast, then hardly?"
)(plan_with(height=lambda share: 1 - share))

ex.mistake(
    "The fall ends at 0: you have not used the lowest rate. The cosine runs between the "
    "highest and the lowest."
)(plan_with(fall=lambda height, highest, lowest: highest * height))

ex.mistake(
    "What you return in the fall is the height above the lowest rate. The lowest rate "
    "itself is still to be added."
)(plan_with(fall=lambda height, highest, lowest: (highest - lowest) * height))

ex.mistake(
    "The fall begins above the highest rate, by the lowest. What the cosine spans is "
    "only the difference of the two."
)(plan_with(fall=lambda height, highest, lowest: lowest + highest * height))

ex.mistake(
    "You take the lowest rate for a share of the highest, as the lesson's `final_rate` "
    "is one. Here it is a rate itself."
)(plan_with(fall=lambda height, high, low: low * high + (high - low * high) * height))

ex.mistake(
    "The difference has the wrong sign: after the warm-up your rate falls as far below "
    "the lowest as it should stand above it. The highest rate comes first."
)(plan_with(fall=lambda height, highest, lowest: lowest + (lowest - highest) * height))

ex.mistake(
    "Your fall runs from 1 to 0 whatever the rates are. Make of it one that runs from "
    "the highest rate to the lowest."
)(plan_with(fall=lambda height, highest, lowest: height))


# 8.4

ex = Exercise(
    "8.4",
    "Bits per character",
    why="Bits per character compare models whatever they read; the token model, with "
    "twice the loss, is the better one here.",
    tolerance=2.5e-3,
)

NATS, BIT, CHARACTERS = 1.64, math.log(2), 148_476
KNOWS_NOTHING = "knows nothing, bits per character"
TRAINED = "loss of 1.64, bits per character"
CHOICES = "loss of 1.64, choices left"
TOKENS = "token model, bits per character"
PACKED = "book at a loss of 1.64, bytes"

ex.reference(
    {
        KNOWS_NOTHING: math.log2(72),
        TRAINED: NATS / BIT,
        CHOICES: math.exp(NATS),
        TOKENS: 3.3 / BIT / 4,
        PACKED: CHARACTERS * NATS / BIT / 8,
    }
)


MULTIPLIED = (
    "you multiplied by ln 2. A bit is smaller than a nat: there are more of them."
)
SLIPS = {
    KNOWS_NOTHING: {
        math.log(72): "you have the loss in nats. How often does ln 2 go into it?",
        7: "you rounded up to whole bits. On average a part of a bit counts too.",
        math.log(72) * BIT: MULTIPLIED,
    },
    TRAINED: {
        NATS * BIT: MULTIPLIED,
        math.log2(NATS): "you took the logarithm of the loss, or went to base 10. The "
        "loss is a logarithm already, and a bit belongs to base 2.",
        NATS: "you have nats still. A bit is ln 2 of them.",
        math.exp(NATS): "you have the choices left. How often can they be halved?",
    },
    CHOICES: {
        2**NATS: "you raised 2 to a loss in nats. Its base is e; 2 is that of bits.",
        math.exp(NATS / BIT): "you raised e to a loss in bits. e is the base for nats.",
        NATS / BIT: "you have the bits. With each bit the choices double.",
        72 / math.exp(NATS): "you have how many times fewer choices there are than 72, "
        "not how many are left.",
    },
    TOKENS: {
        3.3 / BIT: "you have bits per token. A token has 4 characters.",
        3.3 / 4: "you have nats per character. A bit is ln 2 of them.",
        3.3 * 4 / BIT: "you multiplied by the 4 characters. They share a token's bits.",
        3.3 * BIT / 4: MULTIPLIED,
    },
    PACKED: {
        CHARACTERS * NATS / BIT: "you have bits. A byte has 8 of them.",
        CHARACTERS * NATS / 8: "you took the loss for bits. It is in nats.",
        CHARACTERS * NATS: "you have nats. Change to bits, and then to bytes.",
        CHARACTERS * NATS * BIT / 8: MULTIPLIED,
        CHARACTERS: "you have the book as it is, a byte per character. How many bits "
        "does a character take when the model helps?",
    },
}
for key, slips in SLIPS.items():
    for value, message in slips.items():
        ex.mistake(f"In {key!r} {message}")(ex.right | {key: value})
