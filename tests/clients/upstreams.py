"""Gateways in front of upstreams whose answers a test defines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp

from router_service.serving.app import create_app
from router_service.settings import Settings
from tests.fakes import FakeRouter
from tests.serving import scripted, served


@contextmanager
def gateway_before(upstream: str) -> Iterator[str]:
    """Serve a gateway whose arms all use one base URL; yield the gateway's base URL."""
    router = FakeRouter()
    settings = Settings.sandbox(upstream, list(router.probabilities))
    with served(create_app(settings, router)) as url:
        yield f"{url}/v1"


@contextmanager
def gateway_before_script(answer: bytes) -> Iterator[str]:
    """Serve a gateway whose upstream answers with these bytes; yield the gateway's base URL."""
    with scripted(answer) as upstream, gateway_before(upstream) as url:
        yield url


@contextmanager
def gateway_before_app(app: ASGIApp) -> Iterator[str]:
    """Serve a gateway whose upstream is an app; yield the gateway's base URL."""
    with served(app) as upstream, gateway_before(f"{upstream}/v1") as url:
        yield url


def json_answer(body: bytes) -> bytes:
    """Return an HTTP answer of JSON."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


def event_stream(body: bytes, *, chunk_bytes: int | None = None) -> bytes:
    """Return an HTTP answer of server-sent events, optionally in chunks of one size."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
    if chunk_bytes is None:
        return head + b"content-length: %d\r\n\r\n" % len(body) + body
    parts = [body[at : at + chunk_bytes] for at in range(0, len(body), chunk_bytes)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in [*parts, b""])
    return head + b"transfer-encoding: chunked\r\n\r\n" + chunks
