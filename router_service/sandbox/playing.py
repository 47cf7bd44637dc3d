"""Sends an answer to a client, with the faults that were asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import orjson

from router_service.core.errors import InvalidRequestError
from router_service.core.messages import Json
from router_service.sandbox.connection import JSON_TYPE, Connection, RawHeaders
from router_service.sandbox.events import event, in_odd_forms, with_keep_alives
from router_service.sandbox.faults import Faults
from router_service.sandbox.records import Ending

_EVENTS_TYPE = b"text/event-stream; charset=utf-8"
_BROKEN_EVENT = b'data: {"id":"chatcmpl-sandbox-\n\n'
_BROKEN_BODY = b'{"id":"chatcmpl-sandbox-'
_IN_BODY = "The sandbox fails within an answer of status 200, as asked."


@dataclass(frozen=True, slots=True)
class Reply:
    """A good answer: a JSON body, or the events of a stream."""

    body: bytes = b""
    events: Sequence[bytes] | None = None
    error_name: str | None = None
    """The name that an error event has in this API, where events have names."""


async def play(line: Connection, reply: Reply, faults: Faults) -> Ending:
    """Send a reply, as faulty as asked; raises ClientLeftError."""
    await line.wait(None if faults.hang else faults.delay_s)
    if faults.status is not None:
        return await _fail(line, faults.status, faults.retry_after_s)
    if faults.error_in_body or (faults.error_after is not None and reply.events is None):
        await line.send_whole(200, error_body(_IN_BODY, "server_error", None, "server_error"))
        return Ending.FAILED
    if reply.events is None:
        return await _play_body(line, reply.body, faults)
    return await _play_events(line, reply.events, reply.error_name, faults)


async def refuse(line: Connection, exc: InvalidRequestError, status: int = 400) -> Ending:
    """Send a refusal as OpenAI writes it."""
    body = error_body(exc.message, "invalid_request_error", exc.param, exc.code)
    await line.send_whole(status, body)
    return Ending.FAILED


def error_body(message: str, kind: str, param: str | None, code: str | None) -> bytes:
    """Return an error as OpenAI writes it."""
    return orjson.dumps({"error": _error(message, kind, param, code)})


def _error(message: str, kind: str, param: str | None, code: str | None) -> dict[str, Json]:
    return {"message": message, "type": kind, "param": param, "code": code}


async def _fail(line: Connection, status: int, retry_after_s: float | None) -> Ending:
    usual = ("server_error", None) if status >= 500 else ("invalid_request_error", None)
    kind, code = _ERRORS.get(status, usual)
    message = f"The sandbox fails with status {status}, as asked."
    headers = _retry_headers(status, retry_after_s)
    await line.send_whole(status, error_body(message, kind, None, code), headers)
    return Ending.FAILED


_ERRORS: Mapping[int, tuple[str, str | None]] = {
    401: ("invalid_request_error", "invalid_api_key"),
    404: ("invalid_request_error", "model_not_found"),
    429: ("requests", "rate_limit_exceeded"),
}
"""OpenAI's `type` and `code` of the statuses that have some of their own."""


def _retry_headers(status: int, retry_after_s: float | None) -> RawHeaders:
    if retry_after_s is None:
        return [(b"retry-after", b"1")] if status == 429 else []
    return [
        (b"retry-after", b"%d" % math.ceil(retry_after_s)),
        (b"retry-after-ms", b"%d" % round(retry_after_s * 1000)),
    ]


async def _play_body(line: Connection, body: bytes, faults: Faults) -> Ending:
    """Send a body, or half of one that promised its whole length."""
    sent = _BROKEN_BODY if faults.malformed else body
    if faults.cut_after is None and faults.hang_after is None:
        await line.send_whole(200, sent)
        return Ending.COMPLETED
    await line.start(200, JSON_TYPE, [(b"content-length", b"%d" % len(sent))])
    await line.send(sent[: len(sent) // 2], more=True)
    if faults.hang_after is not None:
        await line.wait(None)
    return Ending.CUT


async def _play_events(
    line: Connection, events: Sequence[bytes], error_name: str | None, faults: Faults
) -> Ending:
    """Send the events; a cut returns without the last part, so that the server hangs up."""
    await line.start(200, _EVENTS_TYPE)
    await line.send_events(
        _dressed(_chosen(events, error_name, faults), faults), faults.chunk_delay_s
    )
    if faults.hang_after is not None:
        await line.wait(None)
    if faults.cut_after is not None:
        return Ending.CUT
    await line.send(b"", more=False)
    return Ending.COMPLETED if faults.error_after is None else Ending.FAILED


def _chosen(events: Sequence[bytes], error_name: str | None, faults: Faults) -> Sequence[bytes]:
    """Return the events that are sent."""
    if faults.malformed:
        return [events[0], _BROKEN_EVENT, events[-1]]
    if faults.error_after is not None:
        return [*events[: faults.error_after], _error_event(error_name, faults.error_after)]
    return events[: faults.hang_after if faults.cut_after is None else faults.cut_after]


def _error_event(name: str | None, number: int) -> bytes:
    error = _error(
        "The sandbox fails in mid-stream, as asked.", "server_error", None, "server_error"
    )
    if name is None:
        return event({"error": error})
    return event({"type": name, "sequence_number": number, "error": error}, name)


def _dressed(events: Sequence[bytes], faults: Faults) -> Iterator[bytes]:
    odd = in_odd_forms(events) if faults.multi_line else iter(events)
    return with_keep_alives(odd) if faults.keep_alives else odd
