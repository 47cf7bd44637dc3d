"""Rows set aside: a file of those that could not be read, each with where and why."""

from __future__ import annotations

from pathlib import Path

import orjson

from router_service.core.errors import DataError


class Quarantine:
    """Appends rows to a file as `{"file", "line", "reason", "row"}`, a line each, and counts them.

    `add` is what readers take as `on_fault`. A line is on disk before the next row is read.
    """

    def __init__(self, path: Path) -> None:
        """Open the file; raises DataError where it cannot be written."""
        self.path = path
        self.count = 0
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as exc:
            raise DataError(path, None, f"cannot be written: {exc}") from exc

    def add(self, fault: DataError, raw: bytes) -> None:
        """Set a row aside; `raw` is its text as published."""
        line = {
            "file": str(fault.path),
            "line": fault.line,
            "reason": fault.problem,
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
