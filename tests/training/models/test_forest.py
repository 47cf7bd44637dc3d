"""Trees: equality of the branch and of the runtime's kernel with scikit-learn's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
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
from switchcraft_training.models.export import OPSET, use_tree_kernel

Floats = NDArray[np.float32]


def counts(n: int, seed: int) -> Floats:
    """Return features like those of queries: whole numbers, shares, and a constant."""
    rng = np.random.default_rng(seed)
    return np.column_stack(
        [rng.integers(0, 20, n), rng.random(n), rng.exponential(100.0, n), np.full(n, 3.0)]
    ).astype(np.float32)


def targets_of(features: Floats, outputs: int) -> Floats:
    """Return targets that depend on the features."""
    rng = np.random.default_rng(5)
    told = np.log1p(features) @ rng.normal(size=(features.shape[1], outputs))
    noisy = told + rng.normal(0, 0.3, told.shape)
    return (noisy > np.median(noisy, axis=0)).astype(np.float32)


def library_trees(features: Floats, targets: Floats, **options: int) -> ExtraTreesRegressor:
    """Fit scikit-learn's trees, which expect the targets of a single output as a vector."""
    wanted = targets[:, 0] if targets.shape[1] == 1 else targets
    given = {"min_samples_leaf": MIN_LEAF, "random_state": 4, **options}
    return ExtraTreesRegressor(TREES, max_features=FEATURE_SHARE, **given).fit(features, wanted)


def by_kernel(forest: Forest, asked: Floats, path: Path) -> Floats:
    """Export a forest with the runtime's kernel for trees, and return its predictions."""
    program = torch.onnx.export(
        forest.eval(),
        (torch.zeros(2, asked.shape[1]),),
        input_names=["features"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        opset_version=OPSET,
        verbose=False,
    )
    assert program is not None
    graph = program.model_proto
    use_tree_kernel(graph)
    onnx.checker.check_model(graph)
    onnx.save(graph, str(path))
    (answer,) = ort.InferenceSession(path).run(None, {"features": asked})
    return np.asarray(answer)


def at_thresholds(trees: Sequence[ExtraTreesRegressor], features: Floats) -> Floats:
    """Return rows with a feature at each threshold, and at the numbers next to it."""
    rows = []
    for tree in (each.tree_ for each in trees):
        for node in np.flatnonzero(tree.children_left >= 0):
            near = np.float32(tree.threshold[node])
            for value in (near, *(np.nextafter(near, np.float32(s * np.inf)) for s in (1, -1))):
                row = features[node % len(features)].copy()
                row[tree.feature[node]] = value
                rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize("outputs", [1, 3])
def test_forest_and_its_kernel_equal_scikit_learn(outputs: int, tmp_path: Path) -> None:
    """Both predict as the library with the same seed: on old and new rows, and at thresholds."""
    features = counts(300, 1)
    targets = targets_of(features, outputs)
    forest, library = fit_forest(features, targets, seed=4), library_trees(features, targets)
    near = at_thresholds(library.estimators_[:10], features)
    asked = np.concatenate([features, counts(200, 2), counts(50, 3) * 1e4, near])
    wanted = library.predict(asked).reshape(-1, outputs)
    np.testing.assert_allclose(forest(torch.from_numpy(asked)).numpy(), wanted, atol=1e-6)
    kernel = by_kernel(forest, asked, tmp_path / "trees.onnx")
    np.testing.assert_allclose(kernel, wanted, atol=1e-6)
    assert np.ptp(wanted) > 0.3


def test_trees_with_one_leaf_are_supported(tmp_path: Path) -> None:
    """A tree without a split has its value at any position of the forest."""
    features = counts(150, 1)
    targets = targets_of(features, 2)
    grown = library_trees(features, targets).estimators_[:2]
    lone = library_trees(features, targets, min_samples_leaf=100).estimators_[0]
    assert lone.tree_.node_count == 1
    one, (first, second) = lone.tree_, (each.tree_ for each in grown)
    forest = Forest([one, first, one, second, one])
    wanted = forest(torch.from_numpy(features)).numpy()
    kernel = by_kernel(forest, features, tmp_path / "trees.onnx")
    np.testing.assert_allclose(kernel, wanted, atol=1e-6)
    parts = [each.predict(features) for each in (*grown, lone)]
    np.testing.assert_allclose(wanted, (parts[0] + parts[1] + 3 * parts[2]) / 5, atol=1e-6)


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
