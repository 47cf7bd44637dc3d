"""Where the values of a call come from: the conversation, the tool's schema, or nowhere.

A value that nobody said, no earlier result contains, and no schema suggests was invented. Values
are looked up as they are usually rewritten: a date in another format, 5% as 0.05, a name's
initials, or a sum of two numbers that were said.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import cached_property
from itertools import permutations
from math import inf

from router_service.apis.conversation import Json
from router_service.checker.comparison import Comparer
from router_service.checker.defaults import documented_defaults
from router_service.checker.parameter_schema import Schema
from router_service.core.errors import SchemaError
from router_service.predictor.text_features import STEM_CHARS

MAX_VALUE_CHARACTERS = 2_000
"""Characters of a string that are looked up."""

MAX_DESCRIPTION_CHARACTERS = 500
"""Characters of a parameter's description in which a value is looked up."""

MAX_CALCULATED = 12
"""Numbers of the conversation, the latest ones, with which sums and products are formed."""

SAID_FROM = 0.5
"""Share of a text's words that were said, from which the text is not invented."""

_WORD = re.compile(r"[^\W\d_]+|\d+")
_NUMBER = re.compile(
    r"(\d{1,15}(?:,\d{3}){0,4}(?:\.\d{1,15})?)(?:\s?(k|m|bn|hundred|thousand|million|billion)\b)?",
    re.IGNORECASE,
)
_MULTIPLES = {
    "hundred": 1e2,
    "thousand": 1e3,
    "k": 1e3,
    "million": 1e6,
    "m": 1e6,
    "billion": 1e9,
    "bn": 1e9,
}
_NUMBER_WORDS = {
    **{
        word: float(number)
        for number, word in enumerate(
            "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
            "fifteen sixteen seventeen eighteen nineteen twenty".split()
        )
    },
    **{
        word: 10.0 * number
        for number, word in enumerate(
            "thirty forty fifty sixty seventy eighty ninety hundred".split(), start=3
        )
    },
    **{
        word: float(number)
        for number, word in enumerate(
            "first second third fourth fifth sixth seventh eighth ninth tenth".split(), start=1
        )
    },
    "once": 1.0,
    "twice": 2.0,
    "double": 2.0,
    "triple": 3.0,
    "couple": 2.0,
    "pair": 2.0,
    "half": 0.5,
    "quarter": 0.25,
    "dozen": 12.0,
    "thousand": 1e3,
    "million": 1e6,
}
_MONTHS = (
    "january february march april may june july august september october november december".split()
)
_SCALES = (100.0, 0.01, 0.001, 1000.0, 60.0, 1 / 60)
"""Factors between a number in the conversation and in a call: 5% is 0.05, 2 km are 2,000 m, and 2
hours are 120 minutes."""
_PLACEHOLDER = re.compile(
    r"\b(?:your|my|insert|enter|some|sample|dummy|placeholder|example|unknown|none|null|n/?a|tbd|"
    r"todo|xxx+|foo|bar|lorem|undefined)\b|<[^<>]{1,60}>|\{\{?[^{}]{1,60}\}\}?|\[[a-z _]{1,40}\]"
    r"|x{3,}|123-?456|example\.(?:com|org)",
    re.IGNORECASE,
)
_DATE = re.compile(r"\d{4}-\d\d?-\d\d?|\d\d?[/.]\d\d?[/.]\d{2,4}")
_FILLERS = frozenset(("", "null", "none", "n/a", "dontcare", "any", "all", "unknown", "default"))
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_COMPARER = Comparer()


class Source(Enum):
    """Where a value comes from."""

    SAID = "said"
    """A message or an earlier result has it, perhaps in another form."""
    CALCULATED = "calculated"
    """It is a number that two others in the conversation give, or one in another unit."""
    SCHEMA = "schema"
    """The tool's schema has it: a default, a member of an enum, or an example."""
    NOWHERE = "nowhere"
    """Nothing explains it."""


