"""Positions of models among recorded models, and the queries that say most about them."""

from __future__ import annotations

import numpy as np
import pytest

from router_service.predictor.model import sigmoid
from switchcraft_training.data.table import Floats
from switchcraft_training.onboarding.positions import (
    RecordedModels,
    ask_recorded,
)

QUERIES, MODELS = 300, 24


@pytest.fixture(scope="module")
def world() -> tuple[Floats, Floats]:
    """Return the probabilities of correct answers (queries, models + 1), and drawn answers."""
    rng = np.random.default_rng(3)
    skills = rng.normal(size=(MODELS + 1, 2))
    kinds = rng.normal(size=(QUERIES, 2))
    p = sigmoid(2 * kinds @ skills.T + rng.normal(size=(QUERIES, 1)) + 1)
    return p, (rng.random(p.shape) < p).astype(np.float64)


@pytest.fixture(scope="module")
def models(world: tuple[Floats, Floats]) -> RecordedModels:
    """Fit the first models' answers; the last model is new."""
    return RecordedModels.fit(world[1][:, :-1])


def test_few_answers_predict_all_queries(
    world: tuple[Floats, Floats], models: RecordedModels
) -> None:
    """60 answers give probabilities near the true ones, and an error that covers the truth."""
    p, answers = world
    asked = ask_recorded(models, np.arange(QUERIES), answers[:, -1], 60, seed=1)
    assert len(np.unique(asked.rows)) == 60
    position = models.place(asked)
    assert np.corrcoef(models.probabilities(position), p[:, -1])[0, 1] > 0.85
    accuracy, stderr = models.accuracy(position)
    assert abs(accuracy - p[:, -1].mean()) < 3 * stderr < 0.2
