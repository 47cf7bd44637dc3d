"""The verifier of unfamiliar requests: it learns in context, and is measured in context.

For each fold, it learns from the queries of the other folds, plain and in context, and judges the
fold's answers in context whose texts, tools and turns it has not seen. It reads nothing of the
router, so no router has to be trained. Whether an answer is right does not change in context that
leaves the right calls unchanged; that models answer there as they did without it is assumed.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from router_service.artifact import (
    MANIFEST,
    Artifact,
    file_hashes,
    read_manifest,
    save_manifest,
)
from router_service.core.errors import ConfigError
from router_service.measurement.held_out import HELD_OUT, HeldOut
from router_service.measurement.rules import best_single
from router_service.measurement.simulation import JudgedAnswers, Simulation
from router_service.verifier.answer_features import Candidates
from router_service.verifier.graphs import GAIN_FEATURES, UnfamiliarGraphs, VerifierSpec
from switchcraft_training.config import RunConfig, trained_config
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.evaluation.calibration import calibration_measure
from switchcraft_training.models.contexts import EVERYTHING, SHELVES, Context, Wrapper
from switchcraft_training.models.verifier import (
    FULL_EFFORT,
    GAIN_GRAPH,
    GRAPH,
    FitEffort,
    TrainedVerifier,
    VerifierData,
    fit_verifier,
    read_candidates,
)
from switchcraft_training.progress import stage, step
from switchcraft_training.training_data import read_training_data
from switchcraft_training.verification import (
    judge_answers,
    recorded_calls,
    require_answers,
    with_current_pool,
)
from switchcraft_training.workers import SINGLE_PROCESS, Workers

UNFAMILIAR = "verifier of unfamiliar requests"
"""Name of the stage of `study_unfamiliar`."""

PREFIX = "unfamiliar-"
"""Beginning of the names of the graphs' files."""

PLAIN = "nothing"
CONTEXTS: Mapping[str, frozenset[Context]] = {
    **{str(each): frozenset((each,)) for each in Context},
    "all of these": EVERYTHING,
}
"""What tested queries are wrapped in, by its name."""


class ContextFigures(NamedTuple):
    """How well the answers to queries in a context are judged by a verifier that has not seen them.

    `auc` is of single candidates, the mean of the arms; `auc_of_two` is after the two cheapest arms
    have answered, and `right_of_two` how often the right one of the two is likelier if one is
    right. `difference` is the accuracy of verified answers less that of the best single model, and
    `cost_share` their cost as a share of that model's.
    """

    context: str
    auc: float
    auc_of_two: float
    right_of_two: float
    calibration_error: float
    difference: float
    cost_share: float


@dataclass(frozen=True, slots=True)
class UnfamiliarStudy:
    """The verifier of unfamiliar requests that ships, and how well others like it judge."""

    verifier: TrainedVerifier
    figures: tuple[ContextFigures, ...]

    def add_to(self, directory: Path) -> None:
        """Add the verifier to an artifact, which has a verifier for familiar requests."""
        manifest = read_manifest(directory / MANIFEST)
        assert manifest.verifier is not None  # noqa: S101 - for types; checked before the study
        with TemporaryDirectory() as folder:
            self.verifier.export(Path(folder), manifest.verifier.price_usd)
            for name in (GRAPH, GAIN_GRAPH):
                shutil.copyfile(Path(folder) / name, directory / f"{PREFIX}{name}")
        graphs = UnfamiliarGraphs(
            graph=f"{PREFIX}{GRAPH}",
            gain_graph=f"{PREFIX}{GAIN_GRAPH}",
            calibration=self.verifier.calibration,
        )
        spec = manifest.verifier.model_copy(update={"unfamiliar": graphs})
        changes = {"verifier": spec, "files": file_hashes(directory)}
        save_manifest(directory, manifest.model_copy(update=changes))


class _Answers(NamedTuple):
    """Recorded answers to the queries of a table: plain, in a context to learn, and by context."""

    plain: Sequence[Candidates]
    learned: Sequence[Candidates]
    tested: Mapping[str, Sequence[Candidates]]


