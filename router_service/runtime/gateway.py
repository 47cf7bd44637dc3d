"""The gateway: everything that an app's requests share, with its gauges and its stores."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import anyio.to_thread

from router_service import __version__
from router_service.checker.tool_checks import CallValidity
from router_service.core.decision_record import DecisionRecord
from router_service.core.resources import SHARED_CACHES, Cache, CacheCounts, HeldMemory
from router_service.policies.caching import ConversationState
from router_service.policies.selection import Reason
from router_service.requests.conversations import Conversations
from router_service.requests.exchange import Exchange
from router_service.requests.feedback import BackgroundLog, Feedback, Verdict, WeakEvidence
from router_service.requests.limits import DecisionQueue, Drain, Slots
from router_service.requests.ownership import Ownership, UpstreamObjectIndex
from router_service.requests.planning import DecidingRouter, GatewayReason, Track
from router_service.requests.recording import RecentRecords, Recorder
from router_service.runtime.engine import Engine
from router_service.runtime.reloading import Reloader, ReloadSource
from router_service.runtime.syncing import Syncer
from router_service.settings import ServerSettings, Settings
from router_service.store.records import (
    EvidenceMark,
    FeedbackMark,
    GuardedStore,
    MemorySharedState,
    MemoryStore,
    R,
    RecordStore,
    RememberedCall,
    SharedState,
    UpstreamObject,
)
from router_service.store.workers import WorkerSharedState, WorkerStore
from router_service.telemetry.history import TrafficHistory
from router_service.telemetry.metrics import Metrics
from router_service.upstream.breaker import CircuitBreakers
from router_service.verifier.steps import UnverifiedReason

if TYPE_CHECKING:
    from router_service.telemetry.otlp import OtlpExport


class Gateway:
    """Everything that requests share, with the engine that answers new requests."""

    def __init__(
        self,
        settings: Settings,
        router: DecidingRouter,
        source: ReloadSource | None = None,
        workers_directory: Path | None = None,
    ) -> None:
        """Create all parts and the first engine; `settings.server` never changes afterwards.

        Without a `source` the gateway cannot be reloaded. `workers_directory` is the directory that
        the workers of this gateway share, see `store.workers`; None if there is one process.
        Raises ConfigError if the settings do not fit the artifact.
        """
        self.server = server = settings.server
        self.metrics = Metrics()

        def on_circuit_opened(deployment_id: str, seconds: float) -> None:
            self.syncer.opened(deployment_id, seconds)
            self.metrics.breaker_openings.labels(deployment_id).inc()

        self.breakers = CircuitBreakers(
            settings.upstreams.breaker, time.monotonic, on_circuit_opened
        )
        self.engine = Engine(settings, router, self.breakers)
        stores = Stores(
            server,
            workers_directory,
            on_failed=lambda operation: self.metrics.store_errors.labels(operation).inc(),
        )
        self.store = stores.records(DecisionRecord)
        self.held = stores.held_responses()
        self.ownership = Ownership(self.held)
        self.recent = RecentRecords()
        calls, evidence_marks = stores.records(RememberedCall), stores.records(EvidenceMark)
        log = settings.decision_log
        evidence = WeakEvidence(calls, evidence_marks, keeps_names=log.content)
        self.background = BackgroundLog(log, self.metrics, evidence)
        self.conversations = stores.conversations(self.metrics)

        def on_ended(exchange: Exchange) -> None:
            self.conversations.answered(exchange)
            self.background.answered(exchange)

        self.history = TrafficHistory(settings.history)
        self.recorder = Recorder(self.metrics, self.store, self.recent, self.history, on_ended)
        marks = stores.records(FeedbackMark)
        self.feedback = Feedback(self.store, marks, self.background, self.metrics)
        self.tracing: OtlpExport | None = None
        if settings.tracing.otlp_endpoint is not None:
            # Imported only if configured, because the exporter loads a second HTTP client.
            from router_service.telemetry.otlp import OtlpExport  # noqa: PLC0415

            self.tracing = OtlpExport(settings.tracing, self.metrics.spans_dropped.inc)
        self.reloader = Reloader(self, source)
        self.syncer: Syncer = Syncer(
            stores.shared_state(),
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
        self.decisions = DecisionQueue(
            server.decision_threads, server.max_queued_decisions, server.max_decision_wait_s
        )
        self._stores = stores.in_memory
        self._gauges = Gauges(
            self.metrics, self.breakers, self.slots, self.decisions, self.held_memory
        )
        self._gauges.show_engine(self.engine)

    @property
    def is_store_reachable(self) -> bool:
        """Return whether decision records can be stored and the shared state can be read."""
        return self.store.is_reachable and self.syncer.is_reachable

    async def replace_engine(self, engine: Engine) -> None:
        """Use another engine for new requests, and retire the current one."""
        retired, self.engine = self.engine, engine
        self.breakers.reconfigure(engine.settings.upstreams.breaker)
        self._gauges.show_engine(engine)
        self._measure()
        await retired.retire()

    def held_memory(self) -> Mapping[str, HeldMemory]:
        """Return what this process keeps for later requests, by name: its caches and stores."""
        routers = self.engine.releases.routers
        caches = {name: cache for router in routers for name, cache in router.caches.items()}
        return {**SHARED_CACHES, **caches, **self._stores}

    def refresh_gauges(self) -> None:
        """Set the gauges to the present state."""
        self._gauges.refresh(self.engine)

    def _measure(self) -> None:
        """Compute the figures of verified policies in a thread, before a goal asks for them.

        They take about a second if the configuration changes the arms or the prices.
        """
        measured = asyncio.to_thread(self.engine.explainer.verified_points)
        self._measuring = asyncio.create_task(measured)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the background work while the block runs, and then close the gateway."""
        self.background.start()
        self.history.start()
        syncing = asyncio.create_task(self.syncer.run())
        self._measure()
        try:
            with self.reloader.on_hang_up():
                yield
        finally:
            self.syncer.stop()
            await asyncio.wait([syncing, self._measuring])
            await self.aclose()

    async def aclose(self) -> None:
        """Finish the background work and close all connections."""
        self.decisions.close()
        await self.reloader.aclose()
        await self.syncer.aclose()
        await self.engine.retire()
        await self.background.aclose()
        await anyio.to_thread.run_sync(self.history.close)
        await self.store.aclose()
        await self.feedback.aclose()
        await self.held.aclose()
        await self.conversations.aclose()
        if self.tracing is not None:
            await self.tracing.aclose()


