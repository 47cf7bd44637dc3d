"""Queries, pools and endpoints for labelling runs against a real sandbox."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from starlette.types import ASGIApp, Receive, Scope, Send

from router_service.checker.toolbox import ExpectedCall
from switchcraft_training.cli import main
from switchcraft_training.datasets.rows import write_rows
from switchcraft_training.records import Example, Expected, Judged
from tests.sandbox import FaultySandbox
from tests.serving import Sandbox, served, wait_for
from tests.training.runs import function_tool

TOOL = function_tool("book", {"guests": {"type": "integer"}}, "Book a table")
PRICE = {"input_usd_per_mtok": 1.0, "output_usd_per_mtok": 5.0}
KEY_NAME, KEY = "LABELLING_TEST_KEY", "sk-never-written-down"


def judged(number: int) -> Judged:
    """Return a query that the sandbox answers correctly."""
    message = {"role": "user", "content": f"Book a table for {number + 2} guests"}
    request = {"messages": [message], "tools": [TOOL]}
    expected = Expected((ExpectedCall("book", {"guests": (number + 2,)}),))
    return Judged(Example(f"q{number:03}", "easy", request, "made-up"), expected)


class CommandResult(NamedTuple):
    """The exit status and output of a finished command."""

    returncode: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Case:
    """A directory with a file of rows and a pool file, and the command that labels them."""

    folder: Path

    @property
    def out(self) -> Path:
        """The directory of the answers."""
        return self.folder / "out"

    def rows(self, count: int) -> Case:
        """Write this many rows."""
        write_rows(map(judged, range(count)), self.folder / "rows.jsonl")
        return self

    def pool(self, arms: Mapping[str, Mapping[str, Any]], **arm: object) -> Case:
        """Write a pool with one arm of the same name at each endpoint, with these fields."""
        tree = {
            "endpoints": arms,
            "pool": [
                {"arm": name, "endpoint": name, "model": f"model-{name}", "price": PRICE, **arm}
                for name in arms
            ],
        }
        (self.folder / "pool.yaml").write_text(yaml.safe_dump(tree))
        return self

    def command(self, *options: str, out: Path | None = None) -> list[str]:
        """Return the command line."""
        files = [str(self.folder / name) for name in ("pool.yaml", "rows.jsonl")]
        command = [sys.executable, "-m", "switchcraft_training.cli", "label", *files]
        return [*command, "--out", str(out or self.out), *options]

    def label(self, *options: str, out: Path | None = None) -> CommandResult:
        """Run the command in this process."""
        stdout, stderr = StringIO(), StringIO()
        with redirect_stdout(stdout), redirect_stderr(stderr):
            status = main(self.command(*options, out=out)[3:])
        return CommandResult(status, stdout.getvalue(), stderr.getvalue())

    def answers(self, out: Path | None = None) -> list[dict[str, Any]]:
        """Return the exported answers without their latencies."""
        return [
            {name: value for name, value in row.items() if name != "latency_s"}
            for row in read(out or self.out, "answers")
        ]

    def failures(self) -> list[dict[str, Any]]:
        """Return the exported failures."""
        return read(self.out, "failures")


def wait_for_requests(
    sandbox: Sandbox, count: int, run: subprocess.Popen[bytes] | None = None
) -> None:
    """Return when a sandbox has received this many requests; fail if the run ends before."""

    def have_come() -> bool:
        assert run is None or run.poll() is None, "the run is over"
        return bool(sandbox.stats()["requests"] >= count)

    wait_for(have_come, f"request {count}")


def read(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of an exported file."""
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


@dataclass
class FlakyEndpoint:
    """An ASGI app that gives each of the sandbox's next chat requests one fault, in order."""

    app: ASGIApp
    faults: Iterator[str]
    keys: list[str] = field(default_factory=list)
    """The `Idempotency-Key` of each request."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with its fault."""
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            self.keys.append(headers[b"idempotency-key"].decode())
            fault = next(self.faults, "delay_s=0")
            scope = {**scope, "headers": [*scope["headers"], (b"x-sandbox", fault.encode())]}
        await self.app(scope, receive, send)


@contextmanager
def serve_flaky(faults: Iterable[str]) -> Iterator[tuple[str, FlakyEndpoint]]:
    """Serve such an app; yield its base URL and the app."""
    app = FlakyEndpoint(FaultySandbox(), iter(faults))
    with served(app) as address:
        yield f"{address}/v1", app
