"""A gateway survives signals that arrive before it serves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.drills.processes import START_TIMEOUT_S, free_port, write_config
from tests.serving import Sandbox, wait_for

pytestmark = pytest.mark.slow


@dataclass
class Starting:
    """Gateway process that still imports its modules, with its own process group."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the whole group, as a terminal does."""
        os.killpg(self.process.pid, number)

    def is_ready(self) -> bool:
        """Return whether it serves; fail if it has exited."""
        assert self.process.poll() is None, self.log.read_text()
        try:
            return httpx.get(f"{self.url}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def has_reloaded(self) -> bool:
        """Return whether it has reloaded its configuration; fail if it refused the reload."""
        log = self.log.read_text()
        assert "reload of config failed" not in log, log
        return "reloaded config" in log


@pytest.fixture(autouse=True)
def _default_action() -> Iterator[None]:
    """Start gateways with the default action of SIGHUP, also below `nohup`, which ignores it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@contextmanager
def starting(config: Path) -> Iterator[Starting]:
    """Start a gateway and yield it while it still imports."""
    port, log = free_port(), config.with_suffix(".log")
    command = [sys.executable, "-m", "router_service.cli", "serve"]
    command += ["--config", str(config), "--port", str(port)]
    with (
        log.open("wb") as file,
        subprocess.Popen(command, stderr=file, start_new_session=True) as process,
    ):
        maps = Path(f"/proc/{process.pid}/maps")
        try:
            wait_for(lambda: "pydantic_core" in maps.read_text(), "it imports", START_TIMEOUT_S)
            yield Starting(process, f"http://127.0.0.1:{port}", log)
        finally:
            process.kill()


def test_sighup_during_startup_reloads(tmp_path: Path, sandbox: Sandbox) -> None:
    """A SIGHUP to the group during startup ends no process: the gateway reloads once it serves."""
    config = write_config(tmp_path / "config.yaml", sandbox.base_url)
    with starting(config) as gateway:
        gateway.send(signal.SIGHUP)
        wait_for(gateway.is_ready, "it serves", START_TIMEOUT_S)
        wait_for(gateway.has_reloaded, "it reloads", START_TIMEOUT_S)
        gateway.send(signal.SIGTERM)
        assert gateway.process.wait(START_TIMEOUT_S) == 0


def test_stop_signal_during_startup_exits_with_status_0(tmp_path: Path, sandbox: Sandbox) -> None:
    """A gateway that gets a stop signal while it imports exits with status 0 and no traceback."""
    config = write_config(tmp_path / "config.yaml", sandbox.base_url)
    with starting(config) as gateway:
        gateway.send(signal.SIGHUP)
        gateway.send(signal.SIGTERM)
        assert gateway.process.wait(START_TIMEOUT_S) == 0
        assert "Traceback" not in gateway.log.read_text()
