"""The Responses API and embeddings with the Python clients."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel

ASKED = "What is the weather in Oslo?"


class City(BaseModel):
    """Type of a structured answer."""

    name: str
    population: int


def function(name: str) -> Any:  # noqa: ANN401 - as the Responses API has it
    """Return a function tool with a city as parameter."""
    return {
        "type": "function",
        "name": name,
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    }


FUNCTIONS: Any = [function("get_weather"), function("get_time")]


def calls_of(response: Any) -> list[tuple[str, Any]]:  # noqa: ANN401 - whole, parsed or streamed
    """Return name and parsed arguments of each call."""
    return [
        (item.name, json.loads(item.arguments))
        for item in response.output
        if item.type == "function_call"
    ]


@pytest.mark.parametrize("kept", ["by the client", "by the upstream"])
def test_tool_loop_ends_with_a_text(client: openai.OpenAI, kept: str) -> None:
    """A tool loop works with the full history and with the previous response's id."""
    first = client.responses.create(model="switchcraft", input=ASKED, tools=FUNCTIONS)
    results: Any = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "cold"}
        for item in first.output
        if item.type == "function_call"
    ]
    said: Any = [{"role": "user", "content": ASKED}, *first.output]
    last = (
        client.responses.create(
            model="switchcraft", input=[*said, *results], tools=FUNCTIONS, store=False
        )
        if kept == "by the client"
        else client.responses.create(
            model="switchcraft", input=results, tools=FUNCTIONS, previous_response_id=first.id
        )
    )
    assert len(results) == 1
    assert last.output_text
    assert not calls_of(last)


def test_structured_output_is_parsed(client: openai.OpenAI) -> None:
    """`parse` returns a value of the schema."""
    parsed = client.responses.parse(model="switchcraft", input="Describe Oslo", text_format=City)
    assert isinstance(parsed.output_parsed, City)


def test_failures_are_typed(client: openai.OpenAI) -> None:
    """An upstream's failure and a client's mistake raise their error classes."""
    asked: Any = {"model": "switchcraft", "input": ASKED, "tools": FUNCTIONS}
    with pytest.raises(openai.RateLimitError):
        client.responses.create(**asked, extra_headers={"x-sandbox": "status=429"})
    with pytest.raises(openai.NotFoundError):
        client.responses.create(**asked | {"model": "unknown"})
    with pytest.raises(openai.BadRequestError):
        client.responses.create(**asked | {"input": 7})


def test_embeddings_arrive_as_numbers_in_order(client: openai.OpenAI) -> None:
    """Vectors arrive as numbers, although the client asks for base64, in the order of the texts."""
    answer = client.embeddings.create(model="small", input=["one", "two"])
    assert [item.index for item in answer.data] == [0, 1]
    assert all(isinstance(number, float) for item in answer.data for number in item.embedding)
    assert answer.usage.prompt_tokens > 0
