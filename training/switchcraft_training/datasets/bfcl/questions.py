"""Questions and accepted answers of every version, read as judged examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from switchcraft_training.datasets.bfcl.format import (
    ANY_CALL,
    MULTI_TURN,
    NO_CALL,
    LeaderboardFile,
    convert_functions,
    question_files,
    read_truth,
)
from switchcraft_training.datasets.bfcl.multi_turn import read_conversations
from switchcraft_training.datasets.lines import RowErrorHandler, raise_error, read_lines
from switchcraft_training.records import Example, Expected, Json, Judged


def read_source(path: Path, on_error: RowErrorHandler = raise_error) -> Iterator[Judged]:
    """Read every judged category in a directory of leaderboard files, of any version.

    The path `bfcl-eval` stands for the installed package's data. A row that cannot be read is
    passed to `on_error`. Raises DataError if there are no such files or a category is unknown,
    and ConfigError if multi-turn categories need `bfcl-eval` and it is not installed.
    """
    yield from read_files(question_files(path), on_error)


def read_files(
    files: Iterable[LeaderboardFile], on_error: RowErrorHandler = raise_error
) -> Iterator[Judged]:
    """Read files of questions; raises as `read_source` does."""
    for file in files:
        truths = read_accepted_answers(file, on_error)
        if file.category in MULTI_TURN:
            yield from read_conversations(file, truths, on_error)
        else:
            read = partial(_read_question, file=file, truths=truths)
            yield from read_lines(file.path, read, on_error)


def read_accepted_answers(
    file: LeaderboardFile, on_error: RowErrorHandler = raise_error
) -> dict[str, Json]:
    """Read the accepted answers by question; empty if they are in the file of questions."""
    path = file.accepted_answers
    if not path.exists():
        return {}
    return dict(read_lines(path, lambda row: (row["id"], row["ground_truth"]), on_error))


def _read_question(
    row: Mapping[str, Json], file: LeaderboardFile, truths: Mapping[str, Json]
) -> Judged:
    given, question = row["function"], row["question"]
    functions = given if isinstance(given, list) else [given]
    # v1 has a text, v2 a list of messages, later versions a list of turns.
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
