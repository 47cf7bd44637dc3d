"""Whether a value is one of the accepted ones, and what is wrong where it is not (paper, 3.2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from switchcraft_training.checking.defaults import documented_defaults
from switchcraft_training.checking.literals import parse_literal
from switchcraft_training.checking.matching import match_all
from switchcraft_training.checking.schema import ANYTHING, Kind, Schema
from switchcraft_training.checking.strings import canonical, same_text
from switchcraft_training.records import Json, OneOf

_SCALARS = (str, int, float, bool)
_NOTHING: Final[tuple[Json, ...]] = (None, "", [])
"""Accepted values that say nothing of how deep an array is."""

Alike = Callable[[str, str], bool]
"""Tells whether a text paraphrases the expected one: the last resort."""


class Code(StrEnum):
    """Why a call is rejected."""

    NOT_PARSED = "not_parsed"
    UNEXPECTED_CALL = "unexpected_call"
    WRONG_COUNT = "wrong_count"
    WRONG_FUNCTION = "wrong_function"
    WRONG_ORDER = "wrong_order"
    MISSING_PARAMETER = "missing_parameter"
    UNEXPECTED_PARAMETER = "unexpected_parameter"
    WRONG_TYPE = "wrong_type"
    WRONG_VALUE = "wrong_value"
    NOT_IN_ENUM = "not_in_enum"
    TOO_DEEP = "too_deep"


@dataclass(frozen=True, slots=True)
class CheckError:
    """One thing that is wrong: what, at which path of the calls, in words."""

    code: Code
    path: str
    detail: str


@dataclass(frozen=True, slots=True)
class Comparer:
    """Compares values with accepted ones; without `alike`, texts by their canonical form alone."""

    alike: Alike | None = None

    def accepts(self, value: Json, accepted: Sequence[Json], schema: Schema) -> bool:
        """Tell whether a value equals one of the accepted ones."""
        if Kind.ARRAY in schema.kinds:
            accepted = _readings(accepted, schema)
        elif type(value) in _SCALARS and any(
            type(want) is type(value) and want == value for want in accepted
        ):
            return True  # most values, and at a fifth of the time
        return any(self.equal(value, want, schema) for want in accepted)

    def equal(self, value: Json, want: Json, schema: Schema) -> bool:
        """Compare a value with what was expected, by the kind of the latter."""
        if isinstance(want, OneOf):
            return self.accepts(value, want.values, schema)
        if schema.branches:
            return any(self.equal(value, want, branch) for branch in schema.branches)
        if schema.foreign is not None:
            value, want = (parse_literal(v) if isinstance(v, str) else v for v in (value, want))
            return self.equal(value, want, schema.foreign)
        if isinstance(want, list | tuple):
            return isinstance(value, list | tuple) and self._equal_lists(value, want, schema)
        if isinstance(want, dict):
            return isinstance(value, dict) and _is_empty(self.wrong_keys(value, want, schema))
        return self._equal_scalars(value, want, schema)

    def _equal_scalars(self, value: Json, want: Json, schema: Schema) -> bool:
        """Compare numbers as numbers and texts as texts; truth values and nulls are themselves.

        A number may stand for the string of it where the schema allows a string.
        """
        if isinstance(value, str) and isinstance(want, str):
            return self._equal_texts(value, want, schema)
        if _is_number(value) and _is_number(want):
            return _equal_numbers(value, want)
        if isinstance(want, str) and _is_number(value):
            return canonical(str(value)) == canonical(want)
        if isinstance(value, str) and _is_number(want):
            return schema.takes(Kind.STRING) and canonical(value) == canonical(str(want))
        return value is want

    def _equal_texts(self, value: str, want: str, schema: Schema) -> bool:
        if value == want:
            return True
        given, meant = _member(value, schema), _member(want, schema)
        if given is not None and meant is not None:
            return given == meant
        if same_text(value, want):
            return not schema.members or given == meant
        return self.alike is not None and not schema.members and self.alike(value, want)

    def _equal_lists(self, value: Sequence[Json], want: Sequence[Json], schema: Schema) -> bool:
        """Compare as multisets; in order where the schema says so, and in a list of lists."""
        if len(value) != len(want):
            return False
        if schema.is_ordered or any(isinstance(item, list | tuple) for item in want):
            schemas = (*schema.prefix, *[schema.items] * (len(want) - len(schema.prefix)))
            return all(map(self._equal_in_order, value, want, schemas))
        items = schema.items
        return match_all(len(want), lambda i, j: self.equal(value[j], want[i], items))

    def _equal_in_order(self, value: Json, want: Json, schema: Schema) -> bool:
        """Compare an item of a list whose order counts; the order of its own items counts too."""
        if not isinstance(want, list | tuple):
            return self.equal(value, want, schema)
        if not isinstance(value, list | tuple) or len(value) != len(want):
            return False
        return all(
            self._equal_in_order(v, w, schema.items) for v, w in zip(value, want, strict=True)
        )

    def wrong_keys(
        self, value: Mapping[str, Json], want: Mapping[str, Json], schema: Schema
    ) -> Iterator[str]:
        """Yield the keys of an object that are wrong, missing, or there without a reason.

        A key may be left out where it is optional or where its default is what was expected,
        and spelled out where it only says the default.
        """
        for name, wanted in want.items():
            inner = schema.key(name)
            if name not in value:
                if not self._may_omit(wanted, inner, name in schema.required):
                    yield name
            elif not self._accepts_key(value[name], wanted, inner):
                yield name
        for name in value:
            if name not in want and not self._is_default(value[name], name, schema):
                yield name

    def key_error(
        self,
        name: str,
        value: Mapping[str, Json],
        want: Mapping[str, Json],
        parent: Schema,
        path: str,
    ) -> CheckError:
        """Say what is wrong with a key that `wrong_keys` gave."""
        where, schema = f"{path}.{name}", parent.key(name)
        if name not in want:
            detail = f"{_brief(value[name])} where nothing was expected"
            return CheckError(Code.UNEXPECTED_PARAMETER, where, detail)
        accepted = _accepted(want[name], schema)
        if name not in value:
            return CheckError(Code.MISSING_PARAMETER, where, f"expected {_shown(accepted)}")
        return self._value_error(value[name], accepted, schema, where)

    def _accepts_key(self, value: Json, want: Json, schema: Schema) -> bool:
        """Compare a key's value; an empty array where the key may be left out leaves it out."""
        if value == [] and isinstance(want, OneOf) and want.is_optional:
            return True
        return self.accepts(value, _accepted(want, schema), schema)

    def _may_omit(self, want: Json, schema: Schema, is_required: bool) -> bool:
        if isinstance(want, OneOf) and want.is_optional:
            return True
        accepted = _accepted(want, schema)
        if _is_raw_choice(want, schema) and "" in accepted:
            return True
        if is_required:
            return False
        if Kind.NULL in schema.kinds and None in accepted:
            return True
        return any(self.accepts(value, accepted, schema) for value in documented_defaults(schema))

    def _is_default(self, value: Json, name: str, schema: Schema) -> bool:
        """Tell whether a key only spells out what leaving it out would mean."""
        inner = schema.key(name)
        if inner is ANYTHING:
            return False
        if value is None and Kind.NULL in inner.kinds and name not in schema.required:
            return True
        return any(self.equal(value, default, inner) for default in documented_defaults(inner))

    def _value_error(
        self, value: Json, accepted: Sequence[Json], schema: Schema, path: str
    ) -> CheckError:
        """Say what is wrong with a value that is not accepted, as deep inside it as is certain."""
        readings = _readings(accepted, schema) if Kind.ARRAY in schema.kinds else accepted
        if isinstance(value, dict) and len(readings) == 1 and isinstance(readings[0], dict):
            for name in self.wrong_keys(value, readings[0], schema):
                return self.key_error(name, value, readings[0], schema, path)
        if not fits_type(value, schema):
            kinds = " or ".join(sorted(schema.kinds))
            return CheckError(Code.WRONG_TYPE, path, f"{_brief(value)} is not of type {kinds}")
        if isinstance(value, str) and schema.members and _member(value, schema) is None:
            detail = f"{_brief(value)} is none of {_shown(schema.members)}"
            return CheckError(Code.NOT_IN_ENUM, path, detail)
        return CheckError(Code.WRONG_VALUE, path, f"{_brief(value)}, not {_shown(readings)}")


