"""A walk as an application developer, who clones the repository and points a program at it.

README's first commands, a request by curl, errors, docs/clients.md's agent, and a key of
docs/accounts.md. Commands and programs are run as they are written, except for ports; what they
install is installed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.documentation.documents import ROOT, Document
from tests.drills.processes import START_TIMEOUT_S, free_port, wait_until
from tests.walks.screens import Screens

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

README = Document(ROOT / "README.md")
CLIENTS = Document(ROOT / "docs" / "clients.md")
ACCOUNTS = Document(ROOT / "docs" / "accounts.md")
ADDRESS = "127.0.0.1:8080"


class Terminal:
    """The developer's terminal, in a folder beside an installed checkout."""

    def __init__(self, screens: Screens, folder: Path) -> None:
        """Show each command and its output in a picture."""
        self._screens = screens
        self.folder = folder
        programs = folder / ".venv" / "bin"
        programs.mkdir(parents=True)
        for name, command in (
            ("switchcraft", "-m router_service.cli"),
            ("python", ""),
            ("pip", ""),
        ):
            program = programs / name
            run = "true" if name == "pip" else f"{shlex.quote(sys.executable)} {command}"
            program.write_text(f'#!/bin/sh\nexec {run} "$@"\n')
            program.chmod(0o755)
        self.environment = {
            **{name: value for name, value in os.environ.items() if "SWITCHCRAFT" not in name},
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "XDG_STATE_HOME": str(folder),
            "OMP_NUM_THREADS": "1",
        }

    def run(self, command: str, *, shown: str = "", code: int = 0) -> str:
        """Run a command, and return what it prints; `shown` replaces it in the picture."""
        done = subprocess.run(
            ["bash", "-uo", "pipefail", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        self._screens.terminal(shown or command, done.stdout)
        assert done.returncode == code, done.stdout
        return done.stdout

    def program(self, name: str, text: str) -> str:
        """Write a Python program, run it, and return what it prints."""
        (self.folder / name).write_text(text)
        return self.run(f".venv/bin/python {name}", shown=f"python {name}")

    @contextmanager
    def serving(self, command: str, port: int, url: str) -> Iterator[None]:
        """Run a command that serves, and show what it has logged when it is ready."""
        log = self.folder / f"serve-{port}.log"
        started = f"{command} --log-format text"
        with (
            log.open("wb") as file,
            subprocess.Popen(
                shlex.split(started), cwd=self.folder, env=self.environment, stderr=file
            ) as process,
        ):

            def is_ready() -> bool:
                assert process.poll() is None, log.read_text()
                try:
                    return httpx.get(f"{url}/readyz").is_success
                except httpx.TransportError:
                    return False

            try:
                wait_until(is_ready, "the gateway serves", START_TIMEOUT_S)
                self._screens.terminal(command, log.read_text())
                yield
            finally:
                process.terminate()
                process.wait(START_TIMEOUT_S)


def python_block(document: Document, words: str) -> str:
    """Return the Python block of a document that has these words."""
    return next(b.text for b in document.blocks if b.language == "python" and words in b.text)


@pytest.fixture
def terminal(screens: Screens, tmp_path: Path) -> Terminal:
    """Return the developer's terminal."""
    return Terminal(screens, tmp_path)


def test_application_developer(terminal: Terminal) -> None:
    """From the first command to an agent with a key, each step shows what the developer expects."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    assert "make serve" in README.text
    with terminal.serving(f".venv/bin/switchcraft serve --port {port}", port, url):
        _first_answers(terminal, url)
        _errors(terminal, url)
        _agent(terminal, url)
        _key(terminal, url)


def _first_answers(terminal: Terminal, url: str) -> None:
    """README's program prints what README shows; curl gets the call and the decision's headers."""
    program = python_block(README, "get_forecast").replace(f"http://{ADDRESS}", url)
    printed = terminal.program("first.py", program)
    shown = next(block.text for block in README.blocks if block.text.startswith("get_forecast {"))
    assert printed.split() == shown.split()

    body = (
        '{"model": "switchcraft", "messages": [{"role": "user", "content": "Weather in Oslo?"}],'
        ' "tools": [{"type": "function", "function": {"name": "get_weather", "parameters":'
        ' {"type": "object", "properties": {"city": {"type": "string"}}}}}]}'
    )
    ask = f"curl -si {url}/v1/chat/completions -H 'content-type: application/json'"
    answer = terminal.run(f"{ask} -d '{body}'")
    for header in ("model", "decision-id", "policy", "reason", "why", "cost-usd"):
        assert f"\nx-switchcraft-{header}: " in answer
    assert '"tool_calls"' in answer
    decision = re.findall(r"x-switchcraft-decision-id: (\S+)", answer)[0]
    record = terminal.run(f"curl -s {url}/v1/decisions/{decision} | .venv/bin/python -m json.tool")
    assert '"probabilities"' in record


def _errors(terminal: Terminal, url: str) -> None:
    """Errors say what was wrong, and what is right."""
    ask = f"curl -s {url}/v1/chat/completions"
    unknown = terminal.run(
        f"""{ask} -d '{{"model": "gpt-9", "messages": [{{"role": "user", "content": "Hi"}}]}}'"""
    )
    assert "The model 'gpt-9' does not exist here. Use one of these: switchcraft" in unknown
    missing = terminal.run(f"""{ask} -d '{{"model": "switchcraft"}}'""")
    assert "messages" in missing
    wrong = terminal.run(f"curl -s {url}/v1/chat/completion -d '{{}}'")
    assert "Did you mean /v1/chat/completions?" in wrong


def _agent(terminal: Terminal, url: str) -> None:
    """Run the agent of the page for clients, which calls its tool and answers."""
    program = python_block(CLIENTS, "langgraph").replace(f"http://{ADDRESS}", url)
    assert "This is the sandbox" in terminal.program("agent.py", program)


def _key(terminal: Terminal, url: str) -> None:
    """With the first admin key, requests need a key; a key with a budget shows what is left."""
    create = next(b.text for b in ACCOUNTS.blocks if b.is_shell and "--admin)" in b.text).strip()
    terminal.run(f'{create}\nprintf %s "$ADMIN" > admin-key', shown=create)
    ask = f"curl -si {url}/v1/chat/completions"
    body = """-d '{"model": "switchcraft", "messages": [{"role": "user", "content": "Hello"}]}'"""

    def needs_key() -> bool:
        return httpx.get(f"{url}/v1/models").status_code == 401

    wait_until(needs_key, "the gateway has read its first key")
    refused = terminal.run(f"{ask} {body}")
    assert "HTTP/1.1 401" in refused
    command = ".venv/bin/switchcraft keys create my-app --budget 5/month"
    terminal.run(f"{command} | tee app-key", shown=command)
    key = (terminal.folder / "app-key").read_text().strip()

    def is_known() -> bool:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.get(f"{url}/v1/models", headers=headers).is_success

    wait_until(is_known, "the gateway has read the new key")
    answer = terminal.run(
        f'KEY=$(cat app-key)\n{ask} -H "authorization: Bearer $KEY" {body}',
        shown=f'{ask} -H "authorization: Bearer $KEY" {body}',
    )
    assert "x-switchcraft-budget-left-usd: 5" in answer
    assert "HTTP/1.1 200" in answer
