"""Budgets of keys and teams, which hold exactly although several processes spend them.

A process leases a part of what is left of a budget (`access.ledger`), and reserves requests against
its lease without asking the database. A job writes what was spent, renews the leases and reads what
other processes did.

A request reserves the most that it may cost, so requests in flight together stay within the budget.
Often that is much more than it will cost, and near the end of a budget it does not fit. Then one
request at a time in each process reserves its expected cost instead, because otherwise requests
would be refused although money is left. That request is *uncovered*: it alone may overspend, and
the next one is admitted only if something is left after it.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import math
import secrets
import threading
import time
from bisect import insort
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from router_service.access.key import Budget, BudgetPeriod, Key
from router_service.access.ledger import (
    LEASE_S,
    UNKNOWN,
    BudgetId,
    LedgerState,
    Order,
    delete_forgotten,
    exchange,
)
from router_service.core.errors import AdmissionError, DatabaseError
from router_service.core.money import NANO, to_nusd
from router_service.database.background import DatabaseThread
from router_service.database.engine import Database
from router_service.settings import Settings

WRITE_S = 0.5
"""Interval at which spending is written and leases are renewed."""
QUIET_S = 1.0
"""The same interval for budgets that have not been used for that time."""
POLL_S = 0.1
"""Interval at which the database is read while requests wait for money."""
STALE_S = 4.0
"""Time without an answer of the database after which a process spends only what it leased."""
IDLE_S = 60.0
"""Time after which a process gives an unused lease back, and forgets the budget."""
CLEAN_S = 60.0
"""Interval at which leases that expired long ago are deleted."""
LEASED_REQUESTS = 2
"""A process leases at least the most that so many requests may cost, so that few have to wait."""


@dataclass(frozen=True, slots=True)
class ExpectedCost:
    """What a planned request is expected to cost, and between which limits its cost may be."""

    usd: float
    """Expected cost with the chosen model."""
    least_usd: float
    """Cost of a very short answer of the cheapest model that may answer."""
    most_usd: float
    """Cost of the longest answers that the request allows, of the dearest models that may answer.
    """


@dataclass(slots=True, eq=False)
class _Account(Order):
    """A budget in one of its periods, as this process knows it. Amounts are in nanodollars."""

    budget: Budget = field(kw_only=True)
    end_s: float = field(kw_only=True)
    """Infinite if the budget never starts again."""
    state: LedgerState = UNKNOWN
    """The budget in the database, as last read."""
    in_flight: int = 0
    low: int = 0
    """If less than this is free, more is leased."""
    uncovered: Reservation | None = None
    """The request that may overspend."""
    waiting: list[Reservation] = field(default_factory=list)
    """Requests that wait for money, in the order of their arrival."""
    is_urgent: bool = True
    read_s: float = -math.inf
    """When the state was asked for that was read last, by the monotonic clock."""
    next_s: float = 0.0
    used_s: float = field(default_factory=time.monotonic)

    @property
    def free(self) -> int:
        """What this process may reserve without asking the database."""
        free = self.state.leased - self.unwritten - self.reserved
        return min(0, free) if self.returns_unused else free

    @property
    def left(self) -> int:
        """What is not spent, as far as this process knows; it may be reserved."""
        return self.limit - self.state.spent - self.unwritten


@dataclass(slots=True, eq=False)
class Reservation:
    """What one request needs of the budgets of its key and its team, and what it has reserved.

    Amounts are in nanodollars.
    """

    number: int
    accounts: Sequence[_Account]
    expected: int
    least: int
    bound: int
    """The most that the request may cost."""
    started_s: float
    amounts: Sequence[int] = ()
    """What is reserved of each budget; empty while the request waits."""
    allowance_usd: float = math.inf
    """What is left for the request; infinite if the most that it may cost is reserved."""
    queue: _Account | None = None
    """The budget whose money the request waits for."""
    has_changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when there may be money for a request that waits."""

    def __lt__(self, other: Reservation) -> bool:
        """Return whether the request arrived earlier."""
        return self.number < other.number


@dataclass(frozen=True, slots=True)
class BudgetBalance:
    """What is left of one budget, as far as this process knows."""

    subject: str
    budget: Budget
    start_s: int
    end_s: float
    """Infinite if the budget never starts again."""
    spent_usd: float
    """Spent by all processes, up to the last second."""
    reserved_usd: float
    """Reserved by requests in flight in this process."""

    @property
    def share(self) -> float:
        """The share of the budget that is spent."""
        return self.spent_usd / self.budget.usd if self.budget.usd > 0 else 1.0


