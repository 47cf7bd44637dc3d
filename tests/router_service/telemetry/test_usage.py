"""Usage: its sums, how they get into the database, and how old ones leave it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, func, select

from router_service.access.key import NO_KEY, Key, Team
from router_service.core.errors import DatabaseError
from router_service.core.money import NANO
from router_service.core.record import AnswerResult, Expectation, Record
from router_service.database.engine import Database
from router_service.database.schema import (
    UsageSums,
    latencies,
    spending,
    state,
    usage,
)
from router_service.settings import DatabaseSettings, UsageSettings
from router_service.telemetry.usage import (
    DAY_S,
    HOUR_S,
    MAX_POLICIES,
    MINUTE_S,
    UsageFilter,
    UsageHistory,
)
from router_service.telemetry.usage_reports import GroupBy, read_sums
from tests.clock import Clock
from tests.records import make_record, refused_record

NOON = 20_000 * DAY_S + 12 * HOUR_S
ANNA = Key("anna", team=Team("blue"))


@pytest.fixture
def clock() -> Clock:
    """Return a clock that stands at noon."""
    return Clock(NOON)


def open_history(clock: Clock, *, max_rows: int = 1_000_000, days: int = 400) -> UsageHistory:
    """Return a history that writes and tidies when the test says so."""
    settings = UsageSettings(max_rows=max_rows, retention_days=days)
    database = DatabaseSettings()
    return UsageHistory(settings, database, clock, turn_s=60)


def add(
    history: UsageHistory,
    model: str = "m",
    policy: str = "theta=0.5",
    key: Key = ANNA,
    **values: Any,  # noqa: ANN401
) -> None:
    """Add a request of one second that costs 0.001 USD, unless `values` say otherwise."""
    facts: dict[str, Any] = {"latency_s": 1.0, "actual_cost_usd": 0.001} | values
    history.add([ended(history, model, policy, key, **facts)])


def ended(
    history: UsageHistory,
    model: str,
    policy: str,
    key: Key = ANNA,
    **facts: Any,  # noqa: ANN401
) -> Record:
    """Return a request that ended now, by the history's clock."""
    name, _, rule = policy.rpartition(" (")
    return make_record(
        created=history._clock(),
        key=key.name,
        team=key.team.name if key.team else None,
        model=model,
        policy=None if policy == "none" else rule.removesuffix(")") if name else policy,
        policy_name=name or None,
        **facts,
    )


def read(
    database: Database,
    by: GroupBy,
    step_s: int = MINUTE_S,
    since_s: float = 0,
    wanted: UsageFilter = UsageFilter(),  # noqa: B008 - frozen
) -> dict[str | int, UsageSums]:
    """Return what the database has."""
    with database.read() as connection:
        return read_sums(connection, step_s, since_s, by, wanted)


