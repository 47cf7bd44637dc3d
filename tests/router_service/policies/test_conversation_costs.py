"""What conversations cost with simulated prompt caches, by how their arms are chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from router_service.policies.caching import (
    OPENAI,
    ArmTerms,
    ConversationState,
    NextRequest,
    SwitchRule,
    choose_in_conversation,
    costs_over,
)
from router_service.policies.costs import Price
from router_service.policies.drift import Drift
from router_service.policies.utility import Utility


@dataclass(frozen=True)
class Turn:
    """One request of a conversation, with each arm's probability to answer it correctly."""

    prompt_tokens: int
    probabilities: tuple[float, ...]
    is_in_loop: bool
    """True if the request ends with a tool's result."""


@dataclass(frozen=True)
class Outcome:
    """Cost, changes of the arm, tokens from caches, and predicted accuracy of all conversations."""

    usd: float
    switches: int
    cached_share: float
    accuracy: float


Choice = Callable[[Turn, ConversationState, NextRequest], str]


def terms(usd_per_mtok: float) -> ArmTerms:
    """Return an arm with cached input at a tenth of its price."""
    price = Price(
        input_usd_per_mtok=usd_per_mtok,
        output_usd_per_mtok=4 * usd_per_mtok,
        cached_input_usd_per_mtok=usd_per_mtok / 10,
    )
    return ArmTerms(price, 100, rule=OPENAI)


TERMS = {"strong": terms(5.0), "middle": terms(1.0), "cheap": terms(0.2)}
ARMS = tuple(TERMS)
PROFILED_USD = (0.02, 0.004, 0.001)
"""Mean cost of a request with each arm."""


def generate(count: int) -> list[list[Turn]]:
    """Return conversations whose difficulty changes with each message of the user."""
    rng = np.random.default_rng(0)
    skill = np.linspace(1.0, 0.8, len(ARMS))  # the first arm is the best one
    found: list[list[Turn]] = []
    for _ in range(count):
        turns: list[Turn] = []
        prompt = int(rng.integers(2_000, 20_000))
        for _ in range(rng.integers(2, 6)):
            ease = rng.uniform(0.4, 1.0)
            for step in range(rng.integers(1, 6)):
                p = np.clip(ease * skill + rng.normal(0, 0.03, len(ARMS)), 0.01, 0.99)
                prompt += int(rng.integers(50, 1_500))
                turns.append(Turn(prompt, tuple(p.tolist()), step > 0))
        found.append(turns)
    return found


CONVERSATIONS = generate(60)


def once(policy: Drift | Utility) -> Choice:
    """Decide each request by itself, by the arms' mean costs."""
    return lambda turn, _state, _sent: ARMS[policy.choose(turn.probabilities, PROFILED_USD).arm]


def sticky(policy: Drift | Utility) -> Choice:
    """Decide the first request of a conversation, and keep its arm."""
    first = once(policy)
    return lambda turn, state, sent: state.arm or first(turn, state, sent)


def followed(policy: Drift | Utility, budget_share: float = SwitchRule().budget_share) -> Choice:
    """Follow the conversation: change the arm for a new message of the user, if that pays."""
    first, rule = once(policy), SwitchRule(budget_share=budget_share)

    def choose(turn: Turn, state: ConversationState, sent: NextRequest) -> str:
        if state.arm is None:
            return first(turn, state, sent)
        if turn.is_in_loop:
            return state.arm
        costs_usd = costs_over(ARMS, TERMS, state, sent, rule.expected_requests)
        chosen = choose_in_conversation(ARMS, turn.probabilities, costs_usd, policy, state, rule)
        return ARMS[chosen.arm]

    return choose


def always(arm: str, *_: object) -> str:
    """Choose the same arm for every request."""
    return arm


def simulate(choose: Choice, pause_s: float = 30.0) -> Outcome:
    """Send all conversations, with a pause before each new message of the user."""
    spent_usd, switches, cached, prompts = 0.0, 0, 0, 0
    correct: list[float] = []
    for conversation in CONVERSATIONS:
        state, now_s = ConversationState(id="c"), 0.0
        for turn in conversation:
            now_s += 2.0 if turn.is_in_loop else pause_s
            sent = NextRequest(turn.prompt_tokens, now_s, has_markers=True)
            arm = choose(turn, state, sent)
            own = TERMS[arm]
            hits = state.cached_tokens(arm, own.rule, now_s)
            usage = own.usage(turn.prompt_tokens, hits, has_markers=True)
            state = state.after(sent, arm, usage, own.price.cost_of(usage, own.seconds), TERMS)
            correct.append(turn.probabilities[ARMS.index(arm)])
            cached += usage.cached_tokens
            prompts += usage.prompt_tokens
        spent_usd += state.spent_usd
        switches += state.switches
    return Outcome(spent_usd, switches, cached / prompts, float(np.mean(correct)))


def usd_at(accuracy: float, outcomes: Sequence[Outcome]) -> float:
    """Return the cost at a predicted accuracy, between two outcomes."""
    points = sorted((outcome.accuracy, outcome.usd) for outcome in outcomes)
    assert points[0][0] <= accuracy <= points[-1][0]
    return float(np.interp(accuracy, [found for found, _ in points], [usd for _, usd in points]))


@pytest.mark.parametrize("pause_s", [5.0, 600.0])
@pytest.mark.parametrize("policy", [Drift(0.05), Drift(0.1), Utility(0.05)], ids=str)
def test_conversations_cost_at_most_2_percent_more_than_sticky_routing(
    policy: Drift | Utility, pause_s: float
) -> None:
    """The budget holds on average, whether the caches are warm or cold at a user's turn."""
    kept, ours = (simulate(each(policy), pause_s) for each in (sticky, followed))
    assert kept.switches == 0 < ours.switches
    assert ours.usd <= 1.02 * kept.usd


def test_conversations_cost_less_than_the_best_single_model_at_its_accuracy() -> None:
    """Some `utility` policies are as accurate as the best arm with its cache, and cheaper."""
    best = max(
        (simulate(partial(always, arm)) for arm in ARMS),
        key=lambda outcome: outcome.accuracy,
    )
    assert best.cached_share > 0.5
    found = [simulate(followed(Utility(price), budget_share=1e9)) for price in (0.1, 1.0, 10.0)]
    assert usd_at(best.accuracy - 0.002, found) < best.usd


def test_cached_prompts_make_frequent_changes_expensive() -> None:
    """Routing each request by itself reads less from caches than routing a conversation."""
    each, ours = (simulate(choice(Drift(0.05))) for choice in (once, followed))
    assert each.switches > ours.switches > 0
    assert each.cached_share < ours.cached_share
