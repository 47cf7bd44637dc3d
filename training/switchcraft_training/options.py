"""Options that several commands have, those of `import`, and the groups of commands in the help."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, TypeAlias

from cyclopts import Group, Parameter
from cyclopts.validators import Number

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

DATASETS: Final[Mapping[str, str]] = {
    "bfcl": "switchcraft_training.datasets.bfcl",
    "xlam": "switchcraft_training.datasets.xlam",
}
"""Modules by dataset; each has a function `read_source`, which reads the dataset."""


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """Options of an import."""

    out: Path | None = None
    """file for the rows; only the first of duplicate rows is written"""
    quarantine: Path | None = None
    """append rows that cannot be read to this file, with the reasons"""
    max_unreadable: Annotated[float, Parameter(validator=Number(gte=0, lte=1), metavar="SHARE")] = (
        0.05
    )
    """fail if more than this share of the rows cannot be read"""
    report: Path | None = None
    """write the counts as JSON to this file"""
