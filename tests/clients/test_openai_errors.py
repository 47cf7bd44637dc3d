"""Failures in the `openai` client for Python: typed errors, timeouts, retries, cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from typing import Any

import openai
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from router_service.serving.app import create_app
from router_service.settings import RouterSettings, Settings
from tests.bodies import ASK, TOOLS
from tests.fakes import FakeRouter
from tests.serving import Sandbox, served, wait_for

ROUTED: dict[str, Any] = {"model": "switchcraft", "messages": ASK, "tools": TOOLS}


def failing(how: str) -> dict[str, Any]:
    """Return a request whose upstream fails in a given way."""
    return ROUTED | {"extra_headers": {"x-sandbox": how}}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("status=400", openai.BadRequestError),
        ("status=429", openai.RateLimitError),
        ("status=500", openai.InternalServerError),
        ("status=503", openai.InternalServerError),
        ("cut_after=0", openai.InternalServerError),
    ],
)
def test_upstream_failure_raises_the_error_of_its_status(
    client: openai.OpenAI, how: str, kind: type[openai.APIStatusError], stream: bool
) -> None:
    """Before the first event, a failure raises the client's typed error with a useful message."""
    with pytest.raises(kind) as raised:
        client.chat.completions.create(**failing(how), stream=stream)
    assert raised.value.type
    assert isinstance(raised.value.body, dict)
    assert raised.value.body["message"]
    assert raised.value.request_id


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"model": "unknown"}, openai.NotFoundError, "model"),
        ({"model": "switchcraft:unknown"}, openai.BadRequestError, "model"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"messages": "text"}, openai.BadRequestError, "messages"),
    ],
)
def test_invalid_request_raises_an_error_that_names_the_field(
    client: openai.OpenAI,
    fields: dict[str, Any],
    kind: type[openai.APIStatusError],
    param: str,
) -> None:
    """A refused request raises the client's typed error, which names the field."""
    with pytest.raises(kind) as raised:
        client.chat.completions.create(**ROUTED | fields)
    assert raised.value.type == "invalid_request_error"
    assert str(raised.value.param).startswith(param)


def test_a_broken_stream_raises(client: openai.OpenAI) -> None:
    """The client reads the chunks before the break and then raises."""
    stream = client.chat.completions.create(**failing("cut_after=2"), stream=True)
    chunks: list[object] = []
    with pytest.raises(openai.APIError):
        chunks.extend(stream)
    assert len(chunks) == 2


def test_unreachable_gateway_raises_a_connection_error() -> None:
    """Without a gateway, the client raises a connection error."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="k", max_retries=0)
    with pytest.raises(openai.APIConnectionError):
        client.chat.completions.create(**ROUTED)


@pytest.mark.parametrize("stream", [False, True])
def test_a_timed_out_client_cancels_the_upstream(
    client: openai.OpenAI, sandbox: Sandbox, stream: bool
) -> None:
    """A client timeout also ends the upstream's work."""
    before = sandbox.stats()
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=1).chat.completions.create(**failing("hang"), stream=stream)
    wait_for(
        lambda: (
            sandbox.stats()["cancelled"] > before["cancelled"]
            and sandbox.stats()["in_flight"] == before["in_flight"]
        ),
        "the upstream's work is cancelled",
    )


def test_a_closed_stream_cancels_the_upstream(
    client: openai.OpenAI, sandbox: Sandbox, caplog: pytest.LogCaptureFixture
) -> None:
    """Closing a stream after a chunk cancels the upstream, and the request is still logged."""
    caplog.set_level(logging.INFO, "switchcraft.request")
    before = sandbox.stats()
    asked = failing("chunk_delay_s=60")
    asked["extra_headers"]["x-request-id"] = "closed-stream"
    with client.chat.completions.create(**asked, stream=True) as stream:
        assert next(iter(stream)).model == "medium"
    wait_for(lambda: sandbox.stats()["cancelled"] == before["cancelled"] + 1, "it is cancelled")
    wait_for(lambda: ending(caplog, "closed-stream"), "the request is logged")
    assert ending(caplog, "closed-stream") == "client_left"


@pytest.mark.parametrize("stream", [False, True])
def test_a_cancelled_task_cancels_the_upstream(
    base_url: str, sandbox: Sandbox, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    """Cancelling an async request before its first byte cancels the upstream; it is logged."""
    caplog.set_level(logging.INFO, "switchcraft.request")
    before = sandbox.stats()
    asked = failing("hang")
    asked["extra_headers"]["x-request-id"] = f"cancelled-{stream}"

    async def leave() -> None:
        async with openai.AsyncOpenAI(base_url=base_url, api_key="k", max_retries=0) as client:
            task = asyncio.create_task(client.chat.completions.create(**asked, stream=stream))
            await asyncio.to_thread(
                wait_for,
                lambda: sandbox.stats()["in_flight"] > before["in_flight"],
                "the upstream is asked",
            )
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    asyncio.run(leave())
    wait_for(lambda: sandbox.stats()["cancelled"] == before["cancelled"] + 1, "it is cancelled")
    wait_for(lambda: ending(caplog, f"cancelled-{stream}"), "the request is logged")
    assert ending(caplog, f"cancelled-{stream}") == "client_left"


def ending(caplog: pytest.LogCaptureFixture, request_id: str) -> object:
    """Return a request's outcome from its log line, or None before there is one."""
    fields = [getattr(record, "fields", {}) for record in caplog.records]
    endings = [line.get("ending") for line in fields if line.get("request_id") == request_id]
    assert len(endings) <= 1
    return endings[0] if endings else None


WAIT_MS = 300


async def _busy_at_first(request: Request) -> Response:
    """Refuse the client's first attempt and answer its retry."""
    if request.headers["x-stainless-retry-count"] == "0":
        error = {"message": "busy", "type": "requests", "param": None, "code": None}
        headers = {"retry-after-ms": str(WAIT_MS)}
        return JSONResponse({"error": error}, 429, headers)
    message = {"role": "assistant", "content": "at last"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return JSONResponse(
        {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    )


def test_client_retry_waits_for_retry_after() -> None:
    """A rate limit's `Retry-After` reaches the client, which waits that long before its retry."""
    routes = [Route("/v1/chat/completions", _busy_at_first, methods=["POST"])]
    router = FakeRouter()
    with served(Starlette(routes=routes)) as upstream:
        base = Settings.sandbox(f"{upstream}/v1", list(router.probabilities))
        forwarding = RouterSettings(forward_headers=("x-stainless-retry-count",))
        settings = base.model_copy(update={"router": forwarding})
        with served(create_app(settings, router)) as url:
            client = openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=1)
            started_s = time.monotonic()
            answer = client.chat.completions.create(**ROUTED)
            waited_s = time.monotonic() - started_s
    assert answer.choices[0].message.content == "at last"
    assert waited_s >= WAIT_MS / 1000
