"""What a notebook must be before nbval runs it: executed, clean, true to the module."""

import ast
import difflib
import re
import tempfile
from dataclasses import asdict
from functools import cache
from pathlib import Path

import nbformat
import pytest
import torch
from safetensors import safe_open

import gpt_helpers
from plot_data import MIME as PLOT_DATA
from plot_data import digest
from stored_notebooks import LESSONS, METADATA, ROOT, SOLUTIONS

MODULE_TEXT = Path(gpt_helpers.__file__).read_text(encoding="utf-8")

each_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
each_notebook = pytest.mark.parametrize(
    "path", LESSONS + SOLUTIONS, ids=lambda p: f"{p.parent.name}/{p.stem}"
)


@cache
def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(path):
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def printed(cell):
    """The text that a code cell shows."""
    return "".join(
        output.get("text", "") + output.get("data", {}).get("text/plain", "")
        for output in cell.outputs
    )


def test_there_are_lessons():
    numbers = [int(path.name[:2]) for path in LESSONS]
    assert numbers == list(range(1, len(LESSONS) + 1)) and len(LESSONS) >= 7


# --- executed and clean -----------------------------------------------------------


@each_notebook
def test_every_code_cell_was_executed_in_order(path):
    counts = [cell.execution_count for cell in code_cells(path)]
    assert counts == list(range(1, len(counts) + 1))


FORBIDDEN = {
    "an absolute path": r"(?<![\w/.:])/(?:[\w.+-]+/)+[\w.+-]+|\b[A-Z]:\\\w",
    "an object's address": r"\bat 0x[0-9a-fA-F]{6,}",
    "a version number": r"\b\d+\.\d+\.\d+\b",
}


@each_notebook
def test_outputs_hold_nothing_that_differs_between_machines(path):
    for cell in code_cells(path):
        for output in cell.outputs:
            assert output.output_type != "error", cell.source
            assert output.get("name") != "stderr", output.text
        for what, pattern in FORBIDDEN.items():
            hit = re.search(pattern, printed(cell))
            assert not hit, f"{what}: {hit[0]!r} from\n{cell.source}"


@each_notebook
def test_metadata_names_the_kernel_and_nothing_else(path):
    """As recorded, or as JupyterLab writes it when a lesson is only opened."""
    metadata = read(path).metadata
    assert metadata.keys() == METADATA.keys()
    assert metadata.kernelspec | METADATA["kernelspec"] == metadata.kernelspec | {
        "display_name": METADATA["kernelspec"]["display_name"]
    }
    assert metadata.language_info.name == METADATA["language_info"]["name"]


@each_notebook
def test_no_printed_line_is_broken_by_jupyterlab(path):
    """JupyterLab breaks a line at the edge of the window, inside a word."""
    for cell in code_cells(path):
        for line in printed(cell).splitlines():
            assert len(line) <= 100, f"{line}\nfrom\n{cell.source}"


@each_notebook
def test_every_figure_has_its_data_and_its_words(path):
    cells = read(path).cells
    for cell, after in zip(cells, [*cells[1:], None], strict=True):
        pictures = [
            o for o in cell.get("outputs", []) if "image/png" in o.get("data", {})
        ]
        for picture in pictures:
            assert picture.data.get(PLOT_DATA), f"record it again:\n{cell.source}"
            is_its_own = picture.metadata.get("digest") == digest(picture.data)
            assert is_its_own, f"not the picture of this data:\n{cell.source}"
            assert after and after.source.startswith("*In words:*"), cell.source


@each_notebook
def test_what_a_figure_claims_is_asserted_in_its_cell(path):
    """Drawings and measured titles aside; the assertions are part of the plot data."""
    for cell in code_cells(path):
        plots = [
            o.data[PLOT_DATA] for o in cell.outputs if PLOT_DATA in o.get("data", {})
        ]
        if plots and not re.search(
            r"draw_model\(|set_axis_off|set_title\(f", cell.source
        ):
            assert "\nclaim " in "".join(plots), cell.source


