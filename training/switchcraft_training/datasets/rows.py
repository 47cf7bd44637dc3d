"""Readers and writers of row files, and the format of a judged example as a row.

A row file contains JSON lines or one JSON array, and is read one row at a time. The command
`import` writes judged examples (queries with their expected calls) as JSON lines; `label` and `run`
read them.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, Final, TypeVar, cast

import orjson

from router_service.apis.conversation import Json
from router_service.checker.comparison import OneOf
from router_service.checker.toolbox import ExpectedCall
from router_service.core.errors import InvalidRequestError
from router_service.core.strict_json import check_integers
from switchcraft_training.errors import DataError, RowError
from switchcraft_training.records import Example, Expected, Judged

Row = TypeVar("Row")
RowErrorHandler = Callable[[RowError, bytes], None]
"""Callback for a row that gives no example. It receives the error and the row's text, and either
raises the error or goes on."""

ROW_ERRORS: Final = (
    *(ValueError, KeyError, IndexError, TypeError, AttributeError),
    *(SyntaxError, RecursionError),
)
"""The exceptions that reading a row raises if the row does not have the expected format."""

FILE_ERRORS: Final = (OSError, EOFError, zlib.error)


_VALUES: Final = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\[[^]]*\]|\b\d+\b""")


def raise_error(error: RowError, _: bytes) -> None:
    """Raise the error, so that reading stops at the first row that cannot be read."""
    raise error


def row_error(path: Path, number: int, exc: Exception, place: str = "") -> RowError:
    """Return the error of a row; the reason is the problem without the row's own values."""
    match exc:
        case json.JSONDecodeError():
            reason = "a text is not valid JSON"
        case KeyError():
            reason = f"the field {exc} is missing"
        case InvalidRequestError():
            reason = "an integer is beyond 64 bits"
        case ValueError():
            reason = _VALUES.sub("…", str(exc)).partition(": ")[0]
        case _:
            reason = f"the layout is unknown ({type(exc).__name__})"
    return RowError(path, number, f"{place}{type(exc).__name__}: {exc}", reason=reason)


def read_lines(
    path: Path, read: Callable[[Json], Row], on_error: RowErrorHandler = raise_error
) -> Iterator[Row]:
    """Yield what `read` returns for each JSON line of a file, which may be compressed (`.gz`).

    A line that is not JSON, or that `read` rejects, is passed to `on_error`.
    """
    for number, line in _iterate_lines(path):
        try:
            value = orjson.loads(line)
            check_integers(line)  # orjson has rounded those beyond 64 bits
            yield read(value)
        except (*ROW_ERRORS, InvalidRequestError) as exc:
            on_error(row_error(path, number, exc), line)


def read_array(
    path: Path, read: Callable[[Json], Row], on_error: RowErrorHandler = raise_error
) -> Iterator[Row]:
    """Yield what `read` returns for each element of the JSON array in a file.

    Only one element at a time is in memory. If the file does not start with `[`, it is read as JSON
    lines. The line number in an error is the element's number in the array, from 1. Raises
    DataError if the array is not valid JSON, because the later elements cannot be separated.
    """
    is_array = next((line.lstrip().startswith(b"[") for _, line in _iterate_lines(path)), False)
    if not is_array:
        yield from read_lines(path, read, on_error)
        return
    for number, element in _iterate_elements(path):
        try:
            yield read(element)
        except ROW_ERRORS as exc:
            error = row_error(path, number, exc, f"row {number} of the array: ")
            on_error(error, orjson.dumps(element, default=str))


