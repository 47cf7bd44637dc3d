"""Features of the query's text, such as its length, values, lists, repetitions and questions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

Stems = frozenset[str]

STEM_CHARS = 5
"""Words are compared by this many first letters, so that `forecasts` matches `forecast`."""
MIN_CLAUSE_CHARS = 12
MAX_CLAUSES = 24
"""Limit on the clauses that are analyzed, because long texts would take too long. Of 1,000 recorded
queries, 3 have this many clauses."""

WORD = re.compile(r"[a-z]+|\d+")
_LETTERS = re.compile(r"[a-z]{2,}")
FUNCTION_WORDS = frozenset(
    "the a an of to in for and or with is are on at by from that this be my me i you can what "
    "how it as your would like".split()
)
_STOP_WORDS = FUNCTION_WORDS | frozenset(
    "we our us they them their there here these those some any all do does did could should will "
    "please want need know let also then just about into out up its have has had was were been "
    "being if but not no so than more most very who whom which when where why".split()
)
"""Words that carry no topic."""

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_SEQUENCE = re.compile(
    r"\b(?:then|also|next|after|finally|additionally|second|third|another|both|each"
    r"|respectively|two|three|multiple|same)\b"
)
_ITEM = r"[\w'°$.%-]+(?: [\w'°$.%-]+){0,3}"
_LIST = re.compile(
    rf"(?<![\w'°$.%-])(?:((?:{_ITEM}, )+(?:{_ITEM})?,? ?(?:and|or|&) )|(?:{_ITEM}, )+)"
)
"""Matches lists such as `Paris, New York and `: items of up to four words between commas. The
second alternative skips commas that no `and` follows, because no list starts among them."""
_NAME = re.compile(r"[A-Z][\w'-]+(?:,? (?:of|de|the|[A-Z][\w'-]+))*")
_QUOTED = re.compile(r'"[^"]+"|\'[^\'\n]{2,}?\'|`[^`]+`')
_BRACKETED = re.compile(r"\[[^\]]+\]")
_CLAUSE_END = re.compile(r"[.?!;\n,]|\band\b|\bthen\b")
_SENTENCE_END = r"[.?!](?:\s|$)"
_DEMANDS = (
    "calculate|find|get|determine|compute|show|give|tell|provide|search|book|play|generate"
    "|predict|convert|identify|create|list|order|fetch|retrieve|check|help|compare|analyze"
    "|simulate|locate|look|set|send|add|make|buy|schedule|estimate|solve|evaluate|draw"
)
_MONTHS_DAYS = (
    "january|february|march|april|may|june|july|august|september|october|november|december"
    "|monday|tuesday|wednesday|thursday|friday|saturday|sunday|today|tomorrow|yesterday|next week"
)
# Digits before a slash are limited: otherwise the search would read a long number to its end again
# from each of its digits.
_DATE = rf"\d{{4}}-\d\d|\d{{1,20}}/\d+|\b(?:{_MONTHS_DAYS})\b|\b(?:19|20)\d\d\b"
_UNITS = (
    "km|m|cm|kg|g|meters?|miles?|hours?|minutes?|seconds?|years?|days?|degrees?|m/s|joules?"
    "|celsius|fahrenheit|liters?"
)


def topic_stems(text: str) -> Stems:
    """Return the stems of the words that carry the topic of a text."""
    if not text:
        return frozenset()
    words = set(_LETTERS.findall(text.lower())) - _STOP_WORDS
    return frozenset([word[:STEM_CHARS] for word in words])


def overlap(part: Stems, whole: Stems) -> float:
    """Return the share of `part` that is in `whole`."""
    return len(part & whole) / max(1, len(part))


def jaccard(one: Stems, other: Stems) -> float:
    """Return the Jaccard similarity of two sets of stems."""
    common = len(one & other)
    return common / max(1, len(one) + len(other) - common)


@dataclass(frozen=True, slots=True)
class Query:
    """The latest user text: the parts that are compared with tools, and the text's features."""

    lower: str
    """The text in lower case."""
    stems: Stems
    """Stems of all words, without function words."""
    topic: Stems
    """Stems of the words that carry the topic."""
    numbers: list[str]
    names: list[str]
    """Runs of capitalized words, such as `Bank of America`. The text's first letter is ignored."""
    quoted_texts: int
    clauses: list[Stems]
    """Stems of the topic of each clause."""
    features: Mapping[str, float] = field(default_factory=dict)


