"""Migrations: what they create, and what stays if one fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, inspect, select, text
from sqlalchemy.exc import IntegrityError

from router_service.access.accounts import Accounts
from router_service.access.keyring import StoredKeys
from router_service.core.errors import DatabaseError
from router_service.database.engine import Database
from router_service.database.migrating import migrate, revision_of
from router_service.database.schema import USAGE_SUMS, keys, metadata, spending, state, teams, usage
from tests.first_tables import create_first_tables

FIRST = """
import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

def upgrade():
    op.create_table("groups", sa.Column("name", sa.String(20), primary_key=True))
    op.create_table(
        "members",
        sa.Column("name", sa.String(20), primary_key=True),
        sa.Column("group_name", sa.String(20), sa.ForeignKey("groups.name"), nullable=False),
    )
"""

SECOND = """
import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

def upgrade():
    op.add_column("members", sa.Column("age", sa.Integer))
    op.execute("UPDATE members SET age = 40")
    with op.batch_alter_table("groups") as batch:  # SQLite creates the table again
        batch.alter_column("name", type_=sa.String(40), existing_type=sa.String(20))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with two migrations."""
    versions = tmp_path / "migrations" / "versions"
    versions.mkdir(parents=True)
    (versions / "0001_first.py").write_text(FIRST)
    (versions / "0002_second.py").write_text(SECOND)
    return versions.parent


@pytest.fixture
def upgraded(database: Database, folder: Path) -> Database:
    """Return a database with the tables of the first migration and a row in each."""
    with migrating(database) as connection:
        migrate(connection, database.place, "0001", folder)
        connection.execute(text("INSERT INTO groups VALUES ('a')"))
        connection.execute(text("INSERT INTO members VALUES ('Ada', 'a')"))
    return database


@contextmanager
def migrating(database: Database) -> Iterator[Connection]:
    """Yield a connection as `Database.prepare` migrates with."""
    if database.path is not None:
        database.path.parent.mkdir(exist_ok=True)
        database.path.touch()
    with (
        database._connection("migrate") as connection,
        database._prepared_for_migration(connection),
    ):
        yield connection


def tables_of(connection: Connection) -> dict[str, object]:
    """Return all that the database says of its tables."""
    found = inspect(connection)

    def by_name(rows: Any) -> list[str]:  # noqa: ANN401 - SQLAlchemy's rows
        return sorted(str(row) for row in rows)

    return {
        name: (
            by_name(found.get_columns(name)),
            found.get_pk_constraint(name),
            by_name(found.get_indexes(name)),
            by_name(found.get_unique_constraints(name)),
            by_name(found.get_foreign_keys(name)),
            by_name(found.get_check_constraints(name)),
            list(connection.execute(select(state))) if name == "state" else None,
        )
        for name in sorted(found.get_table_names())
    } | {"in SQLite": sqlite_tables(connection)}  # fmt: skip


def sqlite_tables(connection: Connection) -> list[str]:
    """Return the tables of SQLite that have no row ids, which SQLAlchemy does not read."""
    if connection.dialect.name != "sqlite":
        return []
    query = "SELECT name FROM sqlite_master WHERE sql LIKE '%WITHOUT ROWID%' ORDER BY name"
    return [name for (name,) in connection.execute(text(query))]


def test_migrations_create_the_tables_of_the_schema(
    database: Database, request: pytest.FixtureRequest
) -> None:
    """All migrations together turn the first version's tables into what a new database gets.

    If this fails after a change of `schema.py`, a migration is missing: see "Change the database"
    in CONTRIBUTING.md.
    """
    with migrating(database) as connection:
        create_first_tables(connection)
        migrate(connection, database.place)
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
        migrated = tables_of(connection)
    kind = request.node.callspec.params["database_url"]
    other = Database(
        f"sqlite:///{request.getfixturevalue('tmp_path')}/other.db"
        if kind == "sqlite"
        else request.getfixturevalue("postgresql").create()
    )
    other.prepare()
    with other.read() as connection:
        assert tables_of(connection) == migrated
    other.close()


def test_old_usage_gets_zeros_for_later_sums(database: Database) -> None:
    """Rows of the first version keep their sums, and older gateways can still write rows."""
    group = {"scope": "", "step_s": 60, "model": "m", "policy": "p"}
    row = usage.insert().values(group | dict.fromkeys(USAGE_SUMS[:12], 7))
    with migrating(database) as connection:
        create_first_tables(connection)
        migrate(connection, database.place, "0001")
        connection.execute(row.values(start_s=0))
        migrate(connection, database.place)
        connection.execute(row.values(start_s=60))
        found = connection.execute(select(usage.c.requests, usage.c.unfamiliar, usage.c.estimated))
        assert [tuple(each) for each in found] == 2 * [(7, 7, 0)]


def test_accounts_outlive_an_upgrade(database: Database) -> None:
    """A key of the first version opens the new gateway, with its team, budget and spending."""
    now_s = 1_800_000_000.0
    common = {"metadata": {}, "created_s": 0.0, "budget_nusd": 5 * 10**9, "budget_period": "total"}
    team = {"name": "search", "search": "search", "revision": 1, **common}
    key = {"name": "agent", "digest": 64 * "a", "hint": "aaaa", "team": "search", "is_admin": False}
    key |= {"search": "agent", "revision": 1, **common}
    spent = {"subject": "key:agent", "period": "total", "start_s": 0, "spent_nusd": 2 * 10**9}
    with migrating(database) as connection:
        create_first_tables(connection)
        migrate(connection, database.place, "0001")
        connection.execute(teams.insert().values(team))
        connection.execute(keys.insert().values(key))
        connection.execute(spending.insert().values(spent | {"wanted_until_s": 0.0}))
        connection.execute(state.update().values(value=1))
    database.prepare()
    stored = StoredKeys(clock=lambda: now_s)
    stored.refresh(database)
    found = stored.find(bytes.fromhex(64 * "a"))
    assert found is not None
    assert (found.name, found.team and found.team.name) == ("agent", "search")
    budget = Accounts(database, clock=lambda: now_s).get_key("agent").budget_state
    assert budget is not None
    assert (budget.usd, budget.spent_usd) == (5.0, 2.0)


def test_migration_keeps_the_rows(upgraded: Database, folder: Path) -> None:
    """Rows are kept, also those that refer to a table that SQLite has to create again."""
    with migrating(upgraded) as connection:
        migrate(connection, upgraded.place, "0002", folder)
    with upgraded.read() as connection:
        assert revision_of(connection) == "0002"
        rows = connection.execute(text("SELECT name, group_name, age FROM members")).all()
        assert [tuple(row) for row in rows] == [("Ada", "a", 40)]
    with pytest.raises(IntegrityError), upgraded.write() as connection:  # still a foreign key
        connection.execute(text("INSERT INTO members VALUES ('Bob', 'b', 1)"))


def test_failed_migration_changes_nothing(upgraded: Database, folder: Path) -> None:
    """If a migration fails in the middle, the tables and their rows are as before and usable."""
    script = folder / "versions" / "0002_second.py"
    script.write_text(SECOND.replace("members SET", "no_such_table SET"))
    with upgraded.read() as connection:
        before = tables_of(connection)
    with (
        pytest.raises(DatabaseError, match=r"cannot migrate .*no_such_table"),
        migrating(upgraded) as connection,
    ):
        migrate(connection, upgraded.place, "0002", folder)
    with upgraded.read() as connection:
        assert tables_of(connection) == before
        assert revision_of(connection) == "0001"
    with upgraded.write() as connection:
        connection.execute(text("INSERT INTO members VALUES ('Bob', 'a')"))
    script.write_text(SECOND)
    with migrating(upgraded) as connection:
        migrate(connection, upgraded.place, "0002", folder)
        assert connection.execute(text("SELECT count(*) FROM members")).scalar_one() == 2


def test_newer_database_is_refused(database: Database) -> None:
    """A database of a newer version is not touched, and the error says what to do."""
    database.prepare()
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9001'"))
    with pytest.raises(DatabaseError, match=r"the version 9001 of a newer .*; update"):
        database.prepare()
    assert database.examine() == "9001"
