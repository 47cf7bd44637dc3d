"""The journal of a labelling run: an SQLite file that stays consistent if the process is killed.

A row of `requests` is committed before a request is sent, and closed with the request's result. If
rows are still open when a run begins, their requests were in flight when the previous process
ended. These requests may have been paid, so their reserved cost counts against the spending cap. An
answer and the closing of its request are committed together. While a process has the file open, no
other process can use it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import file_digest, sha256
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import orjson

from switchcraft_training.datasets.rows import write_lines
from switchcraft_training.errors import DataError
from switchcraft_training.labelling.answers import (
    ANSWERS,
    FAILURES,
    QuestionKey,
    Reply,
    RequestFailure,
    answer_to_json,
)
from switchcraft_training.labelling.pool import Pool

FILE: Final = "labelling.sqlite"

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS run (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS requests (
  id INTEGER PRIMARY KEY, example_id TEXT NOT NULL, arm TEXT NOT NULL, attempt INTEGER NOT NULL,
  reserved_usd REAL NOT NULL, state TEXT NOT NULL DEFAULT 'open', charged_usd REAL
);
CREATE TABLE IF NOT EXISTS answers (
  example_id TEXT, arm TEXT, attempt INTEGER, reply TEXT NOT NULL,
  PRIMARY KEY (example_id, arm, attempt)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS failures (
  example_id TEXT, arm TEXT, attempt INTEGER, code TEXT NOT NULL, status INTEGER,
  detail TEXT NOT NULL, PRIMARY KEY (example_id, arm, attempt)
) WITHOUT ROWID;
"""

_FAILURE: Final = (*QuestionKey._fields, "code", "status", "detail")
"""Fields of a line in the exported file of failures: the columns of the table."""


class RunIdentity(NamedTuple):
    """Hashes of a run's rows and pool. A store contains the answers of only one run."""

    rows_sha256: str
    pool_sha256: str

    @classmethod
    def of(cls, rows: Path, pool: Pool) -> Self:
        """Return the identity of a run that asks the models of a pool the queries in a file."""
        with rows.open("rb") as file:
            return cls(file_digest(file, "sha256").hexdigest(), pool.identity())


class Spending(NamedTuple):
    """Cost of the answers, and possible cost of the requests whose result is unknown, in USD."""

    answered_usd: float
    lost_usd: float
    lost: int