def _read_answers(config: RunConfig, table: Table, recordings: Path) -> _Answers:
    """Read the answers; the context of a query comes from the queries of its fold."""
    source, examples = require_answers(config, recordings), table.examples
    calls = recorded_calls(source, examples, config.arms)

    def wrapped(contexts: frozenset[Context], seed: int, *, is_tested: bool) -> list[Candidates]:
        rng = random.Random(seed)  # noqa: S311 - no secret
        requests = [*examples]
        for fold in np.unique(table.folds).tolist():
            rows = np.flatnonzero(table.folds == fold).tolist()
            others = [examples[row] for row in rows]
            wrapper = Wrapper(fold % SHELVES, others, contexts, is_tested)
            for row in rows:
                request = wrapper.wrap(examples[row].request, rng)
                requests[row] = replace(examples[row], request=request)
        return read_candidates(requests, calls)

    tested = {
        name: wrapped(contexts, config.seed + 1 + number, is_tested=True)
        for number, (name, contexts) in enumerate(CONTEXTS.items())
    }
    learned = wrapped(EVERYTHING, config.seed, is_tested=False)
    plain = read_candidates(examples, calls)
    return _Answers(plain, learned, {PLAIN: plain, **tested})


@dataclass(frozen=True, slots=True)
class _Settings:
    """What all parts of a study share. `costs_usd` are the arms' expected costs, (arms,)."""

    table: Table
    answers: _Answers
    costs_usd: Floats
    seed: int
    effort: FitEffort

    def data(
        self, candidates: Sequence[Candidates], rows: NDArray[np.int64], reliabilities: Floats
    ) -> VerifierData:
        """Return some queries with these candidates, of which the router's view is not read."""
        return VerifierData(
            features=np.zeros((len(rows), 0)),
            probabilities=np.tile(reliabilities, (len(rows), 1)),
            candidates=[candidates[row] for row in rows],
            correct=self.table.correct[rows],
            costs_usd=self.costs_usd,
            groups=self.table.groups[rows],
        )


class _Part(NamedTuple):
    """Queries that a verifier learns from, and those that it is tested on, by row."""

    train: NDArray[np.int64]
    test: NDArray[np.int64]


class _Studied(NamedTuple):
    verifier: TrainedVerifier
    judged: Mapping[str, JudgedAnswers]


def _study_part(settings: _Settings, part: _Part) -> _Studied:
    """Fit a verifier on queries plain and in context, and let it judge the others."""
    answers, reliabilities = settings.answers, settings.table.correct[part.train].mean(axis=0)
    plain, wrapped = (
        settings.data(candidates, part.train, reliabilities)
        for candidates in (answers.plain, answers.learned)
    )
    both = VerifierData(
        features=np.vstack([plain.features, wrapped.features]),
        probabilities=np.vstack([plain.probabilities, wrapped.probabilities]),
        candidates=[*plain.candidates, *wrapped.candidates],
        correct=np.vstack([plain.correct, wrapped.correct]),
        costs_usd=settings.costs_usd,
        groups=np.concatenate([plain.groups, wrapped.groups]),
    )
    fitted = fit_verifier(both, settings.seed, settings.effort)
    if not len(part.test):
        return _Studied(fitted, {})
    with TemporaryDirectory() as folder, step("judgements"):
        spec = fitted.export(Path(folder), 1.0)
        return _Studied(
            fitted,
            {
                name: judge_answers(
                    Path(folder), spec, settings.data(candidates, part.test, reliabilities)
                )
                for name, candidates in answers.tested.items()
            },
        )


def study_unfamiliar(  # noqa: PLR0913
    config: RunConfig,
    table: Table,
    costs_usd: Floats,
    spec: VerifierSpec,
    recordings: Path,
    *,
    effort: FitEffort = FULL_EFFORT,
    workers: Workers = SINGLE_PROCESS,
) -> UnfamiliarStudy:
    """Cross-validate verifiers of unfamiliar requests, and fit the one that ships.

    `table` has the measured queries in their folds, `costs_usd` the arms' expected costs, (arms,),
    and `spec` the price and the floor of the policy `verified`. The answers are read from the
    folder `recordings`.
    """
    with stage(UNFAMILIAR):
        with step("answers in context"):
            answers = _read_answers(config, table, recordings)
        rows = np.arange(len(table))
        folds = np.unique(table.folds)
        parts = [_Part(rows[table.folds != fold], rows[table.folds == fold]) for fold in folds]
        settings = _Settings(table, answers, costs_usd, config.seed, effort)
        *tested, final = workers.map(
            _study_part, settings, [*parts, _Part(rows, rows[:0])], "verifier"
        )
    tests = [part.test for part in parts]
    judged = {
        name: JudgedAnswers.join([each.judged[name] for each in tested], tests)
        for name in answers.tested
    }
    figures = (_figures(name, each, table, costs_usd, spec) for name, each in judged.items())
    return UnfamiliarStudy(final.verifier, tuple(figures))


