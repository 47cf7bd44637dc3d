"""Sends a planned request to upstreams, and the first good answer to the client."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence

import orjson
from starlette.types import Receive, Scope, Send

from router_service.core.answers import Usage, fix_surrogates, parse_answer, read_usage
from router_service.core.errors import UpstreamError, UpstreamRefusedError
from router_service.core.messages import Json
from router_service.http.asgi import RawHeaders, WhileClientStays, send_part, send_whole, start
from router_service.http.errors import (
    CLIENT_LEFT,
    error_body,
    foreign_error_body,
    refused_body,
    retry_after,
    status_of,
)
from router_service.lifecycle.gateway import Gateway
from router_service.requests.planning import Plan
from router_service.requests.recorder import Call, Ending, Outcome
from router_service.store.base import UpstreamObject
from router_service.upstream.answers import (
    SKIM_BYTES,
    StartedAnswer,
    identity_of,
    is_openai_error,
    skim,
)
from router_service.upstream.body_template import REPEATABLE_PATHS
from router_service.upstream.relay import CHARACTERS_PER_TOKEN, EventReader
from router_service.upstream.retries import RetryingClient, UpstreamRequest


class Exchange:
    """Sends a planned request to upstreams, and the first good answer to the client."""

    def __init__(
        self,
        attempts: RetryingClient,
        gateway: Gateway,
        order: UpstreamRequest,
        *,
        plan: Plan,
        call: Call,
    ) -> None:
        self._attempts = attempts
        self._recorder = gateway.recorder
        self._held = gateway.held
        self._ownership = gateway.ownership
        self._order = order
        self._plan = plan
        self._call = call
        self._outcome = Outcome(status=CLIENT_LEFT, model=plan.model)
        self._reader: EventReader | None = None
        self._is_held = False
        self._started_s = 0.0
        self._unread_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Answer; the scope was read when this was made."""
        self._started_s = time.perf_counter()
        try:
            async with WhileClientStays(receive):
                await self._exchange(send)
        except Exception as exc:
            self._ended(status_of(exc), Ending.FAILED)
            raise
        finally:
            self._outcome.upstream_s = time.perf_counter() - self._started_s
            self._note_usage()
            self._recorder.answered(self._call, self._plan, self._outcome)

    async def _exchange(self, send: Send) -> None:
        try:
            async with self._attempts.open(self._order, self._outcome.attempts) as opened:
                self._outcome.model = opened.model
                self._reader = opened.reader
                self._note_first_byte()
                await self._note_held(opened)
                if opened.reader is None:
                    await self._whole(opened, send)
                else:
                    await self._stream(opened, opened.reader, send)
        except UpstreamError as exc:
            self._outcome.model = next(m for m in self._plan.candidates if m.name == exc.model)
            self._outcome.may_be_clients = exc.may_be_clients
            if isinstance(exc, UpstreamRefusedError):
                await self._refuse(exc, send)
            else:
                await self._fail(exc, send)

    async def _whole(self, opened: StartedAnswer, send: Send) -> None:
        """Pass on an answer that is no stream."""
        body, headers = opened.body, self._all_headers(opened.headers)
        if opened.status >= 400 and not is_openai_error(body):
            body = foreign_error_body(opened.model.name, opened.status)
            headers = _replaced(headers, b"content-type", b"application/json")
        self._outcome.identity = identity_of(opened.value)
        if opened.rest is not None:
            await self._large(opened, opened.rest, headers, send)
            return
        usage = self._usage(opened.value, len(body) if opened.is_skimmed else 0)
        self._outcome.usage = usage
        elapsed_s = time.perf_counter() - self._started_s
        cost_usd = self._recorder.cost_usd(opened.model, usage, elapsed_s)
        if cost_usd is not None:
            headers.append((b"x-switchcraft-cost-usd", f"{cost_usd:.10f}".encode()))
        if opened.status < 400 and not opened.is_skimmed:
            self._outcome.said = parse_answer(opened.value)
        opened.value = None  # many times as large as the body, and the client may be slow
        await send_whole(send, opened.status, headers, body)
        self._ended(opened.status, Ending.COMPLETE)

    async def _large(
        self, opened: StartedAnswer, rest: AsyncIterator[bytes], headers: RawHeaders, send: Send
    ) -> None:
        """Pass on an answer that is too large to be held, as it arrives.

        If it breaks off, the client's connection does too: HTTP/1.1 has no other sign for it.
        """
        await start(send, opened.status, headers)
        await send_part(send, opened.body, more=True)
        end, self._unread_bytes = opened.body[-SKIM_BYTES:], len(opened.body)
        opened.body = b""
        try:
            async for part in rest:
                end = (end + part)[-SKIM_BYTES:]
                self._unread_bytes += len(part)
                await send_part(send, part, more=True)
        except UpstreamError as exc:
            self._note_break(opened, exc)
            self._ended(opened.status, Ending.BROKEN)
            return
        self._outcome.usage = self._usage(skim(end), self._unread_bytes)
        await send_part(send, b"", more=False)
        self._ended(opened.status, Ending.COMPLETE)

    async def _stream(self, opened: StartedAnswer, reader: EventReader, send: Send) -> None:
        """Pass on events as they come, one chunk at a time; a break is a last event of its own.

        The upstream is read no faster than the client reads: each `send` waits for it.
        """
        await start(send, opened.status, self._all_headers(opened.headers))
        await send_part(send, opened.body, more=True)
        broke: UpstreamError | None = None
        try:
            async for events in reader.events:
                if reader.response_id is not None and not self._is_held:
                    await self._note_held(opened)
                await send_part(send, events, more=True)
        except UpstreamError as exc:
            broke = exc
            event = self._plan.request.endpoint.error_event(error_body(exc), reader.last_number + 1)
            gap = b"\n\n" if reader.is_within_event else b""
            await send_part(send, gap + event, more=True)
        await send_part(send, b"", more=False)
        broke = broke or reader.error
        if broke is None:
            self._outcome.said = reader.accumulator.answer()
        else:
            self._note_break(opened, broke)
        self._ended(opened.status, Ending.BROKEN if broke else Ending.COMPLETE)

    async def _refuse(self, exc: UpstreamRefusedError, send: Send) -> None:
        """Pass on the error that an upstream answered with, since no other answered better."""
        body = refused_body(exc)
        headers = self._all_headers(exc.headers)
        headers = _replaced(headers, b"content-type", b"application/json")
        await send_whole(send, exc.status, headers, body)
        self._ended(exc.status, Ending.COMPLETE)

    async def _fail(self, exc: UpstreamError, send: Send) -> None:
        hints = [(name.encode(), value.encode()) for name, value in retry_after(exc).items()]
        headers = [*self._own_headers(), (b"content-type", b"application/json"), *hints]
        await send_whole(send, status_of(exc), headers, error_body(exc))
        self._ended(status_of(exc), Ending.FAILED)

    def _note_break(self, opened: StartedAnswer, exc: UpstreamError) -> None:
        self._outcome.may_be_clients = exc.may_be_clients
        self._attempts.record_break(opened, exc, self._order)

    def _ended(self, status: int, ending: Ending) -> None:
        self._outcome.status = status
        self._outcome.ending = ending

    def _note_first_byte(self) -> None:
        self._outcome.first_byte_s = time.perf_counter() - self._started_s

    async def _note_held(self, opened: StartedAnswer) -> None:
        """Remember what the upstream stores, and for whom, before the client can go on from it."""
        identifier, owner = _response_id(opened), self._call.key
        if identifier is None and (owner is None or self._order.path in REPEATABLE_PATHS):
            return
        held = UpstreamObject(
            id=identifier or "",
            model=opened.model.name,
            deployment_id=opened.deployment.id,
            owner=owner,
        )
        if identifier is not None:
            self._held.remember(held)
            self._is_held = True
        elif opened.status < 400:
            await self._ownership.note(opened.value, held)

    def _note_usage(self) -> None:
        """Take a stream's usage, or an estimate: what was cancelled or broke off is billed too."""
        outcome, reader = self._outcome, self._reader
        if reader is not None:
            outcome.usage = reader.usage or self._estimate(reader.written_tokens)
            outcome.identity = reader.identity
        elif outcome.ending is Ending.CLIENT_LEFT and outcome.usage is None:
            outcome.usage = self._usage(None, self._unread_bytes) or self._estimate(0)

    def _usage(self, value: Json, unread_bytes: int) -> Usage | None:
        """Return the usage that an answer names, or an estimate if its text was not read."""
        usage = read_usage(value)
        if usage is not None or not (unread_bytes and self._plan.request.endpoint.is_routed):
            return usage
        return self._estimate(unread_bytes // CHARACTERS_PER_TOKEN)

    def _estimate(self, completion_tokens: int) -> Usage:
        return Usage(
            prompt_tokens=-(-self._order.body.size_bytes // CHARACTERS_PER_TOKEN),
            completion_tokens=completion_tokens,
            is_estimated=True,
        )

    def _all_headers(self, theirs: Sequence[tuple[bytes, bytes]]) -> RawHeaders:
        return [*theirs, *self._own_headers()]

    def _own_headers(self) -> RawHeaders:
        plan, outcome = self._plan, self._outcome
        headers = {
            "x-switchcraft-decision-id": self._call.decision_id,
            "x-switchcraft-model": outcome.model.name,
            "x-switchcraft-reason": str(outcome.reason(plan)),
            "x-switchcraft-attempts": str(len(outcome.attempts)),
        }
        if plan.policy is not None:
            headers["x-switchcraft-policy"] = str(plan.policy)
        return [(name.encode(), _header_value(value)) for name, value in headers.items()]


def _response_id(opened: StartedAnswer) -> str | None:
    """Return the id of an answer of the Responses API."""
    if opened.reader is not None:
        return opened.reader.response_id
    value = opened.value
    is_response = isinstance(value, dict) and value.get("object") == "response"
    found = value.get("id") if is_response else None
    return fix_surrogates(found) if isinstance(found, str) else None


def _replaced(headers: RawHeaders, name: bytes, value: bytes) -> RawHeaders:
    return [*(header for header in headers if header[0] != name), (name, value)]


def _header_value(value: str) -> bytes:
    """Return a value as a header can carry it: model names may be in any script."""
    return value.encode() if value.isascii() else orjson.dumps(value)
