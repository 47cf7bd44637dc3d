"""Verifiers that are trained and tested on different queries, and the answers that they accept.

Nothing that judges a query has seen it or a near-duplicate, at any level: for each fold, the
verifier learns from the other folds, and the router's probabilities that it reads of each of their
queries come from a router that was trained without the query's fold and without the tested fold.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from router_service.artifact import (
    MANIFEST,
    Artifact,
    Manifest,
    read_manifest,
    save_manifest,
)
from router_service.checker.toolbox import Call
from router_service.core.errors import ConfigError
from router_service.measurement.goals import reach_goals
from router_service.measurement.held_out import (
    HELD_OUT,
    HeldOut,
    read_judgements,
    sample_rows,
    with_floors,
)
from router_service.measurement.rules import Bench, Entry, best_single, prices_in_usd
from router_service.measurement.simulation import (
    MAX_CANDIDATES,
    JudgedAnswers,
    Simulation,
    VerifiedAnswers,
    candidate_sets,
    count_judgements,
    quantize,
)
from router_service.policies.verified import PRICES, VERIFIED, Verified, is_verified
from router_service.verifier.answer_features import Candidates
from router_service.verifier.graphs import GAIN_FEATURES, Verifier, VerifierSpec
from switchcraft_training.checking.parsing import TEXT_PROBLEMS
from switchcraft_training.config import RunConfig, trained_config
from switchcraft_training.data.learned import LearnedQueries
from switchcraft_training.data.outcomes import CheckedAnswers
from switchcraft_training.data.splits import Split
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.dataset import open_source
from switchcraft_training.evaluation.calibration import calibrated_unseen, fit_platt
from switchcraft_training.models.corruptions import CorruptedAnswer, Corruption, corrupt_answers
from switchcraft_training.models.verifier import (
    FULL_EFFORT,
    FitEffort,
    TrainedVerifier,
    VerifierData,
    fit_verifier,
    read_candidates,
)
from switchcraft_training.predictions import HeldOutPredictions, cross_validate, train_splits
from switchcraft_training.progress import stage, step
from switchcraft_training.records import Example
from switchcraft_training.training_data import TrainingData, read_training_data
from switchcraft_training.workers import SINGLE_PROCESS, Workers

log = logging.getLogger(__name__)

NESTED_ROUTERS = "routers for the verifier"
VERIFIER = "verifier"
"""Names of the stages of `study_verifier`."""


def outcome(answers: VerifiedAnswers, table: Table) -> tuple[Floats, Floats, Floats]:
    """Return correctness, cost in USD and seconds of each query, (queries,) each.

    Costs and seconds that were not recorded count as 0.
    """
    costs_usd, seconds = np.nan_to_num(table.cost_usd), np.nan_to_num(table.seconds)
    return answers.outcome(table.correct, costs_usd, seconds)


def measure_prices(table: Table, by_price: Mapping[float, VerifiedAnswers]) -> dict[float, Entry]:
    """Return the accuracy and cost of the answers that are accepted at each price."""
    bench = Bench.of(table)
    measured = {}
    for price_usd, answers in by_price.items():
        correct, cost_usd, _ = outcome(answers, table)
        name = str(Verified(price_usd))
        measured[price_usd] = bench.measure("router", name, correct, cost_usd)
    return measured


CHUNK_QUERIES = 64
"""Queries whose sets of candidates are judged at once: with eight arms, 15,000 candidates."""


def judge_answers(
    directory: Path, spec: VerifierSpec, data: VerifierData, p_no_call: Floats | None = None
) -> JudgedAnswers:
    """Return the judgements of a verifier in a directory of all sets of candidates.

    `p_no_call`, (queries,), is the router's probability that a query asks for no call, if known.
    """
    verifier = Verifier(directory, spec)
    queries, arms = data.correct.shape
    # What is stored is what decides, so that a gateway finds the decisions of the study.
    probabilities = data.probabilities.astype(np.float32)
    sets, pairs = candidate_sets(arms), [*combinations(range(arms), 2)]
    p_correct = np.empty((queries, count_judgements(arms)), dtype=np.uint16)
    for start in range(0, queries, CHUNK_QUERIES):
        chunk = range(start, min(start + CHUNK_QUERIES, queries))
        judged = verifier.judge(
            (verifier.beliefs(data.features[query], probabilities[query]), candidates.only(each))
            for query, candidates in ((query, data.candidates[query]) for query in chunk)
            for each in sets
        )
        p_correct[chunk.start : chunk.stop] = quantize(judged).reshape(len(chunk), -1)
    relations = [candidates.relations for candidates in data.candidates]
    is_same = [[found[pair].is_same for pair in pairs] for found in relations]
    is_text = [[each.answers[arm].calls == () for arm in range(arms)] for each in data.candidates]
    unknown = np.full(queries, np.nan)
    return JudgedAnswers(
        p_correct=p_correct,
        is_same=np.array(is_same, dtype=np.bool_).reshape(queries, len(pairs)),
        is_text=np.array(is_text, dtype=np.bool_).reshape(queries, arms),
        probabilities=probabilities,
        p_no_call=(unknown if p_no_call is None else p_no_call).astype(np.float32),
        folds=np.zeros(queries, dtype=np.int64),
        reliabilities=np.array([spec.reliabilities]),
        gain_graphs=((directory / spec.gain_graph).read_bytes(),),
    )


@dataclass(frozen=True, slots=True)
class JudgedCorruption:
    """The probability of a correct answer before and after one thing in it was changed."""

    kind: Corruption
    before: float
    after: float


def judge_corrupted(
    directory: Path, spec: VerifierSpec, data: VerifierData
) -> tuple[JudgedCorruption, ...]:
    """Let a verifier judge each corrupted answer by itself, and the answer before the change.

    The verifier's graphs are in `directory`, and `spec` describes them.
    """
    verifier = Verifier(directory, spec)
    found = []
    for query, made in enumerate(data.corrupted):
        beliefs = verifier.beliefs(data.features[query], data.probabilities[query])
        for each in made:
            column = each.column
            original = data.candidates[query].only([column])
            changed = Candidates({column: each.answer}, {})
            before, after = verifier.judge([(beliefs, original), (beliefs, changed)]).tolist()
            found.append(JudgedCorruption(each.kind, before, after))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What other rules could decide by: answers, and held-out probabilities of all queries.

    `probabilities` and `expected_costs_usd`, (queries, arms), are those by which the router
    chooses. `cheapest` are the answers if the cheapest arms are asked for every query. `corrupted`
    are the verifier's judgements of correct answers in which one thing was changed.
    """

    candidates: Sequence[Candidates]
    probabilities: Floats
    expected_costs_usd: Floats
    cheapest: VerifiedAnswers
    corrupted: Sequence[JudgedCorruption]

    @classmethod
    def of(
        cls,
        candidates: Sequence[Candidates],
        probabilities: Floats,
        expected_costs_usd: Floats,
        judged: JudgedAnswers,
        corrupted: Sequence[JudgedCorruption],
    ) -> Evidence:
        """Return the evidence that a verifier's judgements of all candidates give."""
        order = np.argsort(expected_costs_usd, axis=1, kind="stable")[:, :MAX_CANDIDATES]
        queries, size = order.shape
        rows, steps = np.arange(queries), np.full((queries, size, size), np.nan)
        for asked in range(1, size + 1):
            steps[:, asked - 1, :asked] = judged.judge(rows, order[:, :asked])
        best = steps[:, -1].argmax(axis=1)
        return cls(
            candidates=candidates,
            probabilities=probabilities,
            expected_costs_usd=expected_costs_usd,
            cheapest=VerifiedAnswers(order, order[rows, best], steps),
            corrupted=corrupted,
        )


