"""`switchcraft-train score`: pairs of expected and made calls in, verdicts out, a line each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import msgspec
import orjson

from router_service.core.errors import SchemaError
from switchcraft_training.checking.calls import Verdict, check_calls
from switchcraft_training.checking.tools import Tool, Toolbox, tool_from_json
from switchcraft_training.checking.values import Alike
from switchcraft_training.records import Call, Expected, ExpectedCall, Json

_WHERE = re.compile(r"(?P<problem>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)


class _ExpectedCall(msgspec.Struct):
    name: str
    arguments: dict[str, list[Json]]
    optional: list[str] = []
    after: list[int] = []


class _Call(msgspec.Struct):
    name: str
    arguments: dict[str, Json]


class _Pair(msgspec.Struct):
    """A line; its tools stay JSON, which most often was read before."""

    id: str | int
    tools: list[msgspec.Raw]
    expected: list[_ExpectedCall]
    calls: list[_Call] | None
    any_call: bool = False


_decode = msgspec.json.Decoder(_Pair).decode


class _NoToolError(Exception):
    """A tool that is no function tool; its place in the list."""


def score_lines(lines: Iterable[bytes], alike: Alike | None = None) -> Iterator[bytes]:
    """Yield one JSON object for each line, in order; what cannot be judged is an `error`.

    A pair's `after` and `any_call` are those of `ExpectedCall` and `Expected`.
    """
    for line in lines:
        yield orjson.dumps(_score(line, alike))


def _score(line: bytes, alike: Alike | None) -> Mapping[str, Json]:
    try:
        pair = _decode(line)
    except msgspec.ValidationError as exc:
        problem, path = _WHERE.fullmatch(str(exc)).groups()  # type: ignore[union-attr] # any text
        return _error("invalid_pair", (path or "").lstrip("."), problem)
    except msgspec.DecodeError as exc:
        return _error("invalid_json", "", str(exc))
    try:
        return {"id": pair.id, **_as_json(_judge(pair, alike))}
    except _NoToolError as exc:
        problem = "not an OpenAI function tool with a name"
        return {"id": pair.id, **_error("invalid_pair", f"tools[{exc}]", problem)}
    except SchemaError as exc:
        return {"id": pair.id, **_error("invalid_schema", "tools", exc.problem)}


def _error(code: str, path: str, detail: str) -> Mapping[str, Json]:
    return {"error": {"code": code, "path": path, "detail": detail}}


def _judge(pair: _Pair, alike: Alike | None) -> Verdict:
    toolbox = Toolbox(_tool(place, raw) for place, raw in enumerate(pair.tools))
    expected = Expected(tuple(map(_expected, pair.expected)), pair.any_call)
    made = None if pair.calls is None else [Call(c.name, c.arguments) for c in pair.calls]
    return check_calls(toolbox, expected, made, alike)


def _tool(place: int, raw: msgspec.Raw) -> Tool:
    tool = tool_from_json(bytes(raw))
    if tool is None:
        raise _NoToolError(place)
    return tool


def _expected(call: _ExpectedCall) -> ExpectedCall:
    accepted = {parameter: tuple(values) for parameter, values in call.arguments.items()}
    return ExpectedCall(call.name, accepted, frozenset(call.optional), frozenset(call.after))


def _as_json(verdict: Verdict) -> Mapping[str, Json]:
    errors = [{"code": e.code, "path": e.path, "detail": e.detail} for e in verdict.errors]
    return {"correct": verdict.correct, "score": verdict.score, "errors": errors}
