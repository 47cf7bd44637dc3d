"""What a request's headers say about its policy, the limits of verification, and its session."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from router_service.access.key import NO_KEY, Key
from router_service.access.pacing import Allowance
from router_service.core.errors import InvalidRequestError
from router_service.requests.parsing import MAX_ID_CHARACTERS
from router_service.settings import VerificationSettings
from router_service.verifier.steps import VerificationLimits

POLICY_HEADER = "x-switchcraft-policy"
MAX_CANDIDATES_HEADER = "x-switchcraft-max-candidates"
MAX_COST_HEADER = "x-switchcraft-max-cost-usd"
MAX_LATENCY_HEADER = "x-switchcraft-max-added-latency-s"
SESSION_HEADERS = (
    "x-switchcraft-session-id",
    "x-litellm-session-id",
    "x-claude-code-session-id",
    "thread-id",
    "session-id",
    "session_id",
)
"""Headers that name a conversation, the most specific one first: ours, LiteLLM's, Claude Code's,
and those of the Codex CLI, whose session may have several threads."""
LIMIT_HEADERS = (MAX_CANDIDATES_HEADER, MAX_COST_HEADER, MAX_LATENCY_HEADER)
VERIFIED_GOALS_HEADER = "x-switchcraft-verified-goals"


class PolicyHeaders:
    """What a request's headers say about its decision, and what its key and budgets allow.

    The headers are read when they are needed, so a request that names its model reads none.
    Reading raises InvalidRequestError, which names the header.
    """

    def __init__(
        self,
        headers: Mapping[str, str] | None = None,
        verification: VerificationSettings | None = None,
        key: Key = NO_KEY,
        allowance: Allowance | None = None,
    ) -> None:
        """Read `headers`; without `verification`, no goal chooses a verified policy by itself."""
        self._headers = headers or {}
        self._verification = verification or _WITHOUT_GOALS
        self.key = key
        """The client's API key."""
        self.allowance = allowance
        """What the budgets of the client's key allow; None without a budget."""

    @property
    def policy(self) -> str | None:
        """The policy, which overrides the policy in the model's name."""
        return self._headers.get(POLICY_HEADER)

    @property
    def session(self) -> str | None:
        """The name of the conversation, if the headers name one."""
        for header in SESSION_HEADERS:
            name = self._headers.get(header)
            if name and len(name) <= MAX_ID_CHARACTERS:
                return name
        return None

    @property
    def user_agent(self) -> str:
        """The client, by which coding agents are recognized."""
        return self._headers.get("user-agent", "")

    @cached_property
    def limits(self) -> VerificationLimits:
        """The limits of verification: the configured ones, lowered by the headers."""
        headers, limits = self._headers, self._verification.limits
        if headers.keys().isdisjoint(LIMIT_HEADERS):
            return limits
        return replace(
            limits,
            max_candidates=int(
                min(limits.max_candidates, _read_limit(headers, MAX_CANDIDATES_HEADER, least=1))
            ),
            max_cost_usd=min(limits.max_cost_usd, _read_limit(headers, MAX_COST_HEADER)),
            max_added_latency_s=min(
                limits.max_added_latency_s, _read_limit(headers, MAX_LATENCY_HEADER)
            ),
        )

    @cached_property
    def verified_goals(self) -> bool:
        """Whether a goal may choose a verified policy within the request's limits.

        The header decides, or else the configuration. With fewer candidates than the verified
        policies were measured with, no goal may choose them.
        """
        text = self._headers.get(VERIFIED_GOALS_HEADER)
        if text is None:
            return self._verification.goals and self.limits.allow_goals
        if text not in {"true", "false"}:
            raise InvalidRequestError(
                f"The header {VERIFIED_GOALS_HEADER} has the value {text[:40]!r}. Send true or"
                " false.",
                param=VERIFIED_GOALS_HEADER,
                code="invalid_value",
            )
        return text == "true" and self.limits.allow_goals

    @property
    def verified_budget(self) -> bool:
        """Whether a budget may replace a policy that chooses once by a verified one."""
        return self._headers.get(VERIFIED_GOALS_HEADER) == "true"


_WITHOUT_GOALS = VerificationSettings(goals=False)
NO_HEADERS = PolicyHeaders()


def _read_limit(headers: Mapping[str, str], name: str, *, least: int = 0) -> float:
    """Return the number in a header, or infinity without it; counts start at `least` = 1."""
    text = headers.get(name)
    if text is None:
        return math.inf
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value < math.inf or (least == 1 and value != int(value)):
        wanted = "a whole number of at least 1" if least == 1 else "a number of at least 0"
        raise InvalidRequestError(
            f"The header {name} has the value {text[:40]!r}. Send {wanted}.",
            param=name,
            code="invalid_value",
        )
    return value
