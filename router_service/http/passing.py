"""Requests that are passed to one upstream as they are, and their answers as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from router_service.core.errors import (
    StoreError,
    SwitchcraftError,
    UpstreamError,
    UpstreamRefusedError,
)
from router_service.http.answer import read_call, read_deadline
from router_service.http.asgi import RawHeaders, WhileClientStays, send_part, start
from router_service.http.body import read_body
from router_service.http.errors import CLIENT_LEFT, error_response, refused_body, status_of
from router_service.http.paths import segments_of, upstream_path
from router_service.http.refusals import refusal
from router_service.lifecycle.engine import Engine
from router_service.lifecycle.gateway import Gateway
from router_service.requests.ownership import MAX_NOTED_BYTES
from router_service.requests.recorder import Call, Ending
from router_service.settings import Model
from router_service.store.base import UpstreamObject
from router_service.upstream.body_template import REPEATABLE_PATHS
from router_service.upstream.client import OutgoingRequest, UpstreamAnswer, UpstreamClient

KEY_REFUSED = frozenset({401, 403})
"""Statuses whose bodies stay here: the key is the gateway's, and providers repeat parts of it."""

CREATING = frozenset({"POST", "PATCH"})
"""Methods that are not idempotent (RFC 9110, section 9.2.2; RFC 5789)."""

FindModel = Callable[[Engine], Awaitable[Model]]
"""Says whose first deployment is asked; raises SwitchcraftError."""


class PassedAnswer(Response):
    """Passes a request on, tried once, and its answer back.

    A client that leaves cancels the call to the upstream at once. A break in mid-answer breaks the
    client's connection too: the gateway does not know how this answer would say so.
    """

    def __init__(
        self,
        gateway: Gateway,
        request: Request,
        find: FindModel,
        named: frozenset[str] | None = None,
    ) -> None:
        """Prepare an answer; all happens when it is awaited.

        With the ids that the request's body names, what the answer says was created is remembered.
        """
        super().__init__()
        self._gateway = gateway
        self._request = request
        self._find = find
        self._named = named
        self._call = read_call(request)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, with one engine from the start to the end."""
        async with self._gateway.engine.lease() as engine:
            answer = await self._prepared(engine)
            await answer(scope, receive, send)

    async def _prepared(self, engine: Engine) -> ASGIApp:
        try:
            model = await self._find(engine)
            message = await self._message(model)
        except (ClientDisconnect, SwitchcraftError) as exc:
            return refusal(self._gateway.recorder, self._call, exc)
        passing = _Passing(self._gateway, engine.client, self._call, model, message)
        if self._named is not None and self._call.key is not None:
            await passing.note_created(self._named)
        return passing

    async def _message(self, model: Model) -> OutgoingRequest:
        request = self._request
        path, query = upstream_path(request.scope)
        body = await read_body(request, self._gateway.server)
        return OutgoingRequest(
            model=model.name,
            path=path,
            query=query,
            body=body,
            client_headers=request.headers,
            deadline_s=read_deadline(request),
            method=request.method,
            content_type=request.headers.get("content-type", "").encode("latin-1"),
            needs_new_connection=request.method in CREATING and path not in REPEATABLE_PATHS,
            trace=self._call.trace,
        )


class _Passing:
    """One exchange with the upstream, to be recorded when it has ended."""

    def __init__(
        self,
        gateway: Gateway,
        upstream: UpstreamClient,
        call: Call,
        model: Model,
        message: OutgoingRequest,
    ) -> None:
        self._recorder = gateway.recorder
        self._ownership = gateway.ownership
        self._upstream = upstream
        self._call = call
        self._deployment = model.deployments[0]
        self._message = message
        self._creator: str | None = None
        self._named = frozenset[str]()
        self._status = CLIENT_LEFT
        self._ending = Ending.CLIENT_LEFT

    async def note_created(self, named: frozenset[str]) -> None:
        """Remember what the answer says was created, but for these ids."""
        self._named = named
        message = self._message
        with suppress(StoreError):
            self._creator = await self._ownership.creator(
                self._call.key, message.method, segments_of(message.path)
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        failed: Response | None = None
        try:
            async with WhileClientStays(receive):
                failed = await self._exchange(send)
        finally:
            self._recorder.passed(self._call, self._message.model, self._status, self._ending)
        if failed is not None:
            await failed(scope, receive, send)

    async def _exchange(self, send: Send) -> Response | None:
        """Pass on the answer; returns the one of the gateway's own where there is none."""
        try:
            async with self._upstream.send(self._deployment, self._message) as answer:
                if answer.status in KEY_REFUSED:
                    refused = UpstreamRefusedError(
                        answer.model, answer.status, headers=(), body=b""
                    )
                    self._status, self._ending = answer.status, Ending.COMPLETE
                    return Response(
                        refused_body(refused), answer.status, media_type="application/json"
                    )
                await self._relay(answer, send)
        except UpstreamError as exc:
            if self._ending is not Ending.BROKEN:
                self._status, self._ending = status_of(exc), Ending.FAILED
                return error_response(exc)
        return None

    async def _relay(self, answer: UpstreamAnswer, send: Send) -> None:
        parts, headers = answer.chunks(), _told(answer)
        is_json = b"json" in dict(headers).get(b"content-type", b"").lower()
        is_noted = self._creator is not None and answer.status < 300 and is_json
        first = await self._noted(parts) if is_noted else b""
        await start(send, answer.status, headers)
        # Until the last part is sent, an error leaves the client without one.
        self._status, self._ending = answer.status, Ending.BROKEN
        await send_part(send, first, more=True)
        async for part in parts:
            await send_part(send, part, more=True)
        await send_part(send, b"", more=False)
        self._ending = Ending.COMPLETE

    def _is_named(self, identifier: str) -> bool:
        """Whether the request named an id: then its answer has not created it."""
        return identifier in self._named or identifier.encode() in self._message.body

    async def _noted(self, parts: AsyncIterator[bytes]) -> bytes:
        """Return a whole answer once its ids are noted, or the start of one that is too long.

        The client must not know an id before the gateway does.
        """
        body = bytearray()
        async for part in parts:
            body += part
            if len(body) > MAX_NOTED_BYTES:
                return bytes(body)
        held = UpstreamObject(
            id="",
            model=self._message.model,
            deployment_id=self._deployment.id,
            owner=self._creator,
        )
        with suppress(orjson.JSONDecodeError):
            await self._ownership.note(orjson.loads(body), held, self._is_named)
        return bytes(body)


def _told(answer: UpstreamAnswer) -> RawHeaders:
    return [*answer.headers, (b"x-switchcraft-reason", b"passed")]
