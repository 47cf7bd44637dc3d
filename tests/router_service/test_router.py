"""The router: one decision from one conversation, with the shipped artifact."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from router_service.apis.conversation import (
    Conversation,
    Role,
    ToolSpec,
    Turn,
)
from router_service.artifact import SHIPPED, Artifact
from router_service.core.reasons import Reason
from router_service.policies.base import Policy
from router_service.policies.drift import Drift
from router_service.policies.threshold import Threshold
from router_service.router import Decision, Router, explored


@pytest.fixture(scope="module")
def router() -> Router:
    """Return the shipped router."""
    return Router.load(SHIPPED)


@pytest.fixture(scope="module")
def conversations(router: Router) -> list[Conversation]:
    """Return the canaries' conversations."""
    return [canary.conversation for canary in router.artifact.canaries()]


@pytest.mark.parametrize("policy", [Threshold(0.5), Threshold(0.99), Drift(0.1)])
def test_a_decision_follows_from_what_it_shows(
    router: Router, conversations: list[Conversation], policy: Threshold | Drift
) -> None:
    """The arm and the reason are those that the policy makes of the probabilities and costs."""
    for conversation in conversations:
        decision = router.decide_conversation(conversation, policy)
        chosen = policy.choose(
            list(decision.probabilities.values()), list(decision.cost_usd.values())
        )
        assert (decision.arm, decision.reason) == (router.arms[chosen.arm], chosen.reason)
        assert decision.policy == str(policy)


def test_a_decision_does_not_depend_on_its_neighbours(
    router: Router, conversations: list[Conversation]
) -> None:
    """Alone, in a batch, or among threads: the same conversation has the same probabilities."""
    alone = [router.predict_batch([conversation])[0] for conversation in conversations]
    assert router.predict_batch(conversations) == alone
    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(lambda c: router.predict_batch([c])[0], conversations * 5))
    assert rows == alone * 5


def test_a_partly_unread_request_gets_the_most_probable_arm(
    router: Router, conversations: list[Conversation]
) -> None:
    """With part of the request unread, the likeliest arm is taken, whatever the policy."""
    for conversation in conversations:
        partial = Conversation(conversation.turns, conversation.tools, unread=("tools[3]",))
        decision = router.decide_conversation(partial, Threshold(0.0))
        assert decision.reason is Reason.UNREAD
        assert decision.probabilities[decision.arm] == max(decision.probabilities.values())


def test_a_decision_among_some_arms_ranks_only_those(
    router: Router, conversations: list[Conversation]
) -> None:
    """Without the chosen arm, the next arm of the ranking is chosen, as after its failure."""
    for conversation in conversations:
        full = router.decide_conversation(conversation, Threshold(0.5))
        assert full.ranking[0] == full.arm
        assert set(full.ranking) == set(router.arms)
        rest = router.decide_conversation(conversation, Threshold(0.5), full.ranking[1:])
        assert rest.ranking == full.ranking[1:]
        assert rest.probabilities == {arm: full.probabilities[arm] for arm in rest.probabilities}
        assert full.arm not in rest.probabilities


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


def test_only_the_same_conversation_is_cached(conversations: list[Conversation]) -> None:
    """With another turn, another tool or another text it is a new one."""
    router, asked = Router(Artifact.load(SHIPPED)), conversations[0]
    assert router.cached(asked) is None
    router.decide_conversation(asked)
    others = [
        replace(asked, turns=(*asked.turns, Turn(Role.USER, "And then?"))),
        replace(asked, tools=(*asked.tools, ToolSpec("another"))),
        replace(asked, turns=(asked.turns[0]._replace(text="?"), *asked.turns[1:])),
    ]
    assert [router.cached(other) for other in others] == [None] * 3
    assert router.cached(asked) is not None
    unread = cached_decision(router, replace(asked, unread=("messages[7]",)))
    assert unread is not None
    assert unread.reason is Reason.UNREAD


def cached_decision(
    router: Router,
    conversation: Conversation,
    policy: Policy | None = None,
    arms: Sequence[str] | None = None,
) -> Decision | None:
    """Return the decision from the cached prediction; None without a cached prediction."""
    prediction = router.cached(conversation)
    if prediction is None:
        return None
    return router.choose(conversation, prediction, policy, arms)


def test_routers_of_the_same_files_share_what_was_loaded(
    router: Router, conversations: list[Conversation]
) -> None:
    """Another policy, price or choice of arms loads nothing again, and predicts the same."""
    artifact = Artifact.load(SHIPPED, [router.artifact])
    assert artifact.tokenizer is router.artifact.tokenizer
    other = Router(artifact, arms=router.arms[:2], relatives=[router])
    assert other.caches == router.caches
    decided = router.decide_conversation(conversations[0])
    recalled = cached_decision(other, conversations[0])
    assert recalled is not None
    shared = {arm: decided.probabilities[arm] for arm in other.arms}
    assert recalled.probabilities == shared
    assert other.predict_batch(conversations[:2]) == router.predict_batch(conversations[:2])
