"""Mistakes as edits of the right source: how they are read, made and combined."""

import functools
import inspect
import itertools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

Edit = tuple[str, str]


@dataclass(frozen=True)
class Slip:
    """One way to spoil the source, and what to say of it."""

    message: str
    edits: tuple[Edit, ...]
    usual: bool = True
    given: bool = False  # the bug that the learner is given to find


def read_slips(page: str) -> list[Slip]:
    """The slips of a page, as the docstring of ``engine.py`` describes it."""
    slips, ways, words, usual = [], [], [], True
    for line in [*page.strip("\n").splitlines(), "---"]:
        if line.startswith((" ", "→", ";")) or not line.strip():
            if line.startswith(("→", ";")):
                ways[-1] += " " + line
            elif line.strip() and not (ways and line.startswith("    ")):
                raise ValueError(f"{line!r} is neither an edit nor the words of one")
            else:
                words += line.split()
            continue
        if words:
            slips += [slip_of(way, " ".join(words), usual) for way in ways]
            ways, words = [], []
        if line == "---":
            usual = False
        else:
            ways.append(line)
    if ways:
        raise ValueError(f"nothing is said of the edit {ways[-1]!r}")
    return slips


def slip_of(way: str, message: str, usual: bool) -> Slip:
    given = way.startswith("given: ")
    edits = []
    for edit in way.removeprefix("given: ").split(" ; "):
        old, arrow, new = edit.partition("→")
        if not (arrow and old.strip()):
            raise ValueError(f"{edit!r} is no edit: write `old → new`")
        edits.append((old.strip(), new.strip()))
    return Slip(message, tuple(edits), usual, given)


@functools.cache
def source_of(answer) -> str:
    """The source of a function or class, without what stands above it."""
    lines = inspect.getsource(answer).splitlines(keepends=True)
    starts = [i for i, line in enumerate(lines) if line.startswith(("def ", "class "))]
    return "".join(lines[starts[0] :])


def edited(source: str, edits: tuple[Edit, ...]) -> str | None:
    """The source with the edits made, the longest first; None if one has no place."""
    for old, new in sorted(edits, key=lambda edit: -len(edit[0])):
        places = r"\n[ ]*".join(re.escape(line.strip()) for line in old.split("⏎"))
        made, count = re.subn(places, lambda m, new=new: at_place(m, new), source)
        if count == 0:
            return None
        source = made
    return source


def at_place(match: re.Match, new: str) -> str:
    """The new snippet; its further lines are indented as the one it stands in."""
    line = match.string[match.string.rfind("\n", 0, match.start()) + 1 :]
    indent = "\n" + " " * (len(line) - len(line.lstrip(" ")))
    return re.sub(r"[ ]*⏎", lambda _: indent, new)


def run_source(source: str, original):
    """What the edited source defines, under the names of the original's file."""
    names = dict(sys.modules[original.__module__].__dict__)
    exec(compile(source, f"<edited {original.__name__}>", "exec"), names)  # noqa: S102 - our own
    return names[original.__name__]


def groups(slips: list[Slip], together: int, usual_only: bool) -> Iterator[tuple]:
    """Which slips may come together: those that are said of differently."""
    if usual_only:
        slips = [slip for slip in slips if slip.usual]
    for group in itertools.combinations(slips, together):
        messages = {slip.message for slip in group}
        places = [old for slip in group for old, _ in slip.edits]
        if len(messages) == together and len(set(places)) == len(places):
            yield group


def first_sentence(message: str) -> str:
    return re.split(r"(?<=[.?])\s+(?=[A-Z`(])", message, maxsplit=1)[0]


def joined(group: tuple[Slip, ...]) -> str:
    """What is said of slips that come together."""
    if len(group) == 1:
        return group[0].message
    opening = ["Two", "Three"][len(group) - 2] + " things at once. "
    return opening + " ".join(first_sentence(slip.message) for slip in group)
