"""The dashboard of cost by key: its queries, in a real PostgreSQL, with the documented rights."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy import create_engine, insert

from router_service.database import schema
from tests.deploy.dashboards import FOLDER, panels
from tests.postgresql import PostgreSQLServer

ROOT = Path(__file__).parents[2]
NUSD = 10**9
DAY_S = 24 * 3600
PANELS = {
    panel["title"]: panel
    for panel in panels((FOLDER / "postgresql" / "spend.json").read_text())
    if panel["type"] != "row"
}


def midnight(days_ago: int = 0) -> datetime:
    """Return the start of a day in UTC."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return today - timedelta(days=days_ago)


def use(scope: str, days_ago: int, model: str, usd: float) -> dict[str, Any]:
    """Return a day's sums of a scope: ten requests, a tenth of whose prompts are cached."""
    sums = dict.fromkeys(schema.usage.columns.keys(), 0)
    sums |= {"requests": 10, "cost_nusd": int(usd * NUSD), "compared_nusd": int(usd * NUSD)}
    sums |= {"baseline_nusd": int(4 * usd * NUSD), "prompt_tokens": 1000, "cached_tokens": 100}
    start_s = int(midnight(days_ago).timestamp())
    group = {"scope": scope, "step_s": DAY_S, "start_s": start_s, "model": model, "policy": "fast"}
    return sums | group


def account(name: str, **values: object) -> dict[str, object]:
    """Return the row of a team."""
    row = {"name": name, "search": name, "metadata": {}, "created_s": 0.0, "revision": 1}
    return row | values


@pytest.fixture(scope="module")
def grafana(postgresql: PostgreSQLServer) -> Iterator[psycopg.Connection]:
    """Fill a database, create Grafana's user as the page says, and connect with it."""
    url = postgresql.create()
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    budget = {"budget_nusd": 20 * NUSD, "budget_period": "month"}
    key = {"digest": "0" * 64, "hint": "0000", "is_admin": False}
    spent = {"period": "month", "spent_nusd": 5 * NUSD, "wanted_until_s": 0.0}
    month_s = int(midnight().replace(day=1).timestamp())
    scopes = (("key:anna", 3.0), ("key:bert", 1.0), ("team:blue", 3.0), ("", 4.0))
    rows = [
        use(scope, days_ago, model, usd)
        for scope, usd in scopes
        for days_ago in (0, 1)
        for model in ("small", "large")
    ]
    with engine.begin() as connection:
        schema.metadata.create_all(connection)
        connection.execute(insert(schema.teams), [account("blue")])
        anna = account("anna", team="blue", owner="Anna", **budget, **key)
        connection.execute(insert(schema.keys), [anna])
        bert = account("bert", digest="1" * 64, hint="1111", is_admin=False)
        connection.execute(insert(schema.keys), [bert])
        connection.execute(insert(schema.usage), rows)
        spending = {"subject": "key:anna", "start_s": month_s, **spent}
        connection.execute(insert(schema.spending), [spending])
    engine.dispose()
    page = (ROOT / "docs" / "operations.md").read_text()
    (rights,) = re.findall(r"```sql\n(CREATE ROLE grafana.*?)```", page, re.DOTALL)
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(rights.encode())
        try:
            with psycopg.connect(url, user="grafana", password="PASSWORD") as reader:
                reader.autocommit = True
                yield reader
        finally:
            owner.execute("DROP OWNED BY grafana")
            owner.execute("DROP ROLE grafana")


def show(grafana: psycopg.Connection, title: str) -> list[dict[str, Any]]:
    """Return the rows that a panel shows for the last week, with Grafana's macros replaced."""
    (target,) = PANELS[title]["targets"]
    text = target["rawSql"]
    text = text.replace("$__unixEpochFrom()", str(int(midnight(7).timestamp())))
    text = text.replace("$__unixEpochTo()", str(int(midnight(-1).timestamp())))
    assert "$" not in text
    with grafana.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(text.encode()).fetchall()


def only(rows: list[dict[str, Any]]) -> float:
    """Return the number that a panel shows."""
    (row,) = rows
    (value,) = row.values()
    return float(value)


@pytest.mark.parametrize("title", PANELS)
def test_panel_shows_something(grafana: psycopg.Connection, title: str) -> None:
    """PostgreSQL answers each query with rows, for a user with the documented rights."""
    rows = show(grafana, title)
    assert rows
    if PANELS[title]["targets"][0]["format"] == "time_series":
        assert rows[0].keys() == {"time", "metric", "value"}
        assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)
    named = {part["matcher"]["options"] for part in PANELS[title]["fieldConfig"]["overrides"]}
    money = {name for row in rows for name in row if name in named}
    assert PANELS[title]["type"] != "table" or money, "money has a unit"


def test_figures_are_those_of_the_database(grafana: psycopg.Connection) -> None:
    """Sums, shares, budgets and the keys that spent most are right."""
    assert only(show(grafana, "Spent")) == pytest.approx(16)
    assert only(show(grafana, "Saved")) == pytest.approx(48)
    assert only(show(grafana, "Saved, share of the baseline")) == pytest.approx(0.75)
    assert only(show(grafana, "Cached prompt tokens")) == pytest.approx(0.1)
    first, second = show(grafana, "Keys that spent most")
    assert (first["key"], first["team"], first["owner"]) == ("anna", "blue", "Anna")
    assert first["requests"] == 40
    assert float(first["cost"]) == pytest.approx(12)
    assert float(first["cost of 1,000"]) == pytest.approx(300)
    assert second["key"] == "bert"
    assert float(second["cost"]) == pytest.approx(4)
    (budget,) = show(grafana, "Budgets")
    assert (budget["kind"], budget["name"], budget["period"]) == ("key", "anna", "month")
    assert float(budget["used"]) == pytest.approx(0.25)
    assert float(budget["forecast"]) >= float(budget["spent"]) == pytest.approx(5)
