"""Functions to read a request, send its response, and detect that the client disconnected."""

from __future__ import annotations

import asyncio
import math
import re
import time
import unicodedata
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import ParamSpec, Protocol, Self, TypeVar, cast
from urllib.parse import unquote_to_bytes

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from router_service.access.budgets import ExpectedCost
from router_service.access.limits import Admission
from router_service.core.errors import InvalidRequestError
from router_service.core.refusals import BODY_ENCODED, BODY_LATE, BODY_TOO_LARGE
from router_service.http.error_responses import CALL
from router_service.requests.call import Call
from router_service.requests.deciding import AT_ONCE_BYTES
from router_service.runtime.gateway import Gateway
from router_service.settings import ServerSettings
from router_service.upstream.client import DEADLINE_HEADER

BODY_COPIES = 3
"""Copies of a body in memory while it is forwarded: as received, split around its model's name, and
as sent."""

MAX_DEADLINE_S = 24 * 3600.0
"""Longest deadline that a request may set."""

RawHeaders = list[tuple[bytes, bytes]]

P = ParamSpec("P")
T = TypeVar("T")

CONNECTION = "switchcraft.connection"
"""Name of the server's ASGI extension for `ClientConnection`."""


class ClientConnection(Protocol):
    """The connection of the client whose request is answered, in addition to ASGI's functions.

    Other servers than the gateway's own lack it. Then nobody notices that a client disconnects
    before its answer begins.
    """

    on_left: Callable[[], None] | None
    """Called when the client disconnects before its answer is complete."""

    @property
    def has_left(self) -> bool:
        """Whether the client has disconnected."""

    @property
    def is_ready(self) -> bool:
        """Whether a part can be written now: the client has read most of the parts before."""

    def write_part(self, part: bytes) -> None:
        """Write a short part of a chunked body without a wait; only if `is_ready`."""


def gateway_of(request: Request) -> Gateway:
    """Return the gateway that received the request."""
    return cast("Gateway", request.app.state.gateway)


def connection_of(scope: Scope) -> ClientConnection | None:
    """Return the client's connection, or None if the server does not provide it."""
    connection: ClientConnection | None = scope.get("extensions", {}).get(CONNECTION)
    return connection


def call_of(request: Request) -> Call:
    """Return the request's metadata."""
    call: Call = request.scope["state"][CALL]
    return call


async def admit(
    gateway: Gateway, call: Call, path: str, size_bytes: int, *, reports_tokens: bool = True
) -> None:
    """Admit a request within the limits of its key, or raise AdmissionError.

    `reports_tokens` tells whether the request will have a decision record. From now on,
    the request will be settled.
    """
    admission = Admission(call.decision_id, call.key, path, size_bytes, reports_tokens)
    await gateway.access.admit(admission)
    call.admission = admission


async def reserve(gateway: Gateway, call: Call, cost: ExpectedCost) -> float:
    """Reserve what a request with a budget is expected to cost; return the most it may cost.

    Raises AdmissionError. It may wait, so the client has to be watched.
    """
    if call.admission is None:
        return math.inf
    return await gateway.access.reserve(call.admission, cost)


def read_deadline(call: Call) -> float:
    """Return the deadline that a header sets, by the event loop's clock; infinity without one."""
    text = call.headers.get(DEADLINE_HEADER)
    if text is None:
        return math.inf
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= MAX_DEADLINE_S:
        raise InvalidRequestError(
            f"The header {DEADLINE_HEADER} limits the time of this request. Send a number of"
            f" seconds above 0 and at most {MAX_DEADLINE_S:.0f}.",
            param=DEADLINE_HEADER,
            code="invalid_value",
        )
    return time.monotonic() + seconds


