"""Connections to the database, SQLite or PostgreSQL.

Importing this module does not import SQLAlchemy, which takes 13 MB and 0.1 s; `Database` does.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qs, quote, unquote, urlsplit

from router_service.core.errors import ConfigError, DatabaseError, missing_extra

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection, Engine, Table
    from sqlalchemy.dialects import postgresql, sqlite

SETTING = "database.url"

SQLITE_PREFIX = "sqlite:///"
POSTGRESQL_SCHEMES = ("postgresql", "postgres")

BUSY_S = 5.0
"""Longest time to wait for another process that writes the SQLite file."""
POOL_SIZE = 2
"""Connections to PostgreSQL that a process keeps open, and that it may open in addition."""
POOL_TIMEOUT_S = 5.0
MIGRATION_TIMEOUT_S = 3600.0
"""Longest time of a migration, and longest time to wait for that of another gateway."""

FILE_MODE = 0o600
"""Permissions of the SQLite file, and of those that SQLite adds to it: who has which key, and what
each key spends, is for the operator only."""
_PARTS = ("", "-wal", "-shm")
"""What SQLite adds to a database's name, for the files that belong to it (sqlite.org/wal.html)."""

_MIGRATION_LOCK = 0x5357_4954_4348
"""Number of PostgreSQL's advisory lock that only one migrating process can hold."""

_WRITABLE = "the file and its folder must be writable for the gateway's user"
_RESTORE = (
    "the file is damaged; restore a backup, or move the file away to begin without its keys, "
    'budgets and usage (see "Back up and restore" in docs/database.md)'
)
_REMEDIES = {
    sqlite3.SQLITE_CORRUPT: _RESTORE,
    sqlite3.SQLITE_NOTADB: _RESTORE,
    sqlite3.SQLITE_READONLY: _WRITABLE,
    sqlite3.SQLITE_CANTOPEN: _WRITABLE,
    sqlite3.SQLITE_PERM: _WRITABLE,
    sqlite3.SQLITE_FULL: "free space on the disk, or extend it",
    sqlite3.SQLITE_PROTOCOL: "the file must be on a local disk",
}
"""What to do about an error of SQLite, by its code."""

_log = logging.getLogger("switchcraft.database")


def check_database_address(url: str) -> None:
    """Raise ValueError unless an address is that of an SQLite file or of a PostgreSQL database.

    The message does not quote the address.
    """
    if url.startswith(SQLITE_PREFIX):
        if url.removeprefix(SQLITE_PREFIX).strip("/") in {"", ":memory:"}:
            raise ValueError("names no file; write sqlite:////path/of/a/file.db")
        return
    _split(url)


def _split(url: str) -> SplitResult:
    """Return the parts of PostgreSQL's address; raises ValueError, which does not quote it."""
    scheme, _, rest = url.partition("://")
    if scheme not in POSTGRESQL_SCHEMES or not rest:
        raise ValueError(
            "must start with sqlite:/// or postgresql://, such as "
            "sqlite:////var/lib/switchcraft/switchcraft.db or postgresql://USER:PASSWORD@HOST/NAME"
        )
    try:
        parts = urlsplit(url)
        is_valid = parts.port != 0
    except ValueError:
        is_valid = False
    # A password with one of / ? # ends the part before the path, so that its rest, up to the @,
    # would be taken for the name of the database and be shown.
    if not is_valid or "@" in f"{parts.path}{parts.query}{parts.fragment}":
        raise ValueError(
            "is not a valid address; check the host and the port, and percent-encode special "
            "characters of the password, such as %2F for / and %40 for @"
        )
    if not parts.path.strip("/") or parts.fragment:
        raise ValueError("names no database; write postgresql://USER:PASSWORD@HOST/NAME")
    return parts


