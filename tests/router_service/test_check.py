"""`switchcraft check`: what is found, and the exit status."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import yaml

from router_service.artifact import SHIPPED, read_manifest
from router_service.check import CHANGED_DEFAULTS, Finding, Status, check
from router_service.cli import main
from tests.postgresql import PostgreSQLServer
from tests.sandbox import run_in_thread
from tests.serving import scripted

MANIFEST = read_manifest(SHIPPED / "manifest.json")
ARM = MANIFEST.arms[0]
MODEL_ID = MANIFEST.stands_for[ARM][0]
KEY = "sk-1f2e3d4c5b6a79880716253443526170"


def config(folder: Path, base_url: str, *lines: str) -> Path:
    """Write a configuration with one model and these lines, and return its path."""
    path = folder / "config.yaml"
    params = f"litellm_params: {{model: m, api_base: '{base_url}'}}"
    entry = f"{{model_name: m, {params}, model_info: {{base_model: {MODEL_ID}}}}}"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    router = f"router: {{arms: {{{ARM}: m}}, unknown_prices: allow}}"
    server = "" if any(line.startswith("server") for line in lines) else f"server: {{port: {port}}}"
    path.write_text("\n".join((f"model_list: [{entry}]", router, server, *lines)))
    return path


def found(path: Path, *, asks: bool = False) -> dict[str, Finding]:
    """Return the last finding for each subject."""
    return {finding.subject: finding for finding in check(path, asks=asks)}


def test_usable_configuration_has_no_failure(
    tmp_path: Path, redis_url: str, postgresql: PostgreSQLServer
) -> None:
    """The router, Redis, database, port, folder and each deployment are tried, and all work."""
    with run_in_thread() as sandbox:
        lines = (
            f"router_settings: {{redis_url: '{redis_url}'}}",
            "decision_log: {path: log}",
            f"database: {{url: '{postgresql.create()}'}}",
        )
        path = config(tmp_path, sandbox, *lines, f"keys: {{admin: {KEY}}}")
        path.write_text(path.read_text().replace("path: log", f"path: {tmp_path / 'log'}"))
        findings = found(path, asks=True)
    [deployment] = [subject for subject in findings if subject.startswith("m (")]
    assert {subject: finding.status for subject, finding in findings.items()} == dict.fromkeys(
        (
            "configuration",
            "keys",
            "router",
            "names",
            "expected",
            "redis",
            "port",
            "decision log",
            "database",
            deployment,
        ),
        Status.OK,
    )
    assert f"1 of 8 arms: {ARM} (served by m); without a model" in findings["router"].detail
    assert "The best addition is " in findings["expected"].detail
    assert KEY not in str(findings)


def test_unmeasured_models_are_no_arms_that_were_measured(tmp_path: Path) -> None:
    """The router has figures for none of two models of this year, and says how to measure them."""
    model = "litellm_params: {model: openai/gpt-5.5, api_key: k}"
    other = "litellm_params: {model: openrouter/minimax/minimax-m3, api_key: k}"
    path = tmp_path / "config.yaml"
    path.write_text(f"model_list: [{{model_name: a, {model}}}, {{model_name: b, {other}}}]")
    details = [each.detail for each in check(path) if each.subject == "router"]
    assert "0 of 8 arms and 2 unmeasured models: a, b; without a model" in details[0]
    assert "`switchcraft onboard CONFIG` measures them" in details[1]


def test_names_include_wildcards_and_no_alias_of_what_nobody_answers(tmp_path: Path) -> None:
    """Without an arm, the router answers nothing, so that `claude-*` does not stand for it."""
    path = tmp_path / "config.yaml"
    model = "litellm_params: {model: 'openai/*', api_key: k}"
    path.write_text(f"model_list: [{{model_name: 'openai/*', {model}}}]")
    assert found(path)["names"].detail == "clients may name openai/*"


def test_each_failure_is_found_although_others_came_before(tmp_path: Path) -> None:
    """A failed check does not end the others, and each says what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        path = config(
            tmp_path,
            "http://127.0.0.1:1/v1",
            f"server: {{port: {port}, redis_url: 'redis://127.0.0.1:1'}}",
            "decision_log: {path: /dev/null/log}",
            "database: {url: 'sqlite:////dev/null/a.db'}",
        )
        path.write_text(path.read_text().replace(ARM, "no-such-arm"))
        findings = found(path, asks=True)
    failed = {name: f.detail for name, f in findings.items() if f.status is Status.FAILED}
    assert "no such arm" in failed.pop("router")
    assert "unreachable" in failed.pop("redis")
    assert "or choose another port" in failed.pop("port")
    assert "choose another directory" in failed.pop("decision log")
    assert "database.url: /dev/null/a.db cannot be written to" in failed.pop("database")
    [(_, detail)] = failed.items()
    assert "the connection was refused" in detail
    assert "http://127.0.0.1:1/v1" in detail


