"""The sandbox as the OpenAI client and a plain HTTP client see it."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionChunk

from router_service.sandbox.provider import run_in_thread

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 14},
            },
            "required": ["city", "unit"],
        },
    },
}
MAIL: Any = {
    "type": "function",
    "function": {
        "name": "send_email",
        "description": "Sends an email.",
        "parameters": {
            "type": "object",
            "properties": {"to": {"type": "string", "format": "email"}},
            "required": ["to"],
        },
    },
}
NOTE: Any = {"type": "custom", "custom": {"name": "write_note", "description": "Notes a text."}}
ASK: Any = [{"role": "user", "content": "What is the weather in Oslo for 3 days, in fahrenheit?"}]
BODY: dict[str, Any] = {"model": "any-model", "messages": ASK, "tools": [MAIL, WEATHER]}
COMPLETIONS = "/v1/chat/completions"
ARGUMENTS = {"city": "Oslo", "unit": "fahrenheit", "days": 3}


@pytest.fixture
def client(sandbox_url: str) -> Iterator[openai.OpenAI]:
    """Yield the real client, without its retries."""
    with openai.OpenAI(base_url=sandbox_url, api_key="unused", max_retries=0) as made:
        yield made


def chat(http: httpx.Client, **changes: object) -> dict[str, Any]:
    """Return the answer to BODY with changes, which must be a good one."""
    response = http.post(COMPLETIONS, json=BODY | changes)
    assert response.status_code == 200, response.text
    assert response.headers["x-sandbox"] == "true"
    answer: dict[str, Any] = response.json()
    return answer


def events(http: httpx.Client, **changes: object) -> list[dict[str, Any]]:
    """Return the events of the streamed answer to BODY with changes, but the last, [DONE]."""
    response = http.post(COMPLETIONS, json=BODY | {"stream": True} | changes)
    assert response.headers["content-type"].startswith("text/event-stream")
    *data, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(line.removeprefix("data: ")) for line in data]


def test_client_reads_a_tool_call(client: openai.OpenAI) -> None:
    """The OpenAI client reads the matching tool, its arguments and the usage."""
    answer = client.chat.completions.create(model="any-model", messages=ASK, tools=[MAIL, WEATHER])
    choice = answer.choices[0]
    calls = choice.message.tool_calls
    assert calls is not None
    assert calls[0].type == "function"
    assert calls[0].function.name == "get_weather"
    assert json.loads(calls[0].function.arguments) == ARGUMENTS
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert answer.model == "any-model"
    assert answer.id.startswith("chatcmpl-sandbox-")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > 0
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_client_assembles_a_streamed_tool_call(client: openai.OpenAI) -> None:
    """The OpenAI client's accumulator assembles the same call, with its usage."""
    with client.chat.completions.stream(
        model="any-model",
        messages=ASK,
        tools=[MAIL, WEATHER],
        stream_options={"include_usage": True},
    ) as stream:
        final = stream.get_final_completion()
    calls = final.choices[0].message.tool_calls
    assert calls is not None
    assert json.loads(calls[0].function.arguments) == ARGUMENTS
    assert final.choices[0].finish_reason == "tool_calls"
    assert final.usage is not None
    assert final.usage.completion_tokens > 0


def test_streamed_text_equals_the_whole_one(client: openai.OpenAI) -> None:
    """Without tools the answer is a text."""
    whole = client.chat.completions.create(model="m", messages=ASK)
    chunks: list[ChatCompletionChunk] = list(
        client.chat.completions.create(model="m", messages=ASK, stream=True)
    )
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert streamed == whole.choices[0].message.content
    assert "sandbox" in streamed
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "stop"


def test_events_have_the_order_of_openai(http: httpx.Client) -> None:
    """Role, start of the call, argument fragments, finish reason, and the usage at the end."""
    role, head, *fragments, reason, usage = events(http, stream_options={"include_usage": True})
    assert role["choices"][0]["delta"]["role"] == "assistant"
    call = head["choices"][0]["delta"]["tool_calls"][0]
    assert (call["index"], call["type"]) == (0, "function")
    assert call["function"] == {"name": "get_weather", "arguments": ""}
    pieces = [event["choices"][0]["delta"]["tool_calls"][0] for event in fragments]
    assert {frozenset(piece) for piece in pieces} == {frozenset({"index", "function"})}
    text = "".join(piece["function"]["arguments"] for piece in pieces)
    assert json.loads(text) == ARGUMENTS
    assert len(pieces) > 1
    assert reason["choices"] == [
        {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "tool_calls"}
    ]
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] > 0
    assert reason["usage"] is None


