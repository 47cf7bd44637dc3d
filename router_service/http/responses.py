"""`/v1/responses`: routed like chat, and what is stored is asked of whom it is stored with."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from router_service.core.errors import ResponseNotFoundError
from router_service.http.answer import RoutedAnswer
from router_service.http.auth import caller_of
from router_service.http.passing import PassedAnswer
from router_service.http.schemas import ANSWER, responses_request
from router_service.http.state import gateway_of
from router_service.lifecycle.engine import Engine
from router_service.requests.parsing import RESPONSES
from router_service.settings import Model

routes = APIRouter()


@routes.post(
    "/v1/responses",
    response_class=Response,
    responses=ANSWER,
    openapi_extra=responses_request(),
)
async def create_response(request: Request) -> Response:
    """Answer by the pool's model that is the right one, or by who holds the response before."""
    return RoutedAnswer(gateway_of(request), RESPONSES, request)


@routes.get("/v1/responses/{response_id}", response_class=Response, responses=ANSWER)
@routes.delete("/v1/responses/{response_id}", response_class=Response, responses=ANSWER)
@routes.post("/v1/responses/{response_id}/cancel", response_class=Response, responses=ANSWER)
@routes.get("/v1/responses/{response_id}/input_items", response_class=Response, responses=ANSWER)
async def stored_response(request: Request, response_id: str) -> Response:
    """Ask the deployment that holds a response for it, or to delete or cancel it.

    A response belongs to the key that created it: to others it is unknown.
    """
    gateway, caller = gateway_of(request), caller_of(request)

    async def holder(engine: Engine) -> Model:
        held = await gateway.held.fetch(response_id)
        found = engine.pool.holder(held) if engine.viewer(caller).sees(held) else None
        if found is None:
            raise ResponseNotFoundError(response_id[:200])
        return found

    return PassedAnswer(gateway, request, holder)
