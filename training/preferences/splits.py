"""Deduplication and stratified splits (appendix on training configuration)."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from training.records import Example

VALIDATION_SHARE = 0.1
TEST_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Split:
    """Indices of the examples of each part; duplicates are in none."""

    train: tuple[int, ...]
    validation: tuple[int, ...]
    test: tuple[int, ...]

    def parts(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return training, validation and test indices."""
        return self.train, self.validation, self.test

    def sizes(self) -> dict[str, int]:
        """Return how many examples each part has."""
        return dict(zip(("train", "validation", "test"), map(len, self.parts()), strict=True))


def split_examples(examples: Sequence[Example], seed: int) -> Split:
    """Split each category 80/10/10 by a seed, the first of equal (query, tools) alone kept.

    Validation and test get the rounded tenth of a category each, training the rest; the same
    query with other tools goes where its first one goes.
    """
    rng = random.Random(seed)  # noqa: S311 - a split, not a secret
    groups = _groups(examples)
    by_category: dict[str, list[list[int]]] = defaultdict(list)
    for group in groups:
        by_category[examples[group[0]].category].append(group)
    train: list[int] = []
    validation: list[int] = []
    test: list[int] = []
    for _, members in sorted(by_category.items()):
        rng.shuffle(members)
        size = sum(map(len, members))
        _move(members, round(size * VALIDATION_SHARE), validation)
        _move(members, round(size * TEST_SHARE), test)
        _move(members, size, train)
    return Split(tuple(train), tuple(validation), tuple(test))


def _groups(examples: Sequence[Example]) -> list[list[int]]:
    """Return the unique examples, those of one query together: they must not be parted.

    A group counts for the category of its first example.
    """
    by_query: dict[str, list[int]] = defaultdict(list)
    for index in unique(examples):
        by_query[_folded(examples[index])].append(index)
    return list(by_query.values())


def _move(groups: list[list[int]], size: int, part: list[int]) -> None:
    """Move groups off the front into a part until it has grown by `size` examples."""
    moved = 0
    while groups and moved < size:
        group = groups.pop(0)
        part.extend(group)
        moved += len(group)


def _folded(example: Example) -> str:
    return re.sub(r"\s+", " ", example.query).strip().casefold()


def unique(examples: Sequence[Example]) -> list[int]:
    """Return the indices of the first example of each (query, tools), case and spacing folded."""
    seen: dict[tuple[str, tuple[str, ...]], int] = {}
    for index, example in enumerate(examples):
        seen.setdefault((_folded(example), example.tool_names), index)
    return sorted(seen.values())
