"""`GET /ui`: the page, and the JSON that it alone asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router_service.core.errors import NotFoundError
from router_service.http.answer import RoutedAnswer
from router_service.http.asgi import unless_client_leaves
from router_service.http.auth import PAGE, caller_of, is_page
from router_service.http.body import read_body
from router_service.http.state import gateway_of
from router_service.requests.endpoints import CHAT, RESPONSES
from router_service.requests.explaining import Explained
from router_service.store.base import DecisionRecord
from router_service.ui.schemas import ArtifactCard, RecentDecisions

FOLDER = Path(__file__).parent / "web"

HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'; require-trusted-types-for 'script'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Files are asked for again and not sent again: an update is seen at once.
    "cache-control": "private, no-cache",
}

routes = APIRouter(prefix=PAGE, include_in_schema=False)
static = StaticFiles(directory=FOLDER / "static")

Api = Annotated[Literal["chat", "responses"], Query()]
_ENDPOINTS = {"chat": CHAT, "responses": RESPONSES}


class PageHeaders:
    """ASGI middleware that tells browsers what the page may do: use its own files, no more."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap an app."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, and add the headers to what is the page's."""
        if scope["type"] != "http" or not is_page(scope["path"]):
            await self._app(scope, receive, send)
            return

        async def send_with(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with)


@routes.get("")
async def page() -> FileResponse:
    """Show the page."""
    return FileResponse(FOLDER / "index.html")


@routes.get("/")
async def page_with_slash() -> RedirectResponse:
    """Lead to the page; relative, for the gateway may stand behind a prefix."""
    return RedirectResponse(f"..{PAGE}", status_code=308)


@routes.post("/api/explain")
async def explain(
    request: Request, api: Api = "chat", policy: Annotated[str | None, Query()] = None
) -> Explained:
    """Decide for a request body, say why, and send it nowhere."""
    gateway = gateway_of(request)
    body = await read_body(request, gateway.server)
    async with gateway.engine.lease() as engine:
        explained = gateway.in_queue(
            caller_of(request), engine.explainer.explain, _ENDPOINTS[api], body, policy
        )
        return await unless_client_leaves(request.receive, explained)


@routes.post("/api/ask/{api}")
async def ask(request: Request, api: Literal["chat", "responses"]) -> Response:
    """Answer a request as the API does, for whoever may open the page."""
    return RoutedAnswer(gateway_of(request), _ENDPOINTS[api], request)


@routes.get("/api/recent", response_model=RecentDecisions)
async def recent(request: Request, response: Response) -> RecentDecisions | Response:
    """List the last decisions of this process; 304 where there is none since (RFC 9110, 13.1.2)."""
    kept = gateway_of(request).recent
    tag = f'"{kept.version}"'
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers={"etag": tag})
    response.headers["etag"] = tag
    return RecentDecisions.of(kept)


@routes.get("/api/recent/{decision_id}")
async def recent_decision(request: Request, decision_id: str) -> DecisionRecord:
    """Return one decision, of this process or as long as the store keeps it."""
    gateway = gateway_of(request)
    record = gateway.recent.get(decision_id) or await gateway.store.get(decision_id[:100])
    if record is None:
        raise NotFoundError("decision", decision_id[:100])
    return record


@routes.get("/api/artifact")
async def artifact(request: Request) -> ArtifactCard:
    """Say what decides: where it comes from, and what it was measured to do."""
    return ArtifactCard.of(gateway_of(request).engine)
