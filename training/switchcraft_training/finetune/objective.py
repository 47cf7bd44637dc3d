"""What every branch learns by: the loss, the weight of each head, the course of the rate."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean of the binary cross-entropies, (batch, heads) each.

    A label may be a share of runs; a weight of 0 leaves an unknown one out.
    """
    return summed_cross_entropy(logits, labels, weights) / weights.sum().clamp(min=1e-9)


def summed_cross_entropy(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum of the binary cross-entropies."""
    losses = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    return (losses * weights).sum()


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


def scheduled(
    optimizer: torch.optim.Optimizer, steps: int, warmup_ratio: float
) -> torch.optim.lr_scheduler.LambdaLR:
    """Return the schedule of so many steps: warm-up, then linear decay."""
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: linear_decay(step, steps, warmup_ratio)
    )
