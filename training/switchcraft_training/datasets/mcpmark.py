"""Reader of MCPMark: long agent tasks that use MCP servers.

Every arm ran each task several times.

Wu et al., "MCPMark: A Benchmark for Stress-Testing Realistic and Comprehensive MCP Use", 2025. The
benchmark's own script decided whether a run succeeded; this module only reads that verdict. An arm
is a model, or a model with a reasoning effort if several efforts were measured.

The tools of the MCP servers were not recorded. In each request, one function tool with the
service's name represents the server, so that a router sees at least which server is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from router_service.apis.conversation import Json
from switchcraft_training.datasets.rows import read_lines
from switchcraft_training.records import Example, Outcome

DATASET: Final = "mcpmark"
TASKS: Final = "tasks.jsonl.gz"
RUNS: Final = "runs.jsonl.gz"

BROKEN_RUNS: Final = frozenset({"deepseek-v3-1-terminus"})
"""Arms that are left out. In two cases, all runs of this arm on one service failed before the first
turn. The harness was down, so these failures say nothing about the model. Other arms failed in this
way only on single tasks."""


@dataclass(frozen=True, slots=True)
class McpMark:
    """A directory of tasks and runs. Every method raises DataError if a file cannot be read."""

    root: Path

    def arms(self) -> list[str]:
        """Return the arms that ran the tasks, without the arms of `BROKEN_RUNS`."""
        found = set(read_lines(self.root / RUNS, lambda row: str(row["arm"])))
        return sorted(found - BROKEN_RUNS)

    def examples(self) -> Iterator[Example]:
        """Yield each task as an example, whose category is the name of the task's service."""
        return read_lines(self.root / TASKS, _read_task)

    def calls(self) -> dict[str, int]:
        """Return an empty dict, because each model decides how many calls a task takes."""
        return {}

    def outcomes(self, arm: str) -> Iterator[Outcome]:
        """Yield the outcome of each of an arm's runs; `run-1` is attempt 0."""
        for outcome in read_lines(self.root / RUNS, _read_run):
            if outcome.arm == arm:
                yield outcome


def _read_task(row: Mapping[str, Json]) -> Example:
    service = str(row["service"])
    message = {"role": "user", "content": str(row["instruction"])}
    server = {
        "name": service,
        "description": f"Use {service} through the tools of its MCP server.",
        "parameters": {"type": "object", "properties": {}},
    }
    tools = [{"type": "function", "function": server}]
    return Example(str(row["task"]), service, {"messages": [message], "tools": tools}, DATASET)


def _read_run(row: Mapping[str, Json]) -> Outcome:
    """Return the outcome of a run.

    Token counts of 0 are kept, because a run that failed before its first turn costs nothing.
    """
    success, run = row["success"], str(row["run"])
    if not isinstance(success, bool):
        raise TypeError(f"success is {success!r}, not true or false")
    return Outcome(
        example_id=str(row["task"]),
        arm=str(row["arm"]),
        correct=success,
        input_tokens=row["input_tokens"],
        output_tokens=row["output_tokens"],
        seconds=row["seconds"],
        attempt=int(run.removeprefix("run-")) - 1,
    )
