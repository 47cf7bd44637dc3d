"""A reviewer's way through the entries of a round: decisions, and where to go next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from router_service.core.errors import DataError
from switchcraft_training.datasets.corrections import (
    Change,
    CorrectionKind,
    ErrorCategory,
    Truth,
    row_sha256,
)
from switchcraft_training.records import Judged
from switchcraft_training.review.decisions import CHANGES, ROUNDS, Action, Ledger, Step
from switchcraft_training.review.findings import DEFAULT_CATEGORY, Finding, Opinion
from switchcraft_training.review.journal import Journal


@dataclass(frozen=True, slots=True)
class Entry:
    """A row to decide on, as it stands when a round begins.

    `row_sha256` is that of the row as its file has it; `opinion` is None where the verifier was
    not asked about the row as it stands.
    """

    judged: Judged
    row_sha256: str
    opinion: Opinion | None

    @property
    def id(self) -> str:
        """The example's id."""
        return self.judged.example.id

    @property
    def kind(self) -> CorrectionKind:
        """What the verifier questions."""
        return self.opinion.kind if self.opinion else CorrectionKind.TRUTH

    @property
    def suggestion(self) -> Change | None:
        """The correction that the verifier suggests, where it can be used."""
        return self.opinion.change if self.opinion else None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an entry becomes, and how: by a suggestion, or by a decision of this round."""

    change: Change
    action: Action | None


def entries(
    rows: Iterable[Judged], source: Path, findings: Sequence[Finding], ledger: Ledger, round_: int
) -> Iterator[Entry]:
    """Yield what a round shows: what is flagged, then what was skipped or edited in round 1.

    Raises DataError where a row is not the one that was verified or decided on.
    """
    opinions = {(f.id, f.row_sha256): f.opinion for f in findings if f.round <= round_}
    verified = {finding.id for finding in findings if finding.round == ROUNDS[0]}
    for judged in rows:
        identifier, sha256 = judged.example.id, row_sha256(judged)
        refuse_changed(ledger, judged, sha256, source)
        opinion = opinions.get((identifier, sha256))
        if opinion is not None:
            verified.discard(identifier)
        if round_ == ROUNDS[0] and opinion is not None and opinion.is_flagged:
            yield Entry(judged, sha256, opinion)
        elif round_ > ROUNDS[0] and ledger.is_reexamined(identifier):
            revised = ledger.revised(judged, ROUNDS[0])
            yield Entry(revised, sha256, opinions.get((identifier, row_sha256(revised))))
    if verified:
        problem = f"{len(verified)} rows are not as they were verified, as {min(verified)}"
        raise DataError(source, None, f"{problem}; run `review verify` on this file")


def refuse_changed(ledger: Ledger, judged: Judged, sha256: str, source: Path) -> None:
    """Raise DataError where an entry was decided on when it was another row."""
    if any(step.row_sha256 != sha256 for step in ledger.of(judged.example.id)):
        problem = f"{judged.example.id} has changed since it was reviewed"
        advice = "take the file that was reviewed, or begin anew in another --out"
        raise DataError(source, None, f"{problem}; {advice}")


class Session:
    """One reviewer's round; every decision is on the disk before a method returns."""

    def __init__(
        self, entries_: Sequence[Entry], journal: Journal[Step], reviewer: str, round_: int
    ) -> None:
        self.entries = tuple(entries_)
        self.round = round_
        self._journal = journal
        self._reviewer = reviewer
        self.ledger = Ledger(journal.entries)
        self.index = next((i for i in range(len(self.entries)) if self.is_open(i)), 0)

    @property
    def current(self) -> Entry:
        """The entry before the reviewer."""
        return self.entries[self.index]

    def is_open(self, index: int) -> bool:
        """Tell whether an entry has no decision in this round yet."""
        return self.decision(index) is None

    def decision(self, index: int) -> Step | None:
        """Return the last decision on an entry in this round."""
        return self.ledger.decision(self.entries[index].id, self.round)

    def outcome(self, kind: CorrectionKind) -> Outcome | None:
        """Return what the current entry's truth or input becomes; None: it stays."""
        steps = self.ledger.decisions(self.current.id, self.round)
        for step in steps:
            if step.kind is kind and step.action in CHANGES and step.change:
                return Outcome(step.change, step.action)
        suggestion = self.current.suggestion
        if suggestion is None or suggestion.kind is not kind:
            return None
        return Outcome(suggestion, None)

    @property
    def category(self) -> ErrorCategory:
        """The category in force for the current entry."""
        return self._category_of(self.kind)

    @property
    def kind(self) -> CorrectionKind:
        """What the current entry's last decision is about, or what the verifier questions."""
        step = self.decision(self.index)
        return step.kind if step else self.current.kind

    def accept(self) -> bool:
        """Take the suggestion; False where there is none that can be used."""
        if self.current.suggestion is None:
            return False
        self._decide(Action.ACCEPT, self.current.kind, self.current.suggestion)
        return True

    def decline(self) -> None:
        """Keep the entry as it stands."""
        self._decide(Action.DECLINE, self.current.kind)

    def skip(self) -> None:
        """Leave the entry to round 2."""
        self._decide(Action.SKIP, self.current.kind)

    def edit_truth(self, truth: Truth) -> None:
        """Expect other calls."""
        category = self._category_of(CorrectionKind.TRUTH)
        change = Change(kind=CorrectionKind.TRUTH, category=category, expected=truth)
        self._decide(Action.EDIT, CorrectionKind.TRUTH, change)

    def edit_input(self, utterance: str) -> None:
        """Have the user say something else last."""
        category = self._category_of(CorrectionKind.INPUT)
        change = Change(kind=CorrectionKind.INPUT, category=category, utterance=utterance)
        self._decide(Action.EDIT, CorrectionKind.INPUT, change)

    def categorize(self, category: ErrorCategory) -> None:
        """Choose the category of the entry's error."""
        self._write(self.current, Action.CATEGORIZE, self.kind, category=category)

    def undo(self) -> Step | None:
        """Take back the last step of this round and return to its entry; None: there is none."""
        own = [step for step in self.ledger.steps if step.round == self.round]
        places = {entry.id: index for index, entry in enumerate(self.entries)}
        if not own or own[-1].id not in places:
            return None
        step = own[-1]
        self.index = places[step.id]
        self._write(
            self.current, Action.UNDO, step.kind, category=step.category, undoes=step.number
        )
        return step

    def move(self, by: int) -> None:
        """Go to another entry, stopping at the ends."""
        self.index = min(max(self.index + by, 0), len(self.entries) - 1)

    def _category_of(self, kind: CorrectionKind) -> ErrorCategory:
        opinion = self.current.opinion
        proposed = opinion.category if opinion and opinion.kind is kind else DEFAULT_CATEGORY[kind]
        return self.ledger.category(self.current.id, kind, proposed)

    def _decide(self, action: Action, kind: CorrectionKind, change: Change | None = None) -> None:
        self._write(self.current, action, kind, category=self._category_of(kind), change=change)
        after = [*range(self.index + 1, len(self.entries)), *range(self.index)]
        self.index = next((i for i in after if self.is_open(i)), self.index)

    def _write(self, entry: Entry, action: Action, kind: CorrectionKind, **facts: Any) -> None:  # noqa: ANN401
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
