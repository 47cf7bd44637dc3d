"""`switchcraft-train import`: a dataset, or a decision log -> rows, and a report of counts."""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

from router_service.core.errors import ConfigError
from switchcraft_training.datasets.sources import SOURCES
from switchcraft_training.records import Judged

if TYPE_CHECKING:
    from switchcraft_training.datasets.quarantine import Quarantine
    from switchcraft_training.datasets.report import Report

DECISIONS: Final = "decisions"
"""The source that is a gateway's log."""


def register(stages: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the stage to the command line's."""
    parser = stages.add_parser(
        "import",
        help="read a dataset as published, or a gateway's decision log, into rows of training",
    )
    parser.add_argument(
        "source",
        type=_named,
        metavar="SOURCE[:PATH]",
        help=f"which it is: {', '.join((*SOURCES, DECISIONS))}",
    )
    parser.add_argument(
        "path", type=Path, nargs="?", help="its folder or file, where SOURCE does not name it"
    )
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
    parser.add_argument(
        "--weak-evidence",
        action="store_true",
        help="of a decision log: a call that the next turn speaks against, and nobody judged, is"
        " 0.25 right; it never says that a call was right (default: it says nothing)",
    )
    parser.set_defaults(stage=import_source)


def _named(text: str) -> tuple[str, Path | None]:
    """Read `SOURCE` or `SOURCE:PATH`."""
    name, _, path = text.partition(":")
    if name not in (*SOURCES, DECISIONS):
        known = ", ".join((*SOURCES, DECISIONS))
        raise argparse.ArgumentTypeError(f"invalid choice: {name!r} (choose from {known})")
    return name, Path(path) if path else None


def import_source(arguments: argparse.Namespace) -> int:
    """Import as the arguments say, print the counts, and return 0.

    Raises ConfigError where not exactly one path is given, or an option is another source's.
    """
    name, path = arguments.source
    if (path is None) == (arguments.path is None):
        raise ConfigError("import", "path", f"name one, as {name}:PATH or as {name} PATH")
    arguments.source, arguments.path = name, path or arguments.path
    if name == DECISIONS:
        return _import_decisions(arguments)
    if arguments.weak_evidence:
        raise ConfigError("import", "--weak-evidence", "is for decisions:PATH alone")
    return _import_dataset(arguments)


def _import_decisions(arguments: argparse.Namespace) -> int:
    from switchcraft_training.decisions.command import import_decisions  # noqa: PLC0415

    if arguments.corrections is not None:
        raise ConfigError("import", "--corrections", "corrects rows of benchmarks, not a log")
    return import_decisions(arguments.path, arguments)


def _import_dataset(arguments: argparse.Namespace) -> int:
    # Imported here: a command line with many stages loads what one of them needs.
    from switchcraft_training.datasets.quarantine import Quarantine  # noqa: PLC0415

    if arguments.quarantine is None:
        report = _import(arguments, None)
    else:
        with closing(Quarantine(arguments.quarantine)) as quarantine:
            report = _import(arguments, quarantine)
    _show(report, arguments.quarantine)
    return 0


def _import(arguments: argparse.Namespace, quarantine: Quarantine | None) -> Report:
    from switchcraft_training.datasets.report import Intake, Report  # noqa: PLC0415
    from switchcraft_training.datasets.rows import write_rows  # noqa: PLC0415

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
    from switchcraft_training.datasets.corrections import apply  # noqa: PLC0415
    from switchcraft_training.datasets.lines import refuse  # noqa: PLC0415
    from switchcraft_training.datasets.sources import read_source  # noqa: PLC0415

    on_fault = quarantine.add if quarantine else refuse
    rows = read_source(arguments.source, arguments.path, on_fault)
    return rows if arguments.corrections is None else apply(rows, arguments.corrections)


def _show(report: Report, quarantine: Path | None) -> None:
    from rich.console import Console  # noqa: PLC0415

    from switchcraft_training.datasets.report import to_table  # noqa: PLC0415

    console = Console()
    where = f" (in {quarantine})" if quarantine else ""
    console.print(
        f"{report.read:,} rows read, {report.quarantined:,} quarantined{where}, "
        f"{report.duplicates:,} duplicates",
        highlight=False,
        soft_wrap=True,
    )
    console.print(to_table(report.strata))
