"""What a provider attaches to a call comes back to it, and to nobody else, whatever the client."""

from __future__ import annotations

import json
import random
import re
import zlib
from base64 import urlsafe_b64encode
from typing import Any

import anthropic
import openai
import pytest

from router_service.apis.encoding import encode
from router_service.apis.foreign import carry_attached, read_attached, without_attached
from router_service.apis.parts import ToolUse
from tests import apis
from tests.answering import Peers
from tests.apis import Api
from tests.bodies import ASK, MESSAGES_TOOLS, RESPONSES_TOOLS
from tests.dialect_answers import CASES
from tests.dialect_answers import whole as content_of
from tests.router_service.http.scripted import Script, whole

SIGNATURE = "CpcBAdHtim9" + random.Random(1).randbytes(1500).hex() + "0aB+/=="
EXTRA: Any = {"google": {"thought_signature": SIGNATURE}}
CITIES = ("Oslo", "Rome")
DONE: Any = {"role": "assistant", "content": "Rain."}


def chat_answer(message: dict[str, Any], *, stream: bool) -> bytes:
    """Return an answer of Gemini's compatible API."""
    choice = {"index": 0, "finish_reason": "tool_calls" if "tool_calls" in message else "stop"}
    whole = {"id": "g", "model": "gemini-3-pro", "object": "chat.completion"}
    if not stream:
        return json.dumps(whole | {"choices": [choice | {"message": message}]}).encode()
    whole["object"] += ".chunk"
    chunk = json.dumps(whole | {"choices": [choice | {"delta": message}]})
    return f"data: {chunk}\n\ndata: [DONE]\n\n".encode()


def calls_of_gemini(field: str = "extra_content") -> dict[str, Any]:
    """Return a message with parallel calls, of which the first has a signature."""
    calls: list[dict[str, Any]] = [
        {
            "index": index,
            "id": f"function-call-{index}",
            "type": "function",
            "function": {"name": "get_weather", "arguments": json.dumps({"city": city})},
        }
        for index, city in enumerate(CITIES)
    ]
    calls[0][field] = EXTRA
    return {"role": "assistant", "content": None, "tool_calls": calls}


def ask_messages(it: Peers, turns: list[Any], *, stream: bool = False) -> list[Any]:
    """Return the content of an answer that Anthropic's client reads, as it sends it back."""
    client = anthropic.Anthropic(base_url=str(it.http.base_url), api_key="k", max_retries=0)
    fields: Any = {"model": "small", "max_tokens": 99, "messages": turns, "tools": MESSAGES_TOOLS}
    with client:
        if not stream:
            message = client.messages.create(**fields)
        else:
            with client.messages.stream(**fields) as events:
                message = events.get_final_message()
    return [block.model_dump(exclude_none=True) for block in message.content]


def ask_responses(it: Peers, items: list[Any], *, stream: bool = False) -> list[Any]:
    """Return the output of an answer that OpenAI's client reads, as it sends it back."""
    client = openai.OpenAI(base_url=f"{it.http.base_url}/v1", api_key="k", max_retries=0)
    fields: Any = {"model": "small", "input": items, "tools": RESPONSES_TOOLS, "store": False}
    with client:
        if not stream:
            response = client.responses.create(**fields)
        else:
            with client.responses.stream(**fields) as events:
                response = events.get_final_response()
    return [
        item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output
    ]


def history(it: Peers, client: str, *, stream: bool, field: str = "extra_content") -> list[Any]:
    """Return a conversation whose calls, which have results, are Gemini's."""
    it.upstream.answer = chat_answer(calls_of_gemini(field), stream=stream)
    it.upstream.is_stream = stream
    if client == "messages":
        made = ask_messages(it, list(ASK), stream=stream)
        calls = [block for block in made if block["type"] == "tool_use"]
        results: list[Any] = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": "rain"} for call in calls
        ]
        turns = [{"role": "assistant", "content": made}, {"role": "user", "content": results}]
    else:
        made = ask_responses(it, list(ASK), stream=stream)
        turns = made + [
            {"type": "function_call_output", "call_id": item["call_id"], "output": "rain"}
            for item in made
        ]
    return [*ASK, *turns]


