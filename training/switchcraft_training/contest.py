"""The router, its parts and every baseline on the same folds -> what an evaluation is given."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from switchcraft_training.baselines.base import Baseline, held_out
from switchcraft_training.baselines.inputs import EncoderEmbedder, Views
from switchcraft_training.baselines.registry import baselines_to_fit
from switchcraft_training.baselines.simple import DatasetOracle, Heuristic
from switchcraft_training.evaluation.calibrating import (
    CalibrationStudy,
    calibrated_unseen,
    choose_calibration,
)
from switchcraft_training.evaluation.evaluate import Entrant, Floats, Kind, Outcomes, route
from switchcraft_training.evaluation.experiment import Experiment, Run
from switchcraft_training.evaluation.metrics import mean_auc
from switchcraft_training.models.encoders import load_encoder
from switchcraft_training.trial import Material, Trial, cross_validate

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Contest:
    """What was measured, how its probabilities were calibrated, and what int8 weights changed."""

    experiment: Experiment
    study: CalibrationStudy
    parity: dict[str, float]


def compete(material: Material) -> Contest | None:
    """Measure everything that the configuration asks for, on the data set's own rows.

    None in a process that is not the main one.
    """
    trial = cross_validate(material, exported=True)
    others = {seed: _seed(material, seed) for seed in material.config.evaluation.seeds}
    truncated = _truncated(material) if material.config.evaluation.truncated else None
    if trial is None or trial.probabilities is None:
        return None
    judge = _Judge(material, _study(material, trial))
    probabilities = judge.calibrated(trial.probabilities)
    config = material.config
    experiment = Experiment(
        table=material.dataset.table(config),
        probabilities=probabilities,
        expected_costs_usd=trial.expected_costs_usd,
        policies=config.policies,
        entrants=tuple(_baselines(material)) if config.evaluation.baselines else (),
        usage=material.dataset.usage(config),
        prices=config.prices,
        folds=trial.folds,
        variants=tuple(judge.variants(trial, truncated)),
        runs=tuple(judge.runs(trial, {seed: run for seed, run in others.items() if run})),
        calibrating=judge.study,
    )
    return Contest(experiment, judge.study, _parity(material, trial))


def _seed(material: Material, seed: int) -> Trial | None:
    return cross_validate(material.with_seed(seed), exported=False)


def _truncated(material: Material) -> Trial | None:
    """Return the trial of the router that reads the conversation cut at the window, unpacked.

    Rows that only teach stay packed: they have no label of the pool's arms.
    """
    views = Views(material.config.packing, load_encoder(material.config.encoder.source).tokenizer)
    dataset, packed = material.dataset, material.rows.packed
    own = [views.truncated(dataset.examples[row]) for row in dataset.own]
    extra = [packed[row].token_ids for row in dataset.extra]
    return cross_validate(material.with_ids([*own, *extra]), exported=False)


def _study(material: Material, trial: Trial) -> CalibrationStudy:
    own = list(material.dataset.own)
    labels = material.dataset.table(material.config).correct
    assert trial.probabilities is not None  # noqa: S101 - `compete` asks for them
    groups = material.rows.groups[own].tolist()
    return choose_calibration(labels, trial.probabilities, groups, material.config.seed)


@dataclass(frozen=True, slots=True)
class _Judge:
    """Makes what trials said comparable: one calibration, of queries it was not fitted on."""

    material: Material
    study: CalibrationStudy

    @property
    def outcomes(self) -> Outcomes:
        table = self.material.dataset.table(self.material.config)
        return Outcomes(table.arms, table.correct, table.cost_usd)

    def calibrated(self, probabilities: Floats) -> Floats:
        groups = self.material.rows.groups[list(self.material.dataset.own)].tolist()
        seed, method = self.material.config.seed, self.study.calibration.method
        return calibrated_unseen(self.outcomes.correct, probabilities, groups, seed, method)

    def entrant(self, name: str, trial: Trial, probabilities: Floats) -> Entrant:
        said = self.calibrated(probabilities)
        rule = self.material.config.policies["default"]
        return Entrant("router", name, route(said, trial.expected_costs_usd, rule), said)

    def variants(self, trial: Trial, truncated: Trial | None) -> Iterator[Entrant]:
        """Yield the router on truncated input, without each branch, and each branch alone."""
        shares = self.material.config.training.branch_shares
        if truncated is not None:
            yield self.entrant("naive truncation", truncated, truncated.mixed(shares))
        for name in shares if len(shares) > 1 else ():
            left = {other: share for other, share in shares.items() if other != name}
            yield self.entrant(f"without {name}", trial, trial.mixed(left))
        for name in shares if len(shares) > 2 else ():
            yield self.entrant(f"{name} alone", trial, trial.mixed({name: 1.0}))

    def runs(self, trial: Trial, others: dict[int, Trial]) -> Iterator[Run]:
        """Yield this seed and the others, all in full precision."""
        shares = self.material.config.training.branch_shares
        for seed, each in {self.material.config.seed: trial, **others}.items():
            said = self.calibrated(each.mixed(shares))
            yield Run(f"seed {seed}", self.outcomes, said, each.expected_costs_usd)


def _parity(material: Material, trial: Trial) -> dict[str, float]:
    """Compare what the int8 graphs said with full precision, on all held-out queries."""
    labels = material.dataset.table(material.config).correct
    full = trial.mixed(material.config.training.branch_shares)
    assert trial.probabilities is not None  # noqa: S101 - `compete` asks for them
    return {
        "int8 graph: mean difference": float(np.abs(full - trial.probabilities).mean()),
        "int8 graph: change of mean AUC": (
            mean_auc(labels, trial.probabilities) - mean_auc(labels, full)
        ),
    }


def _baselines(material: Material) -> Iterator[Entrant]:
    """Fit every baseline on the same folds; each has a fold of validation queries too."""
    config, dataset = material.config, material.dataset
    encoder = load_encoder(config.encoder.source)
    views = Views(config.packing, encoder.tokenizer)
    embed = EncoderEmbedder(encoder, material.workspace / "frozen")
    table = dataset.table(config)
    splits = dataset.folds(config.evaluation.folds, config.seed)
    rule = config.policies["default"]
    for baseline in baselines_to_fit(views, embed, truncated=config.evaluation.truncated):
        log.info("baseline: %s", baseline.name)
        said = held_out(baseline, table, splits, (rule,))
        order = np.argsort(said.rows)
        probabilities = None if said.probabilities is None else said.probabilities[order]
        yield Entrant(_kind(baseline), baseline.name, said.choices[rule][order], probabilities)


def _kind(baseline: Baseline) -> Kind:
    if isinstance(baseline, DatasetOracle):
        return "oracle"
    return "heuristic" if isinstance(baseline, Heuristic) else "baseline"
