"""Real components that tests share: recorded data, a Redis server, a sandbox upstream."""

from __future__ import annotations

import gc
import json
import os
import re
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import certifi
import hypothesis
import pytest
from httpx._config import DEFAULT_TIMEOUT_CONFIG

from tests.apis import Api
from tests.debian import program
from tests.drills.processes import RedisServer
from tests.postgresql import PostgreSQLServer
from tests.sandbox import run_in_thread
from tests.serving import WAIT_S, Sandbox

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from router_service.router import Router

DATA = "bfcl-2024-08"

BROWSER_FLAGS = (
    "--no-sandbox --disable-gpu --disable-background-networking --disable-dev-shm-usage".split()
)

# On a busy machine, an example that usually takes milliseconds may take seconds.
hypothesis.settings.register_profile(
    "busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy")

# There, an answer may take longer than httpx's default of 5 s, which has no public setting.
for kind in ("connect", "read", "write", "pool"):
    setattr(DEFAULT_TIMEOUT_CONFIG, kind, WAIT_S)

DURATIONS = Path(__file__).with_name("durations.json")
"""Seconds that files of more than five seconds take; `--record-durations` writes it."""

WITHOUT_SLOW = "not slow"
"""The value of `-m` in `make test`."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude what collection imports and creates from garbage collection.

    These are 1.6 million objects, which stay until the end. Visiting them takes the collector a
    second each time, and a sixth of the time of the collection.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--record-durations`."""
    text = f"write {DURATIONS.name}, by which files are ordered; for runs of all tests"
    parser.addoption("--record-durations", action="store_true", help=text)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Return the name of an API, for the ids of tests."""
    return val.name if isinstance(val, Api) else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without slow tests, do not import the files that have no others."""
    if config.option.markexpr != WITHOUT_SLOW or collection_path.suffix != ".py":
        return None
    text = collection_path.read_text()
    return bool(re.search(r"^pytestmark = .*pytest\.mark\.slow\b", text, re.MULTILINE)) or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first, so that no worker gets one when the others are done."""
    seconds: dict[str, float] = json.loads(DURATIONS.read_text())
    items.sort(key=lambda item: -seconds.get(item.nodeid.partition("::")[0], 0))


_seconds: defaultdict[str, float] = defaultdict(float)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up how long each file takes, in the process that starts the workers."""
    _seconds[report.nodeid.partition("::")[0]] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the durations that were added up."""
    if session.config.option.record_durations and "PYTEST_XDIST_WORKER" not in os.environ:
        longest = {name: round(_seconds[name]) for name in sorted(_seconds) if _seconds[name] > 5}
        DURATIONS.write_text(json.dumps(longest, indent=1) + "\n")


@pytest.fixture(scope="session", autouse=True)
def own_state_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the traffic of tests' gateways out of this machine's own history."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_certificate_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Trust one certificate authority.

    Loading the usual bundle takes 30 ms of CPU time, which each gateway and each HTTP client spends
    when it is created: half of the time of the tests that create many.
    """
    end = "-----END CERTIFICATE-----\n"
    file = tmp_path_factory.mktemp("authorities") / "one.pem"
    file.write_text(certifi.contents().partition(end)[0] + end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(file))
        yield


@pytest.fixture(scope="session")
def recorded_data(request: pytest.FixtureRequest) -> Path:
    """Return the folder of the recorded answers; skip the test if it is missing."""
    beside = request.config.rootpath.parent / "shared" / "data"
    folder = Path(os.environ.get("SWITCHCRAFT_DATA") or beside)
    if not (folder / DATA).is_dir():
        pytest.skip(f"no recorded answers: {folder} has no {DATA}; set SWITCHCRAFT_DATA")
    return folder


@pytest.fixture(scope="session")
def shipped() -> Router:
    """Return the shipped router."""
    from router_service.router import Router  # noqa: PLC0415 - many tests do without it

    return Router.load()


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a Redis server and yield its address; skip the test if its package has no binary."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server.url
    server.kill()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQLServer]:
    """Yield a running PostgreSQL server; a test that stops or freezes it starts it again."""
    server = PostgreSQLServer()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def prometheus() -> Path:
    """Return the Prometheus server's path; skip the test if it is missing."""
    return program("prometheus")


@pytest.fixture(scope="session")
def promtool() -> Path:
    """Return promtool's path; skip the test if it is missing."""
    return program("promtool")


@pytest.fixture(scope="session")
def chromium() -> Path:
    """Return the browser's path for Playwright's `executable_path`; skip if it is missing."""
    return program("chromium")


# Not for the whole session: while it is open, `asyncio.run` fails in this thread.
@pytest.fixture(scope="module")
def browser(chromium: Path) -> Iterator[Browser]:
    """Yield a headless Chromium."""
    from playwright.sync_api import expect, sync_playwright  # noqa: PLC0415 - rarely needed

    expect.set_options(timeout=WAIT_S * 1000)  # a busy machine may need more than 5 s
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=BROWSER_FLAGS)
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """Yield a running sandbox that keeps its last requests."""
    with run_in_thread() as url:
        yield Sandbox(url)
