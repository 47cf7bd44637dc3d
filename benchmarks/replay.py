"""Accuracy of replay's estimates, on data for which the truth is known.

    python benchmarks/replay.py --data ../shared/data --out runs/replay.json

Every arm of the reference pool has recorded answers to every query, so the accuracy and the cost
of any policy are known. The benchmark simulates many logs. Each log draws as many queries as there
are, with replacement. It decides by one rule, explores a share of the queries, and keeps only the
outcome of the chosen arm. The table has the bias of the estimates for other policies (with its
standard error over the logs), the mean width of the 95% intervals, and how often they contain the
truth. `model` is the estimate of only the outcome model.

Probabilities are held-out predictions of trees on structural features, in five folds. Targets are
two other rules on the same probabilities, another router (trees on only the length) that
represents another artifact, and the best single arm, for which a cheap policy's log has the least
data.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import orjson

from benchmarks.expected_cost import left_out, read_inputs, reference_pool, trees
from benchmarks.stamp import stamp
from router_service.apis.conversation import Json
from router_service.measurement.rules import Choices, best_single, route
from switchcraft_training.config import load_config
from switchcraft_training.data.splits import fold_table
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.replay.estimators import (
    LoggedChoices,
    PolicyEstimate,
    Reward,
    estimate_policies,
)

LOGGED_RULE = "drift=0.05"
SHARES = (0.1, 0.3, 1.0)
NAMES = ("ips", "snips", "dr")


@dataclass(frozen=True, slots=True)
class World:
    """Outcomes of every arm, the router's predictions and the targets' choices for each query."""

    outcomes: Table
    probabilities: Floats
    expected_usd: Floats
    policy: Choices
    targets: Mapping[str, Choices]

    def rewards(self, rows: Choices, chosen: Choices) -> Mapping[str, Reward]:
        """Return the rewards that a log of these queries contains."""
        right, paid = self.outcomes.take(rows).pick(chosen)
        return {
            "accuracy": Reward(right, self.probabilities[rows], "low"),
            "cost_usd": Reward(paid, self.expected_usd[rows], "high"),
        }

    def truth(self, reward: str, target: str) -> float:
        """Return a target's true accuracy or cost."""
        both = self.outcomes.pick(self.targets[target])
        return float(both[0 if reward == "accuracy" else 1].mean())


def main() -> None:
    """Print a table for each exploration share; with `--out`, also write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument(
        "--logs", type=int, default=200, help="number of simulated logs (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    world = read_world(arguments.data)
    n, arms = world.probabilities.shape
    print(f"{n:,} queries, {arms} arms, {arguments.logs} logs of {n:,} decisions by {LOGGED_RULE}")
    figures = {str(share): measure(world, share, arguments.logs) for share in SHARES}
    if arguments.out:
        row = {"queries": n, "logs": arguments.logs, "exploration": figures, **stamp("numpy")}
        arguments.out.write_bytes(orjson.dumps(row, option=orjson.OPT_INDENT_2))


def read_world(data: Path) -> World:
    """Read the reference pool's answers and predict each query with a model of the others."""
    config = load_config(Path("configs/reference-pool.yaml")).model_copy(
        update={"auxiliary_arms": "none", "also": ()}
    )
    table = reference_pool(config, data)
    inputs = read_inputs(table.examples, config)
    splits = fold_table(table, 5, seed=0)
    rows = [row for split in splits for row in split.test]
    outcomes = table.take(rows)
    lengths = replace(inputs, counts=np.zeros((len(inputs.raw_tokens), 1)))
    predicted, other = (left_out(trees, each, table.correct, splits) for each in (inputs, lengths))
    usd = np.tile(outcomes.cost_usd.mean(0), (len(rows), 1))
    targets = {
        "drift=0.02": route(predicted, usd, "drift=0.02"),
        "theta=0.7": route(predicted, usd, "theta=0.7"),
        "another router": route(other, usd, LOGGED_RULE),
        "the best arm": np.full(len(rows), best_single(outcomes)),
    }
    return World(outcomes, predicted, usd, route(predicted, usd, LOGGED_RULE), targets)


def measure(world: World, share: float, logs: int) -> Mapping[str, Json]:
    """Print and return the errors of the estimates over many logs of one exploration share."""
    found = [_replayed(world, share, seed) for seed in range(logs)]
    print(f"\nexploration {share:g}")
    print(f"{'target':<15} {'tried':>5} {'effective n':>11} {'reward':<9} {'truth':>8}", end=" ")
    print(f"{'estimate':<9} {'bias':>8} {'(s.e.)':>9} {'width':>8} {'coverage':>9}")
    return {
        f"{target} {reward}": _compare(
            world, target, reward, [each[reward][target] for each in found]
        )
        for target in world.targets
        for reward in ("accuracy", "cost_usd")
    }


def _replayed(world: World, share: float, seed: int) -> Mapping[str, Mapping[str, PolicyEstimate]]:
    """Draw a log, replay every target on it, and return the estimates by reward."""
    rng = np.random.default_rng(seed)
    n, arms = world.probabilities.shape
    rows = np.asarray(rng.integers(0, n, size=n), dtype=np.int64)
    chosen = np.where(rng.random(n) < share, rng.integers(0, arms, size=n), world.policy[rows])
    propensity = share / arms + (1 - share) * (chosen == world.policy[rows])
    choices = LoggedChoices(chosen, propensity, chosen != world.policy[rows], np.arange(n))
    targets = {name: target[rows] for name, target in world.targets.items()}
    rewards = world.rewards(rows, chosen)
    return {
        name: estimate_policies(choices, reward, targets, seed) for name, reward in rewards.items()
    }


def _compare(
    world: World, target: str, reward: str, found: list[PolicyEstimate]
) -> Mapping[str, Json]:
    """Print and return bias, width and coverage of each estimator, in points and USD per 1,000."""
    factor = 100 if reward == "accuracy" else 1_000
    truth = world.truth(reward, target)
    figures: dict[str, Json] = {
        "truth": truth,
        "tried": float(np.mean([each.tried for each in found])),
        "effective_n": float(np.mean([each.effective_n for each in found])),
    }
    shown = (
        f"{target:<15} {figures['tried']:>5.0f} {figures['effective_n']:>11.0f}"
        f" {reward:<9} {truth * factor:>8.3f}"
    )
    for name in NAMES:
        figures[name] = row = _errors([getattr(each, name) for each in found], truth)
        print(
            f"{shown} {name:<9} {row['bias'] * factor:>+8.3f} {row['bias_stderr'] * factor:>9.3f}"
            f" {row['width'] * factor:>8.3f} {row['coverage']:>9.1%}"
        )
        shown = " " * len(shown)
    figures["model"] = float(np.mean([each.model for each in found]) - truth)
    print(f"{shown} {'model':<9} {figures['model'] * factor:>+8.3f}")
    return figures


def _errors(estimates: list[Json], truth: float) -> Mapping[str, float]:
    values = np.array([each.value for each in estimates])
    low, high = np.array([each.interval for each in estimates]).T
    return {
        "bias": float(values.mean() - truth),
        "bias_stderr": float(values.std(ddof=1) / np.sqrt(len(values))),
        "width": float((high - low).mean()),
        "coverage": float(((low <= truth) & (truth <= high)).mean()),
    }


if __name__ == "__main__":
    main()
