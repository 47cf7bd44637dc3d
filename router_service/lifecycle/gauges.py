"""Gauges of a gateway's present state, and series that exist before they first count."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from weakref import WeakKeyDictionary

from router_service import __version__
from router_service.core.resources import Cache, CacheCounts
from router_service.core.selection import Reason
from router_service.core.tool_checks import CallValidity
from router_service.lifecycle.engine import Engine
from router_service.lifecycle.overload import DecisionQueue, Slots
from router_service.requests.feedback import Verdict
from router_service.requests.planning import Track
from router_service.telemetry.metrics import Metrics
from router_service.upstream.breaker import CircuitBreakers


class Gauges:
    """Gauges that are set when metrics are read, at no cost for requests.

    The files of worker processes keep a label forever, so a gauge that no longer applies is set to
    0 and never removed.
    """

    def __init__(
        self, metrics: Metrics, breakers: CircuitBreakers, slots: Slots, decisions: DecisionQueue
    ) -> None:
        """Show these from now on, and create the series that do not depend on the engine."""
        self._metrics = metrics
        self._breakers = breakers
        self._slots = slots
        self._decisions = decisions
        self._artifact: tuple[str, ...] | None = None
        self._deployment_ids: set[str] = set()
        self._counted: WeakKeyDictionary[Cache[Any, Any], CacheCounts] = WeakKeyDictionary()
        metrics.build_info.labels(__version__).set(1)
        # Prometheus does not see the first increase of a series that did not exist before.
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
        manifest, metrics = engine.manifest, self._metrics
        artifact = (manifest.name, manifest.encoder.name, manifest.provenance.commit)
        if self._artifact is not None:
            metrics.artifact_info.labels(*self._artifact).set(0)
        metrics.artifact_info.labels(*artifact).set(1)
        self._artifact = artifact
        metrics.latency_budget_seconds.set(engine.settings.router.latency_budget_s)
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
        baseline = engine.pool.baseline  # a model without a price has no cost series, not 0
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
        open_ids = self._breakers.open_ids() & present
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
