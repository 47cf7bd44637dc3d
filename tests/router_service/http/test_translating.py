"""Every client reaches every upstream: requests and answers are translated between three APIs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import anthropic
import httpx
import openai
import orjson
import pytest
from openai.types.responses import ResponseCreatedEvent

from router_service.serving.app import create_app
from router_service.settings import VerificationSettings
from tests import apis
from tests.answering import settings_of
from tests.apis import APIS, Api
from tests.bodies import ASK, BODY, CHAT, TOOLS
from tests.fakes import FakeRouter, VerifyingRouter
from tests.gateways import (
    VERIFIED,
    gateway_client,
    record_of,
)
from tests.products import pairwise
from tests.router_service.http.test_messages_api import ASKED, MESSAGES
from tests.serving import ONE_TRY, Sandbox, scripted, served

RESPONSES = "/v1/responses"
BODIES: dict[Api, tuple[str, dict[str, Any]]] = {
    apis.CHAT: (CHAT, BODY),
    apis.RESPONSES: (
        RESPONSES,
        {
            "model": "switchcraft",
            "input": ASK,
            "tools": [{"type": "function", **TOOLS[0]["function"]}],
            "store": False,
        },
    ),
    apis.MESSAGES: (MESSAGES, ASKED),
}
SAID = {"role": "assistant", "content": "Rain."}
BLANK = {"role": "user", "content": ""}
SPEAKERS = {"small": apis.CHAT, "medium": apis.RESPONSES, "large": apis.MESSAGES}
"""The only API of each model."""
CROSSINGS = [
    (client, model) for client in APIS for model, own in SPEAKERS.items() if own is not client
]


class Wrong(NamedTuple):
    """A client's request, the API of its upstream, and the API in which the upstream answers."""

    client: Api
    own: Api
    written: Api
    stream: bool


@pytest.fixture(scope="module")
def gateway(sandbox: Sandbox) -> Iterator[str]:
    """Serve a gateway each of whose models speaks one API; yield its address."""
    settings = settings_of(sandbox.base_url, SPEAKERS, ONE_TRY)
    with served(create_app(settings, FakeRouter())) as url:
        yield url


@pytest.fixture(scope="module")
def http(gateway: str) -> Iterator[httpx.Client]:
    """Yield a plain client of the gateway."""
    with httpx.Client(base_url=gateway, timeout=10) as client:
        yield client


