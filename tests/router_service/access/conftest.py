"""Databases for tests: an SQLite file, and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from router_service.database.engine import Database


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """Yield an empty database with its tables, of each kind in turn."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/switchcraft.db"
    else:
        url = request.getfixturevalue("postgresql").create()
    made = Database(url)
    made.prepare()
    yield made
    made.close()
