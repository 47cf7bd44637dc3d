"""A walk as an application developer, who clones the repository and points a program at it.

README's first commands, a request by curl, errors, docs/clients.md's agent, and a key of
docs/accounts.md. Commands and programs are run as they are written, except for ports; what they
install is installed.
"""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from tests.documentation.documents import ROOT, Document
from tests.drills.processes import free_port, serving
from tests.serving import wait_for
from tests.walks.screens import Screens, Terminal

pytestmark = pytest.mark.slow

README = Document(ROOT / "README.md")
CLIENTS = Document(ROOT / "docs" / "clients.md")
ACCOUNTS = Document(ROOT / "docs" / "accounts.md")
ADDRESS = "127.0.0.1:8080"


class Developer(Terminal):
    """The developer, with a terminal and an editor."""

    def program(self, name: str, text: str) -> str:
        """Write a Python program, run it, and return what it prints."""
        (self.folder / name).write_text(text)
        return self.run(f".venv/bin/python {name}", shown=f"python {name}")


def python_block(document: Document, words: str) -> str:
    """Return the Python block of a document that has these words."""
    return next(b.text for b in document.blocks if b.language == "python" and words in b.text)


def test_application_developer(screens: Screens, tmp_path: Path) -> None:
    """From the first command to an agent with a key, each step shows what the developer expects."""
    developer, port = Developer(screens, tmp_path), free_port()
    url, log = f"http://127.0.0.1:{port}", tmp_path / "serve.log"
    assert "make serve" in README.text
    command = [".venv/bin/switchcraft", "serve", "--port", str(port)]
    started = [tmp_path / command[0], *command[1:], "--log-format", "text"]
    with serving(started, url, log, environment=developer.environment, cwd=tmp_path):
        screens.terminal(" ".join(command), log.read_text())
        _first_answers(developer, url)
        _errors(developer, url)
        _agent(developer, url)
        _key(developer, url)


def _first_answers(developer: Developer, url: str) -> None:
    """README's program prints what README shows; curl gets the call and the decision's headers."""
    program = python_block(README, "get_forecast").replace(f"http://{ADDRESS}", url)
    printed = developer.program("first.py", program)
    shown = next(block.text for block in README.blocks if block.text.startswith("get_forecast {"))
    assert printed.split() == shown.split()

    body = (
        '{"model": "switchcraft", "messages": [{"role": "user", "content": "Weather in Oslo?"}],'
        ' "tools": [{"type": "function", "function": {"name": "get_weather", "parameters":'
        ' {"type": "object", "properties": {"city": {"type": "string"}}}}}]}'
    )
    ask = f"curl -si {url}/v1/chat/completions -H 'content-type: application/json'"
    answer = developer.run(f"{ask} -d '{body}'")
    for header in ("model", "decision-id", "policy", "reason", "why", "cost-usd"):
        assert f"\nx-switchcraft-{header}: " in answer
    assert '"tool_calls"' in answer
    decision = re.findall(r"x-switchcraft-decision-id: (\S+)", answer)[0]
    record = developer.run(f"curl -s {url}/v1/decisions/{decision} | .venv/bin/python -m json.tool")
    assert '"probabilities"' in record


def _errors(developer: Developer, url: str) -> None:
    """Errors say what was wrong, and what is right."""
    ask = f"curl -s {url}/v1/chat/completions"
    unknown = developer.run(
        f"""{ask} -d '{{"model": "gpt-9", "messages": [{{"role": "user", "content": "Hi"}}]}}'"""
    )
    assert "The model 'gpt-9' does not exist here. Use one of these: switchcraft" in unknown
    missing = developer.run(f"""{ask} -d '{{"model": "switchcraft"}}'""")
    assert "messages" in missing
    wrong = developer.run(f"curl -s {url}/v1/chat/completion -d '{{}}'")
    assert "Did you mean /v1/chat/completions?" in wrong


def _agent(developer: Developer, url: str) -> None:
    """Run the agent of the page for clients, which calls its tool and answers."""
    program = python_block(CLIENTS, "langgraph").replace(f"http://{ADDRESS}", url)
    assert "This is the sandbox" in developer.program("agent.py", program)


def _key(developer: Developer, url: str) -> None:
    """With the first admin key, requests need a key; a key with a budget shows what is left."""
    create = next(b.text for b in ACCOUNTS.blocks if b.is_shell and "--admin)" in b.text).strip()
    developer.run(f'{create}\nprintf %s "$ADMIN" > admin-key', shown=create)
    ask = f"curl -si {url}/v1/chat/completions"
    body = """-d '{"model": "switchcraft", "messages": [{"role": "user", "content": "Hello"}]}'"""

    def needs_key() -> bool:
        return httpx.get(f"{url}/v1/models").status_code == 401

    wait_for(needs_key, "the gateway has read its first key")
    refused = developer.run(f"{ask} {body}")
    assert "HTTP/1.1 401" in refused
    command = ".venv/bin/switchcraft keys create my-app --budget 5/month"
    developer.run(f"{command} | tee app-key", shown=command)
    key = (developer.folder / "app-key").read_text().strip()

    def is_known() -> bool:
        headers = {"authorization": f"Bearer {key}"}
        return httpx.get(f"{url}/v1/models", headers=headers).is_success

    wait_for(is_known, "the gateway has read the new key")
    answer = developer.run(
        f'KEY=$(cat app-key)\n{ask} -H "authorization: Bearer $KEY" {body}',
        shown=f'{ask} -H "authorization: Bearer $KEY" {body}',
    )
    assert "x-switchcraft-budget-left-usd: 5" in answer
    assert "HTTP/1.1 200" in answer
