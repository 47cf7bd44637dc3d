"""Queries with outcomes as JSON lines, which an import writes and a run reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

from switchcraft_training.datasets.lines import read_lines, write_lines
from switchcraft_training.datasets.rows import (
    example_from_json,
    example_to_json,
    expected_from_json,
    expected_to_json,
    to_json_line,
)
from switchcraft_training.decisions.queries import Query
from switchcraft_training.records import Json, Outcome

_NOBODY_SAID: Final[Mapping[str, Json]] = {"expected": None, "any_call": False}


def write_queries(queries: Iterable[Query], path: Path) -> int:
    """Write queries to a file, which appears only when it is complete; return their number.

    Lines are rows as in `switchcraft_training.datasets.rows`, with `calls` and `outcomes`. A row's
    `expected` is null if only verdicts are known. Raises DataError if the file cannot be written.
    """
    return write_lines((to_json_line(_to_json(query)) for query in queries), path)


def read_queries_file(path: Path) -> Iterator[Query]:
    """Stream a file of queries; raises DataError at the first line that cannot be read."""
    return read_lines(path, _from_json)


def _to_json(query: Query) -> Mapping[str, Json]:
    expected = _NOBODY_SAID if query.expected is None else expected_to_json(query.expected)
    outcomes = [
        {name: value for name, value in asdict(outcome).items() if name != "example_id"}
        for outcome in query.outcomes
    ]
    return {
        **example_to_json(query.example),
        **expected,
        "calls": query.calls,
        "outcomes": outcomes,
    }


def _from_json(row: Mapping[str, Json]) -> Query:
    return Query(
        example=example_from_json(row),
        expected=None if row["expected"] is None else expected_from_json(row),
        calls=row["calls"],
        outcomes=tuple(Outcome(row["id"], **outcome) for outcome in row["outcomes"]),
    )
