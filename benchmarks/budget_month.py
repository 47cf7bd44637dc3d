"""A month of traffic with a budget: cheaper policies first, beside a hard stop and fixed models.

    python -m benchmarks.budget_month --out runs/budget-month.json

The requests are the held-out queries of the shipped artifact, whose tools its routers had not seen,
with the recorded answers and their recorded costs. They arrive at random, with a daily and a weekly
cycle. `access.pacing.Pacing` decides with a simulated clock and a database in memory, from nothing
but what was spent. Each month draws its queries from another resample of all queries, so that the
intervals include their random choice.
"""

from __future__ import annotations

import argparse
import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import FuncFormatter, MultipleLocator
from numpy.typing import NDArray
from sqlalchemy import insert

from benchmarks.stamp import write_figures
from router_service.access.budgets import BudgetBalance
from router_service.access.key import Budget, BudgetPeriod, Key, Limits
from router_service.access.pacing import DAY_S, Pacing
from router_service.artifact import SHIPPED, Artifact
from router_service.core.money import NANO
from router_service.database.engine import Database
from router_service.database.schema import USAGE_SUMS, usage
from router_service.measurement.held_out import (
    HELD_OUT,
    HeldOut,
    PricedOutcomes,
    read_judgements,
    served_points,
)
from router_service.measurement.operating_points import OperatingPoints
from router_service.measurement.rules import best_single, pick, route
from router_service.measurement.simulation import Simulation
from router_service.policies.registry import DEFAULT, NamedPolicy, parse_policy
from router_service.policies.verified import Verified
from router_service.settings import BudgetSettings

HOUR_S = 3600
STARTS_S = 1_767_225_600
"""1 January 2026, a Thursday."""
DAYS = 31
REQUESTS = 10_000
READ_EVERY_S = 3600.0
"""The simulated database is written and read this often."""
WEEKS = (0, 7, 14, 21, 31)
"""First day of each part of the month that is reported."""

PLOT = Path(__file__).parents[1] / "docs" / "images" / "budget-month.svg"
SURGE_DAY = 19
SURGE = 3.0
"""In some months, this many times as many requests arrive from this day on."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A policy that applies without a budget, and a budget."""

    policy: str
    share: float
    """The budget, relative to what the best single model costs for the planned requests."""
    has_surge: bool = False

    @property
    def title(self) -> str:
        """What people read."""
        policy = "the shipped default" if self.policy == DEFAULT else f"the policy {self.policy}"
        surge = f", {SURGE:g} times the requests from day {SURGE_DAY} on" if self.has_surge else ""
        return f"{policy}, budget {self.share:.0%} of the best single model's cost{surge}"


UNLIMITED = "unlimited"
SUBJECT = "key:simulated"

PLOTTED = (Scenario("quality", 0.30), Scenario("quality", 0.10))
SCENARIOS = (
    *(Scenario("quality", share) for share in (0.30, 0.20, 0.15, 0.10)),
    Scenario("quality", 0.30, has_surge=True),
    *(Scenario(DEFAULT, share) for share in (0.30, 0.10, 0.04, 0.03, 0.02)),
)

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Recorded:
    """What each policy and each model did with every held-out query, and what that cost."""

    artifact: Artifact

    @cached_property
    def points(self) -> OperatingPoints:
        """The operating points of the shipped artifact."""
        manifest = self.artifact.manifest
        default = manifest.named_rules[DEFAULT]
        return OperatingPoints.of(manifest, served_points(self.artifact), default)

    @cached_property
    def _held_out(self) -> HeldOut:
        return HeldOut.read(self.artifact.directory / HELD_OUT)

    @cached_property
    def _prices(self) -> list[Any]:
        manifest = self.artifact.manifest
        return [manifest.profile[arm].price for arm in manifest.arms]

    @cached_property
    def outcomes(self) -> PricedOutcomes:
        """The answers of every arm."""
        held_out = self._held_out
        return PricedOutcomes(held_out.correct, held_out.recorded_costs_usd(self._prices))

    @cached_property
    def best(self) -> int:
        """The column of the best single model."""
        return best_single(self.outcomes)

    @cached_property
    def rules(self) -> Mapping[str, tuple[Floats, Floats]]:
        """Correctness and cost of each query, by the rule of every point that may apply."""
        held_out, found = self._held_out, {}
        judged = read_judgements(self.artifact.directory / HELD_OUT)
        verifier = self.artifact.manifest.verifier
        if judged is None or verifier is None:
            raise ValueError("the artifact has no verifier")
        simulation = Simulation(judged, verifier.gain_features)
        names = self.artifact.manifest.named_rules.values()
        for rule in {*(point.policy for point in self.points.front), *names}:
            policy = self.artifact.manifest.measured_policy(rule)
            if isinstance(policy, Verified):
                costs_usd = held_out.fold_costs_usd(self._prices)
                answers = simulation.answer(costs_usd, policy.price_usd, floor=policy.floor)
                correct, cost_usd, _ = answers.outcome(
                    self.outcomes.correct, self.outcomes.cost_usd, held_out.seconds
                )
            else:
                costs_usd = held_out.expected_costs_usd(self._prices)
                choices = route(held_out.probabilities, costs_usd, rule)
                correct, cost_usd = pick(self.outcomes, choices)
            found[rule] = correct, cost_usd
        return found


