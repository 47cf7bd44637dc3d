"""How answers end: with a reason, with calls, without credit, and for clients that leave early."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import openai
import pytest

from tests import apis
from tests.apis import APIS, Api
from tests.router_service.http.scripted import (
    DONE,
    Answer,
    Script,
    body_of,
    data,
    exactly,
    stream,
    whole,
)

PAIRS = [(client, upstream) for client in APIS for upstream in APIS]


def named(*values: dict[str, Any]) -> bytes:
    """Return events whose names are their types."""
    return b"".join(f"event: {value['type']}\n".encode() + data(value) for value in values)


def chat(reason: str | None = None, **delta: object) -> dict[str, Any]:
    """Return an event of Chat Completions."""
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}


def ended(reason: str, **message: object) -> dict[str, Any]:
    """Return a whole answer of Chat Completions."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
    return {"id": "c", "model": "m", "choices": [choice], "usage": USAGE}


USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "m",
    "status": "in_progress",
    "output": [],
}
CALL_ITEM = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "f"}
MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [],
    "stop_reason": None,
    "usage": {"input_tokens": 3, "output_tokens": 1},
}
TEXT_BLOCK = (
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
    {"type": "content_block_stop", "index": 0},
)
ADDED = {"type": "response.output_item.added", "output_index": 0}
ARGUMENTS = {"type": "response.function_call_arguments.delta", "output_index": 0, "item_id": "fc_1"}
BEGINNINGS = {
    apis.CHAT: data(chat(role="assistant", content="Hi")),
    apis.RESPONSES: named(
        {"type": "response.created", "response": RESPONSE},
        {**ADDED, "item": {**CALL_ITEM, "arguments": ""}},
        {**ARGUMENTS, "delta": '{"city":'},
    ),
    apis.MESSAGES: named({"type": "message_start", "message": MESSAGE}, *TEXT_BLOCK),
}
"""Streams with output, and without an end."""
UNREASONED = {
    apis.CHAT: DONE,
    apis.RESPONSES: DONE,
    apis.MESSAGES: named({"type": "message_stop"}),
}
"""Ends without a reason."""
ENDS = {
    apis.CHAT: data(chat("stop")) + DONE,
    apis.RESPONSES: named(
        {"type": "response.completed", "response": {**RESPONSE, "status": "completed"}}
    ),
    apis.MESSAGES: named(
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}},
        {"type": "message_stop"},
    ),
}
MARKS = {
    apis.CHAT: b"[DONE]",
    apis.RESPONSES: b"response.completed",
    apis.MESSAGES: b"message_stop",
}
GOOD = stream(data(chat(role="assistant", content="good"), chat("stop")) + DONE)


def events(text: str) -> list[dict[str, Any]]:
    """Return the decoded events of a stream."""
    found = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(each) for each in found if each != "[DONE]"]


def reports_error(text: str) -> bool:
    """Return whether a stream ends with an error, and does not say that it is complete."""
    last = events(text)[-1]
    is_error = "error" in last or last.get("type") in ("error", "response.failed")
    return is_error and not any(mark.decode() in text for mark in MARKS.values())


@pytest.mark.parametrize(("client", "api"), PAIRS)
def test_end_without_a_reason_is_no_end(script: Script, client: Api, api: Api) -> None:
    """After the output, the client gets an error event, and the request counts as broken.

    Before, another deployment answers, or the client gets an error status. A deployment that never
    sends reasons completes its answers by the last event, and not by a cut.
    """
    proceed = threading.Event()
    script.play(stream(BEGINNINGS[api], UNREASONED[api], wait=proceed))
    text = b""
    with script.http.stream(
        "POST", f"/v1{client.path}", json=body_of(client, model=api.name)
    ) as response:
        for part in response.iter_raw():
            text += part
            proceed.set()
    assert reports_error(text.decode()), text
    assert script.record(response)["ending"] == "broken"

    script.play(stream(BEGINNINGS[api] + UNREASONED[api]))
    script.play(GOOD, at="second")
    answer = script.ask(client, model=f"{api.name}+")
    assert "good" in answer.text
    assert not reports_error(answer.text)
    assert script.record(answer)["ending"] == "complete"
    assert script.ask(client, model=api.name).status_code == 502

    script.play(stream(BEGINNINGS[api], UNREASONED[api]))
    answer = script.ask(client, model=f"{api.name}?")
    assert not reports_error(answer.text)
    assert script.record(answer)["ending"] == "complete"
    script.play(stream(BEGINNINGS[api]))
    cut = script.ask(client, model=f"{api.name}?")
    assert cut.status_code == 502 or reports_error(cut.text)


