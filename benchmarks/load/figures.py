"""Figures of the loads, as tables and JSON."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.load.client import Record
from router_service.apis.conversation import Json

DIRECT = "direct"
"""The upstream itself, whose latency is subtracted from the others'."""
FEW = 8
"""Number of connections for which processor time is reported."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A mode and a number of connections."""

    mode: str
    connections: int


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one contender in one setting and round."""

    answers: int
    rate_per_s: float
    p50_ms: float
    p99_ms: float
    first_byte_p50_ms: float
    first_byte_p99_ms: float
    event_p50_ms: float
    """Age of a stream's events on arrival; NaN without streams."""
    event_p99_ms: float
    cpu_ms: float
    """Processor time per answer."""
    first_answer_p50_ms: float
    first_answer_max_ms: float
    """How long connections wait for their first answers; all are opened at the same time."""
    fewest_answers: int
    mean_answers: float
    most_answers: int
    """Answers per connection, from the first one on."""


@dataclass(frozen=True, slots=True)
class Weight:
    """Startup time in seconds and resident memory in 10^6 bytes of a gateway."""

    version: str
    ready_s: Sequence[float]
    ready_mb: float
    loaded_mb: float


Rounds = Mapping[Setting, Mapping[str, Sequence[Figures]]]
"""Every round's figures, by setting and contender."""


def figures_of(record: Record) -> Figures:
    """Return the figures of a recorded load."""
    counts = record.answers_by_connection
    return Figures(
        len(record.latencies_s),
        record.rate_per_s,
        *_percentiles_ms(record.latencies_s),
        *_percentiles_ms(record.first_bytes_s),
        *_percentiles_ms(record.ages_s),
        cpu_ms=record.cpu_s * 1e3 / max(1, len(record.latencies_s)),
        first_answer_p50_ms=_percentiles_ms(record.first_answers_s)[0],
        first_answer_max_ms=max(record.first_answers_s) * 1e3,
        fewest_answers=min(counts),
        mean_answers=statistics.fmean(counts),
        most_answers=max(counts),
    )


def as_json(rounds: Rounds) -> list[Json]:
    """Return every round's figures, by setting."""
    return [
        {
            **asdict(setting),
            "rounds": {name: [asdict(it) for it in its] for name, its in by.items()},
        }
        for setting, by in rounds.items()
    ]


def tables(rounds: Rounds, weights: Mapping[str, Weight]) -> Iterator[str]:
    """Yield Markdown tables: medians over the rounds, followed by the range."""
    for mode in dict.fromkeys(setting.mode for setting in rounds):
        settings = [it for it in rounds if it.mode == mode]
        many = [column for it in settings if it.connections > FEW for column in _fairness(it)]
        for name, columns in (
            (mode, [*_columns(mode, settings)]),
            (f"{mode}, by connection", many),
        ):
            if columns:
                titles = [column.title for column in columns]
                yield from markdown(name, titles, _rows(columns, rounds))
    titles = ["version", "ready, s", "resident when ready, MB", "resident after load, MB"]
    rows = {
        name: [it.version, *map(spread, (it.ready_s, [it.ready_mb], [it.loaded_mb]))]
        for name, it in weights.items()
    }
    yield from markdown("gateway", titles, rows)


@dataclass(frozen=True, slots=True)
class _Column:
    title: str
    setting: Setting
    value: Callable[[Figures], float]
    is_added: bool = False
    """Whether the upstream's own time is subtracted."""


_Wait = tuple[str, Callable[[Figures], float]]
_ANSWER: Sequence[_Wait] = (("P50", lambda it: it.p50_ms), ("P99", lambda it: it.p99_ms))
_FIRST_BYTE: Sequence[_Wait] = (
    ("first byte P50", lambda it: it.first_byte_p50_ms),
    ("first byte P99", lambda it: it.first_byte_p99_ms),
)
_EVENT: Sequence[_Wait] = (
    ("event P50", lambda it: it.event_p50_ms),
    ("event P99", lambda it: it.event_p99_ms),
)
_WAITS = {"stream": _FIRST_BYTE, "paced": _EVENT, "agent": (*_FIRST_BYTE, *_EVENT)}


def _columns(mode: str, settings: Sequence[Setting]) -> Iterator[_Column]:
    """Yield the columns of a mode: rates, added waiting times, and processor time."""
    for it in settings:
        yield _Column(f"answers/s at {it.connections}", it, lambda each: each.rate_per_s)
    for name, value in _WAITS.get(mode, _ANSWER):
        for it in settings:
            yield _Column(f"added {name} at {it.connections}, ms", it, value, is_added=True)
    for it in settings:
        if it.connections == FEW:
            yield _Column(f"CPU at {FEW}, ms an answer", it, lambda each: each.cpu_ms)


def _fairness(setting: Setting) -> Iterator[_Column]:
    """Yield columns that show whether some connections wait longer than others."""
    at = f"at {setting.connections}"
    yield _Column(f"P99 / P50 {at}", setting, lambda it: it.p99_ms / it.p50_ms)
    yield _Column(f"first answer P50 {at}, ms", setting, lambda it: it.first_answer_p50_ms)
    yield _Column(f"first answer max {at}, ms", setting, lambda it: it.first_answer_max_ms)
    yield _Column(f"fewest answers {at}", setting, lambda it: it.fewest_answers)
    yield _Column(f"mean answers {at}", setting, lambda it: it.mean_answers)
    yield _Column(f"most answers {at}", setting, lambda it: it.most_answers)


def _rows(columns: Sequence[_Column], rounds: Rounds) -> Mapping[str, Sequence[str]]:
    """Return the cells of each contender."""
    names = next(iter(rounds.values()))
    return {name: [_cell(column, name, rounds) for column in columns] for name in names}


def _cell(column: _Column, name: str, rounds: Rounds) -> str:
    """Return a contender's figure; for the upstream itself, nothing is subtracted."""
    by_name = rounds[column.setting]
    values = [column.value(it) for it in by_name[name]]
    if column.is_added and name != DIRECT:
        own = [column.value(it) for it in by_name[DIRECT]]
        values = [value - less for value, less in zip(values, own, strict=True)]
    return spread(values)


def spread(values: Sequence[float]) -> str:
    """Return the median, and the least and the greatest value in parentheses."""
    middle = _number(statistics.median(values))
    if len(values) == 1:
        return middle
    return f"{middle} ({_number(min(values))} to {_number(max(values))})"


def _number(value: float) -> str:
    """Format a number with three significant digits, or as an integer from 100 on."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}".rstrip(".")


def markdown(name: str, titles: Sequence[str], rows: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table; `name` is the title of the first column."""
    yield ""
    yield f"| {' | '.join([name, *titles])} |"
    yield f"|---|{'---:|' * len(titles)}"
    for row, cells in rows.items():
        yield f"| {' | '.join([row, *cells])} |"


def _percentiles_ms(seconds: Sequence[float]) -> tuple[float, float]:
    p50, p99 = np.percentile(seconds, (50, 99)) * 1e3 if seconds else (np.nan, np.nan)
    return float(p50), float(p99)
