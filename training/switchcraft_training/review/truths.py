"""Expected calls as a reviewer writes them: checked against schemas, and compared."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import jsonschema
import jsonschema.exceptions
import jsonschema.validators
import referencing.exceptions
from pydantic import TypeAdapter, ValidationError

from router_service.apis.conversation import Json
from router_service.checker.comparison import OneOf
from router_service.checker.parameter_schema import TYPE_WORDS, JsonType, Schema
from router_service.checker.toolbox import Call, ExpectedCall
from router_service.core.errors import SchemaError
from switchcraft_training.checking import check
from switchcraft_training.datasets.corrections import Truth, first_problem, with_truth
from switchcraft_training.datasets.rows import ROW_ERRORS
from switchcraft_training.records import Expected, Judged

_TRUTH: Final = TypeAdapter(Truth)


def truth_from_json(value: Json) -> Truth:
    """Read expected calls in the format of rows; raises ValueError with the problem."""
    try:
        return _TRUTH.validate_python(value)
    except ValidationError as exc:
        raise ValueError(first_problem(exc)) from exc


def find_problem(judged: Judged, truth: Truth) -> str | None:
    """Return the reason why a row cannot expect these calls, or None if it can.

    The calls must have the format of rows and name offered tools, and each accepted value must
    match the tool's schema. Violations that the row's present calls contain too are allowed,
    because the benchmark tolerates them. A schema that cannot be interpreted allows every value.
    """
    try:
        expected = with_truth(judged, truth).expected
    except ROW_ERRORS as exc:
        return str(exc)
    schemas: dict[str, Json] = {}
    for tool in judged.example.request["tools"]:
        parameters = tool["function"].get("parameters") or {}
        properties = dict(parameters.get("properties") or {})
        for name, node in properties.items():
            # A Java or JavaScript value is written as text, which its schema does not describe.
            with suppress(SchemaError):
                if Schema(node).foreign is not None:
                    properties[name] = {}
        schemas[tool["function"]["name"]] = {**parameters, "properties": properties}
    for call in expected.calls:
        if call.name not in schemas:
            return f"no tool {call.name!r} is offered, only {', '.join(schemas)}"
    tolerated = set(_violations(judged.expected, schemas))
    return next((v for v in _violations(expected, schemas) if v not in tolerated), None)


def are_equivalent(judged: Judged, truth: Truth) -> bool:
    """Return whether other expected calls accept the same answers as those of the row."""
    other = with_truth(judged, truth).expected
    if other == judged.expected:
        return True
    tools = judged.example.request["tools"]
    return _accepts(tools, judged.expected, other) and _accepts(tools, other, judged.expected)


def _accepts(tools: Sequence[Mapping[str, Json]], truth: Expected, other: Expected) -> bool:
    """Return whether `truth` accepts every value and every omission that `other` accepts.

    Each is tried once, with the first accepted value of all other parameters.
    """
    base = tuple(map(_first_choice, other.calls))
    answers = [base]
    for index, call in enumerate(other.calls):
        arguments = base[index].arguments
        omissions = [
            Call(call.name, {name: v for name, v in arguments.items() if name != left_out})
            for left_out in sorted(call.optional)
        ]
        variants = (*_alternatives(call), *omissions)
        answers.extend((*base[:index], variant, *base[index + 1 :]) for variant in variants)
    try:
        return all(check(tools, truth, calls).correct for calls in answers)
    except SchemaError:
        return False


def _first_choice(call: ExpectedCall) -> Call:
    return Call(call.name, {name: _plain(values[0]) for name, values in call.arguments.items()})


def _alternatives(call: ExpectedCall) -> Iterator[Call]:
    """Yield a variant of the first choice for each further accepted value of a parameter."""
    first = _first_choice(call)
    for name, values in call.arguments.items():
        for value in values[1:]:
            yield Call(call.name, {**first.arguments, name: _plain(value)})


def _plain(value: Json) -> Json:
    """Return a value in which the first accepted value replaces each `OneOf`."""
    if isinstance(value, OneOf):
        return _plain(value.values[0]) if value.values else None
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return value


_JSON_TYPES: Final = jsonschema.Draft202012Validator.TYPE_CHECKER


def _has_type(kind: JsonType, _: object, value: Json) -> bool:
    return bool(_JSON_TYPES.is_type(value, kind))


_Validator: Final = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    type_checker=_JSON_TYPES.redefine_many(
        {word: partial(_has_type, kind) for word, kind in TYPE_WORDS.items()}
    ),
)
"""JSON Schema's validator with the type names of benchmarks and programming languages."""

_SCHEMA_ERRORS: Final = (
    *ROW_ERRORS,
    RecursionError,
    re.error,
    jsonschema.exceptions.UnknownType,
    referencing.exceptions.Unresolvable,
)
"""The exceptions that the validator raises for an invalid schema."""


def _violations(expected: Expected, schemas: Mapping[str, Json]) -> Iterator[str]:
    """Yield a message for each violation of a tool's schema by an accepted value."""
    for call in expected.calls:
        schema: Json = schemas.get(call.name)
        for variant in (_first_choice(call), *_alternatives(call)):
            try:
                errors = list(_Validator(schema).iter_errors(variant.arguments))
                unknown = sorted(set(variant.arguments) - set(schema["properties"]))
            except _SCHEMA_ERRORS:
                continue
            for error in errors:
                path = ".".join(map(str, error.absolute_path))
                fault = f"{path}: {error.message}" if path else error.message
                yield f"{call.name}: {fault}"
            for name in unknown:
                yield f"{call.name}: there is no parameter {name!r}"
