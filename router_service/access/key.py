"""API keys and teams as the gateway knows them, without the keys' secrets."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

MAX_BUDGET_USD = 1_000_000_000.0
"""Largest budget that people may set."""
MIN_PACE_S = 3600.0
"""A period's pace is taken over at least this time, so that its first request is no forecast."""
MAX_FORECAST_S = 10 * 365 * 24 * 3600.0
"""A budget that would end later than this is said to last."""


class Permission(StrEnum):
    """What a key may allow a request to do."""

    CALL = "call"
    """Use the API, and see what the key's own requests did."""
    METRICS = "metrics"
    """Read `/metrics`."""
    ADMIN = "admin"
    """Use everything else, and see the requests of all keys."""


class BudgetPeriod(StrEnum):
    """Time after which a budget starts again. Days begin at 0:00 UTC, and weeks on Monday."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    TOTAL = "total"
    """The budget never starts again."""

    def bounds_s(self, now_s: float) -> tuple[int, int | None]:
        """Return the Unix times at which the present period starts and ends; None is never."""
        if self is BudgetPeriod.TOTAL:
            return 0, None
        start = datetime.fromtimestamp(now_s, UTC).replace(
            hour=0, minute=0, second=0, microsecond=0
        )
        if self is BudgetPeriod.DAY:
            end = start + timedelta(days=1)
        elif self is BudgetPeriod.WEEK:
            start -= timedelta(days=start.weekday())
            end = start + timedelta(weeks=1)
        else:
            start = start.replace(day=1)
            end = (start + timedelta(days=32)).replace(day=1)
        return int(start.timestamp()), int(end.timestamp())


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that may be spent in a period."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    usd: Annotated[float, Field(ge=0, le=MAX_BUDGET_USD, allow_inf_nan=False)]
    period: BudgetPeriod = BudgetPeriod.MONTH
    """Days begin at 0:00 UTC, and weeks on Monday; `total` never starts again."""

    def ends_by_s(
        self, spent_usd: float, began_s: float, resets_s: float | None, now_s: float
    ) -> float | None:
        """Return when it will be spent if spending goes on at the pace of its period.

        `began_s` is when the period began, or the budget if it has no period, and `resets_s` is
        when the next period begins. Returns None if the budget lasts until then.
        """
        if spent_usd >= self.usd:
            return now_s
        usd_per_s = spent_usd / max(now_s - began_s, MIN_PACE_S)
        last_s = now_s + MAX_FORECAST_S if resets_s is None else resets_s
        if usd_per_s * (last_s - now_s) <= self.usd - spent_usd:
            return None
        return now_s + (self.usd - spent_usd) / usd_per_s


@dataclass(frozen=True, slots=True)
class Limits:
    """What a key or a team may use; None is unlimited."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Tokens of requests and answers together."""
    parallel_requests: int | None = None
    budget: Budget | None = None


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Team:
    """A team, whose limits all of its keys share."""

    name: str
    limits: Limits = NO_LIMITS


@dataclass(frozen=True, slots=True)
class Key:
    """An API key: its name, and what it may do."""

    name: str | None
    """Name in logs, metrics and records; None if no key is configured or needed."""
    permissions: frozenset[Permission] = frozenset()
    team: Team | None = None
    limits: Limits = NO_LIMITS
    models: frozenset[str] | None = None
    """Models that requests may name and that the router may choose; None allows all."""
    policies: tuple[str, ...] | None = None
    """Policies that requests may use, of which the first one is the default; None allows all."""
    expires_s: float | None = None
    """Unix time after which the key is not valid."""
    limited: tuple[tuple[str, Limits], ...] = field(init=False, repr=False, compare=False)
    """The key and its team, those that have limits, each as `key:NAME` or `team:NAME`."""
    has_budget: bool = field(init=False, repr=False, compare=False)
    """Whether the key or its team has a budget."""

    def __post_init__(self) -> None:
        """Collect the limits once, because every request asks for them."""
        found = []
        if self.limits is not NO_LIMITS:
            found.append((f"key:{self.name}", self.limits))
        if self.team is not None and self.team.limits is not NO_LIMITS:
            found.append((f"team:{self.team.name}", self.team.limits))
        object.__setattr__(self, "limited", tuple(found))
        has_budget = any(limits.budget is not None for _, limits in found)
        object.__setattr__(self, "has_budget", has_budget)

    @property
    def is_admin(self) -> bool:
        """Whether the key may see and change what belongs to other keys."""
        return Permission.ADMIN in self.permissions

    @property
    def is_restricted(self) -> bool:
        """Whether the key may use only some models or policies."""
        return self.models is not None or self.policies is not None

    def allows_policy(self, text: str) -> bool:
        """Return whether requests may use a policy: a name, a rule, a goal, or `default`.

        An entry of `policies` allows exactly the policy that it names, where `theta=0.50` is
        `theta=0.5`. The entry `theta=*` allows all rules of a kind, and `verified=*` also allows
        `verified` without a price. A name such as `economy` does not allow the rule that it stands
        for.
        """
        if self.policies is None:
            return True
        wanted = _normalize_policy(text)
        kind = wanted.partition("=")[0]
        return any(_normalize_policy(entry) in {wanted, f"{kind}=*"} for entry in self.policies)


def _normalize_policy(text: str) -> str:
    """Return a policy's text in one form, with an equals sign even without a number."""
    kind, _, value = (part.strip() for part in text.partition("="))
    with suppress(ValueError):
        value = repr(float(value))
    return f"{kind}={value}"


NO_KEY = Key(None)
"""The key of requests that need none."""
