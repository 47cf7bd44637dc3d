"""Counts of a query's text: how much it says, lists, repeats and asks for."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property

from router_service.core.features.words import WORD, Stems, content, stems

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_SEQUENCE = re.compile(
    r"\b(?:then|also|next|after|finally|additionally|second|third|another|both|each"
    r"|respectively|two|three|multiple|same)\b"
)
_ITEM = r"[\w'°$.%-]+(?: [\w'°$.%-]+){0,3}"
_LIST = re.compile(
    rf"(?<![\w'°$.%-])(?:((?:{_ITEM}, )+(?:{_ITEM})?,? ?(?:and|or|&) )|(?:{_ITEM}, )+)"
)
"""`Paris, New York and `: what stands between commas has up to four words.

Commas that no `and` follows are passed over at once: no list starts among them.
"""
_NAME = re.compile(r"[A-Z][\w'-]+(?:,? (?:of|de|the|[A-Z][\w'-]+))*")
_QUOTED = re.compile(r'"[^"]+"|\'[^\'\n]{2,}?\'|`[^`]+`')
_BRACKETED = re.compile(r"\[[^\]]+\]")
_DEMANDS = (
    "calculate|find|get|determine|compute|show|give|tell|provide|search|book|play|generate"
    "|predict|convert|identify|create|list|order|fetch|retrieve|check|help|compare|analyze"
    "|simulate|locate|look|set|send|add|make|buy|schedule|estimate|solve|evaluate|draw"
)
_MONTHS_DAYS = (
    "january|february|march|april|may|june|july|august|september|october|november|december"
    "|monday|tuesday|wednesday|thursday|friday|saturday|sunday|today|tomorrow|yesterday|next week"
)
# Digits before a slash are bounded, lest every digit of a long number reads on to its end.
_DATE = rf"\d{{4}}-\d\d|\d{{1,20}}/\d+|\b(?:{_MONTHS_DAYS})\b|\b(?:19|20)\d\d\b"
_UNITS = (
    "km|m|cm|kg|g|meters?|miles?|hours?|minutes?|seconds?|years?|days?|degrees?|m/s|joules?"
    "|celsius|fahrenheit|liters?"
)
_CLAUSE = re.compile(r"[.?!;\n,]|\band\b|\bthen\b")
MIN_CLAUSE_CHARS = 12
MAX_CLAUSES = 24
"""A bound on the time that long texts take: 3 of 1,000 recorded queries have as many."""


class Query:
    """The latest user text, taken apart once for all counts."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lower = text.lower()

    @cached_property
    def words(self) -> list[str]:
        """Letters and numbers, apart."""
        return WORD.findall(self.lower)

    @cached_property
    def length(self) -> int:
        """Words between blanks, at least one."""
        return max(1, len(self.lower.split()))

    @cached_property
    def stems(self) -> Stems:
        """Stems of all words but function words."""
        return stems(self.words)

    @cached_property
    def content(self) -> Stems:
        """Stems of the words that say what it is about."""
        return content(self.text)

    @cached_property
    def numbers(self) -> list[str]:
        """Numbers in digits."""
        return _NUMBER.findall(self.text)

    @cached_property
    def names(self) -> list[str]:
        """Runs of capitalized words after the first letter, such as `Bank of America`."""
        return _NAME.findall(self.text[1:])

    @cached_property
    def quoted(self) -> int:
        """Texts between quotes."""
        return len(_QUOTED.findall(self.text))

    @cached_property
    def lists(self) -> list[int]:
        """Commas of each list."""
        return [found.count(",") for found in _LIST.findall(self.text) if found]

    @cached_property
    def bracketed(self) -> int:
        """Texts between square brackets; behind the last that closes there are none."""
        return len(_BRACKETED.findall(self.text[: self.text.rfind("]") + 1]))

    @cached_property
    def clauses(self) -> list[Stems]:
        """What the query is about, clause by clause."""
        parts = [part for part in _CLAUSE.split(self.text) if len(part) > MIN_CLAUSE_CHARS]
        return list(map(content, parts[:MAX_CLAUSES]))

    def count(self, pattern: str) -> int:
        """Count a pattern in the lower-case text."""
        return len(re.findall(pattern, self.lower))

    def marks(self, pattern: str) -> int:
        """Count a pattern in the text as it is written."""
        return len(re.findall(pattern, self.text))

    def starts(self, pattern: str) -> bool:
        """Tell whether the lower-case text starts with a pattern."""
        return re.match(pattern, self.lower) is not None


