"""How well a model joins a router from few answers, instead of training with all of them.

    python benchmarks/onboarding.py --data ../shared/data --cache LABELS --out onboarding.json

Each model of the reference pool is left out in turn. `onboarding` then estimates its position among
the other recorded models from some of its answers, and trains its predictor on the position's
probabilities. Its AUC, and the accuracy of the default policy with the pool, are compared with
training on all its answers, on the same five folds. Each predictor has only the trees, because a
whole router takes minutes. The second part needs no router: for every recorded model, it compares
the estimated accuracy with the recorded one, for queries that `onboarding` chose and random ones.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor

from benchmarks.stamp import stamp
from router_service.core.features import FEATURES, extract
from router_service.core.messages import parse_conversation
from router_service.core.model import Platt, logit, sigmoid
from switchcraft_training.config import RunConfig, load_config
from switchcraft_training.data.splits import Split, fold_table
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.dataset import load_dataset
from switchcraft_training.evaluation.calibration import fit_platt, log_losses
from switchcraft_training.evaluation.evaluate import route
from switchcraft_training.evaluation.metrics import mean_auc
from switchcraft_training.onboarding.positions import Asked, RecordedModels, Rows, ask_recorded
from switchcraft_training.onboarding.predictor import shift_to_mean

ANSWERS = (25, 50, 100, 200, 400)
TREES = 50
BLUE, GREY = "#2563eb", "#6b7280"


@dataclass(frozen=True, slots=True)
class Setting:
    """The pool's table, features of its queries (queries, features), and its folds."""

    config: RunConfig
    table: Table
    features: Floats
    folds: Sequence[Split]
    correct: Floats
    """Correctness of all complete recorded models' answers; the pool's models come first."""

    @property
    def pool(self) -> int:
        """Number of models in the pool."""
        return len(self.config.arms)

    def trees(self, rows: Rows, targets: Floats) -> ExtraTreesRegressor:
        """Fit trees to targets (rows,) or (rows, models)."""
        trees = ExtraTreesRegressor(TREES, min_samples_leaf=5, max_features=0.3, random_state=1)
        return trees.fit(self.features[rows], targets)


def open_setting(data: Path, cache: Path | None) -> Setting:
    """Read the reference pool and every other model that answered all its queries."""
    config = load_config(Path("configs/reference-pool.yaml"))
    dataset = load_dataset(config, data, cache)
    table = dataset.take(dataset.is_measured)
    requests = (parse_conversation(e.request) for e in table.examples)
    features = np.array([extract(request, list(FEATURES)) for request in requests])
    correct = table.correct[:, ~np.isnan(table.correct).any(axis=0)]
    return Setting(config, table, features, fold_table(table, 5, 1, validated=False), correct)


def trained_on_all(setting: Setting) -> Floats:
    """Return held-out raw probabilities of the pool, trained on all answers, (queries, arms)."""
    found = np.empty((len(setting.correct), setting.pool))
    for split in setting.folds:
        train, test = np.array(split.train), np.array(split.test)
        trees = setting.trees(train, setting.correct[train, : setting.pool])
        found[test] = trees.predict(setting.features[test])
    return found


def onboarded(setting: Setting, arm: int, slope: float) -> dict[int, Floats]:
    """Return held-out probabilities of an arm that joins, (queries,), by number of answers."""
    found = {answers: np.empty(len(setting.correct)) for answers in ANSWERS}
    labels = setting.correct[:, arm]
    others = np.delete(setting.correct[:, : setting.pool], arm, axis=1)
    for number, split in enumerate(setting.folds):
        train, test = np.array(split.train), np.array(split.test)
        models = RecordedModels.fit(np.delete(setting.correct[train], arm, axis=1))
        places = np.arange(len(train))
        for answers, probabilities in found.items():
            asked = ask_recorded(models, places, labels[train], answers, seed=number)
            position = models.place(asked)
            targets = models.probabilities(position)
            targets[asked.rows] = asked.correct
            trees = setting.trees(train, np.column_stack([targets, others[train]]))
            learned, unseen = (
                slope * logit(np.clip(trees.predict(setting.features[rows])[:, 0], 0.01, 0.99))
                for rows in (train, test)
            )
            shift = shift_to_mean(learned, models.accuracy(position)[0])
            probabilities[test] = sigmoid(unseen + shift)
    return found


def curve(setting: Setting) -> list[dict[str, object]]:
    """Return for each arm and number of answers: AUC and routed accuracy, beside all answers."""
    raw = np.clip(trained_on_all(setting), 0.01, 0.99)
    labels, rule = setting.correct[:, : setting.pool], setting.config.policies["default"]
    costs = setting.table.measured(setting.config.arms).cost_usd.mean(axis=0)
    calibration = fit_platt(labels, raw)
    assert isinstance(calibration, Platt)  # noqa: S101 - `fit_platt` returns nothing else
    trained = calibration.apply(raw)
    everyone = np.arange(len(labels))
    best = labels[everyone, route(trained, costs, rule)]
    rows: list[dict[str, object]] = []
    for arm, name in enumerate(setting.config.arms):
        slope = float(np.mean(np.delete(calibration.slopes, arm)))
        auc = mean_auc(labels[:, [arm]], trained[:, [arm]])
        for answers, probabilities in onboarded(setting, arm, slope).items():
            joined = trained.copy()
            joined[:, arm] = probabilities
            routed = labels[everyone, route(joined, costs, rule)]
            rows.append(
                {
                    "arm": name,
                    "answers": answers,
                    "auc": mean_auc(labels[:, [arm]], probabilities[:, None]),
                    "auc_all_answers": auc,
                    "routed": float(routed.mean()),
                    "routed_all_answers": float(best.mean()),
                    "calibration_gap": float(probabilities.mean() - labels[:, arm].mean()),
                }
            )
            print(rows[-1], flush=True)
    return rows


