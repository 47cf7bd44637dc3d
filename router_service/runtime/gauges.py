"""Gauges of a gateway's present state, and the series that its engine's models have."""

from __future__ import annotations

from router_service import __version__
from router_service.requests.limits import Slots
from router_service.runtime.engine import Engine
from router_service.telemetry.metrics import Known, Metrics
from router_service.upstream.breaker import CircuitBreakers


class Gauges:
    """Gauges that are set when metrics are read, at no cost for requests.

    The files of worker processes keep a label forever, so a gauge that no longer applies is set to
    0 and never removed.
    """

    def __init__(self, metrics: Metrics, breakers: CircuitBreakers, slots: Slots) -> None:
        """Show the version. `show_engine` shows everything that depends on an engine."""
        self._metrics = metrics
        self._breakers = breakers
        self._slots = slots
        self._artifact: tuple[str, ...] | None = None
        self._deployment_ids: set[str] = set()
        metrics.build_info.labels(__version__).set(1)

    def show_engine(self, engine: Engine) -> None:
        """Show the engine that answers from now on, and create the series of its models."""
        metrics = self._metrics
        self._show_artifact(engine)
        pool = engine.pool
        models = {model.name: model for model in pool.models.values()}
        priced = [name for name, model in models.items() if model.price is not None]
        has_baseline = pool.baseline is not None and pool.baseline.price is not None
        metrics.start(
            {
                Known.ARMS: pool.by_arm,
                Known.PRICED_ARMS: pool.prices,
                Known.MODELS: models,
                Known.PRICED_MODELS: priced,
                Known.COMPARED_MODELS: priced if has_baseline else (),
            },
            has_verifier=engine.manifest.verifier is not None,
        )
        self.refresh(engine)

    def _show_artifact(self, engine: Engine) -> None:
        """Show the artifact that decides, and the graph that runs."""
        manifest, execution, metrics = engine.manifest, engine.execution, self._metrics
        if self._artifact is not None:
            metrics.artifact_info.labels(*self._artifact).set(0)
        self._artifact = (
            manifest.name,
            manifest.encoder.name,
            manifest.provenance.commit,
            execution.graph,
            execution.provider,
        )
        metrics.artifact_info.labels(*self._artifact).set(1)

    def refresh(self, engine: Engine) -> None:
        """Set the gauges to the present state."""
        metrics = self._metrics
        metrics.requests_in_flight.set(self._slots.in_flight)
        present = set(engine.deployment_ids)
        open_ids = self._breakers.open_circuits().keys() & present
        metrics.deployments_available.set(len(present) - len(open_ids))
        self._deployment_ids |= present
        for deployment_id in self._deployment_ids:
            metrics.breaker_open.labels(deployment_id).set(deployment_id in open_ids)
