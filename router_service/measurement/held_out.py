"""Held-out predictions in an artifact: the figures of any part of its pool, at any prices.

A frontier that was measured for all arms of an artifact says nothing about some of them, nor about
other prices. The artifact therefore carries what its figures were computed from, as numbers only:
no text of a query, and no answer.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from router_service.artifact import Artifact, FrontierPoint, Manifest, Measure
from router_service.core.errors import ArtifactError
from router_service.core.resources import return_freed
from router_service.measurement.goals import resolve_policies
from router_service.measurement.rules import (
    Bench,
    Costs,
    Outcomes,
    best_single,
    oracle,
    pick,
    prices_in_usd,
    route,
)
from router_service.measurement.rules import sweep as measure_rules
from router_service.measurement.simulation import JudgedAnswers, Simulation
from router_service.measurement.statistics import auc_measure, mean_measure, resamples
from router_service.policies.costs import Price
from router_service.policies.registry import choosing_name
from router_service.policies.verified import PRICES, Verified
from router_service.predictor.model import Floats

HELD_OUT = "held-out.npz"
"""File of the held-out predictions; an artifact may lack it."""

MAX_QUERIES = 20_000
"""Larger tables are sampled: the file takes about 90 bytes for each query of eight arms."""

MAX_JUDGEMENTS = 5_000_000
"""Tables with more judgements of candidates are sampled: each takes about 1.5 bytes."""

_TYPES = (np.uint8, np.uint16, np.uint32, np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class HeldOut:
    """A router's predictions for queries that it had not seen, and the answers of every arm.

    The columns are the arms of the artifact. The arrays without another shape have the shape
    (queries, arms). Tokens and seconds are 0 if they were not recorded, because such an answer was
    not paid for.
    """

    probabilities: Floats
    correct: Floats
    """The share of an arm's answers to a query that were correct. It is an estimate for most
    answers of an arm that joined without retraining, and so are its tokens and seconds."""
    input_tokens: Floats
    output_tokens: Floats
    seconds: Floats
    folds: NDArray[np.int64]
    """The row of `usage` from which the costs of each query were expected, (queries,)."""
    usage: Floats
    """Mean input tokens, output tokens and seconds on the training queries of each fold, (folds,
    arms, 3)."""

    def write(self, directory: Path, judged: JudgedAnswers | None = None) -> None:
        """Write the file of an artifact, with seconds in single precision; all else is exact.

        `judged` are the verifier's judgements of the same queries.
        """
        rows = sample_rows(len(self.folds))
        if judged is not None:
            rows = rows[sample_rows(len(rows), MAX_JUDGEMENTS // judged.p_correct.shape[1])]
        sampled = self._take(rows)
        arrays = {field.name: getattr(sampled, field.name) for field in fields(self)}
        arrays["seconds"] = arrays["seconds"].astype(np.float32)
        packed: dict[str, Any] = {name: _smallest(array) for name, array in arrays.items()}
        if judged is not None:
            described = judged.take(rows).arrays()
            packed |= {f"{_JUDGED}{name}": array for name, array in described.items()}
        with (directory / HELD_OUT).open("wb") as file:
            np.savez_compressed(file, **packed)

    @classmethod
    def read(cls, path: Path) -> HeldOut:
        """Read the file of an artifact. Raises ArtifactError."""
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {field.name: file[field.name] for field in fields(cls)}
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as exc:
            raise ArtifactError(path, f"cannot be read: {exc}") from exc
        folds = arrays.pop("folds").astype(np.int64)
        return cls(folds=folds, **{name: each.astype(np.float64) for name, each in arrays.items()})

    def select_arms(self, columns: Sequence[int]) -> HeldOut:
        """Return the predictions and answers of the arms in these columns, in this order."""
        places = list(columns)
        chosen = {name: getattr(self, name)[:, places] for name in _BY_ARM}
        return replace(self, **chosen, usage=self.usage[:, places])

    def join_arms(self, other: HeldOut) -> HeldOut:
        """Return the arms of both, which are about the same queries in the same folds."""
        joined = {name: np.hstack([getattr(self, name), getattr(other, name)]) for name in _BY_ARM}
        return replace(self, **joined, usage=np.hstack([self.usage, other.usage]))

    def recorded_costs_usd(self, prices: Sequence[Price]) -> Floats:
        """Return the cost of every answer, (queries, arms), at these prices, (arms,)."""
        columns = zip(
            prices, self.input_tokens.T, self.output_tokens.T, self.seconds.T, strict=True
        )
        return np.column_stack([price.cost_usd(*usage) for price, *usage in columns])

    def expected_costs_usd(self, prices: Sequence[Price]) -> Floats:
        """Return the costs that the router expected, (queries, arms), at these prices, (arms,)."""
        return self.fold_costs_usd(prices)[self.folds]

    def fold_costs_usd(self, prices: Sequence[Price]) -> Floats:
        """Return the costs that each fold's router expected, (folds, arms), at these prices."""
        by_fold = [
            [price.cost_usd(*usage) for price, usage in zip(prices, arms, strict=True)]
            for arms in self.usage.tolist()
        ]
        return np.array(by_fold)

    def _take(self, rows: NDArray[np.int64]) -> HeldOut:
        chosen = {name: getattr(self, name)[rows] for name in (*_BY_ARM, "folds")}
        return replace(self, **chosen)


