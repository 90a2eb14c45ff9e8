"""Give every figure of a notebook a text form of what it plots.

nbval never compares pictures. While the tests run, or outputs are recorded, the
kernel calls ``register``, and each figure then carries beside its PNG the numbers,
labels and titles it was drawn from, under a MIME type that no viewer shows.
"""

import sys

import numpy as np
from IPython import get_ipython
from IPython.core.formatters import BaseFormatter
from traitlets import Unicode

MIME = "text/x-plot-data"
MOST_POINTS = 60


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


def describe_axes(ax):
    yield f"axes {ax.get_title('left')}{ax.get_title()} / {ax.get_title('right')}"
    yield f"labels {ax.get_xlabel()} / {ax.get_ylabel()}"
    x_scale, y_scale = ax.get_xscale(), ax.get_yscale()
    yield f"scales {x_scale} {y_scale}"
    for line in ax.lines:
        yield f"line {line.get_color()} {line.get_linestyle()}"
        yield f"  x {numbers(line.get_xdata(orig=False), x_scale)}"
        yield f"  y {numbers(line.get_ydata(orig=False), y_scale)}"
    for patch in ax.patches:
        box = patch.get_path().transformed(patch.get_patch_transform()).get_extents()
        yield f"patch {patch.get_facecolor()} {numbers(box.bounds)}"
    for collection in ax.collections:
        for path in collection.get_paths()[:3]:
            yield f"collection {numbers(path.vertices)}"
        yield f"  at {numbers(collection.get_offsets())}"
    for image in ax.images:
        yield f"image {image.get_cmap().name} {numbers(image.get_array())}"
    texts = [*ax.texts, *ax.get_xticklabels(), *ax.get_yticklabels()]
    yield "texts " + " | ".join(text.get_text() for text in texts if text.get_text())
    if ax.get_legend():
        yield "legend " + " | ".join(t.get_text() for t in ax.get_legend().get_texts())


def describe_figure(figure) -> str:
    title = [f"figure {figure.get_suptitle()}"] if figure.get_suptitle() else []
    return "\n".join(title + [line for ax in figure.axes for line in describe_axes(ax)])


class PlotDataFormatter(BaseFormatter):
    format_type = Unicode(MIME)

    def __call__(self, shown):
        # By hand, since matplotlib's inline backend unregisters figures everywhere.
        matplotlib_figure = sys.modules.get("matplotlib.figure")
        if matplotlib_figure and isinstance(shown, matplotlib_figure.Figure):
            return describe_figure(shown)


def register() -> None:
    get_ipython().display_formatter.formatters[MIME] = PlotDataFormatter()
