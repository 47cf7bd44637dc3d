"""The router's training: its branches one by one, then the share of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from training.config import RunConfig, TrainingConfig
from training.finetune.batches import Rows, batches_in_order, feature_tensor
from training.finetune.encoder_loop import finetune_encoder
from training.finetune.encoders import PretrainedEncoder
from training.finetune.epochs import Epoch
from training.finetune.model import BranchLogits, RouterModel, StructureBranch
from training.finetune.objective import cross_entropy, head_weights, scheduled

STRUCTURE_EPOCHS = 60
STRUCTURE_BATCH = 32
STRUCTURE_LEARNING_RATE = 2e-3
"""The branch over the counts starts from nothing and is small: 60 epochs take seconds, and in
cross-validation on the reference pool it is no better after 100."""

ENCODER_SHARES = tuple(step / 20 for step in range(21))

EVALUATION_BATCH = 64


@dataclass(frozen=True, slots=True)
class Trained:
    """The model of the best epoch, and the course of the run."""

    model: RouterModel
    epochs: tuple[Epoch, ...]
    best: Epoch


def train_router(
    encoder: PretrainedEncoder,
    config: RunConfig,
    train: Rows,
    validation: Rows,
    *,
    workspace: Path | None = None,
) -> Trained:
    """Fit every branch on `train`; `validation` says which epoch is kept, and the shares.

    The branches share no weight and have a loss each, so that neither leans on the other.
    `workspace` is where the encoder's checkpoints and frozen states are kept and looked for.
    """
    tuned = finetune_encoder(encoder, config, train, validation, workspace=workspace)
    # Anew: a run that went on from a checkpoint has drawn other numbers up to here.
    torch.manual_seed(config.seed)
    model = RouterModel(tuned.branch, build_structure(config, train))
    fit_share(model, validation, len(config.arms))
    return Trained(model.eval(), tuned.epochs, tuned.best)


def build_structure(config: RunConfig, train: Rows) -> StructureBranch | None:
    """Train the branch over the structural counts, where the configuration has any."""
    if not config.packing.features:
        return None
    settings, heads = config.training, train.labels.shape[1]
    width = settings.structure_width
    structure = StructureBranch(len(config.packing.features), heads, width=width)
    structure.fit_scale(feature_tensor(train))
    weights = head_weights(heads, len(config.arms), settings.auxiliary_weight)
    fit_structure(structure, train, weights, settings)
    return structure


def fit_structure(
    branch: StructureBranch, train: Rows, weights: Tensor, settings: TrainingConfig
) -> None:
    """Train the branch over the structural counts to its end, (n, features) -> (n, heads)."""
    features, labels = feature_tensor(train), torch.from_numpy(train.labels)
    known = ~torch.isnan(labels)
    loader = DataLoader(
        TensorDataset(features, labels.nan_to_num(0.0), known.float()),
        batch_size=STRUCTURE_BATCH,
        shuffle=True,
    )
    optimizer = torch.optim.AdamW(
        branch.parameters(), lr=STRUCTURE_LEARNING_RATE, weight_decay=settings.weight_decay
    )
    schedule = scheduled(optimizer, len(loader) * STRUCTURE_EPOCHS, settings.warmup_ratio)
    branch.train()
    for _ in range(STRUCTURE_EPOCHS):
        for counts, wanted, mask in loader:
            losses = [cross_entropy(vote, wanted, mask * weights) for vote in branch.votes(counts)]
            _descend(torch.stack(losses).sum(), branch, optimizer)
            schedule.step()


def fit_share(model: RouterModel, validation: Rows, arms: int) -> None:
    """Set the encoder's share of the logits to what fits the validation rows best."""
    model.eval()
    with torch.no_grad():
        parts = [
            model.branches(batch.input_ids, batch.attention_mask, batch.features)
            for batch in batches_in_order(validation, EVALUATION_BATCH, model.encoder.pad_id)
        ]
    encoder, structure = (torch.cat(side)[:, :arms] for side in zip(*parts, strict=True))
    labels = torch.from_numpy(validation.labels[:, :arms])
    known = (~torch.isnan(labels)).float()
    logits = BranchLogits(encoder, structure)
    losses = {
        share: float(cross_entropy(logits.mixed(share), labels.nan_to_num(0.0), known))
        for share in ENCODER_SHARES
    }
    model.encoder_share.fill_(min(losses, key=losses.__getitem__))


def predict(model: RouterModel, rows: Rows) -> NDArray[np.float64]:
    """Return probabilities (n, heads) of a model, in the rows' order."""
    model.eval()
    with torch.no_grad():
        logits = [
            model(batch.input_ids, batch.attention_mask, batch.features)
            for batch in batches_in_order(rows, EVALUATION_BATCH, model.encoder.pad_id)
        ]
    result: NDArray[np.float64] = torch.sigmoid(torch.cat(logits)).double().numpy()
    return result


def _descend(loss: Tensor, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimizer.step()