_BY_ARM = ("probabilities", "correct", "input_tokens", "output_tokens", "seconds")


_JUDGED = "judged_"
"""Beginning of the names of the arrays with a verifier's judgements."""


def sample_rows(queries: int, limit: int = MAX_QUERIES) -> NDArray[np.int64]:
    """Return the rows of all queries, or of a fixed random sample if there are more."""
    if queries <= limit:
        return np.arange(queries)
    return np.sort(np.random.default_rng(0).permutation(queries)[:limit])


def read_judgements(path: Path) -> JudgedAnswers | None:
    """Read the verifier's judgements from a file of held-out predictions; None without them.

    They are of the queries of `HeldOut.read`, in the same order. Raises ArtifactError.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            names = [name for name in file.files if name.startswith(_JUDGED)]
            arrays = {name.removeprefix(_JUDGED): file[name] for name in names}
        return JudgedAnswers.from_arrays(arrays) if arrays else None
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as exc:
        raise ArtifactError(path, f"cannot be read: {exc}") from exc


def _smallest(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in the smallest type that holds its values exactly."""
    for kind in _TYPES:
        with np.errstate(invalid="ignore", over="ignore"):
            smaller = array.astype(kind)
        if np.array_equal(smaller, array):
            return smaller
    return array


@dataclass(frozen=True, slots=True)
class PricedOutcomes:
    """The recorded answers of some arms with their costs; these are `Outcomes`."""

    correct: Floats
    cost_usd: Floats


@dataclass(frozen=True, slots=True)
class Figures:
    """What a manifest says about a pool: measured rules, metrics, and the rule of each policy."""

    frontier: tuple[FrontierPoint, ...]
    metrics: Mapping[str, Measure]
    policies: Mapping[str, str]

    @classmethod
    def measure(
        cls,
        outcomes: Outcomes,
        probabilities: Floats,
        expected_costs_usd: Costs,
        policies: Mapping[str, str],
    ) -> Figures:
        """Measure a router by its held-out probabilities, (queries, arms).

        `policies` are rules, or goals that are replaced by the rule that reaches them.
        """
        bench = Bench.of(outcomes)
        frontier = tuple(
            entry.point for entry in measure_rules(outcomes, probabilities, expected_costs_usd)
        )
        rules = resolve_policies(policies, frontier, mean_measure(bench.best))
        measured = {
            "default": route(probabilities, expected_costs_usd, rules[choosing_name(rules)]),
            "best_single": np.full(len(probabilities), best_single(outcomes)),
            "oracle": oracle(outcomes),
        }
        auc = auc_measure(outcomes.correct, probabilities)
        metrics = {} if math.isnan(auc.value) else {"mean_auc": auc}
        for name, chosen in measured.items():
            correct, cost_usd = pick(outcomes, chosen)
            metrics[f"{name}_accuracy"] = mean_measure(correct)
            metrics[f"{name}_cost_usd"] = mean_measure(cost_usd)
        return cls(frontier, metrics, rules)


