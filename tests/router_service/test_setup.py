"""`switchcraft setup`: coding agents' own settings, changed and taken back."""

from __future__ import annotations

import io
import json
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from router_service.apis.capabilities import Capabilities
from router_service.cli import main
from tests.fakes import FakeRouter
from tests.gateways import gateway_client, sandbox_settings, with_models
from tests.keyed_gateways import keyed_gateway
from tests.serving import ONE_TRY, Sandbox

FILES = {
    "claude-code": ".claude/settings.json",
    "codex": ".codex/config.toml",
    "opencode": ".config/opencode/opencode.json",
    "cline": ".cline/data/settings/providers.json",
}
SETTINGS = {
    "claude-code": '{"env": {"FOO": "ü", "ANTHROPIC_API_KEY": "sk-ant-api03-ab"}, "model": "opus"}',
    "codex": '# mine\nmodel = "gpt-5.5" # the usual\n\n[mcp_servers.x]\ncommand = "x" # keep\n',
    "opencode": '{\n\t"model": "openai/gpt-5.5",\n\t"share": "disabled"\n}\n',
    "cline": json.dumps(
        {
            "version": 1,
            "lastUsedProvider": "openai-compatible",
            "providers": {
                "openai-compatible": {
                    "settings": {"provider": "openai-compatible", "apiKey": "own", "timeout": 9},
                    "updatedAt": "2026-01-01T00:00:00.000Z",
                    "tokenSource": "manual",
                }
            },
        }
    ),
}
"""What a user has before, with keys that setup replaces, takes away and leaves."""

SECRET = "sk-switchcraft-0123456789abcdefghij"
CLOSED = "http://127.0.0.1:9"
"""An address at which nothing listens."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the user's home folder, in which agents have their settings."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME", "CLINE_DIR"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


@pytest.fixture
def gateway(sandbox: Sandbox) -> Iterator[str]:
    """Return the address of a gateway whose largest model has a window of 200,000 tokens."""
    known = Capabilities(context_window_tokens=200_000, max_output_tokens=64_000)
    settings = sandbox_settings(sandbox.base_url, ONE_TRY)
    settings = with_models(settings, lambda _: {"capabilities": known})
    with gateway_client(settings, FakeRouter()) as http:
        yield str(http.base_url).rstrip("/")


def write(home: Path, client: str, text: str | None = None) -> Path:
    """Write an agent's settings, and return their file."""
    file = home / FILES[client]
    file.parent.mkdir(parents=True)
    file.write_text(SETTINGS[client] if text is None else text)
    return file


def read(file: Path) -> dict[str, Any]:
    """Return an agent's settings."""
    return (
        tomllib.loads(file.read_text()) if file.suffix == ".toml" else json.loads(file.read_text())
    )


def setup(client: str, *options: str) -> int:
    """Run the command without a question, for a gateway that does not run."""
    return main(["setup", client, "--url", CLOSED, "--yes", *options])


@pytest.mark.parametrize("client", FILES)
def test_undo_restores_the_file(home: Path, client: str) -> None:
    """`--undo` restores every byte, also after a second setup, and removes the files beside it."""
    file = write(home, client)
    assert setup(client, "--key", SECRET) == 0
    first = file.read_text()
    assert setup(client, "--model", "gpt-4.1-mini") == 0
    assert SECRET in first
    assert SECRET not in file.read_text()
    assert file.with_name(f"{file.name}.before-switchcraft").read_text() == SETTINGS[client]
    assert setup(client, "--undo") == 0
    assert file.read_text() == SETTINGS[client]
    assert [*file.parent.iterdir()] == [file]
    assert setup(client, "--undo") == 1


@pytest.mark.parametrize("client", FILES)
def test_undo_removes_a_file_that_setup_has_made(home: Path, client: str) -> None:
    """A file that did not exist is created so that only its user can read it, and removed."""
    file = home / FILES[client]
    for _ in range(2):
        assert setup(client, "--key", SECRET) == 0
    assert {each.stat().st_mode & 0o777 for each in file.parent.iterdir()} == {0o600}
    assert setup(client, "--undo") == 0
    assert [*file.parent.iterdir()] == []


