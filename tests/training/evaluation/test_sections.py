"""Sections of the report compared with numbers calculated by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from router_service.core.selection import Price
from switchcraft_training.evaluation.breakdowns import (
    by_category,
    confusion,
    dataset_oracle,
    misroutes,
    routing,
)
from switchcraft_training.evaluation.calibration import calibration
from switchcraft_training.evaluation.evaluate import Bench, Entry
from switchcraft_training.evaluation.experiment import Experiment
from switchcraft_training.evaluation.field import aiq, apgr, budgets, convex_hull, matching
from switchcraft_training.evaluation.sections import all_sections, main_figures
from switchcraft_training.evaluation.stability import stability
from switchcraft_training.evaluation.tokens import token_use
from tests.training.evaluation.cases import bare, example, full, table_of, used

#                     cheap  dear
CORRECT = np.array([[1, 1], [0, 1], [1, 0], [0, 0], [0, 1]], dtype=float)
COSTS = np.array([[1.0, 10.0]] * 5)
TABLE = table_of(CORRECT, COSTS, ("cheap", "dear"))
CHOSEN = np.array([1, 1, 0, 0, 0])


def test_the_four_outcomes() -> None:
    """A needlessly expensive arm is suboptimal; a miss is avoidable if another arm is right."""
    found = routing(TABLE, CHOSEN)
    assert [outcome.count for outcome in found.outcomes] == [2, 1, 1, 1]
    assert found.median_overhead_usd == found.total_overhead_usd == 9


def test_outcomes_of_shares_add_up_to_the_queries() -> None:
    """Labels of 0.5 and 0.75 give half correct, a quarter avoidable and a quarter unavoidable."""
    table = table_of(np.array([[0.5, 0.75]]), np.array([[1.0, 2.0]]))
    counts = [outcome.count for outcome in routing(table, np.array([0])).outcomes]
    assert counts == [0, 0.5, 0.25, 0.25]


def test_misroutes_by_tools_turns_length_and_correct_models() -> None:
    """Every query is in one bucket of each breakdown, with the paper's ranges."""
    examples = [
        example(i, tools=tools, turns=1 + 4 * (i == 4)) for i, tools in enumerate((1, 1, 2, 12, 60))
    ]
    found = {each.by: each.buckets for each in misroutes(TABLE, CHOSEN, examples)}
    by_tools = found["number of tools"]
    assert [bucket.label for bucket in by_tools] == ["1", "2-3", "11-50", "51+"]
    assert [bucket.misrouted.value for bucket in by_tools] == [0, 0, 1, 1]
    assert [bucket.wrong_model.value for bucket in by_tools] == [0, 0, 0, 1]
    assert [bucket.label for bucket in found["number of turns"]] == ["1", "5-8"]
    assert [bucket.label for bucket in found["length, words"]] == ["to 2", "3+"]
    assert [b.misrouted.n for b in found["number of correct models"]] == [1, 3, 1]


def test_confusion_counts_all_queries_and_the_lost_ones() -> None:
    """Rows are predicted arms, columns the oracle's; queries that no arm solves are not lost."""
    found = confusion(TABLE, CHOSEN)
    assert np.array(found.queries).tolist() == [[1, 2], [1, 1]]
    assert np.array(found.lost).tolist() == [[0, 1], [0, 0]]


def test_categories_are_scored_apart() -> None:
    """Each category has its own accuracies, and its difference from the overall best model."""
    large, small = by_category(TABLE, CHOSEN, ["x", "x", "x", "y", "y"])
    assert (large.name, large.n, small.n) == ("x", 3, 2)
    assert large.scores["router"].accuracy.value == 1
    assert large.difference == pytest.approx(1 / 3)
    assert small.scores["oracle"].accuracy.value == 0.5


def test_the_dataset_oracle_knows_each_category_s_best_arm() -> None:
    """The choice is one arm per category, the cheapest of equally accurate ones."""
    choices = dataset_oracle(TABLE, ["a", "b", "a", "b", "b"]).choices
    assert choices.tolist() == [0, 1, 0, 1, 1]


def test_reliability_compares_probabilities_with_what_happened() -> None:
    """Predictions of 0.9 that are right half the time form one bin with an accuracy of 0.5."""
    found = calibration(
        table_of(np.array([[1.0], [0.0]]), np.ones((2, 1)), ("a",)), np.full((2, 1), 0.9)
    )
    (only,) = found.bins
    assert (only.lower, only.accuracy.value, only.accuracy.n) == (0.9, 0.5, 2)
    assert only.confidence == pytest.approx(0.9)
    assert [arm.name for arm in found.arms] == ["all arms", "a"]


def test_apgr_of_a_straight_line_is_that_of_random_mixing() -> None:
    """Mixing weak and strong at random recovers 10%, 20%, ... of the gap: 0.55 on average."""
    weak, strong = np.array([1.0, 0.6]), np.array([11.0, 0.8])
    assert apgr(strong[None], weak, strong) == pytest.approx(0.55)
    at_once = np.array([[1.0001, 0.8], [11.0, 0.8]])
    assert apgr(at_once, weak, strong) == pytest.approx(1.0)
    assert np.isnan(apgr(at_once, strong, weak))


