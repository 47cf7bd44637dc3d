"""Planted secrets come out nowhere: not in answers, headers, logs, metrics, records or settings."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from router_service.api.app import create_app
from router_service.core.errors import SwitchcraftError
from router_service.serving.access import listening_host
from router_service.settings import (
    Deployment,
    KeySettings,
    Model,
    ServerSettings,
    Settings,
    load_settings,
)
from router_service.telemetry.logs import JsonFormatter
from tests.bodies import BODY, CHAT
from tests.fakes import FakeRouter
from tests.serving import Sandbox, scripted, served, wait_for

SECRETS = {
    "client": "planted-client-key-Kx81QzPw",
    "admin": "planted-admin-key-Jw72RtVs",
    "wrong": "planted-wrong-key-Uy63MnBc",
    "upstream": "planted-upstream-key-Ge54LkHj",
    "redis": "planted-redis-password-Fd45DsAq",
    "userinfo": "planted-address-password-Ro36",
    "organization": "planted-organization-Te27",
    "cookie": "planted-cookie-Wi18",
    "content": "planted-content-Pa09",
}
FAULTS = ["", "status=500", "status=401", "status=429", "cut_after=0", "cut_after=1", "malformed"]


def planted(base_url: str, redis_port: int) -> Settings:
    """Return settings that hold every secret that settings can hold."""
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
            api={"team-a": SecretStr(SECRETS["client"])}, admin=SecretStr(SECRETS["admin"])
        ),
    )


def told(response: httpx.Response) -> str:
    """Return all that a response says."""
    return f"{response.status_code} {response.headers.multi_items()} {response.text}"


def ask_in_every_way(http: httpx.Client) -> Iterator[str]:
    """Yield what the gateway says to good and bad requests, whose answers fail in every way."""
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
                yield told(http.get(path, headers=headers))
            # The sandbox repeats what it was told; a gateway must not add to it.
            yield told(response).replace(SECRETS["content"], "")
    for headers in ({"authorization": f"Bearer {wrong}"}, {"x-api-key": wrong}, {"api-key": key}):
        for path in ("/v1/models", "/metrics", f"/admin/{wrong[:3]}", "/openapi.json"):
            yield told(http.get(path, headers=headers | secret))
    for broken in (b"{", b'{"model":"none","messages":[{}]}', b'{"a":1,"a":2}'):
        yield told(http.post(CHAT, content=broken, headers={"x-api-key": key} | secret))
    for path in ("/metrics", "/openapi.json", "/readyz", "/health/readiness"):
        yield told(http.get(path, headers={"authorization": f"Bearer {SECRETS['admin']}"}))


@pytest.mark.parametrize("upstream", ["sandbox", "gone", "repeats"])
def test_no_output_has_a_secret(
    sandbox: Sandbox, caplog: pytest.LogCaptureFixture, upstream: str
) -> None:
    """Whatever the upstream does, even where it repeats the key that it was sent."""
    repeats = f'{{"error":{{"message":"Incorrect API key: {SECRETS["upstream"]}"}}}}'.encode()
    head = b"HTTP/1.1 401 No\r\ncontent-type: application/json\r\n"
    script = head + b"content-length: %d\r\n\r\n" % len(repeats) + repeats
    with scripted(script) as repeating, caplog.at_level(logging.DEBUG):
        gone = "http://127.0.0.1:9/v1"
        base_url = {"sandbox": sandbox.base_url, "gone": gone, "repeats": repeating}[upstream]
        settings = planted(base_url, redis_port=9)
        listening_host(settings)
        with (
            served(create_app(settings, FakeRouter())) as url,
            httpx.Client(base_url=url, timeout=30) as http,
        ):
            outputs = list(ask_in_every_way(http))
            wait_for(lambda: http.get("/readyz").json()["store"] == "away", "Redis is missed")
        formatter = JsonFormatter()
        ours = [entry for entry in caplog.records if not entry.name.startswith("http")]
        outputs += [formatter.format(entry) for entry in ours]
    outputs += [repr(settings), str(settings)]
    assert len(ours) > 10
    found = {name for name, secret in SECRETS.items() if any(secret in out for out in outputs)}
    assert not found


def test_errors_of_the_configuration_have_no_secret(tmp_path: Path) -> None:
    """A file that cannot be used is explained without what it holds."""
    secret = SECRETS["upstream"]
    model = "model_list: [{model_name: m, litellm_params: {model: openai/m, "
    texts = [
        f"{model} api_key: [{secret}]}}}}]",
        f"{model} api_key: {secret}}}, model_info: {{input_cost_per_token: {secret}}}}}]",
        f"{model} api_base: {secret}}}}}]",
        f"keys: {{api: {secret}}}",
        f"keys: {{api: {{a: 'sha256:{secret}'}}}}",
        f"server: {{redis_url: [{secret}]}}",
        f"general_settings: {{master_key: {{a: {secret}}}}}",
    ]
    for index, text in enumerate(texts):
        path = tmp_path / f"{index}.yaml"
        path.write_text(text)
        with pytest.raises(SwitchcraftError) as caught:
            load_settings(path, {})
        assert secret not in str(caught.value), text
