"""Branches of the router besides the encoder: trees, small networks, and hashed words.

Trees and networks read structural features and the output of a further forest, the demand forest.
The demand forest predicts whether a query asks for no call, one call or several, because models
differ most between these three kinds of queries. The number of calls is known for every query of a
benchmark, even if few arms were asked, so the demand forest has far more training rows than the
other branches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, vstack
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold
from sklearn.tree._tree import Tree
from torch import Tensor, nn
from torch.nn import functional

from router_service.predictor.words import Ids
from switchcraft_training.config import MAX_FOREST_MB, TrainingConfig
from switchcraft_training.data.table import Table
from switchcraft_training.models.optimization import (
    cross_entropy,
    feature_tensor,
    linear_schedule,
    one_thread,
)

TREES = 200
MIN_LEAF = 5
FEATURE_SHARE = 0.3
"""Share of the features that each split tries.

On the reference pool's folds, 300 trees, 3 rows per leaf and half of the features are no better.
"""

FOREST_OPERATOR = "switchcraft::Walk"
"""Placeholder for a forest in an exported graph, until `use_tree_kernel` replaces it."""


def fit_forest(
    features: NDArray[np.float32],
    targets: NDArray[np.float32],
    seed: int,
    max_mb: float = MAX_FOREST_MB,
) -> Forest:
    """Fit extremely randomized trees (Geurts et al., 2006) to targets (n, outputs) without NaN.

    In an exported graph, the forest takes at most `max_mb`; to keep to it, leaves have more rows.
    """
    trees = ExtraTreesRegressor(
        TREES,
        min_samples_leaf=least_leaf_rows(len(features), targets.shape[1], max_mb),
        max_features=FEATURE_SHARE,
        random_state=seed,
        n_jobs=torch.get_num_threads(),
    )
    trees.fit(features, targets if targets.shape[1] > 1 else targets[:, 0])
    return Forest([estimator.tree_ for estimator in trees.estimators_])


def least_leaf_rows(rows: int, outputs: int, max_mb: float) -> int:
    """Return the least number of rows in a leaf with which a forest's graph takes at most `max_mb`.

    A tree has at most `rows / least` leaves. A leaf with its split has 4 bytes for each output, 16
    for the index and the threshold, and up to 16 for the integers of the split, which protobuf
    stores in 1 to 4 bytes each.
    """
    leaf_mb = (4 * outputs + 32) / 1e6
    return max(MIN_LEAF, math.ceil(TREES * rows * leaf_mb / max_mb))


def round_down(thresholds: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return thresholds in single precision, rounded down.

    They then split single-precision features exactly as the double-precision ones do.
    """
    single = thresholds.astype(np.float32)
    return np.where(single > thresholds, np.nextafter(single, np.float32(-np.inf)), single)


