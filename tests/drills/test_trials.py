"""Canary releases next to the stable release, and the rollback of a worse one."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from router_service.store.redis import REJECTIONS_KEY
from switchcraft_training.cli import main
from tests.drills.processes import (
    Load,
    RedisServer,
    gateway,
    write_config,
)
from tests.publishing import make_artifact
from tests.serving import Sandbox


@pytest.fixture(scope="session")
def cheap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an artifact that chooses the cheapest arm."""
    return make_artifact(tmp_path_factory.mktemp("artifacts"), "cheap", "theta=0")


@pytest.fixture(scope="session")
def dear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an artifact that chooses the most probable arm at any price."""
    return make_artifact(tmp_path_factory.mktemp("artifacts"), "dear", "theta=1")


def test_expensive_canary_is_rolled_back_on_all_gateways(
    tmp_path: Path, upstream: Sandbox, cheap: Path, dear: Path, redis_server: RedisServer
) -> None:
    """One gateway sees the canary's cost; both return to the stable release and stay there."""
    where = ["--to", str(tmp_path / "releases")]
    assert main(["publish", str(cheap), *where]) == 0
    config = write_config(
        tmp_path / "config.yaml",
        upstream.base_url,
        router={"publication": str(tmp_path / "releases")},
        server={"redis_url": redis_server.url},
    )
    canary = ["--as", "canary", "--share", "0.5", "--min-requests", "20"]
    withdrawn = 'switchcraft_canary_withdrawals_total{bound="cost"}'
    with gateway(config, tmp_path) as one, gateway(config, tmp_path) as other:
        assert main(["publish", str(dear), *where, *canary]) == 0
        for served in (one, other):
            served.wait_for_canary(canary=True)
        with Load((one.url,)) as load:
            one.wait_for_metric(withdrawn, 1)
            for served in (one, other):
                served.wait_for_canary(canary=False)
            assert len(load.models) == 2
            load.models.clear()
            load.wait_for_answers(50)
            assert len(load.models) == 1
        load.check(upstream.stats()["completed"])
        assert "cause='a request cost" in one.log.read_text()
        assert other.metric(withdrawn) == 0
        with redis.Redis.from_url(redis_server.url) as server:
            assert server.hlen(REJECTIONS_KEY) == 1
        # If it is published again, it runs again.
        assert main(["publish", str(dear), *where, *canary]) == 0
        other.wait_for_canary(canary=True)
