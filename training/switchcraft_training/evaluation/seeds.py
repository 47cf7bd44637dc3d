"""Summary of a sweep: every variant over its seeds, as `sweep.json`, a table and `sweep.html`.

These are the paper's tables over 20 seeds: the seed that is best on validation and the spread of
all seeds (main table and appendix on seed stability), thresholds and drifts (appendix on adaptive
thresholding), and results on datasets that a variant has not been trained on.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import orjson
from matplotlib.ticker import PercentFormatter
from rich.console import Console
from rich.table import Table

from router_service.artifact import Manifest, Measure
from switchcraft_training.config import RunConfig
from switchcraft_training.evaluation.plots import (
    BLUE,
    COLOURS,
    curves_svg,
    new_figure,
    style,
    to_svg,
)
from switchcraft_training.evaluation.report import write_page
from switchcraft_training.models.checkpoints import Epoch

RULES: Final = (
    *("theta=0.5", "theta=0.75"),
    *("drift=0.2", "drift=0.1", "drift=0.01", "drift=0.001"),
)
"""The paper's thresholds and drifts (appendix on adaptive thresholding)."""

VALIDATION: Final = "validation_accuracy"
"""Metric that selects the best seed; only runs with the protocol `split` have it."""


@dataclass(frozen=True, slots=True)
class Point:
    """Accuracy, and mean cost of a query in USD."""

    accuracy: float
    cost_usd: float


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """Results of one run on its test rows; `entrants_on_validation` are on validation rows.

    `rules` are the results of `RULES`, and `datasets` the router's accuracy and number of queries
    of each dataset. `epochs` are those of the run's encoder.
    """

    variant: str
    encoder: str
    seed: int
    folder: str
    metrics: Mapping[str, Measure]
    held_out: tuple[str, ...] = ()
    rules: Mapping[str, Point] = field(default_factory=dict)
    entrants: Mapping[str, Point] = field(default_factory=dict)
    entrants_on_validation: Mapping[str, Point] = field(default_factory=dict)
    datasets: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    epochs: tuple[Epoch, ...] = ()

    @classmethod
    def read(cls, folder: Path, variant: str, config: RunConfig, manifest: Manifest) -> FinishedRun:
        """Read the results of a finished run from its manifest and reports."""
        report = json.loads((folder / "report.json").read_text())
        on_validation = folder / "validation.json"
        entries = [] if not on_validation.exists() else _entries(on_validation)
        by_dataset: dict[str, list[tuple[float, int]]] = defaultdict(list)
        for category in report["sections"]["categories"]:
            dataset, separator, _ = category["name"].partition("/")
            if separator:
                accuracy = category["scores"]["router"]["accuracy"]["value"]
                by_dataset[dataset].append((accuracy, category["n"]))
        datasets = {}
        for dataset, parts in by_dataset.items():
            n = sum(size for _, size in parts)
            datasets[dataset] = (sum(accuracy * size for accuracy, size in parts) / n, n)
        return cls(
            variant=variant,
            encoder=config.encoder.source,
            seed=config.seed,
            folder=folder.name,
            metrics=dict(manifest.metrics),
            held_out=config.evaluation.held_out,
            rules={
                point.policy: Point(point.accuracy.value, point.cost_usd.value)
                for point in manifest.frontier
                if point.policy in RULES
            },
            entrants=dict(_entries(folder / "report.json")),
            entrants_on_validation=dict(entries),
            datasets=datasets,
            epochs=tuple(Epoch.read(values) for values in report["epochs"]),
        )


def _entries(report: Path) -> list[tuple[str, Point]]:
    entries = json.loads(report.read_text())["test"]["entries"]
    return [
        (entry["name"], Point(entry["accuracy"]["value"], entry["cost_usd"]["value"]))
        for entry in entries
    ]


@dataclass(frozen=True, slots=True)
class SeedSpread:
    """A metric over the seeds; `standard_deviation` is the sample's, None for a single seed."""

    mean: float
    standard_deviation: float | None
    lowest: float
    highest: float
    seeds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> SeedSpread:
        """Return the spread of a metric's values, one for each seed."""
        deviation = statistics.stdev(values) if len(values) > 1 else None
        return cls(statistics.fmean(values), deviation, min(values), max(values), len(values))


