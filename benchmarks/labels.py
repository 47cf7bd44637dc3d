"""Labels that are shares of an arm's attempts, compared with labels of one attempt each.

    python benchmarks/labels.py --data ../shared/data --workspace runs/labels --out labels.json

MCPMark's arms tried each task four times. Two routers learn from the same queries: one from the
share of attempts that succeeded, the other from one attempt, drawn at random by the seed. Both
are trained on the same folds as a run's routers, and both are measured on the shares.

The intervals resample queries, whose results are first averaged over the seeds of folds, routers
and draws. Differences are paired. Each accuracy at a cost is that of a mixture of `utility` rules,
picked on other queries as in `benchmarks/utility.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import orjson

from benchmarks.stamp import stamp
from benchmarks.utility import at_budget, families
from router_service.apis.conversation import Json
from router_service.measurement.rules import best_single
from router_service.measurement.statistics import mean_auc
from switchcraft_training.config import load_config
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.dataset import load_dataset
from switchcraft_training.evaluation.calibration import calibrated_unseen, choose_calibration
from switchcraft_training.evaluation.metrics import paired_interval
from switchcraft_training.experiment import TrainingData, cross_validate, pack_table
from switchcraft_training.models.encoders import load_encoder

CONFIG = Path("configs/mcpmark.yaml")
LABELS = ("probabilistic", "binary")
BUDGETS = (0.1, 0.2, 0.4, 0.7, 1.0)
"""Mean costs, as shares of the best single model's cost."""


def measure(data: TrainingData) -> tuple[float, dict[str, Floats]]:
    """Return the mean AUC of held-out probabilities, and measures by query, (queries,) each.

    The probabilities are calibrated on other queries, whose labels are shares for both routers.
    """
    validation = cross_validate(data, exported=False)
    assert validation is not None  # noqa: S101 - one process
    config, table = data.config, data.table.measured(data.config.arms)
    raw = validation.mix(config.training.branch_shares)
    groups = table.groups.tolist()
    method = choose_calibration(table.correct, raw, groups, config.seed).calibration.method
    calibrated = calibrated_unseen(table.correct, raw, groups, config.seed, method)
    found = {"log loss": log_loss(table, calibrated)}
    rules = families(calibrated, validation.expected_costs_usd)["utility"]
    outcomes = [table.pick(choices) for choices in rules]
    correct, paid_usd = (np.column_stack([each[side] for each in outcomes]) for side in (0, 1))
    best_usd = table.cost_usd[:, best_single(table)]
    for budget in BUDGETS:
        got, _ = at_budget(correct, paid_usd, best_usd, groups, budget)
        found[f"accuracy at {budget:.0%} of the cost"] = got
    return mean_auc(table.correct, calibrated), found


def log_loss(table: Table, probabilities: Floats) -> Floats:
    """Return each query's cross-entropy, averaged over arms, (queries,)."""
    p = probabilities.clip(1e-6, 1 - 1e-6)
    loss: Floats = np.nanmean(
        -(table.correct * np.log(p) + (1 - table.correct) * np.log(1 - p)), axis=1
    )
    return loss


def main() -> None:
    """Print a table of both kinds of labels, and write it as JSON if `--out` is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--workspace", type=Path, required=True, help="folder for trained routers")
    parser.add_argument("--seeds", nargs="+", type=int, default=tuple(range(1, 11)))
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    aucs: dict[str, list[float]] = {}
    means: dict[str, Mapping[str, Floats]] = {}
    base = load_config(CONFIG)
    arguments.workspace.mkdir(parents=True, exist_ok=True)
    dataset = load_dataset(base, arguments.data, arguments.workspace / "labels")
    for labels in LABELS:
        training = base.training.model_copy(update={"labels": labels})
        config = base.model_copy(update={"training": training})
        encoder = load_encoder(config.encoder.source)
        data = pack_table(config, dataset, encoder, arguments.workspace)
        seeds = [measure(data.with_seed(seed)) for seed in arguments.seeds]
        aucs[labels] = [auc for auc, _ in seeds]
        means[labels] = {
            name: np.mean([found[name] for _, found in seeds], axis=0) for name in seeds[0][1]
        }
    ours, theirs = (means[labels] for labels in LABELS)
    print(f"{'':<28} {'probabilistic':>13} {'binary':>8}  difference with 95% interval")
    auc = [float(np.mean(aucs[labels])) for labels in LABELS]
    by_seed = np.array(aucs["probabilistic"]) - np.array(aucs["binary"])
    print(
        f"{'AUC':<28} {auc[0]:>13.4f} {auc[1]:>8.4f}  {auc[0] - auc[1]:+.4f}"
        f" (by seed {', '.join(f'{each:+.3f}' for each in by_seed)})"
    )
    rows: list[Mapping[str, Json]] = []
    for name, mine in ours.items():
        other = theirs[name]
        low, high = paired_interval(mine, other)
        row = (float(mine.mean()), float(other.mean()), float((mine - other).mean()))
        rows.append({"measure": name, "values": row, "interval": (low, high)})
        print(f"{name:<28} {row[0]:>13.4f} {row[1]:>8.4f}  {row[2]:+.4f} [{low:+.4f}, {high:+.4f}]")
    if arguments.out:
        report = {"auc": aucs, "measures": rows, **stamp("scikit-learn", "numpy", "torch")}
        arguments.out.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2))


if __name__ == "__main__":
    main()
