"""A sandbox on a real port, for the tests of its API."""

from collections.abc import Iterator

import httpx
import pytest

from router_service.sandbox.provider import run_in_thread


@pytest.fixture(scope="session")
def sandbox_url() -> Iterator[str]:
    """Yield the base URL of a sandbox that keeps its last requests."""
    with run_in_thread(keep_requests=10) as url:
        yield url


@pytest.fixture(scope="session")
def http(sandbox_url: str) -> Iterator[httpx.Client]:
    """Yield a plain HTTP client of the sandbox, for what the OpenAI client would hide."""
    with httpx.Client(base_url=sandbox_url.removesuffix("/v1"), timeout=30) as client:
        yield client
