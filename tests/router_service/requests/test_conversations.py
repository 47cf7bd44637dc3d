"""Which requests belong to one conversation, and what is remembered of it."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from router_service.apis.conversation import parse_chat_request
from router_service.apis.usage import Usage
from router_service.policies.caching import ConversationState, NextRequest
from router_service.requests.conversations import Conversations
from router_service.requests.parsing import (
    ParsedRequest,
)
from router_service.requests.policy_headers import PolicyHeaders
from router_service.requests.turns import conversation_key, is_in_tool_loop
from router_service.store.memory import LocalRecords, MemoryStore
from router_service.store.records import Records
from tests.bodies import ASK, BODY
from tests.endpoints import CHAT
from tests.serving import WAIT_S, wait_for_async
from tests.stores import LIMITS, RemoteStore

pytestmark = pytest.mark.anyio


def call(name: str = "get_weather", arguments: str = "{}") -> dict[str, Any]:
    """Return an assistant's message with one call."""
    function = {"name": name, "arguments": arguments}
    calls = [{"id": "c", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(text: str) -> dict[str, Any]:
    """Return a tool's result."""
    return {"role": "tool", "tool_call_id": "c", "content": text}


LOOP = [*ASK, call(), result('{"sky": "clear"}')]
NEXT = [*LOOP, {"role": "assistant", "content": "Clear."}, {"role": "user", "content": "Thanks"}]


def request_of(messages: list[Any], **fields: object) -> ParsedRequest:
    """Return a request with these messages."""
    return ParsedRequest(CHAT, orjson.dumps(BODY | {"messages": messages} | fields))


def memory() -> LocalRecords[ConversationState]:
    """Return an empty store."""
    return MemoryStore(LIMITS).records(ConversationState)


def state_of(arm: str, request: ParsedRequest) -> ConversationState:
    """Return the state of a request's conversation, whose only request `arm` has answered."""
    state = ConversationState(id=conversation_key(request, None, None), turns=1)
    sent = NextRequest(1_000, 0.0, has_markers=False, size_bytes=4_000)
    return state.after(sent, arm, Usage(1_000, 10), None)


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({"x-switchcraft-session-id": "ours", "x-litellm-session-id": "theirs"}, "ours"),
        ({"x-litellm-session-id": "theirs", "session-id": "codex"}, "theirs"),
        ({"x-claude-code-session-id": "claude"}, "claude"),
        ({"session-id": "codex", "thread-id": "thread"}, "thread"),
        ({"session-id": "codex"}, "codex"),
        ({"x-switchcraft-session-id": "x" * 501}, None),
        ({"x-switchcraft-session-id": ""}, None),
        ({}, None),
    ],
)
def test_headers_of_known_clients_name_the_conversation(
    headers: dict[str, str], name: str | None
) -> None:
    """The most specific header counts; ids that are too long are ignored."""
    assert PolicyHeaders(headers).session == name


def test_a_request_that_is_not_longer_begins_a_conversation_anew() -> None:
    """A shortened conversation is not in any cache, and neither is a repeated question's arm."""
    request = request_of(NEXT)
    local = memory()
    local.keep(state_of("small", request).model_copy(update={"turns": len(NEXT)}))
    states = Conversations(local, None)
    assert (
        asyncio.run(states.begin(request, conversation_key(request, None, None))).state.arm is None
    )


@pytest.mark.parametrize(
    ("messages", "is_in_loop"),
    [
        (ASK, False),
        (LOOP, True),
        (NEXT, False),
        ([*LOOP, *ASK], True),
        ([*ASK, call(), result("Error: no"), call(), result("clear")], True),
    ],
)
def test_a_tool_loop_ends_with_a_tools_result(messages: list[Any], is_in_loop: bool) -> None:
    """Text of the user may follow the result; an answer in between ends the loop."""
    conversation = parse_chat_request(BODY | {"messages": messages}).conversation
    assert is_in_tool_loop(conversation) is is_in_loop


async def test_a_slow_shared_store_does_not_delay_a_request() -> None:
    """The request is decided without state, and the state serves the next request."""
    shared, request = RemoteStore(), request_of(NEXT)
    shared.records(ConversationState).keep(state_of("small", request))
    shared.answers.clear()
    records = Records(shared, ConversationState, pytest.fail)
    states = Conversations(memory(), records)

    async def last_arm() -> str | None:
        turn = await states.begin(request, conversation_key(request, None, None))
        return turn.state.arm

    async with asyncio.timeout(WAIT_S):
        assert await last_arm() is None
    shared.answers.set()
    await wait_for_async(last_arm, "the state serves a request")
    assert await last_arm() == "small"
    await states.aclose()
