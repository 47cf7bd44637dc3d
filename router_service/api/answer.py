"""The answer to a chat request: asks the upstream, and passes on what it says."""

from __future__ import annotations

import secrets
import time

import anyio
import orjson
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from router_service.api.body import read_body
from router_service.api.endpoints import Endpoint
from router_service.api.engine import Engine
from router_service.api.errors import (
    CLIENT_LEFT,
    error_body,
    error_response,
    foreign_error_body,
    status_of,
)
from router_service.api.gateway import Gateway
from router_service.api.planning import POLICY_HEADER, Plan
from router_service.api.recorder import Call, Ending, Outcome, Recorder
from router_service.core.errors import SwitchcraftError, UpstreamError
from router_service.upstream.client import Answer, Message, UpstreamClient
from router_service.upstream.relay import StreamReader, is_openai_error, read_usage

MAX_REQUEST_ID = 200
"""Longest id of a client's that is logged and given back, in characters."""

RawHeaders = list[tuple[bytes, bytes]]


class RoutedAnswer(Response):
    """Reads a request, plans it, asks its upstream, and passes on the answer.

    A client that leaves cancels the call to the upstream at once. Nothing is sent before the
    answer's first bytes are there, so that until then a failure has its own status.
    """

    def __init__(self, gateway: Gateway, endpoint: Endpoint, request: Request) -> None:
        """Prepare an answer; all happens when it is awaited."""
        super().__init__()
        self._gateway = gateway
        self._endpoint = endpoint
        self._request = request
        self._call = _call(request)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, with one engine from the start to the end."""
        async with self._gateway.engine.lease() as engine:
            answer = await self._planned(engine)
            await answer(scope, receive, send)

    async def _planned(self, engine: Engine) -> Response:
        gateway, call = self._gateway, self._call
        try:
            plan = await self._plan(engine)
        except ClientDisconnect:
            gateway.recorder.left(call, CLIENT_LEFT)
            return Response(status_code=CLIENT_LEFT)
        except SwitchcraftError as exc:
            gateway.recorder.refused(call, status_of(exc))
            return error_response(exc, {"x-request-id": call.request_id})
        except Exception:
            gateway.recorder.refused(call, 500)
            raise
        return _Exchange(
            engine.upstream, gateway.recorder, request=self._request, plan=plan, call=call
        )

    async def _plan(self, engine: Engine) -> Plan:
        body = await read_body(self._request, self._gateway.server.max_body_bytes)
        policy = self._request.headers.get(POLICY_HEADER)
        return await self._gateway.plan(engine, self._endpoint, body, policy)


class _Exchange(Response):
    """Sends a planned request to its upstream, and the answer to the client."""

    def __init__(
        self, upstream: UpstreamClient, recorder: Recorder, *, request: Request, plan: Plan,
        call: Call,
    ) -> None:  # fmt: skip
        super().__init__()
        self._upstream = upstream
        self._recorder = recorder
        self._plan = plan
        self._call = call
        self._client_headers: Headers = request.headers
        self._outcome = Outcome(status=CLIENT_LEFT)
        self._started_s = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Answer; the scope was read when this was made."""
        failure: Exception | None = None
        self._started_s = time.perf_counter()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_cancel_when_gone, receive, group.cancel_scope)
                try:
                    await self._exchange(send)
                except Exception as exc:  # noqa: BLE001 - raised below, outside of the group's wrapping
                    failure = exc
                    self._outcome.status = status_of(exc)
                    self._outcome.ending = Ending.FAILED
                group.cancel_scope.cancel()
        finally:
            self._outcome.upstream_s = time.perf_counter() - self._started_s
            self._recorder.answered(self._call, self._plan, self._outcome)
        if failure is not None:
            raise failure

    async def _exchange(self, send: Send) -> None:
        plan = self._plan
        deployment = plan.model.deployments[0]
        message = Message(
            plan.model.name,
            plan.endpoint.path,
            plan.body.with_model(deployment.upstream_model),
            self._client_headers,
        )
        try:
            async with self._upstream.send(deployment, message) as answer:
                if answer.is_stream:
                    await self._stream(answer, send)
                else:
                    await self._whole(answer, send)
        except UpstreamError as exc:
            await self._fail(exc, send)

    async def _whole(self, answer: Answer, send: Send) -> None:
        """Pass on a body that was read to its end: one that breaks off is an error instead."""
        body = await answer.read()
        self._note_first_byte()
        headers = self._all_headers(answer)
        if answer.status >= 400 and not is_openai_error(body):
            body = foreign_error_body(answer.model, answer.status)
            headers = _replaced(headers, b"content-type", b"application/json")
        usage = read_usage(body)
        elapsed_s = time.perf_counter() - self._started_s
        cost_usd = self._recorder.cost_usd(self._plan, usage, elapsed_s)
        if cost_usd is not None:
            headers.append((b"x-switchcraft-cost-usd", f"{cost_usd:.10f}".encode()))
        await _send_whole(send, answer.status, headers, body)
        self._outcome.usage = usage
        self._ended(answer.status, Ending.COMPLETE)

    async def _stream(self, answer: Answer, send: Send) -> None:
        """Pass on events as they come, one chunk at a time; a break is a last event of its own."""
        reader = StreamReader(answer)
        started = False
        try:
            async for events in reader.events():
                if not started:
                    self._note_first_byte()
                    await _start(send, answer.status, self._all_headers(answer))
                    started = True
                await _send_body(send, events, more=True)
        except UpstreamError as exc:
            if not started:
                raise
            await _send_body(send, _error_event(exc), more=False)
            self._outcome.usage = reader.usage
            self._ended(answer.status, Ending.BROKEN)
            return
        if not started:
            await _start(send, answer.status, self._all_headers(answer))
        await _send_body(send, b"", more=False)
        self._outcome.usage = reader.usage
        self._ended(answer.status, Ending.COMPLETE)

    async def _fail(self, exc: UpstreamError, send: Send) -> None:
        headers = [*self._own_headers(), (b"content-type", b"application/json")]
        self._outcome.timed_out = exc.timed_out
        await _send_whole(send, status_of(exc), headers, error_body(exc))
        self._ended(status_of(exc), Ending.FAILED)

    def _ended(self, status: int, ending: Ending) -> None:
        self._outcome.status = status
        self._outcome.ending = ending

    def _note_first_byte(self) -> None:
        self._outcome.first_byte_s = time.perf_counter() - self._started_s

    def _all_headers(self, answer: Answer) -> RawHeaders:
        """Return the upstream's headers and ours; where it has a request id, that one counts."""
        theirs = answer.headers
        names = {name for name, _ in theirs}
        return [*theirs, *((name, v) for name, v in self._own_headers() if name not in names)]

    def _own_headers(self) -> RawHeaders:
        plan = self._plan
        headers = {
            "x-switchcraft-decision-id": self._call.decision_id,
            "x-switchcraft-model": plan.model.name,
            "x-switchcraft-reason": str(plan.reason),
        }
        if plan.policy is not None:
            headers["x-switchcraft-policy"] = str(plan.policy)
        named = [(name.encode(), _header_value(value)) for name, value in headers.items()]
        # The client's own bytes: servers read headers as latin-1.
        return [(b"x-request-id", self._call.request_id.encode("latin-1")), *named]


def _call(request: Request) -> Call:
    decision_id = f"dec_{secrets.token_hex(12)}"
    theirs = request.headers.get("x-request-id", "")[:MAX_REQUEST_ID]
    return Call(decision_id, theirs or decision_id, time.perf_counter())


async def _cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def _start(send: Send, status: int, headers: RawHeaders) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _send_body(send: Send, body: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def _send_whole(send: Send, status: int, headers: RawHeaders, body: bytes) -> None:
    await _start(send, status, [*headers, (b"content-length", b"%d" % len(body))])
    await _send_body(send, body, more=False)


def _error_event(exc: UpstreamError) -> bytes:
    return b"data: " + error_body(exc) + b"\n\n"


def _replaced(headers: RawHeaders, name: bytes, value: bytes) -> RawHeaders:
    return [*(header for header in headers if header[0] != name), (name, value)]


def _header_value(value: str) -> bytes:
    """Return a value as a header can carry it: model names may be in any script."""
    return value.encode() if value.isascii() else orjson.dumps(value)
