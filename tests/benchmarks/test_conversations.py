"""The replay of conversations on generated ones: what each strategy costs."""

from __future__ import annotations

import pytest

from benchmarks.conversations import (
    Pool,
    Result,
    best_single,
    generate_conversations,
    replay,
    strategies,
    usd_at,
)
from router_service.policies.caching import OPENAI, ArmTerms
from router_service.policies.costs import Price
from router_service.policies.drift import Drift
from router_service.policies.utility import Utility


def terms(usd_per_mtok: float) -> ArmTerms:
    """Return an arm with cached input at a tenth of its price."""
    price = Price(
        input_usd_per_mtok=usd_per_mtok,
        output_usd_per_mtok=4 * usd_per_mtok,
        cached_input_usd_per_mtok=usd_per_mtok / 10,
    )
    return ArmTerms(price, 100, rule=OPENAI)


POOL = Pool({"strong": terms(5.0), "middle": terms(1.0), "cheap": terms(0.2)}, (0.02, 0.004, 0.001))
CONVERSATIONS = generate_conversations(3, 60, seed=0)


def replay_all(policy: Drift | Utility, *names: str, pause_s: float = 30.0) -> dict[str, Result]:
    """Return the results of some strategies under a policy, by name."""
    wanted = (each for each in strategies(policy) if each.name in names)
    return {each.name: replay(CONVERSATIONS, POOL, each, pause_s) for each in wanted}


@pytest.mark.parametrize("pause_s", [5.0, 600.0])
@pytest.mark.parametrize("policy", [Drift(0.05), Drift(0.1), Utility(0.05)], ids=str)
def test_conversations_cost_at_most_2_percent_more_than_sticky_routing(
    policy: Drift | Utility, pause_s: float
) -> None:
    """The budget holds on average, whether the caches are warm or cold at a user's turn."""
    results = replay_all(policy, "sticky", "ours", pause_s=pause_s)
    assert results["sticky"].switches == 0 < results["ours"].switches
    assert results["ours"].usd_per_1000 <= 1.02 * results["sticky"].usd_per_1000


def test_conversations_cost_less_than_the_best_single_model_at_its_accuracy() -> None:
    """Some `utility` policies are as accurate as the best arm with its cache, and cheaper."""
    best = best_single(CONVERSATIONS, POOL, 30.0)[0]
    assert best.strategy == "strong"
    assert best.cached_share > 0.5
    found = [replay_all(Utility(price), "no budget")["no budget"] for price in (0.1, 1.0, 10.0)]
    usd = usd_at(best.accuracy - 0.002, found)
    assert usd is not None
    assert usd < best.usd_per_1000


def test_cached_prompts_make_frequent_changes_expensive() -> None:
    """Routing each request by itself reads less from caches than routing a conversation."""
    results = replay_all(Drift(0.05), "per turn", "ours")
    assert results["per turn"].switches > results["ours"].switches > 0
    assert results["per turn"].cached_share < results["ours"].cached_share
