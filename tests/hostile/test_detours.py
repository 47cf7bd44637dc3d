"""Requests that try to change their destination or their purpose."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import httpx
import pytest

from tests.bodies import BODY, CHAT
from tests.hostile.conftest import API_KEY
from tests.serving import WAIT_S, Sandbox


@contextmanager
def listening() -> Iterator[tuple[str, socket.socket]]:
    """Yield an attacker's address and its socket."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1", listener


@pytest.mark.parametrize("model", ["switchcraft", "large"])
@pytest.mark.parametrize("place", ["body", "headers", "query"])
def test_request_cannot_choose_the_upstream_address(
    http: httpx.Client, sandbox: Sandbox, model: str, place: str
) -> None:
    """The gateway never connects to an address from a body, header or query (CVE-2024-6587)."""
    with listening() as (address, listener):
        names = ("api_base", "base_url", "x-api-base", "api_key", "x-forwarded-host", "forwarded")
        detour = dict.fromkeys(names, address)
        response = http.post(
            CHAT,
            json=BODY | {"model": model} | (detour if place == "body" else {}),
            headers=detour if place == "headers" else {},
            params=detour if place == "query" else {},
        )
        assert response.status_code == 200
        assert response.headers["x-sandbox"] == "true"
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert not any("base" in name for name in sandbox.last_headers())


@pytest.mark.parametrize(
    "host", ["x/healthz?", "x/healthz", "127.0.0.1/healthz#", "healthz", "@/healthz", "x?/healthz"]
)
def test_host_header_makes_no_path_public(url: str, host: str) -> None:
    """A path in the Host header does not make another path public (CVE-2026-48710)."""
    lines = f"GET /v1/models HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
    assert status(url, lines) in {400, 401}


def test_absolute_request_target_is_authorized_by_its_path(url: str) -> None:
    """A request line with an absolute address is authorized by the path that is routed."""
    for target in ("http://x/healthz/../v1/models", "http://healthz/v1/models"):
        lines = f"GET {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        assert status(url, lines) in {400, 401, 404}


def test_partial_or_extended_key_is_refused(url: str) -> None:
    """A part of a key, or a key with a suffix, is refused (CVE-2026-35030)."""
    for key in (API_KEY[:-1], API_KEY[:20], API_KEY + "x", API_KEY.swapcase()):
        for _ in range(2):
            headers = {"authorization": f"Bearer {key}"}
            assert httpx.get(url + "/v1/models", headers=headers).status_code == 401
        good = httpx.get(url + "/v1/models", headers={"authorization": f"Bearer {API_KEY}"})
        assert good.status_code == 200


def status(url: str, lines: str) -> int:
    """Send a request exactly as given and return the answer's status."""
    address = urlsplit(url)
    with socket.create_connection(
        (str(address.hostname), address.port or 80), timeout=WAIT_S
    ) as line:
        line.sendall(lines.encode())
        return int(line.makefile("rb").readline().split()[1])
