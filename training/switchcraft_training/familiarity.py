"""Fit how familiar a request is: its distance to the queries that a router has learned from.

What is compared is the size of a request: how long the query and the system prompt are, how many
turns and tools there are, and how large their schemas are. EXPERIMENTS.md compares other features
and distances.
"""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from router_service.predictor.familiarity import FamiliaritySpec, Sizes
from switchcraft_training.data.table import Floats
from switchcraft_training.errors import UnbalancedFoldsError
from switchcraft_training.training_data import TrainingData

log = logging.getLogger(__name__)

SIZES = (
    ("query_chars", "system_chars"),
    ("breaks",),
    ("non_ascii",),
    ("turns",),
    ("tools",),
    ("parameters",),
    ("schema_nodes",),
    ("schema_depth",),
)
"""Sizes that are compared: sums of structural features."""
LEAST_SCALE = 0.5
"""Added to the deviation of each size's logarithm, in quadrature. Nearly all training queries have
one turn and flat schemas. Without it, a second turn would count as much as a hundred tools."""
SHRINKAGE = 0.1
"""Share by which the correlations between sizes are reduced. Without it, combinations of sizes that
hardly vary in training would dominate the distance."""
TAIL = 0.1
POINTS = 100
"""The distances are kept at this many shares, and at as many again for the share `TAIL` that is
farthest, in which the limit is."""


def fit_familiarity(data: TrainingData) -> FamiliaritySpec | None:
    """Return the familiarity of requests for a router that learns from all rows of `data`.

    Each measured query's distance is that to the other folds' rows, where folds keep queries with
    the same tools together. Returns None if the router reads no such features.
    """
    names = data.config.packing.features
    if missing := {name for size in SIZES for name in size} - set(names):
        log.warning(
            "requests get no familiarity: the router lacks the features %s",
            ", ".join(sorted(missing)),
        )
        return None
    grouped = data.grouped_by("tools")
    try:
        folds = grouped.folds()
    except UnbalancedFoldsError as exc:
        log.warning("familiarity is measured with tools that may be known: %s", exc)
        folds = data.folds()
    table = data.table
    sizes = Sizes(SIZES, names).of(np.array([row.features for row in table.packed]))
    held_out = np.full(len(table), np.nan)
    for fold in folds:
        known = [*fold.train, *fold.validation, *fold.teaching]
        held_out[list(fold.test)] = distances(sizes[list(fold.test)], *describe(sizes[known]))
    far = np.sort(held_out[table.is_measured & ~np.isnan(held_out)])
    kept, shares = quantiles(far)
    if len(kept) < 2:
        log.warning("requests get no familiarity: all held-out queries are equally far")
        return None
    mean, scale, precision = describe(sizes)
    correct = table.measured(data.config.arms).correct
    return FamiliaritySpec(
        sizes=SIZES,
        mean=tuple(mean.round(6).tolist()),
        scale=tuple(scale.round(6).tolist()),
        precision=tuple(tuple(row) for row in precision.round(6).tolist()),
        distances=tuple(kept.tolist()),
        shares=tuple(shares.tolist()),
        queries=len(far),
        base_rates=dict(zip(data.config.arms, correct.mean(0).tolist(), strict=True)),
    )


def describe(sizes: Floats) -> tuple[Floats, Floats, Floats]:
    """Return mean, scale and inverse correlations of sizes, (rows, sizes)."""
    mean, deviation = sizes.mean(0), sizes.std(0)
    scale = np.sqrt(deviation**2 + LEAST_SCALE**2)
    # A size that is the same in all rows is correlated with none.
    standard = (sizes - mean) / np.where(deviation > 0, deviation, 1.0)
    correlations = standard.T @ standard / len(sizes)
    np.fill_diagonal(correlations, 1.0)
    shrunk = (1 - SHRINKAGE) * correlations + SHRINKAGE * np.eye(sizes.shape[1])
    return mean, scale, np.linalg.inv(shrunk)


def distances(sizes: Floats, mean: Floats, scale: Floats, precision: Floats) -> Floats:
    """Return the Mahalanobis distance of each row of sizes, (rows, sizes), as (rows,)."""
    offsets = (sizes - mean) / scale
    found: Floats = np.sqrt(np.einsum("ij,jk,ik->i", offsets, precision, offsets))
    return found


def quantiles(far: Floats) -> tuple[Floats, Floats]:
    """Return some of the distances `far`, (queries,), and the share of queries at least as far."""
    everything, tail = np.linspace(0, 1, POINTS), np.linspace(1 - TAIL, 1, POINTS)
    wanted = np.concatenate([everything, tail]) * (len(far) - 1)
    ranks: NDArray[np.int64] = np.unique(wanted.round().astype(np.int64))
    kept, first = np.unique(far[ranks].round(6), return_index=True)
    return kept, (len(far) - ranks[first]) / len(far)
