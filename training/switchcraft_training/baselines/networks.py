"""Small networks on frozen embeddings: MLP, matrix factorization, item response theory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from switchcraft_training.baselines.base import Predictor, profiled_costs_usd
from switchcraft_training.baselines.embedder import Embedder
from switchcraft_training.baselines.views import View, Views
from switchcraft_training.evaluation.table import Floats, Table
from switchcraft_training.finetune.threads import one_thread
from switchcraft_training.records import Example

Weigh = Callable[[Floats, tuple[float, ...]], Floats]
"""Known labels and costs of the arms -> the loss's weights, (queries, arms)."""

Build = Callable[[int, tuple[str, ...]], nn.Module]
"""Width of the vectors, the arms -> a network from (queries, width) to logits (queries, arms)."""


@dataclass(frozen=True, slots=True)
class Fitting:
    """How a network is fitted; a batch is of queries, each with the labels of all its arms."""

    learning_rate: float
    batch_size: int
    max_epochs: int
    weight_decay: float = 0.0
    patience_epochs: int = 10


@dataclass(frozen=True, slots=True)
class Network:
    """A network on frozen embeddings, fitted by BCE; the best epoch on validation is kept."""

    name: str
    view: View
    embed: Embedder
    build: Build
    fitting: Fitting
    weigh: Weigh
    seed: int

    def fit(self, train: Table, validation: Table) -> Predictor:
        """Fit the network; equal seeds and tables give equal networks."""
        costs_usd = profiled_costs_usd(train)
        lessons, checks = self._lessons(train, costs_usd), self._lessons(validation, costs_usd)
        with _alone(self.seed):
            network = self.build(lessons.vectors.shape[1], train.arms)
            _fit(network, lessons, checks, self.fitting)

        def predict(examples: Sequence[Example]) -> Floats:
            with torch.inference_mode():
                logits = network(self._vectors(examples))
            probabilities: Floats = torch.sigmoid(logits).double().numpy()
            return probabilities

        return Predictor(predict, costs_usd)

    def _vectors(self, examples: Sequence[Example]) -> Tensor:
        return torch.tensor(self.embed([self.view(e) for e in examples]), dtype=torch.float32)

    def _lessons(self, table: Table, costs_usd: tuple[float, ...]) -> _Lessons:
        known = np.nan_to_num(table.correct)
        weights = np.where(np.isnan(table.correct), 0.0, self.weigh(known, costs_usd))
        return _Lessons(self._vectors(table.examples), _tensor(known), _tensor(weights))


@contextmanager
def _alone(seed: int) -> Iterator[None]:
    """Draw from a seed of its own, in one thread."""
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def mlp(width: int, arms: tuple[str, ...]) -> nn.Module:
    """One hidden layer of 100 units, as scikit-learn's classifier has by default."""
    return nn.Sequential(nn.Linear(width, 100), nn.ReLU(), nn.Linear(100, len(arms)))


class MatrixFactorization(nn.Module):
    """RouteLLM's bilinear form: w · (arm * projected query), the arm's vector of length 1.

    RouteLLM compares two models by the difference of their scores; here an arm's score, with a
    bias, is the logit of its answer being correct, which is EmbedLLM's use of the same form.
    """

    def __init__(self, width: int, arms: tuple[str, ...]) -> None:
        super().__init__()
        dimensions, self._noise = 128, 0.1  # RouteLLM's
        self.arms = nn.Embedding(len(arms), dimensions)
        self.project = nn.Linear(width, dimensions, bias=False)
        self.score = nn.Linear(dimensions, 1)

    def forward(self, vectors: Tensor) -> Tensor:
        """Map (queries, width) to logits (queries, arms); training adds noise to the vectors."""
        if self.training:
            vectors = vectors + self._noise * torch.randn_like(vectors)
        arms = functional.normalize(self.arms.weight, dim=1)  # (arms, dimensions)
        scored = self.project(vectors) * self.score.weight  # (queries, dimensions)
        logits: Tensor = scored @ arms.T + self.score.bias
        return logits


