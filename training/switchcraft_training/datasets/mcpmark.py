"""MCPMark: long tasks of agents over MCP servers, each run several times by every arm.

Wu et al., "MCPMark: A Benchmark for Stress-Testing Realistic and Comprehensive MCP Use", 2025. A
run's success is what the benchmark's own script for the task found in the end; nothing is judged
here. An arm is a model, where it has several with its reasoning effort.

The tools that a service's server offered were not recorded. In each request one function tool
stands for the server, named like the service, so that a router sees at least which one it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from switchcraft_training.datasets.lines import read_lines
from switchcraft_training.records import Example, Json, Outcome

DATASET: Final = "mcpmark"
TASKS: Final = "tasks.jsonl.gz"
RUNS: Final = "runs.jsonl.gz"

BROKEN_RUNS: Final = frozenset({"deepseek-v3-1-terminus"})
"""An arm of whose runs every one on a service failed before the first turn, and that twice: its
harness was down, which says nothing of the model. Of other arms single tasks failed so."""


@dataclass(frozen=True, slots=True)
class McpMark:
    """A folder with tasks and runs; every method raises DataError at what cannot be read."""

    root: Path

    def arms(self) -> list[str]:
        """Return the arms that ran the tasks, broken runs left out."""
        found = set(read_lines(self.root / RUNS, lambda row: str(row["arm"])))
        return sorted(found - BROKEN_RUNS)

    def examples(self) -> Iterator[Example]:
        """Read the tasks, by service."""
        return read_lines(self.root / TASKS, _read_task)

    def calls(self) -> dict[str, int]:
        """Return nothing: tasks are long, and how many calls they take is up to the model."""
        return {}

    def outcomes(self, arm: str) -> Iterator[Outcome]:
        """Read an arm's runs: `run-1` is attempt 0."""
        for outcome in read_lines(self.root / RUNS, _read_run):
            if outcome.arm == arm:
                yield outcome


def _read_task(row: Mapping[str, Json]) -> Example:
    service = str(row["service"])
    message = {"role": "user", "content": str(row["instruction"])}
    request = {"messages": [message], "tools": [_server(service)]}
    return Example(str(row["task"]), service, request, DATASET)


def _server(service: str) -> Mapping[str, Json]:
    """Return the tool that stands for a service's MCP server."""
    function = {
        "name": service,
        "description": f"Use {service} through the tools of its MCP server.",
        "parameters": {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


def _read_run(row: Mapping[str, Json]) -> Outcome:
    """Read a run; counts of 0 are kept, because one that ends before its first turn is free."""
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
