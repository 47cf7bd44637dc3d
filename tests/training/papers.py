"""A small invented labelling run over several datasets, for experiments in the paper's protocol."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from router_service.checker.toolbox import ExpectedCall
from switchcraft_training.records import Example, Expected, Judged
from tests.training.runs import answer_line, write_run

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
                    answers.append(answer_line(name, arm, ("weather", called), attempt=attempt))
    write_run(folder, judged, answers)
