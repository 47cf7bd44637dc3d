"""Engines: the routers they reuse, and canary releases, which cannot fail a request."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

import pytest

from router_service.access.keyring import StoredKeys
from router_service.artifact import SHIPPED, Artifact
from router_service.core.releases import Canary, CanaryTrial, Release, Track
from router_service.policies.costs import Price
from router_service.requests.parsing import ParsedRequest
from router_service.requests.planning import Plan, Planner
from router_service.requests.pool import Pool
from router_service.requests.trials import Releases
from router_service.router import Prediction, Router
from router_service.runtime.engine import EngineBuilder, make_planner
from router_service.settings import BreakerSettings, Deployment, Model, RouterSettings, Settings
from router_service.upstream.breaker import CircuitBreakers
from tests.bodies import BODY
from tests.endpoints import CHAT
from tests.fakes import FakeRouter

ARMS = Artifact.load(SHIPPED).manifest.arms
EXTRA = "no-arm"


def built(builder: EngineBuilder, prices: Mapping[str, float]) -> Router:
    """Return the router of an engine with these prices in USD per million tokens, by model."""
    models = tuple(
        Model(
            name=name,
            deployments=(Deployment(upstream_model=name, base_url="http://127.0.0.1:9/v1"),),
            price=Price(input_usd_per_mtok=prices.get(name, 1.0), output_usd_per_mtok=1.0),
        )
        for name in (*ARMS, EXTRA)
    )
    breakers = CircuitBreakers(BreakerSettings(), time.monotonic, lambda *_: None)
    settings = Settings(models=models, router=RouterSettings(unknown_models="name_only"))
    engine = builder.engine(settings, None, breakers, StoredKeys(), lambda *_: None)
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


SETTINGS = Settings.sandbox("http://127.0.0.1:9/v1", ["small", "medium", "large"])
RELEASE = Release(name="r", path="r", manifest_sha256="0" * 64, created="2026-01-01T00:00:00Z")
BOUNDS = Canary(release=RELEASE, share=0.3, min_requests=10)


class BrokenRouter(FakeRouter):
    """Router that cannot decide."""

    def predict(self, *_args: object, **_kwargs: object) -> Prediction:
        """Fail like a damaged graph."""
        raise RuntimeError("the graph is damaged")


def planner(router: FakeRouter) -> Planner:
    """Return a planner for a router."""
    return make_planner(SETTINGS, router, Pool.build(SETTINGS, router.artifact.manifest))


STABLE = {"small": 0.9, "medium": 0.9, "large": 0.9}
"""Chooses `small`, the cheapest."""
TRIED = {"small": 0.1, "medium": 0.1, "large": 0.9}
"""Chooses `large`."""


def releases(tried: FakeRouter) -> Releases:
    """Return a stable release, and a canary that is tried next to it."""
    trial = CanaryTrial(BOUNDS, lambda *_: None)
    return Releases(planner(FakeRouter(STABLE)), planner(tried), trial)


def plan(trials: Releases, *texts: str, **fields: object) -> Plan:
    """Plan a conversation whose user messages are these texts."""
    messages: list[Mapping[str, object]] = [{"role": "system", "content": "Be brief."}]
    for text in texts:
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": "Yes."}]
    body = {**BODY, "messages": messages[:-1], **fields}
    plan = trials.prepare(ParsedRequest(CHAT, json.dumps(body).encode()))
    if not plan.arms:
        return plan
    plan = trials.predict(plan)
    if plan.prediction is not None:
        plan.planner.choose(plan, plan.prediction)
        plan.planner.explore(plan)
    return plan


def test_canary_decides_for_its_share_of_conversations() -> None:
    """About 300 of 1,000 conversations are the canary's, and each of them at every turn."""
    trials = releases(FakeRouter(TRIED))
    taken = 0
    for number in range(1000):
        first = plan(trials, f"Question {number}")
        later = plan(trials, f"Question {number}", "And then?", "And after that?")
        assert (first.track, first.models) == (later.track, later.models)
        assert first.models[0].name == ("large" if first.track is Track.CANARY else "small")
        taken += first.track is Track.CANARY
    assert 250 < taken < 350


@pytest.mark.parametrize("router", [BrokenRouter(), FakeRouter(TRIED)])
def test_failing_canary_fails_no_request(router: FakeRouter) -> None:
    """If the canary cannot decide, the stable release does; the failure counts for the canary."""
    trials = releases(router)
    plans = [plan(trials, f"Question {number}") for number in range(100)]
    tried = [p for p in plans if p.track is Track.CANARY]
    is_broken = isinstance(router, BrokenRouter)
    assert tried
    assert {p.models[0].name for p in tried} == {"small" if is_broken else "large"}
    assert {p.router_failed for p in tried} == {is_broken}
    assert not any(p.router_failed for p in plans if p.track is Track.STABLE)
