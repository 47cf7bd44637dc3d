"""Prompt caches of providers: what a request of a tool loop costs, and which arm is asked first.

A provider keeps the processed prefix of a prompt for some minutes and charges less for it. So an
arm that served a conversation's last turns is cheaper for the next turn than its list price
suggests, and every other arm has to read the whole conversation first.

Nothing here measures time: `now_s` is passed in, in seconds of the same clock in all calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from router_service.apis.usage import Usage
from router_service.core.decision_record import StoredRecord
from router_service.core.reasons import Reason
from router_service.core.values import Strict, Tolerant
from router_service.policies.base import Selection
from router_service.policies.costs import Price

EXPECTED_REQUESTS = 4
"""Number of requests, this one included, over which another arm has to cost less."""
MAX_WARM_ARMS = 8
"""Number of arms whose caches are kept, for each conversation."""


class CacheRule(Strict):
    """When a provider reads a prompt's prefix from its cache. `Price` has the prices."""

    lifetime_s: float
    """Time after the last use for which a prefix certainly stays cached."""
    min_tokens: int
    """Length of the shortest prompt that is cached."""
    needs_markers: bool = False
    """Whether only requests with `cache_control` are cached. All other providers cache by
    themselves."""


OPENAI = CacheRule(lifetime_s=300, min_tokens=1024)
ANTHROPIC = CacheRule(lifetime_s=300, min_tokens=1024, needs_markers=True)
GOOGLE = CacheRule(lifetime_s=180, min_tokens=2048)
DEEPSEEK = CacheRule(lifetime_s=3600, min_tokens=64)
GROQ = CacheRule(lifetime_s=7200, min_tokens=1024)
OTHER = CacheRule(lifetime_s=300, min_tokens=1024)


def cache_rule(provider: str, model: str) -> CacheRule:
    """Return the caching rule of a provider, named as in `genai-prices`, for one of its models.

    Sources, as of November 2026:

    - OpenAI, "Prompt caching": automatic from 1,024 tokens, kept for 5 to 10 minutes of inactivity
      and at most one hour; writing is not charged. Microsoft documents the same for Azure.
    - Anthropic, "Prompt caching": only with `cache_control`, for 5 minutes after the last use;
      writing costs 1.25 times and reading 0.1 times the input price. The minimum is 1,024 tokens;
      2,048 for Haiku 3 and 3.5; 4,096 for Haiku 4.5, Opus 4.5 and 4.6. Amazon Bedrock documents the
      same for Claude.
    - Google, "Context caching": implicit from Gemini 2.5 on, from 2,048 tokens, and from 4,096
      since Gemini 3. The lifetime is not documented; resellers report 3 to 5 minutes.
    - DeepSeek, "Context caching": on disk, in units of 64 tokens, for hours to days.
    - Groq, "Prompt caching": automatic, for 2 hours without use. The minimum depends on the model
      and is at most 1,024 tokens.
    - For other providers with a price for cached input (xAI, Moonshot, Fireworks, ...), OpenAI's
      rule is assumed, because they document neither a minimum nor a lifetime.

    A model without a price for cached input gains nothing from a cache, whatever the rule says.
    """
    name = model.lower()
    if provider in {"anthropic", "aws"} or "claude" in name:
        minimum = ANTHROPIC.min_tokens
        if any(version in name for version in ("haiku-4-5", "opus-4-5", "opus-4-6")):
            minimum = 4096
        elif "haiku" in name and "4" not in name.partition("haiku")[2][:3]:
            minimum = 2048
        return ANTHROPIC.model_copy(update={"min_tokens": minimum})
    if provider == "google":
        is_older = any(version in name for version in ("gemini-1", "gemini-2"))
        return GOOGLE if is_older else GOOGLE.model_copy(update={"min_tokens": 4096})
    known = {"openai": OPENAI, "azure": OPENAI, "deepseek": DEEPSEEK, "groq": GROQ}
    return known.get(provider, OTHER)


