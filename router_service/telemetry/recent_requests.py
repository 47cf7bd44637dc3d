"""The latest requests: one row for each, without its content.

Records of requests become tuples in a buffer in memory, in batches. The database's thread writes
these tuples every second, so that all replicas share them. If the database does
not take them fast enough, requests are not listed; nothing waits for it. `request_lists` reads the
rows.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from sqlalchemy import ColumnElement, Connection, func, select, true

from router_service.core.money import to_nusd
from router_service.core.record import Record, RecordKind
from router_service.database.engine import Database, insert_into
from router_service.database.schema import MAX_NAME, recent_requests
from router_service.settings import DatabaseSettings, UsageSettings
from router_service.telemetry.sinks import TURN_S, DatabaseSink, clean, delete_rows
from router_service.telemetry.usage import DAY_S

MICRO = 1_000_000
"""Microseconds in a second."""

BATCH_ROWS = 500
"""Largest number of rows that one transaction writes."""
TIDY_EVERY_S = 60.0
UNASKED_SHARE = 0.1
"""Part of the list that the requests of one key may have for which no model was asked."""
TIDY_SHARE = 0.1
"""Part of `usage.recent_requests` that a process writes until it looks for rows beyond it."""

_log = logging.getLogger("switchcraft.usage")

RequestRow = tuple[object, ...]
"""The columns of `recent_requests`, in their order."""


class RecentRequests(DatabaseSink):
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

        For `clock` and `turn_s`, see `DatabaseSink`.
        """
        super().__init__(TIDY_EVERY_S, clock, turn_s)
        self.limit = settings.recent_requests if settings.enabled else 0
        """Number of requests that are listed; 0 if none are."""
        self._kept_s = settings.recent_days * DAY_S
        self._max_pending = database.max_pending_rows
        self._on_dropped = on_dropped
        self._pending: deque[RequestRow] = deque()
        self._dropped = 0
        self._batch: list[RequestRow] = []
        """What is being written, or could not be written yet."""
        self._insert: str | None = None
        self._uncounted = 0
        """Rows that this process has written since it last looked for too many of them."""

    def add(self, records: Iterable[Record]) -> None:
        """List requests that have ended, except those for which too many wait to be written."""
        if self.limit == 0:
            return
        for record in records:
            if record.kind is RecordKind.OWN:
                continue
            # Half of the buffer is for requests that cost their clients something.
            most = self._max_pending // (2 if record.model is None else 1)
            if len(self._pending) >= most:
                self._dropped += 1
                self._on_dropped()
            else:
                self._pending.append(_row(record))

    def _write(self, database: Database) -> Iterator[object]:
        dropped, self._dropped = self._dropped, 0
        if dropped:
            _log.warning(
                "some requests are not listed, because too much was waiting to be written: "
                "requests=%d limit=database.max_pending_rows", dropped,
            )  # fmt: skip
        while self._batch or self._pending:
            if not self._batch:
                size = min(len(self._pending), BATCH_ROWS)
                self._batch = [self._pending.popleft() for _ in range(size)]
            rows = [tuple(map(_storable, row)) for row in self._batch]
            with database.write() as connection:
                self._insert = self._insert or _insert_new(connection)
                connection.exec_driver_sql(self._insert, rows)
            self._uncounted += len(self._batch)
            self._batch = []
            if self._uncounted >= self.limit * TIDY_SHARE:
                self._tidy_next_s = 0.0
            yield

    def _tidy(self, database: Database) -> Iterator[object]:
        self._uncounted = 0
        oldest_us = int((self._clock() - self._kept_s) * MICRO)
        yield from _delete_before(database, true(), oldest_us)
        # Of the requests that no model was asked for, which cost a client nothing, each key first
        # loses the oldest ones beyond its share.
        key, is_unasked = recent_requests.c.key, recent_requests.c.model.is_(None)
        share = int(self.limit * UNASKED_SHARE)
        query = select(key).where(is_unasked).group_by(key).having(func.count() > share)
        with database.read() as connection:
            names = connection.execute(query).scalars().all()
        for name in names:
            is_own = key.is_(None) if name is None else key == name
            yield from _delete_beyond(database, is_unasked & is_own, share)
        yield from _delete_beyond(database, true(), self.limit)


def _delete_beyond(
    database: Database, condition: ColumnElement[bool], kept: int
) -> Iterator[object]:
    """Delete the oldest requests that meet a condition, beyond the number that is kept."""
    time_us, name = recent_requests.c.ended_us, recent_requests.c.id
    newest = select(time_us).where(condition).order_by(time_us.desc(), name.desc())
    with database.read() as connection:
        last_us = connection.execute(newest.offset(kept).limit(1)).scalar()
    if last_us is not None:
        yield from _delete_before(database, condition, last_us)


def _delete_before(
    database: Database, condition: ColumnElement[bool], last_us: int
) -> Iterator[object]:
    time_us = recent_requests.c.ended_us
    is_old = condition & (time_us <= last_us)
    return delete_rows(database, recent_requests, is_old, time_us)


def _row(record: Record) -> RequestRow:
    """Return the columns of `recent_requests`, in their order."""
    cost_usd, candidates = record.actual_cost_usd, record.candidates
    return (
        int(record.created * MICRO),
        record.id,
        None if record.request_id == record.id else record.request_id,
        record.key,
        record.team,
        record.path,
        record.model,
        record.deployment,
        record.arm,
        record.policy_label,
        record.reason,
        record.outcome,
        record.status,
        record.ending,
        record.error,
        record.attempts,
        record.latency_s,
        record.first_byte_s,
        None if cost_usd is None else to_nusd(cost_usd),
        record.prompt_tokens,
        record.completion_tokens,
        None if candidates is None else len(candidates),
        record.unverified,
        record.conversation_id,
    )


def _storable(value: object) -> object:
    """Return a value, which may be a member of an enumeration, as both databases can store it."""
    if not isinstance(value, str) or (
        type(value) is str and len(value) <= MAX_NAME and value.isprintable()
    ):
        return value
    return clean(str(value))


def _insert_new(connection: Connection) -> str:
    """Return the driver's statement that inserts a row, unless an earlier attempt has inserted it.

    Executed by SQLAlchemy itself, it would take 14 µs more for each row, and not 11 µs in all.
    """
    dialect = connection.dialect
    if dialect.name == "postgresql":
        from sqlalchemy.dialects.postgresql.base import PGDialect  # noqa: PLC0415

        dialect = PGDialect(paramstyle="format")
    statement = insert_into(connection, recent_requests).on_conflict_do_nothing()
    return str(statement.compile(dialect=dialect))
