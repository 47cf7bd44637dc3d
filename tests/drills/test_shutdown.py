"""Signals before a gateway serves, and graceful shutdowns: every client gets an answer."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from router_service.requests.limits import SHUTTING_DOWN
from router_service.requests.planning import POLICY_HEADER
from tests.bodies import BODY, CHAT
from tests.drills.processes import ARMS, free_port, gateway, write_config
from tests.gateways import record_of
from tests.serving import WAIT_S, Sandbox, wait_for

MODEL = ARMS[0]
STREAMED = BODY | {"model": MODEL, "stream": True}


@contextmanager
def draining_gateway(
    sandbox: Sandbox, folder: Path, router: Mapping[str, object] | None = None, **server: object
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run `switchcraft serve` in front of the sandbox; yield the process and its address."""
    config = write_config(
        folder / "config.yaml", sandbox.base_url, router=router or {}, server=server
    )
    with gateway(config, folder) as served:
        yield served.process, served.url


def test_requests_are_served_during_the_drain_delay(sandbox: Sandbox, tmp_path: Path) -> None:
    """During `drain_delay_s`, readiness fails for load balancers, but requests still succeed."""
    with (
        draining_gateway(sandbox, tmp_path, drain_delay_s=300) as (process, url),
        httpx.Client(base_url=url) as http,
    ):
        process.send_signal(signal.SIGTERM)
        for path in ("/readyz", "/health/readiness"):
            wait_for(lambda path=path: http.get(path).status_code == 503, "readiness fails")
        served = http.post(CHAT, json=BODY)
        assert served.status_code == 200
        assert served.headers["connection"] == "close"
        assert http.get("/health/liveliness").json() == "I'm alive!"
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


def test_streams_finish_and_a_second_signal_stops_at_once(sandbox: Sandbox, tmp_path: Path) -> None:
    """SIGTERM lets a stream finish; a second SIGTERM abandons a hanging request."""

    def hang() -> None:
        with suppress(httpx.HTTPError):
            httpx.post(url + CHAT, json=STREAMED, headers={"x-sandbox": "hang"})

    with draining_gateway(sandbox, tmp_path, shutdown_timeout_s=300) as (process, url):
        before = sandbox.stats()["in_flight"]
        hanging = threading.Thread(target=hang)
        hanging.start()
        wait_for(lambda: sandbox.stats()["in_flight"] > before, "a request hangs")
        slow = {"x-sandbox": "chunk_delay_s=0.3"}
        with httpx.stream("POST", url + CHAT, json=STREAMED, headers=slow) as answer:
            parts = answer.iter_bytes()
            text = next(parts)
            process.send_signal(signal.SIGTERM)
            text += b"".join(parts)
        assert text.endswith(b"data: [DONE]\n\n")
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
        hanging.join()


