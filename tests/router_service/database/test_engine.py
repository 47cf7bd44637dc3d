"""Connections: addresses, several users at once, and what errors say."""

from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from sqlalchemy import text

from router_service.core.errors import ConfigError, DatabaseError
from router_service.database import postgresql as limits
from router_service.database.engine import Database
from router_service.database.postgresql import TimeLimitedConnection
from tests.postgresql import PostgreSQLServer
from tests.router_service.database.counting import add, revision

PASSWORDS = ("a@b", "a%b", "'a'\"b\"", "ü$&=+", "1/2@3:4?5#6")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQLServer]:
    """Yield a PostgreSQL server that only these tests use, so that they may freeze it."""
    server = PostgreSQLServer()
    server.start()
    yield server
    server.close()


def in_processes(count: int, code: str, address: str) -> list[str]:
    """Run Python code in processes that all wait for the same moment; return what each prints."""
    script = textwrap.dedent(f"""
        import logging, sys, time
        from router_service.core.errors import DatabaseError
        from router_service.database.engine import Database
        from tests.router_service.database.counting import add, revision
        logging.basicConfig(level=logging.INFO, stream=sys.stdout)
        database = Database({address!r})
        print("ready", flush=True)
        sys.stdin.readline()
    """)
    command = [sys.executable, "-c", script + textwrap.dedent(code)]
    processes = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(count)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.stdout.read()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * count, outputs
    return outputs


def test_processes_and_threads_take_turns(database_url: str) -> None:
    """No change is lost, and none fails, if three processes with three threads each write."""
    with closing(Database(database_url)) as database:
        database.prepare()
    code = """
        import threading
        def work():
            for _ in range(10):
                add(database, 0.001)
        threads = [threading.Thread(target=work) for _ in range(3)]
        for each in threads: each.start()
        for each in threads: each.join()
    """
    in_processes(3, code, database_url)
    with closing(Database(database_url)) as database:
        assert revision(database) == 90


@pytest.mark.parametrize("password", PASSWORDS)
def test_password_is_read_as_it_was_encoded(postgresql: PostgreSQLServer, password: str) -> None:
    """A percent-encoded password may have any characters; it is in no error."""
    with psycopg.connect(postgresql.url("postgres"), autocommit=True) as admin:
        admin.execute("DROP ROLE IF EXISTS visitor")
        admin.execute(f"CREATE ROLE visitor LOGIN PASSWORD {_literal(password)}".encode())
    host = f"127.0.0.1:{postgresql.port}/postgres"
    with closing(Database(f"postgresql://visitor:{quote(password, safe='')}@{host}")) as database:
        with database.read() as connection:
            assert connection.execute(text("SELECT current_user")).scalar_one() == "visitor"
        assert database.place == f"postgresql://{host}"
    wrong = f"{password}-secret"
    with (
        closing(Database(f"postgres://visitor:{quote(wrong, safe='')}@{host}")) as database,
        pytest.raises(DatabaseError, match=r"cannot open .*authentication failed") as caught,
    ):
        database.prepare()
    assert wrong not in str(caught.value)
    assert quote(wrong, safe="") not in str(caught.value)


def _literal(value: str) -> str:
    return psycopg.sql.Literal(value).as_string(None)


@pytest.mark.parametrize("password", PASSWORDS)
def test_password_that_is_not_encoded_is_never_shown(
    postgresql: PostgreSQLServer, password: str
) -> None:
    """Such an address is used as it was meant, or refused, but no part of the password is shown."""
    secret = f"{password}SECRET{password}"
    url = f"postgresql://visitor:{secret}@127.0.0.1:{postgresql.port}/postgres"
    database, problem = None, ""
    try:
        database = Database(url)
    except ConfigError as exc:
        problem = str(exc)
    if database is None:
        assert "SECRET" not in problem
        assert "%2F for /" in problem
        return
    with closing(database), pytest.raises(DatabaseError, match="password authentication") as caught:
        database.prepare()
    assert "SECRET" not in str(caught.value)
    assert database.place == f"postgresql://127.0.0.1:{postgresql.port}/postgres"


def test_frozen_server_is_noticed(
    server: PostgreSQLServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that answers nothing is an error after the time limit; afterwards it works again."""
    monkeypatch.setattr(TimeLimitedConnection, "answer_timeout_s", 4.0)
    monkeypatch.setattr(limits, "CONNECT_TIMEOUT_S", 2)  # psycopg's least
    with closing(Database(server.create())) as database:
        database.prepare()
        server.freeze()
        with pytest.raises(DatabaseError, match="timeout expired"):
            revision(database)
        server.thaw()
        assert revision(database) == 0


def test_deleted_file_is_an_error_and_a_restored_one_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is written into a deleted file, and a file that replaces it is used at once."""
    path, backup = tmp_path / "a.db", tmp_path / "backup.db"
    with closing(Database(f"sqlite:///{path}")) as database:
        database.prepare()
        add(database)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"VACUUM INTO '{backup}'")
        for part in ("", "-wal", "-shm"):
            Path(f"{path}{part}").unlink(missing_ok=True)
        for use in (revision, add):
            with pytest.raises(DatabaseError, match=r"deleted .*; restore it"):
                use(database)
        assert not path.exists()
        backup.rename(path)
        with caplog.at_level(logging.WARNING):
            assert revision(database) == 1
        assert "another file replaced the database" in caplog.text
        add(database)
        assert revision(database) == 2


@pytest.mark.parametrize("content", [b"no database" * 1000, b""])
def test_damaged_file_is_kept(tmp_path: Path, content: bytes) -> None:
    """A file that cannot be read is an error with the remedy, and is not replaced."""
    path = tmp_path / "a.db"
    with closing(Database(f"sqlite:///{path}")) as database:
        database.prepare()
    whole = path.read_bytes()
    path.write_bytes(content or whole[:4096] + bytes(len(whole) - 4096))
    before = path.read_bytes()
    with closing(Database(f"sqlite:///{path}")) as database:
        with pytest.raises(DatabaseError, match="damaged; restore a backup, or move the file away"):
            database.prepare()
        with pytest.raises(DatabaseError, match="damaged"):
            database.examine()
    assert path.read_bytes() == before


def test_full_disk_is_an_error_that_passes(tmp_path: Path) -> None:
    """Without space, writing fails and nothing is stored by half; with space, it works again."""
    code = """
        import resource
        from sqlalchemy import insert
        from router_service.database.schema import keys
        database.prepare()
        def fill():
            with database.write() as connection:
                for number in range(100):
                    row = {"name": f"key {number}", "digest": f"{number}", "hint": "x" * 8}
                    row |= {"is_admin": False, "metadata": {"a": "b" * 20_000}, "created_s": 0.0}
                    connection.execute(insert(keys).values(row | {"revision": 1}))
        usual = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, usual[1]))
        try:
            fill()
        except DatabaseError as exc:
            print("failed:", exc)
        assert revision(database) == 0
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
        fill()
        print("filled")
    """
    (output,) = in_processes(1, code, f"sqlite:///{tmp_path / 'a.db'}")
    assert "failed: cannot write the database" in output
    assert output.endswith("filled\n")
