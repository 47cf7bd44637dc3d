"""Defaults of parameters, from the schema's `default` keyword or from the description's text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final
from weakref import WeakKeyDictionary

import orjson

from router_service.apis.conversation import Json
from router_service.checker.parameter_schema import JsonType, Schema

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
"""A few unquoted words up to the end of the clause. Matching too many words does no harm, because a
default only matters if it equals the expected value."""


MAX_DESCRIPTION_CHARACTERS = 10_000
"""Length of a description that is searched for defaults."""

_defaults: WeakKeyDictionary[Schema, tuple[Json, ...]] = WeakKeyDictionary()
"""Defaults of each schema, for as long as the schema is in use."""


def documented_defaults(schema: Schema) -> tuple[Json, ...]:
    """Return the possible defaults of a parameter, parsed as the schema's type.

    If the schema has a `default` keyword, its value is the only candidate. Otherwise, the result
    contains every value that the description may present as the default. At most one is meant.
    """
    known = _defaults.get(schema)
    if known is not None:
        return known
    own, values = schema.own_default, []
    if own:
        default = own["default"]
        is_text = isinstance(default, str) and not schema.allows(JsonType.STRING)
        values.append(_parse(default, schema) if is_text else default)  # `"0"` for an integer
    else:
        text = schema.description[:MAX_DESCRIPTION_CHARACTERS]
        values.extend(_parse(text[match.end() :], schema) for match in _INTRODUCED.finditer(text))
        values.extend(_parse(match["value"], schema) for match in _FOLLOWED.finditer(text))
    found = _defaults[schema] = tuple(value for value in values if value is not _MISSING)
    return found


def _parse(text: str, schema: Schema) -> Json:
    """Return the value at the start of a text, or `_MISSING`."""
    empty = _EMPTY.match(text)
    if empty:
        return {"string": "", "list": [], "array": []}.get(empty[1].casefold(), {})
    if _NOTHING.match(text) and not any(
        isinstance(member, str) and text.startswith(member) for member in schema.members
    ):
        return None
    for json_type, parse in _PARSERS.items():
        if json_type in schema.types:
            value = parse(text, schema)
            if value is not _MISSING:
                return value
    return _MISSING


def _parse_boolean(text: str, _: Schema) -> Json:
    match = re.match(r"""[`'"]?(true|false)\b""", text, re.IGNORECASE)
    return _MISSING if match is None else match[1].casefold() == "true"


def _parse_number(text: str, schema: Schema) -> Json:
    """Parse a number; if the schema allows an integer, `5.0` is 5."""
    match = re.match(rf"""[`'"$]?((?>{_NUMBER}))(?!\s*[x*]\s*10|/\d|\w)""", text, re.IGNORECASE)
    if match is None:
        return _MISSING
    digits = match[1].replace(",", "")
    if re.fullmatch(r"[-+]?\d+", digits):
        try:
            return int(digits)
        except ValueError:  # Python refuses to parse more than 4,300 digits.
            return _MISSING
    value = float(digits)
    is_integer = JsonType.INTEGER in schema.types and value.is_integer()
    return int(value) if is_integer else value


def _parse_json(text: str, _: Schema) -> Json:
    """Parse a list or an object, written as JSON or as JSON with single quotes."""
    match = re.match(r"`?(\[[^\[\]]*\]|\{[^{}]*\})", text)
    for spelled in (match[1], match[1].replace("'", '"')) if match else ():
        try:
            return orjson.loads(spelled)
        except orjson.JSONDecodeError:
            continue
    return _MISSING


def _parse_string(text: str, schema: Schema) -> Json:
    """Return quoted text, an enum member, or a few unquoted words."""
    quoted = _QUOTED.match(text)
    if quoted:
        return next(group for group in quoted.groups() if group is not None)
    named = [
        member
        for member in schema.members
        if isinstance(member, str) and re.match(rf"{re.escape(member)}(?!\w)", text, re.IGNORECASE)
    ]
    unquoted = _PHRASE.match(text)
    return max(named, key=len) if named else unquoted[0] if unquoted else _MISSING


_PARSERS: Final[Mapping[JsonType, Callable[[str, Schema], Json]]] = {
    JsonType.BOOLEAN: _parse_boolean,
    JsonType.INTEGER: _parse_number,
    JsonType.NUMBER: _parse_number,
    JsonType.ARRAY: _parse_json,
    JsonType.OBJECT: _parse_json,
    JsonType.STRING: _parse_string,
}
