"""The next step for candidate answers: limits, failures, and why it stops."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from router_service.artifact import SHIPPED, Artifact
from router_service.core.decision_record import StopReason
from router_service.policies.verified import Verified
from router_service.router import Prediction, Router
from router_service.verifier.steps import (
    NO_LIMITS,
    ArmAnswer,
    Step,
    UnverifiedReason,
    VerificationLimits,
    VerificationState,
)
from tests.candidates import answer, ask

QUESTION = ask("Forecast for Oslo?")
PRICE = Verified(1.0)
"""A price at which every arm of the artifact is cheap, so that answers that differ are verified."""

ARMS = Artifact.load(SHIPPED).manifest.arms
FIRST, SECOND, THIRD = ARMS[:3]


@pytest.fixture(scope="module")
def router(verifying_artifact: Path) -> Router:
    """Return a router whose arms cost 1, 2, 3, ... USD per 1,000 requests."""
    return Router(Artifact.load(verifying_artifact))


@pytest.fixture(scope="module")
def prediction(router: Router) -> Prediction:
    """Return equal probabilities, so that the cheapest arm is the best one to ask."""
    features = (0.0,) * len(router.artifact.manifest.packing.features)
    return Prediction((0.8,) * len(router.arms), features, packed_tokens=7)


def test_a_tool_loop_stays_with_the_cheapest_of_those_that_make_the_same_calls(
    shipped: Router,
) -> None:
    """Of unfamiliar requests, this one's answer is accepted, whose arm is asked first next time."""
    features = (0.0,) * len(shipped.artifact.manifest.packing.features)
    known = Prediction((0.9,) * len(shipped.arms), features, packed_tokens=7, familiarity=0.01)
    cheap, dear = "grok-4.1-fast", "claude-sonnet-4.5"

    def accepted(cities: Mapping[str, str]) -> str | None:
        given = [ArmAnswer(arm, answer({"city": city})) for arm, city in cities.items()]
        state = VerificationState(PRICE, (), candidates=given)
        return shipped.next_step(QUESTION, known, state).accept

    assert accepted({dear: "Oslo", cheap: "Oslo"}) == cheap
    assert accepted({dear: "Oslo", cheap: "Lima"}) == dear


NextStep = Callable[..., Step]


@pytest.fixture
def next_step(router: Router, prediction: Prediction) -> NextStep:
    """Return a function that takes the city of each candidate by arm, and gives the next step."""

    def step(
        cities: Mapping[str, str | None] | None = None,
        policy: Verified = PRICE,
        arms: Collection[str] = ARMS,
        **given: Any,  # noqa: ANN401 - further fields of the state
    ) -> Step:
        candidates = [
            ArmAnswer(arm, None if city is None else answer({"city": city}))
            for arm, city in (cities or {}).items()
        ]
        state = VerificationState(policy, arms, candidates, **given)
        return router.next_step(QUESTION, prediction, state)

    return step


LIMITED = VerificationLimits(max_candidates=2)
HASTY = VerificationLimits(max_added_latency_s=0.5)
TIMED = VerificationLimits(max_added_latency_s=5)
OSLO: dict[str, str | None] = {FIRST: "Oslo"}
DIFFERING: dict[str, str | None] = {FIRST: "Oslo", SECOND: "Lima"}


def costing(usd: float) -> dict[str, VerificationLimits]:
    """Return the limit on what all candidates cost together."""
    return {"limits": VerificationLimits(max_cost_usd=usd)}


