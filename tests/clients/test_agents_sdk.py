"""The OpenAI Agents SDK runs whole tool loops through the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Literal

import openai
import pytest
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
)
from pydantic import BaseModel

from tests.serving import Sandbox

pytestmark = pytest.mark.slow

QUIET = RunConfig(tracing_disabled=True)
"""Traces would go to OpenAI."""

ASKED = "What is the weather in Oslo?"


class Weather(BaseModel):
    """Type of the agent's final answer."""

    city: str
    degrees: int


@asynccontextmanager
async def chat_model(base_url: str) -> AsyncIterator[OpenAIChatCompletionsModel]:
    """Return a model that sends chat completions to the gateway, without retries."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key="client-key", max_retries=0) as client:
        yield OpenAIChatCompletionsModel(model="switchcraft", openai_client=client)


class Tools:
    """Function tools that record their arguments."""

    def __init__(self) -> None:
        self.called: list[tuple[str, str]] = []
        self.all = [function_tool(self.get_weather), function_tool(self.get_time)]

    def get_weather(self, city: str) -> str:
        """Tell the weather."""
        self.called.append(("get_weather", city))
        return "-3 degrees"

    def get_time(self, city: str) -> str:
        """Tell the time."""
        self.called.append(("get_time", city))
        return "noon"


def run(base_url: str, tools: Tools, ask: Callable[[Agent[None]], Awaitable[str]]) -> str:
    """Run an agent with these tools in one of the SDK's ways."""

    async def go() -> str:
        async with chat_model(base_url) as model:
            return await ask(Agent(name="Weatherman", model=model, tools=[*tools.all]))

    return asyncio.run(go())


def test_tool_loop_ends_with_a_text(base_url: str, sandbox: Sandbox) -> None:
    """The agent calls the expected tool, returns its result, and ends with a text."""
    tools, before = Tools(), sandbox.stats()["requests"]

    async def ask(agent: Agent[None]) -> str:
        result = await Runner.run(agent, ASKED, run_config=QUIET, max_turns=4)
        assert result.context_wrapper.usage.total_tokens > 0
        return str(result.final_output)

    assert run(base_url, tools, ask)
    assert tools.called == [("get_weather", "Oslo")]
    assert sandbox.stats()["requests"] == before + 2


def test_streamed_tool_loop_makes_parallel_calls(base_url: str) -> None:
    """Two calls in one streamed turn are both made, and the run ends."""
    tools = Tools()

    async def ask(agent: Agent[None]) -> str:
        both = "Please get weather and get time for Oslo"
        result = Runner.run_streamed(agent, both, run_config=QUIET, max_turns=4)
        async for _ in result.stream_events():
            pass
        return str(result.final_output)

    assert run(base_url, tools, ask)
    assert sorted(tools.called) == [("get_time", "Oslo"), ("get_weather", "Oslo")]


def test_agent_returns_a_structured_final_answer(base_url: str) -> None:
    """An agent with an output type returns a value of it after its tool loop."""
    tools = Tools()

    async def go() -> object:
        async with chat_model(base_url) as model:
            agent = Agent(name="Weatherman", model=model, tools=[*tools.all], output_type=Weather)
            return (await Runner.run(agent, ASKED, run_config=QUIET, max_turns=4)).final_output

    assert isinstance(asyncio.run(go()), Weather)
    assert tools.called == [("get_weather", "Oslo")]


def test_agent_hands_over_to_another_agent(base_url: str) -> None:
    """A handoff is a tool call too: the second agent takes over and answers."""

    async def go() -> str:
        async with chat_model(base_url) as model:
            second = Agent(name="Weatherman", model=model)
            first = Agent(name="Reception", model=model, handoffs=[second])
            result = await Runner.run(
                first, "Please transfer to weatherman", run_config=QUIET, max_turns=4
            )
            return str(result.last_agent.name)

    assert asyncio.run(go()) == "Weatherman"


@pytest.mark.parametrize("way", ["whole", "streamed"])
def test_responses_model_runs_a_tool_loop(
    base_url: str, sandbox: Sandbox, way: Literal["whole", "streamed"]
) -> None:
    """An agent of the Responses model calls its tool once and ends with a text."""
    called: list[str] = []

    def get_weather(city: str) -> str:
        called.append(city)
        return "cold"

    async def go() -> str:
        async with openai.AsyncOpenAI(base_url=base_url, api_key="k", max_retries=0) as asks:
            model = OpenAIResponsesModel(model="switchcraft", openai_client=asks)
            agent = Agent[None](name="Weatherman", model=model, tools=[function_tool(get_weather)])
            if way == "whole":
                whole = await Runner.run(agent, ASKED, run_config=QUIET, max_turns=4)
                return str(whole.final_output)
            streamed = Runner.run_streamed(agent, ASKED, run_config=QUIET, max_turns=4)
            async for _ in streamed.stream_events():
                pass
            return str(streamed.final_output)

    before = sandbox.stats()["requests"]
    assert asyncio.run(go())
    assert called == ["Oslo"]
    assert sandbox.stats()["requests"] == before + 2
