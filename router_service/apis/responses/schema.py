"""The OpenAPI schema of a request of Responses; other fields are forwarded too."""

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


def request_schema(*, is_counted: bool = False) -> RequestSchema:  # noqa: ARG001 - the interface's
    """Return the schema of a request."""
    item = {"type": "object", "properties": {"type": STRING, "role": STRING}}
    stored = "A stored response to continue; its provider answers."
    schema = object_with(
        "model input",
        model=MODEL,
        input={"anyOf": [STRING, array_of(item, minItems=1)]},
        instructions={"type": ["string", "null"]},
        tools=array_of({"type": "object", "required": ["type"]}, description=TOOLS),
        previous_response_id={"type": ["string", "null"], "description": stored},
        stream={"type": ["boolean", "null"], "description": STREAM},
    )
    tool = {"type": "function", **EXAMPLE_TOOL["function"]}
    example = {"model": "switchcraft", "input": EXAMPLE_TURN["content"], "tools": [tool]}
    return RequestSchema(schema, example)