def _is_empty(names: Iterator[str]) -> bool:
    return next(names, None) is None


def fits_type(value: Json, schema: Schema) -> bool:
    """Tell whether a value is of its schema's type; a number may be written for a string."""
    if not schema.kinds or _kind_of(value) in schema.kinds:
        return True
    if _is_number(value):
        is_whole = isinstance(value, int) or value.is_integer()
        return Kind.STRING in schema.kinds or (
            Kind.NUMBER in schema.kinds or (is_whole and Kind.INTEGER in schema.kinds)
        )
    return False


def _kind_of(value: Json) -> Kind:
    if value is None:
        return Kind.NULL
    if isinstance(value, bool):
        return Kind.BOOLEAN
    if isinstance(value, int):
        return Kind.INTEGER
    if isinstance(value, float):
        return Kind.NUMBER
    if isinstance(value, str):
        return Kind.STRING
    return Kind.OBJECT if isinstance(value, dict) else Kind.ARRAY


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _equal_numbers(a: float, b: float) -> bool:
    """Compare numbers exactly, but for the rounding of a computed one.

    `1 / 3` computed is also 0.333333333: the rounding to nine digits or more of a fraction that
    does not end.
    """
    if a == b:
        return True
    if isinstance(a, int) and isinstance(b, int):
        return False
    try:
        if math.isnan(a) and math.isnan(b):
            return True
    except OverflowError:  # an integer beyond any float
        return False
    longer, shorter = sorted((repr(a), repr(b)), key=len, reverse=True)
    digits = len(shorter.partition(".")[2])
    if digits < 9 or len(longer.partition(".")[2]) < 16 or "e" in longer + shorter:
        return False
    return round(float(longer), digits) == float(shorter)


