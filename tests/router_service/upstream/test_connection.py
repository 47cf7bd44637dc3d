"""Connections to an upstream: limits on what it can send, what HTTP allows, and timeouts."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import httpx
import pytest
import trustme
import uvloop

from router_service.core.errors import UpstreamError
from router_service.settings import Timeouts
from router_service.upstream.connection import (
    MAX_HEAD_BYTES,
    Connection,
    HttpRequest,
    Proxy,
    RawHeaders,
    Transport,
    transport_to,
)
from tests.attacks import CHUNK_SIZES, LENGTHS

pytestmark = pytest.mark.anyio

Play = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


HEAD = b"HTTP/1.1 200 OK\r\n"


CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


OK = HEAD + b"content-length: 2\r\n\r\n{}"


async def read(connection: Connection) -> tuple[int, bytes]:
    """Return the status and the body of what was fed to a connection."""
    await connection.read_head()
    body = b""
    while part := await connection.read():
        body += part
    return connection.status, body


def exchange(data: bytes, packet_bytes: int) -> tuple[int, bytes, int]:
    """Feed an answer in packets, and return status, body, and how much was accepted."""

    async def run() -> tuple[int, bytes, int]:
        connection, taken = Connection(), 0
        await connection.send("m", b"", b"", None)
        while taken < len(data) and not connection.is_stale:
            connection.data_received(data[taken : taken + packet_bytes])
            taken += packet_bytes
        try:
            return *await asyncio.wait_for(read(connection), 30), taken
        except UpstreamError as exc:
            exc.args = (*exc.args, taken)
            raise

    return asyncio.run(run())


@asynccontextmanager
async def upstream(play: Play) -> AsyncIterator[httpx.URL]:
    """Run an upstream that handles each connection with `play`, and yield its address."""
    server = await asyncio.start_server(play, "127.0.0.1", 0)
    try:
        yield httpx.URL(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1")
    finally:
        server.close()


@asynccontextmanager
async def transport_of(url: httpx.URL, max_connections: int = 5) -> AsyncIterator[Transport]:
    """Yield the connections to an upstream."""
    transport = Transport(url, httpx.create_ssl_context(), max_connections)
    try:
        yield transport
    finally:
        await transport.aclose()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """Read a request, and return its head."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    await reader.readexactly(length)
    return head


def answering(*answers: bytes) -> Play:
    """Return an upstream that answers each request of a connection in turn, then hangs up.

    The gateway may hang up before.
    """

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            for answer in answers:
                await read_request(reader)
                writer.write(answer)
            await writer.drain()
        writer.close()

    return play


def outbound(
    url: httpx.URL,
    headers: RawHeaders | None = None,
    body: bytes = b"hi",
    timeouts: Timeouts | None = None,
) -> HttpRequest:
    """Return a request."""
    return HttpRequest("m", "", str(url), body, timeouts or Timeouts(), headers=headers or [])


async def whole(transport: Transport, connection: Connection) -> bytes:
    """Return a body to its end, and release its connection."""
    body = bytearray()
    while part := await connection.read():
        body += part
    transport.release(connection)
    return bytes(body)


async def asked(*answers: bytes) -> tuple[int, bytes]:
    """Return the status and the body of the answer to one request."""
    async with upstream(answering(*answers)) as url, transport_of(url) as transport:
        answer = await transport.send(outbound(url))
        return answer.status, await whole(transport, answer)


@pytest.mark.parametrize(
    "answer",
    [
        OK,
        b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + OK,
        CHUNKED + b"1\r\n{\r\n1;x=y\r\n}\r\n0\r\ntrailer: 1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}",
    ],
)
def test_every_kind_of_body_end_is_supported(answer: bytes) -> None:
    """Bodies end by a length, by chunks with trailers, or by the connection's end."""
    assert asyncio.run(asked(answer)) == (200, b"{}")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{}",
        CHUNKED + b"2\r\n{}\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        *(HEAD + b"content-length: %b\r\n\r\nhello" % length for length in LENGTHS.values()),
        *(CHUNKED + size + b"\r\nhello\r\n0\r\n\r\n" for size in CHUNK_SIZES.values()),
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n{}",
        b"SSH-2.0-OpenSSH_9\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * (MAX_HEAD_BYTES + 1),
    ],
)
def test_incomplete_or_invalid_http_is_an_error(answer: bytes) -> None:
    """Neither an answer that ends too early nor one that is not HTTP counts as a good one."""
    with pytest.raises(UpstreamError, match="broke the connection"):
        asyncio.run(asked(answer))


