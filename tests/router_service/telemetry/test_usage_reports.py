"""Reports of usage: which rows they have, and how they are written."""

from __future__ import annotations

import csv
import io
import itertools
import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import partial

import pytest
from sqlalchemy import insert

from router_service.core.record import AnswerResult
from router_service.database.engine import Database
from router_service.database.schema import keys, teams
from router_service.settings import DatabaseSettings, UsageSettings
from router_service.telemetry.usage import DAY_S, UsageHistory
from router_service.telemetry.usage_reports import (
    UsageGroup,
    UsageQuery,
    read_rows,
    write_csv,
    write_table,
)
from tests.records import make_record

FIRST, LAST = date(2026, 10, 30), date(2026, 11, 2)
NAMES = ("anna", "Zoë", "a key: with; punctuation", "=HYPERLINK(1)", '"quoted", and more', "")
EVERY = tuple(UsageGroup)
GROUPINGS = [groups for size in range(1, 6) for groups in itertools.combinations(UsageGroup, size)]


@pytest.fixture
def counted(database: Database) -> Counter[tuple[str, ...]]:
    """Write requests on four days, and return their numbers by day, model, policy, key, team."""
    with database.write() as connection:
        common = {"metadata": {}, "created_s": 0.0, "revision": 1}
        connection.execute(insert(teams), [{"name": name, **common} for name in ("blue", "red")])
        for index, name in enumerate(NAMES[:4]):
            row = {"name": name, "digest": f"{index}", "hint": "", "is_admin": False, **common}
            connection.execute(insert(keys), row | {"team": ("blue", "red")[index % 2]})
    rng, counted = random.Random(3), Counter[tuple[str, ...]]()
    for day in range(4):
        start_s = int(datetime(FIRST.year, FIRST.month, FIRST.day, tzinfo=UTC).timestamp())
        now_s = start_s + day * DAY_S + rng.randrange(DAY_S)
        history = UsageHistory(UsageSettings(), DatabaseSettings(), partial(float, now_s))
        for _ in range(60):
            number = rng.randrange(len(NAMES))
            team = ("blue", "red")[number % 2] if number < 4 else None
            model, policy = rng.choice("mno"), rng.choice(("theta=0.5", "none"))
            record = make_record(
                created=now_s,
                key=NAMES[number] or None,
                team=team,
                model=model,
                policy=None if policy == "none" else policy,
                actual_cost_usd=0.25,
                answers=(AnswerResult(model, 1, prompt_tokens=10, completion_tokens=5),),
            )
            history.add([record])
            day_text = datetime.fromtimestamp(now_s, UTC).date().isoformat()
            counted[day_text, model, policy, NAMES[number] or "-", team or "-"] += 1
        history.write(database)
    return counted


def report(database: Database, query: UsageQuery) -> list[tuple[tuple[str, ...], int]]:
    """Return the groups of a report, and their numbers of requests."""
    return [
        (tuple(row.groups[group] or "-" for group in query.by), row.sums.requests)
        for row in read_rows(database, query)
    ]


def expected(counted: Counter[tuple[str, ...]], query: UsageQuery) -> Counter[tuple[str, ...]]:
    """Return the numbers of requests by group, from those of single requests."""
    found = Counter[tuple[str, ...]]()
    for values, requests in counted.items():
        row: dict[str, str] = dict(zip(EVERY, values, strict=True))
        is_in_time = query.first.isoformat() <= row[UsageGroup.DAY] <= query.last.isoformat()
        is_asked = query.key in {None, row["key"]} and query.team in {None, row["team"]}
        if is_in_time and is_asked:
            found[tuple(row[group] for group in query.by)] += requests
    return found


def test_every_grouping_adds_up(database: Database, counted: Counter[tuple[str, ...]]) -> None:
    """Each grouping, with and without filters, has the sums of the requests in it."""
    for by in GROUPINGS:
        every = UsageQuery(FIRST, LAST, by)
        for query in (
            every,
            replace(every, first=date(2026, 10, 31), last=date(2026, 11, 1)),
            replace(every, key="anna"),
            replace(every, team="red"),
            replace(every, key="anna", team="blue"),
            replace(every, key="anna", team="red"),
        ):
            found, wanted = report(database, query), expected(counted, query)
            if UsageGroup.TEAM in by and query.kind == "team":
                wanted = Counter(
                    {
                        group: n
                        for group, n in wanted.items()
                        if group[by.index(UsageGroup.TEAM)] != "-"
                    }
                )
            assert Counter(dict(found)) == wanted, query
            assert len(found) == len(wanted), query


def test_csv_can_be_read_by_spreadsheets(
    database: Database, counted: Counter[tuple[str, ...]]
) -> None:
    """Names keep their punctuation, no cell begins like a formula, and money has all digits."""
    query = UsageQuery(FIRST, LAST, (UsageGroup.KEY,))
    text = "".join(write_csv(read_rows(database, query), query.by))
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [row["key"].removeprefix("'") for row in rows] == sorted(NAMES)
    assert all(not cell.startswith(("=", "+", "-", "@")) for row in rows for cell in row.values())
    assert sum(int(row["requests"]) for row in rows) == counted.total()
    assert {row["cost_usd"] for row in rows if row["requests"] == "1"} <= {"0.250000000"}
    table = list(write_table(read_rows(database, query), query.by))
    assert table[-1].split()[:2] == ["total", str(counted.total())]
