"""`switchcraft-train import`: convert a published dataset to rows, and count them."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias, cast

from router_service.apis.conversation import Json
from router_service.checker.comparison import Comparer
from router_service.checker.defaults import documented_defaults
from router_service.checker.toolbox import Call, ExpectedCall, Toolbox
from router_service.core.errors import SchemaError
from switchcraft_training.checking import check
from switchcraft_training.config import DistinctWithin
from switchcraft_training.data.splits import SplitKey, Stratum, key_of, split_keys
from switchcraft_training.datasets.corrections import apply_corrections
from switchcraft_training.datasets.options import DATASETS, ImportOptions
from switchcraft_training.datasets.rows import Quarantine, RowErrorHandler, encode_row, write_rows
from switchcraft_training.errors import DataError, RowError
from switchcraft_training.records import Judged

DatasetReader: TypeAlias = Callable[[Path, RowErrorHandler], Iterator[Judged]]


SEED = 1
"""Seed of the split whose parts are counted."""
COUNTS = ("read", "duplicates", "train", "validation", "test")


@dataclass(slots=True)
class RowCounter:
    """Counter of published rows: read, without anything to judge, or set aside, by reason."""

    quarantine: Quarantine | None = None
    read: int = 0
    nothing_to_judge: Counter[str] = field(default_factory=Counter)
    set_aside: Counter[str] = field(default_factory=Counter)
    _row: str = ""
    _ids: set[str] = field(default_factory=set)
    """The examples of the row `_row` so far."""

    def note(self, error: RowError, raw: bytes) -> None:
        """Count a row without examples; a reader's `on_error`."""
        if error.is_readable:
            self.nothing_to_judge[error.reason] += 1
            return
        self.set_aside[error.reason] += 1
        if self.quarantine is not None:
            self.quarantine.add(error, raw)

    def count(self, examples: Iterable[Judged]) -> Iterator[Judged]:
        """Yield all examples, and count the rows that give them."""
        for judged in examples:
            id_, conversation = judged.example.id, judged.example.conversation
            # The examples of a conversation in one row have the ids CONVERSATION:NUMBER.
            row = conversation if id_.startswith(f"{conversation}:") else id_
            if row != self._row or id_ in self._ids:
                self.read += 1
                self._row = row
                self._ids.clear()
            self._ids.add(id_)
            yield judged

    def check(self, path: Path, max_unreadable: float) -> None:
        """Raise DataError if more than this share of the rows cannot be read."""
        unreadable = self.set_aside.total()
        rows = self.read + self.nothing_to_judge.total() + unreadable
        if unreadable <= max_unreadable * rows:
            return
        reasons = "\n".join(f"  {n:>7,}  {reason}" for reason, n in self.set_aside.most_common())
        raise DataError(
            path,
            None,
            f"{unreadable:,} of {rows:,} rows cannot be read:\n{reasons}\nIs this the dataset that"
            " you meant? --quarantine FILE keeps these rows, and --max-unreadable allows more.",
        )


@dataclass(slots=True)
class ImportCounter:
    """Counts of the examples that pass through `deduplicate`."""

    within: DistinctWithin = "dataset"
    read: Counter[Stratum] = field(default_factory=Counter)
    keys: list[SplitKey] = field(default_factory=list)
    _seen: set[bytes] = field(default_factory=set)

    def deduplicate(self, rows: Iterable[Judged]) -> Iterator[Judged]:
        """Count all rows, and yield those without an earlier duplicate; keep only their keys."""
        for judged in rows:
            key = key_of(judged.example, self.within)
            self.read[key.stratum] += 1
            if key.row not in self._seen:
                self._seen.add(key.row)
                self.keys.append(key)
                yield judged

    def strata(self) -> list[dict[str, Any]]:
        """Return the counts of each category, including the parts of a split."""
        parts = split_keys(self.keys, SEED).parts()
        train, validation, test = (Counter(self.keys[i].stratum for i in part) for part in parts)
        kept = train + validation + test
        return [
            {
                **stratum._asdict(),
                "read": read,
                "duplicates": read - kept[stratum],
                "train": train[stratum],
                "validation": validation[stratum],
                "test": test[stratum],
            }
            for stratum, read in sorted(self.read.items())
        ]


