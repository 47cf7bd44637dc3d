"""What models answer -> calls: native lists, JSON, tagged blocks, and Python-like call lists."""

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

from switchcraft_training.records import Call, Json

_FENCE = re.compile(r"```\w*\n(.*?)\n?\s*```", re.DOTALL)
_BLOCK = re.compile(r"<(tool_call|function_call)>(.*?)</\1>", re.DOTALL)
_TAGS = re.compile(r"</?(?:tool_call|function_call|functioncall)>|\[TOOL_CALLS\]")
_NAME_THEN_JSON = re.compile(r"^([\w.]+)\n(\{.*\})$", re.DOTALL)
WORDS: Final = frozenset({"text", "call_in_text"})
"""Problems of an answer that was meant as words."""

_NO_CALL = frozenset({"no_function", "out_of_domain"})
"""Names that some models call to say that no tool fits."""

_BEGINS_LIKE_A_CALL = re.compile(
    r"\s*(?:\[?[`'\"{(\[]*[\w.]+\(|[\[{]\s*[{'\"]|<tool_call|\[TOOL_CALLS\])"
)
_HOLDS_A_CALL = re.compile(r"\b[\w.]+\(\w+\s*=|<tool_call>|<functioncall>|\"arguments\"\s*:")
_POSITIONAL = re.compile(r"\[?\s*[\w.]+\(\s*(?!\w+\s*=|[{)]).+\)\s*\]?", re.DOTALL)

_NEW = re.compile(r"(?<=[(=,\s])new\s+(?=[A-Z])")
_RESERVED = re.compile(
    rf"((?:[(,]\s*(?:{'|'.join(keyword.kwlist)}))(?=\s*=(?!=))|(?<=\w)\.class\b)"
)
_UNRESERVED: Final = "__reserved"
"""What keeps `f(from='x')` from being a syntax error while it is read."""

_ARGUMENT_KEYS = ("arguments", "parameters", "args")


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    """Calls, or the code of why there are none.

    `no_answer`: nothing came; `text`: words alone; `call_in_text`: a call among words, which no
    client would carry out; `malformed_call`: what begins like a call and is none;
    `positional_arguments`: a call whose arguments have no names; `arguments_not_json` and
    `not_a_call`: a native call of that kind.
    """

    calls: tuple[Call, ...] | None
    problem: str | None = None


class _NotACallError(Exception):
    """A value that does not read as a call; its text is the problem's code."""


def parse_native(raw: Json) -> ParsedAnswer:
    """Read the answer of a native function-calling API: a list of calls, or text."""
    if isinstance(raw, str):
        return ParsedAnswer(None, _problem(raw))
    if isinstance(raw, list):
        words = [part for part in raw if isinstance(part, str)]  # what was said beside the calls
        raw = [part for part in raw if not isinstance(part, str)]
        if words and not raw:
            return ParsedAnswer(None, _problem("\n".join(words)))
    try:
        return ParsedAnswer(tuple(_from_json(raw)))
    except _NotACallError as exc:
        return ParsedAnswer(None, str(exc))


def parse_text(raw: Json) -> ParsedAnswer:
    """Read calls written as text; words around them make the answer a text."""
    if not isinstance(raw, str):
        return parse_native(raw)
    if not raw.strip():
        return ParsedAnswer(None, "no_answer")
    for text in _candidates(raw):
        for reader in _READERS:
            calls = reader(text)
            if calls is not None:
                return ParsedAnswer(tuple(call for call in calls if call.name not in _NO_CALL))
    return ParsedAnswer(None, _problem(raw.replace("\\_", "_")))


def _candidates(raw: str) -> Iterator[str]:
    """Yield what of a text may be its calls: all of it, or the one block that is fenced off."""
    plain = raw.replace("\\_", "_")  # some models escape underscores as in Markdown
    fences = _FENCE.findall(plain)
    if not plain.lstrip().startswith("```"):
        yield plain.strip("` \n\t")
    if len(fences) == 1 or (fences and plain.lstrip().startswith("```")):
        yield fences[0].strip("` \n\t")
    else:
        yield plain.strip("` \n\t")


def _problem(text: str) -> str:
    """Return the code of a text that could not be read as calls."""
    if not text.strip():
        return "no_answer"
    if _POSITIONAL.fullmatch(text.strip()):
        return "positional_arguments"
    if _BEGINS_LIKE_A_CALL.match(text):
        return "malformed_call"
    return "call_in_text" if _HOLDS_A_CALL.search(text) else "text"


def _read_json(text: str) -> tuple[Call, ...] | None:
    """Read one or more JSON values with nothing but tags between them."""
    rest = _TAGS.sub(" ", text).strip().rstrip(";")
    if not rest.startswith(("{", "[")):
        return None
    calls: list[Call] = []
    decoder = json.JSONDecoder()
    try:
        while rest:
            value, end = decoder.raw_decode(rest)
            calls.extend(_from_json(value))
            rest = rest[end:].lstrip(" \n\t,;")
    except (ValueError, RecursionError, _NotACallError):
        return None
    return tuple(calls)


def _read_blocks(text: str) -> tuple[Call, ...] | None:
    """Read tagged blocks, each of JSON or of a Python literal, whatever is said around them."""
    calls: list[Call] = []
    for block in _BLOCK.finditer(text):
        try:
            calls.extend(_from_json(_literal(block.group(2).strip())))
        except _NotACallError:
            return None
    return tuple(calls) or None


