"""No output contains a planted secret: answers, headers, logs, metrics, records or settings."""

from __future__ import annotations

import json
import logging
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from router_service.access.keyring import permitted_listen_host
from router_service.settings import (
    Deployment,
    KeySettings,
    Model,
    ServerSettings,
    Settings,
)
from router_service.telemetry.logs import JsonFormatter
from tests.bodies import BODY, CHAT
from tests.fakes import FakeRouter
from tests.gateways import gateway_client
from tests.serving import Sandbox, scripted, wait_for

SECRETS = {
    "client": "planted-client-key-Kx81QzPw",
    "admin": "planted-admin-key-Jw72RtVs",
    "metrics": "planted-metrics-key-Bn24XsDe",
    "wrong": "planted-wrong-key-Uy63MnBc",
    "upstream": "upstreams-planted-key-Ge54LkHj",
    "redis": "planted-redis-password-Fd45DsAq",
    "userinfo": "planted-address-password-Ro36",
    "organization": "planted-organization-Te27",
    "cookie": "planted-cookie-Wi18",
    "content": "planted-content-Pa09",
}
FAULTS = ["", "status=500", "status=401", "status=429", "cut_after=0", "cut_after=1", "malformed"]


def planted(base_url: str, redis_port: int) -> Settings:
    """Return settings with a secret in every place that can hold one."""
    address = base_url.replace("://", f"://user:{SECRETS['userinfo']}@")
    key = SecretStr(SECRETS["upstream"])
    models = tuple(
        Model(
            name=name,
            deployments=(Deployment(upstream_model=name, base_url=address, api_key=key),),
        )
        for name in FakeRouter().probabilities
    )
    redis = f"redis://:{SECRETS['redis']}@127.0.0.1:{redis_port}/0"
    return Settings(
        models=models,
        server=ServerSettings(redis_url=SecretStr(redis)),
        keys=KeySettings(
            api={"team-a": SecretStr(SECRETS["client"])},
            admin=SecretStr(SECRETS["admin"]),
            metrics=SecretStr(SECRETS["metrics"]),
        ),
    )


def output_of(response: httpx.Response) -> str:
    """Return the complete text of a response."""
    return f"{response.status_code} {response.headers.multi_items()} {response.text}"


def collect_outputs(http: httpx.Client) -> Iterator[str]:
    """Yield the gateway's outputs for good and bad requests, with every kind of failure."""
    key, wrong = SECRETS["client"], SECRETS["wrong"]
    secret = {
        "cookie": SECRETS["cookie"],
        "openai-organization": SECRETS["organization"],
        "proxy-authorization": f"Basic {SECRETS['cookie']}",
    }
    body = BODY | {"messages": [{"role": "user", "content": SECRETS["content"]}]}
    for fault in FAULTS:
        for stream in (False, True):
            headers = secret | {"authorization": f"Bearer {key}", "x-sandbox": fault}
            response = http.post(CHAT, json=body | {"stream": stream}, headers=headers)
            if "x-switchcraft-decision-id" in response.headers:
                path = f"/v1/decisions/{response.headers['x-switchcraft-decision-id']}"
                yield output_of(http.get(path, headers=headers))
            # The sandbox repeats its input; the gateway must not add to it.
            yield output_of(response).replace(SECRETS["content"], "")
    for headers in ({"authorization": f"Bearer {wrong}"}, {"x-api-key": wrong}, {"api-key": key}):
        for path in ("/v1/models", "/metrics", f"/admin/{wrong[:3]}", "/openapi.json"):
            yield output_of(http.get(path, headers=headers | secret))
    for broken in (b"{", b'{"model":"none","messages":[{}]}', b'{"a":1,"a":2}'):
        yield output_of(http.post(CHAT, content=broken, headers={"x-api-key": key} | secret))
    for path in ("/metrics", "/openapi.json", "/readyz", "/health/readiness"):
        yield output_of(http.get(path, headers={"authorization": f"Bearer {SECRETS['admin']}"}))


def repeating(status: int, *, is_stream: bool = False) -> bytes:
    """Return an answer that repeats all credentials in its headers, id, model and text."""
    login = b64encode(f"user:{SECRETS['userinfo']}".encode()).decode()
    key = SECRETS["upstream"]
    said = f"Bearer {key}, {key[:12]}*****, Basic {login}, {SECRETS['userinfo']}"
    body: dict[str, Any] = {"id": key, "model": f"m-{key}", "choices": [{"message": said}]}
    if is_stream:
        body["choices"] = [{"index": 0, "delta": {"content": said}, "finish_reason": "stop"}]
    elif status >= 400:
        body = {"error": {"message": said, "type": key, "param": None, "code": None}}
    text = json.dumps(body)
    data = (f"data: {text}\n\ndata: [DONE]\n\n" if is_stream else text).encode()
    kind = "text/event-stream" if is_stream else "application/json"
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\nx-request-id: {key}\r\n"
    limit = f"x-ratelimit-reset-tokens: {login}\r\ncontent-length: {len(data)}\r\n\r\n"
    return (head + limit).encode() + data


UPSTREAMS = {
    "sandbox": b"",
    "gone": b"",
    "repeats in 200": repeating(200),
    "repeats in a stream": repeating(200, is_stream=True),
    "repeats in 400": repeating(400),
    "repeats in 401": repeating(401),
    "repeats in 500": repeating(500),
}


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_no_output_has_a_secret(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture, upstream: str
) -> None:
    """No output has a secret, even if the upstream repeats the credentials that it got."""
    with scripted(UPSTREAMS[upstream]) as script, caplog.at_level(logging.DEBUG):
        others = {"sandbox": sandbox.base_url, "gone": "http://127.0.0.1:9/v1"}
        settings = planted(others.get(upstream, script), redis_port=9)
        permitted_listen_host(settings)
        with gateway_client(settings, FakeRouter()) as http:
            outputs = list(collect_outputs(http))
            wait_for(lambda: http.get("/readyz").json()["store"] == "away", "Redis is missed")
        formatter = JsonFormatter()
        ours = [entry for entry in caplog.records if not entry.name.startswith("http")]
        outputs += [formatter.format(entry) for entry in ours]
    outputs += [repr(settings), str(settings)]
    assert len(ours) > 10
    secrets = SECRETS | {
        "upstream's beginning": SECRETS["upstream"][:12],
        "userinfo's header": b64encode(f"user:{SECRETS['userinfo']}".encode()).decode()[:12],
    }
    found = {name for name, secret in secrets.items() if any(secret in out for out in outputs)}
    assert not found
