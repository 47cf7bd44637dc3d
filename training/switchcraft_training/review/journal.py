"""Append-only journals, and the decisions of reviewers that a journal records."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from router_service.core.errors import ConfigError, DataError
from switchcraft_training.datasets.corrections import (
    Change,
    CorrectionKind,
    ErrorCategory,
    apply_change,
    first_problem,
)
from switchcraft_training.records import Judged

JournalEntry = TypeVar("JournalEntry", bound=BaseModel)

ROUNDS: Final = (1, 2)


def read_entries(path: Path, model: type[JournalEntry]) -> list[JournalEntry]:
    """Return the entries of a journal; empty if there is no file.

    A last line without a line break is ignored, because its writer was killed while writing it.
    Raises DataError if any other line is invalid.
    """
    if not path.exists():
        return []
    entries = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            entries.append(model.model_validate_json(line))
        except ValidationError as exc:
            raise DataError(path, number, first_problem(exc)) from exc
    return entries


class Journal(Generic[JournalEntry]):
    """Append-only file of JSON lines that stays valid if its writer is killed."""

    def __init__(self, path: Path, model: type[JournalEntry]) -> None:
        """Open the file for writing; raises ConfigError if another process has it open."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until the file is closed
        except BlockingIOError as exc:
            self._file.close()
            problem = "another process writes to this file; end that process, or give another --out"
            raise ConfigError(str(path), "", problem) from exc
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
        self.entries = read_entries(path, model)

    def append(self, entry: JournalEntry) -> None:
        """Write an entry and flush it to disk."""
        self._file.write(entry.model_dump_json(exclude_none=True).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.entries.append(entry)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


class Action(StrEnum):
    """An action of a reviewer; `UNDO` reverts another action, `CATEGORIZE` is not a decision."""

    ACCEPT = "accept"
    DECLINE = "decline"
    SKIP = "skip"
    EDIT = "edit"
    CATEGORIZE = "categorize"
    UNDO = "undo"


CHANGES: Final = (Action.ACCEPT, Action.EDIT)
DECISIONS: Final = (Action.ACCEPT, Action.DECLINE, Action.SKIP, Action.EDIT)


class Step(BaseModel):
    """One action of a reviewer on a row.

    `row_sha256` is the hash of the row in the file of rows. `change` is the accepted or edited
    change. `undoes` is the number of the step to revert.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int
    at: str
    reviewer: str
    round: int
    id: str
    row_sha256: str
    action: Action
    kind: CorrectionKind
    category: ErrorCategory
    explanation: str = ""
    change: Change | None = None
    undoes: int | None = None


class Ledger:
    """The steps of a journal that were not undone, by row."""

    def __init__(self, steps: Iterable[Step]) -> None:
        remaining: dict[int, Step] = {}
        for step in steps:
            if step.action is Action.UNDO and step.undoes is not None:
                remaining.pop(step.undoes, None)
            else:
                remaining[step.number] = step
        self.steps = tuple(remaining.values())
        self._by_id: dict[str, list[Step]] = {}
        for step in self.steps:
            self._by_id.setdefault(step.id, []).append(step)

    def steps_of(self, identifier: str) -> tuple[Step, ...]:
        """Return the steps on a row, in order."""
        return tuple(self._by_id.get(identifier, ()))

    def decision(
        self, identifier: str, round_: int, kinds: Iterable[CorrectionKind] = CorrectionKind
    ) -> Step | None:
        """Return the last decision on a row in a round, among corrections of some kinds."""
        chosen = frozenset(kinds)
        steps = [
            step
            for step in self.steps_of(identifier)
            if step.round == round_ and step.action in DECISIONS and step.kind in chosen
        ]
        return steps[-1] if steps else None

    def decisions(self, identifier: str, round_: int) -> tuple[Step, ...]:
        """Return the last decisions on a row's expected calls and on its input in a round."""
        found = (self.decision(identifier, round_, (kind,)) for kind in CorrectionKind)
        return tuple(step for step in found if step is not None)

    def changes(self, identifier: str, until_round: int) -> Mapping[CorrectionKind, Step]:
        """Return the decisions that change a row, by kind; later rounds override earlier ones."""
        return {
            step.kind: step
            for round_ in ROUNDS[:until_round]
            for step in self.decisions(identifier, round_)
            if step.action in CHANGES
        }

    def category(
        self, identifier: str, kind: CorrectionKind, default: ErrorCategory
    ) -> ErrorCategory:
        """Return the category last chosen for a row's expected calls or input."""
        steps = [step for step in self.steps_of(identifier) if step.kind is kind]
        return steps[-1].category if steps else default

    def revised(self, judged: Judged, until_round: int) -> Judged:
        """Return a row with the changes that were decided up to a round."""
        for step in self.changes(judged.example.id, until_round).values():
            if step.change is not None:
                judged = apply_change(judged, step.change)
        return judged

    def is_reexamined(self, identifier: str) -> bool:
        """Return whether round 2 shows a row, because round 1 skipped or edited it."""
        steps = self.decisions(identifier, ROUNDS[0])
        return any(step.action in {Action.SKIP, Action.EDIT} for step in steps)
