"""Conventions of both command lines: how options are read, and how mistakes are reported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import pytest
from cyclopts import App, Parameter

from router_service.command_line import SEVERAL, Count, create_command_line, read_command


@pytest.fixture
def app() -> App:
    """Return a command line with the command `train`, and the group `pool` with `remove`."""
    app = create_command_line("program", "Program for tests.")

    @app.command
    def train(
        config: Path,
        /,
        *,
        data: Annotated[Path, Parameter(env_var="PROGRAM_DATA")],
        seeds: Annotated[Sequence[int], SEVERAL] = (),
        processes: Count = 1,
        dry_run: bool = False,
    ) -> None:
        """Train a model."""

    pool = App("pool", help="Change a pool.")
    app.command(pool)

    @pool.command
    def remove(arm: str, /) -> None:
        """Remove an arm."""

    return app


def options_of(app: App, *arguments: str) -> dict[str, Any]:
    """Return the options that a command line gives."""
    _, bound = read_command(app, arguments)
    return dict(bound.arguments)


def test_option_takes_several_values_until_the_next_option(app: App) -> None:
    """Arguments may stand between options, and a repeated option adds values."""
    command = ("train", "--seeds", "1", "2", "--data", "d", "c.yaml", "--dry-run", "--seeds", "3")
    options = options_of(app, *command)
    assert options.pop("config") == Path("c.yaml")
    assert options == {"data": Path("d"), "seeds": [1, 2, 3], "dry_run": True}


def test_variable_stands_for_an_option(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """The option has priority over the variable."""
    monkeypatch.setenv("PROGRAM_DATA", "from/variable")
    assert options_of(app, "train", "c")["data"] == Path("from/variable")
    assert options_of(app, "train", "c", "--data", "given")["data"] == Path("given")


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("", "no command is given; see `program --help`"),
        ("pool", "no command is given; see `program pool --help`"),
        ("pool remove", "ARM is missing; see `program pool remove --help`"),
        ("train", "CONFIG is missing"),
        ("train c", "--data is missing, and PROGRAM_DATA is not set; see `program train --help`"),
        ("train c --data d --sed 1", "Unknown option: --sed. Did you mean --seeds?"),
        ("train c --data d --processes 0", 'Invalid value "0" for --processes. Must be >= 1'),
        ("train c --data d --no-dry-run", "Unknown option: --no-dry-run"),
        ("train c d e --data d", "unexpected arguments: d e"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    app: App, command: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line begins with the program's name, and ends with where to look."""
    with pytest.raises(SystemExit) as ended:
        read_command(app, command.split())
    assert ended.value.code == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("program: ")
    assert output.err.endswith(" --help`\n")
    assert problem in output.err
    assert output.err.count("\n") == 1
