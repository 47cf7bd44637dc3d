"""Where the values of a call come from: the conversation, the tool's schema, or nowhere.

A value that nobody said, no earlier result contains, and no schema suggests was invented. Values
are looked up as they are usually rewritten: a date in another format, 5% as 0.05, a name's
initials, or a sum of two numbers that were said. Integers are compared exactly, and a number that
identifies something, such as an order's, is explained by the same digits only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import cached_property, lru_cache
from itertools import permutations
from math import isfinite

from router_service.apis.answers import MAX_INTEGER_DIGITS
from router_service.apis.conversation import Json
from router_service.checker.comparison import Comparer
from router_service.checker.defaults import documented_defaults
from router_service.checker.parameter_schema import Schema
from router_service.core.errors import SchemaError
from router_service.core.resources import Cache, shared_cache, stop_if_abandoned
from router_service.core.values import request_value
from router_service.predictor.text_features import STEM_CHARS, WORD

MAX_VALUE_CHARACTERS = 2_000
"""Characters of a string that are looked up."""

MAX_DESCRIPTION_CHARACTERS = 500
"""Characters of a parameter's description in which a value is looked up."""

MAX_NAME_CHARACTERS = 100
"""Characters of a parameter's name, and of its format, that say whether it identifies."""

MAX_CALCULATED = 12
"""Numbers of the conversation, the latest ones, with which sums and products are formed."""

MAX_COMPUTED = 10**15
"""Numbers up to which sums, products and shares are formed; larger ones identify something. Up to
here, the quotient of two integers is exact in a float."""

LEAST_JOINED_DIGITS = 7
"""Digits from which groups, as in `555-123-4567`, are read as one number that identifies."""

PASSAGE_CHARACTERS, OVERLAP_CHARACTERS = 20_000, 200
"""Length of the passages in which the words of a long conversation are cached, and what each shares
with the next one, so that no value is cut. A conversation grows at its end, so passages stay."""

MEAN_LINES, PIECE_CHARACTERS = 16, 4_000
"""Lines of a piece on average, and the length from which a line ends it."""

MAX_SEARCHED_WORDS = 20
"""Words of a text that are searched one by one in a long conversation."""

SAID_FROM = 0.5
"""Share of a text's words that were said, from which the text is not invented."""

