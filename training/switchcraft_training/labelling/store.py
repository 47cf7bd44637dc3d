"""The journal of a labelling run: one SQLite file that a kill at any moment leaves whole.

A row of `requests` is committed before a request is sent, and closed with what came of it. What
is open when a run begins was in flight when the last one ended: it may have been paid, and counts
against the spending cap for what was reserved for it. An answer and the closing of its request are
one commit. A process holds the file for itself as long as it has it open.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from router_service.core.errors import DataError
from switchcraft_training.labelling.answers import Key, Refusal, Reply

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


class Identity(NamedTuple):
    """What a run asks whom, as hashes; a store takes the answers of one run alone."""

    rows_sha256: str
    pool_sha256: str


class Spent(NamedTuple):
    """USD that answers cost, and that requests without a known outcome may have cost."""

    answered_usd: float
    lost_usd: float
    lost: int


class Failure(NamedTuple):
    """A question whose last request was refused, so that there is no answer yet."""

    key: Key
    code: str
    status: int | None
    detail: str


class Store:
    """The journal of one run, open; a context manager."""

    def __init__(self, folder: Path, identity: Identity) -> None:
        """Open a folder's journal, or begin one.

        Raises DataError where it is another run's, where another process has it open, or where it
        cannot be written.
        """
        self._path = folder / FILE
        with self._translated():
            folder.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(self._path, timeout=1.0)
        try:
            with self._translated():
                self._begin(identity)
        except DataError:
            self._db.close()
            raise

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None
    ) -> None:
        """Close the file."""
        self._db.close()

    def idempotency_key(self, key: Key) -> str:
        """Return a name for a question that is the same at every try of this run, and in no other.

        An endpoint that honours it answers, and bills, a repeated request once.
        """
        parts = (self._run_id, key.example_id, key.arm, str(key.attempt))
        return sha256("\0".join(parts).encode()).hexdigest()

    def begin(self, key: Key, reserved_usd: float) -> int:
        """Note that a request is about to be sent; return its number."""
        with self._committed():
            cursor = self._db.execute(
                "INSERT INTO requests (example_id, arm, attempt, reserved_usd) VALUES (?, ?, ?, ?)",
                (*key, reserved_usd),
            )
        return int(cursor.lastrowid or 0)

    def answer(self, request: int, key: Key, reply: Reply) -> float:
        """Keep an answer; return what it is charged with: the reserve where its cost is unknown."""
        with self._committed():
            self._db.execute(
                "INSERT INTO answers VALUES (?, ?, ?, ?)", (*key, reply.model_dump_json())
            )
            self._db.execute(
                "DELETE FROM failures WHERE (example_id, arm, attempt) = (?, ?, ?)", key
            )
            return self._close(request, "answered", reply.cost_usd)

    def refuse(self, request: int, refusal: Refusal) -> float:
        """Close a request that has no answer; return what it is charged with."""
        with self._committed():
            if refusal.may_be_paid:
                return self._close(request, "lost", None)
            return self._close(request, "refused", 0.0)

    def fail(self, key: Key, refusal: Refusal) -> None:
        """Note that a question has no answer, for now: the next run asks again."""
        row = (*key, refusal.code, refusal.status, refusal.detail)
        with self._committed():
            self._db.execute("INSERT OR REPLACE INTO failures VALUES (?, ?, ?, ?, ?, ?)", row)

    def answered(self) -> set[Key]:
        """Return the questions that have their answers."""
        return {Key(*row) for row in self._read("SELECT example_id, arm, attempt FROM answers")}

    def answers(self) -> Iterator[tuple[Key, Reply]]:
        """Yield the answers in the order of their keys."""
        rows = self._read("SELECT * FROM answers ORDER BY example_id, arm, attempt")
        return ((Key(*key), Reply.model_validate_json(reply)) for *key, reply in rows)

    def failures(self) -> Iterator[Failure]:
        """Yield what has no answer yet, in the order of the keys."""
        rows = self._read("SELECT * FROM failures ORDER BY example_id, arm, attempt")
        return (Failure(Key(*row[:3]), *row[3:]) for row in rows)

    def spent(self) -> Spent:
        """Return what all requests of the run so far have cost, those of former processes too."""
        usd = {"answered": 0.0, "lost": 0.0}
        lost = 0
        for state, count, charged_usd in self._read(
            "SELECT state, count(*), total(charged_usd) FROM requests GROUP BY state"
        ):
            usd[state] = charged_usd
            lost += count if state == "lost" else 0
        return Spent(usd["answered"], usd["lost"], lost)

    def _begin(self, identity: Identity) -> None:
        # Exclusive: two processes on one journal would pay for the same questions.
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
        kept = dict(self._db.execute("SELECT name, value FROM run"))
        self._run_id: str = kept["run_id"]
        for name, value in identity._asdict().items():
            if kept[name] != value:
                what = name.removesuffix("_sha256")
                problem = f"belongs to a run with another {what} file; give another --out, or the"
                raise DataError(self._path, None, f"{problem} {what} that it was begun with")

    def _close(self, request: int, state: str, charged_usd: float | None) -> float:
        ((charged,),) = self._db.execute(
            "UPDATE requests SET state = ?, charged_usd = coalesce(?, reserved_usd) WHERE id = ?"
            " RETURNING charged_usd",
            (state, charged_usd, request),
        )
        return float(charged)

    def _read(self, query: str) -> Iterator[tuple[Any, ...]]:
        with self._translated():
            yield from self._db.execute(query)

    @contextmanager
    def _committed(self) -> Iterator[None]:
        with self._translated(), self._db:
            yield

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode == sqlite3.SQLITE_BUSY:
                problem = "is in use: another run writes here; wait for it, or give another --out"
                raise DataError(self._path, None, problem) from exc
            raise DataError(self._path, None, f"cannot be written: {exc}") from exc
        except (sqlite3.Error, OSError) as exc:
            raise DataError(self._path, None, f"cannot be read or written: {exc}") from exc
