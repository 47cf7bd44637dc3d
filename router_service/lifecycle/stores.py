"""What a gateway keeps records and shared state in: Redis where it is configured, else memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from router_service.settings import ServerSettings
from router_service.store.base import R, RecordStore, SharedState, UpstreamObject
from router_service.store.guarded import GuardedStore
from router_service.store.local import MemorySharedState, MemoryStore
from router_service.store.upstream_objects import UpstreamObjectIndex


@dataclass(frozen=True, slots=True)
class Stores:
    """Makes what one process keeps; `on_failed` is told which operation a store failed."""

    server: ServerSettings
    on_failed: Callable[[str], None]

    def records(self, kind: type[R]) -> GuardedStore[R]:
        """Return a store of what is known for as long as decisions are."""
        server = self.server
        store = self._redis(kind, server.decision_ttl_s)
        return GuardedStore(
            store or _in_memory(server.decision_ttl_s, server.max_decisions), self.on_failed
        )

    def held_responses(self) -> UpstreamObjectIndex:
        """Return who holds which response, as this process saw it and as others did."""
        ttl_s = self.server.response_ttl_s
        seen: MemoryStore[UpstreamObject] = _in_memory(ttl_s, self.server.max_responses)
        shared = self._redis(UpstreamObject, ttl_s)
        return UpstreamObjectIndex(seen, GuardedStore(shared, self.on_failed) if shared else None)

    def _redis(self, kind: type[R], ttl_s: int) -> RecordStore[R] | None:
        if self.server.redis_url is None:
            return None
        # Redis' client is loaded where it is wanted alone: it takes 0.17 s, most of which goes into
        # OpenTelemetry's metrics where they are installed (python -X importtime).
        from router_service.store.redis import RedisStore  # noqa: PLC0415

        return RedisStore(self.server.redis_url.get_secret_value(), kind, ttl_s=ttl_s)


def shared_state(server: ServerSettings) -> SharedState:
    """Return what replicas share; a process without Redis shares it with itself."""
    if server.redis_url is None:
        return MemorySharedState(time.monotonic)
    from router_service.store.redis import RedisSharedState  # noqa: PLC0415 - as above

    return RedisSharedState(server.redis_url.get_secret_value())


def _in_memory(ttl_s: int, max_records: int) -> MemoryStore[R]:
    return MemoryStore(ttl_s=ttl_s, max_records=max_records, clock=time.monotonic)
