"""Java and JavaScript literals -> values: what a text says, without how it says it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from switchcraft_training.records import Json

Item = TypeVar("Item")

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number> [-+]?(?:\d[\d_]*\.?[\d_]*|\.\d+)(?:[eE][-+]?\d+)?)[lLfFdDn]?\b(?![\w.])
    | (?P<text> "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' | `(?:[^`\\]|\\.)*` )
    | (?P<name> [A-Za-z_$][\w$]*(?:\.[A-Za-z_$][\w$]*)* )
    | (?P<mark> [\[\](){},:=;<>-] )
    )""",
    re.VERBOSE | re.DOTALL,
)
_GENERICS = re.compile(r"(?<=\w)<[\w\s,.?<>\[\]]*>(?=\s*[({\[])")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)

_WORDS: Final[dict[str, Json]] = {"true": True, "false": False, "null": None, "undefined": None}
_LISTS: Final = frozenset(
    "Arrays.asList List.of Set.of ArrayList LinkedList HashSet TreeSet Set Array Stack Queue "
    "ArrayDeque Vector".split()
)
"""Constructors and factories of collections, which say nothing but their items."""

_MAPS: Final = frozenset("HashMap LinkedHashMap TreeMap Hashtable Map Map.of Object".split())
_BOXES: Final = frozenset(
    "Integer Long Double Float Short Byte Boolean Character String BigInt BigInteger Number "
    "Integer.valueOf Long.valueOf Double.valueOf String.valueOf".split()
)


class _NoLiteralError(Exception):
    """A text that is no literal."""


def parse_literal(text: str) -> Json:
    """Return the value that a Java or JavaScript literal stands for; other text as it is.

    `new ArrayList<>(Arrays.asList("a", 2L))` and `["a", 2]` give the same list. A call of
    anything but a collection is text of one spelling: `new Point(1, 2)` gives `Point(1, 2)`.
    """
    for spelling in dict.fromkeys((text, text.replace('\\"', '"'))):  # escaped once too often
        try:
            return _Parser(_GENERICS.sub("", spelling)).whole()
        except (_NoLiteralError, RecursionError):
            continue
    return text.strip()


class _Parser:
    """Recursive descent over the tokens of one literal."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0

    def whole(self) -> Json:
        value = self._value()
        while self._skips(";"):
            pass
        if self._at != len(self._tokens):
            raise _NoLiteralError
        return value

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")

    def _take(self) -> tuple[str, str]:
        token = self._peek()
        self._at += 1
        return token

    def _skips(self, mark: str) -> bool:
        if self._peek() == ("mark", mark):
            self._at += 1
            return True
        return False

    def _value(self) -> Json:
        kind, text = self._take()
        if kind == "number":
            return _number(text)
        if kind == "text":
            return _ESCAPED.sub(r"\1", text[1:-1])
        if kind == "name":
            return self._named(text)
        if (kind, text) == ("mark", "["):
            return self._items("]", self._value)
        if (kind, text) == ("mark", "{"):
            return self._braces()
        raise _NoLiteralError

    def _named(self, name: str) -> Json:
        """Read what a name begins: a word, `new` something, a collection, a call, a variable."""
        if name == "new":
            kind, name = self._take()
            if kind != "name":
                raise _NoLiteralError
        if self._skips("["):  # new int[] {1, 2}
            if not (self._skips("]") and self._skips("{")):
                raise _NoLiteralError
            return self._items("}", self._value)
        if not self._skips("("):
            return _WORDS.get(name, name)
        return self._called(name, self._items(")", self._value))

    def _called(self, name: str, given: list[Json]) -> Json:
        short = name.removeprefix("java.util.")
        if short in _LISTS:
            return given[0] if len(given) == 1 and isinstance(given[0], list) else given
        if short in _MAPS and len(given) % 2 == 0:
            pairs = dict(zip(map(str, given[::2]), given[1::2], strict=True))
            return {**pairs, **self._double_braces()}
        if short in _BOXES and len(given) == 1:
            return given[0]
        return f"{name}({', '.join(map(_spelled, given))})"

    def _double_braces(self) -> dict[str, Json]:
        """Read `{{ put("a", 1); put("b", 2); }}` behind a map's constructor."""
        pairs: dict[str, Json] = {}
        if not (self._skips("{") and self._skips("{")):
            return pairs
        while not self._skips("}"):
            if self._take() != ("name", "put") or not self._skips("("):
                raise _NoLiteralError
            key, value = self._items(")", self._value)
            pairs[str(key)] = value
            self._skips(";")
        self._skips("}")
        return pairs

    def _braces(self) -> Json:
        """Read an object, or Java's initializer of an array."""
        start = self._at
        try:
            return dict(self._items("}", self._pair))
        except _NoLiteralError:
            self._at = start
            return self._items("}", self._value)

    def _pair(self) -> tuple[str, Json]:
        key = self._value()
        if not (self._skips(":") or self._skips("=")):
            raise _NoLiteralError
        return str(key), self._value()

    def _items(self, end: str, read: Callable[[], Item]) -> list[Item]:
        found: list[Item] = []
        while not self._skips(end):
            found.append(read())
            if not self._skips(",") and self._peek() != ("mark", end):
                raise _NoLiteralError
        return found


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise _NoLiteralError
        yield match.lastgroup, match[match.lastgroup]
        at = match.end()


def _number(text: str) -> int | float:
    plain = text.replace("_", "")
    try:
        return int(plain)
    except ValueError:
        return float(plain)


def _spelled(value: Json) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_spelled, value))}]"
    if isinstance(value, dict):
        pairs = sorted((key, _spelled(inner)) for key, inner in value.items())
        return "{" + ", ".join(f"{key}: {inner}" for key, inner in pairs) + "}"
    return str(value)
