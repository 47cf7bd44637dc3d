"""Baselines that predict probabilities: TF-IDF, nearest neighbours, and small networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.neighbors import KNeighborsRegressor
from torch import Tensor, nn
from torch.nn import functional

from switchcraft_training.baselines.base import Predictor, profiled_costs_usd
from switchcraft_training.baselines.inputs import Embedder, View, Views
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.models.branches import soft_regression
from switchcraft_training.models.optimization import one_thread
from switchcraft_training.records import Example

NEIGHBOURS = (5, 10, 20, 40, 80)
"""Values of k that are tried on validation queries. With 1,000 queries, smaller k are too noisy."""

Weigh = Callable[[Floats, tuple[float, ...]], Floats]
"""Function from the labels (queries, arms) and the arms' costs to the labels' weights in the loss,
(queries, arms)."""

Build = Callable[[int, tuple[str, ...]], nn.Module]
"""Function from the embeddings' width and the arms to a network.

The network maps (queries, width) to logits (queries, arms).
"""


@dataclass(frozen=True, slots=True)
class Lexical:
    """TF-IDF over the token ids of a view, and a logistic regression for each arm."""

    name: str
    view: View

    def fit(self, train: Table, validation: Table) -> Predictor:  # noqa: ARG002 - part of the protocol
        """Fit the vectorizer on all queries, and each arm's model on the queries it was asked."""
        costs_usd = profiled_costs_usd(train)
        vectorizer = TfidfVectorizer(
            sublinear_tf=True,
            ngram_range=(1, 2),
            min_df=2,
            token_pattern=r"\d+",  # noqa: S106 - a pattern, not a password
        )
        rows = vectorizer.fit_transform(self._texts(train.examples))
        models = [soft_regression(rows, labels) for labels in train.correct.T]

        def predict(examples: Sequence[Example]) -> Floats:
            unseen = vectorizer.transform(self._texts(examples))
            return np.column_stack([model.predict_proba(unseen)[:, 1] for model in models])

        return Predictor(predict, costs_usd)

    def _texts(self, examples: Sequence[Example]) -> list[str]:
        return [" ".join(map(str, self.view(example))) for example in examples]


@dataclass(frozen=True, slots=True)
class Nearest:
    """Mean label of the k training queries that an arm was asked and that are nearest by cosine."""

    view: View
    embed: Embedder
    name: str = "kNN"

    def fit(self, train: Table, validation: Table) -> Predictor:
        """Store the training vectors, and choose k by the squared error on validation queries."""
        costs_usd = profiled_costs_usd(train)
        vectors, unseen = self._vectors(train.examples), self._vectors(validation.examples)
        fitted: list[list[KNeighborsRegressor]] = []
        for k in NEIGHBOURS:
            fitted.append([])
            for labels in train.correct.T:
                asked = ~np.isnan(labels)
                nearest = KNeighborsRegressor(min(k, int(asked.sum())), metric="cosine")
                fitted[-1].append(nearest.fit(vectors[asked], labels[asked]))
        predictions = [_predict_neighbours(models, unseen) for models in fitted]
        errors = [np.nanmean((each - validation.correct) ** 2) for each in predictions]
        models = fitted[int(np.argmin(errors))]
        return Predictor(
            lambda examples: _predict_neighbours(models, self._vectors(examples)), costs_usd
        )

    def _vectors(self, examples: Sequence[Example]) -> Floats:
        return self.embed([self.view(example) for example in examples])