@dataclass(slots=True)
class State:
    """The budget of the simulated team."""

    budget: Budget
    spent_usd: float = 0.0

    @property
    def balance(self) -> BudgetBalance:
        """The state as the pacing reads it."""
        end_s = STARTS_S + DAYS * DAY_S
        return BudgetBalance(SUBJECT, self.budget, STARTS_S, end_s, self.spent_usd, 0.0)


@dataclass(slots=True)
class Month:
    """How a strategy answered the requests of one month."""

    correct: list[float] = field(default_factory=list)
    cost_usd: list[float] = field(default_factory=list)
    refused: list[bool] = field(default_factory=list)
    changes: int = 0
    """How often the policy changed."""

    def figures(self, times_s: Floats) -> dict[str, Any]:
        """Return accuracy, cost, refused share, accuracy by week, and sums by day."""
        correct, days = np.array(self.correct), (times_s - STARTS_S) / DAY_S
        by_day = days.astype(int)
        weeks = [
            float(correct[(days >= first) & (days < last)].mean())
            for first, last in itertools.pairwise(WEEKS)
        ]
        return {
            "accuracy": float(correct.mean()),
            "cost_usd": float(np.sum(self.cost_usd)),
            "refused": float(np.mean(self.refused)),
            "changes": self.changes,
            "weeks": weeks,
            "by_day": [
                np.bincount(by_day, values, DAYS).tolist()
                for values in (np.ones(len(days)), correct, self.cost_usd)
            ],
        }


