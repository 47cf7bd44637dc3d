"""Whether two texts of several words say the same: the checker's last resort (paper, 3.2).

A cosine alone is no judge: `flight to Paris` and `flight from Paris` are at 0.98. So what must not
be bridged is compared first, word by word, and the cosine of the whole has the last word.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from switchcraft_training.checking.strings import canonical

Embed = Callable[[str], NDArray[np.float32]]
"""Text -> its vector of length 1."""

ALIKE_FROM = 0.85
"""The paper's threshold on the cosine of two texts."""

SYNONYMS_FROM = 0.82
"""On the cosine of two words. MiniLM: buy/purchase 0.87, movie/film 0.84, recipe/recipes 0.90; but
buy/sell 0.76, small/large 0.79, cheap/expensive 0.80, ascending/descending 0.81."""

_FILLERS: Final = frozenset(
    "a an the of for in at with about and is are was be been am please some this that these those "
    "my your our their his her its i me you we what which who how do does can could would will "
    "s there regarding concerning".split()
)
"""Words that a paraphrase may add and drop."""

_DECISIVE: Final = frozenset(
    "no not never none nothing nobody without neither nor cannot dont doesnt didnt isnt arent "
    "wasnt wont cant hasnt havent except unless only all any every each more less most least than "
    "from to into onto out off on up down over under above below before after until since between "
    "by via per left right north south east west first second third last next previous "
    "yesterday today tomorrow inbound outbound "
    "monday tuesday wednesday thursday friday saturday sunday "
    "january february march april may june july august september october november december "
    "zero one two three four five six seven eight nine ten eleven twelve hundred thousand million "
    "half double twice once husband wife mother father male female ascending descending".split()
)
"""Words that a paraphrase must have too: negations, directions, numbers, days, quantities, and
opposites that an encoder takes for synonyms (husband/wife 0.87)."""

_OPPOSITE = re.compile(r"(?:un|in|im|il|ir|dis|non|de)(\w{3,})")

_PLAIN = re.compile(r"[^\W\d_]+")
_NAME = re.compile(r"(?<=\s)[^\W\d_a-z][\w']*")
_CODE = re.compile(r"[_@/\\<>{}\[\]=|`]")
"""What identifiers, addresses, paths and formulas are written with."""


class Paraphrases:
    """Tells whether a given text of several words means the expected one."""

    def __init__(self, embed: Embed) -> None:
        self._embed = lru_cache(maxsize=1 << 15)(embed)

    def __call__(self, given: str, want: str) -> bool:
        """Compare what must be equal first; only then the embeddings."""
        if len(want.split()) < 2 or _CODE.search(given) or _CODE.search(want):
            return False
        pair = canonical(given).split(), canonical(want).split()
        if _decisive(pair[0]) != _decisive(pair[1]):
            return False
        if not self._have_counterparts(*pair, names=_names(given) | _names(want)):
            return False
        return self._cosine(given, want) >= ALIKE_FROM

    def _have_counterparts(self, a: Sequence[str], b: Sequence[str], names: frozenset[str]) -> bool:
        """Tell whether each word that only one text has is a synonym of one of the other's.

        The same words in another order are another statement (`dog bites man`), unless other
        fillers make up for it (`team meeting`, `meeting with the team`).
        """
        content = [[word for word in side if word not in _FILLERS] for side in (a, b)]
        only_a, only_b = (_without(*content), _without(*reversed(content)))
        if not only_a and not only_b:
            fillers = [[word for word in side if word in _FILLERS] for side in (a, b)]
            return content[0] == content[1] or fillers[0] != fillers[1]
        return all(
            any(self._are_synonyms(word, other, names) for other in others)
            for words, others in ((only_a, only_b), (only_b, only_a))
            for word in words
        )

    def _are_synonyms(self, a: str, b: str, names: frozenset[str]) -> bool:
        """Compare two words; a name is itself alone, `illegal` the opposite of `legal`."""
        if a in names or b in names or _are_opposites(a, b) or _are_opposites(b, a):
            return False
        return self._cosine(a, b) >= SYNONYMS_FROM

    def _cosine(self, a: str, b: str) -> float:
        return float(self._embed(a) @ self._embed(b))


def _decisive(words: Sequence[str]) -> Counter[str]:
    """Return the words that must be equal: those above, and whatever is not letters alone."""
    return Counter(word for word in words if word in _DECISIVE or not _PLAIN.fullmatch(word))


def _are_opposites(a: str, b: str) -> bool:
    match = _OPPOSITE.fullmatch(a)
    return match is not None and match[1] == b


def _names(text: str) -> frozenset[str]:
    """Return the words with a capital, but for a first one, which any word may have."""
    return frozenset(word for name in _NAME.findall(text) for word in canonical(name).split())


def _without(words: Sequence[str], others: Sequence[str]) -> list[str]:
    return list((Counter(words) - Counter(others)).elements())
