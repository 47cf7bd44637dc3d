"""Numbers about a router, each with its standard error."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from router_service.core.artifact import Measure

Floats = NDArray[np.float64]

BOOTSTRAP_DRAWS = 2_000


def mean_measure(values: Floats) -> Measure:
    """Return the mean of one value a query (n,), with its standard error."""
    n = len(values)
    stderr = float(values.std(ddof=1) / np.sqrt(n)) if n > 1 else 0.0
    return Measure(value=float(values.mean()), stderr=stderr, n=n)


def mean_auc(labels: Floats, probabilities: Floats) -> float:
    """Return the area under the ROC curve, averaged over arms with both outcomes; (n, arms).

    NaN where no arm has both.
    """
    scores = [
        roc_auc_score(labels[:, arm], probabilities[:, arm])
        for arm in range(labels.shape[1])
        if len(np.unique(labels[:, arm])) == 2
    ]
    return float(np.mean(scores)) if scores else float("nan")


def auc_measure(labels: Floats, probabilities: Floats, seed: int = 0) -> Measure:
    """Return `mean_auc` with a standard error from resampled queries."""
    rng = np.random.default_rng(seed)
    n = len(labels)
    draws = [rng.integers(0, n, n) for _ in range(BOOTSTRAP_DRAWS // 10)]
    spread = float(np.nanstd([mean_auc(labels[draw], probabilities[draw]) for draw in draws]))
    return Measure(value=mean_auc(labels, probabilities), stderr=spread, n=n)


def expected_calibration_error(labels: Floats, probabilities: Floats, bins: int = 10) -> float:
    """Return the ECE over all arms together: mean |confidence - accuracy| of equal-width bins."""
    flat, truth = probabilities.ravel(), labels.ravel()
    which = np.minimum((flat * bins).astype(int), bins - 1)
    gaps = [
        abs(flat[which == b].mean() - truth[which == b].mean()) * (which == b).mean()
        for b in range(bins)
        if (which == b).any()
    ]
    return float(sum(gaps))


def paired_interval(ours: Floats, theirs: Floats, seed: int = 0) -> tuple[float, float]:
    """Return the 95% bootstrap interval of mean(ours - theirs) over the same queries (n,)."""
    rng = np.random.default_rng(seed)
    difference = ours - theirs
    draws = rng.integers(0, len(difference), (BOOTSTRAP_DRAWS, len(difference)))
    low, high = np.percentile(difference[draws].mean(1), [2.5, 97.5])
    return float(low), float(high)
