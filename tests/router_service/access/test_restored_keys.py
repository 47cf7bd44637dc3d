"""A backup that is restored while the gateway runs."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from router_service.access.accounts import Accounts
from router_service.access.key import Permission
from router_service.access.keyring import KeyRing, StoredKeys
from router_service.access.specs import NewKey
from router_service.database.engine import Database


def test_restored_backup_replaces_what_is_known(tmp_path: Path) -> None:
    """Keys are those of the backup: newer ones are unknown, and those revoked since are valid."""
    path, backup = tmp_path / "a.db", tmp_path / "backup.db"
    database, stored = Database(f"sqlite:///{path}"), StoredKeys()
    database.prepare()
    accounts, ring = Accounts(database), KeyRing([], stored)
    old = accounts.create_key(NewKey(name="old", is_admin=True)).secret
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"VACUUM INTO '{backup}'")
    new = accounts.create_key(NewKey(name="new")).secret
    accounts.revoke_key("old")

    def valid() -> list[bool]:
        stored.refresh(database)
        return [ring.find(secret.encode(), Permission.CALL) is not None for secret in (old, new)]

    assert valid() == [False, True]
    for part in ("-wal", "-shm"):
        Path(f"{path}{part}").unlink()
    backup.rename(path)
    assert valid() == [True, False]
    newer = accounts.create_key(NewKey(name="newer")).secret
    stored.refresh(database)
    assert ring.find(newer.encode(), Permission.CALL)
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
