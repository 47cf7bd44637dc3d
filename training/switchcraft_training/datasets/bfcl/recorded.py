"""Recorded answers of real models, with the leaderboard's own verdicts on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from router_service.core.errors import DataError
from switchcraft_training.checking import ParsedAnswer, parse_native, parse_text
from switchcraft_training.datasets.bfcl.files import (
    MULTI_TURN,
    PACKAGE,
    LeaderboardFile,
    judged_files,
    question_files,
)
from switchcraft_training.datasets.bfcl.questions import read_files
from switchcraft_training.datasets.lines import read_lines
from switchcraft_training.records import Answer, Json, Judged

Parse = Callable[[Json], ParsedAnswer]

BROKEN_RUNS = frozenset(
    {"gpt-4o-2024-08-06", "mistral-large-2407", "NousResearch_Hermes-2-Theta-Llama-3-70B"}
)
"""Runs that failed as runs: what they recorded says nothing of the model."""

_ERROR = re.compile(r"\s*(?:$|(?:internal |parsing )?error\b)", re.IGNORECASE)


class RecordedVerdict(NamedTuple):
    """What the leaderboard's own checker said of an answer; `error_type` where it is not valid."""

    example_id: str
    valid: bool
    error_type: str | None
    attempt: int = 0


class Recording(Protocol):
    """A folder of recorded answers. Every method raises DataError at what cannot be read."""

    def arms(self) -> list[str]:
        """Return the models whose answers were recorded, broken runs left out."""
        ...

    def judged(self) -> Iterator[Judged]:
        """Read the single-turn questions that were asked, with what is expected."""
        ...

    def answers(self, arm: str) -> Iterator[Answer]:
        """Read what a model answered to those questions."""
        ...

    def verdicts(self, arm: str) -> Iterator[RecordedVerdict]:
        """Read what the leaderboard's checker of the day said of those answers."""
        ...


def recorded(root: Path) -> Recording:
    """Return a folder's recording: its own questions asked once, or `run-N` of bfcl-eval's."""
    return Runs(root) if (root / "run-1").is_dir() else Snapshot(root)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A day of the leaderboard up to v3: questions, answers by model, verdicts by model."""

    root: Path

    def arms(self) -> list[str]:
        """Return the models whose answers were recorded, broken runs left out."""
        return _arms(self.root / "result")

    def judged(self) -> Iterator[Judged]:
        """Read the single-turn questions."""
        return read_files(_single_turn(question_files(self.root)))

    def answers(self, arm: str) -> Iterator[Answer]:
        """Read what a model answered."""
        for file in _single_turn(_results(self.root / "result" / arm)):
            parse = parse_native if is_native(arm, file.version) else parse_text
            yield from read_lines(file.path, partial(_read_answer, arm=arm, parse=parse))

    def verdicts(self, arm: str) -> Iterator[RecordedVerdict]:
        """Read the verdicts, one file for each file of answers."""
        for file in _single_turn(_results(self.root / "result" / arm)):
            path = self.root / "verdict" / arm / f"{file.category}.json.gz"
            yield from read_lines(path, _read_verdict)


@dataclass(frozen=True, slots=True)
class Runs:
    """The same models asked several times, `run-1`, `run-2`, ...: attempts 0, 1, ... of v4.

    Questions and accepted answers are those of the installed `bfcl-eval`.
    """

    root: Path

    def arms(self) -> list[str]:
        """Return the models of the first run, which the others asked again."""
        return _arms(self.root / "run-1" / "result")

    def judged(self) -> Iterator[Judged]:
        """Read those of the package's single-turn questions that were asked."""
        asked = {answer.example_id for arm in self.arms() for answer in self.answers(arm)}
        for judged in read_files(_single_turn(question_files(Path(PACKAGE)))):
            if judged.example.id in asked:
                yield judged

    def answers(self, arm: str) -> Iterator[Answer]:
        """Read what a model answered in each run."""
        for attempt, run in enumerate(self._runs()):
            for file in _single_turn(_results_by_group(run, arm)):
                read = partial(_read_answer, arm=arm, parse=parse_native, attempt=attempt)
                yield from read_lines(file.path, read)

    def verdicts(self, arm: str) -> Iterator[RecordedVerdict]:
        """Read the verdicts: a score file names the answers that failed."""
        for attempt, run in enumerate(self._runs()):
            for file in _single_turn(_results_by_group(run, arm)):
                failed = _read_failures(file, run / "score" / arm)
                for name in read_lines(file.path, lambda row: str(row["id"])):
                    yield RecordedVerdict(name, name not in failed, failed.get(name), attempt)

    def steps(self, arm: str) -> Iterator[Answer]:
        """Read every step of the multi-turn logs, to measure what share of them can be read.

        A step's id is `conversation:turn:step`; a conversation that failed is one step of its
        own id. They are not judged: a model's steps need not be those of the truth.
        """
        for attempt, run in enumerate(self._runs()):
            for file in _results_by_group(run, arm):
                if file.category in MULTI_TURN:
                    read = partial(_read_steps, arm=arm, attempt=attempt)
                    for steps in read_lines(file.path, read):
                        yield from steps

    def _runs(self) -> list[Path]:
        return sorted(self.root.glob("run-*"), key=lambda run: int(run.name.removeprefix("run-")))


