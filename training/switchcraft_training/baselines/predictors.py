"""Baselines that predict probabilities: TF-IDF, nearest neighbours, and small networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import MiniBatchKMeans
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import Tensor, nn
from torch.nn import functional

from router_service.measurement.rules import Kind
from switchcraft_training.baselines.base import Predictor, profiled_costs_usd
from switchcraft_training.baselines.inputs import Embedder, View, Views
from switchcraft_training.data.table import Floats, Table
from switchcraft_training.models.branches import soft_regression
from switchcraft_training.models.optimization import one_thread
from switchcraft_training.records import Example

NEIGHBOURS = (5, 10, 20, 40, 80)
"""Values of k that are tried on validation queries. With 1,000 queries, smaller k are too noisy."""

SEARCHED_ROWS = 8_192
SEARCHED_CELLS = 32
"""Stored queries that are compared with a new one, and the number of cells that they are in."""

MAX_BATTLES = 8_192
CHUNK_ROWS = 512
"""Queries that are compared at once: their similarities to 8,192 queries take 32 MB."""

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

    kind: ClassVar[Kind] = "baseline"
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

    kind: ClassVar[Kind] = "baseline"
    view: View
    embed: Embedder
    name: str = "kNN"

    def fit(self, train: Table, validation: Table) -> Predictor:
        """Store the training vectors, and choose k by the squared error on validation queries."""
        costs_usd = profiled_costs_usd(train)
        neighbours = Neighbours(self._vectors(train.examples), train.correct)
        predictions = neighbours.predict(self._vectors(validation.examples), NEIGHBOURS)
        errors = [np.nanmean((each - validation.correct) ** 2) for each in predictions]
        k = NEIGHBOURS[int(np.argmin(errors))]

        def predict(examples: Sequence[Example]) -> Floats:
            return neighbours.predict(self._vectors(examples), (k,))[0]

        return Predictor(predict, costs_usd)

    def _vectors(self, examples: Sequence[Example]) -> Floats:
        return self.embed([self.view(example) for example in examples])


@dataclass(frozen=True, slots=True)
class Similarity:
    """Mean label of all training queries, weighted by their similarity (RouteLLM).

    RouteLLM fits Elo ratings to battles between models. A battle has the weight
    10 * 10^(s / s_max), where s is the cosine of its query to the new query. Here, a model plays
    against the query and wins if it answers correctly. With one opponent, the ratings have a closed
    form: the predicted win rate is the weighted share of wins. At most `MAX_BATTLES` random
    training queries are battles, because every battle counts for every new query.
    """

    kind: ClassVar[Kind] = "baseline"
    view: View
    embed: Embedder
    name: str = "similarity"

    def fit(self, train: Table, validation: Table) -> Predictor:  # noqa: ARG002 - part of the protocol
        """Store the training vectors and labels."""
        costs_usd = profiled_costs_usd(train)
        if len(train) > MAX_BATTLES:
            train = train.take(
                np.random.default_rng(0).choice(len(train), MAX_BATTLES, replace=False)
            )
        vectors = self._vectors(train.examples)
        asked = (~np.isnan(train.correct)).astype(np.float64)
        wins = np.nan_to_num(train.correct)

        def predict(examples: Sequence[Example]) -> Floats:
            shares = []
            unseen = self._vectors(examples)
            for start in range(0, len(unseen), CHUNK_ROWS):
                similarities = unseen[start : start + CHUNK_ROWS] @ vectors.T  # (chunk, train)
                # RouteLLM divides by the largest similarity, which must be positive.
                nearest = np.maximum(similarities.max(axis=1, keepdims=True), 1e-6)
                weights = 10 * 10 ** (similarities / nearest)
                shares.append((weights @ wins) / (weights @ asked))
            return np.concatenate(shares)

        return Predictor(predict, costs_usd)

    def _vectors(self, examples: Sequence[Example]) -> Floats:
        return self.embed([self.view(example) for example in examples])


class Neighbours:
    """Search for the labelled vectors of length 1 that are nearest by cosine.

    Up to `searched_rows` vectors, the search is exact. More vectors are divided into cells around
    k-means, and about `searched_rows` of them are searched for a query: those of the cells around
    it. The time is then proportional to the number of queries, instead of the square.
    """

    def __init__(self, vectors: Floats, labels: Floats, searched_rows: int = SEARCHED_ROWS) -> None:
        """Store vectors (rows, width) and labels (rows, arms), which are NaN if unknown."""
        self._vectors, self._labels = vectors, labels
        self._cells: MiniBatchKMeans | None = None
        members: list[NDArray[np.int64]] = [np.arange(len(vectors))]
        if len(vectors) > searched_rows:
            count = -(-len(vectors) * SEARCHED_CELLS // searched_rows)
            self._cells = MiniBatchKMeans(count, n_init=1, random_state=0).fit(vectors)
            found = self._cells.labels_
            members = np.split(np.argsort(found, kind="stable"), np.bincount(found).cumsum()[:-1])
            centers = self._cells.cluster_centers_
            near = np.argsort(-centers @ centers.T, axis=1, kind="stable")[:, :SEARCHED_CELLS]
            members = [np.concatenate([members[cell] for cell in cells]) for cells in near]
        self._searched = members

    def predict(self, vectors: Floats, ks: Sequence[int]) -> list[Floats]:
        """Return for each k the mean labels of the k nearest rows with a label, (rows, arms)."""
        arms = self._labels.shape[1]
        predicted = [np.empty((len(vectors), arms)) for _ in ks]
        cells = np.zeros(len(vectors), dtype=np.int64)
        if self._cells is not None:
            cells = self._cells.predict(vectors)
        for cell in np.unique(cells):
            rows = np.flatnonzero(cells == cell)
            labels = self._labels[self._searched[cell]]
            for chunk in np.array_split(rows, -(-len(rows) // CHUNK_ROWS)):
                similarities = vectors[chunk] @ self._vectors[self._searched[cell]].T
                for result, k in zip(predicted, ks, strict=True):
                    result[chunk] = _mean_of_nearest(similarities, labels, k)
        return predicted


def _mean_of_nearest(similarities: Floats, labels: Floats, k: int) -> Floats:
    """Return each arm's mean label of its k most similar rows with a label, (queries, arms).

    Similarities are (queries, rows), and labels (rows, arms).
    """
    means = np.empty((len(similarities), labels.shape[1]))
    known = ~np.isnan(labels)
    for mask in np.unique(known, axis=1).T:  # Most often, all arms were asked the same queries.
        arms = np.flatnonzero((known == mask[:, None]).all(axis=0))
        among = min(k, int(mask.sum()))
        own, wanted = -similarities[:, mask], labels[mask][:, arms]
        nearest = np.argpartition(own, among - 1, axis=1)[:, :among]
        means[:, arms] = wanted[nearest].mean(axis=1)
    return means


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

    kind: ClassVar[Kind] = "baseline"
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
                    loss.backward()
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

    Building it raises KeyError for an arm without a description in `profiles`.
    """

    def build(_: int, arms: tuple[str, ...]) -> nn.Module:
        return ItemResponse(_tensor(embed([views.text(profiles[arm]) for arm in arms])))

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
