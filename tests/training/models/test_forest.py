"""Trees: equality with scikit-learn's, including values at thresholds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor

from switchcraft_training.config import MAX_FOREST_MB
from switchcraft_training.models.branches import (
    FEATURE_SHARE,
    MIN_LEAF,
    TREES,
    Forest,
    fit_forest,
    least_leaf_rows,
)
from switchcraft_training.models.export import export_onnx
from switchcraft_training.models.optimization import collate
from switchcraft_training.models.training import predict, train_router
from tests.training.models.cases import config, encoder, rows

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


def test_values_at_thresholds_equal_scikit_learn() -> None:
    """On each threshold, and on the nearest single-precision numbers about it, both agree.

    Every tree is tested separately, so that no other tree hides a wrong branch.
    """
    features = counts(200, 1)
    library = trees(features, targets_of(features, 2), seed=1)
    parting = [each for each in library.estimators_ if each.tree_.max_depth > 0]
    for estimator in parting[:20]:
        tree = estimator.tree_
        inner = tree.children_left >= 0
        near = tree.threshold[inner].astype(np.float32)
        up, down = np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))
        asked = np.repeat(features[: inner.sum()], 3, axis=0)
        places = np.repeat(tree.feature[inner], 3)
        asked[np.arange(len(asked)), places] = np.column_stack([near, up, down]).ravel()
        wanted = estimator.predict(asked)
        np.testing.assert_allclose(
            Forest([tree])(torch.from_numpy(asked)).numpy(), wanted, atol=1e-6
        )


def test_threshold_is_rounded_down_to_single_precision() -> None:
    """A threshold between 1 and the next single-precision number must not round up to it."""
    low = np.float32(1.0)
    high = np.nextafter(low, np.float32(2.0))
    features = np.repeat([[low], [high]], 10, axis=0)
    targets = np.repeat([[0.0], [1.0]], 10, axis=0).astype(np.float32)
    for seed in range(5):
        said = fit_forest(features, targets, seed)(torch.from_numpy(features)).numpy()
        wanted = trees(features, targets, seed).predict(features)[:, None]
        np.testing.assert_allclose(said, wanted, atol=1e-6)


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


def test_tree_with_one_leaf_is_constant() -> None:
    """With too few rows for a split, the prediction is always the mean."""
    forest = fit_forest(counts(6, 1), np.full((6, 2), 0.25, dtype=np.float32), seed=0)
    assert forest.depth == 0
    assert forest(torch.from_numpy(counts(3, 2))).tolist() == [[0.25, 0.25]] * 3


@pytest.mark.parametrize("known", [False, True])
def test_exported_forest_equals_torch(tmp_path: Path, *, known: bool) -> None:
    """An exported forest equals torch, for one and several rows, with and without demand."""
    data = rows(80, 1)
    if known:
        data = replace(data, expected_calls=np.arange(80.0) % 3)
    settings = config(shares={"forest": 1}, max_epochs=1)
    model = train_router(encoder(), settings, data, data).model
    export_onnx(model, 2, tmp_path / "trees.onnx")
    session = ort.InferenceSession(tmp_path / "trees.onnx")
    wanted = predict(model, data)
    for few in (1, 3):
        batch = collate(data.take(range(few)))
        feed = {
            "input_ids": batch.input_ids.numpy(),
            "attention_mask": batch.attention_mask.numpy(),
            "features": batch.features.numpy(),
        }
        said, *demand = session.run(None, feed)
        np.testing.assert_allclose(said, wanted[:few], atol=1e-6)
        forest = model.counts.demand
        assert (forest is not None) == known
        if forest is not None:
            np.testing.assert_allclose(demand, [forest(batch.features).numpy()], atol=1e-6)
    assert wanted.std(0).max() > 0.1
