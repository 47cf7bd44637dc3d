"""`GET /v1/decisions/{id}`."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request

from router_service.api.state import gateway_of
from router_service.core.errors import NotFoundError
from router_service.store.base import DecisionRecord

routes = APIRouter()


@routes.get("/v1/decisions/{decision_id}")
async def get_decision(request: Request, decision_id: str) -> DecisionRecord:
    """Return what was decided for a request that has ended, and what became of it."""
    record = await gateway_of(request).store.get(decision_id[:100])
    if record is None:
        raise NotFoundError("decision", decision_id[:100])
    return record
