"""A router's held-out predictions, calibrated and compared with its parts and with every baseline.

A run follows one of two protocols. With `folds`, every row is predicted by a router that has not
seen it, and another router is trained on all rows for the artifact. With `split`, as in the paper,
one router is trained, measured on a tenth of the rows, and shipped. The protocols differ only in
how they divide the rows (`Division`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from router_service.measurement.rules import route
from router_service.predictor.model import IDENTITY, Calibration
from switchcraft_training.baselines.base import held_out
from switchcraft_training.baselines.inputs import EncoderEmbedder, Views
from switchcraft_training.baselines.registry import baselines
from switchcraft_training.config import RunConfig
from switchcraft_training.data.splits import Division, Part, Split
from switchcraft_training.data.table import Floats
from switchcraft_training.evaluation.calibration import (
    CalibrationStudy,
    calibrated_unseen,
    choose_calibration,
)
from switchcraft_training.evaluation.evaluate import Entrant, Evaluation, Experiment
from switchcraft_training.evaluation.report import main_figures
from switchcraft_training.models.encoders import load_encoder
from switchcraft_training.predictions import HeldOutPredictions, RowPredictions, predict_held_out
from switchcraft_training.progress import stage, step
from switchcraft_training.training_data import TrainingData
from switchcraft_training.workers import SINGLE_PROCESS, Workers

log = logging.getLogger(__name__)

CROSS_VALIDATION = "cross-validation"
ROUTER = "router"
TRUNCATED = "truncated input"
CALIBRATION = "calibration"
BASELINES = "baselines"
MAIN_TABLE = "main table"
"""Names of stages."""

NAIVE_TRUNCATION = "naive truncation"
"""Name of the variant whose conversations are truncated at the window instead of packed."""


def experiment_stages(config: RunConfig) -> tuple[str, ...]:
    """Return the names of the stages of `run_experiment`, in their order."""
    settings = config.evaluation
    return (
        ROUTER if settings.protocol == "split" else CROSS_VALIDATION,
        *((TRUNCATED,) if settings.truncated else ()),
        *((CALIBRATION,) if config.calibration == "best" else ()),
        *((BASELINES,) if settings.baselines else ()),
        MAIN_TABLE,
    )


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """An experiment on each part that is reported, with its figures, and what it is based on.

    `calibration` is the one to ship.
    """

    division: Division
    predictions: HeldOutPredictions
    experiments: Mapping[Part, Experiment]
    figures: Mapping[Part, Evaluation]
    calibration: Calibration


def run_experiment(data: TrainingData, workers: Workers = SINGLE_PROCESS) -> ExperimentResult:
    """Measure held-out predictions, with the variants and baselines of the configuration.

    Folds are measured by the int8 graphs that they would ship. A router that ships itself is
    measured in full precision, as in the paper, and the run compares its int8 graph with it. Raises
    the errors of `TrainingData.divide`.
    """
    config, division = data.config, data.divide()
    settings, shares = config.evaluation, config.training.branch_shares

    # Train routers, and let them predict the held-out rows.
    ships = division.ships_measured
    log.info("training a router: seed=%d, rows=%s", config.seed, division.parts["test"][0].sizes())
    with stage(ROUTER if ships else CROSS_VALIDATION):
        predictions = predict_held_out(
            data, division, exported=not ships, kept=ships, workers=workers
        )
    truncated = None
    if settings.truncated:
        with stage(TRUNCATED):
            truncated = predict_held_out(data.truncated(), division, workers=workers)

    # Choose the calibration, and the rules that reach goals. Calibration methods are compared, and
    # rows of the tuning part calibrated, by other groups of that part.
    table = data.table.take(division.rows).select_arms(config.arms)
    table = replace(table, folds=predictions.folds)
    tuning = division.is_in(division.tuning_part)
    labels, groups = table.correct[tuning], table.groups[tuning].tolist()
    study: CalibrationStudy | None = None
    calibration: Calibration = IDENTITY
    if config.calibration == "best":
        with stage(CALIBRATION):
            study = choose_calibration(
                labels, predictions.probabilities[tuning], groups, config.seed
            )
        calibration = study.calibration

    def calibrate(raw: Floats) -> Floats:
        calibrated = np.array(calibration.apply(raw))
        method = calibration.method
        calibrated[tuning] = calibrated_unseen(labels, raw[tuning], groups, config.seed, method)
        return calibrated

    probabilities, costs_usd = calibrate(predictions.probabilities), predictions.expected_costs_usd
    data = data.with_rules(table.take(tuning), probabilities[tuning], costs_usd[tuning])
    rule = data.config.choosing_rule

    # Compare the router with its parts, and with baselines.
    def variant(name: str, source: RowPredictions, shares: Mapping[str, float]) -> Entrant:
        mixed = calibrate(source.mix(shares))
        return Entrant("router", name, route(mixed, costs_usd, rule), mixed)

    variants = []
    if truncated is not None:
        variants.append(variant(NAIVE_TRUNCATION, truncated, shares))
    variants += [variant(name, predictions, mix) for name, mix in other_mixes(shares).items()]
    entrants: list[Entrant] = []
    if settings.baselines:
        # Baselines get validation rows even if the router needs none.
        validated = data.divide(validated=True)
        with stage(BASELINES):
            entrants = [
                entrant.take(validated.order)
                for entrant in _baseline_entrants(data, validated.splits)
            ]

    def experiment(part: Part) -> Experiment:
        rows = division.is_in(part)
        return Experiment(
            table=table.take(rows),
            probabilities=probabilities[rows],
            expected_costs_usd=costs_usd[rows],
            policies=data.config.policies,
            entrants=tuple(entrant.take(rows) for entrant in entrants),
            prices=config.prices,
            variants=tuple(entrant.take(rows) for entrant in variants),
            calibrating=study,
        )

    with stage(MAIN_TABLE):
        experiments = {part: experiment(part) for part in division.parts}
        figures = {part: main_figures(each) for part, each in experiments.items()}
    return ExperimentResult(division, predictions, experiments, figures, calibration)


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


def _baseline_entrants(data: TrainingData, splits: Sequence[Split]) -> Iterator[Entrant]:
    """Fit every baseline on each split, and yield it with its choices for the splits' test rows."""
    config = data.config
    is_distilled = config.evaluation.baseline_encoder == "distilled"
    encoder = data.load_encoder() if is_distilled else load_encoder(config.encoder.source)
    views = Views(config.packing, encoder.tokenizer)
    embed = EncoderEmbedder(encoder, data.workspace / "frozen")
    table = data.table.select_arms(config.arms)
    rule = config.choosing_rule
    fitted = baselines(
        views,
        embed,
        None if config.unprofiled_arms else config.profiles,
        truncated=config.evaluation.truncated,
    )
    for baseline in fitted:
        log.info("fitting baseline: %s", baseline.name)
        with step(baseline.name):
            yield held_out(baseline, table, splits, rule)