def positions(setting: Setting) -> list[dict[str, object]]:
    """Return the error of each recorded model's estimated accuracy, by number of answers."""
    rows: list[dict[str, object]] = []
    everyone = np.arange(len(setting.correct))
    for model in range(setting.correct.shape[1]):
        labels = setting.correct[:, model]
        models = RecordedModels.fit(np.delete(setting.correct, model, axis=1))
        for answers in ANSWERS:
            drawn = np.random.default_rng(model).permutation(everyone)[:answers]
            for name, asked in (
                ("chosen", ask_recorded(models, everyone, labels, answers, seed=model)),
                ("random", Asked(drawn, labels[drawn], np.ones(answers))),
            ):
                position = models.place(asked)
                accuracy, stderr = models.accuracy(position)
                probabilities = models.probabilities(position)
                rows.append(
                    {
                        "model": model,
                        "answers": answers,
                        "queries": name,
                        "error": accuracy - float(labels.mean()),
                        "stderr": stderr,
                        "log_loss": float(
                            log_losses(labels[:, None], probabilities[:, None]).mean()
                        ),
                    }
                )
    return rows


def summary(rows: Sequence[dict[str, object]], key: str) -> dict[object, NDArray[np.float64]]:
    """Return the values of a key, one per arm or model, by number of answers."""
    values: dict[object, list[float]] = defaultdict(list)
    for row in rows:
        values[row["answers"]].append(float(str(row[key])))
    return {answers: np.array(each) for answers, each in values.items()}


def draw(
    joined: Sequence[dict[str, object]], placed: Sequence[dict[str, object]], to: Path
) -> None:
    """Draw the AUC that is lost, and the error of the estimated accuracy, over the answers."""
    plt.rcParams.update({"svg.hashsalt": "switchcraft", "font.size": 10})
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
    auc = summary(
        [{**r, "lost": float(str(r["auc"])) - float(str(r["auc_all_answers"]))} for r in joined],
        "lost",
    )
    for place, values in enumerate(zip(*auc.values(), strict=True)):
        label = "each of 8 models" if place == 0 else None
        left.plot(ANSWERS, values, color=GREY, alpha=0.5, linewidth=1, label=label)
    means = [values.mean() for values in auc.values()]
    left.plot(ANSWERS, means, color=BLUE, marker="o", label="mean")
    left.axhline(-0.02, color="black", linestyle=":", linewidth=1, label="goal at 100: -0.02")
    left.set_ylabel("AUC minus AUC with all answers")
    left.legend(frameon=False, fontsize=8)
    for name, color in (("chosen", BLUE), ("random", GREY)):
        errors = summary([r for r in placed if r["queries"] == name], "error")
        rms = [100 * float(np.sqrt((each**2).mean())) for each in errors.values()]
        text = {"chosen": "half informative, half random", "random": "all random"}[name]
        right.plot(ANSWERS, rms, color=color, marker="o", label=text)
    right.set_ylabel("error of accuracy, points (RMS)")
    right.set_ylim(bottom=0)
    right.legend(frameon=False, fontsize=8, title="queries", title_fontsize=8)
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xticks(ANSWERS, [str(each) for each in ANSWERS])
        axes.minorticks_off()
        axes.set_xlabel("answers of the new model")
        axes.grid(visible=True, color="#e5e7eb", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(to, metadata={"Date": None}, facecolor="white")


def main() -> None:
    """Measure both parts; print tables, and write the figures and the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--cache", type=Path, help="labels of earlier runs: OUT/work/labels")
    parser.add_argument("--out", type=Path, required=True, help="file for the figures as JSON")
    parser.add_argument("--plot", type=Path, help="file for the plot as SVG")
    arguments = parser.parse_args()
    setting = open_setting(arguments.data, arguments.cache)
    joined = curve(setting)
    lost = summary(joined, "auc_all_answers")
    print("answers  AUC  with all  routed points  calibration gap (mean absolute)")
    for answers, auc in summary(joined, "auc").items():
        points = summary(joined, "routed")[answers] - summary(joined, "routed_all_answers")[answers]
        gap = np.abs(summary(joined, "calibration_gap")[answers])
        print(
            f"{answers!s:>7}  {auc.mean():.3f}  {lost[answers].mean():.3f}"
            f"  {100 * points.mean():+.2f} [{100 * points.min():+.2f}, {100 * points.max():+.2f}]"
            f"  {100 * gap.mean():.1f}"
        )
    placed = positions(setting)
    print("queries  answers  RMS error of accuracy, points  log loss  errors / standard errors")
    for name in ("chosen", "random"):
        rows = [row for row in placed if row["queries"] == name]
        for answers, error in summary(rows, "error").items():
            stderr, loss = (summary(rows, key)[answers] for key in ("stderr", "log_loss"))
            print(
                f"{name}  {answers!s:>7}  {100 * np.sqrt((error**2).mean()):.1f}  {loss.mean():.3f}"
                f"  {np.sqrt(((error / stderr) ** 2).mean()):.2f}"
            )
    figures = {"curve": joined, "positions": placed, **stamp("scikit-learn", "numpy")}
    arguments.out.write_text(json.dumps(figures, indent=2) + "\n")
    if arguments.plot:
        draw(joined, placed, arguments.plot)


if __name__ == "__main__":
    main()
