"""`--help` of every command describes it, its options and an example."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from cyclopts import App, Argument

from router_service.cli import main as service_main
from router_service.cli.commands import app as service
from switchcraft_training.cli import app as training
from switchcraft_training.cli import main as training_main

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
