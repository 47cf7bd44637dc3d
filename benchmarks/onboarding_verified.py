"""What the policy `verified` is worth with a model that joined, instead of training with it.

    python benchmarks/onboarding_verified.py CONFIG --data DATA --workspace WORK --out FIGURES.json

For each model of the pool, a verifier is trained on the answers of the other models. The model then
joins with 100 of its answers, as in `benchmarks/onboarding.py`, whose results in WORK are reused.
On held-out queries, its policy is compared with that of a verifier which was trained on the answers
of all models. Both verifiers learn from the same held-out probabilities of the whole router. Unlike
the verifier study of a run, these come from routers that have seen the tested fold.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.onboarding import (
    Columns,
    Figures,
    Joined,
    Setting,
    add_inputs,
    join,
    open_setting,
    standard_error,
)
from benchmarks.stamp import stamp
from router_service.measurement.rules import Choices, best_single
from router_service.measurement.simulation import Simulation
from router_service.verifier.answer_features import Candidates
from switchcraft_training.data.table import Table
from switchcraft_training.evaluation.calibration import fit_platt
from switchcraft_training.evaluation.metrics import paired_interval
from switchcraft_training.models.verifier import VerifierData, fit_verifier, read_candidates
from switchcraft_training.verification import (
    judge_answers,
    outcome,
    recorded_calls,
    require_answers,
)

ANSWERS = 100
PRICES = (2.0, 6.0, 20.0)
"""Prices of a correct answer, in units of the best single model's mean cost. The policy `verified`
of the shipped artifact has 6."""


@dataclass(frozen=True, slots=True)
class HeldOutFold:
    """The queries of one fold: all answers, and what the router says without the fold's labels."""

    table: Table
    data: VerifierData
    train: Choices
    test: Choices
    best_usd: float
    seed: int


def read_answers(setting: Setting, recordings: Path) -> VerifierData:
    """Return all measured queries with the answers of the pool's models."""
    table = setting.measured
    calls = recorded_calls(
        require_answers(setting.config, recordings), table.examples, setting.config.arms
    )
    return VerifierData(
        features=np.array([row.features for row in table.packed], dtype=np.float64),
        probabilities=setting.validation.mix(setting.config.training.branch_shares),
        candidates=read_candidates(table.examples, calls),
        correct=table.correct,
        costs_usd=setting.validation.expected_costs_usd[0],
        groups=table.groups,
    )


def order_arms(data: VerifierData, columns: Sequence[int]) -> VerifierData:
    """Return the answers of some of the arms, in this order."""
    place = {column: new for new, column in enumerate(columns)}
    candidates = [
        Candidates(
            {place[c]: answer for c, answer in each.answers.items() if c in place},
            {
                (place[one], place[other]): relation
                for (one, other), relation in each.relations.items()
                if one in place and other in place
            },
        )
        for each in data.candidates
    ]
    return replace(
        data,
        probabilities=data.probabilities[:, columns],
        candidates=candidates,
        correct=data.correct[:, columns],
        costs_usd=data.costs_usd[list(columns)],
    )


def answer(fold: HeldOutFold, arm: int | None, new: Joined | None, accuracy: float) -> Columns:
    """Return correctness and cost of each held-out query by price, (prices, queries) each.

    The verifier was trained on all answers if no `arm` joins.
    """
    arms = range(len(fold.table.arms))
    others = [column for column in arms if column != arm]
    columns = others if arm is None else [*others, arm]
    known = order_arms(fold.data, others).take(fold.train)
    asked = order_arms(fold.data, columns).take(fold.test)
    if new is not None:
        rows = np.searchsorted(new.rows, fold.test)
        asked.probabilities[:, -1] = new.probabilities[rows]
        asked.costs_usd[-1] = new.costs_usd[rows[0]]
    table = fold.table.take(fold.test).select_arms([fold.table.arms[c] for c in columns])
    fitted = fit_verifier(known, fold.seed)
    correct, paid = [], []
    with TemporaryDirectory() as folder:
        spec = fitted.export(Path(folder), fold.best_usd)
        shares = spec.reliabilities if new is None else (*spec.reliabilities, accuracy)
        spec = spec.model_copy(update={"reliabilities": shares})
        judged = judge_answers(Path(folder), spec, asked)
    simulation = Simulation(judged, spec.gain_features)
    for price in PRICES:
        answers = simulation.answer(asked.costs_usd[None], price * fold.best_usd)
        picked, cost_usd, _ = outcome(answers, table)
        correct.append(picked)
        paid.append(cost_usd)
    print("all answers" if arm is None else fold.table.arms[arm], flush=True)
    return {"correct": np.array(correct), "paid": np.array(paid)}


