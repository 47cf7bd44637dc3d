"""Requests that are passed to one upstream as they are, and their answers as they come."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from router_service.api.answer import read_call, read_deadline
from router_service.api.asgi import RawHeaders, WhileClientStays, send_part, start
from router_service.api.body import read_body
from router_service.api.errors import CLIENT_LEFT, error_response, refused_body, status_of
from router_service.api.paths import upstream_path
from router_service.api.refusals import refusal
from router_service.core.errors import SwitchcraftError, UpstreamError, UpstreamRefusedError
from router_service.serving.engine import Engine
from router_service.serving.gateway import Gateway
from router_service.serving.recorder import Call, Ending
from router_service.settings import Model
from router_service.upstream.client import Answer, Message, UpstreamClient

KEY_REFUSED = frozenset({401, 403})
"""Statuses whose bodies stay here: the key is the gateway's, and providers repeat parts of it."""

FindModel = Callable[[Engine], Awaitable[Model]]
"""Says whose first deployment is asked; raises SwitchcraftError."""


class PassedAnswer(Response):
    """Passes a request on, tried once, and its answer back.

    A client that leaves cancels the call to the upstream at once. A break in mid-answer breaks the
    client's connection too: the gateway does not know how this answer would say so.
    """

    def __init__(self, gateway: Gateway, request: Request, find: FindModel) -> None:
        """Prepare an answer; all happens when it is awaited."""
        super().__init__()
        self._gateway = gateway
        self._request = request
        self._find = find
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
        return _Passing(self._gateway, engine.client, self._call, model, message)

    async def _message(self, model: Model) -> Message:
        request = self._request
        path, query = upstream_path(request.scope)
        body = await read_body(request, self._gateway.server)
        return Message(
            model=model.name,
            path=path,
            query=query,
            body=body,
            client_headers=request.headers,
            deadline_s=read_deadline(request),
            method=request.method,
            content_type=request.headers.get("content-type", "").encode("latin-1"),
            trace=self._call.trace,
        )


class _Passing:
    """One exchange with the upstream, to be recorded when it has ended."""

    def __init__(
        self, gateway: Gateway, upstream: UpstreamClient, call: Call, model: Model, message: Message
    ) -> None:
        self._recorder = gateway.recorder
        self._upstream = upstream
        self._call = call
        self._deployment = model.deployments[0]
        self._message = message
        self._status = CLIENT_LEFT
        self._ending = Ending.CLIENT_LEFT

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

    async def _relay(self, answer: Answer, send: Send) -> None:
        await start(send, answer.status, _told(answer))
        # Until the last part is sent, an error leaves the client without one.
        self._status, self._ending = answer.status, Ending.BROKEN
        async for part in answer.chunks():
            await send_part(send, part, more=True)
        await send_part(send, b"", more=False)
        self._ending = Ending.COMPLETE


def _told(answer: Answer) -> RawHeaders:
    return [*answer.headers, (b"x-switchcraft-reason", b"passed")]
