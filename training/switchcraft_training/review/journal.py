"""An append-only file of JSON lines that a kill at any moment leaves whole."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Generic, Self, TypeVar

from pydantic import BaseModel, ValidationError

from router_service.core.errors import ConfigError, DataError
from switchcraft_training.datasets.corrections import first_problem

Entry = TypeVar("Entry", bound=BaseModel)


def read_entries(path: Path, model: type[Entry]) -> list[Entry]:
    """Return the entries written so far; none where there is no file yet.

    A last line without its end was being written when its writer was killed, and is passed over.
    Raises DataError at any other line that does not parse.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [_parse(path, number, line, model) for number, line in enumerate(lines, start=1)]


class Journal(Generic[Entry]):
    """The one writer of such a file; raises ConfigError where another process writes to it."""

    def __init__(self, path: Path, model: type[Entry]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        _lock(self._file, path)
        _cut_unfinished(path)
        self.entries = read_entries(path, model)

    def append(self, entry: Entry) -> None:
        """Write an entry; it is on the disk when this returns."""
        self._file.write(entry.model_dump_json(exclude_none=True).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.entries.append(entry)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def _parse(path: Path, number: int, line: bytes, model: type[Entry]) -> Entry:
    try:
        return model.model_validate_json(line)
    except ValidationError as exc:
        raise DataError(path, number, first_problem(exc)) from exc


def _lock(file: BinaryIO, path: Path) -> None:
    """Hold the file until it is closed or its process ends."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        file.close()
        problem = "another process writes to it; end that one first, or take another --out"
        raise ConfigError(str(path), "", problem) from exc


def _cut_unfinished(path: Path) -> None:
    content = path.read_bytes()
    os.truncate(path, content.rfind(b"\n") + 1)
