"""Reader of decision logs: decisions, with the feedback and the weak evidence about them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from router_service.core.decision_log import (
    Line,
    LoggedDecision,
    LoggedEvidence,
    LoggedFeedback,
    read_line,
)
from router_service.core.errors import DataError
from router_service.core.messages import Json
from switchcraft_training.datasets.rows import Quarantine, RowErrorHandler, read_lines

log = logging.getLogger(__name__)

ENDINGS = (".jsonl", ".jsonl.gz")


@dataclass(frozen=True, slots=True)
class DecisionLog:
    """The contents of a decision log.

    `decisions` are in order of time. `feedback` is the last feedback by decision id. `evidence`
    holds the ids of decisions with weak evidence that a call was wrong.
    """

    path: Path
    decisions: tuple[LoggedDecision, ...]
    feedback: Mapping[str, LoggedFeedback]
    evidence: frozenset[str]

    def arms_by_model(self) -> Mapping[str, str]:
        """Return the arm of each model, without models that several arms use."""
        arms_of: dict[str, set[str]] = {}
        for decision in self.decisions:
            if not decision.is_fallback:
                arms_of.setdefault(decision.model, set()).add(decision.arm)
        return {model: arm for model, (arm, *others) in arms_of.items() if not others}


def skip_incomplete_line(fault: DataError, raw: bytes) -> None:
    """Skip an incomplete last line with a warning; raise for any other unreadable line.

    A gateway that was killed, or that is still writing, leaves an incomplete last line. All earlier
    lines are complete.
    """
    if raw.endswith(b"\n"):
        raise fault
    log.warning("%s: skipped the last line, which is not written completely", fault.path)


def read_log(path: Path, on_fault: RowErrorHandler = skip_incomplete_line) -> DecisionLog:
    """Return the contents of a decision log: of its folder, or of one of the files in it.

    Unreadable lines are passed to `on_fault`. A duplicate decision counts once. Raises DataError
    if a file cannot be read, or if the log contains no decision.
    """
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.name.endswith(ENDINGS))
        if not files:
            problem = (
                f"contains no file whose name ends in {' or '.join(ENDINGS)};"
                " give the folder of a decision log"
            )
            raise DataError(path, None, problem)
    lines = [line for file in files for line in read_lines(file, _parse_line, on_fault)]
    decisions: dict[str, LoggedDecision] = {}
    feedback: dict[str, LoggedFeedback] = {}
    evidence: set[str] = set()
    for line in sorted(lines, key=lambda line: line.created):
        match line:
            case LoggedDecision():
                decisions[line.id] = line
            case LoggedFeedback():
                feedback[line.decision_id] = line
            case LoggedEvidence():
                evidence.add(line.decision_id)
    if not decisions:
        problem = "contains no decision; give the folder of a decision log, or one of its files"
        raise DataError(path, None, problem)
    return DecisionLog(path, tuple(decisions.values()), feedback, frozenset(evidence))


def read_log_with_quarantine(path: Path, quarantine: Path | None) -> tuple[DecisionLog, int]:
    """Return a log, and the number of unreadable lines, which are appended to `quarantine`.

    Without a quarantine file, unreadable lines are handled by `skip_incomplete_line`.
    """
    if quarantine is None:
        return read_log(path), 0
    with closing(Quarantine(quarantine)) as aside:
        return read_log(path, aside.add), aside.count


def _parse_line(row: Json) -> Line:
    try:
        return read_line.validate_python(row)
    except ValidationError as exc:
        first = exc.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from exc
