"""Who decides for which conversation, and what a release that is tried may cost: nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping

import pytest

from router_service.core.errors import ModelNotFoundError
from router_service.core.messages import Conversation
from router_service.core.releases import Canary, ExceededLimit, Release
from router_service.core.stages import Timer
from router_service.lifecycle.engine import make_planner
from router_service.lifecycle.trials import (
    MAX_WAITING,
    MAX_WAITING_BYTES,
    CanaryTrial,
    Releases,
    Shadow,
)
from router_service.requests.parsing import CHAT, parse_request
from router_service.requests.planning import Plan, Planner, Track
from router_service.requests.pool import Pool
from router_service.router import Prediction
from router_service.settings import RouterSettings, Settings
from router_service.telemetry.metrics import Metrics
from tests.bodies import BODY
from tests.fakes import FakeRouter
from tests.serving import wait_for

SETTINGS = Settings.sandbox("http://127.0.0.1:9/v1", ["small", "medium", "large"])
RELEASE = Release(name="r", path="r", manifest_sha256="0" * 64, created="2026-01-01T00:00:00Z")
BOUNDS = Canary(release=RELEASE, share=0.3, min_requests=10)


class BrokenRouter(FakeRouter):
    """A router that cannot decide."""

    def predict(self, *_args: object, **_kwargs: object) -> Prediction:
        """Fail as a graph that is damaged does."""
        raise RuntimeError("the graph is damaged")


class SlowRouter(FakeRouter):
    """A router that decides once it is told to."""

    def __init__(self, go_on: Callable[[], object]) -> None:
        super().__init__()
        self._go_on = go_on

    def predict(self, conversation: Conversation, timer: Timer | None = None) -> Prediction:
        """Wait, and decide."""
        self._go_on()
        return super().predict(conversation, timer)


EXPLORING = SETTINGS.model_copy(
    update={"router": RouterSettings(exploration_share=1, unknown_prices="allow")}
)


def planner(router: FakeRouter, settings: Settings = SETTINGS) -> Planner:
    """Return a planner of a router."""
    return make_planner(settings, router, Pool.build(settings, router.artifact.manifest))


STABLE = {"small": 0.9, "medium": 0.9, "large": 0.9}
"""Chooses `small`, the cheapest."""
TRIED = {"small": 0.1, "medium": 0.1, "large": 0.9}
"""Chooses `large`."""


def trial(
    router: FakeRouter, on_excess: Callable[[Canary, ExceededLimit], None] = lambda *_: None
) -> CanaryTrial:
    """Return a canary's trial."""
    return CanaryTrial(BOUNDS, planner(router), on_excess)


def plan(trials: Releases, *texts: str, **fields: object) -> Plan:
    """Plan for a conversation whose user says these texts."""
    messages: list[Mapping[str, object]] = [{"role": "system", "content": "Be brief."}]
    for text in texts:
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": "Yes."}]
    body = {**BODY, "messages": messages[:-1], **fields}
    plan = trials.prepare(parse_request(CHAT, json.dumps(body).encode()))
    if not plan.arms:
        return plan
    plan, prediction = trials.predict(plan)
    return plan if prediction is None else trials.choose(plan, prediction)


def test_a_canary_decides_for_its_share_of_conversations() -> None:
    """Of 1,000 conversations about 300 are the canary's, each of them at every turn."""
    trials = Releases(planner(FakeRouter(STABLE)), canary=trial(FakeRouter(TRIED)))
    taken = 0
    for number in range(1000):
        first = plan(trials, f"Question {number}")
        later = plan(trials, f"Question {number}", "And then?", "And after that?")
        assert (first.track, first.model) == (later.track, later.model)
        assert first.model.name == ("large" if first.track is Track.CANARY else "small")
        taken += first.track is Track.CANARY
    assert 250 < taken < 350


def test_another_canary_takes_other_conversations() -> None:
    """Lots are drawn anew for each release, so that not the same users try all of them."""
    other = BOUNDS.model_copy(update={"release": RELEASE.model_copy(update={"created": "later"})})
    router = planner(FakeRouter(TRIED))
    one, two = (CanaryTrial(bounds, router, lambda *_: None) for bounds in (BOUNDS, other))
    trials = [Releases(router, canary=canary) for canary in (one, two)]
    tracks = [tuple(plan(t, f"Question {n}").track for t in trials) for n in range(200)]
    assert len(set(tracks)) == 4


@pytest.mark.parametrize("router", [BrokenRouter(), FakeRouter(TRIED)])
def test_a_canary_that_fails_costs_no_request(router: FakeRouter) -> None:
    """Where the canary cannot decide, the stable release does, and the canary is counted down."""
    trials = Releases(planner(FakeRouter(STABLE)), canary=trial(router))
    plans = [plan(trials, f"Question {number}") for number in range(100)]
    tried = [p for p in plans if p.track is Track.CANARY]
    is_broken = isinstance(router, BrokenRouter)
    assert tried
    assert {p.model.name for p in tried} == {"small" if is_broken else "large"}
    assert {p.router_failed for p in tried} == {is_broken}
    assert not any(p.router_failed for p in plans if p.track is Track.STABLE)


@pytest.mark.parametrize("fields", [{"model": "medium"}, {"tools": []}])
def test_what_no_router_decides_is_no_canarys(fields: dict[str, object]) -> None:
    """A pinned model and a request without tools are the stable release's, and not compared."""
    trials = Releases(planner(FakeRouter(STABLE)), canary=trial(FakeRouter(TRIED)))
    plans = [plan(trials, f"Question {number}", **fields) for number in range(30)]
    assert {p.track for p in plans} == {Track.STABLE}


