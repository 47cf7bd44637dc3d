"""Token counts of requests: by an upstream that speaks their API, or estimated."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import orjson
from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from router_service.apis.conversation import decode_object
from router_service.apis.references import find_references
from router_service.apis.registry import APIS
from router_service.core.errors import SwitchcraftError, UpstreamError
from router_service.core.record import RecordKind
from router_service.http.error_responses import refuse
from router_service.http.schemas import ANSWERS, COUNT, ERRORS, counted_request, errors
from router_service.http.transfer import (
    RawHeaders,
    admit,
    call_of,
    gateway_of,
    read_body,
    read_by,
    read_deadline,
    send_whole,
    unless_client_leaves,
)
from router_service.requests.call import Call
from router_service.requests.candidates import Candidate
from router_service.requests.parsing import Endpoint, ParsedRequest
from router_service.requests.pool import native_models
from router_service.runtime.engine import Engine
from router_service.settings import Model
from router_service.upstream.streams import StartedAnswer

ESTIMATED: RawHeaders = [
    (b"content-type", b"application/json"),
    (b"x-switchcraft-estimated", b"true"),
]
"""Headers of a count that no upstream has made."""

ATTACHMENT_TOKENS = 1_500
"""Tokens that each image or document counts in an estimate. Claude reads an image as one token for
750 pixels, after scaling it down to about 1,600 tokens, and a page of a PDF as 1,500 to 3,000."""


def routes_of_apis() -> APIRouter:
    """Return a route for each API that counts tokens."""
    router = APIRouter(tags=[ANSWERS], responses=ERRORS)
    for api in APIS:
        if api.counting_path:
            router.add_api_route(
                f"/v1{api.counting_path}",
                _counter(Endpoint.counting(api)),
                methods=["POST"],
                name="count_tokens",
                response_class=Response,
                responses={**COUNT, **errors(api.error_body)},
                openapi_extra=counted_request(api),
                summary=f"Count the tokens of a {api.name.capitalize()} request",
                description="Count the tokens of a request's input, without routing it.",
            )
    return router


def _counter(endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    async def count(request: Request) -> Response:
        return CountedTokens(endpoint, request)

    return count


class CountedTokens(Response):
    """Response with the count of an upstream that can answer the request, or with an estimate.

    If the request names the router, the first model of an arm that has such an upstream counts.
    """

    def __init__(self, endpoint: Endpoint, request: Request) -> None:
        """Store the request; it is answered when this object is called."""
        super().__init__()
        self._endpoint = endpoint
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, with one engine for the whole request."""
        endpoint, request, call = self._endpoint, self._request, call_of(self._request)
        gateway = gateway_of(request)
        async with gateway.engine as engine:
            try:
                call.deadline_s = read_deadline(call)
                body = await read_body(call, receive, gateway.server)
                await admit(gateway, call, endpoint.path, len(body), reports_tokens=False)
                viewer = engine.access_to_check(call.key, endpoint, body)
                if viewer is not None:
                    fields = await read_by(decode_object, request, body)
                    await gateway.ownership.check_references(viewer, find_references(fields))
                call.request = await read_by(self._read, request, body)
                models = engine.releases.stable.models_for(call.request.model, call.key)
                counted = self._count(engine, call, native_models(models, endpoint.api))
                name, status, headers, answer = await unless_client_leaves(request, counted)
            except (ClientDisconnect, SwitchcraftError) as exc:
                await refuse(gateway, scope, exc)(scope, receive, send)
                return
            await send_whole(send, status, headers, answer)
            asked = name or models[0].name
            gateway.recorder.ended(call, status, RecordKind.PASSED, model=asked)

    def _read(self, body: bytes) -> ParsedRequest:
        """Read a request, and what an estimate needs of it; raises InvalidRequestError."""
        parsed = ParsedRequest(self._endpoint, body)
        parsed.read_content()
        parsed.body.release()
        return parsed

    async def _count(
        self, engine: Engine, call: Call, models: Sequence[Model]
    ) -> tuple[str | None, int, RawHeaders, bytes]:
        """Return the model whose upstream has counted, if any, and the answer.

        An estimate is more useful than an error: many servers with this API cannot count, and
        refuse with any status.
        """
        if models:
            candidate = Candidate(models[0], trace=call.trace)
            with (
                suppress(UpstreamError),
                await engine.attempts.start(call, candidate, models) as opened,
            ):
                if _is_count(opened):
                    return opened.model.name, opened.status, opened.headers, opened.body
        attachments = sum(turn.attachments for turn in call.request.conversation.turns)
        tokens = call.request.requirements.input_tokens + attachments * ATTACHMENT_TOKENS
        return None, 200, ESTIMATED, orjson.dumps({"input_tokens": max(1, tokens)})


def _is_count(opened: StartedAnswer) -> bool:
    value = opened.value
    tokens = value.get("input_tokens") if isinstance(value, dict) else None
    return opened.status < 400 and isinstance(tokens, int) and tokens > 0
