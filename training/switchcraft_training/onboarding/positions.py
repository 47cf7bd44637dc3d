"""Position of a model among recorded models, estimated from few of its answers.

The model is multidimensional item response theory: the log-odds that model m answers query q
correctly are `a_q . t_m + b_m + d_q` (Reckase, 2009). Queries' values are fitted to the answers of
all recorded models. A new model then has as few unknowns as there are dimensions, and the recorded
models' positions are the prior for its position. Its position predicts it on every query that
recorded models answered, including those that it was not asked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from router_service.predictor.model import sigmoid
from switchcraft_training.data.table import Floats

Rows = NDArray[np.int64]

DIMENSIONS = 4
"""Directions besides the general ability.

19 recorded models of 2024, each placed among the others by all its answers, are predicted with a
log loss of 0.295, 0.286 and 0.280 with 2, 3 and 4 dimensions."""

MODELS_PER_DIMENSION = 4
OFFSET_DEVIATION = 2.0
POSITION_FLOOR = 0.05
"""Variance that is added to the prior, because few recorded models underestimate it."""

MAX_STEPS = 200
NEWTON_STEPS = 50
LARGEST_STEP = 2.0

INFORMATIVE_SHARE = 0.25
"""Share of the asked queries that are chosen as the most informative ones; the rest are random.

Queries on which recorded models differ most are not typical, and mislead about models that differ
from the recorded ones. `training/EXPERIMENTS.md` compares shares."""

INFORMATIVE_WEIGHT = 0.5
"""Weight of an answer to an informative query, for the same reason."""

BATCH = 5
"""Informative queries that are chosen before the position is updated."""


@dataclass(frozen=True, slots=True)
class Position:
    """A model's estimated position and its uncertainty: mean (dims,), covariance (dims, dims)."""

    mean: Floats
    covariance: Floats


@dataclass(frozen=True, slots=True)
class AnsweredQueries:
    """Queries that a model has answered: rows, correctness and weight of each answer, (n,) each."""

    rows: Rows
    correct: Floats
    weights: Floats

    @classmethod
    def empty(cls) -> AnsweredQueries:
        """Return no queries."""
        return cls(np.empty(0, dtype=np.int64), np.empty(0), np.empty(0))


