"""Requests that upstreams get, their failures, and the waits that they ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from pydantic import SecretStr

from router_service.apis.chat.api import CHAT
from router_service.settings import Deployment
from router_service.upstream.client import (
    MAX_RETRY_AFTER_S,
    UpstreamAnswer,
    UpstreamClient,
    read_retry_after,
)
from router_service.upstream.connection import HttpRequest
from tests.attacks import WAITS
from tests.serving import Sandbox

pytestmark = pytest.mark.anyio

BODY = b'{"model":"m", "messages":[{"role":"user","content":"hi"}],"temperature":1e0}'


def served_at(base_url: str, key: str | None = None) -> Deployment:
    """Return a deployment at an address."""
    secret = SecretStr(key) if key else None
    return Deployment(upstream_model="m", base_url=base_url, api_key=secret)


def outgoing(deployment: Deployment, headers: Mapping[str, str] | None = None) -> HttpRequest:
    """Return a chat request with a client's headers."""
    url = deployment.url(CHAT.path)
    return HttpRequest("m", CHAT.path, url, BODY, deployment.timeouts, headers or {})


async def whole(answer: UpstreamAnswer) -> bytes:
    """Return a whole body."""
    return b"".join([part async for part in answer.chunks()])


def ask(deployment: Deployment, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
    """Return the status and the whole body of an answer."""

    async def exchange() -> tuple[int, bytes]:
        client = UpstreamClient(max_connections=5)
        with await client.send(deployment, outgoing(deployment, headers)) as response:
            answer = (response.status, await whole(response))
        await client.aclose()
        return answer

    return asyncio.run(exchange())


async def test_deployments_with_the_same_id_keep_their_own_headers(sandbox: Sandbox) -> None:
    """Two models may have the same upstream model and key, but send the key in other headers."""
    one = served_at(sandbox.base_url, "k")
    other = one.model_copy(update={"key_header": "x-api-key"})
    assert one.id == other.id

    client, sent = UpstreamClient(max_connections=5), []
    for deployment in (one, other, one):
        with await client.send(deployment, outgoing(deployment)) as answer:
            await whole(answer)
        sent.append(sandbox.last_headers().get("x-api-key"))
    await client.aclose()
    assert (sent) == [None, "k", None]


@pytest.mark.parametrize(
    ("headers", "expected_s"),
    [
        ({b"retry-after": b" 0.25 "}, 0.25),
        ({b"retry-after": b"Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({b"retry-after": b"99999999999"}, MAX_RETRY_AFTER_S),
        ({b"retry-after": b"Fri, 31 Dec 9999 23:59:59 -2359"}, MAX_RETRY_AFTER_S),
        ({b"retry-after-ms": b"9" * 64}, MAX_RETRY_AFTER_S),
        ({b"retry-after": b"2", b"retry-after-ms": b"1500"}, 1.5),
        ({b"retry-after": b"2", b"retry-after-ms": b"nan"}, 2),
    ],
)
def test_seconds_and_dates_are_read(headers: dict[bytes, bytes], expected_s: float) -> None:
    """Seconds, milliseconds and dates are read as waits from now of at most a day.

    OpenAI sends both headers. The exact one counts, unless it cannot be read.
    """
    assert read_retry_after(headers) == expected_s


@pytest.mark.parametrize("value", WAITS)
@pytest.mark.parametrize("name", [b"retry-after", b"retry-after-ms"])
def test_unreadable_waits_are_ignored(name: bytes, value: bytes) -> None:
    """An unreadable value counts as no wait."""
    assert read_retry_after({name: value}) is None