@dataclass(frozen=True, slots=True)
class PointSpread:
    """Accuracy and cost (USD) over the seeds."""

    accuracy: SeedSpread
    cost_usd: SeedSpread

    @classmethod
    def of(cls, points: Sequence[Point]) -> PointSpread:
        """Return the spread of points, one for each seed."""
        accuracy = SeedSpread.of([point.accuracy for point in points])
        return cls(accuracy, SeedSpread.of([point.cost_usd for point in points]))


@dataclass(frozen=True, slots=True)
class Shift:
    """A variant's results on datasets that it has not been trained on, over its seeds.

    `trained_on` is the accuracy of the first variant without held-out datasets, on its test rows of
    the same datasets; None without such a variant.
    """

    datasets: tuple[str, ...]
    held_out: SeedSpread
    best_single: SeedSpread
    oracle: SeedSpread
    trained_on: SeedSpread | None


@dataclass(frozen=True, slots=True)
class VariantSummary:
    """Results of one variant. `best` is the run with the best seed on validation, if measured.

    `metrics` are those of the manifest. `rules`, `entrants` and `shift` are on test rows, and
    `entrants_on_validation` on validation rows.
    """

    name: str
    encoder: str
    runs: tuple[FinishedRun, ...]
    best: FinishedRun | None
    metrics: Mapping[str, SeedSpread]
    rules: Mapping[str, PointSpread]
    entrants: Mapping[str, PointSpread]
    entrants_on_validation: Mapping[str, PointSpread]
    shift: Shift | None = None


def summarize(runs: Sequence[FinishedRun]) -> tuple[VariantSummary, ...]:
    """Return each variant's best seed on validation and the spread of its results over seeds."""
    by_variant: dict[str, list[FinishedRun]] = {}
    for run in runs:
        by_variant.setdefault(run.variant, []).append(run)
    whole = next((group for group in by_variant.values() if not group[0].held_out), [])
    variants = []
    for name, group in by_variant.items():
        is_validated = all(VALIDATION in run.metrics for run in group)
        variants.append(
            VariantSummary(
                name=name,
                encoder=group[0].encoder,
                runs=tuple(group),
                best=max(group, key=lambda run: run.metrics[VALIDATION].value)
                if is_validated
                else None,
                metrics={
                    metric: SeedSpread.of([run.metrics[metric].value for run in group])
                    for metric in group[0].metrics
                },
                rules=_spreads([run.rules for run in group]),
                entrants=_spreads([run.entrants for run in group]),
                entrants_on_validation=_spreads([run.entrants_on_validation for run in group]),
                shift=_shift(group, whole) if group[0].held_out else None,
            )
        )
    return tuple(variants)


def _spreads(points: Sequence[Mapping[str, Point]]) -> dict[str, PointSpread]:
    """Return the spread of each name that all seeds have."""
    names = [name for name in points[0] if all(name in each for each in points)]
    return {name: PointSpread.of([each[name] for each in points]) for name in names}


def _shift(runs: Sequence[FinishedRun], whole: Sequence[FinishedRun]) -> Shift:
    def spread(metric: str) -> SeedSpread:
        return SeedSpread.of([run.metrics[metric].value for run in runs])

    datasets, trained_on = runs[0].held_out, []
    for run in whole:
        parts = [run.datasets[name] for name in datasets if name in run.datasets]
        if parts:
            n = sum(size for _, size in parts)
            trained_on.append(sum(accuracy * size for accuracy, size in parts) / n)
    return Shift(
        datasets=datasets,
        held_out=spread("default_accuracy"),
        best_single=spread("best_single_accuracy"),
        oracle=spread("oracle_accuracy"),
        trained_on=SeedSpread.of(trained_on) if trained_on else None,
    )


