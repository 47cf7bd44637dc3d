"""Check pairs of expected calls and a model's calls, which are given as JSON lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec
import orjson

from router_service.apis.conversation import Json
from router_service.checker.comparison import IsParaphrase
from router_service.checker.toolbox import Call, ExpectedCall, Tool, Toolbox
from router_service.core.errors import SchemaError
from switchcraft_training.checking.mistakes import tool_from_json
from switchcraft_training.checking.verdicts import check
from switchcraft_training.records import Expected

EXAMPLE_LINE: Final = (
    '{"id": "1", "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": '
    '{"type": "object", "properties": {"city": {"type": "string"}}}}}], "expected": [{"name": '
    '"get_weather", "arguments": {"city": ["Rome", "Roma"]}, "optional": []}], "calls": [{"name": '
    '"get_weather", "arguments": {"city": "rome"}}]}'
)
"""A valid line of the input, for error messages."""

_MSGSPEC_MESSAGE = re.compile(r"(?P<problem>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)


class _Pair(msgspec.Struct):
    """One line of the input: tools, expected calls and a model's calls.

    `tools` stay undecoded, because most of them were decoded and cached for an earlier line.
    """

    id: str | int
    tools: list[msgspec.Raw]
    expected: tuple[ExpectedCall, ...]
    calls: list[Call] | None
    any_call: bool = False


_decode = msgspec.json.Decoder(_Pair).decode


def score_lines(
    lines: Iterable[bytes], is_paraphrase: IsParaphrase | None = None
) -> Iterator[bytes]:
    """Yield one JSON object per line, in order: a verdict, or an `error` for an invalid line.

    Each line is a JSON object with the fields of `_Pair`: tools, expected calls and a model's
    calls. `ExpectedCall` explains `after`, and `Expected` explains `any_call`.
    """
    for line in lines:
        yield orjson.dumps(_score(line, is_paraphrase))


def _score(line: bytes, is_paraphrase: IsParaphrase | None) -> Mapping[str, Json]:
    try:
        pair = _decode(line)
    except msgspec.ValidationError as exc:
        match = _MSGSPEC_MESSAGE.fullmatch(str(exc))
        problem, path = match.groups()  # pyrefly: ignore[missing-attribute]  # the pattern matches any text
        path = (path or "").lstrip(".")
        return _error("invalid_pair", path, f"{problem}; a line is, for example, {EXAMPLE_LINE}")
    except msgspec.DecodeError as exc:
        detail = f"{exc}; each line must be one JSON object, for example {EXAMPLE_LINE}"
        return _error("invalid_json", "", detail)
    expected = Expected(pair.expected, any_call=pair.any_call)
    try:
        tools: list[Tool] = []
        for index, raw in enumerate(pair.tools):
            tool = tool_from_json(bytes(raw))
            if tool is None:
                problem = (
                    'not an OpenAI function tool with a name; write {"type": "function", '
                    '"function": {"name": ..., "parameters": ...}}'
                )
                return {"id": pair.id, **_error("invalid_pair", f"tools[{index}]", problem)}
            tools.append(tool)
        verdict = check(Toolbox(tools), expected, pair.calls, is_paraphrase)
    except SchemaError as exc:
        return {"id": pair.id, **_error("invalid_schema", "tools", exc.problem)}
    errors = [{"code": e.code, "path": e.path, "detail": e.detail} for e in verdict.errors]
    return {"id": pair.id, "correct": verdict.correct, "score": verdict.score, "errors": errors}


def _error(code: str, path: str, detail: str) -> Mapping[str, Json]:
    return {"error": {"code": code, "path": path, "detail": detail}}
