"""The commands as a user runs them: their results and their errors."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from switchcraft_training.cli import main as train
from tests.drills.processes import START_TIMEOUT_S, free_port, wait_until

COMMAND = [sys.executable, "-m", "router_service.cli"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "gateway.yaml: cannot be read"),
        (
            (
                "model_list: [{model_name: m, litellm_params: {model: openai/o3, api_key: k}}]\n"
                "router: {arms: {claude-haiku-4.5: m}}"
            ),
            "router.arms.claude-haiku-4.5: the model 'm' is openai/o3",
        ),
    ],
    ids=["missing", "arms"],
)
def test_serve_explains_an_invalid_configuration(
    text: str | None, message: str, tmp_path: Path
) -> None:
    """The gateway exits with status 1 and one line with the file, the place and the remedy.

    The first mistake is found when the file is read, and the second one with the artifact. Tests of
    settings have the messages of all others.
    """
    path = tmp_path / "gateway.yaml"
    if text is not None:
        path.write_text(text)
    result = subprocess.run(
        [*COMMAND, "serve", "--config", str(path), "--port", "0"],
        capture_output=True,
        text=True,
        check=False,
        timeout=START_TIMEOUT_S,
    )
    assert result.returncode == 1
    assert message in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_gateway_without_keys_listens_only_on_loopback() -> None:
    """Without a key, `switchcraft serve --host 0.0.0.0` logs where it listens and what to set."""
    port = free_port()

    def is_open(host: str) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((host, port)) == 0

    command = [*COMMAND, "serve", "--host", "0.0.0.0", "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_until(lambda: is_open("127.0.0.1"), "the gateway listens", START_TIMEOUT_S)
            # Another address of this machine, which 0.0.0.0 would include.
            assert not is_open("127.0.0.2")
        finally:
            process.terminate()
        _, log = process.communicate(timeout=30)
    assert "set keys.api or general_settings.master_key" in log
    assert "listening only on 127.0.0.1 instead of 0.0.0.0" in log


@pytest.mark.parametrize(
    "options", [("--policy", "cheap"), ("--artifact", "no/such/folder")], ids=["policy", "artifact"]
)
def test_route_explains_an_invalid_option(options: tuple[str, str], tmp_path: Path) -> None:
    """The command exits with status 1 and one line that names the option; stdout stays empty."""
    result = subprocess.run(
        [*COMMAND, "route", *options],
        cwd=tmp_path,
        input=b"",
        capture_output=True,
        check=False,
        timeout=START_TIMEOUT_S,
    )
    assert (result.returncode, result.stdout) == (1, b"")
    assert options[1] in result.stderr.decode()
    assert result.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    "command",
    [
        "run CONFIG --out OUT",
        "sweep CONFIG --out OUT",
        "add-verifier ARTIFACT --out OUT --workspace WORK",
        "add-unfamiliar ARTIFACT --out OUT --workspace WORK",
        "onboard ARTIFACT --out OUT --choose 100",
    ],
)
def test_training_commands_ask_for_the_recorded_answers(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is no default folder; the error names the option and the variable."""
    monkeypatch.delenv("SWITCHCRAFT_DATA", raising=False)
    with pytest.raises(SystemExit) as ended:
        train(command.split())
    assert ended.value.code == 2
    assert "--data is missing, and SWITCHCRAFT_DATA is not set" in capsys.readouterr().err
