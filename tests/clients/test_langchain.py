"""LangChain's chat model for OpenAI, through the gateway."""

from __future__ import annotations

from typing import Literal

import openai
import pytest
from langchain_core.messages import AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, SecretStr

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


def test_responses_model_runs_a_tool_loop(base_url: str) -> None:
    """LangChain's Responses model calls a bound tool, and ends with a text."""
    chat = ChatOpenAI(
        model="switchcraft",
        base_url=base_url,
        api_key=SecretStr("client-key"),
        max_retries=0,
        use_responses_api=True,
    ).bind_tools([get_weather])
    turns: list[BaseMessage] = [HumanMessage(ASKED)]
    first = chat.invoke(turns)
    turns += [first, *(get_weather.invoke(call) for call in first.tool_calls)]
    assert [message.content for message in turns[2:]] == ["cold in Oslo"]
    assert chat.invoke(turns).text


def test_texts_are_embedded(base_url: str) -> None:
    """LangChain gets a vector for each text from the named model of the pool."""
    embeddings = OpenAIEmbeddings(
        model="small",
        openai_api_base=base_url,
        openai_api_key=SecretStr("client-key"),
        check_embedding_ctx_length=False,  # else it fetches a tokenizer
    )
    vectors = embeddings.embed_documents(["one", "two"])
    assert len(vectors) == 2
    assert len(vectors[0]) == len(vectors[1]) > 0
