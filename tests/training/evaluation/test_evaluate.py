"""Evaluation compared with results by hand, choice of a calibration, and validation of goals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from router_service.core.errors import PolicyError
from router_service.measurement.goals import find_point, parse_goal
from router_service.measurement.rules import oracle
from router_service.measurement.statistics import (
    BOOTSTRAP_BLOCKS,
    BOOTSTRAP_DRAWS,
    mean_auc,
    resamples,
)
from router_service.predictor.model import IDENTITY, Platt, Temperature, logit, sigmoid
from switchcraft_training.data.table import Floats
from switchcraft_training.evaluation.breakdowns import routing
from switchcraft_training.evaluation.calibration import choose_calibration
from switchcraft_training.evaluation.evaluate import evaluate
from switchcraft_training.evaluation.frontier import (
    validate_goals,
)
from switchcraft_training.evaluation.metrics import (
    brier_measure,
    calibration_measure,
    paired_interval,
)
from switchcraft_training.evaluation.report import main_figures
from tests.training.evaluation.cases import simulated_experiment, table_of

#                     cheap  dear
CORRECT = np.array([[1, 1], [0, 1], [1, 0], [0, 0], [0, 1]], dtype=float)


COSTS = np.array([[1.0, 10.0], [2.0, 20.0], [1.0, 10.0], [1.0, 10.0], [1.0, 10.0]])


TABLE = table_of(CORRECT, COSTS, ("cheap", "dear"))


PROBABILITIES = np.array([[0.9, 0.8], [0.2, 0.7], [0.6, 0.9], [0.1, 0.2], [0.6, 0.7]])


def test_oracle_chooses_the_cheapest_correct_or_the_most_expensive_arm() -> None:
    """The oracle makes the paper's choice for each query."""
    assert oracle(TABLE).tolist() == [0, 1, 0, 1, 1]


def test_main_table_follows_from_the_choices() -> None:
    """Accuracy, cost, cost share and difference of every entry follow from its choices."""
    policies = {"default": "theta=0.5", "economy": "theta=0.5", "quality": "drift=0"}
    evaluation = evaluate(TABLE, PROBABILITIES, [1, 10], policies)
    entries = {entry.name: entry for entry in evaluation.entries}
    assert evaluation.best_single == "dear"
    assert entries["dear"].accuracy.value == pytest.approx(0.6)
    assert entries["dear"].difference == 0
    router = entries["default, economy (theta=0.5)"]
    assert router.accuracy.value == pytest.approx(3 / 5)
    assert router.cost_usd.value == pytest.approx((1 + 20 + 1 + 10 + 1) / 5)
    assert router.cost_share == pytest.approx(33 / 60)
    assert entries["oracle"].accuracy.value == pytest.approx(4 / 5)
    assert entries["quality (drift=0)"].accuracy.value == pytest.approx(3 / 5)
    assert evaluation.arm_share == {"cheap": 0.6, "dear": 0.4}


def test_routing_counts_the_four_outcomes() -> None:
    """A needlessly expensive arm is suboptimal; a miss is avoidable if another arm is right."""
    table = replace(TABLE, cost_usd=np.tile([1.0, 10.0], (5, 1)))
    found = routing(table, np.array([1, 1, 0, 0, 0]))
    assert [outcome.count for outcome in found.outcomes] == [2, 1, 1, 1]
    assert found.median_overhead_usd == found.total_overhead_usd == 9


def test_paired_interval_excludes_zero_only_for_an_actual_gain() -> None:
    """Pairing removes shared variation: the interval excludes 0 only for an actual gain."""
    rng = np.random.default_rng(0)
    base = rng.integers(0, 2, 500).astype(float)
    better = np.where(rng.random(500) < 0.1, 1.0, base)
    low, high = paired_interval(better, base)
    assert 0 < low < (better - base).mean() < high
    assert paired_interval(base, base) == (0, 0)


def test_auc_equals_scikit_learns() -> None:
    """Binary labels with ties give scikit-learn's area; fractional labels act as repeated rows."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, (200, 1)).astype(float)
    scores = rng.integers(0, 20, (200, 1)) / 20
    assert mean_auc(labels, scores) == pytest.approx(roc_auc_score(labels[:, 0], scores[:, 0]))
    shares = np.array([[0.5], [1.0], [0.0]])
    asked_twice = roc_auc_score([1, 0, 1, 1, 0, 0], [0.6, 0.6, 0.7, 0.7, 0.1, 0.1])
    assert mean_auc(shares, np.array([[0.6], [0.7], [0.1]])) == pytest.approx(asked_twice)


def test_bootstrap_of_many_queries_draws_blocks_within_a_fixed_memory() -> None:
    """Of many queries, random blocks are drawn, with the textbook error of a mean and a ratio."""
    rng = np.random.default_rng(0)
    values = rng.exponential(size=(50_000, 2))
    draws = resamples(len(values))
    assert draws.weights.shape == (BOOTSTRAP_DRAWS, BOOTSTRAP_BLOCKS)
    assert [float(w.sum()) for w in draws.query_weights(3)] == pytest.approx([1, 1, 1])
    textbook = values.std() / len(values) ** 0.5
    one, other = draws.means(values).T
    assert one.std() == pytest.approx(textbook, rel=0.05)
    assert (one / other).std() == pytest.approx(2**0.5 * textbook, rel=0.05)  # both means are 1


def test_brier_score_and_standard_error_of_calibration_error() -> None:
    """A certain but wrong prediction scores 1, one of 0.5 a quarter; ECE has a standard error."""
    assert brier_measure(np.array([[1.0, 0.0]]), np.array([[0.0, 0.5]])).value == 0.625
    labels = np.random.default_rng(0).integers(0, 2, (300, 2)).astype(float)
    measure = calibration_measure(labels, np.full((300, 2), 0.8))
    assert measure.value == pytest.approx(abs(labels.mean() - 0.8))
    assert measure.stderr == pytest.approx(0.5 / np.sqrt(600), rel=0.2)


@pytest.mark.usefixtures("few_draws")
def test_goal_picks_the_same_rule_as_the_gateway() -> None:
    """The pick on all queries is the one that `core` makes from the artifact's frontier."""
    made = simulated_experiment()
    figures = main_figures(made)
    best = figures.entry(figures.best_single).accuracy
    for promise in validate_goals(made, ("accuracy=best", "accuracy=best-1@95", "usd_per_1k=2")):
        goal = parse_goal(promise.goal, param="")
        assert goal is not None
        point = find_point(goal, made.figures().frontier, best, param="")
        assert promise.rule == point.policy
        assert promise.picked is not None
        assert promise.picked.accuracy == point.accuracy


