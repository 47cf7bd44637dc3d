"""Stability of results across seeds, folds and inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from router_service.artifact import Measure
from router_service.measurement.rules import Bench, Entry, best_single, oracle, route
from router_service.measurement.statistics import auc_measure, mean_measure
from switchcraft_training.evaluation.evaluate import Entrant, Experiment, Run
from switchcraft_training.evaluation.metrics import paired_interval, ratio_interval

SHIPPED = "as it ships"
"""Name of the router without changes, in the report's table of variants."""


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One run's results under the default policy, and its best single model and oracle."""

    name: str
    router: Entry
    auc: Measure
    best_single: str
    best_single_accuracy: Measure
    oracle_accuracy: Measure


@dataclass(frozen=True, slots=True)
class Spread:
    """Variation of a metric between runs; `std` is the sample standard deviation, 0 for one run."""

    mean: float
    std: float
    lowest: float
    highest: float


@dataclass(frozen=True, slots=True)
class Stability:
    """Results of several runs, and how much each metric varies between them."""

    runs: tuple[RunFigures, ...]
    spread: dict[str, Spread]


@dataclass(frozen=True, slots=True)
class Ablation:
    """Results of a variant of the router's input or branches, compared with the shipped router."""

    name: str
    accuracy: Measure
    cost_usd: Measure
    auc: Measure | None
    difference: float
    difference_interval: tuple[float, float]
    cost_ratio: float
    cost_ratio_interval: tuple[float, float] | None


def stability(runs: Sequence[Run], rule: str) -> Stability | None:
    """Return the results of runs under one rule, and their spread.

    Return None if there are fewer than two runs.
    """
    if len(runs) < 2:
        return None
    figures = []
    for run in runs:
        table = run.table
        chosen = route(run.probabilities, run.expected_costs_usd, rule)
        best = best_single(table)
        own = RunFigures(
            name=run.name,
            router=Bench.of(table).measure("router", rule, *table.pick(chosen)),
            auc=auc_measure(table.correct, run.probabilities),
            best_single=table.arms[best],
            best_single_accuracy=mean_measure(table.correct[:, best]),
            oracle_accuracy=mean_measure(table.pick(oracle(table))[0]),
        )
        figures.append(own)
    return Stability(
        runs=tuple(figures),
        spread={
            "accuracy": _spread([run.router.accuracy.value for run in figures]),
            "cost_usd": _spread([run.router.cost_usd.value for run in figures]),
            "cost_share": _spread([run.router.cost_share for run in figures]),
            "difference": _spread([run.router.difference for run in figures]),
            "auc": _spread([run.auc.value for run in figures]),
        },
    )


def _spread(values: Sequence[float]) -> Spread:
    std = float(np.std(values, ddof=1))
    return Spread(float(np.mean(values)), std, float(min(values)), float(max(values)))


def folds(experiment: Experiment) -> tuple[Run, ...]:
    """Return one run per fold of the experiment; empty if the experiment has no folds."""
    costs_usd = np.asarray(experiment.expected_costs_usd)
    runs = []
    for fold in np.unique(experiment.table.folds):
        if fold < 0:
            continue
        rows = experiment.table.folds == fold
        run = Run(
            name=f"fold {int(fold) + 1}",
            table=experiment.table.take(rows),
            probabilities=experiment.probabilities[rows],
            expected_costs_usd=costs_usd if costs_usd.ndim == 1 else costs_usd[rows],
        )
        runs.append(run)
    return tuple(runs)


def ablation(experiment: Experiment) -> tuple[Ablation, ...]:
    """Return the results of the shipped router, then of each variant; empty without variants."""
    if not experiment.variants:
        return ()
    table = experiment.table
    shipped = Entrant("router", SHIPPED, experiment.chosen(), experiment.probabilities)
    shipped_correct, shipped_paid = table.pick(shipped.choices)
    rows = []
    for variant in (shipped, *experiment.variants):
        correct, paid = table.pick(variant.choices)
        predicted = variant.probabilities
        row = Ablation(
            name=variant.name,
            accuracy=mean_measure(correct),
            cost_usd=mean_measure(paid),
            auc=None if predicted is None else auc_measure(table.correct, predicted),
            difference=float((correct - shipped_correct).mean()),
            difference_interval=paired_interval(correct, shipped_correct),
            cost_ratio=float(paid.mean() / shipped_paid.mean()),
            cost_ratio_interval=ratio_interval(paid, shipped_paid),
        )
        rows.append(row)
    return tuple(rows)
