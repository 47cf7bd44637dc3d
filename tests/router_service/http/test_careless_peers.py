"""Malformed blocks, and values that JSON or an API cannot express, from clients and upstreams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests import apis
from tests.answering import MODELS, Peers, peers
from tests.apis import APIS, Api
from tests.dialect_answers import CASES, events, whole

CHAT, RESPONSES, MESSAGES = apis.CHAT, apis.RESPONSES, apis.MESSAGES
PAIRS = [(client, source) for client in APIS for source in APIS if client is not source]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WIDE = 2**64 + 1
LONG = 10**400
DEEP = "[" * 300 + "]" * 300
ASK = {"role": "user", "content": "What is the weather in Oslo?"}
EVENT_ENDS = {CHAT: "[DONE]", RESPONSES: "response.completed", MESSAGES: "message_stop"}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Peers]:
    """Serve a gateway whose models speak one API each."""
    with peers() as running:
        yield running


def body_of(dialect: Api, model: str, *items: Any, **fields: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return a request with a tool, and with further messages or items."""
    function = {"name": "f", "parameters": SCHEMA}
    messages = [ASK, *items]
    match dialect:
        case apis.CHAT:
            tools: Any = [{"type": "function", "function": function}]
            body: dict[str, Any] = {"messages": messages}
        case apis.RESPONSES:
            tools = [{"type": "function", **function}]
            body = {"input": messages, "store": False}
        case apis.MESSAGES:
            tools = [{"name": "f", "input_schema": SCHEMA}]
            body = {"messages": messages, "max_tokens": 99}
    return {"model": model, **body, "tools": tools, **fields}


def answer_of(dialect: Api) -> bytes:
    """Return a good answer."""
    return json.dumps(whole(CASES["text"], dialect)).encode()


def stream_of(sent: list[dict[str, Any]], dialect: Api) -> bytes:
    """Return events as an upstream sends them."""
    data = b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in sent)
    return data + (b"data: [DONE]\n\n" if dialect is CHAT else b"")


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": "a"}


