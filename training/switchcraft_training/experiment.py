"""A router's held-out predictions, calibrated and compared with the router's parts.

A router that has not seen a row predicts it. Another router, which is trained on all rows, ships.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from router_service.measurement.rules import route
from router_service.predictor.model import IDENTITY, Calibration
from switchcraft_training.config import RunConfig
from switchcraft_training.data.table import Floats
from switchcraft_training.evaluation.calibration import (
    CalibrationStudy,
    calibrated_unseen,
    choose_calibration,
)
from switchcraft_training.evaluation.evaluate import Entrant, Evaluation, Experiment
from switchcraft_training.evaluation.report import main_figures
from switchcraft_training.predictions import HeldOutPredictions, cross_validate
from switchcraft_training.progress import stage
from switchcraft_training.training_data import TrainingData
from switchcraft_training.workers import SINGLE_PROCESS, Workers

log = logging.getLogger(__name__)

CROSS_VALIDATION = "cross-validation"
CALIBRATION = "calibration"
MAIN_TABLE = "main table"
"""Names of stages."""


def experiment_stages(config: RunConfig) -> tuple[str, ...]:
    """Return the names of the stages of `run_experiment`, in their order."""
    return (
        CROSS_VALIDATION,
        *((CALIBRATION,) if config.calibration == "best" else ()),
        MAIN_TABLE,
    )


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """An experiment with its figures, what it is based on, and the calibration to ship."""

    predictions: HeldOutPredictions
    experiment: Experiment
    figures: Evaluation
    calibration: Calibration


def run_experiment(data: TrainingData, workers: Workers = SINGLE_PROCESS) -> ExperimentResult:
    """Measure held-out predictions, by the int8 graphs that the folds' routers would ship.

    Raises UnbalancedFoldsError if the rows cannot be divided into folds.
    """
    config, shares = data.config, data.config.training.branch_shares

    # Train routers, and let them predict the held-out rows.
    log.info("training a router for each fold: seed=%d", config.seed)
    with stage(CROSS_VALIDATION):
        predictions = cross_validate(data, workers, exported=True)

    # Choose the calibration, and the rules that reach goals. Calibration methods are compared, and
    # rows calibrated, by other groups of rows.
    table = replace(data.table.measured(config.arms), folds=predictions.folds)
    groups = table.groups.tolist()
    study: CalibrationStudy | None = None
    calibration: Calibration = IDENTITY
    if config.calibration == "best":
        with stage(CALIBRATION):
            study = choose_calibration(
                table.correct, predictions.probabilities, groups, config.seed
            )
        calibration = study.calibration

    def calibrate(raw: Floats) -> Floats:
        return calibrated_unseen(table.correct, raw, groups, config.seed, calibration.method)

    probabilities, costs_usd = calibrate(predictions.probabilities), predictions.expected_costs_usd
    config = data.with_rules(table, probabilities, costs_usd).config

    # Compare the router with its parts.
    def variant(name: str, mix: Mapping[str, float]) -> Entrant:
        mixed = calibrate(predictions.mix(mix))
        return Entrant("router", name, route(mixed, costs_usd, config.choosing_rule), mixed)

    experiment = Experiment(
        table=table,
        probabilities=probabilities,
        expected_costs_usd=costs_usd,
        policies=config.policies,
        variants=tuple(variant(name, mix) for name, mix in other_mixes(shares).items()),
        calibrating=study,
    )
    with stage(MAIN_TABLE):
        figures = main_figures(experiment)
    return ExperimentResult(predictions, experiment, figures, calibration)


def other_mixes(shares: Mapping[str, float]) -> dict[str, Mapping[str, float]]:
    """Return the router's variants for comparison: without one branch, and with a single branch."""
    mixes: dict[str, Mapping[str, float]] = {}
    if len(shares) > 1:
        for name in shares:
            others = {other: share for other, share in shares.items() if other != name}
            mixes[f"without {name}"] = others
    if len(shares) > 2:
        mixes |= {f"{name} alone": {name: 1.0} for name in shares}
    return mixes
