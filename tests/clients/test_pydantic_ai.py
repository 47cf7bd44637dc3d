"""Pydantic AI's agents run whole tool loops through the gateway."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.serving import Sandbox

pytestmark = pytest.mark.slow

ASKED = "What is the weather in Oslo?"


class Weather(BaseModel):
    """Type of the agent's final answer."""

    city: str
    degrees: int


@pytest.fixture(params=[OpenAIChatModel, OpenAIResponsesModel])
def model(request: pytest.FixtureRequest, base_url: str) -> Model:
    """Return a model that speaks Chat Completions, or Responses, to the gateway."""
    provider = OpenAIProvider(base_url=base_url, api_key="client-key")
    made: Model = request.param("switchcraft", provider=provider)
    return made


@pytest.fixture
def agent(model: Model) -> Agent:
    """Return an agent with two tools."""
    agent = Agent(model, retries=0)

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Tell the weather."""
        return f"cold in {city}"

    @agent.tool_plain
    def get_time(city: str) -> str:
        """Tell the time."""
        return f"noon in {city}"

    return agent


def test_tool_loop_ends_with_a_text(agent: Agent, sandbox: Sandbox) -> None:
    """The agent calls the expected tool, sends its result back, and ends with a text and usage."""
    before = sandbox.stats()["requests"]
    result = agent.run_sync(ASKED)
    parts = [part for message in result.all_messages() for part in message.parts]
    assert [part.content for part in parts if isinstance(part, ToolReturnPart)] == ["cold in Oslo"]
    assert result.output
    assert result.usage.tool_calls == 1
    assert result.usage.total_tokens > 0
    assert sandbox.stats()["requests"] == before + 2


def test_streamed_loop_yields_the_text_in_parts(agent: Agent) -> None:
    """A streamed run calls both tools of one turn, and then yields the text in several parts."""

    async def go() -> tuple[list[str], set[str]]:
        async with agent.run_stream("Please get weather and get time for Oslo") as run:
            texts = [text async for text in run.stream_text(delta=True, debounce_by=None)]
            parts = [part for message in run.all_messages() for part in message.parts]
        return texts, {str(p.content) for p in parts if isinstance(p, ToolReturnPart)}

    texts, results = asyncio.run(go())
    assert results == {"cold in Oslo", "noon in Oslo"}
    assert len(texts) > 1


def test_agent_returns_a_structured_answer(model: Model) -> None:
    """An agent with an output type returns a value of it, which the model gives as a tool call."""
    answer = Agent(model, output_type=Weather).run_sync("Describe the weather in Oslo")
    assert isinstance(answer.output, Weather)
