"""Strict JSON: refuses texts that two parsers could read differently, or that take long to read.

The router decides on the values read here and forwards the original bytes, so both must mean the
same. Parsers disagree on duplicate keys and on integers beyond 64 bits (RFC 8259, sections 4, 6
and 8).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn

import orjson

from router_service.core.errors import InvalidRequestError

MIN_INTEGER = -(2**63)
MAX_INTEGER = 2**64 - 1
"""The smallest signed and the largest unsigned integer of 64 bits."""

MAX_WEIGHT = 2_000_000
"""Largest sum of the weights of a text's values. A value weighs 1; a string weighs 2 more, however
long it is; an array, an object or a member of an object weighs 8 more. orjson holds the
interpreter's lock while it reads: 15 to 40 ns per unit of weight, so at most 80 ms."""
_STRUCTURE_WEIGHT = 8
_PART_BYTES = 64 * 1024

_MAX_DIGITS = 20
"""Characters of `MIN_INTEGER` and of `MAX_INTEGER`; shorter integers are within 64 bits."""
_LARGEST = (b"%d" % MAX_INTEGER, b"%d" % MIN_INTEGER)
_LONG_DIGITS = b"0" * 19
"""19 digits: with a minus sign, the shortest integer beyond 64 bits."""
_DIGITS_AS_ZERO = bytes.maketrans(b"123456789", b"000000000")
_STRING = b'"'
_STRUCTURE_AS_BLANK = bytes.maketrans(b'{}[]:,"', b"       ")
_MAX_QUOTED = 80
_NAMED_BYTES = 1024 * 1024
"""In a longer text, a duplicate key is not looked up for its error: that would take too long."""


def decode(body: bytes | str) -> Any:  # noqa: ANN401 - any JSON value
    """Return the value of a JSON text in UTF-8.

    Raises InvalidRequestError with one of the codes `invalid_json`, `duplicate_key`,
    `integer_out_of_range` and `too_many_values`. `NaN`, infinities, invalid UTF-8, lone
    surrogates, a byte order mark and more than 254 levels are not valid JSON. A body of 16 KB takes
    0.12 ms, one of 10 MB at most 0.3 s.
    """
    data = body.encode(errors="surrogatepass") if isinstance(body, str) else body
    _check_weight(data)
    value = _loads(data)
    try:
        written = orjson.dumps(value)
    except orjson.JSONEncodeError as exc:
        raise _too_deep() from exc  # orjson reads 1024 levels and writes 254
    if not (_has_all_members(data, written) and _has_short_integers(data)):
        _check(data, written)
    return value


def _check_weight(data: bytes) -> None:
    """Raise InvalidRequestError if a text weighs more than `MAX_WEIGHT`."""
    # Counted as if there were no strings first: an upper bound, in 1 ms per MB.
    if len(data) * _STRUCTURE_WEIGHT <= MAX_WEIGHT or _weight(data) <= MAX_WEIGHT:
        return
    weight = 0
    for part in _outside_strings(data):
        weight += _weight(part) + part.count(_STRING)
        if weight > MAX_WEIGHT:
            raise InvalidRequestError(
                "The request body holds too many JSON values. This gateway reads up to 2,000,000 "
                "numbers, 600,000 strings or 200,000 arrays, objects and members of objects. Send "
                "fewer of them.",
                code="too_many_values",
            )


def _weight(text: bytes) -> int:
    structure = text.count(b"[") + text.count(b"{") + text.count(b":")
    return text.count(b",") + text.count(b'"') + _STRUCTURE_WEIGHT * structure


def _outside_strings(data: bytes) -> Iterator[bytes]:
    """Yield a valid JSON text with one quote for each string, in parts that do not cut a number.

    In parts, so that other threads get their turn. 10 MB take 0.07 s at most.
    """
    # Without escaped backslashes and quotes, every quote opens or closes a string.
    text = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    start = is_inside = 0
    while start < len(text):
        stop = text.find(b",", start + _PART_BYTES) + 1 or len(text)
        pieces = text[start:stop].split(b'"')
        yield _STRING.join(pieces[is_inside::2])
        is_inside ^= (len(pieces) - 1) % 2
        start = stop


def _has_all_members(data: bytes, written: bytes) -> bool:
    """Return whether it is certain that no key of a text is a duplicate.

    orjson keeps the last of two equal keys, so the value, written again, has fewer members than
    the text. Each member has a colon, and so has each colon of a string unless it is escaped as
    U+003A: equal numbers of colons are equal numbers of members.
    """
    is_escaped = b"\\u003" in data and (b"\\u003a" in data or b"\\u003A" in data)
    return not is_escaped and written.count(b":") == data.count(b":")


def _has_short_integers(data: bytes) -> bool:
    """Return whether it is certain that no integer is beyond 64 bits: orjson rounds those."""
    return _LONG_DIGITS not in data.translate(_DIGITS_AS_ZERO)


def _check(data: bytes, written: bytes) -> None:
    """Raise InvalidRequestError for a duplicate key or a too large integer of a valid JSON text."""
    members = 0
    for part in _outside_strings(data):
        members += part.count(b":")
        if not _has_short_integers(part):
            for token in part.translate(_STRUCTURE_AS_BLANK).split():
                if len(token) >= _MAX_DIGITS:
                    _check_number(token)
    if members != sum(part.count(b":") for part in _outside_strings(written)):
        _refuse_duplicate(data)


def _loads(data: bytes) -> Any:  # noqa: ANN401
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as exc:
        if exc.msg.startswith("depth limit"):
            raise _too_deep() from exc
        raise InvalidRequestError(
            f"The request body is not valid JSON: {exc}. Send one JSON object, UTF-8 encoded.",
            code="invalid_json",
        ) from exc


def _refuse_duplicate(data: bytes) -> NoReturn:
    name = None
    if len(data) <= _NAMED_BYTES:
        try:
            json.loads(data, object_pairs_hook=_unique)
        except _DuplicateError as exc:
            name = exc.name[:_MAX_QUOTED]
    raise InvalidRequestError(
        f"{'A key' if name is None else f'The key {name!r}'} occurs twice in one object, and "
        "parsers differ in which of the two counts. Send it once.",
        param=name,
        code="duplicate_key",
    )


class _DuplicateError(Exception):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def _unique(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) < len(pairs):
        seen: set[str] = set()
        raise _DuplicateError(next(n for n, _ in pairs if n in seen or seen.add(n)))  # type: ignore[func-returns-value]


def _check_number(token: bytes) -> None:
    """Raise InvalidRequestError if a number of at least `_MAX_DIGITS` is a too large integer."""
    # Compared as text: Python takes quadratic time to read long integers.
    is_long = len(token) > _MAX_DIGITS or token > _LARGEST[token[:1] == b"-"]
    if is_long and token.lstrip(b"-").isdigit():
        digits = token[:_MAX_DIGITS].decode() + "..." * (len(token) > _MAX_DIGITS)
        raise InvalidRequestError(
            f"The integer {digits} is beyond 64 bits, which parsers round differently. Send a "
            "smaller one, or a string.",
            code="integer_out_of_range",
        )


def _too_deep() -> InvalidRequestError:
    return InvalidRequestError(
        "The request body is nested more than 254 levels deep. Flatten it.",
        code="invalid_json",
    )
