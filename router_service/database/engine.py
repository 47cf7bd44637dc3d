"""Connections to the database, SQLite or PostgreSQL, and its migrations.

Importing this module does not import SQLAlchemy, which takes 13 MB and 0.1 s; `Database` does.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from router_service.core.errors import ConfigError, DatabaseError, MissingExtraError

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

SETTING = "database.url"

SQLITE_PREFIX = "sqlite:///"
POSTGRESQL_SCHEMES = ("postgresql", "postgres")

BUSY_S = 5.0
"""Longest time to wait for another process that writes the SQLite file."""
CONNECT_TIMEOUT_S = 3
STATEMENT_TIMEOUT_S = 10
"""Limits of PostgreSQL. A slower server counts as unreachable."""
POOL_SIZE = 3

FILE_MODE = 0o600
"""Permissions of the SQLite file, and of those that SQLite adds to it: who has which key, and what
each key spends, is for the operator only."""
_PARTS = ("", "-wal", "-shm")
"""What SQLite adds to a database's name, for the files that belong to it (sqlite.org/wal.html)."""

_MIGRATION_LOCK = 0x5357_4954_4348
"""Number of PostgreSQL's advisory lock that only one migrating process can hold."""

_log = logging.getLogger("switchcraft.database")


def check_database_address(url: str) -> None:
    """Raise ValueError unless an address is that of an SQLite file or of a PostgreSQL database.

    The message does not quote the address.
    """
    if url.startswith(SQLITE_PREFIX):
        if not url.removeprefix(SQLITE_PREFIX).strip("/"):
            raise ValueError("names no file; write sqlite:////path/of/a/file.db")
        return
    scheme, _, rest = url.partition("://")
    if scheme not in POSTGRESQL_SCHEMES or not rest:
        raise ValueError(
            "must start with sqlite:/// or postgresql://, such as "
            "sqlite:////var/lib/switchcraft/switchcraft.db or postgresql://USER:PASSWORD@HOST/NAME"
        )
    try:
        parts = urlsplit(url)
        has_database = bool(parts.path.strip("/")) and parts.port != 0
    except ValueError:
        raise ValueError(
            "is not a valid address; check the host and the port, and percent-encode special "
            "characters of the password"
        ) from None
    if not has_database:
        raise ValueError("names no database; write postgresql://USER:PASSWORD@HOST/NAME")