class Said:
    """The words and numbers of a conversation."""

    def __init__(self, text: str) -> None:
        """Read the text of all messages that count."""
        lower = text.lower()
        words = [_without_zeros(word) for word in _WORD.findall(lower)]
        self._words = f" {' '.join(words)} "
        known = set(words)
        self._stems = {word[:STEM_CHARS] for word in known}
        named = {word[:3] for word in known if word in _MONTHS or len(word) == 3}
        months = [number for number, name in enumerate(_MONTHS, 1) if name[:3] in named]
        self._numerals = {word for word in known if word.isdigit()} | {*map(str, months)}
        names = re.findall(r"(?:\b[A-Z][\w'-]*[ ,]*(?:of |the |and )?){2,8}", text)
        self._initials = {
            "".join(word[0] for word in _WORD.findall(name) if word[0].isupper()).lower()
            for name in names
        }
        found = []
        for digits, unit in _NUMBER.findall(text):
            number = float(digits.replace(",", ""))
            found.append(number)
            if unit:
                found.append(number * _MULTIPLES[unit.lower()])
        found += [_NUMBER_WORDS[word] for word in words if word in _NUMBER_WORDS]
        self.numbers = frozenset(map(_rounded, found))
        self._latest = [*dict.fromkeys(reversed([*map(_rounded, found)]))][:MAX_CALCULATED]

    @cached_property
    def _calculated(self) -> frozenset[float]:
        """Numbers that two of the latest numbers give."""
        found: set[float] = set()
        for one, other in permutations(self._latest, 2):
            found |= {one + other, abs(one - other), one * other}
            if other:
                found.add(one / other)
        return frozenset(map(_rounded, found))

    def share_of_text(self, text: str) -> float:
        """Return the share of a text's words that were said: 1 if they were said together."""
        words = [
            _without_zeros(word)
            for word in _WORD.findall(_CAMEL.sub(" ", text[:MAX_VALUE_CHARACTERS]).lower())
        ]
        if not words or f" {' '.join(words)} " in self._words:
            return 1.0
        if len(words) > 1 and "".join(word[0] for word in words) in self._stems:
            return 1.0  # `San Francisco` for SF
        said = sum(
            word in self._numerals or (len(word) == 4 and word[2:] in self._numerals)
            if word.isdigit()
            else word[:STEM_CHARS] in self._stems or word in self._initials or word in {"t", "z"}
            for word in words
        )
        return said / len(words)

    def source_of_number(self, number: float) -> Source:
        """Return where a number comes from, as far as the conversation says."""
        value = abs(number)
        if _rounded(value) in self.numbers:
            return Source.SAID
        if any(_rounded(value * scale) in self.numbers for scale in _SCALES):
            return Source.CALCULATED
        return Source.CALCULATED if _rounded(value) in self._calculated else Source.NOWHERE


def _without_zeros(word: str) -> str:
    """Return a numeral without leading zeros, so that 06 is 6."""
    return word.lstrip("0") or "0" if word[0] == "0" else word


def _rounded(number: float) -> float:
    """Return a number without its last binary digits: 0.07 * 100 is not exactly 7."""
    try:
        return float(f"{number:.12g}")
    except OverflowError:  # an integer of over 300 digits
        return inf


def is_named_after(name: str, value: str) -> bool:
    """Return whether a text only repeats the name of its parameter, as in `"path": "path"`."""
    if len(value) > len(name) + 20:
        return False
    words = _WORD.findall(_CAMEL.sub(" ", value).lower())
    own = _WORD.findall(_CAMEL.sub(" ", name).lower())
    rest = [word for word in words if word not in {"the", "a", "your", "my", "value", "here"}]
    return bool(own) and bool(words) and (rest == own or rest == own[-1:])


def is_placeholder(value: str) -> bool:
    """Return whether a text looks like one that should be replaced, such as `YOUR_API_KEY`."""
    return len(value) <= 200 and bool(_PLACEHOLDER.search(value.replace("_", " ")))


_WRITTEN_PARAMETERS = frozenset(
    "body caption comment content description message note notes prompt query reason script "
    "subject summary text title command code".split()
)
"""Last words of the names of parameters whose texts a model writes."""

MAX_IDENTIFYING_CHARACTERS = 80
"""Length up to which a text may be a path, a name or an id, which has to come from somewhere."""


def is_written(name: str, value: Json) -> bool:
    """Return whether a value is a text that the model is asked to write, such as a message's body.

    The conversation does not contain such a text, but it is not a wrong value for that reason.
    """
    words = _WORD.findall(_CAMEL.sub(" ", name).lower())
    is_long = isinstance(value, str) and len(value) > MAX_IDENTIFYING_CHARACTERS
    return is_long or (bool(words) and words[-1] in _WRITTEN_PARAMETERS)


def is_filler(value: Json) -> bool:
    """Return whether a value says nothing, such as 0, an empty list, or `dontcare`."""
    if isinstance(value, str):
        return value.strip().lower() in _FILLERS
    return value is None or (not isinstance(value, bool) and value in (0, [], {}))


def is_date(value: str) -> bool:
    """Return whether a text begins with a date in digits."""
    return _DATE.match(value) is not None


def is_in_schema(value: Json, schema: Schema) -> bool:
    """Return whether a parameter's schema suggests a value: its enum, default or description."""
    try:
        if value in schema.members:
            return True
        if any(_COMPARER.is_equal(value, each, schema) for each in documented_defaults(schema)):
            return True
        description = schema.description[:MAX_DESCRIPTION_CHARACTERS].lower()
    except (SchemaError, RecursionError, TypeError):
        return False
    words = _WORD.findall(str(value)[:MAX_DESCRIPTION_CHARACTERS].lower())
    return bool(words) and f" {' '.join(words)} " in f" {' '.join(_WORD.findall(description))} "


def source_of(
    said: Said, name: str, value: Json, schema: Schema, share: float | None = None
) -> Source | None:
    """Return where the value of a parameter comes from; None for a boolean, null or empty text.

    `share` is the share of a text's words that were said, if it is known.
    """
    if isinstance(value, bool) or value is None or value == "":
        return None
    if isinstance(value, int | float):
        source = said.source_of_number(value)
        if source is Source.NOWHERE and is_in_schema(value, schema):
            return Source.SCHEMA
        return source
    if not isinstance(value, str):
        return None
    if (said.share_of_text(value) if share is None else share) >= SAID_FROM:
        return Source.SAID
    # The date of an example is not the user's date.
    is_own = is_named_after(name, value) or is_date(value)
    return Source.SCHEMA if not is_own and is_in_schema(value, schema) else Source.NOWHERE
