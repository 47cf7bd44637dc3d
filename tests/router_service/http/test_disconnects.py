"""A client that leaves takes its upstream call with it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx
import pytest

from router_service.core.messages import Conversation
from router_service.core.stages import Timer
from router_service.http.app import create_app
from router_service.router import Prediction
from router_service.settings import ServerSettings, Settings
from tests.bodies import BODY, CHAT
from tests.fakes import FakeRouter
from tests.serving import Sandbox, served, wait_for


@contextmanager
def asking(url: str, faults: str, *, stream: bool) -> Iterator[socket.socket]:
    """Send a chat request over a connection of its own, and yield that."""
    address = urlsplit(url)
    body = json.dumps(BODY | {"stream": stream}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nx-sandbox: {faults}\r\n"
    with socket.create_connection((address.hostname, address.port), timeout=5) as connection:
        connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        yield connection


def disconnects(http: httpx.Client) -> float:
    """Return how many clients have left, by the gateway's own count."""
    lines = http.get("/metrics").text.splitlines()
    (line,) = [x for x in lines if x.startswith("switchcraft_client_disconnects_total ")]
    return float(line.split()[1])


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_before_the_first_byte(
    http: httpx.Client,
    gateway_url: str,
    sandbox: Sandbox,
    stream: bool,
) -> None:
    """The upstream's work is cancelled while it has not answered yet, and the client is counted."""
    before, counted = sandbox.stats(), disconnects(http)
    with asking(gateway_url, "hang", stream=stream):
        wait_for(lambda: sandbox.stats()["in_flight"] > before["in_flight"], "the call is made")
    wait_for(lambda: sandbox.stats()["cancelled"] == before["cancelled"] + 1, "it is cancelled")
    wait_for(lambda: disconnects(http) == counted + 1, "it is counted")


def test_leaving_in_the_middle_of_a_stream(
    http: httpx.Client, gateway_url: str, sandbox: Sandbox
) -> None:
    """The upstream's work is cancelled between two events, and the client is counted."""
    before, counted = sandbox.stats(), disconnects(http)
    with asking(gateway_url, "chunk_delay_s=60", stream=True) as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    wait_for(lambda: sandbox.stats()["cancelled"] == before["cancelled"] + 1, "it is cancelled")
    wait_for(lambda: disconnects(http) == counted + 1, "it is counted")


def test_leaving_while_the_request_is_sent(http: httpx.Client, gateway_url: str) -> None:
    """A client that leaves with half of its body sent is counted, and nobody is asked."""
    counted = disconnects(http)
    address = urlsplit(gateway_url)
    with socket.create_connection((address.hostname, address.port), timeout=5) as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n"
        connection.sendall(head.encode() + b"{")
    wait_for(lambda: disconnects(http) == counted + 1, "it is counted")


def test_many_that_leave_do_not_wear_out_the_pool(
    http: httpx.Client, gateway_url: str, sandbox: Sandbox
) -> None:
    """After many cancelled calls, requests are served as before."""
    before = sandbox.stats()
    for _ in range(20):
        with asking(gateway_url, "hang", stream=True):
            pass
    wait_for(lambda: sandbox.stats()["in_flight"] == before["in_flight"], "all are cancelled")
    assert http.post(CHAT, json=BODY).status_code == 200


class PausedRouter(FakeRouter):
    """Decides once it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.may_decide = threading.Event()

    def predict(self, conversation: Conversation, timer: Timer | None = None) -> Prediction:
        """Wait, and decide."""
        self.may_decide.wait(10)
        return super().predict(conversation, timer)


def test_leaving_before_a_decision_is_made(sandbox: Sandbox) -> None:
    """Who waits for a decision, or whose decision is made, frees its place at once."""
    router = PausedRouter()
    server = ServerSettings(decision_threads=1)
    settings = Settings.sandbox(sandbox.base_url, list(router.probabilities), server=server)
    before = sandbox.stats()
    with (
        served(create_app(settings, router)) as url,
        httpx.Client(base_url=url, timeout=10) as http,
    ):

        def gauge(name: str) -> float:
            lines = http.get("/metrics").text.splitlines()
            return next(float(x.split()[1]) for x in lines if x.startswith(f"switchcraft_{name} "))

        with asking(url, "", stream=False):
            wait_for(lambda: gauge("requests_in_flight") == 1, "the first is decided")
            with asking(url, "", stream=True):
                wait_for(lambda: gauge("decisions_queued") == 1, "the second waits")
            wait_for(lambda: gauge("decisions_queued") == 0, "the second waits no more")
            wait_for(lambda: gauge("requests_in_flight") == 1, "and takes no slot")
        wait_for(lambda: gauge("requests_in_flight") == 0, "nor does the first")
        wait_for(lambda: disconnects(http) == 2, "both are counted")
        router.may_decide.set()
        assert http.post(CHAT, json=BODY).status_code == 200
    assert sandbox.stats()["requests"] == before["requests"] + 1
