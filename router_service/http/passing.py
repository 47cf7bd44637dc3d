"""Routes that relay requests to one upstream unchanged, and its answers as they arrive."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import parse_qsl

import orjson
from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from router_service.access.budgets import ExpectedCost
from router_service.apis.conversation import Reference, as_text, decode_object
from router_service.apis.references import find_references
from router_service.core.errors import (
    InvalidRequestError,
    StoreError,
    SwitchcraftError,
    UpstreamError,
    UpstreamRefusedError,
)
from router_service.core.reasons import Reason
from router_service.core.record import CLIENT_LEFT, Ending, RecordKind
from router_service.core.refusals import not_served, response_not_found
from router_service.http.error_responses import (
    ErrorFormat,
    error_response,
    refuse,
    refused_body,
    status_of,
)
from router_service.http.inference import RoutedAnswer
from router_service.http.schemas import ANSWER, ERRORS, STORED
from router_service.http.transfer import (
    admit,
    call_of,
    gateway_of,
    read_body,
    read_by,
    read_deadline,
    reserve,
    segments_of,
    send_part,
    start,
    unless_client_leaves,
    upstream_path,
)
from router_service.requests.ownership import MAX_NOTED_BYTES
from router_service.requests.parsing import unrouted
from router_service.runtime.engine import Engine
from router_service.runtime.gateway import Gateway
from router_service.settings import Deployment, Model
from router_service.store.records import UpstreamObject
from router_service.upstream.bodies import may_be_repeated
from router_service.upstream.client import UpstreamClient
from router_service.upstream.connection import HttpRequest

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
WITH_BODY = frozenset({"POST", "PUT", "PATCH"})

MAX_PARAMETERS = 100
"""Maximum number of parameters in a query; each may name an object that must be looked up."""

KEY_REFUSED = frozenset({401, 403})
"""Statuses of a refused API key. Their bodies are not relayed, because the key is the gateway's and
providers quote parts of it."""

CREATING = frozenset({"POST", "PATCH"})
"""Methods that are not idempotent (RFC 9110, section 9.2.2; RFC 5789)."""

UNKNOWN_COST = ExpectedCost(0.0, 0.0, 0.0)
"""Nothing is reserved, but a budget that is spent refuses the request."""

FindModel = Callable[[Engine], Awaitable[Model]]
"""Returns the model whose first deployment gets the request; raises SwitchcraftError."""

routes = APIRouter(tags=[STORED], responses=ERRORS)
catch_all = APIRouter(responses=ERRORS)
"""Router that matches every path under `/v1/`, so it must be the last router of the app."""


@routes.get(
    "/v1/responses/{response_id}",
    response_class=Response,
    responses=ANSWER,
    summary="Get a stored response",
)
@routes.delete(
    "/v1/responses/{response_id}",
    response_class=Response,
    responses=ANSWER,
    summary="Delete a stored response",
)
@routes.post(
    "/v1/responses/{response_id}/cancel",
    response_class=Response,
    responses=ANSWER,
    summary="Cancel a response in the background",
)
@routes.get(
    "/v1/responses/{response_id}/input_items",
    response_class=Response,
    responses=ANSWER,
    summary="List the input of a stored response",
)
async def stored_response(request: Request, response_id: str) -> Response:
    """Forward the request to the deployment that stores the response.

    A response belongs to the key that created it; to other keys it does not exist.
    """
    gateway, key = gateway_of(request), call_of(request).key

    async def holder(engine: Engine) -> Model:
        held = await gateway.held.fetch(response_id)
        sees = engine.viewer(key).sees(held)
        found = engine.releases.stable.pool_for(key).holder(held) if sees else None
        if found is None:
            raise response_not_found(response_id[:200])
        return found

    return PassedAnswer(request, holder)


@catch_all.api_route("/v1/{path:path}", methods=METHODS, include_in_schema=False)
async def other(request: Request) -> Response:
    """Answer with the pool's model that a JSON body names, or with the pass-through upstream."""
    gateway, named = gateway_of(request), NamedObjects()
    try:
        path, _ = upstream_path(request.scope)
        if request.method in WITH_BODY:
            body = await read_body(call_of(request), request.receive, gateway.server)
            is_json = "json" in request.headers.get("content-type", "").lower()
            if body and (is_json or body.removeprefix(BOM_UTF8).lstrip()[:1] == b"{"):
                named = await read_by(NamedObjects.parse, request, body)

            async def receive() -> Message:
                """Return the body again, because it has already been read from the connection."""
                return {"type": "http.request", "body": body, "more_body": False}

            request = Request(request.scope, receive)
        if request.method == "POST" and named.model in gateway.engine.pool.models:
            await _check_owner(gateway, gateway.engine, request, named)
            return RoutedAnswer(unrouted(path), request)
    except (ClientDisconnect, SwitchcraftError) as exc:
        return refuse(gateway, request.scope, exc)

    async def pass_through(engine: Engine) -> Model:
        model = engine.pool.pass_through
        if model is None:
            path, served = request.scope["path"][:200], request.app.state.served
            raise not_served(request.method, path, served)
        engine.releases.stable.check_model(call_of(request).key, model.name)
        await _check_owner(gateway, engine, request, named)
        return model

    ids = frozenset(reference.id for reference in named.references)
    return PassedAnswer(request, pass_through, ids)


