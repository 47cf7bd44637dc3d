"""A labelling run as a source of training: the rows it asked, and what was answered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from switchcraft_training.datasets.lines import read_lines
from switchcraft_training.datasets.rows import read_rows
from switchcraft_training.labelling.export import ANSWERS, read_answers
from switchcraft_training.records import Answer, Judged


@dataclass(frozen=True, slots=True)
class Labelled:
    """Rows, and the folder of the run that asked them; raises DataError at what is no row."""

    rows: Path
    folder: Path

    def arms(self) -> list[str]:
        """Return the arms that answered."""
        return sorted(set(read_lines(self.folder / ANSWERS, lambda row: str(row["arm"]))))

    def judged(self) -> Iterator[Judged]:
        """Read the rows that were asked."""
        return read_rows(self.rows)

    def answers(self, arm: str) -> Iterator[Answer]:
        """Read what an arm answered, every attempt."""
        return read_answers(self.folder, arm)