def test_aiq_is_the_mean_height_of_the_hull() -> None:
    """A point above the line between two others raises the hull; one below it does not."""
    line = np.array([[1.0, 0.5], [3.0, 0.9]])
    assert aiq(line, 1, 3) == pytest.approx(0.7)
    assert aiq(np.vstack([line, [2.0, 0.6]]), 1, 3) == pytest.approx(0.7)
    assert aiq(np.vstack([line, [2.0, 0.8]]), 1, 3) == pytest.approx((0.65 + 0.85) / 2)
    assert aiq(line, 1, 5) == pytest.approx((0.7 * 2 + 0.9 * 2) / 4)


def test_the_hull_starts_at_nothing_and_never_falls() -> None:
    """The hull starts at the null router and omits a point that costs more and is worse."""
    hull = convex_hull(np.array([[2.0, 0.9], [1.0, 0.8], [3.0, 0.5]]))
    assert hull.tolist() == [[0, 0], [1, 0.8], [2, 0.9]]


def entries(*points: tuple[float, float]) -> list[Entry]:
    """Return entries with these costs and accuracies; the best single model is at (10, 0.8)."""
    bench = Bench(np.full(5, 0.8), np.full(5, 10.0), np.full(5, 0.5), np.ones(5))
    return [
        bench.measure("router", f"rule {i}", np.full(5, accuracy), np.full(5, cost))
        for i, (cost, accuracy) in enumerate(points)
    ]


def test_what_a_budget_buys() -> None:
    """Budgets that buy nothing, or nothing more than a smaller budget, are omitted."""
    bought = budgets(entries((1, 0.6), (4, 0.9), (9, 0.7)))
    assert [(b.share, b.entry.name) for b in bought] == [(0.10, "rule 0"), (0.50, "rule 1")]


def test_the_cheapest_rule_as_good_as_the_best_single_model() -> None:
    """The match is the cheapest entry that is accurate enough, or None if no entry is."""
    found = matching(entries((1, 0.6), (4, 0.9), (3, 0.8)))
    assert found is not None
    assert found.name == "rule 2"
    assert matching(entries((1, 0.6))) is None


def test_chattiness_is_the_paper_s() -> None:
    """Chattiness is actual cost over cost with average output: (100 + 2x60) / (100 + 2x120)."""
    price = Price(input_usd_per_mtok=1, output_usd_per_mtok=2)
    written = np.array([[60.0, 180.0], [60.0, np.nan], [60.0, 180.0]])
    table = used(written, ("terse", "chatty"))
    terse, chatty = token_use(table, {"terse": price, "chatty": price})
    assert terse.chattiness is not None
    assert chatty.chattiness is not None
    assert terse.chattiness.value == pytest.approx(220 / 340)
    assert chatty.chattiness.value == pytest.approx(460 / 340)
    assert terse.input_share == pytest.approx(100 / 220)
    assert chatty.output_tokens.n == 2


def test_an_arm_by_the_hour_has_no_tokens_to_pay() -> None:
    """An arm that is paid by the hour is omitted, also from the average output of all arms."""
    price = Price(input_usd_per_mtok=1, output_usd_per_mtok=2)
    table = used(np.array([[60.0, 900.0]] * 3), ("a", "b"))
    (use,) = token_use(table, {"a": price, "b": Price(usd_per_hour=1)})
    assert use.chattiness is not None
    assert (use.arm, use.chattiness.value) == ("a", 1)


def test_runs_are_spread() -> None:
    """The spread covers the runs' own figures; a single run has no spread."""
    runs = full().runs
    found = stability(runs, "theta=0.5")
    assert found is not None
    values = [run.router.accuracy.value for run in found.runs]
    assert found.spread["accuracy"].mean == pytest.approx(np.mean(values))
    assert found.spread["accuracy"].std == pytest.approx(np.std(values, ddof=1))
    assert stability(runs[:1], "theta=0.5") is None


def test_folds_are_the_queries_they_tested() -> None:
    """Together the folds contain all queries, and their accuracies average to the router's."""
    experiment = full()
    figures = main_figures(experiment)
    sections = all_sections(experiment, figures)
    assert sections.folds is not None
    assert [run.router.accuracy.n for run in sections.folds.runs] == [20, 20, 20]
    router = figures.entry(figures.default_policy)
    assert sections.folds.spread["accuracy"].mean == pytest.approx(router.accuracy.value)
    own, truncated = sections.parts
    assert own.difference == 0
    assert truncated.difference == pytest.approx(truncated.accuracy.value - own.accuracy.value)
    assert [row.name for row in sections.field] == ["router", "noise"]


def test_an_arm_that_was_not_asked_is_refused() -> None:
    """A missing outcome is an error, because averages would silently ignore it."""
    base = bare()
    correct = base.table.correct.copy()
    correct[3, 1] = np.nan
    holed = dataclasses.replace(base.table, correct=correct)
    with pytest.raises(ValueError, match="1 queries have an arm that was not asked"):
        Experiment(holed, base.probabilities, base.expected_costs_usd, base.policies)
