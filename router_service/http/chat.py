"""`POST /v1/chat/completions`."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from router_service.http.answer import RoutedAnswer
from router_service.http.schemas import ANSWER, chat_request
from router_service.http.state import gateway_of
from router_service.requests.parsing import CHAT

routes = APIRouter()


@routes.post(
    "/v1/chat/completions",
    response_class=Response,
    responses=ANSWER,
    openapi_extra=chat_request(),
)
async def chat_completions(request: Request) -> Response:
    """Answer a chat request by the pool's model that is the right one for it."""
    return RoutedAnswer(gateway_of(request), CHAT, request)
