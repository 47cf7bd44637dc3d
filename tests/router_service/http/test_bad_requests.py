"""Invalid requests are refused in OpenAI's error format, and the gateway keeps serving."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from router_service.policies.base import Policy
from router_service.policies.verified import Verified
from router_service.serving.app import create_app
from router_service.settings import ServerSettings, Settings
from tests.bodies import BODY, CHAT
from tests.fakes import FakeRouter
from tests.serving import Sandbox, served

DEEP = json.dumps({"type": "object"})
for _ in range(70):
    DEEP = f'{{"type":"object","properties":{{"a":{DEEP}}}}}'
LIMIT_BYTES = 2000


def error_of(response: httpx.Response) -> dict[str, str | None]:
    """Return a response's error, which must be in OpenAI's format."""
    assert response.headers["content-type"] == "application/json"
    error: dict[str, str | None] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.fixture(scope="module")
def small_url(sandbox: Sandbox) -> Iterator[str]:
    """Serve a gateway that accepts only small bodies."""
    server = ServerSettings(max_body_bytes=LIMIT_BYTES)
    settings = Settings.sandbox(sandbox.base_url, list(FakeRouter().probabilities), server=server)
    with served(create_app(settings, FakeRouter())) as url:
        yield url


@pytest.mark.parametrize("size", [LIMIT_BYTES + 1, 3_000_000])
def test_body_over_the_limit_is_refused(small_url: str, size: int) -> None:
    """A body over the limit gets 413, whether or not its length was announced."""
    body = b'{"a":"' + b"x" * (size - 8) + b'"}'
    pieces = (body[at : at + 1000] for at in range(0, len(body), 1000))
    for content in (body, pieces):
        response = httpx.post(small_url + CHAT, content=content)
        assert response.status_code == 413
        assert error_of(response)["code"] == "request_too_large"
        assert "server.max_body_bytes" in response.text


def test_body_at_the_limit_is_accepted(small_url: str) -> None:
    """A body of exactly the maximum size is read."""
    body = json.dumps(BODY).encode()
    body += b" " * (LIMIT_BYTES - len(body))
    assert httpx.post(small_url + CHAT, content=body).status_code == 200


class BrokenRouter(FakeRouter):
    """Router with a defect in its policies."""

    def policy(
        self, text: str | None = None, *, param: str = "model", verified_goals: bool = False
    ) -> Policy | Verified:
        """Fail for every policy except the default one."""
        if text is not None:
            raise RuntimeError("a secret of the inside")
        return super().policy(text, param=param, verified_goals=verified_goals)


def test_unexpected_error_is_500_without_internals(sandbox: Sandbox) -> None:
    """An unexpected error is a 500 in OpenAI's format, shows no internals, and is counted."""
    settings = Settings.sandbox(sandbox.base_url, list(FakeRouter().probabilities))
    with served(create_app(settings, BrokenRouter())) as url:
        asked, named = BODY | {"model": "switchcraft:economy"}, {"x-request-id": "mine"}
        response = httpx.post(url + CHAT, json=asked, headers=named)
        assert httpx.get(f"{url}/healthz").status_code == 200
        counts = httpx.get(f"{url}/metrics").text
    assert response.status_code == 500
    assert error_of(response)["type"] == "server_error"
    assert "secret" not in response.text
    assert response.headers["x-request-id"] == "mine"
    assert (
        'switchcraft_requests_total{model="none",policy="none",release="none",status="500"} 1.0'
        in counts
    )