def places_of_integers(client: Api, model: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield requests with integers beyond 64 bits where a value may stand."""
    schema = {"type": "object", "properties": {"a": {"enum": [WIDE, -WIDE, LONG]}}}
    body = body_of(client, model)
    tool = body["tools"][0]
    (tool["function"] if client is CHAT else tool)[
        "input_schema" if client is MESSAGES else "parameters"
    ] = schema
    yield body, "schema"
    if client is MESSAGES:
        use = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": WIDE, "b": LONG}}
        items = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [RESULT]}]
        yield body_of(client, model, *items), "input"
    elif client is CHAT:
        function = {"name": "f", "arguments": json.dumps({"a": WIDE, "b": LONG})}
        call = {"role": "assistant", "tool_calls": [CALL | {"function": function}]}
        result = {"role": "tool", "tool_call_id": "c", "content": "a"}
        yield body_of(client, model, call, result), "arguments"
    yield body_of(client, model, metadata={"a": WIDE}), "metadata"
    if MODELS[client] == model:
        yield body_of(client, model, new={"field": [WIDE, LONG, {"a": -WIDE}]}), "unknown"


@pytest.mark.parametrize("model", MODELS.values())
@pytest.mark.parametrize("client", APIS)
def test_integers_beyond_64_bits_reach_the_upstream_unchanged(
    gateway: Peers, client: Api, model: str
) -> None:
    """They are neither refused nor rounded, whether or not the request is translated."""
    target = next(dialect for dialect, name in MODELS.items() if name == model)
    for body, place in places_of_integers(client, model):
        text = json.dumps(body).encode()
        response = gateway.ask(client, text, answer_of(target))
        assert response.status_code == 200, response.text
        sent = gateway.upstream.bodies[-1]
        if client is target:
            assert sent == text
        elif place != "metadata":
            assert b"%d" % WIDE in sent
            assert b"%d" % LONG in sent
        assert b"1.8446744073709552e" not in sent


def with_call(dialect: Api, arguments: str, *, is_object: bool) -> dict[str, Any]:
    """Return a whole answer with one call, whose arguments are JSON text in `ARGUMENTS`."""
    answer = whole(CASES["one call"], dialect)
    match dialect:
        case apis.CHAT:
            called = answer["choices"][0]["message"]["tool_calls"][0]["function"]
            called["arguments"] = "ARGUMENTS" if is_object else arguments
        case apis.RESPONSES:
            answer["output"][-1]["arguments"] = arguments
        case apis.MESSAGES:
            answer["content"][-1]["input"] = "ARGUMENTS"
    return answer


UNWRITABLE = {
    "deep": f'{{"a":{DEEP}}}',
    "surrogate": '{"a":"\\ud83d"}',
    "surrogate in a name": '{"\\ud83d":1}',
    "NaN": '{"a":NaN}',
}


@pytest.mark.parametrize("name", UNWRITABLE)
@pytest.mark.parametrize("client", APIS)
@pytest.mark.parametrize("source", [CHAT, MESSAGES])
def test_objects_that_no_api_can_express_are_malformed_answers(
    gateway: Peers, client: Api, source: Api, name: str
) -> None:
    """Such arguments of a call give 502, or an error event in a stream, and never 500."""
    if client is source:
        return
    answer = with_call(source, "", is_object=True)
    data = json.dumps(answer).replace('"ARGUMENTS"', UNWRITABLE[name]).encode()
    body = body_of(client, MODELS[source])
    response = gateway.ask(client, json.dumps(body).encode(), data)
    assert response.status_code == 502, response.text
    streamed = json.dumps(body | {"stream": True}).encode()
    sent = stream_of(streamed_call(source), source).replace(
        b'"ARGUMENTS"', UNWRITABLE[name].encode()
    )
    response = gateway.ask(client, streamed, sent, stream=True)
    assert response.status_code == 502 or "error" in response.text
    assert gateway.problems == []


def streamed_call(dialect: Api) -> list[dict[str, Any]]:
    """Return the events of a call whose arguments are a JSON value, and arrive in its first one."""
    sent = events(CASES["one call"], dialect, size=1000)
    if dialect is CHAT:
        place = next(i for i, e in enumerate(sent) if "tool_calls" in e["choices"][0]["delta"])
        call = sent[place]["choices"][0]["delta"]["tool_calls"][0]
        call["function"]["arguments"] = "ARGUMENTS"
        del sent[place + 1]
        return sent
    for place, event in enumerate(sent):
        if event.get("content_block", {}).get("type") == "tool_use":
            event["content_block"]["input"] = "ARGUMENTS"
            del sent[place + 1]  # the delta
    return sent


@pytest.mark.parametrize(("client", "source"), PAIRS)
def test_surrogates_in_answers(gateway: Peers, client: Api, source: Api) -> None:
    """Text gets a question mark. The name, the id or the arguments of a call are refused."""
    texts = [
        json.dumps(whole(CASES["text"], source)).replace("Oslo", "\\ud83d").encode(),
        json.dumps(whole(CASES["text"], source)).replace('"m"', '"\\ud83d"').encode(),
    ]
    body = json.dumps(body_of(client, MODELS[source])).encode()
    for answer in texts:
        response = gateway.ask(client, body, answer)
        assert response.status_code == 200, response.text
    call = json.dumps(whole(CASES["one call"], source))
    damaged = [call.replace("get_weather", "\\ud83d"), call.replace("toolu_01A", "\\ud83d")]
    if source is not MESSAGES:
        damaged.append(call.replace("Oslo", "\\ud83d"))
    for text in damaged:
        response = gateway.ask(client, body, text.encode())
        assert response.status_code == 502, response.text
    for piece in ("get_weather", "toolu_01A", "Oslo"):
        sent = stream_of(events(CASES["one call"], source, size=1000), source)
        streamed = json.dumps(body_of(client, MODELS[source], stream=True)).encode()
        data = sent.replace(piece.encode(), b"\\ud83d")
        response = gateway.ask(client, streamed, data, stream=True)
        assert response.status_code == 502 or "error" in response.text
    assert gateway.problems == []


@pytest.mark.parametrize(("client", "source"), PAIRS)
def test_integers_of_answers_are_not_rounded(gateway: Peers, client: Api, source: Api) -> None:
    """The client reads the digits that the upstream wrote."""
    arguments = f'{{"a":{WIDE},"b":-{WIDE},"c":1e400}}'
    answer = json.dumps(with_call(source, arguments, is_object=False))
    data = answer.replace('"ARGUMENTS"', arguments).encode()
    body = json.dumps(body_of(client, MODELS[source])).encode()
    response = gateway.ask(client, body, data)
    assert response.status_code == 200, response.text
    if source is MESSAGES or client is not MESSAGES:
        assert str(WIDE) in response.text
        assert "1e400" in response.text
    assert "1.8446744073709552e" not in response.text


@pytest.mark.parametrize(("client", "source"), PAIRS)
@pytest.mark.parametrize("rest", ["text", "error", "garbage", "same"])
def test_translated_streams_end_with_the_last_event(
    gateway: Peers, client: Api, source: Api, rest: str
) -> None:
    """What an upstream sends after the end of its answer is neither relayed nor counted."""
    sent = stream_of(events(CASES["text"], source), source)
    further = {
        "text": stream_of(events(CASES["thinking"], source), source),
        "error": b'data: {"type":"error","error":{"message":"no","type":"api_error"}}\n\n',
        "garbage": b"data: {no JSON}\n\n" + b"data: " + b"x" * 3_000_000,
        "same": sent.partition(b"\n\n")[2],
    }[rest]
    body = json.dumps(body_of(client, MODELS[source], stream=True)).encode()
    expected = gateway.ask(client, body, sent, stream=True)
    response = gateway.ask(client, body, sent + further, stream=True)
    assert (response.status_code, without_ids(response)) == (200, without_ids(expected))
    assert response.text.rstrip().count(EVENT_ENDS[client]) == expected.text.count(
        EVENT_ENDS[client]
    )
    found = [
        gateway.http.get(f"/v1/decisions/{each.headers['x-switchcraft-decision-id']}").json()
        for each in (expected, response)
    ]
    fields = ("ending", "prompt_tokens", "completion_tokens", "calls")
    assert [[record[name] for name in fields] for record in found][1:] == [
        [found[0][name] for name in fields]
    ]
    assert found[1]["ending"] == "complete"


def without_ids(response: Any) -> list[Any]:  # noqa: ANN401
    """Return the events of a stream without what differs between two answers."""
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
    found = [json.loads(line) for line in lines]
    for event in found:
        for part in (event, event.get("response", {})):
            for name in ("created", "created_at"):
                part.pop(name, None)
    return found
