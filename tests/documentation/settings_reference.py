"""Text of `docs/switchcraft.schema.json` and `docs/reference/settings.md`.

Both are generated from the pydantic models: the docstring of a field is its description.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from pydantic import BaseModel

from router_service.apis.conversation import Json
from router_service.settings.litellm import (
    Costs,
    File,
    GeneralSection,
    LiteLLMSection,
    ModelEntry,
    ModelInfo,
    Params,
    Reliability,
    RouterSection,
    Section,
)
from router_service.settings.reading import REFERENCE, Overrides
from router_service.settings.values import Frozen

PAGE = "reference/settings.md"
SCHEMA = "switchcraft.schema.json"

_HEAD = """\
# Settings

<!-- Written by `python -m tests.documentation.reference`, from docstrings. -->

Every setting of the configuration file, with its type and its default.
[Configuration](../configuration.md) explains the file, and the settings that most gateways need.
A table has the settings of the section in its title; `N` is the position of an entry, from 0.
"""

DEFAULT = "x-default"
"""Key in a field's schema for the text that describes a default that is not a fixed value."""

_NUMBER = r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?"
_REFERENCE_PATTERN = re.escape(REFERENCE) + ".+"

_SECTIONS: tuple[tuple[str, type[BaseModel], type[BaseModel] | None], ...] = (
    ("model_list.N", ModelEntry, None),
    ("model_list.N.litellm_params", Params, Costs),
    ("model_list.N.model_info", ModelInfo, Costs),
    ("model_list.N.model_info", Costs, None),
    *(
        (name, field.annotation, None)
        for name, field in File.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Frozen)
    ),
    ("router_settings", Reliability, None),
    ("router_settings", RouterSection, Reliability),
    ("litellm_settings", LiteLLMSection, Reliability),
    ("general_settings", GeneralSection, None),
)
"""Each table's path and pydantic model, and the base class whose fields the table leaves out,
because they have a table of their own."""


def json_schema() -> dict[str, Json]:
    """Return the JSON Schema of the file, for editors.

    It accepts what the reader accepts: references to environment variables and quoted numbers in
    place of values, and names without values in LiteLLM's sections.
    """
    schema = File.model_json_schema()
    definitions = schema["$defs"]
    for owner in (schema, *definitions.values()):
        for name, field in owner.get("properties", {}).items():
            owner["properties"][name] = _editable(field)
    lenient = {section.__name__ for section in _descendants(Section)}
    for name, definition in definitions.items():
        if name in lenient:
            _allow_null(definition)
    _allow_null(schema)
    params = definitions[Params.__name__]["properties"]
    params["base_url"] = params["api_base"]
    schema["properties"]["environment_variables"] = {
        "type": ["object", "null"],
        "description": "Environment variables for references in this file, by name.",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Switchcraft configuration",
    }


def _editable(field: Json) -> dict[str, Json]:
    """Return a field's schema that also accepts references and quoted numbers.

    The default of a section is left out, because it repeats the defaults of its fields.
    """
    kept = {name: value for name, value in field.items() if name not in {"title", DEFAULT}}
    if kept.get("default") is None or isinstance(kept["default"], dict):
        kept.pop("default", None)
    if "description" in kept:
        kept["description"] = " ".join(kept["description"].split())
    for container in ("items", "additionalProperties"):
        if isinstance(kept.get(container), dict):
            kept[container] = _editable(kept[container])
    if "anyOf" in kept:
        return _any_of(kept, *map(_editable, kept.pop("anyOf")))
    is_plain_text = kept.get("type") == "string" and "enum" not in kept
    if is_plain_text or kept.get("type") in {None, "array", "object", "null"}:
        return kept
    is_number = kept["type"] in {"integer", "number"}
    pattern = f"^({_REFERENCE_PATTERN}|{_NUMBER})$" if is_number else f"^{_REFERENCE_PATTERN}$"
    return _any_of(kept, kept, {"type": "string", "pattern": pattern})


