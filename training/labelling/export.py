"""The journal -> `answers.jsonl` and `failures.jsonl`, and the answers back as rows of training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import orjson

from router_service.core.errors import DataError
from training.datasets.lines import read_lines
from training.labelling.answers import Key, Reply, parse_message
from training.labelling.store import Failure, Store
from training.records import Answer, Call, Json

ANSWERS: Final = "answers.jsonl"
FAILURES: Final = "failures.jsonl"


def export(store: Store, folder: Path) -> tuple[int, int]:
    """Write all answers and what has none yet, sorted; return how many there are of each.

    An answer's calls are read anew each time. Raises DataError where a file cannot be written.
    """
    answers = (_answer_row(key, reply) for key, reply in store.answers())
    failures = map(_failure_row, store.failures())
    return _write(answers, folder / ANSWERS), _write(failures, folder / FAILURES)


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
    )


def _write(rows: Iterable[Mapping[str, Json]], path: Path) -> int:
    """Write a file that appears when all of it is written."""
    count = 0
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            for row in rows:
                file.write(orjson.dumps(row) + b"\n")
                count += 1
        partial.replace(path)
    except OSError as exc:
        raise DataError(path, None, f"cannot be written: {exc}") from exc
    finally:
        with suppress(OSError):
            partial.unlink()
    return count
