"""Training: its loss, its schedule, and that a stop at any moment loses nothing."""

import hashlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file

import gpt_helpers
from gpt_helpers import (
    CharTokenizer,
    GPTConfig,
    GPTModel,
    TrainingPlan,
    count_parameters,
    digest_texts,
    draw_windows,
    evaluate_loss,
    initialize_like_gpt2,
    learning_rate_at,
    load_checkpoint,
    make_optimizer,
    next_token_loss,
    pick_device,
    save_checkpoint,
    train,
    write_whole,
)
from test_gpt_helpers import TINY

PLAN = TrainingPlan(n_steps=12, batch_size=3, warmup_steps=3, eval_every=4)
IDS = torch.randint(0, 11, (120,), generator=torch.Generator().manual_seed(0))


def new_model(**changes):
    torch.manual_seed(0)
    return GPTModel(replace(TINY, **changes))


# --- text -------------------------------------------------------------------------


def test_characters_make_a_vocabulary_and_come_back():
    tokenizer = CharTokenizer("banana\n")
    assert tokenizer.characters == ["\n", "a", "b", "n"] and tokenizer.n_vocab == 4
    assert tokenizer.encode("nab") == [3, 1, 2]
    assert tokenizer.decode([2, 1, 3]) == "ban"
    with pytest.raises(ValueError, match="'X' 'é'"):
        tokenizer.encode("banéX")
    with pytest.raises(ValueError, match=r"outside 0\.\.3: \[4, -1\]"):
        tokenizer.decode([0, 4, -1])
    with pytest.raises(ValueError, match=r"\[4, 5, 6, 7, 8\]$"):
        tokenizer.decode(list(range(4, 1000)))


def test_targets_are_the_inputs_one_token_later():
    ids = torch.arange(50)
    inputs, targets = draw_windows(ids, 200, 8)
    assert inputs.shape == targets.shape == (200, 8)
    assert torch.equal(targets, inputs + 1)
    assert torch.equal(inputs[:, 1:], inputs[:, :-1] + 1)
    assert inputs[:, 0].min() == 0 and targets[:, -1].max() == 49
    with pytest.raises(ValueError, match=r"8 tokens hold no window of 8 \+ 1"):
        draw_windows(ids[:8], 1, 8)


def test_windows_come_from_the_generator_that_is_given():
    def draw(seed):
        generator = torch.Generator().manual_seed(seed)
        return draw_windows(torch.arange(1000), 9, 5, generator)[0]

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))


# --- loss and schedule ------------------------------------------------------------


def test_loss_is_the_mean_negative_log_probability_of_the_targets():
    model = new_model(drop_rate=0.0)
    inputs, targets = draw_windows(IDS, 2, 5)
    probabilities = model(inputs).softmax(dim=-1)
    total = 0.0
    for b in range(2):
        for t in range(5):
            total -= math.log(probabilities[b, t, targets[b, t]].item())
    loss = next_token_loss(model, inputs, targets).item()
    assert loss == pytest.approx(total / 10, abs=1e-5)


def test_evaluation_covers_the_text_once_in_eval_mode():
    model = new_model()
    losses = []
    for start in range(0, 119 - 6, 7):
        logits = model.eval()(IDS[start : start + 7][None])[0]
        losses.append(F.cross_entropy(logits, IDS[start + 1 : start + 8]))
    assert len(losses) == 17
    expected = torch.stack(losses).mean().item()
    model.train()
    assert evaluate_loss(model, IDS, 4) == pytest.approx(expected, abs=1e-5)
    assert model.training
    assert evaluate_loss(model, IDS.int(), 4) == evaluate_loss(model, IDS, 4)
    with pytest.raises(ValueError, match=r"7 tokens hold no window of 7 \+ 1"):
        evaluate_loss(model, IDS[:7])
    for text in (IDS[None], IDS.tolist(), "Alice", None):
        with pytest.raises(ValueError, match=r"tensor \(N\) of token ids, not"):
            evaluate_loss(model, text)


