"""Traffic history: requests, costs, errors and latencies over time, in an SQLite file.

A request adds to sums in memory, which takes about 1 µs. A thread adds these sums to the file every
second, so that several workers can share one file. The file has sums for minutes, hours and days,
and no part of any request. A disk failure never affects a request. A damaged file is kept under
another name, and a new one is begun.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import sqlite3
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from router_service.core.errors import HistoryUnavailableError
from router_service.settings import UsageSettings

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 24 * 3600
KEPT_S: Mapping[int, int] = {MINUTE_S: 2 * HOUR_S, HOUR_S: 2 * DAY_S, DAY_S: 32 * DAY_S}
"""How long sums are kept, by the length of the time that they are for."""

MAX_ROWS = 200_000
"""Largest number of rows in the file, about 60 MB. Beyond it, the oldest minutes are deleted first,
then the oldest hours. Few gateways get near: a row is a model, a policy and a key in one minute."""

MAX_PENDING = 5_000
"""Largest number of rows in memory while the file cannot be written; further ones are dropped."""

MAX_POLICIES = 32
"""Number of different policies that are recorded with their number, such as `drift=0.05`. Clients
choose the number freely, so further ones are recorded by their rule, such as `drift`."""

NO_POLICY = "none"
"""Policy of requests that were not routed."""

WRITE_EVERY_S = 1.0
TIDY_EVERY_S = 600.0
RETRY_S = 5.0
"""Pause after a failed attempt to write the file."""
BUSY_S = 2.0
"""Longest time to wait for another worker that writes the file."""
QUIET_FAILURES = 3
"""Number of failures in a row without a warning while another worker writes the file."""
CLOSING_S = 5.0

FILE_MODE = 0o600
"""Permissions of the file, and of those that SQLite adds to it: who has which key, and what each
key spends, is for the operator only."""

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_PARTS = ("", "-wal", "-shm")
"""What SQLite adds to a database's name, for the files that belong to it (sqlite.org/wal.html)."""

LATENCY_RATIO = 2**0.25
"""Ratio of two bounds of the latency histogram. A percentile is off by 19% at most."""
LATENCY_BOUNDS_S = tuple(0.001 * LATENCY_RATIO**step for step in range(81))
"""Upper bounds of the latency histogram's bins, from 1 ms to 17 minutes; the last bin is open."""

_log = logging.getLogger("switchcraft.history")

GroupBy = Literal["start", "model", "policy", "key"]
"""What the rows of a report are for: the Unix time at which a bin starts, or a name."""


@dataclass(slots=True)
class TrafficSums:
    """Sums over requests."""

    requests: int = 0
    errors: int = 0
    """Requests with a status of 400 or more, or with an incomplete answer; a client that left is
    none."""
    unpriced: int = 0
    """Answers whose cost is unknown."""
    cost_usd: float = 0.0
    compared_usd: float = 0.0
    """Cost of the routed requests for which the cost of the baseline model is known too."""
    baseline_usd: float = 0.0
    """Cost of the same requests with the baseline model."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    unfamiliar: int = 0
    """Routed requests that are unlike the router's training data."""
    latencies: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))
    """Histogram of the time from a request's arrival to the end of its answer. Requests that were
    refused before a model was asked are not in it."""

    def add(self, other: TrafficSums) -> None:
        """Add the sums over other requests."""
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.latencies = [a + b for a, b in zip(self.latencies, other.latencies, strict=True)]

    def percentile_s(self, share: float) -> float | None:
        """Return a percentile of the latencies by interpolation; None without any."""
        wanted = share * sum(self.latencies)
        below = 0
        for index, count in enumerate(self.latencies):
            if count and below + count >= wanted:
                upper_s = LATENCY_BOUNDS_S[min(index, len(LATENCY_BOUNDS_S) - 1)]
                return upper_s * math.pow(LATENCY_RATIO, (wanted - below) / count - 1)
            below += count
        return None