@pytest.mark.parametrize(("extra", "status"), [("", 0), ("key: 3", 1)])
def test_exit_status_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], extra: str, status: int
) -> None:
    """The status is 1 if the gateway could not serve; JSON has the same findings."""
    path = config(tmp_path, "http://127.0.0.1:1/v1", extra)
    assert main(["check", str(path)]) == status
    lines = capsys.readouterr().out.splitlines()
    assert main(["check", str(path), "--json"]) == status
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is (status == 0)
    assert lines == [f"{f['status']:<6}  {f['subject']}: {f['detail']}" for f in report["findings"]]


def test_mistakes_and_ignored_settings_are_listed(tmp_path: Path) -> None:
    """Every problem of the file is a separate finding; a setting without effect is a note."""
    path = config(tmp_path, "http://h/v1", "key: 3", "sever: 4")
    failed = [f.detail.rpartition(": ")[2] for f in check(path) if f.status is Status.FAILED]
    assert failed == ["is unknown; did you mean 'keys'?", "is unknown; did you mean 'server'?"]
    path = config(tmp_path, "http://h/v1", "litellm_settings: {max_budget: 3}")
    notes = [finding.detail for finding in check(path) if finding.status is Status.NOTE]
    assert any("litellm_settings.max_budget: it is not enforced; give" in note for note in notes)
    assert any("no key is configured" in note for note in notes)


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (401, "Check api_key: the server does not accept it"),
        (404, "Check the model's name at the provider"),
    ],
)
def test_failed_deployment_says_what_to_do(tmp_path: Path, status: int, advice: str) -> None:
    """A refused key and an unknown model each have their own advice."""
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: 2\r\n"
    with scripted(f"{head}connection: close\r\n\r\n{{}}".encode()) as url:
        findings = found(config(tmp_path, url), asks=True)
    [detail] = [each.detail for name, each in findings.items() if name.startswith("m (")]
    assert advice in detail


def test_changes_name_the_setting_that_keeps_the_old_behaviour(tmp_path: Path) -> None:
    """Each changed default is listed until its setting is written; then the file is valid."""
    path = config(tmp_path, "http://h/v1")
    notes = [each.detail for each in check(path, changes=True) if each.subject == "changes"]
    assert all(any(setting in note for note in notes) for setting in CHANGED_DEFAULTS)
    assert not any("aliases" in note for note in notes)
    document = yaml.safe_load(path.read_text())
    for setting, (_, kept_by) in CHANGED_DEFAULTS.items():
        *sections, name = setting.split(".")
        section = document
        for each in sections:
            section = section.setdefault(each, {})
        section[name] = yaml.safe_load(kept_by)
    document["router"]["aliases"] = {"gpt-*": "switchcraft"}
    path.write_text(yaml.safe_dump(document))
    findings = list(check(path, changes=True))
    assert not [each for each in findings if each.status is Status.FAILED]
    notes = [each.detail for each in findings if each.subject == "changes"]
    assert not any(setting in note for setting in CHANGED_DEFAULTS for note in notes)
    assert any("claude-*: null" in note for note in notes)
