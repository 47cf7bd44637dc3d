"""Which tool the sandbox calls, and what it plays besides tool calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from router_service.apis.conversation import Json
from router_service.core.errors import InvalidRequestError
from router_service.sandbox.replies import SandboxAnswer, encode_prompt, make_answer, read_request


def function(name: str, description: str = "") -> dict[str, Any]:
    """Return a function tool without parameters."""
    return {"type": "function", "function": {"name": name, "description": description}}


TOOLS = [
    function("get_weather", "Weather of a city"),
    function("getStockPrice", "Price of a share"),
    function("book_flight", "Books a seat on a plane"),
]


def answer(query: str = "hello", **fields: Json) -> SandboxAnswer:
    """Return the answer to a query, with all three tools unless told otherwise."""
    messages = [{"role": "user", "content": query}]
    body = {"model": "m", "messages": messages, "tools": TOOLS} | fields
    return make_answer(body, read_request(body), encode_prompt(body))


def called(query: str = "hello", **fields: Json) -> list[str]:
    """Return the names of the tools called."""
    return [call.name for call in answer(query, **fields).calls]


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("Is the weather nice?", "get_weather"),
        ("What are ACME's stock prices?", "getStockPrice"),
        ("I need a seat on a plane to Rome", "book_flight"),
        ("Something else entirely", "get_weather"),
    ],
)
def test_tool_with_most_shared_words_is_called(query: str, name: str) -> None:
    """Names and descriptions count, in any case and number; the first tool wins a tie."""
    assert called(query) == [name]


def test_only_the_latest_user_turn_decides() -> None:
    """Earlier turns, and what the assistant said, do not change the tool."""
    messages = [
        {"role": "user", "content": "weather weather"},
        {"role": "assistant", "content": "The weather is fine. Weather!"},
        {"role": "user", "content": "Then book a flight"},
    ]
    assert called(messages=messages) == ["book_flight"]


def test_every_named_tool_is_called() -> None:
    """The best tool comes first; `parallel_tool_calls=False` allows one call only."""
    query = "Give me the stock price of ACME and the weather in Oslo"
    assert called(query) == ["getStockPrice", "get_weather"]
    assert called(query, parallel_tool_calls=False) == ["getStockPrice"]
    ids = {call.call_id for call in answer(query).calls}
    assert len(ids) == 2


def test_tool_choice_forbids_forces_and_restricts() -> None:
    """The values mean the same as with OpenAI."""
    weather = "the weather"
    named = {"type": "function", "function": {"name": "book_flight"}}
    allowed = {"mode": "required", "tools": [function("book_flight")]}
    assert called(weather, tool_choice="none") == []
    assert called(weather, tool_choice="auto") == ["get_weather"]
    assert called(weather, tool_choice="required") == ["get_weather"]
    assert called(weather, tool_choice=named) == ["book_flight"]
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    assert called(weather, tool_choice=choice) == ["book_flight"]


def test_function_call_chooses_among_functions() -> None:
    """The answer then has the finish reason `function_call`."""
    functions = [tool["function"] for tool in TOOLS]
    fields: dict[str, Json] = {"tools": None, "functions": functions}
    assert called(function_call={"name": "book_flight"}, **fields) == ["book_flight"]
    assert called(function_call="none", **fields) == []
    assert answer(**fields).finish_reason == "function_call"


@pytest.mark.parametrize("choice", [5, "banana", {}, [], {"function": {"name": "unknown"}}])
def test_choice_of_unknown_tool_is_refused(choice: object) -> None:
    """The error names the field `tool_choice`."""
    with pytest.raises(InvalidRequestError, match="tool_choice") as caught:
        answer(tool_choice=choice)
    assert caught.value.param == "tool_choice"


def test_tool_result_is_answered_with_text() -> None:
    """This ends an agent's loop, unless a call is forced."""
    messages = [
        {"role": "user", "content": "weather"},
        {"role": "assistant", "tool_calls": []},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
    ]
    assert called(messages=messages) == []
    assert answer(messages=messages).finish_reason == "stop"
    assert called(messages=messages, tool_choice="required") == ["get_weather"]