class Forest(nn.Module):
    """Mean of decision trees, which are evaluated together, one level at a time.

    A leaf's children are the leaf itself, so that rows which have reached a leaf stay there. In an
    exported graph, one operator evaluates all trees; the ONNX runtime has a kernel for it.
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
        # One table has the nodes of all trees; each column is a tensor (nodes,). The leaves come
        # first, so that a leaf's index is also the row of its value. 32 bits keep the graph small.
        starts = np.cumsum([0, *(tree.node_count for tree in trees[:-1])])
        self.depth = max(tree.max_depth for tree in trees)
        is_inner = np.concatenate([tree.children_left >= 0 for tree in trees])
        order = np.argsort(is_inner, kind="stable")
        place = np.argsort(order)
        # `first` is the index of the first node of each node's tree.
        nodes = np.arange(len(is_inner))
        first = np.repeat(starts, [tree.node_count for tree in trees])
        left, right = (
            np.where(
                is_inner, np.concatenate([getattr(tree, side) for tree in trees]) + first, nodes
            )
            for side in ("children_left", "children_right")
        )
        feature = np.concatenate([np.maximum(tree.feature, 0) for tree in trees])
        threshold = round_down(np.concatenate([tree.threshold for tree in trees]))
        values = np.concatenate([tree.value[:, :, 0] for tree in trees])
        self.register_buffer("roots", torch.from_numpy(place[starts]))
        self.register_buffer("feature", torch.from_numpy(feature[order].astype(np.int32)))
        self.register_buffer("threshold", torch.from_numpy(threshold[order]))
        self.register_buffer("left", torch.from_numpy(place[left][order].astype(np.int32)))
        self.register_buffer("right", torch.from_numpy(place[right][order].astype(np.int32)))
        leaves = order[: len(order) - is_inner.sum()]
        tree = np.repeat(np.arange(len(trees)), [each.node_count for each in trees])
        self.register_buffer("tree", torch.from_numpy(tree[leaves].astype(np.int32)))
        self.register_buffer("value", torch.from_numpy(values[leaves].astype(np.float32)))

    def forward(self, features: Tensor) -> Tensor:
        """Return the mean of the trees (batch, outputs) for features (batch, features)."""
        # The index of the leaf that each row reaches in each tree, (batch, trees).
        if torch.onnx.is_in_onnx_export():
            steps = (self.feature, self.threshold, self.left, self.right)
            leaves = torch.onnx.ops.symbolic(
                FOREST_OPERATOR,
                (features, self.roots, *steps, self.tree),
                dtype=torch.int64,
                shape=(features.shape[0], len(self.roots)),
                version=1,
            )
        else:
            leaves = self.roots.expand(features.shape[0], -1)
            for _ in range(self.depth):
                low = features.gather(1, self.feature[leaves].long()) <= self.threshold[leaves]
                leaves = torch.where(low, self.left[leaves], self.right[leaves]).long()
        return functional.embedding(leaves, self.value).mean(1)


SEVERAL_CALLS = 2
"""Queries that ask for this many calls or more form one class of the demand forest."""

DEMAND_FOLDS = 4


def held_out_demand(
    rows: Table, seed: int, max_mb: float = MAX_FOREST_MB
) -> NDArray[np.float32] | None:
    """Return held-out probabilities of no call, one call and several calls for every row, (n, 3).

    The other branches are fitted on these held-out predictions, so that they learn how reliable
    the demand forest is. Near-duplicates, which share a group, are held out together. Return None
    if the number of calls is known in fewer than two groups.
    """
    known = np.flatnonzero(~np.isnan(rows.expected_calls))
    groups = rows.groups[known]
    folds = min(DEMAND_FOLDS, len(np.unique(groups)))
    if folds < 2:
        return None
    features = feature_tensor(rows)
    predicted = np.empty((len(rows.packed), SEVERAL_CALLS + 1), dtype=np.float32)
    parts = [(known[a], known[b]) for a, b in GroupKFold(folds).split(known, groups=groups)]
    parts.append((known, np.flatnonzero(np.isnan(rows.expected_calls))))
    for fitted, held_out in parts:
        if len(held_out):
            forest = _fit_demand_forest(rows.take(fitted), seed, max_mb)
            predicted[held_out] = forest(features[held_out]).numpy()
    return predicted


def fit_demand(rows: Table, seed: int, max_mb: float = MAX_FOREST_MB) -> Forest:
    """Fit the demand forest on the rows whose number of calls is known."""
    known = rows.take(np.flatnonzero(~np.isnan(rows.expected_calls)))
    return _fit_demand_forest(known, seed, max_mb)


def _fit_demand_forest(known: Table, seed: int, max_mb: float) -> Forest:
    """Fit a forest that predicts the probabilities of no call, one call and several calls."""
    classes = np.minimum(known.expected_calls, SEVERAL_CALLS).astype(np.int64)
    targets = np.eye(SEVERAL_CALLS + 1, dtype=np.float32)[classes]  # (n, 3)
    return fit_forest(feature_tensor(known).numpy(), targets, seed, max_mb)


WIDTH = 64
"""Width of the two layers of a network."""

NETWORKS = 4
"""Number of averaged networks. With 1,100 rows, the seed changes one network's AUC by 0.01."""

MAX_DEVIATIONS = 5.0
"""Limit of standardized features, so that no extreme value decides by itself."""

MAX_EPOCHS = 60
MAX_STEPS = 3_000
BATCH_ROWS = 32
LEARNING_RATE = 2e-3
"""Peak learning rate of the networks.

60 epochs take seconds, and 100 epochs are no better in cross-validation on the reference pool. The
limit on steps keeps the time short if there are many auxiliary rows.
"""


INPUT_DROPOUT = 0.1
HIDDEN_DROPOUT = 0.3


