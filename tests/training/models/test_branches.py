"""Branches: equality with scikit-learn's trees and regression, and the prediction of demand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import LogisticRegression

from router_service.predictor.packing import Packed
from router_service.predictor.words import Ids
from switchcraft_training.config import MAX_FOREST_MB
from switchcraft_training.data.table import Table
from switchcraft_training.models.branches import (
    BUCKETS,
    FEATURE_SHARE,
    INVERSE_PENALTY,
    MIN_LEAF,
    PAIR_FACTOR,
    TREES,
    Forest,
    LexicalBranch,
    fit_forest,
    fit_lexical,
    held_out_demand,
    least_leaf_rows,
)
from switchcraft_training.models.export import OPSET, use_tree_kernel
from switchcraft_training.models.optimization import padded
from tests.training.models.cases import rows_of

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


def queries(n: int, seed: int) -> list[Ids]:
    """Return rows of token ids, some of which share a bucket."""
    rng = np.random.default_rng(seed)
    words = [5, 6, 5 + BUCKETS, 1000, 29_000, 31_000, 60_000, *range(100, 130)]
    return [tuple(rng.choice(words, rng.integers(1, 15)).tolist()) for _ in range(n)]


def labels_of(rows: list[Ids]) -> NDArray[np.float32]:
    """Return an arm that is correct if a word occurs, and one that is correct if a pair occurs."""
    word = [1000 in row for row in rows]
    rng = np.random.default_rng(0)
    return np.column_stack([word, rng.integers(0, 2, len(rows))]).astype(np.float32)


def hashed(rows: list[Ids]) -> csr_matrix:
    """Count the buckets of words and pairs in plain Python."""
    counts = np.zeros((len(rows), BUCKETS))
    for place, row in enumerate(rows):
        pairs = pairwise(row)
        met = [word % BUCKETS for word in row]
        met += [(one * PAIR_FACTOR + other) % BUCKETS for one, other in pairs]
        for bucket, times in Counter(met).items():
            counts[place, bucket] = times
    return csr_matrix(counts)


def logits(branch: LexicalBranch, rows: list[Ids]) -> NDArray[np.float32]:
    """Return the logits of rows that are padded together."""
    said = branch(*padded([torch.tensor(row) for row in rows], 0))
    return np.asarray(said.numpy())


def test_branch_equals_scikit_learn() -> None:
    """The branch predicts the same as scikit-learn's transformer and regression."""
    train, test = queries(400, 1), queries(40, 2)
    labels = labels_of(train)
    branch = fit_lexical(train, labels)
    tfidf = TfidfTransformer(sublinear_tf=True).fit(hashed(train))
    models = [
        LogisticRegression(C=INVERSE_PENALTY, solver="liblinear").fit(
            tfidf.transform(hashed(train)), column
        )
        for column in labels.T
    ]
    for rows in (train, test):
        wanted = [model.decision_function(tfidf.transform(hashed(rows))) for model in models]
        # liblinear stops at a tolerance, and here every row comes twice.
        np.testing.assert_allclose(logits(branch, rows), np.transpose(wanted), atol=2e-2)
    right = (logits(branch, test)[:, 0] > 0) == (labels_of(test)[:, 0] == 1)
    assert right.mean() >= 0.85


def asking(n: int, groups: int) -> Table:
    """Return rows whose number of calls is their first feature, in alternating groups."""
    rng = np.random.default_rng(0)
    calls = rng.integers(0, 5, n)
    packed = [Packed((1, 2), (float(wanted), float(rng.random())), ()) for wanted in calls]
    data = rows_of(packed, np.zeros((n, 2), dtype=np.float32))
    return replace(data, expected_calls=calls.astype(np.float64), groups=np.arange(n) % groups)


def test_prediction_does_not_depend_on_the_calls_of_its_group() -> None:
    """A row's prediction depends neither on its own calls nor on its group's."""
    data = asking(120, 30)
    own, calls = data.groups == 3, data.expected_calls
    first = held_out_demand(data, 0)
    second = held_out_demand(replace(data, expected_calls=np.where(own, 4 - calls, calls)), 0)
    assert first is not None
    assert second is not None
    np.testing.assert_array_equal(first[own], second[own])
    assert not np.allclose(first[~own], second[~own])
