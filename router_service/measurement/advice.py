"""Advice on which models to use: the smallest pools that reach an accuracy at a cost.

Pools of a few of the available models are tried on some of the artifact's held-out queries: the
models alone, the router that chooses once, and verified answers. The best pools are then measured
on all held-out queries. Because they were picked on some of these, the figures of a recommended
pool are also given for the other queries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from pydantic import Field

from router_service.artifact import Artifact, FrontierPoint, Manifest, Measure
from router_service.core.errors import ArtifactError, ConfigError
from router_service.core.resources import return_freed
from router_service.core.values import Strict
from router_service.measurement.held_out import (
    HELD_OUT,
    HeldOut,
    PricedOutcomes,
    read_judgements,
)
from router_service.measurement.rules import Bench, best_single, pick, prices_in_usd, route
from router_service.measurement.simulation import Simulation
from router_service.measurement.statistics import mean_measure, resamples
from router_service.policies.utility import Utility
from router_service.policies.verified import Verified
from router_service.predictor.model import Floats
from router_service.verifier.graphs import Columns, Flags

MAX_MODELS = 4
"""Default for the largest pool: more models rarely add more than the noise of the figures."""

SEARCH_QUERIES = 400
"""Pools are picked on as many folds as have so many queries together."""

SEARCH_POOLS = 8
"""Pools of each size that are extended by one more model."""

ONCE_PRICES = (0.7, 2.0, 4.0, 8.0, 16.0, 40.0)
VERIFIED_PRICES = (0.3, 0.7, 2.0, 6.0)
"""Prices of a correct answer that are tried, in units of the best single model's mean cost."""

COST_SHARE = 0.2
"""Default for the largest cost of a recommended pool, relative to the best single model."""

LEAST_GAIN, LEAST_SAVING = 0.005, 0.1
"""Gain of accuracy, or share of the cost saved, that is worth another row or one more model."""

Kind = Literal["once", "verified"]
_KINDS: tuple[Kind, ...] = ("once", "verified")


class PoolFigures(Strict):
    """The measured results of one pool of models with one rule."""

    arms: tuple[str, ...]
    kind: Kind = Field(description="Choosing one arm, or verified answers; `once` for one arm.")
    point: FrontierPoint = Field(
        description="The rule, with differences from the best of all available models."
    )


class Recommendation(Strict):
    """The pool and the rule to use for a number of models."""

    kind: Kind
    figures: PoolFigures
    unseen_difference: Measure = Field(
        description="Accuracy minus that of the best single model, on the queries that the choice"
        " of pool and rule did not use."
    )


class Advice(Strict):
    """Pools of the available models: the efficient ones, and one to use for each size."""

    artifact: str
    arms: tuple[str, ...] = Field(description="The available arms.")
    best_single: str = Field(description="The most accurate of them alone.")
    queries: int
    searched: int = Field(description="Queries on which pools and rules were picked.")
    pools: int = Field(description="Pools that were compared.")
    efficient: tuple[PoolFigures, ...] = Field(
        description="By kind and number of models, then by cost: no pool of at most as many models"
        " is cheaper and about as accurate."
    )
    recommended: tuple[Recommendation, ...] = Field(
        description="The most accurate pool of each kind and size within `cost_share`."
    )
    cost_share: float = Field(
        description="Largest cost of a recommended pool, relative to the best single model."
    )
    has_verified: bool


@dataclass(frozen=True, eq=False)
class _Trial:
    """What a pool of arms, by column, did with some queries; (queries,) each."""

    columns: tuple[int, ...]
    kind: Kind
    rule: str
    correct: Floats
    cost_usd: Floats

    def has_kind(self, kind: Kind) -> bool:
        """Return whether a trial is of a kind; that of a single arm is of both."""
        return self.kind == kind or len(self.columns) == 1

    @cached_property
    def means(self) -> tuple[float, float]:
        return float(self.correct.mean()), float(self.cost_usd.mean())


