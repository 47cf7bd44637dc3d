"""The sandbox's Messages API: Anthropic's types accept its answers, events and errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import Message

from tests.bodies import ASK

TOOL: Any = {
    "name": "get_weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
BODY: dict[str, Any] = {"model": "m", "max_tokens": 100, "messages": ASK, "tools": [TOOL]}


@pytest.fixture(scope="module")
def claude(sandbox_url: str) -> Iterator[anthropic.Anthropic]:
    """Yield the real client of the sandbox."""
    url = sandbox_url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=url, api_key="k", max_retries=0) as client:
        yield client


def test_whole_and_streamed_answers_are_equal(claude: anthropic.Anthropic) -> None:
    """The client builds the same message from the events as from the whole answer."""
    body = BODY | {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    whole = claude.messages.create(**body)
    with claude.messages.stream(**body) as stream:
        streamed = stream.get_final_message()

    hidden = {"signature", "parsed_output"}
    blocks: Any = [whole.content, streamed.content]
    first, second = ([block.model_dump(exclude=hidden) for block in each] for each in blocks)
    assert first == second
    assert whole.usage.output_tokens == streamed.usage.output_tokens
    Message.model_validate(whole.model_dump(), strict=False)


def test_result_of_a_tool_is_answered_by_a_text(claude: anthropic.Anthropic) -> None:
    """After a tool's result, the sandbox ends an agent's loop."""
    first = claude.messages.create(**BODY)
    result = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": "rain"}
    messages = [
        *ASK,
        {"role": "assistant", "content": [block.model_dump() for block in first.content]},
        {"role": "user", "content": [result]},
    ]
    assert claude.messages.create(**BODY | {"messages": messages}).stop_reason == "end_turn"


@pytest.mark.parametrize(
    ("faults", "error"),
    [
        ("status=429", anthropic.RateLimitError),
        ("status=529", anthropic.OverloadedError),
        ("status=500", anthropic.InternalServerError),
    ],
)
def test_faults_have_anthropics_errors(
    claude: anthropic.Anthropic, faults: str, error: type[Exception]
) -> None:
    """The client raises the exception of the status."""
    with pytest.raises(error, match="as requested"):
        claude.messages.create(**BODY, extra_headers={"x-sandbox": faults})


def test_foreign_signature_is_refused(sandbox_url: str) -> None:
    """Like Anthropic, the sandbox accepts only its own signatures."""
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "foreign"}
    messages = [*ASK, {"role": "assistant", "content": [thinking]}, *ASK]
    response = httpx.post(f"{sandbox_url}/messages", json=BODY | {"messages": messages})
    assert response.status_code == 400
    assert "signature" in response.json()["error"]["message"]