def test_schedule_is_pytorchs_warm_up_and_cosine():
    plan = TrainingPlan(40, warmup_steps=8, learning_rate=0.5, final_rate=0.3)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
    schedulers = torch.optim.lr_scheduler
    rise = schedulers.LinearLR(optimizer, start_factor=1 / 8, total_iters=7)
    fall = schedulers.CosineAnnealingLR(optimizer, T_max=31, eta_min=0.15)
    for step in range(40):
        expected = optimizer.param_groups[0]["lr"]
        assert learning_rate_at(step, plan) == pytest.approx(expected, rel=1e-6)
        optimizer.step()
        if step < 7:
            rise.step()
        elif step >= 8:
            fall.step()


def test_the_schedule_of_a_short_plan_has_no_division_by_zero():
    plan = TrainingPlan(6, warmup_steps=5, learning_rate=0.5)
    assert [learning_rate_at(s, plan) for s in range(6)] == [
        0.1,
        0.2,
        0.3,
        0.4,
        0.5,
        0.5,
    ]
    late = replace(plan, warmup_steps=10)
    assert learning_rate_at(5, late) == pytest.approx(0.3)


def test_gpt2s_start_is_narrow_and_narrower_where_branches_end():
    model = new_model(emb_dim=200, n_layers=8, tied_head=True)
    initialize_like_gpt2(model, torch.Generator().manual_seed(0))
    block = model.trf_blocks[3]
    assert block.ff.layers[0].weight.std().item() == pytest.approx(0.02, rel=0.02)
    for ends in (block.att.out_proj, block.ff.layers[2]):
        assert ends.weight.std().item() == pytest.approx(0.02 / 4, rel=0.02)
        assert not ends.bias.any()
    assert torch.equal(block.norm1.scale, torch.ones(200))
    loss = next_token_loss(model.eval(), IDS[None, :7], IDS[None, 1:8])
    assert loss.item() == pytest.approx(math.log(11), abs=0.3)


def test_gpt2s_start_reaches_every_part_and_repeats_itself():
    def draw(seed):
        model = new_model(emb_dim=200, qkv_bias=True)
        initialize_like_gpt2(model, torch.Generator().manual_seed(seed))
        return dict(model.named_parameters())

    weights = draw(0)
    for name, weight in weights.items():
        if name.endswith("bias"):
            assert not weight.any(), name
        elif name.endswith("weight"):
            narrow = name.endswith(("out_proj.weight", "layers.2.weight"))
            width = 0.01 if narrow else 0.02
            assert weight.std().item() == pytest.approx(width, rel=0.1), name
            assert not torch.equal(weight, draw(1)[name]), name
    assert all(map(torch.equal, weights.values(), draw(0).values()))


# --- training ---------------------------------------------------------------------


def test_one_step_is_pytorchs_adamw_after_clipping():
    plan = TrainingPlan(1, 3, 0.01, 0, weight_decay=0.3, clip_norm=0.2, seed=5)
    ours, theirs = new_model(drop_rate=0.0), new_model(drop_rate=0.0)
    train(ours, IDS, IDS, plan)
    torch.manual_seed(plan.seed * 1_000_003)
    next_token_loss(theirs, *draw_windows(IDS, 3, 7)).backward()
    torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.2)
    decayed = [p for p in theirs.parameters() if p.ndim > 1]
    others = [p for p in theirs.parameters() if p.ndim == 1]
    options = {"lr": plan.learning_rate, "betas": (0.9, 0.95)}
    torch.optim.AdamW(decayed, weight_decay=0.3, **options).step()
    torch.optim.AdamW(others, weight_decay=0.0, **options).step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_model_can_learn_a_short_text_by_heart():
    model = new_model(drop_rate=0.0)
    plan = TrainingPlan(
        150, batch_size=8, learning_rate=1e-2, warmup_steps=5, eval_every=10
    )
    text = torch.tensor([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 3])
    history = train(model, text, text, plan)
    assert history[-1]["step"] == 150
    assert history[-1]["train"] < 0.3 < history[0]["train"]


