"""MCPMark: tasks as requests, runs as attempts, and prices that reproduce the recorded costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from switchcraft_training.config import load_config
from switchcraft_training.data.outcomes import tabulate_outcomes
from switchcraft_training.datasets.mcpmark import McpMark
from switchcraft_training.datasets.rows import read_lines
from tests.training.runs import write_lines

TASKS = [
    {"task": "shop__count", "service": "postgres", "instruction": "Count the orders."},
    {"task": "repo__fix", "service": "github", "instruction": "Fix the conflict."},
]


def run(task: str, arm: str, number: int, **changes: object) -> dict[str, object]:
    """Return a successful run with these changes."""
    counts = {"seconds": 10.0 * number, "input_tokens": 100 * number, "output_tokens": 10}
    return {"task": task, "arm": arm, "run": f"run-{number}", "success": True, **counts, **changes}


def folder(tmp_path: Path, *runs: Mapping[str, object]) -> McpMark:
    """Write the two tasks and some runs."""
    write_lines(tmp_path / "tasks.jsonl.gz", *TASKS)
    write_lines(tmp_path / "runs.jsonl.gz", *runs)
    return McpMark(tmp_path)


def test_runs_are_attempts(tmp_path: Path) -> None:
    """A label is the share of successful runs; a run that never began costs nothing."""
    nothing = {"success": False, "input_tokens": 0, "output_tokens": 0}
    source = folder(
        tmp_path,
        run("shop__count", "m-low", 1),
        run("shop__count", "m-low", 2, **nothing),
        run("repo__fix", "m-low", 1, input_tokens=None, output_tokens=None),
        run("shop__count", "m-high", 1, success=False),
    )
    assert source.arms() == ["m-high", "m-low"]
    assert [outcome.attempt for outcome in source.outcomes("m-low")] == [0, 1, 0]
    labels = tabulate_outcomes(list(source.examples()), source.arms(), source.outcomes)
    np.testing.assert_array_equal(labels.correct, [[0, 0.5], [np.nan, 1]])
    np.testing.assert_array_equal(labels.attempts, [[1, 2], [0, 1]])
    np.testing.assert_array_equal(labels.input_tokens, [[100, 50], [np.nan, np.nan]])
    np.testing.assert_array_equal(labels.seconds, [[10, 15], [np.nan, 10]])


@pytest.mark.recorded
def test_prices_reproduce_recorded_costs(recorded_data: Path) -> None:
    """An arm's tokens of a whole run, at its price, cost what was recorded."""
    config = load_config(Path("configs/mcpmark.yaml"))
    rows = read_lines(recorded_data / config.source.path / "arms.jsonl.gz", lambda row: row)
    recorded = {row["arm"]: row for row in rows}
    for arm, price in config.prices.items():
        run = recorded[arm]
        tokens = run["per_run_input_tokens"], run["per_run_output_tokens"]
        assert price.cost_usd(*tokens, seconds=0) == pytest.approx(run["per_run_cost_usd"], 1e-4)
