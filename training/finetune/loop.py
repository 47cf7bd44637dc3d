"""The training loop: multi-label BCE, linear decay, early stopping (appendix on training)."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

from training.config import RunConfig, TrainingConfig
from training.finetune.batches import (
    Batch,
    Rows,
    batches_in_order,
    feature_tensor,
    shuffled_batches,
)
from training.finetune.encoders import PretrainedEncoder
from training.finetune.model import BranchLogits, EncoderBranch, RouterModel, StructureBranch

STRUCTURE_EPOCHS = 60
STRUCTURE_BATCH = 32
STRUCTURE_LEARNING_RATE = 2e-3
"""The branch over the counts starts from nothing and is small: 60 epochs take seconds, and in
cross-validation on the reference pool it is no better after 100."""

ENCODER_SHARES = tuple(step / 20 for step in range(21))

EVALUATION_BATCH = 64


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one pass over the training rows left, measured on the validation rows."""

    number: int
    train_loss: float
    loss: float
    macro_f1: float


@dataclass(frozen=True, slots=True)
class Trained:
    """The model of the best epoch, and the course of the run."""

    model: RouterModel
    epochs: tuple[Epoch, ...]
    best: Epoch


def build_model(encoder: PretrainedEncoder, config: RunConfig, train: Rows) -> RouterModel:
    """Put fresh heads on an encoder; their biases start at the training rows' log-odds."""
    heads = train.labels.shape[1]
    branch = EncoderBranch(
        encoder.model,
        heads,
        pooling=config.encoder.pooling,
        dropout=config.training.dropout,
    )
    odds = torch.logit(torch.tensor(np.nanmean(train.labels, axis=0)).clamp(0.02, 0.98))
    with torch.no_grad():
        branch.head.bias.copy_(odds)
    if config.encoder.freeze_embeddings:
        branch.encoder.get_input_embeddings().requires_grad_(requires_grad=False)
    structure = None
    if config.packing.features:
        width = config.training.structure_width
        structure = StructureBranch(len(config.packing.features), heads, width=width)
        structure.fit_scale(feature_tensor(train))
    return RouterModel(branch, structure)


def train_router(
    encoder: PretrainedEncoder, config: RunConfig, train: Rows, validation: Rows
) -> Trained:
    """Fine-tune on `train` and keep the epoch that is best on `validation`.

    The first `len(config.arms)` labels are the pool's; the rest are auxiliary heads. The branches
    share no weight and have a loss each, so that neither leans on the other: the one over the
    counts is trained first, on its own.
    """
    torch.manual_seed(config.seed)
    rng = np.random.default_rng(config.seed)
    settings = config.training
    model = build_model(encoder, config, train)
    weights = head_weights(train.labels.shape[1], len(config.arms), settings.auxiliary_weight)
    if model.structure is not None:
        fit_structure(model.structure, train, weights, settings)
    steps = math.ceil(len(train.packed) / settings.batch_size) * settings.max_epochs
    optimizer = _optimizer(model, settings)
    schedule = _schedule(optimizer, steps, settings)
    epochs: list[Epoch] = []
    best_state = copy.deepcopy(model.state_dict())
    with tqdm(total=steps, desc="fine-tuning", unit="step") as progress:
        for number in range(1, settings.max_epochs + 1):
            losses = []
            for batch in shuffled_batches(train, settings.batch_size, rng):
                losses.append(_step(model, batch, weights, optimizer))
                schedule.step()
                progress.update()
            epochs.append(_validate(model, validation, number, float(np.mean(losses)), config))
            progress.set_postfix(loss=epochs[-1].loss, macro_f1=epochs[-1].macro_f1)
            best = best_epoch(epochs, settings)
            if best is epochs[-1]:
                best_state = copy.deepcopy(model.state_dict())
            elif number - best.number >= settings.patience_epochs:
                break
    model.load_state_dict(best_state)
    fit_share(model, validation, len(config.arms))
    return Trained(model.eval(), tuple(epochs), best)


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
    schedule = _schedule(optimizer, len(loader) * STRUCTURE_EPOCHS, settings)
    branch.train()
    for _ in range(STRUCTURE_EPOCHS):
        for counts, wanted, mask in loader:
            losses = [_loss(vote, wanted, mask * weights) for vote in branch.votes(counts)]
            _descend(torch.stack(losses).sum(), branch, optimizer)
            schedule.step()


