r"""Recorded outcomes of whole agent tasks, and the table of figures that the package ships.

    python -m benchmarks.agent_task_table data/agents-2026 \
      --out router_service/artifacts/agent-tasks.json

Each kind of task has one benchmark, and each model one figure on it: that of the first harness, in
the order of `_SOURCES`, that measured the model. Figures of several benchmarks or harnesses are
never averaged, because tasks are not equally hard, and harnesses not equally good.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import sqrt
from pathlib import Path

import numpy as np

from router_service.apis.conversation import Json
from router_service.measurement.agent_tasks import AgentTaskTable, MeasuredModel, TaskKind
from router_service.policies.costs import Price
from router_service.prices import look_up_name
from switchcraft_training.datasets.rows import read_lines, write_lines

SUSPECT = frozenset({"claude-fable-5"})
"""Models that are left out: 95.8% of SWE-bench Verified is not credible."""

LEAST_KNOWN_COSTS = 0.5
"""Share of the tasks whose cost must be known. Otherwise the cost is not that of a usual task."""

_Z = 1.96


@dataclass(frozen=True, slots=True)
class Source:
    """One file of outcomes, with the arms of one harness, of which there may be several."""

    kind: TaskKind
    benchmark: str
    file: str
    arms: str
    """Name of the source in `arms.jsonl.gz`."""
    harness: str
    """Value of `harness` there."""
    origin: str
    called: str = ""
    """What the harness is called in the table, if that differs."""


_OPENHANDS = "openhands-index-results@3015ac6"
_AUDIT = "autobenchaudit@f743419"
_VERIFIED, _TAU = "SWE-bench Verified", "tau2-bench telecom"
_SOURCES = (
    Source(
        "coding", _VERIFIED, "openhands-swe-bench.jsonl.gz", "openhands", "OpenHands", _OPENHANDS
    ),
    Source(
        "coding",
        _VERIFIED,
        "swe-bench-mini.jsonl.gz",
        "swe-bench-mini",
        "mini-SWE-agent v1",
        "swe-bench.github.io@f1176b6",
    ),
    Source(
        "mcp",
        "Toolathlon",
        "toolathlon.jsonl.gz",
        "toolathlon",
        "Default",
        _AUDIT,
        "its own harness",
    ),
    *(
        Source(
            "service",
            _TAU,
            "tau2-telecom.jsonl.gz",
            "tau2-telecom",
            user,
            _AUDIT,
            f"{called} as the user",
        )
        for user, called in (("gpt-5.2", "GPT-5.2"), ("gpt-4.1-2025-04-14", "GPT-4.1"))
    ),
    Source("research", "GAIA", "openhands-gaia.jsonl.gz", "openhands", "OpenHands", _OPENHANDS),
)
"""The sources by kind; an earlier one counts before a later one. With other harnesses, OpenHands'
results also have the models of Claude Code, Codex and Gemini CLI, all of which OpenHands measured
too. The costs of two of these harnesses are missing or three times too high."""

_NAMES: Mapping[str, tuple[str, ...]] = {
    "claude-opus-4": ("claude-opus-4-0", "claude-4-opus"),
    "claude-sonnet-4": ("claude-sonnet-4-0", "claude-4-sonnet"),
    "claude-sonnet-3-7": ("claude-3-7-sonnet",),
    "deepseek-v3.2-thinking": ("deepseek-v3.2", "deepseek-v3.2-reasoner"),
    "kimi-k2-instruct": ("kimi-k2", "kimi-k2-0711", "kimi-k2-0711-preview"),
    "kimi-k2-0905": ("kimi-k2-0905-preview",),
    "grok-4": ("grok-4-0709",),
    "grok-4-fast": ("grok-4-fast-reasoning",),
    "llama-4-maverick-instruct": ("llama-4-maverick",),
    "qwen3-coder-480b": ("qwen3-coder-480b-a35b-instruct", "qwen3-coder", "qwen-3-coder"),
    "qwen3-max-thinking": ("qwen3-max",),
    "o3": ("o3-20250416",),
    "o4-mini": ("o4-mini-20250416",),
    "devstral": ("devstral-2512",),
    "devstral-small": ("devstral-small-2512",),
}
"""Other names of models, in the sources and at providers, besides their spelling and date."""


@dataclass(frozen=True, slots=True)
class TaskOutcomes:
    """What one model did with the tasks of one benchmark, with one harness."""

    source: Source
    model: str
    effort: str | None
    date: str
    price: Price | None
    stated_usd: float | None
    """Mean cost of a task, if the source has no costs of single tasks."""
    success: dict[str, float] = field(default_factory=dict)
    """Share of the trials that succeeded, by task."""
    cost_usd: dict[str, float] = field(default_factory=dict)
    """Costs of the tasks whose cost is known."""


def read_outcomes(folder: Path) -> Iterator[TaskOutcomes]:
    """Yield the outcomes that count, by benchmark; raises DataError if a file cannot be read."""
    arms = [*read_lines(folder / "arms.jsonl.gz", dict)]
    taken: set[tuple[str, str]] = set()
    for source in _SOURCES:
        by_arm = {
            str(row["arm"]): outcomes
            for row in arms
            if row["source"] == source.arms
            and row["harness"] == source.harness
            and (outcomes := _read_arm(source, row)).model not in SUSPECT
        }
        for row in read_lines(folder / source.file, dict):
            if outcomes := by_arm.get(str(row["arm"])):
                task = str(row["task"])
                solved = row["success"] if "success" in row else row["passed"] / row["trials"]
                outcomes.success[task] = float(solved)
                if row.get("cost_usd") is not None:
                    outcomes.cost_usd[task] = float(row["cost_usd"])
        for outcomes in sorted(by_arm.values(), key=lambda each: each.effort == "none"):
            if outcomes.success and (source.benchmark, outcomes.model) not in taken:
                taken.add((source.benchmark, outcomes.model))
                yield outcomes


def make_table(folder: Path) -> AgentTaskTable:
    """Return the figures of a folder of recorded outcomes; raises DataError."""
    figures = tuple(map(_figures, read_outcomes(folder)))
    models = dict.fromkeys(sorted({each.model for each in figures}))
    return AgentTaskTable(
        names={model: (model, *_NAMES.get(model, ())) for model in models}, figures=figures
    )


def success_interval(success: Mapping[str, float]) -> tuple[float, float]:
    """Return Wilson's 95% interval of the mean success of tasks.

    If tasks had several trials, their number counts by the variance between tasks.
    """
    values = np.array([*success.values()])
    share, variance, n = values.mean(), values.var(), float(len(values))
    if variance > 0:
        n *= share * (1 - share) / variance
    center = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z * sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2)) / (1 + _Z**2 / n)
    return round(max(0.0, center - half), 4), round(min(1.0, center + half), 4)


def _figures(outcomes: TaskOutcomes) -> MeasuredModel:
    costs_usd, source = [*outcomes.cost_usd.values()], outcomes.source
    usd = outcomes.stated_usd
    if len(costs_usd) >= LEAST_KNOWN_COSTS * len(outcomes.success):
        usd = float(np.mean(costs_usd))
    harness = source.called or source.harness
    return MeasuredModel(
        model=outcomes.model,
        kind=source.kind,
        benchmark=source.benchmark,
        harness=f"{harness}, effort {outcomes.effort}" if outcomes.effort else harness,
        success=round(float(np.mean([*outcomes.success.values()])), 4),
        interval=success_interval(outcomes.success),
        usd_per_task=None if usd is None else round(usd, 4),
        price=outcomes.price if usd is not None else None,
        tasks=len(outcomes.success),
        date=outcomes.date,
        source=source.origin,
    )


def _read_arm(source: Source, row: Mapping[str, Json]) -> TaskOutcomes:
    name = str(row["model"]).casefold()
    model = _model_name(name.removesuffix("-high"))
    named = re.search(r"\((\w+) reasoning\)", str(row["arm"]))
    efforts = ("high" if name.endswith("-high") else None, row.get("reasoning_effort"))
    effort = named.group(1) if named else next(filter(None, efforts), None)
    date, cost = str(row["released"]), row.get("cost")
    return TaskOutcomes(
        source,
        model,
        None if effort in {None, "enabled"} else str(effort),
        date,
        _recorded_price(row) or _listed_price(model, date),
        float(cost) if isinstance(cost, (int, float)) else None,
    )


def _recorded_price(row: Mapping[str, Json]) -> Price | None:
    if row.get("price_in") is None:
        return None
    return Price.model_validate(
        {
            "input_usd_per_mtok": row["price_in"],
            "output_usd_per_mtok": row["price_out"],
            "cached_input_usd_per_mtok": row.get("price_cached"),
        }
    )


def _listed_price(model: str, date: str) -> Price | None:
    listed = look_up_name(model, datetime.fromisoformat(date).replace(tzinfo=UTC))
    return None if listed is None else listed.price


def _model_name(text: str) -> str:
    """Return a model's name as its provider spells it, without a date."""
    name = re.sub(r"[ _]+", "-", text)
    name = re.sub(r"-(20\d{6}|20\d\d-\d\d-\d\d)$", "", name).removesuffix("-preview")
    name = re.sub(r"^claude-(\d[\d.-]*)-(opus|sonnet|haiku)", r"claude-\2-\1", name)
    if name.startswith("claude-"):
        name = name.replace(".", "-")
    return next((model for model, names in _NAMES.items() if name in names), name)


def main() -> None:
    """Write the table of a folder of recorded outcomes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("outcomes", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    table = make_table(arguments.outcomes)
    lines = [table.model_dump_json(indent=1, exclude_none=True).encode()]
    write_lines(lines, arguments.out)
    print(f"{len(table.figures)} figures of {len(table.names)} models are in {arguments.out}.")


if __name__ == "__main__":
    main()
