"""Features of the query's text, such as its length, values, lists, repetitions and questions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import field

from router_service.core.values import request_value

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
_SENTENCE_END = re.compile(r"[.?!](?:\s|$)")
_CAPITALIZED = re.compile(r"\b[A-Z][a-z]+")
_CAPITAL = re.compile("[A-Z]")
_AMOUNT = re.compile("[$€£%]|percent|dollars")
_COORDINATE = re.compile(r"[\[(]\s*-?\d")
_LINK = re.compile(r"https?:|www\.|\.com|/\w+/")
_CODE = re.compile(r"[{}\[\]=<>]|\b\w+\(|[a-z][A-Z]|\w_\w")
_CODE_WITHOUT_NAMES = re.compile(r"[{}\[\]=<>]|[a-z][A-Z]")
"""Matches the same as `_CODE` in a text without `(` and `_`, in a quarter of the time."""
_NUMBERS_JOINED = re.compile(r"\d[^.?!]{0,25} and [^.?!]{0,25}\d")
_NAMES_JOINED = re.compile(r"\b[^\WA-Z]*[A-Z]\w+,? and (?:the )?[A-Z]\w+")
_ONCE = re.compile(r"\bonce ")
_REPEAT = re.compile(r"\brepeat")
_FOR_ALL = re.compile(r"\bfor all\b")
_ADDITION = re.compile("additionally|in addition")
_ORDINAL = re.compile(r"\d+(?:st|nd|rd|th)")
# Digits before a slash are limited: otherwise the search would read a long number to its end again
# from each of its digits.
_DATE = re.compile(
    r"\d{4}-\d\d|\d{1,20}/\d+"
    r"|\b(?:january|february|march|april|may|june|july|august|september|october|november|december"
    r"|monday|tuesday|wednesday|thursday|friday|saturday|sunday|today|tomorrow|yesterday|next week)"
    r"\b|\b(?:19|20)\d\d\b"
)
_UNIT = re.compile(
    r"\d ?(?:km|m|cm|kg|g|meters?|miles?|hours?|minutes?|seconds?|years?|days?|degrees?|m/s|joules?"
    r"|celsius|fahrenheit|liters?)\b"
)

_WHOLE_WORD = re.compile(r"\w+")
_DATE_WORDS = frozenset(
    "january february march april may june july august september october november december monday "
    "tuesday wednesday thursday friday saturday sunday today tomorrow yesterday week".split()
)
"""A date without digits has at least one of these words."""
_SEQUENCE = frozenset(
    "then also next after finally additionally second third another both each respectively two "
    "three multiple same".split()
)
_DEMANDS = frozenset(
    "calculate find get determine compute show give tell provide search book play generate "
    "predict convert identify create list order fetch retrieve check help compare analyze "
    "simulate locate look set send add make buy schedule estimate solve evaluate draw".split()
)
_NUMBER_WORDS = frozenset("two three four five six multiple".split())
_I = frozenset("my i me we".split())
_FIRST_WORD = re.compile(r"\A\w+")
_STARTS_I = re.compile(r"i'?m\b|i am|i |i'd|i've|imagine|you are")


def topic_stems(text: str) -> Stems:
    """Return the stems of the words that carry the topic of a text."""
    if not text:
        return frozenset()
    words = set(_LETTERS.findall(text.lower())) - _STOP_WORDS
    return frozenset([word[:STEM_CHARS] for word in words])


def overlap(part: Stems, whole: Stems) -> float:
    """Return the share of `part` that is in `whole`."""
    return len(part & whole) / max(1, len(part))


@request_value(frozen=True, slots=True)
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
    # The search ends at the last `]`, because no bracketed list follows.
    bracketed = _BRACKETED.findall(text[: text.rfind("]") + 1])
    sentences = len(_SENTENCE_END.findall(text))
    commas = text.count(",")

    # Most expressions are searched only in texts that have a part of them, and words are counted
    # together, because a search for each of them takes three times as long.
    counts = Counter(_WHOLE_WORD.findall(lower))
    list_commas: list[int] = []
    if ", " in text and ("and " in text or "or " in text or "& " in text):
        list_commas = [found.count(",") for found in _LIST.findall(text) if found]
    has_and = " and " in text
    has_date = bool(numbers) or not counts.keys().isdisjoint(_DATE_WORDS)
    code = _CODE if "(" in text or "_" in text else _CODE_WITHOUT_NAMES
    ands = counts["and"]
    first_word = _FIRST_WORD.findall(lower, 0, 40)
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
        "query_decimals": sum(["." in number for number in numbers]),
        "distinct_numbers": len(set(numbers)),
        "names": len(names),
        "distinct_names": len(set(names)),
        "names_per_word": len(names) / blank_separated,
        "quoted_texts": quoted_texts,
        "capitalized": len(_CAPITALIZED.findall(text)),
        "uppercase_share": len(_CAPITAL.findall(text)) / max(1, len(text)),
        "dates": len(_DATE.findall(lower)) if has_date else 0,
        "amounts": len(_AMOUNT.findall(lower)),
        "units": len(_UNIT.findall(lower)) if numbers else 0,
        "coordinates": len(_COORDINATE.findall(text)) if numbers else 0,
        "bracketed_lists": len(bracketed),
        "links": len(_LINK.findall(lower)),
        "code_marks": len(code.findall(text)),
        "non_ascii": 0 if text.isascii() else sum([not char.isascii() for char in text]),
        # Conjunctions and repetitions, which suggest several calls.
        "commas": commas,
        "commas_per_word": commas / blank_separated,
        "ands": ands,
        "ands_per_word": ands / blank_separated,
        "ors": counts["or"],
        "fors": counts["for"],
        "withs": counts["with"],
        "lists": len(list_commas),
        "longest_list": max(list_commas, default=-1) + 1,
        "numbers_joined": len(_NUMBERS_JOINED.findall(text)) if has_and and numbers else 0,
        "names_joined": len(_NAMES_JOINED.findall(text)) if has_and else 0,
        "sequence_words": _count_words(counts, _SEQUENCE),
        "steps": counts["then"]
        + lower.count("after that")
        + lower.count("afterwards")
        + (len(_ONCE.findall(lower)) if "once " in lower else 0),
        "additions": counts["also"]
        + counts["plus"]
        + lower.count("as well as")
        + lower.count("along with")
        + lower.count("furthermore")
        + (len(_ADDITION.findall(lower)) if "addition" in lower else 0),
        "distributions": counts["each"]
        + counts["both"]
        + counts["same"]
        + counts["every"]
        + lower.count("respectively")
        + (len(_REPEAT.findall(lower)) if "repeat" in lower else 0)
        + (len(_FOR_ALL.findall(lower)) if "for all" in lower else 0),
        "number_words": _count_words(counts, _NUMBER_WORDS)
        + lower.count("several")
        + lower.count("different"),
        "comparisons": counts["vs"]
        + lower.count("versus")
        + lower.count("compare")
        + lower.count("difference")
        + lower.count("between"),
        "ordinals": counts["first"]
        + counts["secondly"]
        + counts["lastly"]
        + (sum([n for word, n in counts.items() if _ORDINAL.fullmatch(word)]) if numbers else 0),
        "breaks": text.count(";") + text.count("\n"),
        "colons": text.count(":"),
        "quotes": text.count("'") + text.count('"') + text.count("`"),
        "brackets": sum([text.count(bracket) for bracket in "[]{}()"]),
        # Form of the question.
        "demands": _count_words(counts, _DEMANDS),
        "starts_with_demand": not _DEMANDS.isdisjoint(first_word),
        "starts_can": lower.startswith(("can ", "could ")),
        "starts_i": _STARTS_I.match(lower) is not None,
        "starts_who": lower.startswith(
            ("who", "where", "when", "which", "why", "is ", "are ", "do ")
        ),
        "starts_lower_case": text[:1].islower(),
        "asks_how": lower.startswith("how"),
        "asks_what": lower.startswith(("what", "who", "when", "where")),
        "question_marks": text.count("?"),
        "ends_asking": text.rstrip().endswith("?"),
        "says_i": _count_words(counts, _I),
        "says_you": counts["you"],
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


def _count_words(counts: Counter[str], words: frozenset[str]) -> int:
    return sum([counts[word] for word in counts.keys() & words])


TEXT_FEATURES = tuple(analyze_query("").features)
