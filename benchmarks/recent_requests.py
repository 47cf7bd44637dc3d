"""Cost of the list of recent requests: CPU time, rows that are dropped, reading and deleting.

    python benchmarks/recent_requests.py sqlite:////tmp/recent.db

Rows are added at a rate while the database's thread writes them, as in a gateway. CPU times do not
depend on other programs as much as the rest does.
"""

from __future__ import annotations

import argparse
import secrets
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from router_service.core.record import Ending, Record, RecordKind
from router_service.database.background import DatabaseThread
from router_service.database.engine import Database
from router_service.settings import DatabaseSettings, UsageSettings
from router_service.telemetry.recent_requests import (
    RecentRequests,
    RequestQuery,
    find_request,
    read_names,
    read_page,
)
from router_service.telemetry.sinks import CONTINUE_TIDYING_S, TIDY_ROWS, WRITE_EVERY_S

ROWS = 100_000
RATES = (1_000, 5_000, 10_000, 20_000, 40_000)
SECONDS = 8
SLICE_S = 0.01
ROUNDS = 20


def make() -> Record:
    """Return a request that ends now."""
    name = f"dec_{secrets.token_hex(12)}"
    return Record(
        kind=RecordKind.PLANNED,
        created=time.time(),
        id=name,
        request_id=name,
        key=f"team-{secrets.randbelow(50)}",
        team="research",
        path="/v1/chat/completions",
        model="gemini-2.5-flash-lite",
        deployment="gemini-2.5-flash-lite#0",
        arm="gemini-2.5-flash-lite",
        policy="utility=0.0306",
        policy_name="fast",
        reason="utility",
        status=200,
        ending=Ending.COMPLETE,
        attempts=1,
        latency_s=0.8,
        first_byte_s=0.4,
        actual_cost_usd=8.4e-6,
        prompt_tokens=400,
        completion_tokens=60,
        conversation_id=secrets.token_hex(16),
    )


def measure_writing(database: Database) -> None:
    """Print the CPU time for each row, of the event loop's part and of the thread's."""
    usage = UsageSettings(recent_requests=100_000_000)
    listed = RecentRequests(usage, DatabaseSettings(max_pending_rows=ROWS), turn_s=600)
    rows = [make() for _ in range(ROWS)]
    started_s = time.thread_time()
    for row in rows:
        listed.add([row])
    print(f"adding a row: {(time.thread_time() - started_s) / ROWS * 1e6:.2f} us of CPU time")
    started_s, wall_s = time.thread_time(), time.perf_counter()
    listed.write(database)
    spent_s, wall_s = time.thread_time() - started_s, time.perf_counter() - wall_s
    print(f"writing a row: {spent_s / ROWS * 1e6:.1f} us of CPU time, {wall_s / ROWS * 1e6:.1f} us")


def measure_rate(database: Database, rate: int) -> None:
    """Add rows at a rate, and print how many are dropped."""
    dropped: list[None] = []
    listed = RecentRequests(UsageSettings(), DatabaseSettings(), lambda: dropped.append(None))
    thread = DatabaseThread(database)
    thread.every(WRITE_EVERY_S, "requests", listed.write)
    thread.every(CONTINUE_TIDYING_S, "old requests", listed.tidy)
    thread.start()
    started_s, added, row = time.monotonic(), 0, make()
    while (passed_s := time.monotonic() - started_s) < SECONDS:
        wanted = int(passed_s * rate)
        for number in range(added, wanted):
            listed.add([replace(row, created=time.time(), id=f"dec_{number:024}")])
        added = wanted
        time.sleep(SLICE_S)
    print(f"{rate:6,} rows/s: {len(dropped) / max(1, added):.1%} dropped")
    listed.close()
    thread.close()


def measure_reading(database: Database) -> None:
    """Print the times of what the page and the API read."""
    newest = read_page(database, RequestQuery(limit=25)).requests[0]
    found: dict[str, Callable[[], object]] = {
        "the newest 25": lambda: read_page(database, RequestQuery(limit=25)),
        "25 of a key": lambda: read_page(database, RequestQuery(key="team-7", limit=25)),
        "a model that nobody uses": lambda: read_page(database, RequestQuery(model="x", limit=25)),
        "a part of no id": lambda: read_page(database, RequestQuery(search="x", limit=25)),
        "names for filters": lambda: read_names(database, None),
        "a request by its id": lambda: find_request(database, newest.id),
    }
    for name, run in found.items():
        print(f"{name}: {_median_ms(run):.1f} ms")


def measure_tidying(database: Database) -> None:
    """Print how long a transaction that deletes old rows takes."""
    listed = RecentRequests(UsageSettings(recent_requests=ROWS // 2), DatabaseSettings(), turn_s=0)
    median_ms = _median_ms(lambda: listed.tidy(database))
    print(f"deleting {TIDY_ROWS:,} rows: {median_ms:.1f} ms")


def _median_ms(run: Callable[[], object]) -> float:
    times_s = []
    for _ in range(ROUNDS):
        started_s = time.perf_counter()
        run()
        times_s.append(time.perf_counter() - started_s)
    return statistics.median(times_s) * 1e3


def main() -> None:
    """Measure with an empty database at an address."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", help="sqlite:///FILE or postgresql://...")
    database = Database(parser.parse_args().address)
    database.prepare()
    measure_writing(database)
    measure_reading(database)
    measure_tidying(database)
    for rate in RATES:
        measure_rate(database, rate)


if __name__ == "__main__":
    main()
