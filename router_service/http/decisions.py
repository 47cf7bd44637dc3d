"""`GET /v1/decisions/{id}`."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request

from router_service.http.auth import caller_of
from router_service.http.state import gateway_of
from router_service.store.base import DecisionRecord

routes = APIRouter()


@routes.get("/v1/decisions/{decision_id}")
async def get_decision(request: Request, decision_id: str) -> DecisionRecord:
    """Return what was decided for a request that has ended, and what became of it.

    A key sees its own alone; the admin key sees all.
    """
    return await gateway_of(request).feedback.decision(decision_id[:100], caller_of(request))
