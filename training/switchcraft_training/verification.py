"""Verifiers that are trained and tested on different queries, and the answers that they accept.

Nothing that judges a query has seen it or a near-duplicate, at any level: for each fold, the
verifier learns from the other folds, and the router's probabilities that it reads of each of their
queries come from a router that was trained without the query's fold and without the tested fold.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import yaml
from numpy.typing import NDArray

from router_service.core.answer_features import Candidates
from router_service.core.artifact import (
    MANIFEST,
    Artifact,
    Manifest,
    file_hashes,
    read_manifest,
    save_manifest,
)
from router_service.core.calls.toolbox import Call
from router_service.core.errors import ConfigError
from router_service.core.measurement import PRICE_DIGITS, Bench, Choices, Entry, best_single
from router_service.core.selection import Verified
from router_service.core.verifier import Verifier
from switchcraft_training.checking.parsing import TEXT_PROBLEMS
from switchcraft_training.config import RunConfig
from switchcraft_training.data.learned import LearnedQueries
from switchcraft_training.data.outcomes import CheckedAnswers
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.dataset import load_dataset, open_source, require_measured_rows
from switchcraft_training.evaluation.calibration import calibrated_unseen, fit_platt
from switchcraft_training.experiment import (
    CrossValidation,
    HeldOutPart,
    TrainingData,
    cross_validate,
    mix_branches,
    pack_table,
    train_parts,
)
from switchcraft_training.models.encoders import load_encoder
from switchcraft_training.models.verifier import (
    FULL_EFFORT,
    MAX_CANDIDATES,
    FitEffort,
    TrainedVerifier,
    VerifierData,
    fit_verifier,
    read_candidates,
)
from switchcraft_training.progress import stage, step
from switchcraft_training.records import Example
from switchcraft_training.workers import SINGLE_PROCESS, Workers

log = logging.getLogger(__name__)

NESTED_ROUTERS = "routers for the verifier"
VERIFIER = "verifier"
"""Names of the stages of `study_verifier`."""

PRICES = (
    *(0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0),
    *(5.0, 6.0, 8.0, 12.0, 16.0, 20.0, 25.0, 30.0, 40.0),
)
"""Prices of a correct answer that are measured, in units of the best single model's mean cost."""


@dataclass(frozen=True, slots=True)
class VerifiedAnswers:
    """What a verified policy did with each query.

    `asked` are the columns of the arms in the order in which they were asked. `accepted`,
    (queries,), is the column of the accepted answer, and `p_correct`, (queries,), its probability.
    `judged` holds the probability of every candidate by column, after each of the steps.
    """

    asked: tuple[tuple[int, ...], ...]
    accepted: Choices
    p_correct: Floats
    judged: tuple[tuple[Mapping[int, float], ...], ...]

    def outcome(self, table: Table) -> tuple[Floats, Floats, Floats]:
        """Return correctness, cost in USD and seconds, (queries,) each; candidates are added up."""
        correct = table.correct[np.arange(len(self.accepted)), self.accepted]
        costs, seconds = (
            np.array([layer[row, list(asked)].sum() for row, asked in enumerate(self.asked)])
            for layer in (np.nan_to_num(table.cost_usd), np.nan_to_num(table.seconds))
        )
        return correct, costs, seconds


def answer_verified(
    verifier: Verifier, data: VerifierData, price_usd: float, max_candidates: int = MAX_CANDIDATES
) -> VerifiedAnswers:
    """Answer every query as the gateway would with the policy `verified` at this price."""
    costs = data.costs_usd / price_usd
    asked, accepted, p_correct, judged = [], [], [], []
    for query, candidates in enumerate(data.candidates):
        beliefs = verifier.beliefs(data.features[query], data.probabilities[query])
        present: tuple[int, ...] = ()
        history = []
        while True:
            askable = [column for column in range(len(costs)) if column not in present]
            if len(present) >= max_candidates:
                askable = []
            step = verifier.choose_step(beliefs, candidates.only(present), costs, askable)
            history.append(step.p_correct)
            if step.accept is not None:
                break
            present += step.ask
        asked.append(present)
        accepted.append(step.accept)
        p_correct.append(step.p_correct[step.accept])
        judged.append(tuple(history[1:]))
    return VerifiedAnswers(tuple(asked), np.array(accepted), np.array(p_correct), tuple(judged))


