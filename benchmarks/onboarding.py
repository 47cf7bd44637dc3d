"""How well a model joins a router from few answers, instead of training with all of them.

    python benchmarks/onboarding.py CONFIG --data DATA --workspace WORK --out FIGURES.json

Each model of the pool is left out in turn, and joins as with `switchcraft-train onboard`: its
position among the other recorded models is estimated from some of its answers, and a predictor of
its own learns the position's probabilities. Its AUC, and the accuracy of a policy that chooses once
in the pool, are compared with the whole router, trained on all its answers, on the same held-out
folds. `--plan 100:5` measures 100 answers on five folds.

The second part needs no router: for every recorded model, it compares the estimated accuracy with
the recorded one, for queries that `onboard` chose and random ones.

All trained results are kept in WORK/onboarding, so an interrupted run continues. Several runs may
share the work: start them with different plans, and one with the whole plan at the end.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray

from benchmarks.stamp import stamp
from router_service.artifact import Artifact
from router_service.core.errors import ArtifactError
from router_service.measurement.held_out import HELD_OUT, HeldOut
from router_service.measurement.rules import Choices, route
from router_service.measurement.statistics import mean_auc
from router_service.predictor.model import Calibration, logit, sigmoid
from switchcraft_training.config import RunConfig, load_config
from switchcraft_training.data.splits import Split, merge_equal_queries
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.dataset import load_dataset
from switchcraft_training.evaluation.calibration import (
    calibrated_unseen,
    choose_calibration,
    log_losses,
)
from switchcraft_training.experiment import (
    CrossValidation,
    TrainingData,
    cross_validate,
    pack_table,
)
from switchcraft_training.models.encoders import load_encoder, packing_for
from switchcraft_training.models.training import Demand, fit_demand_branch, predict
from switchcraft_training.onboarding.pool import Joining, learn_arm
from switchcraft_training.onboarding.positions import AnsweredQueries, RecordedModels, ask_recorded
from switchcraft_training.onboarding.predictor import select_calibration
from switchcraft_training.onboarding.recording import MIN_COMMON, NewAnswers, Recorded

ANSWERS = (25, 50, 100, 200, 400)
FOLDS = 5
BLUE, GREY = "#2563eb", "#6b7280"

Figures = dict[str, object]
Columns = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Setting:
    """A pool's packed table, its folds, and the whole router's prediction for each held-out query.

    `folder` keeps the results of earlier runs. If `measured_by` is given, its held-out predictions
    are those of the whole router, which then is not trained again.
    """

    data: TrainingData
    folder: Path
    measured_by: Artifact | None = None

    @property
    def config(self) -> RunConfig:
        """The pool's configuration."""
        return self.data.config

    @cached_property
    def measured(self) -> Table:
        """The measured rows with the pool's arms."""
        return self.data.table.measured(self.config.arms)

    def kept(self, name: str, compute: Callable[[], Columns]) -> Columns:
        """Return the arrays of an earlier run, or compute and keep them."""
        path = self.folder / f"{name}.npz"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = path.with_suffix(".partial.npz")
            np.savez(unfinished, allow_pickle=False, **compute())
            unfinished.replace(path)
        with np.load(path) as file:
            return dict(file)

    @cached_property
    def validation(self) -> CrossValidation:
        """Held-out predictions of the whole router, which learned from all answers."""

        def compute() -> Columns:
            found = cross_validate(self.data, exported=False)
            assert found is not None  # noqa: S101 - the benchmark runs in one process
            return {**found.branches, "costs": found.expected_costs_usd, "folds": found.folds}

        kept = dict(self.kept("router", compute))
        costs, folds = kept.pop("costs"), kept.pop("folds").astype(np.int64)
        return CrossValidation(kept, None, costs, folds)

    @cached_property
    def held_out(self) -> HeldOut | None:
        """The artifact's held-out predictions; raises ArtifactError if its folds are other ones."""
        if self.measured_by is None:
            return None
        path = self.measured_by.directory / HELD_OUT
        held_out = HeldOut.read(path)
        folds = np.full(len(self.data.table), -1)
        for number, split in enumerate(self.data.folds()):
            folds[list(split.test)] = number
        if not np.array_equal(held_out.folds, folds[self.data.table.is_measured]):
            raise ArtifactError(path, "is of other queries or folds; try another --grouped-by")
        return held_out

    @cached_property
    def expected_costs_usd(self) -> Floats:
        """The whole router's expected costs, (queries, arms)."""
        if self.held_out is None:
            return self.validation.expected_costs_usd
        prices = self.config.prices
        return self.held_out.expected_costs_usd([prices[arm] for arm in self.config.arms])

    @cached_property
    def calibration(self) -> Calibration:
        """The calibration that a run of this configuration would ship."""
        if self.measured_by is not None:
            return self.measured_by.manifest.calibration
        table, raw = self.measured, self.validation.mix(self.config.training.branch_shares)
        groups = table.groups.tolist()
        return choose_calibration(table.correct, raw, groups, self.config.seed).calibration

    @cached_property
    def trained(self) -> Floats:
        """The whole router's calibrated held-out probabilities, (queries, arms)."""
        if self.held_out is not None:
            return self.held_out.probabilities
        table, raw = self.measured, self.validation.mix(self.config.training.branch_shares)
        groups, method = table.groups.tolist(), self.calibration.method
        return calibrated_unseen(table.correct, raw, groups, self.config.seed, method)


