"""Requests to one deployment, their answers, and how long each part of an answer may take."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Self

import httpx

from router_service import __version__
from router_service.core.errors import (
    CredentialsError,
    DeadlineError,
    Failure,
    OverloadedError,
    UpstreamError,
)
from router_service.settings import Deployment, Timeouts
from router_service.tracing import UNTRACED, UNTRACED_SPAN, Trace
from router_service.upstream.bodies import ACCEPTED_CODINGS, Decompressor, read_codings
from router_service.upstream.connection import (
    Connection,
    ConnectionFault,
    HttpRequest,
    HttpResponse,
    RawHeaders,
    Transport,
    transport_to,
)
from router_service.upstream.platforms.platform import PlatformClient
from router_service.upstream.platforms.registry import client_of
from router_service.upstream.redaction import Redactor, Secrets, secrets_of

TRACE_HEADERS = frozenset(("traceparent", "tracestate"))
"""Headers of the W3C Trace Context."""

FORWARDED = TRACE_HEADERS | frozenset("x-request-id openai-beta idempotency-key x-sandbox".split())
"""Request headers that are forwarded. All others are not, most importantly credentials."""

MAX_PASSED_HEADERS = 64
"""Most headers of an answer that are returned to the client. Many clients accept 100 in all."""

MAX_PASSED_VALUE_BYTES = 1024
"""Longest value of an answer's header that is returned to the client; longer ones are dropped."""

MAX_NAMED_CODINGS = 60
"""Most characters of an answer's content and transfer codings that an error quotes."""

ANSWER_COPIES = 3
"""How many copies of a whole answer are in memory at most: in parts, joined, and decoded."""

DEADLINE_HEADER = "x-request-timeout"
"""Seconds that a request may take. Clients send it to the gateway, and the gateway to upstreams."""

FIRST_WAITS = 2
"""Waits to which the timeout for the first byte applies: one for the headers, and one for the first
part of the body, which may arrive later."""

STILL_ANSWERING_S = 5.0
"""If the last part of an answer is not older than this when the time limit is over, the answer
counts as still arriving."""

MAX_RETRY_AFTER_S = 24 * 3600.0
"""Longest wait before a retry that is taken from an upstream; longer waits are cut to it. For daily
quotas, providers ask for up to a day."""

MAX_DATE_BYTES = 64
"""Longest date that is parsed. An HTTP date has 29 characters, and some more in older formats."""

AT_ONCE_BYTES = 128 * 1024
"""Longest body that is prepared for a platform on the event loop, which takes 0.1 to 3 ms; longer
ones are prepared in a thread."""

MAX_UPSTREAMS = 1000
"""Most deployments for which a client keeps what their requests have in common."""

_OWN = (
    (b"accept", b"*/*"),
    # Compressed answers would have to be decompressed to be read.
    (b"accept-encoding", b"identity"),
    (b"user-agent", b"switchcraft/" + __version__.encode()),
)

_CODINGS = frozenset((b"content-encoding", b"transfer-encoding"))

_RETRY_AFTER = frozenset(b"retry-after retry-after-ms".split())
_PASSED_BACK = _RETRY_AFTER | frozenset(b"content-type x-request-id request-id x-sandbox".split())
_PASSED_BACK_PREFIXES = (b"x-ratelimit-", b"anthropic-ratelimit-")

_NUMBER = re.compile(rb"[0-9]{1,64}(?:\.[0-9]{1,64})?")

ReserveMemory = Callable[[int], None]
"""Function that reserves bytes of memory until a request ends, or raises OverloadedError. A
negative number releases bytes."""


_SHORTEN = "Ask for a shorter answer, or ask the operator to raise upstreams.timeouts.total_s."


def unlimited(size_bytes: int) -> None:
    """Accept every reservation, without a limit."""


