"""Gateways share state through Redis and serve equally well without it."""

from __future__ import annotations

from pathlib import Path

from tests.drills.processes import (
    Load,
    RedisServer,
    gateway,
    write_config,
)
from tests.serving import Sandbox, wait_for

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
        assert one.http.get("/readyz").json()["store"] == "away"
        load.wait_for_answers(100)
        redis_server.start()
        wait_for(lambda: one.metric(UP) == 1, "the metric shows that Redis is back")
        load.wait_for_answers()
        wait_for(lambda: one.http.get("/readyz").json()["store"] == "ok", "the store is back")
    load.check(upstream.stats()["completed"])
