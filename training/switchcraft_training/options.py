"""Options that several commands have, and the groups of commands in the help."""

from __future__ import annotations

from collections.abc import Sequence
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
        help="check the configuration, the data, the encoders and the disk space, and estimate the"
        " time, without training; the exit status is 1 if there are problems",
    ),
]

Ray: TypeAlias = Annotated[
    Sequence[str] | None, Parameter("--ray", consume_multiple=(0, 1), metavar="[ADDRESS]")
]
"""An option with or without the address of a cluster."""


def ray_address(ray: Sequence[str] | None) -> str | None:
    """Return the address of the cluster, `local` if none was named, or None without `--ray`."""
    return None if ray is None else (*ray, "local")[0]
