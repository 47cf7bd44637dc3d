"""Invented queries with three arms' answers, from which a verifier learns in seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import sklearn.ensemble  # noqa: F401 - loads the library whose threads are limited
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from router_service.checker.toolbox import Call
from router_service.measurement.simulation import JudgedAnswers, Simulation
from router_service.verifier.graphs import GAIN_FEATURES
from switchcraft_training.data.table import Table
from switchcraft_training.models.corruptions import corrupt_answers
from switchcraft_training.models.verifier import (
    FitEffort,
    TrainedVerifier,
    VerifierData,
    fit_verifier,
    read_candidates,
)
from switchcraft_training.records import Example
from switchcraft_training.verification import (
    Evidence,
    JudgedCorruption,
    VerifierStudy,
    judge_answers,
    judge_corrupted,
)
from tests.candidates import request

ARMS = ("cheap", "middle", "dear")
COSTS_USD = (1e-4, 4e-4, 4e-3)
PRICES_USD = (1e-4, 2e-3, 1e-2, 5e-2)
SECONDS = (1.0, 2.0, 5.0)
CITIES = "Oslo Lima Bern Rome Kyiv Riga Baku Doha".split()
OTHERS = ("Pisa", "Bari", "Graz")
"""The wrong answers of the arms. Each query mentions them, so that only agreement reveals them."""

LITTLE = FitEffort(rounds=25, gain_rounds=25, sets=2, prices=4, transitions=250)
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
            arm: (Call("forecast", {"city": _city(i) if is_right else OTHERS[arm]}),)
            for arm, is_right in enumerate(table.correct[i])
        }
        for i in range(queries)
    ]
    candidates = read_candidates(table.examples, made)
    return VerifierData(
        features=np.zeros((queries, 2)),
        probabilities=_skill(queries, np.random.default_rng(seed)),
        candidates=candidates,
        correct=table.correct,
        costs_usd=np.array(COSTS_USD),
        groups=np.arange(queries),
        corrupted=corrupt_answers(
            table.examples,
            made,
            candidates,
            lambda row, column: bool(table.correct[row, column]),
            seed,
        ),
    )


def invented_study(queries: int = 240) -> VerifierStudy:
    """Return a study of these queries in two folds."""
    table = invented_table(queries)
    data = invented_data(table)
    tests, parts = [], []
    corrupted: list[JudgedCorruption] = []
    for fold in range(2):
        tests.append(np.flatnonzero(table.folds == fold))
        with one_thread():
            fitted = fit_verifier(data.take(np.flatnonzero(table.folds != fold)), 0, LITTLE)
            parts.append(judgements(fitted, data.take(tests[-1])))
            with TemporaryDirectory() as folder:
                spec = fitted.export(Path(folder), 1e-3)
                corrupted += judge_corrupted(Path(folder), spec, data.take(tests[-1]))
    judged = JudgedAnswers.join(parts, tests)
    costs_usd = np.tile(COSTS_USD, (queries, 1))
    evidence = Evidence.of(data.candidates, data.probabilities, costs_usd, judged, corrupted)
    simulation = Simulation(judged, GAIN_FEATURES)
    by_price = {price: simulation.answer(costs_usd[:2], price) for price in PRICES_USD}
    return VerifierStudy(table, judged, by_price, fitted, PRICES_USD[1], 0.16, evidence)


def judgements(fitted: TrainedVerifier, data: VerifierData) -> JudgedAnswers:
    """Return a verifier's judgements of these queries."""
    with TemporaryDirectory() as folder:
        return judge_answers(Path(folder), fitted.export(Path(folder), 1e-3), data)


def _skill(queries: int, rng: np.random.Generator) -> NDArray[np.float64]:
    low, high = np.array([(0.3, 0.9), (0.4, 0.95), (0.7, 0.97)]).T
    return rng.uniform(low, high, (queries, 3))


def _city(number: int) -> str:
    return CITIES[number % len(CITIES)]


def _text(number: int) -> str:
    return (
        f"Trip {number}: I liked {', '.join(OTHERS)} and {_city(number)}. The last one: forecast?"
    )
