"""Cheaper policies as a budget runs out, so that it lasts until its period ends.

A request keeps its policy while the budget is expected to last. Otherwise it gets the most accurate
measured policy that costs at most what the budget can pay for each request. A budget without an end
follows a curve: the more of it is spent, the cheaper is the policy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy import and_, func, or_, select

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

HOUR_S, DAY_S = 3600, 24 * 3600

READ_EVERY_S = 10.0
"""Interval at which new budgets are looked for; the history of each is read again after
`HISTORY_S`."""
HISTORY_S = 300.0
SUBJECTS_PER_READ = 200
FORGOTTEN_AFTER_S = 24 * 3600.0

FORECAST_S = 60.0
"""Time after which a forecast is made again, which takes 0.1 ms."""
FRESH_S = 0.1
"""Time that an allowance is used before it is computed again, which takes 20 µs. With a second, a
client that is fast could spend a small budget before anything gets cheaper."""

WEEK_DAYS = 7
MARGINS = (3.0, *(WEEK_DAYS - 1) * [1.4], 1.0)
"""How many times too high a forecast may be, by the number of whole days that it is made from.

The busiest eight hours may have all requests of a day (24 / 8), and five days those of a week
(7 / 5)."""

RESERVE = 0.02
"""Share of the rest of a budget that is not planned, because the forecast has errors."""
HOLD_S = 900.0
"""Least time between two changes of a budget's limit, unless its forecast has changed by much."""
SLACK = 0.03
"""By how much a forecast must exceed a limit before the limit changes."""
URGENT = 0.7
"""A limit changes at once if only this share of it can be paid."""

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

    @property
    def usd(self) -> float:
        """The whole cost."""
        return self.fixed_usd + sum(cost * volume for cost, volume in self.volumes.items())

    @property
    def dearest_usd(self) -> float:
        """Expected cost of one of the most expensive requests."""
        return max(self.volumes, default=math.inf)

    def add(self, other: Demand, weight: float) -> None:
        """Add a multiple of another demand."""
        self.fixed_usd += weight * other.fixed_usd
        for cost_usd, volume in other.volumes.items():
            self.volumes[cost_usd] = self.volumes.get(cost_usd, 0.0) + weight * volume

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


Spent = tuple[int, str, float]
"""What one policy has cost in an hour or a day: when it began, the policy as records show it (see
`OperatingPoints.find_label`), and the cost in USD."""


