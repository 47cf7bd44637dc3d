"""What probes ask: `/healthz` and `/readyz`, and the same under LiteLLM's names."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from router_service.http.state import gateway_of

routes = APIRouter()


class Health(BaseModel):
    """That the process answers."""

    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    """That requests can be sent here; a store that is away does not change that."""

    status: Literal["ready", "draining"]
    artifact: str
    store: Literal["ok", "away"]


class LiteLLMReadiness(BaseModel):
    """The same as LiteLLM says it; there is no database here."""

    status: Literal["healthy", "draining"]
    db: Literal["Not connected"] = "Not connected"


_DRAINING: dict[int | str, dict[str, Any]] = {
    503: {"model": Readiness, "description": "The process was asked to stop"}
}


@routes.get("/healthz")
async def healthz() -> Health:
    """Say that the process is alive."""
    return Health()


@routes.get("/readyz", responses=_DRAINING)
async def readyz(request: Request, response: Response) -> Readiness:
    """Say that requests are served: an app has its artifact before it listens."""
    gateway = gateway_of(request)
    store: Literal["ok", "away"] = "ok" if gateway.is_store_reachable else "away"
    status: Literal["ready", "draining"] = "draining" if gateway.drain.has_begun else "ready"
    response.status_code = 503 if gateway.drain.has_begun else 200
    return Readiness(status=status, artifact=gateway.engine.manifest.name, store=store)


@routes.get("/health/liveliness")
@routes.get("/health/liveness")
async def liveliness() -> str:
    """Say that the process is alive, to the end: one that drains must not be killed for it."""
    return "I'm alive!"


@routes.get("/health/readiness", responses=_DRAINING)
async def readiness(request: Request, response: Response) -> LiteLLMReadiness:
    """Say whether requests are served."""
    has_begun = gateway_of(request).drain.has_begun
    response.status_code = 503 if has_begun else 200
    return LiteLLMReadiness(status="draining" if has_begun else "healthy")
