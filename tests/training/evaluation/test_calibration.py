"""Choice of a calibration: the method that fits the generated labels is chosen."""

from __future__ import annotations

import numpy as np
import pytest

from router_service.predictor.model import IDENTITY, Platt, Temperature, logit, sigmoid
from switchcraft_training.data.table import Floats
from switchcraft_training.evaluation.calibration import choose_calibration

QUERIES = 1_500


def calibrated_predictions(seed: int = 0, arms: int = 3) -> tuple[Floats, Floats]:
    """Return calibrated probabilities, and labels drawn from them, (queries, arms)."""
    rng = np.random.default_rng(seed)
    true = sigmoid(rng.normal(1.0, 1.5, (QUERIES, arms)))
    return true, (rng.random(true.shape) < true).astype(float)


def test_calibrated_probabilities_stay_unchanged() -> None:
    """Calibrated probabilities stay unchanged."""
    true, labels = calibrated_predictions()
    study = choose_calibration(labels, true, range(QUERIES), seed=0)
    assert study.calibration == IDENTITY
    assert [trial.method for trial in study.trials] == ["identity", "temperature", "platt"]
    assert study.trials[0].error.value < 0.02


def test_platt_corrects_arms_with_different_biases() -> None:
    """Lines per arm undo opposite shifts of the arms, which one temperature cannot correct."""
    true, labels = calibrated_predictions()
    shifts = np.array([-1.5, 0.0, 1.5])
    study = choose_calibration(labels, sigmoid(logit(true) + shifts), range(QUERIES), seed=0)
    assert isinstance(study.calibration, Platt)
    assert study.calibration.intercepts == pytest.approx((-shifts).tolist(), abs=0.25)


def test_near_duplicates_add_no_evidence() -> None:
    """Near-duplicates stay in one fold, and do not count as additional evidence.

    Every query appears twice, with a random label that both copies share. If the copies were
    separate evidence, the standard errors would be smaller by a factor of the square root of two.
    """
    rng = np.random.default_rng(0)
    raw = rng.random((400, 1))
    labels = rng.integers(0, 2, raw.shape).astype(float)
    once = choose_calibration(labels, raw, range(400), seed=0)
    twice = choose_calibration(
        np.vstack([labels] * 2), np.vstack([raw] * 2), [*range(400)] * 2, seed=0
    )
    for alone, copied in zip(once.trials, twice.trials, strict=True):
        assert copied.log_loss.stderr == pytest.approx(alone.log_loss.stderr, rel=0.15)
        assert copied.log_loss.value == pytest.approx(alone.log_loss.value, rel=0.1)


def test_unknown_labels_are_ignored_and_fractional_labels_are_weighted() -> None:
    """A label of 0.7 counts as 0.7 of a correct answer; an arm that was not asked is ignored."""
    true, labels = calibrated_predictions()
    partial_labels = labels.copy()
    partial_labels[::2, 0] = np.nan
    partial_labels[0] = np.nan
    study = choose_calibration(partial_labels, sigmoid(logit(true) * 3), range(QUERIES), seed=0)
    assert isinstance(study.calibration, Temperature)
    assert study.trials[0].log_loss.n == QUERIES - 1
    shares = choose_calibration(true, sigmoid(logit(true) * 3), range(QUERIES), seed=0)
    assert isinstance(shares.calibration, Temperature)
    assert shares.calibration.temperature == pytest.approx(3, rel=0.01)