def analyze_query(text: str) -> Query:
    """Return a text's parts and features."""
    lower = text.lower()
    words = WORD.findall(lower)
    blank_separated = max(1, len(lower.split()))
    numbers = _NUMBER.findall(text)
    names = _NAME.findall(text[1:])
    quoted_texts = len(_QUOTED.findall(text))
    clauses = [part for part in _CLAUSE_END.split(text) if len(part) > MIN_CLAUSE_CHARS]
    clause_topics = [topic_stems(clause) for clause in clauses[:MAX_CLAUSES]]
    list_commas = [found.count(",") for found in _LIST.findall(text) if found]
    # The search ends at the last `]`, because no bracketed list follows.
    bracketed = _BRACKETED.findall(text[: text.rfind("]") + 1])
    sentences = _count(_SENTENCE_END, text)
    ands = _count(r"\band\b", lower)
    features: dict[str, float] = {
        # Amount of text.
        "query_words": len(words),
        "query_chars": len(text),
        "sentences": sentences,
        "words_per_sentence": blank_separated / max(1, sentences),
        "chars_per_word": len(text) / blank_separated,
        "clauses": len(clause_topics),
        # Values in the text.
        "query_numbers": len(numbers),
        "query_decimals": sum("." in number for number in numbers),
        "distinct_numbers": len(set(numbers)),
        "names": len(names),
        "distinct_names": len(set(names)),
        "names_per_word": len(names) / blank_separated,
        "quoted_texts": quoted_texts,
        "capitalized": _count(r"\b[A-Z][a-z]+", text),
        "uppercase_share": _count(r"[A-Z]", text) / max(1, len(text)),
        "dates": _count(_DATE, lower),
        "amounts": _count(r"[$€£%]|percent|dollars", lower),
        "units": _count(rf"\d ?(?:{_UNITS})\b", lower),
        "coordinates": _count(r"[\[(]\s*-?\d", text),
        "bracketed_lists": len(bracketed),
        "links": _count(r"https?:|www\.|\.com|/\w+/", lower),
        "code_marks": _count(r"[{}\[\]=<>]|\b\w+\(|[a-z][A-Z]|\w_\w", text),
        "non_ascii": sum(not char.isascii() for char in text),
        # Conjunctions and repetitions, which suggest several calls.
        "commas": text.count(","),
        "commas_per_word": text.count(",") / blank_separated,
        "ands": ands,
        "ands_per_word": ands / blank_separated,
        "ors": _count(r"\bor\b", lower),
        "fors": _count(r"\bfor\b", lower),
        "withs": _count(r"\bwith\b", lower),
        "lists": len(list_commas),
        "longest_list": max(list_commas, default=-1) + 1,
        "numbers_joined": _count(r"\d[^.?!]{0,25} and [^.?!]{0,25}\d", text),
        "names_joined": _count(r"\b[^\WA-Z]*[A-Z]\w+,? and (?:the )?[A-Z]\w+", text),
        "sequence_words": len(_SEQUENCE.findall(lower)),
        "steps": _count(r"\bthen\b|after that|afterwards|\bonce ", lower),
        "additions": _count(
            r"\balso\b|additionally|in addition|as well as|along with|furthermore|\bplus\b", lower
        ),
        "distributions": _count(
            r"\beach\b|\bboth\b|respectively|\brepeat|\bsame\b|\bevery\b|\bfor all\b", lower
        ),
        "number_words": _count(
            r"\b(?:two|three|four|five|six|multiple)\b|several|different", lower
        ),
        "comparisons": _count(r"\bvs\b|versus|compare|difference|between", lower),
        "ordinals": _count(r"\b(?:first|secondly|\d+(?:st|nd|rd|th)|lastly)\b", lower),
        "breaks": _count(r"[;\n]", text),
        "colons": text.count(":"),
        "quotes": _count(r"['\"`]", text),
        "brackets": _count(r"[\[\]{}()]", text),
        # Form of the question.
        "demands": _count(rf"\b(?:{_DEMANDS})\b", lower),
        "starts_with_demand": re.match(rf"(?:{_DEMANDS})\b", lower) is not None,
        "starts_can": lower.startswith(("can ", "could ")),
        "starts_i": re.match(r"i'?m\b|i am|i |i'd|i've|imagine|you are", lower) is not None,
        "starts_who": re.match("who|where|when|which|why|is |are |do ", lower) is not None,
        "starts_lower_case": text[:1].islower(),
        "asks_how": lower.startswith("how"),
        "asks_what": lower.startswith(("what", "who", "when", "where")),
        "question_marks": text.count("?"),
        "ends_asking": text.rstrip().endswith("?"),
        "says_i": _count(r"\b(?:my|i|me|we)\b", lower),
        "says_you": _count(r"\byou\b", lower),
        "says_please": "please" in lower,
    }
    return Query(
        lower=lower,
        stems=frozenset([word[:STEM_CHARS] for word in set(words) - FUNCTION_WORDS]),
        topic=topic_stems(text),
        numbers=numbers,
        names=names,
        quoted_texts=quoted_texts,
        clauses=clause_topics,
        features=features,
    )


def _count(pattern: str, text: str) -> int:
    return len(re.findall(pattern, text))


TEXT_FEATURES = tuple(analyze_query("").features)