def answer_cheapest(
    verifier: Verifier, data: VerifierData, max_candidates: int = MAX_CANDIDATES
) -> VerifiedAnswers:
    """Ask the cheapest arms for every query, regardless of the verifier's estimates."""
    order: list[int] = np.argsort(data.costs_usd, kind="stable").tolist()
    asked = tuple(order[:max_candidates])
    judged: list[tuple[Mapping[int, float], ...]] = []
    for query, candidates in enumerate(data.candidates):
        beliefs = verifier.beliefs(data.features[query], data.probabilities[query])
        history = [
            verifier.p_correct(beliefs, candidates.only(asked[: size + 1]))
            for size in range(len(asked))
        ]
        judged.append(tuple(history))
    best = [max(steps[-1], key=steps[-1].__getitem__) for steps in judged]
    return VerifiedAnswers(
        asked=(asked,) * len(judged),
        accepted=np.array(best),
        p_correct=np.array([steps[-1][arm] for steps, arm in zip(judged, best, strict=True)]),
        judged=tuple(judged),
    )


def judge_alone(verifier: Verifier, data: VerifierData) -> Floats:
    """Return the probability of each answer without knowledge of the others, (queries, arms)."""
    alone = np.empty(data.correct.shape)
    for query, candidates in enumerate(data.candidates):
        beliefs = verifier.beliefs(data.features[query], data.probabilities[query])
        for column in range(len(data.costs_usd)):
            judged = verifier.p_correct(beliefs, candidates.only([column]))
            alone[query, column] = judged[column]
    return alone


@dataclass(frozen=True, slots=True)
class Evidence:
    """What other rules could decide by: answers, and held-out probabilities of all queries.

    `probabilities` and `expected_costs_usd`, (queries, arms), are those by which the router
    chooses. `cheapest` are the verifier's judgements of the cheapest arms' answers, and `alone`,
    (queries, arms), those of each answer without the others.
    """

    candidates: Sequence[Candidates]
    probabilities: Floats
    expected_costs_usd: Floats
    cheapest: VerifiedAnswers
    alone: Floats


@dataclass(frozen=True, slots=True)
class VerifierStudy:
    """Held-out results of verified policies by price (USD), and the verifier that ships.

    `table` has the measured rows. `price_usd` is the operating point of the policy `verified`,
    chosen among the prices at which it costs at most `cost_share` of the best single model.
    """

    table: Table
    by_price: Mapping[float, VerifiedAnswers]
    verifier: TrainedVerifier
    price_usd: float
    cost_share: float
    evidence: Evidence
    streams_text_from: float | None = None
    """The verifier's setting of the same name."""

    def entries(self) -> dict[float, Entry]:
        """Return the measured accuracy and cost of each price."""
        bench = Bench.of(self.table)
        measured = {}
        for price_usd, answers in self.by_price.items():
            correct, cost_usd, _ = answers.outcome(self.table)
            name = str(Verified(price_usd))
            measured[price_usd] = bench.measure("router", name, correct, cost_usd)
        return measured

    def add_to(self, directory: Path) -> Manifest:
        """Add the verifier and its measured frontier to an artifact, and return its manifest.

        No answers are recorded of arms that joined the artifact later. The verifier expects their
        estimated accuracy of them, and the frontier, which was measured without them, is left out.
        """
        spec = self.verifier.export(directory, self.price_usd)
        spec = spec.model_copy(update={"streams_text_from": self.streams_text_from})
        manifest = read_manifest(directory / MANIFEST)
        joined = {arm: facts.accuracy.value for arm, facts in manifest.onboarded.items()}
        shares = dict(zip(self.table.arms, spec.reliabilities, strict=True)) | joined
        points = () if joined else tuple(entry.point for entry in self.entries().values())
        reliabilities = tuple(shares[arm] for arm in manifest.arms)
        changed = manifest.model_copy(
            update={
                "verifier": spec.model_copy(update={"reliabilities": reliabilities}),
                "verified_frontier": points,
                "files": file_hashes(directory),
            }
        )
        save_manifest(directory, changed)
        return changed


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


