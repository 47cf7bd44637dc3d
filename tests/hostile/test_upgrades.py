"""Protocol upgrades from clients and proxies: a real nginx and the JDK's client."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from router_service.telemetry.logs import FIELDS
from tests.bodies import BODY, CHAT
from tests.debian import program
from tests.hostile.conftest import API_KEY
from tests.hostile.test_bad_input import is_whole
from tests.serving import WAIT_S, wait_for

NGINX = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr;
events {{ worker_connections 64; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  map $http_upgrade $connection_upgrade {{ default upgrade; "" close; }}
  server {{
    listen 127.0.0.1:{port};
    location /v1/embeddings {{ return 403; }}
    location / {{
      proxy_pass {gateway};
      proxy_http_version 1.1;
      proxy_set_header Upgrade $http_upgrade;
      proxy_set_header Connection $connection_upgrade;
    }}
  }}
}}
"""


@pytest.fixture(scope="module")
def nginx(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """Run nginx with the usual WebSocket lines and a forbidden path; yield its address."""
    folder = tmp_path_factory.mktemp("nginx")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, port=port, gateway=url))
    command = [str(program("nginx")), "-e", "stderr", "-p", str(folder), "-c", str(config)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        try:
            wait_for(lambda: listens(port), "nginx listens")
            yield "127.0.0.1", port
        finally:
            server.terminate()


def listens(port: int) -> bool:
    """Return whether something accepts connections at a port."""
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def smuggled_answers(address: tuple[str, int], *, in_one_packet: bool) -> bytes:
    """Send an upgrade request whose body is another request; return the answer."""
    inner = f"POST /v1/embeddings HTTP/1.1\r\nhost: h\r\nx-api-key: {API_KEY}\r\n"
    body = json.dumps({"model": "large", "input": "x"})
    inner += f"content-length: {len(body)}\r\n\r\n{body}"
    outer = (
        f"POST {CHAT} HTTP/1.1\r\nhost: h\r\nx-api-key: {API_KEY}\r\nconnection: upgrade\r\n"
        f"upgrade: websocket\r\ncontent-length: {len(inner)}\r\n\r\n"
    )
    answer = b""
    with socket.create_connection(address, timeout=WAIT_S) as connection:
        connection.sendall((outer + inner if in_one_packet else outer).encode())
        if not in_one_packet:
            connection.sendall(inner.encode())
        while not is_whole(answer.lower()) and (part := connection.recv(65536)):
            answer += part
    return answer


@pytest.mark.parametrize("in_one_packet", [True, False])
def test_no_request_is_smuggled_through_nginx(
    nginx: tuple[str, int], url: str, caplog: pytest.LogCaptureFixture, *, in_one_packet: bool
) -> None:
    """The body of an upgrade request is never served as a request, even for a forbidden path."""
    with caplog.at_level(logging.INFO, "switchcraft.request"):
        answer = smuggled_answers(nginx, in_one_packet=in_one_packet)
        httpx.get(f"{url}/v1/models", headers={"x-api-key": API_KEY})
        wait_for(lambda: len(statuses(caplog)) >= 2, "both requests are logged")
    assert answer.startswith(b"HTTP/1.1 400 ")  # the inner request is not JSON
    assert statuses(caplog) == [400, 200]


def statuses(caplog: pytest.LogCaptureFixture) -> list[int]:
    """Return the statuses of all requests in the gateway's log."""
    records = (record for record in caplog.records if record.name == "switchcraft.request")
    return [getattr(record, FIELDS)["status"] for record in records]


def test_upgrade_request_through_nginx_is_answered(nginx: tuple[str, int]) -> None:
    """A good request that also asks for an upgrade is answered."""
    body = json.dumps(BODY)
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: h\r\nx-api-key: {API_KEY}\r\nconnection: upgrade\r\n"
        f"upgrade: websocket\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(nginx, timeout=10) as connection:
        connection.sendall((head + body).encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_jdk_http2_upgrade_request_keeps_its_body(url: str) -> None:
    """Java's `HttpClient` asks for HTTP/2 with its first request, whose body must not be lost."""
    source = Path(__file__).with_name("UpgradingClient.java")
    address = urlsplit(url)
    target = f"http://{address.netloc}{CHAT}"
    java = program("java")
    command = [str(java), str(source), target, API_KEY, json.dumps(BODY)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    lines = ended.stdout.splitlines()
    assert [line[:4] for line in lines] == ["200 ", "200 "], ended.stderr
    assert all(json.loads(line[4:])["choices"] for line in lines)
