"""Breakdowns compared with numbers calculated by hand."""

from __future__ import annotations

import numpy as np
import pytest

from router_service.policies.costs import Price
from switchcraft_training.evaluation.breakdowns import (
    misroutes,
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
