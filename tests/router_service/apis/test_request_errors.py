"""Malformed requests, and reasoning that an upstream would reject."""

from __future__ import annotations

import copy

import pytest

from router_service.apis.conversation import Json
from router_service.apis.request_translation import read_request
from router_service.core.errors import InvalidRequestError
from tests import apis
from tests.apis import Api

CHAT, RESPONSES, MESSAGES = apis.CHAT, apis.RESPONSES, apis.MESSAGES
USER: Json = {"role": "user", "content": "hi"}
TOOL_USE: Json = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
TOOL_RESULT: Json = {"type": "tool_result", "tool_use_id": "a", "content": "1"}
CALL: Json = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL: Json = {"role": "tool", "tool_call_id": "a", "content": "1"}
ITEM: Json = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
OUTPUT: Json = {"type": "function_call_output", "call_id": "a", "output": "1"}


def chat(*messages: Json) -> dict[str, Json]:
    """Return a body of Chat Completions."""
    return {"model": "m", "messages": list(messages)}


def messages(*items: Json) -> dict[str, Json]:
    """Return a body of Messages."""
    return {"model": "m", "max_tokens": 1, "messages": list(items)}


def responses(*items: Json) -> dict[str, Json]:
    """Return a body of Responses."""
    return {"model": "m", "input": list(items)}


def blocks(role: str, *content: Json) -> Json:
    """Return a message with content blocks."""
    return {"role": role, "content": list(content)}


@pytest.mark.parametrize(
    ("dialect", "body", "param"),
    [
        (CHAT, {"model": "m"}, "messages"),
        (CHAT, {"messages": [USER]}, "model"),
        (CHAT, chat(), "messages"),
        (CHAT, chat("hi"), "messages[0]"),
        (CHAT, chat({"role": "robot", "content": "a"}), "messages[0].role"),
        (CHAT, chat({"role": ["user"], "content": "a"}), "messages[0].role"),
        (CHAT, chat({"role": "user"}), "messages[0].content"),
        (CHAT, chat({"role": "user", "content": [1]}), "messages[0].content[0]"),
        (CHAT, chat(blocks("user", {"text": "a"})), "messages[0].content[0].type"),
        (CHAT, chat(blocks("user", {"type": "text"})), "messages[0].content[0].text"),
        (
            CHAT,
            chat(blocks("user", {"type": "image_url", "image_url": {"url": "data:oops"}})),
            "messages[0].content[0].image_url.url",
        ),
        (CHAT, chat(USER, TOOL), "messages[1].tool_call_id"),
        (
            CHAT,
            chat(USER, {"role": "assistant", "tool_calls": [CALL]}),
            "messages[1].tool_calls[0].id",
        ),
        (
            CHAT,
            chat(USER, {"role": "assistant", "tool_calls": [CALL, CALL]}, TOOL),
            "messages[1].tool_calls[1].id",
        ),
        (
            CHAT,
            chat(USER, {"role": "assistant", "tool_calls": [CALL]}, TOOL, TOOL),
            "messages[3].tool_call_id",
        ),
        (CHAT, {**chat(USER), "tool_choice": "sometimes"}, "tool_choice"),
        (CHAT, {**chat(USER), "tools": {}}, "tools"),
        (CHAT, {**chat(USER), "stop": [1]}, "stop"),
        (CHAT, {**chat(USER), "max_tokens": "9"}, "max_tokens"),
        (CHAT, {**chat(USER), "max_tokens": 0}, "max_tokens"),
        (CHAT, {**chat(USER), "temperature": True}, "temperature"),
        (RESPONSES, {"model": "m"}, "input"),
        (RESPONSES, responses(1), "input[0]"),
        (RESPONSES, responses({"role": "tool", "content": "a"}), "input[0].role"),
        (RESPONSES, responses(USER, OUTPUT), "input[1].call_id"),
        (RESPONSES, responses(USER, ITEM), "input[1].call_id"),
        (RESPONSES, responses(USER, {**ITEM, "arguments": {}}), "input[1].arguments"),
        (RESPONSES, {**responses(USER), "text": {"format": {"type": 1}}}, "text.format.type"),
        (MESSAGES, {"model": "m", "messages": [USER]}, "max_tokens"),
        (MESSAGES, {**messages(USER), "max_tokens": None}, "max_tokens"),
        (MESSAGES, messages(blocks("user", {"type": "text"})), "messages[0].content[0].text"),
        (MESSAGES, messages(blocks("user", TOOL_USE)), "messages[0].content[0]"),
        (MESSAGES, messages(USER, blocks("assistant", TOOL_RESULT)), "messages[1].content[0]"),
        (
            MESSAGES,
            messages(USER, blocks("user", TOOL_RESULT)),
            "messages[1].content[0].tool_use_id",
        ),
        (MESSAGES, messages(USER, blocks("assistant", TOOL_USE)), "messages[1].content[0].id"),
        (
            MESSAGES,
            messages(USER, blocks("assistant", {**TOOL_USE, "input": "{}"})),
            "messages[1].content[0].input",
        ),
        (
            MESSAGES,
            messages(USER, blocks("assistant", {"type": "thinking", "thinking": "a"})),
            "messages[1].content[0].signature",
        ),
        (MESSAGES, {**messages(USER), "thinking": {"type": "often"}}, "thinking.type"),
        (
            MESSAGES,
            {
                **messages(USER),
                "tools": [
                    {"name": "f", "input_schema": {}},
                    {"name": "f", "input_schema": {"type": "object"}},
                ],
            },
            "tools",
        ),
    ],
)
def test_malformed_requests_name_what_is_wrong(
    dialect: Api, body: dict[str, Json], param: str
) -> None:
    """The error has the path of the malformed value, so that the client finds it."""
    with pytest.raises(InvalidRequestError) as caught:
        read_request(body, dialect)
    assert caught.value.param == param
    assert param in caught.value.message


