"""A gateway on a real port, in front of a sandbox, for common clients."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from router_service.serving.app import create_app
from router_service.settings import BreakerSettings, RetrySettings, Settings, UpstreamSettings
from tests.fakes import FakeRouter
from tests.serving import Sandbox, served

UNPROTECTED = UpstreamSettings(
    retries=RetrySettings(max_retries=0),
    breaker=BreakerSettings(allowed_fails=1_000_000, cooldown_s=0.001, max_cooldown_s=0.001),
)
"""A test's faults must not affect the next test: no breaker opens because of failures, and
`Retry-After` of a provider opens one only briefly."""


@pytest.fixture(scope="session")
def gateway_url(sandbox: Sandbox) -> Iterator[str]:
    """Serve a gateway whose arms are models of the sandbox; yield http://HOST:PORT."""
    router = FakeRouter()
    settings = Settings.sandbox(sandbox.base_url, list(router.probabilities), upstreams=UNPROTECTED)
    with served(create_app(settings, router)) as url:
        yield url


@pytest.fixture(scope="session")
def base_url(gateway_url: str) -> str:
    """Return the base URL for clients."""
    return f"{gateway_url}/v1"


@pytest.fixture(scope="session")
def client(base_url: str) -> Iterator[openai.OpenAI]:
    """Yield the OpenAI client for Python, without its retries."""
    with openai.OpenAI(base_url=base_url, api_key="client-key", max_retries=0) as made:
        yield made
