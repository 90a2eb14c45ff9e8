"""What the tests of many processes run in each of them: ``many_jobs.py JOB …``."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from gpt_helpers import (
    GPTConfig,
    GPTModel,
    Replicated,
    TrainingPlan,
    initialize_like_gpt2,
    joined_processes,
    load_checkpoint,
    make_optimizer,
    rank_and_size,
    shard,
    train,
    training_step,
    whole_tensor,
    write_whole,
)

SPREAD = {"alone": lambda model: model, "replicas": Replicated, "sharded": shard}
IDS = torch.randint(0, 40, (2000,), generator=torch.Generator().manual_seed(1))
PLAN = TrainingPlan(100, 8, 2e-3, warmup_steps=10, eval_every=1)


def new_model(seed=123, drop_rate=0.0):
    model = GPTModel(GPTConfig(40, 16, 32, 4, 2, drop_rate, tied_head=True))
    initialize_like_gpt2(model, torch.Generator().manual_seed(seed))
    return model


def run(device, folder, *ways):
    """Train in several ways, each from the start or from where its file stands.

    A way is written SPREAD-PIECES-FILE-DELAY, the delay in seconds after each step.
    """
    for way in ways:
        spread, pieces, name, delay = way.split("-")
        file = os.path.join(folder, name)
        with open(f"{file}.rank-{rank_and_size()[0]}", "w", encoding="utf-8") as note:
            note.write(str(os.getpid()))
        show = {"show": lambda *_, wait=float(delay): time.sleep(wait)}
        options = {"checkpoint": file, "pieces": int(pieces)} | show
        train(SPREAD[spread](new_model().to(device)), IDS, IDS[:100], PLAN, **options)


def state(device, folder, spread, name):
    """Load a checkpoint with its optimizer's state, and print the sum of all of it."""
    model = SPREAD[spread](new_model(seed=9).to(device))
    optimizer = make_optimizer(model, PLAN)
    load_checkpoint(os.path.join(folder, name), model, optimizer, PLAN)
    tensors = [x for p in model.parameters() for x in (p, *optimizer.state[p].values())]
    print(sum(whole_tensor(x.detach()).double().abs().sum().item() for x in tensors))


def gathered(x):
    """A tensor's counterparts in all processes."""
    found = [torch.empty_like(x) for _ in range(rank_and_size()[1])]
    dist.all_gather(found, x.detach().contiguous())
    return found


def seeds(device, folder):
    """Print whether models from two seeds become one, and masks of dropout do not.

    And let every rank write a file of its own: only rank 0's may appear.
    """
    note = Path(folder, f"by-{rank_and_size()[0]}")
    write_whole(note, lambda file: file.write_text("whole"))
    model = Replicated(new_model(seed=rank_and_size()[0], drop_rate=0.5))
    masks = []
    model.drop_emb.register_forward_hook(lambda *x: masks.append((x[2] != 0).float()))
    torch.manual_seed(5)
    training_step(model, make_optimizer(model, PLAN), IDS, PLAN, 0)
    print(
        torch.equal(*gathered(model.tok_emb.weight)), torch.equal(*gathered(masks[0]))
    )


def refusals(device, folder):
    """Print what ``train`` says at its door, in each case to an unchanged model."""
    seen_by_one = os.path.join(folder, f"seen-by-{rank_and_size()[0]}")
    for spread, pieces, file in (
        ("alone", 1, None),
        ("replicas", 3, None),
        ("replicas", 0, None),
        ("replicas", 1, seen_by_one),
    ):
        try:
            train(
                SPREAD[spread](new_model()),
                IDS,
                IDS[:100],
                PLAN,
                pieces=pieces,
                checkpoint=file,
            )
        except ValueError as error:
            print(error)


def never_come(device):
    """Rank 1 leaves out a step, and stays."""
    if rank_and_size()[0] == 1:
        time.sleep(600)
    dist.all_reduce(torch.ones(1))


if __name__ == "__main__":
    job, *arguments = sys.argv[1:]
    with joined_processes(timeout=float(os.environ.get("LIMIT", "120"))) as device:
        globals()[job](device, *arguments)
