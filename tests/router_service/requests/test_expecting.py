"""Which answers count towards the expected accuracy, and with which probabilities."""

from __future__ import annotations

import json

import pytest

from router_service.measurement.expectations import EstimateError, EstimateErrors, Expectation
from router_service.policies.names import NamedPolicy
from router_service.policies.verified import Verified
from router_service.requests.call import Call, Ending
from router_service.requests.candidates import Candidate
from router_service.requests.expecting import expect_answer
from router_service.requests.parsing import parse_request
from router_service.requests.pool import Pool
from router_service.runtime.engine import make_planner
from router_service.settings import Settings
from tests.bodies import BODY
from tests.endpoints import CHAT
from tests.fakes import FakeRouter

ONCE = EstimateError(bias=0.01, spread=0.02, variance_share=0.5)
CHECKED = EstimateError(bias=0.03, spread=0.01, variance_share=0.4)
ERRORS = EstimateErrors({}, {False: ONCE, True: CHECKED})


def answered(
    model: str = "switchcraft",
    policy: str | None = None,
    errors: EstimateErrors | None = ERRORS,
    baseline: str | None = "large",
) -> Call:
    """Return a request whose answer is complete; the arms are right with 30%, 70% and 90%."""
    router = FakeRouter()
    settings = Settings.sandbox("http://127.0.0.1:9/v1", list(router.probabilities))
    changes = {"baseline_model": baseline}
    settings = settings.model_copy(update={"router": settings.router.model_copy(update=changes)})
    planner = make_planner(settings, router, Pool.build(settings, router.artifact.manifest))
    planner.policy_errors = errors
    name = model if policy is None else f"{model}:{policy}"
    plan = planner.prepare(parse_request(CHAT, json.dumps(BODY | {"model": name}).encode()))
    if plan.arms:
        planner.choose(plan, router.predict(plan.request.conversation))
    call = Call("dec_1", "req_1", 0.0)
    call.begin(plan)
    call.end(200, Ending.COMPLETE)
    return call


def test_chosen_answer_is_compared_with_the_baseline() -> None:
    """Its probability is corrected by the policy's mean error."""
    found = expect_answer(answered())
    assert found is not None
    assert found.correct == pytest.approx(0.7 + 0.01)
    assert found.baseline_correct == pytest.approx(0.9)
    assert found.variance == pytest.approx(0.5 * (0.7 * 0.3 + 0.9 * 0.1))
    assert found.error == 0.02


def test_answer_of_the_baseline_has_no_uncertainty() -> None:
    """It is as often right as itself."""
    assert expect_answer(answered(policy="quality")) == Expectation(0.9, 0.9)


def test_fallback_counts_with_the_model_that_answered() -> None:
    """The chosen model did not answer."""
    call = answered()
    small = next(m for m in call.plan.models if m.name == "small")
    call.accepted.model = small
    found = expect_answer(call)
    assert found is not None
    assert found.correct == pytest.approx(0.3 + 0.01)


def test_verified_answer_has_the_probability_of_the_verifier() -> None:
    """Also if the baseline model gave it, because its probability is still the router's."""
    call = answered()
    call.plan.policy = NamedPolicy(Verified(0.01))
    large = next(m for m in call.plan.models if m.name == "large")
    call.accepted = Candidate(large, "large", 1, p_correct=0.95)
    found = expect_answer(call)
    assert found is not None
    assert (found.correct, found.baseline_correct) == pytest.approx((0.98, 0.9))
    assert found.error == 0.01


@pytest.mark.parametrize(
    "call",
    [
        answered(model="small"),
        answered(errors=None),
        answered(errors=EstimateErrors({}, {})),
        answered(baseline=None),
    ],
    ids=["not routed", "not measured", "kind not measured", "no baseline"],
)
def test_without_probabilities_or_errors_nothing_is_expected(call: Call) -> None:
    """Such an answer does not count towards the accuracy."""
    assert expect_answer(call) is None


@pytest.mark.parametrize(
    ("status", "ending"),
    [(200, Ending.BROKEN), (502, Ending.FAILED), (499, Ending.CLIENT_LEFT), (400, Ending.COMPLETE)],
)
def test_only_complete_answers_count(status: int, ending: Ending) -> None:
    """Errors are counted elsewhere."""
    call = answered()
    call.end(status, ending)
    assert expect_answer(call) is None
