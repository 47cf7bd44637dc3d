"""Measured results of whole agent tasks, and the cheapest model that is good enough for a kind.

The text of a task hardly tells which model will solve it, so the choice uses only what each model
solves on average and what a task costs with it. The package ships these figures beside its
artifacts; `benchmarks/agent_task_table.py` makes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from router_service.artifact import ARTIFACTS, Interval
from router_service.core.errors import ArtifactError
from router_service.core.values import Strict
from router_service.policies.costs import Price

TaskKind = Literal["coding", "mcp", "service", "research"]
"""Kinds of tasks, which are never mixed: a model may be good at one and fail at another."""

WITHIN_POINTS = 2.0
"""Default for how far below the pool's best model the chosen one may be, in points of success."""

TABLE = ARTIFACTS / "agent-tasks.json"

CACHED, UNCACHED, OUTPUT = 85, 15, 1
"""Shares of the tokens of an agent's task, by which costs are rescaled to other prices. This is an
assumption about coding agents whose prompts are cached: the sources have no counts of tokens."""

Share = Annotated[float, Field(ge=0, le=1)]


class MeasuredModel(Strict):
    """What one model reached on one benchmark with one harness."""

    model: str
    kind: TaskKind
    benchmark: str
    harness: str
    success: Share = Field(description="Share of the tasks that it solved.")
    interval: Interval = Field(description="95% interval of `success`.")
    usd_per_task: float | None = Field(None, description="Mean cost, if the source has it.")
    price: Price | None = Field(None, description="List price to which the cost belongs, if known.")
    tasks: int
    date: str = Field(description="Release of the model, or day of the entry in the leaderboard.")
    source: str


class AgentTaskTable(Strict):
    """Figures of models, and the other names by which these models are called."""

    names: Mapping[str, tuple[str, ...]]
    figures: tuple[MeasuredModel, ...] = Field(
        description="A benchmark that counts before another of its kind comes first."
    )


@dataclass(frozen=True, slots=True)
class TaskCandidate:
    """A model of a pool, which has the name of a configured one or any other."""

    name: str
    measured: str | None
    """Its name in the table."""
    price: Price | None = None
    """Its own price, if that may differ from the measured model's."""
    accuracy: float | None = None
    """Its accuracy on the router's held-out queries, if it was measured there."""


class TaskFigures(Strict):
    """What a model of the pool reached, at the pool's prices."""

    model: str
    success: Share
    low: Share
    high: Share
    usd_per_task: float | None
    tasks: int
    source: str = Field(description="Benchmark, harness, date and origin.")


class TaskAdvice(Strict):
    """Which model of a pool to use for a kind of task."""

    task: TaskKind
    chosen: str | None
    why: str
    models: tuple[TaskFigures, ...] = Field(description="The most successful one first.")
    unknown: tuple[str, ...] = Field(description="Models of the pool without figures.")


@cache
def agent_task_table() -> AgentTaskTable:
    """Return the figures that the package ships; raises ArtifactError if they cannot be read."""
    try:
        return AgentTaskTable.model_validate_json(TABLE.read_bytes())
    except (OSError, ValidationError) as exc:
        raise ArtifactError(TABLE, f"cannot be read: {exc}") from exc


def measured_on(task: TaskKind) -> tuple[str, ...]:
    """Return the models that were measured on a kind of task."""
    known = (each.model for each in agent_task_table().figures if each.kind == task)
    return tuple(dict.fromkeys(known))


def advise_on_tasks(
    pool: Iterable[TaskCandidate],
    task: TaskKind,
    within_points: float = WITHIN_POINTS,
) -> TaskAdvice:
    """Return the cheapest model of a pool that is within some points of the pool's best one.

    Success is only compared on one benchmark: the first of the kind that measured at least two of
    the pool's models, else the first that measured any. With fewer than two measured models, the
    one that is most accurate on the router's held-out queries is chosen, if any was measured there.
    """
    pool = tuple(pool)
    benchmark, measured = _on_one_benchmark(pool, task)
    figures = [_at_price(known, candidate) for candidate, known in measured]
    figures.sort(key=lambda each: (-each.success, each.model))
    known_names = {each.model for each in figures}
    unknown = tuple(c.name for c in pool if c.name not in known_names)
    if len(figures) < 2:
        accuracies = {c.name: c.accuracy for c in pool if c.accuracy is not None}
        chosen = max(accuracies, key=accuracies.__getitem__, default=None)
        why = "Fewer than two of these models have figures for this kind of task"
        why += (
            f", so the most accurate one on single queries is chosen: {chosen}." if chosen else "."
        )
    else:
        position = cheapest_within(
            [each.success for each in figures],
            [each.usd_per_task for each in figures],
            within_points,
        )
        chosen = figures[position].model
        why = _why(figures, position, benchmark, within_points)
    return TaskAdvice(task=task, chosen=chosen, why=why, models=tuple(figures), unknown=unknown)


