"""Gateway: everything that requests share, created once for an app."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from router_service.core.decision_log import DecisionRecord
from router_service.core.errors import OverloadedError
from router_service.lifecycle.engine import Engine
from router_service.lifecycle.gauges import Gauges
from router_service.lifecycle.overload import DecisionQueue, Slots
from router_service.lifecycle.reloading import Reloader, ReloadSource
from router_service.lifecycle.startup import Stores, shared_state
from router_service.lifecycle.syncing import Syncer
from router_service.requests.background import BackgroundLog, WeakEvidence
from router_service.requests.exchange import Exchange
from router_service.requests.feedback import Feedback
from router_service.requests.ownership import Ownership
from router_service.requests.planning import DecidingRouter
from router_service.requests.record import RecentRecords, Recorder
from router_service.settings import Settings
from router_service.store.base import (
    EvidenceMark,
    FeedbackMark,
    RememberedCall,
)
from router_service.telemetry.metrics import Metrics
from router_service.upstream.breaker import CircuitBreakers

if TYPE_CHECKING:
    from router_service.telemetry.tracing import OtlpExport

SHUTTING_DOWN = "shutting_down"
"""Reason, in metrics and errors, of requests that are refused during the shutdown."""


P = ParamSpec("P")
T = TypeVar("T")


class Drain:
    """Graceful shutdown of the process.

    For `delay_s` after the signal, requests are served as before, while readiness probes fail:
    load balancers take some seconds to notice. Then new requests are refused, and those in flight
    have `timeout_s` to end.
    """

    def __init__(
        self, *, delay_s: float, timeout_s: float, clock: Callable[[], float],
        in_flight: Callable[[], int],
    ) -> None:  # fmt: skip
        """Serve until `begin`; `clock` returns seconds and never goes back."""
        self._delay_s = delay_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._count_in_flight = in_flight
        self._begun_s: float | None = None

    @property
    def has_begun(self) -> bool:
        """Return whether the process was asked to stop, so that readiness probes fail."""
        return self._begun_s is not None

    @property
    def is_refusing(self) -> bool:
        """Return whether new requests are refused."""
        return self._begun_s is not None and self._clock() >= self._begun_s + self._delay_s

    @property
    def in_flight(self) -> int:
        """Number of requests whose answers are not complete."""
        return self._count_in_flight()

    @property
    def remaining_s(self) -> float:
        """Seconds that requests in flight still have."""
        begun_s = self._clock() if self._begun_s is None else self._begun_s
        return max(0.0, begun_s + self._delay_s + self._timeout_s - self._clock())

    @property
    def is_over(self) -> bool:
        """Return whether no request is in flight any more, or the time is over."""
        return self.is_refusing and (self.in_flight == 0 or self.remaining_s == 0)

    def begin(self) -> None:
        """Begin the shutdown; a second call has no effect."""
        if self._begun_s is None:
            self._begun_s = self._clock()

    def check(self) -> None:
        """Raise OverloadedError if new requests are refused."""
        if self.is_refusing:
            problem = "This gateway is shutting down. Retry: another gateway may answer."
            raise OverloadedError(SHUTTING_DOWN, problem)


class Gateway:
    """Everything that outlives a request, and the engine that answers the next one."""

    def __init__(
        self, settings: Settings, router: DecidingRouter, source: ReloadSource | None = None
    ) -> None:
        """Create all parts and the first engine; `settings.server` never changes afterwards.

        Without a `source` the gateway cannot be reloaded. Raises ConfigError if the settings do not
        fit the artifact.
        """
        self.server = server = settings.server
        self.metrics = Metrics()
        self.breakers = CircuitBreakers(
            settings.upstreams.breaker, time.monotonic, self._circuit_opened
        )
        self.engine = Engine(settings, router, self.breakers)
        stores = Stores(
            server, on_failed=lambda operation: self.metrics.store_errors.labels(operation).inc()
        )
        self.store = stores.records(DecisionRecord)
        self.held = stores.held_responses()
        self.ownership = Ownership(self.held)
        self.recent = RecentRecords()
        calls, evidence_marks = stores.records(RememberedCall), stores.records(EvidenceMark)
        log = settings.decision_log
        evidence = WeakEvidence(calls, evidence_marks, keeps_names=log.content)
        self.background = BackgroundLog(log, self.metrics, evidence)
        self.recorder = Recorder(self.metrics, self.store, self._request_ended)
        marks = stores.records(FeedbackMark)
        self.feedback = Feedback(self.store, marks, self.background, self.metrics)
        self.tracing: OtlpExport | None = None
        if settings.tracing.otlp_endpoint is not None:
            # Imported only if configured, because the exporter loads a second HTTP client.
            from router_service.telemetry.tracing import OtlpExport  # noqa: PLC0415

            self.tracing = OtlpExport(settings.tracing, self.metrics.spans_dropped.inc)
        self.reloader = Reloader(self, source)
        self.syncer = Syncer(
            shared_state(server),
            self.metrics,
            adopt=self.breakers.adopt,
            follower=self.reloader,
            after_sync=self.refresh_gauges,
        )
        self.slots = Slots(
            server.max_requests_in_flight,
            server.max_requests_in_flight_per_key,
            server.max_buffered_bytes,
        )
        self.drain = Drain(
            delay_s=server.drain_delay_s,
            timeout_s=server.shutdown_timeout_s,
            clock=time.monotonic,
            in_flight=lambda: self.slots.in_flight,
        )
        self._decisions = DecisionQueue(
            server.decision_threads, server.max_queued_decisions, server.max_decision_wait_s
        )
        self._gauges = Gauges(self.metrics, self.breakers, self.slots, self._decisions)
        self._gauges.show_engine(self.engine)

    @property
    def is_store_reachable(self) -> bool:
        """Return whether decision records can be stored and the shared state can be read."""
        return self.store.is_reachable and self.syncer.is_reachable

    async def replace_engine(self, engine: Engine) -> None:
        """Answer with another engine from the next request on, and retire the present one."""
        retired, self.engine = self.engine, engine
        self.breakers.reconfigure(engine.settings.upstreams.breaker)
        self._gauges.show_engine(engine)
        await retired.retire()

    def refresh_gauges(self) -> None:
        """Set the gauges to the present state."""
        self._gauges.refresh(self.engine)

    async def in_queue(
        self, caller: str | None, decide: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run what takes as long as a decision in the decisions' threads, for a caller's key.

        Raises OverloadedError.
        """
        return await self._decisions.run(caller, decide, *args, **kwargs)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the background work while the block runs, and then close the gateway."""
        self.background.start()
        syncing = asyncio.create_task(self.syncer.run())
        try:
            with self.reloader.on_hang_up():
                yield
        finally:
            self.syncer.stop()
            await asyncio.wait([syncing])
            await self.aclose()

    async def aclose(self) -> None:
        """Finish the background work and close all connections."""
        self._decisions.close()
        await self.reloader.aclose()
        await self.syncer.aclose()
        await self.engine.retire()
        await self.background.aclose()
        await self.store.aclose()
        await self.feedback.aclose()
        await self.held.aclose()
        if self.tracing is not None:
            await self.tracing.aclose()

    def _request_ended(self, exchange: Exchange) -> None:
        if exchange.record is not None:
            self.recent.add(exchange.record)
        self.background.answered(exchange)

    def _circuit_opened(self, deployment_id: str, seconds: float) -> None:
        self.syncer.opened(deployment_id, seconds)
        self.metrics.breaker_openings.labels(deployment_id).inc()
