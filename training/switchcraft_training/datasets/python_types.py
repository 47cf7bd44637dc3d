"""Python's type words (`List[int]`, `str, optional`) -> JSON Schema."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from switchcraft_training.records import Json

_OPTIONAL: Final = re.compile(r",\s*(?:optional\b|default\b).*$", re.IGNORECASE | re.DOTALL)
_NOTHING: Final = {"type": "null"}
_SET: Final = {"type": "array", "uniqueItems": True}
_PLAIN: Final[Mapping[str, Mapping[str, Json]]] = {
    **{word: {"type": "string"} for word in ("str", "string", "bytes")},
    **{word: {"type": "integer"} for word in ("int", "integer")},
    **{word: {"type": "number"} for word in ("float", "number", "double")},
    **{word: {"type": "boolean"} for word in ("bool", "boolean")},
    **{word: {"type": "object"} for word in ("dict", "object", "mapping")},
    **{word: {"type": "array"} for word in ("list", "array", "tuple", "sequence", "iterable")},
    "set": _SET,
    "frozenset": _SET,
    # A function can only be given as its source.
    "callable": {"type": "string"},
    "any": {},
    "none": _NOTHING,
    "nonetype": _NOTHING,
}


class Parameter(NamedTuple):
    """A parameter's schema, and whether its type word says that it may be left out."""

    schema: Mapping[str, Json]
    is_optional: bool


@lru_cache(maxsize=4096)
def read_type(word: str) -> Parameter:
    """Read a type word; raises ValueError for one that is no type of Python's.

    `Optional[X]` takes null besides, and may be left out, as may what ends in `, optional`.
    """
    bare = _OPTIONAL.sub("", word).strip()
    try:
        node = ast.parse(bare, mode="eval").body
    except SyntaxError as exc:
        raise ValueError(f"{word!r} is no type") from exc
    is_optional = bare != word.strip() or bare.casefold().startswith("optional[")
    return Parameter(_schema(node), is_optional)


def _schema(node: ast.expr) -> Mapping[str, Json]:
    match node:
        case ast.Constant(value=None):
            return _NOTHING
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _union([left, right])
        case ast.Subscript(value=outer, slice=ast.Tuple(elts=inner)):
            return _generic(_word(outer), inner)
        case ast.Subscript(value=outer, slice=inner_one):
            return _generic(_word(outer), [inner_one])
    word = _word(node)
    if word not in _PLAIN:
        raise ValueError(f"{ast.unparse(node)!r} is no type")
    return _PLAIN[word]


def _word(node: ast.expr) -> str:
    """Return the last part of a type's name (`typing.List` -> `list`)."""
    return ast.unparse(node).rpartition(".")[2].casefold()


def _generic(word: str, inner: list[ast.expr]) -> Mapping[str, Json]:
    match word, inner:
        case "union", _:
            return _union(inner)
        case "optional", _:
            return _union([*inner, ast.Constant(None)])
        case "literal", _:
            return {"enum": [ast.literal_eval(node) for node in inner]}
        case "tuple", _:
            return _tuple(inner)
        case _ if word in _PLAIN:
            return {**_PLAIN[word], **_inside(word, inner)}
    raise ValueError(f"{word!r} is no type with others inside")


def _inside(word: str, inner: list[ast.expr]) -> Mapping[str, Json]:
    """Return what the types inside `List[...]`, `Dict[...]` or `Callable[...]` say."""
    kind = _PLAIN[word].get("type")
    if kind == "object" and len(inner) == 2:
        return {"additionalProperties": _schema(inner[1])}
    if kind == "array" and len(inner) == 1:
        return {"items": _schema(inner[0])}
    if word == "callable":
        return {}
    raise ValueError(f"{word}[{', '.join(map(ast.unparse, inner))}] is no type")


def _tuple(inner: list[ast.expr]) -> Mapping[str, Json]:
    """Return the array of a tuple: `Tuple[int, ...]` has any length, others have theirs."""
    if isinstance(inner[-1], ast.Constant) and inner[-1].value is ...:
        return {"type": "array", "items": _union(inner[:-1])}
    return {
        "type": "array",
        "items": _union(inner),
        "minItems": len(inner),
        "maxItems": len(inner),
    }


def _union(nodes: list[ast.expr]) -> Mapping[str, Json]:
    """Return what any of some types takes: one `type` where that says it, else `anyOf`."""
    branches: list[Mapping[str, Json]] = []
    for node in nodes:
        branch = _schema(node)
        if branch not in branches:
            branches.append(branch)
    if len(branches) == 1 or {} in branches:
        return branches[0] if len(branches) == 1 else {}
    if all(branch.keys() == {"type"} for branch in branches):
        return {"type": [branch["type"] for branch in branches]}
    return {"anyOf": branches}
