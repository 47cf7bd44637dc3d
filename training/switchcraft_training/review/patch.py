"""From decisions to a patch file, and the table of what was found and decided."""

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
from switchcraft_training.review.decisions import DECISIONS, ROUNDS, Action, Ledger, Step
from switchcraft_training.review.findings import Finding
from switchcraft_training.review.session import refuse_changed


def corrections(rows: Iterable[Judged], source: Path, ledger: Ledger) -> Iterator[Correction]:
    """Yield the corrections that stand, in the order of the rows.

    Raises DataError where a row is not the one that was decided on, or never comes.
    """
    left = {step.id for step in ledger.steps}
    for judged in rows:
        left.discard(judged.example.id)
        refuse_changed(ledger, judged, row_sha256(judged), source)
        for step in ledger.changes(judged.example.id, ROUNDS[-1]).values():
            if step.change is not None and apply_change(judged, step.change) != judged:
                yield _correction(judged, step, ledger)
    if left:
        problem = f"{len(left)} reviewed rows are not in this file, as {min(left)}"
        raise DataError(source, None, f"{problem}; take the file that was reviewed")


def _correction(judged: Judged, step: Step, ledger: Ledger) -> Correction:
    category = ledger.category(step.id, step.kind, step.category)
    return Correction(
        id=step.id,
        dataset=judged.example.dataset,
        row_sha256=step.row_sha256,
        kind=step.kind,
        category=category,
        expected=step.change.expected if step.change else None,
        utterance=step.change.utterance if step.change else None,
        explanation=step.explanation,
        reviewer=step.reviewer,
        round=step.round,
    )


def write_patch(found: Sequence[Correction], path: Path) -> None:
    """Write a patch file, whole or not at all."""
    unfinished = path.with_suffix(".unfinished")
    lines = (correction.model_dump_json(exclude_none=True) + "\n" for correction in found)
    unfinished.write_text("".join(lines), encoding="utf-8")
    unfinished.replace(path)


def decision_table(ledger: Ledger, found: Sequence[Correction]) -> Table:
    """Return the counts by round, category and decision, and of corrections in the patch."""
    decided = Counter(_decisions(ledger))
    patched = Counter((correction.round, correction.category) for correction in found)
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
        table.add_row(title, *_total(rows.values()), style="bold")
        for category, counts in rows.items():
            if any(counts):
                table.add_row(f"  {category.display_name}", *map(str, counts))
        table.add_section()
    return table


def _total(rows: Iterable[Sequence[int]]) -> list[str]:
    return [str(sum(column)) for column in zip(*rows, strict=True)]


def _decisions(ledger: Ledger) -> Iterator[tuple[int, ErrorCategory, Action]]:
    for identifier in dict.fromkeys(step.id for step in ledger.steps):
        for round_ in ROUNDS:
            for step in ledger.decisions(identifier, round_):
                category = ledger.category(identifier, step.kind, step.category)
                yield round_, category, step.action


def totals(findings: Sequence[Finding], ledger: Ledger, found: Sequence[Correction]) -> str:
    """Return in a few lines how much was verified, flagged, decided and changed, and its cost."""
    first = {f.id: f.opinion.is_flagged for f in findings if f.round == ROUNDS[0]}
    flagged = {identifier for identifier, is_flagged in first.items() if is_flagged}
    open_ = sum(ledger.decision(identifier, ROUNDS[0]) is None for identifier in flagged)
    entries = {correction.id for correction in found}
    tokens = sum(f.input_tokens for f in findings), sum(f.output_tokens for f in findings)
    return (
        f"{len(first)} entries verified, {len(flagged)} flagged, {open_} of them open in round 1\n"
        f"{len(found)} corrections of {len(entries)} entries "
        f"({len(entries) / max(1, len(first)):.1%} of those verified)\n"
        f"the verifier used {tokens[0]} + {tokens[1]} tokens, {_cost(findings)}"
    )


def _cost(findings: Sequence[Finding]) -> str:
    costs = [finding.cost_usd for finding in findings]
    known = sum(cost for cost in costs if cost is not None)
    return "cost unknown: no --price was given" if None in costs else f"{known:.4f} USD"
