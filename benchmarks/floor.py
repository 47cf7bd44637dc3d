"""What a floor of verified answers costs: the named policies on held-out queries, by floor.

    python -m benchmarks.floor

Below the floor, another arm is asked even if the gain model expects too little. The queries' tools
were unseen by the routers and verifiers that judged them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.stamp import write_figures
from router_service.artifact import SHIPPED, Artifact
from router_service.measurement.held_out import HELD_OUT, HeldOut, PricedOutcomes, read_judgements
from router_service.measurement.rules import Bench, best_single
from router_service.measurement.simulation import Simulation
from router_service.policies.verified import Verified

FLOORS = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
DOUBTFUL = 0.5
"""Probability below which an answer is more likely wrong than right."""


def main() -> None:
    """Print and write accuracy, cost and doubtful answers of each named policy and floor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--artifact", type=Path, default=SHIPPED)
    parser.add_argument("--models", nargs="+", help="arms of the pool (default: all)")
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    artifact = Artifact.load(arguments.artifact)
    manifest, path = artifact.manifest, artifact.directory / HELD_OUT
    held_out, judged = HeldOut.read(path), read_judgements(path)
    if judged is None or manifest.verifier is None:
        raise SystemExit(f"{path} has no judgements of a verifier")
    arms = arguments.models or list(manifest.arms)
    columns = [manifest.arms.index(arm) for arm in arms]
    prices = [manifest.profile[arm].price for arm in manifest.arms]
    pool = held_out.select_arms(columns)
    costs_usd = pool.recorded_costs_usd([prices[column] for column in columns])
    outcomes = PricedOutcomes(pool.correct, costs_usd)
    bench, best = Bench.of(outcomes), best_single(outcomes)
    simulation = Simulation(judged, manifest.verifier.gain_features)
    fold_costs_usd = held_out.fold_costs_usd(prices)
    figures = {}
    print(f"{'policy':>18} {'floor':>5} {'accuracy':>8} {'vs. best':>8} {'cost':>6} asked  <50%")
    rules = (manifest.policy(rule) for rule in {*manifest.named_rules.values()})
    for price_usd in sorted(rule.price_usd for rule in rules if isinstance(rule, Verified)):
        usual = None
        for floor in FLOORS:
            answers = simulation.answer(fold_costs_usd, price_usd, columns, floor=floor)
            correct, cost_usd, _ = answers.outcome(pool.correct, costs_usd, pool.seconds)
            usual = correct if usual is None else usual
            row = {
                "accuracy": float(correct.mean()),
                "versus_best": float(correct.mean() - bench.best.mean()),
                "versus_no_floor": float((correct - usual).mean()),
                "versus_no_floor_stderr": float((correct - usual).std() / np.sqrt(len(correct))),
                "cost_share": float(cost_usd.mean() / costs_usd[:, best].mean()),
                "models_asked": float(answers.counts.mean()),
                "doubtful": int((answers.p_correct < DOUBTFUL).sum()),
            }
            figures[f"verified={price_usd:g}, {floor}"] = row
            print(
                f"verified={price_usd:<9g} {floor:5} {row['accuracy']:8.1%}"
                f" {row['versus_best'] * 100:+8.1f} {row['cost_share']:6.1%}"
                f" {row['models_asked']:5.2f} {row['doubtful']:5}"
            )
    write_figures(arguments.out, figures, "numpy")


if __name__ == "__main__":
    main()
