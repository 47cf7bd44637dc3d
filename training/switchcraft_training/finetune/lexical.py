"""Words and word pairs, hashed, as a part of the router's graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, vstack
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn import functional

from router_service.core.packing import Ids

BUCKETS = 1 << 15
"""Token ids and pairs of neighbours share these: with eight arms, a table of 1 MB."""

PAIR_FACTOR = 31
INVERSE_PENALTY = 5.0
NEGLIGIBLE = 1e-9


def buckets(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the buckets of single tokens (batch, tokens) and of pairs (batch, tokens - 1)."""
    return ids % BUCKETS, (ids[:, :-1] * PAIR_FACTOR + ids[:, 1:]) % BUCKETS


class LexicalBranch(nn.Module):
    """A logistic regression an arm on TF-IDF of hashed tokens and pairs."""

    idf: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(self, idf: Tensor, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("idf", idf)  # (buckets,)
        self.register_buffer("weight", weight)  # (buckets, arms)
        self.register_buffer("bias", bias)  # (arms,)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return logits (batch, arms) for ids and mask (batch, tokens)."""
        met = torch.cat(buckets(input_ids), dim=1)  # (batch, 2 tokens - 1)
        known = torch.cat([attention_mask, attention_mask[:, 1:]], dim=1).to(self.idf.dtype)
        counts = torch.zeros(input_ids.shape[0], BUCKETS, dtype=self.idf.dtype)
        count = counts.scatter_add(1, met, known).gather(1, met).clamp(min=1)
        # A bucket's TF-IDF, (1 + log(count)) * idf, in equal parts at each place that meets it:
        # sums over a row's places, at most 1,023, are the sums over all buckets.
        tfidf = (1 + count.log()) * functional.embedding(met, self.idf[:, None]).squeeze(2)
        share = known / count
        length = (tfidf.square() * share).sum(1, keepdim=True).sqrt().clamp(min=1e-9)
        placed = (tfidf * share / length).unsqueeze(1)  # (batch, 1, places)
        logits: Tensor = (placed @ functional.embedding(met, self.weight)).squeeze(1) + self.bias
        return logits


def fit_lexical(rows: Sequence[Ids], labels: NDArray[np.float32]) -> LexicalBranch:
    """Fit on token ids and labels (n, arms), which may be shares; NaN is left out."""
    counts = _counts(rows)
    met = np.asarray((counts > 0).sum(axis=0)).ravel()
    idf = np.log((1 + len(rows)) / (1 + met)) + 1
    weighted = _normalized(counts, idf)
    models = [soft_regression(weighted, column) for column in labels.T]
    return LexicalBranch(
        torch.tensor(idf, dtype=torch.float32),
        torch.tensor(np.stack([m.coef_[0] for m in models], axis=1), dtype=torch.float32),
        torch.tensor([m.intercept_[0] for m in models], dtype=torch.float32),
    )


def _counts(rows: Sequence[Ids]) -> csr_matrix:
    """Count buckets, (n, buckets)."""
    met = [torch.cat(buckets(torch.tensor([row])), dim=1)[0].numpy() for row in rows]
    places = np.repeat(np.arange(len(rows)), [len(row) for row in met])
    ones = np.ones(len(places))
    return csr_matrix((ones, (places, np.concatenate(met))), shape=(len(rows), BUCKETS))


def _normalized(counts: csr_matrix, idf: NDArray[np.float64]) -> csr_matrix:
    weighted = counts.copy()
    weighted.data = 1 + np.log(weighted.data)
    weighted = weighted.multiply(idf).tocsr()
    lengths = np.sqrt(weighted.multiply(weighted).sum(axis=1))
    return weighted.multiply(1 / np.maximum(lengths, 1e-9)).tocsr()


def soft_regression(rows: csr_matrix, labels: NDArray[np.floating[Any]]) -> LogisticRegression:
    """Fit one arm: a label of 0.7 is a correct answer of weight 0.7 and a wrong one of 0.3."""
    asked = ~np.isnan(labels)
    known = labels[asked]
    classes = np.repeat([1, 0], len(known))
    weights = np.concatenate([known, 1 - known])
    if not known.any():
        # liblinear drops what weighs nothing, and would take wrong answers alone for right ones.
        weights[0] = NEGLIGIBLE
    # liblinear: on sparse rows 30 times as fast as the default solver, with equal AUC.
    model = LogisticRegression(C=INVERSE_PENALTY, solver="liblinear", random_state=0)
    return model.fit(vstack([rows[asked], rows[asked]]), classes, sample_weight=weights)
