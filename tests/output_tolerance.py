"""A pytest plugin: nbval compares outputs, but a last digit may differ.

Processors round differently. Of the text that a cell prints, a decimal with three
or more places may differ by one unit of its last place, or by 1e-5 of its size; all
else, integers and shorter decimals too, must be the same.
"""

import os
import re
from decimal import Decimal
from itertools import zip_longest

import pytest
from nbval.plugin import IPyNbCell, IPyNbFile

from clean_kernel import KERNEL_SETUP, check_setup, clean_environment
from plot_data import MIME as PLOT_DATA
from stored_notebooks import COPY, refuse_what_was_run

# The files that take longest, by name without suffix, the longest first.
SLOW_FIRST = (
    *("test_many_processes", "13_many_processes", "08_training_tiny_gpt"),
    *("11_speed", "09_rope_and_tied_head"),
    *("test_training", "test_exercises", "10_kv_cache", "06_gpt_model"),
)

# A number that is not part of a word, with the spaces that pad it.
NUMBER = re.compile(r" *((?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?!\w))")
RELATIVE = Decimal("1e-5")


def numbers_agree(stored: str, fresh: str) -> bool:
    """Whether two spellings of a number differ by no more than rounding."""
    if stored == fresh:
        return True
    places = [
        len(s.lower().partition("e")[0].partition(".")[2]) for s in (stored, fresh)
    ]
    if places[0] != places[1] or places[0] < 3:
        return False
    a, b = Decimal(stored), Decimal(fresh)
    last_place = max(Decimal(1).scaleb(n.as_tuple().exponent) for n in (a, b))
    return abs(a - b) <= max(last_place, RELATIVE * max(abs(a), abs(b)))


def lines_agree(stored: str, fresh: str) -> bool:
    """Whether two lines are the same but for the rounding of their numbers."""
    stored_parts, fresh_parts = NUMBER.split(stored), NUMBER.split(fresh)
    return (
        len(stored_parts) == len(fresh_parts)
        and stored_parts[::2] == fresh_parts[::2]
        and all(map(numbers_agree, stored_parts[1::2], fresh_parts[1::2]))
    )


def settle_text(stored: str, fresh: str) -> str:
    """The fresh text, in the stored spelling on every line where the two agree."""
    pairs = zip_longest(stored.split("\n"), fresh.split("\n"))
    lines = [
        old if None not in (old, new) and lines_agree(old, new) else new
        for old, new in pairs
    ]
    return "\n".join(line for line in lines if line is not None)


def settle_outputs(stored: list, fresh: list) -> None:
    """Apply ``settle_text`` to the fresh outputs of one cell, in place."""
    for old, new in zip(stored, fresh, strict=False):
        if old.get("output_type") != new.get("output_type"):
            continue
        if "text" in new:
            new["text"] = settle_text(old["text"], new["text"])
        for mime in ("text/plain", PLOT_DATA):
            if mime in new.get("data", {}) and mime in old.get("data", {}):
                new["data"][mime] = settle_text(old["data"][mime], new["data"][mime])


strict_comparison = IPyNbCell.compare_outputs
start_kernel = IPyNbFile.setup


def compare_outputs(self, test, ref, skip_compare=None):
    settle_outputs(ref, test)
    return strict_comparison(self, test, ref, skip_compare)


def setup(self):
    start_kernel(self)
    set_up = {"silent": True, "store_history": False, "timeout": 60}
    check_setup(self.kernel.kc.execute_interactive(KERNEL_SETUP, **set_up))


@pytest.hookimpl(trylast=True)  # after pytest has chosen its own colors
def pytest_configure(config):
    IPyNbCell.compare_outputs = compare_outputs
    IPyNbFile.setup = setup
    if hasattr(config, "workerinput"):
        os.environ["OMP_NUM_THREADS"] = "1"
    else:
        clean_environment()


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_auto_num_workers():
    """A core each, as far as that helps: the longest lesson is a quarter of the work."""
    return min(4, os.cpu_count() or 1)


def pytest_ignore_collect(collection_path):
    """A learner's copies may hold anything."""
    if COPY.match(collection_path.name):
        return True


def pytest_sessionstart(session):
    if not hasattr(session.config, "workerinput"):
        refuse_what_was_run(session.config.args)


def pytest_collection_modifyitems(items):
    """Put what takes longest first, so that no core waits for it at the end."""
    rank = {name: i for i, name in enumerate(SLOW_FIRST)}
    items.sort(key=lambda item: rank.get(item.path.stem, len(rank)))


def pytest_collection_finish(session):
    # On its first import on a machine matplotlib builds a list of fonts and says so
    # on stderr. Here nobody compares that; in a cell it would count as output.
    if any(isinstance(item, IPyNbCell) for item in session.items):
        import matplotlib.font_manager  # noqa: F401
