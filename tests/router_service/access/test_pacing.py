"""Cheaper policies as a budget runs out: forecasts, curves, and what requests may keep."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
import pytest
from sqlalchemy import insert

from router_service.access.budgets import BudgetBalance
from router_service.access.key import Budget, BudgetPeriod, Key, Limits, Team
from router_service.access.pacing import DAY_S, Allowance, Pacing
from router_service.artifact import SHIPPED, Artifact
from router_service.core.decision_record import BudgetChange
from router_service.core.money import NANO
from router_service.database.engine import Database
from router_service.database.schema import USAGE_SUMS, usage
from router_service.measurement.operating_points import OperatingPoints
from router_service.settings import BudgetSettings

HOUR_S = 3600
JUNE_S = int(datetime(2026, 6, 1, tzinfo=UTC).timestamp())
"""A Monday, and the first of 30 days."""

MANIFEST = Artifact.load(SHIPPED).manifest
POINTS = OperatingPoints.of(MANIFEST, MANIFEST.verified_frontier, MANIFEST.named_rules["default"])
DEFAULT_RULE = POINTS.rules["default"]
KEY = Key("worker", limits=Limits(budget=Budget(100.0, BudgetPeriod.MONTH)))


def cost_usd(policy: str) -> float:
    """Return the measured cost of a policy."""
    point = POINTS.find(policy)
    assert point is not None
    return point.cost_usd.value


@dataclass
class State:
    """A budget in its period."""

    budget: Budget
    subject: str = "key:worker"
    start_s: int = JUNE_S
    end_s: float = JUNE_S + 30 * DAY_S
    spent_usd: float = 0.0

    @property
    def balance(self) -> BudgetBalance:
        """The state as pacing reads it."""
        return BudgetBalance(
            self.subject, self.budget, self.start_s, self.end_s, self.spent_usd, 0.0
        )


@dataclass
class World:
    """A clock, budgets, and the usage that the database has of them."""

    budget: Budget = field(default_factory=lambda: Budget(100.0, BudgetPeriod.MONTH))
    settings: BudgetSettings = field(default_factory=BudgetSettings)
    has_usage: bool = True
    now_s: float = JUNE_S
    states: list[State] = field(default_factory=list)
    sums: defaultdict[tuple[str, int, str], float] = field(
        default_factory=lambda: defaultdict(float)
    )

    def __post_init__(self) -> None:
        """Start with one budget and an empty database."""
        self.states = self.states or [State(self.budget)]
        self.database = Database(None)
        self.database.prepare()
        self.restart()

    def restart(self) -> None:
        """Use a new process, which knows only the database."""
        self.pacing = Pacing(
            lambda: self.settings,
            lambda: POINTS,
            self.states_of,
            has_usage=self.has_usage,
            clock=lambda: self.now_s,
        )

    def states_of(self, key: Key) -> Sequence[BudgetBalance]:
        """Return the budgets of the key and its team."""
        subjects = {subject for subject, _ in key.limited}
        return [state.balance for state in self.states if state.subject in subjects]

    def spend(self, at_s: float, usd: float, policy: str = DEFAULT_RULE, state: int = 0) -> None:
        """Count what was spent at some time."""
        self.states[state].spent_usd += usd
        start_s = int(at_s // DAY_S * DAY_S)
        self.sums[self.states[state].subject, start_s, policy] += usd

    def write(self) -> None:
        """Write the usage, and let the process read it."""
        rows = [
            dict.fromkeys(USAGE_SUMS, 0)
            | {"scope": scope, "step_s": DAY_S, "start_s": start_s, "model": "m"}
            | {"policy": policy, "cost_nusd": round(usd * NANO)}
            for (scope, start_s, policy), usd in self.sums.items()
        ]
        with self.database.write() as connection:
            connection.execute(usage.delete())
            if rows:
                connection.execute(insert(usage), rows)
        self.pacing.allowance(KEY)  # the budget is in use
        self.pacing.refresh(self.database)

    def allowance(self, key: Key = KEY) -> Allowance:
        """Return what the budget allows now."""
        self.now_s += 2  # later than the last computation is used
        found = self.pacing.allowance(key)
        assert found is not None
        return found

    def change(
        self, name: str = "default", *, key: Key = KEY, goals: bool = False
    ) -> BudgetChange | None:
        """Return how a request for a policy is changed."""
        rule = POINTS.rules.get(name, name)
        return self.allowance(key).change(rule, name, verified_goals=goals)


@pytest.fixture
def world() -> Iterator[World]:
    """Yield a world with a budget of 100 USD in June."""
    found = World()
    yield found
    found.database.close()


def spend_evenly(world: World, days: int, usd_a_day: float, policy: str = DEFAULT_RULE) -> None:
    """Spend the same in every hour of the first days, and end at the midnight after them."""
    for hour in range(days * 24):
        world.spend(JUNE_S + hour * HOUR_S, usd_a_day / 24, policy)
    world.now_s = JUNE_S + days * DAY_S


def test_with_20_percent_left_on_the_20th_day_the_rest_lasts(world: World) -> None:
    """At 4 USD a day, 20 of 100 USD would last five of the last ten days.

    The policy that replaces the default is the most accurate one that costs less than half.
    """
    spend_evenly(world, 20, usd_a_day=4.0)
    world.write()
    change = world.change()
    assert change is not None
    assert change.share_left == pytest.approx(0.2)
    assert change.until == JUNE_S + 30 * DAY_S
    assert (change.asked, change.subject) == ("default", "key:worker")
    half_usd = cost_usd("default") / 2
    front = [point.policy for point in POINTS.front]
    following = front[front.index(change.policy) + 1]
    assert cost_usd(change.policy) <= half_usd < cost_usd(following)
    assert 10 * 4.0 * change.expected_cost_usd / cost_usd("default") <= 20.0
    assert change.policy == "verified=0.00159"
    assert change.expected_accuracy == pytest.approx(0.875, abs=0.001)
    assert change.asked_accuracy == pytest.approx(0.890, abs=0.001)


def test_policies_that_choose_once_are_not_made_to_verify(world: World) -> None:
    """Verified answers start later, so they replace others only if goals may choose them."""
    spend_evenly(world, 20, usd_a_day=4.0)
    world.write()
    once, verified = world.change("fast"), world.change("fast", goals=True)
    assert once is not None
    assert not once.policy.startswith("verified")
    assert verified is not None
    assert verified.policy == "verified=0.00159"
    assert once.expected_accuracy < verified.expected_accuracy


def test_a_restart_changes_nothing(world: World) -> None:
    """A process that has just started forecasts from the database, cheaper requests included.

    Without knowing that they were cheaper, it would think that the budget lasts.
    """
    label = "default (verified=0.00159)"
    cheap_usd = 4.0 * cost_usd("verified=0.00159") / cost_usd("default")
    spend_evenly(world, 20, usd_a_day=cheap_usd, policy=label)
    world.states[0].spent_usd = 80.0
    world.write()
    before = world.change()
    world.restart()
    assert world.change() is None  # nothing was read yet
    world.write()
    assert before is not None
    after = world.change()
    assert after is not None
    assert after.policy == before.policy == "verified=0.00159"


def test_a_new_budget_is_assumed_to_last_until_it_is_clear_that_it_does_not(world: World) -> None:
    """Within the first days, a busy day is no reason for a cheaper policy, but a runaway is one."""
    world.spend(JUNE_S + 9 * HOUR_S, 3.0)
    world.spend(JUNE_S + 10 * HOUR_S, 3.0)
    world.now_s = JUNE_S + 11 * HOUR_S
    world.write()
    assert world.change() is not None  # 6 USD in two hours
    calm = World()
    calm.spend(JUNE_S + 9 * HOUR_S, 0.3)
    calm.spend(JUNE_S + 10 * HOUR_S, 0.3)
    calm.now_s = JUNE_S + 11 * HOUR_S
    calm.write()
    assert calm.change() is None
    calm.database.close()


def working_hours(at_s: float) -> float:
    """Return the traffic of an hour: working days from 8 to 18, and a little at other times."""
    hour, weekday = at_s % DAY_S // HOUR_S, (at_s - JUNE_S) // DAY_S % 7
    return 1.0 if weekday < 5 and 8 <= hour < 18 else 0.05


MONTH_LEVEL = sum(working_hours(JUNE_S + hour * HOUR_S) for hour in range(30 * 24))


MINUTES = 10
"""Length of a step of `run_month`."""


def run_month(world: World, usd: float) -> list[tuple[float, str]]:
    """Spend by working hours and by what the budget allows; return the changes of the policy.

    `usd` is what the month would cost with the default. Each minute step has random traffic.
    """
    rng, before = np.random.default_rng(0), ""
    changes: list[tuple[float, str]] = []
    steps = 60 // MINUTES
    for step in range(30 * 24 * steps):
        at_s = float(JUNE_S + step * MINUTES * 60)
        world.now_s = at_s
        if step % steps == 0:
            world.write()
        change = world.change()
        policy = DEFAULT_RULE if change is None else change.policy
        if policy != before:
            changes.append((at_s, policy))
            before = policy
        mean_usd = usd * working_hours(at_s) / MONTH_LEVEL / steps
        asked_usd = mean_usd * rng.gamma(4) / 4
        paid_usd = asked_usd * cost_usd(policy) / cost_usd("default")
        label = DEFAULT_RULE if change is None else f"default ({policy})"
        world.spend(at_s, min(paid_usd, 100.0 - world.states[0].spent_usd), label)
    return changes


def test_a_budget_lasts_to_the_end_without_flapping(world: World) -> None:
    """With money for 60% of the month, it lasts until the last day, with few changes."""
    changes = run_month(world, usd=100.0 / 0.6)
    assert 97.0 <= world.states[0].spent_usd < 100.0
    assert len(changes) < 3 * 30
    gaps_s = np.diff([at_s for at_s, _ in changes])
    assert gaps_s.min() >= 900
    after_a_week = {policy for at_s, policy in changes if at_s > JUNE_S + 9 * DAY_S}
    used_usd = [cost_usd(policy) / cost_usd("default") for policy in after_a_week]
    assert 0.25 < min(used_usd) <= max(used_usd) <= 1.0


def test_a_curve_replaces_the_forecast(world: World) -> None:
    """From each share spent on, requests cost at most that part of their own policy's cost."""
    world.settings = BudgetSettings(curve=((0.5, 0.7), (0.8, 0.4)))
    found = {}
    for spent_usd in (49.0, 50.0, 79.0, 80.0, 99.9):
        world.states[0].spent_usd = spent_usd
        change, quality = world.change(), world.change("quality")
        share = None if change is None else change.expected_cost_usd / cost_usd("default")
        found[spent_usd] = share
        assert (change is None) == (quality is None)
        if quality is not None:
            part = 0.7 if spent_usd < 80 else 0.4
            assert quality.expected_cost_usd <= part * cost_usd("quality")
    assert found[49.0] is None
    assert found[50.0] == found[79.0] == pytest.approx(0.69, abs=0.01)
    assert found[80.0] == found[99.9] == pytest.approx(0.367, abs=0.01)


