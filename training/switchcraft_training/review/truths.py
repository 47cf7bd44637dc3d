"""Expected calls as a reviewer reads, writes and compares them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import jsonschema
import jsonschema.exceptions
import jsonschema.validators
import referencing.exceptions
import yaml
from pydantic import TypeAdapter, ValidationError

from router_service.core.errors import SchemaError
from switchcraft_training.checking import TYPE_WORDS, JsonType, Schema, check
from switchcraft_training.datasets.corrections import Truth, first_problem, with_truth
from switchcraft_training.datasets.lines import ROW_ERRORS
from switchcraft_training.records import Call, Expected, ExpectedCall, Json, Judged, OneOf

_TRUTH: Final = TypeAdapter(Truth)


class _Loader(yaml.SafeLoader):
    """Reads plain scalars as JSON does: no dates, no `yes`, no octal numbers."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own spelling


class _Dumper(yaml.SafeDumper):
    """Quotes exactly the strings that `_Loader` would read as something else."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own spelling

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - overrides
        """Write every value out where it stands."""
        return True

    def represent_text(self, data: str) -> yaml.Node:
        """Escape line breaks and what cannot be seen, which an editor would change."""
        style = None if data.isprintable() else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


for _tag, _pattern, _first in (
    ("bool", r"true|false", "tf"),
    ("null", r"null", "n"),
    ("int", r"-?(?:0|[1-9][0-9]*)", "-0123456789"),
    ("float", r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", "-0123456789"),
):
    for _kind in (_Loader, _Dumper):
        _kind.add_implicit_resolver(
            f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), list(_first)
        )


def to_yaml(value: Json) -> str:
    """Return a JSON value as YAML, innermost collections on one line."""
    return yaml.dump(
        value,
        Dumper=_Dumper,
        default_flow_style=None,
        sort_keys=False,
        allow_unicode=True,
        width=10_000,
    ).strip()


def truth_to_text(truth: Truth) -> str:
    """Return expected calls as YAML, without what is empty."""
    return to_yaml([call.model_dump(exclude_defaults=True, mode="json") for call in truth])


def truth_from_text(text: str) -> Truth:
    """Read expected calls written as YAML or JSON; raises ValueError that says what is wrong."""
    try:
        return truth_from_json(yaml.load(text, Loader=_Loader))  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as exc:
        line = f"line {exc.problem_mark.line + 1}: " if exc.problem_mark else ""
        raise ValueError(f"{line}{exc.problem}") from exc
    except yaml.YAMLError as exc:
        raise ValueError(str(exc)) from exc


def truth_from_json(value: Json) -> Truth:
    """Read expected calls as rows spell them; raises ValueError that says what is wrong."""
    try:
        return _TRUTH.validate_python(value)
    except ValidationError as exc:
        raise ValueError(first_problem(exc)) from exc


def problem_with(judged: Judged, truth: Truth) -> str | None:
    """Say why a row could not expect these calls, None where it could.

    They must be calls that a row can hold, of tools that are offered, each accepted value as the
    tool's schema wants it. What the row's own truth violates already is its benchmark's custom,
    and a schema that cannot be interpreted forbids nothing.
    """
    try:
        expected = with_truth(judged, truth).expected
    except ROW_ERRORS as exc:
        return str(exc)
    schemas = dict(map(_signature, judged.example.request["tools"]))
    for call in expected.calls:
        if call.name not in schemas:
            return f"no tool {call.name!r} is offered, only {', '.join(schemas)}"
    customs = set(_violations(judged.expected, schemas))
    return next((v for v in _violations(expected, schemas) if v not in customs), None)


def is_same(judged: Judged, truth: Truth) -> bool:
    """Tell whether other expected calls accept and are accepted by those of the row."""
    other = with_truth(judged, truth).expected
    if other == judged.expected:
        return True
    tools = judged.example.request["tools"]
    return _accepts(tools, judged.expected, other) and _accepts(tools, other, judged.expected)


def _accepts(tools: Sequence[Mapping[str, Json]], truth: Expected, other: Expected) -> bool:
    try:
        return all(check(tools, truth, calls).correct for calls in _answers(other))
    except SchemaError:
        return False


def _answers(truth: Expected) -> Iterator[tuple[Call, ...]]:
    """Yield answers that a truth accepts: each accepted value and each omission once."""
    base = tuple(_first_choice(call) for call in truth.calls)
    yield base
    for index, call in enumerate(truth.calls):
        for other in (*_alternatives(call), *_omissions(call)):
            yield (*base[:index], other, *base[index + 1 :])


def _first_choice(call: ExpectedCall) -> Call:
    return Call(call.name, {name: _plain(values[0]) for name, values in call.arguments.items()})


def _alternatives(call: ExpectedCall) -> Iterator[Call]:
    first = _first_choice(call)
    for name, values in call.arguments.items():
        for value in values[1:]:
            yield Call(call.name, {**first.arguments, name: _plain(value)})


def _omissions(call: ExpectedCall) -> Iterator[Call]:
    given = _first_choice(call).arguments
    for left_out in sorted(call.optional):
        yield Call(call.name, {name: v for name, v in given.items() if name != left_out})


def _plain(value: Json) -> Json:
    """Return a value with the first of the accepted ones wherever there are several."""
    if isinstance(value, OneOf):
        return _plain(value.values[0]) if value.values else None
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return value


def _signature(tool: Mapping[str, Json]) -> tuple[str, Json]:
    """Return a tool's name and parameters, those that hold Java or JavaScript left open."""
    function = tool["function"]
    parameters = function.get("parameters") or {}
    properties = {
        name: {} if _is_foreign(node) else node
        for name, node in (parameters.get("properties") or {}).items()
    }
    return function["name"], {**parameters, "properties": properties}


def _is_foreign(node: Json) -> bool:
    try:
        return Schema(node).foreign is not None
    except SchemaError:
        return False


_JSON_TYPES: Final = jsonschema.Draft202012Validator.TYPE_CHECKER


def _is_of(kind: JsonType, _: object, value: Json) -> bool:
    return bool(_JSON_TYPES.is_type(value, kind))


_Validator: Final = jsonschema.validators.extend(  # type: ignore[no-untyped-call] # so in its stubs
    jsonschema.Draft202012Validator,
    type_checker=_JSON_TYPES.redefine_many(
        {word: partial(_is_of, kind) for word, kind in TYPE_WORDS.items()}
    ),
)
"""JSON Schema's validator, with the type words of benchmarks and programming languages."""

_UNREADABLE: Final = (
    *ROW_ERRORS,
    RecursionError,
    re.error,
    jsonschema.exceptions.UnknownType,
    referencing.exceptions.Unresolvable,
)
"""What the validator raises where a schema makes no sense."""


def _violations(expected: Expected, schemas: Mapping[str, Json]) -> Iterator[str]:
    for call in expected.calls:
        for variant in (_first_choice(call), *_alternatives(call)):
            for fault in _faults(schemas.get(call.name), variant.arguments):
                yield f"{call.name}: {fault}"


def _faults(schema: Json, arguments: Mapping[str, Json]) -> list[str]:
    """Return how arguments violate a schema; nothing where the schema cannot be interpreted."""
    try:
        faults = [_told(error) for error in _Validator(schema).iter_errors(arguments)]
        unknown = sorted(set(arguments) - set(schema["properties"]))
    except _UNREADABLE:
        return []
    return [*faults, *(f"there is no parameter {name!r}" for name in unknown)]


def _told(error: jsonschema.ValidationError) -> str:
    path = ".".join(map(str, error.absolute_path))
    return f"{path}: {error.message}" if path else error.message