class _Queries:
    """Held-out queries on which pools are tried."""

    def __init__(
        self, artifact: Artifact, rows: Columns | None = None, *, verifies: bool = True
    ) -> None:
        """Read the queries of an artifact in these rows (default: all)."""
        manifest, path = artifact.manifest, artifact.directory / HELD_OUT
        held_out, judged = HeldOut.read(path), read_judgements(path) if verifies else None
        rows = np.arange(len(held_out.folds)) if rows is None else rows
        prices = [manifest.profile[arm].price for arm in manifest.measured_arms]
        self.correct = held_out.correct[rows]
        self.cost_usd = held_out.recorded_costs_usd(prices)[rows]
        self.seconds = held_out.seconds[rows]
        self.folds = held_out.folds[rows]
        self._probabilities = held_out.probabilities[rows]
        self._expected_usd = held_out.expected_costs_usd(prices)[rows]
        self._fold_usd = held_out.fold_costs_usd(prices)
        self.simulation: Simulation | None = None
        if judged is not None and manifest.verifier is not None:
            self.simulation = Simulation(judged.take(rows), manifest.verifier.gain_features)

    def outcomes(self, columns: Sequence[int]) -> PricedOutcomes:
        """Return the answers of some arms."""
        chosen = list(columns)
        return PricedOutcomes(self.correct[:, chosen], self.cost_usd[:, chosen])

    def alone(self, column: int) -> _Trial:
        """Return the results of one arm."""
        answers = self.outcomes([column])
        return _Trial((column,), "once", "alone", answers.correct[:, 0], answers.cost_usd[:, 0])

    def once(self, columns: tuple[int, ...], price_usd: float) -> _Trial:
        """Return the results of choosing once, if a correct answer is worth this price."""
        rule, chosen = str(Utility(price_usd)), list(columns)
        choices = route(self._probabilities[:, chosen], self._expected_usd[:, chosen], rule)
        return _Trial(columns, "once", rule, *pick(self.outcomes(columns), choices))

    def verified(self, columns: tuple[int, ...], price_usd: float) -> _Trial:
        """Return the results of verified answers at this price."""
        assert self.simulation is not None  # noqa: S101 - callers check it
        answers = self.simulation.answer(self._fold_usd, price_usd, columns)
        pool = self.outcomes(columns)
        results = answers.outcome(pool.correct, pool.cost_usd, self.seconds[:, list(columns)])
        return _Trial(columns, "verified", str(Verified(price_usd)), *results[:2])

    def repeat(self, trial: _Trial) -> _Trial:
        """Return the results of another trial's pool and rule on these queries."""
        if len(trial.columns) == 1:
            return self.alone(trial.columns[0])
        price_usd = float(trial.rule.partition("=")[2])
        return (self.once if trial.kind == "once" else self.verified)(trial.columns, price_usd)


def advise(
    artifact: Artifact,
    arms: Collection[str] | None = None,
    *,
    max_models: int = MAX_MODELS,
    max_providers: int | None = None,
    cost_share: float = COST_SHARE,
) -> Advice:
    """Return which pools of the available arms to use; takes some seconds.

    By default, `arms` are those of the artifact's pool. The prices are those of its profile.
    `cost_share` is the largest cost of a recommended pool, relative to the best single arm. Raises
    ArtifactError if the artifact has no held-out predictions, and ConfigError if `max_providers` is
    set and the artifact does not say which providers serve an arm.
    """
    manifest = artifact.manifest
    if HELD_OUT not in manifest.files:
        problem = "is missing, and advice needs held-out predictions"
        raise ArtifactError(artifact.directory / HELD_OUT, problem)
    available = set(artifact.pool or manifest.measured_arms) if arms is None else set(arms)
    columns = tuple(c for c, arm in enumerate(manifest.measured_arms) if arm in available)
    limits = _Limits(max_models, max_providers, _providers(manifest, columns, max_providers))

    everything = _Queries(artifact)
    is_searched = _is_searched(everything.folds)
    sample = _Queries(artifact, np.flatnonzero(is_searched))
    best = columns[best_single(everything.outcomes(columns))]
    best_usd = float(everything.cost_usd[:, best].mean())
    trials = _search(sample, columns, best_usd, limits)
    budget_usd = cost_share * sample.alone(best).means[1]
    kinds = _KINDS if sample.simulation else _KINDS[:1]
    chosen = [
        (kind, trial)
        for kind in kinds
        for size in range(1, max_models + 1)
        if len((trial := _recommended(trials, kind, size, budget_usd)).columns) == size
    ]
    shown = dict.fromkeys([*_efficient(trials), *(trial for _, trial in chosen)])
    measured = {trial: everything.repeat(trial) for trial in shown}
    figures = _figures(everything, columns, manifest, measured)
    kept = set(_efficient([*measured.values()]))
    efficient = [figures[trial] for trial, again in measured.items() if again in kept]
    return Advice(
        artifact=manifest.name,
        arms=tuple(manifest.measured_arms[column] for column in columns),
        best_single=manifest.measured_arms[best],
        queries=len(is_searched),
        searched=int(is_searched.sum()),
        pools=len({trial.columns for trial in trials}),
        efficient=tuple(
            sorted(efficient, key=lambda e: (e.kind, len(e.arms), e.point.cost_usd.value))
        ),
        recommended=tuple(
            Recommendation(
                kind=kind,
                figures=figures[trial],
                unseen_difference=mean_measure(
                    (measured[trial].correct - everything.correct[:, best])[~is_searched]
                ),
            )
            for kind, trial in chosen
        ),
        cost_share=cost_share,
        has_verified=sample.simulation is not None,
    )


