"""Parser of models' answers: native calls, JSON, tagged blocks, and Python-like lists of calls."""

from __future__ import annotations

import ast
import json
import keyword
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from router_service.apis.conversation import Json
from router_service.checker.toolbox import Call

_FENCE = re.compile(r"```\w*\n(.*?)\n?\s*```", re.DOTALL)
_BLOCK = re.compile(r"<(tool_call|function_call)>(.*?)</\1>", re.DOTALL)
_TAGS = re.compile(r"</?(?:tool_call|function_call|functioncall)>|\[TOOL_CALLS\]")
_NAME_THEN_JSON = re.compile(r"^([\w.]+)\n(\{.*\})$", re.DOTALL)
TEXT_PROBLEMS: Final = frozenset({"text", "call_in_text"})
"""Problem codes of answers that were meant as text, not as calls."""

_NO_CALL = frozenset({"no_function", "out_of_domain"})
"""Function names that some models call to state that no tool fits."""

_BEGINS_LIKE_A_CALL = re.compile(
    r"\s*(?:\[?[`'\"{(\[]*[\w.]+\(|[\[{]\s*[{'\"]|<tool_call|\[TOOL_CALLS\])"
)
_HOLDS_A_CALL = re.compile(r"\b[\w.]+\(\w+\s*=|<tool_call>|<functioncall>|\"arguments\"\s*:")
_POSITIONAL = re.compile(r"\[?\s*[\w.]+\(\s*(?!\w+\s*=|[{)]).+\)\s*\]?", re.DOTALL)

_NEW = re.compile(r"(?<=[(=,\s])new\s+(?=[A-Z])")
_RESERVED = re.compile(
    rf"((?:[(,]\s*(?:{'|'.join(keyword.kwlist)}))(?=\s*=(?!=))|(?<=\w)\.class\b)"
)
_RESERVED_SUFFIX: Final = "__reserved"
"""Suffix for reserved words while they are parsed: `f(from='x')` is a syntax error in Python."""

_ARGUMENT_KEYS = ("arguments", "parameters", "args")


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """Calls of an answer, or None and a problem code.

    | code | meaning |
    |---|---|
    | `no_answer` | the answer is empty |
    | `text` | the answer is only text |
    | `call_in_text` | the answer has a call inside other text; no client would execute it |
    | `malformed_call` | the answer starts like a call but is not a valid one |
    | `positional_arguments` | the answer is a call whose arguments have no names |
    | `arguments_not_json` | a native call has arguments that are not a JSON object |
    | `not_a_call` | a native answer does not have the structure of a call |
    """

    calls: tuple[Call, ...] | None
    problem: str | None = None


class _NotACallError(Exception):
    """A value that is not a call; the exception's text is the problem code."""


def parse_native(raw: Json) -> ParsedAnswer:
    """Parse the answer of a function-calling API: a list of calls, or text."""
    if isinstance(raw, str):
        return ParsedAnswer(None, _problem(raw))
    if isinstance(raw, list):
        words = [part for part in raw if isinstance(part, str)]  # Text beside the calls.
        raw = [part for part in raw if not isinstance(part, str)]
        if words and not raw:
            return ParsedAnswer(None, _problem("\n".join(words)))
    try:
        return ParsedAnswer(tuple(_calls_from_json(raw)))
    except _NotACallError as exc:
        return ParsedAnswer(None, str(exc))


def parse_text(raw: Json) -> ParsedAnswer:
    """Parse an answer whose calls are written as text.

    If other words surround the calls, the answer counts as text, unless one of `_PARSERS` skips
    these words.
    """
    if not isinstance(raw, str):
        return parse_native(raw)
    if not raw.strip():
        return ParsedAnswer(None, "no_answer")
    plain = raw.replace("\\_", "_")  # Some models escape underscores as in Markdown.
    # The calls are the whole text, its only fenced block, or the fenced block that it starts with.
    fences = _FENCE.findall(plain)
    starts_with_fence = plain.lstrip().startswith("```")
    candidates = [] if starts_with_fence else [plain]
    is_fenced = len(fences) == 1 or (fences and starts_with_fence)
    candidates.append(fences[0] if is_fenced else plain)
    for text in candidates:
        for parse in _PARSERS:
            calls = parse(text.strip("` \n\t"))
            if calls is not None:
                return ParsedAnswer(tuple(call for call in calls if call.name not in _NO_CALL))
    return ParsedAnswer(None, _problem(plain))