class Database:
    """A database that several threads and processes may use.

    Every method raises DatabaseError if the database cannot be used.
    """

    def __init__(self, url: str | None) -> None:
        """Connect on first use; without an address, the database is in this process's memory.

        Raise ConfigError, which does not quote the address, if it is not valid.
        """
        try:
            if url is not None:
                check_database_address(url)
        except ValueError as exc:
            raise ConfigError("the configuration", SETTING, str(exc)) from None
        self.path = _sqlite_path(url)
        """The SQLite file; None for PostgreSQL and in memory."""
        self.is_postgresql = url is not None and self.path is None
        self.place = self._describe(url)
        """The place without its password, for messages."""
        # One connection is all that a database in memory has, so its users take turns.
        self._turn = threading.RLock() if url is None else nullcontext()
        self._engine = self._create_engine(url)

    def _describe(self, url: str | None) -> str:
        if url is None:
            return "memory"
        if self.path is not None:
            return str(self.path)
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
        return f"postgresql://{parts.hostname or ''}{port}{parts.path}"

    def _create_engine(self, url: str | None) -> Engine:
        # Imported here, so that reading a configuration does not load them.
        from sqlalchemy import create_engine, event  # noqa: PLC0415
        from sqlalchemy.pool import StaticPool  # noqa: PLC0415

        if self.is_postgresql and url is not None:
            try:
                import psycopg  # noqa: F401, PLC0415
            except ModuleNotFoundError as exc:
                raise MissingExtraError("the configuration", SETTING, "postgres") from exc
            return create_engine(
                f"postgresql+psycopg://{url.partition('://')[2]}",
                pool_size=POOL_SIZE,
                max_overflow=POOL_SIZE,
                pool_pre_ping=True,
                pool_timeout=STATEMENT_TIMEOUT_S,
                connect_args={
                    "connect_timeout": CONNECT_TIMEOUT_S,
                    "options": f"-c statement_timeout={STATEMENT_TIMEOUT_S * 1000}",
                    "tcp_user_timeout": STATEMENT_TIMEOUT_S * 1000,
                },
            )
        arguments: dict[str, Any] = {"poolclass": StaticPool} if self.path is None else {}
        engine = create_engine(
            "sqlite://" if self.path is None else f"{SQLITE_PREFIX}{self.path}",
            connect_args={"timeout": BUSY_S, "check_same_thread": False},
            **arguments,
        )

        @event.listens_for(engine, "connect")
        def prepare(connection: Any, _record: object) -> None:  # noqa: ANN401 - sqlite3's own
            # Python's module would begin transactions itself, and not for changes of the schema
            # (SQLAlchemy, "SQLite", "Serializable isolation / Savepoints / Transactional DDL").
            connection.isolation_level = None
            # Writers do not block readers. A crash of the machine may lose the last rows, but not
            # the file; in return, not every write waits for the disk (sqlite.org/wal.html).
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA foreign_keys = ON")

        @event.listens_for(engine, "begin")
        def begin(connection: Connection) -> None:
            # A transaction that reads first and writes later would fail if another one has written
            # meanwhile, so those that write take their turn at the start.
            writes = connection.get_execution_options().get("writes")
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

        return engine

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Yield a connection that reads one state of the database."""
        with self._translate("read"), self._turn, self._engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Yield a connection whose changes are made together at the end, or not at all."""
        engine = self._engine.execution_options(writes=True)
        with self._translate("write"), self._turn, engine.begin() as connection:
            yield connection

    def prepare(self) -> None:
        """Create the tables, or migrate those of an older version, unless that is done already.

        Processes that start at the same time wait for the one that migrates. If a migration fails,
        the tables stay as they were.
        """
        from router_service.database import schema  # noqa: PLC0415
        from router_service.database.migrations.env import create, migrate, revision_of  # noqa: PLC0415

        if self.path is not None:
            with self._translate("open"):
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                _create_private(self.path)
        with self.read() as connection:
            if revision_of(connection) == schema.REVISION:
                return
        with self.write() as connection:
            if self.is_postgresql:
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
            found = revision_of(connection)  # another process may have migrated meanwhile
            if found is None:
                create(connection)
                _log.info("created the database: place=%s", self.place)
            elif found != schema.REVISION:
                migrate(connection, self.place)
                _log.info(
                    "migrated the database: place=%s from=%s to=%s",
                    self.place, found, schema.REVISION,
                )  # fmt: skip

    def check_exists(self) -> None:
        """Raise DatabaseError if there is no database yet, which only a gateway creates."""
        if self.is_postgresql or (self.path is not None and self.path.exists()):
            return
        problem = "there is none yet; a gateway creates it when it starts"
        if self.path is None:
            problem = "it is in the memory of the gateway; set database.url"
        raise DatabaseError("read", self.place, problem)

    def now_s(self, connection: Connection) -> float:
        """Return the time by a clock that all users of the database share."""
        if not self.is_postgresql:
            import time  # noqa: PLC0415

            return time.time()
        query = "SELECT extract(epoch FROM clock_timestamp())"
        return float(connection.exec_driver_sql(query).scalar_one())

    def close(self) -> None:
        """Close all connections that are not in use."""
        self._engine.dispose()

    @contextmanager
    def _translate(self, operation: str) -> Iterator[None]:
        """Convert the driver's errors within the block to DatabaseError, without the address."""
        from sqlalchemy.exc import DBAPIError, SQLAlchemyError  # noqa: PLC0415

        try:
            yield
        except DBAPIError as exc:
            cause = str(exc.orig).strip().splitlines()[0] if str(exc.orig).strip() else ""
            problem = cause or type(exc.orig).__name__
            raise DatabaseError(operation, self.place, problem[:300]) from exc
        except SQLAlchemyError as exc:
            raise DatabaseError(operation, self.place, type(exc).__name__) from exc
        except OSError as exc:
            raise DatabaseError(operation, self.place, exc.strerror or str(exc)) from exc


def _sqlite_path(url: str | None) -> Path | None:
    if url is None or not url.startswith(SQLITE_PREFIX):
        return None
    return Path(url.removeprefix(SQLITE_PREFIX)).expanduser()


def _create_private(path: Path) -> None:
    """Create a file for its owner only, if it is missing.

    If it exists, people who are neither its owner nor of its group lose access. SQLite gives the
    files that it adds the same permissions.
    """
    # An existing file is not opened, because closing it would drop SQLite's locks on it
    # (sqlite.org/howtocorrupt.html, section 2.2).
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, FILE_MODE))
    for part in _PARTS:
        with suppress(OSError):
            each = Path(f"{path}{part}")
            mode = each.stat().st_mode
            if mode & 0o007:
                each.chmod(mode & 0o770)
