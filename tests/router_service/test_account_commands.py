"""`switchcraft keys` and `switchcraft teams` on real databases."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from router_service.access.accounts import Accounts
from router_service.access.key import Key, Permission
from router_service.access.keyring import KeyRing, StoredKeys
from router_service.access.specs import NewKey
from router_service.cli import main
from router_service.core.keys import hashed
from router_service.database.engine import Database

Run = Callable[..., str]


@pytest.fixture
def url(database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name an empty database in the environment, of each kind in turn."""
    monkeypatch.setenv("SWITCHCRAFT_DATABASE_URL", database_url)
    monkeypatch.delenv("SWITCHCRAFT_CONFIG", raising=False)
    return database_url


@pytest.fixture
def run(url: str, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a command and returns its output; an error goes to `stderr`."""
    del url

    def run_command(*arguments: str, fails: bool = False) -> str:
        capsys.readouterr()
        assert main(arguments) == int(fails)
        output = capsys.readouterr()
        if fails:
            assert output.out == ""
            assert output.err.startswith("switchcraft: ")
            assert output.err.count("\n") == 1
        return output.err if fails else output.out

    return run_command


def find(url: str, secret: str) -> Key | None:
    """Return the key that a gateway with this database finds."""
    database = Database(url)
    stored = StoredKeys()
    stored.refresh(database)
    database.close()
    return KeyRing([], stored).find(secret.encode(), Permission.CALL)


def show(run: Run, name: str, kind: str = "keys") -> dict[str, Any]:
    """Return a key or a team as JSON."""
    shown: dict[str, Any] = json.loads(run(kind, "show", name, "--json"))
    return shown


def test_key_may_keep_its_secret(run: Run, url: str) -> None:
    """`--hash` takes the SHA-256 of a secret that a client has already, such as one of LiteLLM."""
    run("keys", "create", "ops", "--admin")
    secret = "sk-1234567890abcdefghij"
    assert run("keys", "create", "moved", "--hash", hashed(secret)) == ""
    found = find(url, secret)
    assert found is not None
    assert found.name == "moved"
    for name, digest, problem in (
        ("a", hashed(secret), "The key 'moved' has this secret"),
        ("a", hashed(secret).removeprefix("sha256:"), "The hash is not valid"),
        ("a", "sha256:00", "The hash is not valid"),
        ("moved", hashed("another secret"), "exists already"),
    ):
        assert problem in run("keys", "create", name, "--hash", digest, fails=True)


def test_options_set_and_remove_what_a_key_has(run: Run) -> None:
    """Options of `create` and `edit` are the fields of the API; `--remove` is its null."""
    run("keys", "create", "ops", "--admin")
    run("teams", "create", "search", "--budget", "500", "--tokens-per-minute", "9")
    limits = "--requests-per-minute 60 --tokens-per-minute 1000 --parallel-requests 4"
    run(
        *("keys", "create", "agent", "--team", "search", "--owner", "ana", "--budget", "0.5/day"),
        *("--models", "small", "large", "--policies", "economy", "--expires", "2030-01-31"),
        *("--metadata", "a=b", "c=d=e", *limits.split()),
    )
    key = show(run, "agent")
    assert key["budget"] == {"usd": 0.5, "period": "day"}
    assert (key["team"], key["owner"], key["is_admin"]) == ("search", "ana", False)
    assert (key["models"], key["policies"]) == (["small", "large"], ["economy"])
    assert (key["expires"], key["metadata"]) == ("2030-01-31T00:00:00Z", {"a": "b", "c": "d=e"})
    assert key["requests_per_minute"] == 60
    assert (key["tokens_per_minute"], key["parallel_requests"]) == (1000, 4)
    assert key["team_budget_state"]["usd"] == 500
    run("keys", "edit", "agent", "--admin", "--owner", "bo", "--remove", "team", "models", "budget")
    changed = show(run, "agent")
    assert (changed["team"], changed["models"], changed["budget"]) == (None, None, None)
    assert (changed["is_admin"], changed["owner"], changed["policies"]) == (True, "bo", ["economy"])
    run("keys", "edit", "agent", "--remove", "admin", "metadata", "requests-per-minute")
    changed = show(run, "agent")
    assert (changed["is_admin"], changed["metadata"]) == (False, {})
    assert changed["requests_per_minute"] is None
    run("teams", "edit", "search", "--owner", "ana", "--remove", "budget")
    team = show(run, "search", "teams")
    assert (team["owner"], team["budget"], team["tokens_per_minute"]) == ("ana", None, 9)
    run("teams", "delete", "search")
    assert "There is no team" in run("teams", "show", "search", fails=True)


def test_list_is_an_aligned_table(run: Run, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Columns start at the same place in each line, and a long list says how it continues."""
    run("keys", "create", "ops", "--admin")
    run("teams", "create", "search team")
    for number in range(3):
        run("keys", "create", f"agent {number}", "--team", "search team", "--budget", "5/week")
    run("keys", "revoke", "agent 1")
    lines = run("keys", "list").splitlines()
    assert [line[: lines[0].index("STATUS")].strip() for line in lines[1:]] == [
        *("agent 0", "agent 1", "agent 2", "ops")
    ]
    start, end = lines[0].index("STATUS"), lines[0].index("TEAM")
    assert [line[start:end].strip() for line in lines[1:]] == [
        "active",
        "revoked",
        "active",
        "active",
    ]
    assert "0.00 of 5.00 USD a week" in lines[1]
    assert main(["keys", "list", "--limit", "2", "--team", "search team"]) == 0
    assert "2 of 3 are shown; continue with --after 'agent 1'" in capsys.readouterr().err
    assert len(run("keys", "list", "--after", "agent 1", "--team", "search team").splitlines()) == 2
    assert len(run("keys", "list", "AGENT", "--status", "active").splitlines()) == 3
    listed = json.loads(run("keys", "list", "--json"))
    assert (listed["total"], listed["keys"][0]["name"]) == (4, "agent 0")
    assert run("teams", "list").splitlines()[1].split()[:3] == ["search", "team", "2"]
    assert json.loads(run("teams", "list", "--json"))["teams"][0]["keys"] == 2
    del url


def test_output_cannot_control_a_terminal(run: Run, url: str) -> None:
    """Control characters, which metadata may have, are escaped."""
    database = Database(url)
    database.prepare()
    spec = NewKey(name="ops", is_admin=True, metadata={"\x1b[31m": "a\nb\u202ec\x9b"})
    Accounts(database).create_key(spec)
    database.close()
    for output in (run("keys", "show", "ops"), run("keys", "show", "ops", "--json")):
        assert output.replace("\n", "").isprintable()
        assert "b\\u202ec" in output


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("keys create a", "must be an admin key"),
        ("keys create a\tb --admin", "Invalid 'name': must not contain control characters"),
        ("keys create a --admin --budget 5/year", "Invalid 'budget.period'"),
        ("keys create a --admin --metadata x", "Write metadata as NAME=VALUE"),
        ("keys show x", "There is no key with the name 'x'"),
        ("keys list --config /nowhere.yaml", "/nowhere.yaml"),
        ("keys rotate x --overlap 100d", "Invalid 'overlap_s'"),
        ("route --policy cheap", "cheap"),
        ("route --artifact no/such/folder", "no/such/folder"),
    ],
)
def test_mistakes_are_one_line(run: Run, command: str, problem: str) -> None:
    """The line says what is wrong; standard output stays empty, so that no script takes it."""
    assert problem in run(*command.split(" "), fails=True)


def test_unknown_models_of_a_key_are_a_warning(
    tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A key may name models that are configured later, so the key is created."""
    del url
    config = tmp_path / "gateway.yaml"
    config.write_text(
        "model_list: [{model_name: m, litellm_params: {model: openai/m, api_key: k}}]\n"
    )
    names = "m claude-4 switchcraft:fast gpt-9".split()
    command = ["keys", "create", "a", "--admin", "--config", str(config), "--models", *names]
    assert main(command) == 0
    output = capsys.readouterr()
    assert "has no model gpt-9; it has m, " in output.err
    assert output.out
