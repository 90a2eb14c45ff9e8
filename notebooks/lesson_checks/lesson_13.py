"""The exercises of lesson 13 · Many processes."""

import torch

from .engine import Exercise

# 13.1

ex = Exercise(
    "13.1",
    "Bytes to send, bytes to keep",
    why="What is sent hardly grows with n, and what is kept falls with it.",
)

N = 1_000_000
bytes_of_a_million = ex.reference(
    {
        "eight replicas send": 2 * 7 / 8 * 4 * N,
        "two replicas send": 4 * N,
        "eight in four pieces send": 2 * 7 / 8 * 4 * N,
        "a replica keeps": 16 * N,
        "one of eight shards keeps": 2 * N,
    }
)


def instead(**counts):
    return bytes_of_a_million | {k.replace("_", " "): v for k, v in counts.items()}


ex.mistake(
    "You count the turns that add up. As many more are needed to hand the sums round."
)(
    instead(
        eight_replicas_send=7 / 8 * 4 * N,
        two_replicas_send=2 * N,
        eight_in_four_pieces_send=7 / 8 * 4 * N,
    )
)

ex.mistake(
    "In each turn a process sends one part of n, not all of its gradients: divide by n."
)(
    instead(
        eight_replicas_send=2 * 7 * 4 * N,
        two_replicas_send=2 * 4 * N,
        eight_in_four_pieces_send=2 * 7 * 4 * N,
    )
)

ex.mistake(
    "Each phase of the ring takes n − 1 turns, not n: a process has its own part already."
)(
    instead(
        eight_replicas_send=2 * 4 * N,
        two_replicas_send=2 * 4 * N,
        eight_in_four_pieces_send=2 * 4 * N,
    )
)

ex.mistake(
    "With `no_sync` gradients are sent once per step, after the last piece, and not once "
    "per piece."
)(instead(eight_in_four_pieces_send=4 * 2 * 7 / 8 * 4 * N))

ex.mistake("A piece is no smaller gradient: each has a number for every parameter.")(
    instead(eight_in_four_pieces_send=2 * 7 / 8 * N)
)

ex.mistake(
    "AdamW keeps two averages per parameter: with weight and gradient that makes 16 bytes."
)(instead(a_replica_keeps=12 * N, one_of_eight_shards_keeps=12 * N / 8))

ex.mistake(
    "You count weights alone. Gradients and AdamW's two averages are kept as well."
)(instead(a_replica_keeps=4 * N, one_of_eight_shards_keeps=4 * N / 8))

ex.mistake(
    "Weights and gradients are cut as well, not only the averages: nothing stays whole."
)(instead(one_of_eight_shards_keeps=8 * N + 8 * N / 8))


# 13.2


def gradients_and_windows():
    generator = torch.Generator().manual_seed(2)
    made = [(torch.tensor([[1.0, 2], [5, 6]]), torch.tensor([3, 1]))]
    for counts in ([2, 2], [4, 3, 1], [5, 0, 2, 1]):
        gradients = torch.randn(len(counts), 3, generator=generator)
        counts = torch.tensor(counts)
        made.append((gradients * (counts > 0)[:, None], counts))
    return made


ex = Exercise(
    "13.2",
    "The mean, whatever the shares",
    why="Each window has the same weight now, whichever rank has read it.",
    inputs=gradients_and_windows,
)

ex.reference(lambda g, n: (g * n[:, None]).sum(dim=0) / n.sum())

ex.mistake(
    "That is the mean of the means: a rank with one window counts as much as one with "
    "three."
)(lambda g, n: g.mean(dim=0))

ex.mistake("That is the sum of the means. It grows with the number of ranks: divide.")(
    lambda g, n: g.sum(dim=0)
)

ex.mistake(
    "The sums over windows are right, but you divide by the number of ranks. Divide by "
    "the number of windows."
)(lambda g, n: (g * n[:, None]).sum(dim=0) / len(n))

ex.mistake(
    "The sums over all windows are right, but they are not divided by the number of "
    "windows."
)(lambda g, n: (g * n[:, None]).sum(dim=0))

ex.mistake(
    "You leave out ranks without windows, but the others still count equally. Weigh each "
    "by its number of windows."
)(lambda g, n: g[n > 0].mean(dim=0))

ex.mistake(
    "You divide by a rank's windows where you should multiply: its row is a mean, and "
    "the sum is wanted."
)(lambda g, n: (g / n.clamp(min=1)[:, None]).sum(dim=0))

ex.mistake("You add up the wrong axis: ranks are the rows, and P numbers remain.")(
    lambda g, n: (g * n[:, None]).sum(dim=1) / n.sum()
)


# 13.3


