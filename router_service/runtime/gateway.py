"""The gateway: everything that an app's requests share, how it is connected, starts and stops."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import anyio.to_thread

from router_service import __version__
from router_service.access.admission import Access
from router_service.access.budgets import Budgets
from router_service.access.keyring import COMPARE_NAMES_S, REFRESH_S, StoredKeys
from router_service.access.limits import RateLimits
from router_service.access.pacing import READ_EVERY_S, Pacing
from router_service.core.decision_record import DecisionRecord
from router_service.core.errors import StoreError
from router_service.core.resources import SHARED_CACHES, HeldMemory
from router_service.database.background import DatabaseThread
from router_service.database.engine import Database
from router_service.measurement.operating_points import OperatingPoints
from router_service.policies.caching import ConversationState
from router_service.requests.call import Call
from router_service.requests.comparing import ModelComparer
from router_service.requests.conversations import Conversations
from router_service.requests.feedback import BackgroundLog, Feedback, WeakEvidence
from router_service.requests.limits import (
    LIST_THREADS,
    MAX_WAITING_LISTS,
    DecisionQueue,
    Drain,
    Slots,
)
from router_service.requests.ownership import Ownership, UpstreamObjectIndex
from router_service.requests.recording import Recorder
from router_service.router import Router
from router_service.runtime.engine import Engine
from router_service.runtime.gauges import show_engine
from router_service.runtime.reloading import Reloader, ReloadSource
from router_service.runtime.syncing import Syncer
from router_service.settings import Settings
from router_service.store.memory import MemoryStore, R
from router_service.store.opening import open_store
from router_service.store.records import (
    FeedbackMark,
    Records,
    UpstreamObject,
)
from router_service.store.shared_limits import SharedLimits
from router_service.telemetry.comparisons import Comparisons
from router_service.telemetry.logs import FIELDS
from router_service.telemetry.metrics import Metrics
from router_service.telemetry.recent_requests import RecentRequests
from router_service.telemetry.sinks import CONTINUE_TIDYING_S, WRITE_EVERY_S
from router_service.telemetry.usage import UsageHistory
from router_service.upstream.breaker import CircuitBreakers

if TYPE_CHECKING:
    from router_service.telemetry.otlp import OtlpExport


_log = logging.getLogger("switchcraft.pool")


class Gateway:
    """Everything that requests share, with the engine that answers new requests."""

    def __init__(  # noqa: PLR0915 - the composition reads from top to bottom
        self,
        settings: Settings,
        router: Router,
        source: ReloadSource | None = None,
    ) -> None:
        """Create all parts and the first engine; `settings.server` never changes afterwards.

        Without a `source` the gateway cannot be reloaded. Raises ConfigError if the settings do not
        fit the artifact.
        """
        self.server = server = settings.server
        self.metrics = Metrics()
        self.metrics.build_info.labels(__version__).set(1)

        def on_circuit_opened(deployment_id: str, seconds: float) -> None:
            self.syncer.opened(deployment_id, seconds)

        self.breakers = CircuitBreakers(
            settings.upstreams.breaker, time.monotonic, on_circuit_opened
        )
        database_url = settings.database.url
        self.database = DatabaseThread(
            Database(None if database_url is None else database_url.get_secret_value()),
            lambda operation: self.metrics.storage_errors.labels("database", operation).inc(),
        )
        self.stored_keys = StoredKeys()
        self.database.every(REFRESH_S, "keys", self.stored_keys.refresh)
        self.engine = Engine(settings, router, self.breakers, stored_keys=self.stored_keys)
        self.database.every(
            COMPARE_NAMES_S, "names", lambda _: self.engine.keys.warn_of_shared_names()
        )
        self.budgets = Budgets(
            self.database,
            settings=lambda: self.engine.settings,
            on_refused=lambda why: self.metrics.refused_requests.labels("budget", why).inc(),
        )
        self.operating_points: OperatingPoints | None = None
        """The measured policies of the engine; None until they are measured."""

        # Where records and shared state are kept.
        store = open_store(server.shared_store, server.store_limits)
        # Some records are also kept in this process, where requests find them without waiting.
        memory = store
        if not isinstance(memory, MemoryStore):
            memory = MemoryStore(server.store_limits)
        self._shared_store = store
        self._kept_records = memory.kept

        def records(kind: type[R]) -> Records[R]:
            return Records(store, kind, on_store_error)

        def records_of_others(kind: type[R]) -> Records[R] | None:
            return records(kind) if store.is_shared else None

        def on_store_error(operation: str) -> None:
            self.metrics.storage_errors.labels("store", operation).inc()

        limits = SharedLimits(store, on_store_error)
        self.access = self._create_access(settings, limits)

        # What requests know of earlier requests, and what is recorded of them.
        self.store = records(DecisionRecord)
        self.held = UpstreamObjectIndex(
            memory.records(UpstreamObject), records_of_others(UpstreamObject)
        )
        self.ownership = Ownership(self.held)
        self.conversations = Conversations(
            memory.records(ConversationState), records_of_others(ConversationState)
        )
        log = settings.decision_log
        # Evidence is found in a thread with an event loop of its own, which connections belong to.
        evidence_store = store
        if store.is_shared:
            evidence_store = open_store(server.shared_store, server.store_limits)
        evidence = WeakEvidence(evidence_store, on_store_error, keeps_names=log.content)
        self.usage = UsageHistory(settings.usage, settings.database)
        self.background = BackgroundLog(log, self.metrics, self.usage, evidence)

        comparisons = Comparisons()
        self.database.every(WRITE_EVERY_S, "comparisons", comparisons.write)
        self.comparer = ModelComparer(lambda: self.engine, comparisons, self.background)

        def on_ended(call: Call) -> None:
            self.conversations.answered(call)
            self.background.answered(call)
            self.comparer.answered(call)

        self.database.every(WRITE_EVERY_S, "usage", self.usage.write)
        self.database.every(CONTINUE_TIDYING_S, "old usage", self.usage.tidy)
        lost = self.metrics.lost_records
        self.recent_requests = RecentRequests(
            settings.usage, settings.database, lost.labels("request_list", "full").inc
        )
        self.database.every(WRITE_EVERY_S, "requests", self.recent_requests.write)
        self.database.every(CONTINUE_TIDYING_S, "old requests", self.recent_requests.tidy)
        self.recorder = Recorder(
            self.metrics, self.store, self.usage, self.recent_requests, on_ended
        )
        marks = records(FeedbackMark)
        self.feedback = Feedback(self.store, marks, self.background, self.metrics, self.usage)
        self.tracing: OtlpExport | None = None
        if settings.tracing.otlp_endpoint is not None:
            # Imported only if configured, because the exporter loads a second HTTP client.
            from router_service.telemetry.otlp import OtlpExport  # noqa: PLC0415

            self.tracing = OtlpExport(settings.tracing, lost.labels("spans", "failed").inc)

        # The next engine, and what other replicas know.
        self._announces = source is not None and not settings.is_sandbox
        self.reloader = Reloader(self, source)
        self.syncer: Syncer = Syncer(
            store,
            adopt=self.breakers.adopt,
            deployment_ids=lambda: self.engine.deployment_ids,
            directory=settings.router.publication,
            follow=self.reloader.follow,
        )

        # Limits, and the end.
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
        self.lists = DecisionQueue(
            LIST_THREADS, MAX_WAITING_LISTS, server.max_decision_wait_s, what="list"
        )
        """Threads that read what the page and the API show of the database."""

        up = self.metrics.dependency_up
        up.labels("database").set_function(lambda: self.database.unreachable_s == 0)
        up.labels("shared_state").set_function(lambda: self.syncer.is_reachable)
        self.metrics.requests_in_flight.set_function(lambda: self.slots.in_flight)
        self._show_engine(None)

    def _create_access(self, settings: Settings, shared: SharedLimits) -> Access:
        """Return what applies the limits and budgets of keys and teams."""
        refused = self.metrics.refused_requests
        limits = RateLimits(shared, lambda limit: refused.labels("limit", limit).inc())
        pacing = Pacing(
            lambda: self.engine.settings.budgets,
            lambda: self.operating_points,
            self.budgets.states,
            has_usage=settings.usage.enabled,
        )
        self.database.every(READ_EVERY_S, "pacing", pacing.refresh)
        return Access(limits, self.budgets, pacing)

    @property
    def is_store_reachable(self) -> bool:
        """Return whether decision records can be stored and the shared state can be read."""
        return self.store.is_reachable and self.syncer.is_reachable

    async def replace_engine(self, engine: Engine) -> None:
        """Use another engine for new requests, and retire the current one."""
        retired, self.engine = self.engine, engine
        self.breakers.reconfigure(engine.settings.upstreams.breaker)
        self._show_engine(retired)
        self._measure()
        await retired.retire()

    def _show_engine(self, before: Engine | None) -> None:
        """Show the engine in the metrics, and log what differs from the one before."""
        show_engine(self.metrics, self.engine, self.breakers)
        if self._announces:
            _announce(self.engine, before)

    def held_memory(self) -> Mapping[str, HeldMemory]:
        """Return what this process keeps for later requests, by name: its caches and stores."""
        routers = self.engine.releases.routers
        caches = {name: cache for router in routers for name, cache in router.caches.items()}
        stores = {f"{kind}_records": held for kind, held in self._kept_records.items()}
        return {**SHARED_CACHES, **caches, **stores}

    def _measure(self) -> None:
        """Compute the figures of policies in a thread, before a goal or a budget asks for them.

        Those of verified policies take about a second if the configuration changes the arms or the
        prices. The errors of expected accuracies take about as long. Then the log says what the
        pool is expected to reach.
        """

        async def measure(engine: Engine) -> None:
            await asyncio.to_thread(engine.reach_goals)
            points = await asyncio.to_thread(engine.explainer.operating_points)
            if engine is self.engine:
                self.operating_points = points
            for planner in engine.releases.planners:
                await asyncio.to_thread(planner.measure_errors)
            if self._announces:
                for sentence in await asyncio.to_thread(engine.explainer.expectation):
                    _log.info("%s", sentence)

        self._measuring = asyncio.create_task(measure(self.engine))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the background work while the block runs, and then close the gateway."""
        await anyio.to_thread.run_sync(self.database.start)
        self.background.start()
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
        self.lists.close()
        await self.reloader.aclose()
        await self.comparer.aclose()
        await self.engine.retire()
        self.recorder.flush()
        await self.background.aclose()
        self.usage.close()
        self.recent_requests.close()
        await self.access.aclose()  # before the database's last write
        await anyio.to_thread.run_sync(self.database.close)
        await self.store.drain()
        await self.feedback.aclose()
        await self.held.aclose()
        await self.conversations.aclose()
        with suppress(StoreError):
            await self._shared_store.aclose()
        if self.tracing is not None:
            await self.tracing.aclose()


def _announce(engine: Engine, before: Engine | None) -> None:
    """Log how the router runs and the notes on its pool, unless they are as before."""
    execution, notes = engine.execution, engine.notes
    if before is None or execution != before.execution:
        _log.info("the router runs %s", execution)
        if execution.warning:
            _log.warning("%s", execution.warning)
    if before is None or notes != before.notes:
        for note in notes:
            level = logging.WARNING if note.is_warning else logging.INFO
            fields = {FIELDS: {"models": list(note.rows)}} if note.rows else {}
            _log.log(level, "%s", note.text, extra=fields)
