"""Routes of the model API: chat and responses are routed, the rest goes to one model."""

from __future__ import annotations

from codecs import BOM_UTF8
from dataclasses import dataclass
from urllib.parse import parse_qsl

from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message

from router_service.core.errors import (
    InvalidRequestError,
    NotServedError,
    ResponseNotFoundError,
    SwitchcraftError,
)
from router_service.core.messages import Reference, as_text, decode_object, find_references
from router_service.http.answer import RoutedAnswer
from router_service.http.auth import caller_of
from router_service.http.errors import refuse
from router_service.http.incoming import gateway_of, read_body, read_by, read_info
from router_service.http.passing import PassedAnswer
from router_service.http.paths import segments_of, upstream_path
from router_service.http.schemas import ANSWER, chat_request, model_request, responses_request
from router_service.lifecycle.engine import Engine
from router_service.lifecycle.gateway import Gateway
from router_service.requests.parsing import CHAT, RESPONSES, unrouted
from router_service.settings import Model

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
WITH_BODY = frozenset({"POST", "PUT", "PATCH"})

MAX_PARAMETERS = 100
"""Parameters of a query; each may have to be looked up."""

routes = APIRouter()
catch_all = APIRouter()
"""Takes every path under `/v1/`, so it must be the last router of the app."""


@routes.post(
    "/v1/chat/completions",
    response_class=Response,
    responses=ANSWER,
    openapi_extra=chat_request(),
)
async def chat_completions(request: Request) -> Response:
    """Answer a chat request with the pool's model that the router chooses."""
    return RoutedAnswer(gateway_of(request), CHAT, request)


@routes.post(
    "/v1/responses",
    response_class=Response,
    responses=ANSWER,
    openapi_extra=responses_request(),
)
async def create_response(request: Request) -> Response:
    """Answer with the model that the router chooses, or that stored the response to continue."""
    return RoutedAnswer(gateway_of(request), RESPONSES, request)


@routes.post(
    "/v1/embeddings", response_class=Response, responses=ANSWER, openapi_extra=model_request()
)
@routes.post(
    "/v1/completions", response_class=Response, responses=ANSWER, openapi_extra=model_request()
)
async def named_model(request: Request) -> Response:
    """Answer with the pool's model that the body names."""
    path, _ = upstream_path(request.scope)
    return RoutedAnswer(gateway_of(request), unrouted(path), request)


@routes.get("/v1/responses/{response_id}", response_class=Response, responses=ANSWER)
@routes.delete("/v1/responses/{response_id}", response_class=Response, responses=ANSWER)
@routes.post("/v1/responses/{response_id}/cancel", response_class=Response, responses=ANSWER)
@routes.get("/v1/responses/{response_id}/input_items", response_class=Response, responses=ANSWER)
async def stored_response(request: Request, response_id: str) -> Response:
    """Get, delete or cancel a stored response at the deployment that has it.

    A response belongs to the key that created it; to other keys it does not exist.
    """
    gateway, caller = gateway_of(request), caller_of(request)

    async def holder(engine: Engine) -> Model:
        held = await gateway.held.fetch(response_id)
        found = engine.pool.holder(held) if engine.viewer(caller).sees(held) else None
        if found is None:
            raise ResponseNotFoundError(response_id[:200])
        return found

    return PassedAnswer(gateway, request, holder)


@catch_all.api_route("/v1/{path:path}", methods=METHODS, include_in_schema=False)
async def other(request: Request) -> Response:
    """Answer with the pool's model that a JSON body names, else with the pass-through upstream."""
    gateway, named = gateway_of(request), NamedObjects()
    try:
        path, _ = upstream_path(request.scope)
        if request.method in WITH_BODY:
            body = await read_body(request, gateway.server)
            is_json = "json" in request.headers.get("content-type", "").lower()
            if body and (is_json or body.removeprefix(BOM_UTF8).lstrip()[:1] == b"{"):
                named = await read_by(NamedObjects.parse, request, body)

            async def receive() -> Message:
                """Return the body, which has been read, once more."""
                return {"type": "http.request", "body": body, "more_body": False}

            request = Request(request.scope, receive)
        if request.method == "POST" and named.model in gateway.engine.pool.models:
            await _check_owner(gateway, gateway.engine, request, named)
            return RoutedAnswer(gateway, unrouted(path), request)
    except (ClientDisconnect, SwitchcraftError) as exc:
        return refuse(gateway.recorder, read_info(request), exc)

    async def pass_through(engine: Engine) -> Model:
        model = engine.pool.pass_through
        if model is None:
            raise NotServedError(request.method, request.url.path[:200])
        await _check_owner(gateway, engine, request, named)
        return model

    ids = frozenset(reference.id for reference in named.references)
    return PassedAnswer(gateway, request, pass_through, ids)


@dataclass(frozen=True, slots=True)
class NamedObjects:
    """The model and the stored objects that a JSON body names."""

    model: str = ""
    references: tuple[Reference, ...] = ()

    @classmethod
    def parse(cls, body: bytes) -> NamedObjects:
        """Parse a body; raises InvalidRequestError."""
        decoded = decode_object(body)
        return cls(as_text(decoded.get("model")), find_references(decoded))


async def _check_owner(
    gateway: Gateway, engine: Engine, request: Request, named: NamedObjects
) -> None:
    """Raise ObjectNotFoundError or ForbiddenError if the caller may not use a named object."""
    viewer = engine.viewer(caller_of(request))
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
