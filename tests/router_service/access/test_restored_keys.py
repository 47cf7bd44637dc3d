"""A backup that is restored while the gateway runs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import select, update

from router_service.access.accounts import Accounts
from router_service.access.key import Limits, Permission, Team
from router_service.access.keyring import KeyRing, StoredKeys
from router_service.access.specs import NewKey, NewTeam, TeamChange
from router_service.database.engine import Database
from router_service.database.schema import keys, state


@pytest.mark.parametrize("history", ["same number", "lower number", "higher number", "own number"])
def test_database_with_another_history_replaces_what_is_known(tmp_path: Path, history: str) -> None:
    """Whatever number of changes a restored file has, its keys are valid, and no others.

    Limits of teams are those of the file, too.
    """
    path, backup = tmp_path / "a.db", tmp_path / "backup.db"
    database, stored = Database(f"sqlite:///{path}"), StoredKeys()
    database.prepare()
    accounts, ring = Accounts(database), KeyRing([], stored)
    accounts.create_key(NewKey(name="ops", is_admin=True))
    accounts.create_team(NewTeam(name="crew", requests_per_minute=7))
    kept = accounts.create_key(NewKey(name="kept", team="crew")).secret
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"VACUUM INTO '{backup}'")
    accounts.change_team("crew", TeamChange(requests_per_minute=8))
    old = accounts.create_key(NewKey(name="old")).secret
    stored.refresh(database)
    with database.read() as connection:
        query = select(state.c.value).where(state.c.name == "revision")
        known = connection.execute(query).scalar_one()
    restored = Database(f"sqlite:///{backup}")
    new = Accounts(restored).create_key(NewKey(name="new")).secret
    shift = {"same number": 0, "lower number": -1, "higher number": 100_000}.get(history)
    if shift is not None:
        with restored.write() as connection:
            connection.execute(update(state).values(value=known + shift))
            changed = update(keys).where(keys.c.name == "new")
            connection.execute(changed.values(revision=known + shift))
    restored.close()
    for part in ("-wal", "-shm"):
        Path(f"{path}{part}").unlink()
    backup.rename(path)
    stored.refresh(database)
    found = [ring.find(secret.encode(), Permission.CALL) for secret in (kept, old, new)]
    assert [key.name if key else None for key in found] == ["kept", None, "new"]
    assert found[0] is not None
    assert found[0].team == Team("crew", Limits(requests_per_minute=7))
    database.close()


def test_empty_database_does_not_open_a_gateway(tmp_path: Path) -> None:
    """If the keys of a running gateway disappear, it refuses everyone instead of no one."""
    path, stored = tmp_path / "a.db", StoredKeys()
    database = Database(f"sqlite:///{path}")
    database.prepare()
    ring = KeyRing([], stored)
    stored.refresh(database)
    is_open = [ring.is_open]
    accounts = Accounts(database)
    accounts.create_key(NewKey(name="ops", is_admin=True))
    stored.refresh(database)
    for part in ("", "-wal", "-shm"):
        Path(f"{path}{part}").unlink()
    empty = Database(f"sqlite:///{path}")
    empty.prepare()
    stored.refresh(empty)
    is_open.append(ring.is_open)
    assert is_open == [True, False]
    database.close()
    empty.close()