def test_stream_has_usage_only_if_requested(http: httpx.Client) -> None:
    """Without `include_usage` the stream ends with the finish reason."""
    seen = events(http)
    assert not any("usage" in event for event in seen)
    assert seen[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_same_request_gets_the_same_answer(http: httpx.Client) -> None:
    """Only `id` and `created` differ; call ids are the same."""
    first, second = chat(http), chat(http)
    assert first["id"] != second["id"]
    varying = ("id", "created")
    assert {k: v for k, v in first.items() if k not in varying} == {
        k: v for k, v in second.items() if k not in varying
    }


def test_call_ids_differ_between_turns(http: httpx.Client) -> None:
    """A longer conversation gets other call ids."""
    first = chat(http)["choices"][0]["message"]["tool_calls"][0]["id"]
    longer = [*ASK, {"role": "assistant", "content": "Rain."}, *ASK]
    assert chat(http, messages=longer)["choices"][0]["message"]["tool_calls"][0]["id"] != first


def test_n_choices_are_answered(http: httpx.Client) -> None:
    """Each choice has its index, whole and streamed."""
    assert [choice["index"] for choice in chat(http, n=3)["choices"]] == [0, 1, 2]
    reasons = [event["choices"][0] for event in events(http, n=2)]
    assert [choice["index"] for choice in reasons if choice["finish_reason"]] == [0, 1]


def test_functions_are_answered_with_function_call(http: httpx.Client) -> None:
    """The answer is the same whole and streamed."""
    functions = [MAIL["function"], WEATHER["function"]]
    choice = chat(http, tools=None, functions=functions)["choices"][0]
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"]["name"] == "get_weather"
    deltas = [event["choices"][0]["delta"] for event in events(http, tools=[], functions=functions)]
    parts = [delta["function_call"] for delta in deltas if "function_call" in delta]
    assert parts[0] == {"name": "get_weather", "arguments": ""}
    assert json.loads("".join(part["arguments"] for part in parts)) == ARGUMENTS


def test_custom_tool_gets_the_users_words(http: httpx.Client) -> None:
    """The input is the same whole and streamed."""
    said = [{"role": "user", "content": "Write a note about the meeting"}]
    call = chat(http, tools=[WEATHER, NOTE], messages=said)["choices"][0]["message"]["tool_calls"]
    assert call[0]["type"] == "custom"
    assert call[0]["custom"] == {"name": "write_note", "input": said[0]["content"]}
    deltas = [event["choices"][0]["delta"] for event in events(http, tools=[NOTE], messages=said)]
    parts = [delta["tool_calls"][0]["custom"] for delta in deltas if "tool_calls" in delta]
    assert "".join(part["input"] for part in parts) == said[0]["content"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"[]", None),
        (b"\xff", None),
        (b"[" * 500 + b"]" * 500, None),
        (b'{"messages": []}', "model"),
        (b'{"model": "m"}', "messages"),
        (b'{"model": "m", "messages": []}', "messages"),
        (b'{"model": "m", "messages": [1], "stream": 1}', "stream"),
        (b'{"model": "m", "messages": [1], "tools": 1}', "tools"),
        (b'{"model": "m", "messages": [1], "n": 0}', "n"),
        (b'{"model": "m", "messages": [1], "tool_choice": "required"}', "tool_choice"),
        (b'{"model": "m", "messages": [' + b"[" * 400 + b"]" * 400 + b"]}", None),
    ],
)
def test_unreadable_request_gets_status_400(
    http: httpx.Client, body: bytes, param: str | None
) -> None:
    """The body is OpenAI's error body."""
    response = http.post(COMPLETIONS, content=body)
    assert response.status_code == 400
    assert response.headers["x-sandbox"] == "true"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


FIELDS = (
    "messages tools functions tool_choice function_call stream n response_format "
    "parallel_tool_calls stream_options role content type function custom name parameters "
    "json_schema schema allowed_tools mode"
).split()
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.sampled_from(
        ["user", "tool", "function", "custom", "json_schema", "required", "auto", "name"]
    )
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5)
    ),
    max_leaves=20,
)


@settings(max_examples=200)
@given(fields=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=8))
def test_no_body_causes_a_server_error(http: httpx.Client, fields: dict[str, Any]) -> None:
    """Any JSON body is answered or refused with status 400."""
    body = {"model": "m", "messages": ASK, "tools": [WEATHER]} | fields
    response = http.post(COMPLETIONS, json=body)
    assert response.status_code in {200, 400}, response.text


def test_models_and_health_are_marked_as_sandbox(client: openai.OpenAI, http: httpx.Client) -> None:
    """Both endpoints answer with the header `x-sandbox`."""
    assert [model.id for model in client.models.list()] == ["sandbox"]
    health = http.get("/healthz")
    assert (health.json(), health.headers["x-sandbox"]) == ({"status": "ok"}, "true")


def test_unknown_path_and_method_get_openai_errors(http: httpx.Client) -> None:
    """The status is 404 or 405."""
    for response, status in ((http.get("/v1/nothing"), 404), (http.get(COMPLETIONS), 405)):
        assert response.status_code == status
        assert response.headers["x-sandbox"] == "true"
        assert response.json()["error"]["type"] == "invalid_request_error"


def test_kept_requests_are_unchanged(http: httpx.Client) -> None:
    """Tests can read the exact bytes and every header."""
    sent = b'{ "model":"m",\n "messages":[{"role":"user","content":"\\u00e9 \xc3\xa9"}] }'
    http.post(COMPLETIONS, content=sent, headers={"authorization": "Bearer k"})
    last = http.get("/sandbox/requests").json()[-1]
    assert base64.b64decode(last["body_base64"]) == sent
    assert ["authorization", "Bearer k"] in last["headers"]


def test_no_requests_are_kept_by_default() -> None:
    """The page of kept requests explains this."""
    with run_in_thread() as url:
        root = url.removesuffix("/v1")
        httpx.post(f"{url}/chat/completions", json=BODY)
        answer = httpx.get(f"{root}/sandbox/requests")
        stats = httpx.get(f"{root}/sandbox/stats").json()
    assert answer.status_code == 404
    assert "keep_requests" in answer.json()["error"]["message"]
    assert (stats["requests"], stats["completed"]) == (1, 1)
    assert stats["by_model"]["any-model"]["requests"] == 1


def test_server_stops_when_its_block_ends() -> None:
    """The port is then free."""
    with run_in_thread() as url:
        assert httpx.get(url.removesuffix("/v1") + "/healthz").status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)


def test_taken_port_raises_immediately() -> None:
    """The error is raised in the caller, not in the server's thread."""
    with run_in_thread() as url:
        port = int(url.split(":")[2].removesuffix("/v1"))
        with pytest.raises(OSError, match="in use"), run_in_thread(port=port):
            pass
