"""Processor time of one small request to an upstream, by the HTTP client that sends it.

    pip install aiohttp httpx-aiohttp
    python benchmarks/upstream_client.py --out runs/upstream_client.json

Each client sends chat requests of a hundred bytes and reads the whole answers, one after another
over one kept-alive connection, on uvloop. `switchcraft` is the gateway's client
(`upstream/connection.py`); `transport` is the lower half of a client, with a new request object for
each. Clients that are not installed are skipped and listed. Contenders take turns; medians over
rounds (least to most).
"""

from __future__ import annotations

import argparse
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import orjson
import uvloop

from benchmarks.load import bodies
from benchmarks.load.processes import Program, free_port, running
from benchmarks.stamp import stamp
from router_service.settings import Timeouts
from router_service.upstream.connection import Address, HttpRequest, transport_to

Send = Callable[[], Awaitable[object]]

BODY = orjson.dumps({"model": bodies.MODEL, **bodies.small()})
HEADERS = {"content-type": "application/json", "authorization": "Bearer sk-1"}
RAW_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
OPTIONAL = ("aiohttp", "httpx_aiohttp")


def main() -> None:
    """Print a table, and write it as JSON if `--out` is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--requests", type=int, default=1000, help="requests of each client per round"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = (sys.executable, "-m", "benchmarks.load.upstream", str(port))
        upstream = Program(command, port, Path(folder) / "upstream.log", {})
        with running(upstream, next(bodies.framed(iter([bodies.small()]), bodies.MODEL, {}))):
            figures = uvloop.run(measure(port, arguments.requests, arguments.rounds))
    for name, values in figures.items():
        spread = f"({min(values):.3f} to {max(values):.3f})"
        print(f"{name:<24} {statistics.median(values):.3f} ms {spread}")
    missing = [name for name in OPTIONAL if find_spec(name) is None]
    print(f"not installed: {', '.join(missing)}" if missing else "")
    if arguments.out:
        row = {"cpu_ms": figures, **stamp("httpx", "httptools", "uvloop")}
        arguments.out.write_bytes(orjson.dumps(row, option=orjson.OPT_INDENT_2))


async def measure(port: int, requests: int, rounds: int) -> dict[str, list[float]]:
    """Return milliseconds of processor time per request, one value per round, by client."""
    figures: dict[str, list[float]] = {}
    async with AsyncExitStack() as opened:
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        clients = await contenders(url, opened)
        for _ in range(rounds + 1):  # the first one warms up
            for name, send in clients.items():
                start_s = time.process_time()
                for _ in range(requests):
                    await send()
                cpu_ms = (time.process_time() - start_s) * 1e3 / requests
                figures.setdefault(name, []).append(cpu_ms)
    return {name: values[1:] for name, values in figures.items()}


async def contenders(url: str, opened: AsyncExitStack) -> dict[str, Send]:
    """Return functions that send one request and read its answer, by client."""
    halves: list[httpx.AsyncBaseTransport] = [httpx.AsyncHTTPTransport()]
    clients = [await opened.enter_async_context(httpx.AsyncClient())]
    if find_spec("httpx_aiohttp") is not None:
        bridge = import_module("httpx_aiohttp")
        halves.append(await opened.enter_async_context(bridge.AiohttpTransport()))
        clients.append(await opened.enter_async_context(bridge.HttpxAiohttpClient()))
    found: dict[str, Send] = {"switchcraft": _ours(url)}
    for name, half, client in zip(("httpx", "httpx-aiohttp"), halves, clients, strict=False):
        found |= {name: _client(client, url), f"{name}, transport": _transport(half, url)}
    if find_spec("aiohttp") is not None:
        session = import_module("aiohttp").ClientSession()
        found["aiohttp"] = _aiohttp(await opened.enter_async_context(session), url)
    return found


def _ours(url: str) -> Send:
    transport = transport_to(url, ssl.create_default_context(), 1)
    timeouts = Timeouts()

    async def send() -> None:
        request = HttpRequest("POST", Address.of(url), RAW_HEADERS, BODY, timeouts)
        connection = await transport.send(request)
        while await connection.read():
            pass
        transport.release(connection)

    return send


def _client(client: httpx.AsyncClient, url: str) -> Send:
    return lambda: client.post(url, content=BODY, headers=HEADERS)


def _transport(transport: httpx.AsyncBaseTransport, url: str) -> Send:
    address = httpx.URL(url)

    async def send() -> None:
        request = httpx.Request("POST", address, headers=HEADERS, content=BODY)
        answer = await transport.handle_async_request(request)
        await answer.aread()
        await answer.aclose()

    return send


def _aiohttp(session: Any, url: str) -> Send:  # noqa: ANN401 - its package may be missing
    async def send() -> None:
        async with session.post(url, data=BODY, headers=HEADERS) as answer:
            await answer.read()

    return send


if __name__ == "__main__":
    main()