async def read_body(
    call: Call, receive: Receive, server: ServerSettings, limit_bytes: int | None = None
) -> bytes:
    """Return the body.

    The size limit is `server.max_body_bytes`, or `limit_bytes` if that is lower. The timeout is for
    the whole body: with a timeout for each part, a client that sends a byte now and then could keep
    its slot forever. Compressed bodies are refused, because a small one could unpack to any size.
    The body counts towards the memory that requests may hold.

    Raises InvalidRequestError, for a body that is too large as soon as its size is known,
    OverloadedError, and ClientDisconnect.
    """
    parts, size = [], 0
    encoding = call.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in {"", "identity"}:
        raise BODY_ENCODED.error(encoding=encoding[:40])
    limit_bytes = min(server.max_body_bytes, limit_bytes or server.max_body_bytes)
    announced = call.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and int(announced) > limit_bytes:
        raise BODY_TOO_LARGE.error(limit_bytes=limit_bytes)

    def keep(message: Message) -> bool:
        """Keep a part of the body; return whether more will follow."""
        nonlocal size
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        size += len(part)
        if size > limit_bytes:
            raise BODY_TOO_LARGE.error(limit_bytes=limit_bytes)
        call.hold_memory(BODY_COPIES * len(part))
        parts.append(part)
        return bool(message.get("more_body", False))

    # A small body usually arrives with the head, and then needs no timer.
    first = _received_message(receive)
    if first is None or keep(first):
        try:
            async with asyncio.timeout(server.body_timeout_s):
                while keep(await receive()):
                    pass
        except TimeoutError as exc:
            raise BODY_LATE.error(limit_s=server.body_timeout_s) from exc
    return b"".join(parts)


def _received_message(receive: Receive) -> Message | None:
    """Return the next message if it has been received already, or else None."""
    receiving = receive().__await__()
    try:
        receiving.send(None)
    except StopIteration as received:
        message: Message = received.value
        return message
    receiving.close()
    return None


async def read_by(read: Callable[[bytes], T], request: Request, body: bytes) -> T:
    """Return the result of a function that parses a body; a large body is parsed in a thread.

    Raises the function's own errors, OverloadedError if no thread is free in time, and
    ClientDisconnect if the client disconnects.
    """
    if len(body) <= AT_ONCE_BYTES:
        return read(body)
    run = gateway_of(request).decisions.run
    return await unless_client_leaves(
        request, run(call_of(request).key.name, len(body), read, body)
    )


