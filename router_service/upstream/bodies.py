"""Bodies: replacing the model of a request, reading providers' JSON, and decompressing answers."""

from __future__ import annotations

import asyncio
import json
import math
import re
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import orjson

from router_service.apis.answers import MAX_IDENTITY
from router_service.apis.conversation import Json, as_list
from router_service.apis.registry import APIS
from router_service.apis.usage import read_counts
from router_service.core.errors import InvalidRequestError
from router_service.core.strict_json import (
    exact_integer,
    has_long_integers,
    loads,
    loads_exactly,
)
from router_service.upstream.connection import ConnectionFault

MAX_KEYS = 10_000
"""Most keys of one name in a body, at all levels together. For example, each tool with a parameter
called `model` adds a key `model`. Finding the level of a key takes 2 us."""

_REPEATABLE_PATHS = frozenset(
    (
        "/completions",
        "/embeddings",
        "/moderations",
        "/rerank",
        "/audio/speech",
    )
)
"""Further endpoints that compute an answer and change nothing."""

MAX_VALUES = 25_000
"""Most values in a JSON text that is read. Commas and opening brackets are counted as values.
Reading so many blocks the event loop for up to 25 ms; 60 MB of `{}` would take seconds and 2 GB."""

UNCOUNTED_BYTES = 32 * 1024
"""Longest text whose values are not counted and for which no memory is reserved. It cannot have
many more values than `MAX_VALUES`, and takes little memory."""

SKIM_BYTES = 16 * 1024
"""How many bytes `skim` searches: at the start of an answer for texts, at its end for the usage."""

MAX_USAGES = 4
"""Most occurrences of `usage` that `skim` tries to decode."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

MAX_PART_BYTES = 64 * 1024
"""Longest part that is decompressed at a time, which takes 0.2 ms. Between two parts, other
requests are served."""

MAX_EMPTY_BYTES = 1024 * 1024
"""Most compressed data in a row that unpacks to nothing. A gzip header may hold a name of any
length, and empty blocks may follow each other without end."""

ACCEPTED_CODINGS = frozenset({"gzip", "x-gzip", "deflate"})
"""Content codings that can be read (RFC 9110, section 8.4.1). `deflate` is zlib's format."""

_EFFECT_MARKS = (b'"background"', b'"conversation"', b'"mcp"', b'"mcp_servers"', b"\\u00")
"""Every body that has a lasting effect (see `is_repeatable`) contains one of these. The last one
starts an escaped letter, by which a key can be written differently."""

_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_STRINGS = re.compile(_STRING + rb'(?:[^"{}\[\]]*+' + _STRING + rb")*+", re.DOTALL)


@lru_cache(maxsize=1000)
def key_pattern(name: str) -> re.Pattern[bytes]:
    """Return a pattern of a key and its colon; each character may be escaped by its code.

    It starts with a literal byte instead of a lookbehind, so that memchr skips most of a body, at
    0.3 ns a byte instead of 12.
    """
    pattern = b'"'
    for character in name:
        units = memoryview(character.encode("utf-16-le")).cast("H")
        escaped = b"".join(rb"\\u%04x" % unit for unit in units)
        pattern += b"(?:%b|(?i:%b))" % (re.escape(character.encode()), escaped)
    return re.compile(pattern + rb'"\s*:\s*')


_MODEL = key_pattern("model")
_STREAM_OPTIONS = re.compile(rb'"stream_options"\s*:\s*')
_PLAIN_OPTIONS = re.compile(rb'\{\s*"include_usage"\s*:\s*(?:true|false)\s*\}')
_STREAM = re.compile(rb'"stream"\s*:\s*')
_SCALAR = re.compile(_STRING + rb"|[^\s,}\]{\[]++", re.DOTALL)
_BEFORE_KEY = b"{, \t\r\n"
_COMMA = re.compile(rb"[ \t\r\n]*+,[ \t\r\n]*+")
_BRACKETS_OUTSIDE_STRINGS = re.compile(_STRING + rb"|([{\[])|([}\]])", re.DOTALL)

_MAX_DIGITS = 20
_VALUE_STARTS = (b",", b"{", b"[")
_NAMED_TEXT = re.compile(rb'"(id|model|object|type)"\s*:\s*"([^"\\]{1,%d})"' % MAX_IDENTITY)
_USAGE = re.compile(rb'"usage"\s*:\s*(?=\{)')


