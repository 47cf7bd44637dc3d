"""TypeScript declarations of the page's JSON API, from the models that its routes return.

    python -m tests.page.declarations

writes `router_service/ui/web/types.d.ts`, which the page's JavaScript imports in its JSDoc.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from router_service.access.specs import CreatedKey, KeyPage, Rotation, TeamPage
from router_service.ui import pages, requests, traffic
from router_service.ui.verified_steps import CandidateView

FILE = pages.FOLDER / "types.d.ts"
HEAD = "// Written by `python -m tests.page.declarations` from the models of the page's JSON API.\n"

WITHOUT_DEFAULTS = {CandidateView.__name__}
"""Models whose JSON may leave out fields that have a default, because `ui/verified_steps.py` drops
null values."""

OTHERS = (CandidateView, KeyPage, TeamPage, CreatedKey, Rotation)
"""What the page sends or reads beside its own JSON API: events, and the admin API."""

LINE_WIDTH = 100
COMMENT_WIDTH = LINE_WIDTH - len("   * ")

Schema = Mapping[str, Any]


def declarations() -> str:
    """Return the declarations of everything that the page's routes return as JSON."""
    routes = (*pages.routes.routes, *traffic.routes.routes, *requests.routes.routes)
    models = [route.response_model for route in routes if isinstance(route, APIRoute)]
    _, schemas = TypeAdapter.json_schemas(
        (number, "serialization", TypeAdapter(model))
        for number, model in enumerate([*models, *OTHERS])
        if model is not None
    )
    parts = (declaration(name, schema) for name, schema in sorted(schemas["$defs"].items()))
    return "\n".join([HEAD, *parts])


def declaration(name: str, schema: Schema) -> str:
    """Return the declaration of a named schema, after its description."""
    comment = "".join(f"{line}\n" for line in comment_lines(schema))
    if "properties" not in schema:
        line = f"export type {name} = {type_of(schema)};"
        return f"{comment}{textwrap.fill(line, LINE_WIDTH, subsequent_indent='  ')}\n"
    required = schema.get("required", ()) if name in WITHOUT_DEFAULTS else schema["properties"]
    lines = []
    for field, value in schema["properties"].items():
        lines += [f"  {line}" for line in comment_lines(value)]
        lines.append(f"  {field}{'' if field in required else '?'}: {type_of(value)};")
    return "\n".join([f"{comment}export interface {name} {{", *lines, "}\n"])


def comment_lines(schema: Schema) -> Iterator[str]:
    """Yield the lines of a schema's description as a comment."""
    text = schema.get("description", "")
    paragraphs = [textwrap.wrap(part, COMMENT_WIDTH) for part in text.split("\n\n") if part]
    lines = [line for part in paragraphs for line in ("", *part)][1:]
    match lines:
        case []:
            return
        case [line] if len(line) <= COMMENT_WIDTH - len("/** ") - len(" */"):
            yield f"/** {line} */"
        case _:
            yield "/**"
            yield from (f" * {line}".rstrip() for line in lines)
            yield " */"


def type_of(schema: Schema) -> str:
    """Return the type of a schema, of the kinds that pydantic writes."""
    match schema:
        case {"$ref": str(reference)}:
            text = reference.rpartition("/")[2]
        case {"const": value}:
            text = json.dumps(value)
        case {"enum": values}:
            text = " | ".join(map(json.dumps, values))
        case {"anyOf": options}:
            text = " | ".join(map(type_of, options))
        case {"type": "array", "prefixItems": items}:
            text = f"[{', '.join(map(type_of, items))}]"
        case {"type": "array", "items": item}:
            text = f"Array<{type_of(item)}>"
        case {"type": "object", "additionalProperties": values}:
            text = f"Record<string, {'unknown' if values is True else type_of(values)}>"
        case {"type": "integer"}:
            text = "number"
        case {"type": "string" | "number" | "boolean" | "null" as name}:
            text = name
        case _:
            raise ValueError(f"no type for the schema {schema}")
    return text


if __name__ == "__main__":
    FILE.write_text(declarations())