TEXT: dict[str, Callable[[Query], float]] = {
    # How much it says.
    "query_words": lambda q: len(q.words),
    "query_chars": lambda q: len(q.text),
    "sentences": lambda q: q.marks(r"[.?!](?:\s|$)"),
    "words_per_sentence": lambda q: q.length / max(1, q.marks(r"[.?!](?:\s|$)")),
    "chars_per_word": lambda q: len(q.text) / q.length,
    "clauses": lambda q: len(q.clauses),
    # Values that it names.
    "query_numbers": lambda q: len(q.numbers),
    "query_decimals": lambda q: sum("." in number for number in q.numbers),
    "distinct_numbers": lambda q: len(set(q.numbers)),
    "names": lambda q: len(q.names),
    "distinct_names": lambda q: len(set(q.names)),
    "names_per_word": lambda q: len(q.names) / q.length,
    "quoted_texts": lambda q: q.quoted,
    "capitalized": lambda q: q.marks(r"\b[A-Z][a-z]+"),
    "uppercase_share": lambda q: q.marks(r"[A-Z]") / max(1, len(q.text)),
    "dates": lambda q: q.count(_DATE),
    "amounts": lambda q: q.count(r"[$€£%]|percent|dollars"),
    "units": lambda q: q.count(rf"\d ?(?:{_UNITS})\b"),
    "coordinates": lambda q: q.marks(r"[\[(]\s*-?\d"),
    "bracketed_lists": lambda q: q.bracketed,
    "links": lambda q: q.count(r"https?:|www\.|\.com|/\w+/"),
    "code_marks": lambda q: q.marks(r"[{}\[\]=<>]|\b\w+\(|[a-z][A-Z]|\w_\w"),
    "non_ascii": lambda q: sum(not char.isascii() for char in q.text),
    # What it joins and repeats: one call or several.
    "commas": lambda q: q.text.count(","),
    "commas_per_word": lambda q: q.text.count(",") / q.length,
    "ands": lambda q: q.count(r"\band\b"),
    "ands_per_word": lambda q: q.count(r"\band\b") / q.length,
    "ors": lambda q: q.count(r"\bor\b"),
    "fors": lambda q: q.count(r"\bfor\b"),
    "withs": lambda q: q.count(r"\bwith\b"),
    "lists": lambda q: len(q.lists),
    "longest_list": lambda q: max(q.lists, default=-1) + 1,
    "numbers_joined": lambda q: q.marks(r"\d[^.?!]{0,25} and [^.?!]{0,25}\d"),
    "names_joined": lambda q: q.marks(r"\b[^\WA-Z]*[A-Z]\w+,? and (?:the )?[A-Z]\w+"),
    "sequence_words": lambda q: len(_SEQUENCE.findall(q.lower)),
    "steps": lambda q: q.count(r"\bthen\b|after that|afterwards|\bonce "),
    "additions": lambda q: q.count(
        r"\balso\b|additionally|in addition|as well as|along with|furthermore|\bplus\b"
    ),
    "distributions": lambda q: q.count(
        r"\beach\b|\bboth\b|respectively|\brepeat|\bsame\b|\bevery\b|\bfor all\b"
    ),
    "number_words": lambda q: q.count(
        r"\b(?:two|three|four|five|six|multiple)\b|several|different"
    ),
    "comparisons": lambda q: q.count(r"\bvs\b|versus|compare|difference|between"),
    "ordinals": lambda q: q.count(r"\b(?:first|secondly|\d+(?:st|nd|rd|th)|lastly)\b"),
    "breaks": lambda q: q.marks(r"[;\n]"),
    "colons": lambda q: q.text.count(":"),
    "quotes": lambda q: q.marks(r"['\"`]"),
    "brackets": lambda q: q.marks(r"[\[\]{}()]"),
    # How it asks.
    "demands": lambda q: q.count(rf"\b(?:{_DEMANDS})\b"),
    "starts_with_demand": lambda q: q.starts(rf"(?:{_DEMANDS})\b"),
    "starts_can": lambda q: q.starts("can |could "),
    "starts_i": lambda q: q.starts(r"i'?m\b|i am|i |i'd|i've|imagine|you are"),
    "starts_who": lambda q: q.starts("who|where|when|which|why|is |are |do "),
    "starts_lower_case": lambda q: q.text[:1].islower(),
    "asks_how": lambda q: q.lower.startswith("how"),
    "asks_what": lambda q: q.lower.startswith(("what", "who", "when", "where")),
    "question_marks": lambda q: q.text.count("?"),
    "ends_asking": lambda q: q.text.rstrip().endswith("?"),
    "says_i": lambda q: q.count(r"\b(?:my|i|me|we)\b"),
    "says_you": lambda q: q.count(r"\byou\b"),
    "says_please": lambda q: "please" in q.lower,
}
"""Counts of the text alone, by name."""
