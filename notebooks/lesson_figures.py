"""The drawing of the model that the lessons fill in, one part at a time."""

import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

PARTS = "embeddings", "head", "norm", "feed-forward", "shortcuts", "attention"
BUILT, MISSING, INK = "#0072B2", "#F2F2F2", "#222222"

# (part, label, left edge, width), from the token ids to the logits.
BOXES = (
    ("embeddings", "token +\nposition\nembed-\ndings", 0.0, 0.9),
    ("norm", "norm", 1.55, 0.7),
    ("attention", "atten-\ntion", 2.45, 0.9),
    ("norm", "norm", 4.0, 0.7),
    ("feed-forward", "feed-\nforward", 4.9, 0.9),
    ("norm", "norm", 6.75, 0.7),
    ("head", "output\nhead", 7.65, 0.9),
)
SHORTCUTS = (1.37, 3.62), (3.82, 6.07)  # from before the norm to the sum


def draw_model(*built: str, title: str):
    """Draw GPT-2 from token ids to logits, with the parts in ``built`` filled.

    Raises: ValueError for a part that is not in ``PARTS``.
    """
    for part in built:
        if part not in PARTS:
            raise ValueError(f"no part {part!r}; the parts are {', '.join(PARTS)}")
    _, ax = plt.subplots(figsize=(7, 2.3))
    ax.set(xlim=(-0.75, 9.3), ylim=(-1.2, 1.25), title=title)
    ax.set_axis_off()
    line = {"arrowstyle": "-|>", "color": INK, "linewidth": 1}
    ax.annotate("", (8.7, 0), (-0.15, 0), arrowprops=line, zorder=0)
    frame = {"boxstyle": "round,pad=0,rounding_size=0.1", "linewidth": 1}
    block = FancyBboxPatch((1.17, -0.8), 5.2, 1.95, facecolor="white", edgecolor=INK)
    block.set(boxstyle=frame["boxstyle"], zorder=-1)
    ax.add_patch(block)
    ax.text(3.77, -0.85, "transformer block × 12", ha="center", va="top", fontsize=8)
    for part, label, left, width in BOXES:
        colors = (BUILT, "white") if part in built else (MISSING, "#666666")
        style = "solid" if part in built else "dashed"
        box = FancyBboxPatch((left, -0.55), width, 1.1, **frame, zorder=2)
        box.set(facecolor=colors[0], edgecolor=INK, linestyle=style)
        ax.add_patch(box)
        place = left + width / 2, 0
        ax.text(*place, label, color=colors[1], ha="center", va="center", fontsize=8)
    known = "shortcuts" in built
    color, style = (BUILT, "solid") if known else ("#888888", "dashed")
    for start, end in SHORTCUTS:
        path = [start, start, end, end], [0, 0.85, 0.85, 0.17]
        ax.plot(*path, color=color, linestyle=style, linewidth=2 if known else 1)
        ax.text(end, 0, "+", ha="center", va="center", color=color, zorder=3).set_bbox(
            {"boxstyle": "circle,pad=0.15", "facecolor": "white", "edgecolor": color}
        )
    ax.text(-0.2, 0, "ids", ha="right", va="center", fontsize=8)
    ax.text(8.75, 0, "logits", ha="left", va="center", fontsize=8)
    plt.show()
