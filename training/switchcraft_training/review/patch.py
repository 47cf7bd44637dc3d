"""The patch file of a review, and the summary of its findings and decisions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich import box
from rich.table import Table

from router_service.core.errors import DataError
from switchcraft_training.datasets.corrections import (
    Correction,
    ErrorCategory,
    apply_change,
    row_sha256,
)
from switchcraft_training.records import Judged
from switchcraft_training.review.journal import DECISIONS, ROUNDS, Action, Ledger
from switchcraft_training.review.session import check_unchanged
from switchcraft_training.review.verify import Finding


def decided_corrections(
    rows: Iterable[Judged], source: Path, ledger: Ledger
) -> Iterator[Correction]:
    """Yield the decided corrections, in the order of the rows.

    Raises DataError if a reviewed row has changed or is missing.
    """
    missing = {step.id for step in ledger.steps}
    for judged in rows:
        missing.discard(judged.example.id)
        check_unchanged(ledger, judged, row_sha256(judged), source)
        for step in ledger.changes(judged.example.id, ROUNDS[-1]).values():
            if step.change is not None and apply_change(judged, step.change) != judged:
                yield Correction(
                    id=step.id,
                    dataset=judged.example.dataset,
                    row_sha256=step.row_sha256,
                    kind=step.kind,
                    category=ledger.category(step.id, step.kind, step.category),
                    expected=step.change.expected,
                    utterance=step.change.utterance,
                    explanation=step.explanation,
                    reviewer=step.reviewer,
                    round=step.round,
                )
    if missing:
        problem = f"{len(missing)} reviewed rows are not in this file, such as {min(missing)}"
        raise DataError(source, None, f"{problem}; use the file that was reviewed")


def write_patch(corrections: Sequence[Correction], path: Path) -> None:
    """Write a patch file atomically."""
    unfinished = path.with_suffix(".unfinished")
    lines = (correction.model_dump_json(exclude_none=True) + "\n" for correction in corrections)
    unfinished.write_text("".join(lines), encoding="utf-8")
    unfinished.replace(path)


def decision_table(ledger: Ledger, corrections: Sequence[Correction]) -> Table:
    """Return the numbers of decisions and corrections, by round and category."""
    decided: Counter[tuple[int, ErrorCategory, Action]] = Counter()
    for identifier in {step.id for step in ledger.steps}:
        for round_ in ROUNDS:
            for step in ledger.decisions(identifier, round_):
                category = ledger.category(identifier, step.kind, step.category)
                decided[round_, category, step.action] += 1
    patched = Counter((correction.round, correction.category) for correction in corrections)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("", no_wrap=True)
    for title in (*DECISIONS, "in patch"):
        table.add_column(title, justify="right")
    for title, rounds in (("round 1", (1,)), ("round 2", (2,)), ("both rounds", ROUNDS)):
        rows = {
            category: [
                *(sum(decided[r, category, action] for r in rounds) for action in DECISIONS),
                sum(patched[r, category] for r in rounds),
            ]
            for category in ErrorCategory
        }
        totals = (str(sum(column)) for column in zip(*rows.values(), strict=True))
        table.add_row(title, *totals, style="bold")
        for category, counts in rows.items():
            if any(counts):
                table.add_row(f"  {category.display_name}", *map(str, counts))
        table.add_section()
    return table


def summary(findings: Sequence[Finding], ledger: Ledger, corrections: Sequence[Correction]) -> str:
    """Return the numbers of verified, flagged, open and corrected rows, and the cost, as text."""
    first = {f.id: f.opinion.is_flagged for f in findings if f.round == ROUNDS[0]}
    flagged = {identifier for identifier, is_flagged in first.items() if is_flagged}
    open_ = sum(ledger.decision(identifier, ROUNDS[0]) is None for identifier in flagged)
    corrected = {correction.id for correction in corrections}
    tokens = sum(f.input_tokens for f in findings), sum(f.output_tokens for f in findings)
    costs = [finding.cost_usd for finding in findings if finding.cost_usd is not None]
    is_known = len(costs) == len(findings)
    cost = f"{sum(costs):.4f} USD" if is_known else "cost unknown: no --price was given"
    return (
        f"{len(first)} rows verified, {len(flagged)} flagged, {open_} of them open in round 1\n"
        f"{len(corrections)} corrections of {len(corrected)} rows "
        f"({len(corrected) / max(1, len(first)):.1%} of those verified)\n"
        f"the verifier used {tokens[0]} + {tokens[1]} tokens, {cost}"
    )