def import_dataset(source: str, path: Path, options: ImportOptions) -> None:
    """Import a dataset, and print the counts.

    Raises DataError if a file cannot be read or written, contains no row, or has too many rows that
    cannot be read.
    """
    published, counter = RowCounter(), ImportCounter(options.distinct_within)
    with ExitStack() as stack:
        if options.quarantine is not None:
            published.quarantine = stack.enter_context(closing(Quarantine(options.quarantine)))
        distinct = counter.deduplicate(_read_rows(source, path, options, published))
        if options.out is None:
            deque(distinct, maxlen=0)
        else:
            write_rows(distinct, options.out)
    strata = counter.strata()
    report = {
        "source": source,
        "path": str(path),
        "seed": SEED,
        "read": sum(counts["read"] for counts in strata),
        "published": {
            "read": published.read,
            "nothing_to_judge": published.nothing_to_judge,
            "set_aside": published.set_aside,
        },
        "duplicates": sum(counts["duplicates"] for counts in strata),
        "strata": strata,
    }
    if options.report is not None:
        try:
            options.report.write_text(json.dumps(report, indent=2) + "\n")
        except OSError as exc:
            raise DataError(options.report, None, f"cannot be written: {exc}") from exc
    _print_counts(published, strata)


def _print_counts(published: RowCounter, strata: Sequence[Mapping[str, Any]]) -> None:
    """Print the published rows by outcome, and the examples by category with totals."""
    from rich import box  # noqa: PLC0415 - of the `train` extra
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    unread = {"nothing to judge": published.nothing_to_judge, "set aside": published.set_aside}
    rows = Table(box=box.SIMPLE_HEAD, show_footer=True)
    rows.add_column("published rows", "all")
    rows.add_column("reason", overflow="fold")
    total = published.read + sum(reasons.total() for reasons in unread.values())
    rows.add_column("rows", f"{total:,}", justify="right")
    rows.add_row("read", "", f"{published.read:,}")
    for outcome, reasons in unread.items():
        for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
            rows.add_row(outcome, reason, f"{count:,}")
    examples = Table(box=box.SIMPLE_HEAD, collapse_padding=True, show_footer=len(strata) > 1)
    examples.add_column("dataset", "all", overflow="fold")
    examples.add_column("category", overflow="fold")
    totals = {name: sum(counts[name] for counts in strata) for name in COUNTS}
    for name, sum_of_strata in totals.items():
        examples.add_column(name, f"{sum_of_strata:,}", justify="right")
    for counts in strata:
        numbers = (f"{counts[name]:,}" for name in COUNTS)
        examples.add_row(counts["dataset"], counts["category"], *numbers)
    console = Console()
    console.print(rows)
    text = f"{totals['read']:,} examples, {totals['duplicates']:,} of them duplicates"
    console.print(text, highlight=False, soft_wrap=True)
    console.print(examples)


def _read_rows(
    source: str, path: Path, options: ImportOptions, published: RowCounter
) -> Iterator[Judged]:
    """Yield a dataset's rows as the options want them, and count the published ones."""

    def read() -> Iterator[Judged]:
        yield from published.count(read_dataset(source, path, published.note))
        published.check(path, options.max_unreadable)

    rows = read()
    if options.corrections is not None:
        rows = apply_corrections(rows, options.corrections)
    if options.omit_defaults:
        rows = map(with_optional_defaults, rows)
    return rows


def with_optional_defaults(judged: Judged) -> Judged:
    """Return the example with parameters as optional whose documented default is expected.

    An answer that omits such a parameter means the expected call, but violates a schema that
    requires the parameter. The paper accepts it; providers may refuse to make the call.
    """
    toolbox = Toolbox.from_openai(judged.example.request["tools"])

    def accepts(call: ExpectedCall, name: str, values: tuple[Json, ...]) -> bool:
        schema = toolbox.schema(call.name).key(name)
        defaults = documented_defaults(schema)
        return any(Comparer().is_accepted(default, values, schema) for default in defaults)

    calls = tuple(
        replace(
            call,
            optional=call.optional
            | {name for name, values in call.arguments.items() if accepts(call, name, values)},
        )
        for call in judged.expected.calls
    )
    return judged._replace(expected=replace(judged.expected, calls=calls))


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