# --- the form of a lesson ---------------------------------------------------------


@each_notebook
def test_at_most_two_code_cells_stand_in_a_row(path):
    kinds = "".join(cell.cell_type[0] for cell in read(path).cells)
    assert "ccc" not in kinds


# Definitions that are one thing and do not fit into 30 lines.
LONG = (
    "class MultiHeadAttention",
    "class QuickGPT",
    "def generate_text(",
    "def load_checkpoint(",
    "def train(",
)


@each_lesson
def test_lesson_has_the_common_form(path):
    cells = read(path).cells
    title = cells[0].source
    assert re.match(rf"# {int(path.name[:2])} · \w", title)
    for part in ("**You build**", "**You need**", "**Time**", "**Memory**"):
        assert part in title, part
    for cell in code_cells(path):
        lines = [line for line in cell.source.splitlines() if line.strip()]
        long = any(start in cell.source for start in LONG)
        assert len(lines) <= (50 if long else 30), cell.source
        assert "sys.path" not in cell.source


def parts_of(path):
    """{heading: text} of a lesson's second level, each without the next one."""
    prose = [cell.source for cell in read(path).cells if cell.cell_type == "markdown"]
    return dict(part.partition("\n")[::2] for part in "\n".join(prose).split("\n## "))


@each_lesson
def test_lessons_speak_with_one_voice(path):
    first, parts, number = parts_of(LESSONS[0]), parts_of(path), path.name[:2]
    assert list(parts)[-3:] == ["Recap", "Exercises", "Next"]
    rules = first["Exercises"].partition("\n### ")[0]
    rules = rules[rules.index("An exercise is a cell") :]
    for name in "my-01.ipynb", "01_solutions.ipynb":
        rules = rules.replace(name, name.replace("01", number))
    assert rules in parts["Exercises"]
    assert parts["Next"].splitlines()[-1] == first["Next"].splitlines()[-1]
    prose = "".join(parts.values())
    asked = re.findall("(?i)decide, then run", prose)
    assert 0 < len(asked) == prose.count("**Decide, then run.**")
    assert "noqa" not in "".join(cell.source for cell in code_cells(path))


LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize(
    "path",
    [*LESSONS, *SOLUTIONS, ROOT / "README.md", ROOT / "notebooks/data/SOURCES.md"],
    ids=lambda p: p.name,
)
def test_links_within_the_project_lead_somewhere(path):
    if path.suffix == ".md":
        texts = [path.read_text(encoding="utf-8")]
    else:
        texts = [c.source for c in read(path).cells if c.cell_type == "markdown"]
    for target in LINK.findall("\n".join(texts)):
        if "://" not in target:
            assert (path.parent / target).exists(), target


# --- one truth --------------------------------------------------------------------


def defined_names(node):
    if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [t.id for t in node.targets if isinstance(t, ast.Name)]
    return []


def definitions(text):
    """{name: its definition}, docstrings and blank lines removed."""
    lines, found = text.splitlines(), {}
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(
            node
        ):
            docstring = node.body[0]
            for i in range(docstring.lineno - 1, docstring.end_lineno):
                lines[i] = ""
    for node in tree.body:
        first = min(
            [node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]
        )
        kept = [line for line in lines[first - 1 : node.end_lineno] if line.strip()]
        found |= dict.fromkeys(defined_names(node), "\n".join(kept))
    return found


MODULE = {
    name: text
    for name, text in definitions(MODULE_TEXT).items()
    if not name.startswith("_")
}
TAUGHT = {}  # {public name: [(lesson number, definition), …]} in the order of the lessons
for lesson in LESSONS:
    for lesson_cell in code_cells(lesson):
        if any(
            tag.startswith("exercise:") for tag in lesson_cell.metadata.get("tags", [])
        ):
            continue
        for taught_name, definition in definitions(lesson_cell.source).items():
            if taught_name in MODULE:
                place = int(lesson.name[:2]), definition
                TAUGHT.setdefault(taught_name, []).append(place)