def _edit_json(change: Callable[[dict[str, Any]], object]) -> Callable[[str], str]:
    def edit(text: str) -> str:
        document = json.loads(text)
        change(document)
        return json.dumps(document)

    return edit


@pytest.mark.parametrize(
    ("client", "edit", "expected"),
    [
        (
            "claude-code",
            _edit_json(lambda all_: all_["env"].update(BAR="2", ANTHROPIC_BASE_URL="http://mine")),
            {
                "env": {
                    "FOO": "ü",
                    "ANTHROPIC_API_KEY": "sk-ant-api03-ab",
                    "BAR": "2",
                    "ANTHROPIC_BASE_URL": "http://mine",
                },
                "model": "opus",
            },
        ),
        (
            "codex",
            lambda text: text.replace('"x" # keep', '"y" # changed'),
            {"model": "gpt-5.5", "mcp_servers": {"x": {"command": "y"}}},
        ),
    ],
)
def test_undo_leaves_later_edits(
    home: Path, client: str, edit: Callable[[str], str], expected: dict[str, Any]
) -> None:
    """What was changed since stays, also of the keys that setup has set; comments stay, too."""
    file = write(home, client)
    assert setup(client) == 0
    file.write_text(edit(file.read_text()))
    assert setup(client, "--undo") == 0
    assert read(file) == expected
    if client == "codex":
        assert file.read_text().startswith('# mine\nmodel = "gpt-5.5" # the usual\n')
        assert 'command = "y" # changed\n' in file.read_text()


@pytest.mark.parametrize("client", FILES)
def test_undo_forgets_what_a_user_has_taken_back(home: Path, client: str) -> None:
    """A deleted file stays deleted, a file that was restored by hand stays, and no copy remains."""
    file = write(home, client)
    for text in (None, SETTINGS[client]):
        assert setup(client) == 0
        file.unlink()
        if text is not None:
            file.write_text(text)
        assert setup(client, "--undo") == 0
        assert [*file.parent.iterdir()] == ([] if text is None else [file])


@pytest.mark.parametrize("client", ["codex", "opencode", "cline"])
def test_undo_leaves_a_provider_with_another_address(home: Path, client: str) -> None:
    """A provider that the user has pointed elsewhere stays whole, although setup has made it."""
    assert setup(client) == 0
    file = home / FILES[client]
    file.write_text(file.read_text().replace(CLOSED, "http://elsewhere"))
    (name,) = {"model_providers", "provider", "providers"} & read(file).keys()
    changed = read(file)[name]
    assert setup(client, "--undo") == 0
    assert read(file)[name] == changed


def test_undo_removes_what_the_agent_adds_to_the_section(home: Path) -> None:
    """No part of a provider stays that only setup has added, and Cline's file keeps its version."""
    assert setup("cline") == 0
    file = home / FILES["cline"]
    document = read(file)
    document["providers"]["openai-compatible"]["settings"]["timeout"] = 5
    document["providers"]["cline"] = {"settings": {"provider": "cline"}}
    file.write_text(json.dumps(document))
    assert setup("cline", "--undo") == 0
    assert read(file) == {"version": 1, "providers": {"cline": {"settings": {"provider": "cline"}}}}


