"""Answers to the exercises of lesson 13 · Many processes: right ones, and wrong ones."""

import torch

RIGHT_13_1 = {
    "eight replicas send": 7_000_000,
    "two replicas send": 4_000_000,
    "eight in four pieces send": 7_000_000,
    "a replica keeps": 16_000_000,
    "one of eight shards keeps": 2_000_000,
}


def wrong_13_1(**counts):
    return RIGHT_13_1 | {key.replace("_", " "): value for key, value in counts.items()}


def right_13_2_loop(gradients, n_windows):
    total = torch.zeros(gradients.shape[1])
    for row, count in zip(gradients, n_windows.tolist(), strict=True):
        total += count * row
    return total / sum(n_windows.tolist())


def right_13_2_product(gradients, n_windows):
    return (n_windows / n_windows.sum()) @ gradients


def right_13_3_slice(rank, size, step, n_starts, batch_size):
    generator = torch.Generator().manual_seed(step)
    share = batch_size // size
    starts = torch.randint(n_starts, (batch_size,), generator=generator)
    return starts[rank * share : rank * share + share]


def right_13_3_view(rank, size, step, n_starts, batch_size):
    generator = torch.Generator().manual_seed(step)
    rows = torch.randint(n_starts, (batch_size,), generator=generator)
    return rows.view(size, -1)[rank]


def wrong_13_3_seeds(rank, size, step, n_starts, batch_size):
    generator = torch.Generator().manual_seed(step + rank)
    return torch.randint(n_starts, (batch_size // size,), generator=generator)


def wrong_13_3_far_seeds(rank, size, step, n_starts, batch_size):
    generator = torch.Generator().manual_seed(step + 1000 * rank)
    return torch.randint(n_starts, (batch_size // size,), generator=generator)


def wrong_13_3(cut):
    """Make a wrong answer from how it cuts its rows out of the whole batch."""

    def answer(rank, size, step, n_starts, batch_size):
        generator = torch.Generator().manual_seed(step)
        starts = torch.randint(n_starts, (batch_size,), generator=generator)
        return cut(starts, rank, size)

    return answer


def right_13_4_list(rank, n_windows, batch_size):
    calls = ["all-reduce" for _ in range(min(n_windows) // batch_size)]
    return calls if rank else [*calls, "write"]


def right_13_4_loop(rank, n_windows, batch_size):
    calls, done = [], 0
    while all(done + batch_size <= count for count in n_windows):
        calls.append("all-reduce")
        done += batch_size
    if rank == 0:
        calls.append("write")
    return calls


def wrong_13_4(n_steps, last=("write",)):
    """Make a wrong answer from its number of steps and what rank 0 does last."""

    def answer(rank, n_windows, batch_size):
        calls = n_steps(rank, n_windows, batch_size) * ["all-reduce"]
        return calls if rank else calls + list(last)

    return answer


RIGHT = {
    "13.1": [RIGHT_13_1],
    "13.2": [right_13_2_loop, right_13_2_product],
    "13.3": [right_13_3_slice, right_13_3_view],
    "13.4": [right_13_4_list, right_13_4_loop],
}

WRONG = {
    "13.1": [
        ("once per piece", wrong_13_1(eight_in_four_pieces_send=28_000_000)),
        (
            "hand the sums round",
            wrong_13_1(
                eight_replicas_send=3_500_000,
                two_replicas_send=2_000_000,
                eight_in_four_pieces_send=3_500_000,
            ),
        ),
        ("nothing stays whole", wrong_13_1(one_of_eight_shards_keeps=9_000_000)),
        ("a replica keeps: 8000000", wrong_13_1(a_replica_keeps=8_000_000)),
    ],
    "13.2": [
        ("mean of the means", lambda g, n: torch.stack(list(g)).mean(0)),
        ("sum of the means", lambda g, n: torch.einsum("np->p", g)),
        ("number of ranks", lambda g, n: torch.einsum("np,n->p", g, n / len(n))),
        ("not divided", lambda g, n: n.float() @ g),
        ("It fails on", lambda g, n: (n / n.sum()) @ g + 1e-3),
    ],
    "13.3": [
        ("another one than a single process", wrong_13_3_seeds),
        ("It fails on", wrong_13_3_far_seeds),
        ("whole batch now", wrong_13_3(lambda starts, rank, size: starts.clone())),
        (
            "dealt out",
            wrong_13_3(lambda starts, rank, size: starts.view(-1, size).T[rank]),
        ),
    ],
    "13.4": [
        ("waits in vain", wrong_13_4(lambda r, n, b: n[r] // b)),
        ("nobody writes", wrong_13_4(lambda r, n, b: min(n) // b, last=())),
        ("round down", wrong_13_4(lambda r, n, b: (min(n) + b - 1) // b)),
        ("It fails on", wrong_13_4(lambda r, n, b: min(n))),
    ],
}