def _figures(
    name: str, judged: JudgedAnswers, table: Table, costs_usd: Floats, spec: VerifierSpec
) -> ContextFigures:
    queries, arms = table.correct.shape
    rows, correct = np.arange(queries), table.correct >= 0.5
    alone = [
        _auc(correct[:, arm], judged.judge(rows, np.full((queries, 1), arm))[:, 0])
        for arm in range(arms)
    ]
    two = np.argsort(costs_usd)[:2]
    p_two = judged.judge(rows, np.tile(two, (queries, 1)))
    right = correct[:, two]
    differing = right[:, 0] != right[:, 1]
    likelier = p_two[differing].argmax(axis=1) == right[differing].argmax(axis=1)
    folds = np.tile(costs_usd, (len(np.unique(table.folds)), 1))
    answers = Simulation(judged, GAIN_FEATURES).answer(folds, spec.price_usd, floor=spec.floor)
    paid_usd = np.nan_to_num(table.cost_usd)
    accuracy, cost_usd, _ = answers.outcome(table.correct, paid_usd, np.zeros_like(paid_usd))
    best = best_single(table)
    return ContextFigures(
        name,
        float(np.nanmean(alone)),
        _auc(right.ravel(), p_two.ravel()),
        float(likelier.mean()) if len(likelier) else np.nan,
        calibration_measure(table.correct[:, two], p_two).value,
        float(accuracy.mean() - table.correct[:, best].mean()),
        float(cost_usd.mean() / paid_usd[:, best].mean()),
    )


def _auc(is_correct: NDArray[np.bool_], p_correct: Floats) -> float:
    """Return the AUC; NaN if all answers are correct, or none is."""
    if is_correct.all() or not is_correct.any():
        return np.nan
    return float(roc_auc_score(is_correct, p_correct))


def add_unfamiliar(
    artifact: Path,
    data: Path,
    out: Path,
    workspace: Path,
    workers: Workers = SINGLE_PROCESS,
) -> UnfamiliarStudy:
    """Train a verifier of unfamiliar requests for an artifact, and write it to the directory `out`.

    Nothing else of the artifact changes, and no router is trained. Its configuration, the recorded
    answers in `data` and its held-out predictions give the queries and their folds. Raises
    ConfigError if it has no verifier or no held-out predictions of these queries, and the errors of
    `read_training_data` and `Artifact.load`.
    """
    manifest = Artifact.load(artifact).manifest
    if manifest.verifier is None:
        problem = "the artifact has no verifier; add one with `switchcraft-train add-verifier`"
        raise ConfigError(manifest.name, "verifier", problem)
    config = with_current_pool(trained_config(manifest), manifest)
    table = read_training_data(config, data, workspace).table.measured(config.arms)
    held_out = HeldOut.read(artifact / HELD_OUT) if HELD_OUT in manifest.files else None
    if held_out is None or not np.array_equal(held_out.correct, table.correct):
        problem = (
            "the artifact's held-out predictions are not of the recorded queries, whose folds are"
            " needed; train it again with `switchcraft-train run`"
        )
        raise ConfigError(manifest.name, "source", problem)
    costs_usd = held_out.fold_costs_usd([entry.price for entry in config.pool]).mean(axis=0)
    table = replace(table, folds=held_out.folds)
    study = study_unfamiliar(config, table, costs_usd, manifest.verifier, data, workers=workers)
    shutil.copytree(artifact, out, dirs_exist_ok=True)
    study.add_to(out)
    return study
