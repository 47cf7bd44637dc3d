"""Options that several commands have, those of `import`, and the groups of commands in the help."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, TypeAlias

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from router_service.command_line import Count
from switchcraft_training.errors import DataError

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

    def write_report(self, counts: Mapping[str, object]) -> None:
        """Write the counts of an import, if they are wanted; raises DataError."""
        if self.report is not None:
            try:
                self.report.write_text(json.dumps(counts, indent=2) + "\n")
            except OSError as exc:
                raise DataError(self.report, None, f"cannot be written: {exc}") from exc
