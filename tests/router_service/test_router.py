"""The router: one decision from one conversation, with the shipped artifact."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from router_service.apis.conversation import Conversation
from router_service.artifact import SHIPPED
from router_service.core.reasons import Reason
from router_service.policies.threshold import Threshold
from router_service.router import Router, explored


@pytest.fixture(scope="module")
def router() -> Router:
    """Return the shipped router."""
    return Router.load(SHIPPED)


@pytest.fixture(scope="module")
def conversations(router: Router) -> list[Conversation]:
    """Return the canaries' conversations."""
    return [canary.conversation for canary in router.artifact.canaries()]


def test_a_decision_does_not_depend_on_its_neighbours(
    router: Router, conversations: list[Conversation]
) -> None:
    """Alone, in a batch, or among threads: the same conversation has the same probabilities."""
    alone = [router.predict_batch([conversation])[0] for conversation in conversations]
    assert router.predict_batch(conversations) == alone
    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(lambda c: router.predict_batch([c])[0], conversations * 5))
    assert rows == alone * 5


def test_an_explored_arm_stands_before_the_policy_s_order(
    router: Router, conversations: list[Conversation]
) -> None:
    """Every arm is drawn by some number, with the share of it that is its own, and may fail."""
    decision = router.decide_conversation(conversations[0], Threshold(0.5))
    arms = len(router.arms)
    drawn = [explored(decision, 0.4, 0.4 * (i + 0.5) / arms) for i in range(arms)]
    assert tuple(d.arm for d in drawn) == decision.ranking
    for tried in drawn:
        is_policys = tried.arm == decision.arm
        assert tried.ranking[1:] == tuple(a for a in decision.ranking if a != tried.arm)
        assert tried.reason == (decision.reason if is_policys else Reason.EXPLORED)
        assert tried.propensity == pytest.approx(0.4 / arms + 0.6 * is_policys)
    assert explored(decision, 0.4, 0.4) == replace(decision, propensity=drawn[0].propensity)
