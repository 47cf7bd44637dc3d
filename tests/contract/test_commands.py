"""The commands as a user runs them: their results and their errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from switchcraft_training.cli import main as train
from tests.bodies import BODY
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


def test_route_decides_for_a_configuration(tmp_path: Path) -> None:
    """Only the configuration's arms are considered, at its prices, by its default policy."""
    config = tmp_path / "gateway.yaml"
    price = {"input_cost_per_token": 1.0, "output_cost_per_token": 1.0}
    models = [
        {"model_name": name, "litellm_params": {"model": model, "api_key": "none"} | prices}
        for name, model, prices in (
            ("haiku", "anthropic/claude-haiku-4-5-20251001", {}),
            ("flash", "gemini/gemini-2.5-flash-lite", price),
        )
    ]
    config.write_text(
        json.dumps({"model_list": models, "router": {"default_policy": "utility=0.001"}})
    )
    result = subprocess.run(
        [*COMMAND, "route", "--config", str(config)],
        cwd=tmp_path,
        input=json.dumps(BODY).encode(),
        capture_output=True,
        check=True,
        timeout=START_TIMEOUT_S,
    )
    decision = json.loads(result.stdout)
    assert decision["probabilities"].keys() == {"claude-haiku-4.5", "gemini-2.5-flash-lite"}
    assert (decision["arm"], decision["policy"]) == ("claude-haiku-4.5", "utility=0.001")
    assert decision["cost_usd"]["gemini-2.5-flash-lite"] > 1


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
