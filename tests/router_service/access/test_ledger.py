"""Budgets of several processes: exact sums, no false refusal, and what ends a lease."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sqlalchemy import Connection, func, select, update

from router_service.access.budgets import WRITE_S, Budgets, ExpectedCost, Reservation
from router_service.access.key import Budget, BudgetPeriod, Key, Limits, Team
from router_service.core.errors import AdmissionError, DatabaseError
from router_service.core.money import NANO, to_nusd
from router_service.database.background import DatabaseThread
from router_service.database.engine import Database
from router_service.database.schema import leases, spending
from router_service.settings import BudgetSettings, DatabaseSettings, Settings

pytestmark = pytest.mark.anyio

T = TypeVar("T")

NOVEMBER = datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()
DECEMBER = datetime(2026, 12, 1, 0, 30, tzinfo=UTC).timestamp()


def key(
    usd: float = 1.0,
    *,
    name: str = "one",
    team: Team | None = None,
) -> Key:
    """Return a key with a monthly budget."""
    return Key(name, limits=Limits(budget=Budget(usd, BudgetPeriod.MONTH)), team=team)


def cost(usd: float, least_usd: float | None = None, most_usd: float | None = None) -> ExpectedCost:
    """Return an expected cost; by default, it cannot be lower or higher."""
    least_usd = usd if least_usd is None else least_usd
    return ExpectedCost(usd, least_usd, usd if most_usd is None else most_usd)


class Process:
    """What a gateway's process has of the budgets: one thread for the database, and `Budgets`."""

    def __init__(
        self,
        database: Database,
        *,
        max_wait_s: float = 0.3,
        grace_s: float = 3600.0,
        clock: Callable[[], float] = time.time,
        stale_s: float = 60.0,
    ) -> None:
        settings = Settings(
            budgets=BudgetSettings(max_wait_s=max_wait_s),
            database=DatabaseSettings(grace_s=grace_s),
        )
        self.database = database
        self.refused: Counter[str] = Counter()
        self.thread = DatabaseThread(database)
        self.budgets = Budgets(
            self.thread,
            settings=lambda: settings,
            on_refused=lambda why: self.refused.update([why]),
            clock=clock,
            stale_s=stale_s,
        )

    def close(self) -> None:
        """End as after SIGTERM."""
        self.budgets.close()
        self.thread.close()

    async def reserve(self, key: Key, expected: ExpectedCost) -> Reservation:
        """Reserve the cost of a request of a key that has a budget."""
        reservation = await self.budgets.reserve(key, expected)
        assert reservation is not None
        return reservation

    async def spend(self, key: Key, usd: float) -> None:
        """Make a request."""
        reservation = await self.reserve(key, cost(usd))
        self.budgets.settle(reservation, usd)


@dataclass(frozen=True)
class Shared:
    """A database that several processes use."""

    url: str

    @asynccontextmanager
    async def process(self, **times: Any) -> AsyncIterator[Process]:  # noqa: ANN401
        """Run a process with these times until the block ends, which ends it as SIGTERM does."""
        process = Process(Database(self.url), **times)
        await asyncio.to_thread(process.thread.start)
        try:
            yield process
        finally:
            await asyncio.to_thread(process.close)

    def read(self, query: Callable[[Connection], T]) -> T:
        """Return the result of a query."""
        database = Database(self.url)
        try:
            with database.write() as connection:
                return query(connection)
        finally:
            database.close()

    def spent(self) -> dict[str, int]:
        """Return what was spent in all periods, by subject, in nanodollars."""
        total = func.sum(spending.c.spent_nusd)
        query = select(spending.c.subject, total).group_by(spending.c.subject)
        rows = self.read(lambda connection: connection.execute(query).all())
        return {subject: int(nusd) for subject, nusd in rows}

    def leased(self) -> int:
        """Return what all processes hold together, in nanodollars."""
        query = select(func.coalesce(func.sum(leases.c.amount_nusd), 0))
        return int(self.read(lambda connection: connection.execute(query).scalar_one()))


