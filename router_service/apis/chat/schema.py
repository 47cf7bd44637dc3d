"""The OpenAPI schema of a request of Chat Completions; other fields are forwarded too."""

from __future__ import annotations

from router_service.apis.openapi import (
    EXAMPLE_TOOL,
    EXAMPLE_TURN,
    MODEL,
    STREAM,
    STRING,
    TOOLS,
    RequestSchema,
    array_of,
    object_with,
)

_MESSAGE = object_with(
    "role content",
    role={"enum": "system developer user assistant tool function".split()},
    content={
        "anyOf": [STRING, array_of(object_with("type", type=STRING, text=STRING)), {"type": "null"}]
    },
    tool_calls=array_of({"type": "object"}),
    tool_call_id=STRING,
)
_FUNCTION = object_with(
    "name",
    name={"type": "string", "minLength": 1, "maxLength": 64},
    description={"type": "string", "description": "What the tool does; the router reads it too."},
    parameters={"type": "object", "description": "JSON Schema of the arguments."},
)
_TOOL = object_with("type function", type={"const": "function"}, function=_FUNCTION)


def request_schema(*, is_counted: bool = False) -> RequestSchema:  # noqa: ARG001 - the interface's
    """Return the schema of a request."""
    conversation = "The conversation so far, the oldest turn first."
    schema = object_with(
        "model messages",
        model=MODEL,
        messages=array_of(_MESSAGE, minItems=1, description=conversation),
        tools=array_of(_TOOL, description=TOOLS),
        stream={"type": ["boolean", "null"], "description": STREAM},
    )
    example = {"model": "switchcraft", "messages": [EXAMPLE_TURN], "tools": [EXAMPLE_TOOL]}
    return RequestSchema(schema, example)
