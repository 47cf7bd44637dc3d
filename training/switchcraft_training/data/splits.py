"""Deduplication, stratified splits, and folds that keep near-duplicates together.

The paper describes the splits in its appendix on training configuration.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Literal, NamedTuple

import numpy as np
import orjson

from router_service.apis.conversation import Json
from switchcraft_training.config import DistinctWithin, Grouping
from switchcraft_training.data.duplicates import (
    Groups,
    join_groups,
    near_duplicates,
    shorten,
    similar_tools,
    user_text,
)
from switchcraft_training.data.table import LAYERS, Flags, Table
from switchcraft_training.errors import UnbalancedFoldsError
from switchcraft_training.records import Example

VALIDATION_SHARE = 0.1
TEST_SHARE = 0.1
BALANCE = 0.1
TOLERATED_ROWS = 5
"""The largest fold may have `BALANCE` more rows than the smallest one, or a typical group's rows
more. `TOLERATED_ROWS` more are always accepted, because pools of less than 250 rows can rarely be
divided more evenly."""


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


Part = Literal["test", "validation"]
"""A set of rows whose results have a report."""


@dataclass(frozen=True, slots=True)
class Division:
    """How a protocol divides the rows: who predicts which rows, what is reported, and what ships.

    A router is trained for each of `splits`, and predicts its test rows. `rows` are the test rows
    of all splits, in the order of results. The report of each of `parts` has the results for the
    test rows of its splits. `shipped` are the rows that the artifact's router has learned from.
    """

    splits: tuple[Split, ...]
    rows: tuple[int, ...]
    parts: Mapping[Part, tuple[Split, ...]]
    shipped: Split

    @classmethod
    def of_folds(cls, table: Table, folds: tuple[Split, ...]) -> Division:
        """Return a division in which folds are measured, and a router of all rows ships."""
        everything = Split(table.measured_rows, (), (), table.teaching_rows)
        return cls(folds, table.measured_rows, {"test": folds}, everything)

    @classmethod
    def of_split(cls, split: Split, *, validated: bool) -> Division:
        """Return a division in which the one router that is measured ships.

        It also predicts the validation rows, which stop its training if `validated`.
        """
        held_out = (*split.validation, *split.test)
        trained = replace(split, validation=split.validation if validated else (), test=held_out)
        on_validation = replace(split, validation=(), test=split.validation)
        parts: Mapping[Part, tuple[Split, ...]] = {"test": (split,), "validation": (on_validation,)}
        return cls((trained,), held_out, parts, split)

    @property
    def ships_measured(self) -> bool:
        """Whether the artifact's router is the one that is measured."""
        return len(self.splits) == 1

    @property
    def tuning_part(self) -> Part:
        """The part on which the calibration, and rules that reach goals, are chosen."""
        return "validation" if "validation" in self.parts else "test"

    @property
    def order(self) -> Groups:
        """The place of each of `rows` among the splits' test rows, one split after the other."""
        tested = [row for split in self.splits for row in split.test]
        places = {row: place for place, row in enumerate(tested)}
        return np.array([places[row] for row in self.rows])

    def is_in(self, part: Part) -> Flags:
        """Return whether each of `rows` is in a part, (rows,)."""
        return np.isin(self.rows, [row for split in self.parts[part] for row in split.test])


class Stratum(NamedTuple):
    """A category of a dataset; every category is split in the same proportions."""

    dataset: str
    category: str


class SplitKey(NamedTuple):
    """The properties of an example that decide its part of a split.

    With its key, an example can be split without staying in memory. `row` is equal if dataset,
    query and tools are equal, and the category too if duplicates are those of one category.
    Examples that share an element of `groups` stay in one part: equal queries of any dataset, and
    turns of one conversation. `row` and `groups` are digests of 16 bytes.
    """

    stratum: Stratum
    row: bytes
    groups: tuple[bytes, ...]


