"""The report's plots as SVG; equal data gives equal bytes."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import matplotlib as mpl
import numpy as np
from adjustText import adjust_text
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from router_service.measurement.goals import pareto_front
from router_service.measurement.rules import KINDS, Entry, Kind
from switchcraft_training.data.table import Floats
from switchcraft_training.evaluation.breakdowns import (
    LEVELS,
    AttemptShares,
    Category,
    Confusion,
    TokenUse,
)
from switchcraft_training.evaluation.calibration import CalibrationFigures
from switchcraft_training.evaluation.evaluate import Evaluation
from switchcraft_training.evaluation.verified import VerifiedFigures
from switchcraft_training.models.checkpoints import Epoch

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
BLUE, RED, GREY = "#3b82c4", "#d1495b", "#9aa3af"
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
    drawing = drawing[drawing.index("<svg") :].replace(INK, "currentColor")
    return drawing.replace(PAGE, "var(--page)")


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
_KIND_NAMES: dict[Kind, str] = {
    "single": "single model",
    "heuristic": "heuristic",
    "baseline": "baseline",
    "router": "router",
    "random": "random",
    "oracle": "oracle",
}
_COUNTS = LinearSegmentedColormap.from_list("counts", ["#eef2f7", "#3b82c4", "#1b3a5c"])


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
                label=_KIND_NAMES[kind],
            )
        _money_axis(axes)
        axes.margins(x=0.1, y=0.1)
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
        axes.margins(x=0.1, y=0.1)
        figure.draw_without_rendering()
        named = [*map(_at, points), operating]
        label_points(axes, named, [*(entry.name for entry in points), "policy verified"])
        return to_svg(figure)


def differences_svg(categories: Sequence[Category]) -> str:
    """Draw the router's cost, and its accuracy minus the best single model's, by category."""
    places = np.arange(len(categories))[::-1]
    with style():
        figure = new_figure(1.0 + 0.26 * len(categories))
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        _intervals(
            left,
            places,
            [c.difference for c in categories],
            [c.difference_interval for c in categories],
        )
        left.set_xlabel("accuracy of router minus best single model, points")
        left.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x * 100:+.0f}"))
        left.set_yticks(places, [f"{c.name}  (n={c.n})" for c in categories])
        costs = [c.scores["router"].cost_usd.value * 1e3 for c in categories]
        right.barh(places, costs, color=COLOURS["router"], height=0.6)
        right.set_xlabel(f"cost of router, {USD_PER_1K}")
        right.grid(visible=True, axis="x")
        return to_svg(figure)


def confusion_svg(confusion: Confusion) -> str:
    """Draw the router's choices against the oracle's, for all queries and, if any, lost ones."""
    with style():
        figure = new_figure(1.8 + 0.32 * len(confusion.arms))
        titled = [("all queries", confusion.queries)]
        if confusion.has_lost:
            titled.append(("wrong choices", confusion.lost))
        panels = figure.subplots(1, len(titled), sharey=True, squeeze=False)[0]
        for axes, (title, rows) in zip(panels, titled, strict=True):
            table = np.array(rows)
            # The square root keeps a few large cells from hiding the small ones.
            axes.imshow(np.sqrt(table), cmap=_COUNTS, aspect="auto")
            texts = [[f"{value:.0f}" if value >= 0.5 else "" for value in row] for row in table]
            _cells(axes, np.sqrt(table), texts)
            _names(axes, confusion.arms, confusion.arms)
            axes.xaxis.tick_top()
            axes.set_xlabel(f"oracle's choice ({title}, n={table.sum():.0f})")
            axes.tick_params(length=0)
        panels[0].set_ylabel("router's choice")
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


def tokens_svg(uses: Sequence[TokenUse]) -> str:
    """Draw each arm's cost of input and output, and its actual cost divided by expected cost."""
    places = np.arange(len(uses))[::-1]
    with style():
        figure = new_figure(1.1 + 0.3 * len(uses))
        left, right = figure.subplots(1, 2, sharey=True)
        paid_in = np.array([use.input_cost_usd for use in uses]) * 1e3
        paid_out = np.array([use.output_cost_usd for use in uses]) * 1e3
        left.barh(places, paid_in, color=BLUE, height=0.6, label="input")
        left.barh(
            places, paid_out, left=paid_in, color=COLOURS["router"], height=0.6, label="output"
        )
        left.set_yticks(places, [use.arm for use in uses])
        left.set_xlabel(USD_PER_1K)
        left.grid(visible=True, axis="x")
        left.legend(loc="lower right", bbox_to_anchor=(1, 0.5))
        known = [(p, u.chattiness) for p, u in zip(places, uses, strict=True)]
        shown = [(place, ratio) for place, ratio in known if ratio is not None]
        _intervals(
            right,
            np.array([place for place, _ in shown]),
            [ratio.value for _, ratio in shown],
            [ratio.interval for _, ratio in shown],
            centre=1.0,
            is_more_better=False,
        )
        right.set_xlabel("chattiness: cost / cost with average output")
        return to_svg(figure)