_NUMBERS = tuple(name for name in TrafficSums.__dataclass_fields__ if name != "latencies")
_BINS = tuple(f"latency_{index}" for index in range(len(LATENCY_BOUNDS_S) + 1))
_SUMS = (*_NUMBERS, *_BINS)
_NAMES = ("step_s", "start", "key", "model", "policy")
# The version is in the table's name: another version's workers may write the same file.
_TABLE, _OLD_TABLE = "traffic_2", "traffic_1"
_OLD = ", ".join(name for name in (*_NAMES, *_SUMS) if name != "unfamiliar")
_SCHEMA = f"""CREATE TABLE IF NOT EXISTS traffic_2 (
    step_s INTEGER, start INTEGER, key TEXT, model TEXT, policy TEXT,
    {", ".join(f"{name} NUMERIC NOT NULL" for name in _SUMS)},
    PRIMARY KEY ({", ".join(_NAMES)})) WITHOUT ROWID"""
_ADD = f"""INSERT INTO traffic_2 ({", ".join((*_NAMES, *_SUMS))})
    VALUES ({", ".join("?" * len((*_NAMES, *_SUMS)))})
    ON CONFLICT DO UPDATE SET {", ".join(f"{n} = {n} + excluded.{n}" for n in _SUMS)}"""  # noqa: S608 - only our names
_COPY = f"""INSERT OR IGNORE INTO {_TABLE} ({_OLD}, unfamiliar)
    SELECT {_OLD}, 0 FROM {_OLD_TABLE}"""  # noqa: S608 - only our names
_TRIM = """DELETE FROM traffic_2 WHERE (step_s, start) <=
    (SELECT step_s, start FROM traffic_2 ORDER BY step_s, start LIMIT 1 OFFSET ?)"""

Row = tuple[int, str, str, str]
"""The Unix time at which a minute starts, and the names of the key, the model and the policy."""


