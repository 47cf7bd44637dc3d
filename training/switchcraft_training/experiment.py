"""Held-out comparison of the router with its parts and with every baseline."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from switchcraft_training.baselines.base import held_out
from switchcraft_training.baselines.inputs import EncoderEmbedder, Views
from switchcraft_training.baselines.registry import baselines_to_fit
from switchcraft_training.baselines.simple import DatasetOracle, Heuristic
from switchcraft_training.cross_validation import CrossValidation, TrainingData, cross_validate
from switchcraft_training.data.splits import fold_table
from switchcraft_training.data.table import Floats
from switchcraft_training.evaluation.calibrating import (
    CalibrationStudy,
    calibrated_unseen,
    choose_calibration,
)
from switchcraft_training.evaluation.evaluate import Entrant, Kind, route
from switchcraft_training.evaluation.experiment import Experiment, Run
from switchcraft_training.evaluation.metrics import mean_auc
from switchcraft_training.models.encoders import load_encoder

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """An experiment, the choice of its calibration, and the error that int8 weights cause."""

    experiment: Experiment
    study: CalibrationStudy
    parity: dict[str, float]


def run_experiment(data: TrainingData) -> ExperimentResult | None:
    """Measure everything that the configuration names, on the measured rows.

    Return None in every process except the main one.
    """
    config = data.config
    validation = cross_validate(data, exported=True)
    seeds = {
        seed: cross_validate(data.with_seed(seed), exported=False)
        for seed in config.evaluation.seeds
    }
    truncated = None
    if config.evaluation.truncated:
        truncated = cross_validate(_truncate_input(data), exported=False)
    if validation is None or validation.probabilities is None:
        return None

    table = replace(data.table.measured(config.arms), folds=validation.folds)
    labels, groups = table.correct, table.groups.tolist()
    study = choose_calibration(labels, validation.probabilities, groups, config.seed)
    method, shares = study.calibration.method, config.training.branch_shares

    def calibrate(probabilities: Floats) -> Floats:
        return calibrated_unseen(labels, probabilities, groups, config.seed, method)

    def variant(name: str, source: CrossValidation, shares: Mapping[str, float]) -> Entrant:
        probabilities = calibrate(source.mix(shares))
        choices = route(probabilities, source.expected_costs_usd, config.policies["default"])
        return Entrant("router", name, choices, probabilities)

    variants = []
    if truncated is not None:
        variants.append(variant("naive truncation", truncated, shares))
    if len(shares) > 1:
        for name in shares:
            others = {other: share for other, share in shares.items() if other != name}
            variants.append(variant(f"without {name}", validation, others))
    if len(shares) > 2:
        variants += [variant(f"{name} alone", validation, {name: 1.0}) for name in shares]
    runs = [
        Run(f"seed {seed}", table, calibrate(source.mix(shares)), source.expected_costs_usd)
        for seed, source in {config.seed: validation, **seeds}.items()
        if source is not None
    ]
    experiment = Experiment(
        table=table,
        probabilities=calibrate(validation.probabilities),
        expected_costs_usd=validation.expected_costs_usd,
        policies=config.policies,
        entrants=tuple(_baseline_entrants(data)) if config.evaluation.baselines else (),
        prices=config.prices,
        variants=tuple(variants),
        runs=tuple(runs),
        calibrating=study,
    )
    exact = validation.mix(shares)
    parity = {
        "int8 graph: mean difference": float(np.abs(exact - validation.probabilities).mean()),
        "int8 graph: change of mean AUC": (
            mean_auc(labels, validation.probabilities) - mean_auc(labels, exact)
        ),
    }
    return ExperimentResult(experiment, study, parity)


def _truncate_input(data: TrainingData) -> TrainingData:
    """Return data whose measured rows are truncated at the window instead of packed.

    Rows that are only used for training stay packed, because they have no labels of the pool's
    arms.
    """
    table = data.table
    views = Views(data.config.packing, load_encoder(data.config.encoder.source).tokenizer)
    ids = [row.token_ids for row in table.packed]
    for row in table.measured_rows:
        ids[row] = views.truncated(table.examples[row])
    return data.with_token_ids(ids)


def _baseline_entrants(data: TrainingData) -> Iterator[Entrant]:
    """Fit every baseline on the same folds, and use each fold's validation queries."""
    config = data.config
    encoder = load_encoder(config.encoder.source)
    views = Views(config.packing, encoder.tokenizer)
    embed = EncoderEmbedder(encoder, data.workspace / "frozen")
    table = data.table.measured(config.arms)
    splits = fold_table(table, config.evaluation.folds, config.seed)
    rule = config.policies["default"]
    for baseline in baselines_to_fit(views, embed, truncated=config.evaluation.truncated):
        log.info("baseline: %s", baseline.name)
        predicted = held_out(baseline, table, splits, (rule,))
        order = np.argsort(predicted.rows)
        kind: Kind = "baseline"
        if isinstance(baseline, DatasetOracle):
            kind = "oracle"
        elif isinstance(baseline, Heuristic):
            kind = "heuristic"
        probabilities = predicted.probabilities
        if probabilities is not None:
            probabilities = probabilities[order]
        yield Entrant(kind, baseline.name, predicted.choices[rule][order], probabilities)
