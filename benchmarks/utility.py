"""The policy `utility=PRICE` compared with `theta` and `drift` at equal costs.

    python benchmarks/utility.py --data ../shared/data --workspace runs/utility --out utility.json

`utility=PRICE` would choose once, like `theta` and `drift`: the arm with the largest probability
minus its expected cost divided by PRICE, which is what one more correct answer is worth in USD.

The probabilities are those of the pools' whole routers on held-out queries, from the runs' folds,
and calibrated on other queries. `--workspace` keeps a folder for each pool, which may be a copy of
the workspace of a run; routers that were trained there are loaded.

For each budget, a share of the best single model's cost, each family of rules gets the two
neighbouring rules of its convex hull, mixed so that their mean cost is the budget. Hull and mixture
come from four fifths of the queries, and accuracy and cost from the remaining fifth. Near-duplicate
queries stay together. The results of several partitions, and of several seeds of folds and routers,
are averaged for each query. The intervals resample queries, and the differences are paired.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import orjson
from sklearn.model_selection import GroupKFold

from benchmarks.stamp import stamp
from router_service.apis.conversation import Json
from router_service.measurement.rules import Choices, best_single, route
from router_service.measurement.statistics import mean_auc
from router_service.policies.drift import DRIFTS
from router_service.policies.threshold import THETAS
from switchcraft_training.config import load_config
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.dataset import load_dataset
from switchcraft_training.evaluation.calibration import calibrated_unseen, choose_calibration
from switchcraft_training.evaluation.frontier import convex_hull
from switchcraft_training.evaluation.metrics import paired_interval
from switchcraft_training.experiment import TrainingData, cross_validate, pack_table
from switchcraft_training.models.encoders import load_encoder

POOLS = ("mcpmark", "ten-7-8b", "reference-pool")
BUDGETS = (0.08, 0.10, 0.13, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2)
"""Mean costs at which the rules are compared, as shares of the best single model's cost."""
WIDE_THETAS = (*THETAS, 0.0, 0.1, 0.15, 0.2, 0.25, 0.35)
WIDE_DRIFTS = (*DRIFTS, 0.35, 0.4, 0.5, 0.6, 0.8, 1.0)
"""The rules of a run's frontier, and those that lead to the cheapest arm on MCPMark."""
SLOPES = np.geomspace(0.001, 5.0, len(WIDE_DRIFTS))
"""Probability that the difference in cost between the most and the least expensive arm must buy."""
FOLDS = 5
PARTITIONS = 10


def utility(probabilities: Floats, costs_usd: Floats, price_usd: float) -> Choices:
    """Return the arm with the largest probability minus cost / price for each query, (queries,)."""
    choices: Choices = (probabilities - costs_usd / price_usd).argmax(1)
    return choices


def families(probabilities: Floats, costs_usd: Floats) -> dict[str, list[Choices]]:
    """Return what the rules of each family choose for each query."""
    spread_usd = float(np.ptp(costs_usd.mean(0)))
    thetas = [route(probabilities, costs_usd, f"theta={theta:g}") for theta in WIDE_THETAS]
    drifts = [route(probabilities, costs_usd, f"drift={delta:g}") for delta in WIDE_DRIFTS]
    return {
        "theta": thetas,
        "drift": drifts,
        "theta or drift": thetas + drifts,
        "utility": [utility(probabilities, costs_usd, spread_usd / slope) for slope in SLOPES],
    }


def mixture(costs_usd: Floats, accuracies: Floats, budget_usd: float) -> Floats:
    """Return the shares of rules, (rules,), that are the most accurate at a mean cost.

    The null router, which answers nothing at no cost, is not a rule: below the cheapest rule of the
    hull, that rule has the share 1.
    """
    hull = convex_hull(np.column_stack([costs_usd, accuracies]))[1:]
    points = list(zip(costs_usd.tolist(), accuracies.tolist(), strict=True))
    rules = [points.index((cost, accuracy)) for cost, accuracy in hull.tolist()]
    shares = np.zeros(len(costs_usd))
    above = int(np.searchsorted(hull[:, 0], budget_usd))
    if above in {0, len(hull)}:
        shares[rules[min(above, len(hull) - 1)]] = 1.0
    else:
        low, high = hull[above - 1, 0], hull[above, 0]
        shares[rules[above]] = (budget_usd - low) / (high - low)
        shares[rules[above - 1]] = 1 - shares[rules[above]]
    return shares


def at_budget(
    correct: Floats, paid_usd: Floats, best_usd: Floats, groups: Sequence[int], budget: float
) -> tuple[Floats, Floats]:
    """Return held-out correctness and cost of the best mixture for a budget, (queries,) each.

    `correct` and `paid_usd` are the results of each rule, (queries, rules), and `best_usd` are the
    costs of the best single model, (queries,).
    """
    got, paid = np.zeros(len(correct)), np.zeros(len(correct))
    for seed in range(PARTITIONS):
        kfold = GroupKFold(FOLDS, shuffle=True, random_state=seed)
        for seen, held_out in kfold.split(correct, groups=groups):
            shares = mixture(
                paid_usd[seen].mean(0), correct[seen].mean(0), budget * float(best_usd[seen].mean())
            )
            got[held_out] += correct[held_out] @ shares / PARTITIONS
            paid[held_out] += paid_usd[held_out] @ shares / PARTITIONS
    return got, paid


