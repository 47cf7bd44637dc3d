"""Extremely randomized trees as a part of the router's graph (Geurts et al., 2006)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.tree._tree import Tree
from torch import Tensor, nn
from torch.nn import functional

Floats = NDArray[np.float32]

TREES = 200
MIN_LEAF = 5
FEATURE_SHARE = 0.3
"""On the reference pool's folds 300 trees, leaves of 3 and half of the features are no better."""

WALK = "switchcraft::Walk"
"""Stands for the walk in an exported graph, until `export.trees` puts the kernel in its place."""


def fit_forest(features: Floats, targets: Floats, seed: int) -> Forest:
    """Fit trees on (n, features) to targets (n, outputs), all of them known."""
    trees = ExtraTreesRegressor(
        TREES, min_samples_leaf=MIN_LEAF, max_features=FEATURE_SHARE, random_state=seed, n_jobs=-1
    )
    trees.fit(features, targets if targets.shape[1] > 1 else targets[:, 0])
    return Forest([estimator.tree_ for estimator in trees.estimators_])


class Forest(nn.Module):
    """The mean of trees, walked all at once; a leaf leads to itself.

    In a graph the walk is one operator, which the runtime has a kernel for: `export.trees`.
    """

    roots: Tensor
    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    tree: Tensor
    value: Tensor

    def __init__(self, trees: Sequence[Tree]) -> None:
        super().__init__()
        # One table of nodes, (nodes,), tree after tree; 32 bits keep the graph small. The leaves
        # come first, so that a leaf's place is the row of its value.
        starts = np.cumsum([0, *(tree.node_count for tree in trees[:-1])])
        self.depth = max(tree.max_depth for tree in trees)
        is_inner = _stacked([tree.children_left >= 0 for tree in trees])
        order = np.argsort(is_inner, kind="stable")
        place = np.argsort(order)
        left, right = (
            _stacked(
                [_below(tree, side) + start for tree, start in zip(trees, starts, strict=True)]
            )
            for side in ("children_left", "children_right")
        )
        feature = _stacked([np.maximum(tree.feature, 0) for tree in trees])
        threshold = _stacked([tree.threshold for tree in trees])
        values = _stacked([tree.value[:, :, 0] for tree in trees])
        self.register_buffer("roots", torch.from_numpy(place[starts]))
        self.register_buffer("feature", torch.from_numpy(feature[order].astype(np.int32)))
        self.register_buffer("threshold", _rounded_down(threshold[order]))
        self.register_buffer("left", torch.from_numpy(place[left][order].astype(np.int32)))
        self.register_buffer("right", torch.from_numpy(place[right][order].astype(np.int32)))
        leaves = order[: len(order) - is_inner.sum()]
        tree = np.repeat(np.arange(len(trees)), [each.node_count for each in trees])
        self.register_buffer("tree", torch.from_numpy(tree[leaves].astype(np.int32)))
        self.register_buffer("value", torch.from_numpy(values[leaves].astype(np.float32)))

    def forward(self, features: Tensor) -> Tensor:
        """Map (batch, features) to the trees' mean, (batch, outputs)."""
        return functional.embedding(self._leaves(features), self.value).mean(1)

    def _leaves(self, features: Tensor) -> Tensor:
        """Return the leaf of each tree that a row falls into, (batch, trees)."""
        if torch.onnx.is_in_onnx_export():
            steps = (self.feature, self.threshold, self.left, self.right)
            shape = (features.shape[0], len(self.roots))
            return torch.onnx.ops.symbolic(
                WALK,
                (features, self.roots, *steps, self.tree),
                dtype=torch.int64,
                shape=shape,
                version=1,
            )
        nodes = self.roots.expand(features.shape[0], -1)
        for _ in range(self.depth):
            low = features.gather(1, self.feature[nodes].long()) <= self.threshold[nodes]
            nodes = torch.where(low, self.left[nodes], self.right[nodes]).long()
        return nodes


def _below(tree: Tree, side: str) -> NDArray[np.int64]:
    """Return each node's child on a side, itself for a leaf."""
    children: NDArray[np.int64] = getattr(tree, side)
    return np.where(children < 0, np.arange(tree.node_count), children)


def _stacked(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(parts)


def _rounded_down(thresholds: NDArray[np.float64]) -> Tensor:
    """Return single-precision thresholds that part single-precision counts as the double ones."""
    single = thresholds.astype(np.float32)
    above = single > thresholds
    return torch.from_numpy(np.where(above, np.nextafter(single, np.float32(-np.inf)), single))
