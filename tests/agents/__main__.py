"""Claude Code, Codex CLI, OpenCode and Cline complete a task through the gateway.

    make test-agents

installs them (1.6 GB) below `.venv/agents`. `switchcraft setup` configures them
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from router_service.apis.conversation import Json
from router_service.apis.parts import Result, Text, Thinking, ToolUse
from router_service.apis.request_translation import read_request
from router_service.serving.app import create_app
from router_service.settings import RouterSettings
from tests import apis
from tests.answering import settings_of
from tests.apis import APIS, Api
from tests.documentation.documents import ROOT, Block, Document
from tests.fakes import PROBABILITIES, FakeRouter
from tests.providers.answers import Reply, Written
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
ALIASES = RouterSettings(aliases={"claude-*": "switchcraft", "gpt-*": "switchcraft"})
"""The names that coding agents ask for are routed."""


class ScriptedModel:
    """ASGI app of an upstream with one API: a model that makes calls in turn, and then is done."""

    def __init__(self, api: Api, calls: Sequence[ToolUse]) -> None:
        self.requests = 0
        self.results = 0
        """Calls whose results it has got back."""
        self._api, self._calls = api, calls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        body = json.loads(await Request(scope, receive).body())
        self.requests += 1
        reply = Reply(self._api, body["model"], self._parts(body), self.requests)
        response: Response = JSONResponse(reply.whole())
        if body.get("stream"):
            response = Response(b"".join(reply.events()), media_type="text/event-stream")
        await response(scope, receive, send)

    def _parts(self, body: dict[str, Any]) -> Sequence[Written]:
        asked = read_request(body, self._api)
        if self._calls[0].name not in {tool.name for tool in asked.tools}:
            return [Text("Sorting numbers")]  # a title, or another background request
        done = sum(isinstance(part, Result) for m in asked.messages for part in m.parts)
        self.results = max(self.results, done)
        if done == len(self._calls):
            return [Text(DONE)]
        call = self._calls[done]
        if call.is_custom and self._api is not apis.RESPONSES:
            # Only Responses has custom tools that Codex uses; others get a function.
            call = ToolUse(call.id, call.name, json.dumps({"input": call.arguments}))
        return [Thinking(f"Step {done + 1} of {len(self._calls)}.", "c2lnbmVk"), call]


@dataclass(frozen=True)
class Agent:
    """A coding agent: how to start it, and the calls with which it does the task."""

    name: str
    client: str
    """Its name for `switchcraft setup`."""
    command: str
    """The program and what its command line begins with."""
    options: str
    """Further options of the page's command: what the program may do."""
    configuration: tuple[str, str] | None
    """The language of the page's configuration, and its file below the home folder."""
    environment: Mapping[str, str]
    """Its environment, with `{home}` for the home folder."""
    calls: Sequence[tuple[str, Json]]
    """The tools of the task's three calls, with their arguments, or the text of a custom tool.

    `{folder}` stands for the task's folder.
    """

    def calls_in(self, folder: Path) -> list[ToolUse]:
        """Return the calls of the task in a folder."""
        return [
            ToolUse(f"toolu_{number:024x}", name, given, is_custom=True)
            if isinstance(given, str)
            else ToolUse(
                f"toolu_{number:024x}", name, json.dumps(given).replace("{folder}", str(folder))
            )
            for number, (name, given) in enumerate(self.calls)
        ]

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


