"""Relay of an answer that is known only after several arms have been asked.

Keep-alives, which are comments or events that the client's API knows, precede the candidate that is
accepted. It is then sent unchanged, except that it continues a response that has begun.
"""

from __future__ import annotations

import asyncio

from starlette.types import Message, Send

from router_service.apis.api import KeepAlive
from router_service.apis.chat.api import CHAT
from router_service.core.errors import Failure, UpstreamError
from router_service.http.error_responses import ErrorFormat, error_body, status_of
from router_service.http.relay import JSON_TYPE, AnswerRelay
from router_service.http.transfer import RawHeaders, send_part, send_whole, start
from router_service.requests.call import Call, Ending
from router_service.requests.verification import Verification
from router_service.verifier.steps import VerificationLimits

_NOT_CHOSEN = b"The answer is not chosen yet; GET /v1/decisions/{id} explains the choice."
"""Explanation in the headers of a stream that began before its answer was known."""

_EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")


async def relay_verified(
    relay: AnswerRelay, limits: VerificationLimits, keep_alive_s: float
) -> None:
    """Relay the answer that verification accepts; keep-alives precede it if it is a stream."""
    call, gateway = relay.call, relay.gateway
    relay.verification = Verification(
        call, relay.upstreams, gateway.decisions, gateway.drain, limits
    )
    head = DeferredHead(relay.send, call, relay.error_format, keep_alive_s)
    relay.send, relay.writer = head.send, None
    keep_alives: asyncio.Task[None] | None = None
    if call.request.stream:
        keep_alives = asyncio.create_task(head.send_keep_alives())
    try:
        await relay.run()
    except asyncio.CancelledError:
        error = gateway.drain.cut_off_error()
        if error is None or not head.waits:
            raise
        call.was_cut_off = True
        body = error_body(error, relay.error_format)
        await send_whole(head.send, status_of(error), [JSON_TYPE], body)
    finally:
        if keep_alives is not None:
            keep_alives.cancel()
    if head.sends_error:
        call.end(200, Ending.FAILED)


class DeferredHead:
    """Sender that may begin an event stream with keep-alives before its answer is known.

    Until the first one, the response's status and headers are those of the answer. Afterwards,
    they have been sent, so an error becomes the last event of the stream.
    """

    def __init__(
        self, send: Send, call: Call, error_format: ErrorFormat, interval_s: float
    ) -> None:
        """Send a keep-alive each `interval_s`, for the first time after that time."""
        self._send = send
        self._call = call
        self._error_format = error_format
        self._interval_s = interval_s
        self._lock = asyncio.Lock()
        self._keep_alive: KeepAlive | None = None
        """What the stream has begun with; None if nothing has been sent."""
        self._is_answering = False
        self._error: bytes | None = None
        """The body so far of an error that is sent as an event."""

    @property
    def waits(self) -> bool:
        """Whether keep-alives have been sent, and nothing of the answer."""
        return self._keep_alive is not None and not self._is_answering

    @property
    def sends_error(self) -> bool:
        """Whether the stream ends with an error event instead of the answer."""
        return self._error is not None

    async def send_keep_alives(self) -> None:
        """Send keep-alives until the answer begins."""
        while True:
            await asyncio.sleep(self._interval_s)
            async with self._lock:
                if self._is_answering:
                    return
                if self._keep_alive is None:
                    request = self._call.request
                    api = request.endpoint.api or CHAT
                    self._keep_alive = api.keep_alive(request.model)
                    await start(self._send, 200, self._early_headers())
                await send_part(self._send, self._keep_alive.ping(), more=True)

    async def send(self, message: Message) -> None:
        """Send a message of the answer."""
        async with self._lock:
            if message["type"] == "http.response.start":
                self._is_answering = True
                if self._keep_alive is not None:
                    headers: RawHeaders = message["headers"]
                    content_type = dict(headers).get(b"content-type", b"")
                    if not content_type.startswith(b"text/event-stream"):
                        self._error = b""
                    return
            elif self._keep_alive is not None:
                body, more = message["body"], message.get("more_body", False)
                if self._error is not None:
                    self._error += body
                    if more:
                        return
                    body = self._error_event(self._error)
                body = self._keep_alive.join(body, is_last=not more)
                message = {"type": "http.response.body", "body": body, "more_body": more}
            await self._send(message)

    def _early_headers(self) -> RawHeaders:
        """Return the headers that do not depend on the answer."""
        fixed = (b"x-switchcraft-decision-id", b"x-switchcraft-policy")
        known = [header for header in self._call.decision_headers() if header[0] in fixed]
        return [_EVENT_STREAM, *known, (b"x-switchcraft-why", _NOT_CHOSEN)]

    def _error_event(self, body: bytes) -> bytes:
        if not self._error_format.accepts(body):  # an answer that is no stream
            problem = "answered with a whole answer to a request for a stream"
            exc = UpstreamError(self._call.accepted.model.name, problem, Failure.MALFORMED)
            body = error_body(exc, self._error_format)
        return self._error_format.event(body, 0)