_WORD = re.compile(r"[^\W\d_]+|\d+")
_NUMBER = re.compile(
    r"(\d+(?:,\d{3}(?!\d))*(?:\.\d+)?)(?:\s?(k|m|bn|hundred|thousand|million|billion)\b)?",
    re.IGNORECASE,
)
_DIGITS = re.compile(r"\d+")
_RUN = re.compile(r"(?<!\d)(?<!\d\.)\d++(?!\.\d)")
"""Digits that are no part of a decimal number: 4.5 does not identify number 5."""
_JOINED = [
    re.compile(rf"(?<!\d)\d++(?:{separator}\d++)+")
    for separator in ("-", " ", r"\.", "[-. ()/_'\\u00a0\\u2010-\\u2015\\u2019\\u202f]{1,2}")
]
"""Numbers that are written in groups. Only the last pattern has groups with several separators, as
in `+1 (555) 123-4567`, and it may join a number with its neighbour."""
_NAMES = re.compile(r"(?:\b[A-Z][\w'-]*[ ,]*(?:of |the |and )?){2,8}")
_CODE = re.compile(r"[^\W_]+(?:-[^\W_]+)*")
_PLAIN_NUMBER = re.compile(r"\d+(?:,\d{3}(?!\d))*(?:\.\d+)?")
_SMALL_NUMBERS = {
    word: number
    for number, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve".split()
    )
}
_INNER_LETTER = re.compile(r"\d[^\W\d_]")
_MULTIPLES = {
    "hundred": 100,
    "thousand": 1_000,
    "k": 1_000,
    "million": 1_000_000,
    "m": 1_000_000,
    "billion": 1_000_000_000,
    "bn": 1_000_000_000,
}
_NUMBER_WORDS: dict[str, int | float] = {
    **{
        word: number
        for number, word in enumerate(
            "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
            "fifteen sixteen seventeen eighteen nineteen twenty".split()
        )
    },
    **{
        word: 10 * number
        for number, word in enumerate(
            "thirty forty fifty sixty seventy eighty ninety hundred".split(), start=3
        )
    },
    **{
        word: number
        for number, word in enumerate(
            "first second third fourth fifth sixth seventh eighth ninth tenth".split(), start=1
        )
    },
    "once": 1,
    "twice": 2,
    "double": 2,
    "triple": 3,
    "couple": 2,
    "pair": 2,
    "half": 0.5,
    "quarter": 0.25,
    "dozen": 12,
    "thousand": 1_000,
    "million": 1_000_000,
}
_MONTHS = (
    "january february march april may june july august september october november december".split()
)
_SCALES = (60, 100, 1000)
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

    def __init__(self, pieces: Sequence[SaidPiece], earlier: Earlier | None = None) -> None:
        """Join the pieces of a conversation's end; `earlier` is what came before it, if any."""
        self._earlier = Earlier("") if earlier is None else earlier
        words = " ".join([piece.words for piece in pieces]).split()
        self._words = f" {' '.join(words)} "
        known = set(words)
        self._stems = {word[:STEM_CHARS] for word in known}
        named = {word[:3] for word in known if word in _MONTHS or len(word) == 3}
        months = [number for number, name in enumerate(_MONTHS, 1) if name[:3] in named]
        self._numerals = {word for word in known if word.isdigit()} | {*map(str, months)}
        self._initials = {each for piece in pieces for each in piece.initials}
        found = [number for piece in pieces for number in piece.numbers]
        found += [number for piece in pieces for number in piece.spoken]
        self.numbers = frozenset(found)
        computed = (number for number in reversed(found) if number <= MAX_COMPUTED)
        self._latest = [*dict.fromkeys(computed)][:MAX_CALCULATED]
        self._codes = {code for piece in pieces for code in piece.codes}
        self._digits = {run for piece in pieces for run in piece.digits}

    @cached_property
    def _calculated(self) -> frozenset[int | float]:
        """Numbers that two of the latest numbers give."""
        found: set[int | float] = set()
        for one, other in permutations(self._latest, 2):
            found |= {one + other, abs(one - other), one * other}
            if other:
                found.add(one / other)
        return frozenset(map(exact, found))

    def has_digits_of(self, value: str | float) -> bool:
        """Return whether the conversation has the digits of a value, apart from leading zeros.

        Those of a text may be said in groups, if they are many. The letters that follow a digit
        belong to it: 1AA is not 1AB.
        """
        return self._has_digits_of(value) or self._earlier.has(value)

    def _has_digits_of(self, value: str | float) -> bool:
        if not isinstance(value, str):
            return str(exact(abs(value))) in self._digits
        words = [*map(_without_zeros, _WORD.findall(value.lower()))]
        if len(words) > 1 and self._has_together(words):
            return True
        found = _CODE.findall(value[:MAX_IDENTIFYING_CHARACTERS].lower())
        codes = [code for code in found if _INNER_LETTER.search(code)]
        groups = [word for word in words if word.isdigit()]
        return all(
            self._has_together([*map(_without_zeros, _WORD.findall(code))]) for code in codes
        ) and (
            all(group in self._digits for group in groups)
            or _without_zeros("".join(_DIGITS.findall(value))) in self._digits
        )

    def has_code(self, text: str) -> bool:
        """Return whether the conversation has the letters and digits of a text as one word."""
        code = "".join(re.findall(r"[^\W_]+", text.lower()))
        return code in self._codes or self._earlier.has(text)

    def _has_together(self, words: Sequence[str]) -> bool:
        return f" {' '.join(words)} " in self._words

    def share_of_text(self, text: str) -> float:
        """Return the share of a text's words that were said: 1 if they were said together."""
        share = self._share_of_text(text)
        return share if share == 1 else max(share, self._earlier.share_of_text(text))

    def _share_of_text(self, text: str) -> float:
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
        value = exact(abs(number))
        if value in self.numbers or (value > MAX_COMPUTED and self.has_digits_of(value)):
            return Source.SAID
        if self._earlier.has(value):
            return Source.SAID
        if not self.numbers.isdisjoint(scaled(value, _SCALES, _SCALES)):
            return Source.CALCULATED
        return Source.CALCULATED if value in self._calculated else Source.NOWHERE


