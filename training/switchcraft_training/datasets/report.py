"""The counts of an import, by dataset and category, and the same as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, ConfigDict
from rich import box
from rich.table import Table

from router_service.core.errors import DataError
from switchcraft_training.preferences.splits import Key, Stratum, key_of, split_keys
from switchcraft_training.records import Judged


class StratumCounts(BaseModel):
    """What a category of a dataset came to, in rows."""

    model_config = ConfigDict(frozen=True)

    dataset: str
    category: str
    read: int
    duplicates: int
    train: int
    validation: int
    test: int


class Report(BaseModel):
    """What an import came to, in rows; `quarantined` counts rows of the file as published."""

    model_config = ConfigDict(frozen=True)

    source: str
    path: str
    seed: int
    read: int
    quarantined: int
    duplicates: int
    strata: tuple[StratumCounts, ...]

    def save(self, path: Path) -> None:
        """Write the report as JSON; raises DataError where the file cannot be written."""
        try:
            path.write_text(self.model_dump_json(indent=2) + "\n")
        except OSError as exc:
            raise DataError(path, None, f"cannot be written: {exc}") from exc


@dataclass(slots=True)
class Intake:
    """Rows on their way through: the first of each (query, tools) passes, and all are counted."""

    read: Counter[Stratum] = field(default_factory=Counter)
    keys: list[Key] = field(default_factory=list)
    _seen: set[bytes] = field(default_factory=set)

    def first_of_each(self, rows: Iterable[Judged]) -> Iterator[Judged]:
        """Yield the rows that are no duplicates; only their keys stay in memory."""
        for judged in rows:
            key = key_of(judged.example)
            self.read[key.stratum] += 1
            if key.row not in self._seen:
                self._seen.add(key.row)
                self.keys.append(key)
                yield judged

    def strata(self, seed: int) -> tuple[StratumCounts, ...]:
        """Return the counts of each category after a split by a seed."""
        parts = split_keys(self.keys, seed).parts()
        train, validation, test = (Counter(self.keys[i].stratum for i in part) for part in parts)
        kept = train + validation + test
        return tuple(
            StratumCounts(
                dataset=stratum.dataset,
                category=stratum.category,
                read=read,
                duplicates=read - kept[stratum],
                train=train[stratum],
                validation=validation[stratum],
                test=test[stratum],
            )
            for stratum, read in sorted(self.read.items())
        )


def to_table(strata: Sequence[StratumCounts]) -> Table:
    """Return the counts as a table, with a line of sums where there is more than one category."""
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, show_footer=len(strata) > 1)
    table.add_column("dataset", "all", overflow="fold")
    table.add_column("category", overflow="fold")
    for name in ("read", "duplicates", "train", "validation", "test"):
        total = sum(getattr(counts, name) for counts in strata)
        table.add_column(name, f"{total:,}", justify="right")
    for counts in strata:
        texts = [v if isinstance(v, str) else f"{v:,}" for _, v in counts]
        table.add_row(*texts)
    return table
