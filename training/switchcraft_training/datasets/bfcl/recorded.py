"""Questions with accepted answers, and recorded answers to them."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from router_service.apis.conversation import Json
from switchcraft_training.checking import ParsedAnswer, parse_native, parse_text
from switchcraft_training.datasets.bfcl.format import (
    ANY_CALL,
    NO_CALL,
    PACKAGE,
    LeaderboardFile,
    convert_functions,
    judged_files,
    question_files,
    read_truth,
)
from switchcraft_training.datasets.rows import RowErrorHandler, raise_error, read_lines
from switchcraft_training.errors import DataError
from switchcraft_training.records import Answer, Example, Expected, Judged


def read_source(path: Path, on_error: RowErrorHandler = raise_error) -> Iterator[Judged]:
    """Read every judged category in a directory of leaderboard files, of any version.

    The path `bfcl-eval` means the installed package's data. A row that cannot be read is passed to
    `on_error`. Raises DataError if there are no leaderboard files or a category is unknown.
    """
    yield from read_files(question_files(path), on_error)


def read_files(
    files: Iterable[LeaderboardFile], on_error: RowErrorHandler = raise_error
) -> Iterator[Judged]:
    """Read files of questions; raises as `read_source` does."""
    for file in files:
        truths = read_accepted_answers(file, on_error)
        read = partial(_read_question, file=file, truths=truths)
        yield from read_lines(file.path, read, on_error)


def read_accepted_answers(
    file: LeaderboardFile, on_error: RowErrorHandler = raise_error
) -> dict[str, Json]:
    """Return the accepted answers by question id; empty if they have no file of their own."""
    path = file.accepted_answers
    if not path.exists():
        return {}
    return dict(read_lines(path, lambda row: (row["id"], row["ground_truth"]), on_error))


def _read_question(
    row: Mapping[str, Json], file: LeaderboardFile, truths: Mapping[str, Json]
) -> Judged:
    given, question = row["function"], row["question"]
    functions = given if isinstance(given, list) else [given]
    # In v1, a question is a text; in v2, a list of messages; in later versions, a list of turns.
    if isinstance(question, str):
        messages = [{"role": "user", "content": question}]
    elif len(question) == 1 and isinstance(question[0], list):
        messages = list(question[0])
    elif question and all(isinstance(message["role"], str) for message in question):
        messages = list(question)
    else:
        raise ValueError("the question is neither a text nor the messages of one turn")
    tools = convert_functions(functions, file.category, file.version)
    example = Example(
        row["id"], file.category, {"messages": messages, "tools": tools}, file.dataset
    )
    if file.category in NO_CALL:
        return Judged(example, Expected(()))
    if file.category in ANY_CALL:
        return Judged(example, Expected((), any_call=True))
    truth = row["ground_truth"] if "ground_truth" in row else truths.get(row["id"])
    return Judged(example, read_truth(truth, functions, file.version))


log = logging.getLogger(__name__)

AnswerParser = Callable[[Json], ParsedAnswer]

BROKEN_RUNS = frozenset(
    {"gpt-4o-2024-08-06", "mistral-large-2407", "NousResearch_Hermes-2-Theta-Llama-3-70B"}
)
"""Runs with technical failures, whose records do not reflect what the models can do."""

_COUNTED_PER_CALL = re.compile(r"(?:gpt|chatgpt|o\d)[-.\d]")
"""Runs of v4 whose recorded prompt tokens are divided by the number of calls of the answer: those
of OpenAI's own API."""

_COUNTED_WITHOUT_REASONING = re.compile(r"gemini-(?:3|2\.5-(?:pro|flash(?!-lite)))")
"""Runs of v4 whose recorded output tokens leave out reasoning, which Google charges for. Flash-Lite
does not reason by default."""