@dataclass(frozen=True, slots=True)
class Similarity:
    """Mean label of all training queries, weighted by their similarity (RouteLLM).

    RouteLLM fits Elo ratings to battles between models. A battle has the weight
    10 * 10^(s / s_max), where s is the cosine of its query to the new query. Here, a model plays
    against the query and wins if it answers correctly. With one opponent, the ratings have a closed
    form: the predicted win rate is the weighted share of wins.
    """

    view: View
    embed: Embedder
    name: str = "similarity"

    def fit(self, train: Table, validation: Table) -> Predictor:  # noqa: ARG002 - part of the protocol
        """Store the training vectors and labels."""
        costs_usd = profiled_costs_usd(train)
        vectors = self._vectors(train.examples)
        asked = (~np.isnan(train.correct)).astype(np.float64)
        wins = np.nan_to_num(train.correct)

        def predict(examples: Sequence[Example]) -> Floats:
            similarities = self._vectors(examples) @ vectors.T  # (queries, train)
            # RouteLLM divides by the largest similarity, which must be positive.
            nearest = np.maximum(similarities.max(axis=1, keepdims=True), 1e-6)
            weights = 10 * 10 ** (similarities / nearest)
            shares: Floats = (weights @ wins) / (weights @ asked)
            return shares

        return Predictor(predict, costs_usd)

    def _vectors(self, examples: Sequence[Example]) -> Floats:
        return self.embed([self.view(example) for example in examples])


def _predict_neighbours(models: Sequence[KNeighborsRegressor], vectors: Floats) -> Floats:
    return np.column_stack([model.predict(vectors) for model in models])


@dataclass(frozen=True, slots=True)
class Fitting:
    """Hyperparameters of a network. A batch consists of queries with the labels of all arms."""

    learning_rate: float
    batch_size: int
    max_epochs: int
    weight_decay: float = 0.0
    patience_epochs: int = 10


