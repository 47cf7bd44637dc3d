"""A small invented labelling run over several datasets, for experiments in the paper's protocol."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from router_service.checker.toolbox import ExpectedCall
from switchcraft_training.datasets.rows import write_rows
from switchcraft_training.records import Example, Expected, Judged

DATASETS = ("bfcl-v3", "confetti", "glaive", "hermes", "xlam")
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def write_labelled(
    folder: Path, arms: Sequence[str], *, rows: int = 10, attempts: int = 1, long_phrases: int = 0
) -> None:
    """Write `rows` queries of each dataset to `rows.jsonl`, and the answers of arms next to it.

    The last arm answers a third of the queries wrongly, or in one of several attempts. Every
    fifth query of the first dataset repeats a phrase in an earlier turn `long_phrases` times.
    """
    folder.mkdir(parents=True, exist_ok=True)
    judged, answers = [], []
    for dataset in DATASETS:
        for number in range(rows):
            city = f"{dataset.title()}ville {number}"
            phrases = long_phrases if dataset == DATASETS[0] and number % 5 == 0 else 0
            messages = [
                {"role": "user", "content": f"Note {number}: " + "sun and rain " * phrases},
                {"role": "assistant", "content": "Noted."},
                {"role": "user", "content": f"What is the weather in {city}?"},
            ]
            name = f"{dataset}-{number}"
            request = {"messages": messages, "tools": [WEATHER]}
            expected = Expected((ExpectedCall("weather", {"city": (city,)}),))
            judged.append(Judged(Example(name, "simple", request, dataset), expected))
            for arm in arms:
                for attempt in range(attempts):
                    is_wrong = arm == arms[-1] and number % 3 == attempt
                    called = {"city": "Nowhere" if is_wrong else city}
                    answers.append(
                        {
                            "example_id": name,
                            "arm": arm,
                            "attempt": attempt,
                            "calls": [{"name": "weather", "arguments": called}],
                            "problem": None,
                            "input_tokens": 90,
                            "output_tokens": 20,
                        }
                    )
    write_rows(judged, folder / "rows.jsonl")
    lines = "".join(json.dumps(row) + "\n" for row in answers)
    (folder / "answers.jsonl").write_text(lines)
