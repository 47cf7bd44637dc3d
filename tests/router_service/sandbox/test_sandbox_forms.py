"""What the sandbox plays beside tool calls: logprobs, reasoning, pictures, embeddings, texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

ASK: Any = [{"role": "user", "content": "What is the weather in Oslo for 3 days?"}]


@pytest.fixture
def client(sandbox_url: str) -> Iterator[openai.OpenAI]:
    """Yield the real client, without its retries."""
    with openai.OpenAI(base_url=sandbox_url, api_key="unused", max_retries=0) as made:
        yield made


def test_chat_has_logprobs_if_requested(client: openai.OpenAI) -> None:
    """Whole and streamed texts have log probabilities for their tokens."""
    whole = client.chat.completions.create(
        model="m", messages=ASK, logprobs=True, top_logprobs=3
    ).choices[0]
    assert whole.logprobs is not None
    assert whole.logprobs.content is not None
    assert "".join(entry.token for entry in whole.logprobs.content) == whole.message.content
    assert all(
        entry.logprob < 0
        and len(entry.top_logprobs) == 3
        and bytes(entry.bytes or ()).decode() == entry.token
        for entry in whole.logprobs.content
    )
    chunks = client.chat.completions.create(model="m", messages=ASK, logprobs=True, stream=True)
    streamed = [
        entry.token
        for chunk in chunks
        if chunk.choices[0].logprobs is not None
        for entry in chunk.choices[0].logprobs.content or ()
    ]
    assert "".join(streamed) == whole.message.content


def test_chat_has_no_logprobs_by_default(client: openai.OpenAI) -> None:
    """Too many alternatives are refused."""
    assert client.chat.completions.create(model="m", messages=ASK).choices[0].logprobs is None
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="m", messages=ASK, logprobs=True, top_logprobs=21)
    assert caught.value.param == "top_logprobs"


def test_usage_includes_reasoning_tokens(client: openai.OpenAI) -> None:
    """A higher reasoning effort adds more tokens to the answer."""
    used = [
        client.chat.completions.create(model="m", messages=ASK, reasoning_effort=effort).usage
        for effort in ("none", "low", "high")
    ]
    reasoning = [usage.completion_tokens_details for usage in used if usage is not None]
    tokens = [details.reasoning_tokens for details in reasoning if details is not None]
    assert tokens[0] == 0
    assert 0 < tokens[1] < tokens[2]  # type: ignore[operator]  # none of them is None
    totals = [usage.completion_tokens - told for usage, told in zip(used, tokens, strict=True)]  # type: ignore[union-attr,operator]
    assert len(set(totals)) == 1


def test_images_are_accepted(client: openai.OpenAI) -> None:
    """A message with an image still leads to a tool call."""
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    said: Any = [{"role": "user", "content": [{"type": "text", "text": "Weather?"}, picture]}]
    tools: Any = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    answer = client.chat.completions.create(model="m", messages=said, tools=tools)
    assert answer.choices[0].finish_reason == "tool_calls"


def test_embeddings_are_deterministic_unit_vectors(client: openai.OpenAI) -> None:
    """Floats and base64 contain the same vector."""
    floats = client.embeddings.create(
        model="m", input=["a", "b", "a"], encoding_format="float", dimensions=64
    )
    first, second, third = (each.embedding for each in floats.data)
    assert first == third != second
    assert len(first) == 64
    assert sum(value * value for value in first) == pytest.approx(1)
    packed = client.embeddings.create(model="m", input="a", dimensions=64)
    assert packed.data[0].embedding == pytest.approx(first)
    assert packed.usage.prompt_tokens > 0
    assert len(client.embeddings.create(model="m", input=[1, 2]).data) == 1


def test_prompts_are_completed(client: openai.OpenAI) -> None:
    """Each prompt gets `n` texts, the same streamed and whole."""
    whole = client.completions.create(model="m", prompt=["Once", "Twice"], n=2)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    assert "'Once'" in whole.choices[1].text
    assert "'Twice'" in whole.choices[2].text
    assert whole.usage is not None
    chunks = list(
        client.completions.create(
            model="m", prompt="Once", stream=True, stream_options={"include_usage": True}
        )
    )
    texts = [chunk.choices[0].text for chunk in chunks if chunk.choices]
    assert "".join(texts) == whole.choices[0].text
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("embeddings", {}, "input"),
        ("embeddings", {"input": []}, "input"),
        ("embeddings", {"input": [1.5]}, "input"),
        ("embeddings", {"input": "x", "dimensions": 0}, "dimensions"),
        ("completions", {}, "prompt"),
        ("completions", {"prompt": [None]}, "prompt"),
        ("completions", {"prompt": "x", "n": 0}, "n"),
    ],
)
def test_unreadable_request_gets_status_400(
    http: httpx.Client, path: str, fields: dict[str, Any], param: str
) -> None:
    """The error names the field."""
    response = http.post(f"/v1/{path}", json={"model": "m", **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
