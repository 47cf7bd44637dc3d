"""Metrics of a router, with standard errors and 95% intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from router_service.artifact import Measure
from router_service.measurement.statistics import (
    interval_of,
    mean_and_draws,
    mean_measure,
    resamples,
)

Floats = NDArray[np.float64]

CALIBRATION_BINS = 10
CORRECT_FROM = 0.5
"""F1 counts probabilities and labels of at least this value as correct, as with theta=0.5."""


def paired_interval(ours: Floats, theirs: Floats) -> tuple[float, float]:
    """Return the 95% bootstrap interval of mean(ours - theirs) over the same queries (n,)."""
    return interval_of(resamples(len(ours)).means(ours - theirs))


def ratio_interval(ours: Floats, theirs: Floats) -> tuple[float, float] | None:
    """Return the 95% bootstrap interval of mean(ours) / mean(theirs); None if all theirs are 0."""
    if not theirs.any():
        return None
    draws = resamples(len(ours))
    with np.errstate(invalid="ignore", divide="ignore"):
        return interval_of(draws.means(ours) / draws.means(theirs))


def calibration_measure(labels: Floats, probabilities: Floats) -> Measure:
    """Return the expected calibration error (ECE) over all arms, with its standard error.

    It is the mean of |confidence - accuracy| over bins of equal width, weighted by their sizes. The
    standard error is estimated by resampling queries. Unknown labels (NaN) do not count.
    """
    # The ECE sums each bin's |gap| times the bin's share of all predictions. The product is a mean
    # over all predictions: of p - label for those in the bin, and of 0 for the rest.
    which = bin_of(probabilities)
    a_query = (~np.isnan(labels)).sum() / len(labels)
    excess = np.nan_to_num((probabilities - labels) / a_query)
    gaps = np.stack(
        [np.where(which == b, excess, 0).sum(1) for b in range(CALIBRATION_BINS)], axis=1
    )
    drawn = np.abs(resamples(len(labels)).means(gaps)).sum(1)
    value = float(np.abs(gaps.mean(0)).sum())
    return Measure(value=value, stderr=float(drawn.std()), n=len(labels))


def brier_measure(labels: Floats, probabilities: Floats) -> Measure:
    """Return the Brier score: the mean squared difference of probability and label.

    It is the mean over arms, then over queries. Unknown labels (NaN) do not count; each query has
    at least one known label.
    """
    return mean_measure(np.nanmean((probabilities - labels) ** 2, axis=1))


def micro_f1(labels: NDArray[np.floating[Any]], probabilities: Floats) -> float:
    """Return the F1 of all predictions together, for labels and probabilities (n, arms).

    F1 is that of the prediction that an answer is correct, at threshold 0.5. Unknown labels (NaN)
    are ignored, and a share of correct attempts counts as correct from 0.5.
    """
    hits, positives = _f1_counts(labels, probabilities)
    return float(_f1(hits.sum(), positives.sum()))


def macro_f1(labels: NDArray[np.floating[Any]], probabilities: Floats) -> float:
    """Return the mean of the arms' F1, which are computed as in `micro_f1`.

    As usual, F1 is 0 for an arm without true positives, even if it has no positives at all.
    """
    hits, positives = _f1_counts(labels, probabilities)
    return float(_f1(hits.sum(0), positives.sum(0)).mean())


@dataclass(frozen=True, slots=True)
class F1Measures:
    """Micro-F1, macro-F1, and the F1 of each arm."""

    micro: Measure
    macro: Measure
    arms: tuple[Measure, ...]


def f1_measures(labels: Floats, probabilities: Floats) -> F1Measures:
    """Return F1 with standard errors from resampled queries; `micro_f1` explains the arguments."""
    queries, arms = labels.shape
    means = mean_and_draws(*np.hstack(_f1_counts(labels, probabilities)).T)
    hits, positives = means[:arms], means[arms:]
    by_arm = _f1(hits, positives)

    def measure(drawn: Floats) -> Measure:
        return Measure(value=float(drawn[0]), stderr=float(drawn[1:].std()), n=queries)

    return F1Measures(
        micro=measure(_f1(hits.sum(0), positives.sum(0))),
        macro=measure(by_arm.mean(0)),
        arms=tuple(measure(drawn) for drawn in by_arm),
    )


def bin_of(probabilities: Floats) -> NDArray[np.int64]:
    """Return the index of each probability's equal-width bin; the probability 1 is in the last."""
    bins = (probabilities * CALIBRATION_BINS).astype(np.int64)
    return np.minimum(bins, CALIBRATION_BINS - 1)


def _f1_counts(labels: NDArray[np.floating[Any]], probabilities: Floats) -> tuple[Floats, Floats]:
    """Return whether each prediction is a true positive, and how many positives it has: (n, arms).

    A prediction has two positives if it is predicted and labelled as correct.
    """
    predicted = (probabilities >= CORRECT_FROM) & ~np.isnan(labels)
    correct = labels >= CORRECT_FROM
    return (predicted & correct).astype(np.float64), predicted.astype(np.float64) + correct


def _f1(hits: Floats, positives: Floats) -> Floats:
    """Return F1: twice the true positives, divided by predicted plus actual positives; or 0."""
    return np.divide(2 * hits, positives, out=np.zeros_like(positives), where=positives > 0)