@dataclass(frozen=True, slots=True)
class NamedObjects:
    """The model and the stored objects that a JSON body names."""

    model: str = ""
    references: tuple[Reference, ...] = ()

    @classmethod
    def parse(cls, body: bytes) -> NamedObjects:
        """Return the model and the objects that a body names; raises InvalidRequestError."""
        decoded = decode_object(body)
        return cls(as_text(decoded.get("model")), find_references(decoded))


async def _check_owner(
    gateway: Gateway, engine: Engine, request: Request, named: NamedObjects
) -> None:
    """Check that the caller may use every object that the request names.

    Raise InvalidRequestError if not.
    """
    viewer = engine.viewer(call_of(request).key)
    if viewer.sees_unowned:
        return
    path, query = upstream_path(request.scope)
    await gateway.ownership.check_path(viewer, request.method, segments_of(path))
    try:
        parameters = parse_qsl(query.replace(";", "&"), max_num_fields=MAX_PARAMETERS)
    except ValueError as exc:
        raise InvalidRequestError(
            f"The query has more than {MAX_PARAMETERS} parameters. Send fewer.",
            code="too_many_parameters",
        ) from exc
    in_query = (Reference(name.casefold(), value) for name, value in parameters)
    await gateway.ownership.check_references(viewer, (*named.references, *in_query))


