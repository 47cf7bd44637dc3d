"""The parts that requests share, made once for an app."""

from __future__ import annotations

import time
from typing import cast

import anyio
import anyio.to_thread
from starlette.requests import Request

from router_service import __version__
from router_service.api.endpoints import Endpoint
from router_service.api.engine import Engine
from router_service.api.planning import Plan
from router_service.api.recorder import Recorder
from router_service.settings import ServerSettings, Settings
from router_service.store.base import DecisionStore
from router_service.store.guarded import GuardedStore
from router_service.store.memory import MemoryStore
from router_service.store.redis import RedisStore
from router_service.telemetry.metrics import Metrics


class Gateway:
    """Everything that outlives a request, and the engine that answers the next one."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        """Start with an engine; `settings.server` is read here, once for the process."""
        self.server = settings.server
        self.engine = engine
        self.metrics = Metrics()
        self.metrics.build_info.labels(__version__).set(1)
        self._show_artifact()
        self.store = GuardedStore(
            _store(settings.server),
            on_error=lambda operation: self.metrics.store_errors.labels(operation).inc(),
        )
        self.recorder = Recorder(self.metrics, self.store)
        self._threads = anyio.CapacityLimiter(settings.server.decision_threads)

    async def swap(self, engine: Engine) -> None:
        """Answer from the next request on with another engine, and retire the present one."""
        retired, self.engine = self.engine, engine
        self._show_artifact()
        await retired.retire()

    async def plan(
        self, engine: Engine, endpoint: Endpoint, body: bytes, policy: str | None
    ) -> Plan:
        """Plan a request in a thread of its own; raises as `Planner.plan` does."""
        started_s = time.perf_counter()
        plan = await anyio.to_thread.run_sync(
            engine.planner.plan, endpoint, body, policy, limiter=self._threads
        )
        self.metrics.decision_seconds.observe(time.perf_counter() - started_s)
        return plan

    async def aclose(self) -> None:
        """Finish what is under way, and let go of all connections."""
        await self.engine.retire()
        await self.store.aclose()

    def _show_artifact(self) -> None:
        manifest, info = self.engine.manifest, self.metrics.artifact_info
        info.clear()
        info.labels(manifest.name, manifest.encoder.name, manifest.provenance.commit).set(1)


def gateway_of(request: Request) -> Gateway:
    """Return the gateway of the app that a request came to."""
    return cast("Gateway", request.app.state.gateway)


def _store(server: ServerSettings) -> DecisionStore:
    if server.redis_url is not None:
        return RedisStore(server.redis_url.get_secret_value(), ttl_s=server.decision_ttl_s)
    return MemoryStore(
        ttl_s=server.decision_ttl_s, max_records=server.max_decisions, clock=time.monotonic
    )