def ranks_and_steps():
    """(size, step, n_starts, batch_size): every rank is asked in turn."""
    return [(1, 0, 20, 2), (2, 0, 20, 4), (2, 5, 100, 8), (4, 3, 1000, 8)]


def all_ranks(answer, size, step, n_starts, batch_size):
    return [answer(rank, size, step, n_starts, batch_size) for rank in range(size)]


ex = Exercise(
    "13.3",
    "Read twice",
    why="All ranks draw the same batch, and each takes its own rows of it.",
    inputs=ranks_and_steps,
    call=all_ranks,
)


@ex.bug(
    "All ranks still draw the same starts, since they have the same seed: each window is "
    "read once per rank."
)
def _(rank, size, step, n_starts, batch_size):
    generator = torch.Generator().manual_seed(step)
    share = batch_size // size
    return torch.randint(n_starts, (share,), generator=generator)


def sharing(rows, seed=lambda step, rank: step):
    """Make an answer from what it does with the rows of a whole batch, and its seed."""

    def answer(rank, size, step, n_starts, batch_size):
        generator = torch.Generator().manual_seed(seed(step, rank))
        batch = torch.randint(n_starts, (batch_size,), generator=generator)
        return rows(batch, rank, size)

    return answer


ex.reference(sharing(lambda batch, rank, size: batch.chunk(size)[rank]))

ex.mistake(
    "No window is read twice now, but the batch is another one than a single process "
    "would draw. Keep the seed, and draw all of the batch on every rank."
)(sharing(lambda batch, rank, size: batch[: len(batch) // size], lambda s, r: s + r))

ex.mistake(
    "Every rank gets the whole batch now. Each should get its share: cut it by the rank."
)(sharing(lambda batch, rank, size: batch))

ex.mistake(
    "The windows are the right ones, but dealt out like cards: rank 0 should have the "
    "first rows of the batch, rank 1 the next, and so on."
)(sharing(lambda batch, rank, size: batch[rank::size]))

ex.mistake(
    "The shares overlap: rank r begins r rows later. It should begin r shares later."
)(sharing(lambda batch, rank, size: batch[rank : rank + len(batch) // size]))


# 13.4


def uneven_windows():
    """(n_windows, batch_size): every rank is asked in turn."""
    return [([2], 1), ([4, 4], 2), ([6, 4], 2), ([3, 5], 2), ([9, 7, 8, 7], 3)]


def every_rank(answer, n_windows, batch_size):
    return [answer(r, list(n_windows), batch_size) for r in range(len(n_windows))]


def calling(n_steps, writes):
    """Make an answer from its number of steps and from who writes."""

    def answer(rank, n_windows, batch_size):
        calls = ["all-reduce"] * int(n_steps(rank, n_windows, batch_size))
        return calls + ["write"] * bool(writes(rank))

    return answer


def fewest(rank, n_windows, batch_size):
    return min(n_windows) // batch_size


ex = Exercise(
    "13.4",
    "Who waits for whom",
    why="All ranks make the same calls in the same order, and one alone writes.",
    inputs=uneven_windows,
    call=every_rank,
)


@ex.bug(
    "The ranks still make different numbers of all-reduces, so one waits in vain; and "
    "each of them writes the checkpoint."
)
def _(rank, n_windows, batch_size):
    calls = []
    for _ in range(n_windows[rank] // batch_size):
        calls.append("all-reduce")
    calls.append("write")
    return calls


ex.reference(calling(fewest, lambda rank: rank == 0))

ex.mistake(
    "Nobody hangs any more, but every rank still writes the checkpoint, into the same "
    "file at the same time."
)(calling(fewest, lambda rank: True))

ex.mistake(
    "One rank writes now, but the ranks still make different numbers of all-reduces: "
    "the one with more windows waits in vain."
)(calling(lambda rank, n, b: n[rank] // b, lambda rank: rank == 0))

ex.mistake("Now nobody writes. Rank 0 should.")(calling(fewest, lambda rank: False))

ex.mistake(
    "It is rank 0 that should write: in a run of one process there is no other."
)(calling(fewest, lambda rank: rank > 0))

ex.mistake(
    "The numbers are equal, but the rank with the fewest windows cannot fill so many "
    "batches. Take the smallest number of windows."
)(calling(lambda rank, n, b: max(n) // b, lambda rank: rank == 0))

ex.mistake(
    "Rank 0's windows decide here, and another rank may have fewer. Take the smallest "
    "number of all."
)(calling(lambda rank, n, b: n[0] // b, lambda rank: rank == 0))

ex.mistake(
    "A last batch that is not full counts here. Only whole batches do: round down."
)(calling(lambda rank, n, b: -(-min(n) // b), lambda rank: rank == 0))
