"""Readers of values and types that datasets contain as strings, often in Python's syntax."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

import orjson

from router_service.apis.conversation import Json

_DECODER: Final = json.JSONDecoder(strict=False)
"""Accepts line breaks inside JSON strings, because some published arguments are lines of code."""

_JSON_WORDS: Final = {"true": True, "false": False, "null": None}

_MODIFIER: Final = re.compile(
    r"""(?: [\s,(]+ | (?==) )
        (?: (?P<optional>optional) | required
          | (?: defaults? \b \s* (?:value\s*)? (?: = | : | is\b | to\b )? | = ) \s*
            (?P<default>.+?)
        ) \s* \)? \s* $""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)
"""What a type's text says after the type, such as `, optional`, `= 5` or ` (default: "x")`."""
_ITEMS: Final = re.compile(r"(list|array|set|tuple|sequence)\s+of\s+(.+)", re.IGNORECASE)
_ALTERNATIVE: Final = re.compile(r"\s+or\s+", re.IGNORECASE)
_NULL: Final = {"type": "null"}
_SET: Final = {"type": "array", "uniqueItems": True}
_PLAIN_TYPES: Final[Mapping[str, Mapping[str, Json]]] = {
    # JSON has no dates, so an argument that is one is given as its text.
    **{word: {"type": "string"} for word in ("str", "string", "bytes", "date", "datetime", "time")},
    **{word: {"type": "integer"} for word in ("int", "integer")},
    **{word: {"type": "number"} for word in ("float", "number", "double")},
    **{word: {"type": "boolean"} for word in ("bool", "boolean")},
    **{word: {"type": "object"} for word in ("dict", "object", "mapping")},
    **{word: {"type": "array"} for word in ("list", "array", "tuple", "sequence", "iterable")},
    "set": _SET,
    "frozenset": _SET,
    # JSON has no functions, so an argument that is a function is given as its source code.
    "callable": {"type": "string"},
    "any": {},
    "none": _NULL,
    "nonetype": _NULL,
}


def read_json(text: str) -> Json:
    """Return the JSON value in a text; raises ValueError if it is not one JSON value."""
    return _to_json_value(_DECODER.decode(text))


def read_literal(text: str) -> Json:
    """Return the value of a text that is JSON, a Python literal, or a mixture of the two.

    Raises ValueError if the text is none of these, or if JSON cannot represent the value.
    """
    try:
        return read_json(text)
    except ValueError:
        pass
    try:
        tree = ast.parse(text.strip(), mode="eval")
        value = ast.literal_eval(_JsonWords().visit(tree))
    except (SyntaxError, ValueError, TypeError, MemoryError) as exc:
        raise ValueError(f"neither JSON nor a Python literal: {text[:80]!r}") from exc
    return _to_json_value(value)


def _to_json_value(value: object) -> Json:
    """Return a value as JSON represents it; for example, tuples become lists.

    Raises ValueError if JSON cannot represent it: integers must fit into 64 bits, numbers must be
    finite, and keys must be strings.
    """
    try:
        text = orjson.dumps(value)
        json.dumps(value, allow_nan=False)  # orjson writes `null` for a number that is not finite
    except ValueError as exc:
        raise ValueError("a number is not finite, so JSON cannot represent it") from exc
    except orjson.JSONEncodeError as exc:
        raise ValueError(f"not a JSON value: {exc}") from exc
    return orjson.loads(text)


