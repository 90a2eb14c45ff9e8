"""Headers, links and comparisons: what a reader relies on before a cell has run."""

import ast
import math
import re

import nbval.plugin
import pytest

from test_lessons import (
    LESSONS,
    SOLUTIONS,
    TAUGHT,
    code_cells,
    definitions,
    each_lesson,
    each_notebook,
    read,
)

# --- comparisons ------------------------------------------------------------------

BOTH = {"rtol", "atol"}, {"rel_tol", "abs_tol"}
# Tolerances above a thousandth, by cell id, each with its reason.
WIDE = {
    "22ba409e": "an angle of a thousand radians has few digits behind the point",
    "519bb188": "bfloat16 keeps 8 bits, and both ends of the turn are rounded to it",
}


def calls(code, *names):
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in names:
                yield node


def constants(node, kind):
    nodes = [n for n in ast.walk(node) if isinstance(n, ast.Constant)]
    return [n.value for n in nodes if isinstance(n.value, kind)]


def loose(cell):
    """Yield what a cell's comparisons and their words let pass unsaid."""
    for call in calls(cell.source, "allclose", "isclose", "assert_close"):
        tolerances = {k.arg: k.value for k in call.keywords if "tol" in str(k.arg)}
        if set(tolerances) not in BOTH:
            yield f"name both tolerances: {ast.unparse(call)}"
        for value in tolerances.values():
            if any(v > 1e-3 for v in constants(value, float)) and cell.id not in WIDE:
                yield f"a wide tolerance without a reason: {ast.unparse(call)}"
    tree = ast.parse(cell.source)
    for node in [tree, *calls(cell.source, "print")]:
        numbers = constants(node, float)
        for words in constants(node, str):
            for said in re.findall(r"(?:to|within|below|at) (1e-\d+)", words):
                if numbers and float(said) not in numbers:
                    yield f"{words!r} says {said}, the code does not"


def unmeasured(cell):
    """Yield what a cell prints as if it had been computed."""
    for call in calls(cell.source, "print"):
        for words in constants(call, str):
            if re.search(r"\b(?:True|False)\b|: *[−-]?\d[\d.,]*\s*$", words):
                yield f"{words!r} looks like a result"


@each_notebook
def test_comparisons_say_what_they_let_pass(path):
    cells = code_cells(path)
    faults = [f for cell in cells for f in (*loose(cell), *unmeasured(cell))]
    assert not faults, "\n".join(faults)


# Cells whose outputs nbval does not compare: timings, live training, and a limit that
# only Linux sets.
FREED = {
    "08": "7192f761 abffa085 cb5cf1bc",
    "10": "71bdecf3 57f48817",
    "11": "a8571d09 bec91a02 5abeb343 992ec09a 25309069 cc80eb8d 1c4b6274 speed-cost-2 "
    "1a4a76ea speed-spec-2",
    "13": "20e8c01b 125b5d4f",
}


def is_freed(cell):
    """By nbval's own reading of comments and tags, or by a word that looks like one."""
    by_comment = [*nbval.plugin.find_comment_markers(cell.source)]
    by_tag = [*nbval.plugin.find_metadata_tags(cell.metadata)]
    words = " ".join(cell.metadata.get("tags", [])) + cell.source
    return by_comment or by_tag or re.search(r"(?i)nbval|ignore.output", words)


@each_notebook
def test_no_cell_escapes_the_comparison(path):
    allowed = FREED.get(path.name[:2], "").split() if path in LESSONS else []
    assert [cell.id for cell in code_cells(path) if is_freed(cell)] == allowed


# --- links ------------------------------------------------------------------------

LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]*)[^)]*\)")


def links(cells):
    texts = [cell.source for cell in cells if cell.cell_type == "markdown"]
    return LINK.findall("\n".join(texts))


@each_lesson
def test_the_header_leads_back_home_and_on(path):
    place = LESSONS.index(path)
    beside = [*LESSONS[max(place - 1, 0) : place], *LESSONS[place + 1 : place + 2]]
    around = [other.name for other in beside]
    around.insert(place > 0, "../README.md")
    [header] = [
        line for line in read(path).cells[0].source.splitlines() if "](" in line
    ]
    assert [target for _, target in LINK.findall(header)] == around
    title = {p.name: read(p).cells[0].source.split("\n")[0][2:] for p in LESSONS}
    for words, target in LINK.findall(header):
        assert words.strip("← →") == title.get(target, "Overview")


