"""The verifier of unfamiliar requests: it learns in context, and is measured in context.

For each fold, it learns from the queries of the other folds, plain and in context, and judges the
fold's answers in context whose texts, tools and turns it has not seen. It reads nothing of the
router, so no router has to be trained. Whether an answer is right does not change in context that
leaves the right calls unchanged; that models answer there as they did without it is assumed.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from router_service.artifact import MANIFEST, Artifact, read_manifest, save_manifest
from router_service.checker.toolbox import Call
from router_service.core.errors import ConfigError
from router_service.measurement.held_out import HELD_OUT, HeldOut
from router_service.measurement.rules import best_single
from router_service.measurement.simulation import JudgedAnswers, Simulation
from router_service.verifier.answer_features import CANDIDATE_FEATURES, Candidates
from router_service.verifier.graphs import (
    GAIN_FEATURES,
    MeasuredRequests,
    UnfamiliarGraphs,
    VerifierSpec,
    script_of,
)
from switchcraft_training.config import RunConfig, trained_config
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.evaluation.calibration import calibration_measure
from switchcraft_training.models.contexts import EVERYTHING, SHELVES, Context, Loop, Solved, Wrapper
from switchcraft_training.models.corruptions import CorruptedAnswer, corrupt_answers
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
from switchcraft_training.records import Example
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


class Progress(StrEnum):
    """How far the tool loop has come in which a query is asked."""

    BEFORE = "no call has been made"
    INSIDE = "a tool loop that goes on"
    END = "the end of a tool loop"


PLAIN = "nothing"
CONTEXTS: Mapping[str, frozenset[Context]] = {
    **{str(each): frozenset((each,)) for each in Context},
    "all of these": EVERYTHING,
}
"""What tested queries are wrapped in, by its name."""

LOOPS = (Progress.INSIDE, Progress.END)
"""Tool loops that queries are tested in, in all of these contexts."""


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
    measured: MeasuredRequests

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
            candidate_features=CANDIDATE_FEATURES,
            calibration=self.verifier.calibration,
            measured=self.measured,
        )
        spec = manifest.verifier.model_copy(update={"unfamiliar": graphs})
        save_manifest(directory, manifest.model_copy(update={"verifier": spec}))


class Answers(NamedTuple):
    """Answers of every arm to the queries of a table; `correct` is (queries, arms).

    Answers inside of tool loops are partly made up.
    """

    candidates: Sequence[Candidates]
    correct: Floats
    corrupted: Sequence[Sequence[CorruptedAnswer]]
    most_tools: int
    is_made_up: bool = False


class AllAnswers(NamedTuple):
    """Answers to learn from, plain and in contexts, and those to be tested with, by context."""

    learned: Sequence[Answers]
    tested: Mapping[str, Answers]


EARLY_SHARE, REPEATED_SHARE = 0.08, 0.08
"""Shares of the right answers in a tool loop that are replaced by a text where a call is still
needed, and by a call that was made before. Recorded answers hardly have either."""

LEAST_QUERIES = 30
"""Queries in a script from which the verifier counts as measured with that script."""

_Given = dict[int, tuple[Call, ...] | None]
"""The calls that the arms answered to a query, by column."""


@dataclass(frozen=True, slots=True)
class _Queries:
    """Queries of a table with the calls that the arms answered, by column."""

    table: Table
    calls: Sequence[_Given]
    seed: int

    def plain(self) -> Answers:
        """Return the answers without context."""
        return self._answers(self.table.examples, self.calls, self.table.correct)

    def _answers(
        self,
        examples: Sequence[Example],
        calls: Sequence[_Given],
        correct: Floats,
        *,
        is_made_up: bool = False,
    ) -> Answers:
        candidates = read_candidates(examples, calls)
        is_right = correct == 1
        corrupted: Sequence[Sequence[CorruptedAnswer]] = [()] * len(examples)
        if not is_made_up:
            corrupted = corrupt_answers(
                examples, calls, candidates, lambda row, arm: bool(is_right[row, arm]), self.seed
            )
        most_tools = max(len(example.request["tools"]) for example in examples)
        return Answers(candidates, correct, corrupted, most_tools, is_made_up)

    def wrapped(
        self,
        contexts: frozenset[Context],
        number: int,
        progress: Progress = Progress.BEFORE,
        *,
        is_tested: bool,
    ) -> Answers:
        """Return the answers in context, which is made of the queries of the same fold."""
        table, rng = self.table, random.Random(self.seed + number)  # noqa: S311 - no secret
        examples, correct = [*table.examples], table.correct.copy()
        given = [dict(each) for each in self.calls]
        for fold in np.unique(table.folds).tolist():
            rows = np.flatnonzero(table.folds == fold).tolist()
            others = [table.examples[row] for row in rows]
            is_large = is_tested and progress is Progress.BEFORE
            wrapper = Wrapper(fold % SHELVES, others, contexts, is_large)
            solved = [each for row in rows if (each := self._solved(row)).calls]
            for row in rows:
                request = table.examples[row].request
                if progress is Progress.BEFORE:
                    request = wrapper.wrap(request, rng)
                else:
                    own = self._solved(row)
                    loop = _loop(own, solved, rng, ends=progress is Progress.END)
                    only_recorded = is_tested and progress is Progress.INSIDE
                    answered = given[row], correct[row]
                    _answer_in_loop(own, loop, *answered, rng, only_recorded=only_recorded)
                    request = wrapper.wrap_in_loop(request, loop, rng)
                examples[row] = replace(table.examples[row], request=request)
        is_made_up = progress is not Progress.BEFORE
        return self._answers(examples, given, correct, is_made_up=is_made_up)

    def _solved(self, row: int) -> Solved:
        """Return a query with right calls, if an arm made them."""
        correct = self.table.correct[row]
        right = (made for arm, made in self.calls[row].items() if made and correct[arm] == 1)
        return Solved(self.table.examples[row], next(right, ()))


def _loop(own: Solved, solved: Sequence[Solved], rng: random.Random, *, ends: bool) -> Loop:
    """Return a tool loop in which a query is asked with others that have other tools."""
    names = {*own.example.tool_names}
    others = []
    for each in rng.sample(solved, min(len(solved), 12)):
        if names.isdisjoint(each.example.tool_names):
            names.update(each.example.tool_names)
            others.append(each)
    before = others[: rng.randrange(0 if ends and own.calls else 1, 4)]
    if ends and own.calls:
        return Loop(before, own.calls)
    after = others[3:4] if own.calls and rng.random() < 0.3 else []
    made = 0 if len(own.calls) < 2 or rng.random() < 0.5 else rng.randrange(1, len(own.calls))
    return Loop(before, own.calls[:made], after)


def _answer_in_loop(
    own: Solved,
    loop: Loop,
    given: _Given,
    correct: Floats,
    rng: random.Random,
    *,
    only_recorded: bool,
) -> None:
    """Change the arms' answers, and whether they are correct, to those inside of a tool loop.

    Calls that were made before are not needed again. If all were made, a text is right.
    """
    left = tuple(own.calls[len(loop.own) :])
    done = [*(call for each in loop.before for call in each.calls), *loop.own]
    for arm, calls in given.items():
        is_right = correct[arm] == 1
        if loop.own and is_right:
            given[arm] = left if rng.random() < 0.5 else left[:1]
        elif loop.own and calls:
            given[arm] = tuple(call for call in calls if call not in loop.own)
        if loop.own and not left:
            is_right = is_right or calls == ()
            given[arm] = () if is_right else calls
        elif loop.own and not is_right:
            is_right = bool(given[arm]) and all(call in left for call in given[arm] or ())
        draw = 1.0 if only_recorded or not is_right else rng.random()
        if draw < REPEATED_SHARE and done:
            given[arm], is_right = (rng.choice(done),), False
        elif draw < REPEATED_SHARE + EARLY_SHARE and left:
            given[arm], is_right = (), False
        correct[arm] = float(is_right)


def read_answers(config: RunConfig, table: Table, recordings: Path) -> AllAnswers:
    """Read the answers to learn from and to test with."""
    source = require_answers(config, recordings)
    queries = _Queries(table, recorded_calls(source, table.examples, config.arms), config.seed)
    plain = queries.plain()
    learned = [
        plain,
        *(
            queries.wrapped(EVERYTHING, 100 * number, progress, is_tested=False)
            for number, progress in enumerate(Progress)
        ),
    ]
    tested = {
        name: queries.wrapped(contexts, 1 + number, is_tested=True)
        for number, (name, contexts) in enumerate(CONTEXTS.items())
    }
    loops = {
        str(progress): queries.wrapped(EVERYTHING, 50, progress, is_tested=True)
        for progress in LOOPS
    }
    return AllAnswers(learned, {PLAIN: plain, **tested, **loops})


@dataclass(frozen=True, slots=True)
class Settings:
    """What all parts of a study share. `costs_usd` are the arms' expected costs, (arms,)."""

    table: Table
    answers: AllAnswers
    costs_usd: Floats
    seed: int
    effort: FitEffort

    def data(
        self, answers: Sequence[Answers], rows: NDArray[np.int64], reliabilities: Floats
    ) -> VerifierData:
        """Return some queries with all of these answers; the router's view of them is not read."""
        count = len(answers) * len(rows)
        return VerifierData(
            features=np.zeros((count, 0)),
            probabilities=np.tile(reliabilities, (count, 1)),
            candidates=[each.candidates[row] for each in answers for row in rows],
            correct=np.vstack([each.correct[rows] for each in answers]),
            costs_usd=self.costs_usd,
            groups=np.tile(self.table.groups[rows], len(answers)),
            corrupted=[each.corrupted[row] for each in answers for row in rows],
            is_made_up=np.repeat([each.is_made_up for each in answers], len(rows)),
            known_reliabilities=reliabilities,
        )


