"""Gateways share state through Redis and serve equally well without it."""

from __future__ import annotations

from pathlib import Path

from switchcraft_training.cli import main
from tests.drills.processes import (
    Load,
    RedisServer,
    gateway,
    wait_until,
    write_config,
)
from tests.serving import Sandbox

UP = 'switchcraft_dependency_up{dependency="shared_state"}'


def test_redis_outage_under_load_affects_no_request(
    tmp_path: Path, upstream: Sandbox, artifacts: dict[str, Path], redis_server: RedisServer
) -> None:
    """A publication serves on all gateways of one Redis, and requests succeed without Redis.

    When Redis is back, so is the shared state.
    """

    def publish(name: str) -> None:
        where = ["--to", redis_server.url, "--store", str(tmp_path / "store")]
        assert main(["publish", str(artifacts[name]), *where]) == 0
        for each in (one, other):
            each.wait_for_artifact(name)
        load.wait_for_answers()

    first = ["--to", redis_server.url, "--store", str(tmp_path / "store")]
    assert main(["publish", str(artifacts["one"]), *first]) == 0
    config = write_config(
        tmp_path / "config.yaml",
        upstream.base_url,
        router={"publication": "redis"},
        server={"redis_url": redis_server.url},
    )
    with (
        gateway(config, tmp_path) as one,
        gateway(config, tmp_path) as other,
        Load((one.url, other.url), clients=2) as load,
    ):
        publish("two")
        redis_server.kill()
        wait_until(lambda: one.metric(UP) == 0, "the metric shows that Redis is down")
        assert one.http.get("/readyz").json()["store"] == "away"
        load.wait_for_answers(100)
        redis_server.start()
        wait_until(lambda: one.metric(UP) == 1, "the metric shows that Redis is back")
        assert one.artifact() == "two"  # a Redis without a pointer changes nothing
        publish("one")
        wait_until(lambda: one.http.get("/readyz").json()["store"] == "ok", "the store is back")
    load.check(upstream.stats()["completed"])
