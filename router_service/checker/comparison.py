"""Comparison of values with the accepted values (paper, 3.2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from router_service.apis.conversation import Json
from router_service.checker.canonical import canonical, same_text
from router_service.checker.defaults import documented_defaults
from router_service.checker.literals import parse_literal
from router_service.checker.parameter_schema import ANY_SCHEMA, JsonType, Schema

IsParaphrase = Callable[[str, str], bool]
"""Returns whether a text (first) means the same as the expected text (second)."""

_SCALARS = (str, int, float, bool)
_EMPTY_VALUES: Final[tuple[Json, ...]] = (None, "", [])
"""Accepted values that say nothing about how deeply an array must be nested."""


@dataclass(frozen=True, slots=True)
class OneOf:
    """Accepted values inside an expected object; if `is_optional`, the key may be omitted."""

    values: tuple[Json, ...]
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class Comparer:
    """Comparison of values with accepted values.

    Without `is_paraphrase`, two texts are equal only if their canonical forms are equal.
    """

    is_paraphrase: IsParaphrase | None = None

    def is_accepted(self, value: Json, accepted: Sequence[Json], schema: Schema) -> bool:
        """Return whether a value equals one of the accepted values."""
        if JsonType.ARRAY in schema.types:
            accepted = accepted_arrays(accepted, schema)
        elif type(value) in _SCALARS and any(
            type(want) is type(value) and want == value for want in accepted
        ):
            return True  # Decides most values, in a fifth of the time of a full comparison.
        return any(self.is_equal(value, want, schema) for want in accepted)

    def is_equal(self, value: Json, want: Json, schema: Schema) -> bool:
        """Return whether a value equals `want`; the type of `want` selects the comparison."""
        if isinstance(want, OneOf):
            return self.is_accepted(value, want.values, schema)
        if schema.branches:
            return any(self.is_equal(value, want, branch) for branch in schema.branches)
        if schema.foreign is not None:
            value, want = (parse_literal(v) if isinstance(v, str) else v for v in (value, want))
            return self.is_equal(value, want, schema.foreign)
        if isinstance(want, (list, tuple)):
            return isinstance(value, (list, tuple)) and self._are_equal_lists(value, want, schema)
        if isinstance(want, dict):
            return isinstance(value, dict) and not any(
                True for _ in self.wrong_keys(value, want, schema)
            )
        return self._are_equal_scalars(value, want, schema)

    def _are_equal_scalars(self, value: Json, want: Json, schema: Schema) -> bool:
        """Compare numbers as numbers and texts as texts; booleans and nulls equal only themselves.

        A number also equals its spelling as a string, if a string is expected or the schema allows
        one.
        """
        if isinstance(value, str) and isinstance(want, str):
            return self._are_equal_texts(value, want, schema)
        if is_number(value) and is_number(want):
            return _are_equal_numbers(value, want)
        if isinstance(want, str) and is_number(value):
            return canonical(str(value)) == canonical(want)
        if isinstance(value, str) and is_number(want):
            return schema.allows(JsonType.STRING) and canonical(value) == canonical(str(want))
        return value is want

    def _are_equal_texts(self, value: str, want: str, schema: Schema) -> bool:
        """Compare enum members exactly, and other texts by canonical form, then as paraphrases."""
        if value == want:
            return True
        given, meant = enum_member(value, schema), enum_member(want, schema)
        if given is not None and meant is not None:
            return given == meant
        if same_text(value, want):
            return not schema.members or given == meant
        return (
            self.is_paraphrase is not None
            and not schema.members
            and self.is_paraphrase(value, want)
        )

    def _are_equal_lists(self, value: Sequence[Json], want: Sequence[Json], schema: Schema) -> bool:
        """Compare lists as multisets, or in order for an ordered schema and for lists of lists."""
        if len(value) != len(want):
            return False
        if schema.is_ordered or any(isinstance(item, (list, tuple)) for item in want):
            schemas = (*schema.prefix, *[schema.items] * (len(want) - len(schema.prefix)))
            return all(map(self._is_equal_in_order, value, want, schemas))
        items = schema.items
        return can_pair_all(len(want), lambda i, j: self.is_equal(value[j], want[i], items))

    def _is_equal_in_order(self, value: Json, want: Json, schema: Schema) -> bool:
        """Compare an item of an ordered list; the items of a nested list are ordered as well."""
        if not isinstance(want, (list, tuple)):
            return self.is_equal(value, want, schema)
        if not isinstance(value, (list, tuple)) or len(value) != len(want):
            return False
        return all(
            self._is_equal_in_order(v, w, schema.items) for v, w in zip(value, want, strict=True)
        )

    def wrong_keys(
        self, value: Mapping[str, Json], want: Mapping[str, Json], schema: Schema
    ) -> Iterator[str]:
        """Yield the keys of an object that have a wrong value, are missing, or are unexpected.

        A key may be missing if it is optional or if its default is an accepted value. An
        unexpected key may be present if its value, a default or an allowed null, means the same as
        omitting the key.
        """
        for name, wanted in want.items():
            inner = schema.key(name)
            if name not in value:
                if not self._may_omit(wanted, inner, is_required=name in schema.required):
                    yield name
            elif value[name] == [] and isinstance(wanted, OneOf) and wanted.is_optional:
                continue  # An optional key with an empty array counts as omitted.
            elif not self.is_accepted(value[name], accepted_values(wanted, inner), inner):
                yield name
        for name, given in value.items():
            if name in want:
                continue
            inner = schema.key(name)
            if inner is ANY_SCHEMA:
                yield name
            elif given is None and JsonType.NULL in inner.types and name not in schema.required:
                continue
            elif not any(self.is_equal(given, each, inner) for each in documented_defaults(inner)):
                yield name

    def _may_omit(self, want: Json, schema: Schema, *, is_required: bool) -> bool:
        """Return whether an expected key may be missing."""
        if isinstance(want, OneOf) and want.is_optional:
            return True
        accepted = accepted_values(want, schema)
        if _is_list_of_choices(want, schema) and "" in accepted:
            return True
        if is_required:
            return False
        if JsonType.NULL in schema.types and None in accepted:
            return True
        defaults = documented_defaults(schema)
        return any(self.is_accepted(value, accepted, schema) for value in defaults)


def can_pair_all(size: int, fits: Callable[[int, int], bool]) -> bool:
    """Return whether `size` expected and `size` given items can be paired so that all pairs fit.

    `fits(want, item)` compares the expected item with index `want` and the given item with index
    `item`. The algorithm is Kuhn's, by augmenting paths. Each expected item is first compared with
    the item at its own index, so that equal lists need one comparison per item.
    """
    want_of_item: dict[int, int] = {}
    results: dict[tuple[int, int], bool] = {}

    def fits_once(want: int, item: int) -> bool:
        if (want, item) not in results:
            results[want, item] = fits(want, item)
        return results[want, item]

    def place(want: int, tried: set[int]) -> bool:
        for item in (want, *range(want), *range(want + 1, size)):
            if item in tried or not fits_once(want, item):
                continue
            tried.add(item)
            if item not in want_of_item or place(want_of_item[item], tried):
                want_of_item[item] = want
                return True
        return False

    return all(place(want, set()) for want in range(size))


def is_number(value: Json) -> bool:
    """Return whether a value is a number; a boolean is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_equal_numbers(a: float, b: float) -> bool:
    """Compare numbers exactly, except that a computed fraction may be rounded.

    A non-terminating decimal may be rounded to nine or more decimal places: 0.333333333 equals
    `1 / 3`.
    """
    if a == b:
        return True
    if isinstance(a, int) and isinstance(b, int):
        return False
    try:
        if math.isnan(a) and math.isnan(b):
            return True
    except OverflowError:  # The integer is larger than any float.
        return False
    longer, shorter = sorted((repr(a), repr(b)), key=len, reverse=True)
    digits = len(shorter.partition(".")[2])
    if digits < 9 or len(longer.partition(".")[2]) < 16 or "e" in longer + shorter:
        return False
    return round(float(longer), digits) == float(shorter)


