"""Give every figure of a notebook a text form of what it plots.

nbval never compares pictures. While the tests run, or outputs are recorded, the
kernel calls ``register``, and each figure then carries beside its PNG the numbers,
labels and titles it was drawn from, under a MIME type that no viewer shows, and what
its cell asserts of them. ``record`` adds a digest of both to the output's metadata.
"""

import ast
import hashlib
import sys

import numpy as np
from IPython import get_ipython
from IPython.core.formatters import BaseFormatter
from traitlets import Unicode

MIME = "text/x-plot-data"
MOST_POINTS = 60
running = [""]  # the code of the cell that runs; nbval keeps no history


def numbers(values, scale: str = "linear") -> str:
    """The values as fractions of the largest, so that noise near 0 reads as 0."""
    values = np.ma.filled(np.ma.asarray(values, dtype=float), np.nan).ravel()
    if scale == "log":
        values = np.log10(np.maximum(values, 1e-300))
    values = values[:: max(1, -(-len(values) // MOST_POINTS))]
    finite = values[np.isfinite(values)]
    largest = float(np.abs(finite).max()) if finite.size and finite.any() else 1.0
    shares = " ".join(f"{value:.3f}" for value in values / largest)
    return f"{largest:.3e} × ({shares})"


LOOKS = "color", "alpha", "linewidth", "fontsize", "ha", "va", "rotation"


def look(artist) -> str:
    """What can hide or move an artist, beside its place: color, size, alignment."""
    getters = [getattr(artist, f"get_{name}", lambda: "") for name in LOOKS]
    shown = "" if artist.get_visible() else "hidden"
    return " ".join([shown, *(str(getter()) for getter in getters)])


def describe_axes(ax):
    yield f"axes {ax.get_title('left')}{ax.get_title()} / {ax.get_title('right')}"
    yield f"labels {ax.get_xlabel()} / {ax.get_ylabel()}"
    for words in (ax.title, ax.xaxis.label, ax.yaxis.label):
        yield f"  {look(words)}"
    yield f"  {'frame and ticks' if ax.axison else 'neither frame nor ticks'}"
    x_scale, y_scale = ax.get_xscale(), ax.get_yscale()
    yield f"scales {x_scale} {y_scale}"
    for name, low_high, axis in (
        ("x", ax.get_xlim(), ax.xaxis),
        ("y", ax.get_ylim(), ax.yaxis),
    ):
        inside = [t for t in axis.get_ticklocs() if min(low_high) <= t <= max(low_high)]
        yield f"{name} from, to, ticks {numbers([*low_high, *inside], axis.get_scale())}"
    for line in ax.lines:
        yield f"line {look(line)} {line.get_linestyle()} {line.get_marker()}"
        yield f"  x {numbers(line.get_xdata(orig=False), x_scale)}"
        yield f"  y {numbers(line.get_ydata(orig=False), y_scale)}"
    for patch in ax.patches:
        box = patch.get_path().transformed(patch.get_patch_transform()).get_extents()
        yield f"patch {patch.get_facecolor()} {look(patch)} {numbers(box.bounds)}"
    for collection in ax.collections:
        for path in collection.get_paths()[:3]:
            yield f"collection {look(collection)} {numbers(path.vertices)}"
        yield f"  at {numbers(collection.get_offsets())}"
    for image in ax.images:
        where = numbers([*image.get_extent(), *image.get_clim()])
        yield f"image {image.get_cmap().name} {look(image)} {where}"
        yield f"  {numbers(image.get_array())}"
    words = [text for text in ax.texts if text.get_text()]
    labels = [*words, *ax.get_xticklabels(), *ax.get_yticklabels()]
    yield "texts " + " | ".join(text.get_text() for text in labels if text.get_text())
    for text in words:
        x, y = text.get_position()
        yield f"  {look(text)} at {numbers(x, x_scale)} {numbers(y, y_scale)}"
    if ax.get_legend():
        yield "legend " + " | ".join(t.get_text() for t in ax.get_legend().get_texts())


def claims(cell: str):
    """The assertions of a cell that draws: what its title says of the data."""
    for node in ast.walk(ast.parse(cell)):
        if isinstance(node, ast.Assert):
            yield f"claim {ast.unparse(node.test)}"


def describe_figure(figure, cell: str = "") -> str:
    title = [f"figure {figure.get_suptitle()}"] if figure.get_suptitle() else []
    axes = [line for ax in figure.axes for line in describe_axes(ax)]
    return "\n".join([*title, *axes, *claims(cell)])


def digest(data) -> str:
    """Ties a stored picture to the plot data beside it."""
    return hashlib.sha256((data[MIME] + data["image/png"]).encode()).hexdigest()[:16]


class PlotDataFormatter(BaseFormatter):
    format_type = Unicode(MIME)

    def __call__(self, shown):
        # By hand, since matplotlib's inline backend unregisters figures everywhere.
        matplotlib_figure = sys.modules.get("matplotlib.figure")
        if matplotlib_figure and isinstance(shown, matplotlib_figure.Figure):
            return describe_figure(shown, running[-1])


def note(info) -> None:
    running[-1] = info.raw_cell


def register() -> None:
    get_ipython().events.register("pre_run_cell", note)
    get_ipython().display_formatter.formatters[MIME] = PlotDataFormatter()
