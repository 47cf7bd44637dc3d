"""The OpenAPI schema of a request of Responses; other fields are forwarded too."""

from __future__ import annotations

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


def request_schema() -> RequestSchema:
    """Return the schema of a request."""
    item: Document = {"type": "object", "properties": {"type": STRING, "role": STRING}}
    schema = {
        "type": "object",
        "required": ["model", "input"],
        "properties": {
            "model": MODEL,
            "input": {"anyOf": [STRING, {"type": "array", "minItems": 1, "items": item}]},
            "instructions": {"type": ["string", "null"]},
            "tools": {
                "type": "array",
                "items": {"type": "object", "required": ["type"]},
                "description": TOOLS,
            },
            "previous_response_id": {
                "type": ["string", "null"],
                "description": "A stored response to continue; its provider answers.",
            },
            "stream": {"type": ["boolean", "null"], "description": STREAM},
        },
    }
    tool = {"type": "function", **EXAMPLE_TOOL["function"]}
    example = {"model": "switchcraft", "input": EXAMPLE_TURN["content"], "tools": [tool]}
    return RequestSchema(schema, example)
