"""Parser for Java and JavaScript literals.

It returns the value of a literal, so that two spellings of one value compare as equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from router_service.apis.conversation import Json

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
"""Constructors and factories of collections; their value is the list of their arguments."""

_MAPS: Final = frozenset("HashMap LinkedHashMap TreeMap Hashtable Map Map.of Object".split())
_BOXES: Final = frozenset(
    "Integer Long Double Float Short Byte Boolean Character String BigInt BigInteger Number "
    "Integer.valueOf Long.valueOf Double.valueOf String.valueOf".split()
)


class _NotALiteralError(Exception):
    """A text that is not a literal."""


def parse_literal(text: str) -> Json:
    """Return the value of a Java or JavaScript literal; return any other text stripped.

    `new ArrayList<>(Arrays.asList("a", 2L))` and `["a", 2]` give the same list. A call of an
    unknown function or constructor becomes normalized text: `new Point(1, 2)` gives `Point(1, 2)`.
    """
    # The second spelling is for texts whose quotes were escaped once too often.
    for spelling in dict.fromkeys((text, text.replace('\\"', '"'))):
        try:
            return _Parser(_GENERICS.sub("", spelling)).parse()
        except (_NotALiteralError, RecursionError):
            continue
    return text.strip()


class _Parser:
    """Recursive-descent parser for one literal."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._next = 0

    def parse(self) -> Json:
        value = self._value()
        while self._skip(";"):
            pass
        if self._next != len(self._tokens):
            raise _NotALiteralError
        return value

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._next] if self._next < len(self._tokens) else ("end", "")

    def _take(self) -> tuple[str, str]:
        token = self._peek()
        self._next += 1
        return token

    def _skip(self, mark: str) -> bool:
        if self._peek() == ("mark", mark):
            self._next += 1
            return True
        return False

    def _value(self) -> Json:
        kind, text = self._take()
        if kind == "number":
            plain = text.replace("_", "")
            try:
                return int(plain)
            except ValueError:
                return float(plain)
        if kind == "text":
            return _ESCAPED.sub(r"\1", text[1:-1])
        if kind == "name":
            return self._named(text)
        if (kind, text) == ("mark", "["):
            return self._items("]", self._value)
        if (kind, text) == ("mark", "{"):
            return self._braces()
        raise _NotALiteralError

    def _named(self, name: str) -> Json:
        """Parse a keyword, `new ...`, a collection, a call or a variable."""
        if name == "new":
            kind, name = self._take()
            if kind != "name":
                raise _NotALiteralError
        if self._skip("["):  # new int[] {1, 2}
            if not (self._skip("]") and self._skip("{")):
                raise _NotALiteralError
            return self._items("}", self._value)
        if not self._skip("("):
            return _WORDS.get(name, name)
        given = self._items(")", self._value)
        short = name.removeprefix("java.util.")
        if short in _LISTS:
            return given[0] if len(given) == 1 and isinstance(given[0], list) else given
        if short in _MAPS and len(given) % 2 == 0:
            pairs = dict(zip(map(str, given[::2]), given[1::2], strict=True))
            return {**pairs, **self._put_calls()}
        if short in _BOXES and len(given) == 1:
            return given[0]
        return f"{name}({', '.join(map(_format, given))})"

    def _put_calls(self) -> dict[str, Json]:
        """Parse `{{ put("a", 1); put("b", 2); }}` after a map's constructor."""
        pairs: dict[str, Json] = {}
        if not (self._skip("{") and self._skip("{")):
            return pairs
        while not self._skip("}"):
            if self._take() != ("name", "put") or not self._skip("("):
                raise _NotALiteralError
            key, value = self._items(")", self._value)
            pairs[str(key)] = value
            self._skip(";")
        self._skip("}")
        return pairs

    def _braces(self) -> Json:
        """Parse an object or, if that fails, a Java array initializer."""
        start = self._next
        try:
            return dict(self._items("}", self._pair))
        except _NotALiteralError:
            self._next = start
            return self._items("}", self._value)

    def _pair(self) -> tuple[str, Json]:
        key = self._value()
        if not (self._skip(":") or self._skip("=")):
            raise _NotALiteralError
        return str(key), self._value()

    def _items(self, end: str, read: Callable[[], Item]) -> list[Item]:
        """Parse a comma-separated list up to the closing mark."""
        found: list[Item] = []
        while not self._skip(end):
            found.append(read())
            if not self._skip(",") and self._peek() != ("mark", end):
                raise _NotALiteralError
        return found


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise _NotALiteralError
        yield match.lastgroup, match[match.lastgroup]
        at = match.end()


def _format(value: Json) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_format, value))}]"
    if isinstance(value, dict):
        pairs = sorted((key, _format(inner)) for key, inner in value.items())
        return "{" + ", ".join(f"{key}: {inner}" for key, inner in pairs) + "}"
    return str(value)
