"""The datasets that `switchcraft-train import` reads, and its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter
from cyclopts.validators import Number

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