def open_setting(arguments: argparse.Namespace) -> Setting:
    """Read and pack a pool's recorded answers."""
    config, workspace = load_config(Path(arguments.config)), arguments.workspace
    folder = workspace / "onboarding"
    if arguments.trees:
        training = config.training.model_copy(update={"shares": {"forest": 1.0}})
        config = config.model_copy(update={"training": training})
        folder /= "trees"
    table = load_dataset(config, arguments.data, workspace / "labels")
    encoder = load_encoder(config.encoder.source)
    config = config.model_copy(update={"packing": packing_for(encoder, config.packing)})
    data = pack_table(config, table, encoder, workspace)
    if arguments.grouped_by is not None:
        data = data.grouped_by(arguments.grouped_by)
    measured_by = None if arguments.artifact is None else Artifact.load(arguments.artifact)
    return Setting(data, folder / data.config.evaluation.grouped_by, measured_by)


@dataclass(frozen=True, eq=False)
class Fold:
    """One fold: the rows that are known, and those that are held out."""

    setting: Setting
    split: Split

    @cached_property
    def train(self) -> Table:
        """The known queries, with all recorded arms."""
        rows = sorted(self.split.train + self.split.teaching)
        return merge_equal_queries(self.setting.data.table.take(rows))

    @cached_property
    def demand(self) -> Demand | None:
        """The demand forest, which all arms share."""
        return fit_demand_branch(self.setting.config, self.train)

    @lru_cache(maxsize=1)  # noqa: B019 - a fold lives as long as its results are needed
    def without(self, arm: str) -> Recorded:
        """Return what is recorded about other arms."""
        config = self.setting.config
        left = tuple(each for each in config.pool if each.arm != arm)
        return Recorded.of(config.model_copy(update={"pool": left}), self.train, arm)

    def join(self, arm: str, answers: int) -> Columns:
        """Let an arm join by some of its answers, and predict it on the held-out rows."""
        setting, recorded = self.setting, self.without(arm)
        own = self.train.take(recorded.queries).select_arms([arm])
        new = NewAnswers(own, np.zeros(len(own), dtype=np.bool_))
        others = [c for c, each in enumerate(setting.config.arms) if each != arm]
        calibration = select_calibration(setting.calibration, others)
        joining = Joining(arm, setting.config.prices[arm], answers)
        learned = learn_arm(recorded, self.demand, new, joining, calibration)
        slope, shift = learned.line
        raw = logit(predict(learned.model, setting.data.table.take(self.split.test))[:, 0])
        print(arm, answers, "answers", flush=True)
        return {
            "probabilities": sigmoid(slope * raw + shift),
            "cost_usd": np.array(learned.profile.cost_usd()),
            "accuracy": np.array(learned.facts.accuracy.value),
        }


@dataclass(frozen=True, slots=True)
class Joined:
    """What is predicted of one arm that joined in each of the first folds.

    `rows` are the folds' queries, in the order of the measured rows. `probabilities` and
    `costs_usd` are (rows,); `accuracies` are those that were estimated, (folds,).
    """

    rows: Choices
    probabilities: Floats
    costs_usd: Floats
    accuracies: Floats