def test_each_step_makes_its_own_gradients_with_averages_of_0_9_and_0_95():
    """Three steps, with PyTorch's optimizer and a loss written out."""
    plan = TrainingPlan(3, 2, 0.01, 2, weight_decay=0.3, clip_norm=0.5, eval_every=2)
    ours, theirs = new_model(drop_rate=0.0), new_model(drop_rate=0.0)
    optimizers = [
        torch.optim.AdamW(
            [p for p in theirs.parameters() if (p.ndim > 1) == matrices],
            betas=(0.9, 0.95),
            weight_decay=0.3 * matrices,
        )
        for matrices in (True, False)
    ]
    losses = []
    for step, rate in enumerate([0.005, 0.01, 0.01]):
        torch.manual_seed(plan.seed * 1_000_003 + step)
        inputs, targets = draw_windows(IDS, 2, 7)
        loss = F.cross_entropy(theirs(inputs).flatten(0, 1), targets.flatten())
        theirs.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
        losses.append(loss.item())
    validation = IDS.flip(0)
    first, last = train(ours, IDS, validation, plan)
    assert first["train"] == pytest.approx((losses[0] + losses[1]) / 2, abs=1e-5)
    assert last["train"] == pytest.approx(losses[2], abs=1e-5)
    assert last["validation"] == pytest.approx(evaluate_loss(theirs, validation), 1e-4)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_the_history_has_a_row_per_evaluation_and_one_at_the_end():
    model, calls = new_model(), []

    def show(step, history):
        calls.append((step, len(history)))

    plan = replace(PLAN, n_steps=7, eval_every=3)
    history = train(model, IDS, IDS, plan, show=show)
    assert [row["step"] for row in history] == [3, 6, 7]
    assert calls == [(1, 0), (2, 0), (3, 1), (4, 1), (5, 1), (6, 2), (7, 3)]
    each = train(new_model(), IDS, IDS, replace(plan, eval_every=1))
    losses = [row["train"] for row in each]
    for row, part in zip(history, (losses[:3], losses[3:6], losses[6:]), strict=True):
        assert row["train"] == pytest.approx(sum(part) / len(part))
    assert each[-1]["validation"] == evaluate_loss(model, IDS)


def test_training_has_dropout_whatever_the_mode_before():
    plan = replace(PLAN, n_steps=2)
    assert train(new_model().eval(), IDS, IDS, plan) == train(
        new_model(), IDS, IDS, plan
    )
    still = train(new_model(drop_rate=0.0), IDS, IDS, plan)
    assert still != train(new_model(), IDS, IDS, plan)


@pytest.mark.parametrize("bf16", [False, True])
def test_the_products_have_16_bits_only_where_the_plan_says_so(bf16):
    model, kinds = new_model(), []

    def note(module, inputs, output):
        if module.training:
            kinds.append(output.dtype)
        assert torch.is_grad_enabled() == module.training, "no gradient to evaluate"

    model.out_head.register_forward_hook(note)
    train(model, IDS, IDS, replace(PLAN, n_steps=2, bf16=bf16))
    assert kinds == 2 * [torch.bfloat16 if bf16 else torch.float32]
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_training_leaves_the_callers_random_numbers_alone():
    model = new_model()
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    train(model, IDS, IDS, PLAN)
    assert torch.equal(torch.rand(1), expected)
    torch.manual_seed(7)
    with pytest.raises(Stopped):
        train(model, IDS, IDS, PLAN, show=stop_after(2))
    assert torch.equal(torch.rand(1), expected), "also after an error"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_steps": 0}, "n_steps .*0"),
        ({"batch_size": 2.5}, "batch_size .*2.5"),
        ({"learning_rate": -1.0}, "learning_rate .*-1.0"),
        ({"learning_rate": math.nan}, "learning_rate .*nan"),
        ({"clip_norm": 0.0}, "clip_norm .*0.0"),
        ({"clip_norm": math.inf}, r"clip_norm must be in \(0, ∞\), not inf"),
        ({"learning_rate": math.inf}, r"learning_rate must be in \(0, ∞\), not inf"),
        ({"learning_rate": "1e-3"}, "learning_rate .*'1e-3'"),
        ({"learning_rate": None}, "learning_rate .*None"),
        ({"clip_norm": [1.0]}, r"clip_norm .*\[1.0\]"),
        ({"final_rate": "0"}, "final_rate .*'0'"),
        ({"weight_decay": [0.1]}, r"weight_decay .*\[0.1\]"),
        ({"weight_decay": None}, "weight_decay .*None"),
        ({"warmup_steps": -1}, "warmup_steps .*-1"),
        ({"eval_every": 0}, "eval_every .*0"),
        ({"eval_every": True}, "eval_every .*True"),
        ({"final_rate": -0.1}, "final_rate .*-0.1"),
        ({"final_rate": 1.5}, "final_rate .*1.5"),
        ({"final_rate": math.nan}, "final_rate .*nan"),
        ({"weight_decay": -0.1}, "weight_decay .*-0.1"),
        ({"weight_decay": math.nan}, "weight_decay .*nan"),
        ({"weight_decay": math.inf}, r"weight_decay must be in \[0, ∞\), not inf"),
        ({"bf16": "False"}, "bf16 .*'False'"),
        ({"seed": -1}, "seed .*-1"),
        ({"seed": 2**64}, f"seed .*{2**64}"),
        ({"seed": 1.5}, "seed .*1.5"),
    ],
)
def test_a_senseless_plan_names_the_value(changes, words):
    with pytest.raises(ValueError, match=words):
        replace(PLAN, **changes)


