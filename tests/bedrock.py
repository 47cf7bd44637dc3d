"""Amazon Bedrock's own description of Converse, as botocore has it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from botocore.model import OperationModel, Shape
from botocore.parsers import create_parser
from botocore.serialize import create_serializer
from botocore.session import get_session
from botocore.validate import ParamValidator

Json = Any

_SCALARS: dict[str, Any] = {"boolean": bool, "integer": int, "long": int, "float": (int, float)}

IN_ADDRESS = ("model", "stream")
"""Fields of the gateway's form of a request that AWS's form has in the address."""


@cache
def operation(name: str = "Converse") -> OperationModel:
    """Return the description of an operation: `Converse` or `ConverseStream`."""
    return get_session().get_service_model("bedrock-runtime").operation_model(name)


def problems_of_request(body: dict[str, Json]) -> list[str]:
    """Return what botocore finds wrong with a request, and what it would send differently."""
    described = operation("ConverseStream" if body.get("stream") else "Converse")
    sent = {name: value for name, value in body.items() if name not in IN_ADDRESS}
    found = [*_problems(sent, described.input_shape, "")]
    if found:
        return found
    given = {"modelId": body["model"], **_with_bytes(sent, described.input_shape)}
    report = ParamValidator().validate(given, described.input_shape)
    if report.has_errors():
        return [report.generate_report()]
    written = create_serializer("rest-json").serialize_to_request(given, described)
    is_same = json.loads(written["body"]) == json.loads(json.dumps(sent))
    return [] if is_same else [f"botocore sends {written['body']!r}"]


def problems_of_answer(value: dict[str, Json]) -> list[str]:
    """Return what is wrong with a whole answer, which botocore must be able to parse."""
    shape = operation().output_shape
    found = [*_problems(value, shape, "")]
    response = {"status_code": 200, "headers": {}, "body": json.dumps(value).encode()}
    parsed = create_parser("rest-json").parse(response, shape)
    parsed.pop("ResponseMetadata")
    return found if found or parsed == _with_bytes(value, shape) else [f"is parsed as {parsed}"]


def problems_of_event(value: dict[str, Json]) -> list[str]:
    """Return what is wrong with an event of a stream in the gateway's form."""
    events = operation("ConverseStream").output_shape.members["stream"]
    return [*_problems(value, events, "")] if len(value) == 1 else ["has not one key"]


def _problems(value: Json, shape: Shape, path: str) -> Iterator[str]:
    """Yield what a value violates: names, types, alternatives, lengths, patterns and enums."""
    match shape.type_name, value:
        case "structure", _ if getattr(shape, "is_document_type", False):
            pass  # any JSON
        case "structure", dict():
            missing = {*shape.required_members} - value.keys() - {"modelId"}
            if missing or value.keys() - shape.members.keys():
                yield f"{path} has the fields {list(value)}"
            elif getattr(shape, "is_tagged_union", False) and len(value) != 1:
                yield f"{path} has {len(value)} alternatives"
            else:
                for name, inner in value.items():
                    yield from _problems(inner, shape.members[name], f"{path}.{name}")
        case "list", list():
            for index, inner in enumerate(value):
                yield from _problems(inner, shape.member, f"{path}[{index}]")
        case "string", str():
            limits, length = shape.metadata, len(value)
            is_long = not limits.get("min", 0) <= length <= limits.get("max", length)
            is_other = "pattern" in limits and not re.fullmatch(limits["pattern"], value)
            if is_long or is_other or (shape.enum and value not in shape.enum):
                yield f"{path} is {value!r}, against {limits} or {shape.enum}"
        case "blob", str():
            base64.b64decode(value, validate=True)
        case kind, _ if not isinstance(value, _SCALARS.get(kind, ())):  # botocore checks ranges
            yield f"{path} is {value!r} instead of a {kind}"


def _with_bytes(value: Json, shape: Shape) -> Json:
    """Return a value as Python's SDK gets it: base64 is bytes."""
    if getattr(shape, "is_document_type", False):
        return value
    match shape.type_name, value:
        case "structure", dict():
            return {name: _with_bytes(inner, shape.members[name]) for name, inner in value.items()}
        case "list", list():
            return [_with_bytes(inner, shape.member) for inner in value]
        case "blob", str():
            return base64.b64decode(value)
    return value
