"""A small experiment that several tests share."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from router_service.artifact import (
    LEARNED,
    LEARNED_TOOLS,
    SHIPPED,
    Artifact,
    Provenance,
    save_manifest,
)
from router_service.predictor.model import sigmoid
from switchcraft_training.data.learned import LearnedQueries, TrainingOverlap
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.evaluation.evaluate import Entrant, Experiment
from switchcraft_training.records import Example

QUERIES = 60
ARMS = ("small<1>", "large")
COSTS_USD = (1e-4, 1e-2)
PROVENANCE = Provenance(
    created="2030-01-01T00:00:00+00:00",
    commit="c0ffee",
    config="name: made-up\n",
    seed=1,
    data_sha256="00",
    versions={"torch": "2"},
)
NEW = TrainingOverlap(QUERIES, 0, 0.0)


def example(number: int, *, tools: int = 1, turns: int = 1, category: str = "simple") -> Example:
    """Return a query of `turns` messages with two words each, and some tools."""
    offered = [{"type": "function", "function": {"name": f"f{i}"}} for i in range(tools)]
    messages = [{"role": "user", "content": "do it"}] * turns
    return Example(str(number), category, {"messages": messages, "tools": offered}, "d")


def answers(seed: int = 0) -> tuple[Floats, Floats]:
    """Return invented correctness and probabilities of two arms, (queries, arms) each."""
    rng = np.random.default_rng(seed)
    probabilities = np.clip(rng.normal([0.6, 0.85], 0.2, (QUERIES, 2)), 0.01, 0.99)
    return (rng.random((QUERIES, 2)) < probabilities).astype(float), probabilities


def table_of(correct: Floats, cost_usd: Floats, arms: tuple[str, ...] = ("a", "b")) -> Table:
    """Return a table of queries without other properties."""
    return Table(tuple(example(i) for i in range(len(correct))), arms, correct, cost_usd)


def minimal_experiment() -> Experiment:
    """Return an experiment without optional inputs."""
    correct, probabilities = answers()
    examples = tuple(
        example(i, tools=1 + i % 4, category=("simple", "parallel")[i % 2]) for i in range(QUERIES)
    )
    costs_usd = np.full((QUERIES, 2), COSTS_USD)
    table = Table(examples, ARMS, correct, costs_usd)
    return Experiment(table, probabilities, COSTS_USD, {"default": "theta=0.5"})


def complete_experiment() -> Experiment:
    """Return the same experiment with every optional input."""
    base = minimal_experiment()
    _, noise = answers(7)
    counts = np.full((QUERIES, 2), 100.0)
    other = Entrant("baseline", "noise", noise.argmax(1), noise)
    table = replace(
        base.table,
        input_tokens=counts,
        output_tokens=counts * [1, 3],
        seconds=counts / 10,
        attempts=np.full((QUERIES, 2), 2.0),
        folds=np.arange(QUERIES) % 3,
    )
    return Experiment(
        table,
        base.probabilities,
        base.expected_costs_usd,
        base.policies,
        entrants=(other,),
        variants=(Entrant("router", "without forest", noise.argmin(1)),),
    )


def simulated_experiment(queries: int = 300, skill: float = 1.0, seed: int = 0) -> Experiment:
    """Return unrelated queries of three arms, and a router whose predictions have some skill.

    With `skill` 1 it predicts the true probabilities, and with 0 its predictions are noise.
    """
    arms, costs_usd = ("cheap", "middle", "dear"), (1e-4, 1e-3, 1e-2)
    rng = np.random.default_rng(seed)
    true = sigmoid(rng.normal([0.5, 1.0, 1.5], 2.0, (queries, 3)))
    probabilities = skill * true + (1 - skill) * rng.random(true.shape)
    words = ["".join(map(chr, rng.integers(97, 123, 12))) for _ in range(queries)]
    requests = [{"messages": [{"role": "user", "content": w}], "tools": [{}]} for w in words]
    examples = tuple(Example(str(i), "c", request, "d") for i, request in enumerate(requests))
    correct = (rng.random(true.shape) < true).astype(float)
    table = Table(examples, arms, correct, np.tile(costs_usd, (queries, 1)))
    return Experiment(table, probabilities, costs_usd, {"default": "drift=0.1"})


def copy_shipped(directory: Path, learned: LearnedQueries | None) -> Artifact:
    """Copy the shipped artifact with other queries that it has learned from, or without any."""
    shutil.copytree(SHIPPED, directory)
    for name in (LEARNED, LEARNED_TOOLS):
        (directory / name).unlink(missing_ok=True)
    if learned is not None:
        learned.write(directory)
    save_manifest(directory, Artifact.load(SHIPPED).manifest)
    return Artifact.load(directory)
