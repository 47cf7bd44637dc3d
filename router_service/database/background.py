"""The one thread of a process that works with the database, so that requests never wait for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from router_service.core.errors import DatabaseError
from router_service.database.engine import Database

RETRY_S = 1.0
"""Pause after a failed attempt to use the database."""
DEFECT_PAUSE_S = 10.0
"""Pause of a job that failed because of a defect, so that it does not fill the log."""
ANSWER_S = 2.0
"""Time that a job may take until the database counts as unreachable."""
PREPARATION = "preparation"
"""Name of the job that creates or migrates the tables, before all others."""
CLOSING_S = 10.0
"""Longest time to wait for the last writes at a shutdown."""

_log = logging.getLogger("switchcraft.database")


@dataclass(slots=True)
class _Job:
    name: str
    interval_s: float
    run: Callable[[Database], None]
    due_s: float = 0.0


class DatabaseThread:
    """Runs jobs regularly, and tries those that fail again after a pause.

    While a job fails, the database counts as unreachable: it may be possible to read it, but not to
    write it. The first failure and the recovery are logged.
    """

    def __init__(
        self, database: Database, on_error: Callable[[str], None] = lambda _: None
    ) -> None:
        """Start nothing yet; `on_error` gets the operation that failed."""
        self.database = database
        self._on_error = on_error
        self._jobs: list[_Job] = []
        self._changed = threading.Condition()
        self._is_stopping = False
        self._is_prepared = False
        self._failing: set[str] = set()
        """Names of the jobs whose last attempt has failed."""
        self._failed_s: float | None = None
        """When the first of them has failed, by the monotonic clock."""
        self._failure: DatabaseError | None = None
        self._busy_since_s: float | None = None
        """When the present job began, by the monotonic clock; None while the thread waits."""
        self._thread = threading.Thread(target=self._run, name="database", daemon=True)

    @property
    def failure(self) -> DatabaseError | None:
        """Why the database is unreachable; None if it is not."""
        failure = self._failure
        if failure is None:
            problem = f"no answer within {ANSWER_S:.0f} s"
            place = self.database.place
            return DatabaseError("use", place, problem) if self.unreachable_s else None
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

    def start(self) -> None:
        """Run each job once, and start the thread; it tries again what has failed."""
        self._run_jobs(everything=True)
        self._thread.start()

    def close(self) -> None:
        """Run each job a last time, and close the connections."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(CLOSING_S)
        self.database.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                now_s = time.monotonic()
                due_s = min((job.due_s for job in self._jobs), default=now_s + RETRY_S)
                if not (self._is_stopping or due_s <= now_s):
                    self._changed.wait(due_s - now_s)
                is_last = self._is_stopping
            self._run_jobs(everything=is_last)
            if is_last:
                return

    def _run_jobs(self, *, everything: bool) -> None:
        """Run the jobs that are due, or all of them, unless the database cannot be opened."""
        now_s = time.monotonic()
        if not self._is_prepared:
            self._attempt(_Job(PREPARATION, 0.0, self._prepare))
        is_open = self._is_prepared
        for job in self._jobs:
            if not is_open:
                job.due_s = now_s + RETRY_S
            elif everything or job.due_s <= now_s:
                job.due_s = now_s + job.interval_s
                is_open = self._attempt(job)

    def _prepare(self, database: Database) -> None:
        database.prepare()
        self._is_prepared = True

    def _attempt(self, job: _Job) -> bool:
        """Run a job, note whether it fails, and return whether to go on with other ones."""
        self._busy_since_s = started_s = time.monotonic()
        try:
            job.run(self.database)
        except DatabaseError as exc:
            self._note_failure(job, exc, started_s)
            now_s = time.monotonic()
            job.due_s = now_s + RETRY_S
            # Others would fail in the same way, and a frozen server would let each of them wait.
            return exc.operation != "open" and now_s - started_s < ANSWER_S
        except Exception:  # noqa: BLE001 - a defect of one job must not end the thread
            _log.exception("a job of the database failed: job=%s", job.name)
            job.due_s = time.monotonic() + max(DEFECT_PAUSE_S, job.interval_s)
            return True
        finally:
            self._busy_since_s = None
        if self._failing:
            self._failing.discard(job.name)
            if not self._failing:
                _log.warning(
                    "the database can be used again: place=%s after_s=%.1f",
                    self.database.place, self.unreachable_s,
                )  # fmt: skip
                self._failure, self._failed_s = None, None
        return True

    def _note_failure(self, job: _Job, exc: DatabaseError, started_s: float) -> None:
        self._on_error(exc.operation)
        self._failing.add(job.name)
        if self._failure is None:
            self._failed_s = started_s
            _log.error(
                "the database cannot be used; requests continue with the last known keys and "
                "budgets: place=%s cause=%r", exc.place, exc.problem,
            )  # fmt: skip
        self._failure = exc
