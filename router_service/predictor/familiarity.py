"""Familiarity: how much a request resembles the queries that the router has learned from.

A router is measured on queries like those of its training. For a request of another kind its
probabilities are extrapolated, and nobody has measured how well. `training/EXPERIMENTS.md` has what
the familiarity tells apart, and what else was tried.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import Field, model_validator

from router_service.core.values import Strict
from router_service.policies.costs import NonNegative
from router_service.predictor.model import Floats, Number, Probability

LIMIT = 0.05
"""Requests below this familiarity are unfamiliar, so 5% of held-out queries are."""

BEST = "best"
"""Unfamiliar requests get an answer of the most accurate model."""
ROUTE = "route"
"""Unfamiliar requests get the policy that others get."""


class FamiliaritySpec(Strict):
    """A distance to the training queries, and the distances of held-out queries with unseen tools.

    It is the Mahalanobis distance of the logarithms of some sizes to their `mean`, in units of
    `scale`; `precision` is the inverse of their correlations.
    """

    sizes: tuple[tuple[str, ...], ...] = Field(
        min_length=1, description="What is compared: each is the sum of some structural features."
    )
    mean: tuple[Number, ...]
    scale: tuple[Number, ...]
    precision: tuple[tuple[Number, ...], ...]
    distances: tuple[NonNegative, ...] = Field(
        min_length=2, description="Quantiles of the held-out queries' distances, increasing."
    )
    shares: tuple[Probability, ...] = Field(
        description="Share of the held-out queries that are at least as far, decreasing."
    )
    queries: int = Field(ge=1, description="Held-out queries that the shares were counted on.")
    limit: float = Field(LIMIT, gt=0, lt=1, description="Requests below it are unfamiliar.")
    base_rates: Mapping[str, Probability] = Field(
        description="Share of correct answers of each arm, towards which the probabilities of"
        " unfamiliar requests are shrunk."
    )

    @model_validator(mode="after")
    def _check_consistent(self) -> FamiliaritySpec:
        rows = (self.mean, self.scale, self.precision, *self.precision)
        if any(len(row) != len(self.sizes) for row in rows):
            raise ValueError("`mean`, `scale` and `precision` must have a value for each size")
        if min(self.scale) <= 0:
            raise ValueError("`scale` must be positive")
        if len(self.shares) != len(self.distances):
            raise ValueError("`shares` must have a value for each of `distances`")
        if any(np.diff(self.distances) <= 0) or any(np.diff(self.shares) >= 0):
            raise ValueError("`distances` must increase, and `shares` decrease")
        return self


class Sizes:
    """Reads the sizes that are compared from requests' structural features."""

    def __init__(self, sizes: Sequence[Sequence[str]], names: Sequence[str]) -> None:
        """Sum the features of each size; `names` are the features in their order.

        Raises ValueError if one is missing.
        """
        self._sums = np.zeros((len(names), len(sizes)))
        for column, size in enumerate(sizes):
            for name in size:
                self._sums[names.index(name), column] = 1.0

    def of(self, features: Floats) -> Floats:
        """Return the logarithms of the sizes, (..., sizes), from features, (..., features)."""
        logarithms: Floats = np.log1p(features @ self._sums)
        return logarithms


class Familiarity:
    """Familiarity of requests by their structural features; safe to share between threads."""

    def __init__(self, spec: FamiliaritySpec, names: Sequence[str]) -> None:
        """Read the features in the order of `names`. Raises ValueError if one is missing."""
        self.spec = spec
        self._sizes = Sizes(spec.sizes, names)
        self._mean = np.array(spec.mean)
        self._scale = np.array(spec.scale)
        self._precision = np.array(spec.precision)

    def of(self, features: Sequence[float]) -> float:
        """Return the familiarity of a request: the share of held-out queries at least as far.

        It is 0 beyond all of them, and takes some 0.01 ms.
        """
        offset = (self._sizes.of(np.array(features)) - self._mean) / self._scale
        squared, known = float(offset @ self._precision @ offset), self.spec.distances
        distance = 0.0 if squared <= 0 else math.sqrt(squared)
        if distance <= known[0]:
            return 1.0
        if not distance <= known[-1]:  # true if the distance is NaN
            return 0.0
        after = min(bisect_right(known, distance), len(known) - 1)
        low, high = known[after - 1 : after + 1]
        more, less = self.spec.shares[after - 1 : after + 1]
        return more + (less - more) * (distance - low) / (high - low)

    def shrink(
        self, probabilities: Sequence[float], base_rates: Sequence[float], familiarity: float
    ) -> tuple[float, ...]:
        """Return probabilities, (arms,), that trust the router less below the limit.

        At the limit they are the router's, and at 0 the arms' base rates, (arms,).
        """
        weight = min(1.0, familiarity / self.spec.limit)
        return tuple(
            weight * p + (1 - weight) * rate
            for p, rate in zip(probabilities, base_rates, strict=True)
        )