class Database:
    """A database that several threads and processes may use.

    Every method raises DatabaseError if the database cannot be used.
    """

    def __init__(self, url: str | None) -> None:
        """Connect on first use; without an address, the database is in this process's memory.

        Raise ConfigError, which does not quote the address, if it is not valid.
        """
        self.path: Path | None = None
        """The SQLite file; None for PostgreSQL and in memory."""
        try:
            if url is not None:
                check_database_address(url)
                if url.startswith(SQLITE_PREFIX):
                    self.path = Path(url.removeprefix(SQLITE_PREFIX)).expanduser()
        except (ValueError, RuntimeError) as exc:  # RuntimeError: ~ of a user without a home
            raise ConfigError("the configuration", SETTING, str(exc)) from None
        self.is_postgresql = url is not None and self.path is None
        # One connection is all that a database in memory has, so its users take turns.
        self._turn = threading.RLock() if url is None else nullcontext()
        self._inode: int | None = None
        """The file that was prepared; another one may have its name by now."""
        if url is not None and self.path is None:
            parts = _split(url)
            port = f":{parts.port}" if parts.port else ""
            self.place = f"postgresql://{parts.hostname or ''}{port}{parts.path}"
            """The place without its password, for messages."""
            self._engine = _postgresql_engine(parts)
        else:
            self.place = "memory" if self.path is None else str(self.path)
            self._engine = _sqlite_engine(self.path)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Yield a connection that reads one state of the database."""
        self._check_file()
        with self._connection("read") as connection:
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Yield a connection whose changes are made together at the end, or not at all."""
        self._check_file()
        with self._connection("write") as connection, connection.begin():
            yield connection

    def prepare(self) -> None:
        """Create the tables, or migrate those of an older version, unless that is done already.

        Processes that start at the same time wait for the one that migrates. If a migration fails,
        the tables stay as they were.
        """
        # Imported here, because they import SQLAlchemy.
        from router_service.database.migrating import create, migrate, revision_of  # noqa: PLC0415
        from router_service.database.schema import REVISION  # noqa: PLC0415

        inode = None
        if self.path is not None:
            with self._translate("open"):
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                _create_private(self.path)
                inode = self.path.stat().st_ino
        with self._connection("read") as connection:
            found = revision_of(connection)
        if found != REVISION:
            with (
                self._connection("migrate") as connection,
                self._prepared_for_migration(connection),
            ):
                found = revision_of(connection)  # another process may have migrated meanwhile
                if found is None:
                    create(connection)
                    _log.info("created the database: place=%s", self.place)
                elif found != REVISION:
                    migrate(connection, self.place)
                    _log.info(
                        "migrated the database: place=%s from=%s to=%s", self.place, found, REVISION
                    )
        self._inode = inode

    def examine(self) -> str | None:
        """Return the version of the tables, or None without tables; changes and creates nothing."""
        from router_service.database.migrating import revision_of  # noqa: PLC0415

        if self.path is None:
            with self._connection("read") as connection:
                return revision_of(connection)
        with self._translate("open"):
            if not self.path.exists() or self.path.stat().st_size == 0:
                return None
            # Reading a file in WAL mode creates files beside it, unless the file is declared to be
            # immutable. It is, if no process has it open.
            is_open = Path(f"{self.path}-wal").exists()
            engine = _sqlite_engine(self.path, "mode=ro" if is_open else "mode=ro&immutable=1")
        try:
            with self._translate("read"), engine.connect() as connection:
                return revision_of(connection)
        finally:
            engine.dispose()

    def check_exists(self) -> None:
        """Raise DatabaseError if there is no database yet, which only a gateway creates."""
        if self.is_postgresql or (self.path is not None and self.path.exists()):
            return
        problem = "the file does not exist; start the gateway once, which creates it"
        if self.path is None:
            problem = "it is in the memory of the gateway; set database.url"
        raise DatabaseError("read", self.place, problem)

    def now_s(self, connection: Connection) -> float:
        """Return the time by a clock that all users of the database share."""
        if not self.is_postgresql:
            return time.time()
        query = "SELECT extract(epoch FROM clock_timestamp())"
        return float(connection.exec_driver_sql(query).scalar_one())

    def identity(self, connection: Connection) -> int | None:
        """Return a number that differs if other rows have replaced all keys, as a restore does."""
        if self.is_postgresql:
            query = "SELECT pg_relation_filenode('keys')"
            return int(connection.exec_driver_sql(query).scalar_one())
        return self._inode

    @property
    def has_content(self) -> bool:
        """Whether the database may have keys, as far as this can be known without opening it."""
        try:
            return self.is_postgresql or (self.path is not None and self.path.stat().st_size > 0)
        except OSError:
            return False

    def close(self) -> None:
        """Close all connections that are not in use."""
        self._engine.dispose()

    def _check_file(self) -> None:
        """Use the file that has the database's name now.

        SQLite would write into a file that was deleted or replaced, as if nothing had happened. A
        file that is missing is not created again, because it had keys.
        """
        if self.path is None or self._inode is None:
            return
        with self._translate("open"):
            try:
                inode = self.path.stat().st_ino
            except FileNotFoundError as exc:
                problem = (
                    "the file was deleted while the gateway runs; restore it, or restart the "
                    "gateway to begin with an empty database"
                )
                raise DatabaseError("open", self.place, problem) from exc
        if inode != self._inode:
            _log.warning("another file replaced the database: place=%s", self.place)
            self._engine.dispose()
            self.prepare()

    @contextmanager
    def _connection(self, operation: str) -> Iterator[Connection]:
        options: dict[str, Any] = {"writes": operation != "read"}
        if self.is_postgresql and operation == "read":
            # Otherwise each statement would see a state of its own.
            options |= {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        with self._turn:
            with self._translate("open"):
                connection = self._engine.connect()
            with self._translate(operation), connection:
                yield connection.execution_options(**options)

    @contextmanager
    def _prepared_for_migration(self, connection: Connection) -> Iterator[None]:
        """Run the block in a transaction that no other process migrates in, without time limits."""
        raw: Any = connection.connection.driver_connection
        if self.is_postgresql:
            usual_s, raw.answer_timeout_s = raw.answer_timeout_s, MIGRATION_TIMEOUT_S + 1
            try:
                with connection.begin():
                    limit_ms = round(MIGRATION_TIMEOUT_S * 1000)
                    connection.exec_driver_sql(f"SET LOCAL statement_timeout = {limit_ms}")
                    connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
                    yield
            finally:
                raw.answer_timeout_s = usual_s
            return
        # A migration may have to create a table again, and dropping the old one would delete the
        # rows that refer to it (alembic.sqlalchemy.org, "Dealing with Referencing Foreign Keys").
        # Neither setting can be changed within a transaction.
        raw.execute("PRAGMA foreign_keys = OFF")
        raw.execute(f"PRAGMA busy_timeout = {round(MIGRATION_TIMEOUT_S * 1000)}")
        try:
            with connection.begin():
                yield
                broken = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
                if broken is not None:
                    problem = f"a row of {broken[0]} refers to a row of {broken[2]} that is missing"
                    raise DatabaseError("migrate", self.place, problem)
        finally:
            raw.execute(f"PRAGMA busy_timeout = {round(BUSY_S * 1000)}")
            raw.execute("PRAGMA foreign_keys = ON")

    @contextmanager
    def _translate(self, operation: str) -> Iterator[None]:
        """Convert the driver's errors within the block to DatabaseError, without the address.

        Conflicts, such as a name that exists, stay what they are: the database can be used.
        """
        # Imported here, as SQLAlchemy in general.
        from sqlalchemy.exc import DataError, DBAPIError, IntegrityError  # noqa: PLC0415
        from sqlalchemy.exc import TimeoutError as PoolTimeoutError  # noqa: PLC0415

        try:
            yield
        except DBAPIError as exc:
            if isinstance(exc, (IntegrityError, DataError)) and operation != "migrate":
                raise
            lines = str(exc.orig).strip().splitlines()
            problem = lines[0][:300] if lines else type(exc.orig).__name__
            # The low byte is the error's kind; the rest is where SQLite noticed it.
            code = getattr(exc.orig, "sqlite_errorcode", 0) & 0xFF
            if code in _REMEDIES:
                problem = f"{problem}; {_REMEDIES[code]}"
            raise DatabaseError(operation, self.place, problem) from exc
        except PoolTimeoutError as exc:
            problem = f"all connections of this process were in use for {POOL_TIMEOUT_S:.0f} s"
            raise DatabaseError(operation, self.place, problem) from exc
        except OSError as exc:
            raise DatabaseError(operation, self.place, exc.strerror or str(exc)) from exc


def _postgresql_engine(parts: SplitResult) -> Engine:
    # SQLAlchemy is imported here, so that reading a configuration does not load it.
    from sqlalchemy import URL, create_engine, event  # noqa: PLC0415

    try:
        from router_service.database.postgresql import connect  # noqa: PLC0415
    except ModuleNotFoundError as exc:
        if exc.name != "psycopg":
            raise
        raise ConfigError("the configuration", SETTING, missing_extra("postgres")) from exc
    # SQLAlchemy would divide an address in another way than `urlsplit`, which has checked it.
    url = URL.create(
        "postgresql+psycopg",
        username=None if parts.username is None else unquote(parts.username),
        password=None if parts.password is None else unquote(parts.password),
        host=parts.hostname,
        port=parts.port,
        database=unquote(parts.path.strip("/")),
        query=parse_qs(parts.query),
    )
    engine = create_engine(
        url,
        pool_size=POOL_SIZE,
        max_overflow=POOL_SIZE,
        pool_timeout=POOL_TIMEOUT_S,
        # A server that was restarted has closed its connections.
        pool_pre_ping=True,
        hide_parameters=True,
        use_native_hstore=False,
    )

    @event.listens_for(engine, "do_connect")
    def open_connection(
        _dialect: object,
        _record: object,
        args: Sequence[Any],
        parameters: Mapping[str, Any],
    ) -> object:
        return connect(*args, **parameters)

    return engine


def _sqlite_engine(path: Path | None, query: str = "mode=rw") -> Engine:
    """Return an engine for a file, or for memory; by default, the file must exist."""
    from sqlalchemy import create_engine, event  # noqa: PLC0415
    from sqlalchemy.pool import QueuePool, StaticPool  # noqa: PLC0415

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            ":memory:" if path is None else f"file:{quote(str(path))}?{query}",
            timeout=BUSY_S,
            # Python's module would begin transactions itself, and not for changes of the schema
            # (SQLAlchemy, "SQLite", "Serializable isolation / Savepoints / Transactional DDL").
            isolation_level=None,
            check_same_thread=False,
            uri=True,
        )
        try:
            # Writers do not block readers. A crash of the machine may lose the last rows, but not
            # the file; in return, not every write waits for the disk (sqlite.org/wal.html).
            if query == "mode=rw":
                _use_wal(connection)
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA foreign_keys = ON")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    engine = create_engine(
        "sqlite://",
        creator=connect,
        poolclass=StaticPool if path is None else QueuePool,
        hide_parameters=True,
    )

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A transaction that reads first and writes later would fail if another one has written
        # meanwhile, so those that write take their turn at the start.
        writes = connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to SQLite's write-ahead log.

    SQLite does not wait for other processes that switch a new file at the same moment: of six, one
    failed in each 25 attempts.
    """
    give_up_s = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as exc:
            is_busy = exc.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() > give_up_s:
                raise
            time.sleep(0.01)
        else:
            return


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


def insert_into(connection: Connection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """Return an insert statement that can say what to do if a row exists already."""
    # Imported here, so that only the dialect in use is loaded.
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects.postgresql import insert  # noqa: PLC0415
    else:
        from sqlalchemy.dialects.sqlite import insert  # noqa: PLC0415
    return insert(table)


def add_to_sums(
    connection: Connection, table: Table, sums: Sequence[str]
) -> postgresql.Insert | sqlite.Insert:
    """Return a statement that inserts a row, or adds these columns of it to those of the old row.

    Its parameters are the columns of a row; a row is found by its primary key.
    """
    statement = insert_into(connection, table)
    added = {name: table.c[name] + statement.excluded[name] for name in sums}
    return statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=added)


def has_key(table: Table, names: Iterable[str]) -> ColumnElement[bool]:
    """Return the condition for rows with the values that `key_parameters` has for these columns."""
    from sqlalchemy import and_, bindparam  # noqa: PLC0415

    return and_(*(table.c[name] == bindparam(f"key_{name}") for name in names))


def key_parameters(names: Iterable[str], values: Iterable[object]) -> dict[str, Any]:
    """Return parameters with the values of columns; their names must differ from columns'."""
    return {f"key_{name}": value for name, value in zip(names, values, strict=True)}
