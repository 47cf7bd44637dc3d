"""The admin API's report of usage over HTTP, and what requests count towards it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from router_service.core.keys import new_key
from router_service.policies.costs import Price
from router_service.serving.app import create_app
from router_service.settings import DatabaseSettings, KeySettings, Settings
from tests.bodies import BODY, CHAT
from tests.fakes import FakeRouter
from tests.serving import Sandbox, served, wait_for

ADMIN, ANNA, FORMULA = new_key(), new_key(), new_key()
KEYS = KeySettings(
    api={"anna": SecretStr(ANNA), '=1+1,"x"': SecretStr(FORMULA)}, admin=SecretStr(ADMIN)
)
PRICE = Price(input_usd_per_mtok=1, output_usd_per_mtok=2)


def settings_of(sandbox: Sandbox, path: Path) -> Settings:
    """Return settings with two client keys and a database in this file."""
    settings = Settings.sandbox(sandbox.base_url, list(FakeRouter().probabilities))
    models = tuple(model.model_copy(update={"price": PRICE}) for model in settings.models)
    database = DatabaseSettings(url=SecretStr(f"sqlite:///{path}"))
    return settings.model_copy(update={"models": models, "keys": KEYS, "database": database})


@pytest.fixture(scope="module")
def busy(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serve a gateway that has answered two requests of Anna and one with the other key."""
    path = tmp_path_factory.mktemp("usage") / "switchcraft.db"
    with served(create_app(settings_of(sandbox, path), FakeRouter())) as url:
        for key in (ANNA, ANNA, FORMULA):
            httpx.post(url + CHAT, json=BODY, headers={"x-api-key": key}).raise_for_status()
        wait_for(lambda: total(url) == 3, "all are written")
        yield url


def get(
    url: str, caller: str = ADMIN, accept: str = "*/*", **query: str | int | list[str]
) -> httpx.Response:
    """Return the answer of the admin API."""
    headers = {"x-api-key": caller, "accept": accept}
    return httpx.get(f"{url}/admin/usage", headers=headers, params=query)


def total(url: str) -> int:
    """Return the number of requests in the report by day."""
    return sum(row["requests"] for row in get(url).json()["rows"])


def test_report_has_the_groups_that_were_asked_for(busy: str) -> None:
    """By default, it has the days of this month."""
    today = datetime.now(UTC).date().isoformat()
    [row] = get(busy).json()["rows"]
    assert (row["day"], row["requests"], row["errors"], row["candidates"]) == (today, 3, 0, 3)
    assert row.keys().isdisjoint({"model", "policy", "key", "team"})
    assert 0 < row["cost_usd"] < row["prompt_tokens"] * 1e-6 + row["completion_tokens"] * 3e-6
    rows = get(busy, by=["key", "team", "model"]).json()["rows"]
    assert {(row["key"], row["team"], row["requests"]) for row in rows} == {
        ('=1+1,"x"', None, 1),
        ("anna", None, 2),
    }
    assert get(busy, key="anna").json()["rows"][0]["requests"] == 2
    assert get(busy, **{"from": "2020-01-01", "to": "2020-12-31"}).json() == {
        "rows": [],
        "next": None,
    }


def test_report_has_pages(busy: str) -> None:
    """`next` continues the report, and only the same one."""
    first = get(busy, by="key", limit=1).json()
    second = get(busy, by="key", limit=1, after=first["next"]).json()
    names = [row["key"] for page in (first, second) for row in page["rows"]]
    assert (names, second["next"]) == (['=1+1,"x"', "anna"], None)
    for after in ("x", first["next"], "W10=", "bnVsbA=="):
        refused = get(busy, by="day", after=after)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "after")


@pytest.mark.parametrize("query", [{"format": "csv"}, {"accept": "text/csv"}])
def test_report_as_csv(busy: str, query: dict[str, str]) -> None:
    """The file has one line for each row, and the formula is text."""
    answer = get(busy, by="key", **query)
    assert answer.headers["content-type"].startswith("text/csv")
    assert "attachment" in answer.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(answer.text, newline="")))
    assert [row["key"] for row in rows] == ['\'=1+1,"x"', "anna"]
    assert [row["requests"] for row in rows] == ["1", "2"]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"by": "owner"}, "by"),
        ({"from": "yesterday"}, "from"),
        ({"from": "2026-02-02", "to": "2026-02-01"}, "from"),
        ({"limit": "0"}, "limit"),
        ({"key": "x" * 201}, "key"),
    ],
)
def test_invalid_parameter_is_named(busy: str, query: dict[str, str], param: str) -> None:
    """The error says which one it is."""
    answer = get(busy, **query)
    assert answer.status_code in {400, 422}
    assert param in answer.text