def _problem(text: str) -> str:
    """Return the problem code of a text that could not be parsed as calls."""
    if not text.strip():
        return "no_answer"
    if _POSITIONAL.fullmatch(text.strip()):
        return "positional_arguments"
    if _BEGINS_LIKE_A_CALL.match(text):
        return "malformed_call"
    return "call_in_text" if _HOLDS_A_CALL.search(text) else "text"


def _parse_json(text: str) -> tuple[Call, ...] | None:
    """Parse one or more JSON values with only tags between them."""
    rest = _TAGS.sub(" ", text).strip().rstrip(";")
    if not rest.startswith(("{", "[")):
        return None
    calls: list[Call] = []
    decoder = json.JSONDecoder()
    try:
        while rest:
            value, end = decoder.raw_decode(rest)
            calls.extend(_calls_from_json(value))
            rest = rest[end:].lstrip(" \n\t,;")
    except (ValueError, RecursionError, _NotACallError):
        return None
    return tuple(calls)


def _parse_tagged_blocks(text: str) -> tuple[Call, ...] | None:
    """Parse tagged blocks of JSON or Python literals; text around the blocks is ignored."""
    calls: list[Call] = []
    for block in _BLOCK.finditer(text):
        try:
            calls.extend(_calls_from_json(_parse_literal(block.group(2).strip())))
        except _NotACallError:
            return None
    return tuple(calls) or None


