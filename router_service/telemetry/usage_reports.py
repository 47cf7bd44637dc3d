"""Reads usage: sums by time and name for the page, and rows for the admin API and for exports."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    func,
    literal,
    select,
)

from router_service.access.key import BudgetPeriod
from router_service.core.errors import InvalidRequestError
from router_service.core.text import aligned, printable
from router_service.database.engine import Database
from router_service.database.schema import USAGE_SUMS, UsageSums, keys, latencies, spending, usage
from router_service.telemetry.sinks import clean
from router_service.telemetry.usage import ALL, DAY_S, SPENDING_PERIODS, UsageFilter
from router_service.telemetry.usage_figures import UsageFigures

MAX_BIGGEST = 50
"""Number of keys, and of teams, that the page lists: those that have spent most."""

SCANNED_ROWS = 20_000
"""Number of stored rows of keys that a report adds up at once, so that it does not hold up the
database's writers."""

_CSV_NAMES = {
    "correct_ppm": "expected_correct",
    "baseline_correct_ppm": "baseline_expected_correct",
    "variance_ppm": "expectation_variance",
    "error_ppm": "expectation_error",
}
"""Columns of CSV files with sums of probabilities."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""What a cell begins with that spreadsheets run as a formula (OWASP, "CSV Injection")."""


GroupBy = Literal["start_s", "model", "policy", "scope"]


def read_sums(
    connection: Connection,
    step_s: int,
    since_s: float,
    by: GroupBy,
    wanted: UsageFilter,
    scopes: Sequence[str] | None = None,
) -> dict[Any, UsageSums]:
    """Return sums over the requests since a Unix time, in groups.

    `scopes` replaces the key and the team of the filter.
    """
    found = _read_groups(connection, step_s, since_s, [by], wanted, scopes)
    return {name: sums for (name,), sums in found.items()}


def read_models_and_policies(
    connection: Connection, step_s: int, since_s: float, wanted: UsageFilter
) -> tuple[dict[str, UsageSums], dict[str, UsageSums]]:
    """Return the sums of each model and of each policy since a Unix time.

    The filter's model selects policies only, and its policy selects models only. Both are read at
    once, because a histogram of latencies takes longest.
    """
    every = wanted.model_copy(update={"model": None, "policy": None})
    read = _read_groups(connection, step_s, since_s, ["model", "policy"], every)
    model_wanted, policy_wanted = (
        None if name is None else clean(name) for name in (wanted.model, wanted.policy)
    )
    models: dict[str, UsageSums] = {}
    policies: dict[str, UsageSums] = {}
    for (model, policy), sums in read.items():
        if policy_wanted in {None, policy}:
            models.setdefault(model, UsageSums()).add(sums)
        if model_wanted in {None, model}:
            policies.setdefault(policy, UsageSums()).add(sums)
    return models, policies


def _read_groups(
    connection: Connection,
    step_s: int,
    since_s: float,
    by: Sequence[GroupBy],
    wanted: UsageFilter,
    scopes: Sequence[str] | None = None,
) -> dict[tuple[Any, ...], UsageSums]:
    """Return sums over the requests since a Unix time, by the values of several columns."""
    scopes = [wanted.scope] if scopes is None else scopes

    def conditions(table: Table) -> list[ColumnElement[bool]]:
        found = [
            table.c.scope.in_(scopes),
            table.c.step_s == step_s,
            table.c.start_s >= int(since_s),
        ]
        if wanted.model is not None:
            found.append(table.c.model == clean(wanted.model))
        if wanted.policy is not None:
            found.append(table.c.policy == clean(wanted.policy))
        return found

    group = [usage.c[name] for name in by]
    query = select(*group, *_sums()).where(*conditions(usage)).group_by(*group)
    found = {tuple(row[: len(by)]): _to_sums(row[len(by) :]) for row in connection.execute(query)}
    group = [latencies.c[name] for name in (*by, "bin")]
    counted = select(*group, func.sum(latencies.c.requests))
    counted = counted.where(*conditions(latencies)).group_by(*group)
    for *names, index, requests in connection.execute(counted):
        sums = found.get(tuple(names))
        if sums is not None:
            sums.latencies[index] = int(requests)
    return found


