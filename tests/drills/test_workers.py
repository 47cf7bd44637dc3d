"""Several worker processes serve one port as one gateway, without any other service."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
import yaml

from tests.bodies import BODY, CHAT
from tests.drills.processes import (
    ARMS,
    START_TIMEOUT_S,
    GatewayProcess,
    free_port,
    gateway,
    serving,
    write_config,
)
from tests.serving import Sandbox, wait_for

REQUESTS = 10
DECISIONS = "switchcraft_decisions_total{"
IN_FLIGHT = "switchcraft_requests_in_flight"
LAST = 'switchcraft_last_reload_successful{kind="config"}'


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, sandbox: Sandbox) -> Path:
    """Return the configuration of a gateway with two workers."""
    path = tmp_path_factory.mktemp("workers") / "config.yaml"
    upstreams = {"breaker": {"allowed_fails": 1, "cooldown_s": 30}, "retries": {"max_retries": 0}}
    return write_config(path, sandbox.base_url, server={"workers": 2}, upstreams=upstreams)


@pytest.fixture(scope="module")
def served(config: Path) -> Iterator[GatewayProcess]:
    """Yield a gateway whose two workers both serve."""
    with gateway(config, config.parent) as started:
        two_workers(started)
        yield started


def workers(served: GatewayProcess) -> set[int]:
    """Return the processes that serve now: named in the log and not ended."""
    begun = re.findall(r"worker (\d+) is ready", served.log.read_text())
    return {int(pid) for pid in begun if is_running(int(pid))}


def two_workers(served: GatewayProcess, without: int | None = None) -> tuple[int, int]:
    """Wait for both workers and return them; `without` ignores one that was just killed."""
    found: set[int] = set()

    def both_serve() -> bool:
        found.clear()
        found.update(workers(served) - {without})
        return len(found) == 2

    wait_for(both_serve, "both workers serve", START_TIMEOUT_S)
    first, second = sorted(found)
    return first, second


def is_running(pid: int) -> bool:
    """Return whether a process runs; a zombie process has no command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False


@contextmanager
def only_worker(pid: int, served: GatewayProcess) -> Iterator[httpx.Client]:
    """Stop the other workers, and yield a client that this worker must answer."""
    others = workers(served) - {pid}
    for other in others:
        os.kill(other, signal.SIGSTOP)
    try:
        with httpx.Client(base_url=served.url, timeout=30) as http:
            yield http
    finally:
        for other in others:
            os.kill(other, signal.SIGCONT)


def decisions(http: httpx.Client) -> float:
    """Return the sum of the decisions counted in `/metrics`."""
    lines = http.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(DECISIONS))


def ask(http: httpx.Client, times: int = REQUESTS, **changes: object) -> set[int]:
    """Send routed requests; return the statuses of their answers."""
    return {http.post(CHAT, json=BODY | changes).status_code for _ in range(times)}


def test_every_worker_shows_the_metrics_of_all_workers(served: GatewayProcess) -> None:
    """Each worker shows the counts of all workers, including those of a killed one."""
    with httpx.Client(base_url=served.url) as http:
        before = decisions(http)
    first, second = two_workers(served)
    for pid in (first, second):
        with only_worker(pid, served) as http:
            assert ask(http) == {200}
            http.get("/metrics")  # the worker writes its batch before it is stopped
    for pid in (first, second):
        with only_worker(pid, served) as http:
            shown = wait_for_decisions(http, before + 2 * REQUESTS)
            assert 'switchcraft_stage_seconds_count{stage="classify"}' in shown
            assert shown.count("switchcraft_build_info{") == 1
    os.kill(first, signal.SIGKILL)
    (new,) = set(two_workers(served, without=first)) - {second}
    with only_worker(new, served) as http:
        assert ask(http) == {200}
        wait_for_decisions(http, before + 3 * REQUESTS)


def wait_for_decisions(http: httpx.Client, wanted: float) -> str:
    """Wait until `/metrics` shows this many decisions, and return it; fail if it shows more."""
    wait_for(lambda: decisions(http) >= wanted, f"{wanted} decisions")
    assert decisions(http) == wanted
    return http.get("/metrics").text


def test_decisions_outlive_the_worker_that_made_them(served: GatewayProcess) -> None:
    """A decision can be read from every worker, also after its worker was killed."""
    killed, _ = two_workers(served)
    with only_worker(killed, served) as http:
        path = "/v1/decisions/" + http.post(CHAT, json=BODY).headers["x-switchcraft-decision-id"]
        wait_for(lambda: http.get(path).status_code == 200, "the decision is kept")
    os.kill(killed, signal.SIGKILL)
    for pid in two_workers(served, without=killed):
        with only_worker(pid, served) as http:
            assert http.get(path).json()["id"] in path
            assert http.get("/admin/status").json()["shared_state"] == "up"


