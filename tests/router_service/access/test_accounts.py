"""Keys and teams are created, found, changed, rotated and revoked, in SQLite and PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import SecretStr, ValidationError
from sqlalchemy import insert, select

from router_service.access.accounts import Accounts
from router_service.access.key import Budget, BudgetPeriod, Key, Limits, Permission
from router_service.access.keyring import KeyRing, StoredKeys
from router_service.access.specs import KeyChange, KeyStatus, NewKey, NewTeam
from router_service.core.errors import (
    InvalidRequestError,
    SwitchcraftError,
)
from router_service.core.keys import hashed, new_key
from router_service.core.money import NANO
from router_service.database.engine import Database
from router_service.database.schema import USAGE_MONTH, keys, spending, state
from router_service.settings import KeySettings
from tests.clock import Clock

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)  # a Monday, in the middle of a month
ADMINISTERED = KeySettings(
    api={"configured": SecretStr(hashed(new_key()))}, admin=SecretStr(hashed(new_key()))
)
TIME_OF_HALF = timedelta(days=15, hours=12)
"""From the start of the month to `NOW`."""


@pytest.fixture
def clock() -> Clock:
    """Return a clock that stands at `NOW`."""
    return Clock(NOW.timestamp())


@pytest.fixture
def accounts(database: Database, clock: Clock) -> Accounts:
    """Return the accounts of an empty database; the configuration has an admin key."""
    return Accounts(database, ADMINISTERED, clock)


class Reader:
    """Another process, which knows only what it has read of the database."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._stored = StoredKeys(clock)
        self._ring = KeyRing([], self._stored)

    def find(self, secret: str, permission: Permission = Permission.CALL) -> Key | None:
        """Read what has changed, and look for a key."""
        self._stored.refresh(self._database)
        return self._ring.find(secret.encode(), permission)


@pytest.fixture
def reader(database: Database, clock: Clock) -> Reader:
    """Return another process."""
    return Reader(database, clock)


def refused(code: str, kind: type[SwitchcraftError], work: Callable[[], object]) -> str:
    """Do something that is refused with this error and code; return the message."""
    with pytest.raises(kind) as caught:
        work()
    assert getattr(caught.value, "code", None) == code
    return str(caught.value)


def spend(database: Database, subject: str, period: str, start: datetime, usd: float) -> None:
    """Write what a key or a team has spent in a period."""
    row = {"subject": subject, "period": period, "start_s": int(start.timestamp())}
    row |= {"spent_nusd": round(usd * NANO), "wanted_until_s": 0}
    with database.write() as connection:
        connection.execute(insert(spending).values(row))


def test_created_key_is_valid_everywhere_with_its_limits(
    accounts: Accounts, reader: Reader
) -> None:
    """A key has the limits, team, models and policies that it was created with."""
    accounts.create_team(NewTeam(name="search", budget=Budget(usd=5), tokens_per_minute=9))
    spec = NewKey(
        name="agent",
        team="search",
        owner="ana@example.com",
        requests_per_minute=60,
        parallel_requests=2,
        budget=Budget(usd=0.1, period=BudgetPeriod.DAY),
        models=("small", "large"),
        policies=("economy", "verified"),
        expires=NOW + timedelta(days=1),
        metadata={"cost centre": "17"},
    )
    created = accounts.create_key(spec)
    assert created.key == accounts.get_key("agent")
    assert created.key.model_dump(include=set(NewKey.model_fields)) == spec.model_dump()
    assert (created.key.status, created.key.created) == ("active", NOW)
    assert created.secret.endswith(created.key.hint)
    found = reader.find(created.secret)
    assert found is not None
    assert found.limits == Limits(60, None, 2, Budget(0.1, BudgetPeriod.DAY))
    assert found.team is not None
    assert found.team.limits == Limits(tokens_per_minute=9, budget=Budget(5, BudgetPeriod.MONTH))
    assert found.models == frozenset({"small", "large"})
    assert found.policies == ("economy", "verified")
    assert reader.find(created.secret, Permission.ADMIN) is None
    assert reader.find(created.secret[:-1]) is None


