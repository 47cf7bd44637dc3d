"""Reader of decision logs: decisions, with the feedback and the weak evidence about them.

A log can be much larger than the memory. It is read once from start to end, which checks every line
and keeps only where each line is: some 100 bytes for each decision. Lines are read again when they
are needed.
"""

from __future__ import annotations

import gzip
import logging
import shutil
import tempfile
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO, overload

import numpy as np
import orjson
from numpy.typing import NDArray
from pydantic import ValidationError

from router_service.apis.conversation import Json
from router_service.core.decision_record import (
    Line,
    LoggedComparison,
    LoggedDecision,
    LoggedEvidence,
    LoggedFeedback,
    read_line,
)
from switchcraft_training.datasets.rows import (
    FILE_ERRORS,
    ROW_ERRORS,
    Quarantine,
    RowErrorHandler,
    row_error,
)
from switchcraft_training.errors import DataError

log = logging.getLogger(__name__)

ENDINGS = (".jsonl", ".jsonl.gz")
MAX_OPEN_FILES = 100

Hashes = NDArray[np.uint64]
"""Hashes of decision ids. Two ids of a million have the same one with a probability of 3e-8."""
Positions = NDArray[np.int64]


class LogFiles:
    """The files of a log, which are read line by line at given positions.

    A position is a file's number times `FILE_SPAN`, plus the offset of a line.
    """

    FILE_SPAN = 2**44

    def __init__(self, paths: Sequence[Path]) -> None:
        """Read these files."""
        self.paths = paths
        self._open: dict[int, BinaryIO] = {}

    def lines(self) -> Iterator[tuple[Path, int, int, bytes]]:
        """Yield every line that is not blank: its file, its number from 1, its position, its text.

        Raises DataError if a file cannot be read.
        """
        for number, path in enumerate(self.paths):
            try:
                file = self._file(number)
                file.seek(0)
                position = number * self.FILE_SPAN
                for line_number, line in enumerate(file, start=1):
                    if line.strip():
                        yield path, line_number, position, line
                    position += len(line)
            except FILE_ERRORS as exc:
                raise DataError(path, None, f"cannot be read: {exc}") from exc

    def read(self, position: int) -> Line:
        """Return the line at a position; raises DataError if it cannot be read any more."""
        number, offset = divmod(position, self.FILE_SPAN)
        try:
            file = self._file(number)
            file.seek(offset)
            return parse_line(orjson.loads(file.readline()))
        except (*FILE_ERRORS, *ROW_ERRORS) as exc:
            problem = f"has changed while it was read: {exc}"
            raise DataError(self.paths[number], None, problem) from exc

    def _file(self, number: int) -> BinaryIO:
        """Return an open file; a compressed one is unpacked to a temporary file first."""
        file = self._open.pop(number, None)
        if file is None:
            path = self.paths[number]
            if path.suffix == ".gz":
                file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this object
                with gzip.open(path) as packed:
                    shutil.copyfileobj(packed, file)
            else:
                file = path.open("rb")
        self._open[number] = file  # the most recently used file is the last one
        if len(self._open) > MAX_OPEN_FILES:
            self._open.pop(next(iter(self._open))).close()
        return file


@dataclass(frozen=True, slots=True)
class LoggedDecisions(Sequence[LoggedDecision]):
    """The decisions of a log in order of time; each is read from its file when it is accessed."""

    files: LogFiles
    hashes: Hashes
    positions: Positions

    def __len__(self) -> int:
        """Return the number of decisions."""
        return len(self.positions)

    @overload
    def __getitem__(self, row: int) -> LoggedDecision: ...
    @overload
    def __getitem__(self, row: slice) -> LoggedDecisions: ...
    def __getitem__(self, row: int | slice) -> LoggedDecision | LoggedDecisions:
        """Read one decision, or return a part of them."""
        if isinstance(row, slice):
            return LoggedDecisions(self.files, self.hashes[row], self.positions[row])
        line = self.files.read(int(self.positions[row]))
        assert isinstance(line, LoggedDecision)  # noqa: S101 - for types
        return line


