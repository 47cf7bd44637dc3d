"""Changes of keys, their budgets and their limits hold in every gateway that shares them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import httpx
import pytest

from router_service.core.keys import new_key
from tests.bodies import ASK, CHAT
from tests.drills.processes import ARMS, GatewayProcess, RedisServer, gateway, write_config
from tests.keyed_gateways import open_stream
from tests.serving import Sandbox, wait_for
from tests.stored_keys import bearer

ADMIN = new_key()


class Process:
    """One of two gateways, for its admin."""

    def __init__(self, served: GatewayProcess) -> None:
        self.http = served.http
        self.url = served.url

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


@pytest.fixture
def processes(
    tmp_path: Path, upstream: Sandbox, redis_server: RedisServer
) -> Iterator[tuple[Process, Process]]:
    """Yield two gateways that share an SQLite file and a Redis."""
    config = write_config(
        tmp_path / "config.yaml",
        upstream.base_url,
        keys={"admin": ADMIN},
        database={"url": f"sqlite:///{tmp_path}/keys.db"},
        server={"redis_url": redis_server.url},
    )
    with (
        gateway(config, tmp_path, key=ADMIN) as one,
        gateway(config, tmp_path, key=ADMIN) as other,
    ):
        yield Process(one), Process(other)


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


def test_gateways_share_limits(processes: tuple[Process, Process]) -> None:
    """Both gateways together admit as many requests as the key allows, and free its slots."""
    one, other = processes
    limits = {"requests_per_minute": 10, "parallel_requests": 2}
    secrets = {
        name: one.post("", name=name, **{name: limit})["secret"] for name, limit in limits.items()
    }
    for secret in secrets.values():
        other.wait_for(secret, 200)
    rated = [process.ask(secrets["requests_per_minute"]) for process in processes * 10]
    statuses = Counter(response.status_code for response in rated)
    assert statuses.keys() == {200, 429}
    assert 10 <= statuses[200] <= 11, "one may be refilled meanwhile"
    secret, body = secrets["parallel_requests"], {"model": ARMS[0], "messages": ASK}
    with open_stream(one.url, secret, CHAT, body), open_stream(other.url, secret, CHAT, body):
        for process in processes:
            refused = process.ask(secret)
            assert refused.status_code == 429
            assert "may have 2 requests at the same time" in refused.text
    for process in processes:
        wait_for(lambda process=process: process.ask(secret).is_success, "the slots are free")
