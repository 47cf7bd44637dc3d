"""The connections to each upstream, and the requests that it is sent.

httpx stays behind this module: its errors leave it as UpstreamError, and what it returns as
`UpstreamAnswer`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from functools import lru_cache

import httpx
from pydantic import SecretStr

from router_service import __version__
from router_service.core.errors import Failure, OverloadedError, UpstreamError
from router_service.settings import Deployment
from router_service.tracing import UNTRACED, Trace, UpstreamCall, UpstreamSpan
from router_service.upstream.connection import ACCEPTED, Decompressor, codings_of
from router_service.upstream.redaction import Redactor, Secrets, secrets_of
from router_service.upstream.timeouts import TimeoutGuard, read_retry_after
from router_service.upstream.transport import (
    Address,
    HttpRequest,
    HttpResponse,
    Transport,
    transport_to,
)

TRACE_HEADERS = frozenset(("traceparent", "tracestate"))
"""W3C Trace Context."""

FORWARDED = TRACE_HEADERS | frozenset("x-request-id openai-beta idempotency-key x-sandbox".split())
"""Request headers that upstreams get; all others, credentials above all, stay here."""

MAX_PASSED_HEADERS = 64
"""Most headers of an answer that clients get; many clients read 100 in all."""

MAX_PASSED_VALUE_BYTES = 1024
"""A longer header of an answer is dropped."""

MAX_NAMED_CODINGS = 60
"""How many characters of an answer's codings are quoted in an error."""

ANSWER_COPIES = 3
"""How often a whole answer is in memory at most: in parts, joined, and decoded."""

DEADLINE_HEADER = "x-request-timeout"
"""Seconds that a request may take: the client's word to us, and ours to the upstream."""

NEVER_SENT = (
    httpx.ConnectTimeout,
    httpx.ConnectError,
    httpx.UnsupportedProtocol,
    httpx.LocalProtocolError,
    httpx.ProxyError,
)
"""Errors after which the upstream has nothing of the request."""

_OWN = (
    (b"accept", b"*/*"),
    # Compressed answers would have to be decompressed to be observed.
    (b"accept-encoding", b"identity"),
    (b"user-agent", b"switchcraft/" + __version__.encode()),
)

_CODINGS = frozenset((b"content-encoding", b"transfer-encoding"))

_RETRY_AFTER = frozenset(b"retry-after retry-after-ms".split())
_PASSED_BACK = _RETRY_AFTER | frozenset(b"content-type x-request-id x-sandbox".split())
_PASSED_BACK_PREFIX = b"x-ratelimit-"

Headers = list[tuple[bytes, bytes]]

ReserveMemory = Callable[[int], None]
"""Counts bytes that a request holds in memory until it ends; raises OverloadedError. A negative
number gives some back."""


def unlimited(size_bytes: int) -> None:
    """Reserve any number of bytes."""


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """What an upstream is sent: the path below its base URL, and the client's part of it."""

    model: str
    """The pool's name of the model, for errors."""
    path: str
    body: bytes
    client_headers: Mapping[str, str]
    deadline_s: float = math.inf
    """When the request's own time is over, by the event loop's clock."""
    method: str = "POST"
    content_type: bytes = b"application/json"
    query: str = ""
    """What the client wrote behind `?`."""
    needs_new_connection: bool = False
    """Whether a connection must not be used again for it (see `HttpRequest`)."""
    trace: Trace = field(default=UNTRACED, repr=False)
    """Of the request that this is sent for."""
    hold: ReserveMemory = unlimited


