"""Cheaper policies as a budget runs out, so that it lasts until its period ends.

What is left of a budget, divided by the time left, is compared with the demand of the last week. If
it suffices, a request keeps its policy. Otherwise it gets the most accurate measured policy that
costs at most what the budget can pay for each request. A budget without an end follows a curve: the
more of it is spent, the cheaper is the policy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import func, select

from router_service.access.budgets import BudgetBalance
from router_service.access.key import Key
from router_service.core.decision_record import BudgetChange
from router_service.core.money import NANO
from router_service.database.engine import Database
from router_service.database.schema import usage
from router_service.measurement.operating_points import OperatingPoints
from router_service.policies.base import Policy
from router_service.policies.registry import choose_once, parse_policy
from router_service.policies.verified import is_verified
from router_service.settings import BudgetSettings

DAY_S = 24 * 3600
WEEK_S = 7 * DAY_S

READ_EVERY_S = 10.0
"""Interval at which new budgets are looked for; the demand of each is read again after
`DEMAND_S`."""
DEMAND_S = 300.0
SUBJECTS_PER_READ = 200
FORGOTTEN_AFTER_S = 24 * 3600.0

FRESH_S = 0.1
"""Time that an allowance is used before it is computed again, which takes 20 µs. With a second, a
client that is fast could spend a small budget before anything gets cheaper."""
RESERVE = 0.02
"""Share of the rest of a budget that is not planned, because the demand varies."""
HOLD_S = 3600.0
"""Least time between two changes of a budget's limit, unless much was spent meanwhile."""
URGENT = 0.7
"""A limit is computed at once if only this share is left of what was left at the last time."""

DEFAULT_CURVE = ((0.5, 0.75), (0.75, 0.5), (0.9, 0.25))
"""The curve of budgets that never start again."""


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


@dataclass(slots=True)
class Demand:
    """What requests would cost with the policies that they ask for."""

    volumes: dict[float, float] = field(default_factory=dict)
    """Number of requests of the measured size, by the expected cost of one in USD."""
    fixed_usd: float = 0.0
    """Cost of requests that no policy decides, such as those that name a model."""

    def affordable_cost_usd(self, left_usd: float) -> float:
        """Return the largest cost of a request at which an amount suffices; infinity for any."""
        left_usd -= self.fixed_usd
        volume = sum(self.volumes.values())
        for cost_usd in sorted(self.volumes):
            if cost_usd * volume > left_usd:
                return max(0.0, left_usd) / volume
            left_usd -= cost_usd * self.volumes[cost_usd]
            volume -= self.volumes[cost_usd]
        return math.inf

    def count(self, usd: float, policy: str, points: OperatingPoints) -> None:
        """Count what requests have cost under a policy, as records show it.

        See `OperatingPoints.find_label`. Requests that got a cheaper policy count as if they had
        got theirs.
        """
        applied, asked = points.find_label(policy)
        if applied is None or asked is None or applied.cost_usd.value <= 0:
            self.fixed_usd += usd
        else:
            volume = usd / applied.cost_usd.value
            self.volumes[asked.cost_usd.value] = self.volumes.get(asked.cost_usd.value, 0) + volume


@dataclass(slots=True)
class _Pace:
    """One budget's limit, and what it is computed from."""

    start_s: int
    seen_s: float
    read_s: float = -math.inf
    demand: Demand | None = None
    """The demand of the last week; None before it was read."""
    since_s: float = 0.0
    """When that demand began."""
    limit_usd: float = math.inf
    limited_s: float = -math.inf
    limited_left_usd: float = 0.0


