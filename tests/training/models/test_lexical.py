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
