"""Creates what a gateway starts with: its first router and its stores."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from router_service.core.errors import ConfigError, SwitchcraftError
from router_service.core.releases import Publication
from router_service.lifecycle.engine import EngineBuilder
from router_service.router import Router
from router_service.settings import ServerSettings, Settings
from router_service.store.base import R, RecordStore, SharedState, UpstreamObject
from router_service.store.guarded import GuardedStore
from router_service.store.local import MemorySharedState, MemoryStore, read_pointer
from router_service.store.upstream_objects import UpstreamObjectIndex

_log = logging.getLogger("switchcraft.server")


def load_first_router(
    settings: Settings, builder: EngineBuilder
) -> tuple[Router, Publication | None]:
    """Return the stable release's router and its publication, without canary and shadow release.

    Those are added once the gateway runs. If nothing usable is published, this returns the router
    of `router.artifact` and logs a warning. Raises ArtifactError and ConfigError.
    """
    place = settings.router.publication
    if place == "redis" and settings.server.redis_url is None:
        problem = "redis needs server.redis_url"
        raise ConfigError(settings.source, "router.publication", problem)
    if place is None:
        return builder.router(settings, None), None

    async def read_shared_pointer() -> bytes | None:
        state = shared_state(settings.server)
        try:
            return (await state.read(())).publication
        finally:
            await state.aclose()

    try:
        text = asyncio.run(read_shared_pointer()) if place == "redis" else read_pointer(place)
        if text is not None:
            publication = Publication.parse(text, str(place))
            publication = publication.model_copy(update={"shadow": None, "canary": None})
            return builder.router(settings, publication), publication
        _log.warning("nothing is published yet; router.artifact serves")
    except SwitchcraftError as exc:
        _log.warning("the publication cannot be used; router.artifact serves: cause=%s", exc)
    return builder.router(settings, None), None


@dataclass(frozen=True, slots=True)
class Stores:
    """Factory of a process's stores: in Redis if it is configured, otherwise in memory.

    `on_failed` is called with the name of an operation that failed.
    """

    server: ServerSettings
    on_failed: Callable[[str], None]

    def records(self, kind: type[R]) -> GuardedStore[R]:
        """Return a store whose records live as long as decision records."""
        server = self.server
        store = self._redis(kind, server.decision_ttl_s)
        return GuardedStore(
            store or _in_memory(server.decision_ttl_s, server.max_decisions), self.on_failed
        )

    def held_responses(self) -> UpstreamObjectIndex:
        """Return the index of the responses that upstreams store, with deployment and key."""
        ttl_s = self.server.response_ttl_s
        seen: MemoryStore[UpstreamObject] = _in_memory(ttl_s, self.server.max_responses)
        shared = self._redis(UpstreamObject, ttl_s)
        return UpstreamObjectIndex(seen, GuardedStore(shared, self.on_failed) if shared else None)

    def _redis(self, kind: type[R], ttl_s: int) -> RecordStore[R] | None:
        if self.server.redis_url is None:
            return None
        # Imported only if needed, because importing the Redis client takes 0.17 s, mostly for
        # OpenTelemetry's metrics if they are installed (python -X importtime).
        from router_service.store.redis import RedisStore  # noqa: PLC0415

        return RedisStore(self.server.redis_url.get_secret_value(), kind, ttl_s=ttl_s)


def shared_state(server: ServerSettings) -> SharedState:
    """Return the state that replicas share; without Redis, it is local to this process."""
    if server.redis_url is None:
        return MemorySharedState(time.monotonic)
    from router_service.store.redis import RedisSharedState  # noqa: PLC0415 - as above

    return RedisSharedState(server.redis_url.get_secret_value())


def _in_memory(ttl_s: int, max_records: int) -> MemoryStore[R]:
    return MemoryStore(ttl_s=ttl_s, max_records=max_records, clock=time.monotonic)
