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
import time
from collections import deque
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic

from router_service.core.decision_record import Storable
from router_service.core.errors import ConfigError, StoreError
from router_service.store.backends import (
    SLOT_TTL_S,
    Backend,
    Correction,
    LimitDemand,
    R,
    Snapshot,
    StoreLimits,
    fits,
)
from router_service.store.memory import ExpiringMap, MemoryLimits, MemorySharedState

TIMEOUT_S = 0.2
"""Longest wait for the parent, which answers within 0.06 ms at the median and 0.5 ms at P99. A
longer wait counts as an outage."""

SOCKET = "state.sock"
"""Name of the socket in the directory that the workers share."""

_SIZE = struct.Struct("!I")
"""What precedes a message: its size in bytes."""


class ParentBackend(Backend):
    """The memory of the workers' parent process, which has the limits of its own configuration."""

    def __init__(self, directory: str | Path) -> None:
        """Connect on first use to the parent's socket in the directory."""
        self._directory = Path(directory)

    def records(self, kind: type[R]) -> ParentRecords[R]:
        """Return the store for one kind of record."""
        return ParentRecords(_Parent(self._directory), kind)

    def shared_state(self) -> ParentSharedState:
        """Return the state that all workers share."""
        return ParentSharedState(_Parent(self._directory))

    def limit_store(self) -> ParentLimits:
        """Return the rates and slots that all workers use."""
        return ParentLimits(_Parent(self._directory))

    async def ping(self) -> str:
        """Ask the parent for nothing, and return that it answers."""
        parent = _Parent(self._directory)
        try:
            await parent.ask("read", ())
        finally:
            await parent.aclose()
        return "answers"


class ParentRecords(Generic[R]):
    """Store for records of one kind; every operation raises StoreError without the parent."""

    def __init__(self, parent: _Parent, kind: type[R]) -> None:
        self._parent = parent
        self._kind = kind
        self.aclose = parent.aclose

    async def put(self, record: Storable) -> None:
        """Store a record."""
        await self._keep("put", record)

    async def add(self, record: Storable) -> bool:
        """Store a record in one step if its id is new, and return whether it was stored."""
        return await self._keep("add", record)

    async def get(self, record_id: str) -> R | None:
        """Return a record, or None."""
        found = await self._parent.ask("get", self._kind.kind, record_id)
        return None if found is None else self._kind.model_validate_json(found)

    async def _keep(self, command: str, record: Storable) -> bool:
        contents = record.id, record.stored_json(), record.caller
        return bool(await self._parent.ask(command, self._kind.kind, *contents))


class ParentSharedState:
    """State that all workers share; every operation raises StoreError without the parent.

    It never contains a publication: workers read the pointer's file, and a pointer in Redis is read
    from Redis.
    """

    def __init__(self, parent: _Parent) -> None:
        self._parent = parent
        self.aclose = parent.aclose

    async def read(self, deployment_ids: Collection[str]) -> Snapshot:
        """Return the cool-downs of these deployments."""
        found: Snapshot = await self._parent.ask("read", tuple(deployment_ids))
        return found

    async def is_rejected(self, release_key: str) -> bool:
        """Return whether a worker has rejected a release."""
        return bool(await self._parent.ask("is_rejected", release_key))

    async def cool_down(self, deployment_id: str, duration_s: float) -> None:
        """Start a cool-down, or extend one that ends earlier."""
        await self._parent.ask("cool_down", deployment_id, duration_s)

    async def reject(self, release_key: str, reason: str) -> None:
        """Record a rejection."""
        await self._parent.ask("reject", release_key, reason)


class ParentLimits:
    """Rates and slots that all workers use; every operation raises StoreError without the parent.

    The parent frees the slots of a worker at once when its connection is closed.
    """

    def __init__(self, parent: _Parent) -> None:
        self._parent = parent
        self.aclose = parent.aclose

    async def take(self, holder: str, demands: Sequence[LimitDemand]) -> Sequence[int]:
        """Take all of these, or nothing, and return what was in use before."""
        used: Sequence[int] = await self._parent.ask("take", holder, tuple(demands))
        return used

    async def settle(self, corrections: Sequence[Correction]) -> None:
        """Correct rates and free slots."""
        await self._parent.ask("settle", tuple(corrections))

    async def renew(self, slots: Mapping[str, Collection[str]]) -> None:
        """Hold slots for another `SLOT_TTL_S`."""
        held = ((name, holder) for name, holders in slots.items() for holder in holders)
        await self._parent.ask("renew", tuple(held))