class _Part(NamedTuple):
    """Queries that a verifier learns from, and those that it is tested on, by row."""

    train: NDArray[np.int64]
    test: NDArray[np.int64]


class _Studied(NamedTuple):
    verifier: TrainedVerifier
    judged: Mapping[str, JudgedAnswers]


def _study_part(settings: Settings, part: _Part) -> _Studied:
    """Fit a verifier on queries plain and in context, and let it judge the others."""
    answers, reliabilities = settings.answers, settings.table.correct[part.train].mean(axis=0)
    known = settings.data(answers.learned, part.train, reliabilities)
    fitted = fit_verifier(known, settings.seed, settings.effort)
    judged: dict[str, JudgedAnswers] = {}
    if len(part.test):
        with TemporaryDirectory() as folder, step("judgements"):
            spec = fitted.export(Path(folder), 1.0)
            for name, each in answers.tested.items():
                tested = settings.data([each], part.test, reliabilities)
                judged[name] = judge_answers(Path(folder), spec, tested)
    return _Studied(fitted, judged)


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
            answers = read_answers(config, table, recordings)
        rows = np.arange(len(table))
        folds = np.unique(table.folds)
        parts = [_Part(rows[table.folds != fold], rows[table.folds == fold]) for fold in folds]
        settings = Settings(table, answers, costs_usd, config.seed, effort)
        *tested, final = workers.map(
            _study_part, settings, [*parts, _Part(rows, rows[:0])], "verifier"
        )
    tests = [part.test for part in parts]
    judged = {
        name: JudgedAnswers.join([each.judged[name] for each in tested], tests)
        for name in answers.tested
    }
    figures = (
        _figures(name, each, replace(table, correct=answers.tested[name].correct), costs_usd, spec)
        for name, each in judged.items()
    )
    scripts = Counter(script_of(example.query) for example in table.examples)
    measured = MeasuredRequests(
        tools=max(each.most_tools for each in answers.tested.values()),
        scripts=tuple(
            sorted(each for each, queries in scripts.items() if each and queries >= LEAST_QUERIES)
        ),
    )
    return UnfamiliarStudy(final.verifier, tuple(figures), measured)


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
    artifact: Path, data: Path, out: Path, workspace: Path, workers: Workers = SINGLE_PROCESS
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
