"""What the prose says: each figure and formula is computed where it stands."""

import ast
import math
import re
from functools import cache
from typing import NamedTuple

import torch

import gpt_helpers
from plot_data import MIME as PLOT_DATA
from test_lessons import SOLUTIONS, each_notebook, printed, read

# --- where a figure is computed ---------------------------------------------------


class Piece(NamedTuple):
    """A code cell, a heading, or the text of a Markdown cell between headings."""

    section: str
    text: str
    cell: object
    shown: frozenset = frozenset()  # the figures that a code cell prints, as spelled
    values: frozenset = frozenset()  # the numbers that its code sets


def shown_by(cell):
    """What a code cell prints, and the words and ticks of its figures."""
    plots = (o.get("data", {}).get(PLOT_DATA, "") for o in cell.outputs)
    words = re.findall(
        r"^(?:figure|axes|labels|texts) .+", "\n".join(plots), re.MULTILINE
    )
    return "\n".join([printed(cell), *words])


def constants(code):
    nodes = [n for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Constant)]
    return frozenset(float(n.value) for n in nodes if type(n.value) in (int, float))


@cache
def pieces(path):
    found, section = [], ""
    for cell in read(path).cells:
        if cell.cell_type == "code":
            shown = frozenset(spelled(m[0]) for m in NUMBER.finditer(shown_by(cell)))
            values = constants(cell.source)
            found.append(Piece(section, cell.source, cell, shown, values))
            continue
        for text in re.split(r"^(##.*)", cell.source, flags=re.MULTILINE):
            section = text if text.startswith("##") else section
            found.extend([Piece(section, text, cell)] if text.strip() else [])
    return found


def is_code(piece):
    return piece.cell.cell_type == "code"


def beside(all_pieces, k):
    """The code cells that piece k speaks of: the ones before and after it."""
    here = [
        i
        for i, piece in enumerate(all_pieces)
        if is_code(piece) and piece.section == all_pieces[k].section
        if not piece.text.startswith(("import ", "from "))
    ]
    near = [i for i in here if i < k][-1:] + [i for i in here if i > k][:1]
    around = [i for i in (k - 1, k + 1) if 0 <= i < len(all_pieces)]
    return [p for p in (all_pieces[i] for i in {*near, *around}) if is_code(p)]


def solved(exercise):
    """The code cells of an exercise's solution."""
    solution = SOLUTIONS[int(exercise.partition(".")[0]) - 1]
    section = f"## {exercise} "
    return [p for p in pieces(solution) if is_code(p) and p.section.startswith(section)]


# --- figures ----------------------------------------------------------------------

NUMBER = re.compile(r"(?<![\w.,])[−-]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?(?!\d)")
UNIT = re.compile(r"\s?(?:×(?!\s?\d)|%|[MG]i?B\b)")
TENS = "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen"
WORDS = {word: str(10 + i) for i, word in enumerate(TENS.split())}
WORDS |= {"twenty": "20", "thirty": "30", "forty": "40", "fifty": "50"}
WORD = re.compile(rf"(?i)(?<![\w-])({'|'.join(WORDS)})(?![\w-])(?! (?:thou|mill|bill))")
# Behind a figure: what it is, or the id of the cell that prints it.
MARK = re.compile(r"<!-- (= .+?|printed by [\w-]+) -->")
# What is not a figure: fences, targets of links, formulas, names such as GPT-2 and the
# numbers of lessons, exercises, hints and sections.
NAMES = re.compile(
    r"```[^`]*```|\]\([^)]*\)|\$\$?[^$]+\$\$?|\bGPT-2 124M|\b[A-Za-z]+-\d+\b|\b124M"
    r"|\b(?:[Ll]essons?|[Ee]xercises?|[Hh]int|[Ss]ection) \d+(?:\.\d+)?"
    r"(?:(?:,| and| to|, and) \d+(?:\.\d+)?)*|^##? (?:Solutions · )?[\d.]+ ·"
    r"|^\*\*You build.*|\S+\.ipynb|\[[^\]\n]*\d+ · [^\]\n]*",
    re.MULTILINE,
)


def spelled(figure):
    return figure.replace(",", "").lstrip("−-")


def is_figure(match, text):
    """Two digits and more, decimals, and any number before a unit or after «ratio of»."""
    before, after = text[: match.start()], text[match.end() :]
    result = UNIT.match(after) or re.search(r"(?:ratio|factor) of $", before)
    return len(match[0].lstrip("−-")) > 1 or result


MARKED_SPAN = re.compile(r"`([^`\n]+)`<!-- (= .+?) -->")


def figures_in(text):
    """Yield (figure or list, the invisible mark behind it or None)."""
    text = NAMES.sub(" ", text)
    yield from MARKED_SPAN.findall(text)
    text = MARKED_SPAN.sub(" ", text)
    visible = re.sub(r"<!--.*?-->", lambda m: " " * len(m[0]), text)
    for match in NUMBER.finditer(visible):
        if is_figure(match, visible):
            mark = MARK.match(text, match.end())
            yield match[0].replace("−", "-"), mark and mark[1]
    for match in WORD.finditer(visible):
        mark = MARK.match(text, match.end())
        yield WORDS[match[0].lower()], mark and mark[1]


BOOK = (gpt_helpers.DATA_FOLDER / "alice.txt").read_text(encoding="utf-8")
NAMESPACE = vars(gpt_helpers) | {"BOOK": BOOK, "math": math, "torch": torch}


def evaluate(expression):
    return eval(expression, dict(NAMESPACE))


def is_shown(figure, cells):
    """Whether a cell prints the figure; or sets it, if it is not one of many small ones."""
    value = abs(float(figure.replace(",", "")))
    telling = value >= 10 or not value.is_integer()
    return any(
        spelled(figure) in p.shown or (telling and value in p.values) for p in cells
    )