def cheapest_within(
    success: Sequence[float], usd_per_task: Sequence[float | None], points: float
) -> int:
    """Return the position of the cheapest model within some points of the most successful one.

    A model of unknown cost counts as the dearest. Equal costs leave the more successful one.
    """
    least = max(success) - points / 100 - 1e-9
    good_enough = (position for position, value in enumerate(success) if value >= least)

    def dearness(position: int) -> tuple[float, float]:
        usd = usd_per_task[position]
        return float("inf") if usd is None else usd, -success[position]

    return min(good_enough, key=dearness)


def rescaled_usd(usd: float, recorded: Price | None, own: Price | None) -> float | None:
    """Return a recorded cost at other token prices; None if the model is paid by the hour.

    Prices of cached tokens count only if both are known. Without both prices, nothing changes.
    """
    if recorded is None or own is None:
        return usd
    if not own.has_token_prices:
        return None
    has_cached = None not in {recorded.cached_input_usd_per_mtok, own.cached_input_usd_per_mtok}

    def usd_of(price: Price) -> float:
        read = price.input_usd_per_mtok or 0.0
        cached = (price.cached_input_usd_per_mtok or 0.0) if has_cached else read
        return CACHED * cached + UNCACHED * read + OUTPUT * (price.output_usd_per_mtok or 0.0)

    before = usd_of(recorded)
    return usd * usd_of(own) / before if before else usd


def _on_one_benchmark(
    pool: Sequence[TaskCandidate], task: TaskKind
) -> tuple[str, list[tuple[TaskCandidate, MeasuredModel]]]:
    """Return the benchmark on which the pool is compared, and its figures of the pool's models."""
    by_benchmark: dict[str, dict[str, MeasuredModel]] = {}
    for known in agent_task_table().figures:
        if known.kind == task:
            by_benchmark.setdefault(known.benchmark, {})[known.model] = known
    found: list[tuple[str, list[tuple[TaskCandidate, MeasuredModel]]]] = []
    for benchmark, figures in by_benchmark.items():
        pairs = [(c, figures[c.measured]) for c in pool if c.measured in figures]
        if len(pairs) >= 2:
            return benchmark, pairs
        if pairs:
            found.append((benchmark, pairs))
    return found[0] if found else ("", [])


def _at_price(known: MeasuredModel, candidate: TaskCandidate) -> TaskFigures:
    usd = known.usd_per_task
    low, high = known.interval
    return TaskFigures(
        model=candidate.name,
        success=known.success,
        low=low,
        high=high,
        usd_per_task=None if usd is None else rescaled_usd(usd, known.price, candidate.price),
        tasks=known.tasks,
        source=f"{known.benchmark} with {known.harness}, {known.date}, {known.source}",
    )


def _why(
    figures: Sequence[TaskFigures], position: int, benchmark: str, within_points: float
) -> str:
    chosen, best = figures[position], figures[0]
    text = f"On {benchmark}, {best.model} solves the most, {best.success:.1%}"
    if chosen.usd_per_task is None:
        cost = f"no model within {within_points:g} points of it has a known cost"
        return f"{text}, and {cost}, so the most successful one of them is chosen."
    if position == 0:
        return f"{text}, and no cheaper model is within {within_points:g} points of it."
    below = (best.success - chosen.success) * 100
    text += f"; {chosen.model} is the cheapest within {within_points:g} points of it"
    text += f" ({below:.1f} points below), at {chosen.usd_per_task:.2f} USD a task"
    if best.usd_per_task is None:
        return f"{text}. What a task costs with {best.model} is not known."
    return f"{text} instead of {best.usd_per_task:.2f} USD."
