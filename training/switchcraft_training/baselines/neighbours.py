"""Routing by the training queries that are most like a query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.neighbors import KNeighborsRegressor

from switchcraft_training.baselines.base import Predictor, profiled_costs_usd
from switchcraft_training.baselines.embedder import Embedder
from switchcraft_training.baselines.views import View
from switchcraft_training.evaluation.table import Floats, Table
from switchcraft_training.records import Example

NEIGHBOURS = (5, 10, 20, 40, 80)
"""Tried on validation queries: fewer are noise at a thousand training queries."""


@dataclass(frozen=True, slots=True)
class Nearest:
    """The mean label of the k nearest training queries that an arm was asked, by cosine."""

    view: View
    embed: Embedder
    name: str = "kNN"

    def fit(self, train: Table, validation: Table) -> Predictor:
        """Keep the training vectors; take the k with the least squared error on validation."""
        costs_usd = profiled_costs_usd(train)
        vectors, unseen = self._vectors(train.examples), self._vectors(validation.examples)
        fitted = [_arm_models(vectors, train.correct, k) for k in NEIGHBOURS]
        errors = [
            np.nanmean((_predict(models, unseen) - validation.correct) ** 2) for models in fitted
        ]
        models = fitted[int(np.argmin(errors))]
        return Predictor(lambda examples: _predict(models, self._vectors(examples)), costs_usd)

    def _vectors(self, examples: Sequence[Example]) -> Floats:
        return self.embed([self.view(example) for example in examples])


@dataclass(frozen=True, slots=True)
class Similarity:
    """The mean label of all training queries, each weighted by its likeness (RouteLLM).

    RouteLLM fits Elo ratings to battles between models, a battle weighing 10 * 10^(s / s_max) where
    s is the cosine of its query to the one asked. Here a model's battle is with the query: it wins
    where it answers correctly. With one opponent the ratings have a closed form, for the win rate
    against it that they predict is the weighted share of wins.
    """

    view: View
    embed: Embedder
    name: str = "similarity"

    def fit(self, train: Table, validation: Table) -> Predictor:  # noqa: ARG002 - the protocol's
        """Keep the training vectors and labels."""
        costs_usd = profiled_costs_usd(train)
        vectors = self._vectors(train.examples)
        asked = (~np.isnan(train.correct)).astype(np.float64)
        wins = np.nan_to_num(train.correct)

        def predict(examples: Sequence[Example]) -> Floats:
            weights = _weights(self._vectors(examples) @ vectors.T)  # (queries, train)
            shares: Floats = (weights @ wins) / (weights @ asked)
            return shares

        return Predictor(predict, costs_usd)

    def _vectors(self, examples: Sequence[Example]) -> Floats:
        return self.embed([self.view(example) for example in examples])


def _weights(similarities: Floats) -> Floats:
    """Return RouteLLM's weights; its division wants a likeness above 0."""
    nearest = np.maximum(similarities.max(axis=1, keepdims=True), 1e-6)
    weights: Floats = 10 * 10 ** (similarities / nearest)
    return weights


def _arm_models(vectors: Floats, correct: Floats, k: int) -> list[KNeighborsRegressor]:
    models = []
    for labels in correct.T:
        asked = ~np.isnan(labels)
        nearest = KNeighborsRegressor(min(k, int(asked.sum())), metric="cosine")
        models.append(nearest.fit(vectors[asked], labels[asked]))
    return models


def _predict(models: Sequence[KNeighborsRegressor], vectors: Floats) -> Floats:
    return np.column_stack([model.predict(vectors) for model in models])