async def read_database(
    request: Request, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Return what a function reads from the database, in one of the few threads that keys share.

    The function writes what it has read as JSON, because that would hold up the event loop. Raises
    the function's own errors, OverloadedError if no thread is free in time, and ClientDisconnect.
    """
    running = gateway_of(request).lists.run(call_of(request).key.name, 0, read, *args, **kwargs)
    return await unless_client_leaves(request, running)


def json_answer(request: Request, body: bytes) -> Response:
    """Return an answer that counts towards the memory of requests; raises OverloadedError."""
    call_of(request).hold_memory(len(body))
    return Response(body, media_type="application/json")


async def unless_client_leaves(request: Request, work: Awaitable[T]) -> T:
    """Await and return `work`; if the client disconnects, cancel it and raise ClientDisconnect."""
    with ClientWatch(connection_of(request.scope)):
        return await work


class ClientWatch:
    """Context that is cancelled, and raises ClientDisconnect, when the client disconnects.

    A cancellation from elsewhere is propagated, as by `asyncio.Timeout`.
    """

    def __init__(self, connection: ClientConnection | None) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a request is always served by a task
        self.has_left = False
        """Whether the client has disconnected, so that the task is cancelled."""
        self._connection = connection
        self._task = task
        self._cancellations = task.cancelling()

    def __enter__(self) -> Self:
        """Begin to watch, and return the watch."""
        if self._connection is not None:
            self._connection.on_left = self._leave
            if self._connection.has_left:
                self._leave()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None
    ) -> None:
        """End the watch; raise ClientDisconnect if it has cancelled the task."""
        if self._connection is not None:
            self._connection.on_left = None
        if self.has_left:
            is_ours = self._task.uncancel() <= self._cancellations
            if is_ours and isinstance(exc, asyncio.CancelledError):
                raise ClientDisconnect from None

    def _leave(self) -> None:
        if not self.has_left:
            self.has_left = True
            self._task.cancel()


async def start(send: Send, status: int, headers: RawHeaders) -> None:
    """Send the status and the headers."""
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def send_part(send: Send, body: bytes, *, more: bool) -> None:
    """Send a part of the body; wait while the client reads slowly."""
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def send_whole(send: Send, status: int, headers: RawHeaders, body: bytes) -> None:
    """Send a complete response."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body, "more_body": False})


# Path segments as in RFC 3986, section 3.3, with two exceptions: no `;`, because some servers read
# it as the start of a path parameter, and no dot at the start, because no id begins with a dot.
_PLAIN = r"[A-Za-z0-9_~!$&'()*+,=:@-]"
_ENCODED = r"%[0-9A-Fa-f]{2}"
_SEGMENT = rf"(?!\+*\.)(?:{_PLAIN}|{_ENCODED})(?:{_PLAIN}|{_ENCODED}|\.)*"
_PATH = re.compile(rf"/v1((?:/{_SEGMENT})+)", re.ASCII)
_QUERY = re.compile(rf"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?\[\]-]|(?!%0[0aAdD]){_ENCODED})*", re.ASCII)

_ESCAPES = re.compile(rf"(?:{_ENCODED})+", re.ASCII)
_ENCODABLE = re.compile(r"[A-Za-z0-9 !\"$&'()*+,:<=>@\[\]^_`{|}~-]", re.ASCII)
"""ASCII characters that may be percent-encoded in a segment: even if an upstream decodes the path
twice, none of them ends or splits it."""


def upstream_path(scope: Scope) -> tuple[str, str]:
    """Return the path below `/v1` and the query, as the client wrote them.

    An upstream may interpret a URL differently than this gateway does: it may decode it twice, read
    overlong UTF-8 as a dot, normalize other scripts' dots and slashes, ignore everything after a
    `;`, or strip dots and spaces from the end of a segment. So this function raises
    InvalidRequestError for everything that any upstream could interpret as a dot segment, a slash
    or the end of the path. Ids such as `ft:gpt-4o-mini:org::id`, `file-abc%3Ax` and
    `@cf/meta/llama-3.1` are accepted.
    """
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    path = _PATH.fullmatch(raw.decode("latin-1"))
    query = _QUERY.fullmatch(scope["query_string"].decode("latin-1"))
    if (
        path is None
        or query is None
        or ("%" in path[1] and not all(map(_is_unambiguous, path[1].split("/"))))
    ):
        raise InvalidRequestError(
            "The request's path or query cannot be passed through: it contains dots, slashes or "
            "characters that an upstream may interpret differently. Write each segment without "
            "percent-encoded separators.",
            code="invalid_path",
        )
    return path[1], query[0]


def segments_of(path: str) -> tuple[str, ...]:
    """Return the decoded segments of a path that `upstream_path` returned."""
    return tuple(unquote_to_bytes(segment).decode() for segment in path.split("/")[1:])


def _is_unambiguous(segment: str) -> bool:
    """Return whether every upstream decodes a segment to the same text."""
    if "%" not in segment:
        return True
    try:
        text = unquote_to_bytes(segment).decode()
        encoded = "".join(unquote_to_bytes(run).decode() for run in _ESCAPES.findall(segment))
    except UnicodeDecodeError:  # some servers read `%c0%ae`, overlong UTF-8, as a dot
        return False
    is_trimmed = text == text.strip() and not text.strip("+ ").startswith(".")
    if not is_trimmed:
        return False
    for character in encoded:
        if character.isascii():
            if not _ENCODABLE.match(character):
                return False
            continue
        # No normalized form of the character may be a separator.
        forms = character + unicodedata.normalize("NFKC", character)
        if not all(form.isalnum() or unicodedata.category(form)[0] == "M" for form in forms):
            return False
    return True