@pytest.mark.parametrize("seed", [0, 2**63, 2**64 - 1])
def test_every_seed_of_a_plan_can_be_trained_with(seed):
    plan = replace(PLAN, n_steps=2, seed=seed)
    history = train(new_model(), IDS, IDS, plan)
    assert history == train(new_model(), IDS, IDS, plan)
    assert history != train(new_model(), IDS, IDS, replace(plan, seed=seed ^ 1))


def test_a_training_with_int32_ids_is_the_one_with_int64():
    expected = train(new_model(), IDS, IDS, PLAN)
    assert train(new_model(), IDS.int(), IDS.int(), PLAN) == expected


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_stops_the_training(monkeypatch, value):
    model = new_model()
    before = [p.detach().clone() for p in model.parameters()]
    monkeypatch.setattr(
        gpt_helpers,
        "next_token_loss",
        lambda model, *_: model.out_head.weight.sum() * 0 + value,
    )
    with pytest.raises(FloatingPointError, match=f"{value} at step 0"):
        train(model, IDS, IDS, PLAN)
    assert all(map(torch.equal, before, model.parameters()))


def test_weights_that_are_no_numbers_never_replace_a_checkpoint(tmp_path):
    path = tmp_path / "tiny.safetensors"
    wild = TrainingPlan(4, 3, learning_rate=1e30, warmup_steps=0, eval_every=1)
    with pytest.raises(FloatingPointError, match="validation loss (nan|inf) at step 0"):
        train(new_model(), IDS, IDS, wild, checkpoint=path)
    assert not path.exists()


@pytest.mark.parametrize(
    ("texts", "error", "words"),
    [
        ((IDS[:7], IDS), ValueError, r"7 tokens hold no window of 7 \+ 1"),
        ((IDS, IDS[:7]), ValueError, r"7 tokens hold no window of 7 \+ 1"),
        ((IDS, IDS + 1), ValueError, "id 11 is outside 0..10"),
        ((IDS - 1, IDS), ValueError, "id -1 is outside 0..10"),
        ((IDS, IDS.float()), TypeError, "float32"),
        ((IDS, IDS.view(60, 2)), ValueError, r"not \[60, 2\]"),
        ((IDS.tolist(), IDS), ValueError, "not list"),
        ((IDS, "Alice was beginning"), ValueError, "not str"),
        ((None, IDS), ValueError, "not NoneType"),
    ],
)
def test_a_bad_text_is_refused_before_the_first_step(texts, error, words):
    model = new_model()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(error, match=words):
        train(model, *texts, PLAN)
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize("name", ["", "no such folder/tiny.safetensors"])
def test_a_checkpoint_without_a_place_is_refused_before_the_first_step(tmp_path, name):
    model = new_model()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(ValueError, match="a file in a folder, not .*") as caught:
        train(model, IDS, IDS, PLAN, checkpoint=tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)
    assert all(map(torch.equal, before, model.parameters()))