@dataclass(frozen=True, slots=True)
class VerifierStudy:
    """Held-out results of verified policies by price (USD), and the verifier that ships.

    `table` has the measured rows, and `judged` the verifiers' judgements of their answers.
    `price_usd` is the operating point of the policy `verified`,
    chosen among the prices at which it costs at most `cost_share` of the best single model.
    """

    table: Table
    judged: JudgedAnswers
    by_price: Mapping[float, VerifiedAnswers]
    verifier: TrainedVerifier
    price_usd: float
    cost_share: float
    evidence: Evidence
    streams_text_from: float | None = None
    floor: float = 0.0
    """The verifier's settings of the same names."""
    floored: Mapping[float, VerifiedAnswers] = field(default_factory=dict)
    """Held-out results of the same prices with the floor."""

    @property
    def operating(self) -> VerifiedAnswers:
        """Held-out results of `verified` at its price, with the floor."""
        return self.floored.get(self.price_usd, self.by_price[self.price_usd])

    def entries(self) -> dict[float, Entry]:
        """Return the measured accuracy and cost of each price."""
        return measure_prices(self.table, self.by_price)

    def add_to(self, directory: Path) -> Manifest:
        """Add the verifier and its measured frontier to an artifact, and return its manifest.

        The judgements join the artifact's held-out predictions if they are of the same queries. No
        answers are recorded of arms that joined the artifact later. The verifier expects their
        estimated accuracy of them, and the frontier, which was measured without them, is left out.
        """
        spec = self.verifier.export(directory, self.price_usd)
        changes = {"streams_text_from": self.streams_text_from, "floor": self.floor}
        spec = spec.model_copy(update=changes)
        manifest = read_manifest(directory / MANIFEST)
        joined = {arm: facts.accuracy.value for arm, facts in manifest.onboarded.items()}
        shares = dict(zip(self.table.arms, spec.reliabilities, strict=True)) | joined
        by_price, floored = (
            () if joined else tuple(entry.point for entry in measured.values())
            for measured in (self.entries(), measure_prices(self.table, self.floored))
        )
        reliabilities = tuple(shares[arm] for arm in manifest.arms)
        if HELD_OUT in manifest.files and manifest.arms == self.table.arms:
            judged, known = self.judged, read_judgements(directory / HELD_OUT)
            if known is not None and np.array_equal(known.folds, judged.folds):
                # The router stays as it is, and with it the probability that no call is asked for.
                is_unknown = np.isnan(judged.p_no_call)
                judged = replace(
                    judged, p_no_call=np.where(is_unknown, known.p_no_call, judged.p_no_call)
                )
            held_out = HeldOut.read(directory / HELD_OUT)
            rows = sample_rows(len(self.table))
            if np.array_equal(held_out.correct, self.table.correct[rows]) and np.array_equal(
                held_out.folds, self.table.folds[rows]
            ):
                held_out.write(directory, judged.take(rows))
        changed = manifest.model_copy(
            update={
                "verifier": spec.model_copy(update={"reliabilities": reliabilities}),
                "verified_frontier": by_price,
                "named_frontier": floored,
            }
        )
        if by_price:
            changed = reach_goals(changed, with_floors(by_price, floored))
        return save_manifest(directory, changed)


