"""Everything else under `/v1/`: for the model that a body names, else for one upstream."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import parse_qsl

from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message

from router_service.core.errors import InvalidRequestError, NotServedError, SwitchcraftError
from router_service.core.messages import Reference, as_text, decode_object, find_references
from router_service.http.answer import RoutedAnswer, read_call
from router_service.http.auth import caller_of
from router_service.http.body import read_body, read_by
from router_service.http.passing import PassedAnswer
from router_service.http.paths import segments_of, upstream_path
from router_service.http.refusals import refusal
from router_service.http.schemas import ANSWER, model_request
from router_service.http.state import gateway_of
from router_service.lifecycle.engine import Engine
from router_service.lifecycle.gateway import Gateway
from router_service.requests.parsing import unrouted
from router_service.settings import Model

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
WITH_BODY = frozenset({"POST", "PUT", "PATCH"})

MAX_PARAMETERS = 100
"""Of a query: each may have to be looked up."""

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
    gateway, named = gateway_of(request), Named()
    try:
        path, _ = upstream_path(request.scope)
        if request.method in WITH_BODY:
            body = await read_body(request, gateway.server)
            named = await _named(request, body)
            request = _replayed(request, body)
        if request.method == "POST" and named.model in gateway.engine.pool.models:
            await _check_owner(gateway, gateway.engine, request, named)
            return RoutedAnswer(gateway, unrouted(path), request)
    except (ClientDisconnect, SwitchcraftError) as exc:
        return refusal(gateway.recorder, read_call(request), exc)

    async def pass_through(engine: Engine) -> Model:
        model = engine.pool.pass_through
        if model is None:
            raise NotServedError(request.method, request.url.path[:200])
        await _check_owner(gateway, engine, request, named)
        return model

    return PassedAnswer(gateway, request, pass_through, frozenset(named.ids))


@dataclass(frozen=True, slots=True)
class Named:
    """What a JSON body names."""

    model: str = ""
    references: tuple[Reference, ...] = ()

    @classmethod
    def read(cls, body: bytes) -> Named:
        """Read a body; raises InvalidRequestError."""
        decoded = decode_object(body)
        return cls(as_text(decoded.get("model")), find_references(decoded))

    @property
    def ids(self) -> Iterator[str]:
        """The ids of stored objects."""
        return (reference.id for reference in self.references)


async def _named(request: Request, body: bytes) -> Named:
    """Return what a JSON body names; raises as `read_by` and `decode_object` do."""
    is_json = "json" in request.headers.get("content-type", "").lower()
    if not body or not (is_json or body.removeprefix(BOM_UTF8).lstrip()[:1] == b"{"):
        return Named()
    return await read_by(Named.read, request, body)


async def _check_owner(gateway: Gateway, engine: Engine, request: Request, named: Named) -> None:
    """Raise ObjectNotFoundError or ForbiddenError for what is not the caller's."""
    viewer = engine.viewer(caller_of(request))
    if not viewer.sees_unowned:
        path, query = upstream_path(request.scope)
        await gateway.ownership.check_path(viewer, request.method, segments_of(path))
        in_query = (Reference(name.casefold(), value) for name, value in _parameters(query))
        await gateway.ownership.check_references(viewer, (*named.references, *in_query))


def _parameters(query: str) -> list[tuple[str, str]]:
    """Return a query's parameters; raises InvalidRequestError if there are too many to look up."""
    try:
        return parse_qsl(query.replace(";", "&"), max_num_fields=MAX_PARAMETERS)
    except ValueError as exc:
        raise InvalidRequestError(
            f"The query has more than {MAX_PARAMETERS} parameters. Send fewer.",
            code="too_many_parameters",
        ) from exc


def _replayed(request: Request, body: bytes) -> Request:
    """Return a request whose body, which was read, can be read once more."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request(request.scope, receive)