class _Parent:
    """Connection to the parent, which is opened when it is needed."""

    def __init__(self, directory: Path) -> None:
        self._socket = directory / SOCKET
        self._connecting = asyncio.Lock()
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._replies: deque[asyncio.Future[Any]] = deque()
        """The replies that are still to come, in the order of their requests."""

    async def ask(self, command: str, *arguments: object) -> Any:  # noqa: ANN401 - the reply
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

    async def aclose(self) -> None:
        """Close the connection."""
        if self._reading is not None:
            self._reading.cancel()

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
    state = _State(limits)
    async with AsyncExitStack() as stack:
        try:
            folder = TemporaryDirectory(prefix="switchcraft-workers-", ignore_cleanup_errors=True)
            path = Path(stack.enter_context(folder))
            server = await asyncio.start_unix_server(state.serve, path / SOCKET)
        except OSError as exc:
            problem = (
                f"no Unix socket can be created in a temporary directory: {exc}; set it to a "
                "writable directory with a short path"
            )
            raise ConfigError("the environment", "TMPDIR", problem) from exc
        stack.callback(server.close)
        yield path


class _State:
    """The memory that all workers share, in their parent."""

    def __init__(self, limits: StoreLimits) -> None:
        self._limits = limits
        self._records: dict[str, ExpiringMap[str, bytes]] = {}
        self._shared = MemorySharedState(time.monotonic)
        self._limits_in_use = MemoryLimits(time.monotonic, SLOT_TTL_S)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection until it is closed."""
        slots: set[Correction] = set()
        try:
            while True:
                writer.write(encode(await self._answer(await _receive(reader), slots)))
        except (OSError, EOFError):
            pass  # the worker has ended
        finally:
            writer.close()
            self._limits_in_use.settle_now(slots)

    async def _answer(  # noqa: PLR0911 - one for each command
        self, request: tuple[Any, ...], slots: set[Correction]
    ) -> object:
        """Return the reply to a request; `slots` are those that the connection has to free."""
        match request:
            case ("put" | "add" as command, kind, key, record, caller):
                records = self._of_kind(kind)
                is_kept = command == "put" or records.find(key) is None
                if is_kept:
                    records.keep(key, record, len(key) + len(record), caller)
                return is_kept
            case ("get", kind, key):
                return self._of_kind(kind).find(key)
            case ("read", names):
                return await self._shared.read(names)
            case ("cool_down", name, duration_s):
                return await self._shared.cool_down(name, duration_s)
            case ("is_rejected", key):
                return await self._shared.is_rejected(key)
            case ("reject", key, reason):
                return await self._shared.reject(key, reason)
            case ("take", holder, demands):
                used = self._limits_in_use.take_now(holder, demands)
                if fits(demands, used):
                    taken = (each.name for each in demands if each.cost_us is None)
                    slots.update(Correction(name, None, holder) for name in taken)
                return used
            case ("settle", corrections):
                self._limits_in_use.settle_now(corrections)
                slots.difference_update(corrections)
            case ("renew", held):
                for name, holder in held:
                    self._limits_in_use.renew_now(name, holder)
                    slots.add(Correction(name, None, holder))
        return None

    def _of_kind(self, kind: str) -> ExpiringMap[str, bytes]:
        records = self._records.get(kind)
        if records is None:
            retention = self._limits.of(kind)
            records = ExpiringMap(
                ttl_s=retention.ttl_s, max_entries=retention.max_records, clock=time.monotonic
            )
            self._records[kind] = records
        return records


def encode(message: object) -> bytes:
    """Return a message as bytes, after its size."""
    body = pickle.dumps(message)
    return _SIZE.pack(len(body)) + body


async def _receive(reader: asyncio.StreamReader) -> Any:  # noqa: ANN401 - a request or a reply
    """Return the next message; raises IncompleteReadError, an EOFError, at the end."""
    (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
    return pickle.loads(await reader.readexactly(size))  # noqa: S301 - of our own processes