@pytest.fixture
def shared(database_url: str) -> Shared:
    """Return an empty database of each kind."""
    return Shared(database_url)


@pytest.fixture
def sqlite(tmp_path: Path) -> Shared:
    """Return an empty SQLite file."""
    return Shared(f"sqlite:///{tmp_path / 'budgets.db'}")


async def refusal(work: Awaitable[object]) -> AdmissionError:
    """Return the error of a request that is refused."""
    with pytest.raises(AdmissionError) as caught:
        await work
    return caught.value


async def test_sums_are_exact_and_a_shutdown_writes_them(shared: Shared) -> None:
    """After the shutdown, the database has every nanodollar, and no lease is left."""
    costs_usd = [random.Random(1).random() / 1000 for _ in range(300)]
    async with shared.process() as one, shared.process() as other:
        for number, usd in enumerate(costs_usd):
            await (one, other)[number % 2].spend(key(), usd)
    assert shared.spent() == {"key:one": sum(map(to_nusd, costs_usd))}
    assert shared.leased() == 0


async def test_spent_budget_refuses_for_good(shared: Shared) -> None:
    """The error has OpenAI's code, says when the budget starts again, and forbids a retry."""
    async with shared.process(clock=lambda: NOVEMBER) as one:
        await one.spend(key(1.0), 1.0)
        error = await refusal(one.reserve(key(1.0), cost(0.1)))
        assert str(error) == (
            "The budget of the key 'one' (1 USD per month) is spent. It starts again at "
            "2026-12-01 00:00 UTC."
        )
        assert (error.status, error.code, error.kind) == (429, *["insufficient_quota"] * 2)
        assert (error.should_retry, error.retry_after_s) == (False, None)
        assert one.refused == {"spent": 1}


async def test_a_cheaper_model_may_use_the_rest(shared: Shared) -> None:
    """If only a cheaper model fits, the request may cost what is left; then nothing is left."""
    async with shared.process() as one:
        await one.spend(key(1.0), 0.9)
        reservation = await one.reserve(key(1.0), cost(0.4, 0.05))
        assert reservation.allowance_usd == pytest.approx(0.1)
        one.budgets.settle(reservation, 0.06)
        error = await refusal(one.reserve(key(1.0), cost(0.4, 0.05)))
        assert "has 0.04 USD left, less than this request is expected to cost" in str(error)


async def test_waiting_requests_are_admitted_in_the_order_of_their_arrival(sqlite: Shared) -> None:
    """Requests wait while the rest is reserved, and a later small request does not overtake."""
    async with sqlite.process(max_wait_s=20) as one:
        first = await one.reserve(key(1.0), cost(1.0))
        admitted: list[str] = []

        async def ask(name: str, usd: float) -> None:
            reservation = await one.reserve(key(1.0), cost(usd))
            admitted.append(name)
            await asyncio.sleep(0.02)
            one.budgets.settle(reservation, usd / 10)

        asks = []
        for name, usd in (("large", 0.8), ("small", 0.01), ("medium", 0.3)):
            asks.append(asyncio.create_task(ask(name, usd)))
            await asyncio.sleep(0)
        await asyncio.sleep(0.2)
        assert admitted == []
        time.sleep(0.15)  # noqa: ASYNC251 - as on a busy machine: all try again at once
        one.budgets.settle(first, 0.1)
        await asyncio.gather(*asks)
        assert admitted == ["large", "small", "medium"]


async def test_waiting_ends_with_an_error_that_may_be_retried(shared: Shared) -> None:
    """If nothing is returned in time, the request gets `rate_limit_exceeded` and retry-after."""
    async with shared.process(max_wait_s=0.2) as one, shared.process(max_wait_s=0.2) as other:
        held = await one.reserve(key(1.0), cost(1.0))
        for process in (one, other):
            error = await refusal(process.reserve(key(1.0), cost(0.5)))
            assert (error.code, error.kind) == ("rate_limit_exceeded", "requests")
            assert error.retry_after_s
            assert error.should_retry
            assert process.refused == {"reserved": 1}
        one.budgets.settle(held, 0.1)
        await other.spend(key(1.0), 0.5)


