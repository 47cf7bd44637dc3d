"""`--help` of every command describes it and shows an example."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest

from router_service import cli as service
from switchcraft_training import cli as training

Main = Callable[[Sequence[str]], int]


def help_of(main: Main, capsys: pytest.CaptureFixture[str], *command: str) -> str:
    """Return what a command prints with `--help`."""
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("main", [service.main, training.main], ids=["service", "training"])
def test_every_command_has_a_description_and_an_example(
    main: Main, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of commands leads to texts that say what a command does and how it is called."""
    monkeypatch.setenv("COLUMNS", "100")
    commands = re.findall(r"^    ([a-z-]+)\b", help_of(main, capsys), re.MULTILINE)
    assert len(commands) >= 7
    for command in commands:
        text = help_of(main, capsys, command)
        usage, description, *_ = text.split("\n\n")
        assert usage.startswith("usage: ")
        assert re.match(r"[A-Z][^\n]*\b", description), text
        assert not description.startswith(("positional", "options")), text
        _, _, example = text.rpartition("\nexample")
        assert re.search(rf"switchcraft(-train)? {command}\b", example), text
        assert "%%" not in text
