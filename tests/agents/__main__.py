"""Claude Code and Codex CLI complete a task through the gateway, with each upstream API.

    make test-agents

installs both (770 MB) below `.venv/agents` and prints the table of docs/agents.md. The model
is scripted: it calls three tools, one after the other, and then says that it is done. The agents,
their tools and the gateway are real.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from router_service.apis.parts import Text, Thinking, ToolUse
from tests import apis
from tests.apis import APIS, Api
from tests.clients.matrix import NAMES
from tests.providers.app import Play, Provider
from tests.providers.gateways import ARMS, deployment, gateway
from tests.providers.requests import ProviderRequest
from tests.serving import served

TASK = "Sort the numbers in numbers.txt into sorted.txt, and explain it in answer.md."
NUMBERS = "17\n4\n21\n"
SORTED = "4\n17\n21\n"
ANSWER = "The numbers are in sorted.txt.\n"
DONE = "I have sorted the three numbers."
SORT = "sort -n numbers.txt > sorted.txt && wc -l sorted.txt"
PATCH = f"*** Begin Patch\n*** Add File: answer.md\n+{ANSWER}*** End Patch\n"
LIMIT_S = 180


@dataclass(frozen=True)
class Figures:
    """What one task took."""

    seconds: float
    requests: int
    """Requests that the model got."""
    calls: int
    """Calls whose results the model got back."""
    input_tokens: int
    """Tokens that the agent says it has used."""
    output_tokens: int


@dataclass(frozen=True)
class Agent:
    """A coding agent: how to start it, and the calls with which it does the task."""

    name: str
    program: str
    start: Callable[[Path, str, Path], tuple[list[str], dict[str, str]]]
    """Its arguments and environment for a program, a gateway's address and a home folder."""
    calls: Callable[[Path], list[ToolUse]]
    """The three calls of the task in a folder."""
    usage: Callable[[str], tuple[str, int, int]]
    """The last text, and the tokens, that the agent's output states."""


def _start_claude(program: Path, url: str, home: Path) -> tuple[list[str], dict[str, str]]:
    options = ["--output-format", "json", "--allowedTools", "Bash,Read,Write"]
    return [str(program), "-p", TASK, *options], {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "client-key",
        "CLAUDE_CONFIG_DIR": str(home / "claude"),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
    }


def _claude_calls(folder: Path) -> list[ToolUse]:
    inputs: list[tuple[str, dict[str, Any]]] = [
        ("Read", {"file_path": str(folder / "numbers.txt")}),
        ("Bash", {"command": SORT, "description": "Sort the numbers"}),
        ("Write", {"file_path": str(folder / "answer.md"), "content": ANSWER}),
    ]
    return [
        ToolUse(f"toolu_{number:024x}", name, json.dumps(arguments))
        for number, (name, arguments) in enumerate(inputs)
    ]


def _claude_usage(output: str) -> tuple[str, int, int]:
    result = json.loads(output)
    usage = result["usage"]
    read, written = usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]
    return result["result"], usage["input_tokens"] + read + written, usage["output_tokens"]


def _start_codex(program: Path, url: str, home: Path) -> tuple[list[str], dict[str, str]]:
    (home / "codex").mkdir(parents=True)
    (home / "codex" / "config.toml").write_text(
        f"""\
model = "gpt-5.5"
model_provider = "switchcraft"
web_search = "disabled"
[model_providers.switchcraft]
name = "Switchcraft"
base_url = "{url}/v1"
env_key = "SWITCHCRAFT_KEY"
wire_api = "responses"
"""
    )
    options = ["--json", "--skip-git-repo-check", "--sandbox", "danger-full-access"]
    environment = {"CODEX_HOME": str(home / "codex"), "SWITCHCRAFT_KEY": "client-key"}
    return [str(program), "exec", *options, TASK], environment