@pytest.mark.parametrize(
    ("cities", "given", "accepted", "asked"),
    [
        # Differing answers are verified by a third one, agreeing ones not; a worthless one neither.
        ({}, {}, None, (FIRST,)),
        (DIFFERING, {}, None, (THIRD,)),
        ({FIRST: "Oslo", SECOND: "oslo"}, {}, FIRST, ()),
        (OSLO, {"policy": Verified(0.0)}, FIRST, ()),
        # An answer that was too large to keep agrees with no other one.
        ({FIRST: None, SECOND: None}, {}, None, (THIRD,)),
        # Arms that failed count as asked, and are not asked again.
        (DIFFERING, {"limits": LIMITED}, FIRST, ()),
        (OSLO, {"limits": LIMITED, "failed": (SECOND,)}, FIRST, ()),
        (OSLO, {"failed": (SECOND,)}, None, (THIRD,)),
        ({}, {"failed": (FIRST,)}, None, (SECOND,)),
        ({}, {"limits": LIMITED, "failed": (FIRST, SECOND)}, None, ()),
        # A candidate of an arm that may not be asked is still judged.
        ({}, {"arms": {SECOND, THIRD}}, None, (SECOND,)),
        (OSLO, {"arms": {THIRD}}, None, (THIRD,)),
        (OSLO, {"arms": {FIRST}}, FIRST, ()),
        ({}, {"arms": ()}, None, ()),
        # The arms cost 0.001, 0.002 and 0.003 USD, and a failure costs as much.
        (OSLO, costing(0.0029), FIRST, ()),
        (OSLO, costing(0.0031), None, (SECOND,)),
        ({}, costing(0.0035) | {"failed": (SECOND,)}, None, (FIRST,)),
        ({}, costing(0.0005), None, ()),
        # They take 1, 2 and 3 seconds, which must be left.
        ({SECOND: "Oslo"}, {"limits": TIMED, "elapsed_s": 3.5}, None, (FIRST,)),
        ({SECOND: "Oslo"}, {"limits": TIMED, "elapsed_s": 4.5}, SECOND, ()),
        (OSLO, {"limits": TIMED, "elapsed_s": 2.9}, None, (SECOND,)),
        (OSLO, {"limits": TIMED, "elapsed_s": 3.1}, FIRST, ()),
        # With too little time for a second step, two arms are asked at once, within the limits.
        ({}, {"limits": HASTY}, None, (FIRST, SECOND)),
        ({}, {"limits": VerificationLimits(max_added_latency_s=1)}, None, (FIRST,)),
        ({}, {"limits": replace(HASTY, max_candidates=1)}, None, (FIRST,)),
        ({}, {"limits": replace(HASTY, max_cost_usd=0.0025)}, None, (FIRST,)),
    ],
)
def test_step_accepts_a_candidate_or_asks_further_arms(
    next_step: NextStep,
    cities: Mapping[str, str | None],
    given: Mapping[str, Any],
    accepted: str | None,
    asked: tuple[str, ...],
) -> None:
    """The best answer for its cost is sought within the limits."""
    step = next_step(cities, **given)
    assert (step.accept, step.ask) == (accepted, asked)
    assert step.p_correct.keys() == set(cities)
    assert (step.expected_gain > 0) == bool(asked)


def test_invented_argument_of_a_risky_tool_is_not_accepted_alone(next_step: NextStep) -> None:
    """Such an answer costs another arm at any price, and is at last delivered unverified."""
    free, tools = Verified(0.0), {"forecast"}
    assert next_step({FIRST: "Oslo"}, free, grounded_tools=tools).accept == FIRST
    step = next_step({FIRST: "Lima"}, free, grounded_tools=tools)
    assert (step.accept, step.ask) == (None, (SECOND,))
    assert step.ungrounded == {FIRST: ("forecast.city",)}
    step = next_step({FIRST: "Lima", SECOND: "lima"}, free, grounded_tools=tools)
    assert (step.accept, step.unverified, step.ungrounded) == (FIRST, None, {})
    alone = next_step({FIRST: "Lima"}, free, arms=(FIRST,), grounded_tools=tools)
    assert (alone.accept, alone.unverified) == (FIRST, UnverifiedReason.UNGROUNDED)
    explained = next_step({FIRST: "Lima", SECOND: "Oslo"}, free, ARMS[:2], grounded_tools=tools)
    assert (explained.accept, explained.unverified) == (SECOND, None)


