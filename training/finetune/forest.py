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

Floats = NDArray[np.float32]

TREES = 200
MIN_LEAF = 5
FEATURE_SHARE = 0.3
"""On the reference pool's folds 300 trees, leaves of 3 and half of the features are no better."""


def fit_forest(features: Floats, targets: Floats, seed: int) -> Forest:
    """Fit trees on (n, features) to targets (n, outputs), all of them known."""
    trees = ExtraTreesRegressor(
        TREES, min_samples_leaf=MIN_LEAF, max_features=FEATURE_SHARE, random_state=seed, n_jobs=-1
    )
    trees.fit(features, targets if targets.shape[1] > 1 else targets[:, 0])
    return Forest([estimator.tree_ for estimator in trees.estimators_])


class Forest(nn.Module):
    """The mean of trees, walked all at once; a leaf leads to itself."""

    roots: Tensor
    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    value: Tensor

    def __init__(self, trees: Sequence[Tree]) -> None:
        super().__init__()
        # One table of nodes, (nodes,), tree after tree; 32 bits keep the graph small.
        starts = np.cumsum([0, *(tree.node_count for tree in trees[:-1])])
        self.depth = max(tree.max_depth for tree in trees)
        left, right = (
            _stacked(
                [_below(tree, side) + start for tree, start in zip(trees, starts, strict=True)]
            )
            for side in ("children_left", "children_right")
        )
        feature = _stacked([np.maximum(tree.feature, 0) for tree in trees])
        self.register_buffer("roots", torch.from_numpy(starts))
        self.register_buffer("feature", torch.from_numpy(feature.astype(np.int32)))
        self.register_buffer("threshold", _rounded_down(_stacked([t.threshold for t in trees])))
        self.register_buffer("left", torch.from_numpy(left.astype(np.int32)))
        self.register_buffer("right", torch.from_numpy(right.astype(np.int32)))
        values = _stacked([tree.value[:, :, 0] for tree in trees])
        self.register_buffer("value", torch.from_numpy(values.astype(np.float32)))

    def forward(self, features: Tensor) -> Tensor:
        """Map (batch, features) to the trees' mean, (batch, outputs)."""
        nodes = self.roots.expand(features.shape[0], -1)  # (batch, trees)
        for _ in range(self.depth):
            low = features.gather(1, self.feature[nodes].long()) <= self.threshold[nodes]
            nodes = torch.where(low, self.left[nodes], self.right[nodes]).long()
        return self.value[nodes].mean(1)


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
