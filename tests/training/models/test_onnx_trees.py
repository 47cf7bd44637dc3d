"""The runtime's kernel for trees: equality with scikit-learn."""

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

from switchcraft_training.models.branches import Forest
from switchcraft_training.models.export import OPSET, use_tree_kernel

Floats = NDArray[np.float32]


def fitted(outputs: int, min_leaf: int = 5) -> tuple[ExtraTreesRegressor, Floats]:
    """Return scikit-learn's trees and the features on which they were fitted."""
    rng = np.random.default_rng(1)
    features = np.column_stack([rng.integers(0, 9, 150), rng.exponential(100.0, 150)])
    targets = (rng.random((150, outputs)) + features[:, :1] > 5).astype(np.float32)
    trees = ExtraTreesRegressor(20, min_samples_leaf=min_leaf, random_state=0)
    return trees.fit(features, targets), features.astype(np.float32)


def session(forest: Forest, path: Path) -> ort.InferenceSession:
    """Export a forest with the kernel."""
    program = torch.onnx.export(
        forest.eval(),
        (torch.zeros(2, 2),),
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
    return ort.InferenceSession(path)


def said(forest: Forest, asked: Floats, path: Path) -> Floats:
    """Return the predictions of the exported forest for all rows."""
    (answer,) = session(forest, path).run(None, {"features": asked})
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
def test_kernel_equals_scikit_learn(outputs: int, tmp_path: Path) -> None:
    """The kernel equals scikit-learn on training rows, at thresholds, and next to them."""
    trees, features = fitted(outputs)
    asked = np.concatenate([features, at_thresholds(trees.estimators_, features)])
    forest = Forest([each.tree_ for each in trees.estimators_])
    wanted = trees.predict(asked).reshape(-1, outputs)
    np.testing.assert_allclose(said(forest, asked, tmp_path / "trees.onnx"), wanted, atol=1e-6)
    assert np.ptp(wanted) > 0.5


def test_trees_with_one_leaf_are_supported(tmp_path: Path) -> None:
    """A tree without a split has its value at any position of the forest."""
    (grown, features), (lone, _) = fitted(2), fitted(2, min_leaf=100)
    assert {each.tree_.node_count for each in lone.estimators_} == {1}
    one = lone.estimators_[0].tree_
    own = [each.tree_ for each in grown.estimators_[:2]]
    forest = Forest([one, own[0], one, own[1], one])
    wanted = forest(torch.from_numpy(features)).numpy()
    np.testing.assert_allclose(said(forest, features, tmp_path / "trees.onnx"), wanted, atol=1e-6)
    parts = [each.predict(features) for each in (*grown.estimators_[:2], *lone.estimators_[:1])]
    np.testing.assert_allclose(wanted, (parts[0] + parts[1] + 3 * parts[2]) / 5, atol=1e-6)