class UpstreamAnswer:
    """An upstream's answer whose headers have arrived. `chunks` reads its body, once.

    It holds the connection until it is closed. If the body was not read to its end, the connection
    is closed then.

    If an error response has a content or transfer coding that is not accepted, its body counts as
    empty, because the status is enough to handle the error.
    """

    def __init__(
        self,
        model: str,
        response: HttpResponse,
        guard: TimeoutGuard,
        *,
        secrets: Secrets | None = None,
        reserve_memory: ReserveMemory = unlimited,
    ) -> None:
        """Remove `secrets` from the headers and the body.

        Raise UpstreamError for an unusable status, and for a successful answer with a content or
        transfer coding that is not accepted.
        """
        self.model = model
        self.release: Callable[[BaseException | None], None] | None = None
        """Releases the connection and the timer, and ends the span, when the answer is closed."""
        self.status = response.status
        if self.status // 100 not in {2, 4, 5}:
            exc = UpstreamError(model, f"answered with status {self.status}", Failure.MALFORMED)
            exc.error_status = self.status
            raise exc
        self._all_headers = headers = dict(response.headers)
        passed = [
            (name, value)
            for name, value in headers.items()
            if (name in _PASSED_BACK or name.startswith(_PASSED_BACK_PREFIXES))
            and (name not in _RETRY_AFTER or read_retry_after({name: value}) is not None)
            and len(value) <= MAX_PASSED_VALUE_BYTES
        ][:MAX_PASSED_HEADERS]
        if secrets is not None and secrets.found_in(b"\n".join([value for _, value in passed])):
            passed = [(name, secrets.redacted(value)) for name, value in passed]
        self.headers: RawHeaders = passed
        """The headers for the client. Each has a single value, because clients differ in which of
        two values they read."""
        self.declared_bytes = int(headers.get(b"content-length", b"0") or b"0")
        """The body's length by its `content-length`, or 0 without one."""
        self._guard = guard
        self._connection: Connection | None = None
        """The connection, if its parts are those of the body."""
        self._redactor = None if secrets is None else Redactor(secrets)
        self._reserve_memory = reserve_memory
        self.reserved_bytes = 0
        """Number of bytes of the body for which memory is reserved."""
        kind = headers.get(b"content-type", b"")
        self.is_stream = self.status < 400 and kind.lower().startswith(b"text/event-stream")
        """Whether the body is the server-sent events of a successful answer."""
        self.is_delimited = b"content-length" in headers or b"transfer-encoding" in headers
        """Whether a length or chunks mark the body's end, and not only the connection's end."""
        transfer_coding = headers.get(b"transfer-encoding", b"chunked")
        is_plain = transfer_coding == b"chunked" and b"content-encoding" not in headers
        codings = [] if is_plain else read_codings(response.headers)
        self.is_compressed = bool(codings)
        """Whether the body is compressed, so that few bytes may become many."""
        self._read_part: Callable[[], Awaitable[bytes]] | None
        if not codings:
            self._read_part = response.read
            self._connection = response if isinstance(response, Connection) else None
        elif len(codings) <= 1 and ACCEPTED_CODINGS.issuperset(codings):
            self._read_part = Decompressor(model, response.read).read
        elif self.status >= 400:
            self._read_part = None
        else:
            named = b", ".join([value for name, value in response.headers if name in _CODINGS])
            named = named if secrets is None else secrets.redacted(named)
            text = named.decode("latin-1")[:MAX_NAMED_CODINGS]
            problem = f"answered with the coding {text!r}, which the gateway does not accept"
            raise UpstreamError(model, problem, Failure.MALFORMED)

    @property
    def has_secrets(self) -> bool:
        """Return whether the body that was read so far contained the gateway's credentials."""
        return self._redactor is not None and self._redactor.has_found

    @property
    def retry_after_s(self) -> float | None:
        """Return how long the upstream asks to wait before a retry, if it says so."""
        return read_retry_after(self._all_headers)

    @property
    def has_arrived(self) -> bool:
        """Return whether the whole body has arrived, so that `chunks` does not wait any more."""
        return self._connection is not None and self._connection.is_at_end

    def pass_on(
        self, is_ready: Callable[[], bool], take: Callable[[bytes], UpstreamError | None]
    ) -> None:
        """Pass parts that arrive while `chunks` waits to `take`, if `is_ready` returns True.

        The task that waits is not woken, which would take longer than the rest. `chunks` yields all
        other parts. If `take` returns an error, `chunks` raises it.
        """
        connection, guard, redactor = self._connection, self._guard, self._redactor
        if connection is None:
            return

        def pass_part(part: bytes) -> bool:
            if not is_ready():
                return False
            guard.renew()
            part = part if redactor is None else redactor.feed(part)
            if part and (error := take(part)) is not None:
                connection.stop_reading(error)
            return True

        connection.on_part = pass_part

    async def read(self) -> bytes:
        """Return the next part of the body without secrets, or no bytes at its end.

        Raise UpstreamError if it ends too early or if nothing arrives in time.
        """
        redactor = self._redactor
        while self._read_part is not None:
            with self._guard:
                part = await self._read_part()
            if not part or self.has_arrived:
                self._read_part = None
            if redactor is not None:
                part = redactor.feed(part) + (b"" if self._read_part else redactor.end())
            if part:
                return part
        return b""

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the parts of the body as `read` returns them."""
        while part := await self.read():
            yield part

    def __enter__(self) -> Self:
        """Return the answer, which is closed when the block is left."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None
    ) -> None:
        """Close the answer."""
        self.close(exc)

    def close(self, exc: BaseException | None = None) -> None:
        """Release the connection; `exc` is the exception that ended the answer, if any."""
        if self.release is not None:
            release, self.release = self.release, None
            release(exc)

    def raise_timeout(self, exc: asyncio.CancelledError) -> None:
        """Raise UpstreamError if a timeout caused the cancellation of the task that asked."""
        self._guard.__exit__(type(exc), exc, exc.__traceback__)

    def reserve(self, size_bytes: int) -> bool:
        """Reserve memory for this many bytes of the body, instead of those reserved before.

        Return False, and change nothing, if the memory is exhausted.
        """
        try:
            self._reserve_memory(ANSWER_COPIES * (size_bytes - self.reserved_bytes))
        except OverloadedError:
            return False
        self.reserved_bytes = size_bytes
        return True