def _literal(text: str) -> Json:
    for decode in (json.loads, ast.literal_eval):
        try:
            return decode(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    raise _NotACallError("not_a_call")


def _read_first_line(text: str) -> tuple[Call, ...] | None:
    """Read calls on the first line, where the rest only explains them."""
    line, _, rest = text.partition("\n")
    return _read_python(line.strip("` ")) if rest else None


def _read_carelessly(text: str) -> tuple[Call, ...] | None:
    """Read calls whose brackets and quotes do not pair up, or with Java's `new` in them."""
    first, _, _ = text.partition("\n\n")
    return _read_python(_NEW.sub("", first.strip(" \n`'\"[]{}.;")))


def _read_name_then_json(text: str) -> tuple[Call, ...] | None:
    match = _NAME_THEN_JSON.match(text)
    if match is None:
        return None
    try:
        return (Call(match.group(1), _arguments(match.group(2))),)
    except _NotACallError:
        return None


def _read_python(text: str) -> tuple[Call, ...] | None:
    """Read `[f(a=1), g(b='x')]`, with or without brackets, separated by commas or semicolons."""
    plain = text.rstrip(" ;\n,")
    tree = _parsed(plain) or _parsed(_RESERVED.sub(rf"\1{_UNRESERVED}", plain))
    if tree is None:
        return None
    nodes = [node for statement in tree.body for node in _elements(statement)]
    if not nodes:
        return None
    try:
        return tuple(call for node in nodes for call in _from_node(node))
    except (_NotACallError, ValueError):
        return None


def _parsed(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a model's escapes are its own
            return ast.parse(text, mode="exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _elements(statement: ast.stmt) -> list[ast.expr]:
    if not isinstance(statement, ast.Expr):
        return [ast.Constant(None)]
    value = statement.value
    return value.elts if isinstance(value, ast.List | ast.Tuple) else [value]


def _from_node(node: ast.expr) -> Iterator[Call]:
    if isinstance(node, ast.Dict):
        yield from _from_json(ast.literal_eval(node))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
        yield Call(ast.unparse(node.func), _keywords(node))
    elif isinstance(node, ast.Tuple) and len(node.elts) == 2:  # ('f', {'a': 1})
        name, given = map(python_value, node.elts)
        yield from _from_json({"name": name, "arguments": given})
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "(" in node.value:
        calls = _read_python(node.value)
        if calls is None:
            raise _NotACallError("not_a_call")
        yield from calls
    else:
        raise _NotACallError("not_a_call")


def _keywords(node: ast.Call) -> dict[str, Json]:
    """Return a call's keyword arguments, or those of the one object that it is given."""
    match node:
        case ast.Call(args=[ast.Dict() as given], keywords=[]):
            values = python_value(given)
            return values if isinstance(values, dict) else {}
        case ast.Call(args=[]) if all(keyword.arg for keyword in node.keywords):
            return {
                str(k.arg).removesuffix(_UNRESERVED): python_value(k.value) for k in node.keywords
            }
    raise _NotACallError("not_a_call")


def python_value(node: ast.expr) -> Json:
    """Return a literal's value; what is no literal (`dbMonitor`, `new Foo()`) as its text."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError):
        return _composite(node)
    return _as_json(value)


def _as_json(value: object) -> Json:
    """Return a Python literal as JSON has it: tuples and sets are lists, keys are strings."""
    if isinstance(value, list | tuple | set):
        return [_as_json(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _as_json(inner) for key, inner in value.items()}
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _composite(node: ast.expr) -> Json:
    number = _arithmetic(node)
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
    text = ast.unparse(node).replace(_UNRESERVED, "")
    return words.get(text, text)


_OPERATORS: Final[Mapping[type[ast.operator], Callable[[float, float], float]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def _arithmetic(node: ast.expr) -> float | None:
    """Return the value of `3.5 / 100`: numbers under the four operations, None for all else."""
    if isinstance(node, ast.Constant):
        value = node.value
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        operand = _arithmetic(node.operand)
        return None if operand is None else -operand
    if not isinstance(node, ast.BinOp) or type(node.op) not in _OPERATORS:
        return None
    left, right = _arithmetic(node.left), _arithmetic(node.right)
    return None if left is None or right is None else _result(type(node.op), left, right)


def _result(op: type[ast.operator], left: float, right: float) -> float | None:
    try:
        value = _OPERATORS[op](left, right)
    except (ZeroDivisionError, OverflowError):
        return None
    short = float(f"{value:.15g}")  # 0.1 * 3 is 0.3, and 1 / 6 stays what it is
    return short if isinstance(value, float) and len(repr(short)) < 15 else value


def _from_json(value: Json) -> Iterator[Call]:
    """Yield calls from `{name: arguments}`, `{"name", "arguments"}` or lists of them."""
    if isinstance(value, list):
        for item in value:
            yield from _from_json(item)
    elif not isinstance(value, dict):
        raise _NotACallError("not_a_call")
    elif isinstance(value.get("tool_calls"), list):
        yield from _from_json(value["tool_calls"])
    elif isinstance(value.get("name"), str):
        key = next((key for key in _ARGUMENT_KEYS if key in value), None)
        if key is None and len(value) > 1:
            raise _NotACallError("not_a_call")
        yield Call(value["name"], _arguments(value[key] if key else {}))
    elif isinstance(value.get("function"), dict):
        yield from _from_json(value["function"])
    else:
        for name, given in value.items():
            yield Call(name, _arguments(given))


def _arguments(given: Json) -> Mapping[str, Json]:
    """Return arguments as an object, decoding them where they are JSON text."""
    if isinstance(given, str):
        try:
            given = json.loads(given or "{}")
        except (ValueError, RecursionError) as exc:
            raise _NotACallError("arguments_not_json") from exc
    if not isinstance(given, dict):
        raise _NotACallError("arguments_not_json")
    return given


_READERS: Final = (
    _read_json,
    _read_blocks,
    _read_name_then_json,
    _read_python,
    _read_first_line,
    _read_carelessly,
)
"""From the most certain form to the least."""