def thinking(signature: str) -> Json:
    """Return a block of thinking."""
    return {"type": "thinking", "thinking": "hm", "signature": signature}


def test_foreign_thinking_is_removed_from_messages_and_nothing_else() -> None:
    """The upstream gets its own thinking; a message that had only foreign thinking is left out."""
    body = messages(
        USER,
        blocks("assistant", thinking("mine"), {"type": "text", "text": "a"}),
        USER,
        blocks("assistant", thinking("theirs"), {"type": "text", "text": "b"}),
        USER,
        blocks("assistant", {"type": "redacted_thinking", "data": "theirs"}),
        USER,
    )
    before = copy.deepcopy(body)
    changed = MESSAGES.without_foreign_thinking(body, lambda proof: proof == "theirs")
    assert body == before
    assert changed is not None
    assert changed["messages"] == [
        *body["messages"][:3],
        blocks("assistant", {"type": "text", "text": "b"}),
        USER,
        USER,
    ]
    assert MESSAGES.without_foreign_thinking(changed, lambda proof: proof == "theirs") is None


def test_thinking_that_this_gateway_signed_is_always_removed() -> None:
    """No provider accepts the gateway's own signature."""
    body = messages(USER, blocks("assistant", thinking("switchcraft.chat."), TOOL_USE))
    changed = MESSAGES.without_foreign_thinking(body, lambda _: False)
    assert changed is not None
    assert changed["messages"][1] == blocks("assistant", TOOL_USE)


def test_a_tool_loop_without_its_thinking_continues_without_a_budget() -> None:
    """If a budget is set, Anthropic demands the thinking of the current loop only."""
    loop = (
        USER,
        blocks("assistant", thinking("theirs"), TOOL_USE),
        blocks("user", TOOL_RESULT),
    )
    edits = [
        {"type": "clear_thinking_20251015", "keep": "all"},
        {"type": "clear_tool_uses_20250919"},
    ]
    body = {
        **messages(*loop),
        "thinking": {"type": "enabled", "budget_tokens": 2000},
        "context_management": {"edits": edits},
    }
    changed = MESSAGES.without_foreign_thinking(body, lambda _: True)
    assert changed is not None
    assert "thinking" not in changed
    assert changed["context_management"] == {"edits": edits[1:]}
    later = {**body, "messages": [*loop, blocks("assistant", {"type": "text", "text": "a"}), USER]}
    changed = MESSAGES.without_foreign_thinking(later, lambda _: True)
    assert changed is not None
    assert changed["thinking"] == body["thinking"]


def test_foreign_reasoning_is_removed_from_responses_with_the_ids_that_refer_to_it() -> None:
    """OpenAI rejects an item whose id it knows if the reasoning before it is missing."""
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "theirs"}
    body = responses(USER, reasoning, {**ITEM, "id": "fc_1"}, OUTPUT)
    changed = RESPONSES.without_foreign_thinking(body, lambda proof: proof == "theirs")
    assert changed is not None
    assert changed["input"] == [USER, ITEM, OUTPUT]
    assert RESPONSES.without_foreign_thinking(body, lambda _: False) is None


def test_reasoning_texts_are_removed_from_chat_if_the_upstream_rejects_them() -> None:
    """Chat Completions has no proof, so that the upstream decides about all reasoning."""
    body = chat(USER, {"role": "assistant", "content": "a", "reasoning_content": "hm"}, USER)
    changed = CHAT.without_foreign_thinking(body, lambda proof: proof == "")
    assert changed is not None
    assert changed["messages"][1] == {"role": "assistant", "content": "a"}
    assert CHAT.without_foreign_thinking(body, lambda _: False) is None
