"""Breakdowns compared with numbers calculated by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from router_service.policies.costs import Price
from switchcraft_training.evaluation.breakdowns import (
    by_category,
    confusion,
    dataset_oracle,
    misroutes,
    repeated_answers,
    routing,
    token_use,
)
from tests.training.evaluation.cases import example, table_of, table_with_tokens

#                     cheap  dear
CORRECT = np.array([[1, 1], [0, 1], [1, 0], [0, 0], [0, 1]], dtype=float)


COSTS = np.array([[1.0, 10.0]] * 5)


TABLE = table_of(CORRECT, COSTS, ("cheap", "dear"))


CHOSEN = np.array([1, 1, 0, 0, 0])


def test_routing_counts_the_four_outcomes() -> None:
    """A needlessly expensive arm is suboptimal; a miss is avoidable if another arm is right."""
    found = routing(TABLE, CHOSEN)
    assert [outcome.count for outcome in found.outcomes] == [2, 1, 1, 1]
    assert found.median_overhead_usd == found.total_overhead_usd == 9


def test_fractional_labels_are_divided_between_outcomes() -> None:
    """Labels of 0.5 and 0.75 give half correct, a quarter avoidable and a quarter unavoidable."""
    table = table_of(np.array([[0.5, 0.75]]), np.array([[1.0, 2.0]]))
    counts = [outcome.count for outcome in routing(table, np.array([0])).outcomes]
    assert counts == [0, 0.5, 0.25, 0.25]


def test_misroutes_are_counted_by_tools_turns_length_and_correct_models() -> None:
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


def test_confusion_counts_all_and_avoidably_wrong_queries() -> None:
    """Rows are predicted arms, columns the oracle's; queries that no arm solves are not lost."""
    found = confusion(TABLE, CHOSEN)
    assert np.array(found.queries).tolist() == [[1, 2], [1, 1]]
    assert np.array(found.lost).tolist() == [[0, 1], [0, 0]]


def test_each_category_has_its_own_scores() -> None:
    """Each category has its own accuracies, and its difference from the overall best model."""
    large, small = by_category(TABLE, CHOSEN, ["x", "x", "x", "y", "y"])
    assert (large.name, large.n, small.n) == ("x", 3, 2)
    assert large.scores["router"].accuracy.value == 1
    assert large.difference == pytest.approx(1 / 3)
    assert small.scores["oracle"].accuracy.value == 0.5


def test_repeated_answers_are_counted_by_arm_and_category() -> None:
    """Labels of one attempt are left out, and `mid` counts the shares between 0 and 1."""
    table = table_of(np.array([[1, 0.25], [0, 0.5], [1, 1]]), COSTS[:3], ("cheap", "dear"))
    assert repeated_answers(table, list("xxy")) is None
    table = replace(table, attempts=np.array([[1.0, 4], [1, 4], [4, 4]]))
    found = repeated_answers(table, list("xxy"))
    assert found is not None
    cheap, dear = found.arms
    assert (cheap.name, cheap.mid.n, cheap.mid.value, cheap.shares[-1]) == ("cheap", 1, 0, 1)
    assert dear.mid.n == 3
    assert dear.mid.value == pytest.approx(2 / 3)
    assert [place for place, share in enumerate(dear.shares) if share] == [5, 10, 20]
    assert [(each.name, each.mid.n) for each in found.categories] == [("x", 2), ("y", 2)]


def test_dataset_oracle_chooses_the_best_arm_of_each_category() -> None:
    """The choice is one arm per category, the cheapest of equally accurate ones."""
    choices = dataset_oracle(TABLE, ["a", "b", "a", "b", "b"]).choices
    assert choices.tolist() == [0, 1, 0, 1, 1]


def test_chattiness_follows_the_papers_definition() -> None:
    """Chattiness is actual cost over cost with average output: (100 + 2x60) / (100 + 2x120)."""
    price = Price(input_usd_per_mtok=1, output_usd_per_mtok=2)
    written = np.array([[60.0, 180.0], [60.0, np.nan], [60.0, 180.0]])
    table = table_with_tokens(written, ("terse", "chatty"))
    terse, chatty = token_use(table, {"terse": price, "chatty": price})
    assert terse.chattiness is not None
    assert chatty.chattiness is not None
    assert terse.chattiness.value == pytest.approx(220 / 340)
    assert chatty.chattiness.value == pytest.approx(460 / 340)
    assert terse.input_share == pytest.approx(100 / 220)
    assert chatty.output_tokens.n == 2


def test_reasoning_tokens_are_averaged_over_the_answers_that_recorded_them() -> None:
    """The report has their mean and the share of queries with any; not recorded is not zero."""
    price = Price(input_usd_per_mtok=1, output_usd_per_mtok=2)
    table = table_with_tokens(np.full((4, 2), 50.0), ("thinker", "plain"))
    reasoning = np.array([[30, np.nan], [0, np.nan], [np.nan, np.nan], [0, np.nan]])
    table = replace(table, reasoning_tokens=reasoning)
    thinker, plain = token_use(table, dict.fromkeys(table.arms, price))
    assert thinker.reasoning_tokens is not None
    assert thinker.reasoning_share is not None
    assert (thinker.reasoning_tokens.value, thinker.reasoning_tokens.n) == (10, 3)
    assert thinker.reasoning_share.value == pytest.approx(1 / 3)
    assert (plain.reasoning_tokens, plain.reasoning_share) == (None, None)


def test_arm_paid_by_the_hour_is_omitted_from_token_use() -> None:
    """An arm that is paid by the hour is omitted, also from the average output of all arms."""
    price = Price(input_usd_per_mtok=1, output_usd_per_mtok=2)
    table = table_with_tokens(np.array([[60.0, 900.0]] * 3), ("a", "b"))
    (use,) = token_use(table, {"a": price, "b": Price(usd_per_hour=1)})
    assert use.chattiness is not None
    assert (use.arm, use.chattiness.value) == ("a", 1)