def _iterate_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, numbered from 1."""
    try:
        with _open_binary(path) as file:
            yield from ((n, line) for n, line in enumerate(file, start=1) if line.strip())
    except FILE_ERRORS as exc:
        raise DataError(path, None, f"cannot be read: {exc}") from exc


def _iterate_elements(path: Path) -> Iterator[tuple[int, Json]]:
    """Yield the elements of an array, numbered from 1."""
    import ijson  # noqa: PLC0415 - in the `train` extra; only arrays need it

    number = 0
    try:
        with _open_binary(path) as file:
            for number, element in enumerate(ijson.items(file, "item", use_float=True), start=1):
                yield number, element
    except ijson.JSONError as exc:
        raise DataError(path, None, f"is not valid JSON at row {number + 1} or soon after") from exc
    except FILE_ERRORS as exc:
        raise DataError(path, None, f"cannot be read: {exc}") from exc


def _open_binary(path: Path) -> BinaryIO:
    return cast("BinaryIO", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def write_lines(lines: Iterable[bytes], path: Path) -> int:
    """Write lines to a file, and return the number of lines.

    The file appears only after all lines are written. Raises DataError if it cannot be written.
    """
    count = 0
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            for line in lines:
                file.write(line + b"\n")
                count += 1
        partial.replace(path)
    except OSError as exc:
        problem = f"cannot be written: {exc}; free some space, or give another path"
        raise DataError(path, None, problem) from exc
    finally:
        with suppress(OSError):
            partial.unlink()
    return count


class Quarantine:
    """File of rows that could not be read, one JSON object per line.

    Each object has the fields `file`, `line`, `reason` and `row`. Pass `add` to a reader as
    `on_error`. Each line is written before the reader continues with the next row.
    """

    def __init__(self, path: Path) -> None:
        """Open the file for appending; raises DataError if it cannot be written."""
        self.path = path
        self.count = 0
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as exc:
            raise DataError(path, None, f"cannot be written: {exc}") from exc

    def add(self, error: DataError, raw: bytes) -> None:
        """Append a row that could not be read; `raw` is its text as published."""
        line = {
            "file": str(error.path),
            "line": error.line,
            "reason": error.problem,
            "row": raw.decode(errors="replace").rstrip("\r\n"),
        }
        try:
            self._file.write(orjson.dumps(line) + b"\n")
        except OSError as exc:
            raise DataError(self.path, None, f"cannot be written: {exc}") from exc
        self.count += 1

    def close(self) -> None:
        """Close the file."""
        self._file.close()


ONE_OF = "$one_of"
"""JSON key that lists the accepted values of a field inside an expected object. The key `$optional`
beside it is true if the field may be omitted."""


def encode_row(judged: Judged) -> bytes:
    """Return a judged example as a row: one JSON line, without a line break."""
    return to_json_line({**example_to_json(judged.example), **expected_to_json(judged.expected)})


def decode_row(row: Mapping[str, Json]) -> Judged:
    """Return a row's judged example; raises KeyError, TypeError or ValueError if it is invalid."""
    return Judged(example_from_json(row), expected_from_json(row))


def to_json_line(row: Mapping[str, Json]) -> bytes:
    """Return one JSON line without a line break.

    Raises TypeError if JSON cannot represent a value.
    """

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
    """Return a row's query; raises KeyError if a field is missing."""
    return Example(row["id"], row["category"], row["request"], row["dataset"], row["conversation"])


def expected_from_json(row: Mapping[str, Json]) -> Expected:
    """Return a row's expected answer.

    Raises KeyError, TypeError or ValueError if it is invalid or missing.
    """
    if row["expected"] is None:
        raise ValueError(f"{row['id']} has verdicts only; remove it, or add the expected calls")
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
    """Write judged examples as rows of a file, and return the number of rows.

    The file appears only after all rows are written. Raises DataError if it cannot be written, or
    if JSON cannot represent a value of a row.
    """

    def encode(judged: Judged) -> bytes:
        try:
            return encode_row(judged)
        except TypeError as exc:
            problem = f"{judged.example.id} cannot be written as JSON: {exc}"
            raise DataError(path, None, problem) from exc

    return write_lines(map(encode, rows), path)


def read_rows(path: Path) -> Iterator[Judged]:
    """Yield the judged examples of a row file; raises DataError if a row cannot be read.

    Equal tools of several rows are one object, because tools take most of a row's memory, and the
    rows of a benchmark share a few thousand tools.
    """
    known: dict[bytes, Json] = {}

    def decode(row: dict[str, Json]) -> Judged:
        judged = decode_row(row)
        tools = row["request"].get("tools")
        if isinstance(tools, list):
            digests = (blake2b(orjson.dumps(tool), digest_size=16).digest() for tool in tools)
            shared = [known.setdefault(*pair) for pair in zip(digests, tools, strict=True)]
            row["request"]["tools"] = shared
        return judged

    return read_lines(path, decode)
