"""The epochs of a run: what each left, measured on validation rows, and which is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from switchcraft_training.config import TrainingConfig

CORRECT_FROM = 0.5
"""A probability, or a share of runs, from here on counts as correct: half of them, as theta=0.5."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one pass over the training rows left, measured on the validation rows."""

    number: int
    train_loss: float
    loss: float
    macro_f1: float


def best_epoch(epochs: Sequence[Epoch], settings: TrainingConfig) -> Epoch:
    """Return the epoch to keep; of equal ones the earliest."""
    if settings.select_on == "last":
        return epochs[-1]
    if settings.select_on == "loss":
        return min(epochs, key=lambda epoch: (epoch.loss, epoch.number))
    return max(epochs, key=lambda epoch: (epoch.macro_f1, -epoch.number))


def is_over(epochs: Sequence[Epoch], settings: TrainingConfig) -> bool:
    """Tell whether all epochs are done, or none was better for as long as the patience lasts."""
    if not epochs:
        return False
    waited = epochs[-1].number - best_epoch(epochs, settings).number
    return len(epochs) >= settings.max_epochs or waited >= settings.patience_epochs


def macro_f1(labels: NDArray[np.float32], probabilities: NDArray[np.float64]) -> float:
    """Return the mean over heads of F1 at 0.5, (n, heads) both; unknown labels are left out.

    A label that is a share of runs counts as correct from a half on. As usual, F1 is 0 for a head
    without hits, so also for one that is nowhere correct and nowhere predicted to be.
    """
    predicted = probabilities >= CORRECT_FROM
    correct = labels >= CORRECT_FROM  # NaN is neither
    wrong = labels < CORRECT_FROM
    hits = (correct & predicted).sum(0)
    misses = (correct & ~predicted).sum(0)
    false_alarms = (wrong & predicted).sum(0)
    scores = 2 * hits / np.maximum(2 * hits + misses + false_alarms, 1)
    return float(scores.mean())


def mean_loss(labels: NDArray[np.float32], probabilities: NDArray[np.float64]) -> float:
    """Return the mean cross-entropy over the known labels, (n, heads) both."""
    clipped = probabilities.clip(1e-6, 1 - 1e-6)
    losses = -(labels * np.log(clipped) + (1 - labels) * np.log(1 - clipped))
    return float(losses[~np.isnan(labels)].mean())
