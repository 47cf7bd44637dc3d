"""`GET /healthz` and `GET /readyz`."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request

from router_service.api.gateway import gateway_of

routes = APIRouter()


class Health(BaseModel):
    """That the process answers."""

    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    """That requests can be sent here; a store that is away does not change that."""

    status: Literal["ready"] = "ready"
    artifact: str
    store: Literal["ok", "away"]


@routes.get("/healthz")
async def healthz() -> Health:
    """Say that the process is alive."""
    return Health()


@routes.get("/readyz")
async def readyz(request: Request) -> Readiness:
    """Say that requests are served: an app has its artifact before it listens."""
    gateway = gateway_of(request)
    store: Literal["ok", "away"] = "ok" if gateway.store.is_reachable else "away"
    return Readiness(artifact=gateway.engine.manifest.name, store=store)
