"""A gateway survives signals that arrive before it serves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
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


@pytest.mark.parametrize("workers", [1, 2])
def test_sighup_during_startup_reloads(
    tmp_path: Path, sandbox: Sandbox, redis_url: str, workers: int
) -> None:
    """Repeated SIGHUPs to the group during startup end no process.

    A single process reloads after it has started. A worker reads the file after the signal anyway.
    """
    server = {"workers": workers, "redis_url": redis_url}
    config = write_config(tmp_path / "config.yaml", sandbox.base_url, server=server)
    with starting(config) as gateway:
        signals = iter([signal.SIGHUP] * 40)
        if workers == 1:
            gateway.send(next(signals))
            wait_for(gateway.is_ready, "it serves", START_TIMEOUT_S)
            wait_for(gateway.has_reloaded, "it reloads", START_TIMEOUT_S)
        else:

            def both_serve() -> bool:
                for number in islice(signals, 1):
                    gateway.send(number)
                served = gateway.log.read_text().count(" is ready")
                return gateway.is_ready() and served == workers

            wait_for(both_serve, "both workers serve", START_TIMEOUT_S)
            assert "ended with status" not in gateway.log.read_text()
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
