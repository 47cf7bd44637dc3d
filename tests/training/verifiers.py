"""Invented queries with three arms' answers, from which a verifier learns in seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import sklearn.ensemble  # noqa: F401 - loads the library whose threads are limited
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from router_service.core.calls.toolbox import Call
from switchcraft_training.data.table import Table
from switchcraft_training.models.verifier import FitEffort, VerifierData, read_candidates
from switchcraft_training.records import Example
from tests.candidates import request

ARMS = ("cheap", "middle", "dear")
COSTS_USD = (1e-4, 4e-4, 4e-3)
SECONDS = (1.0, 2.0, 5.0)
CITIES = "Oslo Lima Bern Rome Kyiv Riga Baku Doha Cairo Delhi".split()
LITTLE = FitEffort(rounds=25, sets=2, prices=4, transitions=250)
"""Enough to learn from a few hundred queries, in about a second."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Fit trees in one thread; for so few rows, several threads mostly wait for each other."""
    with threadpool_limits(1):
        yield


def invented_table(queries: int, seed: int = 0) -> Table:
    """Return queries of which dearer arms answer more correctly."""
    rng = np.random.default_rng(seed)
    skill = _skill(queries, rng)
    shape = skill.shape
    examples = tuple(
        Example(str(i), ("simple", "hard")[i % 2], request(_text(i)), "d") for i in range(queries)
    )
    return Table(
        examples,
        ARMS,
        correct=(rng.random(shape) < skill).astype(np.float64),
        cost_usd=np.tile(COSTS_USD, (queries, 1)),
        seconds=np.tile(SECONDS, (queries, 1)),
        folds=np.arange(queries) % 2,
    )


def invented_data(table: Table, seed: int = 0) -> VerifierData:
    """Return these queries with answers: right ones agree, and each wrong one is different.

    The router knows the arms' probabilities.
    """
    queries = len(table)
    made: list[dict[int, tuple[Call, ...] | None]] = [
        {
            arm: (Call("forecast", {"city": _city(i) if is_right else f"{CITIES[arm]} {arm}"}),)
            for arm, is_right in enumerate(table.correct[i])
        }
        for i in range(queries)
    ]
    return VerifierData(
        features=np.zeros((queries, 2)),
        probabilities=_skill(queries, np.random.default_rng(seed)),
        candidates=read_candidates(table.examples, made),
        correct=table.correct,
        costs_usd=np.array(COSTS_USD),
        groups=np.arange(queries),
    )


def _skill(queries: int, rng: np.random.Generator) -> NDArray[np.float64]:
    low, high = np.array([(0.3, 0.9), (0.4, 0.95), (0.7, 0.97)]).T
    return rng.uniform(low, high, (queries, 3))


def _city(number: int) -> str:
    return f"{CITIES[number % len(CITIES)]} {number}"


def _text(number: int) -> str:
    return f"Forecast for {_city(number)}?"
