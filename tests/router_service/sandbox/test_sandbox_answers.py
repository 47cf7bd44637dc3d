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
def test_calls_the_tool_that_shares_most_words(query: str, name: str) -> None:
    """Names and descriptions decide, in any case and number; among equals the first tool."""
    assert called(query) == [name]


def test_only_the_latest_user_turn_decides() -> None:
    """Earlier turns, and what the assistant said, do not change the tool."""
    messages = [
        {"role": "user", "content": "weather weather"},
        {"role": "assistant", "content": "The weather is fine. Weather!"},
        {"role": "user", "content": "Then book a flight"},
    ]
    assert called(messages=messages) == ["book_flight"]


def test_several_tools_where_several_are_named() -> None:
    """Each tool that the turn names is called, the best first, unless that is forbidden."""
    query = "Give me the stock price of ACME and the weather in Oslo"
    assert called(query) == ["getStockPrice", "get_weather"]
    assert called(query, parallel_tool_calls=False) == ["getStockPrice"]
    ids = {call.call_id for call in answer(query).calls}
    assert len(ids) == 2


def test_tool_choice() -> None:
    """`tool_choice` forbids, forces and restricts as it does with OpenAI."""
    weather = "the weather"
    named = {"type": "function", "function": {"name": "book_flight"}}
    allowed = {"mode": "required", "tools": [function("book_flight")]}
    assert called(weather, tool_choice="none") == []
    assert called(weather, tool_choice="auto") == ["get_weather"]
    assert called(weather, tool_choice="required") == ["get_weather"]
    assert called(weather, tool_choice=named) == ["book_flight"]
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    assert called(weather, tool_choice=choice) == ["book_flight"]


def test_legacy_function_call() -> None:
    """`function_call` chooses among `functions`."""
    functions = [tool["function"] for tool in TOOLS]
    fields: dict[str, Json] = {"tools": None, "functions": functions}
    assert called(function_call={"name": "book_flight"}, **fields) == ["book_flight"]
    assert called(function_call="none", **fields) == []
    assert answer(**fields).finish_reason == "function_call"


@pytest.mark.parametrize("choice", [5, "banana", {}, [], {"function": {"name": "unknown"}}])
def test_impossible_choice(choice: object) -> None:
    """A choice that names no tool of the request is refused."""
    with pytest.raises(InvalidRequestError, match="tool_choice") as caught:
        answer(tool_choice=choice)
    assert caught.value.param == "tool_choice"


def test_a_result_ends_the_loop() -> None:
    """After a tool's result the answer is a text, so that an agent's loop ends, unless forced."""
    messages = [
        {"role": "user", "content": "weather"},
        {"role": "assistant", "tool_calls": []},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
    ]
    assert called(messages=messages) == []
    assert answer(messages=messages).finish_reason == "stop"
    assert called(messages=messages, tool_choice="required") == ["get_weather"]


def test_unreadable_tools_are_passed_over() -> None:
    """A tool without a name is never called, and no reason to fail."""
    assert called(tools=[1, {}, {"type": "function", "function": {}}, *TOOLS]) == ["get_weather"]
    assert called(tools=[None]) == []


def test_response_format() -> None:
    """A text answer is JSON where that was asked for, and fits the schema."""
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert answer(tools=None, response_format=form).text == '{"ok":true}'
    assert (
        answer(tools=None, response_format={"type": "json_object"}).text == '{"answer":"sandbox"}'
    )


def test_arguments_are_always_an_object() -> None:
    """Even a schema that asks for something else, or is none, gets an object."""
    unusual: list[Json] = [{"type": "string"}, None, 5, [], {}]
    for parameters in unusual:
        tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
        assert answer(tools=[tool]).calls[0].payload == "{}"
