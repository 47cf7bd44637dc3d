"""Small networks over the counts as a part of the router's graph."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from switchcraft_training.config import TrainingConfig
from switchcraft_training.finetune.objective import cross_entropy, scheduled
from switchcraft_training.finetune.threads import one_thread

MEMBERS = 4
"""1,100 rows make one network waver by a point of AUC with its seed."""

CLIP = 5.0
"""Standardized counts are clipped here: a count never seen in training must not decide alone."""

MAX_EPOCHS = 60
MAX_STEPS = 3_000
BATCH_ROWS = 32
LEARNING_RATE = 2e-3
"""They start from nothing and are small: 60 epochs take seconds, and in cross-validation on the
reference pool they are no better after 100. Rows that only teach must not multiply the time."""


class NetworksBranch(nn.Module):
    """Small networks, averaged; they learn on standardized signed logarithms of counts."""

    mean: Tensor
    scale: Tensor

    def __init__(self, features: int, heads: int, *, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("scale", torch.ones(features))
        self.members = nn.ModuleList(_member(features, heads, width) for _ in range(MEMBERS))

    def fit_scale(self, features: Tensor) -> None:
        """Take mean and deviation from training rows (n, features); constant ones are muted."""
        logs = _signed_log(features)
        deviation = logs.std(0)
        self.mean.copy_(logs.mean(0))
        self.scale.copy_(torch.where(deviation > 1e-6, 1 / deviation.clamp(min=1e-6), 0.0))

    def votes(self, features: Tensor) -> list[Tensor]:
        """Return each member's logits (batch, heads) for raw counts (batch, features)."""
        standardized = (_signed_log(features) - self.mean) * self.scale
        clipped = standardized.clamp(-CLIP, CLIP)
        return [member(clipped) for member in self.members]

    def forward(self, features: Tensor) -> Tensor:
        """Return the members' mean logits (batch, heads) for raw counts (batch, features)."""
        return torch.stack(self.votes(features)).mean(0)


def fit_networks(
    features: Tensor, labels: Tensor, weights: Tensor, settings: TrainingConfig
) -> NetworksBranch:
    """Fit on counts (n, features) and labels (n, heads), which may be shares; NaN is left out.

    `weights` are of the heads, (heads,).
    """
    branch = NetworksBranch(features.shape[1], labels.shape[1], width=settings.structure_width)
    branch.fit_scale(features)
    data = TensorDataset(features, labels.nan_to_num(0.0), (~torch.isnan(labels)) * weights)
    loader = DataLoader(data, batch_size=BATCH_ROWS, shuffle=True)
    epochs = min(MAX_EPOCHS, math.ceil(MAX_STEPS / len(loader)))
    optimizer = torch.optim.AdamW(
        branch.parameters(), lr=LEARNING_RATE, weight_decay=settings.weight_decay
    )
    schedule = scheduled(optimizer, len(loader) * epochs, settings.warmup_ratio)
    branch.train()
    with one_thread():
        for _ in range(epochs):
            for counts, wanted, weight in loader:
                losses = [cross_entropy(vote, wanted, weight) for vote in branch.votes(counts)]
                _descend(torch.stack(losses).sum(), branch, optimizer)
                schedule.step()
    return branch.eval()


def _descend(loss: Tensor, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimizer.step()


def _member(features: int, heads: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Dropout(0.1),
        nn.Linear(features, width),
        nn.GELU(),
        nn.Dropout(0.3),
        nn.Linear(width, width),
        nn.GELU(),
        nn.Dropout(0.3),
        nn.Linear(width, heads),
    )


def _signed_log(values: Tensor) -> Tensor:
    return torch.sign(values) * torch.log1p(torch.abs(values))