class UpstreamClient:
    """HTTP client for all deployments. It holds their connections until `aclose`."""

    def __init__(self, *, max_connections: int, forwarded: Sequence[str] = ()) -> None:
        """Allow `max_connections` to each upstream, and forward the headers in `forwarded` too."""
        self._forwarded = FORWARDED | frozenset(forwarded)
        # Each upstream has its own connections, because in a shared pool an upstream that hangs
        # would use up the connections of all others. No httpx.Client is used: it would take 0.2 ms
        # of CPU time a request to keep cookies, follow redirects and authenticate, which is not
        # wanted here.
        self._tls = httpx.create_ssl_context()
        self._tls.set_alpn_protocols(["http/1.1"])
        self._max_connections = max_connections
        self._transports: dict[str, Transport] = {}
        self._upstreams: dict[int, _Upstream] = {}

    async def aclose(self) -> None:
        """Close all connections."""
        for transport in self._transports.values():
            await transport.aclose()

    async def send(
        self,
        deployment: Deployment,
        request: HttpRequest,
        *,
        deadline_s: float = math.inf,
        started_s: float | None = None,
        trace: Trace = UNTRACED,
        reserve_memory: ReserveMemory = unlimited,
    ) -> UpstreamAnswer:
        """Send a request, and return the answer once its headers have arrived.

        `deadline_s` is the end of the time that the client allows, and `started_s` is when the
        deployments' `total_s` began to count, now by default, by the event loop's clock.

        The answer must be closed, or used as a context. Raises UpstreamError if there is no answer
        or if its status is unusable, and its subclass DeadlineError if the time that the client
        allows is over.
        """
        model = request.model
        guard = TimeoutGuard(model, request.timeouts, deadline_s, started_s)
        traced, span = None, UNTRACED_SPAN
        if trace.trace_id is not None:
            traced = trace.upstream_span(
                deployment.base_url, deployment.upstream_model, request.method, request.path
            )
            span = traced.__enter__()
        connection: Connection | None = None

        # Not an ExitStack, which would take 0.004 ms.
        def release(exc: BaseException | None) -> None:
            if connection is not None:
                upstream.transport.release(connection)
            guard.close()
            if traced is not None:
                kind, trace = (None, None) if exc is None else (type(exc), exc.__traceback__)
                traced.__exit__(kind, exc, trace)

        try:
            upstream = self._upstream_of(deployment, model)
            upstream.add_headers(request, span.headers, deadline_s)
            platform = upstream.platform
            if platform is not None:
                ready = TimeoutGuard(model, request.timeouts, deadline_s, started_s)
                await _wait_for_credentials(platform, model, ready)
                if len(request.body) <= AT_ONCE_BYTES:
                    platform.prepare(deployment, request)
                else:
                    await asyncio.to_thread(platform.prepare, deployment, request)
            with guard:
                connection = await upstream.transport.send(request)
            if traced is not None:
                span.status = connection.status
            answer = UpstreamAnswer(
                model,
                connection if platform is None else platform.read(connection, request),
                guard,
                secrets=(platform and platform.secrets) or upstream.secrets,
                reserve_memory=reserve_memory,
            )
        except BaseException as exc:
            release(exc)
            raise
        answer.release = release
        return answer

    def prepare(self, deployments: Iterable[Deployment]) -> None:
        """Prepare requests to deployments, and begin to fetch their platforms' credentials.

        It takes 0.2 s for a platform, so call it off the event loop. The first request to an
        invalid address reports it.
        """
        for deployment in deployments:
            with suppress(UpstreamError):
                platform = self._upstream_of(deployment, "").platform
                if platform is not None and platform.credentials is not None:
                    platform.credentials.start()

    def _upstream_of(self, deployment: Deployment, model: str) -> _Upstream:
        """Return what the requests to a deployment have in common; raises UpstreamError."""
        upstream = self._upstreams.get(id(deployment))
        if upstream is not None:
            return upstream
        try:
            transport = self._transports.get(deployment.origin)
            if transport is None:
                transport = transport_to(deployment.origin, self._tls, self._max_connections)
                self._transports[deployment.origin] = transport
            upstream = _Upstream(deployment, transport, self._forwarded)
        except (ValueError, httpx.InvalidURL) as exc:
            raise ConnectionFault.ADDRESS.error(model, str(exc)) from exc
        if len(self._upstreams) >= MAX_UPSTREAMS:  # clients choose the names of a wildcard's models
            self._upstreams.clear()
        self._upstreams[id(deployment)] = upstream
        return upstream


