"""Reading of a decision log: decisions, with the feedback and evidence that followed."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
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
from switchcraft_training.datasets.rows import Quarantine, RowErrorHandler, read_lines
from switchcraft_training.records import Json

log = logging.getLogger(__name__)

ENDINGS = (".jsonl", ".jsonl.gz")


@dataclass(frozen=True, slots=True)
class DecisionLog:
    """Decisions in order of time; the last feedback, and weak evidence, by decision id."""

    path: Path
    decisions: tuple[LoggedDecision, ...]
    feedback: Mapping[str, LoggedFeedback]
    evidence: frozenset[str]

    def arms_by_model(self) -> Mapping[str, str]:
        """Return the arm of each model, without models that several arms use."""
        played: dict[str, set[str]] = {}
        for decision in self.decisions:
            if not decision.is_fallback:
                played.setdefault(decision.model, set()).add(decision.arm)
        return {model: arm for model, (arm, *others) in played.items() if not others}


def pass_unfinished(fault: DataError, raw: bytes) -> None:
    """Skip an incomplete last line with a warning; raise for any other unreadable line.

    A gateway that was killed, or that is still writing, leaves such a line. The other lines are not
    affected.
    """
    if raw.endswith(b"\n"):
        raise fault
    log.warning("%s: the last line has no end, and is passed over", fault.path)


def read_log(path: Path, on_fault: RowErrorHandler = pass_unfinished) -> DecisionLog:
    """Read a log's folder, or one of its files; unreadable lines go to `on_fault`.

    A duplicate decision counts once. Raises DataError if a file cannot be read or there is no
    decision.
    """
    decisions: dict[str, LoggedDecision] = {}
    feedback: dict[str, LoggedFeedback] = {}
    evidence: set[str] = set()
    for line in sorted(_lines(path, on_fault), key=lambda line: line.created):
        match line:
            case LoggedDecision():
                decisions[line.id] = line
            case LoggedFeedback():
                feedback[line.decision_id] = line
            case LoggedEvidence():
                evidence.add(line.decision_id)
    if not decisions:
        raise DataError(path, None, "holds no decision; is it the folder of a decision log?")
    return DecisionLog(path, tuple(decisions.values()), feedback, frozenset(evidence))


def read_log_aside(path: Path, quarantine: Path | None) -> tuple[DecisionLog, int]:
    """Read a log; write unreadable lines to the file `quarantine`, and count them.

    Without a quarantine file, raises like `read_log` at the first such line.
    """
    if quarantine is None:
        return read_log(path), 0
    with closing(Quarantine(quarantine)) as aside:
        return read_log(path, aside.add), aside.count


def _lines(path: Path, on_fault: RowErrorHandler) -> Iterator[Line]:
    for file in _files(path):
        yield from read_lines(file, _read, on_fault)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.name.endswith(ENDINGS))
    if not files:
        raise DataError(path, None, f"holds no file that ends in {' or '.join(ENDINGS)}")
    return files


def _read(row: Json) -> Line:
    try:
        return read_line.validate_python(row)
    except ValidationError as exc:
        first = exc.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from exc
