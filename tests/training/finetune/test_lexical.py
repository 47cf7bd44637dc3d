"""Hashed words in the graph: TF-IDF and a regression, as the libraries have them."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import LogisticRegression

from router_service.core.packing import Ids
from switchcraft_training.models.batches import padded
from switchcraft_training.models.branches import (
    BUCKETS,
    INVERSE_PENALTY,
    PAIR_FACTOR,
    LexicalBranch,
    fit_lexical,
)


def queries(n: int, seed: int) -> list[Ids]:
    """Return rows of ids as large as a vocabulary's, some of which share a bucket."""
    rng = np.random.default_rng(seed)
    words = [5, 6, 5 + BUCKETS, 1000, 29_000, 31_000, 60_000, *range(100, 130)]
    return [tuple(rng.choice(words, rng.integers(1, 15)).tolist()) for _ in range(n)]


def labels_of(rows: list[Ids]) -> NDArray[np.float32]:
    """Return an arm that is right where a word occurs, and one where a pair of neighbours does."""
    word = [1000 in row for row in rows]
    rng = np.random.default_rng(0)
    return np.column_stack([word, rng.integers(0, 2, len(rows))]).astype(np.float32)


def hashed(rows: list[Ids]) -> csr_matrix:
    """Count buckets of words and pairs, in plain Python."""
    counts = np.zeros((len(rows), BUCKETS))
    for place, row in enumerate(rows):
        pairs = pairwise(row)
        met = [word % BUCKETS for word in row]
        met += [(one * PAIR_FACTOR + other) % BUCKETS for one, other in pairs]
        for bucket, times in Counter(met).items():
            counts[place, bucket] = times
    return csr_matrix(counts)


def logits(branch: LexicalBranch, rows: list[Ids]) -> NDArray[np.float32]:
    """Return what the branch says of rows, padded together."""
    said = branch(*padded([torch.tensor(row) for row in rows], 0))
    return np.asarray(said.numpy())


def test_it_is_tf_idf_with_a_regression() -> None:
    """The branch says what scikit-learn's transformer and regression say of the same counts."""
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


def test_the_graph_s_features_are_the_library_s() -> None:
    """With a weight of 1 for one bucket and 0 for the rest, the logit is that bucket's TF-IDF."""
    train = queries(60, 1)
    tfidf = TfidfTransformer(sublinear_tf=True).fit(hashed(train))
    wanted = tfidf.transform(hashed(train)).toarray()
    chosen = np.argsort(-wanted.sum(0))[:25]
    weight = torch.zeros(BUCKETS, len(chosen))
    weight[chosen, torch.arange(len(chosen))] = 1.0
    idf = torch.tensor(tfidf.idf_, dtype=torch.float32)
    branch = LexicalBranch(idf, weight, torch.zeros(len(chosen)))
    np.testing.assert_allclose(logits(branch, train), wanted[:, chosen], atol=1e-6)


@pytest.mark.parametrize("fill", [0, 5, 1000])
def test_padding_changes_nothing(fill: int) -> None:
    """A row says the same alone and beside a long one, whatever id fills it up."""
    rows = [(1000, 5, 6), tuple(range(100, 160))]
    branch = fit_lexical(queries(60, 1), labels_of(queries(60, 1)))
    together = branch(*padded([torch.tensor(row) for row in rows], fill))
    alone = [branch(torch.tensor([row]), torch.ones(1, len(row), dtype=torch.long)) for row in rows]
    np.testing.assert_allclose(together.numpy(), torch.cat(alone).numpy(), atol=1e-6)


def test_a_share_is_so_many_right_and_so_many_wrong_answers() -> None:
    """A label of 0.25 teaches as four attempts of which one was right, each a quarter."""
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


def test_unknown_labels_do_not_teach() -> None:
    """An arm learns from the rows that it was asked alone; the words count over all."""
    train = queries(120, 1)
    labels = labels_of(train)
    labels[60:, 0] = np.nan
    branch = fit_lexical(train, labels)
    tfidf = TfidfTransformer(sublinear_tf=True).fit(hashed(train))
    known = tfidf.transform(hashed(train[:60]))
    model = LogisticRegression(C=INVERSE_PENALTY, solver="liblinear").fit(known, labels[:60, 0])
    wanted = model.decision_function(tfidf.transform(hashed(train)))
    np.testing.assert_allclose(logits(branch, train)[:, 0], wanted, atol=2e-2)


@pytest.mark.parametrize("always", [0.0, 1.0])
def test_an_arm_that_is_never_or_always_right_is_believed_so(always: float) -> None:
    """One outcome alone breaks nothing: logits are on its side, and the other arm's stay."""
    train = queries(80, 1)
    labels = labels_of(train)
    plain = logits(fit_lexical(train, labels), train)
    labels[:, 1] = always
    said = logits(fit_lexical(train, labels), train)
    assert np.isfinite(said).all()
    assert ((said[:, 1] > 0) == bool(always)).all()
    np.testing.assert_array_equal(said[:, 0], plain[:, 0])


def test_a_row_of_unmet_words_is_told_by_the_bias() -> None:
    """What was never seen in training says nothing either way."""
    train = queries(80, 1)
    branch = fit_lexical(train, labels_of(train))
    said = logits(branch, [(20_000, 20_001), (20_000,)])
    np.testing.assert_allclose(said, np.tile(branch.bias.numpy(), (2, 1)), atol=1e-6)
