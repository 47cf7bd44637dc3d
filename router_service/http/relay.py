"""Relay of the first usable answer of a plan's models to the client, as it arrives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.types import Send

from router_service.apis.answer_errors import AnswerError
from router_service.apis.registry import parse_answer
from router_service.apis.surrogates import fix_surrogates
from router_service.core.errors import OverloadedError, UpstreamError, UpstreamRefusedError
from router_service.http.error_responses import (
    ErrorFormat,
    error_body,
    refused_body,
    retry_after,
    status_of,
    upstream_error_body,
)
from router_service.http.transfer import PartWriter, send_part, send_whole, start
from router_service.requests.exchange import Ending, Exchange
from router_service.runtime.gateway import Gateway
from router_service.store.records import UpstreamObject
from router_service.upstream.bodies import SKIM_BYTES, may_be_repeated, skim
from router_service.upstream.retries import RetryingClient, UpstreamRequest
from router_service.upstream.streams import EventReader, StartedAnswer

JSON_TYPE = (b"content-type", b"application/json")


@dataclass(slots=True)
class AnswerRelay:
    """Sends one exchange's request to upstreams, and relays the first usable answer to `send`."""

    exchange: Exchange
    gateway: Gateway
    upstreams: RetryingClient
    request: UpstreamRequest
    send: Send
    writer: PartWriter | None = None
    """Writes events of a stream that arrive while the relay waits; None if all are sent."""
    is_remembered: bool = False
    """Whether the id of the upstream's new object has been remembered with its owner."""

    @property
    def error_format(self) -> ErrorFormat:
        """The format of errors for the client."""
        exchange = self.exchange
        return ErrorFormat(exchange.plan.request.endpoint.api, exchange.info.request_id)

    async def run(self) -> None:
        """Relay the answer; if all upstreams fail, send an error."""
        exchange, candidate = self.exchange, self.exchange.accepted
        candidate.started_s = time.perf_counter()
        try:
            with await self.upstreams.start(self.request, candidate.attempts) as opened:
                candidate.begin(opened)
                await self.remember_objects(opened)
                if opened.reader is not None:
                    await self.send_stream(opened, opened.reader)
                elif opened.rest is not None:
                    await self._send_large(opened, opened.rest)
                else:
                    await self._send_whole(opened)
        except UpstreamError as exc:
            await self.send_error(exc)
        finally:
            exchange.settle(candidate)

    async def send_error(self, exc: UpstreamError) -> None:
        """Send the failure of an upstream as the response."""
        exchange = self.exchange
        models = exchange.plan.candidates
        exchange.accepted.model = next(model for model in models if model.name == exc.model)
        exchange.accepted.error = exc
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

    async def _send_whole(self, opened: StartedAnswer) -> None:
        """Relay an answer that has been read completely; send errors in the client's format."""
        exchange, body, headers = self.exchange, opened.body, opened.headers
        is_foreign_error = opened.status >= 400 and not self.error_format.accepts(body)
        if is_foreign_error:
            body = upstream_error_body(opened.model.name, opened.status, body, self.error_format)
        if is_foreign_error or opened.is_translated:
            headers = [*(header for header in headers if header[0] != JSON_TYPE[0]), JSON_TYPE]
        if opened.status < 400 and not opened.is_skimmed:
            exchange.accepted.answer = parse_answer(opened.value)
        exchange.settle(exchange.accepted)
        headers = [*headers, *exchange.headers(with_cost=True)]
        await send_whole(self.send, opened.status, headers, body)
        exchange.end(opened.status, Ending.COMPLETE)

    async def _send_large(self, opened: StartedAnswer, rest: AsyncIterator[bytes]) -> None:
        """Relay an answer that is too large for memory, as it arrives.

        If the answer breaks off, the client's connection is closed, because HTTP/1.1 has no other
        way to report that.
        """
        exchange, candidate = self.exchange, self.exchange.accepted
        await start(self.send, opened.status, [*opened.headers, *exchange.headers()])
        await send_part(self.send, opened.body, more=True)
        end = opened.body[-SKIM_BYTES:]
        opened.body = b""
        try:
            async for part in rest:
                end = (end + part)[-SKIM_BYTES:]
                candidate.unread_bytes += len(part)
                await send_part(self.send, part, more=True)
        except UpstreamError as exc:
            self._count_break(opened, exc)
            exchange.end(opened.status, Ending.BROKEN)
            return
        except asyncio.CancelledError:
            self._note_cut_off(opened.status)
            raise
        opened.value = skim(end)
        await send_part(self.send, b"", more=False)
        exchange.end(opened.status, Ending.COMPLETE)

    async def send_stream(self, opened: StartedAnswer, reader: EventReader) -> None:
        """Relay events as they arrive; if the stream breaks, send an error as the last event.

        So does the end of a shutdown's time. The upstream is read no faster than the client reads,
        because each `send` waits. The last events leave together with the end of the response.
        """
        exchange, writer = self.exchange, self.writer
        await start(self.send, opened.status, [*opened.headers, *exchange.headers()])
        error: UpstreamError | OverloadedError | None = None
        last, is_whole = b"", False

        def write(events: bytes) -> None:
            nonlocal is_whole
            self._remember_response(opened, reader.response_id)
            if writer is not None:
                writer.write_part(events)
                is_whole = reader.has_ended

        async def relay(events: bytes) -> None:
            nonlocal last, is_whole
            self._remember_response(opened, reader.response_id)
            if reader.has_arrived:
                last += events
            else:
                await send_part(self.send, events, more=True)
                is_whole = reader.has_ended

        try:
            first, opened.body = opened.body, b""
            await relay(first)
            del first
            if writer is not None:
                reader.pass_on(lambda: writer.is_ready, write)
            async for events in reader.events:
                await relay(events)
        except UpstreamError as exc:
            error = exc
        except asyncio.CancelledError:
            # OpenAI's clients leave at the last event, before the upstream has ended its body.
            if not is_whole:
                error = self._note_cut_off(opened.status)
                if error is None:
                    raise
            elif self.gateway.drain.cut_off_error() is None:
                await reader.leave()
        if error is not None:
            last += self._error_event(reader, error)
        await send_part(self.send, last, more=False)
        error = error or reader.error
        if error is None:
            exchange.accepted.answer = reader.accumulator.answer()
        elif isinstance(error, UpstreamError):
            self._count_break(opened, error)
        exchange.end(opened.status, Ending.BROKEN if error else Ending.COMPLETE)

    def _error_event(self, reader: EventReader, error: UpstreamError | OverloadedError) -> bytes:
        """Return the event that ends a broken stream."""
        form = self.error_format
        if reader.translator is not None:
            event = reader.translator.error(AnswerError(status_of(error), str(error)))
        else:
            event = form.event(error_body(error, form), reader.last_number + 1)
        # A part that was cut off may have begun an event; an empty line is never an event.
        is_within_event = reader.is_within_event or self.exchange.was_cut_off
        return (b"\n\n" if is_within_event else b"") + event

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
        value = opened.value
        response_id: str | None = None
        if opened.reader is not None:
            response_id = opened.reader.response_id
        elif isinstance(value, dict) and value.get("object") == "response":
            found = value.get("id")
            response_id = fix_surrogates(found) if isinstance(found, str) else None
        if response_id is not None:
            self._remember_response(opened, response_id)
            return
        may_create = not may_be_repeated(self.request.path) and opened.status < 400
        if may_create and self.exchange.info.key is not None:
            await self.gateway.ownership.note(value, self._stored(opened, ""))

    def _remember_response(self, opened: StartedAnswer, response_id: str | None) -> None:
        """Remember a response under its id, once the id is known."""
        if response_id is None or self.is_remembered or opened.is_translated:
            return
        self.gateway.held.remember(self._stored(opened, response_id))
        self.is_remembered = True

    def _stored(self, opened: StartedAnswer, object_id: str) -> UpstreamObject:
        return UpstreamObject(
            id=object_id,
            model=opened.model.name,
            deployment_id=opened.deployment.id,
            owner=self.exchange.info.key,
        )

    def _count_break(self, opened: StartedAnswer, exc: UpstreamError) -> None:
        self.exchange.accepted.error = exc
        self.upstreams.record_break(opened, exc, self.request)