class ItemResponse(nn.Module):
    """The two-parameter logistic model of 25 dimensions (appendix on MIRT-DistilBERT).

    A query has a discrimination `a` and a difficulty `b`, an arm an ability from its profile's
    vector, (arms, width); the logit is a · ability - b.
    """

    def __init__(self, profiles: Tensor, dimensions: int = 25) -> None:
        super().__init__()
        width = profiles.shape[1]
        self.profiles = profiles
        self.ability = nn.Linear(width, dimensions)
        self.discrimination = nn.Linear(width, dimensions)
        self.difficulty = nn.Linear(width, 1)

    def forward(self, vectors: Tensor) -> Tensor:
        """Map (queries, width) to logits (queries, arms)."""
        discrimination = functional.softplus(self.discrimination(vectors))
        logits: Tensor = discrimination @ self.ability(self.profiles).T - self.difficulty(vectors)
        return logits


def item_response(views: Views, embed: Embedder, profiles: Mapping[str, str]) -> Build:
    """Return how to build the model for arms with these profiles; without one, its name is it."""

    def build(_: int, arms: tuple[str, ...]) -> nn.Module:
        return ItemResponse(_tensor(embed([views.text(profiles.get(arm, arm)) for arm in arms])))

    return build


def equal_weights(known: Floats, _: tuple[float, ...]) -> Floats:
    """Weigh every label alike."""
    return np.ones_like(known)


def by_cost(known: Floats, costs_usd: tuple[float, ...]) -> Floats:
    """Weigh an arm's wrong answers by 1 to 2, in proportion to what the arm costs.

    The paper's asymmetric loss penalizes more heavily what misroutes to expensive models (its
    table of what did not help) and gives no formula: to take a wrong answer for a correct one
    counts double for the dearest arm.
    """
    shares = np.asarray(costs_usd) / max(costs_usd)
    return 1 + (1 - known) * shares


@dataclass(frozen=True, slots=True)
class _Lessons:
    """Vectors (queries, width), labels and weights (queries, arms), 0 where nothing is known."""

    vectors: Tensor
    labels: Tensor
    weights: Tensor

    def batches(self, size: int) -> Iterator[_Lessons]:
        for rows in torch.split(torch.randperm(len(self.vectors)), size):
            yield _Lessons(self.vectors[rows], self.labels[rows], self.weights[rows])


def _fit(network: nn.Module, lessons: _Lessons, checks: _Lessons, fitting: Fitting) -> None:
    """Fit until validation has not improved for a while; leave the best epoch's weights."""
    optimizer = torch.optim.Adam(
        network.parameters(), fitting.learning_rate, weight_decay=fitting.weight_decay
    )
    best, kept, since = float("inf"), deepcopy(network.state_dict()), 0
    for _ in range(fitting.max_epochs):
        _epoch(network.train(), optimizer, lessons.batches(fitting.batch_size))
        with torch.inference_mode():
            loss = float(_loss(network.eval(), checks))
        since += 1
        if loss < best:
            best, kept, since = loss, deepcopy(network.state_dict()), 0
        if since == fitting.patience_epochs:
            break
    network.load_state_dict(kept)


def _epoch(
    network: nn.Module, optimizer: torch.optim.Optimizer, batches: Iterator[_Lessons]
) -> None:
    for batch in batches:
        optimizer.zero_grad()
        _loss(network, batch).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()


def _loss(network: nn.Module, lessons: _Lessons) -> Tensor:
    losses = functional.binary_cross_entropy_with_logits(
        network(lessons.vectors), lessons.labels, lessons.weights, reduction="sum"
    )
    return losses / lessons.weights.sum().clamp(min=1e-9)


_tensor = partial(torch.tensor, dtype=torch.float32)