def intensity(times_s: Floats) -> Floats:
    """Return the relative number of requests: working hours, evenings, nights, and weekends."""
    hours = (times_s % DAY_S) / HOUR_S
    weekday = ((times_s - STARTS_S) // DAY_S + 3) % 7  # the month starts on a Thursday
    by_day = (
        0.08 + np.exp(-(((hours - 11) / 2.2) ** 2)) + 0.9 * np.exp(-(((hours - 15.5) / 2) ** 2))
    )
    level: Floats = np.where(weekday < 5, by_day, 0.25 * by_day)
    return level


def arrivals(rng: np.random.Generator, requests: int, *, has_surge: bool) -> Floats:
    """Return the times of the requests of a month."""
    grid = STARTS_S + np.arange(0, DAYS * DAY_S, 300.0)
    weights = intensity(grid)
    weights /= weights.sum()
    if has_surge:
        weights[grid >= STARTS_S + (SURGE_DAY - 1) * DAY_S] *= SURGE
    counts = rng.poisson(requests * weights)
    times_s = np.repeat(grid, counts) + rng.uniform(0, 300, counts.sum())
    return np.sort(times_s)


class Ledger:
    """The usage of the simulated team in a database in memory, by day."""

    def __init__(self) -> None:
        """Create the tables."""
        self.database = Database(None)
        self.database.prepare()
        self._sums: defaultdict[tuple[int, str], float] = defaultdict(float)

    def add(self, now_s: float, policy: str, cost_usd: float) -> None:
        """Count one request."""
        self._sums[int(now_s // DAY_S * DAY_S), policy] += cost_usd

    def write(self) -> None:
        """Write all sums, in place of those before."""
        zeros = dict.fromkeys(USAGE_SUMS, 0)
        rows = [
            zeros
            | {"scope": SUBJECT, "model": "", "policy": policy, "step_s": DAY_S}
            | {"start_s": start_s, "cost_nusd": round(cost_usd * NANO)}
            for (start_s, policy), cost_usd in self._sums.items()
        ]
        with self.database.write() as connection:
            connection.execute(usage.delete())
            if rows:
                connection.execute(insert(usage), rows)


def cheaper_first(
    recorded: Recorded, name: str, times_s: Floats, queries: NDArray[np.int64], usd: float
) -> Month:
    """Answer a month with the gateway's pacing; the request after the last dollar is refused."""
    budget = Budget(usd, BudgetPeriod.MONTH)
    state, month, now = State(budget), Month(), [float(times_s[0])]
    key = Key("simulated", limits=Limits(budget=budget))
    ledger = Ledger()
    pacing = Pacing(
        BudgetSettings, lambda: recorded.points, lambda _: [state.balance], clock=lambda: now[0]
    )
    rule = recorded.points.rules[name]
    asked = None if name == DEFAULT else name
    applied_before, read_s = rule, -1.0
    for time_s, query in zip(times_s.tolist(), queries.tolist(), strict=True):
        now[0] = time_s
        allowance = pacing.allowance(key)
        if time_s - read_s >= READ_EVERY_S:
            ledger.write()
            pacing.refresh(ledger.database)
            read_s = time_s
        change = allowance.change(rule, name) if allowance is not None else None
        applied = rule if change is None else change.policy
        label = str(NamedPolicy(parse_policy(applied), asked if change is None else change.asked))
        correct, cost_usd = (column[query] for column in recorded.rules[applied])
        month.changes += applied != applied_before
        applied_before = applied
        _answer(month, state, correct, cost_usd)
        if not month.refused[-1]:
            ledger.add(time_s, label, cost_usd)
    ledger.database.close()
    return month


def fixed(
    correct: Floats, cost_usd: Floats, queries: NDArray[np.int64], usd: float = np.inf
) -> Month:
    """Answer a month with one policy or model until the money is gone."""
    state, month = State(Budget(usd, BudgetPeriod.MONTH)), Month()
    for query in queries.tolist():
        _answer(month, state, correct[query], cost_usd[query])
    return month


def _answer(month: Month, state: State, correct: float, cost_usd: float) -> None:
    is_refused = state.spent_usd + cost_usd > state.budget.usd
    month.refused.append(is_refused)
    month.correct.append(0.0 if is_refused else correct)
    month.cost_usd.append(0.0 if is_refused else cost_usd)
    state.spent_usd += month.cost_usd[-1]


def strategies(
    recorded: Recorded, name: str, usd: float, requests: int
) -> dict[str, Callable[[Floats, NDArray[np.int64]], Month]]:
    """Return the contenders by name; each gets the times and the queries of a month."""
    outcomes, best = recorded.outcomes, recorded.best
    mean_usd, accuracy = outcomes.cost_usd.mean(axis=0), outcomes.correct.mean(axis=0)
    fitting = [arm for arm in range(len(mean_usd)) if mean_usd[arm] * requests <= usd]
    unlimited = recorded.rules[recorded.points.rules[name]]
    found: dict[str, Callable[[Floats, NDArray[np.int64]], Month]] = {
        UNLIMITED: lambda _, queries: fixed(*unlimited, queries),
        "cheaper first": lambda times_s, queries: cheaper_first(
            recorded, name, times_s, queries, usd
        ),
        "hard stop": lambda _, queries: fixed(*unlimited, queries, usd),
    }
    if fitting:
        cheap = max(fitting, key=lambda arm: accuracy[arm])
        label = f"only {recorded.artifact.manifest.arms[cheap]}"
        found[label] = lambda _, queries: fixed(
            outcomes.correct[:, cheap], outcomes.cost_usd[:, cheap], queries, usd
        )
    found["best single model"] = lambda _, queries: fixed(
        outcomes.correct[:, best], outcomes.cost_usd[:, best], queries
    )
    return found


def simulate(recorded: Recorded, scenario: Scenario, requests: int, months: int) -> dict[str, Any]:
    """Return the figures of every strategy."""
    best_usd = float(recorded.outcomes.cost_usd[:, recorded.best].mean())
    usd, count = scenario.share * best_usd * requests, len(recorded.outcomes.correct)
    runs: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for number in range(months):
        rng = np.random.default_rng(number)
        times_s = arrivals(rng, requests, has_surge=scenario.has_surge)
        resampled = rng.integers(0, count, count)
        queries = resampled[rng.integers(0, count, len(times_s))]
        for label, answer in strategies(recorded, scenario.policy, usd, requests).items():
            runs[label].append(answer(times_s, queries).figures(times_s))
    baseline = np.array([run["accuracy"] for run in runs[UNLIMITED]])
    baseline_weeks = np.array([run["weeks"] for run in runs[UNLIMITED]])
    rows = {}
    for label, each in runs.items():
        accuracy = np.array([run["accuracy"] for run in each])
        weeks = np.array([run["weeks"] for run in each])
        difference = (accuracy - baseline) * 100
        counts, correct, spent_usd = np.mean([run["by_day"] for run in each], axis=0)
        rows[label] = {
            "accuracy": float(accuracy.mean()),
            "accuracy_interval": np.percentile(accuracy, [2.5, 97.5]).tolist(),
            "points_to_unlimited": float(difference.mean()),
            "points_interval": np.percentile(difference, [2.5, 97.5]).tolist(),
            "weeks": weeks.mean(axis=0).tolist(),
            "points_by_week": ((weeks - baseline_weeks) * 100).mean(axis=0).tolist(),
            "cost_share_of_budget": float(np.mean([run["cost_usd"] for run in each]) / usd),
            "cost_share_of_best": float(
                np.mean([run["cost_usd"] for run in each]) / (best_usd * requests)
            ),
            "refused": float(np.mean([run["refused"] for run in each])),
            "changes": float(np.mean([run["changes"] for run in each])),
            "accuracy_by_day": (correct / counts).tolist(),
            "share_left_by_day": (1 - np.cumsum(spent_usd) / usd).tolist(),
        }
    return {"scenario": scenario, "budget_usd": usd, "rows": rows}


def _simulate(scenario: Scenario, requests: int, months: int) -> dict[str, Any]:
    return simulate(Recorded(Artifact.load(SHIPPED)), scenario, requests, months)


def print_table(result: Mapping[str, Any]) -> None:
    """Print one scenario as a table."""
    print(f"\n{result['scenario'].title}")
    print(f"{'':<32}{'accuracy':>22}{'points':>24}  by week{'':<19}{'of budget':>10}"
          f"{'of best':>9}{'refused':>9}{'changes':>9}")  # fmt: skip
    for label, row in result["rows"].items():
        low, high = row["accuracy_interval"]
        worst, best = row["points_interval"]
        weeks = " ".join(f"{points:+6.2f}" for points in row["points_by_week"])
        print(
            f"{label:<32}{row['accuracy']:>8.1%} ({low:.1%}-{high:.1%})"
            f"{row['points_to_unlimited']:>+9.2f} ({worst:+.2f} {best:+.2f})  {weeks}"
            f"{row['cost_share_of_budget']:>8.0%}{row['cost_share_of_best']:>9.1%}"
            f"{row['refused']:>9.1%}{row['changes']:>8.0f}"
        )


def main() -> None:
    """Simulate, print and write the figures, and draw the plot."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=REQUESTS, help="requests in the month")
    parser.add_argument("--months", type=int, default=40, help="simulated months")
    parser.add_argument("--plot", type=Path, default=PLOT)
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    results = []
    run = partial(_simulate, requests=arguments.requests, months=arguments.months)
    with ProcessPoolExecutor() as pool:
        for result in pool.map(run, SCENARIOS):
            print_table(result)
            results.append(result)
    draw(results, arguments.plot)
    figures = [
        {**asdict(result["scenario"]), "budget_usd": result["budget_usd"], "rows": result["rows"]}
        for result in results
    ]
    write_figures(arguments.out, {"months": arguments.months, "scenarios": figures})


def draw(results: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw accuracy and money left over the month, as means over all simulated months."""
    plt.rcParams.update({"svg.hashsalt": "switchcraft", "font.size": 10})
    figure, axes = plt.subplots(2, 2, figsize=(9.6, 6.0), layout="constrained", sharex=True)
    chosen = [each for each in results if each["scenario"] in PLOTTED]
    for column, result in zip(axes.T, chosen, strict=True):
        accuracy, money = column
        accuracy.set_title(f"budget {result['scenario'].share:.0%} of the best single model's cost",
                           loc="left", fontsize=10)  # fmt: skip
        for name, (color, width, text) in LINES.items():
            label = next(each for each in result["rows"] if each.startswith(name))
            row, shown = result["rows"][label], text.format(label.removeprefix("only "))
            drawing: dict[str, Any] = {"color": color, "linewidth": width}
            days = np.arange(DAYS + 1)
            accuracy.plot(days[:-1] + 0.5, row["accuracy_by_day"], label=shown, **drawing)
            if name != UNLIMITED:
                money.plot(days, [1.0, *row["share_left_by_day"]], **drawing)
        accuracy.set_ylim(0, 1)
        money.set_ylim(0, 1)
        money.set_xlabel("day of the month")
        for each in column:
            each.set_xlim(0, DAYS)
            each.xaxis.set_major_locator(MultipleLocator(7))
            each.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
            each.grid(visible=True, color="#e5e7eb", linewidth=0.8)
            each.set_axisbelow(True)
            each.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("correct answers, unseen tools")
    axes[1, 0].set_ylabel("budget left")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(
        f"A month of {REQUESTS:,} requests that ask for the policy quality", x=0.01, ha="left"
    )
    figure.savefig(path, metadata={"Date": None}, facecolor="white")


LINES = {
    "hard stop": ("#be123c", 1.8, "hard stop at the end of the money"),
    "only": ("#9ca3af", 1.8, "only {}"),
    UNLIMITED: ("#111827", 1.2, "without a budget"),
    "cheaper first": ("#047857", 2.2, "cheaper policies first"),
}
"""Color, width and text of each line, by the beginning of the strategy's name."""


if __name__ == "__main__":
    main()
