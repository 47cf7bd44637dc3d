"""Whether an argument is one of the accepted values (paper, section 3.2)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence

from training.checking.defaults import MISSING, documented_default
from training.checking.strings import canonical
from training.records import Json, OneOf

Schema = Mapping[str, Json]

_FOREIGN_NOTE = re.compile(r"\bThis is (?:Java|JavaScript) ")
_FOREIGN_WORDS = frozenset(
    "new arraylist linkedlist list array arrays aslist of hashmap map hashset set put string "
    "integer int long double float boolean object char byte".split()
)
_FOREIGN_CALL = re.compile(r"(?<=\w)\(\)")
"""`callback()` is another value than `callback`."""

_FOREIGN_SUFFIX = re.compile(r"(?<=\d)[lfd]\b", re.IGNORECASE)


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


TYPES: Mapping[str, Callable[[Json], bool]] = {
    "integer": lambda v: _is_number(v) and (isinstance(v, int) or v.is_integer()),
    "number": _is_number,
    "boolean": lambda v: isinstance(v, bool),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
    "string": lambda v: isinstance(v, str) or _is_number(v),
}


def fits_type(value: Json, schema: Schema) -> bool:
    """Tell whether a value is of its schema's type; a schema without one takes any."""
    kind = schema.get("type")
    if value is None or not isinstance(kind, str) or kind not in TYPES:
        return True
    return TYPES[kind](value)


def is_accepted(value: Json, accepted: Sequence[Json], schema: Schema) -> bool:
    """Tell whether a value equals one of the accepted ones."""
    return any(is_equal(value, wanted, schema) for wanted in accepted)


def is_equal(value: Json, wanted: Json, schema: Schema) -> bool:
    """Compare a value with what was expected, by the kind of the latter."""
    if isinstance(wanted, OneOf):
        return is_accepted(value, wanted.values, schema)
    if isinstance(value, str) and _FOREIGN_NOTE.search(str(schema.get("description", ""))):
        return _equal_foreign(value, wanted)
    if isinstance(wanted, list):
        return isinstance(value, list) and _equal_lists(value, wanted, schema)
    if isinstance(wanted, dict):
        return isinstance(value, dict) and _equal_objects(value, wanted, schema)
    return _equal_scalars(value, wanted, schema)


def _equal_scalars(value: Json, wanted: Json, schema: Schema) -> bool:
    """Compare numbers as numbers, strings by their canonical form, all else by identity.

    A number may stand for the string of it where the schema says `string`.
    """
    if isinstance(wanted, int) and isinstance(value, int):
        return value == wanted and type(value) is type(wanted)
    if _is_number(wanted) and _is_number(value):
        return _close(value, wanted)
    plain = [isinstance(side, str) or _is_number(side) for side in (value, wanted)]
    if not all(plain):
        return value is wanted
    if _is_number(wanted) and schema.get("type") != "string":
        return False
    return canonical(str(value)) == canonical(str(wanted))


def _close(a: float, b: float) -> bool:
    """Compare numbers of which one has a fraction: a ninth digit is a matter of spelling."""
    try:
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)
    except OverflowError:  # an integer beyond any float
        return False


def _equal_lists(value: list[Json], wanted: list[Json], schema: Schema) -> bool:
    """Compare as multisets; a list of lists is a matrix, whose order counts."""
    if len(value) != len(wanted):
        return False
    items = schema.get("items")
    inner: Schema = items if isinstance(items, dict) else {}
    if any(isinstance(item, list) for item in wanted):
        return all(_in_order(v, w, inner) for v, w in zip(value, wanted, strict=True))
    left = list(value)
    for want in wanted:
        match = next((i for i, item in enumerate(left) if is_equal(item, want, inner)), None)
        if match is None:
            return False
        del left[match]
    return True


def _in_order(value: Json, wanted: Json, schema: Schema) -> bool:
    if not isinstance(wanted, list):
        return is_equal(value, wanted, schema)
    if not isinstance(value, list) or len(value) != len(wanted):
        return False
    items = schema.get("items")
    inner: Schema = items if isinstance(items, dict) else {}
    return all(_in_order(v, w, inner) for v, w in zip(value, wanted, strict=True))


def _equal_objects(value: Mapping[str, Json], wanted: Mapping[str, Json], schema: Schema) -> bool:
    """Compare key by key against the sub-schemas; a key at its default may be left out."""
    properties = schema.get("properties")
    schemas: Mapping[str, Schema] = properties if isinstance(properties, dict) else {}
    if set(value) - set(wanted):
        return False
    return all(
        is_equal(value[key], want, schemas.get(key, {}))
        if key in value
        else may_omit(want, schemas.get(key, {}))
        for key, want in wanted.items()
    )


def may_omit(wanted: Json, schema: Schema) -> bool:
    """Tell whether a key may be left out: it is optional, or its default is what was expected."""
    if isinstance(wanted, OneOf) and wanted.is_optional:
        return True
    default = documented_default(schema)
    return default is not MISSING and is_equal(default, wanted, schema)


def _equal_foreign(value: str, wanted: Json) -> bool:
    """Compare a Java or JavaScript literal; a collection is never a single value."""
    if isinstance(wanted, str) and _is_collection(value) != _is_collection(wanted):
        return False
    return foreign_tokens(value) == foreign_tokens(wanted)


def _is_collection(text: str) -> bool:
    return text.strip().startswith(("[", "{"))


def foreign_tokens(value: Json) -> list[str]:
    """Return what a Java or JavaScript literal says, without how it says it.

    `new ArrayList<>(Arrays.asList("a", 2L))` and `["a", 2]` give the same tokens.
    """
    if isinstance(value, OneOf):
        value = value.values[0] if value.values else ""
    text = value if isinstance(value, str) else json.dumps(value, default=_one_of)
    text = _FOREIGN_CALL.sub(" called", re.sub(r"[<>{}\[\]]", " ", text))
    words = canonical(_FOREIGN_SUFFIX.sub("", text)).split()
    return [word for word in words if word not in _FOREIGN_WORDS and word not in "()"]


def _one_of(value: object) -> Json:
    if isinstance(value, OneOf):
        return value.values[0] if value.values else None
    raise TypeError(type(value).__name__)
