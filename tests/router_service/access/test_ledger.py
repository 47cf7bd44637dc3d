"""Budgets of several processes: exact sums, no false refusal, and what ends a lease."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
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
from tests.postgresql import PostgreSQLServer
from tests.serving import wait_for

T = TypeVar("T")

NOVEMBER = datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()
DECEMBER = datetime(2026, 12, 1, 0, 30, tzinfo=UTC).timestamp()


def key(
    usd: float | None = 1.0,
    period: BudgetPeriod = BudgetPeriod.MONTH,
    *,
    name: str = "one",
    team: Team | None = None,
) -> Key:
    """Return a key with a budget, unless that is None."""
    limits = Limits() if usd is None else Limits(budget=Budget(usd, period))
    return Key(name, limits=limits, team=team)


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
        idle_s: float = 60.0,
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
            idle_s=idle_s,
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

    async def spend(self, key: Key, usd: float, actual_usd: float | None = None) -> None:
        """Make a request."""
        reservation = await self.reserve(key, cost(usd))
        self.budgets.settle(reservation, usd if actual_usd is None else actual_usd)


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

    def held(self) -> int:
        """Return what is spent and leased at one moment, in nanodollars."""

        def read(connection: Connection) -> int:
            if self.url.startswith("postgresql"):  # no process may write between the two reads
                connection.exec_driver_sql("LOCK TABLE spending, leases IN SHARE MODE")
            sums = (func.sum(spending.c.spent_nusd), func.sum(leases.c.amount_nusd))
            return sum(int(connection.execute(select(each)).scalar_one() or 0) for each in sums)

        return self.read(read)

    def leased(self) -> int:
        """Return what all processes hold together, in nanodollars."""
        query = select(func.coalesce(func.sum(leases.c.amount_nusd), 0))
        return int(self.read(lambda connection: connection.execute(query).scalar_one()))


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Shared:
    """Return an empty database of each kind."""
    if request.param == "sqlite":
        return Shared(f"sqlite:///{tmp_path / 'budgets.db'}")
    server: PostgreSQLServer = request.getfixturevalue("postgresql")
    return Shared(server.create())


@pytest.fixture
def sqlite(tmp_path: Path) -> Shared:
    """Return an empty SQLite file."""
    return Shared(f"sqlite:///{tmp_path / 'budgets.db'}")


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine."""
    asyncio.run(asyncio.wait_for(work, 60))


async def refusal(work: Awaitable[object]) -> AdmissionError:
    """Return the error of a request that is refused."""
    with pytest.raises(AdmissionError) as caught:
        await work
    return caught.value


def test_sums_are_exact_and_a_shutdown_writes_them(shared: Shared) -> None:
    """After the shutdown, the database has every nanodollar, and no lease is left."""

    async def work() -> None:
        costs_usd = [random.Random(1).random() / 1000 for _ in range(300)]
        async with shared.process() as one, shared.process() as other:
            for number, usd in enumerate(costs_usd):
                await (one, other)[number % 2].spend(key(), usd)
        assert shared.spent() == {"key:one": sum(map(to_nusd, costs_usd))}
        assert shared.leased() == 0

    run(work())


def test_usual_requests_do_not_wait_for_the_database(sqlite: Shared) -> None:
    """Once a process has a lease, reserving and settling never suspends the request."""

    async def work() -> None:
        async with sqlite.process() as one:
            await one.spend(key(1.0), 0.0001)
            for _ in range(100):
                reserving = one.budgets.reserve(key(1.0), cost(0.0001))
                with pytest.raises(StopIteration) as ended:
                    reserving.send(None)
                one.budgets.settle(ended.value.value, 0.0001)

    run(work())


def test_leases_never_exceed_what_is_left(shared: Shared) -> None:
    """What is spent and leased is within the limit while costs are as expected."""

    async def work() -> None:
        async with shared.process() as one, shared.process() as other:
            for _ in range(40):
                await asyncio.gather(one.spend(key(), 0.02), other.spend(key(), 0.004))
                assert shared.held() <= NANO

    run(work())


def test_spent_budget_refuses_for_good(shared: Shared) -> None:
    """The error has OpenAI's code, says when the budget starts again, and forbids a retry."""

    async def work() -> None:
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

    run(work())


