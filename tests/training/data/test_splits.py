"""Equal queries: what is a duplicate, and how the answers to duplicates become one row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from switchcraft_training.data.splits import merge_equal_queries, unique
from switchcraft_training.data.table import Table
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
