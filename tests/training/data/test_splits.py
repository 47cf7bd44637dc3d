"""Splits: stratified, disjoint, determined by a seed, and without leaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from switchcraft_training.data.splits import merge_equal_queries, split_examples
from switchcraft_training.data.table import Table
from switchcraft_training.records import Example


def example(i: int, category: str, query: str, *tools: str) -> Example:
    """Return an example with this query and these tools."""
    request = {
        "messages": [{"role": "user", "content": query}],
        "tools": [{"type": "function", "function": {"name": name}} for name in tools],
    }
    return Example(f"{category}_{i}", category, request)


def turn(i: int, conversation: str, *said: str, dataset: str = "d") -> Example:
    """Return a turn of a conversation with these messages, by user and assistant alternately."""
    messages = [
        {"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(said)
    ]
    request = {"messages": messages, "tools": []}
    return Example(f"{dataset}_{i}", "a", request, dataset, conversation)


def called(name: str, value: int) -> Example:
    """Return a turn that follows a call with this id."""
    function = {"name": "f", "arguments": f'{{"a": {value}}}'}
    made = {"id": name, "type": "function", "function": function}
    messages: list[Any] = [
        {"role": "user", "content": "Do."},
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": name, "content": "Done."},
    ]
    return Example(name, "a", {"messages": messages, "tools": []})


def together(corpus: Sequence[Example], *members: int) -> bool:
    """Return whether these examples are always in one part, for several seeds."""
    return all(
        any(set(members) <= set(part) for part in split_examples(corpus, seed).parts())
        for seed in range(20)
    )


CORPUS = [example(i, "easy", f"query {i}", "f") for i in range(100)] + [
    example(i, "hard", f"hard query {i}", "g") for i in range(37)
]


def test_every_category_is_split_80_10_10() -> None:
    """A tenth of each category goes to validation, a tenth to test, and the rest to training."""
    split = split_examples(CORPUS, seed=1)
    assert split.sizes() == {"train": 80 + 29, "validation": 10 + 4, "test": 10 + 4}
    for part in (split.validation, split.test):
        assert sum(CORPUS[i].category == "hard" for i in part) == 4
    assert sorted(i for part in split.parts() for i in part) == list(range(len(CORPUS)))


def test_turns_of_a_conversation_are_never_parted() -> None:
    """Turns stay together, and so do conversations that share a query, also across datasets."""
    corpus = [
        turn(0, "x", "A"),
        turn(1, "y", "B"),
        turn(2, "x", "A", "Yes?", "C"),
        turn(3, "y", "A", "Yes?", "C", dataset="e"),
        turn(4, "y", "D", dataset="e"),
        *(turn(i, f"other {i}", f"Query {i}") for i in range(5, 60)),
    ]
    assert together(corpus, 0, 2, 3, 4)
    assert not together(corpus, 0, 1)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "X ", "y", "z"])), max_size=60)
)
def test_no_query_is_in_two_parts(rows: list[tuple[str, str]]) -> None:
    """A query is in one part only, however many duplicates it has and whatever their tools."""
    corpus = [example(i, category, query, category) for i, (category, query) in enumerate(rows)]
    parts = split_examples(corpus, seed=3).parts()
    queries = [{corpus[i].query.strip().casefold() for i in part} for part in parts]
    assert sum(map(len, queries)) == len(set().union(*queries))
    pairs = [(corpus[i].query.strip().casefold(), corpus[i].tool_names) for p in parts for i in p]
    assert len(pairs) == len(set(pairs))


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