def study_verifier(
    data: TrainingData,
    validation: CrossValidation,
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
    source = require_answers(config, recordings)
    calls = recorded_calls(source, table.examples, config.arms)
    features = np.array([row.features for row in table.packed], dtype=np.float64)
    best_usd = float(table.cost_usd[:, best_single(table)].mean())
    with stage(NESTED_ROUTERS):
        candidates = read_candidates(table.examples, calls)
        nested = nested_probabilities(data, validation, workers)
    everything = VerifierData(
        features=features,
        probabilities=calibrated,
        candidates=candidates,
        correct=table.correct,
        costs_usd=np.array(data.expected_costs_usd(range(len(data.table.measured_rows)))),
        groups=table.groups,
    )
    prices_usd = tuple(float(f"{price * best_usd:.{PRICE_DIGITS}g}") for price in PRICES)
    parts = []
    for fold in range(config.evaluation.folds):
        train, test = np.flatnonzero(table.folds != fold), np.flatnonzero(table.folds == fold)
        calibration = fit_platt(table.correct[train], nested[fold][train])
        costs_usd = validation.expected_costs_usd[test[0]]
        parts.append(VerifierPart(train, test, calibration.apply(nested[fold]), costs_usd))
    # The verifier that ships learns from all queries, and is tested on none.
    rows = np.arange(len(table))
    parts.append(VerifierPart(rows, rows[:0], calibrated, everything.costs_usd))
    settings = VerifierSettings(everything, config.seed, effort, best_usd, prices_usd)
    with stage(VERIFIER):
        *tested, final = workers.map(study_part, settings, parts, "verifier")
    tests = [part.test for part in parts[:-1]]
    by_price = {
        price: in_row_order(tests, [each.by_price[price] for each in tested])
        for price in prices_usd
    }
    alone = np.concatenate([each.alone for each in tested])[np.argsort(np.concatenate(tests))]
    evidence = Evidence(
        candidates=everything.candidates,
        probabilities=calibrated,
        expected_costs_usd=validation.expected_costs_usd,
        cheapest=in_row_order(tests, [each.cheapest for each in tested]),
        alone=alone,
    )
    cost_share = config.verified_cost_share
    study = VerifierStudy(
        table,
        by_price,
        final.verifier,
        best_usd,
        cost_share,
        evidence,
        config.streams_text_from,
    )
    return replace(study, price_usd=operating_price(study.entries(), cost_share))


@dataclass(frozen=True, slots=True)
class VerifierPart:
    """Queries that a verifier learns from, and those that it is tested on, by row.

    `probabilities`, (all queries, arms), are the router's, and `costs_usd` the arms' expected
    costs, (arms,).
    """

    train: NDArray[np.int64]
    test: NDArray[np.int64]
    probabilities: Floats
    costs_usd: Floats


@dataclass(frozen=True, slots=True)
class VerifierSettings:
    """What all parts of a study share; prices are in USD."""

    data: VerifierData
    seed: int
    effort: FitEffort
    best_usd: float
    prices_usd: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class StudiedPart:
    """A fitted verifier, and what it did with the tested queries, in their order."""

    verifier: TrainedVerifier
    by_price: Mapping[float, VerifiedAnswers]
    cheapest: VerifiedAnswers
    alone: Floats


def study_part(settings: VerifierSettings, part: VerifierPart) -> StudiedPart:
    """Fit a verifier, and let it answer the tested queries at every price."""
    data = replace(settings.data, probabilities=part.probabilities, costs_usd=part.costs_usd)
    fitted = fit_verifier(data.take(part.train), settings.seed, settings.effort)
    tested = data.take(part.test)
    with TemporaryDirectory() as folder, step("answers by price"):
        verifier = Verifier(Path(folder), fitted.export(Path(folder), settings.best_usd))
        return StudiedPart(
            verifier=fitted,
            by_price={
                price_usd: answer_verified(verifier, tested, price_usd)
                for price_usd in settings.prices_usd
            },
            cheapest=answer_cheapest(verifier, tested),
            alone=judge_alone(verifier, tested),
        )


def operating_price(entries: Mapping[float, Entry], cost_share: float) -> float:
    """Return the highest price whose cost stays within a share of the best single model's cost.

    If no price costs so little, return the lowest one. Accuracy does not decide: among the measured
    prices, the most accurate one is partly the luckiest one.
    """
    affordable = [price for price, entry in entries.items() if entry.cost_share <= cost_share]
    return max(affordable, default=min(entries))


def nested_probabilities(
    data: TrainingData, validation: CrossValidation, workers: Workers = SINGLE_PROCESS
) -> list[Floats]:
    """Return for each fold the router's probabilities of all measured rows, (queries, arms).

    Rows of the fold itself are predicted as in `validation`. A row of another fold is predicted by
    a router that was trained without both folds, so that nothing about the tested fold reaches a
    verifier that learns from this row.
    """
    shares = data.config.training.branch_shares
    folds = data.folds()
    nested = [validation.mix(shares) for _ in folds]
    groups = data.table.groups
    pairs = list(combinations(range(len(folds)), 2))
    parts = []
    for one, other in pairs:
        tested = (*folds[one].test, *folds[other].test)
        is_related = np.isin(groups, groups[list(tested)])
        seen = {*folds[one].train, *folds[one].teaching, *folds[other].train}
        known = sorted(seen - {*folds[one].validation})
        train, stopping = (
            tuple(row for row in rows if not is_related[row])
            for rows in (known, folds[one].validation)
        )
        parts.append(HeldOutPart(train, stopping, tested, exported=False))
    for (one, other), predicted in zip(
        pairs, train_parts(data, parts, workers, "router"), strict=True
    ):
        assert predicted is not None  # noqa: S101 - only the main process studies verifiers
        found = mix_branches(predicted.branches, shares)
        split = len(folds[one].test)
        nested[other][list(folds[one].test)] = found[:split]
        nested[one][list(folds[other].test)] = found[split:]
    return nested


def add_verifier(
    artifact: Path, data: Path, out: Path, workspace: Path, workers: Workers = SINGLE_PROCESS
) -> VerifierStudy:
    """Train a verifier for an artifact, and write the artifact with it to the directory `out`.

    The router stays as it is. Its configuration, which the artifact holds, and the recorded answers
    in `data` give the routers that the verifier learns from. Raises ConfigError if the artifact was
    trained on outcomes without answers or has too few of the arms that it was trained with, and the
    errors of `load_dataset` and `Artifact.load`.
    """
    loaded = Artifact.load(artifact)
    manifest = loaded.manifest
    config = RunConfig.model_validate(yaml.safe_load(manifest.provenance.config))
    require_answers(config, data)
    config = with_current_pool(config, manifest)
    table = load_dataset(config, data, workspace / "labels")
    require_measured_rows(table, config, data)
    config = config.model_copy(update={"packing": manifest.packing})
    training = pack_table(config, table, load_encoder(config.encoder.source), workspace)
    validation = cross_validate(training, exported=False, workers=workers)
    assert validation is not None  # noqa: S101 - this command runs in one process
    measured = training.table.measured(config.arms)
    held_out = validation.mix(config.training.branch_shares)
    method, groups = manifest.calibration.method, measured.groups.tolist()
    calibrated = calibrated_unseen(measured.correct, held_out, groups, config.seed, method)
    study = study_verifier(training, validation, calibrated, data, workers=workers)
    shutil.copytree(artifact, out, dirs_exist_ok=True)
    known = LearnedQueries.read(loaded)
    if known is not None:
        known.merge(LearnedQueries.of(table.examples)).write(out)
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


def in_row_order(
    rows: Sequence[NDArray[np.int64]], found: Sequence[VerifiedAnswers]
) -> VerifiedAnswers:
    """Return the answers of all folds as one, in the order of the table's rows."""
    order = np.argsort(np.concatenate(rows))
    asked = [each for answers in found for each in answers.asked]
    judged = [each for answers in found for each in answers.judged]
    return VerifiedAnswers(
        asked=tuple(asked[row] for row in order),
        accepted=np.concatenate([answers.accepted for answers in found])[order],
        p_correct=np.concatenate([answers.p_correct for answers in found])[order],
        judged=tuple(judged[row] for row in order),
    )
