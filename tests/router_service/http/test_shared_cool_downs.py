"""Cool-downs in Redis that no gateway wrote."""

from __future__ import annotations

import time

import httpx
import pytest
import redis
from pydantic import SecretStr

from router_service.serving.app import create_app
from router_service.settings import BreakerSettings, ServerSettings, Settings, UpstreamSettings
from tests.bodies import CHAT
from tests.fakes import FakeRouter
from tests.serving import Sandbox, served, wait_for

COOL_DOWNS = "switchcraft:cool-downs"
LONGEST_S = 2.0


@pytest.mark.parametrize("ends_in_s", [115 * 24 * 3600.0, 1e300])
def test_mistaken_cool_down_is_bounded(sandbox: Sandbox, redis_url: str, ends_in_s: float) -> None:
    """The cool-down lasts at most `max_cooldown_s`, is adopted once, and ends if it is deleted."""
    upstreams = UpstreamSettings(breaker=BreakerSettings(max_cooldown_s=LONGEST_S))
    server = ServerSettings(redis_url=SecretStr(redis_url))
    settings = Settings.sandbox(
        sandbox.base_url, list(FakeRouter().probabilities), server=server, upstreams=upstreams
    )
    body = {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}
    deployment_id = next(m.deployments[0].id for m in settings.models if m.name == "small")
    with (
        redis.Redis.from_url(redis_url) as client,
        served(create_app(settings, FakeRouter())) as url,
        httpx.Client(base_url=url) as http,
    ):

        def answers(status: int) -> bool:
            return http.post(CHAT, json=body).status_code == status

        client.delete(COOL_DOWNS)
        try:
            client.zadd(COOL_DOWNS, {deployment_id: time.time() + ends_in_s})
            wait_for(lambda: answers(503), "the cool-down is adopted")
            adopted_s = time.monotonic()
            wait_for(lambda: answers(200), "it has ended though the entry stays")
            assert time.monotonic() - adopted_s < LONGEST_S + 1
            time.sleep(0.6)  # time for another read, which must not adopt it again
            assert answers(200)
            client.zadd(COOL_DOWNS, {deployment_id: time.time() + 2 * ends_in_s})
            wait_for(lambda: answers(503), "another entry is adopted")
            client.delete(COOL_DOWNS)
            deleted_s = time.monotonic()
            wait_for(lambda: answers(200), "it has ended with its entry")
            assert time.monotonic() - deleted_s < LONGEST_S
        finally:
            client.delete(COOL_DOWNS)
