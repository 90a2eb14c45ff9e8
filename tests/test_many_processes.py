"""Many processes compute what one does, also after a kill, and leave nothing behind."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from many_jobs import IDS, PLAN, new_model, state
from safetensors import safe_open

from gpt_helpers import (
    add_gradients,
    draw_windows,
    launch,
    load_checkpoint,
    make_optimizer,
    next_token_loss,
    own_rows,
    rank_and_size,
    train,
)

JOBS = Path(__file__).with_name("many_jobs.py")
posix = pytest.mark.skipif(os.name == "nt", reason="no SIGKILL on Windows")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The history and the model of one process."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = new_model()
    history = train(model, IDS, IDS[:100], PLAN)
    torch.set_num_threads(threads)
    return history, model


def assert_same_run(file, alone, steps=100):
    expected, expected_model = alone
    model = new_model(seed=9)
    history = load_checkpoint(file, model)
    assert [row["step"] for row in history] == list(range(1, steps + 1))
    for row, other in zip(history, expected, strict=steps == 100):
        assert abs(row["train"] - other["train"]) < 1e-5, row["step"]
        assert abs(row["validation"] - other["validation"]) < 1e-5, row["step"]
    if steps == 100:
        pairs = zip(model.parameters(), expected_model.parameters(), strict=True)
        assert all(torch.allclose(a, b, atol=1e-4) for a, b in pairs)


# --- the same numbers -------------------------------------------------------------


def test_pieces_give_the_same_gradients_and_loss():
    x, y = draw_windows(IDS, 8, 16, torch.Generator().manual_seed(1))
    model, whole = new_model(), new_model()
    loss = next_token_loss(whole, x, y)
    loss.backward()
    assert torch.allclose(add_gradients(model, x, y, pieces=4), loss.detach())
    for a, b in zip(model.parameters(), whole.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, atol=1e-6)


def test_alone_a_process_takes_all_rows():
    assert rank_and_size() == (0, 1)
    assert torch.equal(own_rows(IDS), IDS)


def test_processes_and_pieces_come_to_the_losses_of_one(alone, tmp_path):
    """100 steps in three ways; lesson 13 itself runs four processes and two nodes."""
    ways = ["replicas-1-whole-0", "sharded-1-sharded-0", "replicas-2-pieces-0"]
    launch(JOBS, 2, "run", tmp_path, *ways)
    for way in ways:
        assert_same_run(tmp_path / way.split("-")[2], alone)


def test_a_checkpoint_of_two_is_read_by_one_and_by_four(tmp_path, capsys):
    launch(JOBS, 2, "run", tmp_path, "sharded-1-two-0")
    with safe_open(tmp_path / "two", "pt") as file:
        sums = [file.get_tensor(k).double().abs().sum().item() for k in file.keys()]
    state(torch.device("cpu"), tmp_path, "alone", "two")
    by_one = float(capsys.readouterr().out)
    by_four = float(launch(JOBS, 4, "state", tmp_path, "sharded", "two"))
    assert by_one == pytest.approx(sum(sums), rel=1e-9)
    assert by_four == pytest.approx(sum(sums), rel=1e-9)


def test_seeds_do_no_harm_dropout_differs_and_one_rank_writes(tmp_path):
    assert launch(JOBS, 2, "seeds", tmp_path) == "True False\n"
    assert os.listdir(tmp_path) == ["by-0"]


# --- stops ------------------------------------------------------------------------


def kill_a_rank(file, thread):
    """Kill rank 1 with SIGKILL, some moments after the file has changed."""
    before = file.stat().st_mtime_ns if file.exists() else None
    note = file.with_name(f"{file.name}.rank-1")
    while thread.is_alive():
        if file.exists() and file.stat().st_mtime_ns != before:
            time.sleep(random.uniform(0.0, 0.05))
            os.kill(int(note.read_text()), signal.SIGKILL)
            return
        time.sleep(0.005)


@posix
def test_a_killed_rank_ends_all_and_any_number_goes_on(alone, tmp_path):
    file, steps = tmp_path / "killed", []
    for n_processes in (2,):
        said = []

        def start(n_processes=n_processes, said=said):
            try:
                launch(JOBS, n_processes, "run", tmp_path, "replicas-1-killed-0.02")
            except RuntimeError as error:
                said.append(str(error))

        thread = threading.Thread(target=start)
        thread.start()
        kill_a_rank(file, thread)
        thread.join(100)
        assert not thread.is_alive(), "it hangs"
        assert "exitcode  : -9" in said[0]
        steps.append(len(load_checkpoint(file, new_model())))
        assert_same_run(file, alone, steps[-1])
    assert steps == sorted(set(steps)) and steps[-1] < 100
    launch(JOBS, 4, "run", tmp_path, "sharded-1-killed-0")
    assert_same_run(file, alone)


def test_a_rank_that_does_not_come_is_waited_for_no_longer_than_said(monkeypatch):
    monkeypatch.setenv("LIMIT", "15")
    with pytest.raises(RuntimeError, match="Timed out waiting 15000ms"):
        launch(JOBS, 2, "never_come")


def test_what_cannot_be_shared_is_refused_at_the_door(tmp_path):
    optimizer = make_optimizer(model := new_model(), PLAN)
    assert not optimizer.state
    train(model, IDS, IDS[:100], PLAN, checkpoint=tmp_path / "seen-by-0")
    said = launch(JOBS, 2, "refusals", tmp_path).splitlines()
    assert said == [
        "2 processes need a Replicated or a sharded model",
        "batch_size=8 does not go into 2 equal shares of 3 equal pieces",
        "pieces must be 1, 2, 3 …, not 0",
        "the processes disagree about the first step: [100, 0] by rank",
    ]


# --- nothing is left --------------------------------------------------------------


def alive(pid):
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def pids(folder, n_processes=2):
    """The processes' own notes of their numbers, once all have begun."""
    notes = [folder / f"slow.rank-{rank}" for rank in range(n_processes)]
    ends = time.monotonic() + 100
    while not all(note.exists() and note.read_text() for note in notes):
        assert time.monotonic() < ends, "they have not begun"
        time.sleep(0.05)
    return [int(note.read_text()) for note in notes]


def assert_gone(numbers):
    ends = time.monotonic() + 30
    while any(map(alive, numbers)):
        assert time.monotonic() < ends, "left running"
        time.sleep(0.05)


STARTER = """
import sys
from gpt_helpers import launch
launch({jobs!r}, 2, "run", {folder!r}, "replicas-1-slow-1")
"""


@posix
@pytest.mark.parametrize("sign", ["SIGKILL"])
def test_an_interrupt_or_a_kill_of_the_notebook_leaves_nothing(sign, tmp_path):
    sign = getattr(signal, sign) if isinstance(sign, str) else sign
    code = STARTER.format(jobs=str(JOBS), folder=str(tmp_path))
    starter = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    try:
        numbers = pids(tmp_path)
        starter.send_signal(sign)
        starter.wait(60)
    finally:
        starter.kill()
    assert_gone(numbers)


@posix
def test_a_program_that_takes_too_long_is_ended(tmp_path):
    with pytest.raises(TimeoutError, match=r"many_jobs.py was ended after 15"):
        launch(JOBS, 2, "run", tmp_path, "replicas-1-slow-1", timeout=15)
    assert_gone([int(note.read_text()) for note in tmp_path.glob("slow.rank-*")])


def test_what_a_process_said_is_in_the_error(tmp_path):
    with pytest.raises(RuntimeError, match="KeyError: 'no_such_job'"):
        launch(JOBS, 1, "no_such_job")
    assert json.dumps(os.listdir(tmp_path)) == "[]"
