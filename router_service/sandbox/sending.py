"""Send answers, with the faults that are set for a request or for a model.

A fault is a deliberate error or delay. A request asks for faults in its `x-sandbox` header. If it
does not, `ModelFaults` has the faults for its model.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

import orjson
from starlette.types import Receive, Send

from router_service.apis.answer_errors import AnswerError
from router_service.apis.api import Api
from router_service.apis.conversation import Json
from router_service.core.errors import InvalidRequestError

HEADER = "x-sandbox"
"""Request header that asks for faults; as a response header it marks a sandbox answer."""

MAX_DELAY_S = 3600.0
_EXCLUSIVE = (
    "status",
    "hang",
    "cut_after",
    "malformed",
    "error_in_body",
    "error_after",
    "hang_after",
)

MARK = (HEADER.encode(), b"true")
"""Response header of every answer; it shows that no model was used."""

RawHeaders = Sequence[tuple[bytes, bytes]]

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
_DATA = b"data: "
_JSON_TYPE = b"application/json"
_EVENTS_TYPE = b"text/event-stream; charset=utf-8"
_BROKEN_EVENT = b'data: {"id":"chatcmpl-sandbox-\n\n'
_BROKEN_BODY = b'{"id":"chatcmpl-sandbox-'

_ERRORS: Mapping[int, tuple[str, str | None]] = {
    401: ("invalid_request_error", "invalid_api_key"),
    404: ("invalid_request_error", "model_not_found"),
    429: ("requests", "rate_limit_exceeded"),
}
"""OpenAI's error `type` and `code` for statuses that do not use the general ones."""


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults of one answer; without any, the sandbox answers immediately and completely.

    At most one of `status`, `hang`, `cut_after`, `malformed`, `error_in_body`, `error_after` and
    `hang_after` is set.
    """

    delay_s: float = 0.0
    """Wait in seconds before the answer, whether it is good or has an error status."""
    chunk_delay_s: float = 0.0
    """Wait in seconds between two events of a stream."""
    status: int | None = None
    """Answer with an error of this status, 400 to 599; 429 has `Retry-After: 1`."""
    retry_after_s: float | None = None
    """With `status`: send `Retry-After` (seconds, rounded up) and `retry-after-ms` (exact)."""
    hang: bool = False
    """Never answer."""
    cut_after: int | None = None
    """Break the connection after this many events, or in the middle of a body."""
    malformed: bool = False
    """Answer with a body that is not JSON, or with a stream that has a broken line."""
    error_in_body: bool = False
    """Answer with status 200 and a JSON body that is an error, also to streamed requests."""
    error_after: int | None = None
    """End a stream with an error event after this many events; without a stream, the same as
    `error_in_body`."""
    hang_after: int | None = None
    """Stop forever after this many events, or in the middle of a body."""
    keep_alives: bool = False
    """Send a comment, `: keep-alive`, before each event; comments do not count as events."""
    multi_line: bool = False
    """Send the data of every second event on several lines, and every third event with CRLF."""
    reject_stream_options: bool = False
    """Answer with status 400 if the body has `stream_options`, as some providers do."""
    no_usage: bool = False
    """Omit the usage; in the header, this is `usage=none`."""
    times: int | None = None
    """Only for the faults of a model: number of requests that get these faults."""

    @classmethod
    def parse(cls, header: str) -> Faults:
        """Parse `field=value` and `field` entries, separated by commas.

        Raise InvalidRequestError, which names the field, if a field is unknown, repeated or
        invalid, or if it cannot be combined with another field.
        """
        values: dict[str, Any] = {}
        for entry in filter(None, (part.strip() for part in header.split(","))):
            name, separator, text = (word.strip() for word in entry.partition("="))
            if name not in _READERS:
                raise _invalid(name, f"is unknown; known fields are {', '.join(_READERS)}")
            field = "no_usage" if name == "usage" else name
            if field in values:
                raise _invalid(name, "is given twice")
            values[field] = _READERS[name](name, text if separator else None)
        exclusive = [name for name in _EXCLUSIVE if name in values]
        if len(exclusive) > 1:
            raise _invalid(exclusive[1], f"cannot be combined with '{exclusive[0]}'")
        if "retry_after_s" in values and "status" not in values:
            raise _invalid("retry_after_s", "needs a status, as in status=429,retry_after_s=2")
        return cls(**values)

    @classmethod
    def parse_header(cls, header: str) -> Faults:
        """Parse a request's own header, in which `times` is not allowed."""
        faults = cls.parse(header)
        if faults.times is not None:
            raise _invalid("times", "is allowed only in PUT /sandbox/faults/{model}; remove it")
        return faults

    def check_request(self, body: Mapping[str, Json]) -> None:
        """Raise InvalidRequestError if these faults reject the body."""
        if self.reject_stream_options and "stream_options" in body:
            raise InvalidRequestError(
                "Unrecognized request argument supplied: stream_options",
                param="stream_options",
                code="unknown_parameter",
            )