def _member(text: str, schema: Schema) -> str | None:
    """Return the member of an enum that a text means; None where it is none, or not just one."""
    members = [member for member in schema.members if isinstance(member, str)]
    if text in members:
        return text
    alike = {member for member in members if same_text(text, member)}
    return alike.pop() if len(alike) == 1 else None


def _accepted(want: Json, schema: Schema) -> Sequence[Json]:
    """Return the accepted values of a key of an expected object."""
    if isinstance(want, OneOf):
        return want.values
    return want if _is_raw_choice(want, schema) else (want,)


def _is_raw_choice(want: Json, schema: Schema) -> bool:
    """Tell a list of accepted values from a list as the value, by the schema."""
    if not isinstance(want, list) or not schema.kinds:
        return False
    return Kind.ARRAY not in schema.kinds


def _readings(accepted: Sequence[Json], schema: Schema) -> Sequence[Json]:
    """Return the accepted values of an array as its schema's `items` read them (paper, 3.2).

    Values that are a level too shallow are together the one list that is accepted; a value a
    level too deep is a list of alternatives, or what a schema that says too little describes.
    """
    if schema.branches:
        return accepted
    depth, items = _nesting(schema)
    filled = [value for value in accepted if value not in _NOTHING]
    if filled and all(_depth(value) == depth - 1 for value in filled):
        return (list(accepted),)
    if items.kinds and filled and all(_depth(value) > depth for value in filled):
        return [*accepted, *(inner for value in filled for inner in value)]
    return accepted


def _nesting(schema: Schema) -> tuple[int, Schema]:
    """Return how many arrays are nested, as far as the schema says, and what is in the last."""
    depth, items = 1, schema.items
    while items.kinds == {Kind.ARRAY}:
        depth, items = depth + 1, items.items
    return depth, items


def _depth(value: Json) -> int:
    if isinstance(value, OneOf):
        return min(map(_depth, value.values), default=0)
    if not isinstance(value, list | tuple):
        return 0
    return 1 + min(map(_depth, value), default=0)


def _shown(accepted: Sequence[Json]) -> str:
    shown = " or ".join(map(_brief, accepted[:3]))
    return f"{shown} or {len(accepted) - 3} more" if len(accepted) > 3 else shown


def _brief(value: Json) -> str:
    """Return a value in at most 120 characters."""
    if isinstance(value, OneOf):
        return _shown(value.values)
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