def test_names_are_taken_for_ever(accounts: Accounts) -> None:
    """A name of the configuration, of another key, and of a revoked key cannot be used."""
    accounts.create_key(NewKey(name="a"))
    accounts.create_team(NewTeam(name="t"))

    def create(name: str) -> str:
        spec = NewKey(name=name)
        return refused("name_taken", InvalidRequestError, lambda: accounts.create_key(spec))

    def create_team(name: str) -> str:
        spec = NewTeam(name=name)
        return refused("name_taken", InvalidRequestError, lambda: accounts.create_team(spec))

    assert "exists already" in create("a")
    accounts.revoke_key("a")
    assert "is revoked, and its name is never used again" in create("a")
    for name in ("configured", "admin", "metrics"):
        assert "belongs to the configuration's keys" in create(name)
    assert "exists already" in create_team("t")
    accounts.delete_team("t")
    assert "is deleted, and its name is never used again" in create_team("t")
    accounts.create_key(NewKey(name="t"))  # keys and teams may have the same names


@pytest.mark.parametrize(
    "name",
    [
        *("sk-1234567890", "eyJhbGciOi", "\ud800"),
    ],
)
def test_unusable_names_are_refused(name: str) -> None:
    """Control characters, long names, dot segments and keys cannot be names."""
    for spec in (NewKey, NewTeam):
        with pytest.raises(ValidationError):
            spec(name=name)


def test_change_has_only_the_fields_that_are_set(accounts: Accounts, reader: Reader) -> None:
    """A field that is absent stays, and null removes it."""
    accounts.create_team(NewTeam(name="t"))
    created = accounts.create_key(
        NewKey(name="a", team="t", owner="ana", tokens_per_minute=5, budget=Budget(usd=1))
    )
    before = created.key
    after = accounts.change_key("a", KeyChange(tokens_per_minute=None, models=("small",)))
    assert after == before.model_copy(update={"tokens_per_minute": None, "models": ("small",)})
    found = reader.find(created.secret)
    assert found is not None
    assert found.limits == Limits(budget=Budget(1, BudgetPeriod.MONTH))
    after = accounts.change_key("a", KeyChange(team=None, budget=None, metadata={"x": "\0y"}))
    assert (after.team, after.budget, after.budget_state) == (None, None, None)
    assert after.metadata == {"x": "\0y"}
    assert after.owner == "ana"


def test_rotation_keeps_the_old_secret_for_the_overlap(
    accounts: Accounts, reader: Reader, clock: Clock
) -> None:
    """The old secret is valid until the overlap ends, and the new one at once."""
    first = accounts.create_key(NewKey(name="a")).secret
    assert reader.find(first) is not None
    rotated = accounts.rotate_key("a", 60)
    assert rotated.key.previous_until == NOW + timedelta(seconds=60)
    assert rotated.secret.endswith(rotated.key.hint)
    assert reader.find(first) is not None
    assert reader.find(first) == reader.find(rotated.secret)
    clock.now_s += 60
    assert reader.find(first) is None
    assert reader.find(rotated.secret) is not None
    assert accounts.get_key("a").previous_until is None


def test_revocation_is_final(accounts: Accounts, reader: Reader) -> None:
    """Both secrets of a revoked key are refused for ever; revoking again changes nothing."""
    secrets = [accounts.create_key(NewKey(name="a")).secret]
    secrets.append(accounts.rotate_key("a", 3600).secret)
    assert all(reader.find(secret) for secret in secrets)
    revoked = accounts.revoke_key("a")
    assert (revoked.status, revoked.revoked, revoked.previous_until) == ("revoked", NOW, None)
    assert not any(reader.find(secret) for secret in secrets)
    assert accounts.revoke_key("a") == revoked
    for work in (
        lambda: accounts.rotate_key("a", 1),
        lambda: accounts.change_key("a", KeyChange(owner="b")),
    ):
        refused("key_revoked", InvalidRequestError, work)
    assert not any(Reader(reader._database, lambda: 0.0).find(secret) for secret in secrets)


def test_team_with_keys_cannot_be_deleted(accounts: Accounts) -> None:
    """A team is deleted once all of its keys are revoked or in other teams."""
    accounts.create_team(NewTeam(name="t"))
    accounts.create_key(NewKey(name="a", team="t"))
    accounts.create_key(NewKey(name="b", team="t"))
    assert accounts.get_team("t").keys == 2

    def delete() -> str:
        return refused("team_has_keys", InvalidRequestError, lambda: accounts.delete_team("t"))

    assert "has 2 keys" in delete()
    accounts.revoke_key("a")
    assert "has 1 key." in delete()
    accounts.change_key("b", KeyChange(team=None))
    accounts.delete_team("t")
    assert accounts.list_teams().teams == ()
    refused("team_not_found", InvalidRequestError, lambda: accounts.get_team("t"))
    spec = NewKey(name="c", team="t")
    refused("team_not_found", InvalidRequestError, lambda: accounts.create_key(spec))
    assert accounts.get_key("a").team == "t"


