"""Clients cannot increase the number of metric series."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import httpx
import orjson
import pytest
from pydantic import SecretStr
from starlette.types import ASGIApp

from router_service.core.keys import new_key
from router_service.runtime.gateway import Gateway
from router_service.serving.app import create_app
from router_service.settings import KeySettings, Settings
from tests.bodies import BODY, CHAT
from tests.fakes import FakeRouter
from tests.serving import ONE_TRY, Sandbox

REQUESTS = 8_000
FIRST = 4_000
KEY = new_key()
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW")
AUTHORIZED = {"authorization": f"Bearer {KEY}"}

Sent = tuple[str, str, dict[str, str], bytes]
"""Method, path, headers and body."""


def random_request(lot: random.Random) -> Sent:
    """Return a request with names that no request has used before."""

    def word() -> str:
        return f"{lot.getrandbits(64):x}"

    named = {"user-agent": word(), "x-request-id": word(), "x-stainless-lang": word()}
    match lot.choices(("key", "path", "model", "feedback", "fields"), (60, 20, 12, 4, 4))[0]:
        case "key":
            headers = {"authorization": f"Bearer {word()}", f"x-{word()}": word()}
            return lot.choice(METHODS), f"/v1/{word()}", headers, b""
        case "path":
            below = lot.choice(("", "/v1/models", "/v1/decisions", "/admin", "/v1"))
            body = orjson.dumps({"model": word()})
            return lot.choice(METHODS), f"{below}/{word()}", AUTHORIZED, body
        case "model":
            body = orjson.dumps(BODY | {"model": lot.choice((word(), f"switchcraft:{word()}"))})
            return "POST", CHAT, AUTHORIZED | named, body
        case "feedback":
            verdict = lot.choice(({"correct": True}, {word(): word()}))
            body = orjson.dumps({"decision_id": word()} | verdict)
            return "POST", "/v1/feedback", AUTHORIZED, body
        case _:
            tool = {"type": "function", "function": {"name": word(), "description": word()}}
            policy = f"{lot.choice(('theta', 'drift'))}={lot.random():.6f}"
            own = {"tools": [tool], "user": word(), "metadata": {word(): word()}}
            headers = AUTHORIZED | named | {"x-switchcraft-policy": policy}
            return "POST", CHAT, headers, orjson.dumps(BODY | own)


async def send_many(app: ASGIApp, seed: int, requests: int) -> Counter[int]:
    """Send a number of mixed requests one after another; return their statuses."""
    lot, statuses = random.Random(seed), Counter[int]()
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        for _ in range(requests):
            method, path, headers, body = random_request(lot)
            answer = await http.request(method, path, headers=headers, content=body)
            statuses[answer.status_code] += 1
    return statuses


def series(gateway: Gateway) -> set[bytes]:
    """Return the names and labels of a scrape."""
    gateway.refresh_gauges()
    lines = gateway.metrics.exposition().splitlines()
    return {line.rpartition(b" ")[0] for line in lines if not line.startswith(b"#")}


@pytest.mark.timeout(900)
def test_client_chosen_names_add_no_metric_series(sandbox: Sandbox) -> None:
    """8,000 requests with random names do not change the number of series.

    The reference is the number after the first 4,000 requests of the same kinds, which cover
    every outcome.
    """
    settings = Settings.sandbox(
        sandbox.base_url, list(FakeRouter().probabilities), upstreams=ONE_TRY
    )
    keys = KeySettings(api={"team": SecretStr(KEY)}, admin=SecretStr(new_key()))
    app = create_app(settings.model_copy(update={"keys": keys}), FakeRouter())
    gateway: Gateway = app.state.gateway

    async def attack() -> tuple[set[bytes], set[bytes], Counter[int]]:
        async with gateway.running():
            await send_many(app, 0, FIRST)
            before = series(gateway)
            statuses = await send_many(app, 1, REQUESTS)
            return before, series(gateway), statuses

    before, after, statuses = asyncio.run(attack())
    assert after == before
    assert statuses.total() == REQUESTS
    assert {200, 401, 403, 404} <= statuses.keys()
    assert statuses[200] > REQUESTS / 400