# What no lesson builds, and why: plumbing that lessons use in a line or two.
NOT_TAUGHT = {
    "DATA_FOLDER": "where the data lies",
    "VOCABULARY_FILES": "the names and sums of two files",
    "get_tokenizer": "checks two files and opens tiktoken",
    "GPT2_REPOSITORIES": "a name on another computer",
    "GPT2_REVISION": "a version on another computer",
    "GPT2_SHA256": "the sum of a file; lesson 12 shows what it sees",
    "GPT2_FIXED": "a list of what config.json must say",
    "GPT2_KINDS": "a translation of four names",
    "read_gpt2_header": "one call of safetensors, and its errors in a sentence",
    "gpt2_config": "reads a JSON file and refuses it",
    "check_gpt2_tensors": "compares two tables and refuses a file",
    "inspect_gpt2": "calls the three above; lesson 12 shows what they refuse",
    "find_gpt2": "looks for a file",
    "download_gpt2": "fetches a file with huggingface_hub",
    "save_gpt2": "writes two files together; lesson 12 builds what is in them",
    "main": "the module as a program",
}


def test_every_public_name_is_built_in_a_lesson():
    assert set(MODULE) - set(TAUGHT) == NOT_TAUGHT.keys()


@pytest.mark.parametrize("name", TAUGHT)
def test_the_last_lesson_holds_the_modules_definition(name):
    number, text = TAUGHT[name][-1]
    diff = difflib.unified_diff(
        MODULE[name].splitlines(),
        text.splitlines(),
        "gpt_helpers.py",
        f"lesson {number}",
    )
    assert text == MODULE[name], "\n".join(diff)
    documentation = getattr(gpt_helpers, name).__doc__
    if text.startswith(("class", "def", "@")):
        line = re.search(r"Lesson: (.+)", documentation)[1]
        assert line.endswith(f"{number}."), f"the docstring of {name} says {line}"


SMALL = gpt_helpers.GPTConfig(13, 9, 20, 4, 2, 0.0)
IDS = torch.arange(10).view(2, 5)


def seeded(make):
    torch.manual_seed(0)
    return make(SMALL).eval()


def same_module(early, final, inputs):
    """Equal names, and equal results from the same seed on the default kind."""
    a, b = seeded(early), seeded(final)
    same_names = list(a.state_dict()) == list(b.state_dict())
    close = torch.allclose(a(inputs), b(inputs), atol=1e-6)
    a, b = a.train(), b.train()
    return same_names and close and torch.allclose(a(inputs), b(inputs), atol=1e-6)


def same_next_logits(early, final):
    model, caches = seeded(gpt_helpers.GPTModel), []
    for next_logits in early, final:
        cache = gpt_helpers.KVCache(SMALL, 2)
        steps = [next_logits(model, IDS[:, :T], cache) for T in (2, 3, 5)]
        caches.append(torch.cat([*steps, next_logits(model, IDS)]))
    return torch.allclose(*caches, atol=1e-6)


def same_layer(early, final):
    return same_module(early, final, torch.randn(2, 5, 20))


def same_norm(early, final):
    x = torch.randn(4, 7, 20, generator=torch.Generator().manual_seed(0))
    early, final = early(20), final(20)
    early.load_state_dict(final.state_dict())
    return torch.allclose(early(x), final(x), atol=1e-6)


def same_activation(early, final):
    x = torch.linspace(-6, 6, 241)
    return torch.allclose(early()(x), final()(x), atol=1e-6)


def same_fields(early, final):
    return asdict(early).items() <= asdict(final).items()


def same_refusals(early, final):
    bad = IDS[0], IDS + 9, IDS.float(), torch.zeros(1, 10).long()
    return all(refused(early, ids) == refused(final, ids) for ids in (*bad, IDS))


def refused(check, ids):
    try:
        return check(ids, SMALL)
    except (TypeError, ValueError) as error:
        return type(error)


def same_text(early, final):
    model = seeded(gpt_helpers.GPTModel)
    return torch.equal(early(model, IDS, 9), final(model, IDS, 9))