def test_limits_are_the_gateways(home: Path, gateway: str) -> None:
    """Every agent gets the window of the model that answers."""
    for client in FILES:
        assert main(["setup", client, "--url", f"{gateway}/v1/", "--yes"]) == 0
    files = {client: read(home / name) for client, name in FILES.items()}
    assert files["claude-code"]["env"] == {
        "ANTHROPIC_BASE_URL": gateway,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": "200000",
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "200000",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "32000",
    }
    assert files["codex"]["model_context_window"] == 200_000
    models = files["opencode"]["provider"]["switchcraft"]["models"]
    assert models["switchcraft"]["limit"] == {"context": 200_000, "output": 32_000}
    cline = files["cline"]["providers"]["openai-compatible"]["settings"]
    assert (cline["baseUrl"], cline["contextWindow"]) == (f"{gateway}/v1", 200_000)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "Keys are given with --key or --key-env."),
        (["--key-env", "NO_SUCH_KEY"], "The variable NO_SUCH_KEY is not set."),
        (["--key", "$VALID", "--model", "gpt-9"], "gpt-9"),
    ],
)
def test_refused_key_or_model_changes_nothing(
    home: Path,
    sandbox: Sandbox,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    expected: str,
) -> None:
    """What a running gateway refuses is not written, and the message says why."""
    with keyed_gateway(sandbox) as served:
        secret = served.add_key("agent")
        given = [secret if option == "$VALID" else option for option in options]
        assert main(["setup", "codex", "--url", served.url, "--yes", *given]) == 1
    assert expected in capsys.readouterr().err
    assert [*home.iterdir()] == []


def test_keys_from_a_variable(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With `--key-env` the settings name the variable, and other keys are not sent."""
    write(home, "claude-code")
    for client in ("claude-code", "codex", "opencode"):
        assert setup(client, "--key-env", "MY_KEY") == 0
    claude = read(home / FILES["claude-code"])
    assert claude["apiKeyHelper"] == "printenv MY_KEY"
    assert claude["env"] == {"FOO": "ü", "ANTHROPIC_BASE_URL": CLOSED}
    provider = read(home / FILES["codex"])["model_providers"]["switchcraft"]
    assert provider["auth"] == {"command": "printenv", "args": ["MY_KEY"]}
    options = read(home / FILES["opencode"])["provider"]["switchcraft"]["options"]
    assert options["apiKey"] == "{env:MY_KEY}"
    capsys.readouterr()
    assert setup("cline", "--key-env", "MY_KEY") == 1
    assert "--key-env: Cline reads no key from a variable; use --key" in capsys.readouterr().err


@pytest.mark.parametrize("comment", ["// mine\n", '"a": [1,],\n'])
def test_json_with_comments_stays(
    home: Path, capsys: pytest.CaptureFixture[str], comment: str
) -> None:
    """A file with comments is not written; the message has what to add by hand."""
    text = f'{{\n{comment}"model": "openai/gpt-5.5"\n}}\n'
    file = write(home, "opencode", text).rename(home / ".config/opencode/opencode.jsonc")
    assert setup("opencode") == 1
    problem = capsys.readouterr().err
    assert f"{file}: is not plain JSON" in problem
    assert json.loads(problem.partition("Add this by hand:\n")[2])["small_model"]
    assert file.read_text() == text
    assert [*file.parent.iterdir()] == [file]


class Terminal(io.StringIO):
    """Standard input on which a person types."""

    def isatty(self) -> bool:
        """Return that this is a terminal."""
        return True


@pytest.mark.parametrize(
    ("stdin", "options", "status", "is_written"),
    [
        (Terminal("y\n"), [], 0, True),
        (Terminal("\n"), [], 0, False),
        (Terminal(""), [], 0, False),
        (io.StringIO("y\n"), [], 1, False),
        (io.StringIO(""), ["--print"], 0, False),
    ],
)
def test_change_is_shown_and_asked_for(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stdin: io.StringIO,
    options: list[str],
    status: int,
    *,
    is_written: bool,
) -> None:
    """A person sees the diff without keys before the question; others need `--yes`."""
    file = write(home, "claude-code")
    monkeypatch.setattr(sys, "stdin", stdin)
    assert main(["setup", "claude-code", "--url", CLOSED, "--key", "short", *options]) == status
    captured = capsys.readouterr()
    assert f"--- {file}\n+++ {file}\n" in captured.out
    assert '+    "ANTHROPIC_AUTH_TOKEN": "[hidden]"' in captured.out
    assert "sk-ant-api03" not in captured.out
    assert ("add --yes or --print" in captured.err) == (status == 1)
    assert (file.read_text() != SETTINGS["claude-code"]) == is_written