@dataclass(slots=True)
class BodyTemplate:
    """A request body whose model can be replaced. The body itself is not copied."""

    body: bytes = field(repr=False)
    """The body as the client sent it."""
    spans: tuple[tuple[int, int], ...]
    """Start and end of the parts before, between and after the names of the model."""
    size_bytes: int
    """The body's length without the names of the model."""
    _fields: Mapping[str, Json] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, body: bytes, fields: Mapping[str, Json] | None = None) -> BodyTemplate:
        """Split a body, which must be a valid JSON object; `fields` is what it contains.

        If there are several top-level keys `model`, the values of all are replaced, because parsers
        differ in which one they read. Raise InvalidRequestError if there are more than `MAX_KEYS`
        keys `model` at all levels together.
        """
        spans: list[tuple[int, int]] = []
        end = 0
        for _, start, next_end in top_level(_MODEL, body):
            spans.append((end, start))
            end = next_end
        spans.append((end, len(body)))
        size_bytes = sum([end - start for start, end in spans])
        return cls(body, tuple(spans), size_bytes, fields)

    @property
    def fields(self) -> Mapping[str, Json]:
        """The decoded body; after `release` it is decoded at every use."""
        return loads(self.body) if self._fields is None else self._fields

    @property
    def exact_fields(self) -> Mapping[str, Json]:
        """The decoded body with every integer as `loads_exactly` returns it."""
        if has_long_integers(self.body):
            exact: Mapping[str, Json] = loads_exactly(self.body)
            return exact
        return self.fields

    def release(self) -> None:
        """Free the decoded body, which takes several times the memory of the body."""
        self._fields = None

    def with_model(self, model: str) -> bytes:
        """Return the body with `model` as its top-level model."""
        view = memoryview(self.body)
        return orjson.dumps(model).join([view[start:end] for start, end in self.spans])

    def contains_any(self, marks: Iterable[bytes]) -> bool:
        """Return whether one of the marks is in the body, outside of the names of the model."""
        return any(self.body.find(mark, *span) >= 0 for mark in marks for span in self.spans)

    def find_all(self, pattern: re.Pattern[bytes]) -> list[bytes]:
        """Return all matches of a pattern outside of the names of the model."""
        found: list[bytes] = []
        for span in self.spans:
            found += pattern.findall(self.body, *span)
        return found


@lru_cache(maxsize=1000)
def may_be_repeated(path: str) -> bool:
    """Return whether an endpoint only computes an answer, so that repetition doubles only the cost.

    All other endpoints under `/v1/` may create something, such as a job, a batch, a file or a
    video.
    """
    if APIS.at(path) is not None or path in _REPEATABLE_PATHS:
        return True
    return any(path in (api.counting_path, api.compacting_path) for api in APIS)


def is_repeatable(path: str, body: BodyTemplate) -> bool:
    """Return whether sending a request twice has no effect other than its price.

    A completion has an effect in three cases: `background` starts a job, which nobody could find or
    cancel if its answer was lost; `conversation` adds to a stored conversation; and a tool of the
    type `mcp`, or one of `mcp_servers`, lets the provider call third-party servers. A response that
    is only stored (`store`, which is OpenAI's default) counts as repeatable, because nothing refers
    to a stored response that was lost, and it expires.
    """
    if not may_be_repeated(path):
        return False
    if not body.contains_any(_EFFECT_MARKS):
        return True
    fields = body.fields
    if fields.get("background") or fields.get("conversation") is not None:
        return False
    if fields.get("mcp_servers"):
        return False
    tools = [tool for tool in as_list(fields.get("tools")) if isinstance(tool, dict)]
    return all(tool.get("type") != "mcp" for tool in tools)


def asks_for_usage(body: bytes) -> bool:
    """Return whether a body, a valid JSON object, streams and asks for usage with plain options.

    Plain options are `"stream": true` and `"stream_options": {"include_usage": BOOLEAN}` without
    other stream options (API reference: "Create chat completion"). An upstream that refuses plain
    options does not support `stream_options`. An upstream that refuses other options may do so for
    good reasons.
    """
    try:
        stream = next(top_level(_STREAM, body), None)
        options = next(top_level(_STREAM_OPTIONS, body), None)
    except InvalidRequestError:
        return False
    if stream is None or options is None or not body.startswith(b"true", stream[1]):
        return False
    return _PLAIN_OPTIONS.match(body, options[1]) is not None


def find_field(name: str, body: bytes) -> tuple[int, int] | None:
    """Return the start and the end of a top-level field's value, or None if it is missing.

    Raises InvalidRequestError like `top_level`.
    """
    found = next(top_level(key_pattern(name), body), None)
    return found and (found[1], found[2])


