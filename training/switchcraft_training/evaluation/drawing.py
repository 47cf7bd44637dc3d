"""Figures as SVG with the page's colours; equal data gives equal bytes."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from adjustText import adjust_text
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from switchcraft_training.evaluation.evaluate import Kind

COLOURS: dict[Kind, str] = {
    "single": "#7c8798",
    "heuristic": "#b7862c",
    "baseline": "#8b6fd8",
    "router": "#e2621b",
    "random": "#a3a3a3",
    "oracle": "#2b9a56",
}
MARKERS: dict[Kind, str] = {
    "single": "o",
    "heuristic": "^",
    "baseline": "D",
    "router": "s",
    "random": "X",
    "oracle": "*",
}
BLUE, RED = "#3b82c4", "#d1495b"
INK = "#010203"
"""Placeholder for the colour of text and axes, which the page's text colour replaces."""
WIDTH_IN = 9.6

_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "switchcraft",
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.labelsize": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "grid.alpha": 0.25,
    "grid.color": "#8a8a8a",
    "grid.linewidth": 0.6,
}


@contextmanager
def style() -> Iterator[None]:
    """Apply the report's style inside the block."""
    with mpl.rc_context():
        mpl.rcParams.update(_STYLE)
        yield


def new_figure(height_in: float) -> Figure:
    """Return an empty figure with the page's width."""
    return Figure(figsize=(WIDTH_IN, height_in), layout="constrained", facecolor="none")


def to_svg(figure: Figure) -> str:
    """Return a figure as an SVG element whose text and axes use the page's text colour."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None}, facecolor="none")
    drawing = buffer.getvalue()
    return drawing[drawing.index("<svg") :].replace(INK, "currentColor")


def label_points(
    axes: Axes, points: Sequence[tuple[float, float]], names: Sequence[str]
) -> list[Text]:
    """Label points, and move the labels so that none overlaps another label or a point."""
    texts = [
        axes.text(x, y, name, fontsize=7.5) for (x, y), name in zip(points, names, strict=True)
    ]
    adjust_text(
        texts,
        x=[x for x, _ in points],
        y=[y for _, y in points],
        ax=axes,
        expand=(1.08, 1.5),
        force_text=(0.3, 0.6),
        force_static=(0.2, 0.4),
        iter_lim=400,  # a number of steps, not seconds, so that every machine draws the same
        arrowprops={"arrowstyle": "-", "color": "#8a8a8a", "linewidth": 0.6},
    )
    return texts
