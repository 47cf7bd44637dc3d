"""Gateways to attack: one in this process with low limits, and one in a separate process."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from fastapi import FastAPI
from pydantic import SecretStr

from router_service.core.keys import new_key
from router_service.http.protocol import BoundedProtocol
from router_service.serving.app import create_app
from router_service.serving.server import uvicorn_config
from router_service.settings import KeySettings, ServerSettings, Settings
from tests.fakes import FakeRouter
from tests.hostile.target import Target, running_target
from tests.serving import Sandbox, served

SERVER = ServerSettings(
    max_body_bytes=200_000,
    body_timeout_s=2,  # two tests wait for it; a busy machine needs a second for a whole body
    max_header_bytes=16_000,
)
API_KEY, ADMIN_KEY = new_key(), new_key()


@pytest.fixture(scope="session")
def app(sandbox: Sandbox) -> FastAPI:
    """Return a gateway with an API key and an admin key, in front of the sandbox."""
    settings = Settings.sandbox(sandbox.base_url, list(FakeRouter().probabilities), server=SERVER)
    keys = KeySettings(api={"team-a": SecretStr(API_KEY)}, admin=SecretStr(ADMIN_KEY))
    return create_app(settings.model_copy(update={"keys": keys}), FakeRouter())


@pytest.fixture(scope="session")
def url(app: FastAPI) -> Iterator[str]:
    """Serve the gateway with the protocol class of production; yield its address."""
    protocol = uvicorn_config(app, SERVER).http
    assert isinstance(protocol, type)
    assert issubclass(protocol, BoundedProtocol)
    with served(app, http=protocol) as address:
        yield address


@pytest.fixture(scope="session")
def http(url: str) -> Iterator[httpx.Client]:
    """Yield a client that sends the API key."""
    headers = {"authorization": f"Bearer {API_KEY}"}
    with httpx.Client(base_url=url, headers=headers) as client:
        yield client


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Yield a gateway process with a malicious upstream."""
    with running_target(tmp_path_factory.mktemp("hostile")) as running:
        yield running
