"""Overload: the gateway refuses excess requests at once and shares its capacity fairly by key."""

from __future__ import annotations

import select
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest
from pydantic import SecretStr

from router_service.core.errors import OverloadedError
from router_service.core.keys import new_key
from router_service.requests.limits import Slots
from router_service.serving.app import create_app
from router_service.settings import KeySettings, ServerSettings, Settings
from tests.bodies import BODY, CHAT
from tests.fakes import PROBABILITIES, FakeRouter
from tests.gateways import metric
from tests.serving import WAIT_S, Sandbox, connected, post_bytes, served, wait_for


@contextmanager
def limited(
    sandbox: Sandbox,
    server: ServerSettings,
    keys: KeySettings | None = None,
) -> Iterator[str]:
    """Serve a gateway with these limits."""
    settings = Settings.sandbox(sandbox.base_url, list(PROBABILITIES), server=server)
    settings = settings.model_copy(update={"keys": keys or KeySettings()})
    with served(create_app(settings, FakeRouter())) as url:
        yield url


def in_flight(url: str) -> float:
    """Return the gateway's own count of requests in flight."""
    with httpx.Client(base_url=url) as http:
        return metric(http, "switchcraft_requests_in_flight ")


def test_beyond_the_limit_requests_are_refused_at_once(sandbox: Sandbox) -> None:
    """They get 503 with Retry-After; probes and metrics answer; later requests succeed."""
    with limited(sandbox, ServerSettings(max_requests_in_flight=3)) as url:
        with ExitStack() as stack:
            for _ in range(3):
                stack.enter_context(connected(url, post_bytes(CHAT, BODY, x_sandbox="hang")))
            wait_for(lambda: in_flight(url) == 3, "three are in flight")
            response = httpx.post(url + CHAT, json=BODY)
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            assert response.json()["error"]["code"] == "overloaded"
            probes = [
                (ask, path) for ask in (httpx.get, httpx.head) for path in ("healthz", "readyz")
            ]
            assert [ask(f"{url}/{path}").status_code for ask, path in probes] == [200] * 4
            text = httpx.get(f"{url}/metrics").text
            assert (
                'switchcraft_refused_requests_total{cause="overload",reason="overloaded"} 1.0'
                in text
            )
            labels = 'model="none",policy="none",release="none",status="503"'
            assert f"switchcraft_requests_total{{{labels}}} 1.0" in text
        wait_for(lambda: in_flight(url) == 0, "they have left")
        assert httpx.post(url + CHAT, json=BODY).status_code == 200


def take(slots: Slots, caller: str | None, count: int, stack: ExitStack) -> int:
    """Take up to this many slots; return how many were free."""
    for taken in range(count):
        try:
            stack.enter_context(slots.take(caller))
        except OverloadedError:
            return taken
    return count


def test_busy_keys_leave_slots_to_other_keys() -> None:
    """One key gets three quarters of all slots; each further key gets a part of the rest."""
    slots = Slots(1000)
    with ExitStack() as stack:
        taken = [take(slots, name, 1000, stack) for name in "abc"]
    assert taken == [750, 188, 47]
    assert slots.in_flight == 0


@pytest.mark.parametrize(
    ("count", "size", "server"),
    [
        (20, 1, ServerSettings(max_requests_in_flight=20)),
        (20, 100_000, ServerSettings(max_buffered_bytes=3_000_000)),
    ],
    ids=["slots", "memory"],
)
def test_stalled_uploads_of_one_key_leave_room_for_others(
    sandbox: Sandbox, count: int, size: int, server: ServerSettings
) -> None:
    """Some of a key's endless uploads are refused with 429, and another key is served."""
    keys = {"a": new_key(), "b": new_key()}
    settings = KeySettings(api={name: SecretStr(key) for name, key in keys.items()})
    with limited(sandbox, server, keys=settings) as url, ExitStack() as stack:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: h\r\nx-api-key: {keys['a']}\r\n"
        stalled = f"{head}content-length: {size + 1}\r\n\r\n".encode() + b"x" * size
        uploads = [stack.enter_context(connected(url, stalled)) for _ in range(count)]
        refused, _, _ = select.select(uploads, [], [], WAIT_S)
        assert refused
        assert refused[0].recv(1000).startswith(b"HTTP/1.1 429")
        response = httpx.post(url + CHAT, json=BODY, headers={"x-api-key": keys["b"]})
        assert response.status_code == 200
