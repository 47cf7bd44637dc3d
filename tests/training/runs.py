"""Labelling runs, as `switchcraft-train label` exports them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from router_service.apis.conversation import Json
from switchcraft_training.datasets.rows import write_rows
from switchcraft_training.records import Judged


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
    (folder / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answers))
    return folder
