"""Rows of a source file, streamed, with every row that cannot be read accounted for."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, TypeVar, cast

import orjson

from router_service.core.errors import DataError
from training.records import Json

Row = TypeVar("Row")
OnFault = Callable[[DataError, bytes], None]
"""What to do with a row that cannot be read: raise, or set it aside and count it."""

BAD_ROW: Final = (ValueError, KeyError, IndexError, TypeError, AttributeError, SyntaxError)
"""What reading a row raises where the row is not what its format says."""


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
            on_fault(DataError(path, number, f"{type(exc).__name__}: {exc}"), line)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, numbered from 1."""
    try:
        with _open(path) as file:
            yield from ((n, line) for n, line in enumerate(file, start=1) if line.strip())
    except (OSError, EOFError) as exc:
        raise DataError(path, None, f"cannot be read: {exc}") from exc


def _open(path: Path) -> BinaryIO:
    return cast("BinaryIO", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")