def key_of(example: Example, within: DistinctWithin = "dataset") -> SplitKey:
    """Return an example's key. Case and spacing of the query do not matter; those of tools do."""
    query = _normalized_text(example.request["messages"])
    tools = orjson.dumps(example.request["tools"], option=orjson.OPT_SORT_KEYS)
    groups = [_digest("query", query)]
    if example.conversation:
        groups.append(_digest("conversation", example.dataset, example.conversation))
    place = (example.dataset, example.category) if within == "category" else (example.dataset,)
    row = _digest("row", *place, query, tools)
    return SplitKey(Stratum(example.dataset, example.category), row, tuple(groups))


def query_digest(example: Example) -> bytes:
    """Return a digest of query and tools, which is the same in every dataset, in 16 bytes."""
    return key_of(replace(example, dataset="")).row


def split_examples(
    examples: Iterable[Example],
    seed: int,
    *,
    grouped: bool = True,
    within: DistinctWithin = "dataset",
) -> Split:
    """Split each category of each dataset 80/10/10, without duplicates of (query, tools).

    Validation and test each get a tenth of each category, rounded; training gets the rest. If not
    `grouped`, examples are split independently, so that the turns of a conversation may be in
    different parts, as in the paper.
    """
    keys = (key_of(example, within) for example in examples)
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


def unique(examples: Iterable[Example], within: DistinctWithin = "dataset") -> list[int]:
    """Return the index of the first of equal examples: (query, tools) of a dataset or category."""
    return _unique_keys(key_of(example, within) for example in examples)


def merge_equal_queries(table: Table) -> Table:
    """Return the table with one row for all rows of equal (query, tools), of any dataset.

    The first of these rows stays, in its place. What is not recorded in it comes from the other
    rows, in their order: all that is recorded of an arm comes from one row.
    """
    place_of: dict[bytes, int] = {}
    places = [place_of.setdefault(query_digest(each), len(place_of)) for each in table.examples]
    _, first = np.unique(places, return_index=True)
    merged = table.take(first)
    for row in np.setdiff1d(np.arange(len(table)), first):
        place = places[row]
        is_new = np.isnan(merged.correct[place]) & ~np.isnan(table.correct[row])
        for layer in LAYERS:
            getattr(merged, layer)[place, is_new] = getattr(table, layer)[row, is_new]
        if np.isnan(merged.expected_calls[place]):
            merged.expected_calls[place] = table.expected_calls[row]
    return merged


def group_table(table: Table, grouped_by: Grouping = "queries") -> Table:
    """Return the table with the groups of its rows that stay in one fold."""
    group = near_duplicates if grouped_by == "queries" else similar_queries_and_tools
    groups = group(table.examples)
    own_groups = groups
    if not table.is_measured.all():
        measured = [table.examples[row] for row in table.measured_rows]
        own_groups = groups + len(table)  # no measured row has one of these numbers
        own_groups[table.is_measured] = group(measured)
    return replace(table, groups=groups, own_groups=own_groups)


def similar_queries_and_tools(examples: Sequence[Example]) -> Groups:
    """Return each example's group: equal for near-duplicates, and for nearly the same tools."""
    return join_groups(near_duplicates(examples), similar_tools(examples))


def split_table(
    table: Table, seed: int, *, grouped: bool = True, within: DistinctWithin = "dataset"
) -> Split:
    """Split the measured rows 80/10/10; add teaching rows without held-out near-duplicates."""
    rows = table.measured_rows
    examples = (table.examples[row] for row in rows)
    parts = split_examples(examples, seed, grouped=grouped, within=within).parts()
    split = Split(*(tuple(rows[place] for place in part) for part in parts))
    return replace(split, teaching=_teaching(table, split))