@request_value(frozen=True, slots=True)
class SaidPiece:
    """What some lines of a conversation say."""

    words: str
    """Its words in lower case, and its numerals without leading zeros, joined by spaces."""
    initials: tuple[str, ...]
    numbers: tuple[int | float, ...]
    """Its numbers as they are, and with their unit."""
    spoken: tuple[int | float, ...]
    """Its numbers in words."""
    codes: tuple[str, ...]
    digits: tuple[str, ...]
    plain_words: str
    """Its words of ASCII letters, and its numerals as they are written, joined by spaces."""
    plain_numbers: frozenset[int | float]
    """Its numbers without units, and small ones in words."""


def plain_numbers_in(text: str) -> frozenset[int | float]:
    """Return the absolute values of the numbers in a text, also of small ones in words."""
    digits = map(read_number, _PLAIN_NUMBER.findall(text))
    words = (_SMALL_NUMBERS[word] for word in WORD.findall(text.lower()) if word in _SMALL_NUMBERS)
    return frozenset((*(number for number in digits if number is not None), *words))


def pieces_of(text: str) -> Iterator[str]:
    """Yield a text in pieces of some lines. What reads them finds the same as in the whole text.

    A conversation's next request should have the same pieces, although it is longer, and its
    beginning may be cut off. So a line's own hash decides whether a piece ends with it. Tools'
    results are often JSON in one line, so a line also ends after a bracket or a quote before a
    space: no number and no name goes on there. A number stays together with the next line, which
    may have its unit.
    """
    begun: list[str] = []
    size = 0
    for end in ("}", "]", '"'):
        text = text.replace(f"{end} ", f"{end}\n")
    for line in text.split("\n"):
        begun.append(line)
        size += len(line)
        is_end = hash(line) % MEAN_LINES == 1 or size > PIECE_CHARACTERS
        if is_end and not line[-1:].isdigit():
            yield "\n".join(begun)
            begun, size = [], 0
    if begun:
        yield "\n".join(begun)


def read_pieces(text: str) -> Sequence[SaidPiece]:
    """Return what a text says, in pieces."""
    return [_read_piece(piece) for piece in pieces_of(text)]


def _read_piece(text: str) -> SaidPiece:
    known = _pieces.get(text)
    if known is not None:
        return known
    stop_if_abandoned()
    lower = text.lower()
    words = [_without_zeros(word) for word in _WORD.findall(lower)]
    numbers: list[int | float] = []
    whole: list[int | float] = []
    for digits, unit in _NUMBER.findall(text):
        number = read_number(digits)
        if number is not None:
            numbers.append(number)
            whole.append(number)
            if unit:
                numbers.append(exact(number * _MULTIPLES[unit.lower()]))
    spoken = tuple([_NUMBER_WORDS[word] for word in words if word in _NUMBER_WORDS])
    joined = text.replace(") ", "-")  # (555) 123-4567
    groups = (re.sub(r"\D", "", run) for each in _JOINED for run in each.findall(joined))
    codes = (code for code in _CODE.findall(lower) if any(map(str.isdigit, code)))
    piece = SaidPiece(
        words=" ".join(words),
        initials=tuple(
            "".join(word[0] for word in _WORD.findall(name) if word[0].isupper()).lower()
            for name in _NAMES.findall(text)
        ),
        numbers=tuple(numbers),
        spoken=spoken,
        codes=tuple(code.replace("-", "") for code in codes),
        digits=(
            *map(_without_zeros, _RUN.findall(text)),
            *map(str, (*whole, *spoken)),
            *(_without_zeros(run) for run in groups if len(run) >= LEAST_JOINED_DIGITS),
        ),
        plain_words=" ".join(WORD.findall(lower)),
        plain_numbers=plain_numbers_in(text),
    )
    found = (piece.initials, piece.numbers, piece.spoken, piece.codes, piece.digits)
    values = len(piece.plain_numbers) + sum(map(len, found))
    size_bytes = len(text) + len(piece.words) + len(piece.plain_words)
    _pieces.put(text, piece, size_bytes + PIECE_BYTES + VALUE_BYTES * values)
    return piece


