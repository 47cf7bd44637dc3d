"""Answers of upstreams: JSON as providers write it, errors in it, and what can be forwarded."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from router_service.core.answers import fix_surrogates, read_usage
from router_service.core.errors import Failure, UpstreamError, UpstreamRefusedError
from router_service.core.messages import Json
from router_service.settings import Deployment, Model
from router_service.upstream.client import UpstreamAnswer
from router_service.upstream.connection import RawHeaders

if TYPE_CHECKING:
    from router_service.upstream.relay import EventReader

MAX_HELD_BYTES = 4 * 1024 * 1024
"""Longest answer that is read to its end before it is forwarded, so that another deployment may
answer if it breaks off. 128k tokens are about 1 MB."""

MAX_WHOLE_BYTES = 64 * 1024 * 1024
"""Longest answer that is not a stream. A longer one is cut off."""

MAX_ERROR_BYTES = 256 * 1024
"""Longest body of an error that clients get. Servers that validate requests may repeat them."""

MAX_IDENTITY = 200
"""Longest id or model of an answer that is kept, in characters."""

MAX_VALUES = 25_000
"""Most values of a JSON text that are read, roughly: its commas and opening brackets are counted.
Reading them takes up to 25 ms of the event loop. 60 MB of `{}` would take seconds and 2 GB."""

UNCOUNTED_BYTES = 32 * 1024
"""A text of this length cannot have many more values than `MAX_VALUES`, and takes little memory."""

SKIM_BYTES = 16 * 1024
"""How much of the end of an unread answer is searched for its usage."""

MAX_USAGES = 4
"""Most occurrences of `usage` that `skim` tries to decode."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_UPSTREAMS_FAULT = {401, 407, 408, 429}
"""Statuses below 500 that another deployment or model may avoid: they are due to the operator's key
or to a limit."""

_REFUSALS = {402, 403, 409}
"""The same, but a client can cause them: by asking for more tokens than the account can pay for
(402, OpenRouter), by content that is moderated or blocked by a firewall (403), and by an
idempotency key or a conversation that is in use (409)."""

_UNFIT_STATUSES = {404, 413}
"""The model or something that the request refers to does not exist, or the request is too large.
Clients can cause these, so they must not open a circuit for all other clients."""

_TOO_LARGE = b"Request too large"
"""The start of OpenAI's message for a single request that exceeds the tokens per minute. Its status
is 429, but waiting does not help."""

_UNFIT_CODES = {"context_length_exceeded", "request_too_large", "string_above_max_length"}

_CLIENTS_CODES = frozenset(
    (
        "content_filter",
        "content_policy_violation",
        "context_length_exceeded",
        "empty_image_file",
        "failed_to_download_image",
        "unsupported_image_media_type",
    )
)
_CLIENTS_CODE_PREFIXES = ("invalid_image", "invalid_base64", "invalid_prompt", "image_")
"""Codes for what is wrong with a request (API reference: "The response object", error)."""

_NOT_CLIENTS_STATUSES = frozenset({401, 408, 429})

_MAX_DIGITS = 20
_VALUE_STARTS = (b",", b"{", b"[")
_NAMED_TEXT = re.compile(rb'"(id|model|object|type)"\s*:\s*"([^"\\]{1,%d})"' % MAX_IDENTITY)
_USAGE = re.compile(rb'"usage"\s*:\s*(?=\{)')


@dataclass(slots=True)
class StartedAnswer:
    """An answer that has started well: a whole answer, or the start of a stream."""

    model: Model
    deployment: Deployment
    status: int
    headers: RawHeaders
    body: bytes
    """The whole body, or what has arrived of a stream so far."""
    reader: EventReader | None = None
    """Reader for the rest of a stream, or None for a whole answer."""
    rest: AsyncIterator[bytes] | None = None
    """The parts that follow `body` in a whole answer that is too large to be buffered. Raises
    UpstreamError if it breaks off."""
    value: Json = None
    """The whole body, decoded, or None if it is not JSON."""
    is_skimmed: bool = False
    """Whether `value` has only what `skim` found, because the body is too large to be decoded."""


