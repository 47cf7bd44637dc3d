"""The database is away, frozen, restarted or deleted while gateways run, or when they start."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest

from router_service.access.accounts import Accounts
from router_service.access.specs import NewKey
from router_service.core.keys import new_key
from router_service.database.engine import Database
from router_service.settings import KeySettings
from tests.bodies import BODY, CHAT
from tests.drills.processes import (
    GatewayProcess,
    Load,
    free_port,
    gateway,
    write_config,
)
from tests.postgresql import PostgreSQLServer
from tests.serving import Sandbox, wait_for

ADMIN = new_key()
FAILED = re.compile(r'switchcraft_storage_errors_total\{operation="\w+",storage="database"\}')
UP = 'switchcraft_dependency_up{dependency="database"}'
OUTAGES = {"stopped": PostgreSQLServer.stop, "frozen": PostgreSQLServer.freeze}
REPAIRS = {"stopped": PostgreSQLServer.start, "frozen": PostgreSQLServer.thaw}


@pytest.fixture(scope="module")
def server() -> Iterator[PostgreSQLServer]:
    """Yield a PostgreSQL server that only these drills use."""
    server = PostgreSQLServer()
    server.start()
    yield server
    server.close()


def write(folder: Path, upstream: Sandbox, url: str, **sections: Mapping[str, object]) -> Path:
    """Write a configuration with an admin key and a database."""
    return write_config(
        folder / "config.yaml",
        upstream.base_url,
        **{"keys": {"admin": ADMIN}, "database": {"url": url}, **sections},
    )


def create(served: GatewayProcess, name: str) -> str:
    """Create a key, and return its secret."""
    response = served.http.post("/admin/keys", json={"name": name})
    assert response.status_code == 201, response.text
    secret: str = response.json()["secret"]
    return secret


def status(served: GatewayProcess, secret: str) -> int:
    """Return the status of a request with a key."""
    headers = {"authorization": f"Bearer {secret}"}
    return httpx.post(served.url + CHAT, json=BODY, headers=headers).status_code


def database_state(served: GatewayProcess) -> dict[str, object]:
    """Return what `/admin/status` says of the database."""
    state = served.status()["database"]
    assert isinstance(state, dict)
    return state


def errors(served: GatewayProcess) -> float:
    """Return the number of failed operations."""
    lines = served.http.get("/metrics").text.splitlines()
    found = (line for line in lines if FAILED.match(line))
    return sum(float(line.rpartition(" ")[2]) for line in found)


@pytest.mark.parametrize("outage", OUTAGES)
def test_requests_continue_while_postgresql_is_away(
    tmp_path: Path, upstream: Sandbox, server: PostgreSQLServer, outage: str
) -> None:
    """Requests of known keys are answered as before, and nothing waits for the database.

    The gateway stays ready, says what is wrong, and takes up changes of keys once it can.
    """
    config = write(tmp_path, upstream, server.create())
    with gateway(config, tmp_path, key=ADMIN) as served:
        known, revoked = create(served, "known"), create(served, "revoked")
        wait_for(lambda: status(served, known) == status(served, revoked) == 200, "both are valid")
        assert database_state(served) | {"place": ""} == {
            "place": "", "state": "up", "unreachable_s": 0.0, "cause": None
        }  # fmt: skip
        before = upstream.stats()["completed"]
        with Load((served.url,), clients=2, key=known) as load:
            load.wait_for_answers(50)
            try:
                OUTAGES[outage](server)
                wait_for(lambda: served.metric(UP) == 0, "the metric shows the outage")
                state = database_state(served)
                assert state["state"] == "away"
                assert state["cause"]
                assert served.http.get("/readyz").status_code == 200
                assert served.http.post("/admin/keys", json={"name": "late"}).status_code == 503
                assert status(served, new_key()) == 401
                wait_for(lambda: errors(served) > 0, "errors are counted")
                load.wait_for_answers(100)
            finally:
                REPAIRS[outage](server)
            wait_for(lambda: served.metric(UP) == 1, "the database is back")
            created = create(served, "created")
            assert served.http.post("/admin/keys/revoked/revoke").status_code == 200
            wait_for(lambda: status(served, created) == 200, "the new key is known")
            wait_for(lambda: status(served, revoked) == 401, "the revocation holds")
            load.wait_for_answers()
        assert load.lost == []
        assert set(load.statuses) == {200}
        assert upstream.stats()["completed"] - before >= len(load.statuses)
    log = (served.log).read_text()
    assert log.count("the database cannot be used") == 1
    assert log.count("the database can be used again") == 1


@pytest.mark.slow
def test_gateway_with_other_keys_starts_without_its_database(
    tmp_path: Path, upstream: Sandbox, server: PostgreSQLServer
) -> None:
    """Keys of the file are valid at once; others get 503 until the database has been read."""
    url = server.create()
    config = write(tmp_path, upstream, url)
    with closing(Database(url)) as database:
        database.prepare()
        accounts = Accounts(database, KeySettings.model_validate({"admin": ADMIN}))
        known = accounts.create_key(NewKey(name="known")).secret
    server.stop()
    try:
        with gateway(config, tmp_path, key=ADMIN) as served:
            assert status(served, ADMIN) == 200
            assert status(served, known) == 503
            server.start()
            wait_for(lambda: status(served, known) == 200, "the key is known")
            wait_for(lambda: status(served, new_key()) == 401, "other keys are wrong")
    finally:
        server.stop()
        server.start()


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_gateways_that_start_together_create_the_tables_once(
    tmp_path: Path, upstream: Sandbox, server: PostgreSQLServer, kind: str
) -> None:
    """Two gateways share a database from the first moment."""
    url = server.create() if kind == "postgresql" else f"sqlite:///{tmp_path}/shared.db"
    config = write(tmp_path, upstream, url)
    command = [sys.executable, "-m", "router_service.cli", "serve", "--config", str(config)]
    ports, logs = (free_port(), free_port()), (tmp_path / "one", tmp_path / "two")
    with ExitStack() as stack:
        processes = []
        for port, log in zip(ports, logs, strict=True):
            file = stack.enter_context(log.open("wb"))
            process = subprocess.Popen(
                [*command, "--port", str(port)],
                stderr=file, env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
            processes.append(process)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        text = ""
        for log in logs:
            wait_for(lambda log=log: "serving at" in log.read_text(), "both serve")
            text += log.read_text()
        assert text.count("created the database") == 1
        assert "cannot be used" not in text
        headers = {"authorization": f"Bearer {ADMIN}"}
        one, other = (f"http://127.0.0.1:{port}" for port in ports)
        made = httpx.post(f"{one}/admin/keys", json={"name": "made"}, headers=headers).json()
        key = {"authorization": f"Bearer {made['secret']}"}
        wait_for(
            lambda: httpx.post(other + CHAT, json=BODY, headers=key).status_code == 200,
            "the other gateway knows the key",
        )


@pytest.mark.slow
def test_documented_backup_can_be_restored(
    tmp_path: Path, upstream: Sandbox, server: PostgreSQLServer
) -> None:
    """The commands of docs/database.md save and restore the keys, while a gateway runs."""
    url = server.create()
    text = (Path(__file__).parents[2] / "docs" / "database.md").read_text()
    dump, restore = re.findall(r"^pg_(?:dump|restore) .*$", text, re.MULTILINE)

    def run(command: str) -> None:
        variables = {**os.environ, "SWITCHCRAFT_DATABASE_URL": url}
        subprocess.run(["bash", "-c", command], cwd=tmp_path, env=variables, check=True)

    with gateway(write(tmp_path, upstream, url), tmp_path, key=ADMIN) as served:
        old = create(served, "old")
        run(dump)
        new = create(served, "new")
        assert served.http.post("/admin/keys/old/revoke").status_code == 200
        wait_for(lambda: [status(served, key) for key in (old, new)] == [401, 200], "as it is")
        run(restore)
        wait_for(lambda: [status(served, key) for key in (old, new)] == [200, 401], "as it was")
        assert create(served, "newer")