@dataclass(frozen=True, slots=True)
class FeedbackById(Mapping[str, LoggedFeedback]):
    """The last feedback by decision id; each is read from its file when it is accessed.

    `hashes` are sorted.
    """

    files: LogFiles
    hashes: Hashes
    positions: Positions

    def __len__(self) -> int:
        """Return the number of decisions with feedback."""
        return len(self.positions)

    def __iter__(self) -> Iterator[str]:
        """Yield the ids of decisions with feedback."""
        return (self._read(place).decision_id for place in range(len(self)))

    def __getitem__(self, decision_id: str) -> LoggedFeedback:
        """Read the feedback on a decision; raises KeyError without feedback."""
        found = np.array([hash_of_id(decision_id)], dtype=np.uint64)
        if not self.has(found)[0]:
            raise KeyError(decision_id)
        return self._read(int(np.searchsorted(self.hashes, found)[0]))

    def has(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Return for each hash of a decision's id whether there is feedback, (n,)."""
        if not len(self.hashes):
            return np.zeros(len(hashes), dtype=np.bool_)
        places = np.searchsorted(self.hashes, hashes)
        return np.asarray(self.hashes.take(places, mode="clip") == hashes)

    def _read(self, place: int) -> LoggedFeedback:
        line = self.files.read(int(self.positions[place]))
        assert isinstance(line, LoggedFeedback)  # noqa: S101 - for types
        return line


@dataclass(frozen=True, slots=True)
class Comparisons:
    """Other models' answers by decision id; each is read from its file when it is accessed."""

    files: LogFiles
    positions: Mapping[str, Sequence[int]]

    def __getitem__(self, decision_id: str) -> list[LoggedComparison]:
        """Read the answers to the request of a decision, which may be none."""
        lines = [self.files.read(position) for position in self.positions.get(decision_id, ())]
        return [line for line in lines if isinstance(line, LoggedComparison)]


@dataclass(frozen=True, slots=True)
class DecisionLog:
    """The contents of a decision log.

    `decisions` are in order of time. `feedback` is the last feedback by decision id. `evidence`
    holds the ids of decisions with weak evidence that a call was wrong. `comparisons` are other
    models' answers by decision id. `arms_by_model` has the arm
    of each model, without models that several arms use. `arms` are all arms with a probability.
    """

    path: Path
    decisions: LoggedDecisions
    feedback: FeedbackById
    evidence: frozenset[str]
    comparisons: Comparisons
    arms_by_model: Mapping[str, str]
    arms: tuple[str, ...]


def skip_incomplete_line(fault: DataError, raw: bytes) -> None:
    """Skip an incomplete last line with a warning; raise for any other unreadable line.

    A gateway that was killed, or that is still writing, leaves an incomplete last line. All earlier
    lines are complete.
    """
    if raw.endswith(b"\n"):
        raise fault
    log.warning("%s: skipped the last line, which is not written completely", fault.path)


class _Found:
    """Positions of lines about decisions, in the order of the files."""

    def __init__(self) -> None:
        self._hashes, self._created, self._positions = array("Q"), array("d"), array("q")

    def add(self, decision_id: str, created: float, position: int) -> None:
        self._hashes.append(hash_of_id(decision_id))
        self._created.append(created)
        self._positions.append(position)

    def in_order(self) -> tuple[Hashes, Positions]:
        """Return hashes and positions in order of time."""
        order = np.argsort(np.array(self._created), kind="stable")
        return np.array(self._hashes)[order], np.array(self._positions)[order]


def read_log(path: Path, on_fault: RowErrorHandler = skip_incomplete_line) -> DecisionLog:
    """Return the contents of a decision log: of its folder, or of one of the files in it.

    Unreadable lines are passed to `on_fault`. A duplicate decision counts once. Raises DataError
    if a file cannot be read, or if the log contains no decision. Compressed files are unpacked to
    the folder for temporary files.
    """
    paths = [path]
    if path.is_dir():
        paths = sorted(file for file in path.iterdir() if file.name.endswith(ENDINGS))
        if not paths:
            problem = (
                f"contains no file whose name ends in {' or '.join(ENDINGS)};"
                " give the folder of a decision log"
            )
            raise DataError(path, None, problem)
    files = LogFiles(paths)
    decisions, feedback = _Found(), _Found()
    evidence: set[str] = set()
    compared: defaultdict[str, list[int]] = defaultdict(list)
    arms_of: dict[str, set[str]] = {}
    arms: set[str] = set()
    for file, number, position, text in files.lines():
        try:
            line = parse_line(orjson.loads(text))
        except ROW_ERRORS as exc:
            on_fault(row_error(file, number, exc), text)
            continue
        match line:
            case LoggedDecision():
                decisions.add(line.id, line.created, position)
                arms.update(line.probabilities)
                if not line.is_fallback:
                    arms_of.setdefault(line.model, set()).add(line.arm)
            case LoggedFeedback():
                feedback.add(line.decision_id, line.created, position)
            case LoggedEvidence():
                evidence.add(line.decision_id)
            case LoggedComparison():
                compared[line.decision_id].append(position)
    hashes, positions = decisions.in_order()
    if not len(hashes):
        problem = "contains no decision; give the folder of a decision log, or one of its files"
        raise DataError(path, None, problem)
    # A decision stands where its first line does, and the last line counts.
    unique, first = np.unique(hashes, return_index=True)
    last = len(hashes) - 1 - np.unique(hashes[::-1], return_index=True)[1]
    order = np.argsort(first)
    judged, judged_at = feedback.in_order()
    judged_hashes, from_end = np.unique(judged[::-1], return_index=True)
    return DecisionLog(
        path=path,
        decisions=LoggedDecisions(files, unique[order], positions[last[order]]),
        feedback=FeedbackById(files, judged_hashes, judged_at[::-1][from_end]),
        evidence=frozenset(evidence),
        comparisons=Comparisons(files, compared),
        arms_by_model={model: arm for model, (arm, *others) in arms_of.items() if not others},
        arms=tuple(sorted(arms)),
    )


def read_log_with_quarantine(path: Path, quarantine: Path | None) -> tuple[DecisionLog, int]:
    """Return a log, and the number of unreadable lines, which are appended to `quarantine`.

    Without a quarantine file, unreadable lines are handled by `skip_incomplete_line`.
    """
    if quarantine is None:
        return read_log(path), 0
    with closing(Quarantine(quarantine)) as aside:
        return read_log(path, aside.add), aside.count


def parse_line(row: Json) -> Line:
    """Return a decoded line; raises ValueError if it is invalid."""
    try:
        return read_line.validate_python(row)
    except ValidationError as exc:
        first = exc.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from exc


def hash_of_id(decision_id: str) -> int:
    """Return the hash of a decision's id by which lines are joined."""
    return int.from_bytes(blake2b(decision_id.encode(), digest_size=8).digest())