@dataclass(frozen=True, slots=True)
class RecordedModels:
    """Queries as recorded models answered them, and the distribution of the models' positions.

    `slopes` (queries, dims) has a last column of ones, for the general ability; `offsets`
    (queries,) are the log-odds of a model at the origin. `positions` are (models, dims).
    """

    slopes: Floats
    offsets: Floats
    positions: Floats

    @classmethod
    def fit(cls, correct: Floats) -> RecordedModels:
        """Fit to the correctness of answers (queries, models); NaN if a model was not asked."""
        queries, models = correct.shape
        dims = min(DIMENSIONS, models // MODELS_PER_DIMENSION)
        known = ~np.isnan(correct)
        labels = np.where(known, correct, 0.0)
        rates = (labels.sum(axis=1) + 1) / (known.sum(axis=1) + 2)
        start = np.log(rates / (1 - rates))
        # Start at the principal components of what the queries' difficulty leaves unexplained.
        left, values, right = np.linalg.svd(
            np.where(known, labels - rates[:, None], 0.0), full_matrices=False
        )
        scale = 4 * values[:dims] / np.sqrt(models)
        ends = np.cumsum([queries * dims, queries, models * dims])

        def unpack(x: Floats) -> tuple[Floats, Floats, Floats, Floats]:
            slopes, offsets, directions, abilities = np.split(x, ends)
            return (
                slopes.reshape(queries, dims),
                offsets,
                directions.reshape(models, dims),
                abilities,
            )

        centre = start.mean()

        def loss(x: Floats) -> tuple[float, Floats]:
            """Return the negative log posterior and its gradient."""
            slopes, offsets, directions, abilities = unpack(x)
            logits = slopes @ directions.T + offsets[:, None] + abilities
            off = np.where(known, sigmoid(logits) - labels, 0.0)
            far = (offsets - centre) / OFFSET_DEVIATION
            total = np.where(known, np.logaddexp(0, logits) - labels * logits, 0.0).sum()
            total += 0.5 * sum((each**2).sum() for each in (slopes, far, directions, abilities))
            gradient = (
                (off @ directions + slopes).ravel(),
                off.sum(axis=1) + far / OFFSET_DEVIATION,
                (off.T @ slopes + directions).ravel(),
                off.sum(axis=0) + abilities,
            )
            return float(total), np.concatenate(gradient)

        parts = (left[:, :dims] * scale, start, right[:dims].T * np.sqrt(models), np.zeros(models))
        first = np.concatenate([np.ravel(part) for part in parts])
        options = {"maxiter": MAX_STEPS}
        with threadpool_limits(1):  # the matrices are small, and threads would wait for each other
            found = minimize(loss, first, jac=True, method="L-BFGS-B", options=options)
        slopes, offsets, directions, abilities = unpack(found.x)
        ones = np.ones((queries, 1))
        return cls(np.hstack([slopes, ones]), offsets, np.column_stack([directions, abilities]))

    @property
    def prior(self) -> Position:
        """What is known of a model's position before it was asked anything."""
        dims = self.positions.shape[1]
        spread = np.atleast_2d(np.cov(self.positions.T)) + POSITION_FLOOR * np.eye(dims)
        return Position(self.positions.mean(axis=0), spread)

    def place(self, asked: AnsweredQueries) -> Position:
        """Return the most probable position given answers, with Laplace's covariance."""
        prior = self.prior
        slopes, offsets = self.slopes[asked.rows], self.offsets[asked.rows]
        precision = np.linalg.inv(prior.covariance)
        mean = prior.mean.copy()
        for _ in range(NEWTON_STEPS):
            p = sigmoid(slopes @ mean + offsets)
            gradient = slopes.T @ (asked.weights * (p - asked.correct))
            gradient += precision @ (mean - prior.mean)
            curvature = asked.weights * p * (1 - p)
            hessian = (slopes * curvature[:, None]).T @ slopes + precision
            step = np.linalg.solve(hessian, gradient)
            largest = float(np.abs(step).max())
            mean = mean - step * min(1.0, LARGEST_STEP / max(largest, 1e-12))
            if largest < 1e-7:
                break
        return Position(mean, np.linalg.inv(hessian))  # pyrefly: ignore[bad-argument-type]

    def probabilities(self, position: Position) -> Floats:
        """Return the probability that a model at this position answers each query, (queries,)."""
        return sigmoid(self.slopes @ position.mean + self.offsets)

    def stderrs(self, position: Position) -> Floats:
        """Return the standard error of each of `probabilities`, (queries,)."""
        p = self.probabilities(position)
        variance = np.einsum("ij,jk,ik->i", self.slopes, position.covariance, self.slopes)
        errors: Floats = p * (1 - p) * np.sqrt(variance)
        return errors

    def accuracy(self, position: Position) -> tuple[float, float]:
        """Return the mean of `probabilities`, and its standard error."""
        p = self.probabilities(position)
        slope = (self.slopes * (p * (1 - p))[:, None]).mean(axis=0)
        return float(p.mean()), float(np.sqrt(slope @ position.covariance @ slope))

    def most_informative(self, position: Position, candidates: Rows, count: int) -> Rows:
        """Return the queries whose answers say most about the position (D-optimal), in order.

        Each query is chosen as if the answers to the earlier ones were known.
        """
        p = self.probabilities(position)[candidates]
        information, slopes = p * (1 - p), self.slopes[candidates]
        covariance = position.covariance
        is_open = np.ones(len(candidates), dtype=np.bool_)
        chosen = []
        for _ in range(min(count, len(candidates))):
            value = information * np.einsum("ij,jk,ik->i", slopes, covariance, slopes)
            place = int(np.where(is_open, value, -1.0).argmax())
            is_open[place] = False
            chosen.append(candidates[place])
            reduced = covariance @ slopes[place]
            weight = information[place] / (1 + value[place])
            covariance = covariance - weight * np.outer(reduced, reduced)
        return np.array(chosen, dtype=np.int64)


def choose_queries(
    models: RecordedModels,
    candidates: Rows,
    count: int,
    seed: int,
    asked: AnsweredQueries | None = None,
    share: float = INFORMATIVE_SHARE,
) -> tuple[Rows, Rows]:
    """Return queries to ask: the most informative ones, which are a share, and random others.

    `asked` are the answers so far, whose queries must not be among the candidates.
    """
    position = models.prior if asked is None else models.place(asked)
    informative = models.most_informative(position, candidates, int(count * share))
    rest = np.setdiff1d(candidates, informative)
    drawn = np.random.default_rng(seed).permutation(rest)[: count - len(informative)]
    return informative, drawn


def ask_recorded(
    models: RecordedModels, candidates: Rows, correct: Floats, count: int, seed: int
) -> AnsweredQueries:
    """Return `count` of a model's recorded answers, chosen as if they had to be asked for.

    `correct` is (queries,), and known for all candidates. The position is updated after every
    `BATCH` informative queries.
    """
    informative: list[int] = []
    asked = AnsweredQueries.empty()
    left = candidates
    wanted = int(count * INFORMATIVE_SHARE)
    while len(informative) < wanted:
        size = min(BATCH, wanted - len(informative))
        informative += models.most_informative(models.place(asked), left, size).tolist()
        rows = np.array(informative, dtype=np.int64)
        asked = AnsweredQueries(rows, correct[rows], np.full(len(rows), INFORMATIVE_WEIGHT))
        left = np.setdiff1d(candidates, rows)
    drawn = np.random.default_rng(seed).permutation(left)[: count - len(asked.rows)]
    return AnsweredQueries(
        np.concatenate([asked.rows, drawn]),
        np.concatenate([asked.correct, correct[drawn]]),
        np.concatenate([asked.weights, np.ones(len(drawn))]),
    )
