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
from tests.serving import Sandbox, wait_for


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


ROUTED: dict[str, Any] = {"model": "switchcraft", "messages": ASK, "tools": TOOLS}


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"model": "unknown"}, openai.NotFoundError, "model"),
        ({"messages": []}, openai.BadRequestError, "messages"),
    ],
)
def test_invalid_request_raises_an_error_that_names_the_field(
    client: openai.OpenAI,
    fields: dict[str, Any],
    kind: type[openai.APIStatusError],
    param: str,
) -> None:
    """A refused request raises the client's typed error, which names the field."""
    with pytest.raises(kind) as raised:
        client.chat.completions.create(**ROUTED | fields)
    assert raised.value.type == "invalid_request_error"
    assert str(raised.value.param).startswith(param)


@pytest.mark.parametrize("stream", [False, True])
def test_a_timed_out_client_cancels_the_upstream(
    client: openai.OpenAI, sandbox: Sandbox, stream: bool
) -> None:
    """A client timeout also ends the upstream's work."""
    before = sandbox.stats()
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=1).chat.completions.create(
            **ROUTED, stream=stream, extra_headers={"x-sandbox": "hang"}
        )
    wait_for(
        lambda: (
            sandbox.stats()["cancelled"] > before["cancelled"]
            and sandbox.stats()["in_flight"] == before["in_flight"]
        ),
        "the upstream's work is cancelled",
    )