class _Upstream:
    """What all requests to a deployment have in common."""

    def __init__(
        self, deployment: Deployment, transport: Transport, forwarded: frozenset[str]
    ) -> None:
        """Forward the client's headers in `forwarded`, and those of the deployment's APIs."""
        self.deployment = deployment  # so that no other one gets its `id`
        self.transport = transport
        self.platform = None if deployment.platform is None else client_of(deployment.platform)
        self.secrets = secrets_of(deployment.base_url, deployment.api_key)
        self._headers = [*_OWN, *_credentials(deployment)]
        self._forwarded = forwarded.union(*(api.forwarded_headers for api in deployment.apis))
        self._untraced = self._forwarded - TRACE_HEADERS
        self._defaults: dict[str, str] = {}
        for api in deployment.apis:
            self._defaults |= api.default_headers

    def add_headers(
        self, request: HttpRequest, traced: Mapping[str, str], deadline_s: float
    ) -> None:
        """Add the client's headers, those of `traced` instead of its trace headers, and our own."""
        # Replace both trace headers or neither: a `tracestate` belongs to its `traceparent`.
        passed = self._untraced if traced else self._forwarded
        given = request.client_headers
        given = {**self._defaults, **given} if self._defaults else given
        forwarded = {name: value for name, value in given.items() if name in passed}
        # As bytes, because httpx refuses characters that are not ASCII.
        headers = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in (*forwarded.items(), *traced.items())
        ]
        headers += request.headers
        headers += self._headers
        if deadline_s < math.inf:
            left_s = max(0.0, deadline_s - time.monotonic())
            headers.append((DEADLINE_HEADER.encode(), f"{left_s:.3f}".encode()))
        request.headers = headers


async def _wait_for_credentials(platform: PlatformClient, model: str, guard: TimeoutGuard) -> None:
    """Wait until a platform has credentials, as long as for the first byte of an answer.

    Only the first request has to wait.
    """
    if platform.credentials is None or platform.credentials.current() is not None:
        return
    try:
        with guard:
            await platform.credentials.wait()
    except CredentialsError as exc:
        problem = f"was not asked, because the gateway has no credentials for {platform.title}"
        raise UpstreamError(model, problem, Failure.UNREACHABLE) from exc
    finally:
        guard.close()


def _credentials(deployment: Deployment) -> RawHeaders:
    """Return headers with the key, or with the user and password in the base URL (RFC 7617)."""
    url, credentials = httpx.URL(deployment.base_url), {}
    if deployment.api_key is not None:
        key, name = deployment.api_key.get_secret_value().strip(), deployment.key_header
        credentials[name] = f"Bearer {key}" if name == "authorization" else key
    if url.userinfo:
        login = httpx.BasicAuth(url.username, url.password)
        request = next(login.auth_flow(httpx.Request("GET", url)))
        credentials["authorization"] = request.headers["authorization"]
    return [(name.encode(), value.encode()) for name, value in credentials.items()]