class Gauges:
    """Gauges that are set when metrics are read, at no cost for requests.

    The files of worker processes keep a label forever, so a gauge that no longer applies is set to
    0 and never removed.
    """

    def __init__(
        self,
        metrics: Metrics,
        breakers: CircuitBreakers,
        slots: Slots,
        decisions: DecisionQueue,
        held_memory: Callable[[], Mapping[str, HeldMemory]],
    ) -> None:
        """Create the series that do not depend on the engine; `show_engine` creates the others."""
        self._metrics = metrics
        self._breakers = breakers
        self._slots = slots
        self._decisions = decisions
        self._held_memory = held_memory
        self._artifact: tuple[str, ...] | None = None
        self._graph: tuple[str, ...] | None = None
        self._arms: set[tuple[str, str, str]] = set()
        self._deployment_ids: set[str] = set()
        self._counted: WeakKeyDictionary[Cache[Any, Any], CacheCounts] = WeakKeyDictionary()
        metrics.build_info.labels(__version__).set(1)
        # Created with 0, because Prometheus misses the first increase of a series that is new.
        for kind in ("config", "artifact"):
            metrics.last_reload_successful.labels(kind).set(1)
            metrics.last_reload_timestamp_seconds.labels(kind).set(time.time())
            for outcome in ("taken", "refused"):
                metrics.reloads.labels(kind, outcome)
        for reason in ("overloaded", "decisions_queued", "too_many_requests", "shutting_down"):
            metrics.shed_requests.labels(reason)
        for operation in ("put", "get", "overflow", "pause"):
            metrics.store_errors.labels(operation)
        for track in Track:
            metrics.router_failures.labels(track)
            metrics.release_requests.labels(track)
            metrics.release_failures.labels(track)
            metrics.release_cost_usd.labels(track)
        for bound in ("errors", "cost"):
            metrics.canary_withdrawals.labels(bound)
        for line in ("decision", "feedback", "evidence"):
            metrics.log_lines.labels(line)
        for reason in ("full", "failed"):
            metrics.log_dropped.labels(reason)

    def show_engine(self, engine: Engine) -> None:
        """Show the engine that answers from now on, and create the series of its models."""
        metrics = self._metrics
        self._show_artifact(engine)
        self._show_arms(engine)
        metrics.latency_budget_seconds.set(engine.settings.router.latency_budget_s)
        for arm in engine.pool.by_arm:
            metrics.chosen_probability.labels(arm)
            metrics.unfamiliar_requests.labels(arm)
            for reason in Reason:
                metrics.decisions.labels(arm, reason)
            metrics.conversation_switches.labels(arm)
            metrics.conversation_caches.labels(arm, "hit")
            metrics.conversation_caches.labels(arm, "miss")
            for verdict in Verdict:
                metrics.feedback.labels(arm, verdict)
            for kind in ("tool_error", "repeated_call"):
                metrics.weak_evidence.labels(arm, kind)
        self._show_verification(engine)
        for deployment_id in engine.deployment_ids:
            metrics.breaker_openings.labels(deployment_id)
        # A model without a price gets no cost series, because 0 would be wrong.
        baseline = engine.pool.baseline
        for model in {model.name: model for model in engine.pool.models.values()}.values():
            metrics.broken_streams.labels(model.name)
            metrics.upstream_seconds.labels(model.name)
            metrics.time_to_first_token.labels(model.name)
            for fits in CallValidity:
                metrics.tool_calls.labels(model.name, fits)
            for source in ("upstream", "gateway"):
                if model.price is not None:
                    metrics.cost_usd.labels(model.name, source)
                for kind in ("prompt", "completion", "cached", "reasoning"):
                    metrics.tokens.labels(model.name, kind, source)
            if baseline is not None and baseline.price is not None and model.price is not None:
                metrics.routed_cost_usd.labels(model.name)
                metrics.baseline_cost_usd.labels(model.name)
        self.refresh(engine)

    def _show_artifact(self, engine: Engine) -> None:
        """Show the artifact that decides, and the graph that runs."""
        manifest, execution, metrics = engine.manifest, engine.execution, self._metrics
        if self._artifact is not None:
            metrics.artifact_info.labels(*self._artifact).set(0)
        self._artifact = (manifest.name, manifest.encoder.name, manifest.provenance.commit)
        metrics.artifact_info.labels(*self._artifact).set(1)
        if self._graph is not None:
            metrics.graph_info.labels(*self._graph).set(0)
        self._graph = (execution.graph, execution.provider)
        metrics.graph_info.labels(*self._graph).set(1)

    def _show_arms(self, engine: Engine) -> None:
        """Show which model serves each arm, and how many models serve none."""
        mapping, metrics = engine.pool.mapping, self._metrics
        for series in self._arms:
            metrics.arm_info.labels(*series).set(0)
        self._arms = {(arm, mapping.models[arm], mapping.bases[arm]) for arm in mapping.models}
        for series in self._arms:
            metrics.arm_info.labels(*series).set(1)
        metrics.unrouted_models.set(len(mapping.unrouted))

    def _show_verification(self, engine: Engine) -> None:
        """Create the series of verified answers, if the artifact has a verifier."""
        metrics = self._metrics
        if engine.manifest.verifier is None:
            return
        for unverified in UnverifiedReason:
            metrics.unverified_requests.labels(unverified)
        for agrees in ("yes", "no"):
            metrics.verification_agreement.labels(agrees)
        for arm, model in engine.pool.by_arm.items():
            for reason in (
                GatewayReason.VERIFIED,
                GatewayReason.TEXT,
                GatewayReason.UNGROUNDED,
            ):
                metrics.decisions.labels(arm, reason)
            for outcome in ("accepted", "rejected", "failed"):
                metrics.candidates.labels(arm, outcome)
            if model.price is not None:
                metrics.rejected_cost_usd.labels(arm)

    def refresh(self, engine: Engine) -> None:
        """Set the gauges to the present state."""
        metrics = self._metrics
        try:
            metrics.tasks.set(len(asyncio.all_tasks()))
        except RuntimeError:  # the event loop does not run yet
            metrics.tasks.set(0)
        metrics.requests_in_flight.set(self._slots.in_flight)
        metrics.decisions_queued.set(self._decisions.waiting)
        present = set(engine.deployment_ids)
        open_ids = self._breakers.open_circuits().keys() & present
        metrics.deployments_available.set(len(present) - len(open_ids))
        self._deployment_ids |= present
        for deployment_id in self._deployment_ids:
            metrics.breaker_open.labels(deployment_id).set(deployment_id in open_ids)
        caches = {item for router in engine.releases.routers for item in router.caches.items()}
        for name, cache in caches:
            before, now = self._counted.get(cache, CacheCounts()), cache.counts
            metrics.cache_lookups.labels(name, "hit").inc(now.hits - before.hits)
            metrics.cache_lookups.labels(name, "miss").inc(now.misses - before.misses)
            self._counted[cache] = now
        for name, held in self._held_memory().items():
            metrics.held_bytes.labels(name).set(held.size_bytes)


