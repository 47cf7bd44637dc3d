"""An API that is added to the registry works for clients and upstreams, without further changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pytest

from router_service.serving.app import create_app
from router_service.settings import Settings
from router_service.settings.litellm import ModelInfo
from tests import apis
from tests.answering import settings_of
from tests.apis import APIS
from tests.fakes import PROBABILITIES, FakeRouter
from tests.gateways import gateway_client
from tests.lines_api import LINES
from tests.serving import ONE_TRY, Sandbox

TOOL = {
    "name": "get_weather",
    "about": "Weather in a city",
    "takes": {"type": "object", "properties": {"city": {"type": "string"}}},
}
BODY: dict[str, Any] = {
    "model": "switchcraft",
    "lines": [
        {"by": "guide", "text": "Be short."},
        {"by": "person", "text": "What is the weather in Oslo?"},
    ],
    "tools": [TOOL],
}


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    """Register the API before the gateway's app is created."""
    APIS.register(LINES)
    try:
        yield
    finally:
        APIS.unregister(LINES)


@pytest.fixture(scope="module")
def http(sandbox: Sandbox) -> Iterator[httpx.Client]:
    """Yield a client of a gateway each of whose models speaks one of the other APIs."""
    speakers = dict(zip(PROBABILITIES, (apis.CHAT, apis.RESPONSES, apis.MESSAGES), strict=True))
    with gateway_client(settings_of(sandbox.base_url, speakers, ONE_TRY), FakeRouter()) as client:
        yield client


def events(data: bytes) -> list[dict[str, Any]]:
    """Return the events of a stream of lines."""
    parts = data.split(b"\n\n")
    return [orjson.loads(part[6:]) for part in parts if part.startswith(b"data: ")]


POLICIES = ("economy", "default", "quality")
"""Each leads to another model, which speaks another API."""


@pytest.mark.parametrize("policy", POLICIES)
def test_a_request_is_routed_and_its_answer_is_translated(http: httpx.Client, policy: str) -> None:
    """The router reads the lines, and the upstream's call comes back as a line or in events."""
    headers = {"x-switchcraft-policy": policy}
    response = http.post("/v1/lines", json=BODY, headers=headers)
    assert response.status_code == 200, response.text
    assert response.headers["x-switchcraft-reason"] == "threshold"
    answer = response.json()
    assert (answer["kind"], answer["why"]) == ("lines", "calls")
    assert answer["id"].startswith("lines-")
    [line] = answer["lines"]
    assert line["call"]["name"] == "get_weather"
    assert isinstance(orjson.loads(line["call"]["arguments"]), dict)
    assert answer["tokens"]["read"] > 0
    sent = http.post("/v1/lines", json={**BODY, "stream": True}, headers=headers)
    streamed = events(sent.content)
    assert [streamed[0]["kind"], streamed[-1]["kind"]] == ["begin", "end"]
    arguments = "".join(event["add"] for event in streamed if event["kind"] == "arguments")
    assert arguments == line["call"]["arguments"]
    assert streamed[-1]["tokens"]["written"] == answer["tokens"]["written"]

    result = {"by": "tool", "of": line["call"]["id"], "text": "Rain."}
    lines = [*BODY["lines"], {"by": "model", **line}, result]
    further = http.post("/v1/lines", json={**BODY, "lines": lines}, headers=headers).json()
    assert further["why"] == "done"
    assert "sandbox" in further["lines"][0]["text"]


@pytest.mark.parametrize("stream", [False, True])
def test_errors_are_written_in_the_format_of_the_api(http: httpx.Client, stream: bool) -> None:
    """Errors of the gateway, of the upstream, and within a stream."""
    body = {**BODY, "stream": stream}
    unknown = http.post("/v1/lines", json={**body, "model": "nobody"})
    refused = http.post("/v1/lines", json=body, headers={"x-sandbox": "status=400"})
    for response, status in ((unknown, 404), (refused, 400)):
        assert response.status_code == status
        problem = response.json()
        assert (problem["kind"], problem["number"]) == ("problem", status)
        assert problem["text"]
    if stream:
        broken = http.post("/v1/lines", json=body, headers={"x-sandbox": "cut_after=3"})
        assert events(broken.content)[-1]["kind"] == "problem"


def test_what_only_the_api_can_express_is_refused(http: httpx.Client) -> None:
    """A field that the API does not carry over is named."""
    response = http.post("/v1/lines", json={**BODY, "rhyme": True})
    assert response.status_code == 400
    assert "the field 'rhyme' of the Lines API" in response.json()["text"]


def test_the_configuration_and_the_description_know_the_api() -> None:
    """A model's `supported_endpoints` may name it, and the OpenAPI description lists it."""
    app = create_app(Settings.sandbox("http://127.0.0.1:9/v1", list(PROBABILITIES)), FakeRouter())
    assert app.openapi()["paths"]["/v1/lines"]["post"]["summary"] == "Lines"
    info = ModelInfo(supported_endpoints=("/v1/lines", "/v1/messages"))
    assert info.apis == (LINES, apis.MESSAGES)
