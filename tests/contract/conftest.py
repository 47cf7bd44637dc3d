"""The gateway as a user starts it: the command, on a free port, with its sandbox upstream."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

START_TIMEOUT_S = 120


@pytest.fixture(scope="session")
def gateway() -> Iterator[str]:
    """Run `switchcraft serve` without a configuration; yield its address, http://HOST:PORT."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "router_service.cli", "serve", "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until_ready(f"http://127.0.0.1:{port}/readyz", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(START_TIMEOUT_S)


def wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until the address answers; fail if the process has exited or takes too long."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, "the gateway ended before it was ready"
        try:
            with urllib.request.urlopen(url, timeout=30):  # noqa: S310 - our own address
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    pytest.fail(f"the gateway was not ready after {START_TIMEOUT_S} s")