def write_summary(variants: Sequence[VariantSummary], out: Path) -> None:
    """Write `sweep.json` and `sweep.html` to a directory."""
    out.mkdir(parents=True, exist_ok=True)
    values = orjson.dumps(
        {"variants": [asdict(variant) for variant in variants]},
        default=lambda value: value.model_dump(),
        option=orjson.OPT_INDENT_2,
    )
    (out / "sweep.json").write_bytes(values + b"\n")
    if not variants:
        return
    plots = {"seeds": seeds_svg(variants)}
    if all(variant.rules for variant in variants):
        plots["rules"] = rules_svg(variants)
    if runs := [run.epochs for run in variants[0].runs if run.epochs]:
        plots["curves"] = curves_svg(runs)
    write_page(
        "sweep.html.j2",
        out / "sweep.html",
        plots,
        variants=variants,
        rules=RULES,
        metric=VALIDATION,
    )


def print_table(variants: Sequence[VariantSummary], console: Console | None = None) -> None:
    """Print a row for each run, and after each variant's runs their mean ± standard deviation."""
    names = list(next((variant.metrics for variant in variants), ()))
    table = Table("variant", "seed", *(name.replace("_", " ") for name in names))
    for variant in variants:
        for run in variant.runs:
            mark = " (best)" if run is variant.best else ""
            values = (f"{run.metrics[name].value:.4g}" for name in names)
            table.add_row(variant.name, f"{run.seed}{mark}", *values)
        means = []
        for name in names:
            spread = variant.metrics[name]
            deviation = spread.standard_deviation
            shown = "" if deviation is None else f" ± {deviation:.2g}"
            means.append(f"{spread.mean:.4g}{shown}")
        table.add_row(variant.name, "mean", *means)
        table.add_section()
    (console or Console()).print(table)


def seeds_svg(variants: Sequence[VariantSummary]) -> str:
    """Draw the accuracy of every seed, on validation rows if measured, and the mean."""
    with style():
        figure = new_figure(0.9 + 0.5 * len(variants))
        axes = figure.subplots()
        for place, variant in enumerate(reversed(variants)):
            metric = "default_accuracy" if variant.best is None else VALIDATION
            values = [run.metrics[metric].value for run in variant.runs]
            axes.plot(values, [place] * len(values), "o", color=BLUE, alpha=0.6)
            axes.plot(variant.metrics[metric].mean, place, "|", color=COLOURS["router"], ms=18)
            if variant.best is not None:
                best = variant.best.metrics[metric].value
                axes.plot(best, place, "*", color=COLOURS["oracle"], ms=11)
        axes.set_yticks(range(len(variants)), [each.name for each in reversed(variants)])
        axes.set_ylim(-0.6, len(variants) - 0.4)
        axes.set_xlabel("accuracy of each seed; bar: mean; star: best on validation")
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=1))
        axes.grid(visible=True, axis="x")
        return to_svg(figure)


def rules_svg(variants: Sequence[VariantSummary]) -> str:
    """Draw accuracy over cost by rule: every seed as a thin line, the mean with its deviation."""
    with style():
        figure = new_figure(3.4)
        axes = figure.subplots()
        colours = (COLOURS["router"], BLUE, COLOURS["oracle"], COLOURS["baseline"])
        for number, variant in enumerate(variants):
            colour = colours[number % len(colours)]
            for run in variant.runs:
                points = sorted((p.cost_usd * 1e3, p.accuracy) for p in run.rules.values())
                axes.plot(*zip(*points, strict=True), color=colour, alpha=0.15, linewidth=0.8)
            spreads = sorted(variant.rules.values(), key=lambda each: each.cost_usd.mean)
            axes.errorbar(
                [each.cost_usd.mean * 1e3 for each in spreads],
                [each.accuracy.mean for each in spreads],
                yerr=[each.accuracy.standard_deviation or 0 for each in spreads],
                fmt="o-",
                color=colour,
                label=variant.name,
            )
        axes.set(xlabel="USD per 1,000 requests", ylabel="accuracy")
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=1))
        axes.grid(visible=True)
        axes.legend()
        return to_svg(figure)
