"""The OpenAPI schema of a request of Chat Completions; other fields are forwarded too."""

from __future__ import annotations

from router_service.apis import openapi

_TEXT_PART = openapi.object_with("type", type=openapi.STRING, text=openapi.STRING)
_MESSAGE = openapi.object_with(
    "role content",
    role={"enum": "system developer user assistant tool function".split()},
    content={"anyOf": [openapi.STRING, openapi.array_of(_TEXT_PART), {"type": "null"}]},
    tool_calls=openapi.array_of({"type": "object"}),
    tool_call_id=openapi.STRING,
)
_FUNCTION = openapi.object_with(
    "name",
    name={"type": "string", "minLength": 1, "maxLength": 64},
    description={"type": "string", "description": "What the tool does; the router reads it too."},
    parameters={"type": "object", "description": "JSON Schema of the arguments."},
)
_TOOL = openapi.object_with("type function", type={"const": "function"}, function=_FUNCTION)


def request_schema(*, is_counted: bool = False) -> openapi.RequestSchema:  # noqa: ARG001 - the interface's
    """Return the schema of a request."""
    conversation = "The conversation so far, the oldest turn first."
    schema = openapi.object_with(
        "model messages",
        model=openapi.MODEL,
        messages=openapi.array_of(_MESSAGE, minItems=1, description=conversation),
        tools=openapi.array_of(_TOOL, description=openapi.TOOLS),
        stream={"type": ["boolean", "null"], "description": openapi.STREAM},
    )
    example = {
        "model": "switchcraft",
        "messages": [openapi.EXAMPLE_TURN],
        "tools": [openapi.EXAMPLE_TOOL],
    }
    return openapi.RequestSchema(schema, example)