@dataclass(frozen=True, slots=True)
class AnswerIdentity:
    """The id and the model that an answer names, if any."""

    id: str | None = None
    model: str | None = None


async def read_whole(answer: UpstreamAnswer, started: StartedAnswer, *, expects_json: bool) -> None:
    """Read an answer that is not a stream. Raise UpstreamError if another upstream may do better.

    If an answer is too large to be buffered, `started.rest` yields the part that is still unread.
    """
    if answer.status >= 400:
        started.body = await _read_error(answer)
        return
    # A megabyte of compressed data may become a gigabyte, but no regular answer of that size is
    # compressed without being asked for.
    limit_bytes = MAX_HELD_BYTES if answer.is_compressed else MAX_WHOLE_BYTES
    if answer.declared_bytes > limit_bytes:
        raise _too_long(answer, limit_bytes)
    body, parts = bytearray(), answer.chunks()
    async for part in parts:
        body += part
        if len(body) > limit_bytes:
            raise _too_long(answer, limit_bytes)
        if len(body) > MAX_HELD_BYTES or not answer.try_reserve(len(part)):
            started.rest = _read_rest(answer, parts, limit_bytes - len(body))
            break
    started.body = bytes(body)
    if started.rest is not None:
        started.value, started.is_skimmed = skim(started.body), True
        return
    try:
        started.value = read_json(started.body)
    except UnreadableError as exc:
        if exc.is_too_much:
            started.value, started.is_skimmed = skim(started.body), True
        elif expects_json:
            problem = "sent an answer that is not valid JSON"
            raise UpstreamError(answer.model, problem, Failure.MALFORMED) from exc
        return
    if (isinstance(started.value, dict) or expects_json) and is_error(started.value):
        problem = "answered with an error, but with a success status"
        raise UpstreamError(answer.model, problem, failure_of_error(started.value))