def without_field(name: str, body: bytes) -> bytes:
    """Return a body, a valid JSON object, without its top-level fields of this name.

    Raises InvalidRequestError like `top_level`.
    """
    kept: list[bytes] = []
    position, is_last = 0, False
    for start, _, end in top_level(key_pattern(name), body):
        kept.append(body[position:start])
        comma = _COMMA.match(body, end)
        position, is_last = (end, True) if comma is None else (comma.end(), False)
    head, tail = b"".join(kept), body[position:]
    if is_last:
        return head.rstrip(b" \t\r\n").removesuffix(b",") + tail.lstrip(b" \t\r\n")
    return head + tail


def with_fields(body: bytes, added: Mapping[str, Json]) -> bytes:
    """Return a JSON object with further fields at its beginning."""
    if not added:
        return body
    start = body.index(b"{") + 1
    comma = b"" if body[start:].lstrip().startswith(b"}") else b","
    return body[:start] + orjson.dumps(added)[1:-1] + comma + body[start:]


def top_level(name: re.Pattern[bytes], body: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield three positions for each top-level key that `name` matches (see `key_pattern`).

    They are the start of the key, and the start and the end of its value. Raise InvalidRequestError
    if there are more than `MAX_KEYS` such keys at all levels together.
    """
    depth, position = 0, 0
    for count, key in enumerate(name.finditer(body)):
        if count == MAX_KEYS:
            raise InvalidRequestError(
                f"The request has more than {MAX_KEYS:,} objects with a key "
                f"{key[0].rstrip()[:-1].decode()}. Send fewer of them.",
                code="too_many_values",
            )
        # In valid JSON, a quote after one of these bytes opens a string, and a string before a
        # colon is a key. So no match lies inside a string.
        if body[key.start() - 1] not in _BEFORE_KEY:
            continue
        # Remove strings and count brackets in C: a Python loop over 10 MiB would take seconds.
        gap = _STRINGS.sub(b"", body[position : key.start()])
        depth += gap.count(b"{") + gap.count(b"[") - gap.count(b"}") - gap.count(b"]")
        position = key.start()
        if depth != 1:
            continue
        if scalar := _SCALAR.match(body, key.end()):
            yield key.start(), key.end(), scalar.end()
            continue
        brackets = 0
        for token in _BRACKETS_OUTSIDE_STRINGS.finditer(body, key.end()):
            brackets += bool(token[1]) - bool(token[2])
            if brackets == 0:
                yield key.start(), key.end(), token.end()
                break
        else:
            raise ValueError("the body is not valid JSON")


class UnreadableError(ValueError):
    """Bytes that cannot be read as JSON."""

    def __init__(self, *, is_cut_off: bool = False, is_too_much: bool = False) -> None:
        super().__init__("cut off" if is_cut_off else "too much" if is_too_much else "not JSON")
        self.is_cut_off = is_cut_off
        """Whether the text begins as an object or an array but does not end as one."""
        self.is_too_much = is_too_much
        """Whether the text is valid JSON with more values or levels than this gateway reads."""


def read_json(data: bytes, *, is_exact: bool = False) -> Json:
    """Return the value of a JSON text as lenient clients read it, or raise UnreadableError.

    Beyond JSON (RFC 8259), providers send lone surrogates, NaN and infinities, numbers of any
    length, control characters in strings, broken UTF-8 and a byte order mark. Clients that can read
    such text get its bytes unchanged, so this function must not fail on it either. Strings in the
    result may have lone surrogates (see `fix_surrogates`).

    With `is_exact`, orjson writes every number of the result as it was read, or refuses it: NaN and
    infinities.
    """
    is_too_much = len(data) > UNCOUNTED_BYTES and sum(map(data.count, _VALUE_STARTS)) > MAX_VALUES
    if not (is_too_much or (is_exact and has_long_integers(data))):
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            pass
    text = data.removeprefix(BYTE_ORDER_MARK).strip()
    if text[:1] + text[-1:] not in (b"{}", b"[]"):
        raise UnreadableError(is_cut_off=text.startswith((b"{", b"[")))
    if is_too_much:
        raise UnreadableError(is_too_much=True)
    # For many small values this decoder is as fast as orjson; for long strings it takes twice as
    # long.
    try:
        decoder = _EXACT if is_exact else _LENIENT
        return decoder.decode(text.decode(errors="replace"))
    except RecursionError:
        is_too_much = True
    except ValueError:
        pass
    # Raised outside the `except` blocks, because the caught errors would keep the text in memory.
    raise UnreadableError(is_too_much=is_too_much)


def decode_json(body: bytes) -> Json:
    """Return a body as JSON, or None if it cannot be read."""
    try:
        return read_json(body)
    except UnreadableError:
        return None


def skim(start: bytes, end: bytes = b"") -> dict[str, Json]:
    """Return the id, model, object, type and usage of an answer or event without decoding it.

    `start` is its beginning, or all of it if there is no `end`. If a text occurs several times, the
    first one is returned; of the usage, the last one.
    """
    found: dict[str, Json] = {}
    for name, value in _NAMED_TEXT.findall(start[:SKIM_BYTES]):
        found.setdefault(name.decode(), value.decode(errors="replace"))
    tail = (start[-SKIM_BYTES:] + end)[-SKIM_BYTES:]
    for match in list(_USAGE.finditer(tail))[: -MAX_USAGES - 1 : -1]:
        try:
            usage, _ = _LENIENT.raw_decode(tail[match.end() :].decode(errors="replace"))
        except (ValueError, RecursionError):
            continue
        if read_counts(usage) is not None:
            return found | {"usage": usage}
    return found


# Integers of more than 64 bits become floats, because `int` takes quadratic time: a million digits
# would take too long.
_LENIENT = json.JSONDecoder(
    strict=False,
    parse_int=lambda digits: int(digits) if len(digits) <= _MAX_DIGITS else float(digits),
)


def _exact_float(text: str) -> float | orjson.Fragment:
    value = float(text)
    return value if math.isfinite(value) else orjson.Fragment(text)  # such as 1e400


_UNWRITABLE = object()
"""Stands for NaN and infinities, which orjson would write as null."""

_EXACT = json.JSONDecoder(
    strict=False,
    parse_int=exact_integer,
    parse_float=_exact_float,
    parse_constant=lambda _: _UNWRITABLE,
)


def read_codings(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """Return the content and transfer codings of a body from all of its header lines.

    `identity` and `chunked` are left out. Other transfer codings are included, because `Connection`
    does not decode them.
    """
    found: list[str] = []
    for name, value in headers:
        if name in {b"content-encoding", b"transfer-encoding"}:
            plain = "identity" if name == b"content-encoding" else "chunked"
            items = (item.strip().lower() for item in value.decode("latin-1").split(","))
            found += [item for item in items if item not in {"", plain}]
    return found


class Decompressor:
    """Decompressor of a gzip or zlib body, which returns parts of at most `MAX_PART_BYTES`.

    Some upstreams compress although they are asked not to. Only one level of compression is
    accepted, because 7 KB with two levels can unpack to 8 GB. Even one level can unpack to a
    thousand times its size, so no more is unpacked than is read.

    The format is recognized by its header. `read` raises UpstreamError if the body has
    neither format, ends too early, continues after its end, or has more than `MAX_EMPTY_BYTES` in a
    row that unpack to nothing. A second gzip member is not read.
    """

    def __init__(self, model: str, read_compressed: Callable[[], Awaitable[bytes]]) -> None:
        """Read from `read_compressed`, which returns the next part, or no bytes at the end.

        Errors name the model.
        """
        self._model = model
        self._read_compressed = read_compressed
        self._decompressor = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
        self._has_more = False
        """Whether the decompressor may have more output for the input that it already has."""
        self._is_empty = True

    async def read(self) -> bytes:
        """Return the next part of the body, or no bytes at its end."""
        empty_bytes = 0
        while not self._decompressor.eof:
            compressed = self._decompressor.unconsumed_tail
            if not compressed and not self._has_more:
                compressed = await self._read_compressed()
                if not compressed and self._is_empty:
                    return b""  # an empty body, which needs no compressed format
                if not compressed:
                    raise ConnectionFault.CODING.error(self._model, "the data ends too early")
                self._is_empty = False
                empty_bytes += len(compressed)
                if empty_bytes > MAX_EMPTY_BYTES:
                    raise ConnectionFault.CODING.error(self._model, "the data unpacks to nothing")
            try:
                part = self._decompressor.decompress(compressed, MAX_PART_BYTES)
            except zlib.error as exc:
                raise ConnectionFault.CODING.error(self._model, str(exc)) from exc
            self._has_more = len(part) == MAX_PART_BYTES
            if part:
                await asyncio.sleep(0)
                return part
        if self._decompressor.unused_data or await self._read_compressed():
            raise ConnectionFault.CODING.error(self._model, "there is data after the end")
        return b""