@dataclass(frozen=True, slots=True)
class ArmTerms:
    """What one arm charges: its price, its provider's cache, and its usual output."""

    price: Price
    output_tokens: float
    """Mean output tokens of a request, from the arm's profile."""
    seconds: float = 0.0
    """Mean duration of a request, for arms that are priced by the hour."""
    rule: CacheRule | None = None
    """None if the arm has no cache, or if nothing is known about it."""

    def usage(self, prompt_tokens: float, cached_tokens: float, *, has_markers: bool) -> Usage:
        """Return the expected usage of a request with `cached_tokens` in the provider's cache."""
        rule = self.rule
        caches = rule is not None and prompt_tokens >= rule.min_tokens
        writes = caches and rule is not None and rule.needs_markers
        if not caches or (writes and not has_markers):
            return Usage(round(prompt_tokens), round(self.output_tokens))
        cached = round(min(cached_tokens, prompt_tokens))
        return Usage(
            prompt_tokens=round(prompt_tokens),
            completion_tokens=round(self.output_tokens),
            cached_tokens=cached,
            cache_write_tokens=round(prompt_tokens) - cached if writes else 0,
        )

    def cost_usd(self, prompt_tokens: float, cached_tokens: float, *, has_markers: bool) -> float:
        """Return the expected cost of a request with `cached_tokens` in the provider's cache."""
        usage = self.usage(prompt_tokens, cached_tokens, has_markers=has_markers)
        return self.price.cost_of(usage, self.seconds)


class WarmPrefix(Tolerant):
    """The prefix of a conversation that an arm's provider has cached."""

    tokens: int
    used_at_s: float
    """When the prefix was last used."""
    hit_share: float = 1.0
    """Share of the expected tokens that the provider last reported as cached. It is below 1 if,
    for example, the requests of a conversation go to several accounts."""


@dataclass(frozen=True, slots=True)
class NextRequest:
    """What is known of a conversation's next request before it is sent."""

    prompt_tokens: float
    at_s: float
    """When it is sent, in seconds of the clock that `WarmPrefix.used_at_s` has."""
    has_markers: bool
    """Whether it has `cache_control`."""
    size_bytes: int = 0
    turns: int = 0
    """Number of its messages."""


class ConversationState(StoredRecord):
    """What is known of a conversation from its earlier requests."""

    kind: ClassVar[str] = "conversation"
    max_mean_bytes: ClassVar[int] = 4096

    requests: int = 0
    arm: str | None = None
    """The arm that served the last request."""
    warm: Mapping[str, WarmPrefix] = Field(default_factory=dict)
    """Cached prefixes by arm, the latest one last."""
    first_prompt_tokens: int = 0
    prompt_tokens: int = 0
    """Length of the last prompt."""
    request_bytes: int = 0
    """Size of the last request's body, from which the length of the next prompt is estimated."""
    last_at_s: float = 0.0
    asked: Mapping[str, tuple[int, int]] = Field(default_factory=dict)
    """For each arm that verification has asked: how often, and how often it asked another one
    after that."""
    turns: int = 0
    """Number of messages in the last request."""

    @property
    def growth_tokens(self) -> float:
        """Mean number of tokens by which a prompt is longer than the one before."""
        if self.requests < 2:
            return 0.0
        return max(0.0, (self.prompt_tokens - self.first_prompt_tokens) / (self.requests - 1))

    def cached_tokens(self, arm: str, rule: CacheRule | None, now_s: float) -> float:
        """Return how many tokens of the next prompt an arm's provider has probably cached."""
        warm = self.warm.get(arm)
        if warm is None or rule is None or now_s - warm.used_at_s > rule.lifetime_s:
            return 0.0
        return warm.tokens * warm.hit_share if warm.tokens >= rule.min_tokens else 0.0

    def p_escalated(self, arm: str, probability: float) -> float:
        """Return how probably another arm is asked after an arm's answer.

        It is the share among the conversation's earlier answers. The expectation before any of
        them, which is that wrong answers are found, counts as one answer.
        """
        asked, escalated = self.asked.get(arm, (0, 0))
        return (1 - probability + escalated) / (1 + asked)

    def after_asked(self, arm: str, *, is_escalated: bool) -> ConversationState:
        """Return the state after verification has asked an arm, and then another one or none."""
        asked, escalated = self.asked.get(arm, (0, 0))
        others = {name: each for name, each in self.asked.items() if name != arm}
        found = {**others, arm: (asked + 1, escalated + is_escalated)}
        return self.model_copy(update={"asked": dict(list(found.items())[-MAX_WARM_ARMS:])})

    def warmed(
        self, request: NextRequest, arm: str, usage: Usage, rule: CacheRule | None
    ) -> ConversationState:
        """Return the state after an arm's provider has read the prompt of a request."""
        return self.model_copy(update={"warm": self._warmed(request, arm, usage, rule)})

    def _warmed(
        self, request: NextRequest, arm: str, usage: Usage, rule: CacheRule | None
    ) -> Mapping[str, WarmPrefix]:
        """Return the cached prefixes after an arm's provider has read a prompt."""
        now_s = request.at_s
        expected = min(self.cached_tokens(arm, rule, now_s), usage.prompt_tokens)
        before = self.warm.get(arm)
        hit_share = before.hit_share if before else 1.0
        if expected > 0 and before is not None and not usage.is_estimated:
            hit_share = min(1.0, usage.cached_tokens * before.hit_share / expected)
            # A small share is remembered as such, so that a later hit can still raise it.
            hit_share = max(hit_share, 0.05)
        warm = {name: each for name, each in self.warm.items() if name != arm}
        warm[arm] = WarmPrefix(tokens=usage.prompt_tokens, used_at_s=now_s, hit_share=hit_share)
        return dict(list(warm.items())[-MAX_WARM_ARMS:])

    def after(
        self,
        request: NextRequest,
        arm: str,
        usage: Usage,
        rule: CacheRule | None,
    ) -> ConversationState:
        """Return the state after an arm has answered a request with this usage."""
        return self.model_copy(
            update={
                "warm": self._warmed(request, arm, usage, rule),
                "requests": self.requests + 1,
                "arm": arm,
                "first_prompt_tokens": self.first_prompt_tokens or usage.prompt_tokens,
                "prompt_tokens": usage.prompt_tokens,
                "request_bytes": request.size_bytes,
                "last_at_s": request.at_s,
                "turns": request.turns,
            }
        )


