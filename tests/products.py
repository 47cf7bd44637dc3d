"""Products of parameters: whole in `make check-hostile`, and pairwise in `make test`.

Most defects that depend on a combination of parameters depend on two of them. So the quick form of
a test runs as few cases as show every combination of two values. A test whose parameters interact
in larger groups names these groups, too.
"""

from __future__ import annotations

import heapq
import os
import random
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import combinations
from operator import itemgetter
from typing import Any, TypeVar

Case = TypeVar("Case")
Fields = TypeVar("Fields", bound=tuple[Any, ...])

IS_LONG = os.environ.get("HOSTILE") == "long"
"""Whether the tests run in their long form."""


def covering(cases: Iterable[Case], *groups: Callable[[Case], Hashable]) -> list[Case]:
    """Return few of the cases that together have every value that a group has in any case.

    Each step takes a case with the most new values. Which of several is random, so that no value is
    preferred, but the same in every run.
    """
    every = list(cases)
    seen: set[tuple[int, Hashable]] = set()

    def new_values(case: Case) -> set[tuple[int, Hashable]]:
        return {(place, group(case)) for place, group in enumerate(groups)} - seen

    # The number of new values of a case only falls, so that an old number is an upper bound.
    order = random.Random(len(every)).sample(range(len(every)), len(every))
    waiting = [(-len(groups), rank, place) for rank, place in enumerate(order)]
    taken = []
    while waiting:
        _, rank, place = heapq.heappop(waiting)
        found = new_values(every[place])
        if found and waiting and (-len(found), rank, place) > waiting[0]:
            heapq.heappush(waiting, (-len(found), rank, place))
        elif found:
            seen |= found
            taken.append(place)
    return [every[place] for place in sorted(taken)]


def pairwise(cases: Sequence[Fields], *groups: Callable[[Fields], Hashable]) -> list[Fields]:
    """Return all cases in the long form, and those that have every pair of fields in the quick one.

    `groups` are further combinations that the quick form has, such as three fields.
    """
    if IS_LONG:
        return list(cases)
    pairs = [itemgetter(*fields) for fields in combinations(range(len(cases[0])), 2)]
    return covering(cases, *pairs, *groups)
