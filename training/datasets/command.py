"""`switchcraft-train import`: a dataset as published -> rows, and a report of counts."""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from training.datasets.sources import SOURCES
from training.records import Judged

if TYPE_CHECKING:
    from training.datasets.quarantine import Quarantine
    from training.datasets.report import Report


def register(stages: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the stage to the command line's."""
    parser = stages.add_parser(
        "import", help="read a dataset as published into rows, and count what a split gives"
    )
    parser.add_argument("source", choices=SOURCES, help="which dataset it is")
    parser.add_argument("path", type=Path, help="its folder or file, as downloaded")
    parser.add_argument("--out", type=Path, help="where the rows go, the first of duplicates only")
    parser.add_argument(
        "--quarantine",
        type=Path,
        metavar="FILE",
        help="append rows that do not parse to FILE and go on (default: stop at the first)",
    )
    parser.add_argument("--corrections", type=Path, metavar="PATCH", help="reviewed changes")
    parser.add_argument("--seed", type=int, default=1, help="of the split (default: %(default)s)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="the counts as JSON")
    parser.set_defaults(stage=import_dataset)


def import_dataset(arguments: argparse.Namespace) -> int:
    """Import as the arguments say, print the counts, and return 0."""
    # Imported here: a command line with many stages loads what one of them needs.
    from training.datasets.quarantine import Quarantine  # noqa: PLC0415

    if arguments.quarantine is None:
        report = _import(arguments, None)
    else:
        with closing(Quarantine(arguments.quarantine)) as quarantine:
            report = _import(arguments, quarantine)
    _show(report, arguments.quarantine)
    return 0


def _import(arguments: argparse.Namespace, quarantine: Quarantine | None) -> Report:
    from training.datasets.report import Intake, Report  # noqa: PLC0415
    from training.datasets.rows import write_rows  # noqa: PLC0415

    intake = Intake()
    rows = intake.first_of_each(_rows(arguments, quarantine))
    if arguments.out is None:
        deque(rows, maxlen=0)
    else:
        write_rows(rows, arguments.out)
    strata = intake.strata(arguments.seed)
    report = Report(
        source=arguments.source,
        path=str(arguments.path),
        seed=arguments.seed,
        read=sum(counts.read for counts in strata),
        quarantined=quarantine.count if quarantine else 0,
        duplicates=sum(counts.duplicates for counts in strata),
        strata=strata,
    )
    if arguments.report is not None:
        report.save(arguments.report)
    return report


def _rows(arguments: argparse.Namespace, quarantine: Quarantine | None) -> Iterator[Judged]:
    from training.datasets.corrections import apply  # noqa: PLC0415
    from training.datasets.lines import refuse  # noqa: PLC0415
    from training.datasets.sources import read_source  # noqa: PLC0415

    on_fault = quarantine.add if quarantine else refuse
    rows = read_source(arguments.source, arguments.path, on_fault)
    return rows if arguments.corrections is None else apply(rows, arguments.corrections)


def _show(report: Report, quarantine: Path | None) -> None:
    from rich.console import Console  # noqa: PLC0415

    from training.datasets.report import to_table  # noqa: PLC0415

    console = Console()
    where = f" (in {quarantine})" if quarantine else ""
    console.print(
        f"{report.read:,} rows read, {report.quarantined:,} quarantined{where}, "
        f"{report.duplicates:,} duplicates",
        highlight=False,
        soft_wrap=True,
    )
    console.print(to_table(report.strata))
