"""The sandbox's answers, as the providers' clients and a plain HTTP client see them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from router_service.apis.chat.api import CHAT
from router_service.apis.conversation import Json
from router_service.apis.parts import Answer, ToolUse
from router_service.sandbox.answers import SMALL_MODEL, make_answer
from router_service.sandbox.provider import run_in_thread

ASK: Any = [{"role": "user", "content": "What is the weather in Oslo for 3 days, in fahrenheit?"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
    },
    "required": ["city", "unit"],
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "m", "messages": ASK},
    "/v1/responses": {"model": "m", "input": ASK},
    "/v1/messages": {"model": "m", "max_tokens": 100, "messages": ASK},
}


def function(name: str, description: str = "", **schema: object) -> dict[str, Any]:
    """Return a function tool of Chat Completions."""
    tool = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": tool}


TOOLS = [
    function("send_email", "Sends an email"),
    function("get_weather", "Weather of a city", **SCHEMA),
    function("getStockPrice", "Price of a share"),
    function("book_flight", "Books a seat on a plane"),
]


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    """Yield a plain HTTP client of a sandbox."""
    with run_in_thread() as url, httpx.Client(base_url=url.removesuffix("/v1"), timeout=30) as made:
        yield made


def answer(query: str = "hello", **fields: Json) -> Answer:
    """Return the answer to a query, with all tools unless told otherwise."""
    messages = [{"role": "user", "content": query}]
    body = {"model": "m", "messages": messages, "tools": TOOLS} | fields
    return make_answer(CHAT, CHAT.read_request(body))


def called(query: str = "hello", **fields: Json) -> list[str]:
    """Return the names of the tools called."""
    return [part.name for part in answer(query, **fields).parts if isinstance(part, ToolUse)]


def chosen(name: str) -> dict[str, Any]:
    """Return the choice of a tool."""
    return {"tool_choice": {"type": "function", "function": {"name": name}}}


@pytest.mark.parametrize(
    ("query", "fields", "names"),
    [
        ("Is the weather nice?", {}, ["get_weather"]),
        ("What are ACME's stock prices?", {}, ["getStockPrice"]),
        ("I need a seat on a plane to Rome", {}, ["book_flight"]),
        ("Something else entirely", {}, ["send_email"]),
        ("The stock price, and get the weather", {}, ["getStockPrice", "get_weather"]),
        ("The stock price, and get the weather", {"parallel_tool_calls": False}, ["getStockPrice"]),
        ("the weather", {"tool_choice": "none"}, []),
        ("the weather", {"tool_choice": "required"}, ["get_weather"]),
        ("the weather", chosen("book_flight"), ["book_flight"]),
        ("the weather", {"tools": []}, []),
        ("The stock price, and get the weather", {"model": SMALL_MODEL}, ["getStockPrice"]),
        (f"{'Please, ' * 10}the weather", {"model": SMALL_MODEL}, ["send_email"]),
        (f"{'Please, ' * 10}the weather", {"model": "m"}, ["get_weather"]),
    ],
)
def test_tools_that_match_the_query_are_called(
    query: str, fields: dict[str, Any], names: list[str]
) -> None:
    """Names and descriptions count, in any case and number, and `tool_choice` is obeyed.

    The small model makes one call, and does not read to the end.
    """
    assert called(query, **fields) == names


def test_foreign_signature_is_refused(http: httpx.Client) -> None:
    """Like Anthropic, the sandbox accepts only its own signatures."""
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "foreign"}
    messages = [*ASK, {"role": "assistant", "content": [thinking]}, *ASK]
    response = http.post("/v1/messages", json=BODIES["/v1/messages"] | {"messages": messages})
    assert response.status_code == 400
    assert "signature" in response.json()["error"]["message"]
