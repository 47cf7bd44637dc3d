"""Which tool the sandbox calls, and when it calls none."""

from typing import Any

import pytest

from router_service.core.errors import InvalidRequestError
from router_service.core.messages import Json
from router_service.sandbox.answers import Answer, encode_prompt, make_answer, read_request


def function(name: str, description: str = "") -> dict[str, Any]:
    """Return a function tool without parameters."""
    return {"type": "function", "function": {"name": name, "description": description}}


TOOLS = [
    function("get_weather", "Weather of a city"),
    function("getStockPrice", "Price of a share"),
    function("book_flight", "Books a seat on a plane"),
]


def answer(query: str = "hello", **fields: Json) -> Answer:
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
