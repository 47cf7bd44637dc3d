"""The router's training, branch by branch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from switchcraft_training.config import RunConfig
from switchcraft_training.finetune.batches import Rows, batches_in_order, feature_tensor
from switchcraft_training.finetune.demand import demand_unseen, fit_demand
from switchcraft_training.finetune.encoder_loop import (
    build_branch,
    encoder_logits,
    finetune_encoder,
)
from switchcraft_training.finetune.encoders import PretrainedEncoder
from switchcraft_training.finetune.epochs import Epoch
from switchcraft_training.finetune.forest import Forest, fit_forest
from switchcraft_training.finetune.lexical import LexicalBranch, fit_lexical
from switchcraft_training.finetune.model import CountsBranches, RouterModel
from switchcraft_training.finetune.networks import NetworksBranch, fit_networks
from switchcraft_training.finetune.objective import head_weights

EVALUATION_BATCH = 64


@dataclass(frozen=True, slots=True)
class Trained:
    """The model, and the course of the encoder's fine-tuning; no epochs where it has no share."""

    model: RouterModel
    epochs: tuple[Epoch, ...]


def train_router(
    encoder: PretrainedEncoder,
    config: RunConfig,
    train: Rows,
    validation: Rows,
    *,
    workspace: Path | None = None,
) -> Trained:
    """Fit every branch on `train`; `validation` says which epoch of the encoder is kept.

    The branches share no weight and have a loss each, so that none leans on another. `workspace`
    is where the encoder's checkpoints and frozen states are kept and looked for.
    """
    if "encoder" in config.training.branch_shares:
        tuned = finetune_encoder(encoder, config, train, validation, workspace=workspace)
        branch, epochs = tuned.branch, tuned.epochs
    else:
        branch, epochs = build_branch(encoder, config, train.labels), ()
    # Anew: a run that went on from a checkpoint has drawn other numbers up to here.
    torch.manual_seed(config.seed)
    model = RouterModel(
        encoder=branch,
        lexical=build_lexical(config, train),
        counts=build_counts(config, train),
        shares=config.training.branch_shares,
        arms=len(config.arms),
    )
    return Trained(model.eval(), epochs)


def build_lexical(config: RunConfig, train: Rows) -> LexicalBranch | None:
    """Fit the branch over hashed words, where it has a share."""
    if "lexical" not in config.training.branch_shares:
        return None
    ids = [row.token_ids for row in train.packed]
    return fit_lexical(ids, train.labels[:, : len(config.arms)])


def build_counts(config: RunConfig, train: Rows) -> CountsBranches:
    """Fit the branches over the counts that have a share, and the demand that they read."""
    shares = config.training.branch_shares
    if not {"forest", "networks"} & set(shares):
        return CountsBranches(None, None, None)
    features = feature_tensor(train)
    unseen = demand_unseen(train, config.seed)
    if unseen is not None:
        features = torch.cat([features, torch.from_numpy(unseen)], dim=1)
    return CountsBranches(
        demand=None if unseen is None else fit_demand(train, config.seed),
        forest=_forest(config, features, train.labels) if "forest" in shares else None,
        networks=_networks(config, features, train.labels) if "networks" in shares else None,
    )


def _forest(config: RunConfig, features: Tensor, labels: NDArray[np.float32]) -> Forest:
    """Fit trees on the rows that every arm of the pool was asked."""
    wanted = labels[:, : len(config.arms)]
    rows = np.flatnonzero(~np.isnan(wanted).any(axis=1))
    return fit_forest(features.numpy()[rows], wanted[rows], config.seed)


def _networks(config: RunConfig, features: Tensor, labels: NDArray[np.float32]) -> NetworksBranch:
    settings = config.training
    weights = head_weights(labels.shape[1], len(config.arms), settings.auxiliary_weight)
    return fit_networks(features, torch.from_numpy(labels), weights, settings)


def predict(model: RouterModel, rows: Rows) -> NDArray[np.float64]:
    """Return probabilities (n, arms) of a model, in the rows' order."""
    model.eval()
    with torch.no_grad():
        logits = [
            model(batch.input_ids, batch.attention_mask, batch.features)
            for batch in batches_in_order(rows, EVALUATION_BATCH, model.encoder.pad_id)
        ]
    result: NDArray[np.float64] = torch.sigmoid(torch.cat(logits)).double().numpy()
    return result


def branch_logits(
    model: RouterModel, config: RunConfig, rows: Rows, workspace: Path | None = None
) -> dict[str, NDArray[np.float64]]:
    """Return each branch's logits (n, arms); frozen states are looked for below `workspace`."""
    model.eval()
    with torch.no_grad():
        logits = model.counts(feature_tensor(rows))
        if "encoder" in model.shares:
            logits["encoder"] = encoder_logits(model.encoder, config, rows, workspace)
        if model.lexical is not None:
            batches = batches_in_order(rows, EVALUATION_BATCH, model.encoder.pad_id)
            logits["lexical"] = torch.cat(
                [model.lexical(batch.input_ids, batch.attention_mask) for batch in batches]
            )
    return {name: logits[name][:, : model.arms].double().numpy() for name in model.shares}