def describe_pool(
    artifact: Artifact, arms: Collection[str], prices: Mapping[str, Price]
) -> Artifact:
    """Return an artifact whose figures are those of some of its arms, some at other prices.

    The prices of its profile are the new ones. The figures are the frontier, the metrics, and the
    rules of the policies that were chosen by a goal. Without held-out predictions there are no
    figures, and the policies keep their rules. The figures of verified answers take longer:
    `served_points` computes them when they are needed.
    Raises ArtifactError if the file cannot be read.
    """
    manifest = artifact.manifest
    profile = {
        arm: usage.model_copy(update={"price": prices.get(arm, usage.price)})
        for arm, usage in manifest.profile.items()
    }
    changed: dict[str, object] = {
        "profile": profile,
        "frontier": (),
        "verified_frontier": (),
        "named_frontier": (),
        "metrics": {},
        "estimated_arms": (),
    }
    path = artifact.directory / HELD_OUT
    pool = tuple(arm for arm in manifest.measured_arms if arm in arms)
    if HELD_OUT in manifest.files and pool:
        columns = tuple(c for c, arm in enumerate(manifest.measured_arms) if arm in arms)
        listed = tuple(profile[manifest.arms[column]].price for column in columns)
        policies = tuple({**manifest.policies, **manifest.policy_goals}.items())
        figures = _measure_pool(path, manifest.files[HELD_OUT], columns, listed, policies)
        changed |= {name: getattr(figures, name) for name in ("frontier", "metrics", "policies")}
        changed["estimated_arms"] = tuple(arm for arm in pool if arm in manifest.onboarded)
    return replace(artifact, manifest=manifest.model_copy(update=changed), pool=pool)


def served_points(artifact: Artifact) -> tuple[FrontierPoint, ...]:
    """Return the measured points of verified answers as gateways serve them, by rising price.

    The rules of policies with a name have the floor, and other prices have none. The points are
    those of the manifest, unless `describe_pool` has changed the arms or the prices. Then the first
    call simulates them, which takes a second or two for eight arms, and later calls return the
    same points. Without a verifier's judgements, the result is empty. Raises ArtifactError if the
    file cannot be read.
    """
    by_price, floored = both_points(artifact)
    named = artifact.manifest.named_rules.values()
    return with_floors(by_price, [point for point in floored if point.policy in named])


def goal_points(artifact: Artifact) -> tuple[FrontierPoint, ...]:
    """Return the same points among which goals choose: all have the floor."""
    return with_floors(*both_points(artifact))


def with_floors(
    by_price: Sequence[FrontierPoint], floored: Sequence[FrontierPoint]
) -> tuple[FrontierPoint, ...]:
    """Return the points of prices, with the `floored` ones in the place of their prices."""
    replacing = {point.policy: point for point in floored}
    return tuple(replacing.get(point.policy, point) for point in by_price)


def both_points(artifact: Artifact) -> tuple[tuple[FrontierPoint, ...], tuple[FrontierPoint, ...]]:
    """Return the points of prices without and with the floor."""
    manifest = artifact.manifest
    if manifest.verifier is None:
        return (), ()
    if artifact.pool is None:
        return manifest.verified_frontier, manifest.named_frontier
    if HELD_OUT not in manifest.files or len(artifact.pool) < 2:
        return (), ()
    with _MEASURING:  # A second caller waits for the first one's points.
        return _simulate_pool(
            artifact.directory / HELD_OUT,
            manifest.files[HELD_OUT],
            tuple(manifest.arms.index(arm) for arm in artifact.pool),
            tuple(manifest.profile[arm].price for arm in manifest.measured_arms),
            manifest.fixed_prices_usd,
            manifest.verifier.floor,
            manifest.verifier.gain_features,
        )


def named_floors(manifest: Manifest) -> tuple[tuple[float, float], ...]:
    """Return the price and the floor of each verified policy with a name, by rising price."""
    named = (manifest.measured_policy(rule) for rule in {*manifest.named_rules.values()})
    found = ((each.price_usd, each.floor) for each in named if isinstance(each, Verified))
    return tuple(sorted(found))


_MEASURING = Lock()


