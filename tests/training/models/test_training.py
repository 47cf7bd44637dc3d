"""Training of the router: branches, unknown labels, early stopping, and seeds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from router_service.predictor.model import sigmoid
from switchcraft_training.data.table import Table
from switchcraft_training.evaluation.metrics import macro_f1, micro_f1
from switchcraft_training.models.checkpoints import Epoch, best_epoch
from switchcraft_training.models.model import RouterModel
from switchcraft_training.models.optimization import (
    collate,
    head_weights,
    linear_decay,
    shuffled_batches,
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
def test_shares_are_normalized_weights_of_the_branches() -> None:
    """The logits are the branches' mean, weighted by shares.

    Doubled shares give the same router.
    """
    train, test = rows(64, 1), rows(20, 3)
    settings = config(shares=ALL, max_epochs=1)
    model = train_router(encoder(), settings, train, train).model
    assert model.shares == pytest.approx(
        {"forest": 1 / 3, "networks": 1 / 3, "lexical": 1 / 6, "encoder": 1 / 6}
    )
    branches = branch_logits(model, settings, test)
    assert branches.keys() == ALL.keys()
    mean = sum(model.shares[name] * logits for name, logits in branches.items())
    assert predict(model, test) == pytest.approx(sigmoid(np.asarray(mean)), abs=1e-6)
    twice = config(shares={name: 2 * share for name, share in ALL.items()}, max_epochs=1)
    assert twice.training.branch_shares == settings.training.branch_shares


@pytest.mark.usefixtures("small_models")
@pytest.mark.parametrize("name", ALL)
def test_branch_without_a_share_is_not_built(name: str) -> None:
    """Only branches with a share are built; by default, this is the encoder."""
    shares = {name: 1.0}
    settings, data = config(shares=shares, max_epochs=1), rows(48, 1)
    model = train_router(encoder(), settings, data, data).model
    built = {
        "forest": model.counts.forest is not None,
        "networks": model.counts.networks is not None,
        "lexical": model.lexical is not None,
    }
    assert built == {other: other == name for other in built}
    assert branch_logits(model, settings, data).keys() == {name}
    assert config().training.branch_shares == {"encoder": 1.0}


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


@pytest.mark.parametrize("name", ["forest", "networks", "lexical"])
def test_rows_without_labels_do_not_change_a_branch(name: str) -> None:
    """Rows without any label have the same effect as missing rows."""
    train, test = rows(120, 1), rows(30, 3)
    hidden = with_labels(train, train.labels.copy())
    hidden.correct[60:] = np.nan
    settings = config(shares={name: 1}, max_epochs=1, weight_decay=0.0)
    with_them, without, as_wrong = (
        branch_logits(train_router(encoder(), settings, data, data).model, settings, test)[name]
        for data in (hidden, train.take(range(60)), with_labels(train, hidden.labels * 0))
    )
    column = {"lexical": 0}.get(name, 1)
    right = test.labels[:, column] == 1
    for said in (with_them, without):
        assert ((said[:, column] > 0) == right).mean() >= 0.85
    assert not np.allclose(with_them, as_wrong)


@pytest.mark.parametrize("name", ALL)
def test_shares_of_runs_are_learned_as_probabilities(name: str) -> None:
    """An arm that is correct in 30% of the runs of every query gets the probability 0.3."""
    train = rows(200, 1)
    soft = with_labels(train, np.full_like(train.labels, 0.3))
    trained = train_router(encoder(), config(shares={name: 1}, max_epochs=4), soft, soft)
    said = predict(trained.model, soft)
    assert said.mean() == pytest.approx(0.3, abs=0.03)
    assert said.std() < 0.06


def test_last_epoch_is_kept_without_validation() -> None:
    """With `select_on: last`, no validation rows are needed."""
    train, none = rows(64, 1), rows(8, 2).take([])
    trained = train_router(encoder(), config(select_on="last", max_epochs=3), train, none)
    assert [epoch.number for epoch in trained.epochs] == [1, 2, 3]
    assert all(
        np.isnan([epoch.loss, epoch.macro_f1, epoch.micro_f1]).all() for epoch in trained.epochs
    )
    assert all(np.isfinite(epoch.train_loss) for epoch in trained.epochs)
    assert np.isfinite(predict(trained.model, train)).all()


@pytest.mark.usefixtures("small_models")
def test_auxiliary_arms_are_not_predicted() -> None:
    """There may be auxiliary heads after the pool's arms; no branch predicts them."""
    data = rows(64, 1, heads=5)
    settings = config(shares=ALL, max_epochs=1, auxiliary_weight=0.5)
    model = train_router(encoder(), settings, data, data).model
    assert predict(model, data).shape == (64, 2)
    assert {each.shape for each in branch_logits(model, settings, data).values()} == {(64, 2)}


