"""Means, ratios and areas under curves, with standard errors and 95% intervals by resampling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from router_service.artifact import Measure
from router_service.predictor.model import Floats

BOOTSTRAP_DRAWS = 2_000
BOOTSTRAP_BLOCKS = 4_096
"""Largest number of units that a bootstrap draws; more queries are drawn in random blocks.

Block sums of independent queries have the same variance as the queries themselves, and 4,096 of
them give standard errors within about 1%. Draws of 150,000 single queries would need 2.4 GB.
"""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its standard error and 95% interval, estimated by resampling queries."""

    value: float
    stderr: float
    interval: tuple[float, float]
    n: int


def mean_measure(values: Floats) -> Measure:
    """Return the mean of one value per query, (n,), with its standard error."""
    n = len(values)
    stderr = float(values.std(ddof=1) / np.sqrt(n)) if n > 1 else 0.0
    return Measure(value=float(values.mean()), stderr=stderr, n=n)


@dataclass(frozen=True, slots=True, eq=False)
class Resamples:
    """Bootstrap draws of n queries, as weights.

    `weights`, (draws, blocks), are those of each query of a block; a draw's weights sum to 1 over
    all queries. `blocks`, (n,), is the block of each query, or None if each query is its own block.
    """

    weights: Floats
    blocks: NDArray[np.int64] | None

    def means(self, values: Floats) -> Floats:
        """Return the means of `values`, (n, ...), in each draw: (draws, ...)."""
        if self.blocks is not None:
            columns = values.reshape(len(values), -1).T
            blocks = self.weights.shape[1]
            sums = np.array([np.bincount(self.blocks, column, blocks) for column in columns])
            values = sums.astype(np.float64).T.reshape(-1, *values.shape[1:])
        means: Floats = self.weights @ values
        return means

    def query_weights(self, draws: int) -> Iterator[Floats]:
        """Yield the queries' weights, (n,), in each of the first draws."""
        for weights in self.weights[:draws]:
            yield weights if self.blocks is None else weights[self.blocks]


@lru_cache(maxsize=8)
def resamples(n: int) -> Resamples:
    """Return the bootstrap draws of n queries, which are always the same."""
    rng = np.random.default_rng(0)
    blocks: NDArray[np.int64] | None = None
    sizes = np.ones(n)
    if n > BOOTSTRAP_BLOCKS:
        blocks = rng.permutation(np.arange(n) % BOOTSTRAP_BLOCKS)
        sizes = np.bincount(blocks).astype(np.float64)
    weights = np.empty((BOOTSTRAP_DRAWS, len(sizes)))
    for draw in weights:
        draw[:] = np.bincount(rng.integers(0, len(sizes), len(sizes)), minlength=len(sizes))
    weights /= (weights @ sizes)[:, None]
    return Resamples(weights, blocks)


def estimate(value: float, drawn: Floats, n: int) -> Estimate | None:
    """Return a number with its error from its bootstrap draws, (draws,); None if it is NaN."""
    if not np.isfinite(value):
        return None
    return Estimate(value, float(drawn[np.isfinite(drawn)].std()), interval_of(drawn), n)


def mean_and_draws(*columns: Floats) -> Floats:
    """Return each column's mean, then its mean in each bootstrap draw: (columns, 1 + draws)."""
    values = np.column_stack(columns)
    return np.vstack([values.mean(axis=0), resamples(len(values)).means(values)]).T


def ratio(part: Floats, whole: Floats, n: int) -> Estimate | None:
    """Return part / whole, each given as `mean_and_draws` returns it; None unless whole > 0.

    For example, the closed share of a gap is (ours - start) / (top - start), or None if top is not
    better than start.
    """
    shares = np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0)
    return estimate(float(shares[0]), shares[1:], n)


def interval_of(drawn: Floats) -> tuple[float, float]:
    """Return the 95% interval of bootstrap draws, (draws,), ignoring NaN."""
    low, high = np.percentile(drawn[np.isfinite(drawn)], [2.5, 97.5])
    return float(low), float(high)


def mean_auc(labels: Floats, probabilities: Floats) -> float:
    """Return the area under the ROC curve, averaged over arms with right and wrong answers.

    Labels and probabilities are (n, arms). A label between 0 and 1 counts partly as right and
    partly as wrong. Return NaN if every arm has only right or only wrong answers.
    """
    return _mean_auc(labels, _ranks(probabilities), np.ones(len(labels)))


def auc_measure(labels: Floats, probabilities: Floats) -> Measure:
    """Return `mean_auc` with a standard error from resampled queries."""
    ranks = _ranks(probabilities)
    draws = resamples(len(labels)).query_weights(BOOTSTRAP_DRAWS // 10)
    drawn = np.array([_mean_auc(labels, ranks, weights) for weights in draws])
    finite = drawn[np.isfinite(drawn)]
    return Measure(
        value=mean_auc(labels, probabilities),
        stderr=float(finite.std()) if len(finite) else 0.0,
        n=len(labels),
    )


def _ranks(probabilities: Floats) -> NDArray[np.int64]:
    """Return each probability's rank among the distinct values of its arm, (n, arms)."""
    columns = [np.unique(column, return_inverse=True)[1] for column in probabilities.T]
    return np.stack(columns, axis=1)


def _mean_auc(labels: Floats, ranks: NDArray[np.int64], weights: Floats) -> float:
    """Return the mean over arms of the probability that a right answer ranks above a wrong one.

    Ties count half. scikit-learn's function is not used, because it does not accept fractional
    labels, and because it takes 1 ms for each arm instead of 30 us.
    """
    areas = []
    for arm_labels, arm_ranks in zip(labels.T, ranks.T, strict=True):
        right = np.bincount(arm_ranks, weights * arm_labels)
        wrong = np.bincount(arm_ranks, weights * (1 - arm_labels))
        pairs = right.sum() * wrong.sum()
        # If all answers are right, or all are wrong, rounding errors can leave 1e-16 instead of 0.
        if pairs >= 1e-12:
            areas.append(float((right * (wrong.cumsum() - wrong / 2)).sum() / pairs))
    return float(np.mean(areas)) if areas else float("nan")
