"""What a newcomer does, with the commands and programs of README and of the pages it links to.

A checkout whose virtual environment is installed is given. Commands and programs are run as they
are written, except for ports, addresses of models and names of files.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
from pathlib import Path

import pytest

from router_service import cli
from tests.drills.processes import free_port, serving
from tests.serving import Sandbox

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
ADDRESS = "127.0.0.1:8080"


KEYS = {f"{provider}_API_KEY": "sk-any" for provider in ("ANTHROPIC", "GEMINI", "XAI")}
"""The keys that README's configuration names."""


def blocks(text: str, language: str) -> list[str]:
    """Return the code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def command(text: str, beginning: str) -> str:
    """Return the first line of the shell blocks that begins so, without its comment."""
    lines = (line for block in blocks(text, "sh") for line in block.splitlines())
    return next(line for line in lines if line.startswith(beginning)).partition("  #")[0].strip()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the newcomer works."""
    return tmp_path_factory.mktemp("newcomer")


@pytest.fixture(scope="module")
def own_config(folder: Path, sandbox: Sandbox) -> Path:
    """Write README's configuration, at the address of a server that answers."""
    (text,) = blocks(README, "yaml")
    name = re.match(r"# (\S+)\n", text)
    assert name is not None
    path = folder / name[1]
    path.write_text(text.replace("api_key:", f"api_base: '{sandbox.base_url}', api_key:"))
    return path


def set_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the keys that README's configuration names, and any free port."""
    for name, key in KEYS.items():
        monkeypatch.setenv(name, key)
    monkeypatch.setenv("SWITCHCRAFT_PORT", "0")


def run_program(address: str, folder: Path, *programs: str) -> None:
    """Run Python blocks, one after the other, as one program that talks to this gateway."""
    path = folder / "program.py"
    path.write_text("\n".join(programs).replace(ADDRESS, address))
    runpy.run_path(str(path))


def test_list_of_models_passes_the_check(
    own_config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """README's command accepts README's configuration; a mistake in it is found with its line."""
    _, *check = shlex.split(command(README, ".venv/bin/switchcraft check"))
    assert check[-1] == own_config.name
    monkeypatch.chdir(own_config.parent)
    set_keys(monkeypatch)
    assert cli.main(check) == 0
    printed = capsys.readouterr().out
    assert "3 of 8 arms" in printed
    reached = re.search(r"These three are expected to reach (\S+%)", README)
    assert reached is not None
    assert f"is expected to answer {reached[1]}" in printed
    wrong = own_config.with_name("wrong.yaml")
    wrong.write_text(f"{own_config.read_text()}router:\n  chatmodel: grok\n")
    assert cli.main([*check[:-1], wrong.name]) == 1
    line = wrong.read_text().partition("chatmodel")[0].count("\n") + 1
    assert f"wrong.yaml:{line}: router.chatmodel: is unknown; did you mean 'chat_model'?" in (
        capsys.readouterr().out
    )


def test_goal_is_reached_with_the_listed_models(
    own_config: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """README's programs run, and the goal becomes the rule that `switchcraft policies` shows."""
    make = command(README, "make serve CONFIG=").replace(own_config.name, str(own_config))
    port = free_port()
    # The environment is installed; other commands of the tests use it at the same time.
    words = ["make", "--old-file", ".venv/.serve", *shlex.split(make)[1:], f"PORT={port}"]
    environment = {**os.environ, **KEYS, "XDG_STATE_HOME": str(folder)}
    url, log = f"http://127.0.0.1:{port}", folder / "gateway.log"
    with serving(words, url, log, environment=environment):
        run_program(f"127.0.0.1:{port}", folder, *blocks(README, "python"))
    *_, chosen = (printed := capsys.readouterr().out).splitlines()
    (shown,) = (text for text in blocks(README, "text") if text.startswith("get_forecast {"))
    assert shown.splitlines()[0].split() in [line.split() for line in printed.splitlines()]
    model, policy = chosen.split(maxsplit=1)
    assert model in {"claude-haiku", "flash-lite", "grok"}
    set_keys(monkeypatch)
    cli.main(["policies", "--config", str(own_config), "--goal", "accuracy=best"])
    shown = re.search(r"^policy +(\S+)$", capsys.readouterr().out, re.MULTILINE)
    assert shown is not None
    assert policy == f"accuracy=best ({shown[1]})"