TOO_LONG = "n" * 250  # with .unfinished behind it, more than any disk takes


@pytest.mark.parametrize("name", [TOO_LONG, "locked/tiny.safetensors"])
def test_a_checkpoint_that_cannot_be_written_is_refused_before_the_first_step(
    tmp_path, name
):
    (tmp_path / "locked").mkdir(mode=0o555)
    if name != TOO_LONG and os.access(tmp_path / "locked", os.W_OK):
        pytest.skip("this user may write everywhere")
    model = new_model()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(ValueError, match="no checkpoint can be written") as caught:
        train(model, IDS, IDS, PLAN, checkpoint=tmp_path / name)
    assert name in str(caught.value)
    assert all(map(torch.equal, before, model.parameters()))


def test_a_model_that_is_all_frozen_is_refused_before_the_first_step():
    with pytest.raises(ValueError, match="every parameter is frozen"):
        train(new_model().requires_grad_(False), IDS, IDS, PLAN)


# --- checkpoints ------------------------------------------------------------------


class Stopped(Exception):
    pass


def stop_after(step):
    def show(done, _):
        if done == step:
            raise Stopped

    return show


@pytest.mark.parametrize("step", [1, 4, 7, 11])
def test_a_stopped_run_goes_on_to_the_same_losses(tmp_path, step):
    path = tmp_path / "tiny.safetensors"
    whole = new_model(tied_head=True)
    expected = train(whole, IDS, IDS, PLAN)
    with pytest.raises(Stopped):
        train(
            new_model(tied_head=True),
            IDS,
            IDS,
            PLAN,
            checkpoint=path,
            show=stop_after(step),
        )
    resumed = new_model(tied_head=True)
    assert train(resumed, IDS, IDS, PLAN, checkpoint=path) == expected
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)
    again = new_model(tied_head=True)
    assert train(again, IDS, IDS, PLAN, checkpoint=path) == expected, "nothing to do"


def frozen_model():
    model = new_model()
    model.pos_emb.weight.requires_grad_(False)
    model.trf_blocks[0].att.W_query.weight.requires_grad_(False)
    return model


def test_a_run_with_frozen_parameters_goes_on_and_keeps_them(tmp_path):
    path = tmp_path / "tiny.safetensors"
    whole = frozen_model()
    expected = train(whole, IDS, IDS, PLAN)
    assert torch.equal(whole.pos_emb.weight, new_model().pos_emb.weight)
    with pytest.raises(Stopped):
        train(frozen_model(), IDS, IDS, PLAN, checkpoint=path, show=stop_after(7))
    resumed = frozen_model()
    assert train(resumed, IDS, IDS, PLAN, checkpoint=path) == expected
    assert all(map(torch.equal, whole.parameters(), resumed.parameters()))
    assert_refused(path, "other tensors.*pos_emb.weight.exp_avg", new_model())
    other = new_model()  # as many frozen, of the same shapes
    other.pos_emb.weight.requires_grad_(False)
    other.trf_blocks[1].att.W_query.weight.requires_grad_(False)
    assert_refused(path, "other tensors.*att.W_query.weight.exp_avg", other)


def test_a_parameter_that_no_loss_reaches_does_not_stop_a_run(tmp_path):
    def idle_model():
        model = new_model()
        model.idle = torch.nn.Linear(2, 2)
        return model

    path = tmp_path / "tiny.safetensors"
    expected = train(idle_model(), IDS, IDS, PLAN)
    with pytest.raises(Stopped):
        train(idle_model(), IDS, IDS, PLAN, checkpoint=path, show=stop_after(7))
    assert train(idle_model(), IDS, IDS, PLAN, checkpoint=path) == expected


def test_a_checkpoint_knows_its_texts(saved):
    edited = IDS.clone()
    edited[60] = (edited[60] + 1) % 11
    model = new_model()
    before = [p.detach().clone() for p in model.parameters()]
    for texts, which in ((edited, IDS), "train"), ((IDS, edited), "validation"):
        with pytest.raises(ValueError, match=f"another text: .* has {which} '") as e:
            train(model, *texts, PLAN, checkpoint=saved)
        assert str(saved) in str(e.value) and str(e.value).count("', not '") == 1
    assert all(map(torch.equal, before, model.parameters()))
    history = train(model, IDS.int(), IDS.int(), PLAN, checkpoint=saved)
    assert history == load_checkpoint(saved, model), "the same ids in another format"


