"""The figures of a sweep's runs, and for each encoder their mean and spread over the seeds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from router_service.core.artifact import Measure


@dataclass(frozen=True, slots=True)
class Measured:
    """One run's headline figures, by name."""

    encoder: str
    seed: int
    folder: str
    metrics: Mapping[str, Measure]


class Spread(TypedDict):
    """A figure over the seeds; `standard_deviation` is the sample's, None of a single seed."""

    mean: float
    standard_deviation: float | None
    seeds: int


class Run(TypedDict):
    """One run as `sweep.json` has it."""

    encoder: str
    seed: int
    folder: str
    metrics: dict[str, dict[str, float]]


class Summary(TypedDict):
    """What `sweep.json` holds: every run, and each encoder's figures over its seeds."""

    runs: list[Run]
    encoders: dict[str, dict[str, Spread]]


def summarize(measured: Sequence[Measured]) -> Summary:
    """Return all runs, and mean and standard deviation of each figure for each encoder."""
    by_encoder: dict[str, list[Measured]] = {}
    for run in measured:
        by_encoder.setdefault(run.encoder, []).append(run)
    return Summary(
        runs=[_as_row(run) for run in measured],
        encoders={
            encoder: {
                name: _spread([run.metrics[name].value for run in runs]) for name in runs[0].metrics
            }
            for encoder, runs in by_encoder.items()
        },
    )


def _as_row(run: Measured) -> Run:
    metrics = {name: measure.model_dump() for name, measure in run.metrics.items()}
    return Run(encoder=run.encoder, seed=run.seed, folder=run.folder, metrics=metrics)


def _spread(values: Sequence[float]) -> Spread:
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Spread(mean=statistics.fmean(values), standard_deviation=deviation, seeds=len(values))
