"""Expected correct answers: how many there were, compared with the baseline model, and how surely.

For a routed request, calibrated probabilities say how probably the delivered answer is correct, and
how probably the baseline model would have answered correctly. Their sums are the expected numbers
of correct answers. Two things make such an expectation uncertain: chance, and errors of the
probabilities. The errors are measured on held-out queries, in groups whose tools the router had not
seen: by how much the accuracy of a policy, compared with the baseline model's, differed from the
expected one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from router_service.artifact import Artifact
from router_service.core.record import Expectation
from router_service.core.resources import return_freed
from router_service.measurement.held_out import (
    HELD_OUT,
    HeldOut,
    PricedOutcomes,
    named_floors,
    read_judgements,
)
from router_service.measurement.rules import best_single, frontier_rules, prices_in_usd, route
from router_service.measurement.simulation import Simulation
from router_service.policies.costs import Price
from router_service.policies.registry import nearest_rule
from router_service.policies.verified import PRICES, Verified, is_verified
from router_service.predictor.model import Floats

STANDARD_ERRORS = 2.2
"""Half the width of an interval. It is more than the usual 1.96, because the spread of errors is
known from a few groups only. `benchmarks/expectations.py` measures how often intervals are right.
"""

MIN_GROUPS = 3
"""Least number of groups from which the spread of errors is estimated."""

MIN_DIFFERING = 50
"""Least number of a group's queries with another answer than the baseline model's."""


@dataclass(frozen=True, slots=True)
class RelativeAccuracy:
    """Expected number of correct answers as a share of the baseline model's, with its interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(
        cls, correct: float, baseline_correct: float, variance: float, error: float
    ) -> RelativeAccuracy | None:
        """Return the share from the sums of `Expectation`; None if the baseline's sum is 0."""
        if baseline_correct <= 0:
            return None
        value = correct / baseline_correct
        half = STANDARD_ERRORS * math.sqrt(variance + error**2) / baseline_correct
        return cls(value, max(0.0, value - half), value + half)


@dataclass(frozen=True, slots=True)
class EstimateError:
    """How far the expectations of a policy were off on held-out queries with unseen tools.

    It is about queries whose answer was not the baseline model's.
    """

    bias: float
    """Mean of the actual minus the expected difference in correctness."""
    spread: float
    """Standard error of that mean for another group of tools."""
    variance_share: float
    """Variance of the differences, as a share of what it would be if the models were right and
    wrong independently of each other."""

    def expect(self, p_correct: float, p_baseline: float) -> Expectation:
        """Return the expectation for an answer that is not the baseline model's."""
        independent = p_correct * (1 - p_correct) + p_baseline * (1 - p_baseline)
        return Expectation(
            correct=max(0.0, p_correct + self.bias),
            baseline_correct=p_baseline,
            variance=self.variance_share * independent,
            error=self.spread,
        )


@dataclass(frozen=True, slots=True, eq=False)
class ComparedAnswers:
    """A policy's answers to held-out queries beside the baseline model's, (queries,) each."""

    correct: Floats
    baseline_correct: Floats
    p_correct: Floats
    p_baseline: Floats
    differs: NDArray[np.bool_]
    """Whether the answer is not the baseline model's, or is judged by other probabilities."""

    def errors(self, groups: NDArray[np.int64]) -> tuple[Floats, float]:
        """Return the mean error of each large enough group, and the share of the variance.

        `groups`, (queries,), is the group of each query.
        """
        gained = self.correct - self.baseline_correct
        error = (gained - (self.p_correct - self.p_baseline))[self.differs]
        differing = groups[self.differs]
        means = [
            float(error[differing == group].mean())
            for group in np.unique(differing)
            if (differing == group).sum() >= MIN_DIFFERING
        ]
        spreads = self.p_correct * (1 - self.p_correct) + self.p_baseline * (1 - self.p_baseline)
        independent = float(spreads[self.differs].sum())
        share = float((error**2).sum()) / independent if independent > 0 else 1.0
        return np.array(means), share