def is_native(arm: str, version: int) -> bool:
    """Tell a run whose answers are a provider's own function calls.

    In v1 by the run's name. The later recordings are of models served locally, whose text was
    recorded as it came, `-FC` or not.
    """
    return version == 1 and ("-FC" in arm or arm.startswith("gemini"))


def _arms(results: Path) -> list[str]:
    if not results.is_dir():
        raise DataError(results, None, "is no folder: there are no recorded answers here")
    return sorted(path.name for path in results.iterdir() if path.name not in BROKEN_RUNS)


def _single_turn(files: list[LeaderboardFile]) -> list[LeaderboardFile]:
    return [file for file in files if file.category not in MULTI_TURN]


def _results(*folders: Path) -> list[LeaderboardFile]:
    """Return a model's files of answers; raises DataError where there are none."""
    files = [file for folder in folders for file in judged_files(folder)]
    if not files:
        raise DataError(folders[0], None, "holds no recorded answers of this model")
    return files


def _results_by_group(run: Path, arm: str) -> list[LeaderboardFile]:
    """Return a model's files of answers in the folders `live`, `multi_turn` and `non_live`."""
    folder = run / "result" / arm
    return _results(*(sorted(folder.glob("*/")) or [folder]))


def _read_answer(row: Mapping[str, Json], arm: str, parse: Parse, attempt: int = 0) -> Answer:
    """Read a recorded answer; an error message without output tokens is no answer at all."""
    counted, result = row.get("output_token_count"), row["result"]
    failed = not counted and isinstance(result, str) and bool(_ERROR.match(result))
    parsed = ParsedAnswer(None, "no_answer") if failed else parse(result)
    return Answer(
        example_id=row["id"],
        arm=arm,
        calls=parsed.calls,
        problem=parsed.problem,
        input_tokens=_count(row.get("input_token_count")),
        output_tokens=_count(counted),
        attempt=attempt,
        seconds=_seconds(row.get("latency")),
    )


def _count(value: Json) -> int | None:
    """Read a token count; 0 stands for a request that failed before anything was counted."""
    return int(value) if isinstance(value, int | float) and value > 0 else None


def _seconds(value: Json) -> float | None:
    """Read how long an answer took, of several steps together; `N/A` and 0 are unknown."""
    total = sum(value) if isinstance(value, list) else value
    return float(total) if isinstance(total, int | float) and total > 0 else None


def _read_verdict(row: Mapping[str, Json]) -> RecordedVerdict:
    return RecordedVerdict(row["id"], bool(row["valid"]), row.get("error_type"))


def _read_failures(file: LeaderboardFile, scores: Path) -> dict[str, str]:
    """Read the ids that failed, with why, from a score file; its first line only counts."""
    name = file.path.name.replace("_result.json", "_score.json")
    rows = read_lines(scores / file.path.parent.name / name, lambda row: row)
    return {row["id"]: row["error_type"] for row in rows if "id" in row}


def _read_steps(row: Mapping[str, Json], arm: str, attempt: int) -> list[Answer]:
    """Read a conversation's log: a list of turns, each a list of steps, or an error message."""
    log = row["result"]
    if isinstance(log, str):
        return [Answer(row["id"], arm, None, "no_answer", None, None, attempt)]
    steps = [
        (f"{row['id']}:{t}:{s}", parse_native(step))
        for t, turn in enumerate(log)
        for s, step in enumerate(turn)
    ]
    return [Answer(name, arm, p.calls, p.problem, None, None, attempt) for name, p in steps]
