"""Reasoning that a provider has signed reaches only upstreams that accept it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx
import pytest

from tests import apis
from tests.answering import settings_of
from tests.bodies import MESSAGES_BODY
from tests.fakes import PROBABILITIES, FakeRouter
from tests.gateways import gateway_client
from tests.router_service.http.test_messages_api import MESSAGES
from tests.sandbox import run_in_thread
from tests.serving import ONE_TRY, Sandbox

THINKS: dict[str, Any] = MESSAGES_BODY | {"thinking": {"type": "adaptive"}}


@pytest.fixture(scope="module")
def other() -> Iterator[Sandbox]:
    """Yield a second provider of the Messages API."""
    with run_in_thread() as url:
        yield Sandbox(url)


@pytest.fixture(scope="module")
def http(sandbox: Sandbox, other: Sandbox) -> Iterator[httpx.Client]:
    """Yield a client of a gateway whose models speak Messages, `medium` at another provider."""
    settings = settings_of(sandbox.base_url, dict.fromkeys(PROBABILITIES, apis.MESSAGES), ONE_TRY)
    small, medium, large = settings.models
    place = medium.deployments[0].model_copy(update={"base_url": other.base_url})
    medium = medium.model_copy(update={"deployments": (place,)})
    settings = settings.model_copy(update={"models": (small, medium, large)})
    with gateway_client(settings, FakeRouter()) as client:
        yield client


def answer(http: httpx.Client, model: str, *turns: object, stream: bool = False) -> httpx.Response:
    """Return a model's answer to a conversation that continues with these turns."""
    messages = [*MESSAGES_BODY["messages"], *turns]
    body = THINKS | {"model": model, "messages": messages, "stream": stream}
    return http.post(MESSAGES, json=body)


def next_turns(content: list[Any]) -> list[Any]:
    """Return the turns of an answer, and of the results of its calls."""
    calls = [block["id"] for block in content if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": id_, "content": "rain"} for id_ in calls]
    return [{"role": "assistant", "content": content}, {"role": "user", "content": results}]


def sent_types(sandbox: Sandbox) -> list[str]:
    """Return the types of the assistant's blocks in the sandbox's last request."""
    turns = json.loads(sandbox.last_body())["messages"]
    return [b["type"] for turn in turns if turn["role"] == "assistant" for b in turn["content"]]


def test_unknown_signature_is_removed_after_a_refusal(http: httpx.Client, sandbox: Sandbox) -> None:
    """A provider that refuses a signature is asked again without it, and then never with it."""
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "made-elsewhere"}
    call = {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Oslo"}}
    turns = next_turns([thinking, call])
    asked = [sandbox.stats()["requests"]]
    for _ in range(2):
        assert answer(http, "large", *turns).status_code == 200
        assert sent_types(sandbox) == ["tool_use"]
        asked.append(sandbox.stats()["requests"])
    assert [after - before for before, after in pairwise(asked)] == [2, 1]
