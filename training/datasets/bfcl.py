"""The Berkeley Function Calling Leaderboard's v1 files: questions, truths, recorded answers."""

from __future__ import annotations

import ast
import gzip
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import orjson

from router_service.core.errors import DataError
from training.checking.parsing import ParsedAnswer, parse_native, parse_text, python_value
from training.records import Answer, Example, Expected, ExpectedCall, Json, OneOf

Row = TypeVar("Row")

PREFIX = "gorilla_openfunctions_v1_test_"
UNJUDGED = frozenset({"rest"})
"""Categories that only the network could judge."""

BROKEN_RUNS = frozenset(
    {"gpt-4o-2024-08-06", "mistral-large-2407", "NousResearch_Hermes-2-Theta-Llama-3-70B"}
)
"""Runs that failed as runs: what they recorded says nothing of the model."""

_JSON_TYPES = {
    "dict": "object",
    "float": "number",
    "tuple": "array",
    "any": "string",
    **{name: name for name in ("object", "number", "array", "string", "integer", "boolean")},
}
_SYMMETRIC = frozenset({"math_gcd", "math_lcm"})
"""Executable functions whose two arguments may change places: execution cannot tell them apart."""

_ERROR = re.compile(r"\s*(?:$|(?:internal |parsing )?error\b)", re.IGNORECASE)

_LANGUAGES = {"java": "Java", "javascript": "JavaScript"}
_SCHEMA_KEYWORDS = frozenset({"description", "enum", "default", "required", "format"})


def read_examples(root: Path) -> list[tuple[Example, Expected]]:
    """Read every judged category; raises DataError at the first row that does not parse."""
    pairs: list[tuple[Example, Expected]] = []
    for path in sorted((root / "data").glob(f"{PREFIX}*.json.gz")):
        category = path.name.removeprefix(PREFIX).removesuffix(".json.gz")
        if category not in UNJUDGED:
            pairs.extend(_read_category(root, path, category))
    if not pairs:
        raise DataError(root, None, f"holds no data/{PREFIX}*.json.gz")
    return pairs


def arms(root: Path) -> list[str]:
    """Return the models whose answers were recorded, broken runs left out."""
    return sorted(p.name for p in (root / "result").iterdir() if p.name not in BROKEN_RUNS)


def read_answers(root: Path, arm: str) -> Iterator[Answer]:
    """Read what a model answered in the judged categories; raises DataError as above."""
    parse = parse_native if is_native(arm) else parse_text
    for path in sorted((root / "result" / arm).glob(f"{PREFIX}*_result.json.gz")):
        if path.name.removeprefix(PREFIX).removesuffix("_result.json.gz") not in UNJUDGED:
            yield from _rows(path, lambda row: _read_answer(row, arm, parse))


def is_native(arm: str) -> bool:
    """Tell a run that used the provider's own function calling, by the run's name."""
    return "-FC" in arm or arm.startswith("gemini")


def to_request(question: str, functions: list[Mapping[str, Json]], category: str) -> Json:
    """Return the OpenAI request that a client would send for a question."""
    language = _LANGUAGES.get(category)
    tools = [
        {
            "type": "function",
            "function": {
                "name": function["name"].replace(".", "_"),
                "description": function.get("description", ""),
                "parameters": to_json_schema(function["parameters"], language),
            },
        }
        for function in functions
    ]
    return {"messages": [{"role": "user", "content": question}], "tools": tools}


def to_json_schema(node: Mapping[str, Json], language: str | None) -> dict[str, Json]:
    """Rewrite a tool's parameters of the benchmark's own type words as JSON Schema.

    A Java or JavaScript type becomes `string`, with a note of what it stands for, as the
    benchmark does when it asks a function-calling model.
    """
    properties = node.get("properties") or {}
    return {
        **_keywords(node),
        "type": "object",
        "properties": {name: _property(child, language) for name, child in properties.items()},
    }


def _property(node: Mapping[str, Json], language: str | None) -> dict[str, Json]:
    kind = node.get("type", "any")
    if language is not None:
        note = f"This is {language} {kind} type in string representation."
        description = f"{node.get('description', '')} {note}".strip()
        return {**_keywords(node), "type": "string", "description": description}
    schema = {**_keywords(node), "type": _JSON_TYPES.get(kind, "string")}
    if schema["type"] == "object":
        return to_json_schema(node, language)
    if schema["type"] == "array" and isinstance(node.get("items"), dict):
        schema["items"] = _property(node["items"], language)
    return schema


def _keywords(node: Mapping[str, Json]) -> dict[str, Json]:
    return {key: value for key, value in node.items() if key in _SCHEMA_KEYWORDS}


