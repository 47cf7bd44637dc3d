"""The start of an upstream's answer: good enough to be passed on, or a failure like any other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from router_service.core.errors import Failure, UpstreamError, UpstreamRefusedError
from router_service.core.messages import Json
from router_service.settings import Deployment, Model
from router_service.upstream.client import Headers, UpstreamAnswer
from router_service.upstream.relay import (
    EventReader,
    UnreadableError,
    decoded,
    failure_told,
    is_error,
    read_json,
    skim,
)

KEEP_ALIVE_HOLD_S = 5.0
"""How long comments before an answer's first event are held back, so that another deployment may
still answer; a client behind it waits for a sign of life longer than that."""

KEEP_ALIVE_HOLD_BYTES = 64 * 1024
"""So much of them is held back at most."""

MAX_HELD_BYTES = 4 * 1024 * 1024
"""Longest answer that is read to its end before it is passed on, so that another deployment may
answer if it breaks off. 128k tokens are about 1 MB."""

MAX_WHOLE_BYTES = 64 * 1024 * 1024
"""Longest answer that is no stream; a longer one is cut off."""

MAX_ERROR_BYTES = 256 * 1024
"""Longest body of an error that clients get. Servers that validate requests may repeat them."""

_UPSTREAMS_FAULT = {401, 407, 408, 429}
"""Statuses below 500 that another deployment or model may not answer with: the operator's key, a
limit."""

_REFUSALS = {402, 403, 409}
"""The same, but a client can cause them: by asking for more tokens than the account can pay for
(402, OpenRouter), by content that is moderated or that a firewall does not let pass (403), and by
an idempotency key or a conversation that is in use (409)."""

_UNFIT_STATUSES = {404, 413}
"""A model that is not there, something that the request refers to, or too much of it. Clients can
cause these, so that they must not open a breaker for everyone else."""

_TOO_LARGE = b"Request too large"
"""How OpenAI begins to say that one request alone exceeds the tokens of a minute. It does so with
status 429, and however long one waits."""

_UNFIT_CODES = {"context_length_exceeded", "request_too_large", "string_above_max_length"}


@dataclass(slots=True)
class StartedAnswer:
    """An answer whose start is good: the whole of it, or the events that go on."""

    model: Model
    deployment: Deployment
    status: int
    headers: Headers
    body: bytes
    """All of it, or what has come of a stream so far."""
    reader: EventReader | None = None
    """Reads the rest of a stream; None of a whole answer."""
    rest: AsyncIterator[bytes] | None = None
    """Yields what follows `body` in a whole answer that is too large to be held; raises
    UpstreamError if it breaks off."""
    value: Json = None
    """The whole body, decoded; None if it is not JSON."""
    is_skimmed: bool = False
    """Whether `value` has only what `skim` found, because the body has too much to be decoded."""


async def read_whole(answer: UpstreamAnswer, opened: StartedAnswer, *, expects_json: bool) -> None:
    """Read an answer that is no stream; raises UpstreamError where another may do better.

    If an answer is too large to be held, `opened.rest` yields the part that is still unread.
    """
    if answer.status >= 400:
        opened.body = await _read_error(answer)
        _check_refusal(answer, opened.body)
        return
    await _read_body(answer, opened)
    if opened.rest is not None:
        opened.value, opened.is_skimmed = skim(opened.body), True
        return
    try:
        opened.value = read_json(opened.body)
    except UnreadableError as exc:
        if exc.is_too_much:
            opened.value, opened.is_skimmed = skim(opened.body), True
        elif expects_json:
            problem = "answered what cannot be read"
            raise UpstreamError(answer.model, problem, Failure.MALFORMED) from exc
        return
    if not (isinstance(opened.value, dict) or expects_json):
        return
    if is_error(opened.value):
        problem = "answered with an error, by a good status"
        raise UpstreamError(answer.model, problem, failure_told(opened.value))


async def _read_error(answer: UpstreamAnswer) -> bytes:
    """Return the body of an error; nothing of one that is too long, or names our credentials."""
    body = bytearray()
    async for part in answer.chunks():
        body += part
        if len(body) > MAX_ERROR_BYTES:
            return b""
    # What it says of the operator's account is not for clients.
    return b"" if answer.has_secrets else bytes(body)


async def _read_body(answer: UpstreamAnswer, opened: StartedAnswer) -> None:
    """Read a good answer to its end, or as much as may be held."""
    # A megabyte of compressed data may become a gigabyte, but no answer of that size is compressed
    # without being asked for.
    limit_bytes = MAX_HELD_BYTES if answer.is_compressed else MAX_WHOLE_BYTES
    if answer.declared_bytes > limit_bytes:
        raise _too_long(answer, limit_bytes)
    body, parts = bytearray(), answer.chunks()
    async for part in parts:
        body += part
        if len(body) > limit_bytes:
            raise _too_long(answer, limit_bytes)
        if len(body) > MAX_HELD_BYTES or not answer.try_hold(len(part)):
            opened.rest = _rest(answer, parts, limit_bytes - len(body))
            break
    opened.body = bytes(body)


async def _rest(
    answer: UpstreamAnswer, parts: AsyncIterator[bytes], left_bytes: int
) -> AsyncIterator[bytes]:
    """Yield the parts that follow what was held, which has been sent by then."""
    answer.let_go()
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


async def start_stream(
    answer: UpstreamAnswer, opened: StartedAnswer, *, expects_json: bool = True
) -> None:
    """Read events until the first that is part of the answer; raises UpstreamError before it."""
    reader = opened.reader = EventReader(answer, expects_json=expects_json)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    async for part in reader.events:
        opened.body += part
        is_long = len(opened.body) > KEEP_ALIVE_HOLD_BYTES
        if reader.has_output or is_long or loop.time() > began_s + KEEP_ALIVE_HOLD_S:
            return
        if reader.error:
            raise reader.error
    raise UpstreamError(answer.model, "ended its answer before it began", Failure.BROKEN)


def refuses_stream_options(opened: StartedAnswer) -> bool:
    """Whether an upstream says that it does not know the option of a stream's usage."""
    return opened.status in {400, 422} and b"stream_options" in opened.body


def _check_refusal(answer: UpstreamAnswer, body: bytes) -> None:
    """Raise UpstreamRefusedError where the refusal is not the client's fault everywhere."""
    if answer.status == 429 and _TOO_LARGE in body:
        failure = Failure.UNFIT
    elif answer.status >= 500 or answer.status in _UPSTREAMS_FAULT:
        failure = Failure.STATUS
    elif answer.status in _REFUSALS:
        failure = Failure.REFUSED
    elif answer.status in _UNFIT_STATUSES or _error_code(body) in _UNFIT_CODES:
        failure = Failure.UNFIT
    else:
        return
    raise UpstreamRefusedError(
        answer.model,
        answer.status,
        headers=answer.headers,
        body=body,
        failure=failure,
        retry_after_s=answer.retry_after_s,
    )


def _error_code(body: bytes) -> str | None:
    value = decoded(body)
    error = value.get("error") if isinstance(value, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, str) else None
