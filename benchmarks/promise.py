"""The promise of the default policy: within half a point of a pool's best model, in every pool.

    python -m benchmarks.promise [--within 0.5] [--out runs/promise.json]

For every pool of two to four of the artifact's models, the rule of the default is chosen as a
gateway does it: on all held-out queries, whose tools the routers and verifiers that judged them had
not seen. The harder way chooses the rule on all folds but one and measures it on that one, for each
fold, so that no query counts that the rule was chosen on.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from benchmarks.stamp import write_figures
from router_service.artifact import SHIPPED, Artifact, FrontierPoint
from router_service.measurement.goals import Goal, find_point
from router_service.measurement.held_out import (
    HELD_OUT,
    HeldOut,
    RuleResult,
    read_judgements,
    simulate_prices,
)
from router_service.measurement.rules import best_single, frontier_rules, pick, route
from router_service.measurement.simulation import Simulation
from router_service.measurement.statistics import mean_measure
from router_service.policies.verified import VERIFIED
from router_service.predictor.model import Floats
from router_service.verifier.graphs import Columns

SIZES = (2, 3, 4)
TOLERATED_POINTS = 1.0


@dataclass(frozen=True, slots=True)
class PoolResult:
    """What the default of a pool reached: points against the best model, and share of its cost."""

    arms: tuple[str, ...]
    rule: str
    points: float
    cost_share: float
    elsewhere_points: float
    elsewhere_cost_share: float
    standard_points: float
    standard_cost_share: float
    """The same of `verified` at its standard price."""


def main() -> None:
    """Print a summary and the pools that lose most, and write all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--artifact", type=Path, default=SHIPPED)
    parser.add_argument("--within", type=float, default=0.5, help="points that may be given up")
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    artifact = Artifact.load(arguments.artifact)
    results = measure(artifact, Goal("within", arguments.within))
    for name, prefix in (
        ("chosen and measured on all queries", ""),
        ("measured on other queries", "elsewhere_"),
        ("`verified` at its price", "standard_"),
    ):
        points = [getattr(result, f"{prefix}points") for result in results]
        shares = [getattr(result, f"{prefix}cost_share") for result in results]
        kept = sum(each >= -TOLERATED_POINTS for each in points)
        print(
            f"{name}: {kept} of {len(results)} pools lose at most {TOLERATED_POINTS:g} points;"
            f" mean {np.mean(points):+.2f}, least {min(points):+.2f}; cost {np.mean(shares):.1%}"
        )
    for each in sorted(results, key=lambda result: result.elsewhere_points)[:12]:
        print(
            f"{each.points:+.2f} at {each.cost_share:6.1%}, elsewhere {each.elsewhere_points:+.2f}"
            f"  {each.rule:<16} {', '.join(each.arms)}"
        )
    write_figures(arguments.out, {"pools": [asdict(each) for each in results]})


def measure(artifact: Artifact, goal: Goal, sizes: Iterable[int] = SIZES) -> list[PoolResult]:
    """Return the result of every pool of these sizes."""
    manifest, path = artifact.manifest, artifact.directory / HELD_OUT
    held_out, judged = HeldOut.read(path), read_judgements(path)
    if judged is None or manifest.verifier is None:
        raise SystemExit(f"{path} has no judgements of a verifier")
    simulation = Simulation(judged, manifest.verifier.gain_features)
    prices = [manifest.profile[arm].price for arm in manifest.arms]
    standard, folds = manifest.named_rules[VERIFIED], held_out.folds
    found = []
    for columns in (each for size in sizes for each in combinations(range(len(prices)), size)):
        pool = held_out.select_arms(columns)
        expected_usd = pool.expected_costs_usd([prices[column] for column in columns])
        outcomes, _, floored = simulate_prices(
            held_out,
            simulation,
            columns,
            prices,
            manifest.fixed_prices_usd,
            manifest.verifier.floor,
        )
        rules: dict[str, RuleResult] = {}
        for rule in frontier_rules(expected_usd):
            chosen = route(pool.probabilities, expected_usd, rule)
            rules[rule] = (rule, *pick(outcomes, chosen))
        rules |= {result[0]: result for result in floored}
        best = best_single(outcomes)
        best_correct, best_usd = outcomes.correct[:, best], outcomes.cost_usd[:, best]

        rule, correct, cost_usd = _choose(
            goal, rules, best_correct, np.arange(len(folds)), standard
        )
        elsewhere, elsewhere_usd = np.empty(len(folds)), np.empty(len(folds))
        for fold in np.unique(folds):
            others, rows = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
            _, fold_correct, fold_usd = _choose(goal, rules, best_correct, others, standard)
            elsewhere[rows], elsewhere_usd[rows] = fold_correct[rows], fold_usd[rows]
        found.append(
            PoolResult(
                arms=tuple(manifest.arms[column] for column in columns),
                rule=rule,
                points=100 * float((correct - best_correct).mean()),
                cost_share=float(cost_usd.mean() / best_usd.mean()),
                elsewhere_points=100 * float((elsewhere - best_correct).mean()),
                elsewhere_cost_share=float(elsewhere_usd.mean() / best_usd.mean()),
                standard_points=100 * float((rules[standard][1] - best_correct).mean()),
                standard_cost_share=float(rules[standard][2].mean() / best_usd.mean()),
            )
        )
    return found


def _choose(
    goal: Goal, rules: Mapping[str, RuleResult], best: Floats, rows: Columns, standard: str
) -> RuleResult:
    """Return the rule that reaches the goal on these rows, with its results on all."""
    points = [_point(result, rows) for result in rules.values()]
    measured = mean_measure(best[rows])
    return rules[find_point(goal, points, measured, param="--within", standard=standard).policy]


def _point(result: RuleResult, rows: Columns) -> FrontierPoint:
    rule, correct, cost_usd = result
    return FrontierPoint(
        policy=rule, accuracy=mean_measure(correct[rows]), cost_usd=mean_measure(cost_usd[rows])
    )


if __name__ == "__main__":
    main()
