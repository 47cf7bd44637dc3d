"""What is recorded about an artifact's queries, and a new arm's answers to some of them."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np

from router_service.apis.conversation import parse_conversation
from router_service.artifact import Artifact
from router_service.core.errors import ConfigError
from router_service.measurement.held_out import HELD_OUT, HeldOut
from router_service.predictor.packing import Packer
from switchcraft_training.checking import paraphrase_check
from switchcraft_training.config import RunConfig, SourceConfig, trained_config
from switchcraft_training.data.labels import MIN_MODELS, RecordedLabels
from switchcraft_training.data.learned import digests_of
from switchcraft_training.data.outcomes import CheckedAnswers, OutcomeSource, tabulate_outcomes
from switchcraft_training.data.splits import query_digest
from switchcraft_training.data.table import Flags, Floats, Table
from switchcraft_training.dataset import open_source
from switchcraft_training.datasets.bfcl import RecordedQuestions
from switchcraft_training.datasets.rows import write_rows
from switchcraft_training.errors import DataError
from switchcraft_training.fetching.recordings import fetch_recording
from switchcraft_training.fetching.sources import QUESTIONS
from switchcraft_training.labelling.answers import ANSWERS
from switchcraft_training.onboarding.positions import (
    INFORMATIVE_WEIGHT,
    AnsweredQueries,
    RecordedModels,
    Rows,
    choose_queries,
)
from switchcraft_training.records import Judged

log = logging.getLogger(__name__)

ROWS: Final = "rows.jsonl"
CHOSEN: Final = "chosen.json"
"""File next to the chosen queries: which of them were chosen as informative."""

LAYERS: Final = ("correct", "attempts", "input_tokens", "output_tokens", "seconds")


@dataclass(frozen=True, slots=True)
class Recorded:
    """The queries that an artifact was measured on, and what recorded models answered to them.

    `table` has a row for each query, and the labels of all recorded models but the one that joins;
    the usage is known for the artifact's own arms. `judged` has the expected calls by the query's
    id, without which new answers cannot be judged. `models` are the recorded models as the queries
    show them, and `own` those that the artifact was trained with.
    """

    config: RunConfig
    table: Table
    models: RecordedModels
    own: tuple[str, ...]
    judged: Mapping[str, Judged]

    @classmethod
    def of(
        cls,
        artifact: Artifact,
        labels: RecordedLabels,
        source: OutcomeSource,
        without: Collection[str] = (),
    ) -> Recorded:
        """Return what an artifact's labels say about other models than those `without`.

        `source` has the queries. Raises DataError if it lacks some of them, or if too few models
        are recorded.
        """
        config = trained_config(artifact.manifest)
        labels = labels.without(without)
        found = {digests_of([example])[0]: example for example in source.examples()}
        if missing := len(set(labels.digests.tolist()) - found.keys()):
            problem = (
                f"does not have {missing} of the {len(labels.digests)} queries that the artifact"
                " was measured on; use the version that the artifact was trained with"
            )
            raise DataError(config.source.path, None, problem)
        if len(labels.models) < MIN_MODELS:
            problem = f"has answers of {len(labels.models)} other models; {MIN_MODELS} are needed"
            raise DataError(config.source.path, None, problem)
        examples = tuple(found[digest] for digest in labels.digests)
        calls = source.calls()
        table = Table(
            examples,
            labels.models,
            labels.correct,
            expected_calls=np.array([calls.get(each.id, np.nan) for each in examples], np.float64),
        )
        manifest = artifact.manifest
        own = tuple(
            arm
            for arm in config.arms
            if arm in manifest.arms and arm in labels.models and arm not in manifest.onboarded
        )
        judged = source.judged if isinstance(source, CheckedAnswers) else {}
        recorded = cls(config, table, RecordedModels.fit(labels.correct), own, judged)
        held_out = recorded.read_held_out(artifact)
        if held_out is not None:
            columns = [manifest.arms.index(arm) for arm in own]
            places = [labels.models.index(arm) for arm in own]
            for name in ("input_tokens", "output_tokens", "seconds"):
                used = getattr(held_out, name)[:, columns]
                getattr(table, name)[:, places] = np.where(used > 0, used, np.nan)
        return recorded

    def read_held_out(self, artifact: Artifact) -> HeldOut | None:
        """Return an artifact's held-out predictions if they are of these queries, else None."""
        manifest = artifact.manifest
        if HELD_OUT not in manifest.files:
            return None
        held_out = HeldOut.read(artifact.directory / HELD_OUT)
        measured = held_out.correct[:, [manifest.arms.index(arm) for arm in self.own]]
        if self.own and np.array_equal(measured, self.table.select_arms(self.own).correct):
            return held_out
        log.warning(
            "the recorded answers are not those that %s was measured on, so the new artifact has no"
            " figures; a new `run` measures them",
            manifest.name,
        )
        return None

    def packed(self, packer: Packer) -> Recorded:
        """Return the same recording with every query packed as the gateway packs it."""
        packed = tuple(packer.pack(parse_conversation(e.request)) for e in self.table.examples)
        return replace(self, table=replace(self.table, packed=packed))

    def labelled(self, arm: str, targets: Floats) -> Table:
        """Return the table with a new arm and its labels in the first column."""
        table = self.table.select_arms((arm, *self.table.arms))
        table.correct[:, 0] = targets
        return table