async def _read_error(answer: UpstreamAnswer) -> bytes:
    """Return the body of an error for the client, or raise UpstreamRefusedError.

    It is raised unless every upstream would refuse the request. The body is empty if it is too long
    or contains the gateway's credentials, because then it is about the operator's account.
    """
    parts = bytearray()
    async for part in answer.chunks():
        parts += part
        if len(parts) > MAX_ERROR_BYTES:
            break
    body = b"" if len(parts) > MAX_ERROR_BYTES or answer.has_secrets else bytes(parts)
    value = decode_json(body)
    error = value.get("error") if isinstance(value, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    if answer.status == 429 and _TOO_LARGE in body:
        failure = Failure.UNFIT
    elif answer.status >= 500 or answer.status in _UPSTREAMS_FAULT:
        failure = Failure.STATUS
    elif answer.status in _REFUSALS:
        failure = Failure.REFUSED
    elif answer.status in _UNFIT_STATUSES or (isinstance(code, str) and code in _UNFIT_CODES):
        failure = Failure.UNFIT
    else:
        return body
    raise UpstreamRefusedError(
        answer.model,
        answer.status,
        headers=answer.headers,
        body=body,
        failure=failure,
        retry_after_s=answer.retry_after_s,
    )


async def _read_rest(
    answer: UpstreamAnswer, parts: AsyncIterator[bytes], left_bytes: int
) -> AsyncIterator[bytes]:
    """Yield the parts after the buffered ones, which have been forwarded by then."""
    answer.release_memory()
    async for part in parts:
        left_bytes -= len(part)
        if left_bytes < 0:
            raise _too_long(answer, MAX_WHOLE_BYTES)
        yield part


def _too_long(answer: UpstreamAnswer, limit_bytes: int) -> UpstreamError:
    problem = f"answered with more than {limit_bytes} bytes"
    if answer.is_compressed:
        problem += " in compressed form, although it was asked for plain text"
    return UpstreamError(answer.model, problem, Failure.MALFORMED)


def is_error(value: Json) -> bool:
    """Return whether a decoded body or event is an error, whatever its status was.

    Chat Completions have an `error` at the top level. Responses have an event of that type, or a
    response that failed. A value that is not an object is not an answer of either API.
    """
    if not isinstance(value, dict):
        return True
    is_failed = value.get("status") == "failed" or value.get("type") == "response.failed"
    return bool(value.get("error")) or value.get("type") == "error" or is_failed


def failure_of_error(value: Json) -> Failure:
    """Return the kind of failure for an error in a successful answer, by the error's code.

    OpenAI's codes are words, OpenRouter's are HTTP statuses.
    """
    inner = value.get("response", value) if isinstance(value, dict) else None
    error = inner.get("error", inner) if isinstance(inner, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, int):
        is_clients = 400 <= code < 500 and code not in _NOT_CLIENTS_STATUSES
    else:
        code = code if isinstance(code, str) else ""
        is_clients = code in _CLIENTS_CODES or code.startswith(_CLIENTS_CODE_PREFIXES)
    return Failure.REFUSED if is_clients else Failure.ERROR_BODY


def is_openai_error(body: bytes) -> bool:
    """Return whether a body is an error in OpenAI's format, which clients can read."""
    value = decode_json(body)
    return isinstance(value, dict) and isinstance(value.get("error"), dict)


def identity_of(value: Json) -> AnswerIdentity:
    """Return the id and the model that an answer, or an event of it, names."""
    response = value.get("response") if isinstance(value, dict) else None
    source = response if isinstance(response, dict) else value
    if not isinstance(source, dict):
        return AnswerIdentity()
    texts = (source.get("id"), source.get("model"))
    return AnswerIdentity(
        *(fix_surrogates(t[:MAX_IDENTITY]) if isinstance(t, str) else None for t in texts)
    )


class UnreadableError(ValueError):
    """Bytes that cannot be read as JSON."""

    def __init__(self, *, is_cut_off: bool = False, is_too_much: bool = False) -> None:
        super().__init__("cut off" if is_cut_off else "too much" if is_too_much else "not JSON")
        self.is_cut_off = is_cut_off
        """Whether the text begins as an object or an array but does not end as one."""
        self.is_too_much = is_too_much
        """Whether the text is valid JSON with more values or levels than this gateway reads."""


def read_json(data: bytes) -> Json:
    """Return the value of a JSON text as lenient clients read it, or raise UnreadableError.

    Beyond JSON (RFC 8259), providers send lone surrogates, NaN and infinities, numbers of any
    length, control characters in strings, broken UTF-8 and a byte order mark. Clients that can read
    those get the bytes unchanged, so reading them here must not fail either. Strings may have lone
    surrogates (see `fix_surrogates`).
    """
    is_too_much = len(data) > UNCOUNTED_BYTES and sum(map(data.count, _VALUE_STARTS)) > MAX_VALUES
    if not is_too_much:
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            pass
    text = data.removeprefix(BYTE_ORDER_MARK).strip()
    if text[:1] + text[-1:] not in (b"{}", b"[]"):
        raise UnreadableError(is_cut_off=text.startswith((b"{", b"[")))
    if is_too_much:
        raise UnreadableError(is_too_much=True)
    # As fast as orjson for many small values. Long strings take twice as long.
    try:
        return _LENIENT.decode(text.decode(errors="replace"))
    except RecursionError:
        is_too_much = True
    except ValueError:
        pass
    # Not raised from the other errors, because those hold the text.
    raise UnreadableError(is_too_much=is_too_much)


def decode_json(body: bytes) -> Json:
    """Return a body as JSON, or None if it cannot be read."""
    try:
        return read_json(body)
    except UnreadableError:
        return None


def skim(start: bytes, end: bytes = b"") -> dict[str, Json]:
    """Return texts and the usage from an answer or event that is not decoded.

    `start` is its beginning, or all of it without `end`. For each name, the first text is returned.
    The usage is the last one.
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
        if read_usage({"usage": usage}) is not None:
            return found | {"usage": usage}
    return found


# Integers of more than 64 bits become floats, because a million digits take quadratic time.
_LENIENT = json.JSONDecoder(
    strict=False,
    parse_int=lambda digits: int(digits) if len(digits) <= _MAX_DIGITS else float(digits),
)