def test_retry_after_is_sent_shortly_before_the_next_period(sqlite: Shared) -> None:
    """Half a minute before midnight, waiting pays; a budget in total never starts again."""
    midnight = datetime(2026, 11, 21, tzinfo=UTC).timestamp()

    async def work() -> None:
        async with sqlite.process(clock=lambda: midnight - 30) as one:
            daily, total = key(0.5, BudgetPeriod.DAY), key(0.5, BudgetPeriod.TOTAL, name="other")
            for each in (daily, total):
                await one.spend(each, 0.5)
            assert (await refusal(one.reserve(daily, cost(0.1)))).retry_after_s == 30
            error = await refusal(one.reserve(total, cost(0.1)))
            assert error.retry_after_s is None
            assert "(0.5 USD in total) is spent. It does not start again" in str(error)

    run(work())


def test_a_cheaper_model_may_use_the_rest(shared: Shared) -> None:
    """If only a cheaper model fits, the request may cost what is left; then nothing is left."""

    async def work() -> None:
        async with shared.process() as one:
            await one.spend(key(1.0), 0.9)
            reservation = await one.reserve(key(1.0), cost(0.4, 0.05))
            assert reservation.allowance_usd == pytest.approx(0.1)
            one.budgets.settle(reservation, 0.06)
            error = await refusal(one.reserve(key(1.0), cost(0.4, 0.05)))
            assert "has 0.04 USD left, less than this request is expected to cost" in str(error)

    run(work())


def test_waiting_requests_are_admitted_in_the_order_of_their_arrival(sqlite: Shared) -> None:
    """Requests wait while the rest is reserved, and a later small request does not overtake."""

    async def work() -> None:
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
            one.budgets.settle(first, 0.1)
            await asyncio.gather(*asks)
            assert admitted == ["large", "small", "medium"]

    run(work())


def test_waiting_ends_with_an_error_that_may_be_retried(shared: Shared) -> None:
    """If nothing is returned in time, the request gets `rate_limit_exceeded` and retry-after."""

    async def work() -> None:
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

    run(work())


def test_clients_that_leave_while_waiting_reserve_nothing(sqlite: Shared) -> None:
    """A cancelled request leaves the queue, and the next one is admitted."""

    async def work() -> None:
        async with sqlite.process(max_wait_s=20) as one:
            first = await one.reserve(key(1.0), cost(1.0))
            left = asyncio.create_task(one.reserve(key(1.0), cost(0.9)))
            stays = asyncio.create_task(one.reserve(key(1.0), cost(0.5)))
            await asyncio.sleep(0.1)
            left.cancel()
            one.budgets.settle(first, 0.2)
            one.budgets.settle(await stays, 0.5)
            with pytest.raises(asyncio.CancelledError):
                await left
            (state,) = one.budgets.states(key(1.0))
            assert (state.reserved_usd, state.spent_usd) == (0, 0.7)

    run(work())


def test_unused_leases_come_back_when_another_process_needs_them(shared: Shared) -> None:
    """A process gets what an idle one has leased, although it has to ask for it."""

    async def work() -> None:
        async with shared.process(max_wait_s=5) as idle, shared.process(max_wait_s=5) as busy:
            await idle.spend(key(1.0), 0.05)
            assert shared.leased() > 0
            for _ in range(19):
                await busy.spend(key(1.0), 0.05)
            error = await refusal(busy.reserve(key(1.0), cost(0.05)))
            assert error.code == "insufficient_quota"
            assert busy.refused == {"spent": 1}
        assert shared.spent() == {"key:one": NANO}

    run(work())


def test_leases_of_a_killed_process_expire(shared: Shared) -> None:
    """What a killed process held can be spent once its lease has expired."""

    async def work() -> None:
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

    run(work())


def test_both_budgets_are_reserved_or_neither(shared: Shared) -> None:
    """A key's request counts towards its team; if the team's is spent, the key's is untouched."""

    async def work() -> None:
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

    run(work())


@pytest.mark.parametrize("tiny", [0, 420])
def test_requests_of_unknown_length_do_not_overspend(shared: Shared, tiny: int) -> None:
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

    async def work() -> None:
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

    run(work())