WRONG: dict[Api, tuple[object, object]] = {
    apis.CHAT: (
        {"id": "c", "object": "chat.completion", "model": "m", "choices": [{"message": {}}]},
        {"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"content": "x"}}]},
    ),
    apis.RESPONSES: (
        {"id": "r", "object": "response", "status": "completed", "model": "m", "output": []},
        {"type": "response.created", "response": {"id": "r", "output": []}},
    ),
    apis.MESSAGES: (
        {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": []},
        {"type": "message_start", "message": {"id": "m", "content": []}},
    ),
}
"""A whole answer and a first event in each API."""


@pytest.mark.parametrize(
    ("client", "own", "written", "stream"),
    pairwise(
        [Wrong(*each) for each in product(APIS, APIS, APIS, (False, True)) if each[1] != each[2]],
        # What an answer is, whole or as a stream, is recognized by the reader of one API.
        lambda each: (each.own, each.written, each.stream),
    ),
)
def test_upstream_that_answers_in_another_api_is_replaced(
    sandbox: Sandbox, client: Api, own: Api, written: Api, stream: bool
) -> None:
    """An answer that is not one of the API that was asked is a failure; another model answers."""
    value = orjson.dumps(WRONG[written][stream])
    body = b"data: " + value + b"\n\n" if stream else value
    kind = b"text/event-stream" if stream else b"application/json"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    with scripted(head % (kind, len(body)) + body) as wrong_url:
        settings = settings_of(sandbox.base_url, {"small": client, "medium": own, "large": client})
        wrong = settings.models[1].deployments[0].model_copy(update={"base_url": wrong_url})
        medium = settings.models[1].model_copy(update={"deployments": (wrong,)})
        models = (settings.models[0], medium, settings.models[2])
        settings = settings.model_copy(update={"models": models})
        path, asked = BODIES[client]
        with gateway_client(settings, FakeRouter()) as http:
            response = http.post(path, json=asked | {"stream": stream})
            record = record_of(http, response)
    assert response.status_code == 200
    assert (response.headers["x-switchcraft-model"], record["attempts"]) == ("large", 2)


@pytest.mark.parametrize(
    ("client", "fields", "named"),
    [
        (apis.MESSAGES, {"top_k": 5}, "top_k"),
        (apis.CHAT, {"logit_bias": {"5": 1}}, "logit_bias"),
        (apis.RESPONSES, {"background": True}, "background"),
        (apis.MESSAGES, {"messages": [*ASK, SAID, BLANK]}, "messages[2].content (empty)"),
    ],
)
def test_fields_without_equivalent_exclude_models(
    http: httpx.Client, sandbox: Sandbox, client: Api, fields: dict[str, Any], named: str
) -> None:
    """Only models that speak the client's API are left; without any, the error names the field."""
    path, body = BODIES[client]
    response = http.post(path, json=body | fields)
    (own,) = (model for model, dialect in SPEAKERS.items() if dialect is client)
    assert response.status_code == 200, response.text
    assert response.headers["x-switchcraft-model"] == own
    others = dict.fromkeys(SPEAKERS, next(other for other in APIS if other is not client))
    with gateway_client(settings_of(sandbox.base_url, others), FakeRouter()) as without:
        for model in ("switchcraft", "large"):
            refused = without.post(path, json=body | fields | {"model": model})
            assert refused.status_code == 400
            assert f"'{named}'" in refused.json()["error"]["message"]


def test_translated_response_is_not_stored(http: httpx.Client) -> None:
    """A response that another API answered cannot be continued, and the error says so."""
    path, body = BODIES[apis.RESPONSES]
    body = {name: value for name, value in body.items() if name != "store"}
    first = http.post(path, json=body | {"model": "small"})
    assert first.status_code == 200, first.text
    again = body | {"model": "medium", "previous_response_id": first.json()["id"]}
    response = http.post(path, json=again)
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "previous_response_not_found"


@pytest.mark.parametrize(("client", "model"), CROSSINGS)
def test_comments_keep_translated_streams_alive(
    http: httpx.Client, client: Api, model: str
) -> None:
    """An upstream's comments reach the client, so that no proxy gives up while a model thinks."""
    path, body = BODIES[client]
    faults = {"x-sandbox": "keep_alives,multi_line"}
    response = http.post(path, json=body | {"model": model, "stream": True}, headers=faults)
    assert response.content.count(client.ping) > 3
    assert record_of(http, response)["calls"] == 1


@pytest.fixture(scope="module", params=APIS)
def slow(request: pytest.FixtureRequest, sandbox: Sandbox) -> Iterator[str]:
    """Serve a gateway that waits for verified answers; yield its address.

    It asks `small`, which is slow, and then `large`, which speaks one of the APIs.
    """
    speakers = {"small": apis.CHAT, "medium": apis.CHAT, "large": request.param}
    settings = settings_of(sandbox.base_url, speakers)
    verification = VerificationSettings(keep_alive_s=0.05)
    router = settings.router.model_copy(update={"verification": verification})
    settings = settings.model_copy(update={"router": router})
    sandbox.set_faults("small", "delay_s=0.3")
    asking = VerifyingRouter(groups=(("small",), ("large",)))
    with served(create_app(settings, asking)) as url:
        yield url
    sandbox.set_faults("small", "")


@pytest.mark.parametrize("fails", [False, True])
def test_responses_client_sees_that_it_must_wait(slow: str, fails: bool) -> None:
    """A verified stream begins with one `response.created`, whose id and numbers are continued."""
    path, body = BODIES[apis.RESPONSES]
    headers = VERIFIED | ({"x-sandbox": "delay_s=0.3,status=500"} if fails else {})
    response = httpx.post(slow + path, json=body | {"stream": True}, headers=headers, timeout=20)
    sent = [orjson.loads(line[6:]) for line in response.text.splitlines() if line[:5] == "data:"]
    kinds = [event["type"] for event in sent]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.in_progress"]
    assert kinds.count("response.created") == 1
    assert [event["sequence_number"] for event in sent] == list(range(len(sent)))
    ids = {event["response"]["id"] for event in sent if "response" in event}
    assert ids == {sent[0]["response"]["id"]}
    assert kinds[-1] == ("error" if fails else "response.completed")
    client = openai.OpenAI(base_url=f"{slow}/v1", api_key="k", max_retries=0)
    with client.responses.stream(**body, extra_headers=headers) as events:
        if fails:
            with pytest.raises(openai.APIError):
                events.get_final_response()
            return
        seen = list(events)
        final: Any = events.get_final_response()
    assert isinstance(seen[0], ResponseCreatedEvent)
    assert final.id == seen[0].response.id
    assert final.output[0].type == "function_call"
    assert json.loads(final.output[0].arguments) == {"city": "Oslo"}


def test_messages_client_sees_that_it_must_wait(slow: str) -> None:
    """A verified stream begins with pings, which Anthropic's client accepts at any place."""
    path, body = BODIES[apis.MESSAGES]
    response = httpx.post(slow + path, json=body | {"stream": True}, headers=VERIFIED, timeout=20)
    ping = 'event: ping\ndata: {"type":"ping"}\n\n'
    assert response.text.startswith(f"{ping}{ping}")
    assert response.text.count("message_start") == 2  # the event's name and its type
    client = anthropic.Anthropic(base_url=slow, api_key="k", max_retries=0)
    with client.messages.stream(**body, extra_headers=VERIFIED) as events:
        message: Any = events.get_final_message()
    (block,) = message.content
    assert block.input == {"city": "Oslo"}