class ModelFaults:
    """Faults by model, for requests that do not ask for any themselves."""

    def __init__(self) -> None:
        self._by_model: dict[str, Faults] = {}

    def put(self, model: str, text: str) -> None:
        """Set a model's faults, or clear them if the text is empty; raise InvalidRequestError."""
        if text.strip():
            self._by_model[model] = Faults.parse(text)
        else:
            self._by_model.pop(model, None)

    def take(self, model: str) -> Faults:
        """Return the faults for the next request to a model, and count `times` down."""
        faults = self._by_model.get(model, FAULTLESS)
        if faults.times is None:
            return faults
        if faults.times > 1:
            self._by_model[model] = replace(faults, times=faults.times - 1)
        else:
            self._by_model.pop(model)
        return faults if faults.times else FAULTLESS

    def to_json(self) -> dict[str, dict[str, Json]]:
        """Return the faults by model; `times` is the number of remaining requests."""
        return {
            model: {name: value for name, value in asdict(faults).items() if value}
            for model, faults in self._by_model.items()
        }


def _seconds(name: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0 <= value <= MAX_DELAY_S:
        raise _invalid(name, f"needs seconds between 0 and {MAX_DELAY_S:.0f}, as in {name}=0.2")
    return value


def _status(name: str, text: str | None) -> int:
    value = _count(name, text)
    if not 400 <= value <= 599:
        raise _invalid(name, "needs an error status between 400 and 599")
    return value


def _count(name: str, text: str | None) -> int:
    if text is None or not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise _invalid(name, f"needs a whole number, as in {name}=503")
    return int(text)


def _switch(name: str, text: str | None, *, value: str | None = None) -> bool:
    if text != value:
        raise _invalid(name, f"must be {name}={value}" if value else "takes no value")
    return True


def _invalid(name: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"The field '{name[:80]}' of the request header {HEADER} {problem}.",
        param=HEADER,
        code="invalid_fault",
    )


_READERS: Mapping[str, Callable[[str, str | None], object]] = {
    "delay_s": _seconds,
    "chunk_delay_s": _seconds,
    "status": _status,
    "hang": _switch,
    "cut_after": _count,
    "malformed": _switch,
    "retry_after_s": _seconds,
    "error_in_body": _switch,
    "error_after": _count,
    "hang_after": _count,
    "keep_alives": _switch,
    "multi_line": _switch,
    "reject_stream_options": _switch,
    "usage": partial(_switch, value="none"),
    "times": _count,
}

FAULTLESS = Faults()


class ClientLeftError(Exception):
    """The client closed its connection before its answer was complete."""


class RequestEnding(StrEnum):
    """How a request ended."""

    COMPLETED = "completed"
    """Answered to the end; also a faulty answer to which no other ending applies."""
    CANCELLED = "cancelled"
    """The client left before the end."""
    FAILED = "failed"
    """Answered with an error: as a status, in the body, or as the last event."""
    CUT = "cut"
    """The connection was broken, because a fault requested this."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer before faults are applied: a JSON body, or the events of a stream."""

    body: bytes = b""
    events: Sequence[bytes] | None = None
    api: Api | None = None
    """The API, in whose format errors are; None for other endpoints, whose errors are OpenAI's."""


def event(value: Mapping[str, Json], name: str | None = None) -> bytes:
    """Return a server-sent event with JSON data, and with a name if the API names its events."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + _DATA + orjson.dumps(value) + b"\n\n"


def error_body(
    api: Api | None, status: int, message: str, kind: str, code: str | None = None
) -> bytes:
    """Return an error in the format of an API, or in OpenAI's."""
    if api is None:
        fault = {"message": message, "type": kind, "param": None, "code": code}
        return orjson.dumps({"error": fault})
    return orjson.dumps(api.write_error(AnswerError(status, message, kind, code)))


class ClientConnection:
    """One request's connection to its client."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send

    async def read_body(self) -> bytes:
        """Return the whole body; raise ClientLeftError."""
        parts: list[bytes] = []
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeftError
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        return b"".join(parts)

    async def wait(self, delay_s: float | None) -> None:
        """Wait for a time, or forever if it is None; raise ClientLeftError if the client leaves."""
        if delay_s == 0:
            return
        try:
            async with asyncio.timeout(delay_s):
                while (await self._receive())["type"] != "http.disconnect":
                    pass
        except TimeoutError:
            return
        raise ClientLeftError

    async def send_whole(self, status: int, body: bytes, further: RawHeaders = ()) -> None:
        """Send a complete JSON answer."""
        length = (b"content-length", b"%d" % len(body))
        await self._start(status, _JSON_TYPE, [length, *further])
        await self._send_part(body, more=False)

    async def send_reply(self, reply: Reply, faults: Faults) -> RequestEnding:
        """Send a reply with the requested faults; raise ClientLeftError."""
        await self.wait(None if faults.hang else faults.delay_s)
        if faults.status is not None:
            status = faults.status
            usual = "server_error" if status >= 500 else "invalid_request_error"
            kind, code = _ERRORS.get(status, (usual, None))
            headers: RawHeaders = [(b"retry-after", b"1")] if status == 429 else []
            if faults.retry_after_s is not None:
                headers = [
                    (b"retry-after", b"%d" % math.ceil(faults.retry_after_s)),
                    (b"retry-after-ms", b"%d" % round(faults.retry_after_s * 1000)),
                ]
            message = f"The sandbox fails with status {status}, as requested."
            body = error_body(reply.api, status, message, kind, code)
            await self.send_whole(status, body, headers)
            return RequestEnding.FAILED
        if faults.error_in_body or (faults.error_after is not None and reply.events is None):
            message = "The sandbox fails within an answer of status 200, as requested."
            body = error_body(reply.api, 500, message, "server_error", "server_error")
            await self.send_whole(200, body)
            return RequestEnding.FAILED
        if reply.events is not None:
            return await self._send_events(reply.events, reply, faults)
        body = _BROKEN_BODY if faults.malformed else reply.body
        if faults.cut_after is None and faults.hang_after is None:
            await self.send_whole(200, body)
            return RequestEnding.COMPLETED
        # Send half of the body, although the header announces its full length.
        await self._start(200, _JSON_TYPE, [(b"content-length", b"%d" % len(body))])
        await self._send_part(body[: len(body) // 2], more=True)
        if faults.hang_after is not None:
            await self.wait(None)
        return RequestEnding.CUT

    async def _send_events(
        self, events: Sequence[bytes], reply: Reply, faults: Faults
    ) -> RequestEnding:
        """Send a stream, and return how it ended.

        To cut it, return without the last part; then the server closes the connection.
        """
        if faults.malformed:
            events = [events[0], _BROKEN_EVENT, events[-1]]
        elif faults.error_after is not None:
            message = "The sandbox fails in mid-stream, as requested."
            body = error_body(reply.api, 529, message, "server_error", "server_error")
            last = b"data: " + body + b"\n\n"
            if reply.api is not None:
                last = reply.api.error_event(body, faults.error_after)
            events = [*events[: faults.error_after], last]
        else:
            events = events[: faults.hang_after if faults.cut_after is None else faults.cut_after]
        await self._start(200, _EVENTS_TYPE)
        sent = list(_in_odd_forms(events) if faults.multi_line else events)
        if faults.keep_alives:
            sent = [part for each in sent for part in (KEEP_ALIVE, each)]
        for index, each in enumerate(sent):
            if index:
                await self.wait(faults.chunk_delay_s)
            await self._send_part(each, more=True)
        if faults.hang_after is not None:
            await self.wait(None)
        if faults.cut_after is not None:
            return RequestEnding.CUT
        await self._send_part(b"", more=False)
        return RequestEnding.COMPLETED if faults.error_after is None else RequestEnding.FAILED

    async def _start(self, status: int, content_type: bytes, further: RawHeaders = ()) -> None:
        """Send the status and the headers; a body without a length is sent in chunks."""
        headers = [(b"content-type", content_type), MARK, *further]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _send_part(self, part: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": part, "more_body": more})


def _in_odd_forms(events: Sequence[bytes]) -> Iterator[bytes]:
    """Yield every second event with its data on several lines, and every third with CRLF.

    Both forms are valid (WHATWG HTML, "Server-sent events").
    """
    for index, each in enumerate(events, start=1):
        head, mark, data = each.partition(_DATA)
        if index % 2 == 0 and data != DONE.removeprefix(_DATA):
            lines = orjson.dumps(orjson.loads(data), option=orjson.OPT_INDENT_2).split(b"\n")
            each = head + b"\n".join(mark + line for line in lines) + b"\n\n"  # noqa: PLW2901
        yield each.replace(b"\n", b"\r\n") if index % 3 == 0 else each
