"""The journal -> `answers.jsonl` and `failures.jsonl`, and the answers back as rows of training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import orjson

from switchcraft_training.datasets.lines import read_lines, write_lines
from switchcraft_training.labelling.answers import Key, Reply, parse_message
from switchcraft_training.labelling.store import Failure, Store
from switchcraft_training.records import Answer, Call, Json

ANSWERS: Final = "answers.jsonl"
FAILURES: Final = "failures.jsonl"


def export(store: Store, folder: Path) -> tuple[int, int]:
    """Write all answers and what has none yet, sorted; return how many there are of each.

    An answer's calls are read anew each time. Raises DataError where a file cannot be written.
    """
    answers = (_answer_row(key, reply) for key, reply in store.answers())
    failures = map(_failure_row, store.failures())
    return (
        write_lines(map(orjson.dumps, answers), folder / ANSWERS),
        write_lines(map(orjson.dumps, failures), folder / FAILURES),
    )


def read_answers(folder: Path, arm: str) -> Iterator[Answer]:
    """Read what an arm answered in an exported run; DataError where there is no such file."""
    rows = read_lines(folder / ANSWERS, _read_row)
    return (answer for answer in rows if answer.arm == arm)


def _answer_row(key: Key, reply: Reply) -> Mapping[str, Json]:
    parsed = parse_message(reply.message)
    return {**key._asdict(), "calls": parsed.calls, "problem": parsed.problem, **dict(reply)}


def _failure_row(failure: Failure) -> Mapping[str, Json]:
    facts = {"code": failure.code, "status": failure.status, "detail": failure.detail}
    return {**failure.key._asdict(), **facts}


def _read_row(row: Mapping[str, Json]) -> Answer:
    calls = row["calls"]
    return Answer(
        example_id=row["example_id"],
        arm=row["arm"],
        calls=None if calls is None else tuple(Call(c["name"], c["arguments"]) for c in calls),
        problem=row["problem"],
        input_tokens=row["input_tokens"],
        output_tokens=row["output_tokens"],
        attempt=row["attempt"],
        seconds=row.get("latency_s"),
    )
