"""Options that several commands have, and the groups of commands in the help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

from cyclopts import Group, Parameter

from router_service.command_line import Count

DATA = Group.create_ordered("Data")
TRAINING = Group.create_ordered("Training")
ARTIFACTS = Group.create_ordered("Artifacts")
GATEWAYS = Group.create_ordered("Gateways")

Data: TypeAlias = Annotated[
    Path, Parameter("--data", env_var="SWITCHCRAFT_DATA", help="directory of recorded answers")
]

Processes: TypeAlias = Annotated[
    Count | None,
    Parameter(
        "--processes",
        help="how many folds are trained at the same time, each in a process with its own copy of"
        " the data (default: one per core of the CPU, or 1 if a GPU trains)",
    ),
]

DryRun: TypeAlias = Annotated[
    bool,
    Parameter(
        "--dry-run",
        help="check the configuration, the data and the encoders without training; the exit status"
        " is 1 if there are problems",
    ),
]