@pytest.mark.usefixtures("few_draws")
def test_nested_figures_remove_selection_bias() -> None:
    """Rules of a router without skill look better on the queries that they were picked on."""
    gains = []
    for seed in range(6):
        (promise,) = validate_goals(
            simulated_experiment(150, 0.0, seed), ("usd_per_1k=100",), seed=seed
        )
        assert promise.picked is not None
        assert promise.nested is not None
        gains.append(promise.picked.accuracy.value - promise.nested.accuracy.value)
    assert np.mean(gains) > 0.01


@pytest.mark.usefixtures("few_draws")
def test_unreachable_goal_has_no_rule_and_no_figures() -> None:
    """A goal that no rule reaches has no pick and no figures; an invalid goal is an error."""
    (promise,) = validate_goals(simulated_experiment(), ("accuracy=1",))
    assert (promise.rule, promise.picked, promise.nested, promise.folds) == (None, None, None, 0)
    with pytest.raises(PolicyError, match="it is a rule; give a goal"):
        validate_goals(simulated_experiment(), ("theta=0.5",))


QUERIES = 1_500


def calibrated_predictions() -> tuple[Floats, Floats]:
    """Return calibrated probabilities, and labels drawn from them, (queries, arms)."""
    rng = np.random.default_rng(0)
    true = sigmoid(rng.normal(1.0, 1.5, (QUERIES, 3)))
    return true, (rng.random(true.shape) < true).astype(float)


def test_calibrated_probabilities_stay_unchanged() -> None:
    """Calibrated probabilities stay unchanged."""
    true, labels = calibrated_predictions()
    study = choose_calibration(labels, true, range(QUERIES), seed=0)
    assert study.calibration == IDENTITY
    assert [trial.method for trial in study.trials] == ["identity", "temperature", "platt"]
    assert study.trials[0].error.value < 0.02


def test_platt_corrects_arms_with_different_biases() -> None:
    """Lines per arm undo opposite shifts of the arms, which one temperature cannot correct."""
    true, labels = calibrated_predictions()
    shifts = np.array([-1.5, 0.0, 1.5])
    study = choose_calibration(labels, sigmoid(logit(true) + shifts), range(QUERIES), seed=0)
    assert isinstance(study.calibration, Platt)
    assert study.calibration.intercepts == pytest.approx((-shifts).tolist(), abs=0.25)


def test_near_duplicates_add_no_evidence() -> None:
    """Near-duplicates stay in one fold, and do not count as additional evidence.

    Every query appears twice, with a random label that both copies share. If the copies were
    separate evidence, the standard errors would be smaller by a factor of the square root of two.
    """
    rng = np.random.default_rng(0)
    raw = rng.random((400, 1))
    labels = rng.integers(0, 2, raw.shape).astype(float)
    once = choose_calibration(labels, raw, range(400), seed=0)
    twice = choose_calibration(
        np.vstack([labels] * 2), np.vstack([raw] * 2), [*range(400)] * 2, seed=0
    )
    for single, double in zip(once.trials, twice.trials, strict=True):
        assert double.log_loss.stderr == pytest.approx(single.log_loss.stderr, rel=0.15)
        assert double.log_loss.value == pytest.approx(single.log_loss.value, rel=0.1)


def test_unknown_labels_are_ignored_and_fractional_labels_are_weighted() -> None:
    """A label of 0.7 counts as 0.7 of a correct answer; an arm that was not asked is ignored."""
    true, labels = calibrated_predictions()
    partial_labels = labels.copy()
    partial_labels[::2, 0] = np.nan
    partial_labels[0] = np.nan
    study = choose_calibration(partial_labels, sigmoid(logit(true) * 3), range(QUERIES), seed=0)
    assert isinstance(study.calibration, Temperature)
    assert study.trials[0].log_loss.n == QUERIES - 1
    shares = choose_calibration(true, sigmoid(logit(true) * 3), range(QUERIES), seed=0)
    assert isinstance(shares.calibration, Temperature)
    assert shares.calibration.temperature == pytest.approx(3, rel=0.01)
