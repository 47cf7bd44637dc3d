"""How well a model joins from few answers: each recorded model is left out in turn.

    python -m benchmarks.onboarding                # a minute: positions, by answers and share
    python -m benchmarks.onboarding --predictors   # also the joined predictors; ten minutes

Ten models answered the shipped artifact's queries, and 62 more models some of them. One of the ten
is placed among the others by some of its answers, of which a share is chosen as informative and the
rest is random. `error` is that of its estimated accuracy in points (RMS over models and draws), and
`AUC` that of its predicted answers to the other queries. A joined predictor reads a query only, and
is measured on queries with unseen tools; `trained` is the shipped router, which has all answers.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

import numpy as np
from sklearn.metrics import roc_auc_score

from router_service.artifact import SHIPPED, Artifact
from router_service.measurement.held_out import HELD_OUT, HeldOut
from router_service.predictor.model import sigmoid
from router_service.predictor.packing import Packer
from switchcraft_training.data.labels import RecordedLabels
from switchcraft_training.data.outcomes import CheckedAnswers
from switchcraft_training.data.table import Floats
from switchcraft_training.datasets.bfcl import RecordedQuestions
from switchcraft_training.models.training import Demand, fit_demand_branch
from switchcraft_training.onboarding.positions import (
    INFORMATIVE_SHARE,
    INFORMATIVE_WEIGHT,
    AnsweredQueries,
    RecordedModels,
    choose_queries,
)
from switchcraft_training.onboarding.predictor import fit_line, predict_unseen, select_calibration
from switchcraft_training.onboarding.recording import Recorded

MODELS = 10
"""Models that answered the measured queries; they come first in the artifact's labels."""
ANSWERS = (100, 200)
SHARES = (0.5, 0.25, 0.0)
DRAWS = 12


@dataclass(frozen=True, slots=True)
class Placed:
    """What is predicted of a model from `asked` of its answers; `correct` has all, (queries,)."""

    correct: Floats
    asked: AnsweredQueries
    predicted: Floats
    stderr: float

    @classmethod
    def of(
        cls, models: RecordedModels, correct: Floats, answers: int, share: float, seed: int
    ) -> Placed:
        """Place a model among others."""
        known = np.flatnonzero(~np.isnan(correct))
        informative, drawn = choose_queries(models, known, answers, seed, share=share)
        rows = np.concatenate([informative, drawn])
        weights = np.repeat([INFORMATIVE_WEIGHT, 1.0], [len(informative), len(drawn)])
        asked = AnsweredQueries(rows, correct[rows], weights)
        position = models.place(asked)
        _, stderr = models.accuracy(position)
        return cls(correct, asked, models.probabilities(position), stderr)

    @property
    def rest(self) -> np.ndarray:
        """The answered queries that the model was not asked."""
        return np.setdiff1d(np.flatnonzero(~np.isnan(self.correct)), self.asked.rows)

    @property
    def error(self) -> float:
        """The predicted less the actual accuracy."""
        return float((self.predicted - self.correct)[~np.isnan(self.correct)].mean())

    def auc(self, predicted: Floats) -> float:
        """Return the AUC of predictions of the answers that are not known."""
        return float(roc_auc_score(self.correct[self.rest] > 0.5, predicted[self.rest]))


def print_positions(labels: RecordedLabels) -> None:
    """Print the errors and AUCs by number of answers and share of informative queries."""
    others = [RecordedModels.fit(np.delete(labels.correct, c, axis=1)) for c in range(MODELS)]
    print(f"{'answers':>8}{'informative':>13}{'error':>8}{'AUC':>8}   error by model")
    for answers in ANSWERS:
        for share in SHARES:
            placed = [
                [
                    Placed.of(models, labels.correct[:, column], answers, share, seed)
                    for seed in range(DRAWS)
                ]
                for column, models in enumerate(others)
            ]
            errors = 100 * np.array([[each.error for each in one] for one in placed])
            auc = np.mean([each.auc(each.predicted) for one in placed for each in one])
            by_model = " ".join(f"{value:4.1f}" for value in np.sqrt((errors**2).mean(axis=1)))
            error = np.sqrt((errors**2).mean())
            print(f"{answers:>8}{share:>13.0%}{error:>8.2f}{auc:>8.3f}   {by_model}")


def print_predictors(artifact: Artifact, labels: RecordedLabels) -> None:
    """Print what a predictor reaches that learned from a model's 100 answers and its position."""
    manifest, held_out = artifact.manifest, HeldOut.read(artifact.directory / HELD_OUT)
    source = CheckedAnswers.of(RecordedQuestions())
    packer = Packer(manifest.packing, artifact.tokenizer)
    demand: Demand | None = None
    print(f"\n{'left out':<24}{'correct':>9}{'estimated':>14}{'AUC':>7}{'trained':>9}{'off':>7}")
    for column, name in enumerate(labels.models[:MODELS]):
        recorded = Recorded.of(artifact, labels, source, [name]).packed(packer)
        config = recorded.config
        pool = tuple(entry for entry in config.pool if entry.arm != name)
        config = config.model_copy(update={"pool": pool})
        demand = demand or fit_demand_branch(config, recorded.table)
        placed = Placed.of(
            recorded.models, labels.correct[:, column], 100, INFORMATIVE_SHARE, config.seed
        )
        targets, accuracy = placed.predicted.copy(), float(placed.predicted.mean())
        targets[placed.asked.rows] = placed.asked.correct
        table = replace(recorded.labelled(name, targets), folds=held_out.folds)
        price = manifest.profile[manifest.arms[0]].price
        logits = predict_unseen(config, table, demand, name, price)
        others = [place for place, arm in enumerate(manifest.arms) if arm != name]
        slope, shift = fit_line(logits, accuracy, select_calibration(manifest.calibration, others))
        joined, trained = sigmoid(slope * logits + shift), ""
        if name in manifest.arms:
            shipped = held_out.probabilities[:, manifest.arms.index(name)]
            trained = f"{placed.auc(shipped):.3f}"
        off = 100 * (joined - placed.correct)[placed.rest].mean()
        print(
            f"{name:<24}{np.nanmean(placed.correct):>9.1%}"
            f"{f'{accuracy:.1%} ± {placed.stderr:.1%}':>14}{placed.auc(joined):>7.3f}"
            f"{trained:>9}{off:>+7.1f}",
            flush=True,
        )


def main() -> None:
    """Print the positions, and the predictors if they are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--predictors", action="store_true", help="fit joined predictors, too")
    arguments = parser.parse_args()
    artifact = Artifact.load(SHIPPED)
    labels = RecordedLabels.read(artifact)
    print_positions(labels)
    if arguments.predictors:
        print_predictors(artifact, labels)


if __name__ == "__main__":
    main()
