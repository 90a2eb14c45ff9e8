"""Time our decoding beside well-known engines: ``python tests/benchmark_decoding.py``.

All read the same seeded weights of GPT-2's size. Each engine runs in a process of its
own, the processes take turns, and the medians of the rounds are printed, unless
another program took more than a tenth of a core meanwhile: then no table is printed.
``--record`` also writes the table to ``notebooks/data/speed.txt``, which lesson 11
shows. Whatever peer is not installed is named; ``tests/requirements-peers.txt`` has
them. Linux only. Takes ten minutes on two idle cores; pytest does not run it.
"""

import argparse
import gc
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import ClassVar

import torch
import torch.nn.functional as F
from safetensors import safe_open

import gpt_helpers
from gpt_helpers import GPT_CONFIG_124M, GPTModel, generate_text, quicken, save_gpt2

CONFIG = replace(GPT_CONFIG_124M, drop_rate=0.0, qkv_bias=True, tied_head=True)
LOADS = {"4+200": (4, 200), "512+128": (512, 128)}
NAIVE_LIMIT = 16  # new tokens of the naive loop: it is slow
BASE = "transformers, default"
MOST_LOAD = 0.1  # cores that other programs may take
TABLE = gpt_helpers.DATA_FOLDER / "speed.txt"


def seeded_model() -> GPTModel:
    """GPT-2 124M with random weights, wide enough that the text does not stand still."""
    model = GPTModel(CONFIG).eval()
    generator = torch.Generator().manual_seed(123)
    gpt_helpers.initialize_like_gpt2(model, generator)
    with torch.no_grad():
        for block in model.trf_blocks:
            for name, parameter in block.named_parameters():
                if parameter.ndim == 2:
                    parameter *= 2
                elif name.endswith("bias"):
                    parameter.normal_(0.0, 0.02, generator=generator)
    return model


