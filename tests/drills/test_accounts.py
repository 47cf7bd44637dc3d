"""Changes of keys, and their budgets, hold in every worker of a gateway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle

import httpx
import pytest

from router_service.core.keys import new_key
from tests.bodies import ASK, CHAT
from tests.drills.processes import ARMS, gateway, write_config
from tests.drills.test_workers import only_worker, two_workers
from tests.serving import Sandbox, wait_for
from tests.stored_keys import bearer

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

    def wait_for(self, secret: str, status: int) -> None:
        """Wait until requests with a key get this status."""
        wait_for(lambda: self.status(secret) == status, f"the key gets {status}")

    def ask(self, secret: str) -> httpx.Response:
        """Ask a model with a key."""
        body = {"model": ARMS[0], "messages": ASK}
        return self.http.post(CHAT, json=body, headers=bearer(secret))

    def post(self, path: str, **body: object) -> dict[str, str]:
        """Change a key, and return the answer."""
        response = self.http.post(f"/admin/keys{path}", json=body)
        assert response.is_success, response.text
        answer: dict[str, str] = response.json()
        return answer


@pytest.fixture(scope="module")
def processes(
    tmp_path_factory: pytest.TempPathFactory, sandbox: Sandbox
) -> Iterator[tuple[Process, Process]]:
    """Yield both workers of a gateway with SQLite."""
    folder = tmp_path_factory.mktemp("workers")
    config = write_config(
        folder / "config.yaml",
        sandbox.base_url,
        keys={"admin": ADMIN},
        database={"url": f"sqlite:///{folder}/keys.db"},
        server={"workers": 2},
    )
    with gateway(config, folder) as served, ExitStack() as stack:
        found = []
        for pid in two_workers(served):
            # Only this worker can accept the connection, which stays with it.
            with only_worker(pid, served):
                found.append(Process(served.url))
            stack.callback(found[-1].http.close)
        yield found[0], found[1]


def test_changes_hold_at_once_in_a_process_and_soon_in_the_other(
    processes: tuple[Process, Process],
) -> None:
    """A new, a rotated and a revoked secret; and both processes spend one budget of one file."""
    one, other = processes
    free = one.post("", name="free")["secret"]
    cost_usd = float(one.ask(free).headers["x-switchcraft-cost-usd"])
    budget = {"usd": 10.5 * cost_usd, "period": "month"}
    old = one.post("", name="spender", budget=budget)["secret"]
    assert one.status(old) == 200
    other.wait_for(old, 200)
    secret = one.post("/spender/rotate", overlap_s=0)["secret"]
    assert [one.status(each) for each in (old, secret)] == [401, 200]
    other.wait_for(secret, 200)
    other.wait_for(old, 401)
    answered = 0
    for process in cycle(processes):
        response = process.ask(secret)
        if response.is_success:
            answered += 1
        elif response.json()["error"]["code"] != "rate_limit_exceeded":
            assert response.json()["error"]["code"] == "insufficient_quota"
            break
    assert 10 <= answered <= 12, "each process overspends at most one request"
    assert {process.ask(secret).status_code for process in processes} == {429}
    one.post("/spender/revoke")
    assert one.status(secret) == 401
    other.wait_for(secret, 401)