@pytest.mark.usefixtures("small_models")
def test_demand_is_added_to_the_features() -> None:
    """If numbers of calls are known, a forest predicts them, and both branches read it."""
    data = rows(64, 1)
    asked = replace(data, expected_calls=np.arange(64.0) % 3)
    settings = config(shares=COUNTS, max_epochs=1)
    plain, told = (train_router(encoder(), settings, each, each).model for each in (data, asked))
    assert plain.counts.demand is None
    assert told.counts.demand is not None
    assert [each.counts.networks.mean.shape[0] for each in (plain, told)] == [2, 5]  # pyrefly: ignore[missing-attribute]
    assert np.isfinite(predict(told, asked)).all()


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


def test_every_row_occurs_once_in_an_epoch() -> None:
    """Grouping by length neither loses nor repeats a row."""
    lengths = np.random.default_rng(1).integers(3, 90, 101)
    batches = list(shuffled_batches(lengths, 8, np.random.default_rng(0)))
    assert sorted(np.concatenate(batches)) == list(range(101))
    spread = [np.ptp(lengths[batch]) for batch in batches]
    assert np.mean(spread) < np.ptp(lengths) / 4


def test_auxiliary_heads_share_one_weight() -> None:
    """Auxiliary heads share one weight, regardless of their number."""
    assert head_weights(2, 2, 0.5).tolist() == [1, 1]
    assert head_weights(6, 2, 0.5).tolist() == [1, 1, 0.25, 0.25, 0.25, 0.25]


@pytest.mark.parametrize(
    ("step", "factor"), [(0, 0.1), (9, 1.0), (10, 1.0), (55, 0.5), (100, 0.0), (101, 0.0)]
)
def test_learning_rate_rises_then_falls_linearly(step: int, factor: float) -> None:
    """The rate rises during warm-up and falls to 0 at the last step."""
    assert linear_decay(step, 100, 0.1) == pytest.approx(factor)


def test_best_epoch_follows_the_setting() -> None:
    """`select_on` decides which epoch is kept; among equal ones, the earliest."""
    epochs = [Epoch(1, 0, 0.5, 0.7, 0.8), Epoch(2, 0, 0.4, 0.6, 0.9), Epoch(3, 0, 0.4, 0.7, 0.7)]
    assert best_epoch(epochs, config(select_on="loss").training).number == 2
    assert best_epoch(epochs, config(select_on="macro_f1").training).number == 1
    assert best_epoch(epochs, config(select_on="last").training).number == 3


def test_f1_ignores_unknown_labels() -> None:
    """Macro-F1 averages the heads and micro-F1 their predictions; unknown labels are ignored."""
    labels = np.array([[1, 1], [1, 0], [0, np.nan]], dtype=np.float32)
    probabilities = np.array([[0.9, 0.9], [0.1, 0.9], [0.1, 0.9]])
    assert macro_f1(labels, probabilities) == pytest.approx((2 / 3 + 2 / 3) / 2)
    labels[2, 1] = 0  # another false alarm of the second head
    assert macro_f1(labels, probabilities) == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert micro_f1(labels, probabilities) == pytest.approx(2 * 2 / (2 * 2 + 1 + 2))


def test_binary_labels_are_one_attempt_of_the_trained_rows() -> None:
    """`labels: binary` trains on 0 or 1 drawn with the share, so the epochs' losses differ.

    It equals training on the drawn labels, and leaves the given tables unchanged.
    """
    train = rows(64, 1)
    soft = with_labels(train, np.full_like(train.labels, 0.3))
    binary = config(labels="binary", max_epochs=1)
    losses = [
        [epoch.loss for epoch in train_router(encoder(), settings, given, given).epochs]
        for settings, given in (
            (binary, soft),
            (config(max_epochs=1), soft.one_attempt(binary.seed)),
            (config(max_epochs=1), soft),
        )
    ]
    assert losses[0] == losses[1] != losses[2]
    assert np.unique(soft.labels).tolist() == [np.float32(0.3)]
