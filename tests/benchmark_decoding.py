"""Time our decoding beside well-known engines: ``python tests/benchmark_decoding.py``.

All read the same seeded weights of GPT-2's size. Each engine runs in a process of its
own, the processes take turns, and the medians of the rounds are printed. Whatever
peer is not installed is named; ``tests/requirements-peers.txt`` has them. Takes six
minutes on two idle cores; pytest does not run it.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import date
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open

import gpt_helpers
from gpt_helpers import GPT_CONFIG_124M, GPTModel, generate_text, quicken, save_gpt2

CONFIG = replace(GPT_CONFIG_124M, drop_rate=0.0, qkv_bias=True, tied_head=True)
LOADS = {"4+200": (4, 200), "512+128": (512, 128)}
NAIVE_LIMIT = 16  # new tokens of the naive loop: it is slow
BASE = "transformers, default"


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
    """Write the weights as llama.cpp reads them, in F32 or Q8_0."""
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
            quantized = kind == "Q8_0" and tensor.ndim == 2 and part != "wpe"
            stored = gguf.GGMLQuantizationType[kind if quantized else "F32"]
            array = gguf.quants.quantize(array, stored) if quantized else array
            full = f"{block}{names[part]}.{end}"
            writer.add_tensor(full, array, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


# --- the engines: each returns {job: function of a prompt and a number of tokens} -----


def ours(variant: str):
    model = seeded_model()
    kinds = {"float32": None, "float16": torch.float16, "int8": torch.int8}
    if variant in kinds:
        model = quicken(model, kinds[variant])

    def generate(prompt, n):
        ids = torch.tensor([prompt])
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
    if variant == "quickened, last":
        model = quicken(model)
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


DECODERS = {  # name: (what makes it, its weights' bytes per number)
    "ours: naive loop": 4,
    "ours: cache": 4,
    "ours: quicken": 4,
    "ours: quicken, float16": 2,
    "ours: quicken, int8": 1,
    BASE: 4,
    "transformers, static cache": 4,
    "CTranslate2, float32": 4,
    "CTranslate2, int8": 1,
    "llama.cpp, F32": 4,
    "llama.cpp, Q8_0": 1,
}
READERS = (
    "explicit attention, all logits",
    "PyTorch's attention, all logits",
    "PyTorch's attention, last",
    "quickened, last",
    "nanoGPT's way, last",
    "transformers, all logits",
    "transformers, last",
)


def make_engine(name: str, folder: Path, threads: int):
    if name in READERS:
        return prefill(name, folder)
    family, _, kind = name.replace(": ", ", ").partition(", ")
    if family == "ours":
        names = {"quicken": "float32", "quicken, float16": "float16"}
        return ours((names | {"quicken, int8": "int8"}).get(kind, kind))
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
    """Answer each line of input, a list (prompt length, new tokens), by a line."""
    torch.set_num_threads(threads)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what an engine prints is no answer
    try:
        engine = None if name == "memory" else make_engine(name, folder, threads)
    except ImportError as error:
        print(json.dumps({"missing": str(error.name)}), file=answers, flush=True)
        return
    print(json.dumps({"idle": peak_memory()}), file=answers, flush=True)
    for line in sys.stdin:
        length, n = json.loads(line)
        peak_memory(reset=True)
        start = time.perf_counter()
        if name == "memory":
            result = read_memory()
        elif name in READERS:
            result = engine(torch.tensor([prompt_of(length)])).argmax().item()
        else:
            result = engine(prompt_of(length), n)[length:]
        seconds = time.perf_counter() - start
        answer = {"seconds": seconds, "result": result, "peak": peak_memory()}
        print(json.dumps(answer), file=answers, flush=True)


class Engine:
    """A process that serves one engine."""

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
        self.name, self.answers = name, {}
        line = self.process.stdout.readline()
        self.state = json.loads(line) if line else {"missing": "it ended unexpectedly"}

    def run(self, job: str, length: int, n: int) -> None:
        self.process.stdin.write(json.dumps([length, n]) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        self.answers.setdefault(job, []).append(answer)

    def median(self, job: str) -> float:
        return statistics.median(answer["seconds"] for answer in self.answers[job])

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def start_all(names, folder: Path, threads: int) -> list[Engine]:
    engines = []
    for name in names:
        engine = Engine(name, folder, threads)
        if "missing" in engine.state:
            print(f"not installed: {name} ({engine.state['missing']})")
        else:
            engines.append(engine)
    return engines


def bytes_read(size: int) -> int:
    """The bytes of weights that one token reads."""
    return size * (12 * 12 * 768**2 + 50257 * 768)


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
            limit = table["memory GB/s"] * 1e9 / bytes_read(DECODERS[engine.name])
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


def lesson_cells(result: dict) -> str:
    """The two code cells of lesson 11 that hold a recorded run."""
    load = result["facts"]["load before"]
    title = f"{result['facts']['date']}, load {load:.1f}"
    lines = ["recorded_run = [  # × transformers' default, of the limit, ×, peak MB"]
    for name, row in result["decoding"]["rows"].items():
        short, long = (row[job] for job in LOADS)
        figures = f"{short['ratio']}, {short['of limit']}, {long['ratio']}"
        lines.append(f"    ({json.dumps(name)}, {figures}, {row['peak MB']}),")
    head = f"{title:27}  4+200  limit  512+128    MB"
    lines += ["]", f"print({json.dumps(head)})"]
    lines += ["for name, short, share, long, peak in recorded_run:"]
    figures = "{name:27} {short:6.2f} {share:6.2f} {long:8.2f} {peak:5,}"
    lines += [f'    print(f"{figures}")', ""]
    lines += [
        "recorded_prefill = {  # 1,024 tokens at once, × transformers, all logits"
    ]
    for name, row in result["prefill"].items():
        lines.append(f"    {json.dumps(name)}: {row['ratio']},")
    lines += ["}", "for name, ratio in recorded_prefill.items():"]
    return "\n".join([*lines, '    print(f"{name:32} {ratio:.2f}")'])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", default="", help="a part of the engines' names")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.folder, options.threads)
        return
    facts = {"date": date.today().isoformat(), "machine": platform.machine()}
    facts |= {"torch": torch.__version__, "cores": options.threads}
    how = options.rounds, options.threads, options.only
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_published(folder)
        facts["load before"] = os.getloadavg()[0]
        decoding = compare_decoding(folder, *how)
        reading = compare_prefill(folder, *how)
        facts["load after"] = os.getloadavg()[0]
    print(", ".join(f"{name}: {fact}" for name, fact in facts.items()))
    print(f"memory read: {decoding['memory GB/s']} GB/s; ", end="")
    print(f"Python and torch alone, in every peak: {decoding['idle MB']} MB\n")
    print(f"{'':28}" + "".join(f"{job:>40}" for job in LOADS))
    heads = f"{'tokens/s':>10}{'ratio':>8}{'of limit':>10}{'same':>12}"
    print(f"{'decode':28}" + heads * len(LOADS) + f"{'peak MB':>9}")
    for name, row in decoding["rows"].items():
        print(f"{name:28}", end="")
        for job in LOADS:
            one = row[job]
            same = f"{one['same']}/{one['tokens']}"
            ratio = one.get("ratio", float("nan"))
            print(f"{one['tokens/s']:10.2f}{ratio:8.2f}", end="")
            print(f"{one['of limit']:10.2f}{same:>12}", end="")
        print(f"{row['peak MB']:9}")
    print("\nprefill, 1×1024                  tokens/s   ratio   next token")
    for name, row in reading.items():
        ratio = row["ratio"] or float("nan")
        print(f"{name:32}{row['tokens/s']:9}{ratio:8.2f}{row['token']:13}")
    result = {"facts": facts, "decoding": decoding, "prefill": reading}
    if not options.only:
        print("\nfor the lesson:\n\n" + lesson_cells(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
