"""The thread that works with the database: regular jobs, and failures."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from router_service.database.background import ANSWER_S, DatabaseThread
from router_service.database.engine import Database
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


def test_database_that_does_not_answer_counts_as_unreachable(worker: DatabaseThread) -> None:
    """While a job waits for an answer, the outage is visible before the job fails."""
    released, hangs = threading.Event(), threading.Event()

    def hang(_: Database) -> None:
        if hangs.is_set():
            released.wait(60)

    worker.every(0.01, "hanging", hang)
    worker.start()
    hangs.set()
    try:
        wait_for(lambda: worker.unreachable_s > ANSWER_S, "the outage is visible")
        failure = worker.failure
        assert failure
        assert failure.problem == "no answer within 2 s"
        hangs.clear()
    finally:
        released.set()
    wait_for(lambda: worker.failure is None, "the outage is over")
