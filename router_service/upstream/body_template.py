"""Request bodies whose model can be replaced without changing any other byte."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import orjson

from router_service.core.errors import InvalidRequestError
from router_service.core.messages import Json, as_list

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_STRINGS = re.compile(_STRING + rb'(?:[^"{}\[\]]*+' + _STRING + rb")*+", re.DOTALL)
# Keys. Each letter of "model" may be escaped. The patterns start with a literal byte instead of a
# lookbehind, so that memchr skips most of a body, at 0.3 ns a byte instead of 12.
_MODEL = re.compile(
    rb'"(?:m|\\u006[dD])(?:o|\\u006[fF])(?:d|\\u0064)(?:e|\\u0065)(?:l|\\u006[cC])"\s*:\s*'
)
_STREAM_OPTIONS = re.compile(rb'"stream_options"\s*:\s*')
_PLAIN_OPTIONS = re.compile(rb'\{\s*"include_usage"\s*:\s*(?:true|false)\s*\}')
_STREAM = re.compile(rb'"stream"\s*:\s*')
_SCALAR = re.compile(_STRING + rb"|[^\s,}\]{\[]++", re.DOTALL)
_BEFORE_KEY = b"{, \t\r\n"
_BRACKETS_OUTSIDE_STRINGS = re.compile(_STRING + rb"|([{\[])|([}\]])", re.DOTALL)

MAX_KEYS = 10_000
"""Most keys of one name at all levels of a body. Each tool with a parameter called `model` has one.
Finding the level of a key takes 2 us."""

REPEATABLE_PATHS = frozenset(
    (
        "/chat/completions",
        "/responses",
        "/completions",
        "/embeddings",
        "/moderations",
        "/rerank",
        "/audio/speech",
    )
)
"""Endpoints that compute an answer and change nothing, so that sending a request twice only costs
twice. Everything else under `/v1/` may create something, such as a job, a batch, a file or a
video."""

_EFFECT_MARKS = (b'"background"', b'"conversation"', b'"mcp"', b"\\u00")
"""Every body that has an effect contains one of these. The last one starts an escaped letter."""


@dataclass(frozen=True, slots=True)
class BodyTemplate:
    """A request body without its model. `parts` are the bytes between the names of the model."""

    parts: tuple[bytes, ...]

    @classmethod
    def of(cls, body: bytes) -> BodyTemplate:
        """Split a body, which must be a valid JSON object.

        If there are several top-level keys `model`, each value is replaced, because parsers differ
        in which one they read. Raise InvalidRequestError if there are more than `MAX_KEYS` at all
        levels.
        """
        parts: list[bytes] = []
        end = 0
        for _, start in _top_level(_MODEL, body):
            parts.append(body[end:start])
            end = _value_end(body, start)
        return cls((*parts, body[end:]))

    @property
    def size_bytes(self) -> int:
        """Return the body's length without the name of its model."""
        return sum(map(len, self.parts))

    def with_model(self, model: str) -> bytes:
        """Return the body with `model` as its top-level model."""
        return orjson.dumps(model).join(self.parts)


def is_repeatable(path: str, body: BodyTemplate) -> bool:
    """Return whether sending a request twice has no effect other than its price.

    A completion has an effect in three cases: `background` starts a job that could not be found or
    cancelled, `conversation` adds to a stored conversation, and a tool of the type `mcp` lets the
    provider call third-party servers. A response that is only stored (`store`, which is OpenAI's
    default) counts as repeatable, because nothing refers to the lost one and it expires.
    """
    if path not in REPEATABLE_PATHS:
        return False
    if not any(mark in part for part in body.parts for mark in _EFFECT_MARKS):
        return True
    fields: Mapping[str, Json] = orjson.loads(body.with_model(""))
    if fields.get("background") or fields.get("conversation") is not None:
        return False
    tools = [tool for tool in as_list(fields.get("tools")) if isinstance(tool, dict)]
    return all(tool.get("type") != "mcp" for tool in tools)


def asks_for_usage(body: bytes) -> bool:
    """Return whether a body, a valid JSON object, streams and asks for usage with plain options.

    Plain is `"stream": true` and `"stream_options": {"include_usage": BOOLEAN}` with nothing else
    (API reference: "Create chat completion"). An upstream that refuses these does not support the
    option. One that refuses other options may do so for good reasons.
    """
    try:
        stream = next(_top_level(_STREAM, body), None)
        options = next(_top_level(_STREAM_OPTIONS, body), None)
    except InvalidRequestError:
        return False
    if stream is None or options is None or not body.startswith(b"true", stream[1]):
        return False
    return _PLAIN_OPTIONS.match(body, options[1]) is not None


def without_stream_options(body: bytes) -> bytes:
    """Return a body, a valid JSON object, without its top-level `stream_options`."""
    found = next(_top_level(_STREAM_OPTIONS, body), None)
    if found is None:
        return body
    head, tail = body[: found[0]], body[_value_end(body, found[1]) :].lstrip(b" \t\r\n")
    if tail.startswith(b","):
        return head + tail[1:]
    return head.rstrip(b" \t\r\n").removesuffix(b",") + tail


def _top_level(name: re.Pattern[bytes], body: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each top-level member of a name starts, and where its value starts.

    Raise InvalidRequestError after `MAX_KEYS` members of this name at any level.
    """
    depth, position = 0, 0
    for count, key in enumerate(name.finditer(body)):
        if count == MAX_KEYS:
            raise InvalidRequestError(
                f"The request has more than {MAX_KEYS:,} objects with a key "
                f"{key[0].rstrip()[:-1].decode()}. Send fewer.",
                code="too_many_values",
            )
        # In valid JSON, a quote after one of these bytes opens a string, and a string before a
        # colon is a key. So no match lies inside a string.
        if body[key.start() - 1] not in _BEFORE_KEY:
            continue
        # Counted by library code, because a loop over the tokens of 10 MiB would take seconds.
        gap = _STRINGS.sub(b"", body[position : key.start()])
        depth += gap.count(b"{") + gap.count(b"[") - gap.count(b"}") - gap.count(b"]")
        position = key.start()
        if depth == 1:
            yield key.start(), key.end()


def _value_end(body: bytes, start: int) -> int:
    scalar = _SCALAR.match(body, start)
    if scalar:
        return scalar.end()
    depth = 0
    for token in _BRACKETS_OUTSIDE_STRINGS.finditer(body, start):
        depth += bool(token[1]) - bool(token[2])
        if depth == 0:
            return token.end()
    raise ValueError("the body is not valid JSON")
