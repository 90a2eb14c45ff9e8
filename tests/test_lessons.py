"""What a notebook must be before nbval runs it: executed, clean, true to the module."""

import ast
import difflib
import math
import re
import tempfile
from dataclasses import asdict
from pathlib import Path

import nbformat
import pytest
import torch
from safetensors import safe_open

import gpt_helpers
from plot_data import MIME as PLOT_DATA
from record import METADATA, ROOT

LESSONS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
SOLUTIONS = sorted((ROOT / "exercise-solutions").glob("[0-9]*.ipynb"))
MODULE_TEXT = Path(gpt_helpers.__file__).read_text(encoding="utf-8")

# How many cells' outputs nbval ignores, by notebook: timings, live training, and a
# limit that only Linux sets.
IGNORED = {
    "notebooks/08_training_tiny_gpt": 3,
    "notebooks/10_kv_cache": 2,
    "notebooks/11_speed": 9,
    "notebooks/13_many_processes": 2,
}

each_lesson = pytest.mark.parametrize("path", LESSONS, ids=lambda p: p.stem)
each_notebook = pytest.mark.parametrize(
    "path", LESSONS + SOLUTIONS, ids=lambda p: f"{p.parent.name}/{p.stem}"
)


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
def test_metadata_is_reduced_to_the_kernel(path):
    assert read(path).metadata == METADATA


@each_notebook
def test_every_figure_has_its_data_and_its_words(path):
    cells = read(path).cells
    for cell, after in zip(cells, [*cells[1:], None], strict=True):
        pictures = [
            o for o in cell.get("outputs", []) if "image/png" in o.get("data", {})
        ]
        for picture in pictures:
            assert picture.data.get(PLOT_DATA), f"record it again:\n{cell.source}"
            assert after and after.source.startswith("*In words:*"), cell.source


@each_notebook
def test_no_cell_escapes_the_comparison(path):
    escaping = [
        cell.source
        for cell in code_cells(path)
        if re.search("(?i)nbval", " ".join(cell.metadata.get("tags", [])) + cell.source)
    ]
    name = f"{path.parent.name}/{path.stem}"
    assert len(escaping) == IGNORED.get(name, 0), escaping


# --- the form of a lesson ---------------------------------------------------------


@each_notebook
def test_at_most_two_code_cells_stand_in_a_row(path):
    kinds = "".join(cell.cell_type[0] for cell in read(path).cells)
    assert "ccc" not in kinds


# Definitions that are one thing and do not fit into 30 lines.
LONG = (
    "class MultiHeadAttention",
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


# --- figures in the prose ---------------------------------------------------------

# What counts as a figure that a cell must have computed: 4 digits and more, thousands
# with commas, 2 decimals and more, powers of ten, and anything before a unit.
FIGURE = re.compile(
    r"(?<![\w.,])[−-]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{4,}(?:\.\d+)?|\d+\.\d{2,}(?:e-?\d+)?"
    r"|\d+(?:\.\d+)?e-?\d+|\d+(?:\.\d+)?(?=\s?(?:×(?!\s?\d)|%|[MG]i?B\b)))"
)
MARK = re.compile(r"<!-- = (.+?) -->")


def figures_in(text):
    """Yield (figure, expression of the invisible mark behind it or None)."""
    text = re.sub(r"```.*?```|\]\([^)]*\)", " ", text, flags=re.DOTALL)
    for match in FIGURE.finditer(text):
        mark = MARK.match(text, match.end())
        yield match[0].replace("−", "-"), mark and mark[1]


def value_of(figure):
    return float(figure.replace(",", ""))


@each_lesson
def test_every_figure_in_the_prose_is_computed(path):
    shown = " ".join(
        printed(cell) + re.sub(r"#.*", "", cell.source) for cell in code_cells(path)
    )
    shown = shown.replace("−", "-")
    missing = []
    for cell in read(path).cells[1:]:
        if cell.cell_type != "markdown":
            continue
        for figure, expression in figures_in(cell.source):
            if expression is None:
                pattern = rf"(?<![\w.,]){re.escape(figure.lstrip('-'))}(?!\d|,\d|\.\d)"
                if not re.search(pattern, shown):
                    missing.append(figure)
                continue
            value = eval(expression, vars(gpt_helpers) | {"math": math, "torch": torch})
            places = len(figure.partition(".")[2])
            assert round(value, places) == value_of(figure), expression
    assert not missing, f"no cell computes {missing}"


def test_a_figure_in_prose_is_recognized():
    text = (
        "C is 768, 163,009,536 in all, 0.19 and 4.7e-4, 12 MB, 1099×, 4 × 4, of 1979."
    )
    assert [figure for figure, _ in figures_in(text)] == [
        "163,009,536",
        "0.19",
        "4.7e-4",
        "12",
        "1099",
        "1979",
    ]


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

# What no lesson builds: where the data lies, and the module as a program.
NOT_TAUGHT = {"DATA_FOLDER", "VOCABULARY_FILES", "get_tokenizer", "main"}


def test_every_public_name_is_built_in_a_lesson():
    assert set(MODULE) - set(TAUGHT) == NOT_TAUGHT


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
                tensors = {k: file.get_tensor(k).tolist() for k in file.keys()}  # noqa: SIM118
                found.append((file.metadata(), tensors))
    return found[0] == found[1]


def stored(save):
    model = seeded(gpt_helpers.GPTModel)
    optimizer = gpt_helpers.make_optimizer(model, PLAN)
    torch.manual_seed(0)
    gpt_helpers.training_step(model, optimizer, TEXT, PLAN, 0)
    with tempfile.TemporaryDirectory() as folder:
        save(f"{folder}/file", model, optimizer, PLAN, [{"step": 1}])
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
