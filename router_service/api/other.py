"""Everything else under `/v1/`: for the model that a body names, else for one upstream."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message

from router_service.api.answer import RoutedAnswer, read_call
from router_service.api.body import read_body
from router_service.api.passing import PassedAnswer
from router_service.api.paths import upstream_path
from router_service.api.refusals import refusal
from router_service.api.schemas import ANSWER, model_request
from router_service.api.state import gateway_of
from router_service.core.errors import NotServedError, SwitchcraftError
from router_service.core.messages import decode_object
from router_service.serving.endpoints import unrouted
from router_service.serving.engine import Engine
from router_service.settings import Model

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]

routes = APIRouter()


@routes.post(
    "/v1/embeddings", response_class=Response, responses=ANSWER, openapi_extra=model_request()
)
@routes.post(
    "/v1/completions", response_class=Response, responses=ANSWER, openapi_extra=model_request()
)
async def named_model(request: Request) -> Response:
    """Ask the pool's model that the body names."""
    path, _ = upstream_path(request.scope)
    return RoutedAnswer(gateway_of(request), unrouted(path), request)


@routes.api_route("/v1/{path:path}", methods=METHODS, include_in_schema=False)
async def other(request: Request) -> Response:
    """Ask the pool's model that a JSON body names, else the upstream that all else is passed to."""
    gateway = gateway_of(request)
    if request.method == "POST":
        try:
            path, _ = upstream_path(request.scope)
            body = await read_body(request, gateway.server)
            model = _named_model(request, body)
        except (ClientDisconnect, SwitchcraftError) as exc:
            return refusal(gateway.recorder, read_call(request), exc)
        request = _replayed(request, body)
        if model in gateway.engine.pool.models:
            return RoutedAnswer(gateway, unrouted(path), request)
    return PassedAnswer(gateway, request, lambda engine: _pass_through(engine, request))


async def _pass_through(engine: Engine, request: Request) -> Model:
    model = engine.pool.pass_through
    if model is None:
        raise NotServedError(request.method, request.url.path[:200])
    return model


def _named_model(request: Request, body: bytes) -> str | None:
    """Return the model that a JSON body names; raises InvalidRequestError where it is broken."""
    is_json = "json" in request.headers.get("content-type", "").lower()
    if not body or not (is_json or body.lstrip()[:1] == b"{"):
        return None
    model = decode_object(body).get("model")
    return model if isinstance(model, str) else None


def _replayed(request: Request, body: bytes) -> Request:
    """Return a request whose body, which was read, can be read once more."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request(request.scope, receive)
