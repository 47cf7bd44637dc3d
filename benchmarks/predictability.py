"""How well features, hindsight and more queries predict which arm answers correctly.

    python benchmarks/predictability.py DATA --out predictability.json

All predictions are by trees, on the folds of the runs' reports. `hindsight` uses information that
no router has, and bounds what better features could reach. `noise` predicts an answer by the same
model's other answer to the query, which bounds what any feature could reach.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor

from benchmarks.stamp import stamp
from router_service.apis.conversation import parse_conversation
from router_service.measurement.statistics import auc_measure
from router_service.predictor.features import FEATURES, OVERLAP_FEATURES, TOOL_FEATURES, extract
from router_service.predictor.text_features import TEXT_FEATURES
from switchcraft_training.config import load_config
from switchcraft_training.data.outcomes import CheckedAnswers
from switchcraft_training.data.splits import Split, fold_table
from switchcraft_training.data.table import Table
from switchcraft_training.dataset import load_dataset
from switchcraft_training.datasets import bfcl
from switchcraft_training.models.branches import SEVERAL_CALLS

Floats = NDArray[np.float64]
POOLS = ("reference-pool", "ten-7-8b")
SHARES = (0.125, 0.25, 0.5, 1.0)
TREES = 100
MCPMARK = "mcpmark"
REPEATED = "bfcl-v4-gptoss"


def predicted(features: Floats, labels: Floats, folds: Sequence[Split], share: float) -> Floats:
    """Return held-out predictions of trees trained on a share of each fold's rows."""
    said = np.empty_like(labels)
    for split in folds:
        rows = np.random.default_rng(0).permutation(split.train)[: int(share * len(split.train))]
        trees = ExtraTreesRegressor(
            TREES, min_samples_leaf=5, max_features=0.3, random_state=0, n_jobs=-1
        ).fit(features[rows], labels[rows])
        said[list(split.test)] = trees.predict(features[list(split.test)])
    return said


def feature_sets(dataset: Table, counts: Floats, arms: int) -> Iterator[tuple[str, Floats]]:
    """Yield sets of features for the trees, by name."""
    names = list(FEATURES)
    for name, group in (
        ("text", TEXT_FEATURES),
        ("tools", TOOL_FEATURES),
        ("query and tools", OVERLAP_FEATURES),
    ):
        yield f"counts of {name}", counts[:, [names.index(each) for each in group]]
    yield "all counts", counts
    categories = [example.category for example in dataset.examples[: len(counts)]]
    kinds = np.unique(categories, return_inverse=True)[1]
    demand = np.minimum(np.nan_to_num(dataset.expected_calls[: len(counts)]), SEVERAL_CALLS).astype(
        int
    )
    yield (
        "hindsight: counts, calls asked for",
        np.hstack([counts, np.eye(SEVERAL_CALLS + 1)[demand]]),
    )
    yield "hindsight: counts, category", np.hstack([counts, np.eye(kinds.max() + 1)[kinds]])
    others = dataset.correct[: len(counts), arms:]
    asked = ~np.isnan(others).any(axis=0)
    if asked.any():
        yield "hindsight: counts, other models' success", np.hstack([counts, others[:, asked]])


def of_pool(name: str, data: Path, cache: Path | None) -> Iterator[dict[str, object]]:
    """Yield the AUC of trees on one pool, for each set of features and share of queries."""
    config = load_config(Path(f"configs/{name}.yaml"))
    dataset = load_dataset(config, data, cache)
    own = len(dataset.measured_rows)
    requests = (parse_conversation(e.request) for e in dataset.examples[:own])
    counts = np.array([extract(request, list(FEATURES)) for request in requests])
    labels = dataset.measured(config.arms).correct
    folds = fold_table(dataset, 5, config.seed, validated=False)
    for features, values in feature_sets(dataset, counts, len(config.arms)):
        auc = auc_measure(labels, predicted(values, labels, folds, 1.0))
        yield {"pool": name, "features": features, "queries": own, **auc.model_dump()}
    for share in SHARES:
        auc = auc_measure(labels, predicted(counts, labels, folds, share))
        queries = round(share * np.mean([len(split.train) for split in folds]))
        yield {"pool": name, "features": "all counts", "queries": queries, **auc.model_dump()}


