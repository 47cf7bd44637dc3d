"""The relay of one answer: from the models of a plan to the client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.types import Send

from router_service.apis.answer_errors import AnswerError
from router_service.apis.answers import AnswerIdentity
from router_service.apis.conversation import Json
from router_service.apis.registry import parse_answer, read_usage
from router_service.apis.surrogates import fix_surrogates
from router_service.apis.usage import Usage
from router_service.core.errors import OverloadedError, UpstreamError, UpstreamRefusedError
from router_service.http.error_responses import (
    ErrorFormat,
    error_body,
    refused_body,
    retry_after,
    status_of,
    upstream_error_body,
)
from router_service.http.transfer import RawHeaders, send_part, send_whole, start
from router_service.requests.exchange import Ending, Exchange, answer_cost_usd
from router_service.runtime.gateway import Gateway
from router_service.store.records import UpstreamObject
from router_service.upstream.bodies import SKIM_BYTES, may_be_repeated, skim
from router_service.upstream.retries import RetryingClient, UpstreamRequest
from router_service.upstream.streams import (
    CHARACTERS_PER_TOKEN,
    EventReader,
    StartedAnswer,
)

JSON_TYPE = (b"content-type", b"application/json")


@dataclass(slots=True)
class AnswerRelay:
    """Sends one exchange's request to upstreams, and relays the first usable answer to `send`."""

    exchange: Exchange
    gateway: Gateway
    upstreams: RetryingClient
    request: UpstreamRequest
    send: Send
    reader: EventReader | None = None
    is_remembered: bool = False
    unread_bytes: int = 0

    @property
    def error_format(self) -> ErrorFormat:
        """The format of errors for the client."""
        exchange = self.exchange
        return ErrorFormat(exchange.plan.request.endpoint.api, exchange.info.request_id)

    async def run(self) -> None:
        """Relay the answer; if all upstreams fail, send an error."""
        exchange = self.exchange
        try:
            async with self.upstreams.open(self.request, exchange.attempts) as opened:
                exchange.model = opened.model
                exchange.first_byte_s = time.perf_counter() - exchange.started_s
                self.reader = opened.reader
                await self.remember_objects(opened)
                headers = [*opened.headers, *exchange.headers()]
                if opened.reader is not None:
                    await self.send_stream(opened, opened.reader, headers)
                elif opened.rest is not None:
                    await self._send_large(opened, opened.rest, headers)
                else:
                    await self._send_whole(opened, headers)
        except UpstreamError as exc:
            await self.send_error(exc)

    async def send_error(self, exc: UpstreamError) -> None:
        """Send the failure of an upstream as the response."""
        exchange = self.exchange
        candidates = exchange.plan.candidates
        exchange.model = next(model for model in candidates if model.name == exc.model)
        exchange.error = exc
        if isinstance(exc, UpstreamRefusedError):
            status, ending = exc.status, Ending.COMPLETE
            headers = [header for header in exc.headers if header[0] != JSON_TYPE[0]]
            headers = [*headers, *exchange.headers(), JSON_TYPE]
            body = refused_body(exc, self.error_format)
        else:
            status, ending = status_of(exc), Ending.FAILED
            hints = [(name.encode(), text.encode()) for name, text in retry_after(exc).items()]
            headers = [*exchange.headers(), JSON_TYPE, *hints]
            body = error_body(exc, self.error_format)
        await send_whole(self.send, status, headers, body)
        exchange.end(status, ending)

    async def _send_whole(self, opened: StartedAnswer, headers: RawHeaders) -> None:
        """Relay an answer that has been read completely; send errors in the client's format."""
        exchange, body = self.exchange, opened.body
        is_foreign_error = opened.status >= 400 and not self.error_format.accepts(body)
        if is_foreign_error:
            body = upstream_error_body(opened.model.name, opened.status, body, self.error_format)
        if is_foreign_error or opened.is_translated:
            headers = [*(header for header in headers if header[0] != JSON_TYPE[0]), JSON_TYPE]
        exchange.identity = AnswerIdentity.of(opened.value)
        exchange.usage = self._usage(opened.value, len(body) if opened.is_skimmed else 0)
        elapsed_s = time.perf_counter() - exchange.started_s
        cost_usd = answer_cost_usd(opened.model, exchange.usage, elapsed_s)
        headers += cost_headers(exchange.total_cost_usd(cost_usd))
        if opened.status < 400 and not opened.is_skimmed:
            exchange.answer = parse_answer(opened.value)
        # Free the parsed value: it is much larger than the body, and the client may read slowly.
        opened.value = None
        await send_whole(self.send, opened.status, headers, body)
        exchange.end(opened.status, Ending.COMPLETE)

    async def _send_large(
        self, opened: StartedAnswer, rest: AsyncIterator[bytes], headers: RawHeaders
    ) -> None:
        """Relay an answer that is too large for memory, as it arrives.

        If the answer breaks off, the client's connection is closed, because HTTP/1.1 has no other
        way to report that.
        """
        exchange = self.exchange
        exchange.identity = AnswerIdentity.of(opened.value)
        await start(self.send, opened.status, headers)
        await send_part(self.send, opened.body, more=True)
        end, self.unread_bytes = opened.body[-SKIM_BYTES:], len(opened.body)
        opened.body = b""
        try:
            async for part in rest:
                end = (end + part)[-SKIM_BYTES:]
                self.unread_bytes += len(part)
                await send_part(self.send, part, more=True)
        except UpstreamError as exc:
            self._count_break(opened, exc)
            exchange.end(opened.status, Ending.BROKEN)
            return
        except asyncio.CancelledError:
            self._note_cut_off(opened.status)
            raise
        exchange.usage = self._usage(skim(end), self.unread_bytes)
        await send_part(self.send, b"", more=False)
        exchange.end(opened.status, Ending.COMPLETE)

    async def send_stream(
        self, opened: StartedAnswer, reader: EventReader, headers: RawHeaders
    ) -> None:
        """Relay events as they arrive; if the stream breaks, send an error as the last event.

        So does the end of a shutdown's time. The upstream is read no faster than the client reads,
        because each `send` waits.
        """
        exchange = self.exchange
        await start(self.send, opened.status, headers)
        error: UpstreamError | OverloadedError | None = None
        try:
            await send_part(self.send, opened.body, more=True)
            opened.body = b""
            async for events in reader.events:
                if reader.response_id is not None and not self.is_remembered:
                    await self.remember_objects(opened)
                await send_part(self.send, events, more=True)
        except UpstreamError as exc:
            error = exc
        except asyncio.CancelledError:
            error = self._note_cut_off(opened.status)
            if error is None:
                raise
        if error is not None:
            form = self.error_format
            if reader.translator is not None:
                event = reader.translator.error(AnswerError(status_of(error), str(error)))
            else:
                event = form.event(error_body(error, form), reader.last_number + 1)
            # A part that was cut off may have begun an event; an empty line is never an event.
            is_within_event = reader.is_within_event or exchange.was_cut_off
            gap = b"\n\n" if is_within_event else b""
            await send_part(self.send, gap + event, more=True)
        await send_part(self.send, b"", more=False)
        error = error or reader.error
        if error is None:
            exchange.answer = reader.accumulator.answer()
        elif isinstance(error, UpstreamError):
            self._count_break(opened, error)
        exchange.end(opened.status, Ending.BROKEN if error else Ending.COMPLETE)

    def _note_cut_off(self, status: int) -> OverloadedError | None:
        """Return the error for an answer that the shutdown cuts off; None if the client left."""
        error = self.gateway.drain.cut_off_error()
        if error is not None:
            self.exchange.was_cut_off = True
            self.exchange.end(status, Ending.BROKEN)
        return error

    async def remember_objects(self, opened: StartedAnswer) -> None:
        """Remember the upstream's new object and its owner before the client learns its id.

        A translated answer has no id that the upstream knows, and is not stored for the client.
        """
        if opened.is_translated:
            return
        owner, value = self.exchange.info.key, opened.value
        response_id: str | None = None
        if opened.reader is not None:
            response_id = opened.reader.response_id
        elif isinstance(value, dict) and value.get("object") == "response":
            found = value.get("id")
            response_id = fix_surrogates(found) if isinstance(found, str) else None
        if response_id is None and (owner is None or may_be_repeated(self.request.path)):
            return
        stored = UpstreamObject(
            id=response_id or "",
            model=opened.model.name,
            deployment_id=opened.deployment.id,
            owner=owner,
        )
        if response_id is not None:
            self.gateway.held.remember(stored)
            self.is_remembered = True
        elif opened.status < 400:
            await self.gateway.ownership.note(value, stored)

    def _count_break(self, opened: StartedAnswer, exc: UpstreamError) -> None:
        self.exchange.error = exc
        self.upstreams.record_break(opened, exc, self.request)

    def settle_usage(self) -> None:
        """Set the usage of a streamed or cancelled answer; estimate it if none was reported.

        Providers bill cancelled and broken answers too, but no request that they did not get.
        """
        exchange, reader = self.exchange, self.reader
        if reader is not None:
            exchange.usage = reader.usage or exchange.estimate_usage(reader.written_tokens)
            exchange.identity = reader.identity
        elif (
            exchange.ending is Ending.CLIENT_LEFT or exchange.was_cut_off
        ) and exchange.usage is None:
            exchange.usage = self._usage(None, self.unread_bytes)
            if exchange.usage is None and exchange.was_cancelled:
                exchange.usage = exchange.estimate_usage(0)

    def _usage(self, value: Json, unread_bytes: int) -> Usage | None:
        """Return the usage that an answer reports, or an estimate from its unparsed bytes."""
        usage = read_usage(value)
        is_routed = self.exchange.plan.request.endpoint.is_routed
        if usage is not None or not (unread_bytes and is_routed):
            return usage
        return self.exchange.estimate_usage(unread_bytes // CHARACTERS_PER_TOKEN)


def cost_headers(cost_usd: float | None) -> RawHeaders:
    """Return the header with the cost of a request, or none if it is unknown."""
    if cost_usd is None:
        return []
    return [(b"x-switchcraft-cost-usd", f"{cost_usd:.10f}".encode())]
