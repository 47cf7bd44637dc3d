"""Gateways that share a Redis: changes of keys, limits, and an outage."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from router_service.core.keys import new_key
from tests.bodies import ASK, CHAT
from tests.drills.processes import (
    ARMS,
    GatewayProcess,
    Load,
    RedisServer,
    gateway,
    write_config,
)
from tests.keyed_gateways import open_stream
from tests.serving import Sandbox, wait_for
from tests.stored_keys import bearer

UP = 'switchcraft_dependency_up{dependency="shared_state"}'


def test_redis_outage_under_load_affects_no_request(
    tmp_path: Path, upstream: Sandbox, redis_server: RedisServer
) -> None:
    """Requests to two gateways of one Redis succeed without it; afterwards they share it again."""
    config = write_config(
        tmp_path / "config.yaml", upstream.base_url, server={"redis_url": redis_server.url}
    )
    with (
        gateway(config, tmp_path) as one,
        gateway(config, tmp_path) as other,
        Load((one.url, other.url), clients=2) as load,
    ):
        load.wait_for_answers()
        redis_server.kill()
        wait_for(lambda: one.metric(UP) == 0, "the metric shows that Redis is down")
        wait_for(lambda: one.http.get("/readyz").json()["store"] == "away", "so does readiness")
        load.wait_for_answers(100)
        redis_server.start()
        wait_for(lambda: one.metric(UP) == 1, "the metric shows that Redis is back")
        load.wait_for_answers()
        wait_for(lambda: one.http.get("/readyz").json()["store"] == "ok", "the store is back")
    load.check(upstream.stats()["completed"])


ADMIN = new_key()


@pytest.fixture
def gateways(
    tmp_path: Path, upstream: Sandbox, redis_server: RedisServer
) -> Iterator[tuple[GatewayProcess, GatewayProcess]]:
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
        yield one, other


def test_gateways_share_limits(gateways: tuple[GatewayProcess, GatewayProcess]) -> None:
    """Both gateways together admit as many requests as the key allows, and free its slots.

    A revoked key is refused by both.
    """
    one, other = gateways
    body = {"model": ARMS[0], "messages": ASK}

    def ask(served: GatewayProcess, secret: str) -> httpx.Response:
        return served.http.post(CHAT, json=body, headers=bearer(secret))

    def create(name: str, **limits: int) -> str:
        made = one.http.post("/admin/keys", json={"name": name, **limits})
        secret: str = made.json()["secret"]
        for served in gateways:
            url = f"{served.url}/v1/models"
            wait_for(lambda url=url: httpx.get(url, headers=bearer(secret)).is_success, "known")
        return secret

    rated, began_s = create("rated", requests_per_minute=10), time.monotonic()
    statuses = Counter(ask(served, rated).status_code for served in gateways * 10)
    refilled = (time.monotonic() - began_s) * 10 / 60
    assert 10 <= statuses[200] <= 11 + refilled
    assert statuses.total() == statuses[200] + statuses[429]
    secret = create("busy", parallel_requests=2)
    with open_stream(one.url, secret, CHAT, body), open_stream(other.url, secret, CHAT, body):
        for served in gateways:
            refused = ask(served, secret)
            assert refused.status_code == 429
            assert "may have 2 requests at the same time" in refused.text
    for served in gateways:
        wait_for(lambda served=served: ask(served, secret).is_success, "the slots are free")
    assert one.http.post("/admin/keys/busy/revoke").is_success
    for served in gateways:
        wait_for(lambda served=served: ask(served, secret).status_code == 401, "it is refused")
