"""What the sinks share that keep records in the database: usage and the list of recent requests.

Records are collected in memory. The database's thread writes them every second, and deletes what is
too old or too much. Both take short turns, because the thread also has to notice revoked keys.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator

from sqlalchemy import ColumnElement, Table, delete, func, select

from router_service.core.record import Record
from router_service.database.engine import Database, has_key, key_parameters
from router_service.database.schema import MAX_NAME, latencies, usage

WRITE_EVERY_S = 1.0
CONTINUE_TIDYING_S = 2.0
TURN_S = 0.3
"""Longest time that writing or tidying uses the database's thread in one turn."""
TIDY_ROWS = 2_000
"""Number of rows that one transaction deletes."""
_TIDY_LOCK = 0x5357_5449_4459
"""Number of PostgreSQL's advisory lock that only one tidying process can hold."""


class DatabaseSink(ABC):
    """Sink of records that writes to the database, and deletes old rows, in short turns."""

    def __init__(
        self, tidy_every_s: float, clock: Callable[[], float] = time.time, turn_s: float = TURN_S
    ) -> None:
        """Write nothing yet; `clock` returns Unix seconds; for `turn_s`, see `TURN_S`."""
        self._tidy_every_s = tidy_every_s
        self._clock = clock
        self._turn_s = turn_s
        self._is_closing = False
        self._tidying: Iterator[object] | None = None
        self._tidy_next_s = 0.0

    @abstractmethod
    def add(self, records: Iterable[Record]) -> None:
        """Collect records of requests that have ended."""

    @abstractmethod
    def _write(self, database: Database) -> Iterator[object]:
        """Write what is pending, and yield after each transaction."""

    @abstractmethod
    def _tidy(self, database: Database) -> Iterator[object]:
        """Delete what is too old or too much, and yield after each transaction."""

    def write(self, database: Database) -> None:
        """Write what is pending, for a short while; what is left is written at the next turn.

        Raises DatabaseError, and then keeps what is not written.
        """
        ends_s = time.monotonic() + self._turn_s
        for _ in self._write(database):
            if time.monotonic() > ends_s and not self._is_closing:
                return

    def tidy(self, database: Database) -> None:
        """Delete rows that are too old, and the oldest ones if there are too many.

        A call continues where the last one stopped. Raises DatabaseError.
        """
        if self._is_closing or (self._tidying is None and time.monotonic() < self._tidy_next_s):
            return
        tidying, self._tidying = self._tidying or self._tidy(database), None
        ends_s = time.monotonic() + self._turn_s
        for _ in tidying:
            if time.monotonic() > ends_s:
                self._tidying = tidying
                return
        self._tidy_next_s = time.monotonic() + self._tidy_every_s

    def close(self) -> None:
        """Let the next `write` write everything, however long it takes."""
        self._is_closing = True


def delete_rows(
    database: Database,
    table: Table,
    condition: ColumnElement[bool],
    oldest: ColumnElement[int] | None = None,
    most: float = math.inf,
) -> Iterator[int]:
    """Delete rows that meet a condition, some in each transaction, and yield the numbers.

    At most so many are deleted in all; `oldest` is the column by which they are chosen. Rows of
    `latencies` go with those of `usage`, and are counted too.
    """
    names = [column.name for column in table.primary_key]
    tables = (usage, latencies) if table is usage else (table,)
    statements = [delete(each).where(has_key(each, names)) for each in tables]
    while (limit := int(min(most, TIDY_ROWS))) > 0:
        with database.write() as connection:
            if database.is_postgresql:
                query = select(func.pg_try_advisory_xact_lock(_TIDY_LOCK))
                if not connection.execute(query).scalar_one():
                    return  # another process tidies
            found = select(*table.primary_key).where(condition).order_by(oldest).limit(limit)
            rows = connection.execute(found).all()
            values = [key_parameters(names, row) for row in rows]
            deleted = sum(connection.execute(each, values).rowcount for each in statements if rows)
        yield deleted
        if len(rows) < limit:
            return
        most -= len(rows)


def clean(name: str) -> str:
    """Return a name as both databases can store it: without NUL, and not too long."""
    return name[:MAX_NAME].replace("\0", "\ufffd").encode(errors="replace").decode()
