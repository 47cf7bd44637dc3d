"""OpenAPI schemas of relayed endpoints: only the fields that the gateway reads."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

Document = dict[str, Any]
"""A part of an OpenAPI document."""


class Fault(BaseModel):
    """Details of an error; `message` has the remedy (see "Error codes" in the API reference)."""

    message: str
    type: str
    param: str | None
    code: str | int | None


class ErrorBody(BaseModel):
    """An error in OpenAI's format."""

    error: Fault


ERRORS: dict[int | str, Document] = {
    "4XX": {"model": ErrorBody, "description": "The request is at fault"},
    "5XX": {"model": ErrorBody, "description": "The gateway or an upstream is at fault"},
}

ANSWER: dict[int | str, Document] = {
    200: {
        "description": "The upstream's answer, unchanged",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    }
}

COUNT: dict[int | str, Document] = {
    200: {
        "description": "The number of tokens",
        "content": {
            "application/json": {
                "schema": {"type": "object", "properties": {"input_tokens": {"type": "integer"}}}
            }
        },
    }
}

_STRING: Document = {"type": "string"}
_TEXT_PART: Document = {
    "type": "object",
    "required": ["type"],
    "properties": {"type": _STRING, "text": _STRING},
}
_MESSAGE: Document = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": "system developer user assistant tool function".split()},
        "content": {
            "anyOf": [_STRING, {"type": "array", "items": _TEXT_PART}, {"type": "null"}],
        },
        "tool_calls": {"type": "array", "items": {"type": "object"}},
        "tool_call_id": _STRING,
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
                "description": _STRING,
                "parameters": {"type": "object"},
            },
        },
    },
}


def chat_request() -> Document:
    """Return the schema of a Chat Completions request; unlisted fields are forwarded."""
    schema = {
        "type": "object",
        "required": ["model", "messages"],
        "properties": {
            "model": {"type": "string", "minLength": 1},
            "messages": {"type": "array", "minItems": 1, "items": _MESSAGE},
            "tools": {"type": "array", "items": _TOOL},
            "stream": {"type": ["boolean", "null"]},
        },
    }
    return json_request(schema)


def responses_request() -> Document:
    """Return the schema of a Responses request; unlisted fields are forwarded."""
    item: Document = {"type": "object", "properties": {"type": _STRING, "role": _STRING}}
    schema = {
        "type": "object",
        "required": ["model", "input"],
        "properties": {
            "model": {"type": "string", "minLength": 1},
            "input": {"anyOf": [_STRING, {"type": "array", "minItems": 1, "items": item}]},
            "instructions": {"type": ["string", "null"]},
            "tools": {"type": "array", "items": {"type": "object", "required": ["type"]}},
            "previous_response_id": {"type": ["string", "null"]},
            "stream": {"type": ["boolean", "null"]},
        },
    }
    return json_request(schema)


def messages_request(*, is_counted: bool = False) -> Document:
    """Return the schema of a request of Anthropic's Messages API.

    A request whose tokens are counted (`is_counted`) needs no `max_tokens`.
    """
    blocks = {"type": "array", "items": {"type": "object", "required": ["type"]}}
    message: Document = {
        "type": "object",
        "required": ["role", "content"],
        "properties": {
            "role": {"enum": ["user", "assistant"]},
            "content": {"anyOf": [_STRING, blocks]},
        },
    }
    schema = {
        "type": "object",
        "required": ["model", "messages", *([] if is_counted else ["max_tokens"])],
        "properties": {
            "model": {"type": "string", "minLength": 1},
            "max_tokens": {"type": "integer", "minimum": 0},
            "messages": {"type": "array", "minItems": 1, "items": message},
            "system": {"anyOf": [_STRING, blocks]},
            "tools": {"type": "array", "items": {"type": "object"}},
            "stream": {"type": "boolean"},
        },
    }
    return json_request(schema)


def feedback_request(max_calls: int) -> Document:
    """Return the schema of feedback: a decision id, and either `correct` or `expected`."""
    call: Document = {
        "type": "object",
        "required": ["name", "arguments"],
        "properties": {"name": _STRING, "arguments": {"type": "object"}},
        "additionalProperties": False,
    }
    properties: Document = {
        "decision_id": {"type": "string", "minLength": 1, "maxLength": 100},
        "correct": {"type": "boolean"},
        "expected": {"type": "array", "items": call, "maxItems": max_calls},
    }
    schema = {
        "type": "object",
        "required": ["decision_id"],
        "properties": properties,
        "additionalProperties": False,
        "oneOf": [{"required": ["correct"]}, {"required": ["expected"]}],
    }
    return json_request(schema)


def model_request() -> Document:
    """Return the schema of a request from which the gateway reads only the model."""
    properties: Document = {"model": {"type": "string", "minLength": 1}}
    return json_request({"type": "object", "required": ["model"], "properties": properties})


def json_request(schema: Document) -> Document:
    """Return the part of an operation that describes its JSON body."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
