"""Deduplication of queries, and folds that keep near-duplicates together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
import orjson

from switchcraft_training.config import Grouping
from switchcraft_training.data.duplicates import (
    Groups,
    join_groups,
    near_duplicates,
    shorten,
    similar_tools,
    user_text,
)
from switchcraft_training.data.table import LAYERS, Table
from switchcraft_training.errors import UnbalancedFoldsError
from switchcraft_training.records import Example

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


def row_digest(example: Example) -> bytes:
    """Return a digest of dataset, query and tools, in 16 bytes.

    Case and spacing of the query do not matter; those of tools do.
    """
    texts = []
    for message in example.request["messages"]:
        content = message.get("content")
        text = content if isinstance(content, str) else orjson.dumps(content).decode()
        made = [call["function"] for call in message.get("tool_calls") or ()]
        calls = orjson.dumps(made).decode() if made else ""  # without their ids
        texts.append(" ".join(f"{message['role']} {text} {calls}".split()).casefold())
    query = "\x1f".join(texts)
    tools = orjson.dumps(example.request["tools"], option=orjson.OPT_SORT_KEYS)
    parts = (b"row", example.dataset.encode(), query.encode(), tools)
    return blake2b(b"\0".join(parts), digest_size=16).digest()


def query_digest(example: Example) -> bytes:
    """Return a digest of query and tools, which is the same in every dataset, in 16 bytes."""
    return row_digest(replace(example, dataset=""))


def unique(examples: Iterable[Example]) -> list[int]:
    """Return the index of the first of equal examples: (query, tools) of a dataset."""
    first: dict[bytes, int] = {}
    for index, example in enumerate(examples):
        first.setdefault(row_digest(example), index)
    return list(first.values())


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


def fold_table(table: Table, folds: int, seed: int, *, validated: bool = True) -> tuple[Split, ...]:
    """Return `folds` splits that test every unique measured row exactly once.

    The validation part of a fold is the test part of the next one; if not `validated`, these rows
    are used for training instead. Rows with equal `own_groups` stay together, and categories keep
    their shares as far as that allows. The other rows do not influence the folds and are never held
    out. Each is a `teaching` row of every fold without a row of its group in `groups` among the
    held-out rows.

    Raises UnbalancedFoldsError if a group is too large for folds of nearly equal size.
    """
    own = table.measured_rows
    kept = np.array([own[place] for place in unique(table.examples[row] for row in own)])
    assigned = _assign_folds(table, kept, folds, seed)
    _require_balance(table, kept, np.bincount(assigned, minlength=folds))
    parts = [tuple(kept[assigned == number].tolist()) for number in range(folds)]
    splits = []
    for number, test in enumerate(parts):
        next_fold = (number + 1) % folds if validated else None
        training = [
            row for i, part in enumerate(parts) if i not in {number, next_fold} for row in part
        ]
        validation = () if next_fold is None else parts[next_fold]
        held_out = np.unique(table.groups[list(validation + test)])
        is_free = ~table.is_measured & ~np.isin(table.groups, held_out)
        teaching = tuple(np.flatnonzero(is_free).tolist())
        splits.append(Split(tuple(sorted(training)), validation, test, teaching))
    return tuple(splits)


def last_tenth(table: Table, seed: int) -> tuple[int, ...]:
    """Return about a tenth of the measured rows, without parting rows of equal `own_groups`.

    It is the last of ten folds, because large groups are in the first ones.
    """
    rows = np.array(table.measured_rows)
    return tuple(rows[_assign_folds(table, rows, 10, seed) == 9].tolist())


def _assign_folds(table: Table, rows: Groups, folds: int, seed: int) -> Groups:
    chosen = [table.examples[row] for row in rows]
    strata = [f"{example.dataset}/{example.category}" for example in chosen]
    return grouped_folds(strata, table.own_groups[rows], folds, seed)


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
