"""One gateway in front of one upstream, which sends exactly the bytes that a test scripts."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx

from router_service.policies.costs import Price
from router_service.router import Router
from router_service.serving.app import create_app
from router_service.settings import (
    Deployment,
    Model,
    RouterSettings,
    Settings,
    Timeouts,
    UpstreamSettings,
)
from tests.apis import APIS, CHAT, Api
from tests.fakes import PROBABILITIES, FakeRouter
from tests.gateways import NO_RETRIES, record_of
from tests.serving import ONE_TRY, WAIT_S, served

JSON, EVENTS = b"application/json", b"text/event-stream"
DONE = b"data: [DONE]\n\n"

PRICE = Price(
    input_usd_per_mtok=10,
    output_usd_per_mtok=100,
    cached_input_usd_per_mtok=1,
    reasoning_usd_per_mtok=200,
)

Answer = Callable[[], Iterator[bytes]]
"""What is sent for one request, in parts, of which each may wait for the test."""


def exactly(*parts: bytes) -> Answer:
    """Return an answer of exactly these bytes. The connection is closed after them."""
    return lambda: iter((*parts, b""))


def whole(body: bytes, status: int = 200, *headers: bytes, kind: bytes = JSON) -> Answer:
    """Return an answer with its length."""
    lines = (b"HTTP/1.1 %d X" % status, b"content-type: " + kind, *headers)
    head = b"\r\n".join((*lines, b"content-length: %d" % len(body), b"", b""))
    return lambda: iter((head, body)) if body else iter((head,))


def stream(*parts: bytes, wait: threading.Event | None = None, headers: bytes = b"") -> Answer:
    """Return a chunked stream. If `wait` is given, its last part and its end wait for it."""

    def answer() -> Iterator[bytes]:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: " + EVENTS + b"\r\n" + headers
        yield head + b"transfer-encoding: chunked\r\n\r\n"
        for number, part in enumerate(parts):
            if wait is not None and number == len(parts) - 1:
                assert wait.wait(WAIT_S)
            if part:
                yield b"%x\r\n%b\r\n" % (len(part), part)
        yield b"0\r\n\r\n"

    return answer


def data(*values: object) -> bytes:
    """Return events without names."""
    return b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values)


@dataclass
class Upstream:
    """Server with several places, each of which gives its answers in turn, and repeats the last."""

    url: str = ""
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    """By the first segment of the path."""
    asked: list[tuple[str, bytes]] = field(default_factory=list)
    """Place, and head with body, of each request."""
    connections: int = 0

    @contextmanager
    def serve(self) -> Iterator[None]:
        """Serve connections until the block is left."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=self._accept, args=(listener,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            thread.join(WAIT_S)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._play, args=(connection,), daemon=True).start()

    def _play(self, connection: socket.socket) -> None:
        # The gateway closes connections whose answers it does not read to their end.
        with suppress(OSError), connection, connection.makefile("rb") as lines:
            while first := lines.readline():
                length, head = 0, first
                for line in iter(lines.readline, b"\r\n"):
                    head += line
                    name, _, value = line.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                place = first.split(b"/")[1].decode()
                self.asked.append((place, head + b"\r\n" + lines.read(length)))
                answers = self.answers[place]
                for part in (answers.pop(0) if len(answers) > 1 else answers[0])():
                    if not part:
                        return
                    connection.sendall(part)


@dataclass
class Script:
    """The gateway's client, and what the upstream answers to the current test.

    Three models have the names of the APIs that they speak at the place `first`. `chat+` and so on
    have another deployment at `second`, which speaks Chat Completions, and `chat?` and so on never
    send reasons. The arms `small`, `medium` and `large` are places of their own, which speak all
    three; `medium` is the fallback of `small`. `twice` has two deployments, and the fallback
    `large`. `priced` and `timed` cost money for tokens and for time; the prices of models that are
    no arms are unknown. All else is passed through to `passed`.
    """

    http: httpx.Client
    upstream: Upstream

    def play(self, *answers: Answer, at: str = "first") -> None:
        """Set the next answers of a place."""
        self.upstream.answers[at] = list(answers)

    def ask(self, client: Api = CHAT, **fields: object) -> httpx.Response:
        """Ask the model `chat` for a stream, if nothing else is said."""
        return self.http.post(f"/v1{client.path}", json=body_of(client, **fields))

    def places(self) -> list[str]:
        """Return the places that were asked."""
        return [place for place, _ in self.upstream.asked]

    def record(self, response: httpx.Response) -> dict[str, Any]:
        """Return the decision record of a response."""
        return record_of(self.http, response)


def body_of(client: Api, **fields: object) -> dict[str, object]:
    """Return a request of a client's API."""
    messages = [{"role": "user", "content": "Hi"}]
    own: dict[str, dict[str, object]] = {
        "responses": {"input": "Hi", "store": False},
        "messages": {"messages": messages, "max_tokens": 100},
    }
    return {
        "model": "chat",
        "stream": True,
        **own.get(client.name, {"messages": messages}),
    } | fields


_deployment = partial(Deployment, timeouts=Timeouts(hold_s=60))
"""A deployment whose beginnings are held however slowly they arrive, as on a busy machine."""


def _models(url: str) -> Iterator[Model]:
    spare = _deployment(upstream_model="m", base_url=f"{url}/second/v1", weight=0.0, apis=(CHAT,))
    for api in APIS:
        place = _deployment(upstream_model="m", base_url=f"{url}/first/v1", apis=(api,))
        yield Model(name=api.name, deployments=(place,))
        yield Model(name=f"{api.name}+", deployments=(place, spare))
        unmarked = place.model_copy(update={"sends_finish_reason": False})
        yield Model(name=f"{api.name}?", deployments=(unmarked,))
    for arm in (*PROBABILITIES, "passed"):
        place = _deployment(upstream_model=arm, base_url=f"{url}/{arm}/v1", apis=tuple(APIS))
        fallbacks = ("medium",) if arm == "small" else ()
        yield Model(name=arm, deployments=(place,), fallbacks=fallbacks)
    place = _deployment(upstream_model="m", base_url=f"{url}/first/v1")
    yield Model(name="twice", deployments=(place, spare), fallbacks=("large",))
    yield Model(name="priced", deployments=(place,), price=PRICE)
    yield Model(name="timed", deployments=(place,), price=Price(usd_per_hour=3600))


RETRYING = ONE_TRY.model_copy(
    update={"retries": NO_RETRIES.retries.model_copy(update={"max_retries": 2, "backoff_s": 0.001})}
)
"""Each model is tried three times, and breakers never open."""


@contextmanager
def scripted_gateway(
    router: Router | None = None, upstreams: UpstreamSettings = RETRYING, **section: object
) -> Iterator[Script]:
    """Serve the gateway; `section` has further settings of `router`."""
    upstream = Upstream()
    common = {"unknown_prices": "allow", "pass_through": "passed"}
    with upstream.serve():
        settings = Settings(
            models=tuple(_models(upstream.url)),
            upstreams=upstreams,
            router=RouterSettings.model_validate(common | section),
        )
        with (
            served(create_app(settings, router or FakeRouter())) as url,
            httpx.Client(base_url=url) as http,
        ):
            yield Script(http, upstream)