def _read_category(root: Path, path: Path, category: str) -> Iterator[tuple[Example, Expected]]:
    truths = root / "data" / "possible_answer" / path.name
    accepted: dict[str, Json] = {}
    if truths.exists():
        accepted = dict(_rows(truths, lambda row: (row["id"], row["ground_truth"])))
    yield from _rows(path, lambda row: _read_question(row, category, accepted))


def _read_question(
    row: Mapping[str, Json], category: str, accepted: Mapping[str, Json]
) -> tuple[Example, Expected]:
    given = row["function"]
    functions = given if isinstance(given, list) else [given]
    example = Example(row["id"], category, to_request(row["question"], functions, category))
    if category == "relevance":
        return example, Expected(())
    if "ground_truth" in row:
        return example, Expected(tuple(map(_executable_call, row["ground_truth"])))
    names = {function["name"] for function in functions}
    entries = _mended(accepted[row["id"]])
    return example, Expected(tuple(_expected_call(n, a, names) for n, a in entries.items()))


def _mended(truth: Mapping[str, Json]) -> dict[str, Json]:
    """Put a parameter that stands beside its call (one row of the benchmark) back into it."""
    entries: dict[str, Json] = {}
    for name, value in truth.items():
        if isinstance(value, list):
            last = next(reversed(entries))
            entries[last] = {**entries[last], name: value}
        else:
            entries[name] = value
    return entries


def _expected_call(name: str, arguments: Mapping[str, Json], names: set[str]) -> ExpectedCall:
    accepted = {parameter: _accepted(values) for parameter, values in arguments.items()}
    return ExpectedCall(
        name=_function_of(name, names).replace(".", "_"),
        arguments={parameter: one.values for parameter, one in accepted.items()},
        optional=frozenset(parameter for parameter, one in accepted.items() if one.is_optional),
    )


def _function_of(name: str, names: set[str]) -> str:
    """Return which of the question's functions a truth means.

    `_1`, `_2` stand behind a name that is called more than once; one truth leaves out a
    function's number, another its qualifier.
    """
    unnumbered = re.sub(r"[_ ]\d+$", "", name)
    for known in sorted(names):
        if known in {name, unnumbered}:
            return known
    for known in sorted(names):
        if re.sub(r"_\d+$", "", known) == name or known.endswith(f".{name}"):
            return known
    raise ValueError(f"the truth calls {name!r}, which is no function of the question")


def _accepted(values: Json) -> OneOf:
    """Read accepted values; `""` among others means that the parameter may be left out."""
    options = values if isinstance(values, list) else [values]
    return OneOf(tuple(_nested(option) for option in options), is_optional="" in options)


def _nested(value: Json) -> Json:
    """Read a value inside a truth: every key of an object has accepted values of its own."""
    if isinstance(value, dict):
        return {key: _accepted(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_nested(item) for item in value]
    return value


def _executable_call(source: str) -> ExpectedCall:
    """Read a truth written as a Python call with keyword arguments."""
    node = ast.parse(source, mode="eval").body
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError(f"not a call with keyword arguments: {source}")
    name = ast.unparse(node.func).replace(".", "_")
    values = {k.arg: python_value(k.value) for k in node.keywords if k.arg is not None}
    if name in _SYMMETRIC:
        return ExpectedCall(name, dict.fromkeys(values, tuple(values.values())))
    return ExpectedCall(name, {parameter: (value,) for parameter, value in values.items()})


def _read_answer(
    row: Mapping[str, Json], arm: str, parse: Callable[[Json], ParsedAnswer]
) -> Answer:
    """Read a recorded answer; an error message without output tokens is no answer at all."""
    counted, result = row.get("output_token_count"), row["result"]
    failed = not counted and isinstance(result, str) and bool(_ERROR.match(result))
    parsed = ParsedAnswer(None, "no_answer") if failed else parse(result)
    return Answer(
        example_id=row["id"],
        arm=arm,
        calls=parsed.calls,
        problem=parsed.problem,
        input_tokens=_count(row.get("input_token_count")),
        output_tokens=_count(counted),
    )


def _count(value: Json) -> int | None:
    """Read a token count; 0 stands for a request that failed before anything was counted."""
    return int(value) if isinstance(value, int | float) and value > 0 else None


def _rows(path: Path, read: Callable[[Mapping[str, Json]], Row]) -> Iterator[Row]:
    """Yield one value a line; raises DataError with the line's number."""
    try:
        lines = gzip.decompress(path.read_bytes()).splitlines()
    except (OSError, EOFError) as exc:
        raise DataError(path, None, f"cannot be read: {exc}") from exc
    for number, line in enumerate(lines, start=1):
        try:
            yield read(orjson.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError, SyntaxError) as exc:
            raise DataError(path, number, f"{type(exc).__name__}: {exc}") from exc
