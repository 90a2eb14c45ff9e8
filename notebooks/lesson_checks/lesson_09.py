"""The exercises of lesson 9 · RoPE and a tied head."""

import torch
import torch.nn.functional as F
from torch import nn

import gpt_helpers
from gpt_helpers import rotate_pairs

from .engine import Exercise

# --- 9.1 --------------------------------------------------------------------------


def three_roles():
    generator = torch.Generator().manual_seed(91)
    hands = torch.tensor([1.0, 0, 1, 0]).repeat(1, 1, 2, 1)
    made = [(hands, 2 * hands, 3 * hands)]
    for B, H, T, D in (1, 2, 2, 4), (1, 1, 1, 2), (2, 3, 5, 6), (3, 2, 7, 16):
        drawn = torch.randn(3, B, H, T, D, generator=generator)
        made.append(tuple(drawn.unbind(0)))
    return made


def by_role(answer, queries, keys, values):
    result = answer(queries, keys, values)
    if result is None or result is ...:
        return result
    return dict(zip(("queries", "keys", "values"), result, strict=False))


ex = Exercise(
    "9.1",
    "Turn what is compared",
    why="Nothing in it is learned: the angles follow from position, pair and D alone, "
    "and every head of every layer uses the same ones.",
    inputs=three_roles,
    call=by_role,
)


@ex.reference
def turned_roles(queries, keys, values):
    def turn(x):
        T, D = x.shape[2], x.shape[3]
        positions = torch.arange(T)
        exponents = torch.arange(0, D, 2) / D
        speeds = 10_000.0**-exponents
        angles = positions[:, None] * speeds
        cos, sin = angles.cos(), angles.sin()
        a, b = x[..., 0::2], x[..., 1::2]
        first = a * cos - b * sin
        second = a * sin + b * cos
        pairs = torch.stack([first, second], dim=-1)
        return pairs.flatten(-2)

    q = turn(queries)
    k = turn(keys)
    v = values
    return q, k, v


