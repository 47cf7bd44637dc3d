"""Disagreements of two checkers as lines for a person to read."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import orjson

from switchcraft_training.comparison.compare import Disagreement
from switchcraft_training.datasets.rows import encode
from switchcraft_training.records import Json


def write(disagreements: Iterable[Disagreement], path: Path) -> None:
    """Write one JSON object a line."""
    with path.open("wb") as file:
        for found in disagreements:
            file.write(orjson.dumps(_to_json(found), default=str) + b"\n")


def sample(disagreements: Sequence[Disagreement], size: int, seed: int) -> list[Disagreement]:
    """Draw disagreements at random, the classes (dataset, kind, category) taking turns.

    Of several models that gave the same answer to one question, one may be drawn.
    """
    rng = random.Random(seed)  # noqa: S311 - a sample, not a secret
    classes: dict[tuple[str, ...], list[Disagreement]] = defaultdict(list)
    for found in _distinct(rng.sample(disagreements, len(disagreements))):
        classes[found.dataset, found.kind, found.judged.example.category].append(found)
    drawn: list[Disagreement] = []
    while len(drawn) < size and any(classes.values()):
        drawn.extend(members.pop() for members in classes.values() if members)
    return drawn[:size]


def _distinct(disagreements: Iterable[Disagreement]) -> Iterable[Disagreement]:
    by_answer = {(d.judged.example.id, repr(d.answer.calls)): d for d in disagreements}
    return by_answer.values()


def _to_json(found: Disagreement) -> Json:
    return {
        "kind": found.kind,
        "dataset": found.dataset,
        "category": found.judged.example.category,
        "id": found.judged.example.id,
        "model": found.arm,
        "query": found.judged.example.query,
        "expected": orjson.loads(encode(found.judged))["expected"],
        "calls": found.answer.calls,
        "problem": found.answer.problem,
        "theirs": found.their_reason,
        "ours": [asdict(error) for error in found.ours.errors],
        "tools": found.judged.example.request["tools"],
    }