def read_recorded(
    artifact: Artifact, data: Path | None, without: Collection[str], downloads: Path
) -> Recorded:
    """Return what is recorded about an artifact's queries.

    The queries are those of its source in the folder `data`. Without one, they come from the
    installed `bfcl-eval`, or from its wheel, which is then kept in the folder `downloads`.
    `without` are the arms that join: if one is recorded, its labels are left out. Raises
    ConfigError if the source is not there, FetchError, DataError and ArtifactError.
    """
    source = trained_config(artifact.manifest).source
    labels = RecordedLabels.read(artifact)
    if data is None:
        return Recorded.of(artifact, labels, _public_queries(source, downloads), without)
    path = data / source.path
    if not path.exists():
        problem = "does not exist; set --data to the folder with the queries of the training data"
        raise ConfigError(str(path), "", problem)
    return Recorded.of(artifact, labels, open_source(source, data), without)


def _public_queries(source: SourceConfig, downloads: Path) -> OutcomeSource:
    """Return the questions of the leaderboard, which are downloaded if they are not installed."""
    if source.format != "bfcl":
        problem = "is not public; set --data to the folder with the queries of the training data"
        raise ConfigError(str(source.path), "", problem)
    if find_spec("bfcl_eval") is None:
        return CheckedAnswers.of(RecordedQuestions(fetch_recording(QUESTIONS, downloads, {})))
    return CheckedAnswers.of(RecordedQuestions())


@dataclass(frozen=True, slots=True)
class NewAnswers:
    """A new arm's answers to recorded queries.

    `table` (queries, 1) has a row for each row of `Recorded.table`, NaN if it was not asked.
    `informative` (queries,) says which queries were chosen as informative ones.
    """

    table: Table
    informative: Flags

    @property
    def correct(self) -> Floats:
        """Whether each answer is correct, (queries,); NaN if the query was not asked."""
        column: Floats = self.table.correct[:, 0]
        return column

    @property
    def rows(self) -> Rows:
        """The queries that were asked, as rows of `table`."""
        return np.flatnonzero(~np.isnan(self.correct))

    def asked(self) -> AnsweredQueries:
        """Return all answers with their weights."""
        rows = self.rows
        weights = np.where(self.informative[rows], INFORMATIVE_WEIGHT, 1.0)
        return AnsweredQueries(rows, self.correct[rows], weights)