def test_ordinary_requests_continue_beside_extreme_ones(sqlite: Shared) -> None:
    """A request that may cost more than the budget runs alone of its kind and blocks no other."""

    async def work() -> None:
        extreme = cost(0.003, 0.0001, 50.0)
        async with sqlite.process(max_wait_s=20) as one:
            runs = await one.reserve(key(1.0), extreme)
            assert runs.allowance_usd == pytest.approx(1.0)
            waits = asyncio.create_task(one.reserve(key(1.0), extreme))
            await asyncio.sleep(0)
            held = [await one.reserve(key(1.0), cost(0.003, most_usd=0.1)) for _ in range(9)]
            assert not waits.done()
            one.budgets.settle(runs, 0.004)
            one.budgets.settle(await waits, 0.004)
            for each in held:
                one.budgets.settle(each, 0.003)

    run(work())


def test_unknown_costs_are_admitted_until_the_budget_is_spent(sqlite: Shared) -> None:
    """A request without a known price reserves nothing, and a spent budget refuses it."""

    async def work() -> None:
        async with sqlite.process() as one:
            reservation = await one.reserve(key(1.0), cost(0.0))
            one.budgets.settle(reservation, None)
            await one.spend(key(1.0), 1.0)
            assert (await refusal(one.reserve(key(1.0), cost(0.0)))).code == "insufficient_quota"

    run(work())


def test_a_raised_limit_applies_at_once(sqlite: Shared) -> None:
    """The key's new limit admits requests that the old one refused."""

    async def work() -> None:
        async with sqlite.process() as one:
            await one.spend(key(1.0), 1.0)
            await refusal(one.reserve(key(1.0), cost(0.5)))
            await one.spend(key(2.0), 0.5)

    run(work())


def test_clock_jumps_do_not_reset_a_budget(shared: Shared) -> None:
    """After a jump forward and back, what was spent in the period still counts."""

    async def work() -> None:
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

    run(work())


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
def test_broken_commits_are_counted_once(shared: Shared, breaks: str) -> None:
    """If the connection breaks, spending is written once, whether it was committed or not."""

    async def work() -> None:
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

    run(work())


def test_outage_leaves_each_process_what_it_has_leased(postgresql: PostgreSQLServer) -> None:
    """Two processes without their database do not spend the rest twice.

    Each one continues with its lease, and what is spent is written afterwards.
    """
    shared = Shared(postgresql.create())

    async def work() -> None:
        async with (
            shared.process(stale_s=0.8) as one,
            shared.process(stale_s=0.8) as other,
        ):
            await one.spend(key(1.0), 0.2)
            await other.spend(key(1.0), 0.1)
            postgresql.stop()
            spent_usd = 0.0
            try:
                for process in (one, other):
                    error: AdmissionError | None = None
                    while error is None:
                        try:
                            await process.spend(key(1.0), 0.01)
                            spent_usd += 0.01
                        except AdmissionError as exc:
                            error = exc
                    assert (error.status, error.code) == (503, "budget_unknown")
                with pytest.raises(AdmissionError, match="cannot reach its database"):
                    await one.spend(key(1.0, name="unknown"), 0.01)
            finally:
                await asyncio.to_thread(postgresql.start)
            assert 0.02 < spent_usd <= 0.7
            await asyncio.to_thread(
                wait_for,
                lambda: shared.spent().get("key:one", 0) >= to_nusd(spent_usd),
                "the spending is written",
            )
            await one.spend(key(1.0), 0.65 - spent_usd)
        assert shared.spent()["key:one"] == to_nusd(0.95)

    run(work())


def test_unused_budgets_are_forgotten(shared: Shared) -> None:
    """An idle budget's lease is given back and it takes no memory; its spending stays known."""

    async def work() -> None:
        async with shared.process(idle_s=0.1) as one:
            await one.spend(key(1.0), 0.9)
            await asyncio.to_thread(wait_for, lambda: shared.leased() == 0, "it is given back")
            await refusal(one.reserve(key(1.0), cost(0.2)))
            await one.spend(key(1.0), 0.05)
        assert shared.spent() == {"key:one": to_nusd(0.95)}

    run(work())