ex.slips("""
v = values → v = turn(values)
    You turn the values, too. They are mixed, not compared: no second turn cancels
    theirs.
k = turn(keys) → k = keys
    The keys are as they were. A score sees the distance only if both of its sides are
    turned.
return q, k, v → return q, k
    The values are missing in what you return. Attention needs them, too.
x[..., 0::2], x[..., 1::2] → x.chunk(2, -1) ; dim=-1 → dim=-2
    Your pairs are made of two halves: number 0 goes with number D/2. Here neighbors
    make a pair, 0 and 1, 2 and 3.
dim=-1 → dim=-2
    What you turned stands in another order: all first numbers of the pairs, then all
    second ones. Each pair belongs side by side again; which axis do you join them
    along?
10_000.0 → 1000.0
    The speeds go down too slowly, as with base 1000. The base is 10 000: count the
    zeros.
torch.arange(0, D, 2) / D → torch.arange(D // 2) / D
    In the exponent a factor of 2 is missing: yours is i/D. Pair i of D/2 has the
    exponent 2i/D, so that it runs from 0 to nearly 1.
torch.arange(0, D, 2) / D → torch.arange(0, D, 2) / (D // 2)
    There is a factor of 2 too many in the exponent: yours is 4i/D. If you count in
    steps of 2, that is the 2i already; and you divide by D, not by D/2.
torch.arange(0, D, 2) / D → torch.arange(0, D, 2)
    The exponent is not divided by D. With 2i alone the second pair nearly stands
    still; with 2i/D the exponents run from 0 to nearly 1.
**-exponents → ** (0 * exponents)
    All pairs turn with one speed, one radian per token. Where does the number i of the
    pair come in?
**-exponents → **exponents
    Your speeds grow from pair to pair instead of shrinking. Look at the sign of the
    exponent.
angles = positions → angles = -positions
    You turn with the clock. Angles are counted against it: which of the two numbers of
    a pair has the minus in its formula?
torch.arange(T) → torch.arange(1, T + 1)
    You count positions from 1. Then scores are right, but the first token is turned; it
    stands at position 0 and stays as it was.
second = a * sin → second = first * sin
    The formula of each pair's second number uses the first number after it has been
    turned. Both need the old two.
x.shape[2], x.shape[3] → x.shape[1], x.shape[3]
torch.arange(T) → torch.arange(x.shape[1])[:, None]
    Your positions count the heads. The axes are (B, H, T, D): tokens are on the third.
---
q = turn(queries) → q = queries ; k = turn(keys) → k = keys
    Nothing is turned: queries and keys are as they were.
return pairs.flatten(-2) → return pairs
    The shape of what you turned is (B, H, T, D/2, 2): the two new numbers stand in an
    axis of their own. It needs to be flattened away.
[first, second] → [second, first]
    The two new numbers of each pair are exchanged. The one with the minus in its
    formula comes first.
first = a * cos - → first = a * cos +
    The first number of each pair has a plus where it needs a minus. Such a step does
    not keep lengths and is no turn: try it on the hand (1, 1).
second = a * sin + → second = a * sin -
    The second number of each pair has a minus where it needs a plus. Such a step does
    not keep lengths and is no turn: try it on the hand (1, 1).
x[..., 0::2], x[..., 1::2] → x.chunk(2, -1)
    You read the pairs as two halves, and write them side by side. Neighbors make a
    pair, before and after.
q = turn(queries) → q = queries
    The queries are as they were. A score sees the distance only if both of its sides
    are turned.
return q, k, v → return k, q, v
    Queries and keys are exchanged in what you return. The order is queries, keys,
    values.
return q, k, v → return v, k, q
    You return the values first. The order is queries, keys, values.
k = turn(keys)
→ s = torch.tensor([1.0, -1.0]).repeat(keys.shape[3] // 2)⏎k = s * turn(s * keys)
    Queries and keys turn in opposite directions, so that their score sees the sum of
    the positions. Both turn the same way, and the common part cancels.
angles = positions → angles = 2 * torch.pi * positions
    Your angles have a factor of 2π too many. The speeds are in radians already, and no
    shares of a full turn.
angles = positions → angles = torch.pi / 180 * positions
    You took the angles for degrees. They are in radians already, as `cos` wants them.
angles.cos(), angles.sin() → angles.sin(), angles.cos()
    Cosine and sine are exchanged. At position 0 the angle is 0, the cosine 1 and the
    sine 0, and each pair should stay as it was.
""")

# --- 9.2 --------------------------------------------------------------------------


def newest_queries_and_all_keys():
    generator = torch.Generator().manual_seed(92)
    made = []
    sizes = (1, 1, 1, 3, 2), (2, 2, 2, 5, 4), (1, 3, 3, 4, 6), (2, 3, 4, 4, 8)
    for B, H, T, S, D in sizes:
        queries = torch.randn(B, H, T, D, generator=generator)
        made.append((queries, torch.randn(B, H, S, D, generator=generator)))
    return made


ex = Exercise(
    "9.2",
    "The last words of a text",
    why="Tests with as many queries as keys cannot see it: there the start is 0. The "
    "cache of the next lesson lives on the other case.",
    inputs=newest_queries_and_all_keys,
)


@ex.reference
def newest_scores(queries, keys):
    T, S = queries.shape[-2], keys.shape[-2]
    D = keys.shape[-1]
    queries, keys = rotate_pairs(queries, start=S - T), rotate_pairs(keys)
    scores = queries @ keys.transpose(-2, -1) / D**0.5
    hidden = torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)
    return scores.masked_fill(hidden, -torch.inf)


