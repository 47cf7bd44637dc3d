"""`switchcraft-train score`: pairs of expected and made calls in, verdicts out, a line each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Annotated

import orjson
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from router_service.core.errors import SchemaError
from training.checking.calls import Verdict, check
from training.checking.values import Alike
from training.records import Call, Expected, ExpectedCall, Json


class _ExpectedCall(BaseModel):
    name: str
    arguments: dict[str, list[Json]]
    optional: list[str] = Field(default_factory=list)
    after: list[int] = Field(default_factory=list)


class _Call(BaseModel):
    name: str
    arguments: dict[str, Json]


def _openai_tool(value: Json) -> Json:
    """Refuse a tool without a function's name; the rest of it is the checker's to read."""
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        # pydantic reports ValueErrors as the input's; a TypeError would be a crash.
        raise ValueError("not an OpenAI function tool with a name")  # noqa: TRY004
    return value


class _Pair(BaseModel):
    id: str | int
    tools: list[Annotated[Json, BeforeValidator(_openai_tool)]]
    expected: list[_ExpectedCall]
    calls: list[_Call] | None
    any_call: bool = False


def score_lines(lines: Iterable[bytes], alike: Alike | None = None) -> Iterator[bytes]:
    """Yield one JSON object for each line, in order; what cannot be judged is an `error`.

    A pair's `after` and `any_call` are those of `ExpectedCall` and `Expected`.
    """
    for line in lines:
        yield orjson.dumps(_score(line, alike))


def _score(line: bytes, alike: Alike | None) -> Mapping[str, Json]:
    try:
        pair = _Pair.model_validate(orjson.loads(line))
    except orjson.JSONDecodeError as exc:
        return {"error": {"code": "invalid_json", "path": "", "detail": str(exc)}}
    except ValidationError as exc:
        first = exc.errors()[0]
        path = ".".join(map(str, first["loc"]))
        return {"error": {"code": "invalid_pair", "path": path, "detail": first["msg"]}}
    try:
        return {"id": pair.id, **_as_json(_judge(pair, alike))}
    except SchemaError as exc:
        error = {"code": "invalid_schema", "path": "tools", "detail": exc.problem}
        return {"id": pair.id, "error": error}


def _judge(pair: _Pair, alike: Alike | None) -> Verdict:
    expected = Expected(tuple(map(_expected, pair.expected)), pair.any_call)
    made = None if pair.calls is None else [Call(c.name, c.arguments) for c in pair.calls]
    return check(pair.tools, expected, made, alike)


def _expected(call: _ExpectedCall) -> ExpectedCall:
    accepted = {parameter: tuple(values) for parameter, values in call.arguments.items()}
    return ExpectedCall(call.name, accepted, frozenset(call.optional), frozenset(call.after))


def _as_json(verdict: Verdict) -> Mapping[str, Json]:
    errors = [asdict(error) for error in verdict.errors]
    return {"correct": verdict.correct, "score": verdict.score, "errors": errors}
