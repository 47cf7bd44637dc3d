"""What the APIs' parts of the OpenAPI description share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

Document = dict[str, Any]
"""A part of an OpenAPI document."""


@dataclass(frozen=True, slots=True)
class RequestSchema:
    """The JSON schema of a request's body, and an example of it."""

    schema: Document
    example: Document | None = None


class Fault(BaseModel):
    """Details of an error; `message` has the remedy."""

    message: str
    type: str
    param: str | None
    code: str | int | None


class ErrorBody(BaseModel):
    """An error in OpenAI's format."""

    error: Fault


def object_with(required: str, **properties: Document) -> Document:
    """Return the schema of an object with these properties; blanks separate the required ones."""
    return {"type": "object", "required": required.split(), "properties": properties}


def array_of(items: Document, **more: object) -> Document:
    """Return the schema of an array, with further keywords."""
    return {"type": "array", "items": items, **more}


STRING: Document = {"type": "string"}
MODEL: Document = {
    "type": "string",
    "minLength": 1,
    "description": "`switchcraft` lets the router choose. `switchcraft:economy` also names a "
    "policy. The name of a configured model skips the router.",
}
STREAM = "Whether the answer arrives as server-sent events."
TOOLS = "Tools that the model may call. Only requests with tools are routed."
EXAMPLE_TURN: Document = {"role": "user", "content": "Will it rain in Lisbon tomorrow?"}
EXAMPLE_TOOL: Document = {
    "type": "function",
    "function": {
        "name": "get_forecast",
        "description": "Weather forecast for a city.",
        "parameters": object_with("city", city=STRING, days={"type": "integer"}),
    },
}