def read_answers(recordings: Sequence[Path], arm: str, recorded: Recorded) -> NewAnswers:
    """Read an arm's answers to the recorded queries; answers to other queries are ignored.

    If several recordings have an answer to a query, the first counts. Raises ConfigError if none of
    them has answers of the arm, and DataError if it has no answer to a recorded query.
    """
    queries = recorded.table.examples
    row_of = {query_digest(example): row for row, example in enumerate(queries)}
    layers: dict[str, Any] = {name: np.full((len(queries), 1), np.nan) for name in LAYERS}
    informative = np.zeros(len(queries), dtype=np.bool_)
    alike = paraphrase_check(recorded.config.checking.paraphrases)
    arms: set[str] = set()
    other = 0
    for recording in recordings:
        source = open_source(find_source(recording, recorded.config.source.arms), Path(), alike)
        arms |= {*source.arms()}
        if arm not in source.arms():
            continue
        outcomes = list(source.outcomes(arm))
        ids = {outcome.example_id for outcome in outcomes}
        asked = [example for example in source.examples() if example.id in ids]
        known = [example for example in asked if query_digest(example) in row_of]
        other += len(asked) - len(known)
        chosen = recording / CHOSEN
        names = set(json.loads(chosen.read_text())["informative"]) if chosen.exists() else set()
        table = tabulate_outcomes(known, [arm], {arm: outcomes}.__getitem__)
        for place, example in enumerate(known):
            row = row_of[query_digest(example)]
            if np.isnan(layers["correct"][row, 0]):
                informative[row] = example.id in names
                for name, layer in layers.items():
                    layer[row] = getattr(table, name)[place]
    where = recordings[0]
    if arm not in arms:
        problem = f"has no answers of {arm!r}, but of {', '.join(sorted(arms)) or 'no model'}"
        raise ConfigError(str(where), "--arm", problem)
    answers = NewAnswers(Table(queries, (arm,), **layers), informative)
    if not len(answers.rows):
        problem = (
            f"{arm!r} answered {other} queries, and none of them is a query of the artifact's"
            " training data, which the recorded models answered. Choose queries with"
            " `switchcraft-train onboard ARTIFACT --choose 100`, and ask the model these"
        )
        raise DataError(where, None, problem)
    if other:
        log.warning(
            "%d answers of %s are to queries that the artifact's training data does not have, and"
            " are ignored",
            *(other, arm),
        )
    return answers


def find_source(recording: Path, renamed: Mapping[str, str]) -> SourceConfig:
    """Return how to read a recording, by the files that it has.

    `renamed` are the arms of the leaderboard's runs, as the artifact's configuration names them, so
    that a model has one name in all recordings. Raises DataError if it has none of the known
    formats.
    """
    if (recording / ANSWERS).exists() and (recording / ROWS).exists():
        return SourceConfig(format="labelled", path=recording / ROWS, answers=recording)
    if (recording / "result").is_dir() or (recording / "run-1").is_dir():
        return SourceConfig(format="bfcl", path=recording, arms=renamed)
    if (recording / "tasks.jsonl.gz").exists():
        return SourceConfig(format="mcpmark", path=recording)
    if recording.is_file():
        return SourceConfig(format="outcomes", path=recording)
    problem = (
        f"is not a recording: a labelling run has {ROWS} and {ANSWERS}, and a recording of the"
        " Berkeley leaderboard has the folders `data` and `result`"
    )
    raise DataError(recording, None, problem)


def write_choice(
    recorded: Recorded, count: int, folder: Path, answers: NewAnswers | None = None
) -> int:
    """Write the queries to ask next to `folder`, as rows for `switchcraft-train label`.

    `answers` are those so far; their queries are not chosen again. Return the number of queries.
    Raises ConfigError if the artifact's source has no expected calls, by which `label` is judged.
    """
    if not recorded.judged:
        problem = "has outcomes without expected calls, so new answers cannot be judged"
        raise ConfigError(str(recorded.config.source.path), "", problem)
    asked = None if answers is None else answers.asked()
    every = np.arange(len(recorded.table))
    candidates = every if asked is None else np.setdiff1d(every, asked.rows)
    informative, drawn = choose_queries(
        recorded.models, candidates, count, recorded.config.seed, asked
    )
    names = [[recorded.table.examples[row].id for row in rows] for rows in (informative, drawn)]
    chosen: Mapping[str, list[str]] = {"informative": names[0]}
    folder.mkdir(parents=True, exist_ok=True)
    # The rows come last and appear at once, so that rows without this file cannot be labelled.
    (folder / CHOSEN).write_text(json.dumps(chosen) + "\n")
    return write_rows((recorded.judged[name] for part in names for name in part), folder / ROWS)
