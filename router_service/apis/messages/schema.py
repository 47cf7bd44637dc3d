"""The OpenAPI schema of a request of Messages; other fields are forwarded too."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from router_service.apis.openapi import (
    EXAMPLE_TOOL,
    EXAMPLE_TURN,
    MODEL,
    STREAM,
    STRING,
    TOOLS,
    Document,
    RequestSchema,
)


class MessagesFault(BaseModel):
    """Details of an error in Anthropic's format."""

    type: str
    message: str


class MessagesErrorBody(BaseModel):
    """An error in Anthropic's format."""

    type: Literal["error"]
    error: MessagesFault
    request_id: str


def request_schema(*, is_counted: bool = False) -> RequestSchema:
    """Return the schema of a request.

    A request whose tokens are counted (`is_counted`) needs no `max_tokens`, and has no stream.
    """
    blocks = {"type": "array", "items": {"type": "object", "required": ["type"]}}
    message: Document = {
        "type": "object",
        "required": ["role", "content"],
        "properties": {
            "role": {"enum": ["user", "assistant"]},
            "content": {"anyOf": [STRING, blocks]},
        },
    }
    tools: Document = {"type": ["array", "null"], "items": {"type": "object"}}
    schema = {
        "type": "object",
        "required": ["model", "messages", *([] if is_counted else ["max_tokens"])],
        "properties": {
            "model": MODEL,
            "max_tokens": {"type": "integer", "minimum": 0},
            "messages": {"type": "array", "minItems": 1, "items": message},
            "system": {"anyOf": [STRING, blocks]},
            "tools": {**tools, "description": TOOLS},
            **({} if is_counted else {"stream": {"type": "boolean", "description": STREAM}}),
        },
    }
    function: Document = {**EXAMPLE_TOOL["function"]}
    tool = {"input_schema": function.pop("parameters"), **function}
    example = {"model": "switchcraft", "messages": [EXAMPLE_TURN], "tools": [tool]}
    if is_counted:
        return RequestSchema(schema)
    return RequestSchema(schema, {"max_tokens": 1024, **example})
