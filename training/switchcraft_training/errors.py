"""The error classes of training, in the one tree of `router_service.core.errors`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from router_service.core.errors import SwitchcraftError


class DataError(SwitchcraftError):
    """A file or a row of training data that cannot be read or written."""

    def __init__(self, path: Path, line: int | None, problem: str) -> None:
        super().__init__(f"{path}:{line}: {problem}" if line else f"{path}: {problem}")
        self.path = path
        self.line = line
        self.problem = problem


class RowError(DataError):
    """A row of published data that gives no example.

    `reason` is the same for all rows with this problem.
    """

    def __init__(self, path: Path, line: int | None, problem: str, *, reason: str) -> None:
        super().__init__(path, line, problem)
        self.reason = reason


class FetchError(SwitchcraftError):
    """A public repository or package that cannot be downloaded. `source` is its address."""

    def __init__(self, source: str, problem: str) -> None:
        """Create the message; `problem` is a verb phrase after the address, with a remedy."""
        super().__init__(f"{source} {problem}")
        self.source = source
        self.problem = problem


class StorageError(SwitchcraftError):
    """A file that cannot be written, because a disk is full or because a folder is read-only.

    `free_bytes` has the free space of every folder that the command writes to.
    """

    def __init__(self, reason: str, free_bytes: Mapping[Path, int]) -> None:
        places = ", ".join(f"{path} ({free / 1e6:,.0f} MB)" for path, free in free_bytes.items())
        super().__init__(
            f"a file cannot be opened or written: {reason}. Free space of the folders that this"
            f" command writes to: {places}. Free some space or give other folders, and run the same"
            " command again. It reuses what is already there."
        )
        self.reason = reason
        self.free_bytes = dict(free_bytes)


class UnbalancedFoldsError(SwitchcraftError):
    """Training data with a group of near-duplicates that is too large for folds of equal size."""

    def __init__(self, sizes: Sequence[int], group_rows: int, text: str) -> None:
        """Create the message; `text` is an example of the rows in the largest group."""
        rows, folds = sum(sizes), len(sizes)
        super().__init__(
            f"The {rows} measured queries cannot be divided into {folds} folds of nearly equal"
            f" size: the folds would have {', '.join(map(str, sizes))} queries. The largest group"
            " of near-duplicates or of turns of one conversation, which must stay in one fold, has"
            f" {group_rows} queries ({group_rows / rows:.0%}), for example {text!r}. Remove most of"
            " these queries, add other queries, or lower evaluation.folds."
        )
        self.sizes = tuple(sizes)
        self.group_rows = group_rows
        self.text = text
