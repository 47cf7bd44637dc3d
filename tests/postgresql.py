"""A real PostgreSQL server for tests."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import quote

import psycopg

from tests.debian import program
from tests.drills.processes import free_port
from tests.serving import wait_for

_PASSWORD = "a/secret:with@signs'and\"quotes%"
_QUOTED = quote(_PASSWORD, safe="")


class PostgreSQLServer:
    """A server on a port of this machine, which a test may stop, freeze and start again."""

    def __init__(self) -> None:
        """Create the server's files; as root, they belong to the user `postgres`."""
        self.port = free_port()
        # Not in pytest's folder, which only its user may enter.
        self._folder = Path(tempfile.mkdtemp(prefix="switchcraft-postgresql-"))
        self._user = "postgres" if os.geteuid() == 0 else None
        if self._user:
            shutil.chown(self._folder, self._user, self._user)
        password = self._folder / "password"
        password.write_text(_PASSWORD)
        password.chmod(0o644)
        self._run(
            program("initdb"),
            *("--pgdata", self._folder / "data", "--username", "switchcraft", "--no-sync"),
            *("--auth", "scram-sha-256", "--pwfile", password, "--encoding", "UTF8"),
        )
        self._process: subprocess.Popen[bytes] | None = None

    def _run(self, *command: object) -> None:
        done = subprocess.run(
            [str(part) for part in command],
            user=self._user, cwd=self._folder, capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        command = [
            program("postgres"), "-D", self._folder / "data", "-p", self.port,
            "-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={self._folder}",
            "-c", "fsync=off", "-c", "max_connections=60", "-c", "jit=off",
        ]  # fmt: skip
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(part) for part in command], user=self._user, stdout=log, stderr=log
            )
        wait_for(self._answers, "PostgreSQL answers")

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url("postgres"), connect_timeout=10).close()
        except psycopg.OperationalError:
            return False
        return True

    def url(self, name: str) -> str:
        """Return the address of a database of this server."""
        return f"postgresql://switchcraft:{_QUOTED}@127.0.0.1:{self.port}/{name}"

    def create(self) -> str:
        """Create an empty database, and return its address."""
        name = f"test_{secrets.token_hex(6)}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)

    def freeze(self) -> None:
        """Stop all processes of the server without ending them: connections stay open."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        """Continue after `freeze`."""
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        assert self._process is not None
        found = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        for pid in (self._process.pid, *map(int, found.split())):
            os.kill(pid, number)

    def stop(self) -> None:
        """End the server and its connections at once."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End the server, and remove its files."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