def require_answers(config: RunConfig, recordings: Path) -> CheckedAnswers:
    """Return the run's source; raises ConfigError if it holds outcomes without answers."""
    source = open_source(config.source, recordings)
    if not isinstance(source, CheckedAnswers):
        problem = (
            "holds outcomes without answers, and a verifier learns from answers; record answers"
            " with `switchcraft-train label`, or set `verifier: false`"
        )
        raise ConfigError(str(recordings / config.source.path), "source", problem)
    return source


def recorded_calls(
    source: CheckedAnswers, examples: Sequence[Example], arms: Sequence[str]
) -> list[dict[int, tuple[Call, ...] | None]]:
    """Return the calls of each arm's first recorded answer to each query, by column.

    The value None is an answer that cannot be parsed, and no calls is an answer in words.
    """
    rows = {example.id: row for row, example in enumerate(examples)}
    calls: list[dict[int, tuple[Call, ...] | None]] = [{} for _ in examples]
    for column, arm in enumerate(arms):
        for answer in source.source.answers(arm):
            row = rows.get(answer.example_id)
            if row is None or column in calls[row]:
                continue
            is_text = answer.calls is None and answer.problem in TEXT_PROBLEMS
            calls[row][column] = () if is_text else answer.calls
    return calls


class AnswersRead(NamedTuple):
    """The measured queries' recorded answers, and correct ones in which one thing was changed."""

    candidates: Sequence[Candidates]
    corrupted: Sequence[Sequence[CorruptedAnswer]]

    def with_predictions(
        self, table: Table, probabilities: Floats, costs_usd: Floats
    ) -> VerifierData:
        """Return what a verifier learns from: these answers to the queries of a packed table.

        `probabilities` are the router's, (queries, arms), and `costs_usd` the expected costs of the
        arms, (arms,).
        """
        return VerifierData(
            features=np.array([row.features for row in table.packed], dtype=np.float64),
            probabilities=probabilities,
            candidates=self.candidates,
            correct=table.correct,
            costs_usd=costs_usd,
            groups=table.groups,
            corrupted=self.corrupted,
        )


def read_answers(config: RunConfig, table: Table, recordings: Path) -> AnswersRead:
    """Read the answers to the queries of `table` from a run's source in the folder `recordings`.

    Raises ConfigError if the source holds outcomes without answers.
    """
    calls = recorded_calls(require_answers(config, recordings), table.examples, config.arms)
    candidates = read_candidates(table.examples, calls)
    is_correct = table.correct == 1
    corrupted = corrupt_answers(
        table.examples, calls, candidates, lambda row, arm: bool(is_correct[row, arm]), config.seed
    )
    return AnswersRead(candidates, corrupted)


