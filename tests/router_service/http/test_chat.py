"""Chat completions through the gateway: bytes, ids, policies, and errors of other formats."""

from __future__ import annotations

import json

import httpx
import pytest

from router_service.requests.deciding import AT_ONCE_BYTES
from tests.bodies import BODY, CHAT
from tests.router_service.http.scripted import Script, stream, whole
from tests.serving import Sandbox


def test_stream_is_relayed_byte_for_byte(script: Script) -> None:
    """Streamed bytes, including the usage event, are unchanged; the header shows no cost."""
    choice = b'"choices":[ {"delta":{"content":"hi"},"finish_reason" : "stop"}]'
    body = b'data: {"a" : 1e3,%b}\r\n\r\n: ping\n\ndata: [DONE]\n\n' % choice
    script.play(stream(body, headers=b"set-cookie: a=b\r\n"))
    response = script.ask(model="priced")
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


@pytest.mark.parametrize("body", [SPACED, SPACED + b" " * AT_ONCE_BYTES, ESCAPED])
def test_body_is_forwarded_byte_for_byte(http: httpx.Client, sandbox: Sandbox, body: bytes) -> None:
    """Whitespace, escapes, numbers, unknown and duplicate fields reach the upstream unchanged."""
    response = http.post(CHAT, content=body)
    assert response.status_code == 200, response.text
    chosen = f'"{response.headers["x-switchcraft-model"]}"'.encode()
    expected = body
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
        ("switchcraft:economy", None, "small", "economy (theta=0.2)", "threshold"),
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


def test_errors_in_other_formats_are_converted(script: Script) -> None:
    """Such an error is converted to OpenAI's format, with the upstream's status and headers."""
    waits = (b"retry-after: 7", b"retry-after-ms: 6500", b"x-ratelimit-remaining: 0")
    script.play(whole(b"oops", 503, *waits, kind=b"text/html"))
    response = script.ask(stream=False)
    assert response.status_code == 503
    assert response.headers["content-type"] == "application/json"
    told = [response.headers[name] for name in ("retry-after", "retry-after-ms")]
    assert [*told, response.headers["x-ratelimit-remaining"]] == ["7", "6500", "0"]
    error = response.json()["error"]
    assert error["type"] == "upstream_error"
    assert "'chat' answered with status 503" in error["message"]
