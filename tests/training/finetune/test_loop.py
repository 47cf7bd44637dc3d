"""Fine-tuning: it learns, it masks, it stops, and a seed fixes it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.training.finetune.cases import config, encoder, rows
from training.finetune.batches import Rows, collate, shuffled_batches
from training.finetune.epochs import Epoch, best_epoch, macro_f1
from training.finetune.loop import predict, train_router
from training.finetune.objective import head_weights, linear_decay


def test_it_learns_from_words_and_from_counts() -> None:
    """One arm's label is in the words, the other's in the counts; both are learned."""
    train, validation, test = rows(400, 1), rows(60, 2), rows(100, 3)
    trained = train_router(encoder(), config(), train, validation)
    hits = (predict(trained.model, test) >= 0.5) == (test.labels == 1)
    assert hits.mean(0).min() >= 0.95


def test_a_seed_fixes_the_run() -> None:
    """The same seed gives the same probabilities; another seed gives others."""
    train, validation = rows(64, 1), rows(32, 2)
    runs = [
        predict(
            train_router(
                encoder(), config(max_epochs=2).model_copy(update={"seed": seed}), train, validation
            ).model,
            validation,
        )
        for seed in (7, 7, 8)
    ]
    assert np.array_equal(runs[0], runs[1])
    assert not np.allclose(runs[0], runs[2])


def test_unknown_labels_do_not_teach() -> None:
    """With half of an arm's labels unknown, the other half still teach it, and nothing is NaN."""
    train, validation, test = rows(400, 1), rows(60, 2), rows(100, 3)
    hidden = Rows(train.packed, train.labels.copy())
    hidden.labels[:200, 1] = np.nan
    batch = collate(hidden.take(range(8)))
    assert batch.known[:, 1].sum() == 0
    assert not torch.isnan(batch.labels).any()
    trained = train_router(encoder(), config(), hidden, validation)
    hits = (predict(trained.model, test) >= 0.5) == (test.labels == 1)
    assert hits.mean(0).min() >= 0.9


def test_patience_ends_a_run_that_does_not_improve() -> None:
    """With labels that are noise, training stops after its patience and keeps the best epoch."""
    rng = np.random.default_rng(0)
    train, validation = rows(48, 1), rows(48, 2)
    noise = Rows(train.packed, rng.integers(0, 2, train.labels.shape).astype(np.float32))
    trained = train_router(
        encoder(), config(max_epochs=60, patience_epochs=2, learning_rate=1e-2), noise, validation
    )
    assert len(trained.epochs) == trained.best.number + 2
    assert trained.best.loss == min(epoch.loss for epoch in trained.epochs)


def test_every_row_is_in_an_epoch_once() -> None:
    """Buckets by length neither lose nor repeat a row."""
    lengths = np.random.default_rng(1).integers(3, 90, 101)
    batches = list(shuffled_batches(lengths, 8, np.random.default_rng(0)))
    assert sorted(np.concatenate(batches)) == list(range(101))
    spread = [np.ptp(lengths[batch]) for batch in batches]
    assert np.mean(spread) < np.ptp(lengths) / 4


def test_head_weights() -> None:
    """Auxiliary heads share one weight, however many they are."""
    assert head_weights(2, 2, 0.5).tolist() == [1, 1]
    assert head_weights(6, 2, 0.5).tolist() == [1, 1, 0.25, 0.25, 0.25, 0.25]


@pytest.mark.parametrize(
    ("step", "factor"), [(0, 0.1), (9, 1.0), (10, 1.0), (55, 0.5), (100, 0.0), (101, 0.0)]
)
def test_linear_decay(step: int, factor: float) -> None:
    """The rate rises over the warm-up and falls to 0 at the last step."""
    assert linear_decay(step, 100, 0.1) == pytest.approx(factor)


def test_best_epoch_follows_the_setting() -> None:
    """`select_on` decides which epoch is kept; of equal ones the earliest."""
    epochs = [Epoch(1, 0, 0.5, 0.7), Epoch(2, 0, 0.4, 0.6), Epoch(3, 0, 0.4, 0.7)]
    assert best_epoch(epochs, config(select_on="loss").training).number == 2
    assert best_epoch(epochs, config(select_on="macro_f1").training).number == 1
    assert best_epoch(epochs, config(select_on="last").training).number == 3


def test_macro_f1() -> None:
    """F1 at 0.5 is averaged over heads, unknown labels left out."""
    labels = np.array([[1, 1], [1, 0], [0, np.nan]], dtype=np.float32)
    probabilities = np.array([[0.9, 0.9], [0.1, 0.9], [0.1, 0.9]])
    assert macro_f1(labels, probabilities) == pytest.approx((2 / 3 + 2 / 3) / 2)


def test_the_share_of_the_encoder_is_what_fits_validation() -> None:
    """Where the counts tell all and the words nothing, the encoder's share goes to 0."""
    train, validation = rows(200, 1), rows(100, 2)
    told = Rows(train.packed, train.labels[:, [1, 1]])
    held_out = Rows(validation.packed, validation.labels[:, [1, 1]])
    trained = train_router(encoder(), config(max_epochs=1, learning_rate=1e-6), told, held_out)
    assert trained.model.encoder_share == 0
