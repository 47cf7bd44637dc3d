"""Calibration metrics: reliability by bin, and ECE and Brier score by arm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from router_service.core.artifact import Measure
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.evaluation.metrics import (
    CALIBRATION_BINS,
    auc_measure,
    bin_of,
    brier_measure,
    calibration_measure,
    mean_measure,
)


@dataclass(frozen=True, slots=True)
class Bin:
    """Predictions of similar probability: their mean probability and their accuracy.

    `n` of the accuracy counts predictions; a query has one prediction per arm.
    """

    lower: float
    upper: float
    confidence: float
    accuracy: Measure


@dataclass(frozen=True, slots=True)
class ArmCalibration:
    """Calibration of one arm, or of all arms together."""

    name: str
    accuracy: Measure
    confidence: float
    auc: Measure
    error: Measure
    brier: Measure


@dataclass(frozen=True, slots=True)
class Calibration:
    """Reliability bins without empty ones, and figures for all arms together, then for each arm."""

    bins: tuple[Bin, ...]
    arms: tuple[ArmCalibration, ...]


def calibration(table: Table, probabilities: Floats) -> Calibration:
    """Compare predicted probabilities (queries, arms) with the recorded correctness."""
    labels = table.correct
    return Calibration(
        bins=reliability(labels, probabilities),
        arms=(
            _arm("all arms", labels, probabilities),
            *(_arm(arm, labels[:, [i]], probabilities[:, [i]]) for i, arm in enumerate(table.arms)),
        ),
    )


def reliability(labels: Floats, probabilities: Floats) -> tuple[Bin, ...]:
    """Return ten bins of equal width, over all arms together; empty bins are omitted."""
    which = bin_of(probabilities)
    return tuple(
        Bin(
            lower=int(b) / CALIBRATION_BINS,
            upper=(int(b) + 1) / CALIBRATION_BINS,
            confidence=float(probabilities[which == b].mean()),
            accuracy=mean_measure(labels[which == b]),
        )
        for b in np.unique(which)
    )


def _arm(name: str, labels: Floats, probabilities: Floats) -> ArmCalibration:
    return ArmCalibration(
        name=name,
        accuracy=mean_measure(labels.mean(axis=1)),
        confidence=float(probabilities.mean()),
        auc=auc_measure(labels, probabilities),
        error=calibration_measure(labels, probabilities),
        brier=brier_measure(labels, probabilities),
    )
