"""The exercises of lesson 9 · RoPE and a tied head."""

import torch
import torch.nn.functional as F
from torch import nn

import gpt_helpers
from gpt_helpers import rotate_pairs

from .engine import Exercise

# 9.1
ROLES = "queries", "keys", "values"


def three_roles():
    generator = torch.Generator().manual_seed(91)
    hands = torch.tensor([1.0, 0, 1, 0]).repeat(1, 1, 2, 1)
    made = [(hands, 2 * hands, 3 * hands)]
    for B, H, T, D in (1, 2, 2, 4), (2, 3, 5, 6), (1, 2, 4, 8), (3, 2, 7, 16):
        drawn = torch.randn(3, B, H, T, D, generator=generator)
        made.append(tuple(drawn.unbind(0)))
    return made


def by_role(answer, *roles):
    result = answer(*roles)
    if result is None or result is ...:
        return result
    return dict(zip(ROLES, result, strict=False))


def neighbors(x):
    return x[..., 0::2], x[..., 1::2]


def side_by_side(first, second):
    return torch.stack([first, second], -1).flatten(-2)


def halves(x):
    return x.chunk(2, dim=-1)


def one_behind_the_other(first, second):
    return torch.cat([first, second], -1)


def turned(a, b, angles):
    cos, sin = angles.cos(), angles.sin()
    return a * cos - b * sin, a * sin + b * cos


def turning(
    names=("queries", "keys"),
    start=0,
    speeds=lambda D: 10_000 ** (-torch.arange(0, D, 2) / D),
    read=neighbors,
    turn=turned,
    write=side_by_side,
):
    """Make an answer that turns these roles, and in this way."""

    def turn_one(x):
        T, D = x.shape[-2:]
        angles = torch.outer(torch.arange(start, start + T), speeds(D))
        return write(*turn(*read(x), angles))

    def answer(*roles):
        pairs = zip(ROLES, roles, strict=True)
        return tuple(turn_one(x) if name in names else x for name, x in pairs)

    return answer


ex = Exercise(
    "9.1",
    "Turn what is compared",
    why="Nothing in it is learned: the angles follow from position, pair and D alone, "
    "and every head of every layer uses the same ones.",
    inputs=three_roles,
    call=by_role,
)

ex.reference(turning())

ex.mistake(
    "Queries and keys are right, but you turn the values, too. They are mixed, not "
    "compared: no second turn cancels theirs."
)(turning(ROLES))

ex.mistake(
    "The keys are as they were. A score sees the distance only if both of its sides "
    "are turned."
)(turning(("queries",)))


ex.mistake(
    "Queries and keys are right, but the values are missing in what you return. "
    "Attention needs them, too."
)(lambda *roles: turning()(*roles)[:2])

ex.mistake(
    "Your pairs are made of two halves: number 0 goes with number D/2. Here neighbors "
    "make a pair, 0 and 1, 2 and 3."
)(turning(read=halves, write=one_behind_the_other))

ex.mistake(
    "The numbers are right but stand in another order: all first numbers of the pairs, "
    "then all second ones. Each pair belongs side by side again; which axis do you "
    "join them along?"
)(turning(write=one_behind_the_other))

ex.mistake(
    "The speeds go down too slowly, as with base 1000. The base is 10 000: count the "
    "zeros."
)(turning(speeds=lambda D: 1000 ** (-torch.arange(0, D, 2) / D)))