def test_keys_are_listed_in_pages(accounts: Accounts, clock: Clock) -> None:
    """Pages have all keys once in one order, filtered by text, team and status."""
    accounts.create_team(NewTeam(name="t"))
    for number in range(25):
        team = "t" if number % 2 else None
        expires = NOW + timedelta(hours=1) if number % 5 == 0 else None
        spec = NewKey(name=f"Key-{number:02}", team=team, expires=expires, owner=f"o{number}")
        accounts.create_key(spec)
    accounts.revoke_key("Key-01")
    clock.now_s += 2 * 3600
    names, after, pages = [], None, 0
    while pages == 0 or after is not None:
        page = accounts.list_keys(limit=10, after=after)
        assert page.total == 25
        names += [key.name for key in page.keys]
        after, pages = page.next, pages + 1
    assert (pages, names) == (3, [f"Key-{number:02}" for number in range(25)])
    assert accounts.list_keys(limit=25).next is None

    def total(
        search: str | None = None, team: str | None = None, status: KeyStatus | None = None
    ) -> int:
        return accounts.list_keys(search, team, status, limit=1).total

    assert (total(search="key-2"), total(search="O2"), total(search="%")) == (5, 6, 0)
    assert (total(team="t"), total(team="t", status="revoked"), total(team="x")) == (12, 1, 0)
    statuses = total(status="active"), total(status="expired"), total(status="revoked")
    assert statuses == (19, 5, 1)


def test_view_has_what_was_spent_and_when_the_budget_ends(
    accounts: Accounts, database: Database
) -> None:
    """The forecast goes on at the pace of the period; a budget that lasts has none."""
    month = NOW.replace(day=1, hour=0)
    accounts.create_team(NewTeam(name="t", budget=Budget(usd=100)))
    accounts.create_key(NewKey(name="a", team="t", budget=Budget(usd=15)))
    spend(database, "key:a", USAGE_MONTH, month, 10.5)
    spend(database, "key:a", "month", month, 10)
    spend(database, "key:a", "month", month - timedelta(days=31), 1000)
    spend(database, "key:a", "day", month, 1000)
    spend(database, "team:t", "month", month, 40)
    spend(database, "team:t", USAGE_MONTH, month, 40)
    key = accounts.get_key("a")
    assert key.spent_month_usd == 10.5
    assert key.budget_state is not None
    assert key.budget_state.spent_usd == 10
    assert key.budget_state.starts == month
    assert key.budget_state.resets == datetime(2026, 12, 1, tzinfo=UTC)
    assert key.budget_state.ends_by == NOW + TIME_OF_HALF / 2
    assert key.team_budget_state is not None
    assert (key.team_budget_state.spent_usd, key.team_budget_state.ends_by) == (40, None)
    team = accounts.get_team("t")
    assert (team.budget_state, team.spent_month_usd) == (key.team_budget_state, 40)
    accounts.change_key("a", KeyChange(budget=Budget(usd=9)))
    spent = accounts.get_key("a").budget_state
    assert spent is not None
    assert spent.ends_by == NOW
    unused = accounts.change_key("a", KeyChange(budget=Budget(usd=0, period=BudgetPeriod.WEEK)))
    assert unused.budget_state is not None
    assert (unused.budget_state.spent_usd, unused.budget_state.ends_by) == (0, NOW)


def test_every_change_has_a_number_of_its_own(accounts: Accounts, database: Database) -> None:
    """Changes that are made at the same time get different numbers, by which others find them."""
    accounts.create_team(NewTeam(name="t"))

    def create(first: int) -> None:
        for number in range(first, first + 5):
            accounts.create_key(NewKey(name=f"k{number}", team="t"))

    threads = [threading.Thread(target=create, args=(first,)) for first in range(0, 20, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.read() as connection:
        found = [row[0] for row in connection.execute(select(keys.c.revision))]
        last = connection.execute(select(state.c.value)).scalar_one()
    assert sorted(found) == list(range(2, 22))
    assert last == 21
