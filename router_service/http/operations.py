"""Routes for operators: health and readiness, metrics, status and reload."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from router_service.core.releases import Publication
from router_service.http.incoming import gateway_of
from router_service.lifecycle.reloading import ReloadFailure, ReloadReport
from router_service.requests.planning import Track
from router_service.telemetry.metrics import CONTENT_TYPE

routes = APIRouter()


class Health(BaseModel):
    """Answer of a process that is alive."""

    status: Literal["ok"] = "ok"


class Readiness(BaseModel):
    """Whether requests can be sent to this gateway; an unreachable store does not change that."""

    status: Literal["ready", "draining"]
    artifact: str
    store: Literal["ok", "away"]


class LiteLLMReadiness(BaseModel):
    """Readiness in LiteLLM's format; the gateway has no database."""

    status: Literal["healthy", "draining"]
    db: Literal["Not connected"] = "Not connected"


_DRAINING: dict[int | str, dict[str, Any]] = {
    503: {"model": Readiness, "description": "The process is shutting down"}
}


class ReleaseStatistics(BaseModel):
    """Results of one release on this gateway since a canary release began."""

    release: Track
    requests: int
    error_share: float
    mean_cost_usd: float
    """Mean over the requests whose cost is known."""


class GatewayStatus(BaseModel):
    """The release that serves, and the last reload that failed."""

    artifact: str
    """Name of the artifact that decides."""
    publication: Publication | None
    """The publication that is served, without a canary release that was rolled back."""
    tried: tuple[ReleaseStatistics, ...]
    left_alone: tuple[str, ...]
    """Deployments whose circuit is open, so that no request is sent to them."""
    shared_state: str
    """`up` or `away`."""
    last_refusal: ReloadFailure | None


@routes.get("/healthz")
async def healthz() -> Health:
    """Return whether the process is alive."""
    return Health()


@routes.get("/readyz", responses=_DRAINING)
async def readyz(request: Request, response: Response) -> Readiness:
    """Return whether requests are served; the artifact is loaded before the gateway listens."""
    gateway = gateway_of(request)
    store: Literal["ok", "away"] = "ok" if gateway.is_store_reachable else "away"
    status: Literal["ready", "draining"] = "draining" if gateway.drain.has_begun else "ready"
    response.status_code = 503 if gateway.drain.has_begun else 200
    return Readiness(status=status, artifact=gateway.engine.manifest.name, store=store)


@routes.get("/health/liveliness")
@routes.get("/health/liveness")
async def liveliness() -> str:
    """Return whether the process is alive; also while it drains, so that it is not killed."""
    return "I'm alive!"


@routes.get("/health/readiness", responses=_DRAINING)
async def readiness(request: Request, response: Response) -> LiteLLMReadiness:
    """Return whether requests are served, in LiteLLM's format."""
    has_begun = gateway_of(request).drain.has_begun
    response.status_code = 503 if has_begun else 200
    return LiteLLMReadiness(status="draining" if has_begun else "healthy")


@routes.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Return every series in Prometheus' text format."""
    gateway = gateway_of(request)
    gateway.refresh_gauges()
    return Response(gateway.metrics.exposition(), headers={"content-type": CONTENT_TYPE})


@routes.post("/admin/reload")
async def reload(request: Request) -> ReloadReport:
    """Read the configuration again and apply all of it, or nothing if any part is invalid.

    If it is applied, the other workers of this gateway reload as well, each by itself.
    """
    return await gateway_of(request).reloader.reload_all()


@routes.get("/admin/status")
async def status(request: Request) -> GatewayStatus:
    """Return the release that serves, open circuits, and the last reload that failed."""
    gateway = gateway_of(request)
    trial = gateway.engine.releases.canary
    statistics = (
        ReleaseStatistics(
            release=track,
            requests=tally.requests,
            error_share=tally.error_share,
            mean_cost_usd=tally.mean_cost_usd,
        )
        for track, tally in (trial.tallies.items() if trial else ())
    )
    return GatewayStatus(
        artifact=gateway.engine.manifest.name,
        publication=gateway.reloader.publication,
        tried=tuple(statistics),
        left_alone=tuple(sorted(gateway.breakers.open_ids())),
        shared_state="up" if gateway.syncer.is_reachable else "away",
        last_refusal=gateway.reloader.last_failure,
    )
