"""xLAM Function Calling 60K (Salesforce): single-turn questions with types in Python's words.

The layout is that of the dataset's card on the Hub: `xlam_function_calling_60k.json` is one array
of `{"id", "query", "tools", "answers"}`, the last two JSON in a string.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from switchcraft_training.datasets.lines import OnFault, read_array, refuse
from switchcraft_training.datasets.literals import read_json
from switchcraft_training.datasets.python_types import read_type
from switchcraft_training.datasets.tools import expect, to_name, to_tools
from switchcraft_training.records import Call, Example, Json, Judged

DATASET = "xlam"
CATEGORY = "function_calling_60k"
FILE = "xlam_function_calling_60k.json"


def read_source(path: Path, on_fault: OnFault = refuse) -> Iterator[Judged]:
    """Stream the file, or the one of its name in a folder; rows that do not parse to `on_fault`."""
    return read_array(path / FILE if path.is_dir() else path, _read_row, on_fault)


def _read_row(row: Mapping[str, Json]) -> Judged:
    tools = to_tools(map(_function, read_json(row["tools"])))
    calls = [Call(to_name(a["name"]), a["arguments"]) for a in read_json(row["answers"])]
    request = {"messages": [{"role": "user", "content": _text(row["query"])}], "tools": tools}
    return Judged(
        Example(f"{DATASET}_{row['id']}", CATEGORY, request, DATASET), expect(calls, tools)
    )


def _text(query: Json) -> str:
    if not isinstance(query, str) or not query.strip():
        raise ValueError("the query is no text")
    return query


def _function(tool: Mapping[str, Json]) -> dict[str, Json]:
    """Return a tool with its parameters as JSON Schema.

    A parameter is required where its type does not say `optional` and it has no default, or where
    its own `required`, which the card describes, says so.
    """
    read = {name: (given, read_type(given["type"])) for name, given in tool["parameters"].items()}
    properties = {
        name: {
            **parameter.schema,
            **{k: given[k] for k in ("description", "default") if k in given},
        }
        for name, (given, parameter) in read.items()
    }
    required = [
        name
        for name, (given, parameter) in read.items()
        if given.get("required", not parameter.is_optional and "default" not in given)
    ]
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"name": tool["name"], "description": tool["description"], "parameters": parameters}
