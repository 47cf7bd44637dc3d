"""Choice of the calibration method by cross-validation, and calibration metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar
from sklearn.model_selection import GroupKFold

from router_service.artifact import Measure
from router_service.measurement.statistics import auc_measure, mean_measure
from router_service.predictor.model import (
    IDENTITY,
    NEAREST,
    Calibration,
    Method,
    Platt,
    Temperature,
    logit,
    sigmoid,
)
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.evaluation.metrics import (
    CALIBRATION_BINS,
    bin_of,
    brier_measure,
    calibration_measure,
    f1_measures,
)

FOLDS = 5
LOG_TEMPERATURES = (-3.0, 3.0)
"""Bounds of the search for the temperature's natural logarithm. Beyond these bounds (a factor of
20), all calibrated probabilities are near 0.5, or all are near 0 or 1."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Held-out measurements of one calibration method.

    `log_loss` is in nats per prediction. `behind` is this log loss minus the least log loss of any
    method, with the standard error of that difference on the same queries. `error` is the expected
    calibration error, and `brier` the Brier score.
    """

    method: Method
    log_loss: Measure
    behind: Measure
    error: Measure
    brier: Measure


@dataclass(frozen=True, slots=True)
class CalibrationStudy:
    """Trials of all methods, simplest first, and the chosen calibration, fitted on all queries.

    `folds` is the number of cross-validation folds, which keep groups together.
    """

    trials: tuple[Trial, ...]
    calibration: Calibration
    folds: int


def choose_calibration(
    labels: Floats, probabilities: Floats, groups: Sequence[int], seed: int
) -> CalibrationStudy:
    """Choose a method by cross-validation over groups, and fit it on all queries.

    Labels and raw probabilities are (queries, arms). A label may be fractional, and is NaN if the
    arm was not asked. The choice is the simplest method within one standard error of the least log
    loss. This standard error is that of the difference on the same queries, clustered by group.
    With a single group, no queries can be held out, so the choice is to leave probabilities
    unchanged.
    """
    asked = ~np.isnan(labels).all(axis=1)
    labels, probabilities = labels[asked], probabilities[asked]
    _, numbers = np.unique(np.asarray(groups)[asked], return_inverse=True)
    folds = min(FOLDS, int(numbers.max()) + 1)
    if folds < 2:
        trials = _trials(labels, {"identity": probabilities}, numbers)
        return CalibrationStudy(trials, IDENTITY, folds)
    kfold = GroupKFold(folds, shuffle=True, random_state=seed)
    held_out = _held_out(labels, probabilities, kfold, numbers, FITS)
    trials = _trials(labels, held_out, numbers)
    chosen = next(trial for trial in trials if trial.behind.value <= trial.behind.stderr)
    return CalibrationStudy(trials, FITS[chosen.method](labels, probabilities), folds)


def calibrated_unseen(
    labels: Floats, probabilities: Floats, groups: Sequence[int], seed: int, method: Method
) -> Floats:
    """Return probabilities (queries, arms), each calibrated on queries of other groups.

    The folds are the same as in `choose_calibration`. With a single group, the probabilities stay
    unchanged.
    """
    _, numbers = np.unique(np.asarray(groups), return_inverse=True)
    folds = min(FOLDS, int(numbers.max()) + 1)
    if folds < 2:
        return probabilities
    kfold = GroupKFold(folds, shuffle=True, random_state=seed)
    return _held_out(labels, probabilities, kfold, numbers, (method,))[method]


def _held_out(
    labels: Floats,
    probabilities: Floats,
    kfold: GroupKFold,
    groups: NDArray[np.int64],
    methods: Iterable[Method],
) -> dict[Method, Floats]:
    """Return the held-out probabilities of each method, (queries, arms)."""
    held_out = {method: np.empty_like(probabilities) for method in methods}
    for fitted, tested in kfold.split(labels, groups=groups):
        for method, calibrated in held_out.items():
            calibration = FITS[method](labels[fitted], probabilities[fitted])
            calibrated[tested] = calibration.apply(probabilities[tested])
    return held_out


def _trials(
    labels: Floats, held_out: Mapping[Method, Floats], groups: NDArray[np.int64]
) -> tuple[Trial, ...]:
    losses = {method: log_losses(labels, each) for method, each in held_out.items()}
    least = min(losses.values(), key=lambda each: float(each.mean()))
    return tuple(
        Trial(
            method=method,
            log_loss=_grouped_mean(losses[method], groups),
            behind=_grouped_mean(losses[method] - least, groups),
            error=calibration_measure(labels, each),
            brier=brier_measure(labels, each),
        )
        for method, each in held_out.items()
    )


def log_losses(labels: Floats, probabilities: Floats) -> Floats:
    """Return each query's cross-entropy in nats, averaged over the arms that were asked."""
    inside = np.clip(probabilities, NEAREST, 1 - NEAREST)
    losses: Floats = np.nanmean(-labels * np.log(inside) - (1 - labels) * np.log1p(-inside), axis=1)
    return losses