_pieces: Cache[str, SaidPiece] = shared_cache("pieces", max_bytes=8 * 2**20)
PIECE_BYTES, VALUE_BYTES = 800, 60
"""Memory of a piece without its texts, and of each value that is found in it."""


class Earlier:
    """What was said before the end of a long conversation.

    It is only searched for the words and digits of a value, as they are written. The other forms
    that `Said` knows would take 30 bytes of memory for each character, and 0.4 us to read it.
    """

    def __init__(self, text: str) -> None:
        """Read a text, whose beginning may be known from an earlier request."""
        self._passages = [
            _words_in(text[start : start + PASSAGE_CHARACTERS + OVERLAP_CHARACTERS])
            for start in range(0, len(text), PASSAGE_CHARACTERS)
        ]

    def has(self, value: str | float) -> bool:
        """Return whether it has a text's words together, or the digits of a number."""
        if not self._passages:
            return False
        text = value if isinstance(value, str) else str(exact(abs(value)))
        words = _normal(text[:MAX_VALUE_CHARACTERS])
        return not words.isspace() and any(words in passage for passage in self._passages)

    def share_of_text(self, text: str) -> float:
        """Return the share of a text's words that it has: 1 if it has them together."""
        if self.has(text):
            return 1.0
        words = _normal(text[:MAX_VALUE_CHARACTERS]).split()[:MAX_SEARCHED_WORDS]
        if not self._passages or not words:
            return 0.0
        # A stem is the beginning of a long word, and the whole of a short one.
        stems = [
            f" {word[:STEM_CHARS]}" if len(word) >= STEM_CHARS else f" {word} " for word in words
        ]
        said = sum(any(stem in passage for passage in self._passages) for stem in stems)
        return said / len(words)


def _words_in(passage: str) -> str:
    known = _passages.get(passage)
    if known is None:
        stop_if_abandoned()
        known = _normal(passage)
        _passages.put(passage, known, 2 * (len(passage) + len(known)))
    return known


_passages: Cache[str, str] = shared_cache("passages", max_bytes=16 * 2**20)


def _normal(text: str) -> str:
    """Return the words of a text in lower case, with a space before and after each."""
    return f" {' '.join(map(_without_zeros, _WORD.findall(text.lower())))} "


def _without_zeros(word: str) -> str:
    """Return a numeral without leading zeros, so that 06 is 6."""
    return word.lstrip("0") or "0" if word[0] == "0" else word


def read_number(digits: str) -> int | float | None:
    """Return the number of a text such as `1,234.50`; None if it is too long to be one."""
    whole, _, fraction = digits.replace(",", "").partition(".")
    if len(whole) > MAX_INTEGER_DIGITS:
        return None
    return exact(float(f"{whole}.{fraction}")) if fraction.strip("0") else int(whole)


def exact(number: float) -> int | float:
    """Return an equal number by which to look a number up, whatever its type was.

    An integer stays exact. A fraction loses its last binary digits: 0.07 * 100 is not exactly 7.
    """
    if isinstance(number, int) or not isfinite(number):
        return number
    rounded = float(f"{number:.12g}") if abs(number) < 1e9 else round(number, 3)
    return int(rounded) if rounded.is_integer() else rounded


def scaled(
    number: float, multipliers: Sequence[int], divisors: Sequence[int]
) -> Iterator[int | float]:
    """Yield a number in other units: 5 as 500 and 0.05."""
    yield from (exact(number * factor) for factor in multipliers)
    for divisor in divisors:
        if isinstance(number, int) and number % divisor == 0:
            yield number // divisor
        elif abs(number) < MAX_COMPUTED:
            yield exact(number / divisor)