def test_below_the_floor_another_arm_is_asked_at_any_cost(
    router: Router, prediction: Prediction
) -> None:
    """It is the one with the best probability for its cost; at a limit, the best is delivered."""
    unsure = replace(prediction, probabilities=(0.4, 0.3, *(0.35,) * (len(ARMS) - 2)))

    def step(policy: Verified, **given: Any) -> Step:  # noqa: ANN401 - further fields of the state
        candidates = [ArmAnswer(FIRST, answer({"city": "Oslo"}))]
        state = VerificationState(policy, ARMS, candidates, **given)
        return router.next_step(QUESTION, unsure, state)

    price = Verified(1e-4)  # an arm costs 10 times as much as a correct answer is worth
    assert step(price).accept == FIRST
    assert step(replace(price, floor=0.39)).accept == FIRST
    assert step(replace(price, floor=0.5)).ask == (SECOND,)
    limited = step(replace(price, floor=0.5), limits=VerificationLimits(max_candidates=1))
    assert limited.accept == FIRST
    assert limited.stop is not None
    assert limited.stop.reason is StopReason.MAX_CANDIDATES


@pytest.mark.parametrize(
    ("cities", "given", "reason", "arm"),
    [
        (OSLO, {"policy": Verified(0.0)}, StopReason.NOT_WORTH, SECOND),
        (OSLO, {"limits": replace(LIMITED, max_candidates=1)}, StopReason.MAX_CANDIDATES, SECOND),
        (DIFFERING | {THIRD: "Rome"}, {}, StopReason.MAX_CANDIDATES, None),
        (OSLO, costing(0.0025), StopReason.MAX_COST, SECOND),
        (OSLO, {"limits": HASTY, "elapsed_s": 0.4}, StopReason.MAX_ADDED_LATENCY, SECOND),
        (
            OSLO,
            {"arms": (), "excluded": {THIRD: StopReason.SHUTDOWN}},
            StopReason.SHUTDOWN,
            THIRD,
        ),
        (OSLO, {"arms": ()}, StopReason.NO_MODEL_LEFT, None),
    ],
)
def test_step_says_why_it_stops(
    next_step: NextStep,
    cities: Mapping[str, str | None],
    given: Mapping[str, Any],
    reason: StopReason,
    arm: str | None,
) -> None:
    """It says which limit stopped it, and what asking the best remaining arm would have meant."""
    step = next_step(cities, **given)
    assert step.accept is not None
    assert step.stop is not None
    assert (step.stop.reason, step.stop.arm) == (reason, arm)
    if arm is not None:
        assert step.stop.expected_gain == pytest.approx(0.15)  # what 0.8 lacks to `MOST`
        assert step.stop.expected_cost_usd == pytest.approx(1e-3 * (1 + ARMS.index(arm)))
    assert next_step({FIRST: "Oslo", SECOND: "Lima"}).stop is None


def test_time_has_a_price(next_step: NextStep, router: Router, prediction: Prediction) -> None:
    """A slow arm is not asked if waiting costs too much, and two at once if both are needed."""
    differing = {FIRST: "Oslo", SECOND: "Lima"}
    assert next_step(differing).ask == (THIRD,)
    hurried = replace(NO_LIMITS, usd_per_second=100.0)
    assert next_step(differing, limits=hurried).accept is not None
    unsure = replace(prediction, probabilities=(0.4,) * len(router.arms))
    state = VerificationState(PRICE, ARMS, limits=replace(NO_LIMITS, usd_per_second=0.02))
    assert router.next_step(QUESTION, unsure, state).ask == (FIRST, SECOND)
    assert router.next_step(QUESTION, prediction, state).ask == (FIRST,)
    patient = replace(state, limits=NO_LIMITS)
    assert router.next_step(QUESTION, unsure, patient).ask == (FIRST,)
