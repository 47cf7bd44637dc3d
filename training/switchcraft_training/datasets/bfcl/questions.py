"""Questions and accepted answers of every version -> judged examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from switchcraft_training.datasets.bfcl.files import (
    ANY_CALL,
    MULTI_TURN,
    NO_CALL,
    LeaderboardFile,
    question_files,
)
from switchcraft_training.datasets.bfcl.multi_turn import read_conversations
from switchcraft_training.datasets.bfcl.schema import to_tools
from switchcraft_training.datasets.bfcl.truths import read_truth
from switchcraft_training.datasets.lines import OnFault, read_lines, refuse
from switchcraft_training.records import Example, Expected, Json, Judged


def read_source(path: Path, on_fault: OnFault = refuse) -> Iterator[Judged]:
    """Read every judged category of a folder of the leaderboard's files, of any version.

    The path `bfcl-eval` means the installed package's data. A row that cannot be read goes to
    `on_fault`. Raises DataError where there are no such files or one of an unknown category,
    ConfigError where multi-turn categories need `bfcl-eval` and it is absent.
    """
    yield from read_files(question_files(path), on_fault)


def read_files(files: Iterable[LeaderboardFile], on_fault: OnFault = refuse) -> Iterator[Judged]:
    """Read some files of questions, as above."""
    for file in files:
        read = read_conversations if file.category in MULTI_TURN else _read_questions
        yield from read(file, read_truths(file, on_fault), on_fault)


def read_truths(file: LeaderboardFile, on_fault: OnFault) -> dict[str, Json]:
    """Read the accepted answers by question; none where the questions hold them."""
    if not file.truths.exists():
        return {}
    rows = read_lines(file.truths, lambda row: (row["id"], row["ground_truth"]), on_fault)
    return dict(rows)


def _read_questions(
    file: LeaderboardFile, truths: Mapping[str, Json], on_fault: OnFault
) -> Iterator[Judged]:
    return read_lines(file.path, lambda row: _read_question(row, file, truths), on_fault)


def _read_question(
    row: Mapping[str, Json], file: LeaderboardFile, truths: Mapping[str, Json]
) -> Judged:
    given = row["function"]
    functions = given if isinstance(given, list) else [given]
    request = {
        "messages": _messages(row["question"]),
        "tools": to_tools(functions, file.category, file.version),
    }
    example = Example(row["id"], file.category, request, file.dataset)
    if file.category in NO_CALL:
        return Judged(example, Expected(()))
    if file.category in ANY_CALL:
        return Judged(example, Expected((), any_call=True))
    truth = row["ground_truth"] if "ground_truth" in row else truths.get(row["id"])
    return Judged(example, read_truth(truth, functions, file.version))


def _messages(question: Json) -> list[Json]:
    """Return the messages: v1 has a text, v2 a list of messages, later ones a list of turns."""
    if isinstance(question, str):
        return [{"role": "user", "content": question}]
    if len(question) == 1 and isinstance(question[0], list):
        return list(question[0])
    if not question or not all(isinstance(message["role"], str) for message in question):
        raise ValueError("the question is neither a text nor the messages of one turn")
    return list(question)