@pytest.mark.parametrize(("client", "api"), PAIRS)
def test_client_that_leaves_at_the_last_event_has_a_complete_answer(
    script: Script, client: Api, api: Api
) -> None:
    """OpenAI's client closes its connection at `[DONE]`; the upstream's body may end later.

    The upstream's connection is used again, and the answer is recorded as a complete one.
    """
    proceed = threading.Event()
    script.play(stream(BEGINNINGS[api] + ENDS[api], b"", wait=proceed))
    body = body_of(client, model=api.name)
    script.http.get("/healthz")
    with script.http.stream("POST", f"/v1{client.path}", json=body) as response:
        text = b""
        for part in response.iter_raw():
            text += part
            if MARKS[client] in text and text.endswith(b"\n\n"):
                break
    proceed.set()
    record = script.record(response)
    assert (record["status"], record["ending"]) == (200, "complete")
    connections = script.upstream.connections
    assert script.ask(client, model=api.name).status_code == 200
    assert script.upstream.connections == connections


@pytest.mark.parametrize("api", APIS)
def test_connection_that_breaks_after_the_last_event_leaves_a_complete_answer(
    script: Script, api: Api
) -> None:
    """Some servers close the connection without the last chunk; the client gets no error event."""
    *parts, _ = stream(BEGINNINGS[api] + ENDS[api])()
    script.play(exactly(*parts))
    answer = script.ask(api, model=api.name)
    assert MARKS[api] in answer.content
    assert events(answer.text)[-1].get("type") != "error"
    assert not events(answer.text)[-1].get("error")
    assert script.record(answer)["ending"] == "complete"


WITHOUT_CALLS: list[tuple[Api, bool, bytes]] = [
    *(
        (apis.CHAT, False, json.dumps(ended(reason, **message)).encode())
        for reason, message in (
            ("tool_calls", {"content": 'I say "finish_reason": "tool_calls".'}),
            ("tool_calls", {"content": "", "tool_calls": []}),
            ("function_call", {"content": None, "tool_calls": None}),
        )
    ),
    (
        apis.CHAT,
        True,
        data(chat(content='"finish_reason": "tool_calls"'), chat("tool_calls")) + DONE,
    ),
    (apis.CHAT, True, data({**chat("function_call", tool_calls=[]), "usage": USAGE}) + DONE),
    (apis.MESSAGES, False, json.dumps({**MESSAGE, "stop_reason": "tool_use"}).encode()),
    (
        apis.MESSAGES,
        True,
        named(
            {"type": "message_start", "message": MESSAGE},
            *TEXT_BLOCK,
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}},
            {"type": "message_stop"},
        ),
    ),
]


@pytest.mark.parametrize("client", APIS)
@pytest.mark.parametrize(("api", "is_stream", "sent"), WITHOUT_CALLS)
def test_answer_without_calls_does_not_say_that_it_calls(
    script: Script, client: Api, api: Api, is_stream: bool, sent: bytes
) -> None:
    """The reason becomes that of a text, and nothing else of an answer changes."""
    script.play(stream(sent) if is_stream else whole(sent))
    response = script.ask(client, model=api.name, stream=is_stream)
    assert response.status_code == 200, response.text
    values = events(response.text) if is_stream else [response.json()]
    reasons = _reasons(values)
    assert reasons - {None} <= {"stop", "end_turn"}
    assert reasons or client is apis.RESPONSES
    if client is api:
        kept = [json.dumps(value).replace("end_turn", "tool_use") for value in values]
        upstreams = events(sent.decode()) if is_stream else [json.loads(sent)]
        for value, text in zip(upstreams, kept, strict=True):
            said = json.dumps(value).replace("function_call", "tool_calls")
            assert text.replace('"stop"', '"tool_calls"') == said


def _reasons(values: Iterable[dict[str, Any]]) -> set[str | None]:
    found: set[str | None] = set()
    for value in values:
        found |= {choice["finish_reason"] for choice in value.get("choices", ())}
        for place in (value, value.get("delta", {})):
            found |= {place["stop_reason"]} if "stop_reason" in place else set()
    return found


