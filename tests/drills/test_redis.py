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


def publish_options(redis_server: RedisServer, folder: Path) -> list[str]:
    """Return the options of `publish` for this Redis and a store of releases."""
    return ["--to", redis_server.url, "--store", str(folder / "store")]


def write_redis_config(redis_server: RedisServer, folder: Path, upstream: Sandbox) -> Path:
    """Write a configuration that serves the publication in this Redis."""
    redis_url = redis_server.url
    return write_config(
        folder / "config.yaml",
        upstream.base_url,
        router={"publication": "redis"},
        server={"redis_url": redis_url},
    )


def test_publication_serves_on_all_gateways(
    tmp_path: Path, upstream: Sandbox, artifacts: dict[str, Path], redis_server: RedisServer
) -> None:
    """A publication serves on both gateways of one Redis, without lost requests."""
    where = publish_options(redis_server, tmp_path)
    assert main(["publish", str(artifacts["one"]), *where]) == 0
    config = write_redis_config(redis_server, tmp_path, upstream)
    with gateway(config, tmp_path) as one, gateway(config, tmp_path) as other:
        assert one.artifact() == other.artifact() == "one"
        with Load((one.url, other.url), clients=2) as load:
            for name in ("two", "one"):
                assert main(["publish", str(artifacts[name]), *where]) == 0
                one.wait_for_artifact(name)
                other.wait_for_artifact(name)
                load.wait_for_answers()
        load.check(upstream.stats()["completed"])


def test_redis_outage_under_load_affects_no_request(
    tmp_path: Path, upstream: Sandbox, artifacts: dict[str, Path], redis_server: RedisServer
) -> None:
    """Requests succeed while Redis is down; when Redis is back, so is the shared state."""
    where = publish_options(redis_server, tmp_path)
    assert main(["publish", str(artifacts["one"]), *where]) == 0
    config = write_redis_config(redis_server, tmp_path, upstream)
    with gateway(config, tmp_path) as served, Load((served.url,), clients=2) as load:
        redis_server.kill()
        wait_until(lambda: served.metric(UP) == 0, "the metric shows that Redis is down")
        assert served.http.get("/readyz").json()["store"] == "away"
        load.wait_for_answers(100)
        redis_server.start()
        wait_until(lambda: served.metric(UP) == 1, "the metric shows that Redis is back")
        assert served.artifact() == "one"  # a Redis without a pointer changes nothing
        assert main(["publish", str(artifacts["two"]), *where]) == 0
        served.wait_for_artifact("two")
        load.wait_for_answers()
        wait_until(lambda: served.http.get("/readyz").json()["store"] == "ok", "the store is back")
    load.check(upstream.stats()["completed"])