_ERROR_MESSAGE = re.compile(r"\s*(?:$|(?:internal |parsing )?error\b)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RecordedQuestions:
    """The single-turn questions in a directory or in the installed `bfcl-eval`, without answers."""

    path: Path = Path(PACKAGE)

    def arms(self) -> list[str]:
        """Return no models."""
        return []

    def judged(self) -> Iterator[Judged]:
        """Read the questions; raises as `read_source` does."""
        return read_source(self.path)

    def answers(self, arm: str) -> Iterator[Answer]:
        """Return no answers."""
        del arm
        yield from ()


def open_recording(root: Path) -> LeaderboardSnapshot | RepeatedRuns:
    """Open a recording: runs of bfcl-eval in the layout of v4, otherwise a snapshot.

    Its methods raise DataError if a file cannot be read.

    In v4, a model's answers are in directories such as `live`, below `run-1/result` or, in a day's
    folder of the leaderboard's own repository, below `result`.
    """
    is_v4 = (root / "run-1").is_dir() or any(root.glob("result/*/*live/"))
    return RepeatedRuns(root) if is_v4 else LeaderboardSnapshot(root)


@dataclass(frozen=True, slots=True)
class LeaderboardSnapshot:
    """A copy of the leaderboard up to v3: questions, and the answers of each model."""

    root: Path

    def arms(self) -> list[str]:
        """Return the models with recorded answers, without broken runs."""
        return _list_arms(self.root / "result")

    def judged(self) -> Iterator[Judged]:
        """Read the single-turn questions."""
        return read_files(question_files(self.root))

    def answers(self, arm: str) -> Iterator[Answer]:
        """Read a model's answers."""
        folder = self.root / "result" / arm
        # In v1, the run's name shows whether answers were recorded as function calls of the
        # provider's API. Snapshots of v3 are of locally served models. Their text was recorded
        # unparsed, whether or not `-FC` is in the name.
        is_native = "-FC" in arm or arm.startswith("gemini")
        for file in _require_files(judged_files(folder), folder):
            parse = parse_native if file.version == 1 and is_native else parse_text
            yield from read_lines(file.path, partial(_read_answer, arm=arm, parse=parse))


@dataclass(frozen=True, slots=True)
class RepeatedRuns:
    """Several runs of the same models on v4: `run-1`, `run-2`, ... are attempts 0, 1, ...

    Without `run-1`, the folder itself is the only run. Questions and accepted answers are those in
    `data` or, without this folder, of the installed `bfcl-eval`.
    """

    root: Path

    def arms(self) -> list[str]:
        """Return the models of the first run with single-turn answers; other runs repeat them."""
        run = self._runs()[0]
        arms = _list_arms(run / "result")
        return [arm for arm in arms if _files_of_run(run, arm)]

    def judged(self) -> Iterator[Judged]:
        """Read the single-turn questions that have recorded answers.

        A row that cannot be read is skipped here. Reading the answers of its model reports it.
        """
        answered: set[str] = set()
        arms = self.arms()
        for run in self._runs():
            for arm in arms:
                for file in _files_of_run(run, arm):
                    answered.update(read_lines(file.path, lambda row: str(row["id"]), _skip_row))
        data = self.root / "data"
        source = data if data.is_dir() else Path(PACKAGE)
        for judged in RecordedQuestions(source).judged():
            if judged.example.id in answered:
                yield judged

    def answers(self, arm: str) -> Iterator[Answer]:
        """Read a model's answers in each run, with token counts as the provider charges them."""
        if _COUNTED_WITHOUT_REASONING.match(arm):
            log.warning(
                "token counts ignored: model=%s cause=%r", arm, "they leave out billed reasoning"
            )
        for attempt, run in enumerate(self._runs()):
            files = _require_files(_files_of_run(run, arm), run / "result" / arm)
            parse = parse_native if _has_lists_of_calls(files) else parse_text
            read = partial(_read_answer, arm=arm, parse=parse, attempt=attempt)
            for file in files:
                yield from map(_with_charged_tokens, read_lines(file.path, read))

    def _runs(self) -> list[Path]:
        runs = sorted(self.root.glob("run-*"), key=lambda run: int(run.name.removeprefix("run-")))
        return runs or [self.root]


def _has_lists_of_calls(files: Iterable[LeaderboardFile]) -> bool:
    """Return whether any answer of a v4 run was recorded as a list of calls.

    The text of such a run is what the API returned beside calls, or in place of them. All other
    runs were recorded as text that has to be parsed: those with prompts, and many of locally served
    models, with or without `-FC` in the name.
    """
    return any(
        any(read_lines(file.path, lambda row: isinstance(row.get("result"), list), _skip_row))
        for file in files
    )


def _skip_row(error: DataError, _: bytes) -> None:
    log.debug("skipped: %s", error)


def _list_arms(results: Path) -> list[str]:
    if not results.is_dir():
        problem = "is not a directory; it must contain the recorded answers"
        remedy = "(`switchcraft-train fetch` downloads public ones)"
        raise DataError(results, None, f"{problem} {remedy}")
    folders = (path.name for path in results.iterdir() if path.is_dir())
    return sorted(name for name in folders if name[0] != "." and name not in BROKEN_RUNS)


def _files_of_run(run: Path, arm: str) -> list[LeaderboardFile]:
    """Return a model's files of answers in directories such as `live` and `non_live`."""
    folders = sorted((run / "result" / arm).glob("*/"))
    return [file for folder in folders for file in judged_files(folder)]


def _require_files(files: list[LeaderboardFile], folder: Path) -> list[LeaderboardFile]:
    if not files:
        raise DataError(folder, None, "contains no recorded answers of this model")
    return files


def _read_answer(
    row: Mapping[str, Json], arm: str, parse: AnswerParser, attempt: int = 0
) -> Answer:
    """Read a recorded answer; an error message without output tokens counts as no answer."""
    counted, result, latency = row.get("output_token_count"), row["result"], row.get("latency")
    failed = not counted and isinstance(result, str) and bool(_ERROR_MESSAGE.match(result))
    parsed = ParsedAnswer(None, "no_answer") if failed else parse(result)
    # An answer of several steps has a list of latencies. `N/A` and 0 mean an unknown latency.
    seconds = sum(latency) if isinstance(latency, list) else latency
    return Answer(
        example_id=row["id"],
        arm=arm,
        calls=parsed.calls,
        problem=parsed.problem,
        input_tokens=_read_token_count(row.get("input_token_count")),
        output_tokens=_read_token_count(counted),
        attempt=attempt,
        seconds=float(seconds) if isinstance(seconds, int | float) and seconds > 0 else None,
    )


def _with_charged_tokens(answer: Answer) -> Answer:
    """Return an answer of v4 with the tokens that the provider charges, or None if unknown."""
    if _COUNTED_WITHOUT_REASONING.match(answer.arm):
        return replace(answer, input_tokens=None, output_tokens=None)
    calls = len(answer.calls or ())
    if calls > 1 and answer.input_tokens and _COUNTED_PER_CALL.match(answer.arm):
        return replace(answer, input_tokens=answer.input_tokens * calls)
    return answer


def _read_token_count(value: Json) -> int | None:
    """Read a token count; 0 means that the request failed before anything was counted."""
    return int(value) if isinstance(value, int | float) and value > 0 else None
