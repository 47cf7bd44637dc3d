"""The report's plots as SVG; equal data gives equal bytes."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
from adjustText import adjust_text
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, PercentFormatter

from router_service.measurement.goals import pareto_front
from router_service.measurement.rules import KINDS, Entry, Kind
from switchcraft_training.evaluation.breakdowns import Category
from switchcraft_training.evaluation.calibration import CalibrationFigures
from switchcraft_training.evaluation.evaluate import Evaluation
from switchcraft_training.evaluation.verified import VerifiedFigures

COLOURS: dict[Kind, str] = {
    "single": "#7c8798",
    "baseline": "#8b6fd8",
    "router": "#e2621b",
    "random": "#a3a3a3",
    "oracle": "#2b9a56",
}
MARKERS: dict[Kind, str] = {
    "single": "o",
    "baseline": "D",
    "router": "s",
    "random": "X",
    "oracle": "*",
}
BLUE, RED = "#3b82c4", "#d1495b"
INK = "#010203"
"""Placeholder for the colour of text and axes; `to_svg` replaces it by the page's text colour."""
PAGE = "#040506"
"""Placeholder for the page's background colour, which surrounds the letters of labels."""
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
    """Apply the report's matplotlib style inside a `with` block."""
    with mpl.rc_context(_STYLE):
        yield


def new_figure(height_in: float) -> Figure:
    """Return an empty figure with the page's width."""
    return Figure(figsize=(WIDTH_IN, height_in), layout="constrained", facecolor="none")


def to_svg(figure: Figure) -> str:
    """Return a figure as an SVG element whose text and axes use the page's text colour."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None}, facecolor="none")
    drawing = buffer.getvalue()
    drawing = drawing[drawing.index("<svg") :].replace(INK, "currentColor")
    return drawing.replace(PAGE, "var(--paper)")


def label_points(
    axes: Axes,
    points: Sequence[tuple[float, float]],
    names: Sequence[str],
    avoided: Sequence[tuple[float, float]] = (),
) -> list[Text]:
    """Label points, and move the labels so that none overlaps another label or a point.

    Labels keep away from the points `avoided` too. Lines that they cannot avoid pass behind them.
    """
    halo = [withStroke(linewidth=3, foreground=PAGE)]
    texts = [
        axes.text(x, y, name, fontsize=7.5, path_effects=halo, zorder=9)
        for (x, y), name in zip(points, names, strict=True)
    ]
    obstacles = [*points, *avoided]
    adjust_text(
        texts,
        x=[x for x, _ in obstacles],
        y=[y for _, y in obstacles],
        ax=axes,
        expand=(1.08, 1.5),
        force_text=(0.3, 0.6),
        force_static=(0.2, 0.4),
        iter_lim=400,  # a number of steps, not seconds, so that every machine draws the same
        arrowprops={"arrowstyle": "-", "color": "#8a8a8a", "linewidth": 0.6},
    )
    return texts


USD_PER_1K = "USD per 1,000 requests"


def pareto_svg(evaluation: Evaluation) -> str:
    """Draw accuracy over cost for every entrant and the router's whole sweep."""
    with style():
        figure = new_figure(5.2)
        axes = figure.subplots()
        front = pareto_front(evaluation.sweep)
        _band(axes, front, "router, all rules")
        for kind in KINDS:
            entries = [entry for entry in evaluation.entries if entry.kind == kind]
            if not entries:
                continue
            axes.errorbar(
                [entry.cost_usd.value * 1e3 for entry in entries],
                [entry.accuracy.value for entry in entries],
                xerr=[entry.cost_usd.stderr * 1e3 for entry in entries],
                yerr=[entry.accuracy.stderr for entry in entries],
                fmt=MARKERS[kind],
                markersize=11 if kind == "oracle" else 6.5,
                color=COLOURS[kind],
                elinewidth=0.8,
                label="single model" if kind == "single" else kind,
            )
        _money_axis(axes)
        figure.draw_without_rendering()
        label_points(
            axes,
            [_at(entry) for entry in evaluation.entries],
            [entry.name for entry in evaluation.entries],
            [_at(entry) for entry in front],
        )
        return to_svg(figure)