def fit_share(model: RouterModel, validation: Rows, arms: int) -> None:
    """Set the encoder's share of the logits to what fits the validation rows best."""
    model.eval()
    with torch.no_grad():
        parts = [
            model.branches(batch.input_ids, batch.attention_mask, batch.features)
            for batch in batches_in_order(validation, EVALUATION_BATCH)
        ]
    encoder, structure = (torch.cat(side)[:, :arms] for side in zip(*parts, strict=True))
    labels = torch.from_numpy(validation.labels[:, :arms])
    known = (~torch.isnan(labels)).float()
    logits = BranchLogits(encoder, structure)
    losses = {
        share: float(_loss(logits.mixed(share), labels.nan_to_num(0.0), known))
        for share in ENCODER_SHARES
    }
    model.encoder_share.fill_(min(losses, key=losses.__getitem__))


def predict(model: RouterModel, rows: Rows) -> NDArray[np.float64]:
    """Return probabilities (n, heads) of a model, in the rows' order."""
    model.eval()
    with torch.no_grad():
        logits = [
            model(batch.input_ids, batch.attention_mask, batch.features)
            for batch in batches_in_order(rows, EVALUATION_BATCH)
        ]
    result: NDArray[np.float64] = torch.sigmoid(torch.cat(logits)).double().numpy()
    return result


def head_weights(heads: int, arms: int, auxiliary_weight: float) -> Tensor:
    """Weigh each arm 1, and all auxiliary heads together `auxiliary_weight` times the arms."""
    weights = torch.ones(heads)
    if heads > arms:
        weights[arms:] = auxiliary_weight * arms / (heads - arms)
    return weights


def linear_decay(step: int, steps: int, warmup_ratio: float) -> float:
    """Return the learning rate's factor: up to 1 over the warm-up, then down to 0."""
    warmup = max(1, round(steps * warmup_ratio))
    if step < warmup:
        return (step + 1) / warmup
    return max(0.0, (steps - step) / max(1, steps - warmup))


def best_epoch(epochs: list[Epoch], settings: TrainingConfig) -> Epoch:
    """Return the epoch to keep; of equal ones the earliest."""
    if settings.select_on == "last":
        return epochs[-1]
    if settings.select_on == "loss":
        return min(epochs, key=lambda epoch: (epoch.loss, epoch.number))
    return max(epochs, key=lambda epoch: (epoch.macro_f1, -epoch.number))


def macro_f1(labels: NDArray[np.float32], probabilities: NDArray[np.float64]) -> float:
    """Return the mean over heads of F1 at 0.5; unknown labels are left out."""
    predicted = probabilities >= 0.5
    hits = ((labels == 1) & predicted).sum(0)
    misses = ((labels == 1) & ~predicted).sum(0)
    false_alarms = ((labels == 0) & predicted).sum(0)
    scores = 2 * hits / np.maximum(2 * hits + misses + false_alarms, 1)
    return float(scores.mean())


def _optimizer(model: RouterModel, settings: TrainingConfig) -> torch.optim.Optimizer:
    encoder = [p for p in model.encoder.encoder.parameters() if p.requires_grad]
    head_rate = settings.head_learning_rate or settings.learning_rate
    groups = [
        {"params": encoder, "lr": settings.learning_rate},
        {"params": model.encoder.head.parameters(), "lr": head_rate},
    ]
    return torch.optim.AdamW(groups, weight_decay=settings.weight_decay)


def _schedule(
    optimizer: torch.optim.Optimizer, steps: int, settings: TrainingConfig
) -> torch.optim.lr_scheduler.LambdaLR:
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: linear_decay(step, steps, settings.warmup_ratio)
    )


def _step(
    model: RouterModel, batch: Batch, weights: Tensor, optimizer: torch.optim.Optimizer
) -> float:
    model.encoder.train()
    logits = model.encoder(batch.input_ids, batch.attention_mask)
    loss = _loss(logits, batch.labels, batch.known * weights)
    _descend(loss, model.encoder, optimizer)
    return float(loss.detach())


def _descend(loss: Tensor, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimizer.step()


def _loss(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean of the cross-entropies, (batch, heads) each."""
    losses = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    return (losses * weights).sum() / weights.sum().clamp(min=1e-9)


def _validate(
    model: RouterModel, validation: Rows, number: int, train_loss: float, config: RunConfig
) -> Epoch:
    arms = len(config.arms)
    probabilities = predict(model, validation)[:, :arms]
    labels = validation.labels[:, :arms]
    clipped = probabilities.clip(1e-6, 1 - 1e-6)
    losses = -np.where(labels == 1, np.log(clipped), np.log(1 - clipped))
    loss = float(losses[~np.isnan(labels)].mean())
    return Epoch(number, train_loss, loss, macro_f1(labels, probabilities))
