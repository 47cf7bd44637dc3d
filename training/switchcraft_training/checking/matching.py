"""Assignment: which of the things made answers which of the things expected."""

from __future__ import annotations

from collections.abc import Callable


def match_all(size: int, fits: Callable[[int, int], bool]) -> bool:
    """Tell whether `size` wants and as many items can be paired, `fits(want, item)` in each pair.

    Augmenting paths (Kuhn's algorithm). A want tries the item of its own place first, so that
    equal lists take one comparison an item.
    """
    taken_by: dict[int, int] = {}
    known: dict[tuple[int, int], bool] = {}

    def fit(want: int, item: int) -> bool:
        if (want, item) not in known:
            known[want, item] = fits(want, item)
        return known[want, item]

    def place(want: int, tried: set[int]) -> bool:
        for item in (want, *range(want), *range(want + 1, size)):
            if item in tried or not fit(want, item):
                continue
            tried.add(item)
            if item not in taken_by or place(taken_by[item], tried):
                taken_by[item] = want
                return True
        return False

    return all(place(want, set()) for want in range(size))
