"""Command lines of both packages: the conventions of their options, help and usage errors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from inspect import BoundArguments
from typing import Annotated, Final, NoReturn, TypeAlias

from cyclopts import (
    App,
    CycloptsError,
    Group,
    MissingArgumentError,
    Parameter,
    UnusedCliTokensError,
)
from cyclopts.validators import Number

from router_service import __version__

Count: TypeAlias = Annotated[int, Parameter(validator=Number(gte=1), metavar="N")]
"""A whole number of at least 1."""

SEVERAL: Final = Parameter(consume_multiple=(1, None))
"""An option that takes several values: `--seeds 1 2 3`."""


def create_command_line(name: str, description: str) -> App:
    """Return a command line without commands.

    A command is a function whose parameters are its options. Its docstring is its help, in
    Markdown. It returns an exit status, or None for 0.
    """
    app = App(
        name,
        help=description,
        help_format="markdown",
        version=f"{name} {__version__}",
        # Flags have no `--no-FLAG`, and of a repeated option the last value counts.
        default_parameter=Parameter(
            negative=(), allow_repeating=True, show_default=_describe_default
        ),
        result_action="return_value",
        suppress_keyboard_interrupt=False,
        print_error=False,
        exit_on_error=False,
    )
    options = Group.create_ordered("Options")  # after all groups of commands
    app["--help"].group = app["--version"].group = (options,)
    return app


def _describe_default(value: object) -> str | None:
    """Return a default as the help shows it; flags and empty lists need no explanation."""
    return None if value is None or value is False or value == () else str(value)


def read_command(
    app: App, arguments: Sequence[str]
) -> tuple[Callable[..., int | None], BoundArguments]:
    """Return the command that a command line names, and its arguments.

    Exits with status 2 after one line that explains what is wrong with the command line.
    """
    try:
        command, bound, _ = app.parse_args(arguments)
    except CycloptsError as exc:
        problem = str(exc).rstrip(".").replace(", , ", ", ").removesuffix(", ")
        if isinstance(exc, MissingArgumentError) and exc.argument and exc.keyword is None:
            variables = exc.argument.parameter.env_var or ()
            problem = f"{exc.argument.name} is missing"
            problem += "".join(f", and {name} is not set" for name in variables)
        elif isinstance(exc, UnusedCliTokensError):
            problem = f"unexpected arguments: {' '.join(exc.unused_tokens or ())}"
        _exit(app, exc.command_chain or (), problem)
    if command == app.help_print and not {*app.help_flags} & {*arguments}:
        _exit(app, arguments, "no command is given")
    return command, bound


def _exit(app: App, commands: Sequence[str], problem: str) -> NoReturn:
    command = " ".join((*app.name, *commands))
    print(f"{app.name[0]}: {problem}; see `{command} --help`", file=sys.stderr)
    raise SystemExit(2)
