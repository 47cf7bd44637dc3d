"""Judged examples as JSON lines: `import` writes them; `label`, `review` and `run` read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import orjson

from router_service.core.errors import DataError
from switchcraft_training.datasets.lines import (
    RowErrorHandler,
    raise_error,
    read_lines,
    write_lines,
)
from switchcraft_training.records import Example, Expected, ExpectedCall, Json, Judged, OneOf

ONE_OF = "$one_of"
"""Key of the accepted values inside an accepted object. `$optional` beside it is true if the key
may be omitted."""


def encode_row(judged: Judged) -> bytes:
    """Return a row as one JSON line, without a line break."""
    return to_json_line({**example_to_json(judged.example), **expected_to_json(judged.expected)})


def decode_row(row: Mapping[str, Json]) -> Judged:
    """Read a row; raises KeyError, TypeError or ValueError if it is invalid."""
    return Judged(example_from_json(row), expected_from_json(row))


def to_json_line(row: Mapping[str, Json]) -> bytes:
    """Return one JSON line without a line break; raises TypeError for a value without JSON."""

    def encode_one_of(value: object) -> Mapping[str, Json]:
        if not isinstance(value, OneOf):
            raise TypeError(type(value).__name__)
        return {ONE_OF: value.values, "$optional": value.is_optional}

    return orjson.dumps(row, default=encode_one_of, option=orjson.OPT_PASSTHROUGH_DATACLASS)


def example_to_json(example: Example) -> Mapping[str, Json]:
    """Return the fields of a row that describe the query."""
    return {
        "id": example.id,
        "dataset": example.dataset,
        "category": example.category,
        "conversation": example.conversation,
        "request": example.request,
    }


def expected_to_json(expected: Expected) -> Mapping[str, Json]:
    """Return the fields of a row that describe the expected answer."""
    calls = [
        {
            "name": call.name,
            "arguments": call.arguments,
            "optional": sorted(call.optional),
            "after": sorted(call.after),
        }
        for call in expected.calls
    ]
    return {"expected": calls, "any_call": expected.any_call}


def example_from_json(row: Mapping[str, Json]) -> Example:
    """Read a row's query; raises KeyError if a field is missing."""
    return Example(row["id"], row["category"], row["request"], row["dataset"], row["conversation"])


def expected_from_json(row: Mapping[str, Json]) -> Expected:
    """Read a row's expected answer; raises as `decode_row` does."""
    if row["expected"] is None:
        raise ValueError(f"{row['id']} has verdicts only, and no expected calls")
    calls = [
        ExpectedCall(
            name=call["name"],
            arguments={
                name: tuple(map(_decode_value, values))
                for name, values in call["arguments"].items()
            },
            optional=frozenset(call["optional"]),
            after=frozenset(call["after"]),
        )
        for call in row["expected"]
    ]
    return Expected(tuple(calls), row["any_call"])


def _decode_value(value: Json) -> Json:
    if isinstance(value, list):
        return [_decode_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    if ONE_OF in value:
        return OneOf(tuple(map(_decode_value, value[ONE_OF])), bool(value["$optional"]))
    return {key: _decode_value(inner) for key, inner in value.items()}


def write_rows(rows: Iterable[Judged], path: Path) -> int:
    """Write rows to a file, which appears only when all are written; return their number.

    Raises DataError if the file cannot be written, or if a row contains a value without JSON.
    """

    def encode(judged: Judged) -> bytes:
        try:
            return encode_row(judged)
        except TypeError as exc:
            problem = f"{judged.example.id} cannot be written as JSON: {exc}"
            raise DataError(path, None, problem) from exc

    return write_lines(map(encode, rows), path)


def read_rows(path: Path, on_error: RowErrorHandler = raise_error) -> Iterator[Judged]:
    """Stream a file of rows; raises DataError at the first that cannot be read."""
    return read_lines(path, decode_row, on_error)