def enum_member(text: str, schema: Schema) -> str | None:
    """Return the only enum member that a text can mean; None if no or several members match."""
    members = [member for member in schema.members if isinstance(member, str)]
    if text in members:
        return text
    matches = {member for member in members if same_text(text, member)}
    return matches.pop() if len(matches) == 1 else None


def accepted_values(want: Json, schema: Schema) -> Sequence[Json]:
    """Return the accepted values of one key of an expected object."""
    if isinstance(want, OneOf):
        return want.values
    return want if _is_list_of_choices(want, schema) else (want,)


def _is_list_of_choices(want: Json, schema: Schema) -> bool:
    """Return whether `want` is a list of alternatives: a list whose schema allows no array."""
    if not isinstance(want, list) or not schema.types:
        return False
    return JsonType.ARRAY not in schema.types


def accepted_arrays(accepted: Sequence[Json], schema: Schema) -> Sequence[Json]:
    """Return the accepted values of an array as the schema's `items` interpret them (paper, 3.2).

    If every value lacks one level of nesting, the values together form the only accepted array. If
    every value has too many levels, either each is a list of alternatives or the schema is
    incomplete; the values and their items are then accepted.
    """
    if schema.branches:
        return accepted
    depth, items = 1, schema.items
    while items.types == {JsonType.ARRAY}:
        depth, items = depth + 1, items.items
    filled = [value for value in accepted if value not in _EMPTY_VALUES]
    if filled and all(_depth(value) == depth - 1 for value in filled):
        return (list(accepted),)
    if items.types and filled and all(_depth(value) > depth for value in filled):
        return [*accepted, *(inner for value in filled for inner in value)]
    return accepted


def _depth(value: Json) -> int:
    """Return the number of list levels in a value, counted down to its shallowest item."""
    if isinstance(value, OneOf):
        return min(map(_depth, value.values), default=0)
    if not isinstance(value, (list, tuple)):
        return 0
    return 1 + min(map(_depth, value), default=0)