def _grouped_mean(values: Floats, groups: NDArray[np.int64]) -> Measure:
    """Return a mean and its standard error, clustered by group."""
    totals = np.bincount(groups, weights=values - values.mean())
    few = len(totals) / max(1, len(totals) - 1)
    stderr = float(np.sqrt(few * (totals**2).sum())) / len(values)
    return Measure(value=float(values.mean()), stderr=stderr, n=len(values))


def fit_temperature(labels: Floats, probabilities: Floats) -> Calibration:
    """Fit the temperature, shared by all arms, that minimizes log loss."""
    logits = logit(probabilities)

    def loss(log_temperature: float) -> float:
        return float(log_losses(labels, sigmoid(logits / np.exp(log_temperature))).mean())

    found = minimize_scalar(loss, bounds=LOG_TEMPERATURES, method="bounded")
    return Temperature(temperature=float(np.exp(found.x)))


def fit_platt(labels: Floats, probabilities: Floats) -> Calibration:
    """Fit a logistic regression for each arm; an arm that was never asked stays unchanged.

    Slopes are at least 0. Platt's softened targets, (right + 1) / (right + 2) and 1 / (wrong + 2),
    keep the fit finite if all answers were right (Platt, 1999, section 2.2).
    """

    def fit_line(labels: Floats, logits: Floats) -> tuple[float, float]:
        right, wrong = labels.sum(), (1 - labels).sum()
        targets = labels * (right + 1) / (right + 2) + (1 - labels) / (wrong + 2)

        def loss(line: Floats) -> tuple[float, Floats]:
            z = line[0] * logits + line[1]
            off = sigmoid(z) - targets
            gradient = np.array([off @ logits, off.sum()])
            return float((np.logaddexp(0, z) - targets * z).sum()), gradient

        found = minimize(
            loss, [1.0, 0.0], jac=True, method="L-BFGS-B", bounds=[(0, None), (None, None)]
        )
        return float(found.x[0]), float(found.x[1])

    lines = []
    for column, logits in zip(labels.T, logit(probabilities).T, strict=True):
        asked = ~np.isnan(column)
        lines.append(fit_line(column[asked], logits[asked]))
    return Platt(
        slopes=tuple(slope for slope, _ in lines),
        intercepts=tuple(intercept for _, intercept in lines),
    )


FITS: Mapping[Method, Callable[[Floats, Floats], Calibration]] = {
    "identity": lambda _labels, _probabilities: IDENTITY,
    "temperature": fit_temperature,
    "platt": fit_platt,
}
"""Functions that fit a calibration to labels and raw probabilities, (queries, arms) each.

The simplest method comes first.
"""


@dataclass(frozen=True, slots=True)
class Bin:
    """A reliability bin: predictions with similar probabilities.

    `confidence` is their mean probability, and `accuracy` the share that was correct. `accuracy.n`
    counts predictions; a query has one prediction per arm.
    """

    lower: float
    upper: float
    confidence: float
    accuracy: Measure


@dataclass(frozen=True, slots=True)
class ArmCalibration:
    """Calibration of one arm, or of all arms together.

    `confidence` is the mean probability, `error` the expected calibration error, `brier` the Brier
    score, and `f1` the F1 of the prediction "correct" at probability 0.5: of all arms together, the
    micro-F1.
    """

    name: str
    accuracy: Measure
    confidence: float
    auc: Measure
    error: Measure
    brier: Measure
    f1: Measure


@dataclass(frozen=True, slots=True)
class CalibrationFigures:
    """Reliability bins, the calibration of all arms together and then of each arm, and macro-F1."""

    bins: tuple[Bin, ...]
    arms: tuple[ArmCalibration, ...]
    macro_f1: Measure


def calibration_figures(table: Table, probabilities: Floats) -> CalibrationFigures:
    """Return how well predicted probabilities (queries, arms) match the recorded correctness."""
    labels, f1 = table.correct, f1_measures(table.correct, probabilities)
    return CalibrationFigures(
        bins=reliability(labels, probabilities),
        arms=(
            _arm("all arms", labels, probabilities, f1.micro),
            *(
                _arm(arm, labels[:, [i]], probabilities[:, [i]], f1.arms[i])
                for i, arm in enumerate(table.arms)
            ),
        ),
        macro_f1=f1.macro,
    )


def reliability(labels: Floats, probabilities: Floats) -> tuple[Bin, ...]:
    """Return reliability bins of equal width over all arms together; empty bins are omitted."""
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


def _arm(name: str, labels: Floats, probabilities: Floats, f1: Measure) -> ArmCalibration:
    return ArmCalibration(
        name=name,
        accuracy=mean_measure(labels.mean(axis=1)),
        confidence=float(probabilities.mean()),
        auc=auc_measure(labels, probabilities),
        error=calibration_measure(labels, probabilities),
        brier=brier_measure(labels, probabilities),
        f1=f1,
    )
