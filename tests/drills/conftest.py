"""Fixtures of the drills: a separate upstream, Redis, and artifacts to publish."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.drills.processes import RedisServer
from tests.publishing import make_artifact
from tests.sandbox import run_in_thread
from tests.serving import Sandbox


@pytest.fixture
def upstream() -> Iterator[Sandbox]:
    """Yield a sandbox that no other test uses, so that its counts belong to one drill."""
    with run_in_thread() as url:
        yield Sandbox(url)


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return identical artifacts with different names, by name."""
    folder = tmp_path_factory.mktemp("artifacts")
    return {name: make_artifact(folder, name) for name in ("one", "two", "three")}


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """Yield a running Redis that a drill may kill."""
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.kill()
