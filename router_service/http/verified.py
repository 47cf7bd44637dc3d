"""The relay of verified answers: candidates are collected, and the accepted one is delivered."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import replace

from starlette.types import Message, Send

from router_service.core.errors import Failure, InvalidRequestError, UpstreamError
from router_service.http.error_responses import ErrorFormat, error_body, status_of
from router_service.http.relay import JSON_TYPE, AnswerRelay, cost_headers
from router_service.http.transfer import RawHeaders, send_part, send_whole, start
from router_service.requests.exchange import CandidateExchange, Ending, Exchange
from router_service.requests.verification import Verification
from router_service.settings import VerificationSettings
from router_service.verifier.steps import VerificationLimits

MAX_CANDIDATES_HEADER = "x-switchcraft-max-candidates"
MAX_COST_HEADER = "x-switchcraft-max-cost-usd"
MAX_LATENCY_HEADER = "x-switchcraft-max-added-latency-s"
VERIFIED_GOALS_HEADER = "x-switchcraft-verified-goals"

COMMENT = b": keep-alive\n\n"
"""An event that clients ignore (WHATWG HTML, "Server-sent events")."""

_NOT_CHOSEN = b"The answer is not chosen yet; GET /v1/decisions/{id} explains the choice."
"""Explanation in the headers of a stream that began before its answer was known."""

_EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")


def read_limits(headers: Mapping[str, str], settings: VerificationSettings) -> VerificationLimits:
    """Return the limits of a request: the configured ones, lowered by its headers.

    Raises InvalidRequestError, which names the header.
    """
    limits = settings.limits
    return replace(
        limits,
        max_candidates=int(
            min(limits.max_candidates, _read_limit(headers, MAX_CANDIDATES_HEADER, least=1))
        ),
        max_cost_usd=min(limits.max_cost_usd, _read_limit(headers, MAX_COST_HEADER)),
        max_added_latency_s=min(
            limits.max_added_latency_s, _read_limit(headers, MAX_LATENCY_HEADER)
        ),
    )


def read_verified_goals(headers: Mapping[str, str], settings: VerificationSettings) -> bool:
    """Return whether a request's goal may choose a verified policy.

    The header decides, or else the configuration. With fewer candidates than the verified policies
    were measured with, no goal may choose them. Raises InvalidRequestError, which names the header.
    """
    text = headers.get(VERIFIED_GOALS_HEADER)
    if text is None:
        return settings.goals and read_limits(headers, settings).allow_goals
    if text not in {"true", "false"}:
        raise InvalidRequestError(
            f"The header {VERIFIED_GOALS_HEADER} has the value {text[:40]!r}. Send true or false.",
            param=VERIFIED_GOALS_HEADER,
            code="invalid_value",
        )
    return text == "true" and read_limits(headers, settings).allow_goals


def _read_limit(headers: Mapping[str, str], name: str, *, least: int = 0) -> float:
    """Return the number in a header, or infinity without it; counts start at `least` = 1."""
    text = headers.get(name)
    if text is None:
        return math.inf
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value < math.inf or (least == 1 and value != int(value)):
        wanted = "a whole number of at least 1" if least == 1 else "a number of at least 0"
        raise InvalidRequestError(
            f"The header {name} has the value {text[:40]!r}. Send {wanted}.",
            param=name,
            code="invalid_value",
        )
    return value


class VerifiedRelay:
    """Collects the candidates of one exchange, and delivers the accepted one.

    If no candidate can be delivered, one of the remaining models answers without verification, if
    the limits allow asking one.
    """

    def __init__(self, relay: AnswerRelay, limits: VerificationLimits, keep_alive_s: float) -> None:
        """Verify the answer of `relay`'s exchange, and use `relay` for everything unverified."""
        self._relay = relay
        self._exchange = relay.exchange
        self._limits = limits
        self._head = HeldHead(relay.send, relay.exchange, relay.error_format, keep_alive_s)
        relay.send = self._head.send

    async def run(self) -> None:
        """Deliver the accepted candidate, the answer of another model, or an error."""
        relay, exchange = self._relay, self._exchange
        comments: asyncio.Task[None] | None = None
        if exchange.plan.request.chat.stream:
            comments = asyncio.create_task(self._head.send_comments())
        try:
            verification = Verification(
                exchange,
                relay.upstreams,
                relay.request,
                relay.gateway.decisions,
                relay.gateway.drain,
                self._limits,
                self._deliver,
            )
            if not await verification.run():
                models = verification.models_left
                if not models:
                    raise verification.first_error
                exchange.plan = replace(
                    exchange.plan, verified=None, unverified=verification.obstacle
                )
                exchange.started_s = time.perf_counter()
                relay.request = replace(
                    relay.request, candidates=models, max_models=verification.asks_left
                )
                await relay.run()
        except UpstreamError as exc:
            await relay.send_error(exc)
        except asyncio.CancelledError:
            error = relay.gateway.drain.cut_off_error()
            if error is None or not self._head.waits:
                raise
            exchange.was_cut_off = True
            await send_whole(
                self._head.send,
                status_of(error),
                [JSON_TYPE],
                error_body(error, relay.error_format),
            )
        finally:
            if comments is not None:
                comments.cancel()
        if self._head.sends_error:
            exchange.end(200, Ending.FAILED)

    async def _deliver(self, accepted: CandidateExchange) -> None:
        """Send the accepted candidate's answer, unchanged; a stream may still be arriving."""
        exchange, opened = self._exchange, accepted.opened
        assert opened is not None  # noqa: S101 - for mypy; an accepted candidate has an answer
        exchange.first_byte_s = accepted.first_byte_s
        await self._relay.remember_objects(opened)
        headers = [*opened.headers, *exchange.headers()]
        if opened.reader is not None and not accepted.is_complete:
            await self._relay.send_stream(opened, opened.reader, headers)
            return
        exchange.answer, exchange.usage = accepted.answer, accepted.usage
        headers += cost_headers(exchange.total_cost_usd(accepted.cost_usd))
        if opened.reader is None:
            await send_whole(self._relay.send, opened.status, headers, opened.body)
        else:
            await start(self._relay.send, opened.status, headers)
            await send_part(self._relay.send, opened.body, more=False)
        exchange.end(opened.status, Ending.COMPLETE)

    def settle_usage(self) -> None:
        """Complete the exchange with the accepted or unverified answer's usage and duration."""
        exchange, accepted = self._exchange, self._exchange.accepted
        if accepted is not None:
            exchange.usage, exchange.upstream_s = accepted.usage, accepted.seconds
            exchange.identity = accepted.identity
        elif exchange.plan.verified is None:
            self._relay.settle_usage()
        for candidate in (*exchange.candidates, *exchange.unasked):
            candidate.opened = None  # the log may keep the exchange for a while, without bodies


