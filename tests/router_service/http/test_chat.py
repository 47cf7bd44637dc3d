"""Chat completions through the gateway, with the OpenAI client and a plain HTTP client."""

from __future__ import annotations

import json

import httpx
import pytest

from router_service.serving.app import create_app
from router_service.settings import RouterSettings, Settings
from tests.bodies import ASK, BODY, CHAT
from tests.fakes import FakeRouter
from tests.serving import Sandbox, scripted, served


def test_stream_is_relayed_byte_for_byte() -> None:
    """Streamed bytes, including the usage event, are unchanged; the header shows no cost."""
    choice = b'"choices":[ {"delta":{"content":"hi"},"finish_reason" : "stop"}]'
    body = b'data: {"a" : 1e3,%b}\r\n\r\n: ping\n\ndata: [DONE]\n\n' % choice
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nset-cookie: a=b\r\n"
    with scripted(head + b"content-length: %d\r\n\r\n" % len(body) + body) as url:
        settings = Settings.sandbox(url, list(FakeRouter().probabilities))
        with served(create_app(settings, FakeRouter())) as gateway:
            response = httpx.post(gateway + CHAT, json=BODY | {"stream": True})
    assert response.content == body
    assert response.headers["content-type"] == "text/event-stream"
    assert "set-cookie" not in response.headers
    assert "x-switchcraft-cost-usd" not in response.headers


SPACED = (
    b'{ "model" :\t"switchcraft",\n "messages":[{"role":"user","content":"\\u00e9 \xc3\xa9"}],'
    b' "temperature":1e3, "new_field":{"model":"x","b":[ ]},"seed":0.10, "top_p":0.2,'
    b'"tools":[{"type":"function","function":{"name":"model"}}] }'
)
ESCAPED = (
    b'{"messages":[{"role":"user","content":"\\"model\\":\\"switchcraft\\""}],'
    b'"stream":false , "m\\u006fdel":"switchcraft"}'
)


@pytest.mark.parametrize("body", [SPACED, ESCAPED])
def test_body_is_forwarded_byte_for_byte(http: httpx.Client, sandbox: Sandbox, body: bytes) -> None:
    """Whitespace, escapes, numbers, unknown and duplicate fields reach the upstream unchanged."""
    response = http.post(CHAT, content=body)
    assert response.status_code == 200, response.text
    chosen = f'"{response.headers["x-switchcraft-model"]}"'.encode()
    expected = body.replace(b':"gone"', b":" + chosen)
    for spelled in (b'"model" :\t', b'"m\\u006fdel":', b'"model":'):
        expected = expected.replace(spelled + b'"switchcraft"', spelled + chosen)
    assert sandbox.last_body() == expected


@pytest.mark.parametrize("content", [json.dumps(BODY), "{"])
def test_request_id_is_returned_unchanged(http: httpx.Client, content: str) -> None:
    """Answers and errors return the client's own request id, whatever bytes it has."""
    sent = "m\u00efne".encode()
    response = http.post(CHAT, content=content, headers=[(b"x-request-id", sent)])
    assert dict(response.headers.raw)[b"x-request-id"] == sent


@pytest.mark.parametrize(
    ("model", "header", "arm", "policy", "reason"),
    [
        ("switchcraft", None, "medium", "theta=0.5", "threshold"),
        ("switchcraft:economy", None, "small", "economy (theta=0.2)", "threshold"),
        ("switchcraft:quality", None, "large", "quality (theta=0.8)", "threshold"),
        ("switchcraft", "economy", "small", "economy (theta=0.2)", "threshold"),
        ("switchcraft:economy", "theta=0.95", "large", "theta=0.95", "argmax"),
        ("switchcraft", "drift=0.25", "medium", "drift=0.25", "drift"),
        ("switchcraft:economy", "default", "medium", "theta=0.5", "threshold"),
    ],
)
def test_policy_header_overrides_policy_in_model_name(
    http: httpx.Client, model: str, header: str | None, arm: str, policy: str, reason: str
) -> None:
    """A policy may be in the model's name or in a header; the header has priority."""
    headers = {} if header is None else {"x-switchcraft-policy": header}
    response = http.post(CHAT, json=BODY | {"model": model}, headers=headers)
    told = [response.headers[f"x-switchcraft-{name}"] for name in ("model", "policy", "reason")]
    assert told == [arm, policy, reason]
    assert response.json()["model"] == arm


def test_naming_a_pool_model_skips_routing(http: httpx.Client, router: FakeRouter) -> None:
    """A request for a model of the pool goes to it without the router."""
    asked = len(router.asked)
    response = http.post(CHAT, json=BODY | {"model": "large"})
    assert response.json()["model"] == "large"
    assert response.headers["x-switchcraft-reason"] == "pinned"
    assert "x-switchcraft-policy" not in response.headers
    assert len(router.asked) == asked


def test_requests_without_tools_go_to_the_chat_model(
    http: httpx.Client, sandbox: Sandbox, router: FakeRouter
) -> None:
    """Without tools, the cheapest arm's model or the configured chat model answers."""
    asked = len(router.asked)
    plain = {"model": "switchcraft", "messages": ASK}
    response = http.post(CHAT, json=plain)
    assert response.json()["model"] == "small"
    assert response.headers["x-switchcraft-reason"] == "chat"
    assert len(router.asked) == asked
    base = Settings.sandbox(sandbox.base_url, list(router.probabilities))
    configured = base.model_copy(update={"router": RouterSettings(chat_model="large")})
    with served(create_app(configured, router)) as url:
        assert httpx.post(url + CHAT, json=plain).json()["model"] == "large"


def test_errors_in_other_formats_are_converted() -> None:
    """Such an error is converted to OpenAI's format, with the upstream's status and headers."""
    head = b"HTTP/1.1 503 Busy\r\ncontent-type: text/html\r\nretry-after: 7\r\n"
    rest = b"retry-after-ms: 6500\r\nx-ratelimit-remaining: 0\r\ncontent-length: 4\r\n\r\noops"
    with scripted(head + rest) as upstream:
        settings = Settings.sandbox(upstream, list(FakeRouter().probabilities))
        with served(create_app(settings, FakeRouter())) as url:
            response = httpx.post(url + CHAT, json=BODY)
    assert response.status_code == 503
    assert response.headers["content-type"] == "application/json"
    told = [response.headers[name] for name in ("retry-after", "retry-after-ms")]
    assert [*told, response.headers["x-ratelimit-remaining"]] == ["7", "6500", "0"]
    error = response.json()["error"]
    assert error["type"] == "upstream_error"
    assert "'medium' answered with status 503" in error["message"]


def test_unreachable_upstream_is_502() -> None:
    """If no server listens, the client gets 502 with the model's name but not its address."""
    settings = Settings.sandbox("http://127.0.0.1:9/v1", list(FakeRouter().probabilities))
    with served(create_app(settings, FakeRouter())) as url:
        response = httpx.post(url + CHAT, json=BODY)
    assert response.status_code == 502
    assert response.headers["x-switchcraft-model"] == "medium"
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("upstream_error", "upstream_unavailable")
    assert "127.0.0.1" not in response.text


@pytest.mark.parametrize("fault", ["malformed", "error_in_body"])
def test_invalid_answer_with_status_200_is_a_failure(http: httpx.Client, fault: str) -> None:
    """Invalid JSON, or an error with status 200, is a failure with its own status."""
    for stream in (False, True):
        response = http.post(CHAT, json=BODY | {"stream": stream}, headers={"x-sandbox": fault})
        assert response.status_code == 502
        assert '"error"' in response.text
