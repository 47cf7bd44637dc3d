"""Keys and teams of a database, for tests of what they allow."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import Connection, insert, select, update

from router_service.core.keys import hashed, new_key
from router_service.database.engine import Database
from router_service.database.schema import keys, state, teams


def _next_revision(connection: Connection) -> int:
    query = state.c.name == "revision"
    connection.execute(update(state).where(query).values(value=state.c.value + 1))
    return int(connection.execute(select(state.c.value).where(query)).scalar_one())


def _common(connection: Connection) -> dict[str, Any]:
    return {"metadata": {}, "created_s": time.time(), "revision": _next_revision(connection)}


def add_team(database: Database, name: str, **columns: object) -> None:
    """Add a team; columns are limits."""
    with database.write() as connection:
        connection.execute(insert(teams).values(name=name, **_common(connection), **columns))


def add_key(database: Database, name: str, **columns: object) -> str:
    """Add a key and return its secret; columns are limits, the team, models or policies."""
    secret = new_key()
    with database.write() as connection:
        digest = hashed(secret).partition(":")[2]
        values: dict[str, object] = {"digest": digest, "hint": secret[-4:], "is_admin": False}
        values |= {**_common(connection), **columns}
        connection.execute(insert(keys).values(name=name, **values))
    return secret


def change_key(database: Database, name: str, **columns: object) -> None:
    """Change columns of a key."""
    with database.write() as connection:
        columns["revision"] = _next_revision(connection)
        connection.execute(update(keys).where(keys.c.name == name).values(**columns))


def bearer(secret: str) -> dict[str, str]:
    """Return the header with a key."""
    return {"authorization": f"Bearer {secret}"}