def verified_svg(figures: VerifiedFigures) -> str:
    """Draw accuracy over cost of verified answers, the router, simpler rules and single models."""
    with style():
        figure = new_figure(5.4)
        axes = figure.subplots()
        frontier = [row.entry for row in figures.frontier]
        _band(axes, frontier, "verified answers, all prices", COLOURS["router"], marker="s")
        _band(axes, pareto_front(figures.once), "router that chooses once", BLUE)
        operating = _at(figures.operating.entry)
        axes.plot(*operating, "o", color=COLOURS["router"], fillstyle="none", markersize=13)
        others = [row.entry for row in figures.others if row.entry.kind in {"baseline", "oracle"}]
        points = [*figures.singles, *others, figures.oracle]
        for entry in points:
            axes.plot(*_at(entry), MARKERS[entry.kind], color=COLOURS[entry.kind], markersize=7)
        _money_axis(axes)
        figure.draw_without_rendering()
        named = [*map(_at, points), operating]
        label_points(axes, named, [*(entry.name for entry in points), "policy verified"])
        return to_svg(figure)


def differences_svg(categories: Sequence[Category]) -> str:
    """Draw the router's cost, and its accuracy minus the best single model's, by category.

    The difference is blue if its whole 95% interval is positive, and red if it is negative.
    """
    places = np.arange(len(categories))[::-1]
    with style():
        figure = new_figure(1.0 + 0.26 * len(categories))
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        left.axvline(0, color=INK, linewidth=0.8, linestyle=":")
        for place, category in zip(places.tolist(), categories, strict=True):
            low, high = category.difference_interval
            colour = "#7c8798" if low <= 0 <= high else BLUE if low > 0 else RED
            left.plot([low, high], [place, place], color=colour, linewidth=1.6)
            left.plot(category.difference, place, "o", color=colour, markersize=5)
        left.grid(visible=True, axis="x")
        left.set_xlabel("accuracy of router minus best single model, points")
        left.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x * 100:+.0f}"))
        left.set_yticks(places, [f"{c.name}  (n={c.n})" for c in categories])
        costs = [c.scores["router"].cost_usd.value * 1e3 for c in categories]
        right.barh(places, costs, color=COLOURS["router"], height=0.6)
        right.set_xlabel(f"cost of router, {USD_PER_1K}")
        right.grid(visible=True, axis="x")
        return to_svg(figure)


def calibration_svg(calibration: CalibrationFigures) -> str:
    """Draw a reliability diagram, and the number of predictions in each bin."""
    bins = calibration.bins
    middles = [(b.lower + b.upper) / 2 for b in bins]
    with style():
        figure = new_figure(3.6)
        left, right = figure.subplots(1, 2, width_ratios=(1, 1))
        left.plot([0, 1], [0, 1], color=INK, linestyle=":", linewidth=1)
        left.errorbar(
            [b.confidence for b in bins],
            [b.accuracy.value for b in bins],
            yerr=[b.accuracy.stderr * 1.96 for b in bins],
            color=COLOURS["router"],
            marker="o",
            capsize=2,
            linewidth=1.4,
        )
        left.set(
            xlabel="predicted probability",
            ylabel="share of correct answers",
            xlim=(0, 1),
            ylim=(0, 1.03),
        )
        left.grid(visible=True)
        right.bar(middles, [b.accuracy.n for b in bins], width=0.09, color="#7c8798")
        right.set(xlabel="predicted probability", ylabel="number of predictions", xlim=(0, 1))
        right.grid(visible=True, axis="y")
        return to_svg(figure)


def _band(
    axes: Axes,
    entries: Sequence[Entry],
    label: str,
    colour: str = COLOURS["router"],
    marker: str = "",
) -> None:
    """Draw a line through entries, with a band of one standard error."""
    costs = np.array([entry.cost_usd.value * 1e3 for entry in entries])
    middle = np.array([entry.accuracy.value for entry in entries])
    error = np.array([entry.accuracy.stderr for entry in entries])
    axes.plot(costs, middle, color=colour, linewidth=1.4, marker=marker, markersize=4, label=label)
    axes.fill_between(costs, middle - error, middle + error, color=colour, alpha=0.13, linewidth=0)


def _money_axis(axes: Axes) -> None:
    """Prepare the axes and the legend of a plot of accuracy, in percent, over cost."""
    axes.set_ylabel("accuracy")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.legend(loc="lower right")
    axes.set_xscale("log")
    axes.set_xlabel(f"{USD_PER_1K} (log scale); bars and bands are one standard error")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda usd, _: f"{usd:g}"))
    # Within one or two decades, major ticks alone are too few.
    minor = FuncFormatter(lambda usd, _: f"{usd:g}" if f"{usd:e}"[0] in "25" else "")
    axes.xaxis.set_minor_formatter(minor)
    axes.grid(visible=True)
    axes.margins(x=0.1, y=0.1)


def _at(entry: Entry) -> tuple[float, float]:
    return entry.cost_usd.value * 1e3, entry.accuracy.value