@each_notebook
def test_a_link_leads_where_its_words_say(path):
    for words, target in links(read(path).cells):
        if "://" in target or target == "../README.md":
            continue
        number = re.search(r"\d+", words)
        here, there = (LESSONS, SOLUTIONS)[:: -1 if path in SOLUTIONS else 1]
        if "/" in target:
            other = there[here.index(path)]
            assert target == f"../{other.parent.name}/{other.name}", words
        if number:
            assert target.rpartition("/")[2].startswith(f"{int(number[0]):02}_"), words
        else:
            assert "/" in target, f"say which lesson: [{words}]({target})"


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda p: p.stem)
def test_solutions_come_in_the_order_of_their_lesson(path):
    lesson = LESSONS[SOLUTIONS.index(path)]
    asked = re.findall(
        r"^### Exercise ([\d.]+) · [^:\n]+: (.+)",
        "\n".join(c.source for c in read(lesson).cells if c.cell_type == "markdown"),
        re.MULTILINE,
    )
    answered = re.findall(
        r"^## ([\d.]+) · (.+)",
        "\n".join(c.source for c in read(path).cells if c.cell_type == "markdown"),
        re.MULTILINE,
    )
    assert answered == asked


# --- headers ----------------------------------------------------------------------


def before_the_exercises(path):
    cells = read(path).cells
    end = next(i for i, c in enumerate(cells) if c.source.startswith("## Exercises"))
    return cells[1:end]


def minutes_to_read(path):
    """At 150 words and 12 lines of code a minute, rounded up to five."""
    words = lines = 0
    for cell in before_the_exercises(path):
        if cell.cell_type == "markdown":
            words += len(re.sub(r"<!--.*?-->", "", cell.source).split())
        else:
            lines += sum(bool(line.strip()) for line in cell.source.splitlines())
    return 5 * math.ceil((words / 150 + lines / 12) / 5)


def header(path, part):
    """What the title cell says behind a bold word."""
    return re.search(
        rf"\*\*{part}\*\* (.+?)(?: · \*\*|$)", read(path).cells[0].source, re.MULTILINE
    )[1]


def needed(path):
    text = header(path, "You need")
    numbers = [int(number) for number in re.findall(r"\d+", text)]
    return {*range(numbers[0], numbers[1] + 1)} if " to " in text else {*numbers}


def imported_from(path):
    """The lessons whose parts a lesson imports: of each part, the latest before it."""
    number, lessons = int(path.name[:2]), set()
    code = "\n".join(c.source for c in code_cells(path))
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module == "gpt_helpers":
            for alias in node.names:
                places = [n for n, _ in TAUGHT.get(alias.name, []) if n < number]
                lessons |= set(places[-1:])
    return lessons


@each_lesson
def test_the_header_says_how_long_it_takes_to_read(path):
    stated = int(re.match(r"\d+", header(path, "Time"))[0])
    assert stated == minutes_to_read(path)


@each_lesson
def test_the_header_names_the_lessons_it_builds_on(path):
    number, stated, used = int(path.name[:2]), needed(path), imported_from(path)
    assert all(0 < lesson < number for lesson in stated)
    known = set(stated)
    for lesson in range(number - 1, 0, -1):
        known |= needed(LESSONS[lesson - 1]) if lesson in known else set()
    assert used <= known, "it imports from more lessons"
    text = "\n".join(cell.source for cell in before_the_exercises(path))
    for lesson in stated - used:
        assert re.search(rf"(?i)lesson {lesson}\b", text), (
            f"lesson {lesson} is not used"
        )


@each_lesson
def test_the_header_names_what_is_built(path):
    number = int(path.name[:2])
    named = set(re.findall(r"`(\w+)`", header(path, "You build")))
    defined = {name for c in code_cells(path) for name in definitions(c.source)}
    new = {name for name, places in TAUGHT.items() if places[0][0] == number}
    assert named <= defined
    assert {name for name in new if not name.isupper()} <= named
