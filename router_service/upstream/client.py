"""The connections to each upstream, and the requests that it is sent.

httpx stays behind this module: its errors leave it as UpstreamError, and what it returns as
`Answer`.
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
from router_service.core.errors import Failure, UpstreamError
from router_service.core.tracing import UNTRACED, Callee, Outgoing, Trace
from router_service.settings import Deployment
from router_service.upstream.patience import Patience, read_retry_after
from router_service.upstream.transport import Address, Inbound, Outbound, Transport, transport_to

TRACE_HEADERS = frozenset(("traceparent", "tracestate"))
"""W3C Trace Context."""

FORWARDED = TRACE_HEADERS | frozenset("x-request-id openai-beta idempotency-key x-sandbox".split())
"""Request headers that upstreams get; all others, credentials above all, stay here."""

MAX_WHOLE_BYTES = 64 * 1024 * 1024
"""Longest answer that is read before it is passed on; 128k tokens are about 1 MB."""

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
    # Compressed answers would have to be unpacked to be observed.
    (b"accept-encoding", b"identity"),
    (b"user-agent", b"switchcraft/" + __version__.encode()),
)

_PASSED_BACK = frozenset(b"content-type retry-after retry-after-ms x-request-id x-sandbox".split())
_PASSED_BACK_PREFIX = b"x-ratelimit-"

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Message:
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
    trace: Trace = field(default=UNTRACED, repr=False)
    """Of the request that this is sent for."""


class Answer:
    """An upstream's answer whose body is still to be read, once, by `read` or by `chunks`."""

    def __init__(self, model: str, inbound: Inbound, patience: Patience) -> None:
        self.model = model
        self.status = inbound.status
        self._inbound = inbound
        self._headers = dict(inbound.headers)
        self._patience = patience

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
        """The headers that the client gets."""
        return [header for header in self._inbound.headers if _is_passed_back(header[0])]

    @property
    def retry_after_s(self) -> float | None:
        """When the upstream wants to be asked again, in seconds from now."""
        return read_retry_after(
            {name.decode("latin-1"): v.decode("latin-1") for name, v in self._headers.items()}
        )

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives; raises UpstreamError where it ends too early, or hangs."""
        read = self._reading()
        while True:
            try:
                with self._patience:
                    part = await read()
            except httpx.HTTPError as exc:
                raise translate(exc, self.model) from exc
            if not part:
                return
            yield part

    def _reading(self) -> Callable[[], Awaitable[bytes]]:
        """Return what reads the next part, unpacked where it was packed though asked for plain."""
        if b"content-encoding" not in self._headers:
            return self._inbound.read
        packed = httpx.Response(
            self.status, headers=self._inbound.headers, stream=_Packed(self._inbound)
        )
        parts = packed.aiter_bytes()
        return lambda: anext(parts, b"")

    async def read(self) -> bytes:
        """Return the whole body; raises UpstreamError where it breaks off, or has no end."""
        parts: list[bytes] = []
        size = 0
        async for chunk in self.chunks():
            size += len(chunk)
            if size > MAX_WHOLE_BYTES:
                problem = f"answered with more than {MAX_WHOLE_BYTES} bytes"
                raise UpstreamError(self.model, problem, Failure.MALFORMED)
            parts.append(chunk)
        return b"".join(parts)


class _Packed(httpx.AsyncByteStream):
    """A body for httpx to unpack."""

    def __init__(self, inbound: Inbound) -> None:
        self._inbound = inbound

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while part := await self._inbound.read():
            yield part


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
    async def send(self, deployment: Deployment, message: Message) -> AsyncIterator[Answer]:
        """Send a message as it is and yield the answer once its headers are there.

        Leaving the block closes the connection where the body was not read to its end. Raises
        UpstreamError where there is no answer, or one that is neither good nor an error, and its
        kind DeadlineError where the request's own time is over.
        """
        patience = Patience(message.model, deployment.timeouts, message.deadline_s)
        with message.trace.calling(_callee(deployment, message)) as outgoing, closing(patience):
            inbound = await self._begun(deployment, message, outgoing, patience)
            outgoing.status = inbound.status
            try:
                if inbound.status // 100 not in {2, 4, 5}:
                    problem = f"answered with status {inbound.status}"
                    raise UpstreamError(message.model, problem, Failure.MALFORMED)
                yield Answer(message.model, inbound, patience)
            finally:
                await inbound.aclose()

    async def _begun(
        self, deployment: Deployment, message: Message, outgoing: Outgoing, patience: Patience
    ) -> Inbound:
        try:
            request = self._request(deployment, message, outgoing)
            with patience:
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

    def _request(self, deployment: Deployment, message: Message, outgoing: Outgoing) -> Outbound:
        return Outbound(
            message.method,
            Address.of(deployment.url(message.path, message.query)),
            self._headers(deployment, message, outgoing),
            message.body,
            deployment.timeouts,
        )

    def _headers(self, deployment: Deployment, message: Message, outgoing: Outgoing) -> Headers:
        # Both or neither: a client's `tracestate` belongs to its own `traceparent`.
        passed = self._forwarded - TRACE_HEADERS if outgoing.headers else self._forwarded
        told = [(name, v) for name, v in message.client_headers.items() if name in passed]
        # As bytes: httpx would refuse a client's letter that is not ASCII.
        headers = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in (*told, *outgoing.headers.items())
        ]
        headers += [(b"content-type", message.content_type), *_OWN]
        if message.deadline_s < math.inf:
            left_s = max(0.0, message.deadline_s - asyncio.get_running_loop().time())
            headers.append((DEADLINE_HEADER.encode(), f"{left_s:.3f}".encode()))
        return headers + _credentials(
            deployment.base_url, deployment.key_header, deployment.api_key
        )


def _callee(deployment: Deployment, message: Message) -> Callee:
    return Callee(deployment.base_url, deployment.upstream_model, message.method, message.path)


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
    httpx.DecodingError: "answered in an encoding that cannot be read",
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
    else:
        failure = Failure.BROKEN
    return UpstreamError(model, problem, failure)


def _is_passed_back(name: bytes) -> bool:
    return name in _PASSED_BACK or name.startswith(_PASSED_BACK_PREFIX)


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
