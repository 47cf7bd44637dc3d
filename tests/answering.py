"""An upstream that answers every request with what a test has prepared."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from router_service.serving.app import create_app
from router_service.settings import Model, Settings, UpstreamSettings
from tests import apis
from tests.apis import APIS, Api
from tests.fakes import PROBABILITIES, FakeRouter
from tests.gateways import NO_RETRIES, with_models
from tests.serving import ONE_TRY, served

MODELS = {apis.CHAT: "small", apis.RESPONSES: "medium", apis.MESSAGES: "large"}
"""The model that speaks each API, and no other."""

PATHS = {dialect: f"/v1{dialect.path}" for dialect in APIS}


class Answering:
    """ASGI app of the upstream. `answer` is the next body, `bodies` are those of the requests.

    `paths` are the requests' paths.
    """

    def __init__(self) -> None:
        self.answer = b"{}"
        self.is_stream = False
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        self.connections: list[object] = []
        """The client's address and port, for each request."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        self.bodies.append(await Request(scope, receive).body())
        self.paths.append(scope["path"])
        self.connections.append(scope["client"])
        kind = b"text/event-stream" if self.is_stream else b"application/json"
        head = [(b"content-type", kind), (b"content-length", b"%d" % len(self.answer))]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": self.answer})


class _Problems(logging.Handler):
    """Keeps the log records that have a traceback."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record with a traceback."""
        if record.exc_info:
            self.found.append(logging.Formatter().format(record))


@dataclass
class Peers:
    """A gateway between a client and an upstream, both of which send what a test prepares."""

    http: httpx.Client
    upstream: Answering
    problems: list[str] = field(default_factory=list)
    """The tracebacks that the gateway has logged."""

    def ask(
        self, client: Api, body: bytes, answer: bytes = b"{}", *, stream: bool = False
    ) -> httpx.Response:
        """Send a body, to which the upstream gives an answer."""
        self.upstream.answer, self.upstream.is_stream = answer, stream
        return self.post(PATHS[client], body)

    def post(self, path: str, body: bytes) -> httpx.Response:
        """Send any body to any path."""
        return self.http.post(path, content=body, headers={"content-type": "application/json"})


def settings_of(
    base_url: str, apis: Mapping[str, Api], upstreams: UpstreamSettings = NO_RETRIES
) -> Settings:
    """Return settings whose models each speak only one API."""
    settings = Settings.sandbox(base_url, list(PROBABILITIES), upstreams=upstreams)

    def speaks(model: Model) -> Mapping[str, object]:
        (own,) = model.deployments
        return {"deployments": (own.model_copy(update={"apis": (apis[model.name],)}),)}

    return with_models(settings, speaks)


@contextmanager
def peers() -> Iterator[Peers]:
    """Serve an upstream, and a gateway whose three models speak one API each."""
    # Clients that earlier tests left open would be closed, with a traceback, in the gateway's loop.
    gc.collect()
    upstream, problems = Answering(), _Problems()
    root = logging.getLogger()
    with served(upstream) as url:
        apis = {model: dialect for dialect, model in MODELS.items()}
        app = create_app(settings_of(f"{url}/v1", apis, ONE_TRY), FakeRouter())
        root.addHandler(problems)
        try:
            with (
                served(app) as gateway,
                httpx.Client(base_url=gateway) as http,
            ):
                yield Peers(http, upstream, problems.found)
        finally:
            root.removeHandler(problems)
