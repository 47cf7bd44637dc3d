"""LangGraph's agents run whole tool loops through the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import cast

import openai
import pytest
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import SecretStr

from tests.serving import Sandbox

pytestmark = pytest.mark.slow

Agent = CompiledStateGraph[MessagesState, None, MessagesState, MessagesState]  # pyrefly: ignore[bad-specialization]

ASKED: MessagesState = {"messages": [("user", "What is the weather in Oslo?")]}  # pyrefly: ignore[bad-assignment]
BOTH: MessagesState = {"messages": [("user", "Please get weather and get time for Oslo")]}  # pyrefly: ignore[bad-assignment]


def get_weather(city: str) -> str:
    """Tell the weather."""
    return f"cold in {city}"


def get_time(city: str) -> str:
    """Tell the time."""
    return f"noon in {city}"


@pytest.fixture(scope="module")
def agent(base_url: str) -> Agent:
    """Return a graph that alternates between the model and its tools."""
    tools = [get_weather, get_time]
    model = ChatOpenAI(
        model="switchcraft",
        base_url=base_url,
        api_key=SecretStr("client-key"),
        max_retries=0,
        # LangChain's default client is shared by all models, also across closed event loops.
        http_async_client=openai.DefaultAsyncHttpxClient(),
    ).bind_tools(tools)

    def ask(state: MessagesState) -> dict[str, list[BaseMessage]]:
        return {"messages": [model.invoke(state["messages"])]}

    async def ask_async(state: MessagesState) -> dict[str, list[BaseMessage]]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)  # pyrefly: ignore[bad-specialization]
    graph.add_node("model", RunnableLambda(ask, ask_async))
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


def test_tool_loop_ends_with_a_text(agent: Agent, sandbox: Sandbox) -> None:
    """The agent calls the expected tool, sends its result back, and ends with a text."""
    before = sandbox.stats()["requests"]
    messages = agent.invoke(ASKED)["messages"]
    assert [message.type for message in messages] == ["human", "ai", "tool", "ai"]
    assert messages[2].text == "cold in Oslo"
    assert messages[3].text
    assert sandbox.stats()["requests"] == before + 2


def test_both_tools_of_one_turn_are_called(agent: Agent) -> None:
    """Two calls of one answer are both made, and each result belongs to its call."""
    messages = agent.invoke(BOTH)["messages"]
    results = {message.text for message in messages if message.type == "tool"}
    assert results == {"cold in Oslo", "noon in Oslo"}
    assert messages[-1].type == "ai"
    assert messages[-1].text


def test_streamed_loop_yields_the_text_in_parts(agent: Agent) -> None:
    """`stream_mode="messages"` yields the calls and the final text in several chunks."""
    parts, called = [], []
    stream = cast(
        "Iterator[tuple[BaseMessage, dict[str, str]]]", agent.stream(ASKED, stream_mode="messages")
    )
    for chunk, facts in stream:
        if isinstance(chunk, AIMessageChunk):
            assert facts["langgraph_node"] == "model"
            parts += [chunk.text] if chunk.text else []
            called += [call["name"] for call in chunk.tool_call_chunks if call["name"]]
    assert called == ["get_weather"]
    assert len(parts) > 1


def test_async_stream_has_the_same_steps(agent: Agent) -> None:
    """An asynchronous run goes from the model to the tools and back."""

    async def steps() -> list[str]:
        return [name async for update in agent.astream(ASKED) for name in update]

    assert asyncio.run(steps()) == ["model", "tools", "model"]
