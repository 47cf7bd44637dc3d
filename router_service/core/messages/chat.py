"""Requests of the Chat Completions API."""

from __future__ import annotations

from collections.abc import Mapping

from router_service.core.errors import InvalidRequestError
from router_service.core.messages.body import Json, read_model, read_stream, wrong_type
from router_service.core.messages.tools import read_tools
from router_service.core.messages.turns import numbered, read_turns
from router_service.core.messages.values import ChatRequest, Conversation


def parse_chat_request(body: Mapping[str, Json]) -> ChatRequest:
    """Read a Chat Completions body (API reference: "Create chat completion").

    Raises InvalidRequestError where `model`, `messages`, `tools`, `functions` or `stream` is
    missing or of the wrong type, or where a tool's schema is deeper than `MAX_SCHEMA_DEPTH`.
    """
    return ChatRequest(
        model=read_model(body), stream=read_stream(body), conversation=parse_conversation(body)
    )


def parse_conversation(body: Mapping[str, Json]) -> Conversation:
    """Read the messages and the tools of a request body; raises as `parse_chat_request` does."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise wrong_type("messages", "an array", messages, missing="messages" not in body)
    if not messages:
        raise InvalidRequestError(
            "'messages' is empty. Send at least one message.", param="messages", code="empty_array"
        )
    unread: list[str] = []
    turns = tuple(read_turns(numbered(messages, "messages", unread), unread))
    tools = read_tools(body, unread)
    return Conversation(turns=turns, tools=tools, unread=tuple(unread))
