"""The leaderboard's formats: file names and categories, functions, and accepted answers."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from router_service.apis.conversation import Json
from router_service.checker.comparison import OneOf
from router_service.checker.toolbox import ExpectedCall
from router_service.core.errors import ConfigError
from switchcraft_training.checking import python_value
from switchcraft_training.datasets.conversations import check_offered
from switchcraft_training.errors import DataError
from switchcraft_training.records import Expected

PACKAGE = "bfcl-eval"
INSTALL = "pip install --no-deps bfcl-eval"
"""Command that installs `bfcl-eval` with what its data and simulated tools need. The package's
other dependencies are for asking models."""

NO_CALL = frozenset({"relevance", "irrelevance", "live_irrelevance"})
"""Categories in which no function fits. In v1, this category is named `relevance`."""

ANY_CALL = frozenset({"live_relevance"})
"""Categories in which every call is correct, and an answer without a call is wrong."""

JUDGED = (
    NO_CALL
    | ANY_CALL
    | {f"simple{language}" for language in ("", "_python", "_java", "_javascript")}
    | {"java", "javascript", "multiple", "parallel", "parallel_multiple"}
    | {f"live_{kind}" for kind in ("simple", "multiple", "parallel", "parallel_multiple")}
    | {f"{kind}_function" for kind in ("multiple", "parallel", "parallel_multiple")}
    | {f"executable_{kind}_function" for kind in ("multiple", "parallel", "parallel_multiple")}
    | {f"exec_{kind}" for kind in ("simple", "multiple", "parallel", "parallel_multiple")}
    | {"executable_simple"}
)
"""Single-turn categories that are judged, of all versions."""

LEFT_OUT = {
    "rest": "answers of web services, which can be judged only with network access",
    "web_search": "judged by the final text, after searching the web",
    "memory": "judged by the final text, after many steps with a memory that the model manages",
    "format_sensitivity": "questions of other categories with differently worded system prompts",
    "multi_turn": "judged by the state of simulated tools after several turns",
    "sql": "withdrawn by the leaderboard",
    "chatable": "offers no function",
}
"""Categories that are not judged, each with the reason. They include their parts: a model's answers
to `web_search` are in files such as `web_search_base`."""

_FILE_NAME = re.compile(
    r"(?:gorilla_openfunctions_v(?P<first>1)_test|BFCL_v(?P<version>[1-4]))_(?P<category>\w+?)"
    r"(?:_result|_score)?\.json(?:\.gz)?"
)

_ANY_TYPE = "any"
_TYPES = {
    "dict": "object",
    "float": "number",
    "tuple": "array",
    **{name: name for name in ("object", "number", "array", "string", "integer", "boolean")},
    "null": "null",
}
_LANGUAGES = {"java": "Java", "javascript": "JavaScript"}
_V1_KEYWORDS = frozenset({"description", "enum", "default", "required", "format"})
_KEYWORDS = _V1_KEYWORDS | {
    *("title", "const", "examples", "pattern", "nullable"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "minItems", "maxItems", "uniqueItems"),
    *("minProperties", "maxProperties"),
}
"""Keywords of JSON Schema that are kept. The leaderboard's keyword `optional` is dropped, because
it only repeats what `required` says."""

_BRANCHES = ("anyOf", "oneOf", "allOf")

_SYMMETRIC = frozenset({"math_gcd", "math_lcm", "add_binary_numbers"})
"""Executable functions whose two arguments may be exchanged without changing the result."""

_RENAMED_PARAMETERS: Mapping[tuple[str, str], str | None] = {
    ("get_aws_pricing", "operating_system0"): "operating_system",
    ("transfer_to_human_agent", "question"): "statement",
    ("Trains_1_FindTrains", "journey_start_time"): None,
    ("calculate_voltage_difference", "permeability"): None,
    ("bank.calculate_balance", "type"): None,
}
"""Pairs (function, parameter) of accepted answers in which the function has no such parameter. The
value is the correct spelling, or None if the function has no similar parameter. Then the accepted
values are dropped, because no model can give them.

