"""Words as the counts compare them."""

from __future__ import annotations

import re
from collections.abc import Iterable

Stems = frozenset[str]

STEM_CHARS = 5
"""Words are compared by their first letters, so that `forecasts` meets `forecast`."""

WORD = re.compile(r"[a-z]+|\d+")
_LETTERS = re.compile(r"[a-z]{2,}")
_IDENTIFIER_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")

FUNCTION_WORDS = frozenset(
    "the a an of to in for and or with is are on at by from that this be my me i you can what "
    "how it as your would like".split()
)
_EMPTY_WORDS = FUNCTION_WORDS | frozenset(
    "we our us they them their there here these those some any all do does did could should will "
    "please want need know let also then just about into out up its have has had was were been "
    "being if but not no so than more most very who whom which when where why".split()
)
"""Words that say nothing of what a query is about."""


def stems(words: Iterable[str]) -> Stems:
    """Return the stems of lower-case words, function words left out."""
    return _stems_of(set(words) - FUNCTION_WORDS)


def content(text: str) -> Stems:
    """Return the stems of a text's words that say what it is about."""
    if not text:
        return frozenset()
    return _stems_of(set(_LETTERS.findall(text.lower())) - _EMPTY_WORDS)


def _stems_of(words: Iterable[str]) -> Stems:
    return frozenset([word[:STEM_CHARS] for word in words])


def identifier_stems(name: str) -> Stems:
    """Return the stems of a name's words: `getUserById` and `get_user_by_id` have the same."""
    return frozenset(word.lower()[:STEM_CHARS] for word in _IDENTIFIER_WORD.findall(name))


def overlap(part: Stems, whole: Stems) -> float:
    """Return the share of `part` that is in `whole`."""
    return len(part & whole) / max(1, len(part))


def jaccard(one: Stems, other: Stems) -> float:
    """Return how much two sets of stems have in common."""
    common = len(one & other)
    return common / max(1, len(one) + len(other) - common)
