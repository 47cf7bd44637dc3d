"""Deduplication and stratified splits (appendix on training configuration)."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

import orjson

from switchcraft_training.records import Example, Json

VALIDATION_SHARE = 0.1
TEST_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Split:
    """Indices of the examples of each part; duplicates are in none.

    `teaching` are those of examples beside, which may be trained on and are never measured.
    """

    train: tuple[int, ...]
    validation: tuple[int, ...]
    test: tuple[int, ...]
    teaching: tuple[int, ...] = ()

    def parts(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return training, validation and test indices."""
        return self.train, self.validation, self.test

    def sizes(self) -> dict[str, int]:
        """Return how many examples each part has."""
        return dict(zip(("train", "validation", "test"), map(len, self.parts()), strict=True))


class Stratum(NamedTuple):
    """What splits are stratified by."""

    dataset: str
    category: str


class Key(NamedTuple):
    """All that splitting needs of an example, so that the example itself need not stay in memory.

    `row` is equal where dataset, query and tools are; `groups` are what must not be parted: equal
    queries, of whichever dataset, and turns of one conversation. All are digests of 16 bytes.
    """

    stratum: Stratum
    row: bytes
    groups: tuple[bytes, ...]


def key_of(example: Example) -> Key:
    """Return an example's key: case and spacing of queries are folded, tools compared in full."""
    query = _folded(example.request["messages"])
    tools = orjson.dumps(example.request["tools"], option=orjson.OPT_SORT_KEYS)
    groups = [_digest("query", query)]
    if example.conversation:
        groups.append(_digest("conversation", example.dataset, example.conversation))
    row = _digest("row", example.dataset, query, tools)
    return Key(Stratum(example.dataset, example.category), row, tuple(groups))


def split_examples(examples: Iterable[Example], seed: int) -> Split:
    """Split each category of a dataset 80/10/10 by a seed; of equal (query, tools), the first.

    Validation and test get the rounded tenth of a category each, training the rest.
    """
    return split_keys(list(map(key_of, examples)), seed)


def split_keys(keys: Sequence[Key], seed: int) -> Split:
    """Split examples by their keys, as above."""
    rng = random.Random(seed)  # noqa: S311 - a split, not a secret
    by_stratum: dict[Stratum, list[list[int]]] = defaultdict(list)
    for group in _groups(keys):
        by_stratum[keys[group[0]].stratum].append(group)
    train: list[int] = []
    validation: list[int] = []
    test: list[int] = []
    for _, members in sorted(by_stratum.items()):
        rng.shuffle(members)
        members.reverse()  # groups are taken off the end
        size = sum(map(len, members))
        _move(members, round(size * VALIDATION_SHARE), validation)
        _move(members, round(size * TEST_SHARE), test)
        _move(members, size, train)
    return Split(tuple(train), tuple(validation), tuple(test))


def unique(examples: Iterable[Example]) -> list[int]:
    """Return the indices of the first example of each (query, tools) of a dataset."""
    return _unique(list(map(key_of, examples)))


def _unique(keys: Sequence[Key]) -> list[int]:
    first: dict[bytes, int] = {}
    for index, key in enumerate(keys):
        first.setdefault(key.row, index)
    return list(first.values())


def _groups(keys: Sequence[Key]) -> list[list[int]]:
    """Return the unique examples, in groups that must not be parted, by their first examples.

    A group counts for the stratum of its first example.
    """
    kept = _unique(keys)
    parents = list(range(len(keys)))
    first: dict[bytes, int] = {}
    for index in kept:
        for name in keys[index].groups:
            one, other = sorted(_root(parents, i) for i in (first.setdefault(name, index), index))
            parents[other] = one
    groups: dict[int, list[int]] = defaultdict(list)
    for index in kept:
        groups[_root(parents, index)].append(index)
    return list(groups.values())


def _root(parents: list[int], index: int) -> int:
    """Return the first example of a group; the way to it is halved for the next time."""
    while parents[index] != index:
        parents[index] = parents[parents[index]]
        index = parents[index]
    return index


def _move(groups: list[list[int]], size: int, part: list[int]) -> None:
    """Move groups off the end into a part until it has grown by `size` examples."""
    moved = 0
    while groups and moved < size:
        group = groups.pop()
        part.extend(group)
        moved += len(group)


def _digest(*parts: str | bytes) -> bytes:
    texts = [part.encode() if isinstance(part, str) else part for part in parts]
    return blake2b(b"\0".join(texts), digest_size=16).digest()


def _folded(messages: Iterable[Json]) -> str:
    """Return what a conversation says and calls, without the names that calls were given."""
    return "\x1f".join(
        " ".join(f"{m['role']} {_text(m.get('content'))} {_calls(m)}".split()).casefold()
        for m in messages
    )


def _text(content: Json) -> str:
    return content if isinstance(content, str) else orjson.dumps(content).decode()


def _calls(message: Json) -> str:
    made = [call["function"] for call in message.get("tool_calls") or ()]
    return orjson.dumps(made).decode() if made else ""