def test_a_clients_error_is_the_clients() -> None:
    """A model that does not exist is the same error with a canary as without."""
    trials = Releases(planner(FakeRouter(STABLE)), canary=trial(FakeRouter(TRIED)))
    for number in range(30):
        with pytest.raises(ModelNotFoundError):
            plan(trials, f"Question {number}", model="nobody")


def test_a_canary_beyond_its_bounds_decides_no_more() -> None:
    """From the request on that shows it, all is the stable release's; it is told once."""
    told: list[str] = []
    canary = trial(FakeRouter(TRIED), lambda _canary, excess: told.append(excess.limit))
    trials = Releases(planner(FakeRouter(STABLE)), canary=canary)
    for _ in range(100):
        canary.observe(Track.STABLE, has_failed=False, cost_usd=None)
    for _ in range(20):
        canary.observe(Track.CANARY, has_failed=True, cost_usd=None)
    assert told == ["errors"]
    assert {plan(trials, f"Question {n}").track for n in range(50)} == {Track.STABLE}


def test_a_shadow_is_asked_and_not_obeyed() -> None:
    """The plan is the stable release's; the shadow's arm comes with it, and counts as unlike."""
    metrics = Metrics()
    shadow = Shadow(planner(FakeRouter(TRIED)), metrics)
    trials = Releases(planner(FakeRouter(STABLE)), shadow=shadow)
    planned = plan(trials, "Question")
    assert planned.model.name == "small"
    assert planned.shadow_arm is not None
    assert planned.shadow_arm.result(5) == "large"
    wait_for(lambda: count(metrics, "no") == 1, "it is counted")
    assert plan(trials, "Question", tools=[]).shadow_arm is None


def test_a_shadow_is_compared_with_the_policy_and_explores_nothing() -> None:
    """An arm that was drawn is nobody's opinion: equal releases agree at each request."""
    metrics = Metrics()
    shadow = Shadow(planner(FakeRouter(STABLE), EXPLORING), metrics)
    trials = Releases(planner(FakeRouter(STABLE), EXPLORING), shadow=shadow)
    plans = [plan(trials, f"Question {number}") for number in range(30)]
    assert {p.shadow_arm.result(5) for p in plans if p.shadow_arm} == {"small"}
    assert count(metrics, "yes") == 30
    assert {p.model.name for p in plans} == {"small", "medium", "large"}


def test_either_release_explores_its_own_arms() -> None:
    """A canary keeps its share of the conversations, and draws among the arms that it has."""
    tried = FakeRouter({"medium": 0.9, "large": 0.9})
    canary = CanaryTrial(BOUNDS, planner(tried, EXPLORING), lambda *_: None)
    trials = Releases(planner(FakeRouter(STABLE), EXPLORING), canary=canary)
    plans = [plan(trials, f"Question {number}") for number in range(200)]
    for track, arms in ((Track.STABLE, set(STABLE)), (Track.CANARY, {"medium", "large"})):
        decisions = [p.decision for p in plans if p.track is track and p.decision]
        assert {d.arm for d in decisions} == arms
        assert {d.propensity for d in decisions} == {1 / len(arms)}


def test_a_shadow_that_fails_is_counted() -> None:
    """A shadow's error is its own."""
    metrics = Metrics()
    trials = Releases(planner(FakeRouter(STABLE)), shadow=Shadow(planner(BrokenRouter()), metrics))
    planned = plan(trials, "Question")
    assert planned.shadow_arm is not None
    assert planned.shadow_arm.result(5) is None
    assert count(metrics, "failed") == 1


def test_a_slow_shadow_holds_up_nothing() -> None:
    """So many requests wait for it and no more; the others are counted as dropped."""
    go_on, metrics = threading.Event(), Metrics()
    shadow = Shadow(planner(SlowRouter(lambda: go_on.wait(10))), metrics)
    trials = Releases(planner(FakeRouter(STABLE)), shadow=shadow)
    plans = [plan(trials, f"Question {number}") for number in range(MAX_WAITING + 5)]
    assert sum(p.shadow_arm is None for p in plans) == count(metrics, "dropped") == 5
    go_on.set()
    wait_for(lambda: count(metrics, "yes") + count(metrics, "no") == MAX_WAITING, "all decided")


def test_large_requests_wait_for_a_shadow_up_to_a_size() -> None:
    """Bodies that wait take memory that no limit on requests in flight counts."""
    go_on, metrics = threading.Event(), Metrics()
    shadow = Shadow(planner(SlowRouter(lambda: go_on.wait(10))), metrics)
    trials = Releases(planner(FakeRouter(STABLE)), shadow=shadow)
    large = "x" * (MAX_WAITING_BYTES // 4)
    plans = [plan(trials, f"{number}{large}") for number in range(7)]
    assert [p.shadow_arm is None for p in plans] == [False] * 4 + [True] * 3
    go_on.set()
    wait_for(lambda: count(metrics, "yes") + count(metrics, "no") == 4, "all decided")
    wait_for(lambda: plan(trials, large).shadow_arm is not None, "there is room again")


def count(metrics: Metrics, agrees: str) -> float:
    """Return how many shadow decisions were counted so."""
    name = "switchcraft_shadow_decisions_total"
    return metrics.registry.get_sample_value(name, {"agrees": agrees}) or 0