def _codex_calls(folder: Path) -> list[ToolUse]:
    del folder
    return [
        ToolUse("call_0", "exec_command", json.dumps({"cmd": "cat numbers.txt"})),
        ToolUse("call_1", "exec_command", json.dumps({"cmd": SORT})),
        ToolUse("call_2", "apply_patch", PATCH, is_custom=True),
    ]


def _codex_usage(output: str) -> tuple[str, int, int]:
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    text = [item["text"] for item in items if item["type"] == "agent_message"][-1]
    usage = next(event["usage"] for event in events if event["type"] == "turn.completed")
    return text, usage["input_tokens"], usage["output_tokens"]


AGENTS = (
    Agent("Claude Code", "claude", _start_claude, _claude_calls, _claude_usage),
    Agent("Codex CLI", "codex", _start_codex, _codex_calls, _codex_usage),
)


def run(agent: Agent, programs: Path, dialect: Api) -> Figures:
    """Let an agent do the task with an upstream that has one API; raise AssertionError."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, home = Path(temporary, "task"), Path(temporary, "home")
        folder.mkdir()
        home.mkdir()
        (folder / "numbers.txt").write_text(NUMBERS)
        calls = agent.calls(folder)

        def play(asked: ProviderRequest) -> Play:
            done = len(asked.results)
            if calls[0].name not in asked.tools:
                return Play([Text("Sorting numbers")])  # a title, or another background request
            if done == len(calls):
                return Play([Text(DONE)])
            call = calls[done]
            if call.is_custom and dialect is not apis.RESPONSES:
                # Only Responses has custom tools that Codex uses; others get a function.
                arguments = json.dumps({"input": call.arguments})
                call = ToolUse(call.id, call.name, arguments)
            return Play([Thinking(f"Step {done + 1} of {len(calls)}."), call])

        provider = Provider(play)
        with served(provider) as upstream:
            models = dict.fromkeys(ARMS, deployment(upstream, dialect))
            with gateway(models) as url:
                arguments, environment = agent.start(programs / agent.program, url, home)
                started = time.monotonic()
                done = subprocess.run(
                    arguments,
                    cwd=folder,
                    env={**inherited(), "HOME": str(home), **environment},
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=LIMIT_S,
                    check=False,
                )
                seconds = time.monotonic() - started
        output = f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}\n{provider.rejected}"
        assert done.returncode == 0, output
        assert provider.rejected == [], output
        text, input_tokens, output_tokens = agent.usage(done.stdout)
        assert text == DONE, output
        written = {file.name: file.read_text() for file in folder.iterdir()}
        assert written == {"numbers.txt": NUMBERS, "sorted.txt": SORTED, "answer.md": ANSWER}
        results = provider.asked[-1].results
        assert len(results) == len(calls), results
        requests = len(provider.asked)
        return Figures(seconds, requests, len(results), input_tokens, output_tokens)


def inherited() -> Mapping[str, str]:
    """Return the environment without keys and settings of agents that are used on this machine."""
    prefixes = ("ANTHROPIC_", "CLAUDE", "CODEX_", "OPENAI_")
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}


def main() -> int:
    """Run all agents; print the table; return 1 if one has failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", type=Path, help="folder of `claude` and `codex`")
    programs = parser.parse_args().programs.resolve()
    print("| agent | upstream's API | requests | tool calls | seconds | input | output tokens |")
    print("|---|---|--:|--:|--:|--:|--:|")
    failed = False
    for agent in AGENTS:
        version = subprocess.run(
            [programs / agent.program, "--version"], capture_output=True, text=True, check=True
        ).stdout.split()
        number = next(word for word in version if word[0].isdigit())
        for dialect in APIS:
            try:
                figures = run(agent, programs, dialect)
            except AssertionError as exc:
                failed = True
                print(f"{agent.name} with {dialect}: {exc}", file=sys.stderr)
                continue
            print(
                f"| {agent.name} {number} | {NAMES[dialect]} | {figures.requests} |"
                f" {figures.calls} | {figures.seconds:.1f} | {figures.input_tokens:,} |"
                f" {figures.output_tokens:,} |",
                flush=True,
            )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
