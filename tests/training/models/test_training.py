"""Training of the router: branches, unknown labels, early stopping, and seeds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from switchcraft_training.data.table import Table
from switchcraft_training.models.model import RouterModel
from switchcraft_training.models.optimization import (
    collate,
)
from switchcraft_training.models.training import branch_logits, predict, train_router
from tests.training.models.cases import config, encoder, rows, with_labels

COUNTS = {"forest": 1, "networks": 1}
ALL = {"forest": 2, "networks": 2, "lexical": 1, "encoder": 1}


def hits(model: RouterModel, test: Table) -> NDArray[np.float64]:
    """Return the share of correct predictions for each arm, (arms,)."""
    said = (predict(model, test) >= 0.5) == (test.labels == 1)
    return np.asarray(said.mean(0))


@pytest.mark.parametrize(
    ("shares", "words", "counts"),
    [
        ({"encoder": 1}, True, False),
        ({"lexical": 1}, True, False),
        (COUNTS, False, True),
        (ALL, True, True),
    ],
)
def test_branches_learn_from_their_inputs(
    shares: dict[str, float], *, words: bool, counts: bool
) -> None:
    """The first arm's label is in the words, the other's in the features.

    Each branch learns its own.
    """
    train, validation, test = rows(400, 1), rows(60, 2), rows(100, 3)
    epochs = {1: 12 if "encoder" in shares else 1, 2: 1, 4: 3}[len(shares)]
    trained = train_router(encoder(), config(shares=shares, max_epochs=epochs), train, validation)
    by_words, by_counts = hits(trained.model, test)
    assert by_words >= 0.95 if words else by_words < 0.75
    assert by_counts >= 0.95 if counts else by_counts < 0.75


@pytest.mark.usefixtures("small_models")
def test_equal_seeds_give_equal_logits() -> None:
    """Equal seeds give equal logits; another seed changes every branch that uses random numbers."""
    train, validation = rows(64, 1), rows(32, 2)
    # Trees over one count that is one of two are all alike.
    noise = iter(np.random.default_rng(0).random((64, 2)).tolist())
    train = replace(
        train, packed=tuple(replace(r, features=tuple(next(noise))) for r in train.packed)
    )
    settings = config(shares=ALL, max_epochs=2)
    runs = []
    for seed in (7, 7, 8):
        own = settings.model_copy(update={"seed": seed})
        model = train_router(encoder(), own, train, validation).model
        runs.append(branch_logits(model, own, validation))
    first, again, other = runs
    assert all(np.array_equal(first[name], again[name]) for name in ALL)
    differs = {name for name in ALL if not np.allclose(first[name], other[name])}
    assert differs == {"forest", "networks", "encoder"}  # regression has one optimum


def test_unknown_labels_are_ignored_by_every_branch() -> None:
    """If half of an arm's labels are unknown, every branch learns from the other half."""
    train, validation, test = rows(400, 1), rows(60, 2), rows(100, 3)
    hidden = with_labels(train, train.labels.copy())
    hidden.correct[:200, 1] = np.nan
    batch = collate(hidden.take(range(8)))
    assert batch.known[:, 1].sum() == 0
    assert not torch.isnan(batch.labels).any()
    trained = train_router(encoder(), config(shares=ALL, max_epochs=3), hidden, validation)
    assert hits(trained.model, test).min() >= 0.9


def test_patience_stops_a_run_that_does_not_improve() -> None:
    """With random labels, training stops after the configured patience and keeps the best epoch."""
    rng = np.random.default_rng(0)
    train, validation = rows(48, 1), rows(48, 2)
    noise = with_labels(train, rng.integers(0, 2, train.labels.shape).astype(np.float32))
    trained = train_router(
        encoder(), config(max_epochs=60, patience_epochs=2, learning_rate=1e-2), noise, validation
    )
    losses = [epoch.loss for epoch in trained.epochs]
    assert losses.index(min(losses)) == len(losses) - 3  # two epochs of patience behind the best