def test_circuit_opened_by_one_worker_is_open_on_the_others(
    served: GatewayProcess, sandbox: Sandbox
) -> None:
    """The other worker and one that starts later do not use a deployment whose circuit is open."""
    model = ARMS[0]
    killed, other = two_workers(served)
    sandbox.set_faults(model, "status=500")
    with only_worker(killed, served) as http:
        while ask(http, 1, model=model) != {503}:
            pass
    sandbox.set_faults(model, "")
    wait_until_unavailable(other, served, model)
    os.kill(killed, signal.SIGKILL)
    (new,) = set(two_workers(served, without=killed)) - {other}
    wait_until_unavailable(new, served, model)


def wait_until_unavailable(pid: int, served: GatewayProcess, model: str) -> None:
    """Wait until a worker refuses requests for a model because its circuit is open."""

    def refuses() -> bool:
        with only_worker(
            pid, served
        ) as http:  # stops the others only briefly: they share their state
            return ask(http, 1, model=model) == {503}

    wait_for(refuses, f"{pid} knows the open circuit")


def test_reload_reaches_every_worker(served: GatewayProcess, config: Path) -> None:
    """A reload by request or by signal reaches every worker; a refused one changes no worker."""
    text = config.read_text()
    tree = yaml.safe_load(text)
    first, second = two_workers(served)
    try:
        config.write_text(yaml.safe_dump(tree | {"router": {"model_name": "posted"}}))
        assert httpx.post(f"{served.url}/admin/reload", timeout=30).status_code == 200
        for pid in (first, second):
            answers_to(pid, served, "posted")
        config.write_text("model_list: [")
        assert httpx.post(f"{served.url}/admin/reload", timeout=30).status_code == 409
        assert served.metric(LAST) == 0
        for pid in (first, second):
            answers_to(pid, served, "posted")
    finally:
        config.write_text(text)
    served.send_sighup()
    for pid in (first, second):
        answers_to(pid, served, "switchcraft")
    wait_for(lambda: served.metric(LAST) == 1, "the last reload succeeded")
    assert workers(served) == {first, second}


def answers_to(pid: int, served: GatewayProcess, name: str) -> None:
    """Wait until a worker routes requests for this model name."""
    with only_worker(pid, served) as http:
        wait_for(lambda: ask(http, 1, model=name) == {200}, f"{pid} answers to {name}")


def test_workers_finish_streams_at_sigterm_and_stop_at_a_second_one(
    config: Path, tmp_path: Path
) -> None:
    """SIGTERM lets a stream finish; a second SIGTERM abandons a hanging request."""
    with gateway(config, tmp_path) as served:
        threading.Thread(target=hang, args=(served.url,), daemon=True).start()
        wait_for(lambda: served.metric(IN_FLIGHT) == 1, "a request hangs")
        slow = {"x-sandbox": "chunk_delay_s=0.3"}
        with served.http.stream("POST", CHAT, json=BODY | {"stream": True}, headers=slow) as answer:
            parts = answer.iter_bytes()
            text = next(parts)
            served.process.send_signal(signal.SIGTERM)
            text += b"".join(parts)
        assert text.endswith(b"data: [DONE]\n\n")
        served.process.send_signal(signal.SIGTERM)
        # Well before `shutdown_timeout_s`.
        assert served.process.wait(timeout=20) == 0
        wait_for(lambda: not workers(served), "all workers have ended")


def hang(url: str) -> None:
    """Send a request that is never answered."""
    with suppress(httpx.HTTPError):
        httpx.post(url + CHAT, json=BODY, headers={"x-sandbox": "hang"}, timeout=60)


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Return a folder for temporary directories, with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="drill-") as path:
        yield Path(path)


def test_workers_share_the_parents_sandbox_and_end_with_it(tmp_path: Path, temporary: Path) -> None:
    """Without a configuration the workers use their parent's sandbox, and they end with it.

    What they share with it is never reported as unreachable, nor as reachable again.
    """
    port, log = free_port(), tmp_path / "log"
    environment = {**os.environ, "SWITCHCRAFT_WORKERS": "2", "TMPDIR": str(temporary)}
    command = [sys.executable, "-m", "router_service.cli", "serve", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with serving(command, url, log, environment=environment) as served:
        for pid in two_workers(served):
            with only_worker(pid, served) as one:
                assert ask(one, 1) == {200}
        assert "reachable" not in log.read_text()
        served.process.kill()
        wait_for(lambda: not workers(served), "no worker holds the port")
    assert log.read_text().count("no upstream is configured") == 1