@dataclass(frozen=True, slots=True)
class Stores:
    """Factory of a process's stores: shared through Redis, shared by workers, or in memory."""

    server: ServerSettings
    workers_directory: Path | None
    """Directory that the workers of the gateway share; None if there is one process."""
    on_failed: Callable[[str], None]
    """Called with the name of an operation that failed."""
    in_memory: dict[str, HeldMemory] = field(default_factory=dict)
    """The stores in this process's memory, by name."""

    def records(self, kind: type[R]) -> GuardedStore[R]:
        """Return a store whose records live as long as decision records."""
        ttl_s = self.server.decision_ttl_s
        store = self._shared(kind, ttl_s) or self._in_memory(kind, ttl_s, self.server.max_decisions)
        return GuardedStore(store, self.on_failed)

    def held_responses(self) -> UpstreamObjectIndex:
        """Return the index of stored responses, with the deployment and the API key of each."""
        ttl_s = self.server.response_ttl_s
        seen = self._in_memory(UpstreamObject, ttl_s, self.server.max_responses)
        shared = self._shared(UpstreamObject, ttl_s)
        return UpstreamObjectIndex(seen, GuardedStore(shared, self.on_failed) if shared else None)

    def conversations(self, metrics: Metrics) -> Conversations:
        """Return the states of conversations, which are kept like decision records."""
        ttl_s = self.server.decision_ttl_s
        shared = self._shared(ConversationState, ttl_s)
        return Conversations(
            self._in_memory(ConversationState, ttl_s, self.server.max_decisions),
            GuardedStore(shared, self.on_failed) if shared else None,
            metrics,
        )

    def shared_state(self) -> SharedState:
        """Return the state that replicas or workers share."""
        if self.server.redis_url is not None:
            # Imported only if configured, because importing the Redis client takes 0.17 s, mostly
            # for OpenTelemetry's metrics if they are installed (python -X importtime).
            from router_service.store.redis import RedisSharedState  # noqa: PLC0415

            return RedisSharedState(self.server.redis_url.get_secret_value())
        if self.workers_directory is not None:
            return WorkerSharedState(self.workers_directory)
        return MemorySharedState(time.monotonic)

    def _shared(self, kind: type[R], ttl_s: int) -> RecordStore[R] | None:
        """Return a store outside this process, or None if no other process needs its records."""
        if self.server.redis_url is not None:
            from router_service.store.redis import RedisStore  # noqa: PLC0415 - only if configured

            return RedisStore(self.server.redis_url.get_secret_value(), kind, ttl_s=ttl_s)
        if self.workers_directory is not None:
            return WorkerStore(self.workers_directory, kind)
        return None

    def _in_memory(self, kind: type[R], ttl_s: int, max_records: int) -> MemoryStore[R]:
        store: MemoryStore[R] = MemoryStore(
            ttl_s=ttl_s,
            max_records=max_records,
            clock=time.monotonic,
            max_mean_bytes=kind.max_mean_bytes,
        )
        self.in_memory[f"{kind.kind}_records"] = store
        return store
