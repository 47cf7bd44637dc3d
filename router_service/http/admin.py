"""`POST /admin/reload` and `GET /admin/status`."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.requests import Request

from router_service.core.releases import Publication
from router_service.http.state import gateway_of
from router_service.lifecycle.gateway import Gateway
from router_service.lifecycle.reloading import Refusal, Report
from router_service.requests.planning import Track

routes = APIRouter(prefix="/admin")


class Tried(BaseModel):
    """What this gateway has counted of one release since a canary began."""

    release: Track
    requests: int
    error_share: float
    mean_cost_usd: float
    """Of the requests whose cost is known."""


class Status(BaseModel):
    """What serves, and what was not taken up."""

    artifact: str
    """Name of the artifact that decides."""
    publication: Publication | None
    """What is served of what is published: without a canary that was withdrawn."""
    tried: tuple[Tried, ...]
    left_alone: tuple[str, ...]
    """Deployments that no request is sent to now, because they failed."""
    shared_state: str
    """`up` or `away`."""
    last_refusal: Refusal | None


@routes.post("/reload")
async def reload(request: Request) -> Report:
    """Read the configuration anew, and take it up whole or not at all.

    The other workers follow where it was taken up, each by itself.
    """
    return await gateway_of(request).reloader.reload_all()


@routes.get("/status")
async def status(request: Request) -> Status:
    """Say what serves."""
    gateway = gateway_of(request)
    return Status(
        artifact=gateway.engine.manifest.name,
        publication=gateway.reloader.publication,
        tried=tuple(_tried(gateway)),
        left_alone=tuple(sorted(gateway.breakers.open_ids())),
        shared_state="up" if gateway.syncer.is_reachable else "away",
        last_refusal=gateway.reloader.refusal,
    )


def _tried(gateway: Gateway) -> Iterator[Tried]:
    trial = gateway.engine.planner.canary
    for track, tally in trial.tallies.items() if trial else ():
        yield Tried(
            release=track,
            requests=tally.requests,
            error_share=tally.error_share,
            mean_cost_usd=tally.mean_cost_usd,
        )
