"""A gateway process between a malicious client and a malicious upstream.

`Target.withstand` runs an attack and asserts the properties that must hold for every attack: memory
is bounded, descriptors are closed, the log has no exception, no output has a key, and correct
requests get correct answers on every open connection.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.bodies import CHAT, TOOLS
from tests.hostile.raw import Answer, Connection, request
from tests.hostile.upstream import BEHAVIOUR_HEADER, UPSTREAM_KEY
from tests.serving import wait_for

MAX_MEMORY_BYTES = 432 * 1024 * 1024
"""`server.max_buffered_bytes` (192 MB) and 240 MB for the process itself, which takes about 200."""
KILL_BYTES = 1024 * 1024 * 1024
"""The gateway is killed at this size to protect the machine. Its test has failed by then."""

CLIENT_KEY = "client-a-Kx81QzPwUy63MnBcVf29"
OTHER_KEY = "client-b-Jw72RtVsGe54LkHjPa09"
ADMIN_KEY = "admin-Fd45DsAqRo36Te27Wi18Zz77"

ROOT = Path(__file__).parents[2]
ARMS = {"gpt-4.1-mini": "n", "gpt-5.2": "o"}
"""Models by arm. A second upstream serves them, so that routed requests never wait for the
malicious one."""

PATIENT = "patient"

FILE_ID = "file-owned"
FILE = f"/v1/files/{FILE_ID}"
"""A stored object that belongs to `CLIENT_KEY`, so that requests for it are passed on."""

_nonces = itertools.count()


def new_nonce() -> str:
    """Return a unique id."""
    return f"nonce-{next(_nonces)}"


def auth_headers(key: str = CLIENT_KEY, **headers: str) -> dict[str, str]:
    """Return headers with a key."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return {"authorization": f"Bearer {key}", **named}


def chat_body(model: str = "m", **fields: object) -> bytes:
    """Return a chat request's body."""
    messages = [{"role": "user", "content": "Hello"}]
    body = {"model": model, "messages": messages} | fields
    return json.dumps(body, separators=(",", ":")).encode()


def settings_of(malicious_port: int, good_port: int) -> dict[str, Any]:
    """Return a configuration without retries.

    Attacks call the model `m`, whose timeouts are short so that tests are fast. The model `patient`
    is at the same upstream and shares its connections.
    """
    ports = dict.fromkeys(ARMS.values(), good_port) | {"m": malicious_port, PATIENT: malicious_port}
    short = {"first_byte_s": 0.8, "idle_s": 0.4, "total_s": 1.5, "write_s": 0.5}
    never = {"max_retries": 0, "budget_share": 0, "budget_floor_per_s": 0}
    return {
        "model_list": [
            {
                "model_name": name,
                "litellm_params": {
                    "model": f"openai/{name}",
                    "api_base": f"http://127.0.0.1:{port}/v1",
                    "api_key": UPSTREAM_KEY,
                    "timeouts": short if name == "m" else {},
                },
            }
            for name, port in ports.items()
        ],
        "router": {
            "stand_ins": ARMS,
            "pass_through": "m",
            "forward_headers": [BEHAVIOUR_HEADER],
            "unknown_prices": "allow",
        },
        "server": {
            "header_timeout_s": 1.0,
            "body_timeout_s": 2.5,
            "write_timeout_s": 1.0,
            "max_requests_in_flight": 300,
        },
        "upstreams": {
            "retries": never,
            "breaker": {
                "allowed_fails": 1_000_000,
                "cooldown_s": 1e-6,
                "max_cooldown_s": 1e-6,
            },
        },
        "keys": {"api": {"a": CLIENT_KEY, "b": OTHER_KEY}, "admin": ADMIN_KEY},
    }


