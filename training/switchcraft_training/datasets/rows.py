"""Judged examples as JSON lines: what `import` writes, and `label`, `review` and `run` read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import orjson

from router_service.core.errors import DataError
from switchcraft_training.datasets.lines import OnFault, read_lines, refuse, write_lines
from switchcraft_training.records import Example, Expected, ExpectedCall, Json, Judged, OneOf

ONE_OF = "$one_of"
"""Marks accepted values inside an accepted object; `$optional` beside it: may be left out."""


def encode(judged: Judged) -> bytes:
    """Return one JSON line without its end."""
    return dump({**example_to_json(judged.example), **expected_to_json(judged.expected)})


def decode(row: Mapping[str, Json]) -> Judged:
    """Read a row; raises KeyError, TypeError or ValueError where it is not one."""
    return Judged(example_from_json(row), expected_from_json(row))


def dump(row: Mapping[str, Json]) -> bytes:
    """Return a row as one JSON line without its end; raises TypeError where it has no JSON."""
    return orjson.dumps(row, default=_one_of_to_json, option=orjson.OPT_PASSTHROUGH_DATACLASS)


def example_to_json(example: Example) -> Mapping[str, Json]:
    """Return the part of a row that is the query."""
    return {
        "id": example.id,
        "dataset": example.dataset,
        "category": example.category,
        "conversation": example.conversation,
        "request": example.request,
    }


def expected_to_json(expected: Expected) -> Mapping[str, Json]:
    """Return the part of a row that is expected of an answer."""
    calls = [_call_to_json(call) for call in expected.calls]
    return {"expected": calls, "any_call": expected.any_call}


def example_from_json(row: Mapping[str, Json]) -> Example:
    """Read a row's query; raises KeyError where it has none."""
    return Example(row["id"], row["category"], row["request"], row["dataset"], row["conversation"])


def expected_from_json(row: Mapping[str, Json]) -> Expected:
    """Read what a row expects; raises as `decode` does."""
    if row["expected"] is None:
        raise ValueError(f"nobody said which calls {row['id']} expects, only what was right")
    return Expected(tuple(map(_call_from_json, row["expected"])), row["any_call"])


def write_rows(rows: Iterable[Judged], path: Path) -> int:
    """Write rows to a file; return how many there were.

    The file appears when all are written. Raises DataError where it cannot be, or where a row
    has no JSON.
    """
    return write_lines((_line(judged, path) for judged in rows), path)


def read_rows(path: Path, on_fault: OnFault = refuse) -> Iterator[Judged]:
    """Stream a file of rows; raises DataError at the first that cannot be read."""
    return read_lines(path, decode, on_fault)


def _line(judged: Judged, path: Path) -> bytes:
    try:
        return encode(judged)
    except TypeError as exc:
        raise DataError(path, None, f"{judged.example.id} has no JSON: {exc}") from exc


def _call_to_json(call: ExpectedCall) -> Mapping[str, Json]:
    return {
        "name": call.name,
        "arguments": call.arguments,
        "optional": sorted(call.optional),
        "after": sorted(call.after),
    }


def _call_from_json(row: Mapping[str, Json]) -> ExpectedCall:
    arguments = {name: tuple(map(_value, values)) for name, values in row["arguments"].items()}
    return ExpectedCall(row["name"], arguments, frozenset(row["optional"]), frozenset(row["after"]))


def _one_of_to_json(value: object) -> Mapping[str, Json]:
    if not isinstance(value, OneOf):
        raise TypeError(type(value).__name__)
    return {ONE_OF: value.values, "$optional": value.is_optional}


def _value(value: Json) -> Json:
    if isinstance(value, list):
        return [_value(item) for item in value]
    if not isinstance(value, dict):
        return value
    if ONE_OF in value:
        return OneOf(tuple(map(_value, value[ONE_OF])), bool(value["$optional"]))
    return {key: _value(inner) for key, inner in value.items()}
