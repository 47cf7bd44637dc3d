"""The OpenAPI schema of a request of Chat Completions; other fields are forwarded too."""

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

_TEXT_PART: Document = {
    "type": "object",
    "required": ["type"],
    "properties": {"type": STRING, "text": STRING},
}
_MESSAGE: Document = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": "system developer user assistant tool function".split()},
        "content": {
            "anyOf": [STRING, {"type": "array", "items": _TEXT_PART}, {"type": "null"}],
        },
        "tool_calls": {"type": "array", "items": {"type": "object"}},
        "tool_call_id": STRING,
    },
}
_TOOL: Document = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 64},
                "description": {
                    "type": "string",
                    "description": "What the tool does; the router reads it too.",
                },
                "parameters": {
                    "type": "object",
                    "description": "JSON Schema of the arguments.",
                },
            },
        },
    },
}


def request_schema() -> RequestSchema:
    """Return the schema of a request."""
    schema = {
        "type": "object",
        "required": ["model", "messages"],
        "properties": {
            "model": MODEL,
            "messages": {
                "type": "array",
                "minItems": 1,
                "items": _MESSAGE,
                "description": "The conversation so far, the oldest turn first.",
            },
            "tools": {"type": "array", "items": _TOOL, "description": TOOLS},
            "stream": {"type": ["boolean", "null"], "description": STREAM},
        },
    }
    example = {"model": "switchcraft", "messages": [EXAMPLE_TURN], "tools": [EXAMPLE_TOOL]}
    return RequestSchema(schema, example)
