"""`switchcraft-train import`: convert a published dataset to rows, and count them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, TypeAlias, cast

from router_service.checker.toolbox import Call
from router_service.core.errors import SchemaError
from switchcraft_training.checking import check
from switchcraft_training.data.splits import row_digest
from switchcraft_training.datasets.rows import Quarantine, RowErrorHandler, encode_row, write_rows
from switchcraft_training.errors import DataError, RowError
from switchcraft_training.options import DATASETS, ImportOptions
from switchcraft_training.records import Judged

DatasetReader: TypeAlias = Callable[[Path, RowErrorHandler], Iterator[Judged]]


class DatasetCategory(NamedTuple):
    """A category of a dataset."""

    dataset: str
    category: str


@dataclass(slots=True)
class RowCounter:
    """Counter of rows: read and duplicate ones by category, and those set aside by reason."""

    quarantine: Quarantine | None = None
    read: Counter[DatasetCategory] = field(default_factory=Counter)
    duplicates: Counter[DatasetCategory] = field(default_factory=Counter)
    set_aside: Counter[str] = field(default_factory=Counter)
    _seen: set[bytes] = field(default_factory=set)

    def note(self, error: RowError, raw: bytes) -> None:
        """Count a row that cannot be read; a reader's `on_error`."""
        self.set_aside[error.reason] += 1
        if self.quarantine is not None:
            self.quarantine.add(error, raw)

    def deduplicate(self, rows: Iterable[Judged]) -> Iterator[Judged]:
        """Count all rows, and yield those without an earlier duplicate; keep only digests."""
        for judged in rows:
            category = DatasetCategory(judged.example.dataset, judged.example.category)
            digest = row_digest(judged.example)
            self.read[category] += 1
            if digest in self._seen:
                self.duplicates[category] += 1
                continue
            self._seen.add(digest)
            yield judged

    def check(self, path: Path, max_unreadable: float) -> None:
        """Raise DataError if more than this share of the rows cannot be read."""
        unreadable = self.set_aside.total()
        rows = self.read.total() + unreadable
        if unreadable <= max_unreadable * rows:
            return
        reasons = "\n".join(f"  {n:>7,}  {reason}" for reason, n in self.set_aside.most_common())
        raise DataError(
            path,
            None,
            f"{unreadable:,} of {rows:,} rows cannot be read:\n{reasons}\nIs this the dataset that"
            " you meant? --quarantine FILE keeps these rows, and --max-unreadable allows more.",
        )


def import_dataset(source: str, path: Path, options: ImportOptions) -> None:
    """Import a dataset, and print the counts.

    Raises DataError if a file cannot be read or written, contains no row, or has too many rows that
    cannot be read.
    """
    counter = RowCounter()

    def read() -> Iterator[Judged]:
        yield from counter.deduplicate(read_dataset(source, path, counter.note))
        counter.check(path, options.max_unreadable)

    with ExitStack() as stack:
        if options.quarantine is not None:
            counter.quarantine = stack.enter_context(closing(Quarantine(options.quarantine)))
        if options.out is None:
            deque(read(), maxlen=0)
        else:
            write_rows(read(), options.out)
    options.write_report(
        {
            "source": source,
            "path": str(path),
            "read": counter.read.total(),
            "duplicates": counter.duplicates.total(),
            "set_aside": counter.set_aside,
            "categories": [
                {**category._asdict(), "read": read, "duplicates": counter.duplicates[category]}
                for category, read in sorted(counter.read.items())
            ],
        }
    )
    _print_counts(counter)


def _print_counts(counter: RowCounter) -> None:
    """Print the rows by category with totals, and those set aside by reason."""
    from rich import box  # noqa: PLC0415 - of the `train` extra
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    console = Console()
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, show_footer=len(counter.read) > 1)
    table.add_column("dataset", "all", overflow="fold")
    table.add_column("category", overflow="fold")
    for name, count in (("read", counter.read), ("duplicates", counter.duplicates)):
        table.add_column(name, f"{count.total():,}", justify="right")
    for category, read in sorted(counter.read.items()):
        table.add_row(*category, f"{read:,}", f"{counter.duplicates[category]:,}")
    console.print(table)
    for reason, count in counter.set_aside.most_common():
        text = f"set aside: {count:,} rows, {reason}"
        console.print(text, highlight=False, markup=False, soft_wrap=True)


def read_dataset(source: str, path: Path, on_error: RowErrorHandler) -> Iterator[Judged]:
    """Stream a dataset's rows; rows that cannot be read are passed to `on_error`.

    So are examples whose tools have a schema that the checker cannot interpret. Raises DataError if
    a file is missing, or if the dataset contains no rows at all.
    """
    is_empty = True

    def note_error(error: RowError, raw: bytes) -> None:
        nonlocal is_empty
        is_empty = False
        on_error(error, raw)

    # Imported here so that only the reader in use is loaded.
    reader = cast("DatasetReader", import_module(DATASETS[source]).read_source)
    for judged in reader(path, note_error):
        is_empty = False
        calls = [
            Call(call.name, {name: values[0] for name, values in call.arguments.items() if values})
            for call in judged.expected.calls
        ]
        try:
            check(judged.example.request["tools"], judged.expected, calls)
        except SchemaError as exc:
            reason = "a tool's schema cannot be interpreted"
            problem = f"{judged.example.id}: {exc}"
            on_error(RowError(path, None, problem, reason=reason), encode_row(judged))
            continue
        yield judged
    if is_empty:
        raise DataError(path, None, f"contains no row of {source}; check the path and the format")
