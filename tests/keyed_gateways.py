"""Gateways whose keys are in their database, and connections that clients hold open."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
from pydantic import SecretStr

from router_service.core.keys import new_key
from router_service.router import Router
from router_service.runtime.gateway import Gateway
from router_service.serving.app import create_app
from router_service.settings import KeySettings, Settings
from tests.fakes import PROBABILITIES, FakeRouter
from tests.serving import ONE_TRY, Sandbox, connected, post_bytes, served, wait_for
from tests.stored_keys import add_key, add_team, bearer


@dataclass(frozen=True)
class KeyedGateway:
    """A gateway with a database in memory."""

    url: str
    state: Gateway
    http: httpx.Client

    def add_team(self, name: str, **columns: object) -> None:
        """Add a team; columns are its limits."""
        add_team(self.state.database.database, name, **columns)

    def add_key(self, name: str, **columns: object) -> str:
        """Add a key, and return its secret once the gateway knows it."""
        secret = add_key(self.state.database.database, name, **columns)

        def is_known() -> bool:
            return self.http.get("/v1/models", headers=bearer(secret)).status_code == 200

        wait_for(is_known, f"the key {name} is known")
        return secret

    def post(
        self, secret: str, path: str, body: Mapping[str, object], **headers: str
    ) -> httpx.Response:
        """Send a request with a key; further headers have underscores instead of dashes."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.http.post(path, json=body, headers=bearer(secret) | named)


@contextmanager
def keyed_gateway(
    sandbox: Sandbox, settings: Settings | None = None, router: Router | None = None
) -> Iterator[KeyedGateway]:
    """Serve a gateway whose models are the fake routers' arms."""
    settings = settings or Settings.sandbox(
        sandbox.base_url, list(PROBABILITIES), upstreams=ONE_TRY
    )
    # With an admin key, the gateway is not open before the first key is added.
    keys = KeySettings(admin=SecretStr(new_key()))
    app = create_app(settings.model_copy(update={"keys": keys}), router or FakeRouter())
    with served(app) as url, httpx.Client(base_url=url) as http:
        yield KeyedGateway(url, app.state.gateway, http)


@contextmanager
def open_stream(
    url: str, secret: str, path: str, body: Mapping[str, object]
) -> Iterator[socket.socket]:
    """Hold a stream open that the upstream has begun; the client leaves at the end of the block."""
    held = {"x_sandbox": "chunk_delay_s=60", "authorization": f"Bearer {secret}"}
    with connected(url, post_bytes(path, {**body, "stream": True}, **held)) as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        yield connection
