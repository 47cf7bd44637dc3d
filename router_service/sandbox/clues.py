"""The words, numbers, names and quoted strings of a query, to fill arguments from."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

_T = TypeVar("_T")

READ_CHARACTERS = 8000
"""How much of a query is read; what follows changes no answer."""

_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# No digit, letter, dash, slash or colon on either side: parts of dates, times and names are no
# numbers. 15 digits are exact as a JSON number everywhere.
_NUMBER = re.compile(r"(?<![\w.,:/-])-?\d{1,15}(?:\.\d{1,15})?(?!\w|[-:/.,]\d)")
_QUOTED = re.compile(
    r"\"([^\"\n]{1,200})\"|\u201c([^\u201d\n]{1,200})\u201d|`([^`\n]{1,200})`"
    r"|(?<!\w)'([^'\n]{1,200})'(?!\w)"
)
_NAME = re.compile(r"(?<=[^.!?\s] )[A-Z][\w-]+(?: [A-Z][\w-]+)*")
_STOP_WORDS = frozenset(
    "a an and are as at be by can do does for from get give how i if in is it list make me my of "
    "on or our please set show tell that the them this to use we what when where which who will "
    "with you your".split()
)


@lru_cache(maxsize=8192)
def words(text: str) -> frozenset[str]:
    """Return what a text speaks of: its words in lower case and singular, without stop words.

    `getStockPrices` and `get_stock_price` speak of the same.
    """
    found = _WORD.findall(_HUMP.sub(" ", text).lower())
    return frozenset(_singular(word) for word in found if word not in _STOP_WORDS)


def _singular(word: str) -> str:
    plural = len(word) > 3 and word.endswith("s") and not word.endswith("ss")
    return word[:-1] if plural else word


class Clues:
    """What a query offers to an argument; each number, name and quoted string is given once."""

    def __init__(self, query: str) -> None:
        self.text = query[:READ_CHARACTERS]
        self._folded = self.text.casefold()
        self._numbers = [_number(text) for text in _NUMBER.findall(self.text)]
        self._quoted = ["".join(groups) for groups in _QUOTED.findall(self.text)]
        self._names = _NAME.findall(_QUOTED.sub(" ", self.text))

    def take_number(self, fits: Callable[[float], bool]) -> float | None:
        """Take the first number left that fits; whole ones are of type int."""
        return _take(self._numbers, fits)

    def take_quoted(self, fits: Callable[[str], bool]) -> str | None:
        """Take the first quoted string left that fits."""
        return _take(self._quoted, fits)

    def take_name(self, fits: Callable[[str], bool]) -> str | None:
        """Take the first capitalised name left that fits."""
        return _take(self._names, fits)

    def mentions(self, value: object) -> bool:
        """Tell whether the query says a string as a word of its own, in any case."""
        if not isinstance(value, str) or not value:
            return False
        folded = value.casefold()
        if folded not in self._folded:
            return False
        return re.search(rf"(?<!\w){re.escape(folded)}(?!\w)", self._folded) is not None


def _number(text: str) -> float:
    return float(text) if "." in text else int(text)


def _take(values: list[_T], fits: Callable[[_T], bool]) -> _T | None:
    for index, value in enumerate(values):
        if fits(value):
            return values.pop(index)
    return None
