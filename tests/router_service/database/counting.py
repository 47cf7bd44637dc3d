"""A number in the database that tests read and increase; processes import this in 0.3 s."""

from __future__ import annotations

import time

from sqlalchemy import select, update

from router_service.database.engine import Database
from router_service.database.schema import state


def revision(database: Database) -> int:
    """Return a number that the database stores."""
    with database.read() as connection:
        found: int = connection.execute(select(state.c.value)).scalar_one()
    return found


def add(database: Database, pause_s: float = 0.0) -> None:
    """Add 1 to the number, in a transaction that reads first and then writes."""
    with database.write() as connection:
        # PostgreSQL locks the row; SQLite's transactions take turns.
        value = connection.execute(select(state.c.value).with_for_update()).scalar_one()
        time.sleep(pause_s)
        connection.execute(update(state).values(value=value + 1))
