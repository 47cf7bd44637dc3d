"""Clients cannot increase the number of metric series."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import orjson
import pytest
from pydantic import SecretStr
from starlette.types import ASGIApp, Message, Scope

from router_service.core.keys import new_key
from router_service.runtime.gateway import Gateway
from router_service.serving.app import create_app
from router_service.settings import KeySettings, Settings
from tests.bodies import BODY, CHAT
from tests.fakes import FakeRouter
from tests.serving import ONE_TRY, Sandbox

REQUESTS = 16_000
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


async def status_of(app: ASGIApp, sent: Sent) -> int:
    """Send a request to an app as a server does; return the status of its answer."""
    method, path, headers, body = sent
    named = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope: Scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(),
        "query_string": b"", "headers": [(b"host", b"localhost"), *named], "scheme": "http",
        "http_version": "1.1", "server": ("localhost", 80), "client": ("127.0.0.1", 1), "state": {},
    }  # fmt: skip
    statuses: list[int] = []
    parts = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> Message:
        for part in parts:
            return part
        await asyncio.Event().wait()  # the client stays connected
        raise AssertionError

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(scope, receive, send)
    (status,) = statuses
    return status


async def send_many(app: ASGIApp, seed: int, requests: int) -> Counter[int]:
    """Send a number of mixed requests one after another; return their statuses."""
    lot = random.Random(seed)
    return Counter([await status_of(app, random_request(lot)) for _ in range(requests)])


def series(gateway: Gateway) -> set[bytes]:
    """Return the names and labels of a scrape."""
    gateway.refresh_gauges()
    lines = gateway.metrics.exposition().splitlines()
    return {line.rpartition(b" ")[0] for line in lines if not line.startswith(b"#")}


@pytest.mark.timeout(900)
def test_client_chosen_names_add_no_metric_series(sandbox: Sandbox) -> None:
    """16,000 requests with random names do not change the number of series.

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