def _parse_literal(text: str) -> Json:
    """Return the value of a JSON or Python literal."""
    for decode in (json.loads, ast.literal_eval):
        try:
            return decode(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    raise _NotACallError("not_a_call")


def _parse_first_line(text: str) -> tuple[Call, ...] | None:
    """Parse calls on the first line of a text whose further lines explain them."""
    line, _, rest = text.partition("\n")
    return _parse_python(line.strip("` ")) if rest else None


def _parse_leniently(text: str) -> tuple[Call, ...] | None:
    """Parse calls with unbalanced brackets or quotes, or with Java's `new`."""
    first, _, _ = text.partition("\n\n")
    return _parse_python(_NEW.sub("", first.strip(" \n`'\"[]{}.;")))


def _parse_name_then_json(text: str) -> tuple[Call, ...] | None:
    """Parse a function name on one line and its arguments as JSON on the next."""
    match = _NAME_THEN_JSON.match(text)
    if match is None:
        return None
    try:
        return (Call(match.group(1), _arguments(match.group(2))),)
    except _NotACallError:
        return None


def _parse_python(text: str) -> tuple[Call, ...] | None:
    """Parse `[f(a=1), g(b='x')]`; brackets are optional, and semicolons may separate calls."""
    plain = text.rstrip(" ;\n,")
    tree = _syntax_tree(plain) or _syntax_tree(_RESERVED.sub(rf"\1{_RESERVED_SUFFIX}", plain))
    if tree is None:
        return None
    nodes: list[ast.expr] = []
    for statement in tree.body:
        if not isinstance(statement, ast.Expr):
            return None
        value = statement.value
        nodes.extend(value.elts if isinstance(value, ast.List | ast.Tuple) else [value])
    if not nodes:
        return None
    try:
        return tuple(call for node in nodes for call in _calls_from_node(node))
    except (_NotACallError, ValueError):
        return None


def _syntax_tree(text: str) -> ast.Module | None:
    """Parse Python source; return None if it is not valid."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns about invalid escapes in an answer.
            return ast.parse(text, mode="exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _calls_from_node(node: ast.expr) -> Iterator[Call]:
    """Yield the calls that one element of a Python-like list stands for."""
    match node:
        case ast.Dict():
            yield from _calls_from_json(ast.literal_eval(node))
        case ast.Call(
            func=ast.Name() | ast.Attribute() as function, args=[ast.Dict() as given], keywords=[]
        ):  # f({'a': 1})
            values = python_value(given)
            yield Call(ast.unparse(function), values if isinstance(values, dict) else {})
        case ast.Call(
            func=ast.Name() | ast.Attribute() as function, args=[], keywords=keywords
        ) if all(each.arg for each in keywords):  # f(a=1)
            arguments = {
                str(each.arg).removesuffix(_RESERVED_SUFFIX): python_value(each.value)
                for each in keywords
            }
            yield Call(ast.unparse(function), arguments)
        case ast.Tuple(elts=[first, second]):  # ('f', {'a': 1})
            named = {"name": python_value(first), "arguments": python_value(second)}
            yield from _calls_from_json(named)
        case ast.Constant(value=str(source)) if "(" in source:
            calls = _parse_python(source)
            if calls is None:
                raise _NotACallError("not_a_call")
            yield from calls
        case _:
            raise _NotACallError("not_a_call")


def python_value(node: ast.expr) -> Json:
    """Return a literal's value; return anything else (`dbMonitor`, `Foo()`) as its source text."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError):
        pass
    else:
        return _to_json(value)
    number = _arithmetic_value(node)
    if number is not None:
        return number
    if isinstance(node, ast.List | ast.Tuple):
        return [python_value(child) for child in node.elts]
    if isinstance(node, ast.Dict):
        return {
            str(python_value(key)): python_value(value)
            for key, value in zip(node.keys, node.values, strict=True)
            if key is not None
        }
    words = {"true": True, "false": False, "null": None}
    text = ast.unparse(node).replace(_RESERVED_SUFFIX, "")
    return words.get(text, text)


def _to_json(value: object) -> Json:
    """Convert a Python literal to JSON: tuples and sets become lists, keys become strings."""
    if isinstance(value, (list, tuple, set)):
        return [_to_json(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _to_json(inner) for key, inner in value.items()}
    return value if isinstance(value, str | int | float | bool | None) else str(value)


_OPERATORS: Final[Mapping[type[ast.operator], Callable[[float, float], float]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def _arithmetic_value(node: ast.expr) -> float | None:
    """Return the value of arithmetic such as `3.5 / 100`; None for other expressions."""
    if isinstance(node, ast.Constant):
        value = node.value
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        operand = _arithmetic_value(node.operand)
        return None if operand is None else -operand
    if not isinstance(node, ast.BinOp) or type(node.op) not in _OPERATORS:
        return None
    left, right = _arithmetic_value(node.left), _arithmetic_value(node.right)
    if left is None or right is None:
        return None
    try:
        value = _OPERATORS[type(node.op)](left, right)
    except (ZeroDivisionError, OverflowError):
        return None
    short = float(f"{value:.15g}")  # Rounded: 0.1 * 3 becomes 0.3; 1 / 6 does not change.
    return short if isinstance(value, float) and len(repr(short)) < 15 else value


def _calls_from_json(value: Json) -> Iterator[Call]:
    """Yield calls from `{name: arguments}`, `{"name", "arguments"}`, or a list of such objects."""
    if isinstance(value, list):
        for item in value:
            yield from _calls_from_json(item)
    elif not isinstance(value, dict):
        raise _NotACallError("not_a_call")
    elif isinstance(value.get("tool_calls"), list):
        yield from _calls_from_json(value["tool_calls"])
    elif isinstance(value.get("name"), str):
        key = next((key for key in _ARGUMENT_KEYS if key in value), None)
        if key is None and len(value) > 1:
            raise _NotACallError("not_a_call")
        yield Call(value["name"], _arguments(value[key] if key else {}))
    elif isinstance(value.get("function"), dict):
        yield from _calls_from_json(value["function"])
    else:
        for name, given in value.items():
            yield Call(name, _arguments(given))


def _arguments(given: Json) -> Mapping[str, Json]:
    """Return a call's arguments as an object; `given` is the object or its JSON text."""
    if isinstance(given, str):
        try:
            given = json.loads(given or "{}")
        except (ValueError, RecursionError) as exc:
            raise _NotACallError("arguments_not_json") from exc
    if not isinstance(given, dict):
        raise _NotACallError("arguments_not_json")
    return given


_PARSERS: Final = (
    _parse_json,
    _parse_tagged_blocks,
    _parse_name_then_json,
    _parse_python,
    _parse_first_line,
    _parse_leniently,
)
"""Parsers in the order in which they are tried, from the strictest to the most lenient."""
