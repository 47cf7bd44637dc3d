"""The latest requests, one row for each without its content: written, and read as pages of a list.

Records of requests become tuples in a buffer in memory, in batches. The database's thread writes
these tuples every second, so that all replicas share them. If the database does not take them fast
enough, requests are not listed; nothing waits for it.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeAlias

from pydantic import BaseModel, Field
from sqlalchemy import ColumnElement, Connection, Row, func, select, true, tuple_

from router_service.core.errors import InvalidRequestError
from router_service.core.money import NANO, to_nusd
from router_service.core.record import Record, RecordKind, RequestOutcome
from router_service.database.engine import Database, insert_into
from router_service.database.schema import MAX_NAME, recent_requests
from router_service.settings import DatabaseSettings, UsageSettings
from router_service.telemetry.metrics import NO_MODEL
from router_service.telemetry.sinks import TURN_S, DatabaseSink, clean, delete_rows
from router_service.telemetry.usage import DAY_S, NO_POLICY, Name, UsageFilter

MICRO = 1_000_000
"""Microseconds in a second."""

BATCH_ROWS = 500
"""Largest number of rows that one transaction writes."""
TIDY_EVERY_S = 60.0
UNASKED_SHARE = 0.1
"""Part of the list that the requests of one key may have for which no model was asked."""
TIDY_SHARE = 0.1
"""Part of `usage.recent_requests` that a process writes until it looks for rows beyond it."""

MAX_LISTED = 1_000
"""Largest number of requests in one answer."""
MAX_SEARCH = 200
MAX_POSITION = 80

NAMED_ROWS = 2_000
"""Number of requests, the newest ones, whose names a list of names has."""

MAX_CONVERSATION = 50
"""Largest number of requests that are shown of one conversation; an agent may have hundreds."""

_POSITION = re.compile(r"(\d{1,18})\.([A-Za-z0-9_]{1,40})", re.ASCII)
"""The place of a request in the list: when it ended, in microseconds, and its id."""

_MISSING = {"model": NO_MODEL, "policy": NO_POLICY, "key": "", "team": ""}
"""What a filter says for requests without a model, policy, key or team, as the sums of usage do."""

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


Position: TypeAlias = Annotated[str | None, Field(max_length=MAX_POSITION)]


class RequestFilter(UsageFilter):
    """Which requests are listed; None selects all."""

    reason: Name = None
    """Only requests that were answered for this reason, such as `drift` or `fallback`."""
    outcome: RequestOutcome | None = None
    """Only requests that ended in this way."""
    conversation: Name = None
    """Only requests of this conversation."""
    search: Annotated[str | None, Field(max_length=MAX_SEARCH)] = None
    """Only requests whose id, or whose header `x-request-id`, contains this text."""

    def conditions(self) -> list[ColumnElement[bool]]:
        """Return the conditions for the rows of `recent_requests`."""
        found: list[ColumnElement[bool]] = []
        for name in ("key", "team", "model", "policy", "reason", "outcome", "conversation"):
            value: str | None = getattr(self, name)
            column = recent_requests.c[name]
            if value is not None:
                is_missing = value == _MISSING.get(name)
                found.append(column.is_(None) if is_missing else column == clean(value))
        if self.search:
            text = clean(self.search)
            columns = (recent_requests.c.id, recent_requests.c.request_id)
            first, second = (column.contains(text, autoescape=True) for column in columns)
            found.append(first | second)
        return found


class RequestQuery(RequestFilter):
    """Which requests a page of the list has."""

    before: Position = None
    """`older` of another answer, for the requests that are older."""
    after: Position = None
    """`newer` of another answer, for the requests that are newer. If fewer than `limit` are, the
    newest ones follow."""
    limit: Annotated[int, Field(ge=1, le=MAX_LISTED)] = 100
    """Largest number of requests in the answer."""

    def position(self) -> tuple[int, str] | None:
        """Return the place that the page follows, in either direction.

        Raises InvalidRequestError.
        """
        if self.before is not None and self.after is not None:
            raise InvalidRequestError(
                "Send only one of 'before' and 'after'.", param="after", code="invalid_value"
            )
        param, text = ("after", self.after) if self.before is None else ("before", self.before)
        if text is None:
            return None
        found = _POSITION.fullmatch(text)
        if found is None:
            remedy = "send 'older' or 'newer' of an answer of this endpoint"
            raise InvalidRequestError(
                f"Invalid '{param}': {remedy}.", param=param, code="invalid_value"
            )
        return int(found[1]), found[2]


class RequestList(BaseModel):
    """Requests that follow each other, newest first."""

    requests: tuple[ListedRequest, ...]
    newer: str | None
    """Pass this as `after` to get newer requests; null if the page has the newest."""
    older: str | None
    """Pass this as `before` to get older requests; null if the page has the oldest."""


def read_page(database: Database, query: RequestQuery) -> RequestList:
    """Return the requests before a position, the next ones after it, or the newest ones.

    If fewer requests than fit follow the position, the newest ones are returned. Raises
    InvalidRequestError and DatabaseError.
    """
    columns = (recent_requests.c.ended_us, recent_requests.c.id)
    position, is_forward = query.position(), query.after is not None
    selected = select(recent_requests).where(*query.conditions()).limit(query.limit + 1)
    if position is not None:
        place, other = tuple_(*columns), tuple_(*position)
        selected = selected.where(place > other if is_forward else place < other)
    order = columns if is_forward else [column.desc() for column in columns]
    with database.read() as connection:
        found = connection.execute(selected.order_by(*order)).all()
    has_more = len(found) > query.limit
    if is_forward and not has_more:
        return read_page(database, query.model_copy(update={"after": None}))
    rows = found[: query.limit]
    rows = rows[::-1] if is_forward else rows
    places = [f"{row.ended_us}.{row.id}" for row in rows]
    return RequestList(
        requests=tuple(map(ListedRequest.of, rows)),
        newer=None if position is None else (places[0] if rows else query.before),
        older=places[-1] if rows and (has_more or is_forward) else None,
    )


class ModelReasons(NamedTuple):
    """How often, and at which cost, models answered for a reason."""

    requests: int
    cost_usd: float


def read_reasons(
    connection: Connection, wanted: RequestFilter, since_s: float
) -> dict[tuple[str, str], ModelReasons]:
    """Return the routed and named requests to models since a Unix time, by model and reason."""
    columns = recent_requests.c
    query = (
        select(columns.model, columns.reason, func.count(), func.sum(columns.cost_nusd))
        .where(*wanted.conditions(), columns.ended_us >= int(since_s * MICRO))
        .where(columns.model.is_not(None), columns.reason.is_not(None))
        .group_by(columns.model, columns.reason)
    )
    return {
        (model, reason): ModelReasons(int(requests), int(cost_nusd or 0) / NANO)
        for model, reason, requests, cost_nusd in connection.execute(query)
    }


@dataclass(frozen=True, slots=True)
class RequestNames:
    """Names that occur in the newest requests, the most frequent ones first.

    As in filters, `none` is for requests without a model or a policy, and the empty name is for
    those without a key or a team.
    """

    models: tuple[str, ...]
    policies: tuple[str, ...]
    reasons: tuple[str, ...]
    keys: tuple[str, ...]
    teams: tuple[str, ...]


def read_names(database: Database, key: str | None) -> RequestNames:
    """Return the names in the newest requests, or in those of one key; raises DatabaseError."""
    columns = ("model", "policy", "reason", "key", "team")
    query = (
        select(*(recent_requests.c[name] for name in columns))
        .where(*RequestFilter(key=key).conditions())
        .order_by(recent_requests.c.ended_us.desc(), recent_requests.c.id.desc())
        .limit(NAMED_ROWS)
    )
    with database.read() as connection:
        rows = connection.execute(query).all()
    found: list[tuple[str, ...]] = []
    for name, values in zip(columns, zip(*rows, strict=True) if rows else [()] * 5, strict=True):
        counts = Counter(_MISSING.get(name) if value is None else value for value in values)
        counts.pop(None, None)  # requests without a reason
        found.append(tuple(str(value) for value, _ in counts.most_common()))
    return RequestNames(*found)


def read_conversation(database: Database, conversation: str) -> tuple[str, ...]:
    """Return the ids of a conversation's newest requests, the oldest first; raises DatabaseError.

    No index has the conversations, because only the details of a request look for one.
    """
    query = RequestQuery(conversation=conversation, limit=MAX_CONVERSATION)
    return tuple([each.id for each in reversed(read_page(database, query).requests)])


def find_request(database: Database, identifier: str) -> ListedRequest | None:
    """Return a request by its id; raises DatabaseError."""
    query = select(recent_requests).where(recent_requests.c.id == clean(identifier)).limit(1)
    with database.read() as connection:
        row = connection.execute(query).first()
    return None if row is None else ListedRequest.of(row)
