"""The latest requests: one row for each, without its content.

A request appends a tuple to a buffer in memory, which takes about 4 µs. The database's thread
writes these tuples every second, so that all workers and replicas share them. If the database does
not take them fast enough, requests are not listed; nothing waits for it. `request_lists` reads the
rows.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, and_, delete, func, select, true

from router_service.database.engine import Database
from router_service.database.schema import MAX_NAME, recent_requests
from router_service.settings import DatabaseSettings, UsageSettings
from router_service.telemetry.usage import DAY_S, TURN_S, clean

MICRO = 1_000_000
"""Microseconds in a second."""

BATCH_ROWS = 500
"""Largest number of rows that one transaction writes."""
TIDY_ROWS = 1_000
"""Number of rows that one transaction deletes."""
TIDY_EVERY_S = 60.0
UNASKED_SHARE = 0.1
"""Part of the list that the requests of one key may have for which no model was asked."""
TIDY_SHARE = 0.1
"""Part of `usage.recent_requests` that a process writes until it looks for rows beyond it."""

_log = logging.getLogger("switchcraft.usage")


class RequestOutcome(StrEnum):
    """How a request ended."""

    ANSWERED = "answered"
    FAILED = "failed"
    """A model was asked, and the answer is an error or incomplete."""
    REFUSED = "refused"
    """The gateway refused the request before it asked a model."""
    LEFT = "left"
    """The client left before the end of the answer."""


class RecentRequest(NamedTuple):
    """One request: the columns of `recent_requests`, in their order."""

    ended_us: int
    id: str
    request_id: str | None
    key: str | None
    team: str | None
    path: str
    model: str | None
    deployment: str | None
    arm: str | None
    policy: str | None
    reason: str | None
    outcome: str
    status: int
    ending: str
    error: str | None
    attempts: int
    latency_s: float
    first_byte_s: float | None
    cost_nusd: int | None
    prompt_tokens: int | None
    completion_tokens: int | None
    candidates: int | None
    unverified: str | None
    conversation: str | None


class RecentRequests:
    """Collects this process's requests, writes them to the database, and deletes old ones."""

    def __init__(
        self,
        settings: UsageSettings,
        database: DatabaseSettings,
        on_dropped: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
        turn_s: float = TURN_S,
    ) -> None:
        """Write nothing yet; `on_dropped` is called for each request that will not be listed.

        `turn_s` is the longest time that writing or deleting takes in one turn.
        """
        self.limit = settings.recent_requests if settings.enabled else 0
        """Number of requests that are listed; 0 if none are."""
        self._kept_s = settings.recent_days * DAY_S
        self._max_pending = database.max_pending_rows
        self._on_dropped = on_dropped
        self._clock = clock
        self._turn_s = turn_s
        self._pending: deque[RecentRequest] = deque()
        self._dropped = 0
        self._batch: list[RecentRequest] = []
        """What is being written, or could not be written yet."""
        self._insert: str | None = None
        self._is_closing = False
        self._uncounted = max(1, self.limit)
        """Rows that this process has written since it last looked for too many of them."""
        self._tidy_next_s = 0.0

    def add(self, request: RecentRequest) -> None:
        """List a request that has ended, unless too many wait to be written."""
        if self.limit == 0:
            return
        # Half of the buffer is for requests that cost their clients something.
        most = self._max_pending // (2 if request.model is None else 1)
        if len(self._pending) >= most:
            self._dropped += 1
            self._on_dropped()
            return
        self._pending.append(request)

    def write(self, database: Database) -> None:
        """Write what is pending, for a short while; what is left is written at the next turn.

        Raises DatabaseError, and then keeps the rows.
        """
        dropped, self._dropped = self._dropped, 0
        if dropped:
            _log.warning(
                "some requests are not listed, because too much was waiting to be written: "
                "requests=%d limit=database.max_pending_rows", dropped,
            )  # fmt: skip
        ends_s = time.monotonic() + self._turn_s
        while self._batch or self._pending:
            if not self._batch:
                size = min(len(self._pending), BATCH_ROWS)
                self._batch = [self._pending.popleft() for _ in range(size)]
            rows = [_to_row(request) for request in self._batch]
            with database.write() as connection:
                self._insert = self._insert or _insert_new(connection)
                connection.exec_driver_sql(self._insert, rows)
            self._uncounted += len(self._batch)
            self._batch = []
            if time.monotonic() > ends_s and not self._is_closing:
                return

    def close(self) -> None:
        """Let the next `write` write everything, however long it takes."""
        self._is_closing = True

    def tidy(self, database: Database) -> None:
        """Delete rows that are too old, and some if there are too many.

        Of those that no model was asked for, which cost a client nothing, each key first loses the
        oldest ones beyond its share. What is not deleted within a turn is deleted in the next one.
        Raises DatabaseError.
        """
        now_s = time.monotonic()
        is_full = self._uncounted >= max(1, self.limit * TIDY_SHARE)
        if self._is_closing or not (is_full or now_s >= self._tidy_next_s):
            return
        ends_s = now_s + self._turn_s
        time_us, ident = recent_requests.c.ended_us, recent_requests.c.id
        last_us = int((self._clock() - self._kept_s) * MICRO)
        if is_full:
            newest = select(time_us).order_by(time_us.desc(), ident.desc())
            for condition, kept in self._beyond_shares(database):
                with database.read() as connection:
                    excess = newest.where(condition).offset(kept).limit(1)
                    upto_us = connection.execute(excess).scalar() or 0
                if not _delete(database, condition, upto_us, ends_s):
                    return
            with database.read() as connection:
                excess_us = connection.execute(newest.offset(self.limit).limit(1)).scalar()
            last_us = max(last_us, excess_us or 0)
        if not _delete(database, true(), last_us, ends_s):
            return
        self._uncounted = 0 if is_full else self._uncounted
        self._tidy_next_s = time.monotonic() + TIDY_EVERY_S

    def _beyond_shares(self, database: Database) -> list[tuple[ColumnElement[bool], int]]:
        """Return the conditions for keys with too many unasked requests, and how many stay."""
        kept = int(self.limit * UNASKED_SHARE)
        key, is_unasked = recent_requests.c.key, recent_requests.c.model.is_(None)
        query = select(key).where(is_unasked).group_by(key).having(func.count() > kept)
        with database.read() as connection:
            names = connection.execute(query).scalars().all()
        return [
            (and_(is_unasked, key.is_(None) if name is None else key == name), kept)
            for name in names
        ]