ANTHROPIC = {"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
RESPONSES = {"model": MODEL, "input": "Hi", "store": False}


def test_clients_can_read_why_they_are_cut_off(sandbox: Sandbox, tmp_path: Path) -> None:
    """At the end of the shutdown's time, every request ends with an error in its client's API.

    Before the first byte, it is a status that clients retry; in a stream, it is the last event.
    """
    asked = {
        "chat": (CHAT, BODY | {"model": MODEL}, "hang"),
        "chat stream": (CHAT, STREAMED, "hang_after=2"),
        "early chat stream": (CHAT, STREAMED, "hang"),
        "messages": ("/v1/messages", ANTHROPIC, "hang"),
        "messages stream": ("/v1/messages", ANTHROPIC | {"stream": True}, "hang_after=2"),
        "responses": ("/v1/responses", RESPONSES, "hang"),
        "responses stream": ("/v1/responses", RESPONSES | {"stream": True}, "hang_after=2"),
        "verified stream": (CHAT, STREAMED | {"model": "switchcraft:verified"}, "hang"),
    }
    streams = {"chat stream", "messages stream", "responses stream", "verified stream"}
    answers: dict[str, httpx.Response] = {}
    more = {"verification": {"keep_alive_s": 0.1}}
    with draining_gateway(sandbox, tmp_path, router=more, shutdown_timeout_s=1) as (process, url):
        before = sandbox.stats()["in_flight"]

        def ask(name: str) -> None:
            path, body, faults = asked[name]
            headers = {"x-sandbox": faults, "x-request-id": name.replace(" ", "-")}
            with httpx.stream("POST", url + path, json=body, headers=headers) as answer:
                answers[name] = answer
                answer.read()

        threads = [threading.Thread(target=ask, args=(name,)) for name in asked]
        for thread in threads:
            thread.start()
        wait_for(lambda: sandbox.stats()["in_flight"] >= before + len(asked), "all are asked")
        wait_for(lambda: answers.keys() >= streams, "all streams have begun")
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
        for thread in threads:
            thread.join()
    for name in ("chat", "early chat stream", "messages", "responses"):
        answer = answers[name]
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1"), name
        assert answer.headers["content-type"] == "application/json"
        assert "shutting down" in answer.json()["error"]["message"]
        assert (answer.json().get("type") == "error") == (name == "messages")
    ends = {name: text.rstrip().rpartition("\n\n")[2] for name, text in _texts(answers)}
    for name in streams:
        assert answers[name].status_code == 200, name
        event = json.loads(ends[name].rpartition("data: ")[2])
        assert "shutting down" in json.dumps(event), (name, ends[name])
    assert ends["messages stream"].startswith("event: error\n")
    assert ends["responses stream"].startswith("event: ")
    assert answers["verified stream"].text.startswith(": keep-alive")


def _texts(answers: dict[str, httpx.Response]) -> Iterator[tuple[str, str]]:
    return ((name, answer.text) for name, answer in answers.items())


VERIFIED = {POLICY_HEADER: "verified=1"}
"""A price at which a second arm is always asked."""


def ask(http: httpx.Client, text: str = "How warm is it?", **fields: object) -> httpx.Response:
    """Ask for a verified answer."""
    messages = [{"role": "user", "content": text}]
    return http.post(CHAT, json=BODY | {"messages": messages} | fields, headers=VERIFIED)


def test_shutdown_delivers_verified_answers(tmp_path: Path, upstream: Sandbox) -> None:
    """Requests in flight get their answers, at the latest shortly before the shutdown ends.

    The shutdown waits for a slow second candidate. If the second one hangs, the first is delivered.
    """
    config = write_config(
        tmp_path / "config.yaml",
        upstream.base_url,
        server={"shutdown_timeout_s": 10},
        router={"verification": {"keep_alive_s": 300}},  # so that the head names the model
    )
    with gateway(config, tmp_path) as served, ThreadPoolExecutor() as pool:
        before = record_of(served.http, ask(served.http))
        first, second, *_ = [candidate["arm"] for candidate in before["candidates"]]
        upstream.set_faults(second, "hang")
        hanging = [pool.submit(ask, served.http, stream=stream) for stream in (False, True)]
        wait_for(lambda: upstream.stats()["in_flight"] == 2, "their second arms are asked")
        upstream.set_faults(second, "delay_s=0.5")
        slow = pool.submit(ask, served.http)
        wait_for(lambda: upstream.stats()["in_flight"] == 3, "all second arms are asked")
        asked = upstream.stats()["requests"]
        served.process.send_signal(signal.SIGTERM)
        wait_for(lambda: served.http.get("/readyz").status_code == 503, "it drains")
        late = ask(served.http)
        assert (late.status_code, late.json()["error"]["code"]) == (503, SHUTTING_DOWN)
        assert (late.headers["connection"], late.headers["retry-after"]) == ("close", "1")
        answer = slow.result()
        assert answer.headers["x-switchcraft-candidates"] == str(len(before["candidates"]))
        for each in hanging:
            answer = each.result()
            assert (answer.status_code, answer.headers["x-switchcraft-model"]) == (200, first)
            assert answer.headers["x-switchcraft-candidates"] == "2"
            assert b'"finish_reason":"tool_calls"' in answer.content
        assert served.process.wait(WAIT_S) == 0
    ended = upstream.stats()
    assert ended["cancelled"] == 2
    assert ended["requests"] == asked + len(before["candidates"]) - 2


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
            wait_for(lambda: "pydantic_core" in maps.read_text(), "it imports")
            yield Starting(process, f"http://127.0.0.1:{port}", log)
        finally:
            process.kill()


@pytest.mark.slow
def test_sighup_during_startup_reloads(tmp_path: Path, sandbox: Sandbox) -> None:
    """A SIGHUP to the group during startup ends no process: the gateway reloads once it serves."""
    config = write_config(tmp_path / "config.yaml", sandbox.base_url)
    with starting(config) as gateway:
        gateway.send(signal.SIGHUP)
        wait_for(gateway.is_ready, "it serves")
        wait_for(gateway.has_reloaded, "it reloads")
        gateway.send(signal.SIGTERM)
        assert gateway.process.wait(WAIT_S) == 0


@pytest.mark.slow
def test_stop_signal_during_startup_exits_with_status_0(tmp_path: Path, sandbox: Sandbox) -> None:
    """A gateway that gets a stop signal while it imports exits with status 0 and no traceback."""
    config = write_config(tmp_path / "config.yaml", sandbox.base_url)
    with starting(config) as gateway:
        gateway.send(signal.SIGHUP)
        gateway.send(signal.SIGTERM)
        assert gateway.process.wait(WAIT_S) == 0
        assert "Traceback" not in gateway.log.read_text()
