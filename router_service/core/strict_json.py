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
_LONG_DIGITS = b"0" * 19
"""As many digits as the smallest integer beyond 64 bits has, 19 with a minus before them."""
_DIGITS_AS_ZERO = bytes.maketrans(b"123456789", b"000000000")
_MAX_QUOTED = 80


def decode(body: bytes | str) -> Any:  # noqa: ANN401 - any JSON value
    """Return the value of a JSON text in UTF-8.

    Raises InvalidRequestError with one of the codes `invalid_json`, `duplicate_key` and
    `integer_out_of_range`. `NaN`, infinities, invalid UTF-8, lone
    surrogates and a byte order mark are not valid JSON. A body of 16 KB takes 0.12 ms,
    and 0.25 ms where a second reader is wanted.
    """
    value = _loads(body)
    data = body.encode() if isinstance(body, str) else body
    if not (_has_all_members(data, value) and _has_short_integers(data)):
        _check(data.decode())
    return value


def _has_all_members(body: bytes, value: Any) -> bool:  # noqa: ANN401
    """Tell whether it is sure that `value` has every member of the JSON text `body`.

    orjson keeps the last of two equal keys, so that `value` has a member less for each that is
    lost. A text has a colon for each member, and for each colon of a string unless it is written
    by its number (U+003A): as many colons in what was read as in what came are as many members.
    """
    if b"\\u003" in body:
        return False
    try:
        return orjson.dumps(value).count(b":") == body.count(b":")
    except orjson.JSONEncodeError:
        return False  # orjson reads 1024 levels and writes 254


def _has_short_integers(body: bytes) -> bool:
    """Tell whether no number can be beyond 64 bits: orjson rounds those."""
    return _LONG_DIGITS not in body.translate(_DIGITS_AS_ZERO)


def _check(text: str) -> None:
    """Read a valid JSON text once more, by a reader that sees what the first one passes over."""
    try:
        _DECODER.decode(text)
    except RecursionError as exc:
        raise _too_deep() from exc


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
