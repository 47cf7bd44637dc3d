"""Caching rules, expected costs with a warm cache, and which arm a tool loop asks first."""

from __future__ import annotations

import pytest

from router_service.apis.usage import Usage
from router_service.core.reasons import Reason
from router_service.policies.caching import (
    ANTHROPIC,
    DEEPSEEK,
    OPENAI,
    ArmTerms,
    ConversationState,
    NextRequest,
    cache_rule,
    choose_in_loop,
    costs_over,
)
from router_service.policies.costs import Price

CACHED = Price(input_usd_per_mtok=2.0, output_usd_per_mtok=8.0, cached_input_usd_per_mtok=0.5)
WRITTEN = Price(
    input_usd_per_mtok=3.0,
    output_usd_per_mtok=15.0,
    cached_input_usd_per_mtok=0.3,
    cache_write_usd_per_mtok=3.75,
)
CHEAP = Price(input_usd_per_mtok=0.2, output_usd_per_mtok=0.8, cached_input_usd_per_mtok=0.05)
TERMS = {
    "strong": ArmTerms(CACHED, 100, rule=OPENAI),
    "claude": ArmTerms(WRITTEN, 100, rule=ANTHROPIC),
    "cheap": ArmTerms(CHEAP, 100, rule=OPENAI),
}
ARMS = tuple(TERMS)


def at(now_s: float, tokens: float = 10_000) -> NextRequest:
    """Return a request with this many prompt tokens."""
    return NextRequest(tokens, now_s, has_markers=True)


def served(arm: str, now_s: float = 0.0, tokens: int = 10_000) -> ConversationState:
    """Return the state after an arm has answered the first request."""
    usage = Usage(tokens, 100)
    return ConversationState(id="c").after(at(now_s, tokens), arm, usage, TERMS[arm].rule)


@pytest.mark.parametrize(
    ("provider", "model", "min_tokens", "lifetime_s", "needs_markers"),
    [
        ("openai", "gpt-5-mini", 1024, 300, False),
        ("anthropic", "claude-sonnet-4-5-20250929", 1024, 300, True),
        ("anthropic", "claude-opus-4-5-20251101", 4096, 300, True),
        ("anthropic", "claude-3-haiku-20240307", 2048, 300, True),
        ("google", "gemini-2.5-flash", 2048, 180, False),
        ("deepseek", "deepseek-chat", 64, 3600, False),
        ("x-ai", "grok-4", 1024, 300, False),
    ],
)
def test_rules_follow_the_providers_documentation(
    provider: str, model: str, min_tokens: int, lifetime_s: float, needs_markers: bool
) -> None:
    """Minimum length, lifetime and the need for `cache_control` depend on provider and model."""
    rule = cache_rule(provider, model)
    assert (rule.min_tokens, rule.lifetime_s) == (min_tokens, lifetime_s)
    assert rule.needs_markers is needs_markers


def test_a_warm_prompt_costs_its_cached_part_its_new_part_and_the_output() -> None:
    """Each token of the prompt is charged once: read from the cache, written to it, or plain."""
    strong, claude = TERMS["strong"], TERMS["claude"]
    cold = strong.cost_usd(10_000, 0, has_markers=True)
    assert cold == pytest.approx((10_000 * 2.0 + 100 * 8.0) / 1e6)
    warm = strong.cost_usd(10_000, 9_000, has_markers=True)
    assert warm == pytest.approx((9_000 * 0.5 + 1_000 * 2.0 + 100 * 8.0) / 1e6)
    written = claude.cost_usd(10_000, 9_000, has_markers=True)
    assert written == pytest.approx((9_000 * 0.3 + 1_000 * 3.75 + 100 * 15.0) / 1e6)
    unmarked = claude.cost_usd(10_000, 9_000, has_markers=False)
    assert unmarked == pytest.approx((10_000 * 3.0 + 100 * 15.0) / 1e6)


def test_a_cache_is_cold_after_its_lifetime_and_below_its_minimum() -> None:
    """A prefix counts within the lifetime since its last use, and only if it is long enough."""
    state = served("strong", now_s=100.0)
    assert state.cached_tokens("strong", OPENAI, 399.0) == 10_000
    assert state.cached_tokens("strong", OPENAI, 401.0) == 0
    assert state.cached_tokens("strong", DEEPSEEK, 401.0) == 10_000
    assert state.cached_tokens("cheap", OPENAI, 100.0) == 0
    assert state.cached_tokens("strong", None, 100.0) == 0
    assert served("strong", tokens=1_000).cached_tokens("strong", OPENAI, 1.0) == 0


def test_reported_cached_tokens_correct_the_expectation() -> None:
    """An arm that reports no cached tokens is not expected to be warm, and a later hit counts."""
    state = served("strong")
    missed = state.after(at(1.0, 11_000), "strong", Usage(11_000, 100), OPENAI)
    assert missed.cached_tokens("strong", OPENAI, 2.0) < 1_000
    hit = Usage(12_000, 100, cached_tokens=11_000)
    again = missed.after(at(2.0, 12_000), "strong", hit, OPENAI)
    assert again.cached_tokens("strong", OPENAI, 3.0) == pytest.approx(12_000)
    estimated = Usage(11_000, 100, is_estimated=True)
    unknown = state.after(at(1.0, 11_000), "strong", estimated, OPENAI)
    assert unknown.cached_tokens("strong", OPENAI, 2.0) == 11_000


@pytest.mark.parametrize(
    ("last", "now_s", "expected_requests", "p_escalated", "chosen"),
    [
        ("strong", 10, 4, {}, "strong"),
        ("strong", 10, 4, {"cheap": 0.0}, "cheap"),
        ("strong", 10, 4, {"cheap": 0.5}, "cheap"),
        ("strong", 10, 4, {"cheap": 0.9}, "strong"),  # it would be asked after the cheap one
        ("strong", 10, 1, {"claude": 0.0}, "strong"),  # whose prompt is cold
        ("strong", 10, 4, {"strong": 0.0}, "strong"),
        ("cheap", 10, 4, {"strong": 0.0, "claude": 0.0}, "cheap"),
    ],
)
def test_a_tool_loop_keeps_its_arm_unless_a_cheaper_one_is_expected_to_cost_less(
    last: str, now_s: float, expected_requests: int, p_escalated: dict[str, float], chosen: str
) -> None:
    """A dearer arm never replaces the last one, and neither does one that will be escalated."""
    state = served(last)
    costs_usd = costs_over(ARMS, TERMS, state, at(now_s, 10_200), expected_requests)
    selection = choose_in_loop(ARMS, costs_usd, state, p_escalated)
    assert ARMS[selection.arm] == chosen
    assert selection.reason is (Reason.STICKY if chosen == last else Reason.SWITCHED)


def test_the_chance_of_an_escalation_is_learned_from_the_conversation() -> None:
    """The router's expectation counts as one answer; other arms' answers do not count."""
    state = ConversationState(id="c")
    assert state.p_escalated("cheap", 0.7) == pytest.approx(0.3)
    for is_escalated in (True, True, False):
        state = state.after_asked("cheap", is_escalated=is_escalated)
    assert state.p_escalated("cheap", 0.7) == pytest.approx(2.3 / 4)
    assert state.p_escalated("strong", 0.7) == pytest.approx(0.3)
