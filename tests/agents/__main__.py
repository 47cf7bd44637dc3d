"""Claude Code, Codex CLI, OpenCode and Cline complete a task through the gateway.

    make test-agents

installs them (1.6 GB) below `.venv/agents` and prints a table. `switchcraft setup` configures them
for an upstream with each API, and then the blocks of docs/clients.md, which has none for Cline. The
model is scripted: it calls three tools, one after the other, and then says that it is done. The
agents, their tools and the gateway are real.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from router_service.apis.parts import Text, Thinking, ToolUse
from tests import apis
from tests.apis import APIS, Api
from tests.clients.matrix import NAMES
from tests.documentation.documents import ROOT, Block, Document
from tests.providers.app import Play, Provider
from tests.providers.gateways import ARMS, deployment, gateway
from tests.providers.requests import ProviderRequest
from tests.serving import served

PAGE = Document(ROOT / "docs" / "clients.md")
ADDRESS = "http://127.0.0.1:8080"
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
    client: str
    """Its name for `switchcraft setup`."""
    command: str
    """The program and what its command line begins with."""
    options: str
    """Further options of the page's command: what the program may do, and that it prints JSON."""
    configuration: tuple[str, str] | None
    """The language of the page's configuration, and its file below the home folder."""
    environment: Callable[[Path], dict[str, str]]
    """Its environment, with a home folder."""
    calls: Callable[[Path], list[ToolUse]]
    """The three calls of the task in a folder."""
    usage: Callable[[str], tuple[str, int, int]]
    """The last text, and the tokens, that the agent's output states."""

    @property
    def program(self) -> str:
        """The file of the program."""
        return self.command.split()[0]

    @property
    def task(self) -> str:
        """The options and the task at the end of the command line."""
        return f"{self.options} {shlex.quote(TASK)}"

    def set_up(self, url: str, environment: Mapping[str, str]) -> str:
        """Let `switchcraft setup` configure the agent, and return the script that starts it."""
        setup = ["setup", self.client, "--url", url, "--key", "KEY", "--yes"]
        subprocess.run(
            [sys.executable, "-m", "router_service.cli", *setup],
            env=environment,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        return f"{self.command} {self.task}"

    def prepare(self, url: str, home: Path) -> str:
        """Write the configuration, and return the script that starts the agent.

        Both are the page's, with the gateway's address, another task and further options.
        """
        blocks = list(_section(self.name.removesuffix(" CLI")))
        if self.configuration is not None:
            language, file = self.configuration
            (block,) = (block for block in blocks if block.language == language)
            (home / file).parent.mkdir(parents=True, exist_ok=True)
            (home / file).write_text(block.text.replace(ADDRESS, url))
        (block,) = (block for block in blocks if block.is_shell)
        command = rf'^({self.command}) "[^"]*"$'
        assert re.search(command, block.text, re.MULTILINE), block
        script = re.sub(
            command, lambda found: f"{found[1]} {self.task}", block.text, flags=re.MULTILINE
        )
        return script.replace(ADDRESS, url)


def _section(heading: str) -> Iterator[Block]:
    """Yield the page's blocks below a heading."""
    lines = PAGE.text.splitlines()
    start = lines.index(f"## {heading}") + 1
    after = (number for number in range(start, len(lines)) if lines[number].startswith("## "))
    end = next(after, len(lines))
    yield from (block for block in PAGE.blocks if start <= block.line <= end)


def _claude_environment(home: Path) -> dict[str, str]:
    return {
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


def _codex_environment(home: Path) -> dict[str, str]:
    return {"CODEX_HOME": str(home / ".codex")}


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


def _opencode_environment(home: Path) -> dict[str, str]:
    return {
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / "data"),
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }


def _opencode_calls(folder: Path) -> list[ToolUse]:
    inputs: list[tuple[str, dict[str, Any]]] = [
        ("read", {"filePath": str(folder / "numbers.txt")}),
        ("bash", {"command": SORT, "description": "Sort the numbers"}),
        ("write", {"filePath": str(folder / "answer.md"), "content": ANSWER}),
    ]
    return [
        ToolUse(f"call_{number}", name, json.dumps(arguments))
        for number, (name, arguments) in enumerate(inputs)
    ]


def _opencode_usage(output: str) -> tuple[str, int, int]:
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    text = [event["part"]["text"] for event in events if event["type"] == "text"][-1]
    tokens = [event["part"]["tokens"] for event in events if event["type"] == "step_finish"]
    # It counts cached tokens and reasoning apart.
    read = sum(each["input"] + sum(each["cache"].values()) for each in tokens)
    return text, read, sum(each["output"] + each["reasoning"] for each in tokens)


def _cline_environment(home: Path) -> dict[str, str]:
    return {
        "CLINE_DIR": str(home / ".cline"),
        "CLINE_NO_AUTO_UPDATE": "1",
        "CLINE_SESSION_BACKEND_MODE": "local",  # without a process that outlives the task
    }


def _cline_calls(folder: Path) -> list[ToolUse]:
    inputs: list[tuple[str, dict[str, Any]]] = [
        ("read_files", {"files": [{"path": str(folder / "numbers.txt")}]}),
        ("run_commands", {"commands": [SORT]}),
        ("editor", {"path": str(folder / "answer.md"), "new_text": ANSWER}),
    ]
    return [
        ToolUse(f"call_{number}", name, json.dumps(arguments))
        for number, (name, arguments) in enumerate(inputs)
    ]


def _cline_usage(output: str) -> tuple[str, int, int]:
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    result = next(event for event in events if event["type"] == "run_result")
    usage = result["usage"]
    return result["text"], usage["inputTokens"], usage["outputTokens"]


AGENTS = (
    Agent(
        "Claude Code",
        "claude-code",
        "claude -p",
        "--output-format json --allowedTools Bash,Read,Write --",
        None,
        _claude_environment,
        _claude_calls,
        _claude_usage,
    ),
    Agent(
        "Codex CLI",
        "codex",
        "codex exec",
        "--json --skip-git-repo-check --sandbox danger-full-access",
        ("toml", ".codex/config.toml"),
        _codex_environment,
        _codex_calls,
        _codex_usage,
    ),
    Agent(
        "OpenCode",
        "opencode",
        "opencode run",
        "--format json",
        ("json", ".config/opencode/opencode.json"),
        _opencode_environment,
        _opencode_calls,
        _opencode_usage,
    ),
    Agent(
        "Cline", "cline", "cline", "--json", None, _cline_environment, _cline_calls, _cline_usage
    ),
)


def run(agent: Agent, programs: Path, dialect: Api, *, by_page: bool) -> Figures:
    """Let an agent do the task with an upstream that has one API; raise AssertionError.

    The page or `switchcraft setup` configures the agent.
    """
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
                path = f"{programs}{os.pathsep}{os.environ['PATH']}"
                own = {"HOME": str(home), "PATH": path, **agent.environment(home)}
                environment = {**inherited(), **own}
                script = agent.prepare(url, home) if by_page else agent.set_up(url, environment)
                started = time.monotonic()
                done = subprocess.run(
                    ["bash", "-euc", script],
                    cwd=folder,
                    env=environment,
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
    prefixes = ("ANTHROPIC_", "CLAUDE", "CLINE_", "CODEX_", "OPENAI_", "OPENCODE_")
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}


def main() -> int:
    """Run all agents; print the table; return 1 if one has failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "programs", type=Path, help="folder of `claude`, `codex`, `opencode` and `cline`"
    )
    programs = parser.parse_args().programs.resolve()
    print("| agent | set up by | upstream's API | requests | calls | seconds | input | output |")
    print("|---|---|---|--:|--:|--:|--:|--:|")
    failed = False
    for agent in AGENTS:
        version = subprocess.run(
            [programs / agent.program, "--version"], capture_output=True, text=True, check=True
        ).stdout.split()
        number = next(word for word in version if word[0].isdigit())
        for dialect, by_page in [*((each, False) for each in APIS), (apis.MESSAGES, True)]:
            if by_page and agent.client == "cline":
                continue
            way = "the page" if by_page else "the command"
            try:
                figures = run(agent, programs, dialect, by_page=by_page)
            except AssertionError as exc:
                failed = True
                print(f"{agent.name} by {way} with {dialect}: {exc}", file=sys.stderr)
                continue
            print(
                f"| {agent.name} {number} | {way} | {NAMES[dialect]} | {figures.requests} |"
                f" {figures.calls} | {figures.seconds:.1f} | {figures.input_tokens:,} |"
                f" {figures.output_tokens:,} |",
                flush=True,
            )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
