"""The OpenAPI schema of a request of Messages; other fields are forwarded too."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from router_service.apis import openapi


class MessagesFault(BaseModel):
    """Details of an error in Anthropic's format."""

    type: str
    message: str


class MessagesErrorBody(BaseModel):
    """An error in Anthropic's format."""

    type: Literal["error"]
    error: MessagesFault
    request_id: str


def request_schema(*, is_counted: bool = False) -> openapi.RequestSchema:
    """Return the schema of a request.

    A request whose tokens are counted (`is_counted`) needs no `max_tokens`, and has no stream.
    """
    blocks = openapi.array_of({"type": "object", "required": ["type"]})
    text = {"anyOf": [openapi.STRING, blocks]}
    message = openapi.object_with(
        "role content", role={"enum": ["user", "assistant"]}, content=text
    )
    schema = openapi.object_with(
        "model messages" if is_counted else "model messages max_tokens",
        model=openapi.MODEL,
        max_tokens={"type": "integer", "minimum": 0},
        messages=openapi.array_of(message, minItems=1),
        system=text,
        tools={
            "type": ["array", "null"],
            "items": {"type": "object"},
            "description": openapi.TOOLS,
        },
    )
    if is_counted:
        return openapi.RequestSchema(schema)
    schema["properties"]["stream"] = {"type": "boolean", "description": openapi.STREAM}
    function: openapi.Document = {**openapi.EXAMPLE_TOOL["function"]}
    tool = {"input_schema": function.pop("parameters"), **function}
    example = {"model": "switchcraft", "messages": [openapi.EXAMPLE_TURN], "tools": [tool]}
    return openapi.RequestSchema(schema, {"max_tokens": 1024, **example})