class Budgets:
    """Reserves the cost of requests in the budgets of their keys and teams.

    Requests use it on the event loop, and the database's thread writes and reads.
    """

    def __init__(
        self,
        thread: DatabaseThread,
        *,
        settings: Callable[[], Settings],
        on_refused: Callable[[str], None] = lambda _why: None,
        clock: Callable[[], float] = time.time,
        stale_s: float = STALE_S,
    ) -> None:
        """Add the job to the thread.

        `on_refused` gets why a request was refused (`spent`, `reserved`, `unknown`). `clock`
        returns Unix seconds. For `stale_s`, see `STALE_S`.
        """
        self._stale_s = stale_s
        self._thread = thread
        self._settings = settings
        self._on_refused = on_refused
        self._clock = clock
        self._holder = secrets.token_hex(16)
        self._lock = threading.Lock()
        self._accounts: dict[BudgetId, _Account] = {}
        self._by_key: dict[str | None, tuple[Key, Sequence[_Account], float, float]] = {}
        self._numbers = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._answered_s = time.monotonic()
        self._cleaned_s = time.monotonic()
        self._is_closing = False
        thread.every(WRITE_S, "budgets", self.write)

    def states(self, key: Key) -> Sequence[BudgetBalance]:
        """Return what is left of the budgets of a key and its team."""
        if not key.has_budget:
            return ()
        with self._lock:
            return [
                BudgetBalance(
                    account.id.subject,
                    account.budget,
                    account.id.start_s,
                    account.end_s,
                    (account.state.spent + account.unwritten) / NANO,
                    account.reserved / NANO,
                )
                for account in self._accounts_of(key)
            ]

    async def reserve(self, key: Key, cost: ExpectedCost) -> Reservation | None:
        """Reserve the cost of a request, or return None if the key and its team have no budget.

        If the rest of a budget is reserved, wait until other requests return some of it. Raises
        AdmissionError.
        """
        if not key.has_budget:
            return None
        expected = to_nusd(cost.usd)
        with self._lock:
            request = Reservation(
                number=next(self._numbers),
                accounts=self._accounts_of(key),
                expected=expected,
                least=min(expected, to_nusd(cost.least_usd)),
                bound=max(expected, to_nusd(cost.most_usd)),
                started_s=time.monotonic(),
            )
            blocked = self._attempt(request)
        if blocked is not None:
            await self._wait(request, blocked)
        return request

    def settle(self, reservation: Reservation, cost_usd: float | None) -> None:
        """Return what is reserved, and count what the request has cost; None is unknown."""
        spent = 0 if cost_usd is None else max(0, to_nusd(cost_usd))
        is_wanted = False
        with self._lock:
            for account, amount in zip(reservation.accounts, reservation.amounts, strict=True):
                account.reserved -= amount
                account.in_flight -= 1
                account.unwritten += spent
                account.used_s = time.monotonic()
                if account.uncovered is reservation:
                    account.uncovered = None
                is_wanted |= account.state.is_wanted
            if is_wanted:
                for account in reservation.accounts:
                    account.is_urgent = True
        for account in reservation.accounts:
            if account.waiting:
                self._wake(account)
        if is_wanted:
            self._thread.hurry("budgets")

    def close(self) -> None:
        """Give everything back at the next write, which is the last one."""
        self._is_closing = True

    # Reservations, on the event loop.

    def _accounts_of(self, key: Key) -> Sequence[_Account]:
        now_s = self._clock()
        found = self._by_key.get(key.name)
        if found is not None and found[0] is key and found[2] <= now_s < found[3]:
            return found[1]
        accounts = [
            self._account(subject, limits.budget, now_s)
            for subject, limits in key.limited
            if limits.budget is not None
        ]
        start_s = max(account.id.start_s for account in accounts)
        end_s = min(account.end_s for account in accounts)
        self._by_key[key.name] = key, accounts, start_s, end_s
        return accounts

    def _account(self, subject: str, budget: Budget, now_s: float) -> _Account:
        start_s, end_s = budget.period.bounds_s(now_s)
        budget_id = BudgetId(subject, budget.period.value, start_s)
        account = self._accounts.get(budget_id)
        limit = round(budget.usd * NANO)
        if account is None:
            end_s = math.inf if end_s is None else end_s
            account = _Account(budget_id, limit, budget=budget, end_s=end_s)
            self._accounts[budget_id] = account
        elif account.limit != limit:
            account.budget, account.limit = budget, limit
            account.state = replace(account.state, is_exhausted=False)
            account.is_urgent = True
        return account

    def _attempt(self, request: Reservation, *, is_late: bool = False) -> _Account | None:
        """Reserve money for a request, or return the budget that has too little now.

        Raises AdmissionError if a budget is spent.
        """
        is_blind = self._is_blind()
        needed = max(request.least, 1)
        for account in request.accounts:
            if account.is_known and account.left < needed:
                self._on_refused("spent")
                raise _spent_error(account, self._clock())
        amounts: list[int] = []
        for account in request.accounts:
            amount = self._amount(account, request, is_blind=is_blind, is_late=is_late)
            if amount is None:
                return account
            amounts.append(amount)
        request.amounts = amounts
        is_low = False
        for account, amount in zip(request.accounts, amounts, strict=True):
            if amount < request.bound:
                account.uncovered = request
                request.allowance_usd = min(request.allowance_usd, account.free / NANO)
            account.reserved += amount
            account.in_flight += 1
            account.used_s = request.started_s
            account.chunk = LEASED_REQUESTS * request.bound
            if account.free < account.low and not (account.state.is_exhausted or account.is_urgent):
                account.is_urgent = is_low = True
        if is_low:
            self._thread.hurry("budgets")
        return None

    @staticmethod
    def _amount(
        account: _Account, request: Reservation, *, is_blind: bool, is_late: bool
    ) -> int | None:
        """Return what a request reserves of one budget; None if it has to wait.

        Without the database (`is_blind`), nothing can be leased beyond what the process has.
        """
        free, waiting = account.free, account.waiting
        if not request.bound:  # costs nothing, or nothing that is known
            return 0 if account.is_known else None
        is_overtaking = bool(waiting) and waiting[0] < request and not is_late
        if free >= request.bound and not (is_overtaking and free >= waiting[0].bound):
            return request.bound
        may_lease = not (account.state.is_exhausted or is_blind)
        if account.uncovered is not None or may_lease or is_overtaking:
            return None
        is_fresh = account.state.idle == 0 and account.read_s >= request.started_s
        is_all = account.in_flight == 0 and (is_fresh or is_blind)  # nothing more may come back
        least = request.least if is_late or is_all else request.expected
        return min(free, request.expected) if free >= max(least, 1) else None

    async def _wait(self, request: Reservation, blocked: _Account) -> None:
        """Wait until money is reserved, at most as long as the settings say."""
        self._loop = asyncio.get_running_loop()
        account: _Account | None = blocked
        try:
            while account is not None:
                self._join(request, account)
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_S):
                        await request.has_changed.wait()
                request.has_changed.clear()
                waited_s = time.monotonic() - request.started_s
                is_late = waited_s >= self._settings().budgets.max_wait_s
                with self._lock:
                    account = self._attempt(request, is_late=is_late)
                if account is not None and is_late:
                    self._give_up(request, account, waited_s)
        finally:
            self._leave(request)

    def _join(self, request: Reservation, account: _Account) -> None:
        """Let a request wait for a budget, which is read at once unless it has just been read."""
        if request.queue is not account:
            self._leave(request)
        now_s = time.monotonic()
        with self._lock:
            if request.queue is None:
                request.queue = account
                insort(account.waiting, request)
            for each in request.accounts:
                each.used_s = now_s  # so that none is forgotten meanwhile
            may_lease = not (account.state.is_exhausted or account.is_urgent)
            is_due = may_lease or account.read_s < max(request.started_s, now_s - POLL_S)
            account.is_urgent |= is_due
        if is_due:
            self._thread.hurry("budgets")

    def _leave(self, request: Reservation) -> None:
        with self._lock:
            account, request.queue = request.queue, None
            if account is not None:
                account.waiting.remove(request)
        if account is not None:
            self._wake(account)

    def _wake(self, account: _Account) -> None:
        """Let requests that wait for a budget try again.

        A request that cannot be covered is overtaken only by those that can.
        """
        with self._lock:
            for request in account.waiting:
                if request is account.waiting[0] or request.bound <= account.free:
                    request.has_changed.set()

    def _give_up(self, request: Reservation, account: _Account, waited_s: float) -> None:
        """Refuse a request that has waited long enough.

        It may wait longer for money that another process has leased and does not use. It comes back
        within `QUIET_S` and twice `WRITE_S`, or when a killed process's lease expires. Raises
        AdmissionError.
        """
        if self._is_blind():
            raise self._unknown_error()
        state = account.state
        longest_s = QUIET_S + 2 * WRITE_S if state.elsewhere else 0.0
        is_stale = account.read_s < request.started_s
        if state.idle or is_stale or account.returns_unused or not state.is_exhausted:
            longest_s = LEASE_S + QUIET_S
        if waited_s >= longest_s:
            self._on_refused("reserved")
            kind, _, name = account.id.subject.partition(":")
            raise AdmissionError(
                f"The rest of the budget of the {kind} {name!r} is reserved for requests that are "
                "being answered. Try again when they have ended.",
                code="rate_limit_exceeded",
                kind="requests",
                retry_after_s=2.0,
            )

    def _is_blind(self) -> bool:
        """Return whether the database has not answered lately; raises AdmissionError if too long.

        Then a process spends what it has leased, which no other process spends meanwhile.
        """
        silent_s = time.monotonic() - self._answered_s
        if silent_s < self._stale_s:
            return False
        if silent_s > self._settings().database.grace_s:
            raise self._unknown_error()
        return True

    def _unknown_error(self) -> AdmissionError:
        self._on_refused("unknown")
        return AdmissionError(
            "The gateway cannot reach its database, so it does not know what is left of the "
            "budget of this key. Try again later, or ask the operator.",
            code="budget_unknown",
            kind="server_error",
            status=503,
            retry_after_s=10,
        )

    # Writes, in the database's thread.

    def write(self, database: Database) -> None:
        """Write what was spent, renew the leases, and read what others did.

        Raises DatabaseError.
        """
        now_s = time.monotonic()
        with self._lock:
            due = [
                account
                for account in self._accounts.values()
                if account.is_urgent or account.next_s <= now_s or self._is_closing
            ]
            due.sort(key=lambda account: account.id)
            orders = [self._order(account, now_s) for account in due]
        is_sent = False
        states: Sequence[LedgerState] = ()
        if orders or now_s - self._cleaned_s > CLEAN_S:
            try:
                with database.write() as connection:
                    clock_s = database.now_s(connection)
                    states = exchange(connection, self._holder, clock_s, orders)
                    if now_s - self._cleaned_s > CLEAN_S:
                        delete_forgotten(connection, clock_s)
                        self._cleaned_s = now_s
                    is_sent = True
            except DatabaseError:
                with self._lock:
                    for account, order in zip(due, orders, strict=True):
                        account.is_urgent, account.returns_unused = True, False
                        if is_sent:
                            account.doubtful[order.number] = order.unwritten
                            if order.returns_unused:
                                held = account.unwritten + account.reserved
                                account.state = replace(account.state, leased=held)
                raise
        self._answered_s = time.monotonic()
        with self._lock:
            for account, order, state in zip(due, orders, states, strict=True):
                self._take(account, order, state, now_s)
            waited_for = [account for account in due if account.waiting]
        if self._loop is not None and not self._loop.is_closed():
            for account in waited_for:
                self._loop.call_soon_threadsafe(self._wake, account)

    def _order(self, account: _Account, now_s: float) -> Order:
        """Return a copy of a budget, with what is wanted of the rest."""
        unused_s = now_s - account.used_s
        waiting = account.waiting
        account.number += 1
        account.is_urgent = False
        account.next_s = now_s + (WRITE_S if unused_s < QUIET_S else QUIET_S)
        account.keeps_unused = unused_s < IDLE_S and not self._is_closing
        account.returns_unused = (
            account.state.is_wanted or bool(waiting) or not account.keeps_unused
        )
        order = copy.copy(account)
        order.wanted = waiting[0].bound if waiting else 0
        order.least = min((max(request.least, 1) for request in waiting), default=0)
        order.chunk = max(account.chunk, sum(request.bound for request in waiting))
        order.doubtful = dict(account.doubtful)
        return order

    def _take(self, account: _Account, order: Order, state: LedgerState, now_s: float) -> None:
        """Note the state after an order, and forget a budget that is not used any more."""
        account.is_known, account.returns_unused = True, False
        account.doubtful.clear()
        account.unwritten -= order.unwritten
        account.is_urgent |= state.is_wanted and not account.state.is_wanted
        account.state = state
        account.low = max(0, state.leased - order.reserved) // 2
        account.read_s = now_s
        is_used = account.unwritten or state.leased or account.in_flight or account.waiting
        if not (order.keeps_unused or is_used):
            del self._accounts[account.id]
            self._by_key.clear()


def _spent_error(account: _Account, now_s: float) -> AdmissionError:
    """Return the error for a request that does not fit into what is left of a budget."""
    budget, left = account.budget, max(0, account.left)
    kind, _, name = account.id.subject.partition(":")
    state = "is spent"
    if left:
        state = f"has {left / NANO:.2g} USD left, less than this request is expected to cost"
    end = "It does not start again; ask the operator to raise it."
    retry_after_s = None
    if account.end_s < math.inf:
        end = f"It starts again at {datetime.fromtimestamp(account.end_s, UTC):%Y-%m-%d %H:%M} UTC."
        if account.end_s - now_s < 60:
            retry_after_s = max(1.0, account.end_s - now_s)
    each = "in total" if budget.period is BudgetPeriod.TOTAL else f"per {budget.period}"
    return AdmissionError(
        f"The budget of the {kind} {name!r} ({budget.usd:g} USD {each}) {state}. {end}",
        retry_after_s=retry_after_s,
    )