def agrees(figure, mark, all_pieces):
    """Whether a figure is what its mark says, rounded to the figure's places."""
    kind, _, expression = mark.partition(" ")
    if kind != "=":
        named = expression.removeprefix("by ")
        return is_shown(figure, [p for p in all_pieces if p.cell.id == named])
    if not NUMBER.fullmatch(figure):
        return evaluate(figure) == evaluate(expression)
    digits, _, power = figure.replace(",", "").partition("e")
    places = len(digits.partition(".")[2]) - int(power or 0)
    value = round(float(evaluate(expression)), places)
    return math.isclose(value, float(figure.replace(",", "")))


def unfounded(path):
    """Yield (section, figure) for each that is neither computed beside it nor marked."""
    all_pieces = pieces(path)
    for k, piece in enumerate(all_pieces):
        if is_code(piece):
            continue
        here = beside(all_pieces, k)
        if piece.text == piece.section:
            here = [p for p in all_pieces if is_code(p) and p.section == piece.text]
        elif not k:
            here = [p for p in all_pieces if is_code(p)]
        exercise = re.match(r"### Exercise (\d+\.\d)", piece.section)
        here += solved(exercise[1]) if exercise else []
        for figure, mark in figures_in(piece.text):
            if not (
                agrees(figure, mark, all_pieces) if mark else is_shown(figure, here)
            ):
                yield piece.section, figure, mark


@each_notebook
def test_every_figure_in_the_prose_is_computed(path):
    missing = list(unfounded(path))
    assert not missing, f"neither computed beside it nor by its mark: {missing}"


def test_a_figure_in_prose_is_recognized():
    text = (
        "C is 7, 163,009,536 in all, 0.5 and 4.7e-4, −12 MB, 9×, 4 × 4, a ratio of 2, "
        "`[1, 20]`, `x[30]`, 12C, twelve in lesson 11, of 1979 on GPT-2 124M: ten thousand."
    )
    assert [figure for figure, _ in figures_in(text)] == (
        ["163,009,536", "0.5", "4.7e-4", "-12", "9"]
        + ["2", "20", "30", "12", "1979", "12"]
    )


# --- formulas ---------------------------------------------------------------------

FORMULA = re.compile(r"\$\$?([^$]+)\$\$?(?:<!-- = (.+?) -->)?")
FUNCTIONS = {"erf": math.erf, "tanh": math.tanh, "cos": math.cos, "sin": math.sin}
# What LaTeX writes, and what Python does; innermost braces first.
LATEX = {
    r"(?<=\d)\\,(?=\d{3})": "",
    r"\\left|\\right|\\[,;]|\\(?:mathrm|text)\b": " ",
    r"\\cdot": "*",
    r"\\infty": "inf",
    r"f'\(x\)": "slope",
    r"\\(cos|sin)\\varphi": r" \1(varphi)",
}
GROUPS = {
    r"\\frac\{([^{}]*)\}\{([^{}]*)\}": r"((\1)/(\2))",
    r"\\sqrt(?:\{([^{}]*)\}| (\w))": r"((\1\2)**0.5)",
    r"\^(?:\{([^{}]*)\}|(\w))": r"**(\1\2)",
    r"\{([^{}]*)\}": r"\1",
}


def python_of(latex):
    """A formula as Python code: roots, fractions, powers, products without a sign."""
    for pattern, code in [*LATEX.items(), *(3 * list(GROUPS.items()))]:
        latex = re.sub(pattern, code, latex)
    tokens = re.findall(r"\d+\.?\d*|[A-Za-z]+|\*\*|\S", latex.replace("\\", " "))
    code = ""
    for token, after in zip(tokens, [*tokens[1:], ""], strict=True):
        ends = token == ")" or token.isalnum() or "." in token
        starts = after == "(" or after.isalnum() or "." in after
        times = ends and starts and token not in FUNCTIONS and token != "mean"
        code += token + "*" * times
    return code


def values_of(code):
    """A number for each name, the same for a formula and its mark."""
    letters = sorted(set(re.findall(r"[A-Za-z]+", code)))
    made = {name: 1.3 + 0.17 * (sum(map(ord, name)) % 29) for name in letters}
    known = {"e": math.e, "pi": math.pi, "inf": math.inf, "mean": float} | FUNCTIONS
    return {name: known.get(name, value) for name, value in made.items()}


def sides(latex):
    """The sides of an equation that can be computed, not the name that it defines."""
    parts = re.split(r"=|\\approx", latex)
    return [p for p in parts if len(parts) == 1 or not re.fullmatch(DEFINED, p.strip())]


DEFINED = r"y|N|\\\w+(?:\{\w+\})?\(\w\)"


def formulas_in(text):
    """Those with a number or a root in them; matrices and vectors are for reading."""
    for latex, mark in FORMULA.findall(text):
        if re.search(r"\d|sqrt|frac|\\cos", latex) and not re.search("top|_", latex):
            yield latex, mark


@each_notebook
def test_every_formula_is_what_its_mark_computes(path):
    cells = [cell for cell in read(path).cells if cell.cell_type == "markdown"]
    for latex, mark in formulas_in("\n".join(cell.source for cell in cells)):
        assert mark, f"no mark behind ${latex}$"
        for side in sides(latex):
            code = python_of(side)
            values = values_of(code)
            said, wanted = eval(code, dict(values)), eval(mark, NAMESPACE | values)
            pair = [torch.as_tensor(v, dtype=torch.float64) for v in (said, wanted)]
            assert torch.allclose(*pair, rtol=1e-6, atol=0), f"{latex}: {mark}"