AGENTS = (
    Agent(
        name="Claude Code",
        client="claude-code",
        command="claude -p",
        options="--output-format json --allowedTools Bash,Read,Write --",
        configuration=None,
        environment={
            "CLAUDE_CONFIG_DIR": "{home}/claude",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
        },
        calls=(
            ("Read", {"file_path": "{folder}/numbers.txt"}),
            ("Bash", {"command": SORT, "description": "Sort the numbers"}),
            ("Write", {"file_path": "{folder}/answer.md", "content": ANSWER}),
        ),
    ),
    Agent(
        name="Codex CLI",
        client="codex",
        command="codex exec",
        options="--json --skip-git-repo-check --sandbox danger-full-access",
        configuration=("toml", ".codex/config.toml"),
        environment={"CODEX_HOME": "{home}/.codex"},
        calls=(
            ("exec_command", {"cmd": "cat numbers.txt"}),
            ("exec_command", {"cmd": SORT}),
            ("apply_patch", PATCH),
        ),
    ),
    Agent(
        name="OpenCode",
        client="opencode",
        command="opencode run",
        options="--format json",
        configuration=("json", ".config/opencode/opencode.json"),
        environment={
            "XDG_CONFIG_HOME": "{home}/.config",
            "XDG_DATA_HOME": "{home}/data",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
        },
        calls=(
            ("read", {"filePath": "{folder}/numbers.txt"}),
            ("bash", {"command": SORT, "description": "Sort the numbers"}),
            ("write", {"filePath": "{folder}/answer.md", "content": ANSWER}),
        ),
    ),
    Agent(
        name="Cline",
        client="cline",
        command="cline",
        options="--json",
        configuration=None,
        environment={
            "CLINE_DIR": "{home}/.cline",
            "CLINE_NO_AUTO_UPDATE": "1",
            "CLINE_SESSION_BACKEND_MODE": "local",  # without a process that outlives the task
        },
        calls=(
            ("read_files", {"files": [{"path": "{folder}/numbers.txt"}]}),
            ("run_commands", {"commands": [SORT]}),
            ("editor", {"path": "{folder}/answer.md", "new_text": ANSWER}),
        ),
    ),
)


def run(agent: Agent, programs: Path, dialect: Api, *, by_page: bool) -> None:
    """Let an agent do the task with an upstream that has one API; raise AssertionError.

    The page or `switchcraft setup` configures the agent.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder, home = Path(temporary, "task"), Path(temporary, "home")
        folder.mkdir()
        home.mkdir()
        (folder / "numbers.txt").write_text(NUMBERS)
        calls = agent.calls_in(folder)

        model = ScriptedModel(dialect, calls)
        with served(model) as upstream:
            settings = settings_of(f"{upstream}/v1", dict.fromkeys(PROBABILITIES, dialect))
            settings = settings.model_copy(update={"router": ALIASES})
            with served(create_app(settings, FakeRouter())) as url:
                path = f"{programs}{os.pathsep}{os.environ['PATH']}"
                own = {"HOME": str(home), "PATH": path}
                own |= {n: v.replace("{home}", str(home)) for n, v in agent.environment.items()}
                environment = {**inherited(), **own}
                script = agent.prepare(url, home) if by_page else agent.set_up(url, environment)
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
        output = f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert done.returncode == 0, output
        assert DONE in done.stdout, output
        written = {file.name: file.read_text() for file in folder.iterdir()}
        assert written == {"numbers.txt": NUMBERS, "sorted.txt": SORTED, "answer.md": ANSWER}
        assert model.results == len(calls), output


def inherited() -> Mapping[str, str]:
    """Return the environment without keys and settings of agents that are used on this machine."""
    prefixes = ("ANTHROPIC_", "CLAUDE", "CLINE_", "CODEX_", "OPENAI_", "OPENCODE_")
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}


def main() -> int:
    """Run all agents with all APIs; return 1 if one has failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "programs", type=Path, help="folder of `claude`, `codex`, `opencode` and `cline`"
    )
    programs = parser.parse_args().programs.resolve()
    failed = False
    for agent, dialect in product(AGENTS, APIS):
        # The page configures each agent once; it has no section on Cline.
        has_page = dialect is apis.MESSAGES and agent.client != "cline"
        for by_page in (False, True) if has_page else (False,):
            way = "the page" if by_page else "the command"
            try:
                run(agent, programs, dialect, by_page=by_page)
                print(f"{agent.name}, set up by {way}, with {dialect}: done", flush=True)
            except AssertionError as exc:
                failed = True
                print(f"{agent.name}, set up by {way}, with {dialect}: {exc}", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
