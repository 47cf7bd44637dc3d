"""What Anthropic's models accept, in whichever API they are asked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from router_service.apis.api import Api
from router_service.apis.parts import Request, has_content

BUDGETS_TOKENS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384}
"""Tokens of reasoning that each effort allows, for models that take a budget."""

_LARGEST_BUDGET_TOKENS = 32768

MIN_BUDGET_TOKENS = 1024
"""Fewest tokens of reasoning that Anthropic accepts as a budget."""

_THINKS_BY_BUDGET = re.compile(r"claude-(\d|(opus|sonnet|haiku)-4(-[0-5](?!\d)|-\d{8}|@|$))")
"""Models before Claude 4.6, which take a budget of tokens. Later ones take an effort instead."""

_LACKS_SAMPLING = re.compile(r"claude-(?!(opus|sonnet)-4-6)")
"""Together with `_THINKS_BY_BUDGET`: models after Claude 4.6 have no temperature and no `top_p`."""


def inexpressible(request: Request, client: Api, media: Iterable[str]) -> Iterator[str]:
    """Yield the fields of a client's request that neither Messages nor Converse can express.

    `media` describes the media that the API does not accept.
    """
    fields, form = client.fields, request.output_format
    if not all(stop.strip() for stop in request.stop):
        yield fields.stop
    yield from (f"{fields.messages} ({kind})" for kind in media)
    if request.temperature is not None and request.temperature > 1:
        yield "temperature"
    if form is not None and form.schema is None:
        yield fields.output_format
    if not any(map(has_content, request.messages)):
        yield fields.messages


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
