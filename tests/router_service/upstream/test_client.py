"""Requests that upstreams get, their failures, and the waits that they ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from pydantic import SecretStr

from router_service.apis.chat.api import CHAT
from router_service.apis.usage import Usage
from router_service.core.errors import Failure, UpstreamError
from router_service.settings import Deployment
from router_service.upstream.client import (
    MAX_RETRY_AFTER_S,
    UpstreamAnswer,
    UpstreamClient,
    read_retry_after,
)
from router_service.upstream.connection import HttpRequest
from router_service.upstream.streams import EventReader
from tests.attacks import WAITS
from tests.serving import Sandbox, scripted

pytestmark = pytest.mark.anyio

BODY = b'{"model":"m", "messages":[{"role":"user","content":"hi"}],"temperature":1e0}'


EVENTS = b'data: {"choices":[]}\n\ndata: {"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"


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


def ask(
    deployment: Deployment, headers: Mapping[str, str] | None = None, *, times: int = 1
) -> tuple[int, bytes]:
    """Return the status and the whole body of the last answer of one client."""

    async def exchange() -> tuple[int, bytes]:
        client = UpstreamClient(max_connections=5)
        answer = (0, b"")
        for _ in range(times):
            with await client.send(deployment, outgoing(deployment, headers)) as response:
                answer = (response.status, await whole(response))
        await client.aclose()
        return answer

    return asyncio.run(exchange())


def read_stream(base_url: str) -> tuple[list[bytes], Usage | None, UpstreamError | None]:
    """Return the chunks of a stream, its usage, and its error."""

    async def exchange() -> tuple[list[bytes], Usage | None, UpstreamError | None]:
        deployment = served_at(base_url)
        client = UpstreamClient(max_connections=5)
        with await client.send(deployment, outgoing(deployment)) as answer:
            assert answer.is_stream
            reader, parts, error = EventReader(answer), [], None
            try:
                async for events in reader.events:
                    parts.append(events)  # noqa: PERF401 - what came before an error is kept
            except UpstreamError as exc:
                error = exc
        await client.aclose()
        return parts, reader.usage, error

    return asyncio.run(exchange())


def test_body_is_unchanged_and_headers_are_filtered(sandbox: Sandbox) -> None:
    """Only client headers that are meant for upstreams are forwarded."""
    headers = {
        "authorization": "Bearer client",
        "api-key": "client",
        "cookie": "a=client",
        "openai-organization": "client",
        "x-other": "client",
        "traceparent": "00-trace",
        "x-request-id": "r\xe9q",
    }
    status, _ = ask(served_at(sandbox.base_url, "upstream-key\n"), headers)
    assert status == 200
    assert sandbox.last_body() == BODY
    sent = sandbox.last_headers()
    assert "client" not in " ".join(sent.values())
    assert sent["authorization"] == "Bearer upstream-key"
    assert sent["accept-encoding"] == "identity"
    assert (sent["traceparent"], sent["x-request-id"]) == ("00-trace", "r\xe9q")


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


@pytest.mark.parametrize("base_url", ["http://127.0.0.1:99999/v1", "http://a..b/v1"])
def test_invalid_address_counts_as_unreachable(base_url: str) -> None:
    """The first request reports it, and other models can answer instead."""
    with pytest.raises(UpstreamError) as failed:
        ask(served_at(base_url))
    assert failed.value.failure is Failure.UNREACHABLE


def test_redirects_are_not_followed() -> None:
    """An upstream cannot redirect a request, and the key in it, to another address."""
    head = b"HTTP/1.1 307 Go\r\nlocation: http://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n"
    with scripted(head) as url, pytest.raises(UpstreamError, match="status 307"):
        ask(served_at(url, "k"))


def test_stream_without_length_needs_its_last_event() -> None:
    """If only the closed connection ends a body, a stream without [DONE] is a broken one."""
    with scripted(STREAM_HEAD + b"\r\n" + EVENTS) as url:
        parts, _, error = read_stream(url)
    assert (b"".join(parts), error is None) == (EVENTS, False)
    with scripted(STREAM_HEAD + b"\r\n" + EVENTS + b"data: [DONE]\n\n") as url:
        parts, _, error = read_stream(url)
    assert (b"".join(parts), error) == (EVENTS + b"data: [DONE]\n\n", None)


def test_error_is_never_a_stream() -> None:
    """An error's body is read whole, even if its content type is a stream."""
    head = STREAM_HEAD.replace(b"200 OK", b"500 Oops") + b"content-length: 2\r\n\r\n{}"
    with scripted(head) as url:
        assert ask(served_at(url)) == (500, b"{}")


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
