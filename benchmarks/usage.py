"""How fast the page is with many keys and much usage, with SQLite and with PostgreSQL.

    python -m benchmarks.usage sqlite:////tmp/usage.db
    python -m benchmarks.usage postgresql          # a server of its own, from Debian's packages
    python -m benchmarks.usage postgresql://...    # an empty database of another server

Fills the database with 100,000 keys of 1,000 teams and 10 million rows of usage, unless it is
filled already, and then times what the page and the admin API read, 20 times each:

- the overview of each period, with and without filters
- the list of keys, its search and its filters
- a report of usage by key, its first page

It also times what a request and the thread of the database spend on usage.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice

from sqlalchemy import Connection, func, insert, select, text

from router_service.access.accounts import Accounts
from router_service.core.record import AnswerResult, Ending, Record, RecordKind
from router_service.database.engine import Database
from router_service.database.schema import USAGE_SUMS, keys, latencies, teams, usage
from router_service.settings import DatabaseSettings, UsageSettings
from router_service.telemetry.usage import DAY_S, HOUR_S, MINUTE_S, UsageFilter, UsageHistory
from router_service.telemetry.usage_reports import UsageGroup, UsageQuery, read_rows
from router_service.ui.traffic import Period, read_overview
from tests.postgresql import PostgreSQLServer

KEYS = 100_000
TEAMS = 1_000
MODELS, POLICIES = 8, 6
"""The models and policies of all requests; a key uses one of each in a period."""
ROUNDS = 20
GOAL_MS = 200

NOW_S = int(time.time()) // MINUTE_S * MINUTE_S
Steps = tuple[tuple[int, int, int, int, int], ...]
KEY_STEPS: Steps = (
    # Length of a step, number of steps, number of keys, models, policies.
    (DAY_S, 90, KEYS, 1, 1),
    (HOUR_S, 48, 15_000, 1, 1),
    (MINUTE_S, 120, 2_000, 1, 1),
)
TEAM_STEPS: Steps = (
    (DAY_S, 90, TEAMS, 2, 1),
    (HOUR_S, 48, TEAMS, 2, 1),
    (MINUTE_S, 120, TEAMS, 1, 1),
)
ALL_STEPS: Steps = (
    (DAY_S, 400, 1, MODELS, POLICIES),
    (HOUR_S, 48, 1, MODELS, POLICIES),
    (MINUTE_S, 120, 1, MODELS, POLICIES),
)
"""What is stored for each key, for each team and for all requests: 10 million rows of usage."""
BINS = {"key": 1, "team": 8, "": 15}
"""Bins of the latency histogram that a row of usage has. With 15, the slowest request of a model in
a minute takes 13 times as long as the fastest."""


def fill(connection: Connection) -> None:
    """Write all keys, teams and usage, as many transactions over time would have."""
    common = {"metadata": {}, "created_s": 0.0, "revision": 0}
    connection.execute(
        insert(teams), [{"name": f"team-{number:04}", **common} for number in range(TEAMS)]
    )
    connection.execute(
        insert(keys),
        [
            {
                "name": f"key-{number:06}",
                "digest": f"{number:064x}",
                "hint": "",
                "team": f"team-{number % TEAMS:04}",
                "is_admin": False,
                "owner": f"owner-{number % 5000}@example.com",
                "search": f"key-{number:06} owner-{number % 5000}@example.com",
                **common,
            }
            for number in range(KEYS)
        ],
    )
    connection.execute(text("DROP INDEX usage_by_time"))
    for kind, all_steps in (("", ALL_STEPS), ("key", KEY_STEPS), ("team", TEAM_STEPS)):
        for step_s, steps, subjects, models, policies in all_steps:
            fill_steps(connection, kind, step_s, steps, (subjects, models, policies))
    connection.execute(text("CREATE INDEX usage_by_time ON usage (step_s, start_s)"))
    for period, days in (("usage-day", 1), ("usage-month", 31)):
        now = datetime.fromtimestamp(NOW_S, UTC)
        first = now.replace(hour=0, minute=0, second=0, microsecond=0)
        first = first.replace(day=1) if days == 31 else first
        before = first - timedelta(days=1)
        for start in (first, before if days == 1 else before.replace(day=1)):
            connection.execute(
                text(
                    """INSERT INTO spending (subject, period, start_s, spent_nusd, wanted_until_s)
                    SELECT scope, :period, :start_s, sum(cost_nusd), 0 FROM usage
                    WHERE step_s = :step_s AND scope <> '' AND start_s >= :start_s
                    AND start_s < :end_s GROUP BY scope"""
                ),
                {
                    "period": period,
                    "start_s": int(start.timestamp()),
                    "end_s": int(start.timestamp()) + days * DAY_S,
                    "step_s": DAY_S,
                },
            )


def fill_steps(
    connection: Connection, kind: str, step_s: int, steps: int, numbers: tuple[int, int, int]
) -> None:
    """Write rows of usage and latencies with one statement each."""
    subjects, models, policies = numbers
    scope = f"'{kind}:{kind}-' || s.digits" if kind else "''"
    source = f"""FROM numbers AS s CROSS JOIN numbers AS t CROSS JOIN numbers AS m
        CROSS JOIN numbers AS p {{more}} WHERE s.n < {subjects} AND t.n < {steps}
        AND m.n < {models} AND p.n < {policies}"""
    group = f"""{scope}, {step_s}, {NOW_S // step_s * step_s} - t.n * {step_s},
        'model-' || ((s.n + m.n) % {MODELS}), 'policy-' || ((s.n / 8 + p.n) % {POLICIES})"""
    sums = ", ".join("1 + (s.n * 7 + t.n) % 1000" for _ in USAGE_SUMS)
    names = "scope, step_s, start_s, model, policy"
    connection.execute(
        text(
            f"INSERT INTO usage ({names}, {', '.join(USAGE_SUMS)}) SELECT {group}, {sums} "
            + source.format(more="")
        )
    )
    more = "CROSS JOIN numbers AS b"
    connection.execute(
        text(
            f"INSERT INTO latencies ({names}, bin, requests) SELECT {group}, 20 + b.n, 3 "
            + source.format(more=more)
            + f" AND b.n < {BINS[kind]}"
        )
    )


def prepare(database: Database) -> None:
    """Create and fill the database, unless that is done already."""
    database.prepare()
    with database.read() as connection:
        if connection.execute(select(func.count()).select_from(keys)).scalar_one() == KEYS:
            return
    started_s = time.perf_counter()
    with database.write() as connection:
        if database.is_postgresql:
            connection.execute(text("SET LOCAL statement_timeout = 0"))
            connection.execute(text("SET LOCAL maintenance_work_mem = '1GB'"))
        connection.execute(text("CREATE TEMPORARY TABLE numbers (n INTEGER, digits TEXT)"))
        connection.execute(
            text("INSERT INTO numbers VALUES (:n, :digits)"),
            [{"n": number, "digits": f"{number:06}"} for number in range(KEYS)],
        )
        connection.execute(text("CREATE UNIQUE INDEX numbers_n ON numbers (n)"))
        if database.is_postgresql:
            connection.execute(text("ANALYZE numbers"))
        fill(connection)
    if database.is_postgresql:
        engine = database._engine.execution_options(isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:  # as autovacuum does after some minutes
            connection.execute(text("SET statement_timeout = 0"))
            connection.execute(text("VACUUM ANALYZE"))
            connection.execute(text("SET statement_timeout = 10000"))
    print(f"filled in {time.perf_counter() - started_s:.0f} s")


def report(name: str, run: Callable[[], object]) -> bool:
    """Time a function, print the times, and return whether the goal is met.

    The processor time, which other programs on the machine increase less, is that of this process,
    which has SQLite but not PostgreSQL.
    """
    run()
    times_ms, processor_ms = [], []
    for _ in range(ROUNDS):
        started_s, processor_s = time.perf_counter(), time.process_time()
        run()
        times_ms.append((time.perf_counter() - started_s) * 1e3)
        processor_ms.append((time.process_time() - processor_s) * 1e3)
    median, worst = statistics.median(times_ms), max(times_ms)
    processor = statistics.median(processor_ms)
    print(f"{name:50} {median:8.1f} {worst:8.1f} {processor:9.1f}", flush=True)
    return worst < GOAL_MS


def measure(database: Database) -> bool:
    """Print the times of everything that is read; return whether all meet the goal."""
    with database.read() as connection:
        for table in (keys, usage, latencies):
            rows = connection.execute(select(func.count()).select_from(table)).scalar_one()
            print(f"{table.name}: {rows:,} rows")
    if database.path is not None:
        print(f"size of the file: {database.path.stat().st_size / 1e9:.1f} GB")
    print(f"{'ms':50} {'median':>8} {'worst':>8} {'processor':>9}")
    filters = {
        "all requests": UsageFilter(),
        "a key": UsageFilter(key="key-001500"),
        "a team": UsageFilter(team="team-0500"),
        "a model": UsageFilter(model="model-3"),
        "a key and a policy": UsageFilter(key="key-001500", policy="policy-1"),
    }
    is_met = True
    for period in Period:
        for name, wanted in filters.items():
            is_met &= report(
                f"overview, {period}: {name}",
                partial(read_overview, database, period, NOW_S, wanted, None),
            )
    accounts = Accounts(database)
    lists: dict[str, Callable[[], object]] = {
        "all": accounts.list_keys,
        "after the 50,000th": partial(accounts.list_keys, after="key-050000"),
        "a team": partial(accounts.list_keys, team="team-0500"),
        "active ones": partial(accounts.list_keys, status="active"),
        "a search with one result": partial(accounts.list_keys, search="key-077777"),
        "a search with 20 results": partial(accounts.list_keys, search="OWNER-1234@"),
        "a search without a result": partial(accounts.list_keys, search="nobody"),
    }
    for name, run in lists.items():
        is_met &= report(f"list of keys: {name}", run)
    is_met &= report("list of teams", accounts.list_teams)
    last = datetime.fromtimestamp(NOW_S, UTC).date()
    for by in ((UsageGroup.DAY,), (UsageGroup.KEY,), (UsageGroup.TEAM, UsageGroup.DAY)):
        query = UsageQuery(last.replace(day=1), last, by)
        report(
            f"1,000 rows of a report by {', '.join(by)}",
            lambda query=query: list(islice(read_rows(database, query), 1000)),
        )
    return is_met


def measure_writing(database: Database) -> None:
    """Print what a request costs, and what the database's thread does each second."""
    history = UsageHistory(UsageSettings(max_rows=100_000_000), DatabaseSettings())
    answer = AnswerResult(
        "gpt-4o-mini", 0.8, prompt_tokens=400, completion_tokens=60, cached_tokens=100
    )

    def add(key: str = "key-000001", team: str = "team-0001") -> None:
        history.add(
            [
                Record(
                    RecordKind.PLANNED, "dec_1", "dec_1", "/v1/chat/completions", 200,
                    Ending.COMPLETE, time.time(), 0.8, key, team, "gpt-4o-mini",
                    policy="drift=0.05", actual_cost_usd=0.001, baseline_usd=0.01,
                    answers=(answer,),
                )
            ]
        )  # fmt: skip

    count = 100_000
    started_s = time.perf_counter()
    for _ in range(count):
        add()
    print(f"a request: {(time.perf_counter() - started_s) / count * 1e6:.2f} us")
    for subjects in (1, 100, 1000):
        times_ms = []
        for _ in range(5):
            for number in range(subjects):
                add(f"key-{number:06}", f"team-{number % TEAMS:04}")
            started_s = time.perf_counter()
            while history._pending or history._batch:
                history.write(database)
            times_ms.append((time.perf_counter() - started_s) * 1e3)
        print(f"writing the usage of {subjects} keys: {statistics.median(times_ms):.1f} ms")


@contextmanager
def open_database(address: str) -> Iterator[Database]:
    """Yield the database, from a PostgreSQL server of its own if the address is `postgresql`."""
    if address != "postgresql":
        yield Database(address)
        return
    server = PostgreSQLServer()
    try:
        server.start()
        yield Database(server.create())
    finally:
        server.close()


def main() -> int:
    """Fill the database, print the times, and fail if one is longer than the goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", help="sqlite:///FILE, postgresql, or postgresql://...")
    with open_database(parser.parse_args().address) as database:
        prepare(database)
        is_met = measure(database)
        measure_writing(database)
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