The answers, all from v2 or later, are live_parallel_9-5-0, live_multiple_964-207-0,
live_multiple_862-181-3, parallel_multiple_12 and parallel_multiple_26.
"""


@dataclass(frozen=True, slots=True)
class LeaderboardFile:
    """A file of the leaderboard, with the version and category in its name."""

    path: Path
    version: int
    category: str

    @property
    def dataset(self) -> str:
        """The dataset's name, which contains the leaderboard's version."""
        return f"bfcl-v{self.version}"

    @property
    def accepted_answers(self) -> Path:
        """The path of the accepted answers to a file of questions."""
        return self.path.with_name("possible_answer") / self.path.name


def question_files(path: Path) -> list[LeaderboardFile]:
    """Return the files of judged questions in a directory or its `data`, sorted by name.

    The path `bfcl-eval` means the installed package, unless a directory with this name exists.
    Raises DataError if there is no file, or if a file's category is unknown.
    """
    folder = package_data() if path == Path(PACKAGE) and not path.exists() else path
    data = folder / "data"
    files = judged_files(data if data.is_dir() else folder)
    if not files:
        raise DataError(path, None, "contains no data/gorilla_*.json[.gz] or BFCL_v*.json[.gz]")
    return files


def judged_files(folder: Path) -> list[LeaderboardFile]:
    """Return a directory's files of questions, results or scores, without those in `LEFT_OUT`."""
    files = [
        LeaderboardFile(path, int(name["version"] or name["first"]), name["category"])
        for path in sorted(folder.glob("*.json*"))
        if (name := _FILE_NAME.fullmatch(path.name))
    ]
    for file in files:
        is_left_out = any(f"{file.category}_".startswith(f"{name}_") for name in LEFT_OUT)
        if file.category not in JUDGED and not is_left_out:
            raise DataError(file.path, None, f"unknown category {file.category!r}")
    return [file for file in files if file.category in JUDGED]


def package_data() -> Path:
    """Return the data directory of the installed `bfcl-eval`; raises ConfigError if absent."""
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or spec.origin is None:
        raise package_missing_error()
    return Path(spec.origin).parent / "data"


def package_missing_error() -> ConfigError:
    """Return the error that says how to install the package."""
    return ConfigError(PACKAGE, "", f"is not installed, or is incomplete; run: {INSTALL}")


def convert_functions(
    functions: Sequence[Mapping[str, Json]], category: str, version: int
) -> list[dict[str, Json]]:
    """Return the leaderboard's functions as OpenAI tools; raises ValueError for an unknown type.

    A `.` in a name becomes `_`, because function-calling APIs do not allow dots.
    """
    converter = _SchemaConverter(version, _LANGUAGES.get(category.removeprefix("simple_")))
    return [
        {
            "type": "function",
            "function": {
                "name": function["name"].replace(".", "_"),
                "description": function.get("description", ""),
                "parameters": converter.convert_object(function["parameters"]),
            },
        }
        for function in functions
    ]


@dataclass(frozen=True, slots=True)
class _SchemaConverter:
    """Conversion of the types in one version of the leaderboard to JSON Schema.

    v1 is converted exactly as it was to train the shipped router. `language` is the programming
    language of the category's values, or None for Python. A Java or JavaScript type
    becomes `string` with a note, as in the leaderboard's requests to function-calling models.
    """

    version: int
    language: str | None

    def convert_object(self, node: Mapping[str, Json]) -> dict[str, Json]:
        properties = node.get("properties") or {}
        return {
            **self._keywords(node),
            "type": "object",
            "properties": {name: self._convert(child) for name, child in properties.items()},
            **self._subschemas(node),
        }

    def _convert(self, node: Mapping[str, Json]) -> dict[str, Json]:
        kind = node.get("type", _ANY_TYPE)
        if self.language is not None:
            note = f"This is {self.language} {kind} type in string representation."
            description = f"{node.get('description', '')} {note}".strip()
            return {**self._keywords(node), "type": "string", "description": description}
        typed: dict[str, Json] = {}
        if kind != _ANY_TYPE:
            typed["type"] = [*map(_json_type, kind)] if isinstance(kind, list) else _json_type(kind)
        elif self.version == 1:
            typed["type"] = "string"
        if typed == {"type": "object"}:
            return self.convert_object(node)
        schema = {**self._keywords(node), **typed, **self._subschemas(node)}
        if isinstance(node.get("items"), dict):
            schema["items"] = self._convert(node["items"])
        return schema

    def _keywords(self, node: Mapping[str, Json]) -> dict[str, Json]:
        kept = _V1_KEYWORDS if self.version == 1 else _KEYWORDS
        return {key: value for key, value in node.items() if key in kept}

    def _subschemas(self, node: Mapping[str, Json]) -> dict[str, Json]:
        """Return the keywords that contain schemas and are allowed for every type."""
        found: dict[str, Json] = {}
        rest = node.get("additionalProperties")
        if rest is not None:
            found["additionalProperties"] = self._convert(rest) if isinstance(rest, dict) else rest
        for key in _BRANCHES:
            if key in node:
                found[key] = [self._convert(branch) for branch in node[key]]
        return found