def read_biggest(
    connection: Connection,
    kind: Literal["key", "team"],
    step_s: int,
    since_s: float,
    now_s: float,
    wanted: UsageFilter,
) -> dict[str, UsageSums]:
    """Return the sums of the keys or teams that have spent most, by name, the most expensive first.

    The filter's team selects keys that are in this team now. So that this is fast with many keys,
    they are chosen by what they have spent with all models and policies, in the days or months
    that the time is part of. The filter's own key and team are always among them.
    """
    period = BudgetPeriod.MONTH if step_s == DAY_S else BudgetPeriod.DAY
    times_s = (since_s, (since_s + now_s) / 2, now_s)  # thirty days may touch three months
    starts = {period.bounds_s(time_s)[0] for time_s in times_s}
    scopes: dict[str, None] = {}
    chosen = wanted.key if kind == "key" else wanted.team
    if chosen is not None:
        scopes[f"{kind}:{clean(chosen)}"] = None
    for start_s in starts:
        query = (
            select(spending.c.subject)
            .where(
                spending.c.period == SPENDING_PERIODS[period],
                spending.c.start_s == start_s,
                *_scopes_of(spending.c.subject, kind),
            )
            .order_by(spending.c.spent_nusd.desc())
            .limit(MAX_BIGGEST)
        )
        if kind == "key" and wanted.team is not None:
            query = query.join_from(
                keys, spending, spending.c.subject == literal("key:").concat(keys.c.name)
            ).where(keys.c.team == clean(wanted.team))
        scopes |= dict.fromkeys(connection.execute(query).scalars())
    found = read_sums(connection, step_s, since_s, "scope", wanted, list(scopes))
    largest = sorted(found.items(), key=lambda item: (-item[1].cost_nusd, -item[1].requests))
    return {scope.partition(":")[2]: sums for scope, sums in largest[:MAX_BIGGEST]}


class UsageGroup(StrEnum):
    """What the rows of a report are for."""

    DAY = "day"
    MODEL = "model"
    POLICY = "policy"
    KEY = "key"
    TEAM = "team"


@dataclass(frozen=True, slots=True)
class UsageQuery:
    """A report: usage by day, model, policy, key or team."""

    first: date
    last: date
    """The last day that counts; days begin at 0:00 UTC."""
    by: tuple[UsageGroup, ...] = (UsageGroup.DAY,)
    key: str | None = None
    team: str | None = None
    """With a key, or by key: only keys that are in this team now."""

    @classmethod
    def of(
        cls,
        first: date | None,
        last: date | None,
        by: Iterable[UsageGroup],
        key: str | None,
        team: str | None,
    ) -> UsageQuery:
        """Return a query up to today, and from the first of the month, unless other days are given.

        Raises InvalidRequestError if the first day is after the last one.
        """
        last = last or datetime.now(UTC).date()
        first = first or last.replace(day=1)
        if first > last:
            raise InvalidRequestError(
                f"The first day, {first}, is after the last one, {last}. Exchange 'from' and 'to'.",
                param="from",
                code="invalid_value",
            )
        return cls(first, last, tuple(dict.fromkeys(by)), key, team)

    @property
    def kind(self) -> Literal["key", "team"] | None:
        """Whose sums are read; None for those of all requests together."""
        if UsageGroup.KEY in self.by or self.key is not None:
            return "key"
        return "team" if UsageGroup.TEAM in self.by or self.team is not None else None

    @property
    def columns(self) -> list[ColumnElement[Any]]:
        """The columns of `usage` that the report groups by, which it is also sorted by."""
        named = {
            UsageGroup.DAY: usage.c.start_s,
            UsageGroup.MODEL: usage.c.model,
            UsageGroup.POLICY: usage.c.policy,
        }
        has_scope = UsageGroup.KEY in self.by or UsageGroup.TEAM in self.by
        found: list[ColumnElement[Any]] = [usage.c.scope] if has_scope else []
        return found + [named[group] for group in self.by if group in named]

    def is_in_scope(self, after: str | None = None, last: str | None = None) -> ColumnElement[bool]:
        """Return the condition for the scopes whose rows are added up, which may be a part.

        The part follows the scope `after` and ends with `last`. SQLite finds rows by one lower and
        one upper bound only.
        """
        scope = usage.c.scope
        if self.kind is None:
            return scope == ALL
        if self.kind == "team" and self.team is not None:
            return scope == f"team:{clean(self.team)}"
        lower, upper = _scopes_of(scope, self.kind)
        if after is not None:
            lower = scope > after
        found = lower & (upper if last is None else scope <= last)
        if self.key is not None:
            found &= scope == f"key:{clean(self.key)}"
        if self.team is not None:
            members = select(literal("key:").concat(keys.c.name))
            found &= scope.in_(members.where(keys.c.team == clean(self.team)))
        return found

    def is_in_time(self) -> ColumnElement[bool]:
        """Return the condition for the days whose rows are added up."""
        first_s, last_s = _midnight(self.first), _midnight(self.last)
        # Plus zero, so that databases find rows by their scope first, and not by their time: a day
        # has rows of all keys.
        return (usage.c.step_s + 0 == DAY_S) & usage.c.start_s.between(first_s, last_s)


@dataclass(frozen=True, slots=True)
class UsageRow:
    """A row of a report."""

    groups: Mapping[UsageGroup, str | None]
    """What the row is for. A key is None for requests without a key, and a team if the key has
    none."""
    sums: UsageSums
    """Without latencies."""