def prompt_of(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(50_000, (length,), generator=generator).tolist()


# --- the weights for the peers ------------------------------------------------------


def write_published(folder: Path) -> None:
    """Write weights, config.json and the vocabulary as the published folder has them."""
    save_gpt2(seeded_model(), folder)
    config = folder / "config.json"
    facts = json.loads(config.read_text(encoding="utf-8"))
    facts |= {"bos_token_id": None, "eos_token_id": None}  # no engine stops early
    config.write_text(json.dumps(facts), encoding="utf-8")
    for name, source in (("merges.txt", "6d1c"), ("vocab.json", "6c7e")):
        (file,) = gpt_helpers.DATA_FOLDER.glob(source + "*")
        shutil.copy(file, folder / name)


def write_gguf(folder: Path, kind: str) -> Path:
    """Write the weights as llama.cpp reads them, in F32, Q8_0 or Q4_0."""
    import gguf

    path = folder / f"{kind}.gguf"
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_context_length(1024)
    writer.add_embedding_length(768)
    writer.add_feed_forward_length(3072)
    writer.add_block_count(12)
    writer.add_head_count(12)
    writer.add_layer_norm_eps(1e-5)
    writer.add_vocab_size(50257)
    writer.add_tokenizer_model("none")
    names = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm"}
    names |= {"ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv"}
    names |= {"attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up"}
    names |= {"mlp.c_proj": "ffn_down"}
    with safe_open(folder / "model.safetensors", "pt") as file:
        for name in file.keys():
            tensor = file.get_tensor(name)
            part, _, end = name.rpartition(".")
            block = ""
            if part.startswith("h."):
                _, number, part = part.split(".", 2)
                block = f"blk.{number}."
                tensor = tensor.T if tensor.ndim == 2 else tensor
            array = tensor.contiguous().numpy()
            quantized = kind != "F32" and tensor.ndim == 2 and part != "wpe"
            stored = gguf.GGMLQuantizationType[kind if quantized else "F32"]
            array = gguf.quants.quantize(array, stored) if quantized else array
            full = f"{block}{names[part]}.{end}"
            writer.add_tensor(full, array, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# --- the engines: each a function of a prompt and a number of tokens ----------------

QUICK = {  # what is behind "ours: " in an engine's name
    "quicken": None,
    "quicken, float16": torch.float16,
    "quicken, int8": torch.int8,
    "quicken, int4": "int4",
}


def ours(variant: str):
    model = seeded_model()
    if variant in QUICK:
        model = quicken(model, QUICK[variant])

    def generate(prompt, n, rows=1):
        ids = torch.tensor(prompt).view(rows, -1)
        if variant == "naive loop":
            return gpt_helpers.generate_text_simple(model, ids, n, 1024)[0].tolist()
        return generate_text(model, ids, n)[0].tolist()

    return generate


def peer_transformers(variant: str, folder: Path):
    from transformers import GPT2LMHeadModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    model = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32).eval()
    static = {"cache_implementation": "static"} if variant == "static cache" else {}

    def generate(prompt, n):
        ids = torch.tensor([prompt])
        options = {"max_new_tokens": n, "do_sample": False, "disable_compile": True}
        options |= {"attention_mask": torch.ones_like(ids), "pad_token_id": 0}
        return model.generate(ids, **options, **static)[0].tolist()

    return generate


def peer_ctranslate2(kind: str, folder: Path, threads: int):
    import ctranslate2

    converted = folder / "ctranslate2"
    if not converted.exists():  # in another process, for this one's memory counts
        convert = [sys.executable, "-m", "ctranslate2.converters.transformers"]
        convert += ["--model", str(folder), "--output_dir", str(converted)]
        subprocess.run(convert, check=True)
    generator = ctranslate2.Generator(
        str(converted), compute_type=kind, intra_threads=threads, inter_threads=1
    )
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    words = {number: word for word, number in vocabulary.items()}

    def generate(prompt, n):
        result = generator.generate_batch(
            [[words[i] for i in prompt]],
            max_length=n,
            min_length=n,
            sampling_topk=1,
            include_prompt_in_result=False,
        )
        return prompt + result[0].sequences_ids[0]

    return generate


def peer_llama_cpp(kind: str, folder: Path, threads: int):
    from llama_cpp import Llama

    model = Llama(
        str(write_gguf(folder, kind)),
        n_ctx=1024,
        n_batch=512,
        n_threads=threads,
        n_threads_batch=threads,
        verbose=False,
    )

    def generate(prompt, n):
        model.reset()
        tokens = list(prompt)
        for token in model.generate(prompt, temp=0.0, repeat_penalty=1.0, reset=True):
            tokens.append(token)
            if len(tokens) == len(prompt) + n:
                return tokens

    return generate


def prefill(variant: str, folder: Path):
    """A function that reads 1,024 tokens and returns the last position's logits."""
    if variant.startswith("transformers"):
        from transformers import GPT2LMHeadModel

        model = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32).eval()
        keep = 1 if variant.endswith("last") else 0
        return lambda ids: model(ids, logits_to_keep=keep).logits[:, -1]
    if variant == "nanoGPT's way, last":
        return like_nanogpt(folder)
    model = seeded_model()
    if variant == "explicit attention, all logits":
        return lambda ids: model.train()(ids)[:, -1]
    kind = variant.removesuffix(", last")
    if kind in QUICK:
        model = quicken(model, QUICK[kind])
    if kind == "bfloat16":
        model = model.bfloat16()
    if variant.endswith("last"):
        return lambda ids: model.out_head(model.forward_hidden(ids)[:, -1])
    return lambda ids: model(ids)[:, -1]


