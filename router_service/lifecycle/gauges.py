"""What is shown of a gateway as it is now, and series that are there before they first count."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from weakref import WeakKeyDictionary

from router_service import __version__
from router_service.core.cache import Cache, CacheCounts
from router_service.core.schema_check import CallValidity
from router_service.core.selection import Reason
from router_service.lifecycle.engine import Engine
from router_service.lifecycle.overload import DecisionQueue, Slots
from router_service.requests.feedback import Verdict
from router_service.requests.planning import Track
from router_service.settings import Model
from router_service.telemetry.metrics import Metrics
from router_service.upstream.breaker import CircuitBreakers

_SOURCES = ("upstream", "gateway")
_TOKENS = ("prompt", "completion", "cached", "reasoning")


class Gauges:
    """Shows a gateway's state when it is looked at, which costs requests nothing.

    A worker's files keep a label for ever, so that what is no more is 0, and never removed.
    """

    def __init__(
        self, metrics: Metrics, breakers: CircuitBreakers, slots: Slots, decisions: DecisionQueue
    ) -> None:
        """Show these, and that the process has started."""
        self._metrics = metrics
        self._breakers = breakers
        self._slots = slots
        self._decisions = decisions
        self._artifact: tuple[str, ...] | None = None
        self._deployment_ids: set[str] = set()
        self._counted: WeakKeyDictionary[Cache[Any, Any], CacheCounts] = WeakKeyDictionary()
        metrics.build_info.labels(__version__).set(1)
        _begin(metrics)

    def take_up(self, engine: Engine) -> None:
        """Show the engine that answers from now on; its models' series begin at 0."""
        manifest = engine.manifest
        artifact = (manifest.name, manifest.encoder.name, manifest.provenance.commit)
        info = self._metrics.artifact_info
        if self._artifact is not None:
            info.labels(*self._artifact).set(0)
        info.labels(*artifact).set(1)
        self._artifact = artifact
        self._metrics.latency_budget_seconds.set(engine.settings.router.latency_budget_s)
        _begin_engine(self._metrics, engine)
        self.refresh(engine)

    def refresh(self, engine: Engine) -> None:
        """Show how things are now."""
        self._metrics.tasks.set(_count_tasks())
        self._metrics.requests_in_flight.set(self._slots.in_flight)
        self._metrics.decisions_queued.set(self._decisions.waiting)
        self._show_breakers(engine)
        caches = {item for router in engine.planner.routers for item in router.caches.items()}
        for name, cache in caches:
            self._count_lookups(name, cache)

    def _show_breakers(self, engine: Engine) -> None:
        present = set(engine.deployment_ids)
        open_ids = self._breakers.open_ids() & present
        self._metrics.deployments_available.set(len(present) - len(open_ids))
        self._deployment_ids |= present
        for deployment_id in self._deployment_ids:
            self._metrics.breaker_open.labels(deployment_id).set(deployment_id in open_ids)

    def _count_lookups(self, name: str, cache: Cache[Any, Any]) -> None:
        before, now = self._counted.get(cache, CacheCounts()), cache.counts
        lookups = self._metrics.cache_lookups
        lookups.labels(name, "hit").inc(now.hits - before.hits)
        lookups.labels(name, "miss").inc(now.misses - before.misses)
        self._counted[cache] = now


def _begin(metrics: Metrics) -> None:
    """Let series of known labels exist: the first increase of one that did not goes unseen."""
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


def _count_tasks() -> int:
    """Return how many tasks the running event loop has; none before it runs."""
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return 0


def _begin_engine(metrics: Metrics, engine: Engine) -> None:
    for arm in engine.pool.by_arm:
        metrics.chosen_probability.labels(arm)
        for reason in Reason:
            metrics.decisions.labels(arm, reason)
        for verdict in Verdict:
            metrics.feedback.labels(arm, verdict)
        for kind in ("tool_error", "repeated_call"):
            metrics.weak_evidence.labels(arm, kind)
    for deployment_id in engine.deployment_ids:
        metrics.breaker_openings.labels(deployment_id)
    baseline = engine.pool.baseline
    for model in {model.name: model for model in engine.pool.models.values()}.values():
        _begin_model(metrics, model)
        if baseline is not None and baseline.price is not None and model.price is not None:
            metrics.routed_cost_usd.labels(model.name)
            metrics.baseline_cost_usd.labels(model.name)


def _begin_model(metrics: Metrics, model: Model) -> None:
    """Begin a model's series; what it costs has none where its price is unknown, and is not 0."""
    metrics.broken_streams.labels(model.name)
    metrics.upstream_seconds.labels(model.name)
    metrics.time_to_first_token.labels(model.name)
    for fits in CallValidity:
        metrics.tool_calls.labels(model.name, fits)
    for source in _SOURCES:
        if model.price is not None:
            metrics.cost_usd.labels(model.name, source)
        for kind in _TOKENS:
            metrics.tokens.labels(model.name, kind, source)
