"""Databases for the tests of usage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from router_service.database.engine import Database
from tests.postgresql import PostgreSQLServer


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'switchcraft.db'}"
    server: PostgreSQLServer = request.getfixturevalue("postgresql")
    return server.create()


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    """Yield a database with its tables."""
    database = Database(url)
    database.prepare()
    yield database
    database.close()
