"""The OpenAPI schema of a request of Responses; other fields are forwarded too."""

from __future__ import annotations

from router_service.apis import openapi


def request_schema(*, is_counted: bool = False) -> openapi.RequestSchema:  # noqa: ARG001 - the interface's
    """Return the schema of a request."""
    item = {"type": "object", "properties": {"type": openapi.STRING, "role": openapi.STRING}}
    stored = "A stored response to continue; its provider answers."
    schema = openapi.object_with(
        "model input",
        model=openapi.MODEL,
        input={"anyOf": [openapi.STRING, openapi.array_of(item, minItems=1)]},
        instructions={"type": ["string", "null"]},
        tools=openapi.array_of({"type": "object", "required": ["type"]}, description=openapi.TOOLS),
        previous_response_id={"type": ["string", "null"], "description": stored},
        stream={"type": ["boolean", "null"], "description": openapi.STREAM},
    )
    tool = {"type": "function", **openapi.EXAMPLE_TOOL["function"]}
    example = {"model": "switchcraft", "input": openapi.EXAMPLE_TURN["content"], "tools": [tool]}
    return openapi.RequestSchema(schema, example)
