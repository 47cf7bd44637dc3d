"""`switchcraft-train import decisions:PATH`: convert a gateway's log to rows for training."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson
from rich import box
from rich.console import Console
from rich.table import Table

from router_service.core.errors import DataError
from switchcraft_training.decisions.log import read_log_aside
from switchcraft_training.decisions.queries import (
    DATASET,
    Queries,
    Query,
    read_queries,
    write_queries,
)
from switchcraft_training.records import Json

NOTHING = (
    "Nothing teaches: requests are kept by decision_log.content, and verdicts come by"
    " POST /v1/feedback."
)


def import_decisions(path: Path, arguments: argparse.Namespace) -> int:
    """Import a log as the arguments of `import` say, print a summary, and return 0.

    Raises DataError if a line cannot be read and there is no quarantine file, or if a file cannot
    be written.
    """
    log, quarantined = read_log_aside(path, arguments.quarantine)
    found = read_queries(log, weak_evidence=arguments.weak_evidence)
    if arguments.out is not None:
        write_queries(found.queries, arguments.out)
    if arguments.report is not None:
        _save({**_report(found), "path": str(path), "quarantined": quarantined}, arguments.report)
    _show(found, quarantined)
    return 0


def _report(found: Queries) -> Mapping[str, Json]:
    return {
        "source": DATASET,
        "decisions": found.fates.total(),
        "fates": {fate.value: count for fate, count in sorted(found.fates.items())},
        "queries": len(found.queries),
        "arms": {
            arm: {"answers": len(right), "correct": sum(right) / len(right)}
            for arm, right in _by_arm(found.queries).items()
        },
    }


def _by_arm(queries: Sequence[Query]) -> Mapping[str, Sequence[float]]:
    """Return the labels of each arm's answers, with the arms in order."""
    right: dict[str, list[float]] = {}
    for query in queries:
        for outcome in query.outcomes:
            right.setdefault(outcome.arm, []).append(outcome.correct)
    return dict(sorted(right.items()))


def _save(report: Mapping[str, Json], path: Path) -> None:
    try:
        path.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2) + b"\n")
    except OSError as exc:
        raise DataError(path, None, f"cannot be written: {exc}") from exc


def _show(found: Queries, quarantined: int) -> None:
    console = Console(highlight=False, soft_wrap=True)
    aside = f"; {quarantined:,} lines quarantined" if quarantined else ""
    console.print(f"{found.fates.total():,} decisions, {len(found.queries):,} queries{aside}")
    fates = Table(box=box.SIMPLE_HEAD)
    fates.add_column("decisions")
    fates.add_column("n", justify="right")
    for fate, count in sorted(found.fates.items()):
        fates.add_row(fate.value, f"{count:,}")
    arms = Table(box=box.SIMPLE_HEAD)
    arms.add_column("arm", overflow="fold")
    for name in ("answers", "correct"):
        arms.add_column(name, justify="right")
    for arm, right in _by_arm(found.queries).items():
        arms.add_row(arm, f"{len(right):,}", f"{sum(right) / len(right):.1%}")
    console.print(fates)
    console.print(arms if found.queries else NOTHING)