def test_a_digest_is_the_sha_256_of_the_ids_as_64_bit_numbers():
    ids = torch.tensor([1, 0, 258])
    written = bytes([1, *7 * [0], *8 * [0], 2, 1, *6 * [0]])
    expected = hashlib.sha256(written).hexdigest()[:16]
    empty = hashlib.sha256(b"").hexdigest()[:16]
    spread = torch.stack([ids, ids], dim=1)[:, 0]
    for same in ids, ids.int(), spread:
        digests = digest_texts(same, torch.tensor([]))
        assert digests == {"train": expected, "validation": empty}


def test_a_compiled_models_checkpoint_has_the_models_own_names(tmp_path):
    path, model = tmp_path / "tiny.safetensors", new_model()
    model.trf_blocks[1] = torch.compile(model.trf_blocks[1])
    compiled = torch.compile(model)
    assert any("_orig_mod" in name for name, _ in compiled.named_parameters())
    save_checkpoint(path, compiled, make_optimizer(compiled, PLAN), PLAN, {}, [])
    with safe_open(path, "pt") as file:
        names = {n for n in file.keys() if n.startswith("model.")}
    assert names == {f"model.{n}" for n, _ in new_model().named_parameters()}
    for target in new_model(), torch.compile(new_model()):
        torch.nn.init.zeros_(target.tok_emb.weight)
        load_checkpoint(path, target, make_optimizer(target, PLAN), PLAN)
        assert torch.equal(target.tok_emb.weight, compiled.tok_emb.weight)


@pytest.mark.skipif(os.name == "nt", reason="no modes on Windows")
def test_a_file_has_the_mode_of_new_files_or_keeps_its_own(tmp_path):
    path = tmp_path / "tiny.safetensors"
    model, optimizer = new_model(), make_optimizer(new_model(), PLAN)
    for umask, mode in (0o022, 0o644), (0o077, 0o600), (0o002, 0o664):
        path.unlink(missing_ok=True)
        before = os.umask(umask)
        try:
            save_checkpoint(path, model, optimizer, PLAN, {}, [])
        finally:
            os.umask(before)
        assert path.stat().st_mode & 0o777 == mode
    for mode in 0o640, 0o444:
        path.chmod(mode)
        save_checkpoint(path, model, optimizer, PLAN, {}, [])
        assert path.stat().st_mode & 0o777 == mode


KILLED = """
import sys, torch
sys.path.insert(0, {tests!r})
import test_training as t
print("ready", flush=True)
plan = t.replace(t.PLAN, n_steps=100_000, eval_every=1)
t.train(t.new_model(), t.IDS, t.IDS, plan, checkpoint=sys.argv[1])
"""