class PassedAnswer(Response):
    """Response that relays the answer of one upstream, which is called without retries.

    If the client disconnects, the call to the upstream is cancelled at once. If the answer breaks
    off, the client's connection is closed: the gateway does not know how this API reports errors.
    """

    def __init__(
        self,
        request: Request,
        find: FindModel,
        named: frozenset[str] | None = None,
    ) -> None:
        """Store the request; it is answered when this object is called.

        `named` contains the ids of the objects that the request names. Only if it is given, the
        gateway remembers which key owns the objects that the answer creates.
        """
        super().__init__()
        self._request = request
        self._find = find
        self._named = named

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Relay the answer, with one engine for the whole request."""
        request, call = self._request, call_of(self._request)
        gateway = gateway_of(request)
        async with gateway.engine as engine:
            try:
                model = await self._find(engine)
                path, query = upstream_path(request.scope)
                body = await read_body(call, request.receive, gateway.server)
                await admit(gateway, call, path, len(body), reports_tokens=False)
                await unless_client_leaves(request, reserve(gateway, call, UNKNOWN_COST))
                deployment = model.deployments[0]
                content_type = request.headers.get("content-type", "").encode("latin-1")
                outgoing = HttpRequest(
                    model.name,
                    path,
                    deployment.url(path, query),
                    body,
                    deployment.timeouts,
                    call.headers,
                    call.key.name,
                    needs_new_connection=request.method in CREATING and not may_be_repeated(path),
                    method=request.method,
                    headers=[(b"content-type", content_type)],
                )
                deadline_s = read_deadline(call)
            except (ClientDisconnect, SwitchcraftError) as exc:
                await refuse(gateway, scope, exc)(scope, receive, send)
                return
            relay = _Relay(gateway, engine.client, request, deployment, outgoing, deadline_s)
            if self._named is not None and call.key.name is not None:
                with suppress(StoreError):
                    segments = segments_of(outgoing.path)
                    owner = await gateway.ownership.creator(call.key.name, request.method, segments)
                    relay.remember_created(owner, self._named)
            error: Response | None = None
            try:
                with suppress(ClientDisconnect):
                    error = await unless_client_leaves(request, relay.run(send))
            finally:
                gateway.recorder.ended(
                    call,
                    relay.status,
                    RecordKind.PASSED,
                    relay.ending,
                    model=model.name,
                    error=relay.error,
                )
            if error is not None:
                await error(scope, receive, send)


class _Relay:
    """Relays one upstream's answer, and keeps its status and ending for the log."""

    def __init__(
        self,
        gateway: Gateway,
        upstream: UpstreamClient,
        request: Request,
        deployment: Deployment,
        outgoing: HttpRequest,
        deadline_s: float,
    ) -> None:
        self._ownership = gateway.ownership
        self._upstream = upstream
        self._request = request
        self._deployment = deployment
        self._outgoing = outgoing
        self._deadline_s = deadline_s
        self._owner: str | None = None
        self._named = frozenset[str]()
        self.status = CLIENT_LEFT
        self.ending = Ending.CLIENT_LEFT
        self.error: UpstreamError | None = None

    def remember_created(self, owner: str | None, named: frozenset[str]) -> None:
        """Remember the objects that the answer creates, except those that the request names."""
        self._owner, self._named = owner, named

    async def run(self, send: Send) -> Response | None:
        """Relay the answer and return None, or return the gateway's own error response."""
        try:
            answer = await self._upstream.send(
                self._deployment,
                self._outgoing,
                deadline_s=self._deadline_s,
                trace=call_of(self._request).trace,
            )
            with answer:
                if answer.status in KEY_REFUSED:
                    self.status, self.ending = answer.status, Ending.COMPLETE
                    exc = UpstreamRefusedError(answer.model, answer.status, headers=(), body=b"")
                    body = refused_body(exc, ErrorFormat.of(self._request.scope))
                    return Response(body, answer.status, media_type="application/json")
                parts = answer.chunks()
                # Nothing may keep it: it may be a new secret, such as that of a realtime session.
                private = (b"cache-control", b"no-store")
                reason = (b"x-switchcraft-reason", Reason.PASSED.encode())
                headers = [*answer.headers, private, reason]
                is_json = b"json" in dict(headers).get(b"content-type", b"").lower()
                is_creating = self._owner is not None and answer.status < 300 and is_json
                first = await self._remember_objects(parts) if is_creating else b""
                await start(send, answer.status, headers)
                # Until the last part is sent, a failure means that the answer broke off.
                self.status, self.ending = answer.status, Ending.BROKEN
                await send_part(send, first, more=True)
                async for part in parts:
                    await send_part(send, part, more=True)
                await send_part(send, b"", more=False)
                self.ending = Ending.COMPLETE
        except UpstreamError as exc:
            self.error = exc
            if self.ending is not Ending.BROKEN:
                self.status, self.ending = status_of(exc), Ending.FAILED
                return error_response(exc, self._request.scope)
        return None

    async def _remember_objects(self, parts: AsyncIterator[bytes]) -> bytes:
        """Remember the objects that an answer creates, and return the body that was read.

        If the body exceeds `MAX_NOTED_BYTES`, nothing is remembered and the rest is not read. This
        runs before anything is relayed, because the client must not know an id before the gateway.
        """
        body = bytearray()
        async for part in parts:
            body += part
            if len(body) > MAX_NOTED_BYTES:
                return bytes(body)
        stored = UpstreamObject(
            id="",
            model=self._outgoing.model,
            deployment_id=self._deployment.id,
            owner=self._owner,
        )

        def is_named(identifier: str) -> bool:
            """Return whether the request names the object, so that the answer did not create it."""
            return identifier in self._named or identifier.encode() in self._outgoing.body

        with suppress(orjson.JSONDecodeError):
            await self._ownership.note(orjson.loads(body), stored, is_named)
        return bytes(body)
