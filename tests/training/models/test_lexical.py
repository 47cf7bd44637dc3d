"""Branch over hashed words: TF-IDF and logistic regression, compared with scikit-learn."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import LogisticRegression

from router_service.predictor.words import Ids
from switchcraft_training.models.branches import (
    BUCKETS,
    INVERSE_PENALTY,
    PAIR_FACTOR,
    LexicalBranch,
    fit_lexical,
)
from switchcraft_training.models.optimization import padded


def queries(n: int, seed: int) -> list[Ids]:
    """Return rows of token ids, some of which share a bucket."""
    rng = np.random.default_rng(seed)
    words = [5, 6, 5 + BUCKETS, 1000, 29_000, 31_000, 60_000, *range(100, 130)]
    return [tuple(rng.choice(words, rng.integers(1, 15)).tolist()) for _ in range(n)]


def labels_of(rows: list[Ids]) -> NDArray[np.float32]:
    """Return an arm that is correct if a word occurs, and one that is correct if a pair occurs."""
    word = [1000 in row for row in rows]
    rng = np.random.default_rng(0)
    return np.column_stack([word, rng.integers(0, 2, len(rows))]).astype(np.float32)


def hashed(rows: list[Ids]) -> csr_matrix:
    """Count the buckets of words and pairs in plain Python."""
    counts = np.zeros((len(rows), BUCKETS))
    for place, row in enumerate(rows):
        pairs = pairwise(row)
        met = [word % BUCKETS for word in row]
        met += [(one * PAIR_FACTOR + other) % BUCKETS for one, other in pairs]
        for bucket, times in Counter(met).items():
            counts[place, bucket] = times
    return csr_matrix(counts)


def logits(branch: LexicalBranch, rows: list[Ids]) -> NDArray[np.float32]:
    """Return the logits of rows that are padded together."""
    said = branch(*padded([torch.tensor(row) for row in rows], 0))
    return np.asarray(said.numpy())


def test_branch_equals_scikit_learn() -> None:
    """The branch predicts the same as scikit-learn's transformer and regression."""
    train, test = queries(400, 1), queries(40, 2)
    labels = labels_of(train)
    branch = fit_lexical(train, labels)
    tfidf = TfidfTransformer(sublinear_tf=True).fit(hashed(train))
    models = [
        LogisticRegression(C=INVERSE_PENALTY, solver="liblinear").fit(
            tfidf.transform(hashed(train)), column
        )
        for column in labels.T
    ]
    for rows in (train, test):
        wanted = [model.decision_function(tfidf.transform(hashed(rows))) for model in models]
        # liblinear stops at a tolerance, and here every row comes twice.
        np.testing.assert_allclose(logits(branch, rows), np.transpose(wanted), atol=2e-2)
    right = (logits(branch, test)[:, 0] > 0) == (labels_of(test)[:, 0] == 1)
    assert right.mean() >= 0.85


def test_share_counts_as_weighted_answers() -> None:
    """A label of 0.25 has the effect of four attempts with weight 1/4, of which one is correct."""
    train = queries(80, 1)
    words = labels_of(train)[:, :1]
    soft = np.where(words == 1, 0.75, 0.25).astype(np.float32)
    branch = fit_lexical(train, soft)
    said = 1 / (1 + np.exp(-logits(branch, train)[:, 0]))
    assert said[words[:, 0] == 1].min() > said[words[:, 0] == 0].mean()
    assert ((said > 0.2) & (said < 0.8)).all()
    tfidf = TfidfTransformer(sublinear_tf=True).fit(hashed(train))
    known = tfidf.transform(hashed(train * 4))
    attempts = np.concatenate([(soft[:, 0] > step) for step in (0.0, 0.25, 0.5, 0.75)])
    model = LogisticRegression(C=INVERSE_PENALTY, solver="liblinear")
    model.fit(known, attempts, sample_weight=np.full(len(attempts), 0.25))
    wanted = model.decision_function(tfidf.transform(hashed(train)))
    np.testing.assert_allclose(logits(branch, train)[:, 0], wanted, atol=2e-2)


def test_unknown_labels_are_ignored() -> None:
    """An arm learns only from rows that it was asked; document frequencies use all rows."""
    train = queries(120, 1)
    labels = labels_of(train)
    labels[60:, 0] = np.nan
    branch = fit_lexical(train, labels)
    tfidf = TfidfTransformer(sublinear_tf=True).fit(hashed(train))
    known = tfidf.transform(hashed(train[:60]))
    model = LogisticRegression(C=INVERSE_PENALTY, solver="liblinear").fit(known, labels[:60, 0])
    wanted = model.decision_function(tfidf.transform(hashed(train)))
    np.testing.assert_allclose(logits(branch, train)[:, 0], wanted, atol=2e-2)
