"""Learning curves: what routers and verifiers achieve that learn from fewer labelled queries.

For each size and each fold, a router and a verifier learn from a sample of the fold's training
queries, and are measured on the whole test fold. So all sizes are measured on the same queries.
Rows that are only used for training are left out, because the question is how many queries of one's
own are needed.

The router's probabilities that the verifier reads of its training queries come from routers that
were trained on two thirds of the sample, and those of the tested queries from the router of the
whole sample. `verification.py` trains another router for each pair of folds instead, which would
take four times as long. As there, nothing has seen the test fold.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from router_service.artifact import Measure
from router_service.measurement.rules import Entry, best_single, prices_in_usd, sweep
from router_service.measurement.simulation import JudgedAnswers
from router_service.measurement.statistics import auc_measure
from router_service.policies.verified import PRICES
from switchcraft_training.config import Grouping
from switchcraft_training.data.splits import Split, grouped_folds
from switchcraft_training.data.table import Floats
from switchcraft_training.evaluation.calibration import fit_platt
from switchcraft_training.models.verifier import FULL_EFFORT, FitEffort
from switchcraft_training.predictions import train_splits
from switchcraft_training.training_data import TrainingData
from switchcraft_training.verification import (
    AnswersRead,
    Evidence,
    VerifierPart,
    VerifierSettings,
    accept_by_price,
    measure_prices,
    operating_price,
    read_answers,
    study_part,
)
from switchcraft_training.workers import SINGLE_PROCESS, Workers

log = logging.getLogger(__name__)

INNER_FOLDS = 3
"""Parts of a sample. The router's probabilities of each part come from a router without it."""


@dataclass(frozen=True, slots=True)
class LearningPoint:
    """Results of routers and verifiers that learned from samples of one size.

    `queries` is the mean number of queries that they learned from. AUCs are means over arms: that
    of the router before an answer, and that of the verifier after a single answer. `once` is the
    most accurate rule that chooses one arm within the cost share of `verified`, which is the
    operating point of verified answers. Without a verifier, its values are None.
    """

    queries: float
    router_auc: Measure
    verifier_auc: Measure | None
    once: Entry
    verified: Entry | None


LearningCurve = tuple[LearningPoint, ...]


def learning_curves(
    data: TrainingData,
    recordings: Path,
    effort: FitEffort = FULL_EFFORT,
    workers: Workers = SINGLE_PROCESS,
) -> dict[Grouping, LearningCurve]:
    """Return the curve of each protocol that the run measures.

    If the run has a verifier, answers are read from the folder `recordings`; raises ConfigError if
    its source has outcomes without answers.
    """
    config, settings = data.config, data.config.evaluation
    answers: AnswersRead | None = None
    if config.verifier:
        answers = read_answers(config, data.table.measured(config.arms), recordings)
    protocols: list[Grouping] = [settings.grouped_by]
    if settings.known_tools:
        protocols.append("queries")
    return {
        grouping: learning_curve(
            data if grouping == settings.grouped_by else data.grouped_by(grouping),
            answers,
            effort,
            workers,
        )
        for grouping in protocols
    }


def learning_curve(
    data: TrainingData,
    answers: AnswersRead | None,
    effort: FitEffort = FULL_EFFORT,
    workers: Workers = SINGLE_PROCESS,
) -> LearningCurve:
    """Return the results for each size of `evaluation.learning_curve`, in ascending order.

    `answers` are those of the measured queries, or None without a verifier. A size
    beyond the training part of a fold means all its queries.
    """
    config, folds, is_nested = data.config, data.folds(), answers is not None
    largest = max(len(split.train) for split in folds)
    sizes = sorted({min(size, largest) for size in config.evaluation.learning_curve})
    samples = {
        (size, n): sample(data, split, size) for size in sizes for n, split in enumerate(folds)
    }
    parts = {key: router_splits(data, each, is_nested=is_nested) for key, each in samples.items()}
    trained = [split for splits in parts.values() for split in splits]
    predictions = train_splits(data, trained, workers, "router")
    studies = {}
    for key, splits in parts.items():
        probabilities = np.full((len(data.table.measured_rows), len(config.arms)), np.nan)
        for split in splits:
            probabilities[list(split.test)] = next(predictions).probabilities
        studies[key] = probabilities
    return tuple(
        measure_size(
            data,
            [samples[size, n] for n in range(len(folds))],
            [studies[size, n] for n in range(len(folds))],
            answers,
            effort,
            workers,
        )
        for size in sizes
    )


