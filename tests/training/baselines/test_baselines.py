"""Baselines on tables with a known best routing."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsRegressor

from router_service.measurement.statistics import mean_auc
from switchcraft_training.baselines.base import held_out
from switchcraft_training.baselines.predictors import Neighbours
from switchcraft_training.baselines.registry import baselines
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.evaluation.evaluate import Entrant
from tests.training.baselines.cases import (
    ARMS,
    SPLIT,
    CountingEmbedder,
    learnable,
    views,
    without_labels,
)

pytestmark = pytest.mark.slow

PROFILES = dict(zip(ARMS, ("river stone", "violin market"), strict=True))
ALL = {each.name: each for each in baselines(views(), CountingEmbedder(), PROFILES)}
PREDICTING = (
    "TF-IDF + LR",
    "TF-IDF + LR, truncated input",
    "kNN",
    "similarity",
    "MLP",
    "MLP, truncated input",
    "MLP, cost-weighted loss",
    "matrix factorization",
    "MIRT",
)


TESTED = learnable().take(SPLIT.test)


@cache
def learnable_result(name: str, rule: str = "theta=0.5") -> Entrant:
    """Return a baseline's results on the learnable table; it is fitted once for all tests."""
    return held_out(ALL[name], learnable(), [SPLIT], rule)


@pytest.mark.parametrize("name", PREDICTING)
def test_predictor_learns_for_which_queries_the_small_arm_is_correct(name: str) -> None:
    """On held-out queries, each predictor recognizes the small arm's queries and routes by it."""
    result = learnable_result(name, "drift=0.1")
    assert result.probabilities is not None
    assert mean_auc(TESTED.correct[:, :1], result.probabilities[:, :1]) > 0.95
    assert ((result.probabilities >= 0) & (result.probabilities <= 1)).all()
    assert TESTED.pick(result.choices)[0].mean() > TESTED.correct.mean() + 0.1


@pytest.mark.parametrize("name", ALL)
def test_no_baseline_reads_test_labels(name: str) -> None:
    """Other labels of the test queries change no choice."""
    table = learnable()
    test = list(SPLIT.test)
    flipped = table.correct.copy()
    flipped[test] = 1 - flipped[test]
    other = Table(table.examples, table.arms, flipped, table.cost_usd)
    first, second = learnable_result(name), held_out(ALL[name], other, [SPLIT])
    assert first.choices.tolist() == second.choices.tolist()


@pytest.mark.parametrize("name", PREDICTING)
def test_missing_label_is_ignored(name: str) -> None:
    """Without all but ten of its wrong answers, the small arm gets a higher probability.

    If missing labels counted as wrong, the probability would not change. If they counted as
    correct, it would be higher still.
    """
    table = learnable()
    hard = [r for r in (*SPLIT.train, *SPLIT.validation) if table.correct[r, 0] == 0]
    unknown = without_labels(table, hard[10:], arm=0)
    correct = np.where(np.isnan(unknown.correct), 1.0, unknown.correct)
    as_correct = Table(table.examples, ARMS, correct, table.cost_usd)
    is_hard = TESTED.correct[:, 0] == 0
    means = []
    for result in (
        learnable_result(name),
        held_out(ALL[name], unknown, [SPLIT]),
        held_out(ALL[name], as_correct, [SPLIT]),
    ):
        assert result.probabilities is not None
        means.append(result.probabilities[is_hard, 0].mean())
    assert means == sorted(set(means))


def clustered(rows: int, seed: int) -> Floats:
    """Return vectors of length 1 around 40 centers."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(40, 16))
    noise = np.random.default_rng(seed)
    found = centers[noise.integers(40, size=rows)] + noise.normal(0, 0.3, (rows, 16))
    scaled: Floats = found / np.linalg.norm(found, axis=1, keepdims=True)
    return scaled


def test_neighbours_are_those_of_an_exact_search() -> None:
    """The mean label equals scikit-learn's, also of an arm that was asked only some queries."""
    rng = np.random.default_rng(1)
    known, unseen = clustered(300, 1), clustered(700, 2)
    labels = rng.random((300, 3))
    labels[:200, 2] = np.nan
    found = Neighbours(known, labels).predict(unseen, (5, 40))
    for k, predicted in zip((5, 40), found, strict=True):
        for arm in range(3):
            asked = ~np.isnan(labels[:, arm])
            exact = KNeighborsRegressor(k, metric="cosine").fit(known[asked], labels[asked, arm])
            np.testing.assert_allclose(predicted[:, arm], exact.predict(unseen), atol=1e-9)
