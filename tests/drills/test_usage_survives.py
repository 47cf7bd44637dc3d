"""Usage of requests that were answered before a gateway ends, however it ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from router_service.database.engine import Database
from router_service.telemetry.sinks import WRITE_EVERY_S
from router_service.telemetry.usage import DAY_S, UsageFilter
from router_service.telemetry.usage_reports import read_sums
from tests.bodies import BODY, CHAT
from tests.drills.processes import (
    GatewayProcess,
    Load,
    gateway,
    write_config,
)
from tests.postgresql import PostgreSQLServer
from tests.serving import WAIT_S, Sandbox, wait_for

LOST_S = 5.0
"""Usage of the last seconds before a kill may be lost."""
PARALLEL = 8


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of an empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'switchcraft.db'}"
    server: PostgreSQLServer = request.getfixturevalue("postgresql")
    return server.create()


@contextmanager
def gateway_with(url: str, folder: Path, upstream: Sandbox) -> Iterator[GatewayProcess]:
    """Run a gateway with this database."""
    config = write_config(folder / "config.yaml", upstream.base_url, database={"url": url})
    with gateway(config, folder) as started:
        yield started


def counted(url: str) -> int:
    """Return the number of requests that the database has."""
    database = Database(url)
    with database.read() as connection:
        found = read_sums(connection, DAY_S, time.time() - 2 * DAY_S, "start_s", UsageFilter())
    database.close()
    return sum(sums.requests for sums in found.values())


def test_nothing_is_lost_at_sigterm(url: str, tmp_path: Path, upstream: Sandbox) -> None:
    """A gateway that is told to end writes the usage of all requests first."""
    with gateway_with(url, tmp_path, upstream) as served:

        def ask(_: int) -> int:
            return httpx.post(served.url + CHAT, json=BODY).status_code

        with ThreadPoolExecutor(PARALLEL) as pool:
            assert set(pool.map(ask, range(80))) == {200}
        served.process.terminate()
        served.process.wait(WAIT_S)
        assert counted(url) == 80


def test_at_most_five_seconds_are_lost_at_sigkill(
    url: str, tmp_path: Path, upstream: Sandbox
) -> None:
    """Requests are soon written, so that a kill loses only the last ones; none is there twice."""
    assert WRITE_EVERY_S < LOST_S
    with gateway_with(url, tmp_path, upstream) as served, Load((served.url,)) as load:
        load.wait_for_answers(20)
        answered = len(load.statuses)
        wait_for(lambda: counted(url) >= answered, "these requests are written")
        served.process.kill()
        served.process.wait(WAIT_S)
    assert answered <= counted(url) <= load.sent
