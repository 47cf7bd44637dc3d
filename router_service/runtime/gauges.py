"""The gauges and the series that depend on a gateway's engine."""

from __future__ import annotations

from functools import partial

from router_service.runtime.engine import Engine
from router_service.telemetry.metrics import Known, Metrics
from router_service.upstream.breaker import CircuitBreakers


def show_engine(metrics: Metrics, engine: Engine, breakers: CircuitBreakers) -> None:
    """Show the engine that answers from now on, and create the series of its models."""
    manifest, execution, pool = engine.manifest, engine.execution, engine.pool
    metrics.artifact_info.clear()
    metrics.artifact_info.labels(
        manifest.name,
        manifest.encoder.name,
        manifest.provenance.commit,
        execution.graph,
        execution.provider,
    ).set(1)
    deployment_ids = engine.deployment_ids

    def is_open(deployment_id: str) -> bool:
        return breakers.wait_s(deployment_id) > 0

    metrics.deployments_available.set_function(
        lambda: sum(not is_open(deployment_id) for deployment_id in deployment_ids)
    )
    metrics.breaker_open.clear()
    for deployment_id in deployment_ids:
        metrics.breaker_open.labels(deployment_id).set_function(partial(is_open, deployment_id))
    models = {model.name: model for model in pool.models.values()}
    priced = [name for name, model in models.items() if model.price is not None]
    has_baseline = pool.baseline is not None and pool.baseline.price is not None
    metrics.start(
        {
            Known.ARMS: pool.by_arm,
            Known.MODELS: models,
            Known.PRICED_MODELS: priced,
            Known.COMPARED_MODELS: priced if has_baseline else (),
        },
        has_verifier=manifest.verifier is not None,
    )
