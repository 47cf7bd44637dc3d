"""The default of a parameter: its schema's own, or one written in its description."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Final

import orjson

from switchcraft_training.checking.schema import Kind, Schema
from switchcraft_training.records import Json

_MISSING: Final = object()

_NUMBER = r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?"
_INTRODUCED = re.compile(
    r"""
      \b(?:defaults?|defaulted) (?:\s+(?:value|setting))?
         (?: \s*[:=]\s* | \s+(?:is|to|of|as|being)\b (?:\s+set\s+to\b)? (?:\s+be\b)?\s*:?\s* )
    | (?<!\ba\s)(?<!\bthe\s)(?<!\bits\s) \bdefault (?:\s+value)? \s+
    | \bdefault (?:\s+\w+){1,2} \s+is\s+ (?:set\s+to\s+)? (?=[-+\d])
    | \b(?:assumes|assumed\s+to\s+be)\s+
    | \bif\s+(?:not\s+(?:specified|provided|given|set)|omitted)\s*,\s*(?:it\s+)?(?:is\s+|uses\s+)?
    """,
    re.VERBOSE | re.IGNORECASE,
)
_FOLLOWED = re.compile(
    rf"""(?P<value> `[^`]+` | '[^']+' | "[^"]+" | \b(?:true|false)\b | (?<![\w.]){_NUMBER} )
         (?: \s*\(\s*(?:the\s+)?default\s*\) | ,?\s+(?:is\s+used\s+)?by\s+default\b )""",
    re.VERBOSE | re.IGNORECASE,
)
_QUOTED = re.compile(r"""`([^`]*)`|'((?:[^']|'(?=\w))*)'|"([^"]*)\"""")
_EMPTY = re.compile(r"(?:an?\s+)?empty\s+(string|list|array|object|dict\w*)\b", re.IGNORECASE)
_NOTHING = re.compile(r"(?:none|null|nothing)\b(?!\s*of\b)", re.IGNORECASE)
_PHRASE = re.compile(
    r"""(?!(?:an?|the|not|if|used?)\b) [^\W_] [\w/+&-]* (?: \s+ [\w/+&-]+ ){0,3}?
    (?= \s*(?: $ | [.,;:)\]\n(] ) | \s+(?:if|when|unless|for|which|indicating|and)\b )""",
    re.VERBOSE,
)
"""A few unquoted words up to where the clause ends. To read too much does no harm: a default
only ever counts where it equals the value that was expected."""


@lru_cache(maxsize=1 << 14)
def documented_defaults(schema: Schema) -> tuple[Json, ...]:
    """Return what leaving a parameter out may mean, read as its schema's type; often nothing.

    The schema's own `default` is the only one where there is one; a description may mention
    several, of which at most one is meant.
    """
    own = schema.own_default
    values = [_coerced(own["default"], schema)] if own else _written(schema)
    return tuple(value for value in values if value is not _MISSING)


def _coerced(default: Json, schema: Schema) -> Json:
    """Read a default written as text, `"0"` of an integer, as its type."""
    if not isinstance(default, str) or schema.takes(Kind.STRING):
        return default
    return _read(default, schema)


def _written(schema: Schema) -> Iterator[Json]:
    """Yield what each mention of a default in the description gives."""
    text = schema.description
    for match in _INTRODUCED.finditer(text):
        yield _read(text[match.end() :], schema)
    for match in _FOLLOWED.finditer(text):
        yield _read(match["value"], schema)


def _read(text: str, schema: Schema) -> Json:
    """Read the value that a text begins with."""
    empty = _EMPTY.match(text)
    if empty:
        return {"string": "", "list": [], "array": []}.get(empty[1].casefold(), {})
    if _NOTHING.match(text) and not _is_member(text, schema):
        return None
    return next(
        (
            value
            for kind, read in _READERS.items()
            if kind in schema.kinds and (value := read(text, schema)) is not _MISSING
        ),
        _MISSING,
    )


def _is_member(text: str, schema: Schema) -> bool:
    return any(isinstance(m, str) and text.startswith(m) for m in schema.members)


def _boolean(text: str, _: Schema) -> Json:
    match = re.match(r"""[`'"]?(true|false)\b""", text, re.IGNORECASE)
    return _MISSING if match is None else match[1].casefold() == "true"


def _number(text: str, _: Schema) -> Json:
    match = re.match(rf"""[`'"$]?((?>{_NUMBER}))(?!\s*[x*]\s*10|/\d|\w)""", text, re.IGNORECASE)
    if match is None:
        return _MISSING
    digits = match[1].replace(",", "")
    return int(digits) if re.fullmatch(r"[-+]?\d+", digits) else float(digits)


def _integer(text: str, schema: Schema) -> Json:
    value = _number(text, schema)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _json(text: str, _: Schema) -> Json:
    """Read a list or an object written as JSON, or with single quotes."""
    match = re.match(r"`?(\[[^\[\]]*\]|\{[^{}]*\})", text)
    for spelled in (match[1], match[1].replace("'", '"')) if match else ():
        try:
            return orjson.loads(spelled)
        except orjson.JSONDecodeError:
            continue
    return _MISSING


def _string(text: str, schema: Schema) -> Json:
    """Read quoted text, a member of the enum, or an unquoted word or name."""
    quoted = _QUOTED.match(text)
    if quoted:
        return next(group for group in quoted.groups() if group is not None)
    named = [m for m in schema.members if isinstance(m, str) and _begins(text, m)]
    unquoted = _PHRASE.match(text)
    return max(named, key=len) if named else unquoted[0] if unquoted else _MISSING


def _begins(text: str, word: str) -> bool:
    return bool(re.match(rf"{re.escape(word)}(?!\w)", text, re.IGNORECASE))


_READERS: Final[Mapping[Kind, Callable[[str, Schema], Json]]] = {
    Kind.BOOLEAN: _boolean,
    Kind.INTEGER: _integer,
    Kind.NUMBER: _number,
    Kind.ARRAY: _json,
    Kind.OBJECT: _json,
    Kind.STRING: _string,
}
