"""Real servers on free ports, for tests."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.types import ASGIApp

from router_service.http.protocol import BoundedProtocol, ConnectionLimits, protocol_with_limits
from router_service.serving.server import AcceptingServer
from router_service.settings import BreakerSettings, RetrySettings, UpstreamSettings

WAIT_S = 300.0
"""Longest wait for what should happen at once. On a busy machine, a start takes minutes."""
LIMITS = ConnectionLimits(max_header_bytes=32 * 1024, header_timeout_s=60, write_timeout_s=60)

ONE_TRY = UpstreamSettings(
    retries=RetrySettings(max_retries=0, budget_share=0, budget_floor_per_s=0),
    breaker=BreakerSettings(allowed_fails=1_000_000, cooldown_s=1e-6, max_cooldown_s=1e-6),
)
"""No retries, no fallbacks, and breakers that never open: a test's faults affect only itself."""


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Return once a condition holds; fail if it does not within `WAIT_S`."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError(f"waited {WAIT_S} s in vain: {what}")


async def wait_for_async(condition: Callable[[], Awaitable[object]], what: str) -> None:
    """Return once a condition holds; fail if it does not within `WAIT_S`."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if await condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"waited {WAIT_S} s in vain: {what}")


class ThreadServer(uvicorn.Server):
    """uvicorn server that another thread starts and stops without delay.

    uvicorn looks for `should_exit` every 0.1 s and then waits 0.1 s for connections to close. Tests
    start and stop hundreds of servers.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the server and set `ready`."""
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        await super().startup(sockets=sockets)
        self.ready.set()

    async def main_loop(self) -> None:
        """Serve until `stop`; update the date header every second."""
        while not self._stopping.is_set():
            await self.on_tick(0)
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close connections as soon as their answers end, or after the configured time."""
        for listener in (*self.servers, *(sockets or ())):
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                # uvicorn has no event for the end of all connections and tasks.
                while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110
                    await asyncio.sleep(0.005)
        for task in self.server_state.tasks:
            task.cancel()
        await self.lifespan.shutdown()

    def stop(self) -> None:
        """End the server from another thread."""
        self._loop.call_soon_threadsafe(self._stopping.set)


class GatewayServer(ThreadServer, AcceptingServer):
    """Server in a thread that accepts connections as the gateway does."""


@contextmanager
def served(
    app: ASGIApp, http: type[BoundedProtocol] | None = None, *, has_lifespan: bool = False
) -> Iterator[str]:
    """Serve an app from a thread like the gateway; yield its address, http://HOST:PORT.

    `has_lifespan` tells that an app which is not Starlette's wants to know of its start and end.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    http = http or protocol_with_limits(LIMITS)
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=http,
        lifespan="on" if has_lifespan or isinstance(app, Starlette) else "off",
        log_config=None,
        access_log=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,
    )
    server = GatewayServer(config)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        assert server.ready.wait(WAIT_S), "the server has not started"
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.stop()
        thread.join(WAIT_S)


@contextmanager
def connected(url: str, first: bytes = b"") -> Iterator[socket.socket]:
    """Yield a connection on which these bytes were sent; the client leaves at the block's end."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=WAIT_S) as connection:
        connection.sendall(first)
        yield connection


def post_bytes(path: str, body: Mapping[str, object], **headers: str) -> bytes:
    """Return a POST as it is sent; further headers have underscores instead of dashes."""
    content = json.dumps(body).encode()
    lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()]
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{''.join(lines)}"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


@contextmanager
def scripted(answer: bytes, seen: list[bytes] | None = None) -> Iterator[str]:
    """Answer every connection's first request by exactly these bytes, then disconnect.

    The first line of each request is added to `seen`.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=_play, args=(listener, answer, seen), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(WAIT_S)


def _play(listener: socket.socket, answer: bytes, seen: list[bytes] | None) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # the test closed the listener
        with connection, connection.makefile("rb") as lines:
            length, first = 0, lines.readline()
            for line in iter(lines.readline, b"\r\n"):
                name, _, value = line.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            lines.read(length)
            if seen is not None and first:
                seen.append(first)
            connection.sendall(answer)


@dataclass(frozen=True)
class Sandbox:
    """A running sandbox, with its counts and its last requests."""

    base_url: str

    def stats(self) -> dict[str, Any]:
        """Return its counts of requests, in total and by model."""
        stats: dict[str, Any] = self._get("stats").json()
        return stats

    def set_faults(self, model: str, faults: str) -> None:
        """Give a model's answers these faults from now on; an empty text removes them."""
        url = f"{self.base_url.removesuffix('/v1')}/sandbox/faults/{model}"
        httpx.put(url, content=faults).raise_for_status()

    def last_body(self) -> bytes:
        """Return the exact bytes of the last chat request's body."""
        return base64.b64decode(self._get("requests").json()[-1]["body_base64"])

    def last_headers(self) -> dict[str, str]:
        """Return the headers of the last chat request."""
        return dict(self._get("requests").json()[-1]["headers"])

    def _get(self, page: str) -> httpx.Response:
        return httpx.get(f"{self.base_url.removesuffix('/v1')}/sandbox/{page}")