def is_named_after(name: str, value: str) -> bool:
    """Return whether a text only repeats the name of its parameter, as in `"path": "path"`."""
    if len(value) > len(name) + 20:
        return False
    words, own = _words_of(value), _words_of(name)
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
    words = _words_of(name)
    is_long = isinstance(value, str) and len(value) > MAX_IDENTIFYING_CHARACTERS
    is_long = is_long and not value.lstrip("-").isdigit()
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


MAX_FORM_CHARACTERS = 80
"""Characters of a text that tell its form."""

_EXAMPLE = re.compile(
    r"(?:e\.g\.,?|such as|for example,?|examples?:?|like|format:?|form)\s*[\"'`(]?"
    r"([^\"'`)\n;]{2,40})|['\"`]([^'\"`\n]{2,40})['\"`]",
    re.IGNORECASE,
)
"""An example in a description, after a word that announces it or in quotes."""
_MAX_EXAMPLES = 10


def fits_examples(value: Json, schema: Schema) -> bool | None:
    """Return whether a text has the form of an example in its parameter's description.

    The form is the marks in a text, such as the comma of `Oslo, NO`, whether it begins with a
    capital, and whether it has digits. Without a text or an example, the result is None.
    """
    try:
        known = _forms_in(schema.description[:MAX_DESCRIPTION_CHARACTERS])
    except (SchemaError, RecursionError):
        return None
    return _form_of(value) in known if known and isinstance(value, str) else None


@lru_cache(maxsize=2048)
def _forms_in(description: str) -> frozenset[frozenset[str]]:
    found = _EXAMPLE.findall(description)[:_MAX_EXAMPLES]
    return frozenset(_form_of(announced or quoted) for announced, quoted in found)


def _form_of(text: str) -> frozenset[str]:
    text = text.strip(" .")[:MAX_FORM_CHARACTERS]
    form = {each for each in text if not each.isalnum() and each != " "}
    if text[:1].isupper():
        form.add("A")
    if any(map(str.isdigit, text)):
        form.add("0")
    return frozenset(form)


_IDENTIFIERS = frozenset(
    "id ids identifier identifiers uuid uuids guid guids isbn issn iban ssn vin imei sku skus "
    "asin ean upc zip zipcode zips postcode phone phones telephone tel mobile fax pid pids port "
    "ports pin pnr account invoice issue ticket uid uids oid pk ref refs reference serial".split()
)
"""Last words of the name of a value that identifies something."""
_NUMBERED = frozenset(
    "access account activation airport area bank booking bus card case cell check cheque claim "
    "client confirmation contact container contract country coupon credit customer debit dialing "
    "discount document employee fax flight house id identification invoice issue item licence "
    "license lot member membership mobile order package parcel part passport patent patient "
    "payment phone plate po policy post postal pr primary product promo pull purchase receipt "
    "record ref reference registration reservation room routing seat security serial session "
    "shipment social station street student tax telephone ticket tracking train transaction user "
    "vat vehicle verification voucher zip".split()
)
"""What has a number or a code that identifies it. A number of guests, or of a page, identifies
nothing."""
_NUMBER_NOUNS = tuple("number numbers num no nr code codes id ids key keys ref reference".split())
_POSSESSIVE = re.compile(r"['\u2019]s\b")
_BY_ITS_NUMBER = re.compile(
    r"\bby (?:its|their) (?:\w+ )?(?:numbers?|codes?|ids?|identifiers?|keys?)\b", re.IGNORECASE
)
_LIST_OF = re.compile(
    r"\W*(?:(?:an?|the)\s+)?(?:[\w-]+\s+)?(?:list|array|set)\s+of\s+", re.IGNORECASE
)
_HEAD_END = re.compile(
    r"[^\w\s'/-]|\b(?:of|for|to|in|on|at|from|by|with|that|which|who|whose|where|used|as|is|or)\b",
    re.IGNORECASE,
)
_MARK = re.compile(r"^\W*(?:required|optional|mandatory)\b\W+", re.IGNORECASE)
_THAT_IDENTIFIES = re.compile(
    r"\W*(?:(?:an?|the|unique)\s+)*(?:\w+\s+)?(?:(?:that|which)\s+)?(?:uniquely\s+)?"
    r"identif(?:ies|ying)\b",
    re.IGNORECASE,
)
_NUMBER_OF_ONE = re.compile(
    r"\W*(?:the\s+)?(?:number|code)\s+of\s+(?:the|this|that|an?|your)\s+([^\W\d_]+)", re.IGNORECASE
)


