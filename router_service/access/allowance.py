"""What the budgets of a key and its team allow a request to cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from router_service.core.decision_record import BudgetChange
from router_service.measurement.operating_points import OperatingPoints
from router_service.policies.base import Policy
from router_service.policies.registry import choose_once, parse_policy
from router_service.policies.verified import is_verified


@dataclass(frozen=True, slots=True)
class Allowance:
    """What the budgets of a key and its team allow its requests."""

    subject: str
    """The budget that allows least, as `key:NAME` or `team:NAME`."""
    usd: float
    left_usd: float
    until_s: float
    """When the budget's period ends; infinite if it never starts again."""
    points: OperatingPoints | None = None
    max_cost_usd: float = math.inf
    """Largest expected cost of a request, on the queries that the operating points were measured
    with."""
    max_share: float = 1.0
    """Largest expected cost, relative to that of the policy that would apply otherwise."""
    policies: tuple[str, ...] | None = None
    """The policies that the key may use; None allows all."""

    def change(
        self, rule: str, name: str | None = None, *, verified_goals: bool = False
    ) -> BudgetChange | None:
        """Return the policy that replaces one that is too expensive; None if it may stay.

        A policy that verifies answers replaces only another one, or any if `verified_goals` is set,
        because verified answers start later.
        """
        points = self.points
        if points is None or (self.max_share >= 1 and self.max_cost_usd == math.inf):
            return None
        asked = points.find(name or rule) or points.find(rule)
        reference = asked or points.find("default")
        limit_usd = self.max_cost_usd
        if reference is not None and self.max_share < 1:
            limit_usd = min(limit_usd, self.max_share * reference.cost_usd.value)
        if asked is not None and asked.cost_usd.value <= limit_usd * (1 + 1e-9):
            return None
        allowed = points.most_accurate(
            limit_usd, verified=verified_goals or is_verified(rule), policies=self.policies
        )
        if allowed is None or (asked and allowed.cost_usd.value >= asked.cost_usd.value):
            return None
        return BudgetChange(
            subject=self.subject,
            share_left=max(0.0, self.left_usd) / self.usd if self.usd else 0.0,
            until=None if math.isinf(self.until_s) else int(self.until_s),
            asked=name or rule,
            asked_accuracy=asked.accuracy.value if asked else None,
            asked_cost_usd=asked.cost_usd.value if asked else None,
            policy=allowed.policy,
            expected_accuracy=allowed.accuracy.value,
            expected_cost_usd=allowed.cost_usd.value,
        )

    def choose_once(self, max_cost_usd: float) -> Policy | None:
        """Return the most accurate policy that verifies no answers and costs at most so much."""
        point = self.points and self.points.most_accurate(max_cost_usd, verified=False)
        return choose_once(parse_policy(point.policy)) if point else None


def tightest(allowances: Sequence[Allowance]) -> Allowance | None:
    """Return one allowance that keeps within all of them; None without any."""
    if len(allowances) < 2:
        return allowances[0] if allowances else None
    by_limit = sorted(
        allowances, key=lambda each: (each.max_cost_usd, each.max_share, each.left_usd)
    )
    first = by_limit[0]
    return replace(first, max_share=min(each.max_share for each in allowances))
