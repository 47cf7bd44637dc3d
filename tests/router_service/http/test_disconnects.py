"""When a client disconnects, its upstream call is cancelled."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from router_service.apis.conversation import Conversation
from router_service.core.resources import Timer
from router_service.router import Prediction
from router_service.settings import ServerSettings, Settings
from tests.bodies import BODY, CHAT
from tests.fakes import FakeRouter
from tests.gateways import gateway_client, metric
from tests.serving import WAIT_S, Sandbox, connected, post_bytes, wait_for


@contextmanager
def asking(url: str, faults: str, *, stream: bool) -> Iterator[socket.socket]:
    """Send a chat request over a new connection, and yield the connection."""
    body = BODY | {"stream": stream}
    with connected(url, post_bytes(CHAT, body, x_sandbox=faults)) as connection:
        yield connection


def disconnects(http: httpx.Client) -> float:
    """Return the gateway's own count of disconnected clients."""
    lines = http.get("/metrics").text.splitlines()
    left = [x for x in lines if x.startswith("switchcraft_requests_total{") and '"499"' in x]
    return sum(float(line.split()[1]) for line in left)


@pytest.mark.parametrize(
    ("faults", "stream"), [("hang", False), ("hang", True), ("chunk_delay_s=60", True)]
)
def test_disconnect_cancels_the_upstream_call(
    http: httpx.Client, gateway_url: str, sandbox: Sandbox, faults: str, stream: bool
) -> None:
    """It is cancelled before the first byte or between two events, and the client is counted."""
    before, counted = sandbox.stats(), disconnects(http)
    with asking(gateway_url, faults, stream=stream) as connection:
        if faults == "hang":
            wait_for(lambda: sandbox.stats()["in_flight"] > before["in_flight"], "it is asked")
        else:
            assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    wait_for(lambda: sandbox.stats()["cancelled"] == before["cancelled"] + 1, "it is cancelled")
    wait_for(lambda: disconnects(http) == counted + 1, "it is counted")


class PausedRouter(FakeRouter):
    """Router that decides when a test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_decide = threading.Event()

    def predict(self, conversation: Conversation, timer: Timer | None = None) -> Prediction:
        """Wait, then decide."""
        self.may_decide.wait(WAIT_S)
        return super().predict(conversation, timer)


def test_disconnect_before_the_decision_frees_the_slot(sandbox: Sandbox) -> None:
    """The slot is freed at once, whether the decision is queued or in progress."""
    router = PausedRouter()
    server = ServerSettings(decision_threads=1, max_decision_wait_s=WAIT_S)
    settings = Settings.sandbox(sandbox.base_url, list(router.probabilities), server=server)
    before = sandbox.stats()
    with gateway_client(settings, router) as http:

        def in_flight() -> float:
            return metric(http, "switchcraft_requests_in_flight ")

        with asking(str(http.base_url), "", stream=False):
            wait_for(lambda: in_flight() == 1, "the first is decided")
            with asking(str(http.base_url), "", stream=True):
                wait_for(lambda: in_flight() == 2, "the second waits")
            wait_for(lambda: in_flight() == 1, "the second takes no slot")
        wait_for(lambda: in_flight() == 0, "nor does the first")
        wait_for(lambda: disconnects(http) == 2, "both are counted")
        router.may_decide.set()
        assert http.post(CHAT, json=BODY).status_code == 200
    assert sandbox.stats()["requests"] == before["requests"] + 1
