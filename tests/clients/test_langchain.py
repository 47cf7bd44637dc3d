"""LangChain's chat model for OpenAI, through the gateway."""

from __future__ import annotations

import asyncio
from typing import Literal

import openai
import pytest
from langchain_core.messages import AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr

from tests.serving import Sandbox, wait_for

pytestmark = pytest.mark.slow

ASKED = "What is the weather in Oslo?"


class City(BaseModel):
    """Describe a city."""

    name: str
    population: int


@tool
def get_weather(city: str) -> str:
    """Tell the weather."""
    return f"cold in {city}"


@pytest.fixture
def chat(base_url: str) -> ChatOpenAI:
    """Return a chat model that sends its requests to the gateway, without retries."""
    return ChatOpenAI(
        model="switchcraft",
        base_url=base_url,
        api_key=SecretStr("client-key"),
        max_retries=0,
        stream_usage=True,
        # LangChain's default client is shared by all models, also across closed event loops.
        http_async_client=openai.DefaultAsyncHttpxClient(),
    )


def test_tool_loop_ends_with_a_text(chat: ChatOpenAI) -> None:
    """The model calls a bound tool, and its result leads to a text."""
    bound = chat.bind_tools([get_weather])
    turns: list[BaseMessage] = [HumanMessage(ASKED)]
    first = bound.invoke(turns)
    turns += [first, *(get_weather.invoke(call) for call in first.tool_calls)]
    last = bound.invoke(turns)
    assert [(call["name"], call["args"]) for call in first.tool_calls] == [
        ("get_weather", {"city": "Oslo"})
    ]
    assert turns[-1].content == "cold in Oslo"
    assert not last.tool_calls
    assert last.text


def test_streamed_chunks_add_up_to_the_answer(chat: ChatOpenAI) -> None:
    """The chunks add up to the complete call, with the usage and the model's name."""
    bound = chat.bind_tools([get_weather])
    whole = bound.invoke(ASKED)
    added: AIMessageChunk | None = None
    for chunk in bound.stream(ASKED):
        assert isinstance(chunk, AIMessageChunk)
        added = chunk if added is None else added + chunk
    assert added is not None
    assert added.tool_calls == whole.tool_calls
    assert added.usage_metadata == whole.usage_metadata is not None
    assert added.response_metadata["model_name"] == "medium"


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output_returns_a_value_of_the_schema(
    chat: ChatOpenAI, method: Literal["json_schema", "function_calling"]
) -> None:
    """A schema returns a value of it, by response format and by a forced tool."""
    structured = chat.with_structured_output(City, method=method)
    assert isinstance(structured.invoke("Describe Oslo"), City)


def test_concurrent_requests_get_their_own_answers(chat: ChatOpenAI) -> None:
    """Ten concurrent requests each get their own answer."""
    asked = [f"What is the weather in Town{number}?" for number in range(10)]
    answers = asyncio.run(chat.bind_tools([get_weather]).abatch(list(asked)))
    cities = [answer.tool_calls[0]["args"]["city"] for answer in answers]
    assert cities == [f"Town{number}" for number in range(10)]


def test_leaving_a_stream_cancels_the_upstream(chat: ChatOpenAI, sandbox: Sandbox) -> None:
    """Closing an async stream after a chunk cancels the upstream's work."""
    before = sandbox.stats()

    async def leave() -> None:
        async for _ in chat.astream(ASKED, extra_headers={"x-sandbox": "chunk_delay_s=60"}):
            break

    asyncio.run(leave())
    wait_for(lambda: sandbox.stats()["cancelled"] == before["cancelled"] + 1, "it is cancelled")
