"""Clients cannot increase the number of metric series."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable

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

REQUESTS = 50_000
FIRST = 4_000
KEY = new_key()
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW")
AUTHORIZED = {"authorization": f"Bearer {KEY}"}

Sent = tuple[str, str, dict[str, str], bytes]
"""Method, path, headers and body."""


def word(lot: random.Random) -> str:
    """Return a random name that no request has used before."""
    return f"{lot.getrandbits(64):x}"


def with_unknown_key(lot: random.Random) -> Sent:
    """Return a request with a random key, path and header."""
    headers = {"authorization": f"Bearer {word(lot)}", f"x-{word(lot)}": word(lot)}
    return lot.choice(METHODS), f"/v1/{word(lot)}", headers, b""


def with_unknown_path(lot: random.Random) -> Sent:
    """Return a request for an unknown resource below a known or unknown path."""
    below = lot.choice(("", "/v1/models", "/v1/decisions", "/admin", "/v1"))
    body = orjson.dumps({"model": word(lot)})
    return lot.choice(METHODS), f"{below}/{word(lot)}", AUTHORIZED, body


def with_unknown_model(lot: random.Random) -> Sent:
    """Return a chat request for an unknown model or policy."""
    name = lot.choice((word(lot), f"switchcraft:{word(lot)}"))
    headers = {"user-agent": word(lot), "x-request-id": word(lot)}
    return "POST", CHAT, AUTHORIZED | headers, orjson.dumps(BODY | {"model": name})


def with_feedback(lot: random.Random) -> Sent:
    """Return valid or invalid feedback on an unknown decision."""
    verdict = lot.choice(({"correct": True}, {word(lot): word(lot)}))
    return "POST", "/v1/feedback", AUTHORIZED, orjson.dumps({"decision_id": word(lot)} | verdict)


def with_random_fields(lot: random.Random) -> Sent:
    """Return a valid chat request with a random policy, tool, user and metadata."""
    tool = {"type": "function", "function": {"name": word(lot), "description": word(lot)}}
    headers = {
        "x-switchcraft-policy": f"{lot.choice(('theta', 'drift'))}={lot.random():.6f}",
        "x-request-id": word(lot),
        "x-stainless-lang": word(lot),
    }
    own = {"tools": [tool], "user": word(lot), "metadata": {word(lot): word(lot)}}
    return "POST", CHAT, AUTHORIZED | headers, orjson.dumps(BODY | own)


MIX: dict[Callable[[random.Random], Sent], float] = {
    with_unknown_key: 0.8,
    with_unknown_path: 0.11,
    with_feedback: 0.01,
    with_unknown_model: 0.075,
    with_random_fields: 0.005,
}


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
    kinds = lot.choices(list(MIX), list(MIX.values()), k=requests)
    return Counter([await status_of(app, kind(lot)) for kind in kinds])


def count_series(gateway: Gateway) -> int:
    """Return the number of series in a scrape."""
    gateway.refresh_gauges()
    lines = gateway.metrics.exposition().splitlines()
    return sum(not line.startswith(b"#") for line in lines)


@pytest.mark.timeout(900)
def test_client_chosen_names_add_no_metric_series(sandbox: Sandbox) -> None:
    """50,000 requests with random names do not change the number of series.

    The reference is the number after the first 4,000 requests of the same kinds, which cover
    every outcome.
    """
    settings = Settings.sandbox(
        sandbox.base_url, list(FakeRouter().probabilities), upstreams=ONE_TRY
    )
    keys = KeySettings(api={"team": SecretStr(KEY)}, admin=SecretStr(new_key()))
    app = create_app(settings.model_copy(update={"keys": keys}), FakeRouter())
    gateway: Gateway = app.state.gateway

    async def attack() -> tuple[int, int, Counter[int]]:
        async with gateway.running():
            await send_many(app, 0, FIRST)
            before = count_series(gateway)
            statuses = await send_many(app, 1, REQUESTS)
            return before, count_series(gateway), statuses

    before, after, statuses = asyncio.run(attack())
    assert after == before
    assert statuses.total() == REQUESTS
    assert {200, 401, 403, 404} <= statuses.keys()
    assert statuses[200] > REQUESTS / 400
