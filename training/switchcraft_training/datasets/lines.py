"""Rows of a source file, streamed, with every row that cannot be read accounted for."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, TypeVar, cast

import orjson

from router_service.core.errors import DataError
from switchcraft_training.records import Json

Row = TypeVar("Row")
OnFault = Callable[[DataError, bytes], None]
"""What to do with a row that cannot be read: raise, or set it aside and count it."""

BAD_ROW: Final = (
    *(ValueError, KeyError, IndexError, TypeError, AttributeError),
    *(SyntaxError, RecursionError),
)
"""What reading a row raises where the row is not what its format says."""

_UNREADABLE: Final = (OSError, EOFError, zlib.error)


def refuse(fault: DataError, _: bytes) -> None:
    """Stop at the first row that cannot be read."""
    raise fault


def read_lines(
    path: Path, read: Callable[[Json], Row], on_fault: OnFault = refuse
) -> Iterator[Row]:
    """Yield `read` of each JSON line of a file, gzip-compressed where it ends in `.gz`.

    A line that is not JSON, or that `read` cannot make a row of, goes to `on_fault`.
    """
    for number, line in _lines(path):
        try:
            yield read(orjson.loads(line))
        except BAD_ROW as exc:
            on_fault(DataError(path, number, _reason(exc)), line)


def read_array(
    path: Path, read: Callable[[Json], Row], on_fault: OnFault = refuse
) -> Iterator[Row]:
    """Yield `read` of each element of the JSON array that a file is, one in memory at a time.

    A file of JSON lines is read as `read_lines` does. An element's fault has its number in the
    array, from 1, for a line. Raises DataError where the file stops being JSON: what comes after
    that cannot be told apart into rows.
    """
    if not _is_array(path):
        yield from read_lines(path, read, on_fault)
        return
    for number, element in _elements(path):
        try:
            yield read(element)
        except BAD_ROW as exc:
            reason = f"row {number} of the array: {_reason(exc)}"
            on_fault(DataError(path, number, reason), orjson.dumps(element, default=str))


def _reason(exc: Exception) -> str:
    return f"{type(exc).__name__}: {exc}"


def _is_array(path: Path) -> bool:
    return next((line.lstrip().startswith(b"[") for _, line in _lines(path)), False)


def _elements(path: Path) -> Iterator[tuple[int, Json]]:
    """Yield the elements of an array, numbered from 1."""
    import ijson  # noqa: PLC0415 - arrays alone need it; rows are read without the training extra

    number = 0
    try:
        with _open(path) as file:
            for number, element in enumerate(ijson.items(file, "item", use_float=True), start=1):
                yield number, element
    except ijson.JSONError as exc:
        raise DataError(path, None, f"is not JSON from row {number + 1} or soon after") from exc
    except _UNREADABLE as exc:
        raise DataError(path, None, f"cannot be read: {exc}") from exc


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, numbered from 1."""
    try:
        with _open(path) as file:
            yield from ((n, line) for n, line in enumerate(file, start=1) if line.strip())
    except _UNREADABLE as exc:
        raise DataError(path, None, f"cannot be read: {exc}") from exc


def _open(path: Path) -> BinaryIO:
    return cast("BinaryIO", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def write_lines(lines: Iterable[bytes], path: Path) -> int:
    """Write lines to a file that appears when all of them are written; return how many.

    Raises DataError where the file cannot be written.
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
        raise DataError(path, None, f"cannot be written: {exc}") from exc
    finally:
        with suppress(OSError):
            partial.unlink()
    return count
