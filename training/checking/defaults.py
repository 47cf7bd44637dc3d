"""The default of a parameter, from its schema or from the ways people write it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from training.records import Json

MISSING: Final = object()

_WRITTEN = re.compile(
    r"""\bdefault(?:s|ed)?\b(?:\s+(?:value|setting))?\s*(?:is|to|of|as|:|=)?\s*(?:set\s+to\s+)?
    (?P<value> `[^`]*` | '[^']*' | "[^"]*" | \[[^\]]*\] | \{[^}]*\}
             | -?\d+(?:\.\d+)? | [A-Za-z][\w/-]* )""",
    re.VERBOSE | re.IGNORECASE,
)
_NOTHING = {"none", "null", "empty", "nothing"}


def documented_default(schema: Mapping[str, Json]) -> Json:
    """Return a parameter's default, read as its schema's type; `MISSING` where there is none."""
    if "default" in schema:
        return schema["default"]
    match = _WRITTEN.search(str(schema.get("description", "")))
    return _read(match["value"], schema.get("type")) if match else MISSING


def _read(text: str, kind: Json) -> Json:
    bare = text.strip("`'\"")
    if bare.casefold() in _NOTHING and kind != "string":
        return None
    if kind == "boolean":
        return {"true": True, "false": False}.get(bare.casefold(), MISSING)
    if kind in {"integer", "number", "array", "object"}:
        try:
            return json.loads(bare.replace("'", '"'))
        except ValueError:
            return MISSING
    return bare