class Pacing:
    """Computes what the budgets of keys and teams allow; used on the event loop.

    Only `refresh` runs in the database's thread.
    """

    def __init__(
        self,
        settings: Callable[[], BudgetSettings],
        points: Callable[[], OperatingPoints | None],
        states: Callable[[Key], Sequence[BudgetBalance]],
        *,
        has_usage: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Know no demand yet.

        `points` returns those of the engine that serves, or None before they are measured.
        `states` returns the budgets of a key and its team. Without usage in the database,
        all budgets follow a curve. `clock` returns Unix seconds.
        """
        self._settings = settings
        self._points = points
        self._states = states
        self._has_usage = has_usage
        self._clock = clock
        self._paces: dict[str, _Pace] = {}
        self._allowances: dict[str | None, tuple[Key, float, Allowance | None]] = {}

    def allowance(self, key: Key) -> Allowance | None:
        """Return what the tightest budget of a key and its team allows; None without a budget."""
        if not key.has_budget:
            return None
        now_s = self._clock()
        known = self._allowances.get(key.name)
        if known is not None and known[0] is key and abs(now_s - known[1]) < FRESH_S:
            return known[2]
        settings, points = self._settings(), self._points()
        found: list[Allowance] = []
        for state in self._states(key):
            usd, left_usd = state.budget.usd, state.budget.usd - state.spent_usd
            max_cost_usd, max_share = math.inf, 1.0
            if settings.cheaper_first and points is not None and points.front:
                if settings.curve is not None or math.isinf(state.end_s) or not self._has_usage:
                    curve = DEFAULT_CURVE if settings.curve is None else settings.curve
                    max_share = min([1.0, *(cost for at, cost in curve if state.share >= at)])
                else:
                    max_cost_usd = self._pace(state, now_s)
            limits = points, max_cost_usd, max_share, key.policies
            found.append(Allowance(state.subject, usd, left_usd, state.end_s, *limits))
        allowance = tightest(found)
        self._allowances[key.name] = key, now_s, allowance
        return allowance

    def refresh(self, database: Database) -> None:
        """Read the demand of budgets that are in use; raises DatabaseError."""
        points, now_s = self._points(), self._clock()
        for subject, pace in list(self._paces.items()):
            if now_s - pace.seen_s > FORGOTTEN_AFTER_S:
                self._paces.pop(subject, None)
        for name, (_, computed_s, _) in list(self._allowances.items()):
            if now_s - computed_s > FORGOTTEN_AFTER_S:
                self._allowances.pop(name, None)
        due = [(pace.read_s, subject) for subject, pace in list(self._paces.items())]
        chosen = [subject for read_s, subject in sorted(due) if now_s - read_s >= DEMAND_S]
        chosen = chosen[:SUBJECTS_PER_READ]
        if points is None or not chosen:
            return
        first_s = int((now_s - WEEK_S) // DAY_S * DAY_S)
        query = (
            select(
                usage.c.scope,
                usage.c.policy,
                func.min(usage.c.start_s),
                func.sum(usage.c.cost_nusd),
            )
            .where(usage.c.scope.in_(chosen), usage.c.step_s == DAY_S, usage.c.start_s >= first_s)
            .group_by(usage.c.scope, usage.c.policy)
        )
        demands = {subject: Demand() for subject in chosen}
        since_s = dict.fromkeys(chosen, now_s)
        with database.read() as connection:
            for subject, policy, start_s, cost_nusd in connection.execute(query):
                demands[subject].count(int(cost_nusd) / NANO, policy, points)
                since_s[subject] = min(since_s[subject], start_s)
        for subject in chosen:
            pace = self._paces.get(subject)
            if pace is not None:
                # The demand is set last, because requests use it as soon as it is there.
                pace.since_s, pace.read_s, pace.demand = since_s[subject], now_s, demands[subject]

    def _pace(self, state: BudgetBalance, now_s: float) -> float:
        """Return the largest cost of a request at which a budget lasts until its end."""
        pace = self._paces.get(state.subject)
        if pace is None or pace.start_s != state.start_s:
            pace = self._paces[state.subject] = _Pace(state.start_s, now_s)
        pace.seen_s = now_s
        left_usd = state.budget.usd - state.spent_usd
        is_due = now_s - pace.limited_s >= HOLD_S or left_usd < URGENT * pace.limited_left_usd
        if pace.demand is not None and is_due:
            measured_s = max(pace.read_s - pace.since_s, DAY_S)
            share = measured_s / max(state.end_s - now_s, 1.0)
            pace.limit_usd = pace.demand.affordable_cost_usd(left_usd * (1 - RESERVE) * share)
            pace.limited_s, pace.limited_left_usd = now_s, left_usd
        return pace.limit_usd
