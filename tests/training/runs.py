"""Labelling runs, as `switchcraft-train label` exports them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from router_service.apis.conversation import Json
from router_service.checker.toolbox import ExpectedCall
from switchcraft_training.datasets.rows import write_rows
from switchcraft_training.records import Example, Expected, Judged


def function_tool(name: str, properties: Json, description: str = "") -> dict[str, Json]:
    """Return a function tool with these parameters, all of which are required."""
    parameters = {"type": "object", "properties": properties, "required": [*properties]}
    described = {"description": description} if description else {}
    return {"type": "function", "function": {"name": name, **described, "parameters": parameters}}


STRING = {"type": "string"}
WEATHER = function_tool("weather", {"city": STRING})


def write_lines(path: Path, *rows: Json) -> Path:
    """Write rows as JSON lines, compressed if the name ends in `.gz`; return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def answer_line(
    query: str, arm: str, *calls: tuple[str, Mapping[str, Json]], **facts: Json
) -> dict[str, Json]:
    """Return an answer that makes these calls with 90 + 20 tokens, with these facts changed."""
    made = [{"name": name, "arguments": arguments} for name, arguments in calls]
    counts = {"input_tokens": 90, "output_tokens": 20, "attempt": 0, "problem": None}
    return {"example_id": query, "arm": arm, "calls": made, **counts, **facts}


def write_run(folder: Path, rows: Iterable[Judged], answers: Iterable[Mapping[str, Json]]) -> Path:
    """Write the queries and the answers of a labelling run; return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(rows, folder / "rows.jsonl")
    write_lines(folder / "answers.jsonl", *answers)
    return folder


def write_weather_run(
    folder: Path, arms: Sequence[str], *, queries: int = 50, long_phrases: int = 0
) -> None:
    """Write a labelling run of questions about the weather, of which the last arm fails a third.

    Every fifth query repeats a phrase in an earlier turn `long_phrases` times.
    """
    judged, answers = [], []
    for number in range(queries):
        city = f"{chr(65 + number % 26) * 3}{number:b}ville"
        phrases = long_phrases if number % 5 == 0 else 0
        messages = [
            {"role": "user", "content": f"Note {number}: " + "sun and rain " * phrases},
            {"role": "assistant", "content": "Noted."},
            {"role": "user", "content": f"What is the weather in {city}?"},
        ]
        request = {"messages": messages, "tools": [WEATHER]}
        expected = Expected((ExpectedCall("weather", {"city": (city,)}),))
        judged.append(Judged(Example(f"q{number}", "simple", request, "d"), expected))
        for arm in arms:
            is_wrong = arm == arms[-1] and number % 3 == 0
            called = {"city": "Nowhere" if is_wrong else city}
            answers.append(answer_line(f"q{number}", arm, ("weather", called)))
    write_run(folder, judged, answers)