def demand_told(name: str, data: Path, cache: Path | None) -> float:
    """Return how often trees are right that a held-out query needs no, one or several calls."""
    config = load_config(Path(f"configs/{name}.yaml"))
    dataset = load_dataset(config, data, cache)
    requests = (parse_conversation(e.request) for e in dataset.measured(config.arms).examples)
    counts = np.array([extract(request, list(FEATURES)) for request in requests])
    demand = np.minimum(dataset.expected_calls[: len(counts)], SEVERAL_CALLS).astype(int)
    folds = fold_table(dataset, 5, config.seed, validated=False)
    said = predicted(counts, np.eye(SEVERAL_CALLS + 1)[demand], folds, 1.0)
    return float((said.argmax(1) == demand).mean())


def by_category(name: str, data: Path, cache: Path | None) -> dict[str, object]:
    """Return the lowest cost share at which one arm per category matches the best arm.

    The choice uses hindsight: arms are chosen on the measured queries, in the order of cost per
    point of accuracy. No router that reads only the category does better.
    """
    config = load_config(Path(f"configs/{name}.yaml"))
    table = load_dataset(config, data, cache).measured(config.arms)
    kinds = np.array([example.category for example in table.examples])
    best = int(table.correct.mean(0).argmax())
    found = 1.0
    for usd_per_answer in np.geomspace(1e-6, 1e3, 400):
        worth = table.correct * usd_per_answer - table.cost_usd
        arms = {kind: int(worth[kinds == kind].mean(0).argmax()) for kind in np.unique(kinds)}
        rows, chosen = np.arange(len(kinds)), np.array([arms[kind] for kind in kinds])
        if table.correct[rows, chosen].mean() >= table.correct[:, best].mean():
            share = table.cost_usd[rows, chosen].mean() / table.cost_usd[:, best].mean()
            found = min(found, float(share))
    return {"pool": name, "n": len(kinds), "cost_share_by_category": found}


def noise(data: Path) -> Iterator[dict[str, object]]:
    """Yield the AUC of one answer as predictor of the other, for models with two answers.

    The AUC of a binary predictor is the mean of its true positive and true negative rates.
    """
    source = CheckedAnswers.of(bfcl.open_recording(data / REPEATED))
    for arm in source.arms():
        runs: Mapping[str, dict[int, float]] = defaultdict(dict)
        for outcome in source.outcomes(arm):
            runs[outcome.example_id][outcome.attempt] = outcome.correct
        pairs = np.array([[run[0], run[1]] for run in runs.values() if len(run) > 1], dtype=float)
        auc = auc_measure(pairs[:, :1], pairs[:, 1:])
        differ = float((pairs[:, 0] != pairs[:, 1]).mean())
        yield {"pool": REPEATED, "features": arm, "differ": differ, **auc.model_dump()}


def main() -> None:
    """Measure everything; print a table, and write it with the machine and the versions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder of recorded answers")
    parser.add_argument("--cache", type=Path, help="labels of earlier runs: OUT/work/labels")
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    rows = [row for name in POOLS for row in of_pool(name, arguments.data, arguments.cache)]
    rows += noise(arguments.data)
    bounds = [by_category(name, arguments.data, arguments.cache) for name in (*POOLS, MCPMARK)]
    for row in rows:
        extra = f"  two answers differ: {row['differ']:.1%}" if "differ" in row else ""
        queries = row.get("queries", row["n"])
        print(
            f"{row['pool']!s:<16}{row['features']!s:<44}{queries!s:>6} queries"
            f"  AUC {row['value']:.3f} ± {row['stderr']:.3f}{extra}"
        )
    told = {name: demand_told(name, arguments.data, arguments.cache) for name in POOLS}
    for name, told_share in told.items():
        print(f"{name:<16}no call, one or several: predicted from all counts for {told_share:.1%}")
    for bound in bounds:
        share = bound["cost_share_by_category"]
        print(f"{bound['pool']!s:<16}one arm per category, in hindsight: the best at {share:.1%}")
    if arguments.out:
        found = {
            "rows": rows,
            "bounds": bounds,
            "demand_told": told,
            **stamp("scikit-learn", "numpy"),
        }
        arguments.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