class Upstream:
    """Process of a malicious upstream."""

    def __init__(self) -> None:
        """Start the process."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.upstream"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        self._control = Connection(self.port)

    def state(self, command: str = "state") -> dict[str, Any]:
        """Return its state: behaviours in progress, limits reached, and the last request."""
        self._control.send(request("GET", f"/control/{command}"))
        answer = self._control.read_answer()
        assert answer is not None
        state: dict[str, Any] = json.loads(answer.body)
        return state

    def drop_idle(self) -> None:
        """Close its idle connections."""
        self.state("drop")

    def stop(self) -> None:
        """End the process."""
        self._control.close()
        self._process.kill()
        self._process.communicate()


class Gateway:
    """Process of a gateway."""

    def __init__(self, config: Path, log: Path, descriptor_limit: int | None = None) -> None:
        """Start the process on a free port and wait until it serves."""
        self._log = log
        self._read_bytes = 0
        self.was_killed = False
        """Whether the gateway was killed because of its memory."""

        def limit() -> None:
            if descriptor_limit is not None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (descriptor_limit, descriptor_limit))

        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "router_service.cli", "serve"),
                    *("--config", str(config), "--port", "0"),
                ],
                cwd=ROOT,
                stdout=out,
                stderr=out,
                env={**os.environ, "PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"},
                preexec_fn=limit,  # noqa: PLW1509 - before any thread of the child's
            )
        self.pid = self._process.pid
        self._proc = Path(f"/proc/{self.pid}")
        wait_for(lambda: b"serving at" in log.read_bytes(), "the gateway serves", 60)
        address = log.read_bytes().partition(b"serving at http://127.0.0.1:")[2]
        self.port = int(address.partition(b"/")[0])
        threading.Thread(target=self._watch, daemon=True).start()

    def memory_bytes(self, field: str = "VmRSS") -> int:
        """Return the resident memory now, or by `VmHWM` its peak since `forget_peak`."""
        status = (self._proc / "status").read_text()
        return int(status.partition(f"{field}:")[2].split()[0]) * 1024

    def forget_peak(self) -> None:
        """Reset the peak of the resident memory (proc(5): clear_refs)."""
        (self._proc / "clear_refs").write_text("5")

    def descriptors(self) -> int:
        """Return the number of open files and sockets."""
        return len(list((self._proc / "fd").iterdir()))

    def new_log(self) -> bytes:
        """Return the log since the last call."""
        with self._log.open("rb") as log:
            log.seek(self._read_bytes)
            lines = log.read()
        self._read_bytes += len(lines)
        return lines

    def is_running(self) -> bool:
        """Return whether the process runs."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def _watch(self) -> None:
        while self.is_running():
            try:
                pages = int((self._proc / "statm").read_text().split()[1])
            except (OSError, IndexError):
                return
            if pages * resource.getpagesize() > KILL_BYTES:
                self.was_killed = True
                self._process.kill()
            time.sleep(0.01)


