"""A reviewer's session: the rows of a round, the decisions on them, and the patch file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from router_service.core.errors import DataError
from switchcraft_training.datasets.corrections import (
    Change,
    Correction,
    CorrectionKind,
    ErrorCategory,
    Truth,
    apply_change,
    row_sha256,
)
from switchcraft_training.records import Judged
from switchcraft_training.review.journal import (
    CHANGES,
    DECISIONS,
    ROUNDS,
    Action,
    Journal,
    Ledger,
    Step,
)
from switchcraft_training.review.verify import DEFAULT_CATEGORY, Finding, VerifierOpinion


@dataclass(frozen=True, slots=True)
class ReviewEntry:
    """A row to decide on, in its state at the start of a round.

    `row_sha256` is the hash of the row in the file of rows. `opinion` is None if the critic has
    not seen the present version of the row.
    """

    judged: Judged
    row_sha256: str
    opinion: VerifierOpinion | None

    @property
    def id(self) -> str:
        """The example's id."""
        return self.judged.example.id

    @property
    def kind(self) -> CorrectionKind:
        """The part of the row that the critic questions."""
        return self.opinion.kind if self.opinion else CorrectionKind.TRUTH

    @property
    def suggestion(self) -> Change | None:
        """The critic's correction, if it can be used."""
        return self.opinion.change if self.opinion else None


@dataclass(frozen=True, slots=True)
class ProposedChange:
    """A change of an entry: decided in this round, or suggested if `action` is None."""

    change: Change
    action: Action | None


def entries_of_round(
    rows: Iterable[Judged], source: Path, findings: Sequence[Finding], ledger: Ledger, round_: int
) -> Iterator[ReviewEntry]:
    """Yield the rows of a round: flagged rows in round 1, then rows that round 1 skipped or edited.

    Raises DataError if a row has changed since it was verified or decided on.
    """
    opinions = {(f.id, f.row_sha256): f.opinion for f in findings if f.round <= round_}
    missing = {finding.id for finding in findings if finding.round == ROUNDS[0]}
    for judged in rows:
        identifier, sha256 = judged.example.id, row_sha256(judged)
        check_unchanged(ledger, judged, sha256, source)
        opinion = opinions.get((identifier, sha256))
        if opinion is not None:
            missing.discard(identifier)
        if round_ == ROUNDS[0] and opinion is not None and opinion.is_flagged:
            yield ReviewEntry(judged, sha256, opinion)
        elif round_ > ROUNDS[0] and ledger.is_reexamined(identifier):
            revised = ledger.revised(judged, ROUNDS[0])
            yield ReviewEntry(revised, sha256, opinions.get((identifier, row_sha256(revised))))
    if missing:
        problem = f"{len(missing)} rows have changed since they were verified, such as"
        raise DataError(source, None, f"{problem} {min(missing)}; run `review verify` on this file")


def check_unchanged(ledger: Ledger, judged: Judged, sha256: str, source: Path) -> None:
    """Raise DataError if a row has changed since a reviewer decided on it."""
    if any(step.row_sha256 != sha256 for step in ledger.steps_of(judged.example.id)):
        problem = f"{judged.example.id} has changed since it was reviewed"
        advice = "use the file that was reviewed, or start again with another --out"
        raise DataError(source, None, f"{problem}; {advice}")


