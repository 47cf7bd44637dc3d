"""Deduplication, stratified splits, and folds that keep near-duplicates together.

The paper describes the splits in its appendix on training configuration.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
import orjson

from router_service.core.messages import Json
from switchcraft_training.data.table import Table
from switchcraft_training.records import Example

VALIDATION_SHARE = 0.1
TEST_SHARE = 0.1
NEAR_FROM = 0.8
"""Least cosine similarity of near-duplicates, computed from character 3- to 5-grams.
Near-duplicates typically differ in a number or a name."""


@dataclass(frozen=True, slots=True)
class Split:
    """Row indices of each part; duplicates are in no part.

    `teaching` contains additional rows that may be used for training and are never measured.
    """

    train: tuple[int, ...]
    validation: tuple[int, ...]
    test: tuple[int, ...]
    teaching: tuple[int, ...] = ()

    def parts(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return the indices of training, validation and test rows."""
        return self.train, self.validation, self.test

    def sizes(self) -> dict[str, int]:
        """Return the number of rows in each part."""
        return dict(zip(("train", "validation", "test"), map(len, self.parts()), strict=True))


class Stratum(NamedTuple):
    """A category of a dataset; every category is split in the same proportions."""

    dataset: str
    category: str


class SplitKey(NamedTuple):
    """The properties of an example that decide its part of a split.

    With its key, an example can be split without staying in memory. `row` is equal if dataset,
    query and tools are equal. Examples that share an element of `groups` stay in one part: equal
    queries of any dataset, and turns of one conversation. `row` and `groups` are digests of 16
    bytes.
    """

    stratum: Stratum
    row: bytes
    groups: tuple[bytes, ...]


def key_of(example: Example) -> SplitKey:
    """Return an example's key. Case and spacing of the query do not matter; those of tools do."""
    query = _normalized_text(example.request["messages"])
    tools = orjson.dumps(example.request["tools"], option=orjson.OPT_SORT_KEYS)
    groups = [_digest("query", query)]
    if example.conversation:
        groups.append(_digest("conversation", example.dataset, example.conversation))
    row = _digest("row", example.dataset, query, tools)
    return SplitKey(Stratum(example.dataset, example.category), row, tuple(groups))


def split_examples(examples: Iterable[Example], seed: int, *, grouped: bool = True) -> Split:
    """Split each category of each dataset 80/10/10, without duplicates of (query, tools).

    Validation and test each get a tenth of each category, rounded; training gets the rest. If not
    `grouped`, examples are split independently, so that the turns of a conversation may be in
    different parts, as in the paper.
    """
    keys = map(key_of, examples)
    return split_keys([key if grouped else key._replace(groups=()) for key in keys], seed)


def split_keys(keys: Sequence[SplitKey], seed: int) -> Split:
    """Split examples by their keys, as `split_examples` does."""
    rng = random.Random(seed)  # noqa: S311 - a split, not a secret
    by_stratum: dict[Stratum, list[list[int]]] = defaultdict(list)
    for group in _inseparable_groups(keys):
        by_stratum[keys[group[0]].stratum].append(group)
    train: list[int] = []
    validation: list[int] = []
    test: list[int] = []

    def move(groups: list[list[int]], size: int, part: list[int]) -> None:
        """Move groups from the end into a part until it has grown by `size` examples."""
        moved = 0
        while groups and moved < size:
            group = groups.pop()
            part.extend(group)
            moved += len(group)

    for _, members in sorted(by_stratum.items()):
        rng.shuffle(members)
        members.reverse()  # `move` takes groups from the end
        size = sum(map(len, members))
        move(members, round(size * VALIDATION_SHARE), validation)
        move(members, round(size * TEST_SHARE), test)
        move(members, size, train)
    return Split(tuple(train), tuple(validation), tuple(test))


def unique(examples: Iterable[Example]) -> list[int]:
    """Return the index of the first example of each distinct (dataset, query, tools)."""
    return _unique_keys(map(key_of, examples))


def split_table(table: Table, seed: int, *, grouped: bool = True) -> Split:
    """Split the measured rows 80/10/10; add teaching rows without held-out near-duplicates."""
    rows = table.measured_rows
    examples = (table.examples[row] for row in rows)
    parts = split_examples(examples, seed, grouped=grouped).parts()
    split = Split(*(tuple(rows[place] for place in part) for part in parts))
    return replace(split, teaching=teaching(table.examples, split, table.teaching_rows))


def fold_table(table: Table, folds: int, seed: int, *, validated: bool = True) -> tuple[Split, ...]:
    """Return folds of the measured rows, each with teaching rows as in `grouped_folds`."""
    return grouped_folds(table.examples, folds, seed, table.teaching_rows, validated=validated)