@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL on Windows")
def test_a_kill_while_it_writes_leaves_a_whole_checkpoint(tmp_path):
    path = tmp_path / "tiny.safetensors"
    code = KILLED.format(tests=os.path.dirname(__file__))
    steps = []
    for _ in range(3):
        command = [sys.executable, "-c", code, str(path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "ready\n"
        before = path.stat().st_mtime_ns if path.exists() else None
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            time.sleep(random.uniform(0.01, 0.1))
            if path.exists() and path.stat().st_mtime_ns != before:
                break
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        plan = replace(PLAN, n_steps=100_000, eval_every=1)
        model = new_model()
        history = load_checkpoint(path, model, make_optimizer(model, plan), plan)
        steps.append(history[-1]["step"])
    assert steps == sorted(set(steps)), "each run went on where the last one stopped"


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "tiny.safetensors"
    train(new_model(), IDS, IDS, PLAN, checkpoint=path)
    return path


def test_a_checkpoint_holds_plain_tensors_and_readable_facts(saved):
    with safe_open(saved, "pt") as file:
        facts = file.metadata()
        names = set(file.keys())
    assert json.loads(facts["config"])["emb_dim"] == TINY.emb_dim
    assert json.loads(facts["history"])[-1]["step"] == 12
    assert {f"model.{n}" for n, _ in new_model().named_parameters()} <= names
    assert os.listdir(saved.parent) == [saved.name]


def assert_refused(path, words, model, plan=PLAN):
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = make_optimizer(model, plan)
    with pytest.raises(ValueError, match=words) as caught:
        load_checkpoint(path, model, optimizer, plan)
    assert str(path) in str(caught.value)
    assert all(map(torch.equal, before, model.parameters()))
    assert not optimizer.state


def rewritten(path, change, **other_facts):
    """The checkpoint once more, its tensors or facts changed."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}
        facts = file.metadata() | other_facts
    change(tensors)
    save_file(tensors, path, {k: v for k, v in facts.items() if v})


@pytest.mark.parametrize("fact", ["config", "plan", "text", "history"])
@pytest.mark.parametrize(
    ("text", "words"), [("", "without {}"), ("3", "without {}"), ("{x", "property")]
)
def test_a_checkpoint_without_its_facts_is_named(saved, fact, text, words):
    rewritten(saved, lambda tensors: None, **{fact: text})
    assert_refused(saved, f"damaged.*{words.format(fact)}", new_model())


def test_a_model_alone_is_filled_without_an_optimizer(saved):
    whole, alone = new_model(), new_model()
    expected = load_checkpoint(saved, whole, make_optimizer(whole, PLAN), PLAN)
    torch.nn.init.zeros_(alone.tok_emb.weight)
    assert load_checkpoint(saved, alone) == expected
    assert len(expected) == 3 and alone.tok_emb.weight.all()
    assert all(map(torch.equal, alone.parameters(), whole.parameters()))
    rewritten(saved, lambda tensors: tensors.pop("model.tok_emb.weight"))
    with pytest.raises(ValueError, match="other tensors.*tok_emb"):
        load_checkpoint(saved, alone)


def test_a_configuration_of_equal_shapes_is_another_one_too(saved):
    assert_refused(saved, "n_heads 4, not 5", new_model(n_heads=5))
    with pytest.raises(ValueError, match="drop_rate 0.5, not 0.0"):
        load_checkpoint(saved, new_model(drop_rate=0.0))


@pytest.mark.parametrize(
    "lost", ["model.tok_emb.weight", "optimizer.tok_emb.weight.exp_avg"]
)
def test_a_checkpoint_that_lacks_a_tensor_is_named(saved, lost):
    rewritten(saved, lambda tensors: tensors.pop(lost))
    assert_refused(saved, f"other tensors.*{lost}", new_model())
    rewritten(saved, lambda tensors: tensors.update({lost: torch.zeros(2)}))
    assert_refused(saved, f"other tensors.*{lost}", new_model())


def test_a_checkpoint_that_does_not_fit_changes_nothing(saved):
    assert_refused(saved, "another config.* n_layers 2, not 3", new_model(n_layers=3))
    faster = replace(PLAN, learning_rate=0.5)
    assert_refused(saved, "another plan.*0.001, not 0.5", new_model(), faster)


def test_of_many_wrong_tensors_five_are_named(saved):
    rewritten(saved, lambda tensors: [tensors.pop(name) for name in [*tensors][:60]])
    with pytest.raises(ValueError, match="other tensors") as caught:
        load_checkpoint(saved, new_model())
    assert str(caught.value).count("'model.") == 5


@pytest.mark.parametrize("kept", [0, 7, 100, 0.5, 0.99])
def test_a_damaged_checkpoint_is_named(saved, kept):
    content = saved.read_bytes()
    kept = int(kept * len(content)) if isinstance(kept, float) else kept
    saved.write_bytes(content[:kept])
    assert_refused(saved, "damaged", new_model())


def test_a_failing_write_keeps_the_old_checkpoint(saved, monkeypatch):
    before = saved.read_bytes()
    monkeypatch.setattr(os, "fsync", lambda *_: (_ for _ in ()).throw(OSError("full")))
    model = new_model()
    optimizer = make_optimizer(model, PLAN)
    with pytest.raises(OSError, match="full"):
        save_checkpoint(saved, model, optimizer, PLAN, {}, [])
    assert saved.read_bytes() == before


def test_the_new_file_is_on_the_disk_before_it_takes_its_place(tmp_path, monkeypatch):
    events, sync, move = [], os.fsync, os.replace
    path = tmp_path / "name"
    path.write_text("old")
    path.with_name("name.unfinished").write_text("left by a run that was killed")

    def note(name, function):
        def noted(*arguments):
            events.append((name, path.read_text()))
            return function(*arguments)

        return noted

    monkeypatch.setattr(os, "fsync", note("fsync", sync))
    monkeypatch.setattr(os, "replace", note("replace", move))
    write_whole(path, lambda place: place.write_text("new"))
    assert events == [("fsync", "old"), ("replace", "old")]
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["name"]


# --- the published model, the device ----------------------------------------------


def test_the_published_tiny_gpt_has_its_count():
    """Block 256, 4 layers, 4 heads, 256 wide, V=73, biases, and one on the head."""
    cfg = GPTConfig(73, 256, 256, 4, 4, 0.1, qkv_bias=True)
    model = GPTModel(cfg)
    model.out_head = torch.nn.Linear(256, 73)
    assert count_parameters(model) == 3_262_537


def test_without_an_accelerator_the_device_is_the_processor(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert pick_device() == torch.device("cpu")


CPU0 = torch.device("cpu:0")  # stands in for an accelerator


@pytest.fixture
def accelerator(monkeypatch):
    """Pretend that there is one, which does ``fault(model)`` to what comes to it."""
    move = GPTModel.to

    def pretend(fault):
        def to(self, device):
            if device == CPU0:
                fault(self)
            return move(self, device)

        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: CPU0)
        monkeypatch.setattr(GPTModel, "to", to)

    return pretend


def test_an_accelerator_that_agrees_is_used(accelerator):
    accelerator(lambda model: None)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    assert pick_device() == CPU0
    assert torch.equal(torch.rand(1), expected), "the caller's random numbers moved"


def test_an_accelerator_may_differ_by_a_few_roundings(accelerator):
    def nudge(model):
        model.get_parameter("out_head.weight").data.mul_(1 + 2e-4)

    accelerator(nudge)
    assert pick_device() == CPU0


def test_an_accelerator_is_tried_with_the_same_model_each_time(accelerator):
    tried = []
    accelerator(lambda model: tried.append(model.tok_emb.weight.detach().clone()))
    for seed in 5, 6:
        torch.manual_seed(seed)
        pick_device()
    assert torch.equal(*tried)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["logits", "gradient", "both"])
def test_an_accelerator_whose_numbers_are_none_is_not_used(accelerator, value, where):
    def spoil(model):
        if where != "logits":
            weight = model.trf_blocks[0].att.W_query.weight
            weight.register_hook(lambda gradient: gradient * value)
        if where != "gradient":
            model.register_forward_hook(lambda _, idx, logits: logits * value)

    accelerator(spoil)
    with pytest.warns(UserWarning, match="cpu:0 computes other numbers"):
        assert pick_device() == torch.device("cpu")


def test_an_accelerator_that_raises_is_not_used(accelerator):
    accelerator(lambda model: torch.zeros(2) @ torch.zeros(3))
    with pytest.warns(UserWarning, match="cpu:0 cannot compute"):
        assert pick_device() == torch.device("cpu")


@pytest.mark.parametrize("part", ["final_norm.shift", "trf_blocks.0.att.W_key.weight"])
def test_an_accelerator_with_other_numbers_is_not_used(accelerator, part):
    def shift(model):
        model.get_parameter(part).data.view(-1)[0] += 0.1

    accelerator(shift)
    with pytest.warns(UserWarning, match="cpu:0 computes other numbers"):
        assert pick_device() == torch.device("cpu")


def test_an_accelerator_with_other_gradients_is_not_used(accelerator):
    def bend(model):
        weight = model.trf_blocks[0].att.W_query.weight
        weight.register_hook(lambda gradient: gradient * 1.1)

    accelerator(bend)
    with pytest.warns(UserWarning, match="cpu:0 computes other numbers"):
        assert pick_device() == torch.device("cpu")
