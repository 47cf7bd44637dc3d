"""Shared state in Redis.

Three keys: a sorted set of deployments by the end of their rest, in Redis' own time so that the
replicas' clocks do not matter; the pointer, which a publisher writes; and a hash of rejections.
Replicas of two versions may share them: what one does not understand it passes over.
"""

from __future__ import annotations

from router_service.core.publication import POINTER_KEY
from router_service.store.redis import connect, translated
from router_service.store.shared import Snapshot

COOL_DOWNS_KEY = "switchcraft:cool-downs"
REJECTIONS_KEY = "switchcraft:rejections"

COOL_DOWNS_TTL_S = 24 * 3600
"""From the last one written: no rest is as long, and a fleet that is gone leaves nothing."""
REJECTIONS_TTL_S = 90 * 24 * 3600
"""From the last one written; a release that is published again is another one anyway."""


class RedisSharedState:
    """Reads and writes what replicas share."""

    def __init__(self, url: str) -> None:
        """Connect on first use; raises ConfigError where the address is not one of Redis."""
        self._redis = connect(url)

    async def read(self) -> Snapshot:
        """Return all of it, in one round trip; raises StoreError."""
        with translated("read what replicas share"):
            pipeline = self._redis.pipeline(transaction=False)
            pipeline.time()
            pipeline.zrange(COOL_DOWNS_KEY, 0, -1, withscores=True)
            pipeline.get(POINTER_KEY)
            pipeline.hgetall(REJECTIONS_KEY)
            now, ends, publication, rejections = await pipeline.execute()
        now_s = _seconds(now)
        return Snapshot(
            cool_downs={_text(name): end_s - now_s for name, end_s in ends if end_s > now_s},
            publication=publication,
            rejections={_text(key): _text(reason) for key, reason in rejections.items()},
        )

    async def cool_down(self, deployment_id: str, duration_s: float) -> None:
        """Note the end of a rest; raises StoreError."""
        with translated("share a cool-down"):
            now_s = _seconds(await self._redis.time())
            pipeline = self._redis.pipeline(transaction=False)
            pipeline.zremrangebyscore(COOL_DOWNS_KEY, "-inf", now_s)
            pipeline.zadd(COOL_DOWNS_KEY, {deployment_id: now_s + duration_s}, gt=True)
            pipeline.expire(COOL_DOWNS_KEY, COOL_DOWNS_TTL_S)
            await pipeline.execute()

    async def reject(self, release_key: str, reason: str) -> None:
        """Note a rejection; raises StoreError."""
        with translated("share a rejection"):
            pipeline = self._redis.pipeline(transaction=False)
            pipeline.hset(REJECTIONS_KEY, release_key, reason)
            pipeline.expire(REJECTIONS_KEY, REJECTIONS_TTL_S)
            await pipeline.execute()

    async def aclose(self) -> None:
        """Close the connections."""
        with translated("close its connections"):
            await self._redis.aclose()


def _seconds(now: tuple[int, int]) -> float:
    seconds, microseconds = now
    return seconds + microseconds / 1e6


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