ex.mistake(
    "In the exponent a factor of 2 is missing: yours is i/D. Pair i of D/2 has the "
    "exponent 2i/D, so that it runs from 0 to nearly 1."
)(turning(speeds=lambda D: 10_000 ** (-torch.arange(D // 2) / D)))

ex.mistake(
    "There is a factor of 2 too many in the exponent: yours is 4i/D. If you count in "
    "steps of 2, that is the 2i already; and you divide by D, not by D/2."
)(turning(speeds=lambda D: 10_000 ** (-torch.arange(0, D, 2) * 2 / D)))

ex.mistake(
    "The exponent is not divided by D. With 2i alone the second pair nearly stands "
    "still; with 2i/D the exponents run from 0 to nearly 1."
)(turning(speeds=lambda D: 10_000.0 ** -torch.arange(0, D, 2)))

ex.mistake(
    "All pairs turn with one speed, one radian per token. Where does the number i of "
    "the pair come in?"
)(turning(speeds=lambda D: torch.ones(D // 2)))

ex.mistake(
    "Your speeds grow from pair to pair instead of shrinking. Look at the sign of the "
    "exponent."
)(turning(speeds=lambda D: 10_000 ** (torch.arange(0, D, 2) / D)))

ex.mistake(
    "You turn with the clock. Angles are counted against it: which of the two numbers "
    "of a pair has the minus in its formula?"
)(turning(turn=lambda a, b, angles: turned(a, b, -angles)))

ex.mistake(
    "You count positions from 1. Then scores are right, but the first token is turned; "
    "it stands at position 0 and stays as it was."
)(turning(start=1))


ex.mistake("Nothing is turned: all three are as they were.")(turning(()))

ex.mistake(
    "The shape of what you turned is (B, H, T, D/2, 2): the two new numbers stand in an "
    "axis of their own. It needs to be flattened away."
)(turning(write=lambda first, second: torch.stack([first, second], -1)))

ex.mistake(
    "The two new numbers of each pair are exchanged. The one with the minus in its "
    "formula comes first."
)(turning(write=lambda first, second: side_by_side(second, first)))


@ex.mistake(
    "The first number of each pair is right, the second is not: its formula uses the "
    "first number after it has been turned. Both need the old two."
)
@lambda turn: turning(turn=turn)
def _(a, b, angles):
    a = a * angles.cos() - b * angles.sin()
    return a, a * angles.sin() + b * angles.cos()


ex.mistake(
    "The first number of each pair has a plus where it needs a minus. Such a step does "
    "not keep lengths and is no turn: try it on the hand (1, 1)."
)(turning(turn=lambda a, b, at: (a * at.cos() + b * at.sin(), turned(a, b, at)[1])))

ex.mistake(
    "The second number of each pair has a minus where it needs a plus. Such a step does "
    "not keep lengths and is no turn: try it on the hand (1, 1)."
)(turning(turn=lambda a, b, at: (turned(a, b, at)[0], a * at.sin() - b * at.cos())))

ex.mistake(
    "The queries are as they were. A score sees the distance only if both of its sides "
    "are turned."
)(turning(("keys",)))


@ex.mistake(
    "Queries and keys are exchanged in what you return. The order is queries, keys, "
    "values."
)
def _(*roles):
    queries, keys, values = turning()(*roles)
    return keys, queries, values


@ex.mistake(
    "Queries and keys turn in opposite directions, so that their score sees the sum of "
    "the positions. Both turn the same way, and the common part cancels."
)
def _(*roles):
    against = turning(turn=lambda a, b, angles: turned(a, b, -angles))
    return turning()(*roles)[0], against(*roles)[1], roles[2]


ex.mistake(
    "Your angles have a factor of 2π too many. The speeds are in radians already, and "
    "no shares of a full turn."
)(turning(turn=lambda a, b, angles: turned(a, b, 2 * torch.pi * angles)))

ex.mistake(
    "You took the angles for degrees. They are in radians already, as `cos` wants them."
)(turning(turn=lambda a, b, angles: turned(a, b, torch.pi / 180 * angles)))

ex.mistake(
    "Cosine and sine are exchanged. At position 0 the angle is 0, the cosine 1 and the "
    "sine 0, and each pair should stay as it was."
)(turning(turn=lambda a, b, angles: turned(a, b, torch.pi / 2 - angles)))


@ex.mistake(
    "Your positions count the heads. The axes are (B, H, T, D): tokens are on the third."
)
def _(*roles):
    swapped = turning()(*(x.transpose(1, 2) for x in roles))
    return tuple(x.transpose(1, 2) for x in swapped)


# 9.2
def newest_queries_and_all_keys():
    generator = torch.Generator().manual_seed(92)
    made = []
    sizes = (1, 1, 1, 3, 2), (2, 2, 2, 5, 4), (1, 3, 3, 4, 6), (2, 3, 4, 4, 8)
    for B, H, T, S, D in sizes:
        queries = torch.randn(B, H, T, D, generator=generator)
        made.append((queries, torch.randn(B, H, S, D, generator=generator)))
    return made


def scoring(queries_from, keys_from=lambda T, S: 0, hidden_from=lambda T, S: S - T + 1):
    """Make an answer from the two starts and the mask's diagonal; None: not turned."""

    def answer(queries, keys):
        T, S = queries.shape[-2], keys.shape[-2]
        D = keys.shape[-1]
        starts = queries_from(T, S), keys_from(T, S)
        queries, keys = (
            x if start is None else rotate_pairs(x, start)
            for x, start in zip((queries, keys), starts, strict=True)
        )
        scores = queries @ keys.transpose(-2, -1) / D**0.5
        hidden = torch.ones(T, S, dtype=torch.bool).triu(hidden_from(T, S))
        return scores.masked_fill(hidden, -torch.inf)

    return answer


def behind_the_others(T, S):
    return S - T


ex = Exercise(
    "9.2",
    "The last words of a text",
    why="Tests with as many queries as keys cannot see it: there the start is 0. The "
    "cache of the next lesson lives on the other case.",
    inputs=newest_queries_and_all_keys,
)


@ex.bug(
    "The distances are what they were: the first query still stands where the first key "
    "does. If T of S tokens are new, at which position does the first of them stand?"
)
def _(queries, keys):
    T, S = queries.shape[-2], keys.shape[-2]
    D = keys.shape[-1]
    queries, keys = rotate_pairs(queries), rotate_pairs(keys)
    scores = queries @ keys.transpose(-2, -1) / D**0.5  # (B, H, T, S)
    hidden = torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)
    return scores.masked_fill(hidden, -torch.inf)


ex.reference(scoring(behind_the_others))

ex.mistake(
    "Your queries start at S, behind all keys. But their own keys are among the S: how "
    "many tokens come before the first query?"
)(scoring(lambda T, S: S))

ex.mistake(
    "Your queries start at S − 1, which is where the last one stands. That is right for "
    "a single query only."
)(scoring(lambda T, S: S - 1))

ex.mistake(
    "Your queries start at T, the number of the new tokens. What counts is how many "
    "came before them."
)(scoring(lambda T, S: T))

ex.mistake("One off: your queries start one position too far. Positions count from 0.")(
    scoring(lambda T, S: S - T + 1)
)

ex.mistake(
    "One off: your queries start one position too early. With one old token the first "
    "new one stands at position 1."
)(scoring(lambda T, S: S - T - 1))

ex.mistake(
    "You moved the keys ahead of the queries, or gave the start a wrong sign. The keys "
    "are those of the whole text and start at 0; the queries are its end."
)(scoring(lambda T, S: T - S))

ex.mistake(
    "Now the queries are not turned at all, which is position 0 for each of them."
)(scoring(lambda T, S: None))

ex.mistake(
    "Now nothing is turned, and no score knows a position any more. `rotate_pairs` "
    "belongs there; what it needs is one more argument."
)(scoring(lambda T, S: None, lambda T, S: None))

ex.mistake(
    "The queries are right now, but you changed the mask, too, and it was right: the "
    "query in row i stands at S − T + i and reads the key at its own place."
)(scoring(behind_the_others, hidden_from=lambda T, S: 1))

ex.mistake(
    "The queries are right now, but your mask hides from each its own key. The mask was "
    "right: the first hidden key stands directly behind the query."
)(scoring(behind_the_others, hidden_from=lambda T, S: S - T))

ex.mistake(
    "You changed the mask and left the queries where they were. The mask was right; the "
    "positions of the queries are not."
)(scoring(lambda T, S: 0, hidden_from=lambda T, S: 1))


# 9.3
def weights_of_heads():
    generator = torch.Generator().manual_seed(93)
    made = [(torch.arange(6.0)[:, None] + torch.arange(6) / 10, 1)]
    for H, D in (2, 6), (3, 8), (4, 10), (2, 16):
        made.append((torch.randn(H * D, H * D, generator=generator), H))
    return made


def to_neighbors(W, H):
    return W.unflatten(0, (H, 2, -1)).transpose(1, 2).flatten(0, 2)


def to_halves(W, H):
    return W.unflatten(0, (H, -1, 2)).transpose(1, 2).flatten(0, 2)


ex = Exercise(
    "9.3",
    "From halves to neighbors",
    why="Whoever loads published weights into code with the other layout needs this, "
    "for queries and keys, and no shape tells if it was forgotten.",
    inputs=weights_of_heads,
)

ex.reference(to_neighbors)

ex.mistake(
    "That is the way back, from neighbors to halves. Ask for each new row where it "
    "comes from: new row 1 is the partner of row 0, which stands half a head away."
)(to_halves)

ex.mistake(
    "You took all rows as one head. Each head has its own two halves: reorder inside "
    "the heads."
)(lambda W, H: to_neighbors(W, 1))

ex.mistake(
    "Two things: you took all rows as one head, and that is the way from neighbors to "
    "halves. Try it on the six rows of the example."
)(lambda W, H: to_halves(W, 1))

ex.mistake(
    "You return the rows of the first head alone. The order repeats in each head, "
    "moved by D."
)(lambda W, H: to_neighbors(W, H)[: len(W) // H])

ex.mistake(
    "Only the first head is reordered. The order repeats in each head, moved by D."
)(lambda W, H: torch.cat([to_neighbors(W[: len(W) // H], 1), W[len(W) // H :]]))

ex.mistake(
    "You reordered the columns. `nn.Linear` keeps a matrix (out, in): what comes out, "
    "and is turned, belongs to the rows."
)(lambda W, H: to_neighbors(W.T, H).T)

ex.mistake(
    "You reordered rows and columns. What comes in has no pairs: leave the columns."
)(lambda W, H: to_neighbors(to_neighbors(W, H).T, H).T)

ex.mistake(
    "The order is right, but your result is transposed: its rows are the columns of W."
)(lambda W, H: to_neighbors(W, H).T)

ex.mistake(
    "You exchange the halves of each head. The partners are as far apart as before: "
    "they belong side by side."
)(lambda W, H: W.unflatten(0, (H, 2, -1)).flip(1).flatten(0, 2))

ex.mistake("The matrix is as it was. No row has moved.")(lambda W, H: W)

ex.mistake(
    "You return the order of the rows. What is asked for is the matrix, its rows in "
    "that order."
)(lambda W, H: to_neighbors(torch.arange(len(W)), H))

ex.mistake(
    "Partners stand side by side, but the second comes first. The row of the first "
    "half leads: a, d and not d, a."
)(lambda W, H: to_neighbors(W.unflatten(0, (H, 2, -1)).flip(1).flatten(0, 2), H))

ex.mistake(
    "Every head has got the rows of head 0. In head h the numbers of the rows are "
    "larger by h·D."
)(lambda W, H: to_neighbors(W[: len(W) // H], 1).repeat(H, 1))


# 9.4
def untied_models():
    made = []
    for V, C, seed in (5, 4, 1), (9, 8, 2), (7, 12, 3):
        cfg = gpt_helpers.GPTConfig(
            V, 6, C, n_heads=2, n_layers=1, drop_rate=0.0, positions="rotary"
        )
        generator = torch.Generator().manual_seed(seed)
        made.append((cfg, torch.randint(V, (2, 6), generator=generator)))
    return made


def facts_of_the_tie(answer, cfg, ids):
    generator = torch.Generator().manual_seed(cfg.vocab_size)
    model = gpt_helpers.GPTModel(cfg)
    for parameter in model.parameters():
        nn.init.normal_(parameter, generator=generator)
    table = model.tok_emb.weight.detach().clone()
    result = answer(model)
    if result is None or result is ...:
        return result
    if not isinstance(result, nn.Module):
        return {"type of what is returned": type(result).__name__}
    if not isinstance(result.out_head, nn.Linear):
        return {"kind of the head": type(result.out_head).__name__}
    head, entrance = result.out_head.weight, result.tok_emb.weight
    facts = {
        "the table's numbers kept": torch.equal(entrance, table),
        "shape of the head": tuple(head.shape),
        "equal numbers": torch.equal(head, entrance),
        "parameters": gpt_helpers.count_parameters(result),
    }
    if head.shape != entrance.shape:
        return facts
    logits = result(ids[:, :-1]).flatten(0, 1)
    F.cross_entropy(logits, ids[:, 1:].flatten()).backward()
    both = isinstance(head, nn.Parameter) and isinstance(entrance, nn.Parameter)
    facts["trainable"] = both and head.requires_grad and entrance.requires_grad
    with torch.no_grad():
        for parameter in result.parameters():
            if parameter.grad is not None:
                parameter -= 0.1 * parameter.grad
    facts["equal after a step"] = torch.equal(
        result.out_head.weight, result.tok_emb.weight
    )
    return facts


ex = Exercise(
    "9.4",
    "Tied until the first step",
    why="A tie is one tensor with two names, so it cannot come apart: not in a step of "
    "training, and not in the count.",
    inputs=untied_models,
    call=facts_of_the_tie,
)


@ex.bug(
    "These are still two tensors with equal numbers. Each gets its own gradient, and "
    "after one step they differ. What would it take for both names to mean one tensor?"
)
def _(model):
    with torch.no_grad():
        model.out_head.weight.copy_(model.tok_emb.weight)
    return model


@ex.reference
def _(model):
    model.out_head.weight = model.tok_emb.weight
    return model


@ex.mistake(
    "It is a tie, but the table's numbers are lost. The head's are to be replaced, in "
    "the model that was given."
)
def _(model):
    model.tok_emb.weight = model.out_head.weight
    return model


@ex.mistake(
    "The two share their memory, but they are two parameters: counted twice, each with "
    "the gradient of one use, and an optimizer changes the same numbers twice. What the "
    "head should get is the table's parameter itself."
)
def _(model):
    model.out_head.weight.data = model.tok_emb.weight.data
    return model


@ex.mistake(
    "The head's matrix is frozen: a copy that does not learn, while the table does. It "
    "should be the table's parameter itself."
)
def _(model):
    frozen = model.tok_emb.weight.detach().clone()
    model.out_head.weight = nn.Parameter(frozen, requires_grad=False)
    return model


@ex.mistake(
    "Nothing is tied: the head has its own numbers, as before. Two tensors have to "
    "become one."
)
def _(model):
    return model


@ex.mistake(
    "You replaced the head itself. It must stay a `Linear`, which multiplies; a table "
    "looks up ids. Only its `weight` is shared."
)
def _(model):
    model.out_head = model.tok_emb
    return model


@ex.mistake("You return the shared tensor. The whole model is asked for, now tied.")
def _(model):
    model.out_head.weight = model.tok_emb.weight
    return model.out_head.weight


@ex.mistake(
    "You transposed the table. `nn.Linear` keeps its matrix as (out, in), which is "
    "(V, C), the shape of the table itself."
)
def _(model):
    model.out_head.weight = nn.Parameter(model.tok_emb.weight.T)
    return model


@ex.mistake(
    "You copied the other way: the table's numbers are lost, and these are two tensors "
    "as before. What would it take for both names to mean one tensor?"
)
def _(model):
    with torch.no_grad():
        model.tok_emb.weight.copy_(model.out_head.weight)
    return model


@ex.mistake(
    "It is a tie, but frozen: the shared tensor gets no gradient, so that neither use "
    "of it learns. It should stay a parameter that is trained."
)
def _(model):
    model.out_head.weight = model.tok_emb.weight.requires_grad_(False)
    return model


# 9.5
HEADS_AND_BASES = (
    (8, 10_000),
    (16, 10_000),
    (16, 100),
    (16, 500_000),
    (8, 100_000),
    (20, 28),
    (24, 50),
    (64, 10_000),
)


def half_steps(D):
    return torch.arange(0, D, 2) / D


def likeness(D, base, exponents=half_steps, end=96):
    angles = torch.outer(torch.arange(float(end)), base ** -exponents(D))
    return angles.cos().mean(dim=1)


def most_alike(alike, first=32):
    distance = first + int(alike[first:].argmax())
    return distance, float(alike[distance])


def alike_most(D, base):
    return most_alike(likeness(D, base))[1]


def slipped(alike):
    distance = most_alike(alike)[0]
    return distance, float(alike[distance - 32])


ex = Exercise(
    "9.5",
    "Twins of other heads",
    why="A larger base does not help here: it slows the hands down, and hands that "
    "hardly move look alike at all these distances. More hands do.",
    inputs=lambda: list(HEADS_AND_BASES),
    tolerance=5e-4,
)

ex.reference(lambda D, base: most_alike(likeness(D, base)))


@ex.mistake(
    "The likeness is right. The distance is counted from 32: index 0 of a slice that "
    "begins at 32 is which distance?"
)
def _(D, base):
    distance, alike = most_alike(likeness(D, base))
    return distance - 32, alike


ex.mistake(
    "You found distance 0, at which everything looks like itself. Only distances from "
    "32 on are new to the model."
)(lambda D, base: most_alike(likeness(D, base), first=0))

ex.mistake(
    "You found a neighbor, nearer than 32. Only distances from 32 on are new to the "
    "model."
)(lambda D, base: most_alike(likeness(D, base), first=1))

ex.mistake("One off: distance 95, the last in 96 characters, belongs to the search.")(
    lambda D, base: most_alike(likeness(D, base)[:95])
)

ex.mistake("One too many: the farthest distance in 96 characters is 95, not 96.")(
    lambda D, base: most_alike(likeness(D, base, end=97))
)

ex.mistake(
    "One off: distance 32 itself is new to the model and belongs to the search."
)(lambda D, base: most_alike(likeness(D, base), first=33))

ex.mistake(
    "Your base is always 10 000. The function is to use the one it is given; the "
    "lesson's `tokens_per_turn` does not."
)(lambda D, base: most_alike(likeness(D, 10_000)))

ex.mistake("Your D is always 16. The number of hands is D/2: use the D that is given.")(
    lambda D, base: most_alike(likeness(16, base))
)

ex.mistake(
    "The distance is right. The likeness is the sum over the hands; asked is the mean, "
    "which is 1 for equal hands."
)(
    lambda D, base: (
        most_alike(likeness(D, base))[0],
        most_alike(likeness(D, base))[1] * (D // 2),
    )
)

ex.mistake("The distance is right; its likeness is missing. Return both.")(
    lambda D, base: most_alike(likeness(D, base))[0]
)


ex.mistake("Both numbers are right but exchanged: the distance comes first.")(
    lambda D, base: most_alike(likeness(D, base))[::-1]
)

ex.mistake(
    "In the exponent a factor of 2 is missing: yours is i/D. Pair i has the exponent "
    "2i/D."
)(lambda D, base: most_alike(likeness(D, base, lambda D: half_steps(D) / 2)))

ex.mistake(
    "There is a factor of 2 too many in the exponent: yours is 4i/D. If you count in "
    "steps of 2, that is the 2i already."
)(lambda D, base: most_alike(likeness(D, base, lambda D: half_steps(D) * 2)))

ex.mistake(
    "Your speeds grow from pair to pair. Look at the sign of the exponent: base to the "
    "power of −2i/D."
)(lambda D, base: most_alike(likeness(D, base, lambda D: -half_steps(D))))

ex.mistake(
    "The likeness is right, the distance one too small: index 0 of a slice that begins "
    "at 32 is distance 32."
)(lambda D, base: (most_alike(likeness(D, base))[0] - 1, alike_most(D, base)))

ex.mistake(
    "The likeness is right, the distance one too large: index 0 of a slice that begins "
    "at 32 is distance 32."
)(lambda D, base: (most_alike(likeness(D, base))[0] + 1, alike_most(D, base)))

ex.mistake(
    "The distance is right, but the likeness is that of another one: an index into the "
    "slice was used where distance 0 comes first."
)(lambda D, base: slipped(likeness(D, base)))

ex.mistake(
    "The distance is right. You divided the sum by D, but there are D/2 hands, and "
    "equal hands have the likeness 1."
)(lambda D, base: (most_alike(likeness(D, base))[0], alike_most(D, base) / 2))

ex.mistake(
    "You have D hands. A hand is a pair of numbers, so there are D/2: count the "
    "exponents in steps of 2."
)(lambda D, base: most_alike(likeness(D, base, lambda D: torch.arange(D) / D)))

ex.mistake("The likeness is right; its distance is missing. Return both.")(
    lambda D, base: alike_most(D, base)
)

ex.mistake(
    "These are the means at all 64 distances. The largest of them is asked for, and "
    "where it stands."
)(lambda D, base: likeness(D, base)[32:])

ex.mistake(
    "A factor of 2π is missing: base to the power of 2i/D and 2π are the tokens of a "
    "full turn, so that 2π has to be divided by them, not 1."
)(
    lambda D, base: most_alike(
        torch.outer(torch.arange(96.0), base ** -half_steps(D) / (2 * torch.pi))
        .cos()
        .mean(dim=1)
    )
)