PLAN = gpt_helpers.TrainingPlan(3, 2, warmup_steps=1, eval_every=2)
TEXT = torch.arange(60) % 13


def same_history(early, final):
    runs = [
        train(seeded(gpt_helpers.GPTModel), TEXT, TEXT, PLAN)
        for train in (early, final)
    ]
    return runs[0] == runs[1]


def same_step(early, final):
    losses = []
    for step in early, final:
        model = seeded(gpt_helpers.GPTModel)
        optimizer = gpt_helpers.make_optimizer(model, PLAN)
        torch.manual_seed(0)
        losses.append([step(model, optimizer, TEXT, PLAN, i) for i in range(3)])
    return losses[0] == losses[1]


def same_file(early, final):
    found = []
    for save in early, final:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "file").write_bytes(stored(save))
            with safe_open(f"{folder}/file", "pt") as file:
                tensors = {k: file.get_tensor(k).tolist() for k in file.keys()}
                found.append((file.metadata(), tensors))
    return found[0] == found[1]


def stored(save):
    model = seeded(gpt_helpers.GPTModel)
    optimizer = gpt_helpers.make_optimizer(model, PLAN)
    torch.manual_seed(0)
    gpt_helpers.training_step(model, optimizer, TEXT, PLAN, 0)
    with tempfile.TemporaryDirectory() as folder:
        text = gpt_helpers.digest_texts(TEXT, TEXT)
        save(f"{folder}/file", model, optimizer, PLAN, text, [{"step": 1}])
        return Path(folder, "file").read_bytes()


def same_reading(early, final):
    content, sums = stored(gpt_helpers.save_checkpoint), []
    for load in early, final:
        model = seeded(gpt_helpers.GPTModel)
        optimizer = gpt_helpers.make_optimizer(model, PLAN)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "file").write_bytes(content)
            history = load(Path(folder, "file"), model, optimizer, PLAN)
        tensors = [x for s in optimizer.state.values() for x in s.values()]
        tensors += model.parameters()
        sums.append((history, [x.double().sum().item() for x in tensors]))
    return sums[0] == sums[1]


def same_writing(early, final):
    with tempfile.TemporaryDirectory() as folder:
        for write in early, final:
            write(
                Path(folder, "file"), lambda file: file.write_text(str(len(file.name)))
            )
            if [p.name for p in Path(folder).iterdir()] != ["file"]:
                return False
            content = Path(folder, "file").read_text()
    return content == str(len("file.unfinished"))


# How an earlier definition is shown equal to the module's, by name.
EQUAL = {
    "LayerNorm": same_norm,
    "GELU": same_activation,
    "GPTConfig": lambda early, final: same_fields(early(), final()),
    "GPT_CONFIG_124M": same_fields,
    "MultiHeadAttention": same_layer,
    "TransformerBlock": same_layer,
    "GPTModel": lambda early, final: same_module(early, final, IDS),
    "check_token_ids": same_refusals,
    "generate_text": same_text,
    "next_logits": same_next_logits,
    "write_whole": same_writing,
    "save_checkpoint": same_file,
    "load_checkpoint": same_reading,
    "training_step": same_step,
    "train": same_history,
}
EARLIER = [
    (name, number, text)
    for name, places in TAUGHT.items()
    for number, text in places[:-1]
]


@pytest.mark.parametrize(("name", "number", "text"), EARLIER)
def test_an_earlier_definition_gives_the_same_results(name, number, text):
    """Run with the parts that its own lesson, or the last one before, defines."""
    namespace = dict(vars(gpt_helpers))
    for other, places in TAUGHT.items():
        earlier = [part for lesson, part in places if lesson <= number]
        if earlier and other in EQUAL:
            exec(earlier[-1], namespace)
    exec(text, namespace)
    final = getattr(gpt_helpers, name)
    assert namespace[name] is not final
    assert EQUAL[name](namespace[name], final), f"lesson {number}"
