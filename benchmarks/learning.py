"""How good is a teacher? Verifiers' calibrations learned from its calls, and from the truth.

    python -m benchmarks.learning

The teacher is Claude Sonnet 4.5, whose calls count as right, as in `switchcraft learn`. What it
really answered correctly is known: the artifact has the held-out judgements, the correctness and
the agreement of all recorded answers, so that nothing has to be asked. A calibration is learned
from 200 to 1,800 queries, five times each, and verified answers are measured on other queries:
queries with other tools than those that were learned from, or queries with any tools. Takes two
minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from router_service.artifact import SHIPPED, Artifact
from router_service.measurement.held_out import HELD_OUT, HeldOut, read_judgements
from router_service.measurement.simulation import Simulation
from switchcraft_training.data.table import Floats
from switchcraft_training.learning.fitting import apply_lines, fit_lines
from switchcraft_training.learning.judging import FAMILIAR, Lessons, Rows

TEACHER = "claude-sonnet-4.5"
QUERIES = (200, 500, 1000, 1800)
DRAWS = 5
PRICES_USD = tuple(np.geomspace(0.0005, 0.3, 14))
COST_SHARES = (0.03, 0.04, 0.06, 0.1, 0.15)
"""Costs at which accuracies are compared, relative to the teacher's."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The recorded queries, as lessons of a teacher, and what was really correct."""

    lessons: Lessons
    correct: Floats
    costs_usd: Floats
    """Expected costs in each fold, (folds, arms)."""
    gain_features: tuple[str, ...]
    folds: Rows
    floor: float

    @classmethod
    def read(cls) -> Recorded:
        """Read the shipped artifact."""
        artifact = Artifact.load(SHIPPED)
        manifest, path = artifact.manifest, artifact.directory / HELD_OUT
        held_out, judged = HeldOut.read(path), read_judgements(path)
        assert judged is not None  # noqa: S101 - for types
        assert manifest.verifier is not None  # noqa: S101
        prices = [manifest.profile[arm].price for arm in manifest.arms]
        teacher, rows = manifest.arms.index(TEACHER), np.arange(len(judged.folds))
        pairs = [np.tile([[teacher, arm]], (len(rows), 1)) for arm in range(judged.arms)]
        same = np.column_stack([judged.same(rows, pair)[:, 0, 1] for pair in pairs])
        lessons = Lessons(
            members=(),
            teacher=teacher,
            requests=(),
            sessions=rows,
            is_right=same.astype(np.float64),
            is_teachers=same.astype(np.float64),
            teacher_calls=~judged.is_text[:, teacher],
            cost_usd=held_out.recorded_costs_usd(prices),
            seconds=held_out.seconds,
            chosen_once=rows,
            judged=judged,
            columns=range(judged.arms),
        )
        return cls(
            lessons,
            held_out.correct,
            held_out.fold_costs_usd(prices),
            manifest.verifier.gain_features,
            judged.folds,
            manifest.verifier.floor,
        )

    def learn(self, labels: Floats, train: Rows, test: Rows) -> Recorded:
        """Return the queries with a calibration for `test` that was learned from `train`."""
        familiar = replace(self.lessons.judged, folds=np.full(len(self.folds), FAMILIAR))
        lessons = replace(self.lessons, is_right=labels, judged=familiar)
        moved = apply_lines(familiar, test, fit_lines(lessons, train))
        judged = replace(moved, folds=self.folds)
        return replace(self, lessons=replace(self.lessons, judged=judged))

    def curve(self) -> Floats:
        """Return cost share, accuracy and agreement by price, (prices, 3)."""
        lessons = self.lessons
        simulation = Simulation(lessons.judged, self.gain_features)
        teacher_usd = lessons.cost_usd[:, lessons.teacher].mean()
        points = []
        for price_usd in PRICES_USD:
            answers = simulation.answer(self.costs_usd, float(price_usd), floor=self.floor)
            correct, cost_usd, _ = answers.outcome(self.correct, lessons.cost_usd, lessons.seconds)
            agrees, _, _ = answers.outcome(lessons.is_teachers, lessons.cost_usd, lessons.seconds)
            points.append((cost_usd.mean() / teacher_usd, correct.mean(), agrees.mean()))
        return np.array(sorted(points))


def divided(
    recorded: Recorded, count: int, seed: int, *, same_tools: bool
) -> Iterator[tuple[Rows, Rows]]:
    """Yield the queries of each fold, and up to `count` other queries to learn from.

    The recorded folds keep queries with equal tools together. With `same_tools`, folds are random.
    """
    rng = np.random.default_rng(seed)
    folds = rng.permutation(recorded.folds) if same_tools else recorded.folds
    for fold in np.unique(folds):
        others = np.flatnonzero(folds != fold)
        learned = rng.choice(others, min(count, len(others)), replace=False)
        yield np.flatnonzero(folds == fold), learned


def learned_curve(recorded: Recorded, labels: Floats, count: int, *, same_tools: bool) -> Floats:
    """Return accuracy and agreement at `COST_SHARES`, (2, shares), as a mean over draws."""
    found = []
    for seed in range(DRAWS):
        learned = recorded
        for test, train in divided(recorded, count, seed, same_tools=same_tools):
            part = recorded.learn(labels, train, test)
            judged = learned.lessons.judged
            p_correct = judged.p_correct.copy()
            p_correct[test] = part.lessons.judged.p_correct[test]
            judged = replace(judged, p_correct=p_correct)
            learned = replace(learned, lessons=replace(learned.lessons, judged=judged))
        found.append(at_shares(learned.curve()))
    mean: Floats = np.mean(found, axis=0)
    return mean


def at_shares(curve: Floats) -> Floats:
    """Return accuracy and agreement at `COST_SHARES`, (2, shares)."""
    logs = np.log(curve[:, 0])
    wanted = np.log(COST_SHARES)
    return np.array([np.interp(wanted, logs, curve[:, column]) for column in (1, 2)])


def print_row(name: str, values: Sequence[float] | Floats) -> None:
    """Print a row of percentages."""
    print(f"{name:<44}" + "".join(f"{value:>9.1%}" for value in values))


def main() -> None:
    """Print what is lost by learning from a teacher."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    recorded = Recorded.read()
    lessons, arms = recorded.lessons, Artifact.load(SHIPPED).manifest.arms
    print(f"{len(recorded.folds):,} queries, teacher {TEACHER}\n")
    print(f"{'model':<24}{'same calls':>12}{'correct':>9}{'if different: teacher, model':>31}")
    for column, arm in enumerate(arms):
        same = lessons.is_teachers[:, column] > 0
        others = recorded.correct[~same]
        text = ""
        if len(others):
            text = f"{others[:, lessons.teacher].mean():.0%}, {others[:, column].mean():.0%}"
        agreement, correct = same.mean(), recorded.correct[:, column].mean()
        print(f"{arm:<24}{agreement:>12.1%}{correct:>9.1%}{text:>31}")
    print()
    print_row("accuracy at a share of the teacher's cost of", COST_SHARES)
    accuracy, agreement = at_shares(recorded.curve())
    print_row("shipped calibration", accuracy)
    print_row("  its agreement", agreement)
    for same_tools in (False, True):
        print("any tools" if same_tools else "unseen tools")
        for count in QUERIES:
            for name, labels in (("truth", recorded.correct), ("teacher", lessons.is_teachers)):
                accuracy, agreement = learned_curve(recorded, labels, count, same_tools=same_tools)
                print_row(f"  {count:>5} queries, learned from {name}", accuracy)
        print_row("  its agreement", agreement)


if __name__ == "__main__":
    main()