class Attack:
    """The connections of one attack."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._connections: list[Connection] = []

    def connect(self, *, receive_buffer_bytes: int | None = None) -> Connection:
        """Open a connection. It is closed at the end of the attack."""
        connection = Connection(self.target.port, receive_buffer_bytes=receive_buffer_bytes)
        self._connections.append(connection)
        return connection

    def end(self) -> None:
        """Send a correct request on each open connection, and close all."""
        for connection in self._connections:
            if connection.is_usable and not connection.has_ended():
                self.target.ask(connection)
            connection.close()

    def abandon(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            connection.close()


class Target:
    """A gateway with its upstreams."""

    def __init__(self, folder: Path, descriptor_limit: int | None = None) -> None:
        """Start the upstreams. The gateway starts with the first attack."""
        self._folder = folder
        self._descriptor_limit = descriptor_limit
        self._starts = itertools.count()
        self.upstream = Upstream()
        self._good_upstream = Upstream()
        self._gateway: Gateway | None = None

    @property
    def port(self) -> int:
        """Return the gateway's port."""
        return self.gateway.port

    @property
    def gateway(self) -> Gateway:
        """Return the gateway; after an attack that failed its test, it is a new process."""
        if self._gateway is None:
            index = next(self._starts)
            config = self._folder / f"gateway-{index}.yaml"
            config.write_text(
                yaml.safe_dump(settings_of(self.upstream.port, self._good_upstream.port))
            )
            log = self._folder / f"gateway-{index}.log"
            self._gateway = Gateway(config, log, self._descriptor_limit)
            with Connection(self.port) as connection:
                self._create_file(connection)
                for _ in range(3):  # fill caches
                    self.ask(connection)
                    self.ask_to_route(connection)
            self._drop_idle()
        return self._gateway

    def stop(self) -> None:
        """End all processes."""
        self._discard()
        self.upstream.stop()
        self._good_upstream.stop()

    def withstand(self, attack: Callable[[Attack], None]) -> None:
        """Run an attack and assert that it does no harm."""
        try:
            self._withstand(attack)
        except BaseException:
            self._discard()
            raise

    def ask(self, connection: Connection, model: str = PATIENT, key: str = CLIENT_KEY) -> None:
        """Send a correct request and assert that it gets the right answer."""
        nonce = new_nonce()
        fields = {"tools": TOOLS} if model == "switchcraft" else {}
        body = chat_body(model, user=nonce, **fields)
        connection.send(request("POST", CHAT, auth_headers(key, x_request_id=nonce), body))
        answer = connection.read_answer()
        assert answer is not None, "the gateway hung up on a good request"
        assert answer.status == 200, f"a good request got {answer.status}: {answer.body[:500]!r}"
        content = json.loads(answer.body)["choices"][0]["message"]["content"]
        assert content == nonce, f"a good request got another one's answer: {content[:100]}"

    def ask_to_route(self, connection: Connection) -> None:
        """Send a routed request with the other client's key."""
        self.ask(connection, "switchcraft", OTHER_KEY)

    def _create_file(self, connection: Connection) -> None:
        headers = auth_headers(x_request_id=FILE_ID, content_type="application/json")
        connection.send(request("POST", "/v1/files", headers, b"{}"))
        answer = connection.read_answer()
        assert answer is not None
        assert answer.status == 200

    def _withstand(self, attack: Callable[[Attack], None]) -> None:
        gateway = self.gateway
        gateway.forget_peak()
        gateway.new_log()
        descriptors = gateway.descriptors()
        attackers = Attack(self)
        try:
            attack(attackers)
            self.wait_for_upstream()
            attackers.end()
            with Connection(self.port) as connection:
                self.ask(connection)
                self.ask_to_route(connection)
        except Exception as exc:
            if gateway.was_killed:
                raise AssertionError(f"the gateway took more than {KILL_BYTES} bytes") from exc
            raise
        finally:
            attackers.abandon()
        self._check_upstream()
        self._check_memory(gateway)
        self._check_descriptors(gateway, descriptors)
        self._check_log(gateway)

    def wait_for_upstream(self) -> None:
        """Wait until no behaviour of the upstream is in progress."""
        wait_for(lambda: not self.upstream.state()["playing"], "the gateway leaves its upstream", 8)

    def _check_upstream(self) -> None:
        self.wait_for_upstream()
        capped = self.upstream.state("forget")["capped"]
        assert not capped, f"the gateway read on and on: {capped}"

    def _check_memory(self, gateway: Gateway) -> None:
        peak_bytes = gateway.memory_bytes("VmHWM")
        assert not gateway.was_killed, f"the gateway took more than {KILL_BYTES} bytes"
        assert peak_bytes < MAX_MEMORY_BYTES, f"the gateway took {peak_bytes / 2**20:.0f} MB"

    def _check_descriptors(self, gateway: Gateway, before: int) -> None:
        def are_closed() -> bool:
            self._drop_idle()  # again, for requests that end meanwhile
            return gateway.descriptors() <= before

        wait_for(are_closed, "descriptors are closed")

    def _check_log(self, gateway: Gateway) -> None:
        log = gateway.new_log()
        lines = [
            line for line in log.splitlines() if b'"exception"' in line or b"Traceback" in line
        ]
        assert not lines, f"the gateway logged an exception: {lines[0][:9000].decode()}"
        assert_no_key(log, "the log")

    def _drop_idle(self) -> None:
        """Close the upstreams' idle connections, which the gateway would keep for 30 s."""
        self.upstream.drop_idle()
        self._good_upstream.drop_idle()

    def _discard(self) -> None:
        """Stop the gateway. The next attack gets a new one."""
        if self._gateway is not None:
            self._gateway.stop()
        self._gateway = None


def assert_no_key(output: bytes, where: str) -> None:
    """Assert that an output has neither the upstream's key nor its first 12 characters."""
    assert UPSTREAM_KEY[:12].encode() not in output, f"the upstream's key is in {where}"


def check_answer(answer: Answer) -> None:
    """Assert that an answer has no status 500, key, header of the upstream, or repeated header."""
    assert answer.status != 500, f"500: {answer.body[:500]!r}"
    assert_no_key(str(answer.headers).encode(), "an answer's headers")
    assert_no_key(answer.body, "an answer's body")
    names = {name for name, _ in answer.headers}
    assert not names & {"set-cookie", "location", "alt-svc", "server", "upgrade"}, names
    for name in ("content-type", "content-length", "x-switchcraft-model", "retry-after"):
        answer.header(name)


@contextmanager
def running_target(folder: Path, descriptor_limit: int | None = None) -> Iterator[Target]:
    """Yield a target; its processes end with the block."""
    target = Target(folder, descriptor_limit)
    try:
        yield target
    finally:
        target.stop()