def _any_of(field: Mapping[str, Json], *options: Json) -> dict[str, Json]:
    """Return a schema that accepts any of the options, with the field's description and default."""
    about = {name: field[name] for name in ("description", "default") if name in field}
    choices: list[Json] = []
    for option in options:
        bare = {name: value for name, value in option.items() if name not in about}
        choices += bare["anyOf"] if bare.keys() == {"anyOf"} else [bare]
    return {"anyOf": [c for i, c in enumerate(choices) if c not in choices[:i]], **about}


def _allow_null(definition: dict[str, Json]) -> None:
    """Change a section's schema to accept null for each setting that is not required."""
    for name, field in definition["properties"].items():
        if name not in definition.get("required", ()):
            definition["properties"][name] = _any_of(field, field, {"type": "null"})


def _descendants(base: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for child in base.__subclasses__():
        yield child
        yield from _descendants(child)


def settings_page() -> str:
    """Return the page of all settings and environment variables."""
    parts: list[str] = []
    for path, model, without in _SECTIONS:
        title = f"`{path}`"
        if model is Costs:
            title = "Prices, in `model_info` or `litellm_params`"
        elif model is Reliability:
            title = "`router_settings` or `litellm_settings`"
        parts.extend(_section(path, model, title, without))
    rows = []
    for name, field in Overrides.model_fields.items():
        rows.append(f"| `SWITCHCRAFT_{name.upper()}` | {_sentence(field.description)} |")
    header = ["## Environment variables", "", "| variable | effect |", "|---|---|"]
    return "\n".join((_HEAD, *parts, *header, *rows, ""))


def _section(
    path: str, model: type[BaseModel], title: str, without: type[BaseModel] | None = None
) -> Iterator[str]:
    """Yield the lines of a model's table, and then of the tables of its inner sections.

    Fields of `without` are left out.
    """
    rows: list[str] = []
    inner: list[str] = []
    properties = model.model_json_schema()["properties"]
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            if issubclass(annotation, Frozen):
                inner += _section(f"{path}.{name}", annotation, f"`{path}.{name}`")
        elif without is None or name not in without.model_fields:
            shown = properties[name]
            default = shown.get(DEFAULT)
            if default is None and not field.is_required():
                default = shown.get("default")
                text = default if isinstance(default, str) else json.dumps(default)
                default = (
                    f"`{text.removesuffix('.0')}`" if default not in (None, "", {}, []) else ""
                )
            elif default is None:
                default = "required"
            cells = (f"`{name}`", _type(shown), default, _sentence(field.description))
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    intro = (model.__doc__ or "").strip()
    yield from (f"## {title}", "", re.sub(r"\n +", "\n", intro), "")
    if rows:
        yield from ("| setting | type | default | description |", "|---|---|---|---|", *rows, "")
    yield from inner


def _sentence(text: str | None) -> str:
    if not text:
        raise ValueError("A setting has no description; add a docstring to its field")
    return " ".join(text.split())


def _type(schema: Mapping[str, Json]) -> str:
    """Return a description of a field's type and bounds, such as `integer ≥ 1`."""
    match schema:
        case {"anyOf": options}:
            words = [_type(option) for option in options if option.get("type") != "null"]
        case {"enum": values}:
            words = [f"`{value}`" for value in values]
        case {"const": value}:
            words = [f"`{value}`"]
        case {"$ref": _}:
            words = ["mapping"]
        case {"type": "array", "items": items}:
            words = [f"list of {_type(items)}"]
        case {"type": "object", "additionalProperties": True}:
            words = ["mapping"]
        case {"type": "object", "additionalProperties": values}:
            words = [f"mapping to {_type(values)}"]
        case {"type": "string"}:
            known = {"path": "path", "password": "secret"}
            words = [known.get(schema.get("format", ""), "text")]
        case _:
            signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤"}
            bounds = [f"{sign} {schema[name]:g}" for name, sign in signs.items() if name in schema]
            words = [f"{schema['type']} {', '.join(bounds)}".strip()]
    return " or ".join(words)


def schema_text() -> str:
    """Return the contents of the schema file."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"