@lru_cache(maxsize=8)
def _simulate_pool(
    path: Path,
    _sha256: str,
    columns: tuple[int, ...],
    prices: tuple[Price, ...],
    fixed_usd: tuple[float, ...],
    floor: float,
    gain_features: tuple[str, ...],
) -> tuple[tuple[FrontierPoint, ...], tuple[FrontierPoint, ...]]:
    """Return the points of some columns by price, without and with a floor.

    `prices` are those of all arms. Every second of the prices that training measures is simulated,
    and the `fixed_usd` ones.
    """
    judged = read_judgements(path)
    if judged is None:
        return (), ()
    outcomes, by_price, floored = simulate_prices(
        HeldOut.read(path), Simulation(judged, gain_features), columns, prices, fixed_usd, floor
    )
    try:
        entries = Bench.of(outcomes).measure_all("router", by_price + floored)
        points = tuple(entry.point for entry in entries)
        return points[: len(by_price)], points[len(by_price) :]
    finally:
        resamples.cache_clear()
        return_freed()


RuleResult = tuple[str, Floats, Floats]
"""A rule, with the correctness and the cost in USD of its answers, (queries,) each."""


def simulate_prices(
    held_out: HeldOut,
    simulation: Simulation,
    columns: Sequence[int],
    prices: Sequence[Price],
    fixed_usd: Sequence[float],
    floor: float,
) -> tuple[PricedOutcomes, list[RuleResult], list[RuleResult]]:
    """Return the answers of some columns, and what verified policies make of them.

    The policies are those by price, which include the `fixed_usd` ones, and the same with a floor.
    """
    pool = held_out.select_arms(columns)
    outcomes = PricedOutcomes(
        pool.correct, pool.recorded_costs_usd([prices[column] for column in columns])
    )
    fold_costs_usd = held_out.fold_costs_usd(prices)
    best_usd = float(outcomes.cost_usd[:, best_single(outcomes)].mean())

    def simulate(price_usd: float, floor: float) -> RuleResult:
        answers = simulation.answer(fold_costs_usd, price_usd, columns, floor=floor)
        correct, cost_usd, _ = answers.outcome(outcomes.correct, outcomes.cost_usd, pool.seconds)
        return str(Verified(price_usd)), correct, cost_usd

    prices_usd = sorted({*prices_in_usd(PRICES[::2], best_usd), *fixed_usd})
    by_price, floored = ([simulate(usd, each) for usd in prices_usd] for each in (0.0, floor))
    return outcomes, by_price, floored


@lru_cache(maxsize=8)
def _measure_pool(
    path: Path,
    _sha256: str,
    columns: tuple[int, ...],
    prices: tuple[Price, ...],
    policies: tuple[tuple[str, str], ...],
) -> Figures:
    """Return the figures of some columns at these prices; cached, because they take 0.2 s.

    The hash is a part of the cache's key, so that a replaced file is read again.
    """
    held_out = HeldOut.read(path).select_arms(columns)
    outcomes = PricedOutcomes(held_out.correct, held_out.recorded_costs_usd(prices))
    expected_costs_usd = held_out.expected_costs_usd(prices)
    try:
        return Figures.measure(outcomes, held_out.probabilities, expected_costs_usd, dict(policies))
    finally:
        # 22 MB that training uses again and again, and a gateway does not.
        resamples.cache_clear()
        return_freed()


def single_accuracies(artifact: Artifact) -> Mapping[str, Measure]:
    """Return the held-out accuracy of each arm alone; empty without held-out predictions.

    That of an arm that joined without retraining is estimated. Raises ArtifactError if the file
    cannot be read.
    """
    manifest = artifact.manifest
    if HELD_OUT not in manifest.files:
        return {}
    measures = _single_measures(artifact.directory / HELD_OUT, manifest.files[HELD_OUT])
    estimated = {arm: facts.accuracy for arm, facts in manifest.onboarded.items()}
    return dict(zip(manifest.measured_arms, measures, strict=True)) | estimated


@lru_cache(maxsize=8)
def _single_measures(path: Path, _sha256: str) -> tuple[Measure, ...]:
    return tuple(mean_measure(column) for column in HeldOut.read(path).correct.T)