class Session:
    """One reviewer's round. Methods write each decision to disk before they return."""

    def __init__(
        self,
        entries: Sequence[ReviewEntry],
        journal: Journal[Step],
        reviewer: str,
        round_: int,
    ) -> None:
        self.entries = tuple(entries)
        self.round = round_
        self._journal = journal
        self._reviewer = reviewer
        self.ledger = Ledger(journal.entries)
        self.index = next((i for i in range(len(self.entries)) if self.is_open(i)), 0)

    @property
    def current(self) -> ReviewEntry:
        """The entry on the screen."""
        return self.entries[self.index]

    def is_open(self, index: int) -> bool:
        """Return whether an entry has no decision in this round."""
        return self.decision(index) is None

    def decision(self, index: int) -> Step | None:
        """Return the last decision on an entry in this round."""
        return self.ledger.decision(self.entries[index].id, self.round)

    def proposed_change(self, kind: CorrectionKind) -> ProposedChange | None:
        """Return the decided or else the suggested change of a kind for the current entry."""
        for step in self.ledger.decisions(self.current.id, self.round):
            if step.kind is kind and step.action in CHANGES and step.change:
                return ProposedChange(step.change, step.action)
        suggestion = self.current.suggestion
        if suggestion is None or suggestion.kind is not kind:
            return None
        return ProposedChange(suggestion, None)

    @property
    def category(self) -> ErrorCategory:
        """The error category of the current entry."""
        return self._category_of(self.kind)

    @property
    def kind(self) -> CorrectionKind:
        """The part of the current entry that was last decided on, or else the one in doubt."""
        step = self.decision(self.index)
        return step.kind if step else self.current.kind

    def accept(self) -> bool:
        """Accept the suggestion; return False if there is no usable suggestion."""
        if self.current.suggestion is None:
            return False
        self._decide(Action.ACCEPT, self.current.kind, self.current.suggestion)
        return True

    def decline(self) -> None:
        """Keep the entry as it is."""
        self._decide(Action.DECLINE, self.current.kind)

    def skip(self) -> None:
        """Leave the decision on the entry to round 2."""
        self._decide(Action.SKIP, self.current.kind)

    def edit_truth(self, truth: Truth) -> None:
        """Replace the expected calls."""
        category = self._category_of(CorrectionKind.TRUTH)
        change = Change(kind=CorrectionKind.TRUTH, category=category, expected=truth)
        self._decide(Action.EDIT, CorrectionKind.TRUTH, change)

    def edit_input(self, utterance: str) -> None:
        """Replace the last user message."""
        category = self._category_of(CorrectionKind.INPUT)
        change = Change(kind=CorrectionKind.INPUT, category=category, utterance=utterance)
        self._decide(Action.EDIT, CorrectionKind.INPUT, change)

    def categorize(self, category: ErrorCategory) -> None:
        """Set the category of the entry's error."""
        self._record(Action.CATEGORIZE, self.kind, category=category)

    def undo(self) -> Step | None:
        """Undo the last step of this round and return to its entry; None if there is no step."""
        own = [step for step in self.ledger.steps if step.round == self.round]
        places = {entry.id: index for index, entry in enumerate(self.entries)}
        if not own or own[-1].id not in places:
            return None
        step = own[-1]
        self.index = places[step.id]
        self._record(Action.UNDO, step.kind, category=step.category, undoes=step.number)
        return step

    def move(self, by: int) -> None:
        """Go forward by `by` entries, or back if negative, at most to the last or first entry."""
        self.index = min(max(self.index + by, 0), len(self.entries) - 1)

    def _category_of(self, kind: CorrectionKind) -> ErrorCategory:
        opinion = self.current.opinion
        proposed = opinion.category if opinion and opinion.kind is kind else DEFAULT_CATEGORY[kind]
        return self.ledger.category(self.current.id, kind, proposed)

    def _decide(self, action: Action, kind: CorrectionKind, change: Change | None = None) -> None:
        """Record a decision and go to the next open entry."""
        self._record(action, kind, category=self._category_of(kind), change=change)
        after = [*range(self.index + 1, len(self.entries)), *range(self.index)]
        self.index = next((i for i in after if self.is_open(i)), self.index)

    def _record(self, action: Action, kind: CorrectionKind, **facts: Any) -> None:  # noqa: ANN401
        entry = self.current
        step = Step(
            number=len(self._journal.entries) + 1,
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            reviewer=self._reviewer,
            round=self.round,
            id=entry.id,
            row_sha256=entry.row_sha256,
            action=action,
            kind=kind,
            explanation=entry.opinion.explanation if entry.opinion else "",
            **facts,
        )
        self._journal.append(step)
        self.ledger = Ledger(self._journal.entries)


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
        f"the critic used {tokens[0]} + {tokens[1]} tokens, {cost}"
    )