class History:
    """The demand of the last week by day, and of the last two days by hour."""

    def __init__(
        self, points: OperatingPoints, days: Iterable[Spent], hours: Iterable[Spent]
    ) -> None:
        """Read what was spent, each in UTC; the last day and hour are not complete."""
        self._days = _demands(points, days)
        self._hours = {start_s: each.usd for start_s, each in _demands(points, hours).items()}

    def forecast(self, now_s: float, ends_s: float) -> tuple[Demand, int]:
        """Return the demand until a midnight, and the number of whole days that it is made from.

        The last seven days repeat. If fewer are known, their mean repeats; without any, today does.
        """
        today_s = int(now_s // DAY_S * DAY_S)
        first_s = min(self._days, default=today_s)
        whole = [
            each
            for each in range(today_s - WEEK_DAYS * DAY_S, today_s, DAY_S)
            if each >= first_s // DAY_S * DAY_S
        ]
        found, today = Demand(), self._days.get(today_s, Demand())
        later = int(-(-ends_s // DAY_S)) - today_s // DAY_S - 1
        if not whole:
            begun_s = max(today_s, min(self._hours, default=today_s))
            elapsed_s = max(now_s - begun_s, HOUR_S)
            found.add(today, (ends_s - now_s) / elapsed_s)
            return found, 0
        share_left = self._share_left(now_s)
        expected = self._day(today_s, whole)
        # A day that is busier or quieter than usual stays so until its end.
        level, expected_usd = 1.0, expected.usd * (1 - share_left)
        if share_left < 0.85 and expected_usd > 0:
            level = min(3.0, max(1 / 3, today.usd / expected_usd))
        found.add(expected, share_left * level)
        for number in range(min(later, WEEK_DAYS)):
            times = (later - number - 1) // WEEK_DAYS + 1
            found.add(self._day(today_s + (number + 1) * DAY_S, whole), times)
        return found, len(whole)

    def _day(self, start_s: int, whole: Sequence[int]) -> Demand:
        """Return the expected demand of a day: that of the last same day of the week, or a mean."""
        if len(whole) == WEEK_DAYS:
            same_s = whole[0] + (start_s - whole[0]) % (WEEK_DAYS * DAY_S)
            return self._days.get(same_s, Demand())
        mean = Demand()
        for each in whole:
            mean.add(self._days.get(each, Demand()), 1 / len(whole))
        return mean

    def _share_left(self, now_s: float) -> float:
        """Return the share of today's demand that is still to come, as yesterday's hours say."""
        today_s = int(now_s // DAY_S * DAY_S)
        elapsed_s = now_s - today_s
        yesterday = [self._hours.get(today_s - DAY_S + it, 0.0) for it in range(0, DAY_S, HOUR_S)]
        total = sum(yesterday)
        if not total:
            return 1 - elapsed_s / DAY_S
        hour = int(elapsed_s // HOUR_S)
        this_left = yesterday[hour] * (1 - (elapsed_s - hour * HOUR_S) / HOUR_S)
        return (this_left + sum(yesterday[hour + 1 :])) / total


def _demands(points: OperatingPoints, spent: Iterable[Spent]) -> dict[int, Demand]:
    found: dict[int, Demand] = {}
    for start_s, policy, usd in spent:
        demand = found.setdefault(start_s, Demand())
        applied, asked = points.find_label(policy)
        if applied is None or asked is None or applied.cost_usd.value <= 0:
            demand.fixed_usd += usd
        else:
            volumes, cost_usd = demand.volumes, asked.cost_usd.value
            volumes[cost_usd] = volumes.get(cost_usd, 0.0) + usd / applied.cost_usd.value
    return found


@dataclass(slots=True)
class _Pace:
    """One budget's limit, and what it is computed from."""

    seen_s: float
    history: History | None = None
    read_s: float = -math.inf
    forecast: tuple[Demand, int] | None = None
    forecast_s: float = -math.inf
    start_s: int | None = None
    limit_usd: float = math.inf
    changed_s: float = -math.inf


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
        """Know no history yet.

        `points` returns those of the engine that serves, or None before they are measured.
        `states` returns the budgets of a key and its team. Without usage in the database,
        there are no forecasts, and all budgets follow a curve. `clock` returns Unix seconds.
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
        allowance = self._compute(key, now_s)
        self._allowances[key.name] = key, now_s, allowance
        return allowance

    def refresh(self, database: Database) -> None:
        """Read the history of budgets that are in use; raises DatabaseError."""
        points, now_s = self._points(), self._clock()
        for subject, pace in list(self._paces.items()):
            if now_s - pace.seen_s > FORGOTTEN_AFTER_S:
                self._paces.pop(subject, None)
        for name, (_, computed_s, _) in list(self._allowances.items()):
            if now_s - computed_s > FORGOTTEN_AFTER_S:
                self._allowances.pop(name, None)
        due = [(pace.read_s, subject) for subject, pace in list(self._paces.items())]
        chosen = [subject for read_s, subject in sorted(due) if now_s - read_s >= HISTORY_S]
        chosen = chosen[:SUBJECTS_PER_READ]
        if points is None or not chosen:
            return
        today_s = int(now_s // DAY_S * DAY_S)
        query = (
            select(
                usage.c.scope,
                usage.c.step_s,
                usage.c.start_s,
                usage.c.policy,
                func.sum(usage.c.cost_nusd),
            )
            .where(usage.c.scope.in_(chosen))
            .where(
                or_(
                    and_(usage.c.step_s == DAY_S, usage.c.start_s >= today_s - WEEK_DAYS * DAY_S),
                    and_(usage.c.step_s == HOUR_S, usage.c.start_s >= today_s - DAY_S),
                )
            )
            .group_by(usage.c.scope, usage.c.step_s, usage.c.start_s, usage.c.policy)
        )
        found: dict[tuple[str, int], list[Spent]] = {}
        with database.read() as connection:
            for scope, step_s, start_s, policy, cost_nusd in connection.execute(query):
                spent = found.setdefault((scope, step_s), [])
                spent.append((start_s, policy, int(cost_nusd) / NANO))
        for subject in chosen:
            known = self._paces.get(subject)
            if known is not None:
                days, hours = (found.get((subject, step_s), ()) for step_s in (DAY_S, HOUR_S))
                known.history, known.read_s = History(points, days, hours), now_s
                known.forecast_s = -math.inf

    def _compute(self, key: Key, now_s: float) -> Allowance | None:
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
                    max_cost_usd = self._pace(state, points, now_s)
            limits = points, max_cost_usd, max_share, key.policies
            found.append(Allowance(state.subject, usd, left_usd, state.end_s, *limits))
        return tightest(found)

    def _pace(self, state: BudgetBalance, points: OperatingPoints, now_s: float) -> float:
        """Return the largest cost of a request at which a budget lasts until its end."""
        pace = self._paces.setdefault(state.subject, _Pace(now_s))
        pace.seen_s = now_s
        if pace.start_s != state.start_s:
            pace.start_s, pace.limit_usd = state.start_s, math.inf
            pace.changed_s = pace.forecast_s = -math.inf
        if pace.history is None:
            return pace.limit_usd
        if pace.forecast is None or not 0 <= now_s - pace.forecast_s < FORECAST_S:
            pace.forecast, pace.forecast_s = pace.history.forecast(now_s, state.end_s), now_s
        demand, days = pace.forecast
        left_usd = (state.budget.usd - state.spent_usd) * (1 - RESERVE) * MARGINS[days]
        affordable_usd = demand.affordable_cost_usd(left_usd)
        target_usd = _step_down(points, affordable_usd)
        if target_usd < pace.limit_usd:
            # Compared with the present limit, so that small errors do not change it to and fro.
            step_usd = pace.limit_usd if pace.limit_usd < math.inf else demand.dearest_usd
            is_urgent = affordable_usd < step_usd * URGENT
            changes = is_urgent or affordable_usd < step_usd * (1 - SLACK)
        else:
            is_urgent = False
            target_usd = _step_down(points, affordable_usd / (1 + SLACK))
            changes = target_usd > pace.limit_usd
        if changes and (is_urgent or now_s - pace.changed_s >= HOLD_S):
            pace.limit_usd, pace.changed_s = target_usd, now_s
        return pace.limit_usd


def _step_down(points: OperatingPoints, cost_usd: float) -> float:
    """Return the cost of the most expensive measured point within a cost, or of the cheapest."""
    if cost_usd == math.inf:
        return cost_usd
    costs_usd = [point.cost_usd.value for point in points.front]
    return max((each for each in costs_usd if each <= cost_usd), default=costs_usd[0])