class UpstreamAnswer:
    """An upstream's answer whose body is still to be read, once, by `chunks`.

    The body of an error in a coding that is not accepted is empty: its status says enough.
    """

    def __init__(
        self,
        model: str,
        inbound: HttpResponse,
        guard: TimeoutGuard,
        *,
        secrets: Secrets | None = None,
        hold: ReserveMemory = unlimited,
    ) -> None:
        """Read an answer; `secrets` are removed from the headers and the body.

        Raises UpstreamError for a good answer in a coding that is not accepted.
        """
        self.model = model
        self.status = inbound.status
        self._inbound = inbound
        self._headers = dict(inbound.headers)
        self._guard = guard
        self._secrets = secrets
        self._redaction = None if secrets is None else Redactor(secrets)
        self._hold = hold
        self.held_bytes = 0
        """How much of the body is held in memory, as far as it is counted."""
        transfer_coding = self._headers.get(b"transfer-encoding", b"chunked")
        is_plain = transfer_coding == b"chunked" and b"content-encoding" not in self._headers
        self._codings = [] if is_plain else codings_of(inbound.headers)
        self._is_readable = len(self._codings) <= 1 and ACCEPTED.issuperset(self._codings)
        if not self._is_readable and self.status < 400:
            named = b", ".join([value for name, value in inbound.headers if name in _CODINGS])
            named = named if secrets is None else secrets.redacted(named)
            text = named.decode("latin-1")[:MAX_NAMED_CODINGS]
            problem = f"answered in the coding {text!r}, although it was asked for plain text"
            raise UpstreamError(model, problem, Failure.MALFORMED)

    @property
    def is_compressed(self) -> bool:
        """Whether the body is compressed, so that few bytes may become many."""
        return bool(self._codings)

    @property
    def declared_bytes(self) -> int:
        """How long the body is by its `content-length`; 0 if it has none."""
        return int(self._headers.get(b"content-length", b"0") or b"0")

    @property
    def is_stream(self) -> bool:
        """Whether the body is a good answer's server-sent events."""
        kind = self._headers.get(b"content-type", b"")
        return self.status < 400 and kind.lower().startswith(b"text/event-stream")

    @property
    def is_delimited(self) -> bool:
        """Whether HTTP itself shows that the body is complete, not the mere end of the bytes."""
        return b"content-length" in self._headers or b"transfer-encoding" in self._headers

    @property
    def headers(self) -> Headers:
        """The headers that the client gets, each once: clients differ in which of two they read."""
        headers = [header for header in self._headers.items() if _is_passed_back(*header)]
        headers = headers[:MAX_PASSED_HEADERS]
        secrets = self._secrets
        if secrets is None or not secrets.are_in(b"\n".join([value for _, value in headers])):
            return headers
        return [(name, secrets.redacted(value)) for name, value in headers]

    @property
    def has_secrets(self) -> bool:
        """Whether the body, as far as it was read, had the gateway's own credentials in it."""
        return self._redaction is not None and self._redaction.has_found

    @property
    def retry_after_s(self) -> float | None:
        """When the upstream wants to be asked again, in seconds; None if it does not say."""
        return read_retry_after(self._headers)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, without secrets.

        Raises UpstreamError if it ends too early or if nothing arrives in time.
        """
        read, redaction = self._reader(), self._redaction
        while True:
            try:
                with self._guard:
                    part = await read()
            except httpx.HTTPError as exc:
                raise translate(exc, self.model) from exc
            if not part:
                break
            if redaction is not None:
                part = redaction.feed(part)
            if part:
                yield part
        if redaction is not None and (rest := redaction.end()):
            yield rest

    def _reader(self) -> Callable[[], Awaitable[bytes]]:
        """Return what reads the next part, decompressed."""
        if not self._codings:
            return self._inbound.read
        if self._is_readable:
            return Decompressor(self._inbound.read).read
        return _read_nothing

    def try_hold(self, size_bytes: int) -> bool:
        """Count bytes of the body that are held in memory; return False if there is no room."""
        try:
            self._hold(ANSWER_COPIES * size_bytes)
        except OverloadedError:
            return False
        self.held_bytes += size_bytes
        return True

    def let_go(self) -> None:
        """Give back the memory for the bytes that were held."""
        self._hold(-ANSWER_COPIES * self.held_bytes)
        self.held_bytes = 0


class UpstreamClient:
    """Sends chat requests to the pool's upstreams; holds their connections until `aclose`."""

    def __init__(
        self,
        *,
        max_connections: int,
        forwarded: Sequence[str] = (),
    ) -> None:
        """Allow so many connections to each upstream, and pass the headers of `forwarded` too."""
        self._forwarded = FORWARDED | frozenset(forwarded)
        # Connections of its own for each upstream: in one pool, an upstream that hangs would take
        # those of all others. No client of httpx's above them: it would keep cookies, follow and
        # authenticate, of which nothing is wanted here, for 0.2 ms of CPU a request.
        self._tls = httpx.create_ssl_context()
        self._tls.set_alpn_protocols(["http/1.1"])
        self._max_connections = max_connections
        self._transports: dict[str, Transport] = {}

    async def aclose(self) -> None:
        """Close all connections."""
        for transport in self._transports.values():
            await transport.aclose()

    @asynccontextmanager
    async def send(
        self, deployment: Deployment, message: OutgoingRequest
    ) -> AsyncIterator[UpstreamAnswer]:
        """Send a message as it is and yield the answer once its headers are there.

        Leaving the block closes the connection where the body was not read to its end. Raises
        UpstreamError where there is no answer, or one that is neither good nor an error, and its
        kind DeadlineError where the request's own time is over.
        """
        guard = TimeoutGuard(message.model, deployment.timeouts, message.deadline_s)
        with message.trace.upstream_span(_callee(deployment, message)) as span, closing(guard):
            inbound = await self._begun(deployment, message, span, guard)
            span.status = inbound.status
            try:
                if inbound.status // 100 not in {2, 4, 5}:
                    problem = f"answered with status {inbound.status}"
                    raise UpstreamError(message.model, problem, Failure.MALFORMED)
                secrets, hold = secrets_of(deployment), message.hold
                yield UpstreamAnswer(message.model, inbound, guard, secrets=secrets, hold=hold)
            finally:
                await inbound.aclose()

    async def _begun(
        self,
        deployment: Deployment,
        message: OutgoingRequest,
        span: UpstreamSpan,
        guard: TimeoutGuard,
    ) -> HttpResponse:
        try:
            request = self._request(deployment, message, span)
            with guard:
                return await self._transport(deployment.origin).send(request)
        except httpx.InvalidURL as exc:
            raise translate(httpx.UnsupportedProtocol(str(exc)), message.model) from exc
        except httpx.HTTPError as exc:
            raise translate(exc, message.model) from exc

    def _transport(self, origin: str) -> Transport:
        transport = self._transports.get(origin)
        if transport is None:
            transport = transport_to(origin, self._tls, self._max_connections)
            self._transports[origin] = transport
        return transport

    def _request(
        self, deployment: Deployment, message: OutgoingRequest, span: UpstreamSpan
    ) -> HttpRequest:
        return HttpRequest(
            message.method,
            Address.of(deployment.url(message.path, message.query)),
            self._headers(deployment, message, span),
            message.body,
            deployment.timeouts,
            message.needs_new_connection,
        )

    def _headers(
        self, deployment: Deployment, message: OutgoingRequest, span: UpstreamSpan
    ) -> Headers:
        # Both or neither: a client's `tracestate` belongs to its own `traceparent`.
        passed = self._forwarded - TRACE_HEADERS if span.headers else self._forwarded
        told = [(name, v) for name, v in message.client_headers.items() if name in passed]
        # As bytes: httpx would refuse a client's letter that is not ASCII.
        headers = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in (*told, *span.headers.items())
        ]
        headers += [(b"content-type", message.content_type), *_OWN]
        if message.deadline_s < math.inf:
            left_s = max(0.0, message.deadline_s - asyncio.get_running_loop().time())
            headers.append((DEADLINE_HEADER.encode(), f"{left_s:.3f}".encode()))
        return headers + _credentials(
            deployment.base_url, deployment.key_header, deployment.api_key
        )


