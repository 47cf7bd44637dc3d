"""The parts that requests share, made once for an app."""

from __future__ import annotations

import time
from typing import cast

import anyio
import anyio.to_thread
from starlette.requests import Request

from router_service import __version__
from router_service.api.planning import DecidingRouter, Plan, Planner
from router_service.api.pool import Pool
from router_service.api.recorder import Recorder
from router_service.core.errors import ConfigError, PolicyError
from router_service.core.selection import Policy
from router_service.settings import ServerSettings, Settings
from router_service.store.base import DecisionStore
from router_service.store.guarded import GuardedStore
from router_service.store.memory import MemoryStore
from router_service.store.redis import RedisStore
from router_service.telemetry.metrics import Metrics
from router_service.upstream.client import UpstreamClient


class Gateway:
    """Everything that outlives a request; raises ConfigError where settings and artifact differ."""

    def __init__(self, settings: Settings, router: DecidingRouter) -> None:
        manifest = router.artifact.manifest
        pool = Pool.build(settings, manifest)
        self.settings = settings
        self.artifact_name = manifest.name
        self.planner = Planner(
            router,
            pool,
            model_name=settings.router.model_name,
            default_policy=_default_policy(settings, router),
        )
        self.metrics = Metrics()
        self.metrics.build_info.labels(__version__).set(1)
        self.metrics.artifact_info.labels(
            manifest.name, manifest.encoder.name, manifest.provenance.commit
        ).set(1)
        self.store = GuardedStore(
            _store(settings.server),
            on_error=lambda operation: self.metrics.store_errors.labels(operation).inc(),
        )
        self.recorder = Recorder(self.metrics, self.store, pool.prices)
        self.upstream = UpstreamClient(
            pool.models.values(), settings.server, settings.router.forward_headers
        )
        self._threads = anyio.CapacityLimiter(settings.server.decision_threads)

    async def plan(self, body: bytes, policy: str | None) -> Plan:
        """Plan a request in a thread of its own; raises as `Planner.plan` does."""
        started_s = time.perf_counter()
        plan = await anyio.to_thread.run_sync(
            self.planner.plan, body, policy, limiter=self._threads
        )
        self.metrics.decision_seconds.observe(time.perf_counter() - started_s)
        return plan

    async def aclose(self) -> None:
        """Finish what is under way, and let go of all connections."""
        await self.upstream.aclose()
        await self.store.aclose()


def gateway_of(request: Request) -> Gateway:
    """Return the gateway of the app that a request came to."""
    return cast("Gateway", request.app.state.gateway)


def _default_policy(settings: Settings, router: DecidingRouter) -> Policy:
    try:
        return router.policy(settings.router.default_policy)
    except PolicyError as exc:
        raise ConfigError(settings.source, "router.default_policy", exc.problem) from exc


def _store(server: ServerSettings) -> DecisionStore:
    if server.redis_url is not None:
        return RedisStore(server.redis_url.get_secret_value(), ttl_s=server.decision_ttl_s)
    return MemoryStore(
        ttl_s=server.decision_ttl_s, max_records=server.max_decisions, clock=time.monotonic
    )
