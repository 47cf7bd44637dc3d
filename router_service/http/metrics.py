"""`GET /metrics`."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from router_service.http.state import gateway_of
from router_service.telemetry.metrics import CONTENT_TYPE

routes = APIRouter()


@routes.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Show every series in Prometheus' text format."""
    gateway = gateway_of(request)
    gateway.show()
    return Response(gateway.metrics.exposition(), headers={"content-type": CONTENT_TYPE})
