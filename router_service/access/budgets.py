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
import itertools
import math
import secrets
import threading
import time
from bisect import insort
from collections.abc import Callable, Sequence
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


@dataclass(slots=True, eq=False)
class _Account:
    """A budget in one of its periods, as this process knows it. Amounts are in nanodollars."""

    id: BudgetId
    end_s: float
    budget: Budget
    limit: int
    is_known: bool = False
    """Whether the database has been asked."""
    state: LedgerState = UNKNOWN
    """The budget in the database, as last read."""
    unwritten: int = 0
    """Spent by this process and not known to be written."""
    doubtful: dict[int, int] = field(default_factory=dict)
    """What was unwritten at writes that may have been made, by their number."""
    number: int = 0
    reserved: int = 0
    in_flight: int = 0
    is_returning: bool = False
    """Whether the database is just being offered what this process does not need."""
    low: int = 0
    """If less than this is free, more is leased."""
    chunk: int = 0
    """The least that is leased beyond what is needed."""
    uncovered: _Part | None = None
    """What the request that may overspend has reserved."""
    waiting: list[_Ask] = field(default_factory=list)
    is_urgent: bool = True
    read_s: float = -math.inf
    """When the state was asked for that was read last, by the monotonic clock."""
    next_s: float = 0.0
    used_s: float = 0.0

    @property
    def free(self) -> int:
        """What this process may reserve without asking the database."""
        free = self.state.leased_nusd - self.unwritten - self.reserved
        return min(0, free) if self.is_returning else free

    @property
    def left(self) -> int:
        """What is not spent, as far as this process knows; it may be reserved."""
        return self.limit - self.state.spent_nusd - self.unwritten


@dataclass(slots=True, eq=False)
class _Part:
    """What one request has reserved of one budget."""

    account: _Account
    amount: int