def join(
    setting: Setting, plan: Mapping[int, int], arms: Sequence[str]
) -> dict[tuple[str, int], Joined]:
    """Let each of these arms join in each fold; return what is predicted, by arm and answers.

    `plan` says for each number of answers on how many folds it is measured.
    """
    parts: dict[tuple[str, int], list[tuple[Choices, Columns]]] = defaultdict(list)
    for number, split in enumerate(setting.data.folds()):
        counts = [answers for answers, folds in plan.items() if number < folds]
        fold = Fold(setting, split)
        for arm in arms:
            for answers in counts:
                name = f"{arm}/fold-{number + 1}-answers-{answers}"
                found = setting.kept(name, partial(fold.join, arm, answers))
                parts[arm, answers].append((np.array(split.test), found))
    joined = {}
    for key, folds in parts.items():
        rows = np.concatenate([test for test, _ in folds])
        order = np.argsort(rows)
        probabilities = np.concatenate([found["probabilities"] for _, found in folds])
        costs = np.concatenate([np.full(len(test), found["cost_usd"]) for test, found in folds])
        accuracies = np.array([float(found["accuracy"]) for _, found in folds])
        joined[key] = Joined(rows[order], probabilities[order], costs[order], accuracies)
    return joined


def curve(setting: Setting, joined: Mapping[tuple[str, int], Joined], rule: str) -> list[Figures]:
    """Return AUC and routed accuracy by arm and number of answers, next to all answers."""
    table = setting.measured
    found: list[Figures] = []
    for (arm, answers), new in joined.items():
        column, own = setting.config.arms.index(arm), table.take(new.rows)
        labels = own.correct[:, [column]]
        trained = setting.trained[new.rows]
        costs = setting.expected_costs_usd[new.rows]
        changed, changed_costs = trained.copy(), costs.copy()
        changed[:, column], changed_costs[:, column] = new.probabilities, new.costs_usd
        correct, paid = own.pick(route(changed, changed_costs, rule))
        best_correct, best_paid = own.pick(route(trained, costs, rule))
        found.append(
            {
                "arm": arm,
                "answers": answers,
                "folds": len(new.accuracies),
                "auc": mean_auc(labels, new.probabilities[:, None]),
                "auc_all_answers": mean_auc(labels, trained[:, [column]]),
                "routed": float(correct.mean()),
                "routed_all_answers": float(best_correct.mean()),
                "cost_ratio": float(paid.mean() / best_paid.mean()),
                "calibration_gap": float(new.probabilities.mean() - labels.mean()),
            }
        )
    return found