def fold_table(
    table: Table,
    folds: int,
    seed: int,
    *,
    validated: bool = True,
    within: DistinctWithin = "dataset",
) -> tuple[Split, ...]:
    """Return `folds` splits that test every unique measured row exactly once.

    The validation part of a fold is the test part of the next one; if not `validated`, these rows
    are used for training instead. Rows with equal `own_groups` stay together, and categories keep
    their shares as far as that allows. The other rows do not influence the folds and are never held
    out. Each is a `teaching` row of every fold without a row of its group in `groups` among the
    held-out rows.

    Raises UnbalancedFoldsError if a group is too large for folds of nearly equal size.
    """
    own = table.measured_rows
    distinct = unique((table.examples[row] for row in own), within)
    kept = np.array([own[place] for place in distinct])
    chosen = [table.examples[row] for row in kept]
    strata = [f"{example.dataset}/{example.category}" for example in chosen]
    assigned = grouped_folds(strata, table.own_groups[kept], folds, seed)
    _require_balance(table, kept, np.bincount(assigned, minlength=folds))
    parts = [tuple(kept[assigned == number].tolist()) for number in range(folds)]
    splits = []
    for number, test in enumerate(parts):
        next_fold = (number + 1) % folds if validated else None
        training = [
            row for i, part in enumerate(parts) if i not in {number, next_fold} for row in part
        ]
        validation = () if next_fold is None else parts[next_fold]
        split = Split(tuple(sorted(training)), validation, test)
        splits.append(replace(split, teaching=_teaching(table, split)))
    return tuple(splits)


def grouped_folds(strata: Sequence[str], groups: Groups, folds: int, seed: int) -> Groups:
    """Return the fold of each row, (rows,); rows of one group are in one fold.

    Groups are placed from the largest to the smallest, and in random order among equal sizes. A
    group goes to the fold with the fewest rows of its strata, among the folds that it does not fill
    beyond the mean size; if no fold has room, the group goes to the smallest one.
    """
    _, columns = np.unique(strata, return_inverse=True)
    _, groups, group_sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = np.argsort(groups, kind="stable")
    members = np.split(order, np.cumsum(group_sizes)[:-1])
    rng = np.random.default_rng(seed)
    mean_size = -(-len(groups) // folds)
    sizes = np.zeros(folds, dtype=np.int64)
    counts = np.zeros((columns.max(initial=0) + 1, folds), dtype=np.int64)
    assigned = np.empty(len(groups), dtype=np.int64)
    for group in np.lexsort((rng.random(len(members)), -group_sizes)):
        rows = members[group]
        fits = sizes + len(rows) <= mean_size
        if not fits.any():
            fits = sizes == sizes.min()
        own = counts[columns[rows]].sum(axis=0)
        fold = np.lexsort((sizes, own, ~fits))[0]
        assigned[rows] = fold
        sizes[fold] += len(rows)
        np.add.at(counts[:, fold], columns[rows], 1)
    return assigned


def _require_balance(table: Table, rows: Groups, sizes: Groups) -> None:
    """Raise UnbalancedFoldsError if the folds' sizes, (folds,), differ too much."""
    _, places, group_sizes = np.unique(
        table.own_groups[rows], return_inverse=True, return_counts=True
    )
    tolerated = max(BALANCE * sizes.min(), np.median(group_sizes), TOLERATED_ROWS)
    if sizes.min() > 0 and sizes.max() - sizes.min() <= tolerated:
        return
    largest = int(group_sizes.argmax())
    example = table.examples[rows[int(np.argmax(places == largest))]]
    raise UnbalancedFoldsError(
        tuple(sizes.tolist()), int(group_sizes[largest]), shorten(user_text(example))
    )


def _teaching(table: Table, split: Split) -> tuple[int, ...]:
    """Return the rows that are not measured and share no group with validation or test rows."""
    held_out = np.unique(table.groups[list(split.validation + split.test)])
    is_free = ~table.is_measured & ~np.isin(table.groups, held_out)
    return tuple(np.flatnonzero(is_free).tolist())


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