def _delete(
    database: Database, condition: ColumnElement[bool], last_us: int, ends_s: float
) -> bool:
    """Delete the requests up to a time that meet a condition; return whether all are deleted."""
    time_us = recent_requests.c.ended_us
    oldest = select(time_us).where(condition, time_us <= last_us).order_by(time_us)
    while True:
        with database.write() as connection:
            query = oldest.offset(TIDY_ROWS - 1).limit(1)
            end_us = connection.execute(query).scalar()
            upto_us = last_us if end_us is None else end_us
            connection.execute(delete(recent_requests).where(condition, time_us <= upto_us))
        if end_us is None:
            return True
        if time.monotonic() > ends_s:
            return False


def _to_row(request: RecentRequest) -> tuple[object, ...]:
    return tuple([_storable(value) if isinstance(value, str) else value for value in request])


def _storable(text: str) -> str:
    """Return a text, which may be a member of an enumeration, as both databases can store it."""
    is_plain = type(text) is str and len(text) <= MAX_NAME and text.isprintable()
    return text if is_plain else clean(str(text))


def _insert_new(connection: Connection) -> str:
    """Return the driver's statement that inserts a row, unless an earlier attempt has inserted it.

    Executed by SQLAlchemy itself, it would take 14 µs more for each row, and not 11 µs in all.
    """
    # Imported here, so that only the dialect in use is loaded.
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects.postgresql import insert  # noqa: PLC0415
        from sqlalchemy.dialects.postgresql.base import PGDialect  # noqa: PLC0415

        statement = insert(recent_requests).on_conflict_do_nothing()
        dialect = PGDialect(paramstyle="format")
        return str(statement.compile(dialect=dialect))
    from sqlalchemy.dialects.sqlite import insert as insert_in_sqlite  # noqa: PLC0415

    return str(
        insert_in_sqlite(recent_requests)
        .on_conflict_do_nothing()
        .compile(dialect=connection.dialect)
    )