@dataclass(slots=True, eq=False)
class Reservation:
    """What is reserved for one request, in the budgets of its key and of its team."""

    parts: Sequence[_Part]
    allowance_usd: float
    """What is left for the request; infinite if the most that it may cost is reserved."""


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
class _Ask:
    """A request that needs money."""

    number: int
    accounts: Sequence[_Account]
    expected: int
    least: int
    bound: int
    """The most that the request may cost."""
    started_s: float
    future: asyncio.Future[Reservation] | None = None
    queue: _Account | None = None
    """The budget whose money the request waits for."""

    def __lt__(self, other: _Ask) -> bool:
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
        idle_s: float = IDLE_S,
    ) -> None:
        """Add the job to the thread.

        `on_refused` gets why a request was refused (`spent`, `reserved`, `unknown`). `clock`
        returns Unix seconds. For `stale_s` and `idle_s`, see `STALE_S` and `IDLE_S`.
        """
        self._stale_s = stale_s
        self._idle_s = idle_s
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
                    (account.state.spent_nusd + account.unwritten) / NANO,
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
        with self._lock:
            ask = self._ask(key, cost)
            blocked = self._attempt(ask)
            if isinstance(blocked, Reservation):
                return blocked
            self._enqueue(ask, blocked)
        return await self._wait(ask)

    def settle(self, reservation: Reservation, cost_usd: float | None) -> None:
        """Return what is reserved, and count what the request has cost; None is unknown."""
        spent = 0 if cost_usd is None else max(0, to_nusd(cost_usd))
        with self._lock:
            self._finish(reservation, spent)
            waiting = [part.account for part in reservation.parts if part.account.waiting]
            is_wanted = any(part.account.state.is_wanted for part in reservation.parts)
            if is_wanted:
                for part in reservation.parts:
                    part.account.is_urgent = True
        for account in waiting:
            self._serve(account)
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
        budget_id = BudgetId(subject, budget.period, start_s)
        account = self._accounts.get(budget_id)
        limit = round(budget.usd * NANO)
        if account is None:
            account = _Account(budget_id, math.inf if end_s is None else end_s, budget, limit)
            account.used_s = time.monotonic()
            self._accounts[budget_id] = account
        elif account.limit != limit:
            account.budget, account.limit = budget, limit
            account.state = replace(account.state, is_exhausted=False)
            account.is_urgent = True
        return account

    def _ask(self, key: Key, cost: ExpectedCost) -> _Ask:
        expected = to_nusd(cost.usd)
        return _Ask(
            number=next(self._numbers),
            accounts=self._accounts_of(key),
            expected=expected,
            least=min(expected, to_nusd(cost.least_usd)),
            bound=max(expected, to_nusd(cost.most_usd)),
            started_s=time.monotonic(),
        )

    def _attempt(self, ask: _Ask, *, is_late: bool = False) -> Reservation | _Account:
        """Reserve money for a request, or return the budget that has too little now.

        Raises AdmissionError if a budget is spent.
        """
        is_blind = self._is_blind()
        needed = max(ask.least, 1)
        for account in ask.accounts:
            if account.is_known and account.left < needed:
                self._on_refused("spent")
                raise _spent_error(account, self._clock())
        parts: list[_Part] = []
        allowance = math.inf
        for account in ask.accounts:
            amount = self._amount(account, ask, is_blind=is_blind, is_late=is_late)
            if amount is None:
                return account
            parts.append(_Part(account, amount))
            if amount < ask.bound:
                allowance = min(allowance, account.free / NANO)
        is_low = False
        for part in parts:
            account = part.account
            account.reserved += part.amount
            account.in_flight += 1
            account.used_s = ask.started_s
            account.chunk = LEASED_REQUESTS * ask.bound
            if part.amount < ask.bound:
                account.uncovered = part
            if account.free < account.low and not (account.state.is_exhausted or account.is_urgent):
                account.is_urgent = is_low = True
        if is_low:
            self._thread.hurry("budgets")
        return Reservation(parts, allowance)

    @staticmethod
    def _amount(account: _Account, ask: _Ask, *, is_blind: bool, is_late: bool) -> int | None:
        """Return what a request reserves of one budget; None if it has to wait.

        Without the database (`is_blind`), nothing can be leased beyond what the process has.
        """
        free, waiting = account.free, account.waiting
        if not ask.bound:  # costs nothing, or nothing that is known
            return 0 if account.is_known else None
        if free >= ask.bound:
            return ask.bound
        may_lease = not (account.state.is_exhausted or is_blind)
        is_overtaking = bool(waiting) and waiting[0] < ask and not is_late
        if account.uncovered is not None or may_lease or is_overtaking:
            return None
        is_fresh = account.state.idle_nusd == 0 and account.read_s >= ask.started_s
        is_all = account.in_flight == 0 and (is_fresh or is_blind)  # nothing more may come back
        least = ask.least if is_late or is_all else ask.expected
        return min(free, ask.expected) if free >= max(least, 1) else None

    def _finish(self, reservation: Reservation, spent: int) -> None:
        for part in reservation.parts:
            account = part.account
            account.reserved -= part.amount
            account.in_flight -= 1
            account.unwritten += spent
            account.used_s = time.monotonic()
            if account.uncovered is part:
                account.uncovered = None

    def _enqueue(self, ask: _Ask, account: _Account) -> None:
        if ask.future is None:
            self._loop = asyncio.get_running_loop()
            ask.future = self._loop.create_future()
        ask.queue = account
        insort(account.waiting, ask)

    def _serve(self, account: _Account) -> None:
        """Admit the requests that wait for a budget, in the order of their arrival.

        A request that cannot be covered is overtaken only by those that can.
        """
        is_due = False
        with self._lock:
            for ask in tuple(account.waiting):
                assert ask.future is not None  # noqa: S101 - for types; it waits
                if ask.bound > account.free and ask is not account.waiting[0]:
                    continue
                result: Reservation | _Account | None = None
                try:
                    result = self._attempt(ask)
                except AdmissionError as exc:
                    ask.future.set_exception(exc)
                if result is account:
                    if not (account.state.is_exhausted or account.is_urgent):
                        account.is_urgent = is_due = True
                    continue
                account.waiting.remove(ask)
                ask.queue = None
                if isinstance(result, Reservation):
                    ask.future.set_result(result)
                elif result is not None:
                    self._enqueue(ask, result)
        if is_due:  # there is more to lease
            self._thread.hurry("budgets")

    async def _wait(self, ask: _Ask) -> Reservation:
        """Wait for money, at most as long as the settings say.

        The request may wait longer for money that another process has leased and does not use. It
        comes back within `QUIET_S` and twice `WRITE_S`, or when a killed process's lease expires.
        """
        future = ask.future
        assert future is not None  # noqa: S101 - for types; it is enqueued
        try:
            while True:
                self._ask_database(ask)
                await asyncio.wait((future,), timeout=POLL_S)
                if not future.done() and ask.queue is not None:
                    self._serve(ask.queue)
                if future.done():
                    return future.result()
                reservation = self._attempt_late(ask)
                if reservation is not None:
                    return reservation
        except asyncio.CancelledError:
            if future.done() and future.exception() is None:  # the client left at the same time
                self.settle(future.result(), 0.0)
            raise
        finally:
            with self._lock:
                account = ask.queue
                if account is not None:
                    account.waiting.remove(ask)
                    ask.queue = None
            if account is not None:
                self._serve(account)

    def _attempt_late(self, ask: _Ask) -> Reservation | None:
        """Admit or refuse a request that has waited long enough; None if it has not."""
        now_s = time.monotonic()
        waited_s = now_s - ask.started_s
        if waited_s < self._settings().budgets.max_wait_s:
            return None
        with self._lock:
            result = self._attempt(ask, is_late=True)
        if isinstance(result, Reservation):
            return result
        if self._is_blind():
            raise self._unknown_error()
        state = result.state
        longest_s = QUIET_S + 2 * WRITE_S if state.elsewhere_nusd else 0.0
        is_stale = result.read_s < ask.started_s
        if state.idle_nusd or is_stale or result.is_returning or not state.is_exhausted:
            longest_s = LEASE_S + QUIET_S
        if waited_s < longest_s:
            return None
        self._on_refused("reserved")
        raise _reserved_error(result)

    def _ask_database(self, ask: _Ask) -> None:
        """Let the thread read a budget at once, unless it has just been read."""
        account = ask.queue
        if account is None:
            return
        now_s = time.monotonic()
        with self._lock:
            for each in ask.accounts:
                each.used_s = now_s  # so that none is forgotten meanwhile
            is_due = account.read_s < max(ask.started_s, now_s - POLL_S)
            account.is_urgent |= is_due
        if is_due:
            self._thread.hurry("budgets")

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
                        account.is_urgent, account.is_returning = True, False
                        if is_sent:
                            account.doubtful[order.number] = order.spent_nusd
                            if order.returns_unused:
                                held = account.unwritten + account.reserved
                                account.state = replace(account.state, leased_nusd=held)
                raise
        else:
            states = ()
        self._answered_s = time.monotonic()
        served: list[_Account] = []
        with self._lock:
            for account, order, state in zip(due, orders, states, strict=True):
                self._take(account, order, state, now_s)
                is_used = account.unwritten or state.leased_nusd or account.in_flight
                if account.waiting:
                    served.append(account)
                elif not (order.keeps_unused or is_used):
                    del self._accounts[account.id]
                    self._by_key.clear()
        if served and self._loop is not None and not self._loop.is_closed():
            for account in served:
                self._loop.call_soon_threadsafe(self._serve, account)

    def _order(self, account: _Account, now_s: float) -> Order:
        account.number += 1
        account.is_urgent = False
        unused_s = now_s - account.used_s
        account.next_s = now_s + (WRITE_S if unused_s < QUIET_S else QUIET_S)
        waiting = account.waiting
        keeps_unused = unused_s < self._idle_s and not self._is_closing
        account.is_returning = account.state.is_wanted or bool(waiting) or not keeps_unused
        return Order(
            account.id,
            account.limit,
            account.unwritten,
            account.reserved,
            waiting[0].bound if waiting else 0,
            min((max(ask.least, 1) for ask in waiting), default=0),
            max(account.chunk, sum(ask.bound for ask in waiting)),
            account.number,
            dict(account.doubtful),
            is_new=not account.is_known,
            keeps_unused=keeps_unused,
            returns_unused=account.is_returning,
        )

    @staticmethod
    def _take(account: _Account, order: Order, state: LedgerState, now_s: float) -> None:
        account.is_known, account.is_returning = True, False
        account.doubtful.clear()
        account.unwritten -= order.spent_nusd
        account.is_urgent |= state.is_wanted and not account.state.is_wanted
        account.state = state
        account.low = max(0, state.leased_nusd - order.reserved_nusd) // 2
        account.read_s = now_s


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


def _reserved_error(account: _Account) -> AdmissionError:
    kind, _, name = account.id.subject.partition(":")
    return AdmissionError(
        f"The rest of the budget of the {kind} {name!r} is reserved for requests that are being "
        "answered. Try again when they have ended.",
        code="rate_limit_exceeded",
        kind="requests",
        retry_after_s=2.0,
    )
