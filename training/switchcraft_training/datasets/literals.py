"""JSON and Python literals as datasets hold them inside strings."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from typing import Final

import orjson

from switchcraft_training.records import Json

_DECODER: Final = json.JSONDecoder(strict=False)
"""Takes line breaks inside strings, which code in arguments is published with."""

_JSON_WORDS: Final = {"true": True, "false": False, "null": None}


def read_json(text: str) -> Json:
    """Return the one JSON value of a text; raises ValueError where it is not one."""
    return _json_only(_DECODER.decode(text))


def read_literal(text: str) -> Json:
    """Return the JSON value or Python literal of a text, or of a mixture of the two.

    Raises ValueError where it is neither, or has no equal in JSON.
    """
    try:
        return read_json(text)
    except ValueError:
        return _read_python(text)


def read_objects(text: str) -> Iterator[Json]:
    """Yield the JSON values that stand one after the other; raises ValueError for anything else."""
    position = 0
    while position < len(text):
        value, position = _DECODER.raw_decode(text, position)
        yield _json_only(value)
        position += len(text[position:]) - len(text[position:].lstrip(" \r\n\t,"))


def _read_python(text: str) -> Json:
    try:
        tree = ast.parse(text.strip(), mode="eval")
        value = ast.literal_eval(_JsonWords().visit(tree))
    except (SyntaxError, ValueError, TypeError, MemoryError) as exc:
        raise ValueError(f"neither JSON nor a Python literal: {text[:80]!r}") from exc
    return _json_only(value)


def _json_only(value: object) -> Json:
    """Return a value as JSON has it: integers of 64 bits, keys that are strings, lists."""
    try:
        return orjson.loads(orjson.dumps(value))
    except orjson.JSONEncodeError as exc:
        raise ValueError(f"no JSON value: {exc}") from exc


class _JsonWords(ast.NodeTransformer):
    """Reads `true`, `false` and `null` among Python's literals."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_JSON_WORDS[node.id]) if node.id in _JSON_WORDS else node
