"""Training of the router, branch by branch, and its predictions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from switchcraft_training.config import RunConfig
from switchcraft_training.data.table import Table
from switchcraft_training.models.branches import (
    Forest,
    fit_demand,
    fit_forest,
    fit_lexical,
    fit_networks,
    held_out_demand,
)
from switchcraft_training.models.checkpoints import Epoch
from switchcraft_training.models.encoders import PretrainedEncoder
from switchcraft_training.models.finetuning import build_branch, encoder_logits, finetune_encoder
from switchcraft_training.models.model import FeatureBranches, RouterModel
from switchcraft_training.models.optimization import batches_in_order, feature_tensor, head_weights
from switchcraft_training.progress import step


@dataclass(frozen=True, slots=True)
class TrainedRouter:
    """A trained model, and the epochs of the encoder; empty if the run does not use the encoder.

    The encoder stays on the device that trained it. The other branches are on the CPU.
    """

    model: RouterModel
    epochs: tuple[Epoch, ...]


def train_router(
    encoder: PretrainedEncoder,
    config: RunConfig,
    train: Table,
    validation: Table,
    *,
    workspace: Path | None = None,
) -> TrainedRouter:
    """Fit every branch on `train`; `validation` selects the epoch of the encoder.

    The branches share no weights, and each has its own loss, so that none depends on another.
    `workspace` is the folder of the encoder's checkpoints and cached states.
    """
    if "encoder" in config.training.branch_shares:
        with step("fine-tuning"):
            tuned = finetune_encoder(encoder, config, train, validation, workspace=workspace)
        branch, epochs = tuned.branch, tuned.epochs
    else:
        branch, epochs = build_branch(encoder, config, train.labels), ()
    # Seeded again, because a run that resumed from a checkpoint has drawn other random numbers.
    torch.manual_seed(config.seed)
    lexical = None
    if "lexical" in config.training.branch_shares:
        ids = [row.token_ids for row in train.packed]
        with step("lexical branch"):
            lexical = fit_lexical(ids, train.labels[:, : len(config.arms)])
    counts = FeatureBranches(None, None, None)
    if {"forest", "networks"} & {*config.training.branch_shares}:
        counts = fit_feature_branches(config, train, fit_demand_branch(config, train))
    model = RouterModel(
        encoder=branch,
        lexical=lexical,
        counts=counts,
        shares=config.training.branch_shares,
        arms=len(config.arms),
    )
    return TrainedRouter(model.eval(), epochs)


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand forest, and its held-out predictions for the rows that it learned from, (n, 3)."""

    forest: Forest
    held_out: NDArray[np.float32]


def fit_demand_branch(config: RunConfig, train: Table) -> Demand | None:
    """Fit the demand forest; None if it is unknown how many calls the rows' queries need."""
    max_mb = config.training.max_forest_mb
    with step("demand forest"):
        held_out = held_out_demand(train, config.seed, max_mb)
        if held_out is None:
            return None
        return Demand(fit_demand(train, config.seed, max_mb), held_out)


def fit_feature_branches(config: RunConfig, train: Table, demand: Demand | None) -> FeatureBranches:
    """Fit the forest and the networks over structural features, each if the run gives it a share.

    Both also read the predictions of the demand forest, which was fitted to the same rows: whether
    a query needs no call, one or several.
    """
    shares = config.training.branch_shares
    features = feature_tensor(train)
    if demand is not None:
        features = torch.cat([features, torch.from_numpy(demand.held_out)], dim=1)
    forest = networks = None
    if "forest" in shares:
        # Trees cannot ignore missing labels, so they are fitted only to rows with all labels.
        wanted = train.labels[:, : len(config.arms)]
        complete = np.flatnonzero(~np.isnan(wanted).any(axis=1))
        with step("forest"):
            known = features.numpy()[complete]
            forest = fit_forest(known, wanted[complete], config.seed, config.training.max_forest_mb)
    if "networks" in shares:
        settings, heads = config.training, train.labels.shape[1]
        weights = head_weights(heads, len(config.arms), settings.auxiliary_weight)
        with step("networks"):
            networks = fit_networks(features, torch.from_numpy(train.labels), weights, settings)
    return FeatureBranches(None if demand is None else demand.forest, forest, networks)


def predict(model: RouterModel, rows: Table) -> NDArray[np.float64]:
    """Return a model's probabilities (n, arms), in the order of the rows.

    The whole model computes on the CPU, and stays there.
    """
    model.cpu().eval()
    with torch.no_grad():
        logits = [
            model(batch.input_ids, batch.attention_mask, batch.features)
            for batch in batches_in_order(rows, model.pad_id)
        ]
    result: NDArray[np.float64] = torch.sigmoid(torch.cat(logits)).double().numpy()
    return result


def branch_logits(
    model: RouterModel, config: RunConfig, rows: Table, workspace: Path | None = None
) -> dict[str, NDArray[np.float64]]:
    """Return each branch's logits (n, arms); cached states are read from `workspace`."""
    model.eval()
    with torch.no_grad():
        logits, _ = model.counts(feature_tensor(rows))
        if model.encoder is not None and "encoder" in model.shares:
            logits["encoder"] = encoder_logits(model.encoder, config, rows, workspace)
        if model.lexical is not None:
            batches = batches_in_order(rows, model.pad_id)
            logits["lexical"] = torch.cat(
                [model.lexical(batch.input_ids, batch.attention_mask) for batch in batches]
            )
    return {name: logits[name][:, : model.arms].double().numpy() for name in model.shares}
