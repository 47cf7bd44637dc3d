"""Databases for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from router_service.database.engine import Database


@contextmanager
def empty_sqlite() -> Iterator[Database]:
    """Yield a database in memory that has no tables."""
    database = Database(None)
    try:
        yield database
    finally:
        database.close()