def positions(table: Table) -> list[Figures]:
    """Return the error of each recorded model's estimated accuracy, by number of answers."""
    rows: list[Figures] = []
    merged = merge_equal_queries(table)
    correct = merged.correct[merged.is_measured]
    known = (~np.isnan(correct)).sum(axis=0)
    correct, known = correct[:, known >= MIN_COMMON], known[known >= MIN_COMMON]
    everyone = np.arange(len(correct))
    for model in np.flatnonzero(known == len(correct)).tolist():
        labels = correct[:, model]
        models = RecordedModels.fit(np.delete(correct, model, axis=1))
        for answers in ANSWERS:
            drawn = np.random.default_rng(model).permutation(everyone)[:answers]
            for name, asked in (
                ("chosen", ask_recorded(models, everyone, labels, answers, seed=model)),
                ("random", AnsweredQueries(drawn, labels[drawn], np.ones(answers))),
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


def summary(rows: Sequence[Figures], key: str) -> dict[int, Floats]:
    """Return the values of a key, one per arm or model, by number of answers."""
    values: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        values[int(str(row["answers"]))].append(float(str(row[key])))
    return {answers: np.array(each) for answers, each in values.items()}


def standard_error(values: Floats) -> float:
    """Return the standard error of the mean over models."""
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def draw(joined: Sequence[Figures], placed: Sequence[Figures], to: Path) -> None:
    """Draw the AUC that is lost, and the error of the estimated accuracy, over the answers."""
    plt.rcParams.update({"svg.hashsalt": "switchcraft", "font.size": 10})
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
    auc = summary(
        [{**r, "lost": float(str(r["auc"])) - float(str(r["auc_all_answers"]))} for r in joined],
        "lost",
    )
    counts = sorted(auc)
    for place, values in enumerate(zip(*(auc[each] for each in counts), strict=True)):
        label = f"each of {len(next(iter(auc.values())))} models" if place == 0 else None
        left.plot(counts, values, color=GREY, alpha=0.5, linewidth=1, label=label)
    means = [auc[each].mean() for each in counts]
    left.plot(counts, means, color=BLUE, marker="o", label="mean")
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


def parse_plan(text: str) -> tuple[int, int]:
    """Return a number of answers and a number of folds from a text such as 100:5."""
    answers, _, folds = text.partition(":")
    return int(answers), int(folds or FOLDS)


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add what every part reads and writes."""
    parser.add_argument("config", help="a YAML file, or the name of a shipped configuration")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--workspace", type=Path, required=True, help="folder of earlier results")
    parser.add_argument("--out", type=Path, required=True, help="file for the figures as JSON")
    parser.add_argument(
        "--grouped-by",
        choices=["queries", "tools"],
        help="what keeps queries in one fold (default: that of the configuration)",
    )
    parser.add_argument(
        "--artifact",
        type=Path,
        help="an artifact of this configuration: its held-out predictions are those of the whole"
        " router, which then is not trained again",
    )
    parser.add_argument("--trees", action="store_true", help="with the trees alone, which is fast")
    parser.add_argument(
        "--arms", nargs="+", help="the arms that join, one at a time (default: all)"
    )


def main() -> None:
    """Measure both parts; print tables, and write the figures and the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_inputs(parser)
    parser.add_argument(
        "--plan",
        type=parse_plan,
        nargs="+",
        default=[(answers, FOLDS) for answers in ANSWERS],
        metavar="ANSWERS:FOLDS",
        help="numbers of answers, and on how many of the five folds each is measured",
    )
    parser.add_argument("--policy", default="drift=0.05", help="a policy that chooses once")
    parser.add_argument("--plot", type=Path, help="file for the plot as SVG")
    arguments = parser.parse_args()
    setting = open_setting(arguments)
    columns = join(setting, dict(arguments.plan), arguments.arms or setting.config.arms)
    joined = curve(setting, columns, arguments.policy)
    print("answers  folds  AUC  with all: difference ± SE over models [worst, best]  routed points")
    for answers, auc in sorted(summary(joined, "auc").items()):
        everyone, routed, best, gaps, costs, folds = (
            summary(joined, key)[answers]
            for key in (
                *("auc_all_answers", "routed", "routed_all_answers"),
                *("calibration_gap", "cost_ratio", "folds"),
            )
        )
        lost, points = auc - everyone, 100 * (routed - best)
        print(
            f"{answers:>7}  {folds[0]:.0f}  {auc.mean():.3f}  {everyone.mean():.3f}:"
            f" {lost.mean():+.3f} ± {standard_error(lost):.3f} [{lost.min():+.3f},"
            f" {lost.max():+.3f}]  {points.mean():+.2f} ± {standard_error(points):.2f}"
            f" [{points.min():+.2f}, {points.max():+.2f}]  cost {costs.mean():.2f}"
            f"  calibration {100 * np.abs(gaps).mean():.1f}"
        )
    placed = positions(setting.data.table)
    print("queries  answers  RMS error of accuracy, points  log loss  errors / standard errors")
    for name in ("chosen", "random"):
        rows = [row for row in placed if row["queries"] == name]
        for answers, error in summary(rows, "error").items():
            stderr, loss = (summary(rows, key)[answers] for key in ("stderr", "log_loss"))
            print(
                f"{name}  {answers:>7}  {100 * np.sqrt((error**2).mean()):.1f}  {loss.mean():.3f}"
                f"  {np.sqrt(((error / stderr) ** 2).mean()):.2f}"
            )
    figures = {"curve": joined, "positions": placed, **stamp("scikit-learn", "torch", "numpy")}
    arguments.out.write_text(json.dumps(figures, indent=2) + "\n")
    if arguments.plot:
        draw(joined, placed, arguments.plot)


if __name__ == "__main__":
    main()
