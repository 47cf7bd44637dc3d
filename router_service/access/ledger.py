"""The ledger of budgets in the database: what was spent, and which process may spend the rest.

`exchange` is the only function that writes it. For each budget, what was spent and all leases
together never exceed the limit, unless requests have cost more than was reserved for them. Amounts
are in nanodollars.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, Table, bindparam, delete, select, tuple_, update

from router_service.database.engine import has_key, insert_into, key_parameters
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
    period: str
    start_s: int


@dataclass(slots=True, eq=False)
class Order:
    """What a process has spent of a budget, and what it wants to hold of the rest."""

    id: BudgetId
    limit: int
    is_known: bool = False
    """Whether the process has exchanged an order for this budget before."""
    unwritten: int = 0
    """Spent since the last write that is known to be made."""
    doubtful: dict[int, int] = field(default_factory=dict)
    """What was unwritten at writes that may have been made, by their number."""
    number: int = 0
    """Number of this write, higher than those before."""
    reserved: int = 0
    """Reserved by requests in flight."""
    wanted: int = 0
    """Wanted by the first request that waits."""
    least: int = 0
    """The least amount that is of use for a request that waits."""
    chunk: int = 0
    """The least amount to hold beyond that; less only if less is free."""
    keeps_unused: bool = True
    """Whether to hold more than is needed."""
    returns_unused: bool = False
    """Whether the process reserves nothing meanwhile, so that others may get what it does not need.
    """


@dataclass(frozen=True, slots=True)
class LedgerState:
    """A budget after an order."""

    spent: int = 0
    """Spent by all processes together."""
    leased: int = 0
    """What this process may spend of the rest."""
    is_exhausted: bool = False
    """Whether nothing more can be leased at the moment."""
    idle: int = 0
    """What others have leased, and neither reserved nor spent."""
    elsewhere: int = 0
    """What others have leased, of which they may have reserved a part."""
    is_wanted: bool = False
    """Whether another process waits for what this one does not use."""


UNKNOWN = LedgerState()
"""A budget before the database was asked."""


def exchange(
    connection: Connection, holder: str, now_s: float, orders: Sequence[Order]
) -> Sequence[LedgerState]:
    """Write what a process has spent, and return what it may spend; the orders must be sorted.

    The rows of `spending` are locked in the same order by all processes, before any lease changes.
    """
    # Before any row is locked, so that two processes cannot wait for each other.
    _create(connection, [order for order in orders if not order.is_known])
    rows = _lock(connection, orders)
    missing = [order for order in orders if order.id not in rows]
    if missing:  # somebody has deleted them
        _create(connection, missing)
        rows |= _lock(connection, missing)
    held: defaultdict[BudgetId, list[Row[Any]]] = defaultdict(list)
    for lease in _read(connection, leases, orders):
        held[BudgetId(*lease[:3])].append(lease)
    changes = _Changes()
    found = [
        _settle(order, rows[order.id], held[order.id], holder, now_s, changes) for order in orders
    ]
    changes.write(connection)
    return found


def delete_forgotten(connection: Connection, now_s: float) -> None:
    """Delete leases that expired long ago."""
    connection.execute(delete(leases).where(leases.c.expires_s < now_s - FORGOTTEN_S))


def _settle(
    order: Order,
    row: Row[Any],
    held: Sequence[Row[Any]],
    holder: str,
    now_s: float,
    changes: _Changes,
) -> LedgerState:
    """Return the state of a budget whose row and leases these are; add what it changes."""

    def is_valid(lease: Row[Any]) -> bool:
        # A lease that expires too late was made by a clock that was ahead.
        return bool(now_s < lease.expires_s <= now_s + 2 * LEASE_S)

    own = next((lease for lease in held if lease.holder == holder), None)
    others = [lease for lease in held if lease.holder != holder and is_valid(lease)]
    newly_spent = order.unwritten - (0 if own is None else order.doubtful.get(own.number, 0))
    spent = row.spent_nusd + newly_spent
    elsewhere = sum(lease.amount_nusd for lease in others)
    most = max(0, order.limit - spent - elsewhere)
    amount = own.amount_nusd if own is not None and is_valid(own) else 0
    amount = max(0, amount - newly_spent)
    is_wanted = now_s < row.wanted_until_s <= now_s + 2 * WANTED_S
    needed = order.reserved + order.wanted
    free = max(0, most - needed)
    chunk = max(free // FREE_SHARE, min(order.chunk, free))
    if not order.keeps_unused:
        amount = needed
    elif is_wanted:  # all take turns
        if order.returns_unused:
            amount = needed + (free // FREE_SHARE if order.wanted else 0)
    elif amount < needed + chunk // 2:
        amount = needed + chunk
    amount = min(amount, most)
    is_exhausted = amount >= most
    wants = bool(elsewhere) and amount < needed
    if order.returns_unused and amount < order.reserved + order.least:
        # Two processes that each hold a part which is of no use would both wait.
        amount = min(amount, order.reserved)
    if newly_spent or wants:
        until_s = now_s + WANTED_S if wants else row.wanted_until_s
        key = key_parameters(BudgetId._fields, order.id)
        changes.budgets.append({**key, "newly_spent": newly_spent, "until_s": until_s})
    reserved = min(amount, needed)
    is_written = bool(amount or order.keeps_unused)
    if own is not None and not (is_written or newly_spent):
        changes.ended.append(key_parameters((*BudgetId._fields, "holder"), (*order.id, holder)))
    elif own is not None:
        is_fresh = now_s + LEASE_S / 2 <= own.expires_s <= now_s + 2 * LEASE_S
        is_same = (own.amount_nusd, own.reserved_nusd) == (amount, reserved)
        is_written = bool(newly_spent) or not (is_fresh and is_same)
    if is_written:
        changes.leases.append(
            {
                **order.id._asdict(),
                "holder": holder,
                "amount_nusd": amount,
                "reserved_nusd": reserved,
                "expires_s": now_s + LEASE_S,
                "number": order.number,
            }
        )
    return LedgerState(
        spent,
        amount,
        is_exhausted=is_exhausted,
        idle=sum(max(0, lease.amount_nusd - lease.reserved_nusd) for lease in others),
        elsewhere=elsewhere,
        is_wanted=is_wanted,
    )


@dataclass(slots=True)
class _Changes:
    """What an exchange changes, each kind by one statement."""

    budgets: list[dict[str, Any]] = field(default_factory=list)
    leases: list[dict[str, Any]] = field(default_factory=list)
    ended: list[dict[str, Any]] = field(default_factory=list)
    """Leases that are deleted."""

    def write(self, connection: Connection) -> None:
        if self.budgets:
            total = spending.c.spent_nusd + bindparam("newly_spent")
            change = update(spending).where(has_key(spending, BudgetId._fields))
            change = change.values(spent_nusd=total, wanted_until_s=bindparam("until_s"))
            connection.execute(change, self.budgets)
        if self.leases:
            insert = insert_into(connection, leases)
            key = [column.name for column in leases.primary_key]
            values = {column.name: column for column in insert.excluded if column.name not in key}
            connection.execute(
                insert.on_conflict_do_update(index_elements=key, set_=values), self.leases
            )
        if self.ended:
            is_own = has_key(leases, (*BudgetId._fields, "holder"))
            connection.execute(delete(leases).where(is_own), self.ended)


def _create(connection: Connection, orders: Sequence[Order]) -> None:
    if orders:
        insert = insert_into(connection, spending)
        rows = [{**order.id._asdict(), "spent_nusd": 0, "wanted_until_s": 0.0} for order in orders]
        connection.execute(insert.on_conflict_do_nothing(), rows)


def _lock(connection: Connection, orders: Sequence[Order]) -> dict[BudgetId, Row[Any]]:
    """Return the rows of budgets by their ids.

    PostgreSQL locks them; SQLite has only one writer at a time.
    """
    return {BudgetId(*row[:3]): row for row in _read(connection, spending, orders)}


def _read(connection: Connection, table: Table, orders: Sequence[Order]) -> Iterator[Row[Any]]:
    """Yield the rows of budgets in `spending`, which are locked, or in `leases`."""
    key = [table.c[name] for name in BudgetId._fields]
    for start in range(0, len(orders), CHUNK):
        ids = [order.id for order in orders[start : start + CHUNK]]
        query = select(table).where(tuple_(*key).in_(ids)).order_by(*key)
        yield from connection.execute(query.with_for_update() if table is spending else query)
