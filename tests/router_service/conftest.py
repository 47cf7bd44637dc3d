"""Fixtures of the service's tests: databases of each kind, and an artifact that verifies."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from router_service.artifact import (
    MANIFEST,
    SHIPPED,
    Manifest,
    read_manifest,
    save_manifest,
)
from router_service.database.engine import Database
from router_service.policies.costs import ArmProfile, Price
from tests.candidates import write_verifier


@pytest.fixture
def anyio_backend() -> str:
    """Return the event loop of tests that are coroutines."""
    return "asyncio"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of an empty database, of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'new folder' / 'switchcraft.db'}"
    created: str = request.getfixturevalue("postgresql").create()
    return created


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """Yield an empty database with its tables."""
    database = Database(database_url)
    database.prepare()
    yield database
    database.close()


@pytest.fixture(scope="session")
def verifying_artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the shipped artifact with a hand-made verifier, and with costs that are easy to read.

    The arms cost 1, 2, 3, ... USD per 1,000 requests, and take as many seconds.
    """
    directory = tmp_path_factory.mktemp("verifying") / "artifact"
    shutil.copytree(SHIPPED, directory)
    manifest = read_manifest(directory / MANIFEST)
    spec = write_verifier(directory, len(manifest.packing.features), len(manifest.arms))
    profile = {
        arm: ArmProfile(
            input_tokens=1000,
            output_tokens=0,
            seconds=place,
            price=Price(input_usd_per_mtok=place, output_usd_per_mtok=0),
            n=1,
        )
        for place, arm in enumerate(manifest.arms, start=1)
    }
    fields = manifest.model_dump() | {"verifier": spec, "profile": profile}
    fields |= {"frontier": (), "verified_frontier": ()}
    save_manifest(directory, Manifest.model_validate(fields))
    return directory
