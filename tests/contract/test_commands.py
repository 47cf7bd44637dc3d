"""The commands as a user runs them: their help, their results and their errors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cyclopts import App, Argument
from openai import OpenAI

from router_service.artifact import (
    CANARIES,
    SHIPPED,
)
from router_service.cli import main as service_main
from router_service.cli.commands import app as service
from switchcraft_training.cli import app as training
from switchcraft_training.cli import main as train
from switchcraft_training.cli import main as training_main
from tests.bodies import BODY
from tests.drills.processes import sandbox_gateway

COMMAND = [sys.executable, "-m", "router_service.cli"]


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


def test_gateway_and_route_command_choose_the_same_arms(tmp_path: Path) -> None:
    """If it chooses once, the gateway chooses the same arm as `switchcraft route`.

    The requests are the artifact's canary requests, and each gets calls of tools that it offers.
    """
    lines = (SHIPPED / CANARIES).read_text().splitlines()
    bodies = [json.loads(line)["request"] for line in lines]
    result = subprocess.run(
        [sys.executable, "-m", "router_service.cli", "route"],
        input="".join(json.dumps(body) + "\n" for body in bodies).encode(),
        capture_output=True,
        check=True,
    )
    offline = [json.loads(line)["arm"] for line in result.stdout.splitlines()]
    online = []
    with (
        sandbox_gateway(tmp_path) as url,
        OpenAI(base_url=f"{url}/v1", api_key="not-needed", max_retries=0) as client,
    ):
        for body in bodies:
            answer = client.chat.completions.with_raw_response.create(
                model="switchcraft:fast", **body
            )
            calls = answer.parse().choices[0].message.tool_calls
            offered = {tool["function"]["name"] for tool in body["tools"]}
            assert {call.function.name for call in calls} <= offered
            online.append(answer.headers["x-switchcraft-model"])
    assert online == offline


MAINS = {"switchcraft": service_main, "switchcraft-train": training_main}


def commands(app: App, *names: str) -> Iterator[tuple[tuple[str, ...], App]]:
    """Yield every command with its names, those of groups included."""
    for name in app:
        if not name.startswith("-"):
            yield (*names, name), app[name]
            yield from commands(app[name], *names, name)


COMMANDS = {
    (*app.name, *names): command for app in (service, training) for names, command in commands(app)
}


def help_of(names: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a command prints with `--help`, without spaces at the end of lines."""
    program, *command = names
    assert MAINS[program]([*command, "--help"]) == 0
    return re.sub(r" +$", "", capsys.readouterr().out, flags=re.MULTILINE)


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_every_command_has_a_description_and_an_example(
    names: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The help starts with a sentence, and has an example, or its group has one."""
    monkeypatch.setenv("COLUMNS", "80")
    text = help_of(names, capsys)
    usage, description, *_ = text.split("\n\n")
    assert usage.startswith(f"Usage: {' '.join(names)}")
    assert re.match(r"[A-Z].*\.$", description, re.DOTALL), text
    examples = text if len(names) == 2 else text + help_of(names[:2], capsys)
    assert re.search(rf"[Ee]xample.*\s{' '.join(names)}\b", examples, re.DOTALL), examples


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_every_option_is_described(names: tuple[str, ...]) -> None:
    """The docstring describes each parameter under its name."""
    if COMMANDS[names].default_command is None:
        return
    described = COMMANDS[names].assemble_argument_collection(parse_docstring=True)

    def missing(arguments: list[Argument]) -> list[str]:
        return [each.name for each in arguments if not each.children and not each.parameter.help]

    assert missing(list(described)) == []


@pytest.mark.parametrize("module", ["router_service.cli", "switchcraft_training.cli"])
def test_help_does_not_load_the_models_runtime(module: str) -> None:
    """`--help` loads neither ONNX Runtime nor PyTorch, each of which takes seconds."""
    code = (
        f"import sys; from {module} import main; main(['--help']);"
        " print(sorted({'onnxruntime', 'torch', 'uvicorn'} & {*sys.modules}))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert shown.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("package", ["router_service", "switchcraft_training"])
def test_onnx_runtime_reports_nothing(package: str, tmp_path: Path) -> None:
    """Otherwise it would store an id of the machine, and send it to Microsoft with what it runs."""
    code = (
        f"import {package}, onnxruntime;"
        f"onnxruntime.InferenceSession({str(SHIPPED / 'verifier-gain.onnx')!r})"
    )
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("ORT_DISABLE_TELEMETRY", None)  # which this process has by the same package
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert [*tmp_path.rglob("*")] == []
