"""Connections that wait are accepted together, and none is closed unheard."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

import pytest

from router_service.serving.server import Acceptor
from tests.serving import wait_for_async

pytestmark = pytest.mark.anyio

CLIENTS = 50


class Connections(set[asyncio.BaseTransport]):
    """The open connections of an acceptor."""

    def protocol(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        opened = self

        class Connection(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                opened.add(transport)

        return Connection()


@asynccontextmanager
async def accepting(most_at_once: int) -> AsyncIterator[Connections]:
    """Accept the connections of clients that have connected before; yield those that are open."""
    connections = Connections()
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=CLIENTS))
        for _ in range(CLIENTS):
            stack.enter_context(socket.create_connection(listener.getsockname()))
        acceptor = Acceptor([listener], connections.protocol, most_at_once)
        yield connections
        acceptor.close()
        await acceptor.wait_closed()
        for transport in connections:
            transport.close()


@contextmanager
def no_free_descriptor() -> Iterator[None]:
    """Let the process open no further file while the block runs, whatever else closes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("most_at_once", [10, CLIENTS])
async def test_waiting_connections_are_accepted_in_few_iterations(most_at_once: int) -> None:
    """An iteration of the loop accepts as many connections as it may.

    Opening an accepted connection takes two more iterations.
    """
    async with accepting(most_at_once) as connections:
        iterations = 0
        while len(connections) < CLIENTS:
            await asyncio.sleep(0)
            iterations += 1
        assert iterations <= CLIENTS / most_at_once + 4


async def test_connections_wait_while_no_descriptor_is_free() -> None:
    """A process without free file descriptors closes no waiting connection."""
    async with accepting(CLIENTS) as connections:
        with no_free_descriptor():
            await asyncio.sleep(0.01)
            assert not connections

        async def all_are_accepted() -> bool:
            return len(connections) == CLIENTS

        await wait_for_async(all_are_accepted, "every client is accepted")
