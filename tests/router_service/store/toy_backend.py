"""A backend in one file: servers are dictionaries of this process, by the name in the address."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import ClassVar, Generic

from router_service.core.decision_record import Storable
from router_service.store.backends import (
    Backend,
    CoolDown,
    LimitStore,
    R,
    Snapshot,
    StoreLimits,
)
from router_service.store.memory import MemoryLimits


class Server:
    """What one toy server keeps."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], tuple[float, bytes]] = {}
        self.ends_s: dict[str, float] = {}
        self.rejections: set[str] = set()
        self.limits = MemoryLimits(time.monotonic)


SERVERS: dict[str, Server] = defaultdict(Server)


class ToyBackend(Backend):
    """Backend at `toy://NAME`."""

    name: ClassVar[str] = "toy"

    def __init__(self, url: str, limits: StoreLimits) -> None:
        """Connect to the server with the address's name."""
        self._server = SERVERS[url]
        self._limits = limits

    @classmethod
    def check_address(cls, url: str) -> None:
        """Raise ValueError if the address has no name."""
        if not url.removeprefix("toy://"):
            raise ValueError("the address has no name; write toy://NAME")

    @classmethod
    def warnings(cls, url: str) -> Sequence[str]:
        """Return that this is a toy."""
        del url
        return ("server.redis_url is a toy: it is lost when the process ends",)

    def records(self, kind: type[R]) -> ToyRecords[R]:
        """Return a store for one kind of record."""
        return ToyRecords(self._server, kind, self._limits.of(kind.kind).ttl_s)

    def shared_state(self) -> ToyState:
        """Return a view of the shared state."""
        return ToyState(self._server)

    def limit_store(self) -> LimitStore:
        """Return the limits in use."""
        return self._server.limits

    async def ping(self) -> str:
        """Return that the server answers."""
        return "plays"


class ToyRecords(Generic[R]):
    """Records of one kind."""

    def __init__(self, server: Server, kind: type[R], ttl_s: float) -> None:
        self._server, self._kind, self._ttl_s = server, kind, ttl_s

    async def put(self, record: Storable) -> None:
        """Keep a record."""
        kept = (time.monotonic() + self._ttl_s, record.stored_json())
        self._server.records[self._kind.kind, record.id] = kept

    async def add(self, record: Storable) -> bool:
        """Keep a record if its id is new."""
        if await self.get(record.id) is not None:
            return False
        await self.put(record)
        return True

    async def get(self, record_id: str) -> R | None:
        """Return a record that has not expired."""
        ends_s, text = self._server.records.get((self._kind.kind, record_id), (0.0, b""))
        return self._kind.model_validate_json(text) if ends_s > time.monotonic() else None

    async def aclose(self) -> None:
        """Do nothing."""


class ToyState:
    """Shared state without a publication."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def read(self, deployment_ids: Collection[str]) -> Snapshot:
        """Return the cool-downs."""
        now_s, ends_s = time.monotonic(), self._server.ends_s
        left_s = {name: ends_s.get(name, 0) - now_s for name in deployment_ids}
        return Snapshot({k: CoolDown(ends_s[k], left) for k, left in left_s.items() if left > 0})

    async def is_rejected(self, release_key: str) -> bool:
        """Return whether a release was rejected."""
        return release_key in self._server.rejections

    async def cool_down(self, deployment_id: str, duration_s: float) -> None:
        """Start a cool-down."""
        end_s = time.monotonic() + duration_s
        self._server.ends_s[deployment_id] = max(end_s, self._server.ends_s.get(deployment_id, 0))

    async def reject(self, release_key: str, reason: str) -> None:
        """Reject a release."""
        del reason
        self._server.rejections.add(release_key)

    async def aclose(self) -> None:
        """Do nothing."""