def test_sums_are_written_by_minute_hour_and_day(database: Database, clock: Clock) -> None:
    """Each request counts for its key, its team and all, with all tokens that were paid for."""
    history = open_history(clock)
    asked = (
        AnswerResult("a", 1, prompt_tokens=100, completion_tokens=7, cached_tokens=60),
        AnswerResult("a", 1, prompt_tokens=50, completion_tokens=20, reasoning_tokens=15),
    )
    add(
        history, "a", "verified", is_unfamiliar=True, latency_s=2.0, actual_cost_usd=0.25,
        baseline_usd=1.0, answers=asked, expectation=Expectation(0.9000004, 0.8, 0.25, 0.02),
    )  # fmt: skip
    clock.now_s += MINUTE_S
    add(history, "b")
    history.add([refused_record(created=clock())])
    add(history, "unpriced", "none", NO_KEY, latency_s=0.1, actual_cost_usd=None)
    history.write(database)
    by_model = read(database, "model", since_s=NOON)
    a = by_model["a"]
    assert (a.requests, a.cost_nusd, a.compared_nusd, a.baseline_nusd) == (
        1,
        *2 * [NANO // 4],
        NANO,
    )
    assert (a.prompt_tokens, a.completion_tokens, a.errors) == (150, 27, 0)
    assert (a.cached_tokens, a.reasoning_tokens, a.candidates, a.unfamiliar) == (60, 15, 2, 1)
    assert (a.estimated, a.correct_ppm, a.baseline_correct_ppm) == (1, 900_000, 800_000)
    assert (a.variance_ppm, a.error_ppm) == (250_000, 20_000)
    assert by_model["unpriced"].estimated == 0
    assert (by_model["none"].errors, by_model["none"].percentile_s(0.5)) == (1, None)
    assert (by_model["unpriced"].unpriced, by_model["unpriced"].cost_nusd) == (1, 0)
    minutes = read(database, "start_s", since_s=NOON)
    assert {start: sums.requests for start, sums in minutes.items()} == {NOON: 1, NOON + 60: 3}
    days = read(database, "start_s", DAY_S)
    assert {start: sums.requests for start, sums in days.items()} == {NOON - 12 * HOUR_S: 4}
    assert [*read(database, "start_s", HOUR_S)] == [NOON]
    for wanted in (UsageFilter(key="anna"), UsageFilter(team="blue")):
        assert sorted(map(str, read(database, "model", HOUR_S, wanted=wanted))) == ["a", "b"]
    assert read(database, "policy", wanted=UsageFilter(key="anna", model="b")).keys() == {
        "theta=0.5"
    }
    assert read(database, "model", wanted=UsageFilter(key="other")) == {}
    keyless = read(database, "model", DAY_S, wanted=UsageFilter(key=""))
    assert sorted(map(str, keyless)) == ["none", "unpriced"]


def test_policies_of_clients_are_limited(database: Database, clock: Clock) -> None:
    """A client that sends ever new numbers gets rows for some of them, and one for the others."""
    history = open_history(clock)
    for index in range(1000):
        add(history, policy=f"theta={index}")
    add(history, policy="accuracy=best@95 (utility=0.3)")
    history.write(database)
    found = read(database, "policy")
    assert len(found) == MAX_POLICIES + 2
    assert found["theta"].requests == 1000 - MAX_POLICIES
    assert found["accuracy"].requests == 1


def test_any_name_can_be_written(database: Database, clock: Clock) -> None:
    """Names that a database refuses are changed, so that they do not hold up the others."""
    names = ["\0", "x" * 10_000, "\ud800", "'; DROP TABLE usage; --", "=HYPERLINK(1)", "ключ 🔑"]
    history = open_history(clock)
    for name in names:
        add(history, key=Key(name, team=Team(name)))
    history.write(database)
    assert read(database, "model")["m"].requests == len(names)
    for name in names:
        for field in ("key", "team"):
            wanted = UsageFilter().model_copy(update={field: name})
            assert read(database, "model", wanted=wanted)["m"].requests == 1


def test_old_rows_are_deleted(database: Database, clock: Clock) -> None:
    """Minutes are kept for two hours, hours for two days, and days as configured."""
    history = open_history(clock, days=5)
    for _ in range(180):
        add(history)
        clock.now_s += MINUTE_S
    history.write(database)
    history.tidy(database)
    assert min(read(database, "start_s")) == clock.now_s - 2 * HOUR_S
    assert len(read(database, "start_s", HOUR_S)) == 3
    with database.read() as connection:
        query = select(func.min(latencies.c.start_s)).where(latencies.c.step_s == MINUTE_S)
        assert connection.execute(query).scalar_one() == clock.now_s - 2 * HOUR_S
    clock.now_s += 3 * DAY_S
    history = open_history(clock, days=5)
    history.tidy(database)
    assert (read(database, "start_s"), read(database, "start_s", HOUR_S)) == ({}, {})
    assert len(read(database, "start_s", DAY_S)) == 1
    clock.now_s += 100 * DAY_S
    open_history(clock, days=5).tidy(database)
    with database.read() as connection:
        for table in (usage, latencies, spending):
            assert connection.execute(select(func.count()).select_from(table)).scalar_one() == 0
        assert connection.execute(select(state.c.name)).scalars().all() == ["revision"]


@pytest.mark.parametrize("max_rows", [200, 30])
def test_number_of_rows_is_bounded(database: Database, clock: Clock, max_rows: int) -> None:
    """The oldest minutes are deleted first, then the oldest hours; present sums stay."""
    history = open_history(clock, max_rows=max_rows)
    for _ in range(100):
        add(history)
        clock.now_s += MINUTE_S
    history.write(database)
    history.tidy(database)
    with database.read() as connection:
        rows = sum(
            connection.execute(select(func.count()).select_from(table)).scalar_one()
            for table in (usage, latencies)
        )
    assert rows <= max_rows
    assert rows > max_rows - 10
    minutes = read(database, "start_s")
    newest = clock.now_s - MINUTE_S
    assert [*minutes] == [newest - MINUTE_S * (len(minutes) - 1 - n) for n in range(len(minutes))]
    assert sum(sums.requests for sums in read(database, "start_s", HOUR_S).values()) == 100
    assert read(database, "model", DAY_S)["m"].requests == 100


class LostAnswers(Database):
    """A database that commits, and whose connection breaks before it says so."""

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Yield a connection as usual, and fail afterwards."""
        with super().write() as connection:
            yield connection
        raise DatabaseError("write", self.place, "the connection was lost")


def test_lost_answer_to_a_commit_counts_nothing_twice(
    database_url: str, database: Database, clock: Clock
) -> None:
    """A batch that may have been written already is not written again."""
    history, lossy = open_history(clock), LostAnswers(database_url)
    add(history)
    for _ in range(2):
        with pytest.raises(DatabaseError):
            history.write(lossy)
    add(history, "later")
    history.write(database)
    found = read(database, "model")
    assert (found["m"].requests, found["later"].requests) == (1, 1)
