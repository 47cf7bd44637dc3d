"""Cross-validation that no near-duplicate crosses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import StratifiedGroupKFold

from switchcraft_training.preferences.splits import Split, unique
from switchcraft_training.records import Example

NEAR_FROM = 0.8
"""On the cosine of character 3- to 5-grams: queries that differ in a number or a name."""


def grouped_folds(
    examples: Sequence[Example],
    folds: int,
    seed: int,
    extra: Sequence[int] = (),
    *,
    validated: bool = True,
) -> tuple[Split, ...]:
    """Return `folds` splits whose tests together are all unique examples, once each.

    Each fold's validation is the next fold's test; not `validated`, that trains too.
    Near-duplicates and the turns of one conversation stay together; categories keep their shares as
    far as that allows. The rows `extra` are in no part, and do not change the folds; of each fold
    they are `teaching` where they may be.
    """
    beside = set(extra)
    own = [row for row in range(len(examples)) if row not in beside]
    kept = [own[place] for place in unique(examples[row] for row in own)]
    chosen = [examples[index] for index in kept]
    strata = [f"{example.dataset}/{example.category}" for example in chosen]
    kfold = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    parts = [
        tuple(kept[place] for place in test)
        for _, test in kfold.split(strata, strata, near_duplicates(chosen))
    ]
    splits = [_split(parts, test, validated=validated) for test in range(folds)]
    groups = near_duplicates(examples) if extra else []
    return tuple(replace(split, teaching=_teaching(groups, split, extra)) for split in splits)


def teaching(examples: Sequence[Example], split: Split, extra: Sequence[int]) -> tuple[int, ...]:
    """Return those of the rows `extra` that are near-duplicates of nothing that a split holds out.

    Held out are validation and test.
    """
    return _teaching(near_duplicates(examples), split, extra) if extra else ()


def _teaching(groups: Sequence[int], split: Split, extra: Sequence[int]) -> tuple[int, ...]:
    held_out = {groups[row] for row in split.validation + split.test} if extra else set()
    return tuple(row for row in extra if groups[row] not in held_out)


def near_duplicates(examples: Sequence[Example]) -> list[int]:
    """Return a group for each example; near-duplicates and one conversation's turns share one."""
    grams = TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 5), sublinear_tf=True)
    rows = grams.fit_transform([example.query for example in examples])
    near = (rows @ rows.T) >= NEAR_FROM
    first: dict[str, int] = {}
    turns = [
        first.setdefault(e.conversation or f"#{place}", place) for place, e in enumerate(examples)
    ]
    size = len(examples)
    same = coo_matrix((np.ones(size, dtype=bool), (range(size), turns)), shape=(size, size))
    _, groups = connected_components(near + same, directed=False)
    return [int(group) for group in groups]


def _split(parts: Sequence[tuple[int, ...]], test: int, *, validated: bool) -> Split:
    validation = (test + 1) % len(parts) if validated else None
    train = [
        row for number, part in enumerate(parts) if number not in {test, validation} for row in part
    ]
    held = () if validation is None else tuple(sorted(parts[validation]))
    return Split(tuple(sorted(train)), held, tuple(sorted(parts[test])))