def read_rows(database: Database, query: UsageQuery) -> Iterator[UsageRow]:
    """Yield the rows of a report; raises DatabaseError.

    Some scopes at a time are read on their own, so that a slow reader holds nothing up.
    """
    columns, scope = query.columns, usage.c.scope
    has_scopes = columns[0] is scope
    read: str | None = None
    """The last scope that was read."""
    while True:
        last: str | None = None
        with database.read() as connection:
            if has_scopes:
                bound = select(scope).where(query.is_in_scope(read)).order_by(scope)
                last = connection.execute(bound.offset(SCANNED_ROWS).limit(1)).scalar()
            is_wanted = query.is_in_scope(read, last) & query.is_in_time()
            selected = select(*columns, *_sums()).where(is_wanted)
            rows = connection.execute(selected.group_by(*columns).order_by(*columns)).all()
            teams: dict[str, str | None] = {}
            if query.kind == "key" and has_scopes:  # keys of the configuration are in no team
                names = {row[0].partition(":")[2] for row in rows}
                members = select(keys.c.name, keys.c.team).where(keys.c.name.in_(names))
                teams = {row.name: row.team for row in connection.execute(members)}
        for row in rows:
            yield _to_row(query, row, teams)
        if last is None:
            return
        read = last


def write_csv(rows: Iterable[UsageRow], by: Sequence[UsageGroup]) -> Iterator[str]:
    """Yield the lines of a CSV file (RFC 4180), whose names no spreadsheet runs as formulas."""
    text = io.StringIO()
    writer = csv.writer(text)

    def line(values: Iterable[object]) -> str:
        text.seek(0)
        text.truncate()
        writer.writerow(values)
        return text.getvalue()

    heads = (_CSV_NAMES.get(name, name.replace("_nusd", "_usd")) for name in USAGE_SUMS)
    yield line([*by, *heads])
    for row in rows:
        names = (_as_text(row.groups[group]) for group in by)
        yield line([*names, *(_number(row.sums, name) for name in USAGE_SUMS)])


def write_table(rows: Iterable[UsageRow], by: Sequence[UsageGroup]) -> Iterator[str]:
    """Yield the lines of a table for people, with the most important numbers and their total."""
    total = UsageSums()
    head: tuple[str, ...] = (
        *by,
        "requests",
        "errors",
        "prompt tokens",
        "completion tokens",
        "cost USD",
        "saved USD",
        "accuracy",
    )
    lines = [head]
    for row in rows:
        total.add(row.sums)
        lines.append((*(printable(row.groups[group] or "-") for group in by), *_figures(row.sums)))
    lines.append(("total", *[""] * (len(by) - 1), *_figures(total)))
    for line in aligned(lines, left=len(by)):
        yield f"{line}\n"


def _figures(sums: UsageSums) -> tuple[str, ...]:
    figures = UsageFigures.of(sums)
    accuracy = figures.relative_accuracy
    return (
        f"{figures.requests}",
        f"{figures.errors}",
        f"{figures.prompt_tokens}",
        f"{figures.completion_tokens}",
        f"{figures.cost_usd:.4f}",
        f"{figures.baseline_usd - figures.compared_usd:.4f}",
        "-" if accuracy is None else f"{accuracy:.1%}",
    )


def _as_text(name: str | None) -> str:
    """Return a cell that spreadsheets show as text."""
    if name is None:
        return ""
    return f"'{name}" if name.startswith(_FORMULA) else name


def _number(sums: UsageSums, name: str) -> str:
    """Return a sum as text, with all of its digits; money is in USD."""
    value: int = getattr(sums, name)
    digits = {"nusd": 9, "ppm": 6}.get(name.rpartition("_")[2])
    return str(value) if digits is None else f"{Decimal(value).scaleb(-digits):f}"


def _to_row(query: UsageQuery, row: Sequence[Any], teams: Mapping[str, str | None]) -> UsageRow:
    columns = query.columns
    values = {column.key: value for column, value in zip(columns, row, strict=False)}
    name = values.get("scope", "").partition(":")[2]
    groups: dict[UsageGroup, str | None] = {}
    for group in query.by:
        match group:
            case UsageGroup.DAY:
                groups[group] = datetime.fromtimestamp(values["start_s"], UTC).date().isoformat()
            case UsageGroup.KEY:
                groups[group] = name or None
            case UsageGroup.TEAM:
                groups[group] = name if query.kind == "team" else teams.get(name)
            case _:
                groups[group] = values[group]
    return UsageRow(groups, _to_sums(row[len(columns) :]))


def _scopes_of(
    scope: ColumnElement[str], kind: str
) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """Return the lower and the upper bound of the scopes of keys or teams."""
    return scope >= f"{kind}:", scope < f"{kind};"  # the character after the colon


def _sums() -> list[ColumnElement[Any]]:
    return [func.sum(usage.c[name]) for name in USAGE_SUMS]


def _to_sums(values: Iterable[Any]) -> UsageSums:
    sums = UsageSums()
    for name, value in zip(USAGE_SUMS, values, strict=True):
        setattr(sums, name, int(value))  # PostgreSQL's sums of 64-bit numbers are decimals
    return sums


def _midnight(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
