"""The ledger of budgets in the database: what was spent, and which process may spend the rest.

`exchange` is the only function that writes it. For each budget, what was spent and all leases
together never exceed the limit, unless requests have cost more than was reserved for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import BindParameter, Connection, bindparam, delete, select, text, tuple_, update

from router_service.access.key import BudgetPeriod
from router_service.database.schema import leases, spending

LEASE_S = 10.0
"""Time after which the lease of a process that does not renew it is free for others."""
WANTED_S = 3.0
"""Time for which others give back what they do not use, after a process has asked for it."""
FREE_SHARE = 8
"""A process leases at most this part of what is free, so that several processes find some."""
FORGOTTEN_S = 3600.0
"""Time after which an expired lease is deleted. Until then, a process whose connection broke finds
the number of its last write there."""
CHUNK = 200
"""Budgets in one statement. SQLite allows some 30,000 parameters, and a budget takes three."""


class BudgetId(NamedTuple):
    """A budget in one of its periods."""

    subject: str
    """The key or the team, as `key:NAME` or `team:NAME`."""
    period: BudgetPeriod
    start_s: int


@dataclass(frozen=True, slots=True)
class Order:
    """What a process has spent of a budget, and what it wants to hold of the rest."""

    id: BudgetId
    limit_nusd: int
    spent_nusd: int
    """Spent since the last write that is known to be made."""
    reserved_nusd: int
    """Reserved by requests in flight."""
    waiting_nusd: int
    """Wanted by the first request that waits."""
    least_nusd: int
    """The least amount that is of use for a request that waits."""
    chunk_nusd: int
    """The least amount to hold beyond that; less only if less is free."""
    number: int
    """Number of this write, higher than those before."""
    doubtful: Mapping[int, int] = field(default_factory=dict)
    """What may have been spent by earlier writes whose connection broke, by their number."""
    is_new: bool = False
    """Whether the process has not written this budget before."""
    keeps_unused: bool = True
    """Whether to hold more than is needed."""
    returns_unused: bool = True
    """Whether the process reserves nothing meanwhile, so that others may get what it does not need.
    """


@dataclass(frozen=True, slots=True)
class LedgerState:
    """A budget after an order."""

    spent_nusd: int
    """Spent by all processes together."""
    leased_nusd: int
    """What this process may spend of the rest."""
    is_exhausted: bool
    """Whether nothing more can be leased at the moment."""
    idle_nusd: int
    """What others have leased, and neither reserved nor spent."""
    elsewhere_nusd: int
    """What others have leased, of which they may have reserved a part."""
    is_wanted: bool
    """Whether another process waits for what this one does not use."""


UNKNOWN = LedgerState(0, 0, is_exhausted=False, idle_nusd=0, elsewhere_nusd=0, is_wanted=False)
"""A budget before the database was asked."""


def exchange(
    connection: Connection, holder: str, now_s: float, orders: Sequence[Order]
) -> Sequence[LedgerState]:
    """Write what a process has spent, and return what it may spend; the orders must be sorted.

    The rows of `spending` are locked in the same order by all processes, before any lease changes.
    """
    # Before any row is locked, so that two processes cannot wait for each other.
    _create(connection, [order for order in orders if order.is_new])
    by_id = _lock(connection, orders)
    missing = [order for order in orders if order.id not in by_id]
    if missing:  # somebody has deleted them
        _create(connection, missing)
        by_id |= _lock(connection, missing)
    found: list[LedgerState] = []
    changes = _Changes()
    for part in _parts(orders):
        held: dict[tuple[str, str, int], list[Any]] = {}
        for lease in connection.execute(select(leases).where(_is_one_of(leases, part))):
            held.setdefault((lease.subject, lease.period, lease.start_s), []).append(lease)
        for order in part:
            state = _settle(order, by_id[order.id], held.get(order.id, ()), holder, now_s, changes)
            found.append(state)
    changes.write(connection)
    return found


def delete_forgotten(connection: Connection, now_s: float) -> None:
    """Delete leases that expired long ago."""
    connection.execute(delete(leases).where(leases.c.expires_s < now_s - FORGOTTEN_S))


def _settle(
    order: Order,
    row: Any,  # noqa: ANN401 - a row of `spending`
    held: Sequence[Any],
    holder: str,
    now_s: float,
    changes: _Changes,
) -> LedgerState:
    def is_valid(lease: Any) -> bool:  # noqa: ANN401
        # A lease that expires too late was made by a clock that was ahead.
        return bool(now_s < lease.expires_s <= now_s + 2 * LEASE_S)

    own = next((lease for lease in held if lease.holder == holder), None)
    others = [lease for lease in held if lease.holder != holder and is_valid(lease)]
    written = 0 if own is None else order.doubtful.get(own.number, 0)
    newly_spent = order.spent_nusd - written
    spent = row.spent_nusd + newly_spent
    idle = sum(max(0, lease.amount_nusd - lease.reserved_nusd) for lease in others)
    elsewhere = sum(lease.amount_nusd for lease in others)
    most = max(0, order.limit_nusd - spent - elsewhere)
    amount = own.amount_nusd if own is not None and is_valid(own) else 0
    amount = max(0, amount - newly_spent)
    is_wanted = now_s < row.wanted_until_s <= now_s + 2 * WANTED_S
    needed = order.reserved_nusd + order.waiting_nusd
    free = max(0, most - needed)
    chunk = max(free // FREE_SHARE, min(order.chunk_nusd, free))
    if not order.keeps_unused:
        amount = needed
    elif is_wanted:  # all take turns
        if order.returns_unused:
            amount = needed + (free // FREE_SHARE if order.waiting_nusd else 0)
    elif amount < needed + chunk // 2:
        amount = needed + chunk
    amount = min(amount, most)
    is_exhausted = amount >= most
    if elsewhere and amount < needed:
        changes.wanted.append({**_key(order.id), "x": now_s + WANTED_S})
    if order.returns_unused and amount < order.reserved_nusd + order.least_nusd:
        # Two processes that each hold a part which is of no use would both wait.
        amount = min(amount, order.reserved_nusd)
    if newly_spent:
        changes.spent.append({**_key(order.id), "x": newly_spent})
    reserved = min(amount, needed)
    lease = {
        **_key(order.id), "h": holder, "amount_nusd": amount, "reserved_nusd": reserved,
        "expires_s": now_s + LEASE_S, "number": order.number,
    }  # fmt: skip
    if own is None:
        if amount or order.keeps_unused:
            changes.created.append(lease)
    elif not (amount or newly_spent or order.keeps_unused):
        changes.ended.append({**_key(order.id), "h": holder})
    elif (
        newly_spent
        or own.expires_s < now_s + LEASE_S / 2
        or (own.amount_nusd, own.reserved_nusd) != (amount, reserved)
        or not is_valid(own)
    ):
        changes.renewed.append(lease)
    return LedgerState(
        spent,
        amount,
        is_exhausted=is_exhausted,
        idle_nusd=idle,
        elsewhere_nusd=elsewhere,
        is_wanted=is_wanted,
    )


class _Changes:
    """Rows that an exchange changes, each kind by one statement."""

    def __init__(self) -> None:
        self.spent: list[dict[str, Any]] = []
        self.wanted: list[dict[str, Any]] = []
        self.created: list[dict[str, Any]] = []
        self.renewed: list[dict[str, Any]] = []
        self.ended: list[dict[str, Any]] = []

    def write(self, connection: Connection) -> None:
        x: BindParameter[Any] = bindparam("x")
        if self.spent:
            total = spending.c.spent_nusd + x
            connection.execute(
                update(spending).where(*_is(spending)).values(spent_nusd=total), self.spent
            )
        if self.wanted:
            connection.execute(
                update(spending).where(*_is(spending)).values(wanted_until_s=x), self.wanted
            )
        is_own = (*_is(leases), leases.c.holder == bindparam("h"))
        if self.renewed:
            connection.execute(update(leases).where(*is_own), self.renewed)
        if self.ended:
            connection.execute(delete(leases).where(*is_own), self.ended)
        if self.created:
            renamed = {"b": "subject", "p": "period", "s": "start_s", "h": "holder"}
            rows = [{renamed.get(k, k): v for k, v in row.items()} for row in self.created]
            connection.execute(leases.insert(), rows)


def _key(budget: BudgetId) -> dict[str, Any]:
    """Return the parameters of `_is`; their names must differ from those of columns."""
    return {"b": budget.subject, "p": budget.period.value, "s": budget.start_s}


def _is(table: Any) -> tuple[Any, ...]:  # noqa: ANN401 - `spending` or `leases`
    return (
        table.c.subject == bindparam("b"),
        table.c.period == bindparam("p"),
        table.c.start_s == bindparam("s"),
    )


def _is_one_of(table: Any, orders: Sequence[Order]) -> Any:  # noqa: ANN401
    columns = tuple_(table.c.subject, table.c.period, table.c.start_s)
    return columns.in_([(o.id.subject, o.id.period.value, o.id.start_s) for o in orders])


def _parts(orders: Sequence[Order]) -> Iterator[Sequence[Order]]:
    for start in range(0, len(orders), CHUNK):
        yield orders[start : start + CHUNK]


_CREATE = text(
    "INSERT INTO spending (subject, period, start_s, spent_nusd, wanted_until_s) "
    "VALUES (:b, :p, :s, 0, 0) ON CONFLICT DO NOTHING"
)


def _create(connection: Connection, orders: Sequence[Order]) -> None:
    if orders:
        connection.execute(_CREATE, [_key(order.id) for order in orders])


def _lock(connection: Connection, orders: Sequence[Order]) -> dict[Any, Any]:
    """Return the rows of budgets by their ids.

    PostgreSQL locks them; SQLite has only one writer at a time.
    """
    order_by = (spending.c.subject, spending.c.period, spending.c.start_s)
    rows: dict[Any, Any] = {}
    for part in _parts(orders):
        query = select(spending).where(_is_one_of(spending, part)).order_by(*order_by)
        for row in connection.execute(query.with_for_update()):
            rows[row.subject, row.period, row.start_s] = row
    return rows
