"""Changes of keys hold in every worker and in every gateway within a second."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from router_service.core.keys import new_key
from tests.bodies import BODY, CHAT
from tests.drills.processes import GatewayProcess, gateway, write_config
from tests.drills.test_workers import only_worker, two_workers
from tests.postgresql import PostgreSQLServer
from tests.serving import Sandbox

HOLDS_WITHIN_S = 1.0
OVERLAP_S = 3.0
ADMIN = new_key()


class Process:
    """One process of a gateway, which answers all requests of one connection."""

    def __init__(self, url: str) -> None:
        headers = {"authorization": f"Bearer {ADMIN}"}
        limits = httpx.Limits(max_connections=1)
        self.http = httpx.Client(base_url=url, headers=headers, timeout=30, limits=limits)
        assert self.status(ADMIN) == 200

    def status(self, secret: str) -> int:
        """Return the status of a request with a key."""
        headers = {"authorization": f"Bearer {secret}"}
        return self.http.get("/v1/models", headers=headers).status_code

    def wait_for(self, secret: str, status: int, since_s: float) -> None:
        """Assert that requests with a key get this status soon after a moment."""
        while self.status(secret) != status:
            assert time.monotonic() < since_s + HOLDS_WITHIN_S
            time.sleep(0.01)

    def post(self, path: str, **body: object) -> dict[str, str]:
        """Change a key, and return the answer."""
        response = self.http.post(f"/admin/keys{path}", json=body)
        assert response.is_success, response.text
        answer: dict[str, str] = response.json()
        return answer


def write(path: Path, sandbox: Sandbox, database_url: str, workers: int) -> Path:
    """Write a configuration with a database and an admin key."""
    return write_config(
        path,
        sandbox.base_url,
        keys={"admin": ADMIN},
        database={"url": database_url},
        server={"workers": workers},
    )


@pytest.fixture(scope="module")
def workers(
    tmp_path_factory: pytest.TempPathFactory, sandbox: Sandbox
) -> Iterator[tuple[Process, Process]]:
    """Yield both workers of a gateway with SQLite."""
    folder = tmp_path_factory.mktemp("workers")
    config = write(folder / "config.yaml", sandbox, f"sqlite:///{folder}/keys.db", 2)
    with gateway(config, folder) as served, ExitStack() as stack:
        found = []
        for pid in two_workers(served):
            # Only this worker can accept the connection, which stays with it.
            with only_worker(pid, served):
                found.append(Process(served.url))
            stack.callback(found[-1].http.close)
        yield found[0], found[1]


@pytest.fixture(scope="module")
def replicas(
    tmp_path_factory: pytest.TempPathFactory, sandbox: Sandbox, postgresql: PostgreSQLServer
) -> Iterator[tuple[Process, Process]]:
    """Yield two gateways with one PostgreSQL."""
    folder = tmp_path_factory.mktemp("replicas")
    config = write(folder / "config.yaml", sandbox, postgresql.create(), 1)
    with ExitStack() as stack:
        served: list[GatewayProcess] = [
            stack.enter_context(gateway(config, folder)) for _ in range(2)
        ]
        found = [Process(each.url) for each in served]
        for each in found:
            stack.callback(each.http.close)
        yield found[0], found[1]


@pytest.fixture(params=["workers", "replicas"])
def processes(request: pytest.FixtureRequest) -> tuple[Process, Process]:
    """Return two processes with one database."""
    found: tuple[Process, Process] = request.getfixturevalue(request.param)
    return found


def test_new_key_works_in_its_process_at_once_and_in_others_soon(
    processes: tuple[Process, Process],
) -> None:
    """Its creator can use a key without waiting, if it stays with the process."""
    one, other = processes
    secret = one.post("", name="new")["secret"]
    created_s = time.monotonic()
    assert one.status(secret) == 200
    other.wait_for(secret, 200, created_s)
    headers = {"authorization": f"Bearer {secret}"}
    assert other.http.post(CHAT, json=BODY, headers=headers).status_code == 200


def test_revoked_key_is_refused_by_every_process(processes: tuple[Process, Process]) -> None:
    """The process that revokes a key refuses it at once, and the other within a second."""
    one, other = processes
    secret = one.post("", name="short-lived")["secret"]
    other.wait_for(secret, 200, time.monotonic())
    one.post("/short-lived/revoke")
    revoked_s = time.monotonic()
    assert one.status(secret) == 401
    other.wait_for(secret, 401, revoked_s)


def test_rotation_overlaps_in_every_process(processes: tuple[Process, Process]) -> None:
    """Both secrets are valid in all processes during the overlap, and then only the new one."""
    one, other = processes
    secret = one.post("", name="rotated")["secret"]
    other.wait_for(secret, 200, time.monotonic())
    rotated = one.post("/rotated/rotate", overlap_s=OVERLAP_S)["secret"]
    rotated_s = time.monotonic()
    other.wait_for(rotated, 200, rotated_s)
    for process in processes:
        assert (process.status(secret), process.status(rotated)) == (200, 200)
    for process in processes:
        process.wait_for(secret, 401, rotated_s + OVERLAP_S)
        assert process.status(rotated) == 200


def test_valid_key_is_never_refused_while_it_changes(processes: tuple[Process, Process]) -> None:
    """Each of many changes replaces the key in memory while requests use it."""
    one, other = processes
    secret = one.post("", name="busy")["secret"]
    other.wait_for(secret, 200, time.monotonic())
    for number in range(20):
        changed = one.http.patch("/admin/keys/busy", json={"owner": f"owner {number}"})
        assert changed.status_code == 200
        assert {other.status(secret) for _ in range(20)} == {200}