def best_addition(
    artifact: Artifact, points: float, *, verified_goals: bool = True
) -> PoolFigures | None:
    """Return the pool with the one more model that saves most; None if none saves a tenth.

    It costs least among those that stay as accurate as the cheapest rule of today's pool that is at
    most so many points below its best model. Verified rules count only with `verified_goals`. Takes
    about a second. Raises ArtifactError if the file cannot be read.
    """
    manifest = artifact.manifest
    columns = tuple(
        manifest.measured_arms.index(arm) for arm in artifact.pool or manifest.measured_arms
    )
    if HELD_OUT not in manifest.files or len(columns) == len(manifest.measured_arms):
        return None
    queries = _Queries(artifact, verifies=verified_goals)

    def cheapest(pool: tuple[int, ...], least: float) -> _Trial | None:
        alone = [queries.alone(column) for column in pool]
        best = max(alone, key=lambda trial: trial.means[0])
        least = max(least, best.means[0] - points / 100)
        trials = [*alone, *_attempt(queries, pool, best.means[1])]
        reaching = (trial for trial in trials if trial.means[0] >= least)
        return min(reaching, key=lambda trial: trial.means[1], default=None)

    present = cheapest(columns, 0.0)
    if present is None:
        return None
    others = (arm for arm in range(len(manifest.measured_arms)) if arm not in columns)
    larger = (cheapest(tuple(sorted((*columns, arm))), present.means[0]) for arm in others)
    found = min(filter(None, larger), key=lambda trial: trial.means[1], default=None)
    if found is None or found.means[1] > (1 - LEAST_SAVING) * present.means[1]:
        return None
    return _figures(queries, columns, manifest, {found: found})[found]


def arms_of(artifact: Artifact, names: Iterable[str]) -> tuple[str, ...]:
    """Return the arms of these names: their own, or ids of models that they stand for.

    An id may lack its provider. Raises ConfigError for a name that is neither.
    """
    manifest = artifact.manifest
    known = {arm: arm for arm in artifact.pool or manifest.measured_arms}
    for arm, ids in manifest.stands_for.items():
        if arm in known:
            for name in ids:
                known.setdefault(name, arm)
                known.setdefault(name.partition("/")[2] or name, arm)
    names = tuple(names)
    if unknown := [name for name in names if name not in known]:
        problem = (
            f"no figures for this model; there are figures for {', '.join(manifest.measured_arms)}"
        )
        raise ConfigError(manifest.name, unknown[0], problem)
    return tuple(dict.fromkeys(known[name] for name in names))


def _is_searched(folds: Columns) -> Flags:
    """Return on which queries pools are picked: those of the first folds.

    Near-duplicates are in one fold, so they do not tell about the other queries.
    """
    sizes = np.bincount(folds)
    if len(sizes) < 2:
        is_even: Flags = np.arange(len(folds)) % 2 == 0
        return is_even
    needed = int((sizes.cumsum() < SEARCH_QUERIES).sum()) + 1
    is_searched: Flags = folds < min(needed, len(sizes) - 1)
    return is_searched


@dataclass(frozen=True, slots=True)
class _Limits:
    """Limits on a pool. `providers` has the provider of each arm, by column."""

    models: int
    max_providers: int | None
    providers: Mapping[int, str]

    def allow(self, pool: Collection[int]) -> bool:
        used = {self.providers[column] for column in pool} if self.providers else ()
        return len(pool) <= self.models and len(used) <= (self.max_providers or len(used))


