"""Variants of a router: other input, and the router without one of its branches."""

from __future__ import annotations

from dataclasses import dataclass

from router_service.artifact import Measure
from router_service.measurement.statistics import auc_measure, mean_measure
from switchcraft_training.evaluation.evaluate import Entrant, Experiment
from switchcraft_training.evaluation.metrics import paired_interval, ratio_interval

SHIPPED = "as it ships"
"""Name of the router without changes, in the report's table of variants."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Results of a variant of the router's input or branches, compared with the shipped router."""

    name: str
    accuracy: Measure
    cost_usd: Measure
    auc: Measure | None
    difference: float
    difference_interval: tuple[float, float]
    cost_ratio: float
    cost_ratio_interval: tuple[float, float] | None


def compare_variants(experiment: Experiment) -> tuple[Variant, ...]:
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
        row = Variant(
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