def repeated_svg(groups: Sequence[AttemptShares]) -> str:
    """Draw a histogram of the share of correct answers to a query for each group."""
    columns = 4
    rows = -(-len(groups) // columns)
    with style():
        figure = new_figure(0.6 + 1.25 * rows)
        axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
        for axis, group in zip_longest(axes, groups):
            if group is None:
                axis.set_visible(False)
                continue
            axis.bar(np.arange(LEVELS + 1) / LEVELS, group.shares, width=0.9 / LEVELS, color=BLUE)
            axis.set_title(group.name, fontsize=8)
            axis.text(0.5, 0.9, f"mid {group.mid.value:.0%}", fontsize=8, ha="center", va="top",
                      transform=axis.transAxes)  # fmt: skip
            axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
            axis.grid(visible=True, axis="y")
        for axis in axes[: len(groups)][-columns:]:  # the lowest of each column
            axis.tick_params(labelbottom=True)
        axes[0].set_ylim(0, 1)
        figure.supxlabel("share of a model's answers to a query that are correct", fontsize=9)
        figure.supylabel("queries", fontsize=9)
        return to_svg(figure)


def curves_svg(runs: Sequence[Sequence[Epoch]]) -> str:
    """Draw the losses and the validation F1 by epoch of every run, and their means.

    A mean is over the runs that are still training (paper, appendix on fine-tuning curves). Without
    validation rows, only the training loss is drawn.
    """
    losses = {"train_loss": ("training", GREY), "loss": ("validation", COLOURS["router"])}
    scores = {"micro_f1": ("micro-F1", COLOURS["router"]), "macro_f1": ("macro-F1", BLUE)}
    panels = [("cross-entropy", losses), ("validation F1", scores)]
    if all(math.isnan(epoch.loss) for run in runs for epoch in run):
        panels = [("cross-entropy", {"train_loss": losses["train_loss"]})]
    with style():
        figure = new_figure(2.8)
        for axes, (label, lines) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            for name, (shown, colour) in lines.items():
                curves = [[getattr(epoch, name) for epoch in run] for run in runs]
                for curve in curves:
                    axes.plot(range(1, len(curve) + 1), curve, color=colour, alpha=0.2, lw=0.8)
                means = np.nanmean(list(zip_longest(*curves, fillvalue=np.nan)), axis=1)
                axes.plot(range(1, len(means) + 1), means, color=colour, lw=1.6, label=shown)
            axes.set(xlabel="epoch", ylabel=label)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.grid(visible=True)
            axes.legend()
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


def _money_axis(axes: Axes, decimals: int = 0) -> None:
    """Prepare the axes and the legend of a plot of accuracy, in percent, over cost."""
    axes.set_ylabel("accuracy")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=decimals))
    axes.legend(loc="lower right")
    axes.set_xscale("log")
    axes.set_xlabel(f"{USD_PER_1K} (log scale); bars and bands are one standard error")
    dollars = FuncFormatter(lambda usd, _: f"{usd:g}")
    axes.xaxis.set_major_formatter(dollars)
    low, high = axes.get_xlim()
    if high < 10 * low:  # within one decade, major ticks alone are too few
        axes.xaxis.set_minor_formatter(dollars)
    axes.grid(visible=True)


def _intervals(
    axes: Axes,
    places: Floats | np.ndarray[tuple[int], np.dtype[np.int64]],
    values: Sequence[float],
    intervals: Sequence[tuple[float, float]],
    centre: float = 0.0,
    *,
    is_more_better: bool = True,
) -> None:
    """Draw values with 95% intervals.

    The colour is blue if the whole interval is better than `centre`, red if it is worse, else grey.
    """
    above, below = (BLUE, RED) if is_more_better else (RED, BLUE)
    axes.axvline(centre, color=INK, linewidth=0.8, linestyle=":")
    for place, value, (low, high) in zip(places.tolist(), values, intervals, strict=True):
        colour = "#7c8798" if low <= centre <= high else above if low > centre else below
        axes.plot([low, high], [place, place], color=colour, linewidth=1.6)
        axes.plot(value, place, "o", color=colour, markersize=5)
    axes.grid(visible=True, axis="x")


def _cells(axes: Axes, table: Floats, texts: Sequence[Sequence[str]]) -> None:
    """Write a text into each cell of a heat map, dark on light cells and white on dark cells."""
    image = axes.images[0]
    colours = np.asarray(image.cmap(np.asarray(image.norm(table))))
    luminance = colours[..., :3] @ np.array([0.2126, 0.7152, 0.0722])
    for row, line in enumerate(texts):
        for column, text in enumerate(line):
            colour = "#111827" if luminance[row, column] > 0.45 else "#ffffff"
            axes.text(column, row, text, ha="center", va="center", fontsize=7.5, color=colour)


def _names(axes: Axes, columns: Sequence[str], rows: Sequence[str]) -> None:
    axes.set_xticks(range(len(columns)), columns, rotation=35, ha="left", rotation_mode="anchor")
    axes.set_yticks(range(len(rows)), rows)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _at(entry: Entry) -> tuple[float, float]:
    return entry.cost_usd.value * 1e3, entry.accuracy.value