def compare(table: Table, routers: Sequence[tuple[Floats, Floats]]) -> list[dict[str, Json]]:
    """Print the families of rules at each budget that all can meet, and return the figures.

    `routers` are the probabilities and expected costs of each seed, (queries, arms) each.
    """
    best_usd = table.cost_usd[:, best_single(table)]
    groups = table.groups.tolist()
    results = [
        {
            name: _columns([table.pick(choices) for choices in rules])
            for name, rules in families(probabilities, costs_usd).items()
        }
        for probabilities, costs_usd in routers
    ]
    costs = [paid.mean(0) / best_usd.mean() for each in results for _, paid in each.values()]
    least, most = max(cost.min() for cost in costs), min(cost.max() for cost in costs)
    rows: list[dict[str, Json]] = []
    for budget in (share for share in BUDGETS if least <= share <= most):
        found = {}
        for name in results[0]:
            seeds = [at_budget(*each[name], best_usd, groups, budget) for each in results]
            found[name] = np.mean([got for got, _ in seeds], 0), np.mean([p for _, p in seeds], 0)
        rows.append({"budget": budget, **figures(found, best_usd)})
        accuracies = "".join(f"{value:>8.1%}" for value in rows[-1]["accuracy"].values())
        shares = "".join(f"{value:>8.1%}" for value in rows[-1]["cost_share"].values())
        ahead = "".join(
            f"  {value * 100:+.2f} [{low * 100:+.2f}, {high * 100:+.2f}]"
            for value, low, high in rows[-1]["utility_minus"].values()
        )
        print(f"{budget:>6.0%} {accuracies} {shares} {ahead}", flush=True)
    return rows


def _columns(outcomes: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Return correctness and cost of all rules, (queries, rules) each."""
    return np.column_stack([o[0] for o in outcomes]), np.column_stack([o[1] for o in outcomes])


def figures(found: Mapping[str, tuple[Floats, Floats]], best_usd: Floats) -> dict[str, Json]:
    """Return accuracies and costs, and utility's points above the others with 95% intervals."""
    ours, _ = found["utility"]
    return {
        "accuracy": {name: float(got.mean()) for name, (got, _) in found.items()},
        "cost_share": {
            name: float(paid.mean() / best_usd.mean()) for name, (_, paid) in found.items()
        },
        "utility_minus": {
            name: [float((ours - got).mean()), *paired_interval(ours, got)]
            for name, (got, _) in found.items()
            if name != "utility"
        },
    }


def held_out(data: TrainingData) -> tuple[Table, Floats, Floats]:
    """Return the measured rows, their calibrated probabilities and the arms' expected costs."""
    config = data.config
    validation = cross_validate(data, exported=False)
    assert validation is not None  # noqa: S101 - one process
    table = data.table.measured(config.arms)
    raw = validation.mix(config.training.branch_shares)
    groups = table.groups.tolist()
    method = choose_calibration(table.correct, raw, groups, config.seed).calibration.method
    calibrated = calibrated_unseen(table.correct, raw, groups, config.seed, method)
    return table, calibrated, validation.expected_costs_usd


def main() -> None:
    """Print a table for each pool and seed, and write them as JSON if `--out` is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--workspace", type=Path, required=True, help="folder for trained routers")
    parser.add_argument("--pools", nargs="+", choices=POOLS, default=POOLS)
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=(1, 2), help="seeds of folds and of routers"
    )
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    found: list[Json] = []
    for name in arguments.pools:
        workspace = arguments.workspace / name
        workspace.mkdir(parents=True, exist_ok=True)
        config = load_config(Path(f"configs/{name}.yaml"))
        dataset = load_dataset(config, arguments.data, workspace / "labels")
        data = pack_table(config, dataset, load_encoder(config.encoder.source), workspace)
        routers, aucs = [], []
        for seed in arguments.seeds:
            table, probabilities, costs_usd = held_out(data.with_seed(seed))
            routers.append((probabilities, costs_usd))
            aucs.append(mean_auc(table.correct, probabilities))
        print(
            f"\n{name}: {len(table):,} queries, {len(table.arms)} arms, AUC"
            f" {', '.join(f'{auc:.3f}' for auc in aucs)} by seed\n"
            "budget; accuracy, then cost, of theta, drift, either of the two, utility; points of"
            " utility above theta, drift, either"
        )
        found.append({"pool": name, "auc": aucs, "budgets": compare(table, routers)})
    if arguments.out:
        report = {"pools": found, **stamp("scikit-learn", "numpy", "torch")}
        arguments.out.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