def like_nanogpt(folder: Path):
    """One product for queries, keys and values; PyTorch's norm, GELU and attention."""
    w = {}
    with safe_open(folder / "model.safetensors", "pt") as file:
        for name in file.keys():
            tensor = file.get_tensor(name)
            turned = name.startswith("h.") and tensor.ndim == 2
            w[name] = tensor.T.contiguous() if turned else tensor

    def linear(x, name):
        return F.linear(x, w[name + ".weight"], w[name + ".bias"])

    def norm(x, name):
        return F.layer_norm(x, (768,), w[name + ".weight"], w[name + ".bias"], 1e-5)

    def read(ids):
        x = w["wte.weight"][ids] + w["wpe.weight"][: ids.shape[1]]
        for i in range(12):
            qkv = linear(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn")
            q, k, v = qkv.view(*ids.shape, 3, 12, 64).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            mixed = mixed.transpose(1, 2).flatten(2)
            x = x + linear(mixed, f"h.{i}.attn.c_proj")
            inner = linear(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")
            inner = F.gelu(inner, approximate="tanh")
            x = x + linear(inner, f"h.{i}.mlp.c_proj")
        return F.linear(norm(x[:, -1], "ln_f"), w["wte.weight"])

    return read


def read_memory() -> float:
    """Bytes per second that the cores read together, from 256 MB."""
    a, b = torch.ones(2, 1 << 25)
    times = []
    for _ in range(8):
        start = time.perf_counter()
        torch.dot(a, b)
        times.append(time.perf_counter() - start)
    return (a.nbytes + b.nbytes) / min(times)


DECODERS = {  # name: bytes per weight, in the blocks and in the head
    "ours: naive loop": (4, 4),
    "ours: cache": (4, 4),
    "ours: quicken": (4, 4),
    "ours: quicken, float16": (2, 2),
    "ours: quicken, int8": (1, 1),
    "ours: quicken, int4": (20 / 32, 1),
    BASE: (4, 4),
    "transformers, static cache": (4, 4),
    "CTranslate2, float32": (4, 4),
    "CTranslate2, int8": (1, 1),
    "llama.cpp, F32": (4, 4),
    "llama.cpp, Q8_0": (34 / 32, 34 / 32),
    "llama.cpp, Q4_0": (18 / 32, 18 / 32),
}
READERS = (
    "explicit attention, all logits",
    "PyTorch's attention, all logits",
    "PyTorch's attention, last",
    "quicken, last",
    "quicken, int8, last",
    "bfloat16, last",
    "nanoGPT's way, last",
    "transformers, all logits",
    "transformers, last",
)


def make_engine(name: str, folder: Path, threads: int):
    if name in READERS:
        return prefill(name, folder)
    family, _, kind = name.replace(": ", ", ").partition(", ")
    if family == "ours":
        return ours(kind)
    if family == "transformers":
        return peer_transformers(kind, folder)
    if family == "CTranslate2":
        return peer_ctranslate2(kind, folder, threads)
    return peer_llama_cpp(kind, folder, threads)


# --- one process per engine -----------------------------------------------------------


def peak_memory(reset: bool = False) -> float:
    """The most memory, in MB, that this process had in use since the last reset."""
    status = Path("/proc/self/status")
    if not status.exists():
        return float("nan")
    if reset:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    lines = status.read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if "VmHWM" in line) * 1024 / 1e6


@torch.no_grad()
def serve(name: str, folder: Path, threads: int) -> None:
    """Answer each line of input, (prompt length, new tokens, rows), by a line."""
    torch.set_num_threads(threads)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what an engine prints is no answer
    try:
        engine = None if name == "memory" else make_engine(name, folder, threads)
        gc.collect()  # the model that was quickened
    except ImportError as error:
        print(json.dumps({"missing": str(error.name)}), file=answers, flush=True)
        return
    print(json.dumps({"idle": peak_memory()}), file=answers, flush=True)
    for line in sys.stdin:
        length, n, rows = json.loads(line)
        peak_memory(reset=True)
        start = time.perf_counter()
        if name == "memory":
            result = read_memory()
        elif name in READERS:
            result = engine(torch.tensor([prompt_of(length)])).argmax().item()
        elif rows > 1:
            result = engine(prompt_of(length * rows), n, rows)[length:]
        else:
            result = engine(prompt_of(length), n)[length:]
        seconds = time.perf_counter() - start
        answer = {"seconds": seconds, "result": result, "peak": peak_memory()}
        print(json.dumps(answer), file=answers, flush=True)


class Engine:
    """A process that serves one engine."""

    running: ClassVar[list] = []

    def __init__(self, name: str, folder: Path, threads: int):
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        environment |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        command = [sys.executable, __file__, "--serve", name, "--folder", str(folder)]
        self.process = subprocess.Popen(
            [*command, "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        self.running.append(self)
        self.name, self.answers = name, {}
        line = self.process.stdout.readline()
        self.state = json.loads(line) if line else {"missing": "it ended unexpectedly"}

    def run(self, job: str, length: int, n: int, rows: int = 1) -> None:
        self.process.stdin.write(json.dumps([length, n, rows]) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        self.answers.setdefault(job, []).append(answer)

    def median(self, job: str) -> float:
        return statistics.median(answer["seconds"] for answer in self.answers[job])

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.running.remove(self)


def start_all(names, folder: Path, threads: int) -> list[Engine]:
    engines = []
    for name in names:
        engine = Engine(name, folder, threads)
        if "missing" in engine.state:
            print(f"not installed: {name} ({engine.state['missing']})")
            engine.close()
        else:
            engines.append(engine)
    return engines


def bytes_read(name: str) -> float:
    """The bytes of weights that one token reads."""
    in_blocks, in_head = DECODERS[name]
    return in_blocks * 12 * 12 * 768**2 + in_head * 50257 * 768


# --- other programs -------------------------------------------------------------------


def busy_seconds() -> float:
    """Processor time of the whole machine, all cores together, since it was started."""
    line = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()
    user, nice, system, _, _, irq, softirq = map(int, line[1:8])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    """Processor time of this process and of all that it has started."""
    total = sum(os.times()[:4])
    for engine in Engine.running:
        stat = Path(f"/proc/{engine.process.pid}/stat").read_text(encoding="ascii")
        fields = stat.rpartition(")")[2].split()
        total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


class Watch:
    """The cores that other programs took since the watch was started."""

    def __init__(self):
        self.begin = time.perf_counter(), busy_seconds(), own_seconds()

    def load(self) -> float:
        now = time.perf_counter(), busy_seconds(), own_seconds()
        wall, busy, own = (b - a for a, b in zip(self.begin, now, strict=True))
        return max(0.0, (busy - own) / wall)

    def check(self, when: str) -> float:
        load = self.load()
        print(f"other programs {when}: {load:.2f} cores", flush=True)
        if load > MOST_LOAD:
            raise SystemExit(f"more than {MOST_LOAD}: no table")
        return load


def compare_decoding(folder: Path, rounds: int, threads: int, only: str) -> dict:
    names = [name for name in DECODERS if only in name or name == BASE]
    engines = start_all(["memory", *names], folder, threads)
    for engine in engines:
        engine.run("warm-up", 4, 2)
    for number in range(rounds):
        for job, (length, n) in LOADS.items():
            for engine in engines:
                naive = engine.name.endswith("naive loop")
                if naive and number > 0:
                    continue
                engine.run(job, length, min(n, NAIVE_LIMIT) if naive else n)
    memory, *engines = engines
    speeds = [a["result"] for job in LOADS for a in memory.answers[job]]
    table = {"memory GB/s": round(statistics.median(speeds) / 1e9, 1), "rows": {}}
    table["idle MB"] = round(memory.state["idle"])
    reference = next((e for e in engines if e.name == "ours: cache"), engines[0])
    bases = {e.name: e for e in engines}
    for engine in engines:
        row = {"peak MB": round(max(a["peak"] for a in engine.answers["512+128"]))}
        for job in LOADS:
            made = engine.answers[job][0]["result"]
            wanted = reference.answers[job][0]["result"][: len(made)]
            rate = len(made) / engine.median(job)
            limit = table["memory GB/s"] * 1e9 / bytes_read(engine.name)
            row[job] = {"tokens/s": round(rate, 2), "of limit": round(rate / limit, 2)}
            row[job]["same"] = sum(map(int.__eq__, made, wanted))
            row[job]["tokens"] = len(made)
            if BASE in bases:
                base = LOADS[job][1] / bases[BASE].median(job)
                row[job]["ratio"] = round(rate / base, 2)
        table["rows"][engine.name] = row
        engine.close()
    memory.close()
    return table


def compare_prefill(folder: Path, rounds: int, threads: int, only: str) -> dict:
    engines = start_all([n for n in READERS if only in n], folder, threads)
    for _ in range(rounds + 1):
        for engine in engines:
            engine.run("prefill", 1024, 0)
    base = next((e for e in engines if e.name == "transformers, all logits"), None)
    rows = {}
    for engine in engines:
        seconds = engine.median("prefill")
        rows[engine.name] = {
            "tokens/s": round(1024 / seconds),
            "ratio": base and round(base.median("prefill") / seconds, 2),
            "token": engine.answers["prefill"][0]["result"],
        }
        engine.close()
    return rows


def compare_batches(folder: Path, rounds: int, threads: int, only: str) -> dict:
    """How much faster four texts are written together than one after the other."""
    names = [name for name in ("ours: cache", "ours: quicken") if only in name]
    engines, gains = start_all(names, folder, threads), {}
    for _ in range(rounds):
        for engine in engines:
            engine.run("alone", 8, 64)
            engine.run("together", 8, 64, 4)
    for engine in engines:
        gains[engine.name] = 4 * engine.median("alone") / engine.median("together")
        engine.close()
    return gains


def table_of(facts: str, decoding: dict, gains: dict, reading: dict) -> str:
    """The table as it is printed, and shown in lesson 11."""
    head = f"{'writing, × transformers':28}"
    for job in LOADS:
        head += f"{job:>10}{'limit':>7}{'same':>9}"
    lines = [facts, "", head + f"{'MB':>7}"]
    for name, row in decoding["rows"].items():
        line = f"{name:28}"
        for job in LOADS:
            one = row[job]
            same = f"{one['same']}/{one['tokens']}"
            line += f"{one.get('ratio', math.nan):10.2f}{one['of limit']:7.2f}{same:>9}"
        lines.append(f"{line}{row['peak MB']:7,}")
    lines += ["", "four texts together, × one after the other"]
    lines += [f"{name:28}{gain:10.2f}" for name, gain in gains.items()]
    lines += ["", "reading 1,024 tokens, × transformers with all logits"]
    for name, row in reading.items():
        lines.append(f"{name:32}{row['ratio'] or math.nan:6.2f}")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", default="", help="a part of the engines' names")
    parser.add_argument("--record", action="store_true", help=f"write {TABLE.name}")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.folder, options.threads)
        return
    if options.record and options.only:
        parser.error("--record needs all engines")
    how = options.rounds, options.threads, options.only
    before, loads = Watch(), []
    time.sleep(5)
    loads.append(before.check("before"))
    with tempfile.TemporaryDirectory() as name:
        folder, during = Path(name), Watch()
        write_published(folder)
        decoding = compare_decoding(folder, *how)
        gains = compare_batches(folder, *how)
        reading = compare_prefill(folder, *how)
        loads.append(during.check("during"))
    after = Watch()
    time.sleep(5)
    loads.append(after.check("after"))
    facts = f"{date.today()}, torch {torch.__version__[:4]}, {options.threads} cores, "
    facts += f"memory {decoding['memory GB/s']} GB/s, Python and torch alone "
    facts += f"{decoding['idle MB']} MB, other programs "
    facts += ", ".join(f"{load:.2f}" for load in loads) + " cores"
    table = table_of(facts, decoding, gains, reading)
    print("\n" + table)
    if options.record:
        TABLE.write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
