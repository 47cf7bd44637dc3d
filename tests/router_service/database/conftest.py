"""A database that tests prepare themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from router_service.database.engine import Database


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """Yield an empty database without tables."""
    database = Database(database_url)
    yield database
    database.close()