ex.slips("""
given: rotate_pairs(queries, start=S - T) → rotate_pairs(queries)
    The distances are what they were: the first query still stands where the first key
    does. If T of S tokens are new, at which position does the first of them stand?
start=S - T → start=S
    Your queries start at S, behind all keys. But their own keys are among the S: how
    many tokens come before the first query?
start=S - T → start=S - 1
    Your queries start at S − 1, which is where the last one stands. That is right for
    a single query only.
start=S - T → start=T
    Your queries start at T, the number of the new tokens. What counts is how many came
    before them.
start=S - T → start=S - T + 1
    One off: your queries start one position too far. Positions count from 0.
start=S - T → start=S - T - 1
    One off: your queries start one position too early. With one old token the first
    new one stands at position 1.
start=S - T → start=T - S
    You moved the keys ahead of the queries, or gave the start a wrong sign. The keys
    are those of the whole text and start at 0; the queries are its end.
triu(S - T + 1) → triu(1)
    You changed the mask, and it was right. The query in row i stands at S − T + i and
    reads the key at its own place.
triu(S - T + 1) → triu(S - T)
    Your mask hides from each query its own key. The mask was right: the first hidden
    key stands directly behind the query.
---
rotate_pairs(queries, start=S - T) → queries
    Now the queries are not turned at all, which is position 0 for each of them.
rotate_pairs(queries, start=S - T), rotate_pairs(keys) → queries, keys
    Now nothing is turned, and no score knows a position any more. `rotate_pairs`
    belongs there; what it needs is one more argument.
""")

# --- 9.3 --------------------------------------------------------------------------


def weights_of_heads():
    generator = torch.Generator().manual_seed(93)
    made = [(torch.arange(6.0)[:, None] + torch.arange(6) / 10, 1)]
    for H, D in (2, 6), (3, 8), (4, 10), (2, 16):
        made.append((torch.randn(H * D, H * D, generator=generator), H))
    return made


ex = Exercise(
    "9.3",
    "From halves to neighbors",
    why="Whoever loads published weights into code with the other layout needs this, "
    "for queries and keys, and no shape tells if it was forgotten.",
    inputs=weights_of_heads,
)


