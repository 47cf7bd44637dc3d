"""The latest requests: one row for each, without its content.

Records of requests become tuples in a buffer in memory, in batches. The database's thread writes
these tuples every second, so that all workers and replicas share them. If the database does
not take them fast enough, requests are not listed; nothing waits for it. `request_lists` reads the
rows.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import BaseModel
from sqlalchemy import ColumnElement, Connection, Row, and_, delete, func, select, true

from router_service.core.money import NANO, to_nusd
from router_service.core.record import Record, RecordKind, RequestOutcome
from router_service.database.engine import Database
from router_service.database.schema import MAX_NAME, recent_requests
from router_service.database.upsert import insert_into
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

RequestRow = tuple[object, ...]
"""The columns of `recent_requests`, in their order."""


class ListedRequest(BaseModel):
    """A request that has ended; contains nothing of its content."""

    id: str
    """The decision's id, with which `GET /v1/decisions/{id}` returns the whole decision."""
    request_id: str | None
    """The header `x-request-id` of the request; null without it."""
    time: float
    """When the answer ended, in Unix seconds."""
    key: str | None
    team: str | None
    path: str
    model: str | None
    """The model that answered, or was tried last; null if the gateway refused the request."""
    deployment: str | None
    arm: str | None
    policy: str | None
    """How the policy is shown: its name, if it has one, and its rule. Null if the request was not
    routed."""
    reason: str | None
    """Why the model answered; null if the gateway refused the request."""
    outcome: RequestOutcome
    """`answered`; `failed`, if the model's answer is an error or incomplete; `refused`, if the
    gateway asked no model; `left`, if the client closed its connection."""
    status: int
    """HTTP status, or 499 if the client left before the answer."""
    ending: str
    """How the answer ended: `complete`, `failed`, `broken` or `client_left`."""
    error: str | None
    """The code of the error if the gateway refused the request, or the kind of the upstream's
    failure."""
    attempts: int
    latency_s: float
    first_byte_s: float | None
    cost_usd: float | None
    """Cost at list price of all candidates; null if it is unknown."""
    prompt_tokens: int | None
    completion_tokens: int | None
    candidates: int | None
    """Number of candidate answers; null if the policy is not `verified`."""
    unverified: str | None
    """Why the answer was not verified, although the policy asked for verification."""
    conversation: str | None
    """Equal for all requests of a conversation; null if no choice depends on the conversation."""

    @classmethod
    def of(cls, row: Row[Any]) -> ListedRequest:
        """Return a row of `recent_requests` as people read it."""
        cost_usd = None if row.cost_nusd is None else row.cost_nusd / NANO
        times = {"time": row.ended_us / MICRO, "cost_usd": cost_usd}
        return cls.model_validate({**row._mapping, **times})


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
        self._pending: deque[RequestRow] = deque()
        self._dropped = 0
        self._batch: list[RequestRow] = []
        """What is being written, or could not be written yet."""
        self._insert: str | None = None
        self._is_closing = False
        self._uncounted = max(1, self.limit)
        """Rows that this process has written since it last looked for too many of them."""
        self._tidy_next_s = 0.0

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
            rows = [tuple(map(_storable, row)) for row in self._batch]
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
        record.conversation,
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
    is_postgresql = dialect.name == "postgresql"
    if is_postgresql:
        from sqlalchemy.dialects.postgresql.base import PGDialect  # noqa: PLC0415

        dialect = PGDialect(paramstyle="format")
    statement = insert_into(recent_requests, is_postgresql=is_postgresql)
    return str(statement.on_conflict_do_nothing().compile(dialect=dialect))