async def test_unused_leases_come_back_when_another_process_needs_them(shared: Shared) -> None:
    """A process gets what an idle one has leased, although it has to ask for it."""
    async with shared.process(max_wait_s=5) as idle, shared.process(max_wait_s=5) as busy:
        await idle.spend(key(1.0), 0.05)
        assert shared.leased() > 0
        for _ in range(19):
            await busy.spend(key(1.0), 0.05)
        error = await refusal(busy.reserve(key(1.0), cost(0.05)))
        assert error.code == "insufficient_quota"
        assert busy.refused == {"spent": 1}
    assert shared.spent() == {"key:one": NANO}


async def test_leases_of_a_killed_process_expire(shared: Shared) -> None:
    """What a killed process held can be spent once its lease has expired."""
    killed = Process(Database(shared.url))
    killed.database.prepare()
    reserving = asyncio.create_task(killed.reserve(key(1.0), cost(0.3)))
    await asyncio.sleep(0)
    await asyncio.to_thread(killed.budgets.write, killed.database)
    await reserving
    assert shared.leased() >= NANO // 2  # it writes no more, as after SIGKILL
    async with shared.process(max_wait_s=0.1) as one:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(one.reserve(key(1.0), cost(1.0)), 0.5)
        past = update(leases).where(leases.c.amount_nusd > 0).values(expires_s=1.0)
        shared.read(lambda connection: connection.execute(past))
        await one.spend(key(1.0), 1.0)
    killed.database.close()


async def test_both_budgets_are_reserved_or_neither(shared: Shared) -> None:
    """A key's request counts towards its team; if the team's is spent, the key's is untouched."""
    team = Team("red", Limits(budget=Budget(1.0, BudgetPeriod.DAY)))
    one, two = key(0.6, team=team), key(5.0, name="two", team=team)
    async with shared.process() as process:
        await process.spend(one, 0.4)
        await process.spend(two, 0.5)
        assert "team 'red'" in str(await refusal(process.reserve(two, cost(0.2))))
        assert "team 'red'" in str(await refusal(process.reserve(one, cost(0.15))))
        assert "key 'one'" in str(await refusal(process.reserve(one, cost(0.3))))
        states = process.budgets.states(one)
        assert [state.reserved_usd for state in states] == [0, 0]
        await process.spend(one, 0.1)
    spent = {"key:one": 0.5, "key:two": 0.5, "team:red": 1.0}
    assert shared.spent() == {subject: to_nusd(usd) for subject, usd in spent.items()}


