"""Typed access to the JSON of requests; errors name the path of what is malformed."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from router_service.apis.conversation import Json, wrong_type
from router_service.apis.parts import Media, OfferedTool
from router_service.core.errors import InvalidRequestError

_EMPTY: tuple[Json, ...] = (None, [], {}, "")


def lost_fields(
    body: Mapping[str, Json],
    carried: Collection[str],
    neutral: Mapping[str, Sequence[Json]],
) -> list[str]:
    """Return the fields of a body that a translation would lose.

    `carried` are the fields that are read, and those that change no answer. `neutral` has values
    that mean the same as a missing field. Unknown fields count as lost.
    """
    return [
        name
        for name, value in body.items()
        if name not in carried and value not in _EMPTY and value not in neutral.get(name, ())
    ]


def as_object(value: Json, path: str) -> dict[str, Json]:
    """Return a value that must be an object."""
    if not isinstance(value, dict):
        raise wrong_type(path, "an object", value)
    return value


def as_array(value: Json, path: str) -> list[Json]:
    """Return a value that must be an array."""
    if not isinstance(value, list):
        raise wrong_type(path, "an array", value)
    return value


def array(parent: Mapping[str, Json], name: str, path: str = "") -> list[Json]:
    """Return a field that must be an array; an empty array if it is missing or null."""
    value = parent.get(name)
    return [] if value is None else as_array(value, _join(path, name))


def text(parent: Mapping[str, Json], name: str, path: str = "") -> str:
    """Return a field that must be a string."""
    value = parent.get(name)
    if not isinstance(value, str):
        raise wrong_type(_join(path, name), "a string", value, missing=name not in parent)
    return value


def identifier(parent: Mapping[str, Json], name: str, path: str) -> str:
    """Return a field that must be a string which is not empty."""
    value = parent.get(name)
    if not isinstance(value, str) or not value:
        wanted = "a non-empty string"
        raise wrong_type(_join(path, name), wanted, value, missing=name not in parent)
    return value


def optional_text(parent: Mapping[str, Json], name: str, path: str = "") -> str | None:
    """Return a field that must be a string, or None if it is missing or null."""
    return None if parent.get(name) is None else text(parent, name, path)


def optional_object(
    parent: Mapping[str, Json], name: str, path: str = ""
) -> dict[str, Json] | None:
    """Return a field that must be an object, or None if it is missing or null."""
    value = parent.get(name)
    return None if value is None else as_object(value, _join(path, name))


def optional_number(parent: Mapping[str, Json], name: str) -> float | None:
    """Return a field that must be a number, or None if it is missing or null."""
    value = parent.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(name, "a number", value)
    return value


def optional_count(parent: Mapping[str, Json], name: str, path: str = "") -> int | None:
    """Return a field that must be a positive integer, or None if it is missing or null."""
    value = parent.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        param = _join(path, name)
        if isinstance(value, int) and not isinstance(value, bool):
            raise InvalidRequestError(
                f"Invalid value for '{param}': {value}. Send an integer of at least 1.",
                param=param,
                code="invalid_value",
            )
        raise wrong_type(param, "an integer", value)
    return value


def optional_flag(parent: Mapping[str, Json], name: str, path: str = "") -> bool | None:
    """Return a field that must be a boolean, or None if it is missing or null."""
    value = parent.get(name)
    if value is not None and not isinstance(value, bool):
        raise wrong_type(_join(path, name), "a boolean", value)
    return value


def one_of(value: Json, allowed: Sequence[str], path: str) -> str:
    """Return a value that must be one of several strings."""
    if not isinstance(value, str) or value not in allowed:
        raise InvalidRequestError(
            f"Invalid value for '{path}': {str(value)[:80]!r}. Use one of these:"
            f" {', '.join(allowed)}.",
            param=path,
            code="invalid_value",
        )
    return value


def read_media(
    kind: Literal["image", "document"],
    url: str,
    path: str,
    *,
    name: str | None = None,
    detail: str | None = None,
) -> Media:
    """Return an image or a document from its address or its data URL (RFC 2397)."""
    if not url.startswith("data:"):
        return Media(kind, url=url, name=name, detail=detail)
    head, comma, data = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise InvalidRequestError(
            f"The data URL in '{path}' cannot be read. Write it as 'data:TYPE;base64,DATA', for"
            " example 'data:image/png;base64,iVBORw0...'.",
            param=path,
            code="invalid_value",
        )
    media_type = head.removeprefix("data:").split(";")[0].lower() or None
    if kind == "document" and media_type is not None and media_type.startswith("text/"):
        try:
            data = base64.b64decode(data, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError) as exc:
            raise InvalidRequestError(
                f"The text in '{path}' cannot be read: {exc}. Send UTF-8, encoded as base64.",
                param=path,
                code="invalid_value",
            ) from exc
        media_type = "text/plain"
    return Media(kind, data=data, media_type=media_type, name=name, detail=detail)


def read_file(data: str, path: str, *, name: str | None) -> Media:
    """Return a document from its data URL, or from base64 alone, which is then a PDF."""
    url = data if data.startswith("data:") else f"data:application/pdf;base64,{data}"
    return read_media("document", url, path, name=name)


def distinct_tools(tools: Sequence[OfferedTool], param: str) -> tuple[OfferedTool, ...]:
    """Return tools without repetitions.

    Raise InvalidRequestError if two different tools have the same name, because an answer's calls
    could not be assigned.
    """
    found: dict[str, OfferedTool] = {}
    for tool in tools:
        if found.setdefault(tool.name, tool) != tool:
            raise InvalidRequestError(
                f"Two different tools have the name {tool.name[:200]!r}. Rename one of them.",
                param=param,
                code="duplicate_tool",
            )
    return tuple(found.values())


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
