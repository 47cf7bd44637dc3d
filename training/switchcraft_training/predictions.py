"""Predictions of routers for rows that they have not learned from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from router_service.predictor.model import Classifier, sigmoid
from switchcraft_training.config import RunConfig
from switchcraft_training.data.splits import Split
from switchcraft_training.data.table import Floats
from switchcraft_training.models.export import export_int8
from switchcraft_training.models.finetuning import compute_states
from switchcraft_training.models.model import RouterModel
from switchcraft_training.models.training import branch_logits, train_router
from switchcraft_training.progress import step
from switchcraft_training.training_data import TrainingData
from switchcraft_training.workers import SINGLE_PROCESS, Workers


@dataclass(frozen=True, slots=True)
class RowPredictions:
    """A router's predictions of rows.

    `branches` are the full-precision logits of each branch, (rows, arms), by name. `probabilities`,
    (rows, arms), are uncalibrated: those of the int8 graph if it was exported, else those of the
    network in full precision. `p_no_call`, (rows,), is the graph's probability that a query asks
    for no call; it is NaN if no graph was exported, or if it predicts no demand.
    """

    branches: Mapping[str, Floats]
    probabilities: Floats
    p_no_call: Floats

    def mix(self, shares: Mapping[str, float]) -> Floats:
        """Return full-precision probabilities that mix the branches in `shares` by these shares."""
        return mix_branches(self.branches, shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutPredictions(RowPredictions):
    """Predictions of the measured rows, each by a router that has not learned from the row.

    `folds`, (rows,), is the number of the fold that tested each row. `expected_costs_usd`,
    (rows, arms), are estimated from the training rows of that fold.
    """

    folds: NDArray[np.int64]
    expected_costs_usd: Floats


def mix_branches(branches: Mapping[str, Floats], shares: Mapping[str, float]) -> Floats:
    """Return probabilities (rows, arms) that mix the branches in `shares` by these shares."""
    total = sum(shares.values())
    logits = sum(share / total * branches[name] for name, share in shares.items())
    return sigmoid(np.asarray(logits, dtype=np.float64))


def cross_validate(
    data: TrainingData, workers: Workers = SINGLE_PROCESS, *, exported: bool = False
) -> HeldOutPredictions:
    """Train a router on each fold, and predict all measured rows, in their order.

    If `exported`, the int8 graphs predict these rows, too.
    """
    splits = data.folds()
    found = [*train_splits(data, splits, workers, exported=exported)]
    order = np.argsort([row for split in splits for row in split.test])
    folds = np.repeat(np.arange(len(splits)), [len(split.test) for split in splits])[order]
    costs_usd = np.array([data.expected_costs_usd(split.train) for split in splits])
    return HeldOutPredictions(
        branches={
            name: np.concatenate([each.branches[name] for each in found])[order]
            for name in found[0].branches
        },
        probabilities=np.concatenate([each.probabilities for each in found])[order],
        p_no_call=np.concatenate([each.p_no_call for each in found])[order],
        folds=folds,
        expected_costs_usd=costs_usd[folds],
    )


def train_splits(
    data: TrainingData,
    splits: Sequence[Split],
    workers: Workers,
    unit: str = "fold",
    *,
    exported: bool = False,
) -> Iterator[RowPredictions]:
    """Train a router on each split, several at the same time, and yield its predictions.

    `unit` is what progress calls a split. What the splits share is computed first: the encoder, and
    its states if it is frozen.
    """
    if workers.processes > 1 and "encoder" in data.config.training.branch_shares:
        encoder = data.load_encoder()
        with step("frozen layers"):
            compute_states(encoder, data.config, data.table, data.workspace)
    predict = partial(predict_split, exported=exported)
    return workers.map(predict, data, splits, unit)


def predict_split(data: TrainingData, split: Split, *, exported: bool) -> RowPredictions:
    """Train a router on a split, and predict its test rows, in their order."""
    config, workspace = data.config, data.workspace
    train, validation, test = map(
        data.table.take, (split.train + split.teaching, split.validation, split.test)
    )
    encoder = data.load_encoder()
    trained = train_router(encoder, config, train, validation, workspace=workspace)
    with step("held-out predictions"):
        branches = branch_logits(trained.model, config, test, workspace)
    probabilities, demand = mix_branches(branches, config.training.branch_shares), None
    if exported:
        with step("int8 graph"):
            classifier = export_fold(trained.model, config)
        with step("int8 graph's predictions"):
            probabilities, demand = classifier.predict_with_demand(test.packed)
    p_no_call = np.full(len(test), np.nan) if demand is None else demand[:, 0]
    return RowPredictions(branches, probabilities, p_no_call)


def export_fold(model: RouterModel, config: RunConfig) -> Classifier:
    """Return the int8 graph of a fold's router, loaded as the gateway loads it."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "fold.int8.onnx"
        graph = export_int8(model, len(config.packing.features), path)
        return Classifier(graph, arms=len(config.arms))
