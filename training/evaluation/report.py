"""An evaluation as `report.json`, and as one self-contained `report.html`."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import matplotlib as mpl
from jinja2 import Environment, FileSystemLoader, select_autoescape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from router_service.core.artifact import FrontierPoint, Measure, Provenance
from training.evaluation.evaluate import Entry, Evaluation
from training.finetune.loop import Epoch

COLOURS = {"single": "#6b7280", "router": "#c2410c", "oracle": "#15803d"}


@dataclass(frozen=True, slots=True)
class Report:
    """All that a run has to say for itself."""

    name: str
    split_sizes: Mapping[str, int]
    label_rates: Mapping[str, Mapping[str, float]]
    epochs: tuple[Epoch, ...]
    validation: Evaluation
    test: Evaluation
    parity: Mapping[str, float]
    provenance: Provenance


def write_report(report: Report, directory: Path) -> None:
    """Write `report.json` and `report.html` into a directory."""
    values = json.loads(json.dumps(asdict(report), default=_plain))
    (directory / "report.json").write_text(json.dumps(values, indent=2) + "\n")
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=select_autoescape(default=True),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=_percent, dollars=_dollars, points=_points)
    page = environment.get_template("report.html.j2").render(
        report=report, pareto=pareto_svg(report.test), curves=curves_svg(report.epochs)
    )
    (directory / "report.html").write_text(page)


def pareto_svg(evaluation: Evaluation) -> str:
    """Draw accuracy over cost: single models, the router's frontier and policies, the oracle."""
    figure = Figure(figsize=(9.5, 4.8), layout="constrained")
    axes = figure.subplots()
    frontier = pareto_front(evaluation.frontier)
    axes.plot(
        [point.cost_usd.value * 1e3 for point in frontier],
        [point.accuracy.value * 100 for point in frontier],
        color=COLOURS["router"],
        alpha=0.5,
        label="router, all policies",
    )
    by_cost = sorted(evaluation.entries, key=lambda entry: entry.cost_usd.value)
    for index, entry in enumerate(by_cost):
        # Neighbours in cost have their names above and below in turn.
        _draw_entry(axes, entry, above=index % 2 == 0)
    axes.set_xscale("log")
    axes.margins(x=0.16, y=0.12)
    axes.set_xlabel("USD per 1,000 requests (log scale)")
    axes.set_ylabel("accuracy, %")
    axes.grid(visible=True, alpha=0.25)
    axes.legend(loc="lower right", frameon=False)
    return _svg(figure)


def pareto_front(points: Sequence[FrontierPoint]) -> list[FrontierPoint]:
    """Return the points that no cheaper point matches, by rising cost."""
    front: list[FrontierPoint] = []
    for point in sorted(points, key=lambda p: (p.cost_usd.value, -p.accuracy.value)):
        if not front or point.accuracy.value > front[-1].accuracy.value:
            front.append(point)
    return front


def curves_svg(epochs: Sequence[Epoch]) -> str:
    """Draw the losses of training and validation by epoch."""
    figure = Figure(figsize=(9.5, 2.8), layout="constrained")
    axes = figure.subplots()
    numbers = [epoch.number for epoch in epochs]
    axes.plot(numbers, [epoch.train_loss for epoch in epochs], label="training", color="#6b7280")
    axes.plot(numbers, [epoch.loss for epoch in epochs], label="validation", color="#c2410c")
    axes.set_xlabel("epoch")
    axes.set_ylabel("cross-entropy")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(visible=True, alpha=0.25)
    axes.legend(frameon=False)
    return _svg(figure)


def _draw_entry(axes: Axes, entry: Entry, *, above: bool) -> None:
    x, y = entry.cost_usd.value * 1e3, entry.accuracy.value * 100
    marker = {"single": "o", "router": "s", "oracle": "*"}[entry.kind]
    axes.errorbar(
        x,
        y,
        yerr=entry.accuracy.stderr * 100,
        marker=marker,
        markersize=9 if entry.kind == "oracle" else 6,
        color=COLOURS[entry.kind],
        elinewidth=0.8,
        alpha=0.9,
    )
    offset = (6, 5 if above else -10)
    axes.annotate(entry.name, (x, y), textcoords="offset points", xytext=offset, fontsize=7)


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    # A fixed salt and no date: the same numbers draw the same bytes.
    with mpl.rc_context({"svg.hashsalt": "switchcraft"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    drawing = buffer.getvalue()
    return drawing[drawing.index("<svg") :]


def _plain(value: object) -> object:
    if isinstance(value, Measure | FrontierPoint | Provenance):
        return value.model_dump(mode="json")
    raise TypeError(f"no JSON for {type(value).__name__}")


def _percent(value: float) -> str:
    return f"{value * 100:.1f}"


def _dollars(value: float) -> str:
    return f"{value * 1000:.3f}"


def _points(value: float) -> str:
    return f"{value * 100:+.1f}"