class TimeoutGuard:
    """Timeouts of one answer, for the task that created the guard.

    Use it as a context manager around each wait: `with guard: await read()`. The first byte, each
    later part and the whole answer have timeouts of their own, and the client's deadline limits
    them all. The timeout for the whole answer counts from `started_s`, which is the same for all
    attempts of a request; None is now. One timer serves all waits and is moved only if it is set
    too late. A timer for each wait took as long as reading an event.
    """

    def __init__(
        self,
        model: str,
        timeouts: Timeouts,
        deadline_s: float,
        started_s: float | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        now_s = self._loop.time()
        self._model = model
        self._idle_s = timeouts.idle_s
        started_s = now_s if started_s is None else started_s
        self._last_s = min(started_s + timeouts.total_s, deadline_s)
        self._deadline_s = deadline_s
        self._next_s = now_s + timeouts.first_byte_s
        self._waits = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        task = asyncio.current_task(self._loop)
        assert task is not None  # noqa: S101 - requests are always sent by a task
        self._task = task
        self._is_waiting = False
        self._has_expired = False
        self._cancellations = 0

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def renew(self) -> float:
        """Let the timeout of the next part count from now, and return the time."""
        self._waits += 1
        now_s = self._loop.time()
        if self._waits > FIRST_WAITS:
            self._next_s = now_s + self._idle_s
        return now_s

    def __enter__(self) -> None:
        """Start a wait for the next part."""
        now_s = self.renew()
        end_s, timer = min(self._next_s, self._last_s), self._timer
        if timer is None:
            end_s = min(end_s, now_s + self._idle_s)  # no later than the end of any later wait
        if timer is None or end_s < self._timer_s:
            if timer is not None:
                timer.cancel()
            self._timer, self._timer_s = self._loop.call_at(end_s, self._expire), end_s
        self._is_waiting = True
        self._cancellations = self._task.cancelling()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None
    ) -> None:
        """Raise UpstreamError or one of its subclasses if the wait timed out."""
        self._is_waiting = False
        if not self._has_expired or not isinstance(exc, asyncio.CancelledError):
            return
        # As in asyncio.Timeout, a cancellation by other code takes precedence.
        if self._task.uncancel() > self._cancellations:
            return
        now_s = self._loop.time()
        if now_s >= self._deadline_s:
            raise DeadlineError(self._model) from exc
        silent_s = now_s - (self._next_s - self._idle_s)
        if self._waits > FIRST_WAITS and now_s >= self._last_s and silent_s < STILL_ANSWERING_S:
            raise UpstreamError(
                self._model,
                "did not complete its answer in time",
                Failure.TIMEOUT,
                remedy=_SHORTEN,
                # It may have asked for such a long answer, or have read it slowly.
                may_be_client_fault=True,
            ) from exc
        raise UpstreamError(self._model, "did not answer in time", Failure.TIMEOUT) from exc

    def _expire(self) -> None:
        self._timer = None
        end_s = min(self._next_s, self._last_s)
        if not self._is_waiting:
            return
        if self._loop.time() < end_s:
            self._timer, self._timer_s = self._loop.call_at(end_s, self._expire), end_s
        else:
            self._has_expired = True
            self._task.cancel()


def read_retry_after(headers: Mapping[bytes, bytes]) -> float | None:
    """Return the wait that `retry-after-ms` or `retry-after` asks for, in seconds from now.

    The wait is at most `MAX_RETRY_AFTER_S`. Return None if neither header is present or readable
    (RFC 9110, section 10.2.3; `retry-after-ms` is OpenAI's).
    """
    milliseconds = _read_number(headers.get(b"retry-after-ms", b""))
    if milliseconds is not None:
        return min(milliseconds / 1000, MAX_RETRY_AFTER_S)
    text = headers.get(b"retry-after", b"")
    seconds = _read_number(text)
    if seconds is None and 0 < len(text) <= MAX_DATE_BYTES:
        try:
            date = parsedate_to_datetime(text.decode("latin-1"))
            date = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
            seconds = max(0.0, (date - datetime.now(UTC)).total_seconds())
        except (ValueError, OverflowError):  # not a date, or one beyond the years 1 to 9999
            return None
    return None if seconds is None else min(seconds, MAX_RETRY_AFTER_S)


def _read_number(text: bytes) -> float | None:
    """Return a number without a sign or an exponent, or None for any other text.

    `float` alone would also accept `nan` and `1_0`.
    """
    return float(text) if _NUMBER.fullmatch(text.strip()) else None