def sample(data: TrainingData, split: Split, size: int) -> Split:
    """Return a fold with at most this many training rows, in whole groups.

    Validation rows are sampled in the same proportion. The groups of a smaller sample are also in a
    larger one, except for groups that are too large for the smaller one.
    """

    def some(rows: Sequence[int], most: int) -> tuple[int, ...]:
        own = data.table.own_groups[list(rows)]
        chosen: list[int] = []
        for group in np.random.default_rng(data.config.seed).permutation(np.unique(own)):
            members = np.flatnonzero(own == group)
            if len(chosen) + len(members) <= most:
                chosen += [rows[place] for place in members.tolist()]
        return tuple(sorted(chosen))

    share = min(1.0, size / len(split.train))
    stopping = round(share * len(split.validation))
    return Split(some(split.train, size), some(split.validation, stopping), split.test)


def router_splits(data: TrainingData, split: Split, *, is_nested: bool) -> list[Split]:
    """Return the split that tests the fold, and if nested also those that test the sample."""
    splits = [split]
    if not is_nested:
        return splits
    rows = np.array(split.train)
    strata = [data.table.examples[row].category for row in split.train]
    inner = grouped_folds(strata, data.table.own_groups[rows], INNER_FOLDS, data.config.seed)
    for number in range(INNER_FOLDS):
        rest, tested = (tuple(rows[each].tolist()) for each in (inner != number, inner == number))
        splits.append(Split(rest, split.validation, tested))
    return splits


def measure_size(
    data: TrainingData,
    splits: Sequence[Split],
    probabilities: Sequence[Floats],
    answers: AnswersRead | None,
    effort: FitEffort,
    workers: Workers,
) -> LearningPoint:
    """Measure the routers and verifiers that learned from one sample of each fold.

    `probabilities`, (queries, arms) for each fold, are those of its sample and of its test rows.
    They are calibrated on the sample if there are `answers`. Otherwise only the test rows have
    probabilities, and rules use them as they are.
    """
    config = data.config
    table = data.table.measured(config.arms)
    folds = np.zeros(len(table), dtype=np.int64)
    held_out, costs_usd = np.empty(table.correct.shape), np.empty(table.correct.shape)
    calibrated = []
    for number, (split, own) in enumerate(zip(splits, probabilities, strict=True)):
        train, test = list(split.train), list(split.test)
        if answers is not None:
            own = fit_platt(table.correct[train], own[train]).apply(own)  # noqa: PLW2901
        calibrated.append(own)
        folds[test] = number
        held_out[test] = own[test]
        costs_usd[test] = data.expected_costs_usd(split.train)
    table = replace(table, folds=folds)
    rules = sweep(table, held_out, costs_usd)
    affordable = [each for each in rules if each.cost_share <= config.verified_cost_share]
    cheapest = min(rules, key=lambda entry: entry.cost_usd.value)
    point = LearningPoint(
        queries=float(np.mean([len(split.train) for split in splits])),
        router_auc=auc_measure(table.correct, held_out),
        verifier_auc=None,
        once=max(affordable or [cheapest], key=lambda entry: entry.accuracy.value),
        verified=None,
    )
    if answers is None:
        return point
    best_usd = float(table.cost_usd[:, best_single(table)].mean())
    everything = answers.with_predictions(table, held_out, costs_usd[0])
    parts = [
        VerifierPart(np.array(split.train), np.array(split.test), own, costs_usd[split.test[0]])
        for split, own in zip(splits, calibrated, strict=True)
    ]
    settings = VerifierSettings(everything, config.seed, effort, best_usd)
    studied = list(workers.map(study_part, settings, parts, "verifier"))
    judged = JudgedAnswers.join([each.judged for each in studied], [part.test for part in parts])
    by_price = accept_by_price(judged, parts, prices_in_usd(PRICES, best_usd))
    entries = measure_prices(table, by_price)
    corrupted = [each for part in studied for each in part.corrupted]
    alone = Evidence.of(answers.candidates, held_out, costs_usd, judged, corrupted).alone
    return replace(
        point,
        verifier_auc=auc_measure(table.correct, alone),
        verified=entries[operating_price(entries, config.verified_cost_share)],
    )
