"""Canonical forms of texts, which are equal for all spellings of the same value.

The canonical form ignores case, white space, quotes and sentence punctuation. It keeps numbers,
signs, words and their order.
"""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, datetime
from functools import lru_cache

_TOKEN = re.compile(
    r"""
    (?<![\w.)])[-+]\d+(?:\.\d+)?      # a signed number
    | \d+(?:\.\d+)+                   # decimals, versions, addresses
    | [^\W_]+                         # words and whole numbers
    | (?<=\d):(?=\d)                  # times and ratios
    | !(?=[\w=(])                     # negations
    | (?<=\w)\(\)                     # `stop()` is not the same value as `stop`
    | [-+*/^=<>%$€£#@&|~\\()]         # marks that carry meaning
    """,
    re.VERBOSE,
)
_SPELLINGS = (
    (re.compile(r"\b(\d+)(?:st|nd|rd|th)\b"), r"\1"),  # 15th
    (re.compile(r"(?<=\d),(?=\d{3}\b)"), ""),  # 1,500
    (re.compile(r"(?<![\d.\w])\.(?=\d)"), "0."),  # .5
    (re.compile(r"\b([^\W\d_])\.(?=[^\W\d_](?:\.|\b)|\W|$)"), r"\1"),  # D.C.
    (re.compile(r"(?<=[^\W\d_])['\u2019](?=[^\W\d_])"), ""),  # don't
    (re.compile(r"(?<=\d)\s*(?=[ap]m\b)"), " "),  # 7:30pm
    (
        re.compile(r"(?<![\w)\]])\*\*(?=[^\W\d])([^*]+)(?<=[\w.!?])\*\*(?![\w(\[])"),
        r"\1",
    ),  # **bold**
    (re.compile(r"\*\*"), "^"),
)
"""Patterns of alternative spellings of a value, each with its replacement."""

_ADDRESS = re.compile(r"\S+@\S+|\S*[/\\][^\s\d]\S*|[\w-]+\.[^\W\d_]{1,5}")
"""E-mail addresses, paths and file names, in which every character counts."""

_POWERS = str.maketrans({digit: f"^{power}" for power, digit in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")})
_TELEPHONE = re.compile(r"(?:\+?\d{1,3}[ -]?)?(?:\(\d{3}\)|\d{3})[ -]?\d{3}[ -]?\d{4}")
_DATE = re.compile(r"\b(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})\b")
_DAY_FIRST = re.compile(r"\b(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})\b")
_INSTANT = re.compile(
    r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2})?(?:\.\d+)?(?:Z|[+-]\d{2}:?\d{2})?"
)
_FORMULA = re.compile(r"[*^=<>]|\d\s*[-+/]\s*[\dA-Za-z(]|[)]\s*[-+/]")
_LAMBDA = re.compile(r"lambda\s+(\w+)\s*:\s*(.*)", re.DOTALL)
_TIMES = re.compile(r"(?<=\d)\*(?=[^\W\d_]|\()")
_SPACE = re.compile(r"\s")
_WORD_HYPHEN = re.compile(r"(?<=[^\W\d_])-(?=[^\W\d_])")


def same_text(a: str, b: str) -> bool:
    """Return whether two texts have the same canonical form.

    If neither text contains white space, their underscores are compared too: `x_y` is not `x-y`.
    """
    if a == b:
        return True
    if canonical(a) != canonical(b) or (a.count('"') + b.count('"')) % 2:
        return False  # An unclosed quote changes the meaning of a command.
    return a.count("_") == b.count("_") or any(map(_SPACE.search, (a.strip(), b.strip())))


MAX_CACHED_CHARACTERS = 200
"""Longer texts are not cached, so that the cache takes at most some 20 MB."""


def canonical(text: str) -> str:
    """Return a text's canonical form, which is equal for all spellings of the same value."""
    is_short = len(text) <= MAX_CACHED_CHARACTERS
    return _canonical(text) if is_short else _canonical.__wrapped__(text)


@lru_cache(maxsize=1 << 14)
def _canonical(text: str) -> str:
    plain = unicodedata.normalize("NFKC", text.translate(_POWERS)).replace("\u2212", "-")
    folded = plain.casefold().strip()
    if _INSTANT.fullmatch(folded.upper()):
        try:  # ISO 8601, in UTC; a time without a zone is taken as UTC.
            instant = datetime.fromisoformat(folded.upper())
            zoned = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
            return zoned.astimezone(UTC).isoformat()
        except (ValueError, OverflowError):
            return folded.upper()
    if _TELEPHONE.fullmatch(folded):
        return re.sub(r"[() -]", "", folded)
    for pattern, replacement in _SPELLINGS:
        folded = pattern.sub(replacement, folded)
    folded = _DATE.sub(lambda m: f"{m[1]}{int(m[2]):02}{int(m[3]):02}", folded)
    folded = _DAY_FIRST.sub(lambda m: f"{int(m[1]):02} {int(m[2]):02} {m[3]}", folded)
    if _ADDRESS.fullmatch(folded):
        return folded
    if _FORMULA.search(folded):
        function = _LAMBDA.match(folded)
        if function:  # Rename the variable to `x`, also after a digit: `3t` becomes `3x`.
            variable, body = function.groups()
            named = re.compile(rf"(?<![^\W\d_]){variable}(?![^\W_])")
            folded = f"lambda x: {named.sub('x', body)}"
        formula = _TIMES.sub("", re.sub(r"\s+", "", folded))  # `2 * x` is `2x`.
        return " ".join(_normalize_number(word) for word in _TOKEN.findall(formula))
    words = _TOKEN.findall(_WORD_HYPHEN.sub(" ", folded))
    return " ".join(_normalize_number(w) for w in words if w not in {"(", ")"}) or folded


def _normalize_number(word: str) -> str:
    """Return a number in its shortest form: `5.0` as `5`, `+3` as `3`; other words unchanged."""
    if not re.fullmatch(r"[-+]?\d+(?:\.\d+)?", word):
        return word
    if word[0] == "+" and len(word) > 7:
        return word  # This is a telephone number.
    sign, digits = ("-", word[1:]) if word[0] == "-" else ("", word.lstrip("+"))
    whole, _, fraction = digits.partition(".")
    fraction = fraction.rstrip("0")
    return f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"
