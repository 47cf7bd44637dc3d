"""How probably the answer to a routed request is correct, compared with the baseline model's."""

from __future__ import annotations

from router_service.core.record import Expectation
from router_service.requests.call import Call, Ending


def expect_answer(call: Call) -> Expectation | None:
    """Return what a complete answer adds to the expected numbers of correct answers.

    For a verified answer, its probability is the verifier's. Returns None if a probability is
    unknown, or if the errors of the probabilities are: without held-out predictions, or before they
    are measured in the first second of an engine.
    """
    plan, accepted = call.plan, call.accepted
    decision, planner = plan.decision, plan.planner
    errors, baseline_arm = planner.policy_errors, planner.baseline_arm
    if decision is None or errors is None or plan.baseline is not planner.baseline:
        return None
    if call.ending is not Ending.COMPLETE or call.status >= 400:
        return None
    arm = accepted.arm or planner.arm_of(accepted.model, decision.arm)
    p_correct = accepted.p_correct
    if p_correct is None:
        p_correct = decision.probabilities.get(arm or "")
    p_baseline = decision.probabilities.get(baseline_arm or "")
    rule = plan.choosing_rule if accepted.arm is None else plan.verified
    if p_correct is None or p_baseline is None or rule is None:
        return None
    if arm == baseline_arm and accepted.p_correct is None:
        return Expectation(p_correct, p_correct)
    error = errors.find(str(rule))
    return None if error is None else error.expect(p_correct, p_baseline)