@pytest.mark.parametrize("tiny", [0, 420])
async def test_requests_of_unknown_length_do_not_overspend(shared: Shared, tiny: int) -> None:
    """600 parallel requests that may cost, and do cost, 50 times what is expected of them.

    Three processes overspend at most one request each, in the key's and in the team's budget, also
    after many requests that were cheap. No request is refused for good while money is left.
    """
    long_usd, limit_usd = 0.16, 3.0
    limit, long = to_nusd(limit_usd), to_nusd(long_usd)
    team = Team("red", Limits(budget=Budget(limit_usd, BudgetPeriod.DAY)))
    keys = (key(limit_usd / 2, team=team), key(limit_usd, name="two", team=team))
    expected = cost(0.003, 0.0001, long_usd)
    spent: Counter[str] = Counter()

    async def ask(process: Process, key: Key, usd: float) -> None:
        while True:
            try:
                reservation = await process.reserve(key, expected)
                break
            except AdmissionError as exc:
                if exc.code == "insufficient_quota":
                    left = min(limit // 2 - spent["one"], limit - spent.total())
                    assert left < to_nusd(expected.least_usd)
                    return
        await asyncio.sleep(0.005)
        spent[str(key.name)] += to_nusd(usd)
        process.budgets.settle(reservation, usd)

    async with shared.process() as one, shared.process() as two, shared.process() as three:
        for number in range(tiny):
            await ask((one, two, three)[number % 3], keys[1], 0.0003)
        asks = [((one, two, three)[n % 3], keys[n % 2], long_usd) for n in range(600)]
        await asyncio.gather(*(ask(*each) for each in asks))
    written = shared.spent()
    assert written == {
        "key:one": spent["one"],
        "key:two": spent["two"],
        "team:red": spent.total(),
    }
    assert limit - to_nusd(expected.least_usd) < spent.total() <= limit + 3 * long
    assert spent["one"] <= limit // 2 + 3 * long


async def test_clock_jumps_do_not_reset_a_budget(shared: Shared) -> None:
    """After a jump forward and back, what was spent in the period still counts."""
    now_s = NOVEMBER
    async with shared.process(clock=lambda: now_s) as one:
        await one.spend(key(1.0), 0.9)
        now_s = DECEMBER
        await one.spend(key(1.0), 0.8)
        now_s = NOVEMBER
        await refusal(one.reserve(key(1.0), cost(0.2)))
        now_s = DECEMBER
        await refusal(one.reserve(key(1.0), cost(0.3)))
        await one.spend(key(1.0), 0.2)
    assert shared.spent() == {"key:one": to_nusd(1.9)}


class BreakingDatabase(Database):
    """A database whose connection breaks after a commit, or before it."""

    breaks: str | None = None

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Yield a connection as `Database` does, and break as `breaks` says."""
        breaks, self.breaks = self.breaks, None
        if breaks == "before":
            raise DatabaseError("write", self.place, "the connection is broken")
        with super().write() as connection:
            yield connection
        if breaks == "after":
            raise DatabaseError("write", self.place, "the connection broke during the commit")


@pytest.mark.parametrize("breaks", ["before", "after"])
async def test_broken_commits_are_counted_once(shared: Shared, breaks: str) -> None:
    """If the connection breaks, spending is written once, whether it was committed or not."""
    database = BreakingDatabase(shared.url)
    database.prepare()
    process = Process(database)
    reserving = asyncio.create_task(process.reserve(key(1.0), cost(0.1)))
    await asyncio.sleep(0)
    await asyncio.to_thread(process.budgets.write, database)
    process.budgets.settle(await reserving, 0.1)
    database.breaks = breaks
    await asyncio.sleep(WRITE_S)
    with pytest.raises(DatabaseError):
        process.budgets.write(database)
    process.budgets.settle(await process.reserve(key(1.0), cost(0.1)), 0.25)
    process.close()
    process.budgets.write(database)
    assert shared.spent() == {"key:one": to_nusd(0.35)}
    database.close()


@pytest.mark.parametrize(("grace_s", "usd"), [(1.0, 1e-9), (3600.0, 0.01)])
async def test_without_the_database_keys_with_a_budget_get_503(
    sqlite: Shared, grace_s: float, usd: float
) -> None:
    """A process spends no more than it has leased, and nothing after `database.grace_s`."""
    database = Database(sqlite.url)
    database.prepare()
    process = Process(database, grace_s=grace_s, stale_s=0.0)
    leasing = asyncio.create_task(process.spend(key(1.0), 0.01))
    await asyncio.sleep(0)
    await asyncio.to_thread(process.budgets.write, database)
    await leasing
    left, spent = sqlite.leased() - to_nusd(0.01), 0
    error: AdmissionError | None = None
    while error is None:  # nobody asks the database any more
        await asyncio.sleep(0.01)
        try:
            await process.spend(key(1.0), usd)
            spent += to_nusd(usd)
        except AdmissionError as exc:
            error = exc
    assert (error.status, error.code) == (503, "budget_unknown")
    assert left - to_nusd(0.01) < spent <= left or grace_s == 1.0
    assert process.refused == {"unknown": 1}
    database.close()