def _providers(
    manifest: Manifest, columns: Iterable[int], max_providers: int | None
) -> Mapping[int, str]:
    """Return the provider of each column: that of the first model id that its arm stands for."""
    found: dict[int, str] = {}
    if max_providers is None:
        return found
    for column in columns:
        arm = manifest.measured_arms[column]
        ids = [name for name in manifest.stands_for.get(arm, ()) if "/" in name]
        if not ids:
            problem = f"the artifact does not say which provider serves {arm}"
            raise ConfigError(manifest.name, "--max-providers", problem)
        found[column] = ids[0].partition("/")[0]
    return found


def _search(
    sample: _Queries, columns: Sequence[int], best_usd: float, limits: _Limits
) -> list[_Trial]:
    """Return the results of pools, from single arms to larger pools of the best smaller ones."""

    def attempt(pool: tuple[int, ...]) -> list[_Trial]:
        return _attempt(sample, pool, best_usd)

    trials = [sample.alone(column) for column in columns]
    pools: list[tuple[int, ...]] = [(column,) for column in columns]
    while pools:
        larger = {tuple(sorted({*pool, arm})) for pool in pools for arm in columns}
        tried: list[_Trial] = []
        # The graphs run without the interpreter's lock.
        with ThreadPoolExecutor(2) as threads:
            sized = [each for each in larger if len(each) > len(pools[0]) and limits.allow(each)]
            for results in threads.map(attempt, sorted(sized)):
                tried += results
        trials += tried
        efficient = sorted(_efficient(tried), key=lambda trial: -trial.means[0])
        pools = [*dict.fromkeys(trial.columns for trial in efficient)][:SEARCH_POOLS]
    return trials


def _attempt(sample: _Queries, pool: tuple[int, ...], best_usd: float) -> list[_Trial]:
    """Return the results of a pool by choosing once and with verified answers, at some prices."""
    once = [sample.once(pool, usd) for usd in prices_in_usd(ONCE_PRICES, best_usd)]
    if sample.simulation is None:
        return once
    return once + [sample.verified(pool, usd) for usd in prices_in_usd(VERIFIED_PRICES, best_usd)]


def _efficient(trials: Sequence[_Trial]) -> list[_Trial]:
    """Return the trials that none of at most as many arms dominates, or almost dominates.

    Verified trials are compared with each other, and the others too; an arm alone is in both.
    """
    kept: list[_Trial] = []
    for kind in _KINDS:
        front: list[tuple[float, float]] = []
        candidates = [trial for trial in trials if trial.has_kind(kind)]
        for trial in sorted(candidates, key=lambda each: (len(each.columns), -each.means[0])):
            accuracy, cost_usd = trial.means
            saved_usd = cost_usd / (1 - LEAST_SAVING)
            if all(usd > saved_usd or known < accuracy - LEAST_GAIN for known, usd in front):
                front.append(trial.means)
                kept.append(trial)
    return [*dict.fromkeys(kept)]


def _recommended(trials: Iterable[_Trial], kind: Kind, size: int, budget_usd: float) -> _Trial:
    """Return the most accurate trial of a kind with at most so many arms within the budget.

    A smaller pool, or else a cheaper one, is preferred if it is about as accurate. If every trial
    costs more than the budget, return the cheapest one.
    """
    allowed = [trial for trial in trials if trial.has_kind(kind) and len(trial.columns) <= size]
    affordable = [trial for trial in allowed if trial.means[1] <= budget_usd]
    if not affordable:
        return min(allowed, key=lambda trial: trial.means[1])
    most = max(trial.means[0] for trial in affordable)
    close = [trial for trial in affordable if trial.means[0] >= most - LEAST_GAIN]
    return min(close, key=lambda trial: (len(trial.columns), trial.means[1]))


def _figures(
    queries: _Queries,
    columns: Sequence[int],
    manifest: Manifest,
    measured: Mapping[_Trial, _Trial],
) -> dict[_Trial, PoolFigures]:
    """Return the figures of trials, from their results on all queries."""
    bench = Bench.of(queries.outcomes(columns))
    results = [(trial.rule, trial.correct, trial.cost_usd) for trial in measured.values()]
    try:
        entries = bench.measure_all("router", results)
    finally:
        resamples.cache_clear()
        return_freed()
    return {
        trial: PoolFigures(
            arms=tuple(manifest.measured_arms[column] for column in trial.columns),
            kind=trial.kind,
            point=entry.point,
        )
        for trial, entry in zip(measured, entries, strict=True)
    }
