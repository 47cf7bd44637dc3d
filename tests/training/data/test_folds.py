"""Folds for cross-validation: complete, stratified, and without near-duplicates across folds."""

from __future__ import annotations

from switchcraft_training.data.splits import Split, grouped_folds, near_duplicates, teaching
from switchcraft_training.records import Example


def example(number: int, text: str, conversation: str = "") -> Example:
    """Return a query without tools; every third query has another category."""
    request = {"messages": [{"role": "user", "content": text}], "tools": []}
    return Example(f"q{number}", "ab"[number % 3 == 0], request, "d", conversation)


WORDS = "river stone cloud engine harvest violin market bridge candle forest".split()
EXAMPLES = [
    example(i, f"{WORDS[i % 10]} {WORDS[i // 10]} {WORDS[(i * 7 + 3) % 10]}") for i in range(60)
]


def test_each_query_is_tested_once_and_never_trained_on_then() -> None:
    """The test parts of all folds contain every query once; the parts of one fold are disjoint."""
    folds = grouped_folds(EXAMPLES, 5, seed=1)
    assert sorted(row for fold in folds for row in fold.test) == list(range(60))
    for fold in folds:
        assert sorted(fold.train + fold.validation + fold.test) == list(range(60))


def test_near_duplicates_and_turns_stay_together() -> None:
    """Queries that differ in a number, and turns of one conversation, share a group."""
    groups = near_duplicates(
        [
            example(0, "What is the area of a circle with a radius of 5 metres?"),
            example(1, "What is the area of a circle with a radius of 10 metres?"),
            example(2, "Book a table for two in Rome.", "c"),
            example(3, "And another one tomorrow, please.", "c"),
            example(4, "Play some jazz."),
        ]
    )
    assert groups[0] == groups[1]
    assert groups[2] == groups[3]
    assert len(set(groups)) == 3


def test_nothing_teaches_that_repeats_what_is_held_out() -> None:
    """A teaching row may repeat training queries, but no validation or test query."""
    examples = [
        example(0, "What is the area of a circle with a radius of 5 metres?"),
        example(1, "Book a table for two in Rome."),
        example(2, "Play some jazz."),
        example(3, "What is the area of a circle with a radius of 10 metres?"),
        example(4, "Book a table for six in Rome."),
        example(5, "Play some  Jazz."),
        example(6, "Translate this into Welsh."),
    ]
    split = Split(train=(0,), validation=(1,), test=(2,))
    assert teaching(examples, split, (3, 4, 5, 6)) == (3, 6)
    assert teaching(examples[:3], split, ()) == ()


def test_folds_are_the_same_with_rows_beside() -> None:
    """Teaching rows are in no part, and are left out of folds whose held-out rows they repeat."""
    beside = [example(60 + i, EXAMPLES[i].query.upper()) for i in range(3)]
    everything = [*EXAMPLES, *beside, example(63, "an altogether different request")]
    folds = grouped_folds(everything, 5, seed=1, extra=range(60, 64))
    for alone, fold in zip(grouped_folds(EXAMPLES, 5, seed=1), folds, strict=True):
        assert alone.parts() == fold.parts()
        known = [60 + i for i in range(3) if i in fold.train]
        assert list(fold.teaching) == [*known, 63]


def test_the_seed_decides() -> None:
    """The same seed gives the same folds, another seed gives others."""
    assert grouped_folds(EXAMPLES, 5, 1) == grouped_folds(EXAMPLES, 5, 1)
    assert grouped_folds(EXAMPLES, 5, 1) != grouped_folds(EXAMPLES, 5, 2)
