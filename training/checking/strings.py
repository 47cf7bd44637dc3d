"""Canonical forms of strings: what may differ between two ways to write the same value.

Case, white space, quotes and sentence punctuation may; numbers, signs, order and words may not.
"""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, datetime

_TOKEN = re.compile(
    r"""
    (?<![\w.)])[-+]\d+(?:\.\d+)?      # a signed number
    | \d+(?:\.\d+)+                   # decimals, versions, addresses
    | [^\W_]+                         # words and whole numbers
    | [-+*/^=<>%$€£#@&|~\\()]         # marks that carry meaning
    """,
    re.VERBOSE,
)
_ORDINAL = re.compile(r"\b(\d+)(?:st|nd|rd|th)\b")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}\b)")
_DATE = re.compile(r"\b(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})\b")
_INSTANT = re.compile(
    r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2})?(?:\.\d+)?(?:Z|[+-]\d{2}:?\d{2})?"
)
_FORMULA = re.compile(r"[*^=<>]|\d\s*[-+/]\s*[\dA-Za-z(]|[)]\s*[-+/]")
_LAMBDA = re.compile(r"lambda\s+(\w+)\s*:\s*(.*)", re.DOTALL)
_TIMES = re.compile(r"(?<=\d)\*(?=[^\W\d_]|\()")
_WORD_HYPHEN = re.compile(r"(?<=[^\W\d_])-(?=[^\W\d_])")


def canonical(text: str) -> str:
    """Return the form in which equal values are equal strings."""
    folded = unicodedata.normalize("NFKC", text).casefold().strip()
    if _INSTANT.fullmatch(folded.upper()):
        return _instant(folded.upper())
    folded = _THOUSANDS.sub("", _ORDINAL.sub(r"\1", folded)).replace("**", "^")
    folded = _DATE.sub(lambda m: f"{m[1]}{int(m[2]):02}{int(m[3]):02}", folded)
    if _FORMULA.search(folded):
        return " ".join(_number(word) for word in _TOKEN.findall(_formula(folded)))
    words = _TOKEN.findall(_WORD_HYPHEN.sub(" ", folded))
    return " ".join(_number(word) for word in words if word not in "()") or folded


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
    sign, digits = ("-", word[1:]) if word[0] == "-" else ("", word.lstrip("+"))
    whole, _, fraction = digits.partition(".")
    fraction = fraction.rstrip("0")
    return f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"


def _instant(text: str) -> str:
    """Write an ISO-8601 instant in UTC; one without a zone is taken as UTC."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        return text
    zoned = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    return zoned.astimezone(UTC).isoformat()
