"""What Anthropic's models accept, in whichever API they are asked."""

from __future__ import annotations

import re

BUDGETS_TOKENS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384}
"""Tokens of reasoning that each effort allows, for models that take a budget."""

_LARGEST_BUDGET_TOKENS = 32768

MIN_BUDGET_TOKENS = 1024
"""Fewest tokens of reasoning that Anthropic accepts as a budget."""

_THINKS_BY_BUDGET = re.compile(r"claude-(\d|(opus|sonnet|haiku)-4(-[0-5](?!\d)|-\d{8}|@|$))")
"""Models before Claude 4.6, which take a budget of tokens. Later ones take an effort instead."""

_LACKS_SAMPLING = re.compile(r"claude-(?!(opus|sonnet)-4-6)")
"""Together with `_THINKS_BY_BUDGET`: models after Claude 4.6 have no temperature and no `top_p`."""


def thinks_by_budget(model: str) -> bool:
    """Return whether a model takes a budget of reasoning tokens instead of an effort."""
    return _THINKS_BY_BUDGET.search(model) is not None


def takes_sampling(model: str) -> bool:
    """Return whether a model accepts a temperature or `top_p`."""
    return thinks_by_budget(model) or _LACKS_SAMPLING.search(model) is None


def thinking_budget(effort: str, tokens: int | None, max_tokens: int | None) -> int | None:
    """Return the tokens of reasoning to allow, or None if too few are left for any.

    They are `tokens`, or else those of an effort. `max_tokens` is the longest answer, which
    includes the reasoning; None if it is not limited.
    """
    wanted = tokens or BUDGETS_TOKENS.get(effort, _LARGEST_BUDGET_TOKENS)
    budget = wanted if max_tokens is None else min(wanted, max_tokens - 1)
    return budget if budget >= MIN_BUDGET_TOKENS else None