def identifies(name: str, schema: Schema, parent: str = "") -> bool:
    """Return whether a parameter's value identifies something, by its name, description or format.

    `parent` is the name of the object or list that the value is in: in `{"order": {"number": 7}}`,
    the number identifies.
    """
    try:
        forms = (schema, *schema.branches)  # such as an integer or null
        description = next(filter(None, (each.description for each in forms)), "")
        form = next(filter(None, (each.format for each in forms)), "")
    except (SchemaError, RecursionError):
        description = form = ""
    limit = MAX_NAME_CHARACTERS
    return _identifies(
        name[-limit:], parent[-limit:], description[:MAX_DESCRIPTION_CHARACTERS], form[:limit]
    )


@lru_cache(maxsize=2048)
def _identifies(name: str, parent: str, description: str, form: str) -> bool:
    own = _words_of(name)
    if _ends_in_identifier([*_words_of(parent), *own]) or own[:1] in (["id"], ["ids"]):
        return True
    description = _POSSESSIVE.sub("", description)
    description = _LIST_OF.sub("", _MARK.sub("", description, count=1), count=1)
    head = _HEAD_END.split(description, maxsplit=1)[0]
    of_one = _NUMBER_OF_ONE.match(description)
    return (
        _ends_in_identifier(_words_of(head))
        or _ends_in_identifier(_words_of(form))
        or _THAT_IDENTIFIES.match(description) is not None
        or _BY_ITS_NUMBER.search(description) is not None
        or (of_one is not None and of_one[1].lower() in _NUMBERED)
    )


def _words_of(name: str) -> list[str]:
    return _WORD.findall(_CAMEL.sub(" ", name).lower())


def _ends_in_identifier(words: Sequence[str]) -> bool:
    """Return whether a phrase names what identifies something, such as `order number`."""
    last = words[-1] if words else ""
    if last in _IDENTIFIERS or any(
        last.endswith(noun) and last.removesuffix(noun) in _NUMBERED for noun in _NUMBER_NOUNS
    ):
        return True
    return len(words) > 1 and last in _NUMBER_NOUNS and words[-2].removesuffix("s") in _NUMBERED


def source_of(  # noqa: PLR0911
    said: Said,
    name: str,
    value: Json,
    schema: Schema,
    share: float | None = None,
    *,
    is_identifying: bool = False,
) -> Source | None:
    """Return where the value of a parameter comes from; None for a boolean, null or empty text.

    `share` is the share of a text's words that were said, if it is known. The digits of a value
    that `is_identifying` must all be said, or come from the schema.
    """
    if isinstance(value, bool) or value is None or value == "":
        return None
    if isinstance(value, int | float):
        if is_identifying:
            source = Source.SAID if said.has_digits_of(value) else Source.NOWHERE
        else:
            source = said.source_of_number(value)
        if source is Source.NOWHERE and is_in_schema(value, schema):
            return Source.SCHEMA
        return source
    if not isinstance(value, str):
        return None
    share = said.share_of_text(value) if share is None else share
    if is_identifying and any(map(str.isdigit, value[:MAX_VALUE_CHARACTERS])):
        value_digits = value[:MAX_VALUE_CHARACTERS]
        if said.has_code(value_digits) or (
            said.has_digits_of(value_digits)
            and (share >= SAID_FROM or not any(map(str.isalpha, value_digits)))
        ):
            return Source.SAID
    elif share >= SAID_FROM:
        return Source.SAID
    # The date of an example is not the user's date.
    is_own = is_named_after(name, value) or is_date(value)
    return Source.SCHEMA if not is_own and is_in_schema(value, schema) else Source.NOWHERE
