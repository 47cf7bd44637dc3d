"""Databases of both kinds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from router_service.database.engine import Database


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'state' / 'switchcraft.db'}"
    created: str = request.getfixturevalue("postgresql").create()
    return created


@pytest.fixture
def database(address: str) -> Iterator[Database]:
    """Yield an empty database."""
    database = Database(address)
    yield database
    database.close()