def study_verifier(
    data: TrainingData,
    validation: HeldOutPredictions,
    calibrated: Floats,
    recordings: Path,
    effort: FitEffort = FULL_EFFORT,
    workers: Workers = SINGLE_PROCESS,
) -> VerifierStudy:
    """Cross-validate verifiers on the router's folds, choose the price, and fit the final verifier.

    `calibrated` are the router's held-out probabilities of the measured rows, (queries, arms). The
    answers are read from the folder `recordings`. Raises ConfigError if the run's source has
    outcomes without answers.
    """
    config = data.config
    table = replace(data.table.measured(config.arms), folds=validation.folds)
    best_usd = float(table.cost_usd[:, best_single(table)].mean())
    with stage(NESTED_ROUTERS):
        answers = read_answers(config, table, recordings)
        nested = nested_probabilities(data, validation, workers)
    everything = answers.with_predictions(
        table, calibrated, np.array(data.expected_costs_usd(data.table.measured_rows))
    )
    parts = []
    for fold in range(config.evaluation.folds):
        train, test = np.flatnonzero(table.folds != fold), np.flatnonzero(table.folds == fold)
        calibration = fit_platt(table.correct[train], nested[fold][train])
        costs_usd = validation.expected_costs_usd[test[0]]
        probabilities, p_no_call = calibration.apply(nested[fold]), validation.p_no_call[test]
        parts.append(VerifierPart(train, test, probabilities, costs_usd, p_no_call))
    # The verifier that ships learns from all queries, and is tested on none.
    rows = np.arange(len(table))
    parts.append(VerifierPart(rows, rows[:0], calibrated, everything.costs_usd))
    settings = VerifierSettings(everything, config.seed, effort, best_usd)
    with stage(VERIFIER):
        *tested, final = workers.map(study_part, settings, parts, "verifier")
        with step("answers by price"):
            judged = JudgedAnswers.join(
                [each.judged for each in tested], [part.test for part in parts[:-1]]
            )
            by_price = accept_by_price(judged, parts[:-1], prices_in_usd(PRICES, best_usd))
    evidence = Evidence.of(
        answers.candidates,
        calibrated,
        validation.expected_costs_usd,
        judged,
        [each for part in tested for each in part.corrupted],
    )
    cost_share = config.verified_cost_share
    study = VerifierStudy(
        table,
        judged,
        by_price,
        final.verifier,
        best_usd,
        cost_share,
        evidence,
        config.streams_text_from,
        config.verified_floor,
    )
    price_usd = operating_price(study.entries(), cost_share)
    rules = (rule for rule in config.policies.values() if is_verified(rule) and rule != VERIFIED)
    named_usd = {price_usd, *(float(rule.partition("=")[2]) for rule in rules)}
    by_price |= accept_by_price(judged, parts[:-1], named_usd)
    by_price = dict(sorted(by_price.items()))
    floored = accept_by_price(judged, parts[:-1], by_price, config.verified_floor)
    return replace(study, price_usd=price_usd, by_price=by_price, floored=floored)


@dataclass(frozen=True, slots=True)
class VerifierPart:
    """Queries that a verifier learns from, and those that it is tested on, by row.

    `probabilities`, (all queries, arms), are the router's, and `costs_usd` the arms' expected
    costs, (arms,). `p_no_call`, (tested queries,), is the router's probability that a query asks
    for no call, if known.
    """

    train: NDArray[np.int64]
    test: NDArray[np.int64]
    probabilities: Floats
    costs_usd: Floats
    p_no_call: Floats | None = None


@dataclass(frozen=True, slots=True)
class VerifierSettings:
    """What all parts of a study share. `best_usd` is the best single model's mean cost."""

    data: VerifierData
    seed: int
    effort: FitEffort
    best_usd: float


@dataclass(frozen=True, slots=True)
class StudiedPart:
    """A fitted verifier, and its judgements of the tested queries, in their order."""

    verifier: TrainedVerifier
    judged: JudgedAnswers
    corrupted: tuple[JudgedCorruption, ...]


def study_part(settings: VerifierSettings, part: VerifierPart) -> StudiedPart:
    """Fit a verifier, and let it judge all sets of answers to the tested queries."""
    data = replace(settings.data, probabilities=part.probabilities, costs_usd=part.costs_usd)
    fitted = fit_verifier(data.take(part.train), settings.seed, settings.effort)
    with TemporaryDirectory() as folder, step("judgements"):
        spec = fitted.export(Path(folder), settings.best_usd)
        tested = data.take(part.test)
        judged = judge_answers(Path(folder), spec, tested, part.p_no_call)
        corrupted = judge_corrupted(Path(folder), spec, tested)
    return StudiedPart(fitted, judged, corrupted)


