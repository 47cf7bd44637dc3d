"""The router: one decision from one conversation, with the shipped artifact."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from router_service.apis.conversation import (
    Conversation,
    Parameter,
    Role,
    SchemaSummary,
    ToolSpec,
    Turn,
)
from router_service.artifact import SHIPPED, Artifact
from router_service.core.errors import ArtifactError, PolicyError
from router_service.core.reasons import Reason
from router_service.core.resources import SHARED_CACHES, CacheCounts
from router_service.policies.base import Policy
from router_service.policies.drift import Drift
from router_service.policies.registry import choose_once, parse_policy
from router_service.policies.threshold import Threshold
from router_service.predictor.model import Platt
from router_service.router import Decision, Router, choices, explored
from tests.publishing import without_verifier


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


@pytest.mark.parametrize("text", ["verified", "verified=0.002"])
def test_verified_policy_needs_a_verifier(text: str) -> None:
    """Without a verifier in the artifact, the error says how to get one."""
    with pytest.raises(PolicyError, match=r"no verifier; .*`switchcraft-train add-verifier`"):
        Router(without_verifier()).policy(text)


@pytest.mark.parametrize("arms", [[], ["gpt-9"]])
def test_arms_that_the_artifact_does_not_know_are_refused(arms: list[str]) -> None:
    """Choosing among nothing, or among strangers, is an error at start-up."""
    with pytest.raises(ArtifactError, match=r"frontier-2025-12.*gpt-9|no arm"):
        Router(Artifact.load(SHIPPED), arms=arms)


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


def test_other_policies_choose_as_they_would_have(
    router: Router, conversations: list[Conversation]
) -> None:
    """What a policy of the frontier chooses by a decision is what the router decides with it."""
    policies = [
        choose_once(parse_policy(point.policy)) for point in router.artifact.manifest.frontier
    ]
    for conversation in conversations[:3]:
        chosen = list(choices(router.decide_conversation(conversation), policies))
        decided = [router.decide_conversation(conversation, policy) for policy in policies]
        assert [(c.arm, c.reason, c.policy) for c in chosen] == [
            (d.arm, d.reason, d.policy) for d in decided
        ]
        floors = [c.floor for c in chosen if c.policy.startswith("theta")]
        assert floors == [p.theta for p in policies if isinstance(p, Threshold)]


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
    assert router.caches["predictions"].counts == CacheCounts(hits=2, misses=4)


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


def test_another_calibration_shares_no_predictions(
    router: Router, conversations: list[Conversation]
) -> None:
    """The same graph under another calibration answers for itself."""
    arms = len(router.arms)
    calibration = Platt(slopes=(0.5,) * arms, intercepts=(0.1,) * arms)
    manifest = router.artifact.manifest.model_copy(update={"calibration": calibration})
    other = Router(replace(router.artifact, manifest=manifest), relatives=[router])
    router.decide_conversation(conversations[0])
    assert other.cached(conversations[0]) is None
    assert other.caches["signatures"] is router.caches["signatures"]
    assert other.predict_batch(conversations[:1]) != router.predict_batch(conversations[:1])


def test_tools_of_earlier_conversations_are_not_kept(router: Router) -> None:
    """However many lists of tools there were, no more of them are in memory than the caches count.

    Each prediction kept its tools before, so that 8 MB of predictions kept a gigabyte of tools.
    """
    size_bytes = 600_000
    for number in range(100):
        values = tuple(f"{number} {place} {'x' * 1000}" for place in range(size_bytes // 1000))
        schema = SchemaSummary("string", enum=values)
        tools = (
            ToolSpec(f"of_this_test_{number}", "Sets it.", (Parameter("value", schema, True),)),
        )
        router.predict(Conversation((Turn(Role.USER, f"Request {number}"),), tools))
        del tools, schema, values
    gc.collect()
    specs = [each for each in gc.get_objects() if isinstance(each, ToolSpec)]
    kept_bytes = sum(spec.size_bytes for spec in specs if spec.name.startswith("of_this_test_"))
    assert kept_bytes <= SHARED_CACHES["tool_lists"].max_bytes + 2 * size_bytes
    for name, cache in {**SHARED_CACHES, **router.caches}.items():
        assert cache.size_bytes <= cache.max_bytes, name
