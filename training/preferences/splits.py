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

    Validation and test get the rounded tenth of a category each, training the rest.
    """
    rng = random.Random(seed)  # noqa: S311 - a split, not a secret
    by_category: dict[str, list[int]] = defaultdict(list)
    for index in unique(examples):
        by_category[examples[index].category].append(index)
    train: list[int] = []
    validation: list[int] = []
    test: list[int] = []
    for _, members in sorted(by_category.items()):
        rng.shuffle(members)
        held_out = round(len(members) * VALIDATION_SHARE)
        tested = round(len(members) * TEST_SHARE)
        validation.extend(members[:held_out])
        test.extend(members[held_out : held_out + tested])
        train.extend(members[held_out + tested :])
    return Split(tuple(train), tuple(validation), tuple(test))


def unique(examples: Sequence[Example]) -> list[int]:
    """Return the indices of the first example of each (query, tools), case and spacing folded."""
    seen: dict[tuple[str, tuple[str, ...]], int] = {}
    for index, example in enumerate(examples):
        folded = re.sub(r"\s+", " ", example.query).strip().casefold()
        seen.setdefault((folded, example.tool_names), index)
    return sorted(seen.values())
