"""The sentence that explains a choice."""

from __future__ import annotations

import pytest

from router_service.core.decision_record import CandidateRecord, DecisionRecord
from router_service.core.reasons import Reason
from router_service.policies.explanations import explain_choice, explain_record

P = {"mini": 0.91, "mid": 0.92, "big": 0.94}
USD = {"mini": 0.001, "mid": 0.009, "big": 0.017}


SENTENCES = {
    ("big", Reason.DRIFT, "drift=0.01"): (
        "94% is the highest probability, and no arm within 1 point of it is cheaper."
    ),
    ("mini", Reason.DRIFT, "drift=0.05"): (
        "91% is within 5 points of the best model (big, 94%) and costs 17 times less."
    ),
    ("mid", Reason.THRESHOLD, "theta=0.92"): "92% reaches 92%, and no cheaper model does.",
    ("big", Reason.ARGMAX, "theta=0.99"): "94% is the highest probability; no arm reaches 99%.",
    ("mid", Reason.UTILITY, "utility=0.1"): (
        "92% is the best value, if a correct answer is worth 0.1 USD; the best model (big, 94%) is"
        " more likely, and this one costs 47% less."
    ),
    ("big", Reason.UTILITY, "utility=9"): (
        "94% is the best value, if a correct answer is worth 9 USD."
    ),
    ("big", Reason.UNREAD, "drift=0.05"): (
        "94% is the highest probability, which decides because a part could not be read."
    ),
    ("mini", Reason.EXPLORED, "drift=0.05"): (
        "91% was drawn at random, to learn how all models answer."
    ),
    ("big", Reason.RISK, "theta=0.5"): (
        "94% is the highest probability, which the offered risky tools demand."
    ),
    ("mid", Reason.STICKY, "drift=0.05"): ("92% stays, because it served the conversation so far."),
    ("mini", Reason.SWITCHED, "drift=0.05"): (
        "91% replaces the conversation's earlier model, because the change pays."
    ),
    ("mini", Reason.BUDGET, "drift=0.05"): (
        "91% is the policy's choice among the models that the rest of the budget allows."
    ),
    ("mid", "new", "future=1"): "92% was chosen by future=1.",
}


@pytest.mark.parametrize(("arm", "reason", "policy"), SENTENCES)
def test_sentence_of_each_reason(arm: str, reason: str, policy: str) -> None:
    """The sentence has the probability, what it is compared with, and the price.

    A model with another name than its arm is named with the arm in parentheses.
    """
    sentence = SENTENCES[arm, reason, policy]
    assert explain_choice(arm, reason, policy, P, USD).sentence == f"{arm}: {sentence}"
    labels = {arm: f"haiku ({arm})"}
    named = explain_choice(arm, reason, policy, P, USD, labels).sentence
    assert named.startswith(f"haiku ({arm}): {sentence[:3]}")


def test_facts_accompany_the_sentence() -> None:
    """The threshold, the best arm, and the arms that qualify, the cheapest first."""
    explained = explain_choice("mid", Reason.DRIFT, "drift=0.02", P, USD)
    assert explained.threshold == pytest.approx(0.92)
    assert (explained.best_arm, explained.qualifying_arms) == ("big", ("mid", "big"))
    assert explain_choice("big", Reason.UTILITY, "utility=1", P, USD).threshold is None


def record(**fields: object) -> DecisionRecord:
    """Return the record of a routed request, with some fields replaced."""
    values: dict[str, object] = {
        "id": "dec_1",
        "created": 0,
        "model": "model-of-mini",
        "arm": "mini",
        "reason": "drift",
        "policy": "drift=0.05",
        "probabilities": P,
        "expected_cost_usd": USD,
        "stream": False,
        "status": 200,
        "ending": "complete",
        "latency_s": 1,
    }
    return DecisionRecord.model_validate(values | fields)


def candidate(arm: str, *, is_accepted: bool) -> CandidateRecord:
    """Return a candidate of a verified answer."""
    return CandidateRecord(
        arm=arm, model=arm, step=1, is_accepted=is_accepted, p_correct=0.9, seconds=1
    )


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "mini: 91% is within 5 points of the best model (big, 94%) and costs 17 times less."),
        (
            {"reason": "fallback", "model": "next"},
            "next: the next choice, because the router's choice, mini, failed.",
        ),
        (
            {"reason": "fallback", "model": "next", "arm": None, "probabilities": None},
            "next: the next choice, because the model before it failed.",
        ),
        (
            {"reason": "pinned", "arm": None, "probabilities": None, "policy": None},
            "model-of-mini: the request names this model.",
        ),
        (
            {
                "reason": "verified",
                "candidates": (
                    candidate("mini", is_accepted=False),
                    candidate("big", is_accepted=True),
                ),
            },
            "big: the likeliest of 2 models' answers (90%), by the verifier's estimate.",
        ),
        (
            {"reason": "text", "candidates": (candidate("mini", is_accepted=True),)},
            (
                "mini: the first model that was asked; the router expected text, which is delivered"
                " without verification."
            ),
        ),
    ],
)
def test_explained_record(fields: dict[str, object], sentence: str) -> None:
    """A record has the sentence in addition to its own fields, even if nothing was routed."""
    found = record(**fields)
    explained = explain_record(found)
    assert explained.explanation == sentence
    assert dict(explained).items() >= dict(found).items()
    assert explained.best_arm == ("big" if found.probabilities else None)
