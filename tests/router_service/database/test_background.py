"""The thread that works with the database: regular jobs, single pieces of work, and failures."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select, text, update

from router_service.core.errors import DatabaseError
from router_service.database.background import ANSWER_S, DatabaseThread
from router_service.database.engine import Database
from router_service.database.schema import state
from tests.serving import wait_for


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the database's file."""
    return tmp_path / "a.db"


@pytest.fixture
def errors() -> list[str]:
    """Return the operations that failed."""
    return []


@pytest.fixture
def worker(path: Path, errors: list[str]) -> Iterator[DatabaseThread]:
    """Yield a thread that is not started."""
    thread = DatabaseThread(Database(f"sqlite:///{path}"), errors.append)
    yield thread
    thread.close()


def read_value(database: Database) -> int:
    """Return the stored number."""
    with database.read() as connection:
        found: int = connection.execute(select(state.c.value)).scalar_one()
    return found


def test_jobs_run_regularly_and_a_last_time(worker: DatabaseThread) -> None:
    """A job runs at the start, at its interval and at the end; a hurried one at once."""
    often, rarely = [], []
    worker.every(0.01, "often", lambda _: often.append(1))
    worker.every(1000, "rarely", lambda _: rarely.append(1))
    worker.start()
    wait_for(lambda: len(often) > 5, "it runs often")
    before = len(rarely)
    worker.hurry("rarely")
    wait_for(lambda: len(rarely) == before + 1, "it has hurried")
    worker.close()
    assert len(rarely) == before + 2


def test_work_is_done_in_a_transaction(worker: DatabaseThread) -> None:
    """The result or the error of the function reaches the caller; an error stores nothing."""
    worker.start()

    async def run() -> None:
        query = select(state.c.value)
        assert await worker.submit(lambda c: c.execute(query).scalar_one()) == 0

        def fail(connection: object) -> None:
            connection.execute(update(state).values(value=5))  # type: ignore[attr-defined]
            raise KeyError("mistake")

        with pytest.raises(KeyError, match="mistake"):
            await worker.submit(fail)
        assert worker.failure is None

    asyncio.run(run())
    assert read_value(worker.database) == 0


def test_defect_of_a_job_does_not_end_the_others(
    worker: DatabaseThread, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected error is logged with the job's name, and not in each round."""
    counted: list[int] = []

    def fail(_: Database) -> None:
        if counted:
            raise KeyError("defect")

    worker.every(0.001, "broken", fail)
    worker.every(0.001, "counting", lambda _: counted.append(1))
    worker.start()
    wait_for(lambda: len(counted) > 20, "the other one runs")
    assert caplog.text.count("job=broken") == 1


def test_outage_is_logged_counted_and_over(
    worker: DatabaseThread, path: Path, errors: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """During an outage, work fails at once; the first failure and the recovery are logged."""
    read: list[int] = []
    worker.every(0.01, "reading", lambda database: read.append(read_value(database)))
    worker.start()
    assert worker.unreachable_s == 0
    away = path.with_name("away.db")
    with caplog.at_level(logging.WARNING):
        path.rename(away)
        wait_for(lambda: worker.failure, "the failure is noticed")
        first = worker.unreachable_s
        assert first > 0
        started_s = time.monotonic()
        with pytest.raises(DatabaseError, match="deleted"):
            asyncio.run(worker.submit(lambda c: c.execute(text("SELECT 1"))))
        assert time.monotonic() - started_s < 0.5
        wait_for(lambda: len(errors) > 1, "it is tried again")
        assert worker.unreachable_s > first
        away.rename(path)
        wait_for(lambda: worker.failure is None, "it works again")
    assert worker.unreachable_s == 0
    assert caplog.text.count("the database cannot be used") == 1
    assert caplog.text.count("the database can be used again") == 1
    assert asyncio.run(worker.submit(lambda c: c.execute(select(state.c.value)).scalar_one())) == 0


def test_nobody_waits_long_for_a_database_that_hangs(worker: DatabaseThread) -> None:
    """Callers wait for a limited time while the thread waits, and then later ones not at all.

    Work that nobody waits for any more is not begun.
    """
    released, begun = threading.Event(), threading.Event()
    calls = []

    def hang(_: Database) -> None:
        if begun.is_set():
            released.wait(60)

    worker.every(0.01, "hanging", hang)
    worker.start()
    begun.set()

    async def run() -> None:
        await asyncio.sleep(0.1)
        started_s = time.monotonic()
        results = await asyncio.gather(
            *(worker.submit(lambda _: calls.append(1)) for _ in range(50)), return_exceptions=True
        )
        assert all("no answer within 2 s" in str(result) for result in results)
        assert time.monotonic() - started_s < ANSWER_S + 1
        assert worker.unreachable_s > ANSWER_S
        started_s = time.monotonic()
        with pytest.raises(DatabaseError, match="no answer"):
            await worker.submit(lambda _: calls.append(1))
        assert time.monotonic() - started_s < 0.1
        released.set()
        for _ in range(100):
            await asyncio.sleep(0.02)
            if worker.failure is None:
                break
        await worker.submit(lambda _: calls.append(2))

    try:
        asyncio.run(run())
    finally:
        released.set()
    assert calls == [2]


def test_unusable_database_at_start_is_tried_again(path: Path, errors: list[str]) -> None:
    """The thread starts without the database, and its jobs run once it can be used."""
    path.write_bytes(b"no database " * 100)
    worker = DatabaseThread(Database(f"sqlite:///{path}"), errors.append)
    ran = []
    worker.every(0.05, "job", lambda _: ran.append(1))
    worker.start()
    assert worker.failure
    assert "damaged" in worker.failure.problem
    path.unlink()
    wait_for(lambda: ran, "the job runs")
    wait_for(lambda: worker.failure is None, "the failure is over")
    assert read_value(worker.database) == 0
    worker.close()


def test_work_after_the_end_is_refused(worker: DatabaseThread) -> None:
    """Nothing waits for a thread that has ended, and what came before is done."""
    worker.start()

    async def run() -> None:
        first = asyncio.create_task(
            worker.submit(lambda c: c.execute(update(state).values(value=3)) and None)
        )
        await asyncio.sleep(0)
        await asyncio.to_thread(worker.close)
        await first
        with pytest.raises(DatabaseError, match="closed"):
            await worker.submit(lambda _: None)

    asyncio.run(run())
    assert read_value(worker.database) == 3