def test_tools_without_name_are_ignored() -> None:
    """They are never called and cause no error."""
    assert called(tools=[1, {}, {"type": "function", "function": {}}, *TOOLS]) == ["get_weather"]
    assert called(tools=[None]) == []


def test_text_follows_response_format() -> None:
    """The answer is JSON that matches the schema."""
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert answer(tools=None, response_format=form).text == '{"ok":true}'
    assert (
        answer(tools=None, response_format={"type": "json_object"}).text == '{"answer":"sandbox"}'
    )


def test_arguments_are_always_an_object() -> None:
    """This holds for schemas of other types and for unusable ones."""
    unusual: list[Json] = [{"type": "string"}, None, 5, [], {}]
    for parameters in unusual:
        tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
        assert answer(tools=[tool]).calls[0].payload == "{}"


ASK: Any = [{"role": "user", "content": "What is the weather in Oslo for 3 days?"}]


@pytest.fixture
def client(sandbox_url: str) -> Iterator[openai.OpenAI]:
    """Yield the real client, without its retries."""
    with openai.OpenAI(base_url=sandbox_url, api_key="unused", max_retries=0) as made:
        yield made


def test_usage_includes_reasoning_tokens(client: openai.OpenAI) -> None:
    """A higher reasoning effort adds more tokens to the answer."""
    used: list[Any] = [
        client.chat.completions.create(model="m", messages=ASK, reasoning_effort=effort).usage
        for effort in ("none", "low", "high")
    ]
    tokens = [usage.completion_tokens_details.reasoning_tokens for usage in used]
    assert tokens[0] == 0 < tokens[1] < tokens[2]
    totals = [usage.completion_tokens - told for usage, told in zip(used, tokens, strict=True)]
    assert len(set(totals)) == 1


def test_images_are_accepted(client: openai.OpenAI) -> None:
    """A message with an image still leads to a tool call."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    said: Any = [{"role": "user", "content": [{"type": "text", "text": "Weather?"}, picture]}]
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    answer = client.chat.completions.create(model="m", messages=said, tools=tools)
    assert answer.choices[0].finish_reason == "tool_calls"


def test_embeddings_are_deterministic_unit_vectors(client: openai.OpenAI) -> None:
    """Floats and base64 contain the same vector."""
    floats = client.embeddings.create(
        model="m", input=["a", "b", "a"], encoding_format="float", dimensions=64
    )
    first, second, third = (each.embedding for each in floats.data)
    assert first == third != second
    assert len(first) == 64
    assert sum(value * value for value in first) == pytest.approx(1)
    packed = client.embeddings.create(model="m", input="a", dimensions=64)
    assert packed.data[0].embedding == pytest.approx(first)
    assert packed.usage.prompt_tokens > 0
    assert len(client.embeddings.create(model="m", input=[1, 2]).data) == 1


def test_prompts_are_completed(client: openai.OpenAI) -> None:
    """Each prompt gets `n` texts, the same streamed and whole."""
    whole = client.completions.create(model="m", prompt=["Once", "Twice"], n=2)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert "'Once'" in whole.choices[1].text
    assert "'Twice'" in whole.choices[2].text
    assert whole.usage is not None
    chunks = list(
        client.completions.create(
            model="m", prompt="Once", stream=True, stream_options={"include_usage": True}
        )
    )
    texts = [chunk.choices[0].text for chunk in chunks if chunk.choices]
    assert "".join(texts) == whole.choices[0].text
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("embeddings", {}, "input"),
        ("embeddings", {"input": []}, "input"),
        ("embeddings", {"input": [1.5]}, "input"),
        ("embeddings", {"input": "x", "dimensions": 0}, "dimensions"),
        ("completions", {}, "prompt"),
        ("completions", {"prompt": [None]}, "prompt"),
        ("completions", {"prompt": "x", "n": 0}, "n"),
    ],
)
def test_unreadable_request_gets_status_400(
    http: httpx.Client, path: str, fields: dict[str, Any], param: str
) -> None:
    """The error names the field."""
    response = http.post(f"/v1/{path}", json={"model": "m", **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
