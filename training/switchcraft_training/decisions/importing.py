"""`switchcraft-train import decisions:PATH`: convert a gateway's decision log to training rows."""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from switchcraft_training.decisions.log import read_log_with_quarantine
from switchcraft_training.decisions.queries import (
    DATASET,
    DecisionUse,
    Query,
    iterate_queries,
    write_queries,
)
from switchcraft_training.options import ImportOptions

NOTHING = (
    "No decision can be used for training, because that needs logged requests and verdicts. Set"
    " decision_log.content to true, and send verdicts to POST /v1/feedback."
)


def import_decisions(path: Path, options: ImportOptions, *, weak_evidence: bool) -> None:
    """Import a decision log, and print a summary.

    Raises DataError if a line cannot be read and there is no quarantine file, or if a file cannot
    be written.
    """
    log, quarantined = read_log_with_quarantine(path, options.quarantine)
    uses: Counter[DecisionUse] = Counter()
    queries = 0
    found: dict[str, array[float]] = {}

    def counted() -> Iterator[Query]:
        nonlocal queries
        for query in iterate_queries(log, uses, weak_evidence=weak_evidence):
            queries += 1
            for outcome in query.outcomes:
                found.setdefault(outcome.arm, array("d")).append(outcome.correct)
            yield query

    if options.out is None:
        deque(counted(), maxlen=0)
    else:
        write_queries(counted(), options.out)
    labels = dict(sorted(found.items()))
    options.write_report(
        {
            "source": DATASET,
            "decisions": uses.total(),
            "fates": {use.value: count for use, count in sorted(uses.items())},
            "queries": queries,
            "arms": {
                arm: {"answers": len(correct), "correct": sum(correct) / len(correct)}
                for arm, correct in labels.items()
            },
            "path": str(path),
            "quarantined": quarantined,
        }
    )

    console = Console(highlight=False, soft_wrap=True)
    aside = f"; {quarantined:,} lines quarantined" if quarantined else ""
    console.print(f"{uses.total():,} decisions, {queries:,} queries{aside}")
    decisions = Table(box=box.SIMPLE_HEAD)
    decisions.add_column("decisions")
    decisions.add_column("n", justify="right")
    for use, count in sorted(uses.items()):
        decisions.add_row(use.value, f"{count:,}")
    console.print(decisions)
    if not queries:
        console.print(NOTHING)
        return
    arms = Table(box=box.SIMPLE_HEAD)
    arms.add_column("arm", overflow="fold")
    for name in ("answers", "correct"):
        arms.add_column(name, justify="right")
    for arm, correct in labels.items():
        arms.add_row(arm, f"{len(correct):,}", f"{sum(correct) / len(correct):.1%}")
    console.print(arms)