class TrafficHistory:
    """Sums over a gateway's requests, added on the event loop and written by a thread."""

    def __init__(
        self,
        settings: UsageSettings,
        clock: Callable[[], float] = time.time,
        max_rows: int = MAX_ROWS,
    ) -> None:
        """Write nothing yet; `clock` returns Unix seconds. Without a path, SQLite uses memory."""
        self._max_rows = max_rows
        self._path: Path | None = None
        self._is_enabled = settings.enabled
        self._clock = clock
        self._pending: dict[Row, TrafficSums] = {}
        self._pending_lock = threading.Lock()
        self._policies: set[str] = set()
        self._connection: sqlite3.Connection | None = None
        self._inode: int | None = None
        """The file that the connection has opened; another one may have its name by now."""
        self._connection_lock = threading.Lock()
        self._failure: str | None = None
        self._failures = 0
        self._dropped = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def start(self) -> None:
        """Open the file and start the thread, unless the history is disabled."""
        if self._is_enabled:
            try:
                with self._connection_lock:
                    self._open()
            except (OSError, sqlite3.Error) as exc:
                self._failed(exc)
            self._thread.start()

    def close(self) -> None:
        """Write what is pending, and close the file."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(CLOSING_S)

    def add(  # noqa: PLR0913 - an object would take longer to create than the sums
        self,
        key: str | None,
        model: str,
        policy: str,
        *,
        is_error: bool,
        is_unfamiliar: bool = False,
        policy_kind: str | None = None,
        latency_s: float | None = None,
        cost_usd: float | None = None,
        baseline_usd: float | None = None,
        prompt_tokens: int | None = None,
        completion_tokens: int | None = None,
    ) -> None:
        """Count a request that has ended.

        `policy_kind` replaces the policy if too many different ones are recorded already.
        `latency_s` is None if no model was asked, and `baseline_usd` if the cost of the baseline
        model is unknown or `cost_usd` is not to be compared with it.
        """
        if policy not in self._policies:
            if len(self._policies) < MAX_POLICIES:
                self._policies.add(policy)
            else:
                policy = policy_kind or policy.partition("=")[0]
        row = (int(self._clock()) // MINUTE_S * MINUTE_S, key or "", model, policy)
        with self._pending_lock:
            sums = self._pending.get(row)
            if sums is None:
                if len(self._pending) >= MAX_PENDING or not self._is_enabled:
                    self._dropped += 1
                    return
                sums = self._pending[row] = TrafficSums()
            sums.requests += 1
            sums.errors += is_error
            sums.unfamiliar += is_unfamiliar
            if cost_usd is not None:
                sums.cost_usd += cost_usd
                if baseline_usd is not None:
                    sums.compared_usd += cost_usd
                    sums.baseline_usd += baseline_usd
            elif latency_s is not None and not is_error:
                sums.unpriced += 1
            if latency_s is not None:
                sums.latencies[bisect_left(LATENCY_BOUNDS_S, latency_s)] += 1
            sums.prompt_tokens += prompt_tokens or 0
            sums.completion_tokens += completion_tokens or 0

    def read(
        self, step_s: int, since: float, by: GroupBy, **names: str | None
    ) -> dict[str | int, TrafficSums]:
        """Return sums over the requests since a Unix time, in groups.

        `names` selects a `key`, a `model` or a `policy`; None selects all. Requests of the last
        second may be missing. Blocks while a thread writes. Raises HistoryUnavailableError.
        """
        if not self._is_enabled:
            raise HistoryUnavailableError("history.enabled is false in the configuration")
        if self._failure is not None:
            raise HistoryUnavailableError(self._failure)
        wanted = {name: value for name, value in names.items() if value is not None}
        conditions = " ".join(f"AND {name} = ?" for name in wanted)
        query = f"""SELECT {by}, {", ".join(f"SUM({name})" for name in _SUMS)} FROM traffic_2
            WHERE step_s = ? AND start >= ? {conditions} GROUP BY {by}"""  # noqa: S608 - only our names
        try:
            with self._connection_lock:
                rows = self._open().execute(query, (step_s, since, *wanted.values())).fetchall()
        except (OSError, sqlite3.Error) as exc:
            self._set_aside_if_damaged(exc)
            raise HistoryUnavailableError(f"cannot read {self._path}: {_cause(exc)}") from exc
        found = {}
        for group, *values in rows:
            numbers = dict(zip(_NUMBERS, values, strict=False))
            latencies = [int(count) for count in values[len(_NUMBERS) :]]
            found[group] = TrafficSums(**numbers, latencies=latencies)
        return found

    def write(self) -> None:
        """Add the pending sums to the file; if that fails, keep them and log the first failure."""
        with self._pending_lock:
            pending, self._pending = self._pending, {}
            dropped, self._dropped = self._dropped, 0
        if not pending:
            return
        if self._connection is not None and _inode_of(self._path) != self._inode:
            self._disconnect()  # rows that are written to a deleted or renamed file would be lost
        values = [
            (step_s, row[0] // step_s * step_s, *row[1:], *_values(sums))
            for step_s in KEPT_S
            for row, sums in pending.items()
        ]

        def add() -> None:
            with self._connection_lock, self._open() as connection:
                connection.executemany(_ADD, values)

        try:
            try:
                add()
            except sqlite3.Error as exc:
                if not self._set_aside_if_damaged(exc):
                    raise
                add()
        except (OSError, sqlite3.Error) as exc:
            self._failed(exc)
            with self._pending_lock:
                self._dropped += dropped
                for row, sums in pending.items():
                    newer = self._pending.setdefault(row, sums)
                    if newer is not sums:
                        newer.add(sums)
            return
        if self._failure is not None:
            _log.warning("writing the traffic history again: dropped_requests=%d", dropped)
        self._failure, self._failures = None, 0

    def tidy(self) -> None:
        """Delete rows that are too old, and the oldest ones if there are too many."""
        try:
            with self._connection_lock, self._open() as connection:
                for step_s, kept_s in KEPT_S.items():
                    limit = (step_s, self._clock() - kept_s)
                    connection.execute(
                        "DELETE FROM traffic_2 WHERE step_s = ? AND start < ?", limit
                    )
                (rows,) = connection.execute("SELECT COUNT(*) FROM traffic_2").fetchone()
                if rows > self._max_rows:
                    connection.execute(_TRIM, (rows - self._max_rows - 1,))
        except (OSError, sqlite3.Error) as exc:
            if not self._set_aside_if_damaged(exc):
                _log.warning("cannot tidy the traffic history: path=%s cause=%r", self._path, exc)

    def _run(self) -> None:
        tidied_s = -math.inf
        while True:
            is_last = self._stopping.wait(RETRY_S if self._failure else WRITE_EVERY_S)
            self.write()
            if is_last:
                break
            if self._connection and time.monotonic() >= tidied_s + TIDY_EVERY_S:
                tidied_s = time.monotonic()
                self.tidy()
        self._disconnect()

    def _open(self) -> sqlite3.Connection:
        """Return the connection; the caller holds its lock. Raises OSError and sqlite3.Error."""
        if self._connection is None:
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._inode = _create_private(self._path)
            self._connection = connection = sqlite3.connect(
                self._path or ":memory:", timeout=BUSY_S, check_same_thread=False
            )
            # Writers do not block readers. A crash of the machine may lose the last rows, but not
            # the file; in return, not every write waits for the disk (sqlite.org/wal.html).
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            self._create_table(connection)
        return self._connection

    def _create_table(self, connection: sqlite3.Connection) -> None:
        """Create the table if it is missing, with the rows of an older version's table."""
        query = "SELECT name FROM sqlite_master WHERE type = 'table'"
        tables = {name for (name,) in connection.execute(query)}
        connection.execute(_SCHEMA)
        if _OLD_TABLE in tables and _TABLE not in tables:
            with connection:
                connection.execute(_COPY)

    def _set_aside_if_damaged(self, exc: OSError | sqlite3.Error) -> bool:
        """Rename the file if an error says that it is damaged; return whether it was damaged.

        The new name has the time in it. Workers that share the file notice the same damage, but
        only one of them renames it: the others then find another file with its name.
        """
        # The low byte is the error's kind; the rest is where SQLite noticed it.
        code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
        if code not in _DAMAGED or self._path is None:
            return False
        inode = self._inode
        self._disconnect()
        stamp = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y%m%dT%H%M%SZ")
        aside = Path(f"{self._path}.corrupt-{stamp}")
        try:
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX)
                if _inode_of(self._path) != inode:
                    return True  # another worker was faster
                for part in _PARTS:
                    with suppress(FileNotFoundError):
                        Path(f"{self._path}{part}").replace(f"{aside}{part}")
            finally:
                os.close(folder)
        except OSError as failure:
            _log.error(
                "the traffic history is damaged, and cannot be set aside: path=%s cause=%r",
                self._path, _cause(failure),
            )  # fmt: skip
            return False
        _log.error(
            "the traffic history was damaged, and a new one begins: path=%s cause=%r kept=%s",
            self._path, _cause(exc), aside,
        )  # fmt: skip
        return True

    def _failed(self, exc: OSError | sqlite3.Error) -> None:
        """Close the file, and log a warning unless the last attempt has failed too."""
        self._disconnect()
        self._failures += 1
        is_busy = getattr(exc, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
        if is_busy and self._failures <= QUIET_FAILURES:
            return
        if self._failure is None:
            _log.warning(
                "cannot write the traffic history, so the page has none: path=%s cause=%r; set "
                "history.path to a file on a writable local disk",
                self._path, _cause(exc),
            )  # fmt: skip
        self._failure = f"cannot write {self._path}: {_cause(exc)}"

    def _disconnect(self) -> None:
        with self._connection_lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()


def _create_private(path: Path) -> int | None:
    """Create a file for its owner only, if it is missing; return its inode.

    If it exists, people who are neither its owner nor of its group lose access. SQLite gives the
    files that it adds the same permissions.
    """
    # An existing file is not opened, because closing it would drop SQLite's locks on it
    # (sqlite.org/howtocorrupt.html, section 2.2).
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, FILE_MODE))
    for part in _PARTS:
        with suppress(OSError):
            each = Path(f"{path}{part}")
            mode = each.stat().st_mode
            if mode & 0o007:
                each.chmod(mode & 0o770)
    return _inode_of(path)


def _inode_of(path: Path | None) -> int | None:
    """Return a file's inode; None without a path, or if the file does not exist."""
    try:
        return None if path is None else path.stat().st_ino
    except FileNotFoundError:
        return None


def _values(sums: TrafficSums) -> tuple[float, ...]:
    return (*(getattr(sums, name) for name in _NUMBERS), *sums.latencies)


def _cause(exc: OSError | sqlite3.Error) -> str:
    return (exc.strerror if isinstance(exc, OSError) else None) or str(exc)