def accept_by_price(
    judged: JudgedAnswers,
    parts: Sequence[VerifierPart],
    prices_usd: Iterable[float],
    floor: float = 0.0,
) -> dict[float, VerifiedAnswers]:
    """Return the accepted answers by price, from the judgements of the verifiers of all parts."""
    simulation = Simulation(judged, GAIN_FEATURES)
    costs_usd = np.array([part.costs_usd for part in parts])
    return {price: simulation.answer(costs_usd, price, floor=floor) for price in prices_usd}


def operating_price(entries: Mapping[float, Entry], cost_share: float) -> float:
    """Return the highest price whose cost stays within a share of the best single model's cost.

    If no price costs so little, return the lowest one. Accuracy does not decide: among the measured
    prices, the most accurate one is partly the luckiest one.
    """
    affordable = [price for price, entry in entries.items() if entry.cost_share <= cost_share]
    return max(affordable, default=min(entries))


def nested_probabilities(
    data: TrainingData, validation: HeldOutPredictions, workers: Workers = SINGLE_PROCESS
) -> list[Floats]:
    """Return for each fold the router's probabilities of all measured rows, (queries, arms).

    Rows of the fold itself are predicted as in `validation`. A row of another fold is predicted by
    a router that was trained without both folds, so that nothing about the tested fold reaches a
    verifier that learns from this row.
    """
    folds = data.folds()
    nested = [validation.mix(data.config.training.branch_shares) for _ in folds]
    groups = data.table.groups
    pairs = list(combinations(range(len(folds)), 2))
    splits = []
    for one, other in pairs:
        tested = (*folds[one].test, *folds[other].test)
        is_related = np.isin(groups, groups[list(tested)])
        seen = {*folds[one].train, *folds[one].teaching, *folds[other].train}
        known = sorted(seen - {*folds[one].validation})
        train, stopping = (
            tuple(row for row in rows if not is_related[row])
            for rows in (known, folds[one].validation)
        )
        splits.append(Split(train, stopping, tested))
    for (one, other), predicted in zip(
        pairs, train_splits(data, splits, workers, "router"), strict=True
    ):
        own, others = folds[one].test, folds[other].test
        nested[other][list(own)] = predicted.probabilities[: len(own)]
        nested[one][list(others)] = predicted.probabilities[len(own) :]
    return nested


def add_verifier(
    artifact: Path, data: Path, out: Path, workspace: Path, workers: Workers = SINGLE_PROCESS
) -> VerifierStudy:
    """Train a verifier for an artifact, and write the artifact with it to the directory `out`.

    The router stays as it is. Its configuration, which the artifact holds, and the recorded answers
    in `data` give the routers that the verifier learns from. Raises ConfigError if the artifact was
    trained on outcomes without answers or has too few of the arms that it was trained with, and the
    errors of `read_training_data` and `Artifact.load`.
    """
    loaded = Artifact.load(artifact)
    manifest = loaded.manifest
    config = trained_config(manifest)
    require_answers(config, data)
    config = with_current_pool(config, manifest)
    training = read_training_data(config, data, workspace)
    validation = cross_validate(training, workers)
    measured, held_out = training.table.measured(config.arms), validation.probabilities
    method, groups = manifest.calibration.method, measured.groups.tolist()
    calibrated = calibrated_unseen(measured.correct, held_out, groups, config.seed, method)
    study = study_verifier(training, validation, calibrated, data, workers=workers)
    shutil.copytree(artifact, out, dirs_exist_ok=True)
    known = LearnedQueries.read(loaded)
    if known is not None:
        known.merge(LearnedQueries.of(training.table.examples)).write(out)
    study.add_to(out)
    return study


def with_current_pool(config: RunConfig, manifest: Manifest) -> RunConfig:
    """Return an artifact's configuration with the trained arms that it still has, at their prices.

    Arms that joined without training are left out, because their answers are not recorded. Raises
    ConfigError if fewer than two arms are left: a verifier learns from the answers of several.
    """
    profile, joined = manifest.profile, manifest.onboarded
    pool = tuple(
        entry.model_copy(update={"price": profile[entry.arm].price})
        for entry in config.pool
        if entry.arm in profile and entry.arm not in joined
    )
    if len(pool) < 2:
        problem = (
            f"{len(pool)} of the arms that the artifact was trained with are left, and a verifier"
            " learns from the answers of two or more; train a router for the new pool with"
            " `switchcraft-train run`"
        )
        raise ConfigError(manifest.name, "pool", problem)
    return config.model_copy(update={"pool": pool})