INFORMATIONAL = b"HTTP/1.1 103 Early Hints\r\n\r\n"


@pytest.mark.parametrize(
    ("start", "endless"),
    [
        (b"", INFORMATIONAL),
        (HEAD, b"a: b\r\n"),
        (HEAD + b"a: ", b"b" * 100),
        (CHUNKED + b"5;a=", b"x" * 100),
        (CHUNKED, b"1;a=" + b"x" * 100 + b"\r\n \r\n"),
        (CHUNKED + b"0\r\n", b"a: b\r\n"),
    ],
    ids=["informational", "headers", "header", "extension", "chunks", "trailers"],
)
def test_what_surrounds_a_body_is_limited(start: bytes, endless: bytes) -> None:
    """However an upstream goes on without sending a body, the gateway soon hangs up."""
    data = start + endless * (1_000_000 // len(endless))
    with pytest.raises(UpstreamError, match="broke the connection") as caught:
        exchange(data, 5000)
    assert caught.value.args[-1] < 300_000


async def test_an_answer_may_precede_the_end_of_its_request() -> None:
    """An upstream that answers without reading the whole body is heard at once.

    Its connection is not used again.
    """
    is_over = asyncio.Event()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(OK)
        await is_over.wait()
        writer.close()

    async with upstream(play) as url, transport_of(url) as transport:
        request = outbound(url, body=b"x" * 8_000_000, timeouts=Timeouts(write_s=3600))
        async with asyncio.timeout(60):
            answer = await transport.send(request)
        assert (answer.status, await whole(transport, answer)) == (200, b"{}")
        assert not answer.is_reusable
        is_over.set()


async def test_connection_is_reused_after_a_whole_answer() -> None:
    """Successive requests share a connection. One whose answer was not read is closed."""
    connections = 0

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await answering(OK, OK, OK)(reader, writer)

    seen = []
    async with upstream(play) as url, transport_of(url) as transport:
        for _ in range(2):
            await whole(transport, await transport.send(outbound(url)))
        seen.append(connections)
        left = await transport.send(outbound(url))
        transport.release(left)
        await whole(transport, await transport.send(outbound(url)))
    assert ([*seen, connections]) == [1, 2]


@pytest.mark.parametrize("late", [b"", OK])
async def test_stale_connections_are_not_reused(late: bytes) -> None:
    """A connection that was closed, or that received unexpected bytes, serves no other request."""
    async with upstream(answering(OK + late)) as url, transport_of(url) as transport:
        for _ in range(3):
            assert await whole(transport, await transport.send(outbound(url))) == b"{}"


async def test_waits_for_connections_and_writes_time_out() -> None:
    """Timeouts apply if all connections are in use, or if the upstream stops reading a body."""

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        await asyncio.sleep(60)
        writer.close()

    times = Timeouts(pool_s=0.05, write_s=0.1)
    async with upstream(play) as url, transport_of(url, 1) as transport:
        first = asyncio.create_task(transport.send(outbound(url)))
        await asyncio.sleep(0)
        with pytest.raises(UpstreamError, match="has no free connection"):
            await transport.send(outbound(url, timeouts=times))
        first.cancel()
        await asyncio.wait([first])
        with pytest.raises(UpstreamError, match="did not read the request in time"):
            await transport.send(outbound(url, body=b"x" * 50_000_000, timeouts=times))


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request of a connection with its own body."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % length)
            writer.write(await reader.readexactly(length))
            await writer.drain()
    except asyncio.IncompleteReadError:
        writer.close()


@asynccontextmanager
async def behind_tls(authority: trustme.CA, name: str) -> AsyncIterator[httpx.URL]:
    """Yield the address of an upstream with a certificate for a name."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(tls)
    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=tls)
    try:
        yield httpx.URL(f"https://localhost:{server.sockets[0].getsockname()[1]}/v1")
    finally:
        server.close()


@pytest.mark.parametrize(("name", "is_trusted"), [("localhost", False), ("other.example", True)])
async def test_certificate_must_be_trusted_and_match_the_host(name: str, is_trusted: bool) -> None:
    """An untrusted certificate and one for another host are refused."""
    authority = trustme.CA()
    tls = httpx.create_ssl_context()
    if is_trusted:
        authority.configure_trust(tls)
    async with behind_tls(authority, name) as url:
        transport = Transport(url, tls, 1)
        with pytest.raises(UpstreamError, match="certificate verify failed"):
            await transport.send(outbound(url))


def test_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """For http, the proxy gets the whole address. Hosts in `no_proxy` are contacted directly."""
    heads: list[bytes] = []

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await read_request(reader))
        writer.write(OK)
        writer.close()

    async def exchange() -> bytes:
        async with upstream(play) as proxy:
            monkeypatch.setenv("http_proxy", f"me:secret@{proxy.host}:{proxy.port}")
            monkeypatch.setenv("no_proxy", "127.0.0.1")
            direct = transport_to(str(proxy), httpx.create_ssl_context(), 1)
            await whole(direct, await direct.send(outbound(proxy)))
            origin = "http://upstream.example"
            transport = transport_to(origin, httpx.create_ssl_context(), 1)
            answer = await transport.send(outbound(httpx.URL(f"{origin}/v1/x")))
            body = await whole(transport, answer)
            await transport.aclose()
            return body

    assert asyncio.run(exchange()) == b"{}"
    direct_head, head = heads
    assert direct_head.startswith(b"POST /v1 HTTP/1.1\r\n")
    assert b"proxy-authorization" not in direct_head
    assert head.startswith(b"POST http://upstream.example/v1/x HTTP/1.1\r\n")
    assert b"host: upstream.example\r\n" in head
    assert b"proxy-authorization: Basic bWU6c2VjcmV0\r\n" in head


def tunnelling(heads: list[bytes]) -> Play:
    """Return a proxy that opens tunnels and records the requests for them."""

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        host, _, port = heads[-1].split(b" ")[1].rpartition(b":")
        theirs = await asyncio.open_connection(host.decode(), int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(pipe(reader, theirs[1]))
                group.create_task(pipe(theirs[0], writer))
        except* (ConnectionError, ssl.SSLError):
            writer.close()

    return play


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("is_proxy_encrypted", [False, True])
def test_https_goes_through_a_tunnel(
    run: Callable[[Awaitable[list[int]]], list[int]], is_proxy_encrypted: bool
) -> None:
    """The proxy sees only the host and its own credentials.

    Requests share the encrypted connection.
    """
    authority, heads, sizes = trustme.CA(), list[bytes](), [10, 3_000_000, 10]
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(server_tls)

    async def exchange() -> list[int]:
        trusting = ssl.create_default_context()
        authority.configure_trust(trusting)
        server = await asyncio.start_server(
            tunnelling(heads), "127.0.0.1", 0, ssl=server_tls if is_proxy_encrypted else None
        )
        scheme, port = "https" if is_proxy_encrypted else "http", server.sockets[0].getsockname()[1]
        proxy = Proxy(httpx.URL(f"{scheme}://me:p%40ss@localhost:{port}"))
        async with behind_tls(authority, "localhost") as url:
            transport = Transport(url, trusting, 1, proxy)
            requests = (outbound(url, body=bytes(size)) for size in sizes)
            got = [
                len(await whole(transport, await transport.send(request))) for request in requests
            ]
            await transport.aclose()
        server.close()
        return got

    assert run(exchange()) == sizes
    (head,) = heads
    assert head.startswith(b"CONNECT localhost:")
    assert b"proxy-authorization: Basic bWU6cEBzcw==\r\n" in head


def test_header_with_a_line_break_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """It could smuggle another header."""

    async def exchange() -> None:
        async with upstream(answering(OK)) as url, transport_of(url) as transport:
            for value in (b"a\r\nx: b", b"a\nb", b"a\rb", b"a\0b"):
                with pytest.raises(UpstreamError, match="headers are not valid"):
                    await transport.send(outbound(url, [(b"x-request-id", value)]))

    asyncio.run(exchange())
    assert not caplog.records
