"""Reads the latest requests: pages of a list, newest first, and the names that occur in them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple, Self

from sqlalchemy import ColumnElement, Connection, func, select, tuple_

from router_service.core.money import NANO
from router_service.database.engine import Database
from router_service.database.schema import recent_requests
from router_service.telemetry.metrics import NO_MODEL
from router_service.telemetry.recent_requests import ListedRequest
from router_service.telemetry.usage import NO_POLICY, clean

NAMED_ROWS = 2_000
"""Number of requests, the newest ones, whose names a list of names has."""

_POSITION = re.compile(r"(\d{1,18})\.([A-Za-z0-9_]{1,40})", re.ASCII)

_MISSING = {"model": NO_MODEL, "policy": NO_POLICY, "key": "", "team": ""}
"""What a filter says for requests without a model, policy, key or team, as the sums of usage do."""


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """Which requests are listed; None selects all."""

    key: str | None = None
    team: str | None = None
    model: str | None = None
    policy: str | None = None
    reason: str | None = None
    outcome: str | None = None
    conversation: str | None = None
    search: str | None = None
    """A part of the id, or of the id that the client has sent."""

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


class RequestPosition(NamedTuple):
    """The place of a request in the list."""

    ended_us: int
    id: str

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        return f"{self.ended_us}.{self.id}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a position; raises ValueError."""
        found = _POSITION.fullmatch(text)
        if found is None:
            raise ValueError(f"not a position in a list of requests: {text!r}")
        return cls(int(found[1]), found[2])


@dataclass(frozen=True, slots=True)
class ListPage:
    """Requests that follow each other in the list, newest first."""

    requests: tuple[ListedRequest, ...]
    newer: RequestPosition | None
    """The position after which newer requests follow; None on the first page."""
    older: RequestPosition | None
    """The position before which older requests are; None on the last page."""


def read_page(
    database: Database,
    wanted: RequestFilter,
    limit: int,
    *,
    before: RequestPosition | None = None,
    after: RequestPosition | None = None,
) -> ListPage:
    """Return the requests before a position, the next ones after it, or the newest ones.

    If fewer requests than fit follow the position, the newest ones are returned. Raises
    DatabaseError.
    """
    place = (recent_requests.c.ended_us, recent_requests.c.id)
    query = select(recent_requests).where(*wanted.conditions()).limit(limit + 1)
    if after is not None:
        query = query.where(tuple_(*place) > tuple_(*after))
        query = query.order_by(*place)
    else:
        if before is not None:
            query = query.where(tuple_(*place) < tuple_(*before))
        query = query.order_by(*(column.desc() for column in place))
    with database.read() as connection:
        found = connection.execute(query).all()
    has_more = len(found) > limit
    if after is not None and not has_more:
        return read_page(database, wanted, limit)
    rows = tuple(found[:limit] if after is None else reversed(found[:limit]))
    first = RequestPosition(rows[0].ended_us, rows[0].id) if rows else None
    last = RequestPosition(rows[-1].ended_us, rows[-1].id) if rows else None
    is_newest = after is None and before is None
    return ListPage(
        tuple(map(ListedRequest.of, rows)),
        newer=None if is_newest else first or before,
        older=last if has_more or after is not None else None,
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
        .where(*wanted.conditions(), columns.ended_us >= int(since_s * 1e6))
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


def find_request(database: Database, identifier: str) -> ListedRequest | None:
    """Return a request by its id; raises DatabaseError."""
    query = select(recent_requests).where(recent_requests.c.id == clean(identifier)).limit(1)
    with database.read() as connection:
        row = connection.execute(query).first()
    return None if row is None else ListedRequest.of(row)