class StackedLinear(nn.Module):
    """Linear layers of equal size that read separate rows."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        weight = torch.stack([each.weight.detach() for each in layers])
        bias = torch.stack([each.bias.detach() for each in layers])
        self.weight = nn.Parameter(weight)  # (layers, outputs, inputs)
        self.bias = nn.Parameter(bias.unsqueeze(1))  # (layers, 1, outputs)

    def forward(self, rows: Tensor) -> Tensor:
        """Return (layers, batch, outputs) for rows (layers, batch, inputs)."""
        return torch.baddbmm(self.bias, rows, self.weight.transpose(1, 2))

    @torch.no_grad()
    def copy_to(self, layers: Sequence[nn.Linear]) -> None:
        """Copy the weights to separate layers."""
        for layer, weight, bias in zip(layers, self.weight, self.bias, strict=True):
            layer.weight.copy_(weight)
            layer.bias.copy_(bias[0])


class NetworksBranch(nn.Module):
    """Average of small networks over standardized signed logarithms of structural features."""

    mean: Tensor
    scale: Tensor

    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("scale", torch.ones(features))
        self.members = nn.ModuleList(
            nn.Sequential(
                nn.Linear(features, WIDTH),
                nn.GELU(),
                nn.Linear(WIDTH, WIDTH),
                nn.GELU(),
                nn.Linear(WIDTH, heads),
            )
            for _ in range(NETWORKS)
        )

    def layers(self) -> list[list[nn.Linear]]:
        """Return the linear layers of all members, from the first to the last."""
        of_members = [
            [layer for layer in member.modules() if isinstance(layer, nn.Linear)]
            for member in self.members
        ]
        return [list(same) for same in zip(*of_members, strict=True)]

    def fit_scale(self, features: Tensor) -> None:
        """Set each feature's mean and scale from training rows (n, features).

        Constant features get the scale 0, so that they are 0 after standardization.
        """
        logs = _signed_log(features)
        deviation = logs.std(0)
        self.mean.copy_(logs.mean(0))
        self.scale.copy_(torch.where(deviation > 1e-6, 1 / deviation.clamp(min=1e-6), 0.0))

    def standardize(self, features: Tensor) -> Tensor:
        """Return what the networks read for features (batch, features), with the same shape."""
        standardized = (_signed_log(features) - self.mean) * self.scale
        return standardized.clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS)

    def forward(self, features: Tensor) -> Tensor:
        """Return the networks' mean logits (batch, heads) for features (batch, features)."""
        standardized = self.standardize(features)
        return torch.stack([member(standardized) for member in self.members]).mean(0)


def fit_networks(
    features: Tensor, labels: Tensor, weights: Tensor, settings: TrainingConfig
) -> NetworksBranch:
    """Fit networks on features (n, features) and labels (n, heads).

    A label may be the share of an arm's attempts that were correct. NaN labels are ignored.
    `weights` (heads,) multiply the losses of the heads.
    """
    branch = NetworksBranch(features.shape[1], labels.shape[1])
    branch.fit_scale(features)
    with torch.no_grad():
        standardized = branch.standardize(features)
    wanted, weight = labels.nan_to_num(0.0), (~torch.isnan(labels)) * weights
    # All members learn together, as one product of matrices, in a third of the time.
    layers = [StackedLinear(each) for each in branch.layers()]
    stacked = nn.Sequential(
        nn.Dropout(INPUT_DROPOUT),
        layers[0],
        *(nn.GELU(), nn.Dropout(HIDDEN_DROPOUT), layers[1]),
        *(nn.GELU(), nn.Dropout(HIDDEN_DROPOUT), layers[2]),
    ).train()
    learning = list(stacked.parameters())
    optimizer = torch.optim.AdamW(
        learning, lr=LEARNING_RATE, weight_decay=settings.weight_decay, fused=True
    )
    epoch_steps = math.ceil(len(features) / BATCH_ROWS)
    epochs = min(MAX_EPOCHS, math.ceil(MAX_STEPS / epoch_steps))
    schedule = linear_schedule(optimizer, epoch_steps * epochs, settings.warmup_ratio)
    with one_thread():
        for _ in range(epochs):
            for rows in torch.split(torch.randperm(len(features)), BATCH_ROWS):
                logits = stacked(standardized[rows].expand(NETWORKS, -1, -1))
                # The loss is the sum over members, so that each has its own gradient.
                loss = NETWORKS * cross_entropy(
                    logits, wanted[rows].expand_as(logits), weight[rows].expand_as(logits)
                )
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(learning, 1.0)
                optimizer.step()
                schedule.step()
    for layer, separate in zip(layers, branch.layers(), strict=True):
        layer.copy_to(separate)
    return branch.eval()


def _signed_log(values: Tensor) -> Tensor:
    return torch.sign(values) * torch.log1p(torch.abs(values))


BUCKETS = 1 << 15
"""Number of hash buckets for token ids and their pairs; eight arms need 1 MB of weights."""