def _callee(deployment: Deployment, message: OutgoingRequest) -> UpstreamCall:
    return UpstreamCall(
        deployment.base_url, deployment.upstream_model, message.method, message.path
    )


# Each class has its own line, so that a new one of httpx fails a test rather than passes unseen.
PROBLEMS: Mapping[type[httpx.HTTPError], str] = {
    httpx.ConnectTimeout: "did not accept a connection in time",
    httpx.ReadTimeout: "did not answer in time",
    httpx.WriteTimeout: "did not take the request in time",
    httpx.PoolTimeout: "has no free connection: too many requests are waiting for it",
    httpx.ConnectError: "could not be reached",
    httpx.ReadError: "broke the connection while it answered",
    httpx.WriteError: "broke the connection while it was sent the request",
    httpx.CloseError: "broke the connection",
    httpx.RemoteProtocolError: "broke the connection, or does not speak HTTP",
    httpx.LocalProtocolError: "cannot be sent this request as HTTP",
    httpx.UnsupportedProtocol: "has an address that is not HTTP",
    httpx.ProxyError: "could not be reached through the proxy",
    httpx.DecodingError: "answered with compressed data that cannot be read",
    httpx.TooManyRedirects: "sent the request elsewhere",
    httpx.HTTPStatusError: "answered with an error status",
}
"""What each error of httpx means to a client."""


def translate(exc: httpx.HTTPError, model: str) -> UpstreamError:
    """Return an error of httpx as ours; it names the model, and neither address nor key."""
    problem = PROBLEMS.get(type(exc), "gave no answer")
    if isinstance(exc, httpx.PoolTimeout):
        failure = Failure.BUSY
    elif isinstance(exc, NEVER_SENT):
        failure = Failure.UNREACHABLE
    elif isinstance(exc, httpx.TimeoutException):
        failure = Failure.TIMEOUT
    elif isinstance(exc, httpx.DecodingError):
        failure = Failure.MALFORMED
    else:
        failure = Failure.BROKEN
    return UpstreamError(model, problem, failure)


async def _read_nothing() -> bytes:
    return b""


def _is_passed_back(name: bytes, value: bytes) -> bool:
    if name not in _PASSED_BACK and not name.startswith(_PASSED_BACK_PREFIX):
        return False
    is_readable = name not in _RETRY_AFTER or read_retry_after({name: value}) is not None
    return is_readable and len(value) <= MAX_PASSED_VALUE_BYTES


@lru_cache(maxsize=64)
def _credentials(base_url: str, key_header: str, api_key: SecretStr | None) -> Headers:
    """Return what shows who asks: the key, or the name and password in an address (RFC 7617)."""
    url, credentials = httpx.URL(base_url), {}
    if api_key is not None:
        key = api_key.get_secret_value().strip()
        credentials[key_header] = f"Bearer {key}" if key_header == "authorization" else key
    if url.userinfo:
        login = httpx.BasicAuth(url.username, url.password)
        request = next(login.auth_flow(httpx.Request("GET", url)))
        credentials["authorization"] = request.headers["authorization"]
    return [(name.encode(), value.encode()) for name, value in credentials.items()]