@dataclass(frozen=True, slots=True)
class Network:
    """A network on frozen embeddings, fitted by binary cross-entropy with early stopping."""

    name: str
    view: View
    embed: Embedder
    build: Build
    fitting: Fitting
    weigh: Weigh
    seed: int

    def fit(self, train: Table, validation: Table) -> Predictor:
        """Fit until the validation loss stops improving, and keep the weights of the best epoch.

        Equal seeds and tables give equal networks.
        """
        costs_usd, fitting = profiled_costs_usd(train), self.fitting
        samples, held_out = self._samples(train, costs_usd), self._samples(validation, costs_usd)
        # The random numbers depend only on the seed, not on what was fitted before.
        with one_thread(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            network = self.build(samples.vectors.shape[1], train.arms)
            optimizer = torch.optim.Adam(
                network.parameters(), fitting.learning_rate, weight_decay=fitting.weight_decay
            )
            best_loss, best_state, stale_epochs = math.inf, deepcopy(network.state_dict()), 0
            for _ in range(fitting.max_epochs):
                network.train()
                for batch in samples.batches(fitting.batch_size):
                    optimizer.zero_grad()
                    loss = _mean_loss(network, batch)
                    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                    optimizer.step()
                with torch.inference_mode():
                    validation_loss = float(_mean_loss(network.eval(), held_out))
                stale_epochs += 1
                if validation_loss < best_loss:
                    best_loss, stale_epochs = validation_loss, 0
                    best_state = deepcopy(network.state_dict())
                if stale_epochs == fitting.patience_epochs:
                    break
            network.load_state_dict(best_state)

        def predict(examples: Sequence[Example]) -> Floats:
            with torch.inference_mode():
                logits = network(self._vectors(examples))
            probabilities: Floats = torch.sigmoid(logits).double().numpy()
            return probabilities

        return Predictor(predict, costs_usd)

    def _vectors(self, examples: Sequence[Example]) -> Tensor:
        return torch.tensor(self.embed([self.view(e) for e in examples]), dtype=torch.float32)

    def _samples(self, table: Table, costs_usd: tuple[float, ...]) -> _Samples:
        known = np.nan_to_num(table.correct)
        weights = np.where(np.isnan(table.correct), 0.0, self.weigh(known, costs_usd))
        return _Samples(self._vectors(table.examples), _tensor(known), _tensor(weights))


def mlp(width: int, arms: tuple[str, ...]) -> nn.Module:
    """Return a network with one hidden layer of 100 units, scikit-learn's default."""
    return nn.Sequential(nn.Linear(width, 100), nn.ReLU(), nn.Linear(100, len(arms)))


class MatrixFactorization(nn.Module):
    """RouteLLM's bilinear form: w · (arm * projected query), with arm vectors of length 1.

    RouteLLM compares two models by the difference of their scores. Here, an arm's score with a bias
    is the logit of a correct answer, as in EmbedLLM.
    """

    def __init__(self, width: int, arms: tuple[str, ...]) -> None:
        super().__init__()
        dimensions, self._noise = 128, 0.1  # RouteLLM's values
        self.arms = nn.Embedding(len(arms), dimensions)
        self.project = nn.Linear(width, dimensions, bias=False)
        self.score = nn.Linear(dimensions, 1)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return logits (queries, arms) for (queries, width); while training, noise is added."""
        if self.training:
            vectors = vectors + self._noise * torch.randn_like(vectors)
        arms = functional.normalize(self.arms.weight, dim=1)  # (arms, dimensions)
        scored = self.project(vectors) * self.score.weight  # (queries, dimensions)
        logits: Tensor = scored @ arms.T + self.score.bias
        return logits


class ItemResponse(nn.Module):
    """Two-parameter logistic model with 25 dimensions (appendix on MIRT-DistilBERT).

    A query has a discrimination `a` and a difficulty `b`. An arm has an ability, computed from the
    embedding of its profile, (arms, width). The logit is a · ability - b.
    """

    def __init__(self, profiles: Tensor, dimensions: int = 25) -> None:
        super().__init__()
        width = profiles.shape[1]
        self.profiles = profiles
        self.ability = nn.Linear(width, dimensions)
        self.discrimination = nn.Linear(width, dimensions)
        self.difficulty = nn.Linear(width, 1)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return logits (queries, arms) for vectors (queries, width)."""
        discrimination = functional.softplus(self.discrimination(vectors))
        logits: Tensor = discrimination @ self.ability(self.profiles).T - self.difficulty(vectors)
        return logits


def item_response(views: Views, embed: Embedder, profiles: Mapping[str, str]) -> Build:
    """Return a function that builds an `ItemResponse` network from descriptions of the arms.

    An arm without a description in `profiles` is described by its name.
    """

    def build(_: int, arms: tuple[str, ...]) -> nn.Module:
        return ItemResponse(_tensor(embed([views.text(profiles.get(arm, arm)) for arm in arms])))

    return build


def equal_weights(known: Floats, _: tuple[float, ...]) -> Floats:
    """Give every label the same weight."""
    return np.ones_like(known)


def by_cost(known: Floats, costs_usd: tuple[float, ...]) -> Floats:
    """Weigh an arm's wrong answers by 1 to 2, in proportion to the arm's cost.

    In its table of what did not help, the paper lists an asymmetric loss that penalizes misrouting
    to expensive models, but gives no formula. Here, a wrong answer of the most expensive arm has
    twice the weight of a correct one.
    """
    shares = np.asarray(costs_usd) / max(costs_usd)
    return 1 + (1 - known) * shares


@dataclass(frozen=True, slots=True)
class _Samples:
    """Vectors (queries, width), labels and weights (queries, arms); unknown labels weigh 0."""

    vectors: Tensor
    labels: Tensor
    weights: Tensor

    def batches(self, size: int) -> Iterator[_Samples]:
        for rows in torch.split(torch.randperm(len(self.vectors)), size):
            yield _Samples(self.vectors[rows], self.labels[rows], self.weights[rows])


def _mean_loss(network: nn.Module, samples: _Samples) -> Tensor:
    losses = functional.binary_cross_entropy_with_logits(
        network(samples.vectors), samples.labels, samples.weights, reduction="sum"
    )
    return losses / samples.weights.sum().clamp(min=1e-9)


_tensor = partial(torch.tensor, dtype=torch.float32)