class HeldHead:
    """Sender that may begin an event stream with comments before its answer is known.

    Until the first comment, the response's status and headers are those of the answer. Afterwards,
    they have been sent, so an error becomes the last event of the stream.
    """

    def __init__(
        self, send: Send, exchange: Exchange, error_format: ErrorFormat, interval_s: float
    ) -> None:
        """Send a comment each `interval_s`, for the first time after that time."""
        self._send = send
        self._exchange = exchange
        self._error_format = error_format
        self._interval_s = interval_s
        self._lock = asyncio.Lock()
        self._has_begun = False
        self._is_answering = False
        self._error: bytes | None = None
        """The body so far of an error that is sent as an event."""

    @property
    def waits(self) -> bool:
        """Whether comments have been sent, and nothing of the answer."""
        return self._has_begun and not self._is_answering

    @property
    def sends_error(self) -> bool:
        """Whether the stream ends with an error event instead of the answer."""
        return self._error is not None

    async def send_comments(self) -> None:
        """Send comments until the answer begins."""
        while True:
            await asyncio.sleep(self._interval_s)
            async with self._lock:
                if self._is_answering:
                    return
                if not self._has_begun:
                    self._has_begun = True
                    await start(self._send, 200, self._early_headers())
                await send_part(self._send, COMMENT, more=True)

    async def send(self, message: Message) -> None:
        """Send a message of the answer."""
        async with self._lock:
            if message["type"] == "http.response.start":
                self._is_answering = True
                if self._has_begun:
                    headers: RawHeaders = message["headers"]
                    content_type = dict(headers).get(b"content-type", b"")
                    if not content_type.startswith(b"text/event-stream"):
                        self._error = b""
                    return
            elif self._error is not None:
                self._error += message["body"]
                if message.get("more_body"):
                    return
                event = self._error_event(self._error)
                message = {"type": "http.response.body", "body": event, "more_body": False}
            await self._send(message)

    def _early_headers(self) -> RawHeaders:
        """Return the headers that do not depend on the answer."""
        fixed = (b"x-switchcraft-decision-id", b"x-switchcraft-policy")
        known = [header for header in self._exchange.headers() if header[0] in fixed]
        return [_EVENT_STREAM, *known, (b"x-switchcraft-why", _NOT_CHOSEN)]

    def _error_event(self, body: bytes) -> bytes:
        if not self._error_format.accepts(body):  # an answer that is no stream
            problem = "answered with a whole answer to a request for a stream"
            exc = UpstreamError(self._exchange.model.name, problem, Failure.MALFORMED)
            body = error_body(exc, self._error_format)
        return self._error_format.event(body, 0)
