"""Chat completions with the `openai` client for Python, in all their forms."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

from tests.bodies import ASK, TOOLS


class City(BaseModel):
    """Type of a structured answer."""

    name: str
    population: int


def calls_of(completion: ChatCompletion) -> list[tuple[str, str, Any]]:
    """Return id, name and parsed arguments of each call of the first choice."""
    calls = completion.choices[0].message.tool_calls or []
    return [
        (call.id, call.function.name, json.loads(call.function.arguments))
        for call in calls
        if call.type == "function"
    ]


def test_usage_comes_in_a_streams_last_chunk(client: openai.OpenAI) -> None:
    """With `include_usage`, only the last chunk has the usage, and it has no choice."""
    stream = client.chat.completions.create(
        model="switchcraft",
        messages=ASK,
        tools=TOOLS,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = list(stream)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.total_tokens == last.usage.prompt_tokens + last.usage.completion_tokens
    assert {chunk.usage for chunk in chunks} == {None}
    assert {chunk.model for chunk in [*chunks, last]} == {"medium"}


def test_structured_output_is_parsed(client: openai.OpenAI) -> None:
    """`parse` returns an instance of the pydantic class, streamed or not."""
    asked: Any = [{"role": "user", "content": "Describe Oslo"}]
    parsed = client.chat.completions.parse(
        model="switchcraft", messages=asked, response_format=City
    )
    with client.chat.completions.stream(
        model="switchcraft", messages=asked, response_format=City
    ) as stream:
        streamed = stream.get_final_completion()
    assert isinstance(parsed.choices[0].message.parsed, City)
    assert streamed.choices[0].message.parsed == parsed.choices[0].message.parsed


def test_raw_response_has_the_decision(client: openai.OpenAI) -> None:
    """Headers describe the decision, and the request id is the one that the client sent."""
    raw = client.chat.completions.with_raw_response.create(
        model="switchcraft", messages=ASK, tools=TOOLS, extra_headers={"x-request-id": "mine"}
    )
    assert raw.headers["x-switchcraft-model"] == "medium"
    assert raw.headers["x-switchcraft-reason"] == "threshold"
    assert raw.request_id == "mine"
    assert raw.headers["content-type"] == "application/json"


def test_models_are_listed_and_retrieved(client: openai.OpenAI) -> None:
    """Models are listed and retrieved by id; an unknown one is not found."""
    ids = [model.id for model in client.models.list()]
    assert ids[0] == "switchcraft"
    assert {"small", "medium", "large"} < set(ids)
    assert client.models.retrieve("medium").id == "medium"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("unknown")


def test_async_client_gets_each_request_its_own_answer(base_url: str) -> None:
    """Twenty concurrent requests, half of them streamed, each get their own answer."""

    async def one(client: openai.AsyncOpenAI, number: int) -> str:
        asked: Any = [{"role": "user", "content": f"What is the weather in Town{number}?"}]
        if number % 2:
            whole = await client.chat.completions.create(
                model="switchcraft", messages=asked, tools=TOOLS
            )
            return str(calls_of(whole)[0][2]["city"])
        async with client.chat.completions.stream(
            model="switchcraft", messages=asked, tools=TOOLS
        ) as stream:
            return str(calls_of(await stream.get_final_completion())[0][2]["city"])

    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(
            base_url=base_url, api_key="client-key", max_retries=0
        ) as client:
            return await asyncio.gather(*(one(client, number) for number in range(20)))

    assert asyncio.run(ask()) == [f"Town{number}" for number in range(20)]
