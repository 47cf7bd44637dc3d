"""Equal queries become one row, and folds are complete, balanced, and never go through a group."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchcraft_training.data.splits import (
    fold_table,
    group_table,
    grouped_folds,
    last_tenth,
    merge_equal_queries,
    unique,
)
from switchcraft_training.data.table import Table
from switchcraft_training.errors import UnbalancedFoldsError
from switchcraft_training.records import Example


def example(i: int, category: str, query: str, *tools: str) -> Example:
    """Return an example with this query and these tools."""
    request = {
        "messages": [{"role": "user", "content": query}],
        "tools": [{"type": "function", "function": {"name": name}} for name in tools],
    }
    return Example(f"{category}_{i}", category, request)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "X ", "y", "z"])), max_size=60)
)
def test_first_of_equal_queries_is_kept(rows: list[tuple[str, str]]) -> None:
    """Queries that differ only in case and spacing are equal, unless their tools differ."""
    corpus = [example(i, "easy", query, tool) for i, (tool, query) in enumerate(rows)]
    kept = unique(corpus)
    pairs = [(tool, query.strip().casefold()) for tool, query in rows]
    assert kept == [pairs.index(pair) for pair in dict.fromkeys(pairs)]


def test_equal_queries_of_other_datasets_become_one_row() -> None:
    """A query has one row with the answers of all models, and an arm's facts are of one answer."""
    rows = [
        replace(example(number, "easy", text, "f"), dataset=dataset)
        for number, (text, dataset) in enumerate(
            [("Do  it", "new"), ("Other", "new"), ("do it", "old"), ("do it", "oldest")]
        )
    ]
    nan = np.nan
    table = Table(
        examples=tuple(rows),
        arms=("a", "b", "c"),
        correct=np.array([[1, nan, nan], [0, nan, nan], [0, 1, nan], [0, 0, 1]]),
        seconds=np.array([[nan, nan, nan], [2, nan, nan], [3, nan, nan], [4, 5, 6]]),
        expected_calls=np.array([nan, 1, 2, 3]),
        is_measured=np.array([True, True, False, False]),
    )
    merged = merge_equal_queries(table)
    assert merged.examples == tuple(rows[:2])
    np.testing.assert_array_equal(merged.correct, [[1, 1, 1], [0, nan, nan]])
    np.testing.assert_array_equal(merged.seconds, [[nan, nan, 6], [2, nan, nan]])
    assert merged.expected_calls.tolist() == [2, 1]
    assert merged.is_measured.all()
    assert np.isnan(table.correct[0, 1])


LETTERS = random.Random(0)
TEXTS = ["".join(LETTERS.choices("aeioubcdfghklmnprstvw ", k=40)) for _ in range(60)]


def table_of(texts: Sequence[str], teaching: Sequence[str] = ()) -> Table:
    """Return a table of queries with their groups; every third query has another category."""
    examples = tuple(
        Example(
            f"q{number}",
            "ab"[number % 3 == 0],
            {"messages": [{"role": "user", "content": text}], "tools": []},
            "d",
        )
        for number, text in enumerate((*texts, *teaching))
    )
    is_measured = np.arange(len(examples)) < len(texts)
    correct = np.ones((len(examples), 1))
    return group_table(Table(examples, ("arm",), correct, is_measured=is_measured))


def test_each_query_is_tested_once_and_never_trained_on_then() -> None:
    """The test parts of all folds contain every query once; the parts of one fold are disjoint."""
    folds = fold_table(table_of(TEXTS), 5, seed=1)
    assert sorted(row for fold in folds for row in fold.test) == list(range(60))
    for fold in folds:
        assert sorted(fold.train + fold.validation + fold.test) == list(range(60))


def test_grouped_by_tools_every_tool_is_unseen() -> None:
    """No held-out query has a tool list that a training or teaching row of its fold has."""
    tools = [
        [{"type": "function", "function": {"name": text.replace(" ", "_")}}] for text in TEXTS[:20]
    ]
    examples = tuple(
        Example(
            f"q{row}",
            "c",
            {"messages": [{"role": "user", "content": TEXTS[row]}], "tools": tools[row % 20]},
            "d",
        )
        for row in range(60)
    )
    is_measured = np.arange(60) < 50
    table = Table(examples, ("arm",), np.ones((60, 1)), is_measured=is_measured)
    for fold in fold_table(group_table(table, "tools"), 5, seed=1):
        held_out = {examples[row].tool_names for row in fold.test}
        learned = {examples[row].tool_names for row in (*fold.train, *fold.teaching)}
        assert held_out
        assert held_out.isdisjoint(learned)


@given(st.lists(st.integers(1, 12), min_size=60, max_size=120), st.integers(0, 5))
def test_ordinary_groups_give_balanced_folds(sizes: list[int], seed: int) -> None:
    """Groups of up to 2% of the rows are never separated, and folds differ by at most 10%."""
    groups = np.repeat(np.arange(len(sizes)), sizes)
    sizes_by_fold = np.bincount(grouped_folds(["a"] * len(groups), groups, 3, seed), minlength=3)
    pairs = set(
        zip(groups.tolist(), grouped_folds(["a"] * len(groups), groups, 3, seed), strict=True)
    )
    assert len(pairs) == len(sizes)
    assert sizes_by_fold.max() <= 1.1 * sizes_by_fold.min()


def test_a_giant_group_is_an_error_that_names_it() -> None:
    """If half of the queries differ only in a number, no five folds have equal sizes."""
    giant = [f"What is the area of a circle with a radius of {i} metres?" for i in range(60)]
    table = table_of([*giant, *TEXTS])
    with pytest.raises(UnbalancedFoldsError, match=r"120 measured queries .* 5 folds") as caught:
        fold_table(table, 5, seed=1)
    error = caught.value
    assert (error.sizes, error.group_rows) == ((60, 15, 15, 15, 15), 60)
    assert error.text == "What is the area of a circle with a radius of 0 metres?"
    assert "(50%)" in str(error)
    assert "lower evaluation.folds" in str(error)
    assert len(fold_table(table, 2, seed=1)) == 2


def test_last_tenth_parts_no_group() -> None:
    """It has about a tenth of the measured rows, and none of a group that is also outside of it."""
    table = table_of([f"{text} {end}" for text in TEXTS for end in ("now", "soon")], TEXTS[:5])
    chosen = np.array(last_tenth(table, seed=1))
    assert 9 <= len(chosen) <= 15
    assert table.is_measured[chosen].all()
    others = np.setdiff1d(table.measured_rows, chosen)
    assert not np.isin(table.own_groups[chosen], table.own_groups[others]).any()
    assert len(np.unique(table.own_groups)) < len(table)
