"""Records and shared state of a gateway with several workers, in the memory of their parent.

The parent serves a Unix socket in a directory that only its user can enter, and both ends run the
same program, so messages are pickled: a request is a command with its arguments, a reply is the
result. Replies come in the order of the requests, so a worker may send requests before it has the
replies to earlier ones.

If the parent ends, its workers shut down, because nothing would replace a worker that ends. If the
parent does not answer in time, operations raise StoreError, as those of Redis do.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Concatenate, ParamSpec, TypeVar

from router_service.core.errors import ConfigError, StoreError
from router_service.store.memory import MemoryStore
from router_service.store.store import Correction, Store, StoreLimits, fits

TIMEOUT_S = 0.2
"""Longest wait for the parent, which answers within 0.06 ms at the median and 0.5 ms at P99. A
longer wait counts as an outage."""

SOCKET = "state.sock"
"""Name of the socket in the directory that the workers share."""

_SIZE = struct.Struct("!I")
"""What precedes a message: its size in bytes."""

P = ParamSpec("P")
T = TypeVar("T")


def _asked_of_parent(
    operation: Callable[Concatenate[MemoryStore, P], Awaitable[T]],
) -> Callable[Concatenate[ParentStore, P], Coroutine[Any, Any, T]]:
    """Return an operation of the parent's memory as one that a worker asks the parent for.

    It takes its arguments by position only, as they are sent.
    """
    command = operation.__name__

    async def ask(self: ParentStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        assert not kwargs  # noqa: S101 - for types; `P` has both kinds of arguments
        reply: T = await self._ask(command, *args)
        return reply

    return ask


class ParentStore(Store):
    """The memory of the workers' parent process, which has the limits of its own configuration.

    The parent frees the slots of a worker when its connection is closed.
    """

    def __init__(self, directory: str | Path) -> None:
        """Connect on first use to the parent's socket in the directory."""
        self._socket = Path(directory) / SOCKET
        self._connecting = asyncio.Lock()
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._replies: deque[asyncio.Future[Any]] = deque()
        """The replies that are still to come, in the order of their requests."""

    put = _asked_of_parent(MemoryStore.put)
    add = _asked_of_parent(MemoryStore.add)
    get = _asked_of_parent(MemoryStore.get)
    cool_downs = _asked_of_parent(MemoryStore.cool_downs)
    is_rejected = _asked_of_parent(MemoryStore.is_rejected)
    cool_down = _asked_of_parent(MemoryStore.cool_down)
    reject = _asked_of_parent(MemoryStore.reject)
    take = _asked_of_parent(MemoryStore.take)
    settle = _asked_of_parent(MemoryStore.settle)

    async def aclose(self) -> None:
        """Close the connection."""
        if self._reading is not None:
            self._reading.cancel()

    async def _ask(self, command: str, *arguments: object) -> Any:  # noqa: ANN401 - the reply
        """Send a request and return the reply; raises StoreError."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                writer = self._writer or await self._connect()
                reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                self._replies.append(reply)
                writer.write(encode((command, *arguments)))
                return await reply
        except OSError as exc:
            operation = f"carry out {command!r}"
            problem = f"the parent of the workers is unreachable ({type(exc).__name__})"
            raise StoreError(operation, problem) from exc

    async def _connect(self) -> asyncio.StreamWriter:
        async with self._connecting:
            if self._writer is None:
                reader, self._writer = await asyncio.open_unix_connection(self._socket)
                self._reading = asyncio.create_task(self._read(reader, self._writer))
            return self._writer

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Receive replies until the connection is closed."""
        try:
            while True:
                message = await _receive(reader)
                reply = self._replies.popleft()
                if not reply.done():  # a reply that is too late is ignored
                    reply.set_result(message)
        except (OSError, EOFError):
            pass  # the requests that wait fail, and the next one connects again
        finally:
            self._writer = None
            writer.close()
            for reply in self._replies:
                if not reply.done():
                    reply.set_exception(ConnectionResetError("the connection was closed"))
            self._replies.clear()


@asynccontextmanager
async def serve_workers(limits: StoreLimits) -> AsyncIterator[Path]:
    """Serve the shared state while the block runs, and yield the directory of the socket.

    Raises ConfigError if the socket cannot be created.
    """
    store = MemoryStore(limits)
    async with AsyncExitStack() as stack:
        try:
            folder = TemporaryDirectory(prefix="switchcraft-workers-", ignore_cleanup_errors=True)
            path = Path(stack.enter_context(folder))
            server = await asyncio.start_unix_server(partial(_serve, store), path / SOCKET)
        except OSError as exc:
            problem = (
                f"no Unix socket can be created in a temporary directory: {exc}; set it to a "
                "writable directory with a short path"
            )
            raise ConfigError("the environment", "TMPDIR", problem) from exc
        stack.callback(server.close)
        yield path


async def _serve(
    store: MemoryStore, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Carry out the requests of one connection until it is closed, and then free its slots."""
    held: set[Correction] = set()
    try:
        while True:
            command, *arguments = await _receive(reader)
            reply = await getattr(store, command)(*arguments)
            if command == "take" and fits(arguments[1], reply):
                holder, demands = arguments
                slots = (each.name for each in demands if each.cost_us is None)
                held.update(Correction(name, None, holder) for name in slots)
            elif command == "settle":
                held.difference_update(arguments[0])
            writer.write(encode(reply))
    except (OSError, EOFError):
        pass  # the worker has ended
    finally:
        writer.close()
        store.limits_in_use.settle_now(held)


def encode(message: object) -> bytes:
    """Return a message as bytes, after its size."""
    body = pickle.dumps(message)
    return _SIZE.pack(len(body)) + body


async def _receive(reader: asyncio.StreamReader) -> Any:  # noqa: ANN401 - a request or a reply
    """Return the next message; raises IncompleteReadError, an EOFError, at the end."""
    (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
    return pickle.loads(await reader.readexactly(size))  # noqa: S301 - of our own processes
