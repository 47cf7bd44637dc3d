"""Decision log: the thread that handles requests after they have ended, and the files it writes.

A disk failure never affects a request. The rotating handlers of `logging` are not used: they rename
files that other processes may have open, leave half a line if the disk is full, and have no
retention. Files are deleted by the time at which they were begun, which their names have.
"""

from __future__ import annotations

import logging
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel

from router_service.settings import DecisionLogSettings
from router_service.telemetry.metrics import Metrics

RETRY_S = 1.0
"""Pause after a failed attempt to write to the folder."""
LONGEST_FILE_S = 24 * 3600.0
FILES_IN_RETENTION = 24
"""Least number of files that the retention period is divided into. A file is deleted when its
first line is too old; the more files there are, the fewer newer lines are deleted with it."""
MAX_QUEUED_BYTES = 64 * 1024 * 1024
"""Largest total size of queued items. A limit on their number is not enough, because one request
may have 10 MB."""

IDLE_S = 30.0
"""Longest time between two calls of `when_idle` if the queue is empty."""

_PREFIX = "decisions-"
_BEGUN = "%Y%m%dT%H%M%SZ"
_log = logging.getLogger("switchcraft.decision_log")
_background_log = logging.getLogger("switchcraft.background")

T = TypeVar("T")


class DecisionLog:
    """Writer of the decision log, to be used by one thread.

    Other gateways may write their own files to the same folder. If somebody deletes the folder, it
    is created again. Lines that cannot be written are dropped and counted. A file never contains a
    part of a line.
    """

    def __init__(
        self,
        settings: DecisionLogSettings,
        metrics: Metrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Write nothing yet; `clock` returns Unix seconds."""
        self._folder = settings.path
        self._retention_s = settings.retention_days * 24 * 3600
        self._max_age_s = min(LONGEST_FILE_S, self._retention_s / FILES_IN_RETENTION)
        self._max_bytes = settings.max_file_mb * 1e6
        self._metrics = metrics
        self._clock = clock
        self._file: FileIO | None = None
        self._begun_s = 0.0
        self._written_bytes = 0
        self._is_started = False
        self._is_up = True
        self._lost = 0
        self._retry_at_s = 0.0
        """When the folder may be used again after a failure."""
        metrics.dependency_up.labels("decision_log").set_function(lambda: self._is_up)

    def start(self) -> None:
        """Create the folder if it is missing, and check that files can be written to it."""
        if self._folder is None:
            return
        try:
            self._open(self._folder)
        except OSError as exc:
            self._failed(exc)

    def write(self, line: BaseModel) -> None:
        """Append a line. Do nothing if no folder is configured."""
        if self._folder is None:
            return
        try:
            text = line.model_dump_json(by_alias=True, exclude_none=True).encode() + b"\n"
        except ValueError:  # content that is nested too deeply
            self._metrics.lost_records.labels("decision_log", "failed").inc()
            return
        try:
            self._append(self._folder, text)
        except OSError as exc:
            self._failed(exc)
            self._lost += 1
            self._metrics.lost_records.labels("decision_log", "failed").inc()
            return
        if not self._is_up:
            _log.warning("writing the decision log again: lost_lines=%d", self._lost)
        self._is_up, self._lost = True, 0

    def tidy(self) -> None:
        """Delete expired files. Close the current one if it has reached its age or size limit."""
        if self._folder is None:
            return
        try:
            if self._file is not None and self._is_complete():
                self.close()
            oldest_s = self._clock() - self._retention_s
            for path in self._folder.glob(f"{_PREFIX}*.jsonl"):
                begun = path.name.removeprefix(_PREFIX).partition("-")[0]
                try:
                    begun_s = datetime.strptime(begun, _BEGUN).replace(tzinfo=UTC).timestamp()
                except ValueError:
                    continue  # not a file of the decision log
                if begun_s < oldest_s:
                    path.unlink(missing_ok=True)
        except OSError as exc:
            _log.warning(
                "cannot delete old decision log files: path=%s cause=%s",
                exc.filename or self._folder,
                exc.strerror,
            )

    def close(self) -> None:
        """Close the current file, and delete it if it is empty."""
        file, self._file = self._file, None
        if file is None:
            return
        file.close()
        if self._written_bytes == 0:
            Path(os.fsdecode(file.name)).unlink(missing_ok=True)

    def _append(self, folder: Path, line: bytes) -> None:
        if 0 < self._retry_at_s - self._clock() <= RETRY_S:  # even if the clock was set back
            raise OSError("an earlier write failed")
        file = self._file
        # Writing to a deleted file would succeed, but the lines would be lost.
        is_deleted = file is not None and os.fstat(file.fileno()).st_nlink == 0
        if file is None or is_deleted or self._is_complete():
            self.close()
            file = self._open(folder)
        written = 0
        try:
            while written < len(line):
                written += file.write(line[written:])
        except OSError:
            try:
                file.truncate(self._written_bytes)  # removes the incomplete line
            except OSError:
                _log.warning("decision log file %s may end with an incomplete line", file.name)
            self.close()
            raise
        self._written_bytes += len(line)

    def _is_complete(self) -> bool:
        is_old = self._clock() >= self._begun_s + self._max_age_s
        return is_old or self._written_bytes >= self._max_bytes

    def _open(self, folder: Path) -> FileIO:
        """Begin a file, in a new folder if somebody has deleted the folder."""
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            if self._is_started and self._is_up:
                _log.warning("created the decision log's folder again: path=%s", folder)
        self._is_started = True
        self._begun_s = self._clock()
        begun = datetime.fromtimestamp(self._begun_s, UTC).strftime(_BEGUN)
        path = folder / f"{_PREFIX}{begun}-{secrets.token_hex(4)}.jsonl"
        # Readable by the owner and the group only.
        self._file = FileIO(path, "xb", opener=lambda path, flags: os.open(path, flags, 0o640))
        self._written_bytes = 0
        self.tidy()
        return self._file

    def _failed(self, exc: OSError) -> None:
        if not 0 < self._retry_at_s - self._clock() <= RETRY_S:
            self._retry_at_s = self._clock() + RETRY_S
        if self._is_up:
            _log.warning(
                "cannot write the decision log, dropping lines: path=%s cause=%s",
                exc.filename or self._folder,
                exc.strerror or exc,
            )
        self._is_up = False


class BackgroundWorker(Generic[T]):
    """Bounded queue, and a thread that handles its items in order."""

    def __init__(
        self,
        handle: Callable[[T], None],
        *,
        max_items: int,
        when_idle: Callable[[], None],
        at_end: Callable[[], None],
    ) -> None:
        """Create the queue. Its items are not handled before `start`.

        `when_idle` is called in the thread every `IDLE_S` seconds, and `at_end` before the thread
        ends.
        """
        self._handle = handle
        self._max_items = max_items
        self._when_idle = when_idle
        self._at_end = at_end
        self._queue: queue.SimpleQueue[tuple[T, int] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._items = 0
        self._bytes = 0
        self._thread = threading.Thread(target=self._run, name="background", daemon=True)
        self._ends_at_s = float("inf")

    def start(self) -> None:
        """Start the thread. Items that were queued before are handled first."""
        self._thread.start()

    def put(self, item: T, size_bytes: int = 0) -> bool:
        """Queue an item without waiting; return False if the queue is full."""
        with self._lock:
            if self._items >= self._max_items or self._bytes >= MAX_QUEUED_BYTES:
                return False
            self._items += 1
            self._bytes += size_bytes
        self._queue.put((item, size_bytes))
        return True

    def close(self, timeout_s: float) -> bool:
        """Handle the queued items and end the thread; return False if `timeout_s` was too short."""
        if not self._thread.is_alive():
            return self._items == 0
        self._ends_at_s = time.monotonic() + timeout_s
        self._queue.put(None)
        self._thread.join(timeout_s)
        return self._items == 0

    def _run(self) -> None:
        idle_called_s = time.monotonic()
        while time.monotonic() < self._ends_at_s:
            with suppress(queue.Empty):
                queued = self._queue.get(timeout=IDLE_S)
                if queued is None:
                    break
                item, size_bytes = queued
                self._call(partial(self._handle, item))
                del queued, item  # frees the memory during the next wait
                with self._lock:
                    self._items -= 1
                    self._bytes -= size_bytes
            if time.monotonic() >= idle_called_s + IDLE_S:
                idle_called_s = time.monotonic()
                self._call(self._when_idle)
        self._call(self._at_end)

    def _call(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException:  # noqa: BLE001 - a panic in native code is not an Exception, and must not end the thread
            _background_log.exception("background work for an ended request failed")
