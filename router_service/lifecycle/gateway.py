"""The parts that requests share, made once for an app."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import ParamSpec, TypeVar

from router_service.core.errors import ResponseNotFoundError
from router_service.core.messages import Reference, decode_object, find_references
from router_service.core.tracing import Tracer
from router_service.lifecycle.draining import Drain
from router_service.lifecycle.engine import Engine
from router_service.lifecycle.gauges import Gauges
from router_service.lifecycle.overload import DecisionQueue, Slots
from router_service.lifecycle.reloading import Origin, Reloader
from router_service.lifecycle.stores import Stores, shared_state
from router_service.lifecycle.syncing import Syncer
from router_service.requests.aftermath import Aftermath
from router_service.requests.deciding import InQueue, Question, plan_for
from router_service.requests.evidence import Evidence
from router_service.requests.feedback import Feedback
from router_service.requests.ownership import Ownership
from router_service.requests.planning import DecidingRouter, Holders, Plan
from router_service.requests.recent import Recent
from router_service.requests.recorder import Ended, Recorder
from router_service.settings import ServerSettings, Settings, TracingSettings
from router_service.store.base import (
    DecisionRecord,
    EvidenceMark,
    FeedbackMark,
    RememberedCall,
    UpstreamObject,
)
from router_service.store.upstream_objects import Viewer
from router_service.telemetry.metrics import Metrics
from router_service.upstream.breaker import CircuitBreakers

_log = logging.getLogger("switchcraft.gateway")

P = ParamSpec("P")
T = TypeVar("T")


class Gateway:
    """Everything that outlives a request, and the engine that answers the next one."""

    def __init__(
        self, settings: Settings, router: DecidingRouter, origin: Origin | None = None
    ) -> None:
        """Start with an engine of these; `settings.server` is read once for the process.

        Without an `origin` there is nothing to reload from. Raises ConfigError where settings and
        artifact differ.
        """
        self.server = settings.server
        self.metrics = Metrics()
        self.breakers = CircuitBreakers(
            settings.upstreams.breaker, time.monotonic, self._left_alone
        )
        self.engine = Engine(settings, router, self.breakers)
        stores = Stores(settings.server, self._store_failed)
        self.store = stores.records(DecisionRecord)
        self.held = stores.held_responses()
        self.ownership = Ownership(self.held)
        self.recent = Recent()
        self.aftermath = self._aftermath(settings, stores)
        self.recorder = Recorder(self.metrics, self.store, self._ended)
        marks = stores.records(FeedbackMark)
        self.feedback = Feedback(self.store, marks, self.aftermath, self.metrics)
        self.tracer = _tracer(settings.tracing, self.metrics)
        self.reloader = Reloader(self, origin)
        self.syncer = Syncer(
            shared_state(settings.server),
            self.metrics,
            adopt=self.breakers.adopt,
            follower=self.reloader,
            on_look=self.show,
        )
        server = settings.server
        self.slots = Slots(
            server.max_requests_in_flight,
            server.max_requests_in_flight_per_key,
            server.max_buffered_bytes,
        )
        self.drain = self._drain(server)
        self._decisions = DecisionQueue(
            server.decision_threads, server.max_queued_decisions, server.max_decision_wait_s
        )
        self._gauges = Gauges(self.metrics, self.breakers, self.slots, self._decisions)
        self._gauges.take_up(self.engine)

    @property
    def is_store_reachable(self) -> bool:
        """Whether decisions can be kept, and the state that replicas share can be read."""
        return self.store.is_reachable and self.syncer.is_reachable

    async def swap(self, engine: Engine) -> None:
        """Answer from the next request on with another engine, and retire the present one."""
        retired, self.engine = self.engine, engine
        self.breakers.reconfigure(engine.settings.upstreams.breaker)
        self._gauges.take_up(engine)
        await retired.retire()

    def show(self) -> None:
        """Bring the gauges up to date."""
        self._gauges.refresh(self.engine)

    async def plan(
        self, engine: Engine, question: Question, viewer: Viewer, in_queue: InQueue
    ) -> Plan:
        """Plan a request; raises as `plan_for` does, and as `Ownership.check_references`.

        `in_queue` runs what takes long, and the question's holders are those for the viewer.
        """
        started_s = time.perf_counter()
        endpoint, body = question.endpoint, question.body
        if not viewer.sees_unowned and engine.may_name_objects(endpoint, body):
            references = await in_queue(lambda: find_references(decode_object(body)))
            await self.ownership.check_references(viewer, references)
        try:
            plan = await plan_for(question, in_queue)
        except ResponseNotFoundError as exc:
            # Another replica may have relayed it: this is the one request that waits for Redis.
            await self.held.fetch(exc.identifier)
            question = replace(question, holders=self.held_for(viewer, is_fetched=True))
            plan = await plan_for(question, in_queue)
        seconds = time.perf_counter() - started_s
        self.metrics.decision_seconds.observe(seconds)
        if seconds > engine.settings.router.latency_budget_s:
            self.metrics.decisions_over_budget.inc()
        return plan

    async def in_queue(
        self, caller: str | None, decide: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run what takes as long as a decision in the decisions' threads, for a caller's key.

        Raises OverloadedError.
        """
        return await self._decisions.run(caller, decide, *args, **kwargs)

    def held_for(self, viewer: Viewer, *, is_fetched: bool = False) -> Holders:
        """Return what says who holds a reference, or raises ResponseNotFoundError.

        Unless it `is_fetched`, what this process does not know may be known to the shared store.
        """

        def holder(reference: Reference) -> UpstreamObject | None:
            held = self.held.find(reference.id)
            if not viewer.sees(held) or (held is None and not is_fetched):
                raise ResponseNotFoundError(reference.id[:200], param=reference.param)
            return held

        return holder

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Do what goes on beside requests for as long as the block runs, and then close."""
        self.aftermath.start()
        syncing = asyncio.create_task(self.syncer.run())
        try:
            with self.reloader.on_hang_up():
                yield
        finally:
            syncing.cancel()
            await asyncio.wait([syncing])
            await self.aclose()

    async def aclose(self) -> None:
        """Finish what is under way, and let go of all connections."""
        self._decisions.close()
        await self.reloader.aclose()
        await self.syncer.aclose()
        await self.engine.retire()
        await self.aftermath.aclose()
        await self.store.aclose()
        await self.feedback.aclose()
        await self.held.aclose()
        await self.tracer.aclose()

    def _aftermath(self, settings: Settings, stores: Stores) -> Aftermath:
        log = settings.decision_log
        calls, marks = stores.records(RememberedCall), stores.records(EvidenceMark)
        evidence = Evidence(calls, marks, keeps_names=log.content)
        return Aftermath(log, self.metrics, evidence)

    def _drain(self, server: ServerSettings) -> Drain:
        return Drain(
            delay_s=server.drain_delay_s,
            timeout_s=server.shutdown_timeout_s,
            clock=time.monotonic,
            in_flight=lambda: self.slots.in_flight,
        )

    def _store_failed(self, operation: str) -> None:
        self.metrics.store_errors.labels(operation).inc()

    def _ended(self, ended: Ended) -> None:
        self.recent.add(ended.record)
        self.aftermath.answered(ended)

    def _left_alone(self, deployment_id: str, seconds: float) -> None:
        self.syncer.opened(deployment_id, seconds)
        self.metrics.breaker_openings.labels(deployment_id).inc()
        _log.warning("deployment %s is left alone for %.1f s", deployment_id, seconds)


def _tracer(settings: TracingSettings, metrics: Metrics) -> Tracer:
    if settings.otlp_endpoint is None:
        return Tracer()
    # Loaded where it is wanted alone: the exporter brings a second HTTP client.
    from router_service.telemetry.tracing import OtlpTracer  # noqa: PLC0415

    return OtlpTracer(settings, metrics.spans_dropped.inc)
