"""Trees: equality with scikit-learn's, including values at thresholds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor

from switchcraft_training.config import MAX_FOREST_MB
from switchcraft_training.models.branches import (
    FEATURE_SHARE,
    MIN_LEAF,
    TREES,
    fit_forest,
    least_leaf_rows,
)

Floats = NDArray[np.float32]


def counts(n: int, seed: int) -> Floats:
    """Return features like those of queries: whole numbers, shares, and a constant."""
    rng = np.random.default_rng(seed)
    return np.column_stack(
        [rng.integers(0, 20, n), rng.random(n), rng.exponential(100.0, n), np.full(n, 3.0)]
    ).astype(np.float32)


def trees(features: Floats, targets: Floats, seed: int) -> ExtraTreesRegressor:
    """Fit scikit-learn's trees."""
    # scikit-learn expects the targets of a single output as a vector.
    wanted = targets[:, 0] if targets.shape[1] == 1 else targets
    return ExtraTreesRegressor(
        TREES, min_samples_leaf=MIN_LEAF, max_features=FEATURE_SHARE, random_state=seed
    ).fit(features, wanted)


def targets_of(features: Floats, outputs: int) -> Floats:
    """Return targets that depend on the features."""
    rng = np.random.default_rng(5)
    told = np.log1p(features) @ rng.normal(size=(features.shape[1], outputs))
    noisy = told + rng.normal(0, 0.3, told.shape)
    return (noisy > np.median(noisy, axis=0)).astype(np.float32)


@pytest.mark.parametrize("outputs", [1, 3])
def test_forest_equals_scikit_learn(outputs: int) -> None:
    """A forest predicts the same as the library with the same seed, on old and new rows."""
    features = counts(300, 1)
    targets = targets_of(features, outputs)
    forest = fit_forest(features, targets, seed=4)
    library = trees(features, targets, seed=4)
    for asked in (features, counts(200, 2), counts(50, 3) * 1e4):
        wanted = library.predict(asked).reshape(-1, outputs)
        np.testing.assert_allclose(forest(torch.from_numpy(asked)).numpy(), wanted, atol=1e-6)
    assert np.ptp(forest(torch.from_numpy(features)).numpy()) > 0.3


def test_a_limit_of_size_is_kept_and_does_not_change_small_forests() -> None:
    """The graph stays below the limit by larger leaves, which an unreached limit does not need."""
    assert least_leaf_rows(20_000, 10, MAX_FOREST_MB) == MIN_LEAF
    rng = np.random.default_rng(0)
    features = rng.random((3_000, 4)).astype(np.float32)
    targets = rng.integers(0, 2, (3_000, 10)).astype(np.float32)
    limit_mb = 2.0
    forest = fit_forest(features, targets, 0, limit_mb)
    leaves, nodes = len(forest.value), len(forest.feature)
    # What a graph holds: leaf values, their trees and indices, and six numbers for each split.
    size = forest.value.nbytes + leaves * 8 + (nodes - leaves) * (4 + 1 + 5 * 3)
    assert 0.2 * limit_mb < size / 1e6 < limit_mb