PAIR_FACTOR = 31
INVERSE_PENALTY = 5.0
NEGLIGIBLE_WEIGHT = 1e-9


def buckets(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the buckets of single tokens (batch, tokens) and of pairs (batch, tokens - 1)."""
    return ids % BUCKETS, (ids[:, :-1] * PAIR_FACTOR + ids[:, 1:]) % BUCKETS


class LexicalBranch(nn.Module):
    """Logistic regression for each arm on TF-IDF of hashed tokens and token pairs."""

    idf: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(self, idf: Tensor, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("idf", idf)  # (buckets,)
        self.register_buffer("weight", weight)  # (buckets, arms)
        self.register_buffer("bias", bias)  # (arms,)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return logits (batch, arms) for ids and mask (batch, tokens)."""
        bucket_ids = torch.cat(buckets(input_ids), dim=1)  # (batch, 2 tokens - 1)
        known = torch.cat([attention_mask, attention_mask[:, 1:]], dim=1).to(self.idf.dtype)
        counts = torch.zeros(input_ids.shape[0], BUCKETS, dtype=self.idf.dtype)
        count = counts.scatter_add(1, bucket_ids, known).gather(1, bucket_ids).clamp(min=1)
        # A bucket's TF-IDF, (1 + log(count)) * idf, is divided equally among the positions of the
        # row that have this bucket. Sums over positions, at most 1,023, then equal the sums over
        # all buckets.
        tfidf = (1 + count.log()) * functional.embedding(bucket_ids, self.idf[:, None]).squeeze(2)
        share = known / count
        length = (tfidf.square() * share).sum(1, keepdim=True).sqrt().clamp(min=1e-9)
        placed = (tfidf * share / length).unsqueeze(1)  # (batch, 1, places)
        logits: Tensor = (placed @ functional.embedding(bucket_ids, self.weight)).squeeze(
            1
        ) + self.bias
        return logits


def fit_lexical(rows: Sequence[Ids], labels: NDArray[np.float32]) -> LexicalBranch:
    """Fit the lexical branch on rows of token ids and their labels (n, arms).

    A label may be the share of an arm's attempts that were correct. NaN labels are ignored.
    """
    bucket_ids = [torch.cat(buckets(torch.tensor([row])), dim=1)[0].numpy() for row in rows]
    places = np.repeat(np.arange(len(rows)), [len(row) for row in bucket_ids])
    counts = csr_matrix(  # How often each bucket occurs in each row, (n, buckets).
        (np.ones(len(places)), (places, np.concatenate(bucket_ids))), shape=(len(rows), BUCKETS)
    )
    rows_with_bucket = np.asarray((counts > 0).sum(axis=0)).ravel()
    idf = np.log((1 + len(rows)) / (1 + rows_with_bucket)) + 1
    counts.data = 1 + np.log(counts.data)
    weighted = counts.multiply(idf).tocsr()
    lengths = np.sqrt(weighted.multiply(weighted).sum(axis=1))
    weighted = weighted.multiply(1 / np.maximum(lengths, 1e-9)).tocsr()
    models = [soft_regression(weighted, column) for column in labels.T]
    return LexicalBranch(
        torch.tensor(idf, dtype=torch.float32),
        torch.tensor(np.stack([m.coef_[0] for m in models], axis=1), dtype=torch.float32),
        torch.tensor([m.intercept_[0] for m in models], dtype=torch.float32),
    )


def soft_regression(rows: csr_matrix, labels: NDArray[np.floating[Any]]) -> LogisticRegression:
    """Fit the logistic regression of one arm on labels from 0 to 1; NaN labels are ignored.

    A label of 0.7 counts as a correct answer of weight 0.7 and a wrong answer of weight 0.3.
    """
    asked = ~np.isnan(labels)
    known = labels[asked]
    classes = np.repeat([1, 0], len(known))
    weights = np.concatenate([known, 1 - known])
    if not known.any():
        # Every label is 0, so all rows of the class "correct" have weight 0. liblinear drops such
        # rows and would take "wrong", the only class left, for the positive class. The model would
        # then predict "correct" for every row. One row with almost no weight prevents this.
        weights[0] = NEGLIGIBLE_WEIGHT
    # On sparse rows, liblinear is 30 times as fast as the default solver, with equal AUC.
    model = LogisticRegression(C=INVERSE_PENALTY, solver="liblinear", random_state=0)
    return model.fit(vstack([rows[asked], rows[asked]]), classes, sample_weight=weights)
