"""The one thread of a process that works with the database, so that requests never wait for it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from router_service.core.errors import DatabaseError
from router_service.database.engine import Database

if TYPE_CHECKING:
    from sqlalchemy import Connection

RETRY_S = 1.0
"""Pause after a failed attempt to use the database."""
DEFECT_PAUSE_S = 10.0
"""Pause of a job that failed because of a defect, so that it does not fill the log."""
ANSWER_S = 2.0
"""Longest time that callers wait for the database. While it is not over for the thread's present
work, the database counts as reachable."""
CLOSING_S = 10.0
"""Longest time to wait for the last writes at a shutdown."""

_log = logging.getLogger("switchcraft.database")

T = TypeVar("T")


@dataclass(slots=True)
class _Job:
    name: str
    interval_s: float
    run: Callable[[Database], None]
    due_s: float = 0.0


class DatabaseThread:
    """Runs jobs regularly, and single pieces of work as soon as possible.

    While the database is unreachable, jobs are tried again after a pause, and other work fails at
    once. The first failure and the recovery are logged.
    """

    def __init__(
        self, database: Database, on_error: Callable[[str], None] = lambda _: None
    ) -> None:
        """Start nothing yet; `on_error` gets the operation that failed."""
        self.database = database
        self._on_error = on_error
        self._jobs: list[_Job] = []
        self._work: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._is_stopping = False
        self._has_ended = False
        """Whether the thread takes no more work."""
        self._is_prepared = False
        self._failed_s: float | None = None
        """When the database became unreachable, by the monotonic clock."""
        self._failure: DatabaseError | None = None
        self._busy_since_s: float | None = None
        """When the present work began, by the monotonic clock; None while the thread waits."""
        self._thread = threading.Thread(target=self._run, name="database", daemon=True)

    @property
    def failure(self) -> DatabaseError | None:
        """Why the database is unreachable; None if it is not."""
        failure = self._failure
        if failure is None:
            return self._no_answer() if self.unreachable_s else None
        # Each caller may raise its own, because an error collects the places where it was raised.
        return DatabaseError(failure.operation, failure.place, failure.problem)

    @property
    def unreachable_s(self) -> float:
        """For how long the database has been unreachable; 0 if it can be used."""
        now_s, failed_s, busy_since_s = time.monotonic(), self._failed_s, self._busy_since_s
        if failed_s is not None:
            return now_s - failed_s
        # A frozen server leaves the thread waiting, and fails nothing until the time limit.
        if busy_since_s is not None and now_s - busy_since_s > ANSWER_S:
            return now_s - busy_since_s
        return 0.0

    def _no_answer(self) -> DatabaseError:
        problem = f"no answer within {ANSWER_S:.0f} s"
        return DatabaseError("use", self.database.place, problem)

    def every(self, interval_s: float, name: str, run: Callable[[Database], None]) -> None:
        """Run a job regularly, and a last time at `close`; it may raise DatabaseError.

        Jobs that are added first run first.
        """
        self._jobs.append(_Job(name, interval_s, run))

    def hurry(self, name: str) -> None:
        """Run a job as soon as possible."""
        with self._changed:
            for job in self._jobs:
                if job.name == name:
                    job.due_s = 0.0
            self._changed.notify()

    def prepare(self) -> None:
        """Create or migrate the tables, and run each job once; raises DatabaseError."""
        self.database.prepare()
        self._is_prepared = True
        for job in self._jobs:
            job.run(self.database)

    def start(self) -> None:
        """Start the thread; if the database cannot be used yet, the thread tries again."""
        if not self._is_prepared:
            try:
                self.prepare()
            except DatabaseError as exc:
                self._note(exc)
        self._thread.start()

    async def submit(self, work: Callable[[Connection], T]) -> T:
        """Run a function in a transaction of its own; raises DatabaseError.

        The caller waits at most `ANSWER_S`, and not at all while the database is unreachable. The
        error of a caller that has waited does not say whether the work was done.
        """
        failure = self.failure
        if failure is not None:
            raise failure
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if future.done():  # the caller waits no longer
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]  # the result, if no error

        def run() -> None:
            if future.done():
                return
            result: Any = None
            error: BaseException | None = self.failure
            if error is None:
                try:
                    with self.database.write() as connection:
                        result = work(connection)
                except DatabaseError as exc:
                    self._note(exc)
                    error = exc
                except Exception as exc:  # noqa: BLE001 - raised in the caller
                    error = exc
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, result, error)

        with self._changed:
            if self._has_ended:
                raise DatabaseError("use", self.database.place, "the gateway has closed it")
            self._work.append(run)
            self._changed.notify()
        try:
            async with asyncio.timeout(ANSWER_S):
                return await future
        except TimeoutError as exc:
            raise self._no_answer() from exc

    def close(self) -> None:
        """Do the pending work, run each job a last time, and close the connections."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(CLOSING_S)
        self._has_ended = True
        self.database.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                now_s = time.monotonic()
                due_s = min((job.due_s for job in self._jobs), default=now_s + RETRY_S)
                if not (self._work or self._is_stopping or due_s <= now_s):
                    self._changed.wait(due_s - now_s)
                work, self._work = self._work, deque()
                is_last = self._has_ended = self._is_stopping
            self._busy_since_s = time.monotonic()
            for run in work:
                run()
                self._busy_since_s = time.monotonic()
            self._run_jobs(everything=is_last)
            self._busy_since_s = None
            if is_last:
                return

    def _run_jobs(self, *, everything: bool) -> None:
        """Run the jobs that are due, or all of them, until one finds the database unreachable."""
        if not self._is_prepared and not self._attempt(self._prepare):
            self._postpone()
            return
        now_s = time.monotonic()
        for job in self._jobs:
            if everything or job.due_s <= now_s:
                job.due_s = now_s + job.interval_s
                if not self._attempt(lambda job=job: self._run_job(job)):  # type: ignore[misc]
                    self._postpone()
                    return
                self._busy_since_s = time.monotonic()

    def _run_job(self, job: _Job) -> None:
        try:
            job.run(self.database)
        except DatabaseError:
            raise
        except Exception:  # noqa: BLE001 - a defect of one job must not end the thread
            _log.exception("a job of the database failed: job=%s", job.name)
            job.due_s = time.monotonic() + max(DEFECT_PAUSE_S, job.interval_s)

    def _prepare(self) -> None:
        self.database.prepare()
        self._is_prepared = True

    def _postpone(self) -> None:
        """Try everything again after a pause."""
        retry_s = time.monotonic() + RETRY_S
        for job in self._jobs:
            job.due_s = retry_s

    def _attempt(self, run: Callable[[], None]) -> bool:
        """Run a function, note whether the database can be used, and return that."""
        try:
            run()
        except DatabaseError as exc:
            self._note(exc)
            return False
        if self._failure is not None:
            seconds = self.unreachable_s
            self._failure, self._failed_s = None, None
            _log.warning(
                "the database can be used again: place=%s after_s=%.1f",
                self.database.place, seconds,
            )  # fmt: skip
        return True

    def _note(self, exc: DatabaseError) -> None:
        self._on_error(exc.operation)
        if self._failure is None:
            self._failed_s = self._busy_since_s or time.monotonic()
            _log.error(
                "the database cannot be used; requests continue with the last known keys and "
                "budgets: place=%s cause=%r", exc.place, exc.problem,
            )  # fmt: skip
        self._failure = exc
