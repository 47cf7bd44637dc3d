"""Splits: stratified, disjoint, fixed by a seed, and without leaks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from training.preferences.splits import split_examples, unique
from training.records import Example


def example(i: int, category: str, query: str, *tools: str) -> Example:
    """Return an example with this query and these tools."""
    request = {
        "messages": [{"role": "user", "content": query}],
        "tools": [{"type": "function", "function": {"name": name}} for name in tools],
    }
    return Example(f"{category}_{i}", category, request)


CORPUS = [example(i, "easy", f"query {i}", "f") for i in range(100)] + [
    example(i, "hard", f"hard query {i}", "g") for i in range(37)
]


def test_every_category_is_split_80_10_10() -> None:
    """Each category gives a tenth to validation and to test, and the rest to training."""
    split = split_examples(CORPUS, seed=1)
    assert split.sizes() == {"train": 80 + 29, "validation": 10 + 4, "test": 10 + 4}
    for part in (split.validation, split.test):
        assert sum(CORPUS[i].category == "hard" for i in part) == 4
    assert sorted(i for part in split.parts() for i in part) == list(range(len(CORPUS)))


def test_the_seed_decides() -> None:
    """The same seed gives the same split, another seed another."""
    assert split_examples(CORPUS, 1) == split_examples(CORPUS, 1)
    assert split_examples(CORPUS, 1).test != split_examples(CORPUS, 2).test


def test_one_category_s_rows_do_not_move_another_s_sizes() -> None:
    """Categories are split on their own: removing one leaves the other's shares."""
    alone = split_examples([e for e in CORPUS if e.category == "hard"], seed=1)
    assert alone.sizes() == {"train": 29, "validation": 4, "test": 4}


def test_equal_queries_with_equal_tools_are_kept_once() -> None:
    """Case and spacing make no new query; other tools do."""
    corpus = [
        example(0, "a", "Book a table", "f"),
        example(1, "b", " book  a TABLE ", "f"),
        example(2, "a", "Book a table", "g"),
    ]
    assert unique(corpus) == [0, 2]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "X ", "y", "z"])), max_size=60)
)
def test_no_query_is_in_two_parts(rows: list[tuple[str, str]]) -> None:
    """However many duplicates there are, with whatever tools, a query is in one part alone."""
    corpus = [example(i, category, query, category) for i, (category, query) in enumerate(rows)]
    parts = split_examples(corpus, seed=3).parts()
    queries = [{corpus[i].query.strip().casefold() for i in part} for part in parts]
    assert sum(map(len, queries)) == len(set().union(*queries))
    pairs = [(corpus[i].query.strip().casefold(), corpus[i].tool_names) for p in parts for i in p]
    assert len(pairs) == len(set(pairs))