class _JsonWords(ast.NodeTransformer):
    """Transformer that replaces `true`, `false` and `null` in an expression by their values."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_JSON_WORDS[node.id]) if node.id in _JSON_WORDS else node


class ParameterType(NamedTuple):
    """A parameter's JSON Schema, and whether its type says that it may be omitted.

    If the type names a default, the schema has it.
    """

    schema: Mapping[str, Json]
    is_optional: bool


@lru_cache(maxsize=4096)
def read_type(text: str) -> ParameterType:
    """Return the JSON Schema of a Python type such as `List[int]` or `str, optional`.

    `Optional[X]` also accepts null. A parameter may be omitted if its type is `Optional[X]`, or if
    the text says `optional` or names a default after the type. `X or Y` and `list of X` are types,
    too. Raises ValueError for an unknown type.
    """
    bare, is_optional, default = text.strip(), False, {}
    while found := _MODIFIER.search(bare):
        bare = bare[: found.start()]
        is_optional = is_optional or bool(found["optional"] or found["default"])
        if found["default"]:
            try:
                default = {"default": read_literal(found["default"])}
            except ValueError:  # a text without quotes
                default = {"default": found["default"]}
    expression = _ITEMS.sub(r"\1[\2]", _ALTERNATIVE.sub(" | ", bare.strip()))
    try:
        node = ast.parse(expression, mode="eval").body
    except SyntaxError as exc:
        raise ValueError(f"{text!r} is not a type in Python's syntax") from exc
    is_optional = is_optional or expression.casefold().startswith("optional[")
    return ParameterType({**_type_schema(node), **default}, is_optional)


def _type_schema(node: ast.expr) -> Mapping[str, Json]:
    match node:
        case ast.Constant(value=None):
            return _NULL
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _union_schema([left, right])
        case ast.Subscript(value=outer, slice=ast.Tuple(elts=inner)):
            return _generic_schema(_type_name(outer), inner)
        case ast.Subscript(value=outer, slice=inner_one):
            return _generic_schema(_type_name(outer), [inner_one])
    word = _type_name(node)
    if word not in _PLAIN_TYPES:
        raise ValueError(f"{ast.unparse(node)!r} is not a known type")
    return _PLAIN_TYPES[word]


def _type_name(node: ast.expr) -> str:
    """Return the last part of a type's name in lower case (`typing.List` -> `list`)."""
    return ast.unparse(node).rpartition(".")[2].casefold()


def _generic_schema(word: str, inner: list[ast.expr]) -> Mapping[str, Json]:
    """Return the schema of a type with arguments in brackets, such as `Dict[str, int]`."""
    kind = _PLAIN_TYPES.get(word, {}).get("type")
    schema: Mapping[str, Json]
    match word, inner:
        case "union", _:
            schema = _union_schema(inner)
        case "optional", _:
            schema = _union_schema([*inner, ast.Constant(None)])
        case "literal", _:
            schema = {"enum": [ast.literal_eval(node) for node in inner]}
        case "tuple", [*items, ast.Constant(value=value)] if value is ...:
            schema = {"type": "array", "items": _union_schema(items)}
        case "tuple", [_, *_]:
            bounds = {"minItems": len(inner), "maxItems": len(inner)}
            schema = {"type": "array", "items": _union_schema(inner), **bounds}
        case "callable", _:
            schema = _PLAIN_TYPES[word]
        case _, [_, values] if kind == "object":
            schema = {**_PLAIN_TYPES[word], "additionalProperties": _type_schema(values)}
        case _, [items_node] if kind == "array":
            schema = {**_PLAIN_TYPES[word], "items": _type_schema(items_node)}
        case _:
            raise ValueError(f"{word}[{', '.join(map(ast.unparse, inner))}] is not a known type")
    return schema


def _union_schema(nodes: list[ast.expr]) -> Mapping[str, Json]:
    """Return a schema that accepts the values of all these types.

    If every type's schema has only a `type`, the schema is a list of them, and otherwise `anyOf`.
    """
    branches: list[Mapping[str, Json]] = []
    for node in nodes:
        branch = _type_schema(node)
        if branch not in branches:
            branches.append(branch)
    if len(branches) == 1 or {} in branches:
        return branches[0] if len(branches) == 1 else {}
    if all(branch.keys() == {"type"} for branch in branches):
        return {"type": [branch["type"] for branch in branches]}
    return {"anyOf": branches}