def test_events_with_empty_data_are_not_relayed(script: Script) -> None:
    """OpenAI's client fails to decode them; all other bytes of the stream stay as they are."""
    first, second = data(chat(content="a")), data(chat("stop", content="b"))
    kept = [b": wait\n\n", first, b": ok\r\n\r\n", second, DONE]
    empty = [
        *(b"data:\n\n", b"data: \r\n\r\nretry: 5\n\n", b"event: ping\ndata:\n\n"),
        *(b"data:\ndata: \n\nid: 7\n\n", b"event: ping\n\n"),
    ]
    mixed = b"".join(part for both in zip(kept, empty, strict=True) for part in both)
    for size in (len(mixed), 1, 7):
        cuts = [*range(0, len(mixed), size), len(mixed)]
        script.play(stream(*(mixed[start:end] for start, end in pairwise(cuts))))
        assert script.ask().content == b"".join(kept)
    client = openai.OpenAI(base_url=f"{script.http.base_url}/v1", api_key="k", max_retries=0)
    answer = client.chat.completions.create(
        model="chat", messages=[{"role": "user", "content": "Hi"}], stream=True
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in answer) == "ab"


NO_CREDITS = {"code": "insufficient_quota", "message": "No credits left"}
BILLING = {"type": "error", "error": {"type": "billing_error", "message": "No credits left"}}
LOW = "Your credit balance is too low to access the Anthropic API. No credits left"
LOW_BALANCE = {"type": "error", "error": {"type": "invalid_request_error", "message": LOW}}
FAILED = {**RESPONSE, "status": "failed", "error": NO_CREDITS}


def problem(value: object, status: int = 200) -> Answer:
    """Return an answer whose whole body is a value."""
    return whole(json.dumps(value).encode(), status)


QUOTA: dict[str, tuple[Api, Answer]] = {
    "chat, whole": (apis.CHAT, problem({"error": NO_CREDITS})),
    "chat, a word": (apis.CHAT, problem({"error": "insufficient_quota", **NO_CREDITS}, 429)),
    "chat, event and end": (apis.CHAT, stream(data({"error": NO_CREDITS}) + DONE)),
    "chat, after the beginning": (
        apis.CHAT,
        stream(data(chat(role="assistant"), {"error": NO_CREDITS})),
    ),
    "responses, whole": (apis.RESPONSES, problem(FAILED)),
    "responses, failed": (
        apis.RESPONSES,
        stream(
            named(
                {"type": "response.created", "response": RESPONSE},
                {"type": "response.failed", "response": FAILED},
            )
        ),
    ),
    "messages, first event": (apis.MESSAGES, stream(named(BILLING))),
    "messages, 402": (apis.MESSAGES, problem(BILLING, 402)),
    "messages, low balance": (apis.MESSAGES, problem(LOW_BALANCE, 400)),
}


@pytest.mark.parametrize(
    ("kind", "client"),
    [
        *((kind, apis.CHAT) for kind in QUOTA),
        ("chat, whole", apis.MESSAGES),
        ("chat, whole", apis.RESPONSES),
    ],
)
def test_account_without_credit_is_asked_once(script: Script, kind: str, client: Api) -> None:
    """Another deployment answers; without one, the client gets 429 and the provider's message."""
    api, answer = QUOTA[kind]
    script.play(answer)
    script.play(GOOD, at="second")
    response = script.ask(client, model=api.name)
    assert (response.status_code, script.places()) == (429, ["first"])
    assert "No credits left" in response.json()["error"]["message"]
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-should-retry"] == "false"
    assert script.record(response)["status"] == 429
    assert "good" in script.ask(client, model=f"{api.name}+").text
    assert script.places() == ["first", "first", "second"]


@pytest.mark.parametrize("is_named", [True, False])
def test_refused_beta_is_left_out_and_remembered(script: Script, is_named: bool) -> None:
    """After a 400 about a beta, one request without it follows, and later ones do not send it."""
    flags = f"files-api-{is_named},context-1m-{is_named}"  # others than those of earlier tests
    error: dict[str, object] = {"error": {"message": "invalid beta flag"}}
    if is_named:
        message = f"Unexpected value(s) `context-1m-{is_named}` for the `anthropic-beta` header."
        error = {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
    good = {**MESSAGE, "content": [{"type": "text", "text": "good"}], "stop_reason": "end_turn"}
    script.play(problem(error, 400), problem(good))
    body = body_of(apis.MESSAGES, model="messages", stream=False)
    for _ in range(2):
        response = script.http.post("/v1/messages", json=body, headers={"anthropic-beta": flags})
        assert (response.status_code, "good" in response.text) == (200, True)
    refused, *accepted = (sent for _, sent in script.upstream.asked)
    assert [b"context-1m" in sent for sent in (refused, *accepted)] == [True, False, False]
    assert [b"files-api" in sent for sent in accepted] == [is_named] * 2
