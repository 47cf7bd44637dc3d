"""What reviewers decided: an append-only journal, and what stands of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from pydantic import BaseModel, ConfigDict

from switchcraft_training.datasets.corrections import (
    Change,
    CorrectionKind,
    ErrorCategory,
    apply_change,
)
from switchcraft_training.records import Judged

ROUNDS: Final = (1, 2)


class Action(StrEnum):
    """What a reviewer did; `UNDO` takes another action back, `CATEGORIZE` decides nothing."""

    ACCEPT = "accept"
    DECLINE = "decline"
    SKIP = "skip"
    EDIT = "edit"
    CATEGORIZE = "categorize"
    UNDO = "undo"


CHANGES: Final = (Action.ACCEPT, Action.EDIT)
DECISIONS: Final = (Action.ACCEPT, Action.DECLINE, Action.SKIP, Action.EDIT)


class Step(BaseModel):
    """One step of a reviewer: who did what, when, to which row as its file has it.

    `change` is what was accepted or edited. `undoes` is the number of the step taken back.
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


def standing(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Return the steps that were not taken back, in order, without the undoing itself."""
    stack: dict[int, Step] = {}
    for step in steps:
        if step.action is Action.UNDO and step.undoes is not None:
            stack.pop(step.undoes, None)
        else:
            stack[step.number] = step
    return tuple(stack.values())


class Ledger:
    """What stands of a journal's steps, by entry."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self.steps = standing(steps)
        self._by_id: dict[str, list[Step]] = {}
        for step in self.steps:
            self._by_id.setdefault(step.id, []).append(step)

    def of(self, identifier: str) -> tuple[Step, ...]:
        """Return what was done about an entry, in order."""
        return tuple(self._by_id.get(identifier, ()))

    def decision(self, identifier: str, round_: int) -> Step | None:
        """Return the last decision on an entry in a round."""
        return self._last(identifier, round_, tuple(CorrectionKind))

    def decisions(self, identifier: str, round_: int) -> tuple[Step, ...]:
        """Return the last decision on an entry's truth and on its input in a round."""
        found = (self._last(identifier, round_, (kind,)) for kind in CorrectionKind)
        return tuple(step for step in found if step is not None)

    def changes(self, identifier: str, until_round: int) -> Mapping[CorrectionKind, Step]:
        """Return the decisions that change an entry; a later round's stands over an earlier's."""
        return {
            step.kind: step
            for round_ in ROUNDS[:until_round]
            for step in self.decisions(identifier, round_)
            if step.action in CHANGES
        }

    def category(
        self, identifier: str, kind: CorrectionKind, otherwise: ErrorCategory
    ) -> ErrorCategory:
        """Return the category last chosen for an entry's truth or input."""
        steps = [step for step in self.of(identifier) if step.kind is kind]
        return steps[-1].category if steps else otherwise

    def revised(self, judged: Judged, until_round: int) -> Judged:
        """Return a row with what was decided on it."""
        for step in self.changes(judged.example.id, until_round).values():
            if step.change is not None:
                judged = apply_change(judged, step.change)
        return judged

    def is_reexamined(self, identifier: str) -> bool:
        """Tell whether an entry is looked at in round 2: it was skipped or edited in round 1."""
        steps = self.decisions(identifier, ROUNDS[0])
        return any(step.action in {Action.SKIP, Action.EDIT} for step in steps)

    def _last(self, identifier: str, round_: int, kinds: tuple[CorrectionKind, ...]) -> Step | None:
        steps = [
            step
            for step in self.of(identifier)
            if step.round == round_ and step.action in DECISIONS and step.kind in kinds
        ]
        return steps[-1] if steps else None
