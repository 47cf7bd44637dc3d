"""A gateway process between a malicious client and a malicious upstream.

`Target.withstand` runs an attack and asserts the properties that must hold for every attack: memory
is bounded, descriptors are closed, the log has no exception, no output has a key, and correct
requests get correct answers on every open connection.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.bodies import CHAT, TOOLS
from tests.drills.processes import GatewayProcess, gateway
from tests.hostile.raw import Answer, Connection, request
from tests.hostile.upstream import (
    BEHAVIOUR_HEADER,
    UPSTREAM_KEY,
    MaliciousUpstream,
    running_upstream,
)
from tests.serving import wait_for

MAX_MEMORY_BYTES = 432 * 1024 * 1024
"""`server.max_buffered_bytes` (192 MB) and 240 MB for the process itself, which takes about 200."""
KILL_BYTES = 1024 * 1024 * 1024
"""The gateway can have no more data than this, to protect the machine."""

CLIENT_KEY = "client-a-Kx81QzPwUy63MnBcVf29"
OTHER_KEY = "client-b-Jw72RtVsGe54LkHjPa09"
ADMIN_KEY = "admin-Fd45DsAqRo36Te27Wi18Zz77"

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


class GatewayUnderAttack:
    """Memory, descriptors and log of a gateway's process."""

    def __init__(self, process: GatewayProcess) -> None:
        self._process = process
        self._proc = Path(f"/proc/{process.process.pid}")
        self._read_bytes = 0
        self.port = int(process.url.rpartition(":")[2])

    def peak_bytes(self) -> int:
        """Return the peak of the resident memory since `forget_peak`."""
        status = (self._proc / "status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024

    def forget_peak(self) -> None:
        """Reset the peak of the resident memory (proc(5): clear_refs)."""
        (self._proc / "clear_refs").write_text("5")

    def descriptors(self) -> int:
        """Return the number of open files and sockets."""
        return len(list((self._proc / "fd").iterdir()))

    def new_log(self) -> bytes:
        """Return the log since the last call."""
        with self._process.log.open("rb") as log:
            log.seek(self._read_bytes)
            lines = log.read()
        self._read_bytes += len(lines)
        return lines


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

    def __init__(
        self,
        folder: Path,
        upstreams: tuple[MaliciousUpstream, MaliciousUpstream],
        descriptor_limit: int,
    ) -> None:
        """Take the malicious and the good upstream. The gateway starts with the first attack."""
        self._config = folder / "gateway.yaml"
        ports = (upstream.port for upstream in upstreams)
        self._config.write_text(yaml.safe_dump(settings_of(*ports)))
        self._command = ("prlimit", f"--data={KILL_BYTES}", f"--nofile={descriptor_limit}")
        self.upstream, self._good_upstream = upstreams
        self._gateway: GatewayUnderAttack | None = None
        self._running = ExitStack()

    @property
    def port(self) -> int:
        """Return the gateway's port."""
        return self.gateway.port

    @property
    def gateway(self) -> GatewayUnderAttack:
        """Return the gateway; after an attack that failed its test, it is a new process."""
        if self._gateway is None:
            process = self._running.enter_context(
                gateway(self._config, self._config.parent, prefix=self._command)
            )
            self._running.callback(process.process.kill)
            self._gateway = GatewayUnderAttack(process)
            with Connection(self.port) as connection:
                self._create_file(connection)
                for _ in range(3):  # fill caches
                    self.ask(connection)
                    self.ask_to_route(connection)
            self._drop_idle()
        return self._gateway

    def withstand(self, attack: Callable[[Attack], None]) -> None:
        """Run an attack and assert that it does no harm."""
        try:
            self._withstand(attack)
        except BaseException:
            self.stop()
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
            self.upstream.wait_until_left()
            attackers.end()
            with Connection(self.port) as connection:
                self.ask(connection)
                self.ask_to_route(connection)
        finally:
            attackers.abandon()
        self.upstream.wait_until_left()
        assert not self.upstream.capped, f"the gateway read on and on: {self.upstream.capped}"
        peak_bytes = gateway.peak_bytes()
        assert peak_bytes < MAX_MEMORY_BYTES, f"the gateway took {peak_bytes / 2**20:.0f} MB"
        self._check_descriptors(gateway, descriptors)
        self._check_log(gateway)

    def _check_descriptors(self, gateway: GatewayUnderAttack, before: int) -> None:
        def are_closed() -> bool:
            self._drop_idle()  # again, for requests that end meanwhile
            return gateway.descriptors() <= before

        wait_for(are_closed, "descriptors are closed")

    def _check_log(self, gateway: GatewayUnderAttack) -> None:
        log = gateway.new_log()
        lines = [
            line for line in log.splitlines() if b'"exception"' in line or b"Traceback" in line
        ]
        assert not lines, f"the gateway logged an exception: {lines[0][:9000].decode()}"
        assert_no_key(log, "the log")

    def _drop_idle(self) -> None:
        self.upstream.drop_idle()
        self._good_upstream.drop_idle()

    def stop(self) -> None:
        """Stop the gateway. The next attack gets a new one."""
        self._running.close()
        self._gateway = None
        self.upstream.capped.clear()


def assert_no_key(output: bytes, where: str) -> None:
    """Assert that an output has neither the upstream's key nor its first 12 characters."""
    assert UPSTREAM_KEY[:12].encode() not in output, f"the upstream's key is in {where}"


def check_answer(answer: Answer) -> None:
    """Assert that an answer has no status 500, key, header of the upstream, or repeated header."""
    assert answer.status != 500, f"500: {answer.body[:500]!r}"
    assert_no_key(str(answer.headers).encode(), "an answer's headers")
    assert_no_key(answer.body, "an answer's body")
    names = {name.lower() for name in answer.headers}
    assert not names & {"set-cookie", "location", "alt-svc", "server", "upgrade"}, names
    for name in ("content-type", "content-length", "x-switchcraft-model", "retry-after"):
        assert len(answer.headers.get_all(name, ())) < 2, f"{name} is repeated"


@contextmanager
def running_target(folder: Path, descriptor_limit: int = 4096) -> Iterator[Target]:
    """Yield a target; its processes end with the block."""
    with running_upstream() as malicious, running_upstream() as good:
        target = Target(folder, (malicious, good), descriptor_limit)
        try:
            yield target
        finally:
            target.stop()
