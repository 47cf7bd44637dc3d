"""Positions of models among recorded models, and judgements of an arm that joined."""

from __future__ import annotations

import numpy as np
import pytest

from router_service.artifact import SHIPPED, Artifact
from router_service.measurement.held_out import HELD_OUT, HeldOut, read_judgements
from router_service.measurement.simulation import Simulation, candidate_sets
from router_service.predictor.model import sigmoid
from switchcraft_training.data.table import Floats
from switchcraft_training.onboarding.judgements import (
    draw_labels,
    join_judgements,
    rank_stand_ins,
)
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


def test_drawn_labels_have_the_mean_of_the_probabilities() -> None:
    """Certain labels stay, and the share of the others is their mean probability."""
    p = np.concatenate([np.zeros(50), np.ones(50), np.random.default_rng(0).random(400)])
    labels = draw_labels(p, seed=1)
    assert {*labels.tolist()} == {0.0, 1.0}
    assert labels[:50].sum() == 0
    assert labels[50:100].sum() == 50
    assert labels.sum() == pytest.approx(p.sum(), abs=1)


def test_a_copy_of_an_arm_is_judged_like_it_and_adds_nothing() -> None:
    """An arm that answers as the best one adds no point, and another set's judgements stay.

    Its stand-in is that arm in every query, except beside it.
    """
    manifest = Artifact.load(SHIPPED).manifest
    held_out = HeldOut.read(SHIPPED / HELD_OUT)
    judged = read_judgements(SHIPPED / HELD_OUT)
    assert judged is not None
    assert manifest.verifier is not None
    best = int(held_out.correct.mean(axis=0).argmax())
    stand_ins = rank_stand_ins(held_out.correct[:, best], held_out.correct)
    assert {*stand_ins[:, 0].tolist()} == {best}
    reliability = float(judged.reliabilities[:, best].mean())
    probabilities = judged.probabilities[:, best].astype(np.float64)
    joined = join_judgements(judged, stand_ins, probabilities, reliability)
    rows = np.arange(len(judged.folds))
    for each in ((0,), (1, 3), (0, 2, 5)):
        asked = np.tile(each, (len(rows), 1))
        np.testing.assert_array_equal(joined.judge(rows, asked), judged.judge(rows, asked))
    alone = np.full((len(rows), 1), best)
    np.testing.assert_array_equal(
        joined.judge(rows, np.full_like(alone, judged.arms)), judged.judge(rows, alone)
    )
    assert joined.p_correct.shape[1] == sum(map(len, candidate_sets(judged.arms + 1)))

    doubled = held_out.join_arms(held_out.select_arms([best]))
    prices = [manifest.profile[arm].price for arm in manifest.arms]
    accuracies = []
    for answers, judgements, listed in (
        (held_out, judged, prices),
        (doubled, joined, [*prices, prices[best]]),
    ):
        simulation = Simulation(judgements, manifest.verifier.gain_features)
        found = simulation.answer(answers.fold_costs_usd(listed), manifest.verifier.price_usd)
        costs_usd = answers.recorded_costs_usd(listed)
        accuracies.append(found.outcome(answers.correct, costs_usd, answers.seconds)[0].mean())
    assert accuracies[1] == pytest.approx(accuracies[0], abs=0.01)