def grouped_folds(
    examples: Sequence[Example],
    folds: int,
    seed: int,
    extra: Sequence[int] = (),
    *,
    validated: bool = True,
) -> tuple[Split, ...]:
    """Return `folds` splits that test every unique example exactly once.

    The validation part of a fold is the test part of the next one; if not `validated`, these rows
    are used for training instead. Near-duplicates and the turns of one conversation stay together,
    and categories keep their shares as far as that allows. The rows `extra` do not influence the
    folds and are never held out. Each is a `teaching` row of every fold without a near-duplicate of
    it among the held-out rows.
    """
    is_extra = set(extra)
    own = [row for row in range(len(examples)) if row not in is_extra]
    kept = [own[place] for place in unique(examples[row] for row in own)]
    chosen = [examples[index] for index in kept]
    strata = [f"{example.dataset}/{example.category}" for example in chosen]
    # Imported here for the same reason as in `near_duplicates`.
    from sklearn.model_selection import StratifiedGroupKFold  # noqa: PLC0415

    kfold = StratifiedGroupKFold(folds, shuffle=True, random_state=seed)
    parts = [
        tuple(kept[place] for place in test)
        for _, test in kfold.split(strata, strata, near_duplicates(chosen))
    ]
    groups = near_duplicates(examples) if extra else []
    splits = []
    for number, test in enumerate(parts):
        next_fold = (number + 1) % folds if validated else None
        training = [
            row for i, part in enumerate(parts) if i not in {number, next_fold} for row in part
        ]
        validation = () if next_fold is None else parts[next_fold]
        split = Split(*(tuple(sorted(rows)) for rows in (training, validation, test)))
        splits.append(replace(split, teaching=_without_held_out(groups, split, extra)))
    return tuple(splits)


def teaching(examples: Sequence[Example], split: Split, extra: Sequence[int]) -> tuple[int, ...]:
    """Return the rows of `extra` without near-duplicates of validation or test rows."""
    return _without_held_out(near_duplicates(examples), split, extra) if extra else ()


def _without_held_out(groups: Sequence[int], split: Split, extra: Sequence[int]) -> tuple[int, ...]:
    held_out = {groups[row] for row in split.validation + split.test} if extra else set()
    return tuple(row for row in extra if groups[row] not in held_out)


def near_duplicates(examples: Sequence[Example]) -> list[int]:
    """Return each example's group: equal for near-duplicates and turns of one conversation."""
    # Imported here: the container images that serve and publish lack scipy and scikit-learn.
    from scipy.sparse import coo_matrix  # noqa: PLC0415
    from scipy.sparse.csgraph import connected_components  # noqa: PLC0415
    from sklearn.feature_extraction.text import TfidfVectorizer  # noqa: PLC0415

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


def _unique_keys(keys: Iterable[SplitKey]) -> list[int]:
    first: dict[bytes, int] = {}
    for index, key in enumerate(keys):
        first.setdefault(key.row, index)
    return list(first.values())


def _inseparable_groups(keys: Sequence[SplitKey]) -> list[list[int]]:
    """Return the unique examples in groups that stay together, ordered by their first examples.

    A group belongs to the stratum of its first example.
    """
    kept = _unique_keys(keys)
    parents = list(range(len(keys)))

    def root(index: int) -> int:
        """Return the first example of a group, and shorten the path to it for the next call."""
        while parents[index] != index:
            parents[index] = parents[parents[index]]
            index = parents[index]
        return index

    first: dict[bytes, int] = {}
    for index in kept:
        for name in keys[index].groups:
            one, other = sorted((root(first.setdefault(name, index)), root(index)))
            parents[other] = one
    groups: dict[int, list[int]] = defaultdict(list)
    for index in kept:
        groups[root(index)].append(index)
    return list(groups.values())


def _digest(*parts: str | bytes) -> bytes:
    texts = [part.encode() if isinstance(part, str) else part for part in parts]
    return blake2b(b"\0".join(texts), digest_size=16).digest()


def _normalized_text(messages: Iterable[Json]) -> str:
    """Return a conversation's texts and calls in normalized case and spacing, without call ids."""
    texts = []
    for message in messages:
        content = message.get("content")
        text = content if isinstance(content, str) else orjson.dumps(content).decode()
        made = [call["function"] for call in message.get("tool_calls") or ()]
        calls = orjson.dumps(made).decode() if made else ""
        texts.append(" ".join(f"{message['role']} {text} {calls}".split()).casefold())
    return "\x1f".join(texts)
