"""Relay of the first usable answer of a plan's models to the client, as it arrives."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from starlette.types import Send

from router_service.apis.answer_errors import AnswerError
from router_service.apis.encoding import fix_surrogates
from router_service.apis.registry import parse_answer
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
from router_service.http.transfer import ClientConnection, send_part, send_whole, start
from router_service.requests.call import Call, Ending
from router_service.requests.candidates import Candidate
from router_service.requests.verification import Verification
from router_service.runtime.gateway import Gateway
from router_service.settings import Model
from router_service.store.records import UpstreamObject
from router_service.upstream.bodies import SKIM_BYTES, may_be_repeated, skim
from router_service.upstream.retries import RetryingClient
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
    """Asks upstreams for the answer to a call, and relays the first usable one to `send`."""

    call: Call
    gateway: Gateway
    upstreams: RetryingClient
    send: Send
    writer: ClientConnection | None = None
    """Writes events of a stream that arrive while the relay waits; None if all are sent."""
    verification: Verification | None = None
    """Asks arms for the answer until the verifier accepts one; None if it is not verified."""
    remembered_id: str | None = None
    """The id of the upstream's new object that has been remembered with its owner."""
    last_resort: Candidate | None = None
    """The answer to deliver if no model gives one that can be used; None to send an error."""

    @property
    def error_format(self) -> ErrorFormat:
        """The format of errors for the client."""
        return ErrorFormat(self.call.request.endpoint.api, self.call.request_id)

    async def run(self) -> None:
        """Relay the answer that is accepted; if all models fail, send an error."""
        call = self.call
        try:
            candidate = await self._accept()
        except UpstreamError as exc:
            await self._fail(exc)
            return
        opened = candidate.started
        try:
            await self.remember_objects(opened)
            if candidate.is_complete or not (opened.reader or opened.rest):
                await self._send_whole(candidate)
            elif opened.reader is not None:
                await self._send_stream(candidate, opened.reader)
            elif opened.rest is not None:
                await self._send_large(candidate, opened.rest)
        except BaseException as exc:
            opened.close(exc)
            raise
        finally:
            opened.close()
            call.settle(candidate)

    async def _accept(self) -> Candidate:
        """Return the candidate whose answer the client gets; raises UpstreamError.

        If no candidate of verification can be delivered, one of the models that its limits still
        allow answers without verification.
        """
        call, verification = self.call, self.verification
        if verification is None:
            return await self._first_usable(call.plan.models)
        try:
            accepted = await verification.run()
        finally:
            self.last_resort = verification.last_resort
        if accepted is not None:
            return accepted
        models = list(verification.models_left.values())
        if not models:
            raise verification.first_error
        call.plan.leave_unverified(verification.obstacle)
        return await self._first_usable(models, verification.asks_left)

    async def _first_usable(
        self, models: Sequence[Model], max_models: float = math.inf
    ) -> Candidate:
        """Return the first answer of these models that the client can use; raises UpstreamError.

        An answer that cannot be used is a failure of its model, if that is known before anything of
        it has been sent. It is billed, and the next model is asked.
        """
        call = self.call
        first = candidate = call.accepted
        while True:
            candidate.started_s = time.perf_counter()
            try:
                opened = await self.upstreams.start(call, candidate, models, max_models)
                try:
                    candidate.begin(opened)
                    await self._check(candidate, opened, models)
                except BaseException as exc:
                    opened.close(exc)
                    raise
            except UpstreamError as exc:
                candidate.error = exc
                call.settle(candidate)
                is_unusable = exc.failure is Failure.UNUSABLE
                models = _models_after(candidate, models) if is_unusable else ()
                max_models -= len({each.model for each in candidate.attempts if each.was_sent})
                if not models or max_models <= 0 or not self.upstreams.may_fall_back(exc, call):
                    call.accepted = first
                    if first is candidate or first.error is None:
                        raise
                    raise first.error from None
                candidate = call.ask(models[0])
            except BaseException:
                call.settle(candidate)
                raise
            else:
                return candidate

    async def _check(
        self, candidate: Candidate, opened: StartedAnswer, models: Sequence[Model]
    ) -> None:
        """Read what an answer contains; raise UpstreamError if the client cannot use it.

        That is known of a whole answer, and of a stream that ends before its first output. If a
        request names a model without a fallback, its answer is relayed as it is. The first of
        these answers is the last resort if an error would not help the client more: it calls
        nothing, the request's own limit has cut it off, or no other model may be asked.
        """
        reader, plan = opened.reader, self.call.plan
        if reader is None:
            if opened.status >= 400 or opened.rest is not None or opened.is_skimmed:
                return
            candidate.answer = parse_answer(opened.value, opened.api)
        else:
            record = reader.accumulator
            if reader.error is not None or not (record.has_stopped or record.is_done):
                return
            candidate.answer = record.answer()
        if plan.is_named and self.last_resort is None and not _models_after(candidate, models):
            return
        try:
            candidate.fail_if_unusable(self.call.terms_for(candidate))
        except UpstreamError as exc:
            if reader is not None:
                with suppress(TimeoutError, UpstreamError):  # only its usage should follow
                    async with asyncio.timeout(MAX_END_WAIT_S):
                        async for part in reader.events:
                            opened.body += part
                            if len(opened.body) > MAX_HELD_BYTES:
                                break
            is_silent = candidate.answer is not None and not candidate.answer.calls
            is_kept = plan.is_named or is_silent or not self.upstreams.may_fall_back(exc, self.call)
            is_kept = is_kept or candidate.is_better_than_error(plan.request.terms)
            if is_kept and self.last_resort is None:
                await self.remember_objects(opened)
                self.last_resort = candidate
            raise

    async def _fail(self, exc: UpstreamError) -> None:
        """Deliver the last resort, or else send the failure of an upstream as the response."""
        call, candidate = self.call, self.last_resort
        if candidate is None:
            await self._send_error(exc)
            return
        call.accepted = candidate
        if candidate.arm is not None:
            call.plan.leave_unverified(UnverifiedReason.CANDIDATES_FAILED)
        await self._send_whole(candidate)

    async def _send_error(self, exc: UpstreamError) -> None:
        """Send the failure of an upstream as the response."""
        call = self.call
        models = call.plan.models
        call.accepted.model = next(model for model in models if model.name == exc.model)
        call.accepted.error = exc
        headers = call.decision_headers(with_cost=True)
        if isinstance(exc, UpstreamRefusedError):
            status, ending = exc.status, Ending.COMPLETE
            passed = [header for header in exc.headers if header[0] != JSON_TYPE[0]]
            headers = [*passed, *headers, JSON_TYPE]
            body = refused_body(exc, self.error_format)
        else:
            status, ending = status_of(exc), Ending.FAILED
            hints = [(name.encode(), text.encode()) for name, text in retry_after(exc).items()]
            headers += [JSON_TYPE, *hints]
            body = error_body(exc, self.error_format)
        await send_whole(self.send, status, headers, body)
        call.end(status, ending)

    async def _send_whole(self, candidate: Candidate) -> None:
        """Send an answer that has arrived completely; errors in the client's format.

        Its upstream's connection is free before, because the client may read slowly.
        """
        call, opened = self.call, candidate.started
        body, headers = opened.body, opened.headers
        opened.close()
        call.settle(candidate)
        is_foreign_error = opened.status >= 400 and not self.error_format.accepts(body)
        if is_foreign_error:
            body = upstream_error_body(opened.model.name, opened.status, body, self.error_format)
        if is_foreign_error or (opened.is_translated and opened.reader is None):
            headers = [*(header for header in headers if header[0] != JSON_TYPE[0]), JSON_TYPE]
        headers = [*headers, *call.decision_headers(with_cost=True)]
        if opened.reader is None:
            await send_whole(self.send, opened.status, headers, body)
        else:
            await start(self.send, opened.status, headers)
            await send_part(self.send, body, more=False)
        call.end(opened.status, Ending.COMPLETE)

    async def _send_large(self, candidate: Candidate, rest: AsyncIterator[bytes]) -> None:
        """Relay an answer that is too large for memory, as it arrives.

        If the answer breaks off, the client's connection is closed, because HTTP/1.1 has no other
        way to report that.
        """
        call, opened = self.call, candidate.started
        await start(self.send, opened.status, [*opened.headers, *call.decision_headers()])
        await send_part(self.send, opened.body, more=True)
        end = opened.body[-SKIM_BYTES:]
        opened.body = b""
        try:
            async for part in rest:
                end = (end + part)[-SKIM_BYTES:]
                candidate.unread_bytes += len(part)
                await send_part(self.send, part, more=True)
        except UpstreamError as exc:
            self._count_break(candidate, exc)
            call.end(opened.status, Ending.BROKEN)
            return
        except asyncio.CancelledError:
            self._note_cut_off(opened.status)
            raise
        opened.value = skim(end)
        await send_part(self.send, b"", more=False)
        call.end(opened.status, Ending.COMPLETE)

    async def _send_stream(self, candidate: Candidate, reader: EventReader) -> None:
        """Relay events as they arrive; if the stream breaks, send an error as the last event.

        So does the end of a shutdown's time. The upstream is read no faster than the client reads,
        because each `send` waits. The last events leave together with the end of the response.
        """
        call, opened, writer = self.call, candidate.started, self.writer
        await start(self.send, opened.status, [*opened.headers, *call.decision_headers()])
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
            candidate.answer = reader.accumulator.answer()
            candidate.is_complete = candidate.arm is not None
        elif isinstance(error, UpstreamError):
            self._count_break(candidate, error)
        call.end(opened.status, Ending.BROKEN if error else Ending.COMPLETE)

    def _error_event(self, reader: EventReader, error: UpstreamError | OverloadedError) -> bytes:
        """Return the event that ends a broken stream."""
        form = self.error_format
        if reader.translator is not None:
            event = reader.translator.error(AnswerError(status_of(error), str(error)))
        else:
            event = form.event(error_body(error, form), reader.last_number + 1)
        # A part that was cut off may have begun an event; an empty line is never an event.
        is_within_event = reader.is_within_event or self.call.was_cut_off
        return (b"\n\n" if is_within_event else b"") + event

    def _note_cut_off(self, status: int) -> OverloadedError | None:
        """Return the error for an answer that the shutdown cuts off; None if the client left."""
        error = self.gateway.drain.cut_off_error()
        if error is not None:
            self.call.was_cut_off = True
            self.call.end(status, Ending.BROKEN)
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
        may_create = not may_be_repeated(self.call.request.endpoint.path) and opened.status < 400
        if may_create and self.call.key.name is not None:
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
            owner=self.call.key.name,
        )

    def _count_break(self, candidate: Candidate, exc: UpstreamError) -> None:
        candidate.error = exc
        self.upstreams.record_break(candidate.started, exc, self.call)


def _models_after(candidate: Candidate, models: Sequence[Model]) -> Sequence[Model]:
    """Return the models that follow the one that gave an answer."""
    names = [model.name for model in models]
    return models[names.index(candidate.model.name) + 1 :]
