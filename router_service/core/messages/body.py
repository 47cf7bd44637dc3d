"""A request body -> one JSON object, and the errors that name a field of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from router_service.core import strict_json
from router_service.core.errors import InvalidRequestError

Json = Any
"""A decoded JSON value, of which nothing is known yet."""


def decode_object(body: bytes | str) -> Mapping[str, Json]:
    """Decode a request body that must be one JSON object; raises InvalidRequestError."""
    value = strict_json.decode(body)
    if not isinstance(value, dict):
        raise InvalidRequestError(
            f"The request body must be a JSON object, not {kind_of(value)}.", code="invalid_type"
        )
    return value


def read_model(body: Mapping[str, Json]) -> str:
    """Return the model that a request names; raises InvalidRequestError."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise wrong_type("model", "a non-empty string", model, missing="model" not in body)
    return model


def read_stream(body: Mapping[str, Json]) -> bool:
    """Return whether a request asks for a stream; raises InvalidRequestError."""
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise wrong_type("stream", "a boolean", stream)
    return bool(stream)


def kind_of(value: Json) -> str:
    """Return what a value is, in words of an error message."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    return "null" if value is None else names.get(type(value), "a number")


def wrong_type(
    param: str, wanted: str, value: Json, *, missing: bool = False
) -> InvalidRequestError:
    """Return the error of a parameter of the wrong type, or that is missing."""
    if missing:
        return InvalidRequestError(
            f"Missing required parameter: '{param}'. Send it as {wanted}.",
            param=param,
            code="missing_required_parameter",
        )
    return InvalidRequestError(
        f"Invalid type for '{param}': expected {wanted}, but got {kind_of(value)}.",
        param=param,
        code="invalid_type",
    )


def text_of(value: Json) -> str:
    """Return a string, or an empty one for any other value."""
    return value if isinstance(value, str) else ""


def items_of(value: Json) -> Sequence[Json]:
    """Return an array, or an empty one for any other value."""
    return value if isinstance(value, list) else ()
