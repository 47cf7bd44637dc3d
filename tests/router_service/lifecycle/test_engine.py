"""Routers that an engine builder reuses or builds again."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest

from router_service.core.artifact import SHIPPED, Artifact
from router_service.core.selection import Price
from router_service.lifecycle.engine import EngineBuilder
from router_service.requests.planning import DecidingRouter
from router_service.settings import BreakerSettings, Deployment, Model, Settings
from router_service.telemetry.metrics import Metrics
from router_service.upstream.breaker import CircuitBreakers

ARMS = Artifact.load(SHIPPED).manifest.arms
EXTRA = "no-arm"


class Shared:
    """Resources of an engine."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.breakers = CircuitBreakers(BreakerSettings(), time.monotonic, lambda *_: None)


def built(builder: EngineBuilder, prices: Mapping[str, float]) -> DecidingRouter:
    """Return the router of an engine with these prices in USD per million tokens, by model."""
    models = tuple(
        Model(
            name=name,
            deployments=(Deployment(upstream_model=name, base_url="http://127.0.0.1:9/v1"),),
            price=Price(input_usd_per_mtok=prices.get(name, 1.0), output_usd_per_mtok=1.0),
        )
        for name in (*ARMS, EXTRA)
    )
    engine = builder.engine(Settings(models=models), None, Shared(), lambda *_: None)
    (router,) = engine.releases.routers
    return router


@pytest.fixture(scope="module")
def builder() -> EngineBuilder:
    """Return a builder that has already built one engine."""
    builder = EngineBuilder()
    built(builder, {})
    return builder


def test_price_of_a_model_without_arm_keeps_router(builder: EngineBuilder) -> None:
    """A reload with another price of such a model loads and verifies no artifact."""
    assert built(builder, {EXTRA: 2.0}) is built(builder, {EXTRA: 3.0})


def test_price_of_an_arm_makes_new_router_with_same_graph(
    builder: EngineBuilder,
) -> None:
    """A price changes only the choice; cached predictions stay."""
    before, after = built(builder, {ARMS[0]: 1.0}), built(builder, {ARMS[0]: 9.0})
    assert before is not after
    assert before.caches == after.caches