def costs_over(
    arms: Sequence[str],
    terms: Mapping[str, ArmTerms],
    state: ConversationState,
    request: NextRequest,
    requests: float,
) -> list[float]:
    """Return each arm's expected cost in USD of a request and of those after it, (arms,).

    Each arm reads what it has cached and the rest of the prompt, and all of the earlier prompt from
    its cache in the following requests. `requests` counts this request too.
    """
    costs: list[float] = []
    prompt_tokens, has_markers = request.prompt_tokens, request.has_markers
    longer = prompt_tokens + state.growth_tokens
    for arm in arms:
        own = terms[arm]
        cached = state.cached_tokens(arm, own.rule, request.at_s)
        warm = state.warm.get(arm)
        cost = own.cost_usd(prompt_tokens, cached, has_markers=has_markers)
        if requests > 1:
            kept = prompt_tokens * (warm.hit_share if warm else 1.0)
            later = own.cost_usd(longer, kept, has_markers=has_markers)
            cost += (requests - 1) * later
        costs.append(cost)
    return costs


def choose_in_loop(
    arms: Sequence[str],
    costs_usd: Sequence[float],
    state: ConversationState,
    p_escalated: Mapping[str, float],
) -> Selection:
    """Choose the arm that is asked first for the next request of a tool loop.

    That is the arm of the last request, whose provider has cached the prompt, unless the expected
    cost of another one is lower. `costs_usd` are those of `costs_over`, (arms,). `p_escalated` has
    the arms that may replace it, with the probability that the last one is asked after them all
    the same.
    """
    assert state.arm is not None  # noqa: S101 - for types; a loop has been answered before
    last = arms.index(state.arm)
    expected_usd = {
        arm: costs_usd[arm] + p_escalated[name] * costs_usd[last]
        for arm, name in enumerate(arms)
        if name in p_escalated and arm != last
    }
    best = min(expected_usd, key=lambda arm: expected_usd[arm], default=last)
    if best != last and expected_usd[best] < costs_usd[last]:
        return Selection(best, Reason.SWITCHED)
    return Selection(last, Reason.STICKY)
