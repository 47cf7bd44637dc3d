"""The Responses API and embeddings with the Python clients."""

from __future__ import annotations

from typing import Any

import openai
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


def test_tool_loop_ends_with_a_text(client: openai.OpenAI) -> None:
    """A tool loop works with the previous response's id, which its provider has stored."""
    first = client.responses.create(model="switchcraft", input=ASKED, tools=FUNCTIONS)
    results: Any = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "cold"}
        for item in first.output
        if item.type == "function_call"
    ]
    last = client.responses.create(
        model="switchcraft", input=results, tools=FUNCTIONS, previous_response_id=first.id
    )
    assert len(results) == 1
    assert last.output_text


def test_structured_output_is_parsed(client: openai.OpenAI) -> None:
    """`parse` returns a value of the schema."""
    parsed = client.responses.parse(model="switchcraft", input="Describe Oslo", text_format=City)
    assert isinstance(parsed.output_parsed, City)


def test_embeddings_arrive_as_numbers_in_order(client: openai.OpenAI) -> None:
    """Vectors arrive as numbers, although the client asks for base64, in the order of the texts."""
    answer = client.embeddings.create(model="small", input=["one", "two"])
    assert [item.index for item in answer.data] == [0, 1]
    assert all(isinstance(number, float) for item in answer.data for number in item.embedding)
    assert answer.usage.prompt_tokens > 0
