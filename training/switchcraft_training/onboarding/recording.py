"""What is recorded about an artifact's queries, and a new arm's answers to some of them."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from router_service.apis.conversation import parse_conversation
from router_service.artifact import Artifact
from router_service.core.errors import ConfigError
from router_service.predictor.packing import Packer
from switchcraft_training.checking import paraphrase_check
from switchcraft_training.config import RunConfig, SourceConfig, trained_config
from switchcraft_training.data.outcomes import CheckedAnswers, tabulate_outcomes
from switchcraft_training.data.splits import merge_equal_queries, query_digest
from switchcraft_training.data.table import Flags, Floats, Table
from switchcraft_training.dataset import load_dataset, open_source
from switchcraft_training.datasets.rows import write_rows
from switchcraft_training.errors import DataError
from switchcraft_training.labelling.answers import ANSWERS
from switchcraft_training.onboarding.positions import (
    INFORMATIVE_WEIGHT,
    AnsweredQueries,
    RecordedModels,
    Rows,
    choose_queries,
)

log = logging.getLogger(__name__)

ROWS: Final = "rows.jsonl"
CHOSEN: Final = "chosen.json"
"""File next to the chosen queries: which of them were chosen as informative."""

LAYERS: Final = ("correct", "attempts", "input_tokens", "output_tokens", "seconds")

MIN_MODELS = 2
MIN_COMMON = 100
"""A recorded model counts if it answered as many of the artifact's own queries, or half of them if
there are fewer than twice as many."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The recorded answers that an artifact was trained on, without those of one arm.

    `table` has one row for each distinct query of all sources, with the answers of all recorded
    models to it: the same queries are in several versions of a benchmark. `queries` are the rows of
    the artifact's own source that every arm of its pool answered, and `models` the recorded models
    as these queries show them.
    """

    config: RunConfig
    table: Table
    queries: Rows
    models: RecordedModels

    @classmethod
    def of(cls, config: RunConfig, table: Table, without: str | None) -> Recorded:
        """Return what is recorded in a table about other models than the arm `without`.

        Raises DataError if too few models answered the artifact's own queries.
        """
        table = table.select_arms([arm for arm in table.arms if arm != without])
        table = merge_equal_queries(table)
        queries = np.flatnonzero(table.is_measured)
        common = (~np.isnan(table.correct[queries])).sum(axis=0)
        models = np.flatnonzero(common >= min(MIN_COMMON, len(queries) / 2))
        if len(models) < MIN_MODELS:
            problem = f"has answers of {len(models)} other models; {MIN_MODELS} or more are needed"
            raise DataError(config.source.path, None, problem)
        fitted = RecordedModels.fit(table.correct[queries][:, models])
        return cls(config, table, queries, fitted)

    def packed(self, packer: Packer) -> Recorded:
        """Return the same recording with every query packed as the gateway packs it."""
        packed = tuple(packer.pack(parse_conversation(e.request)) for e in self.table.examples)
        return replace(self, table=replace(self.table, packed=packed))

    @property
    def model_count(self) -> int:
        """The number of recorded models."""
        return len(self.models.positions)

    def labelled(self, arm: str, targets: Floats) -> Table:
        """Return the table with a new arm in the first column, with the labels of its queries."""
        table = self.table.select_arms((arm, *self.table.arms))
        table.correct[self.queries, 0] = targets
        return table


def read_recorded(
    artifact: Artifact, data: Path, without: str | None, cache: Path | None
) -> Recorded:
    """Read the sources that an artifact was trained on from the folder `data`.

    `without` is the arm that joins: if the sources have answers of it, they are left out. Raises
    ConfigError if the sources are not there, and DataError if too few models are recorded.
    """
    config = trained_config(artifact.manifest)
    path = data / config.source.path
    if not path.exists():
        problem = (
            "does not exist. A new arm is compared with the models that the artifact was trained"
            " on, so set --data to the folder with their recorded answers"
        )
        raise ConfigError(str(path), "", problem)
    config = config.model_copy(update={"auxiliary_arms": "all"})
    return Recorded.of(config, load_dataset(config, data, cache), without)


@dataclass(frozen=True, slots=True)
class NewAnswers:
    """A new arm's answers to recorded queries.

    `table` (queries, 1) has a row for each of `Recorded.queries`, NaN if it was not asked.
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
    queries = recorded.table.take(recorded.queries).examples
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
    recorded: Recorded, data: Path, count: int, folder: Path, answers: NewAnswers | None
) -> int:
    """Write the queries to ask next to `folder`, as rows for `switchcraft-train label`.

    `answers` are those so far; their queries are not chosen again. Return the number of queries.
    Raises ConfigError if the artifact's source has no expected calls, by which `label` is judged.
    """
    source = open_source(recorded.config.source, data)
    if not isinstance(source, CheckedAnswers):
        problem = "has outcomes without expected calls, so new answers cannot be judged"
        raise ConfigError(str(data / recorded.config.source.path), "", problem)
    asked = None if answers is None else answers.asked()
    every = np.arange(len(recorded.queries))
    candidates = every if asked is None else np.setdiff1d(every, asked.rows)
    informative, drawn = choose_queries(
        recorded.models, candidates, count, recorded.config.seed, asked
    )
    names = [
        [recorded.table.examples[recorded.queries[row]].id for row in rows]
        for rows in (informative, drawn)
    ]
    chosen: Mapping[str, list[str]] = {"informative": names[0]}
    folder.mkdir(parents=True, exist_ok=True)
    # The rows come last and appear at once, so that rows without this file cannot be labelled.
    (folder / CHOSEN).write_text(json.dumps(chosen) + "\n")
    return write_rows((source.judged[name] for part in names for name in part), folder / ROWS)