def _json_type(kind: str) -> str:
    if kind not in _TYPES:
        raise ValueError(f"unknown type {kind!r}; the leaderboard uses {', '.join(_TYPES)} and any")
    return _TYPES[kind]


def read_truth(truth: Json, functions: Sequence[Mapping[str, Json]], version: int) -> Expected:
    """Read an accepted answer to a question that offers these functions.

    In v1, the answer is an object of calls; in later versions, a list of calls; in executable
    categories, a list of calls as Python source code. Raises ValueError if the answer calls a
    function that is not offered or, from v2 on, uses a parameter that the function does not have.
    """
    offered = {function["name"]: function["parameters"] for function in functions}
    if isinstance(truth, list) and all(isinstance(call, str) for call in truth):
        calls = tuple(_read_executable_call(call, offered) for call in truth)
    elif isinstance(truth, list):
        entries = [entry for call in truth for entry in call.items()]
        calls = tuple(_read_call(name, given, offered, version) for name, given in entries)
    elif isinstance(truth, dict):
        by_name: dict[str, Json] = {}
        for name, value in truth.items():
            if isinstance(value, list):
                # In one row of v1, a parameter is beside its call instead of inside it.
                last = next(reversed(by_name))
                by_name[last] = {**by_name[last], name: value}
            else:
                by_name[name] = value
        calls = tuple(_read_call(name, by_name[name], offered, version) for name in by_name)
    else:
        raise ValueError(f"invalid accepted answer, neither an object nor a list: {truth!r}")
    if version > 1:
        check_offered(calls, offered)
    return Expected(calls)


def _read_executable_call(source: str, offered: Mapping[str, Json]) -> ExpectedCall:
    """Read a call written as Python source code.

    A positional argument is the value of the parameter at its place in the function's description.
    """
    node = ast.parse(source, mode="eval").body
    if not isinstance(node, ast.Call):
        raise ValueError(f"not a call: {source}")  # noqa: TRY004 - the text is wrong, not a type
    function = ast.unparse(node.func)
    parameters = [*offered.get(function, {}).get("properties", {})]
    if len(node.args) > len(parameters):
        raise ValueError(f"the call has arguments that {function} does not describe: {source}")
    values = dict(zip(parameters, map(python_value, node.args), strict=False))
    values |= {k.arg: python_value(k.value) for k in node.keywords if k.arg is not None}
    name = function.replace(".", "_")
    if name in _SYMMETRIC:
        return ExpectedCall(name, dict.fromkeys(values, tuple(values.values())))
    return ExpectedCall(name, {parameter: (value,) for parameter, value in values.items()})


def _read_call(
    name: str, arguments: Mapping[str, Json], offered: Mapping[str, Json], version: int
) -> ExpectedCall:
    """Read an expected call, and find the offered function that its name means."""
    # v1 appends `_1` or `_2` to a name that it calls more than once. One accepted answer omits the
    # number at the end of a function's name, another the qualifier before the name.
    names = sorted(offered)
    same = [known for known in names if known in {name, re.sub(r"[_ ]\d+$", "", name)}]
    similar = [k for k in names if re.sub(r"_\d+$", "", k) == name or k.endswith(f".{name}")]
    if not same and not similar:
        raise ValueError(f"the accepted answer calls {name!r}, which the question does not offer")
    function = (same or similar)[0]
    accepted: dict[str, OneOf] = {}
    for given, values in arguments.items():
        known = _RENAMED_PARAMETERS.get((function, given), given) if version > 1 else given
        if known is not None:
            accepted[known] = _read_accepted(values)
    return ExpectedCall(
        name=function.replace(".", "_"),
        arguments={parameter: one.values for parameter, one in accepted.items()},
        optional=frozenset(parameter for parameter, one in accepted.items() if one.is_optional),
    )


def _read_accepted(values: Json) -> OneOf:
    """Read accepted values; `""` among them means that the parameter may be omitted."""
    options = values if isinstance(values, list) else [values]
    return OneOf(tuple(map(_read_value, options)), is_optional="" in options)


def _read_value(value: Json) -> Json:
    """Read one accepted value; inside an object, each key has its own accepted values."""
    if isinstance(value, dict):
        return {key: _read_accepted(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_read_value(item) for item in value]
    return value
