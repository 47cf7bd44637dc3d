"""Requests that cannot be served are refused in OpenAI's form, and the gateway goes on."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

import httpx
import openai
import pytest

from router_service.core import errors
from router_service.core.selection import Policy
from router_service.http.app import create_app
from router_service.http.errors import error_response, status_of
from router_service.settings import ServerSettings, Settings
from tests.bodies import ASK, BODY, CHAT
from tests.fakes import FakeRouter
from tests.serving import Sandbox, served

DEEP = json.dumps({"type": "object"})
for _ in range(70):
    DEEP = f'{{"type":"object","properties":{{"a":{DEEP}}}}}'
LIMIT_BYTES = 2000


def error_of(response: httpx.Response) -> dict[str, str | None]:
    """Return the error of a response, which must be in OpenAI's form."""
    assert response.headers["content-type"] == "application/json"
    error: dict[str, str | None] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("body", "status", "param", "code"),
    [
        (b"", 400, None, "invalid_json"),
        (b"{", 400, None, "invalid_json"),
        (b"\xff\xfe", 400, None, "invalid_json"),
        (b"[" * 3000, 400, None, "invalid_json"),
        (b"[]", 400, None, "invalid_type"),
        (b'{"messages":[{}]}', 400, "model", "missing_required_parameter"),
        (b'{"model":3,"messages":[{}]}', 400, "model", "invalid_type"),
        (b'{"model":"switchcraft"}', 400, "messages", "missing_required_parameter"),
        (b'{"model":"switchcraft","messages":[]}', 400, "messages", "empty_array"),
        (b'{"model":"switchcraft","messages":[{}],"tools":{}}', 400, "tools", "invalid_type"),
        (b'{"model":"switchcraft","messages":[{}],"stream":1}', 400, "stream", "invalid_type"),
        (
            b'{"model":"switchcraft","messages":[{}],"tools":[{"type":"function","function":'
            b'{"name":"f","parameters":' + DEEP.encode() + b"}}]}",
            400,
            "tools[0].parameters",
            "schema_too_deep",
        ),
        (b'{"model":"gpt-9","messages":[{}]}', 404, "model", "model_not_found"),
        (b'{"model":"switchcraft:none","messages":[{}]}', 400, "model", "invalid_policy"),
        (b'{"model":"\\ud83d\\ude00","messages":[{}]}', 404, "model", "model_not_found"),
    ],
)
def test_bad_bodies(
    http: httpx.Client, body: bytes, status: int, param: str | None, code: str
) -> None:
    """Each bad body has its status, the field that is wrong and a code; and none stops the rest."""
    response = http.post(CHAT, content=body)
    error = error_of(response)
    assert (response.status_code, error["param"], error["code"]) == (status, param, code)
    assert error["type"] == "invalid_request_error"
    assert http.get("/healthz").json() == {"status": "ok"}


def test_bad_policy_header(http: httpx.Client) -> None:
    """A policy that does not parse is named with the header that it stood in."""
    response = http.post(CHAT, json=BODY, headers={"x-switchcraft-policy": "theta=2"})
    error = error_of(response)
    assert (response.status_code, error["param"]) == (400, "x-switchcraft-policy")


def test_client_raises_its_own_classes(client: openai.OpenAI) -> None:
    """The OpenAI client raises NotFoundError and BadRequestError for what we refuse."""
    with pytest.raises(openai.NotFoundError, match="does not exist here"):
        client.chat.completions.create(model="none", messages=ASK)
    with pytest.raises(openai.BadRequestError, match="empty"):
        client.chat.completions.create(model="switchcraft", messages=[])


def test_a_refusal_names_the_known_models(http: httpx.Client) -> None:
    """Who asks for an unknown model is told the names that are known."""
    message = error_of(http.post(CHAT, json=BODY | {"model": "x"}))["message"] or ""
    assert all(name in message for name in ("switchcraft:economy", "small", "large"))


@pytest.fixture(scope="module")
def small_url(sandbox: Sandbox) -> Iterator[str]:
    """Serve a gateway that takes small bodies alone."""
    server = ServerSettings(max_body_bytes=LIMIT_BYTES)
    settings = Settings.sandbox(sandbox.base_url, list(FakeRouter().probabilities), server=server)
    with served(create_app(settings, FakeRouter())) as url:
        yield url


@pytest.mark.parametrize("size", [LIMIT_BYTES + 1, 3_000_000])
def test_bodies_over_the_limit(small_url: str, size: int) -> None:
    """A body over the limit is 413, whether its length was announced or not."""
    body = b'{"a":"' + b"x" * (size - 8) + b'"}'
    pieces = (body[at : at + 1000] for at in range(0, len(body), 1000))
    for content in (body, pieces):
        response = httpx.post(small_url + CHAT, content=content)
        assert response.status_code == 413
        assert error_of(response)["code"] == "request_too_large"
        assert "server.max_body_bytes" in response.text


def test_a_body_at_the_limit_is_read(small_url: str) -> None:
    """The limit itself is allowed."""
    body = json.dumps(BODY).encode()
    body += b" " * (LIMIT_BYTES - len(body))
    assert httpx.post(small_url + CHAT, content=body).status_code == 200


def test_compressed_bodies_are_refused(http: httpx.Client) -> None:
    """A compressed body is 415, with what to do."""
    body = gzip.compress(json.dumps(BODY).encode())
    response = http.post(CHAT, content=body, headers={"content-encoding": "gzip"})
    assert response.status_code == 415
    assert "content-encoding" in (error_of(response)["message"] or "")


def test_paths_and_methods_that_do_not_exist(http: httpx.Client) -> None:
    """The framework's own refusals are in OpenAI's form too."""
    for response, status in ((http.get("/v1/none"), 404), (http.post("/healthz"), 405)):
        assert response.status_code == status
        assert error_of(response)["type"] == "invalid_request_error"


class BrokenRouter(FakeRouter):
    """A router with a defect in what it says of policies."""

    def policy(self, text: str | None = None, *, param: str = "model") -> Policy:
        """Fail for any but the default one, as no router should."""
        if text is not None:
            raise RuntimeError("a secret of the inside")
        return super().policy(text, param=param)


def test_a_defect_is_500_without_internals(sandbox: Sandbox) -> None:
    """What nobody expected is 500 in OpenAI's form, says nothing of the inside, and is counted."""
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
    assert 'switchcraft_requests_total{model="none",policy="none",status="500"} 1.0' in counts


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.InvalidRequestError("m"), 400),
        (errors.BodyTooLargeError(1), 413),
        (errors.ModelNotFoundError("m", ()), 404),
        (errors.PolicyError("p", "q"), 400),
        (errors.NotFoundError("k", "i"), 404),
        (errors.UpstreamError("m", "p"), 502),
        (errors.UpstreamError("m", "p", errors.Failure.TIMEOUT), 504),
        (errors.UpstreamError("m", "p", errors.Failure.COOLING_DOWN), 503),
        (errors.DeadlineError("m"), 504),
        (errors.StoreError("o", "p"), 503),
        (errors.ConfigError("s", "w", "p"), 500),
        (KeyError("x"), 500),
    ],
)
def test_statuses_of_errors(error: Exception, status: int) -> None:
    """Each error of the tree has its status, and a body in OpenAI's form."""
    assert status_of(error) == error_response(error).status_code == status
    body = json.loads(bytes(error_response(error).body))
    assert set(body["error"]) == {"message", "type", "param", "code"}
