"""Canonical forms of strings: what may differ between two ways to write the same value.

Case, white space, quotes and sentence punctuation may; numbers, signs, order and words may not.
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
    | (?<=\w)\(\)                     # `stop()` is another value than `stop`
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
"""Ways to write the same thing."""

_ADDRESS = re.compile(r"\S+@\S+|\S*[/\\][^\s\d]\S*|[\w-]+\.[^\W\d_]{1,5}")
"""E-mail addresses, paths and file names: every mark in them counts."""

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
    """Tell whether two strings are one value: equal in their canonical form.

    Of two names without white space each underscore counts: `x_y` is not `x-y`.
    """
    if a == b:
        return True
    if canonical(a) != canonical(b) or (a.count('"') + b.count('"')) % 2:
        return False  # a quote that is not closed is another command
    return a.count("_") == b.count("_") or any(map(_SPACE.search, (a.strip(), b.strip())))


@lru_cache(maxsize=1 << 16)
def canonical(text: str) -> str:
    """Return the form in which equal values are equal strings."""
    plain = unicodedata.normalize("NFKC", text.translate(_POWERS)).replace("\u2212", "-")
    folded = plain.casefold().strip()
    if _INSTANT.fullmatch(folded.upper()):
        return _instant(folded.upper())
    if _TELEPHONE.fullmatch(folded):
        return re.sub(r"[() -]", "", folded)
    for pattern, replacement in _SPELLINGS:
        folded = pattern.sub(replacement, folded)
    folded = _DATE.sub(lambda m: f"{m[1]}{int(m[2]):02}{int(m[3]):02}", folded)
    folded = _DAY_FIRST.sub(lambda m: f"{int(m[1]):02} {int(m[2]):02} {m[3]}", folded)
    if _ADDRESS.fullmatch(folded):
        return folded
    if _FORMULA.search(folded):
        return " ".join(_number(word) for word in _TOKEN.findall(_formula(folded)))
    words = _TOKEN.findall(_WORD_HYPHEN.sub(" ", folded))
    return " ".join(_number(word) for word in words if word not in {"(", ")"}) or folded


def _formula(text: str) -> str:
    """Write a formula without spaces, `2*x` as `2x`, and a lambda's variable as `x`."""
    function = _LAMBDA.match(text)
    if function:
        variable, body = function.groups()
        # After a digit too: the variable of `3t` is `t`.
        named = re.compile(rf"(?<![^\W\d_]){variable}(?![^\W_])")
        text = f"lambda x: {named.sub('x', body)}"
    return _TIMES.sub("", re.sub(r"\s+", "", text))


def _number(word: str) -> str:
    """Write a number one way: `5.0` as `5`, `+3` as `3`."""
    if not re.fullmatch(r"[-+]?\d+(?:\.\d+)?", word):
        return word
    if word[0] == "+" and len(word) > 7:
        return word  # a telephone number
    sign, digits = ("-", word[1:]) if word[0] == "-" else ("", word.lstrip("+"))
    whole, _, fraction = digits.partition(".")
    fraction = fraction.rstrip("0")
    return f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"


def _instant(text: str) -> str:
    """Write an ISO-8601 instant in UTC; one without a zone is taken as UTC."""
    try:
        instant = datetime.fromisoformat(text)
        zoned = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
        return zoned.astimezone(UTC).isoformat()
    except (ValueError, OverflowError):
        return text