@dataclass(frozen=True, slots=True)
class EstimateErrors:
    """The measured errors of the policies of a pool, compared with one baseline model."""

    by_rule: Mapping[str, EstimateError]
    others: Mapping[bool, EstimateError]
    """Of policies that were not measured, by whether they verify answers."""

    @classmethod
    def of(
        cls, compared: Mapping[str, ComparedAnswers], groups: NDArray[np.int64]
    ) -> EstimateErrors:
        """Return the errors of policies, by rule, from their answers to the same queries.

        The spread of a policy would be estimated from a few groups. It is therefore the mean of
        all policies that verify answers, or of all that do not.
        """
        by_rule: dict[str, EstimateError] = {}
        others: dict[bool, EstimateError] = {}
        for verifies in (False, True):
            found = {
                rule: (means, share)
                for rule, answers in compared.items()
                if is_verified(rule) == verifies
                for means, share in [answers.errors(groups)]
                if len(means) >= MIN_GROUPS
            }
            if not found:
                continue
            # Of the mean of the groups, and of another group.
            variance = np.mean([m.var(ddof=1) * (1 + 1 / len(m)) for m, _ in found.values()])
            biases = np.array([m.mean() for m, _ in found.values()])
            for rule, (means, share) in found.items():
                by_rule[rule] = EstimateError(float(means.mean()), math.sqrt(variance), share)
            others[verifies] = EstimateError(
                bias=float(biases.mean()),
                spread=math.sqrt(variance + biases.var()),
                variance_share=max(share for _, share in found.values()),
            )
        return cls(by_rule, others)

    def find(self, rule: str) -> EstimateError | None:
        """Return the error of a policy, or that of the nearest one of its kind.

        Returns None if nothing was measured of policies that verify answers, or do not, as it does.
        """
        nearest = rule if rule in self.by_rule else nearest_rule(rule, self.by_rule)
        return self.others.get(is_verified(rule)) if nearest is None else self.by_rule[nearest]


def measure_errors(artifact: Artifact, baseline_arm: str) -> EstimateErrors | None:
    """Return the errors of the policies of an artifact's pool; None without held-out predictions.

    The first call takes about a second if the artifact verifies answers, and later calls return the
    same errors. Raises ArtifactError if the file cannot be read.
    """
    manifest = artifact.manifest
    pool = manifest.measured_arms if artifact.pool is None else artifact.pool
    if HELD_OUT not in manifest.files or baseline_arm not in pool:
        return None
    with _MEASURING:  # A second caller waits for the first one's errors.
        return _measure_errors(
            artifact.directory / HELD_OUT,
            manifest.files[HELD_OUT],
            tuple(manifest.arms.index(arm) for arm in pool),
            pool.index(baseline_arm),
            tuple(manifest.profile[arm].price for arm in manifest.measured_arms),
            named_floors(manifest),
            () if manifest.verifier is None else manifest.verifier.gain_features,
        )


_MEASURING = Lock()


@lru_cache(maxsize=8)
def _measure_errors(
    path: Path,
    _sha256: str,
    columns: tuple[int, ...],
    baseline: int,
    prices: tuple[Price, ...],
    named: tuple[tuple[float, float], ...],
    gain_features: tuple[str, ...],
) -> EstimateErrors:
    """Return the errors for some columns; the hash is a part of the cache's key."""
    try:
        return EstimateErrors.of(
            compare_policies(path, columns, baseline, prices, named, gain_features),
            HeldOut.read(path).folds,
        )
    finally:
        return_freed()


def compare_policies(
    path: Path,
    columns: Sequence[int],
    baseline: int,
    prices: Sequence[Price],
    named: Sequence[tuple[float, float]],
    gain_features: tuple[str, ...],
) -> dict[str, ComparedAnswers]:
    """Return what policies answer to the queries of a file of held-out predictions, by rule.

    The policies are those that a frontier measures, verified ones at some prices, and `named` ones,
    by price and floor. `columns` are the columns of the pool, `baseline` is the place of the
    baseline model among these, and `prices` are those of all arms.
    """
    held_out = HeldOut.read(path)
    pool, rows = held_out.select_arms(columns), np.arange(len(held_out.folds))
    listed = [prices[column] for column in columns]
    costs_usd = pool.expected_costs_usd(listed)

    def compare(chosen: NDArray[np.int64], p_correct: Floats | None = None) -> ComparedAnswers:
        own = pool.probabilities[rows, chosen] if p_correct is None else p_correct
        return ComparedAnswers(
            correct=pool.correct[rows, chosen],
            baseline_correct=pool.correct[:, baseline],
            p_correct=own,
            p_baseline=pool.probabilities[:, baseline],
            differs=(chosen != baseline) | (p_correct is not None),
        )

    found = {
        rule: compare(route(pool.probabilities, costs_usd, rule))
        for rule in frontier_rules(costs_usd)
    }
    judged = read_judgements(path) if gain_features and len(columns) > 1 else None
    if judged is not None:
        outcomes = PricedOutcomes(pool.correct, pool.recorded_costs_usd(listed))
        best_usd = float(outcomes.cost_usd[:, best_single(outcomes)].mean())
        simulation = Simulation(judged, gain_features)
        fold_costs_usd = held_out.fold_costs_usd(prices)
        floors = dict.fromkeys(prices_in_usd(PRICES[::4], best_usd), 0.0) | dict(named)
        for price_usd, floor in sorted(floors.items()):
            answers = simulation.answer(fold_costs_usd, price_usd, columns, floor=floor)
            found[str(Verified(price_usd))] = compare(answers.accepted, answers.p_correct)
    return found