def send(it: Peers, client: str, model: str, turns: list[Any]) -> bytes:
    """Send a conversation to a model that answers nothing of use; return what it gets."""
    if client == "messages":
        path, body = "/v1/messages", {"max_tokens": 99, "messages": turns, "tools": MESSAGES_TOOLS}
    else:
        path, body = "/v1/responses", {"input": turns, "tools": RESPONSES_TOOLS, "store": False}
    it.upstream.answer, it.upstream.is_stream = b"{}", False
    it.post(path, json.dumps(body | {"model": model}).encode())
    return it.upstream.bodies[-1]


@pytest.mark.parametrize(
    ("client", "stream", "field"),
    [
        ("messages", False, "extra_content"),
        ("messages", True, "provider_specific_fields"),
        ("responses", True, "extra_content"),
        ("responses", False, "provider_specific_fields"),
    ],
)
def test_gemini_gets_its_signature_back(it: Peers, client: str, stream: bool, field: str) -> None:
    """The upstream's calls have what it attached, and the ids that it gave, also after a turn.

    Others get neither: they limit ids to 64 characters or less, and do not know its fields.
    """
    turns = history(it, client, stream=stream, field=field)
    for more in ([], [DONE, {"role": "user", "content": "And now?"}]):
        asked = json.loads(send(it, client, "small", turns + more))
        [message] = [m for m in asked["messages"] if m.get("tool_calls")]
        first, second = message["tool_calls"]
        assert first[field] == EXTRA
        assert field not in second
        results = [m["tool_call_id"] for m in asked["messages"] if m["role"] == "tool"]
        assert [first["id"], second["id"]] == results == ["function-call-0", "function-call-1"]
    for model in ("medium", "large"):
        body = send(it, client, model, turns)
        assert SIGNATURE[:40].encode() not in body
        assert b"_switchcraft_" not in body


@pytest.mark.parametrize("text", ["", "☔", random.Random(2).randbytes(9000).hex()])
def test_attachment_of_any_size_is_found_again(text: str) -> None:
    """An id that is not one of the gateway's stays as it is."""
    attached = encode({"extra_content": {"google": text}}).decode()
    carried = carry_attached(ToolUse("call_1", "", "", attached=attached, provider="gemini"))
    assert re.fullmatch("[a-zA-Z0-9_-]+", carried)
    assert read_attached(carried) == ToolUse("call_1", "", "", False, attached, "gemini")
    body = encode({"id": carried})
    assert without_attached(body) == b'{"id":"call_1"}'
    bomb = urlsafe_b64encode(zlib.compress(b"[1" + b",1" * 10**6 + b"]")).decode().rstrip("=")
    for other in (
        "get_switchcraft_data",
        "_switchcraft_",
        f"call_switchcraft_{bomb}",
        carried[:-9],
    ):
        assert read_attached(other).id == other
        assert without_attached(b'"%b"' % other.encode()) == b'"%b"' % other.encode()


def results_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a result for each call of a message."""
    return [
        {"role": "tool", "tool_call_id": call["id"], "content": "rain"}
        for call in message["tool_calls"]
    ]


SIGNED = {"type": "thinking", "thinking": "Hm.", "signature": "made-elsewhere"}
REFUSED: dict[str, tuple[Api, str, list[Any], bytes]] = {
    "extra_content": (
        apis.CHAT,
        "property 'tool_calls[0].extra_content' is unsupported",
        [calls_of_gemini(), *results_of(calls_of_gemini())],
        chat_answer(DONE, stream=False),
    ),
    "made-elsewhere": (
        apis.MESSAGES,
        "messages.1: Invalid `signature` in `thinking` block",
        [{"role": "assistant", "content": [SIGNED, {"type": "text", "text": "Rain."}]}, *ASK],
        json.dumps(content_of(CASES["text"], apis.MESSAGES)).encode(),
    ),
}


@pytest.mark.parametrize("mark", REFUSED)
def test_what_an_upstream_refuses_is_left_out_and_remembered(script: Script, mark: str) -> None:
    """A server that does not accept it is asked again without it, and then never with it."""
    api, problem, turns, good = REFUSED[mark]
    refusal = json.dumps({"error": {"message": problem}}).encode()
    script.play(whole(refusal, 400), whole(good))
    for _ in range(2):
        response = script.ask(api, model=api.name, messages=[*ASK, *turns], stream=False)
        assert response.status_code == 200
    sent = [mark.encode() in body for _, body in script.upstream.asked]
    assert sent == [True, False, False]