@ex.reference
def partners_side_by_side(W, n_heads):
    D = len(W) // n_heads
    halves = torch.arange(D).view(2, D // 2)
    head = halves.T.flatten()
    order = torch.cat([h * D + head for h in range(n_heads)])
    return W[order]


ex.slips("""
view(2, D // 2) → view(D // 2, 2)
    That is the way back, from neighbors to halves. Ask for each new row where it comes
    from: new row 1 is the partner of row 0, which stands half a head away.
D = len(W) // n_heads → D = len(W) ; range(n_heads) → range(1)
    You took all rows as one head. Each head has its own two halves: reorder inside the
    heads.
range(n_heads) → range(1)
    You return the rows of the first head alone. The order repeats in each head, moved
    by D.
torch.cat([h * D + head for h in range(n_heads)])
→ torch.cat([head, torch.arange(D, len(W))])
    Only the first head is reordered. The order repeats in each head, moved by D.
return W[order] → return W[:, order]
    You reordered the columns. `nn.Linear` keeps a matrix (out, in): what comes out, and
    is turned, belongs to the rows.
h * D + head → head
    Every head has got the rows of head 0. In head h the numbers of the rows are larger
    by h·D.
head = halves.T.flatten() → head = halves.flip(0).T.flatten()
    The second of two partners comes first. The row of the first half leads: a, d and
    not d, a.
---
return W[order] → return W[order][:, order]
    You reordered rows and columns. What comes in has no pairs: leave the columns.
return W[order] → return W[order].T
    Your result is transposed: its rows are the columns of W.
head = halves.T.flatten() → head = halves.flip(0).flatten()
    You exchange the halves of each head. The partners are as far apart as before: they
    belong side by side.
return W[order] → return W
    The matrix is as it was. No row has moved.
return W[order] → return order
    You return the order of the rows. What is asked for is the matrix, its rows in that
    order.
""")

# --- 9.4 --------------------------------------------------------------------------


def untied_models():
    made = []
    for V, C, seed in (5, 4, 1), (9, 8, 2), (7, 12, 3):
        cfg = gpt_helpers.GPTConfig(
            V, 6, C, n_heads=2, n_layers=1, drop_rate=0.0, positions="rotary"
        )
        generator = torch.Generator().manual_seed(seed)
        made.append((cfg, torch.randint(V, (2, 6), generator=generator)))
    return made


def facts_of_the_tie(answer, configuration, ids):
    generator = torch.Generator().manual_seed(configuration.vocab_size)
    model = gpt_helpers.GPTModel(configuration)
    for parameter in model.parameters():
        nn.init.normal_(parameter, generator=generator)
    table = model.tok_emb.weight.detach().clone()
    result = answer(model)
    if result is None or result is ...:
        return result
    if not isinstance(result, gpt_helpers.GPTModel):
        raise TypeError(f"the model is asked for, not a {type(result).__name__}")
    if not isinstance(result.out_head, nn.Linear):
        raise TypeError(f"the head is a {type(result.out_head).__name__}, not a Linear")
    head, entrance = result.out_head.weight, result.tok_emb.weight
    facts = {
        "the table's numbers are kept": torch.equal(entrance, table),
        "shape of the head's weight": tuple(head.shape),
        "head and table hold equal numbers": torch.equal(head, entrance),
        "parameters of the model": gpt_helpers.count_parameters(result),
    }
    if head.shape != entrance.shape:
        return facts
    logits = result(ids[:, :-1]).flatten(0, 1)
    F.cross_entropy(logits, ids[:, 1:].flatten()).backward()
    both = isinstance(head, nn.Parameter) and isinstance(entrance, nn.Parameter)
    facts["both can be trained"] = (
        both and head.requires_grad and entrance.requires_grad
    )
    with torch.no_grad():
        for parameter in result.parameters():
            if parameter.grad is not None:
                parameter -= 0.1 * parameter.grad
    equal = torch.equal(result.out_head.weight, result.tok_emb.weight)
    return facts | {"they are equal after a step": equal}


ex = Exercise(
    "9.4",
    "Tied until the first step",
    why="A tie is one tensor with two names, so it cannot come apart: not in a step of "
    "training, and not in the count.",
    inputs=untied_models,
    call=facts_of_the_tie,
)


@ex.reference
def one_tensor_two_names(model):
    model.out_head.weight = model.tok_emb.weight
    return model


ex.slips("""
given: model.out_head.weight = model.tok_emb.weight
→ with torch.no_grad():⏎    model.out_head.weight.copy_(model.tok_emb.weight)
    These are still two tensors with equal numbers. Each gets its own gradient, and
    after one step they differ. What would it take for both names to mean one tensor?
model.out_head.weight = model.tok_emb.weight
→ model.tok_emb.weight = model.out_head.weight
    It is a tie, but the table's numbers are lost. The head's are to be replaced, in the
    model that was given.
model.out_head.weight = model.tok_emb.weight
→ model.out_head.weight.data = model.tok_emb.weight.data
    The two share their memory, but they are two parameters: counted twice, each with
    the gradient of one use, and an optimizer changes the same numbers twice. What the
    head should get is the table's parameter itself.
model.out_head.weight = model.tok_emb.weight → model.out_head = model.tok_emb
    You replaced the head itself. It must stay a `Linear`, which multiplies; a table
    looks up ids. Only its `weight` is shared.
return model → return model.out_head.weight
    You return the shared tensor. The whole model is asked for, now tied.
---
model.out_head.weight = model.tok_emb.weight
→ frozen = model.tok_emb.weight.detach().clone()
; return model → model.out_head.weight = nn.Parameter(frozen, False)⏎return model
    The head's matrix is frozen: a copy that does not learn, while the table does. It
    should be the table's parameter itself.
model.out_head.weight = model.tok_emb.weight →
    Nothing is tied: the head has its own numbers, as before. Two tensors have to become
    one.
model.out_head.weight = model.tok_emb.weight
→ model.out_head.weight = nn.Parameter(model.tok_emb.weight.T)
    You transposed the table. `nn.Linear` keeps its matrix as (out, in), which is (V,
    C), the shape of the table itself.
model.out_head.weight = model.tok_emb.weight
→ model.tok_emb.weight.data.copy_(model.out_head.weight)
    You copied the other way: the table's numbers are lost, and these are two tensors
    as before. What would it take for both names to mean one tensor?
model.out_head.weight = model.tok_emb.weight
→ model.out_head.weight = model.tok_emb.weight.requires_grad_(False)
    It is a tie, but frozen: the shared tensor gets no gradient, so that neither use of
    it learns. It should stay a parameter that is trained.
""")

# --- 9.5 --------------------------------------------------------------------------

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

ex = Exercise(
    "9.5",
    "Twins of other heads",
    why="A larger base does not help here: it slows the hands down, and hands that "
    "hardly move look alike at all these distances. More hands do.",
    inputs=lambda: list(HEADS_AND_BASES),
    tolerance=5e-4,
)


@ex.reference
def twin_of_a_head(D, base):
    distances = torch.arange(32, 96)
    exponents = torch.arange(0, D, 2) / D
    speeds = base**-exponents
    angles = torch.outer(distances, speeds)
    alike = angles.cos().mean(dim=1)
    index = alike.argmax()
    distance = int(distances[index])
    likeness = float(alike[index])
    return distance, likeness


ex.slips("""
int(distances[index]) → int(index)
    The distance is counted from 32: index 0 of a slice that begins at 32 is which
    distance?
torch.arange(32, 96) → torch.arange(0, 96)
    You found distance 0, at which everything looks like itself. Only distances from 32
    on are new to the model.
torch.arange(32, 96) → torch.arange(1, 96)
    You found a neighbor, nearer than 32. Only distances from 32 on are new to the
    model.
torch.arange(32, 96) → torch.arange(32, 95)
    One off: distance 95, the last in 96 characters, belongs to the search.
torch.arange(32, 96) → torch.arange(32, 97)
    One too many: the farthest distance in 96 characters is 95, not 96.
base**-exponents → 10_000**-exponents
    Your base is always 10 000. The function is to use the one it is given; the lesson's
    `tokens_per_turn` does not.
mean(dim=1) → sum(dim=1)
    The likeness is the sum over the hands. Asked is the mean, which is 1 for equal
    hands.
return distance, likeness → return distance
    The likeness is missing in what you return. Return both.
return distance, likeness → return likeness, distance
    The two numbers are exchanged: the distance comes first.
torch.arange(0, D, 2) / D → torch.arange(D // 2) / D
    In the exponent a factor of 2 is missing: yours is i/D. Pair i has the exponent
    2i/D.
torch.arange(0, D, 2) / D → torch.arange(0, D, 2) / (D // 2)
    There is a factor of 2 too many in the exponent: yours is 4i/D. If you count in
    steps of 2, that is the 2i already.
---
torch.arange(32, 96) → torch.arange(33, 96)
    One off: distance 32 itself is new to the model and belongs to the search.
torch.arange(0, D, 2) / D → torch.arange(0, 16, 2) / 16
    Your D is always 16. The number of hands is D/2: use the D that is given.
base**-exponents → base**exponents
    Your speeds grow from pair to pair. Look at the sign of the exponent: base to the
    power of −2i/D.
int(distances[index]) → int(distances[index]) - 1
    Your distance is one too small: index 0 of a slice that begins at 32 is distance 32.
int(distances[index]) → int(distances[index]) + 1
    Your distance is one too large: index 0 of a slice that begins at 32 is distance 32.
mean(dim=1) → sum(dim=1) / D
    You divided the sum by D, but there are D/2 hands, and equal hands have the likeness
    1.
torch.arange(0, D, 2) / D → torch.arange(D) / D
    You have D hands. A hand is a pair of numbers, so there are D/2: count the exponents
    in steps of 2.
return distance, likeness → return likeness
    The distance is missing in what you return. Return both.
return distance, likeness → return alike
    These are the means at all distances. The largest of them is asked for, and where it
    stands.
torch.outer(distances, speeds) → torch.outer(distances, speeds) / (2 * torch.pi)
    A factor of 2π is missing: base to the power of 2i/D and 2π are the tokens of a full
    turn, so that 2π has to be divided by them, not 1.
""")
