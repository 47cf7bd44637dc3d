"""Request bodies as JSON: the texts that `strict_json` accepts, and the changes of `splice`.

The standard library's reader is the reference: it is slower, and reports duplicate keys and
integers.
"""

from __future__ import annotations

import json
import math
from typing import Any

import orjson

from router_service.core import strict_json
from router_service.core.errors import InvalidRequestError
from router_service.upstream.bodies import BodyTemplate, asks_for_usage, without_field
from tests.attacks import BROKEN_JSON, INTEGERS, OUTSIDE_JSON, REPEATED_KEYS, VALUES
from tests.fuzz.mutation import of_json
from tests.fuzz.target import Target, expect, fail, randomness

MODEL = 'a "model" \\ \u00e9'
MAX_PADDING_BYTES = 300_000
"""Longest string between two values of a large body. `strict_json` checks it in parts."""

LARGE_FLOAT = 9e298
CODES = {"invalid_json", "duplicate_key", "too_many_values"}


class NotStrictError(ValueError):
    """A text that parsers may read differently."""


def read_by_library(data: bytes) -> Any:  # noqa: ANN401 - any JSON value
    """Return the value of strict JSON. Raises ValueError or RecursionError."""
    if data.startswith(b"\xef\xbb\xbf"):
        raise NotStrictError("byte order mark")
    value = json.loads(
        data.decode("utf-8"),
        object_pairs_hook=_members,
        parse_int=_integer,
        parse_float=_number,
        parse_constant=_constant,
    )
    json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate cannot be written
    return value


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise NotStrictError("duplicate key")
    return members


def _integer(digits: str) -> int | float:
    """Return an integer; the decision rounds those beyond 64 bits, and shortens longer ones."""
    if len(digits) <= 20 and -(2**63) <= int(digits) < 2**64:
        return int(digits)
    rounded = float(digits)
    return rounded if math.isfinite(rounded) else float(digits[: 300 + digits.startswith("-")])


def _number(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise NotStrictError("infinity")
    return value


def _constant(name: str) -> None:
    raise NotStrictError(name)


def check(data: bytes) -> None:
    """Check a body, and sometimes a large body that contains it and is checked in parts."""
    check_body(data)
    rng = randomness(data)
    if rng.randrange(64) == 0:
        text = (
            rng.choice((b"x", b'\\"', b"\\\\", b'\\\\\\"', b"1,", b":", b"{")) * MAX_PADDING_BYTES
        )
        padding = b'"%s"' % text[: 6 * rng.randrange(MAX_PADDING_BYTES // 6)]
        check_body(b"[%s]" % b",".join((data, padding, data)))


def check_body(data: bytes) -> None:
    """Check that a body is read as the standard library reads it, and rewritten without loss."""
    value, problem = None, ""
    try:
        value = read_by_library(data)
    except (ValueError, RecursionError) as exc:
        problem = f"{type(exc).__name__}: {exc}"
    try:
        decoded = strict_json.decode(data)
    except InvalidRequestError as exc:
        expect(exc.code in CODES, f"the code {exc.code!r}")
        expect(len(exc.message) < 400, f"an error of {len(exc.message)} characters")
        if not problem and "levels deep" not in exc.message:
            fail(f"a valid text is refused: {exc.message}")
        return
    expect(not problem, f"{decoded!r} is read from what is not strict JSON: {problem}")
    expect(is_same(decoded, value), f"{data!r} is read as {decoded!r}, not {value!r}")
    expect(is_same(strict_json.decode(data.decode()), value), "text is read unlike bytes")
    exact = json.loads(orjson.dumps(strict_json.decode_exactly(data)))
    expect(is_same(exact, json.loads(data)), f"{data!r} is rewritten as {exact!r}")
    if isinstance(decoded, dict):
        check_rewriting(data, decoded)


def is_same(one: Any, other: Any) -> bool:  # noqa: ANN401
    """Return whether two values and their types are equal: 1 is neither 1.0 nor true.

    Integers of over 300 digits may be rounded to any float of that size.
    """
    if type(one) is not type(other):
        return False
    if isinstance(one, float) and abs(one) >= LARGE_FLOAT:
        return bool((one > 0) == (other > 0) and abs(other) >= LARGE_FLOAT)
    if isinstance(one, dict):
        return list(one) == list(other) and all(is_same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other)


def check_rewriting(body: bytes, value: dict[str, Any]) -> None:
    """Check that rewriting changes the model or the stream options, and nothing else."""
    rewritten = strict_json.decode(BodyTemplate.of(body).with_model(MODEL))
    wanted = {name: MODEL if name == "model" else inner for name, inner in value.items()}
    expect(is_same(rewritten, wanted), f"with another model: {rewritten!r}")
    left = strict_json.decode(without_field("stream_options", body))
    wanted = {name: inner for name, inner in value.items() if name != "stream_options"}
    expect(is_same(left, wanted), f"without stream_options: {left!r}")
    options = value.get("stream_options")
    asks = value.get("stream") is True and options in (
        {"include_usage": True},
        {"include_usage": False},
    )
    expect(asks or not asks_for_usage(body), f"{body!r} does not ask for its usage")


TOKENS = (
    *(value for value in OUTSIDE_JSON.values() if len(value) < 20),
    *(b"%d" % integer for integer in INTEGERS),
    *(b'"model"', b'"m\\u006fdel"', b'"stream_options"', b'"stream"', b'"include_usage"'),
    *(b'"messages"', b'"\\ud83d\\ude00"', b'"\\u003a"', b'"\\u0000"', b'"\\\\"', b"-0", b"-0.0"),
    *(b"1E+2", b"true", b"null", b"{}", b"[]", b":", b",", b"\xef\xbb\xbf", b"\xe2\x80\xa8"),
    *(b"\t", b"\r\n"),
)

TARGET = Target(
    name="json_bodies",
    check=check,
    mutate=of_json([token for token in TOKENS if token.isascii()]),
    tokens=TOKENS,
    runs=20_000,
    attacks=(
        *BROKEN_JSON.values(),
        *(b'{"model":%b}' % value for value in (*OUTSIDE_JSON.values(), *REPEATED_KEYS.values())),
        *(json.dumps({"model": value}).encode() for value in (*VALUES, *INTEGERS)),
    ),
)
