"""The commands as a user runs them: their results and their errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from switchcraft_training.cli import main as train
from tests.drills.processes import START_TIMEOUT_S

COMMAND = [sys.executable, "-m", "router_service.cli"]


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
        "add-verifier ARTIFACT --out OUT --workspace WORK",
        "add-unfamiliar ARTIFACT --out OUT --workspace WORK",
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
