"""Reader of xLAM Function Calling 60K (Salesforce): single-turn queries, with Python type names.

The layout is that of the dataset's card on the Hub: `xlam_function_calling_60k.json` is one array
of `{"id", "query", "tools", "answers"}`. `tools` and `answers` are strings that contain JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from router_service.apis.conversation import Json
from router_service.checker.toolbox import Call
from switchcraft_training.datasets.conversations import expect, to_name, to_tools
from switchcraft_training.datasets.python_syntax import read_json, read_type
from switchcraft_training.datasets.rows import RowErrorHandler, raise_error, read_array
from switchcraft_training.records import Example, Judged

DATASET = "xlam"
CATEGORY = "function_calling_60k"
FILE = "xlam_function_calling_60k.json"


def read_source(path: Path, on_error: RowErrorHandler = raise_error) -> Iterator[Judged]:
    """Stream the dataset from its file, or from the directory that contains it.

    Rows that cannot be read are passed to `on_error`.
    """
    return read_array(path / FILE if path.is_dir() else path, _read_row, on_error)


def _read_row(row: Mapping[str, Json]) -> Judged:
    functions = []
    for tool in read_json(row["tools"]):
        properties: dict[str, Json] = {}
        required: list[str] = []
        for name, given in tool["parameters"].items():
            schema, is_optional = read_type(given["type"])
            details = {key: given[key] for key in ("description", "default") if key in given}
            properties[name] = {**schema, **details}
            # The card describes a field `required`. Without that field, a parameter is required
            # unless its type says `optional` or it has a default.
            if given.get("required", not is_optional and "default" not in given):
                required.append(name)
        parameters = {"type": "object", "properties": properties, "required": required}
        function = {"name": tool["name"], "description": tool["description"]}
        functions.append({**function, "parameters": parameters})
    tools = to_tools(functions)
    calls = [Call(to_name(a["name"]), a["arguments"]) for a in read_json(row["answers"])]
    query = row["query"]
    if not isinstance(query, str) or not query.strip():
        raise ValueError("the query is not a string, or is blank")
    request = {"messages": [{"role": "user", "content": query}], "tools": tools}
    example = Example(f"{DATASET}_{row['id']}", CATEGORY, request, DATASET)
    return Judged(example, expect(calls, tools))
