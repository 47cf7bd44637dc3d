"""The sentence that explains a choice."""

from __future__ import annotations

import pytest

from router_service.core.reasons import Reason
from router_service.policies.explanations import explain_choice

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
    ("big", Reason.UTILITY, "utility=9"): (
        "94% is the best value, if a correct answer is worth 9 USD."
    ),
    ("big", Reason.UNREAD, "drift=0.05"): (
        "94% is the highest probability, which decides because a part could not be read."
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