def measure(setting: Setting, recordings: Path, arms: Sequence[str], folds: int) -> list[Figures]:
    """Return accuracy and cost by joined arm and price, next to those with all answers."""
    table, everything = setting.measured, read_answers(setting, recordings)
    joined = join(setting, {ANSWERS: folds}, arms)
    best_usd = float(table.cost_usd[:, best_single(table)].mean())
    by_fold: list[list[Columns]] = []
    for number in range(folds):
        train = np.flatnonzero(setting.validation.folds != number)
        test = np.flatnonzero(setting.validation.folds == number)
        calibration = fit_platt(table.correct[train], everything.probabilities[train])
        data = replace(
            everything,
            probabilities=calibration.apply(everything.probabilities),
            costs_usd=setting.validation.expected_costs_usd[test[0]],
        )
        fold = HeldOutFold(table, data, train, test, best_usd, setting.config.seed)
        kept = [setting.kept(f"verified/fold-{number + 1}", partial(answer, fold, None, None, 0.0))]
        for arm in arms:
            column, new = table.arms.index(arm), joined[arm, ANSWERS]
            compute = partial(answer, fold, column, new, float(new.accuracies[number]))
            kept.append(setting.kept(f"{arm}/verified-fold-{number + 1}", compute))
        by_fold.append(kept)
    figures: list[Figures] = []
    for place, arm in enumerate(arms, start=1):
        for number, price in enumerate(PRICES):
            correct, paid, best_correct, best_paid = (
                np.concatenate([kept[column][layer][number] for kept in by_fold])
                for column, layer in (
                    *((place, "correct"), (place, "paid")),
                    *((0, "correct"), (0, "paid")),
                )
            )
            low, high = paired_interval(correct, best_correct)
            figures.append(
                {
                    "arm": arm,
                    "price": price,
                    "queries": len(correct),
                    "accuracy": float(correct.mean()),
                    "accuracy_all_answers": float(best_correct.mean()),
                    "difference_interval": [low, high],
                    "cost_share": float(paid.mean() / best_usd),
                    "cost_share_all_answers": float(best_paid.mean() / best_usd),
                }
            )
    return figures


def main() -> None:
    """Measure each arm, print a table, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_inputs(parser)
    parser.add_argument("--folds", type=int, default=5, help="how many of the five are measured")
    arguments = parser.parse_args()
    setting = open_setting(arguments)
    arms = arguments.arms or setting.config.arms
    figures = measure(setting, arguments.data, arms, arguments.folds)
    print(
        "price  accuracy: all answers, joined, points ± SE over models [worst, best]  cost shares"
    )
    for price in PRICES:
        rows = [row for row in figures if row["price"] == price]
        new, best, share, best_share = (
            np.array([float(str(row[key])) for row in rows])
            for key in ("accuracy", "accuracy_all_answers", "cost_share", "cost_share_all_answers")
        )
        points = 100 * (new - best)
        print(
            f"{price:g}  {best.mean():.1%}  {new.mean():.1%}  {points.mean():+.2f}"
            f" ± {standard_error(points):.2f} [{points.min():+.2f}, {points.max():+.2f}]"
            f"  {best_share.mean():.1%}  {share.mean():.1%}"
        )
    written = {"verified": figures, **stamp("scikit-learn", "torch", "numpy")}
    arguments.out.write_text(json.dumps(written, indent=2) + "\n")


if __name__ == "__main__":
    main()
