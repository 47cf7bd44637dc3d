"""Request parameters that the configuration sets for a deployment, such as `reasoning_effort`."""

from __future__ import annotations

from collections.abc import Mapping

from router_service.apis.conversation import Json
from router_service.apis.registry import APIS
from router_service.core.errors import InvalidRequestError
from router_service.upstream.bodies import find_field, with_fields


def add_parameters(body: bytes, parameters: Mapping[str, Json], path: str, model: str) -> bytes:
    """Return a body, a valid JSON object, with those of the parameters that it does not set.

    The names are those of the Chat Completions API. A field counts as set even if its value is
    null. `path` is the endpoint at the upstream, and `model` the model's name there; bodies for
    endpoints that are no API stay unchanged. All other bytes of a body stay unchanged too.
    """
    api = APIS.at(path)
    if api is None:
        return body
    added: dict[str, Json] = {}
    for name, given in parameters.items():
        place = api.parameter(name, given, model)
        if place is None:
            continue
        (outer, _, inner), value = place[0].partition("."), place[1]
        found = _find(outer, body)
        if found is None:
            other = api.excludes_parameter(name)
            if not (other and _find(other, body)):
                new, earlier = {inner: value} if inner else value, added.get(outer)
                if isinstance(earlier, dict) and isinstance(new, dict):
                    new = {**earlier, **new}
                added[outer] = new
        elif inner:
            start, end = found
            body = body[:start] + _with_field(body[start:end], inner, value) + body[end:]
    return with_fields(body, added)


def _find(name: str, body: bytes) -> tuple[int, int] | None:
    """Return the start and the end of a top-level field's value, or None if it is missing."""
    try:
        return find_field(name, body)
    except InvalidRequestError:  # too many fields of this name, at all levels together, to search
        return 0, 0


def _with_field(value: bytes, name: str, inner: Json) -> bytes:
    """Return a JSON value with one more field if it is an object that lacks it."""
    if not value.startswith(b"{") or _find(name, value):
        return value
    return with_fields(value, {name: inner})
