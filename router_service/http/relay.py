"""Relay of the first usable answer of a plan's models to the client, as it arrives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from starlette.types import Send

from router_service.apis.answer_errors import AnswerError
from router_service.apis.registry import parse_answer
from router_service.apis.surrogates import fix_surrogates
from router_service.core.errors import (
    Failure,
    OverloadedError,
    UpstreamError,
    UpstreamRefusedError,
)
from router_service.http.error_responses import (
    ErrorFormat,
    error_body,
    refused_body,
    retry_after,
    status_of,
    upstream_error_body,
)
from router_service.http.transfer import PartWriter, send_part, send_whole, start
from router_service.requests.candidates import Candidate
from router_service.requests.exchange import Ending, Exchange
from router_service.runtime.gateway import Gateway
from router_service.settings import Model
from router_service.store.records import UpstreamObject
from router_service.upstream.bodies import SKIM_BYTES, may_be_repeated, skim
from router_service.upstream.retries import RetryingClient, UpstreamRequest
from router_service.upstream.streams import (
    MAX_END_WAIT_S,
    MAX_HELD_BYTES,
    EventReader,
    StartedAnswer,
)
from router_service.verifier.steps import UnverifiedReason

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
    remembered_id: str | None = None
    """The id of the upstream's new object that has been remembered with its owner."""
    last_resort: Candidate | None = None
    """The answer to deliver if no model gives one that can be used; None to send an error."""

    @property
    def error_format(self) -> ErrorFormat:
        """The format of errors for the client."""
        exchange = self.exchange
        return ErrorFormat(exchange.plan.request.endpoint.api, exchange.info.request_id)

    async def run(self) -> None:
        """Relay the first answer that the client can use; if all models fail, send an error.

        An answer that cannot be used is a failure of its model, if that is known before anything of
        it has been sent. It is billed, and the next model is asked.
        """
        exchange = self.exchange
        request: UpstreamRequest | None = self.request
        first: Candidate | None = None
        while request is not None:
            candidate = exchange.accepted
            first = first or candidate
            if await self._relay_answer(candidate, request):
                return
            request = self._request_after(candidate, request)
        if first is not None and first.error is not None:
            exchange.accepted = first
            await self.fail(first.error)

    async def _relay_answer(self, candidate: Candidate, request: UpstreamRequest) -> bool:
        """Relay the answer to a request; return whether a model gave one that can be used."""
        candidate.started_s = time.perf_counter()
        try:
            with await self.upstreams.start(request, candidate.attempts) as opened:
                candidate.begin(opened)
                await self._check(candidate, opened, request)
                await self.remember_objects(opened)
                if opened.reader is not None:
                    await self.send_stream(opened, opened.reader)
                elif opened.rest is not None:
                    await self._send_large(opened, opened.rest)
                else:
                    await self._send_whole(opened)
        except UpstreamError as exc:
            candidate.error = exc
            return False
        finally:
            if not candidate.seconds:  # a whole answer was settled before it was sent
                self.exchange.settle(candidate)
        return True

    async def _check(
        self, candidate: Candidate, opened: StartedAnswer, request: UpstreamRequest
    ) -> None:
        """Read what an answer contains; raise UpstreamError if the client cannot use it.

        That is known of a whole answer, and of a stream that ends before its first output. If a
        request names a model without a fallback, its answer is relayed as it is. The first of
        these answers is the last resort if an error would not help the client more: it calls
        nothing, the request's own limit has cut it off, or no other model may be asked.
        """
        reader, plan = opened.reader, self.exchange.plan
        if reader is None:
            if opened.status >= 400 or opened.rest is not None or opened.is_skimmed:
                return
            candidate.answer = parse_answer(opened.value)
        else:
            record = reader.accumulator
            if reader.error is not None or not (record.has_stopped or record.is_done):
                return
            candidate.answer = record.answer()
        if plan.is_named and self.last_resort is None and not _models_after(candidate, request):
            return
        try:
            candidate.fail_if_unusable(plan.request.terms)
        except UpstreamError as exc:
            if reader is not None:
                with suppress(TimeoutError, UpstreamError):  # only its usage should follow
                    async with asyncio.timeout(MAX_END_WAIT_S):
                        async for part in reader.events:
                            opened.body += part
                            if len(opened.body) > MAX_HELD_BYTES:
                                break
            is_silent = candidate.answer is not None and not candidate.answer.calls
            is_kept = plan.is_named or is_silent or not self.upstreams.may_fall_back(exc, request)
            is_kept = is_kept or candidate.is_better_than_error(plan.request.terms)
            if is_kept and self.last_resort is None:
                await self.remember_objects(opened)
                self.last_resort = candidate
            raise

    def _request_after(
        self, candidate: Candidate, request: UpstreamRequest
    ) -> UpstreamRequest | None:
        """Return the request to the other models after an answer that cannot be used, if any."""
        error = candidate.error
        if error is None or error.failure is not Failure.UNUSABLE:
            return None
        others = _models_after(candidate, request)
        left = request.max_models - len(
            {each.model for each in candidate.attempts if each.was_sent}
        )
        if not others or left <= 0 or not self.upstreams.may_fall_back(error, request):
            return None
        self.exchange.accepted = Candidate(others[0])
        self.exchange.candidates.append(self.exchange.accepted)
        return replace(request, candidates=others, max_models=left)

    async def fail(self, exc: UpstreamError) -> None:
        """Deliver the last resort, or else send the failure of an upstream as the response."""
        exchange, candidate = self.exchange, self.last_resort
        if candidate is None:
            await self.send_error(exc)
            return
        exchange.accepted = candidate
        if candidate.arm is not None:
            exchange.plan.leave_unverified(UnverifiedReason.CANDIDATES_FAILED)
        await self.deliver(candidate)

    async def deliver(self, candidate: Candidate) -> None:
        """Send an answer that has arrived completely, unchanged."""
        exchange, opened = self.exchange, candidate.opened
        assert opened is not None  # noqa: S101 - for mypy; a complete candidate has an answer
        headers = [*opened.headers, *exchange.headers(with_cost=True)]
        if opened.reader is None:
            await send_whole(self.send, opened.status, headers, opened.body)
        else:
            await start(self.send, opened.status, headers)
            await send_part(self.send, opened.body, more=False)
        exchange.end(opened.status, Ending.COMPLETE)

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
        if response_id is None or response_id == self.remembered_id or opened.is_translated:
            return
        self.gateway.held.remember(self._stored(opened, response_id))
        self.remembered_id = response_id

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


def _models_after(candidate: Candidate, request: UpstreamRequest) -> Sequence[Model]:
    """Return the models of a request that follow the one that gave an answer."""
    names = [model.name for model in request.candidates]
    return request.candidates[names.index(candidate.model.name) + 1 :]