@pytest.mark.parametrize(("period", "has_usage"), [("total", True), ("month", False)])
def test_budgets_without_a_forecast_follow_the_default_curve(period: str, has_usage: bool) -> None:
    """A budget that never starts again has no end, and without usage there is no forecast."""
    budget = Budget(100.0, BudgetPeriod(period))
    world = World(budget, has_usage=has_usage)
    if period == "total":
        world.states[0].end_s = math.inf
    found = []
    for spent_usd in (40.0, 50.0, 75.0, 90.0):
        world.states[0].spent_usd = spent_usd
        change = world.change()
        found.append(None if change is None else change.expected_cost_usd / cost_usd("default"))
        if change is not None:
            assert (change.until is None) == (period == "total")
    assert found[0] is None
    for share, limit in zip(found[1:], (0.75, 0.5, 0.25), strict=True):
        # The cheapest measured policy costs 24.6% of the default.
        assert share is not None
        assert 0.6 * limit < share <= limit
    world.database.close()


def test_the_tighter_budget_of_key_and_team_counts() -> None:
    """A key with enough money gets a cheaper policy if its team's budget would not last."""
    team = Team("crew", Limits(budget=Budget(50.0, BudgetPeriod.MONTH)))
    key = Key("worker", team=team, limits=KEY.limits)
    world = World(states=[State(KEY.limits.budget or Budget(0, BudgetPeriod.DAY)),
                          State(Budget(50.0, BudgetPeriod.MONTH), "team:crew")])  # fmt: skip
    for hour in range(20 * 24):
        world.spend(JUNE_S + hour * HOUR_S, 1.0 / 24)
        world.spend(JUNE_S + hour * HOUR_S, 2.0 / 24, state=1)
    world.now_s = JUNE_S + 20 * DAY_S
    world.pacing.allowance(key)
    world.write()
    change = world.change(key=key)
    assert change is not None
    assert change.subject == "team:crew"
    assert change.share_left == pytest.approx(0.2)
    world.states[1].spent_usd = 0.0
    world.now_s += 3600
    assert world.change(key=key) is None
    world.database.close()


def test_a_key_gets_only_policies_that_it_may_use(world: World) -> None:
    """Names stay those that the operator allows, even if another policy would be more accurate."""
    key = Key("worker", limits=KEY.limits, policies=("default", "economy", "theta=0.3"))
    spend_evenly(world, 20, usd_a_day=2.7)
    world.states[0].spent_usd = 80.0
    world.write()
    change = world.change(key=key)
    assert change is not None
    assert change.policy == POINTS.rules["economy"]
    free = world.change()
    assert free is not None
    assert free.expected_accuracy >= change.expected_accuracy