class Store:
    """The journal of one run; a context manager that closes the file."""

    def __init__(self, folder: Path, identity: RunIdentity) -> None:
        """Open the journal in a directory, or create it.

        Raises DataError if it belongs to another run, if another process has it open, or if it
        cannot be written.
        """
        self._path = folder / FILE
        with self._raising_data_error():
            folder.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self._path, timeout=1.0)
        try:
            with self._raising_data_error():
                # Exclusive, because two processes with one journal would pay for the same
                # questions.
                self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=FULL")
                self._db.executescript(_SCHEMA)
                with self._db:
                    new = {**identity._asdict(), "run_id": token_hex(16)}
                    self._db.executemany("INSERT OR IGNORE INTO run VALUES (?, ?)", new.items())
                    self._db.execute(
                        "UPDATE requests SET state = 'lost', charged_usd = reserved_usd"
                        " WHERE state = 'open'"
                    )
                saved: dict[str, str] = dict(self._db.execute("SELECT name, value FROM run"))
        except DataError:
            self._db.close()
            raise
        self._run_id = saved["run_id"]
        for name, value in identity._asdict().items():
            if saved[name] != value:
                self._db.close()
                what = name.removesuffix("_sha256")
                problem = f"belongs to a run with another {what} file; give another --out, or the"
                raise DataError(self._path, None, f"{problem} {what} file that it began with")

    def __enter__(self) -> Self:
        """Return the store."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None
    ) -> None:
        """Close the file."""
        self._db.close()

    def idempotency_key(self, key: QuestionKey) -> str:
        """Return a key that is the same for every try of a question, and differs between runs.

        An endpoint that supports idempotency keys answers, and bills, a repeated request once.
        """
        parts = (self._run_id, key.example_id, key.arm, str(key.attempt))
        return sha256("\0".join(parts).encode()).hexdigest()

    def begin_request(self, key: QuestionKey, reserved_usd: float) -> int:
        """Record that a request is about to be sent, and return its number."""
        with self._committing():
            cursor = self._db.execute(
                "INSERT INTO requests (example_id, arm, attempt, reserved_usd) VALUES (?, ?, ?, ?)",
                (*key, reserved_usd),
            )
        return int(cursor.lastrowid or 0)

    def save_answer(self, request: int, key: QuestionKey, reply: Reply) -> float:
        """Save an answer and return its cost, or the reserved cost if its cost is unknown."""
        with self._committing():
            self._db.execute(
                "INSERT INTO answers VALUES (?, ?, ?, ?)", (*key, reply.model_dump_json())
            )
            self._db.execute(
                "DELETE FROM failures WHERE (example_id, arm, attempt) = (?, ?, ?)", key
            )
            return self._close_request(request, "answered", reply.cost_usd)

    def close_failed(self, request: int, failure: RequestFailure) -> float:
        """Close a request without an answer, and return the cost that counts against the cap.

        This is the reserved cost if the request may have been paid, else 0.
        """
        with self._committing():
            if failure.may_be_paid:
                return self._close_request(request, "lost", None)
            return self._close_request(request, "refused", 0.0)

    def save_failure(self, key: QuestionKey, failure: RequestFailure) -> None:
        """Record that a question has no answer so far; the next run asks again."""
        row = (*key, failure.code, failure.status, failure.detail)
        with self._committing():
            self._db.execute("INSERT OR REPLACE INTO failures VALUES (?, ?, ?, ?, ?, ?)", row)

    def answered(self) -> set[QuestionKey]:
        """Return the questions that have answers."""
        rows = self._read("SELECT example_id, arm, attempt FROM answers")
        return {QuestionKey(*row) for row in rows}

    def spending(self) -> Spending:
        """Return the cost of all requests of the run so far, including earlier processes."""
        usd = {"answered": 0.0, "lost": 0.0}
        lost = 0
        for state, count, charged_usd in self._read(
            "SELECT state, count(*), total(charged_usd) FROM requests GROUP BY state"
        ):
            usd[state] = charged_usd
            lost += count if state == "lost" else 0
        return Spending(usd["answered"], usd["lost"], lost)

    def export(self, folder: Path) -> tuple[int, int]:
        """Write `answers.jsonl` and `failures.jsonl`, sorted; return each file's number of lines.

        Raises DataError if a file cannot be written.
        """
        rows = self._read("SELECT * FROM answers ORDER BY example_id, arm, attempt")
        answers = (
            answer_to_json(QuestionKey(*key), Reply.model_validate_json(reply))
            for *key, reply in rows
        )
        unanswered = self._read("SELECT * FROM failures ORDER BY example_id, arm, attempt")
        failures = (dict(zip(_FAILURE, row, strict=True)) for row in unanswered)
        return (
            write_lines(map(orjson.dumps, answers), folder / ANSWERS),
            write_lines(map(orjson.dumps, failures), folder / FAILURES),
        )

    def _close_request(self, request: int, state: str, charged_usd: float | None) -> float:
        ((charged,),) = self._db.execute(
            "UPDATE requests SET state = ?, charged_usd = coalesce(?, reserved_usd) WHERE id = ?"
            " RETURNING charged_usd",
            (state, charged_usd, request),
        )
        return float(charged)

    def _read(self, query: str) -> Iterator[tuple[Any, ...]]:
        with self._raising_data_error():
            yield from self._db.execute(query)

    @contextmanager
    def _committing(self) -> Iterator[None]:
        with self._raising_data_error(), self._db:
            yield

    @contextmanager
    def _raising_data_error(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                problem = "is in use by another run; wait until it ends, or give another --out"
                raise DataError(self._path, None, problem) from exc
            problem = (
                f"cannot be written: {exc}. Free some space, and run the same command again: it"
                " keeps all answers that were saved"
            )
            raise DataError(self._path, None, problem) from exc
        except (sqlite3.Error, OSError) as exc:
            raise DataError(self._path, None, f"cannot be read or written: {exc}") from exc
