"""Shared state in Redis.

Three keys: a sorted set of deployments by the end of their rest, in Redis' own time so that the
replicas' clocks do not matter; the pointer, which a publisher writes; and a hash of rejections.
Replicas of two versions may share them: what one does not understand it passes over. A gateway
asks for the members that it knows by name, and for bounded parts of values, so that whatever else
lies under these keys costs it neither time nor memory.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from router_service.core.publication import MAX_POINTER_BYTES, POINTER_KEY
from router_service.store.redis import connect, translated
from router_service.store.shared import CoolDown, Snapshot

COOL_DOWNS_KEY = "switchcraft:cool-downs"
REJECTIONS_KEY = "switchcraft:rejections"

COOL_DOWNS_TTL_S = 24 * 3600
"""From the last one written: no rest is as long, and a fleet that is gone leaves nothing."""
REJECTIONS_TTL_S = 90 * 24 * 3600
"""From the last one written; a release that is published again is another one anyway."""

MAX_REASON_CHARACTERS = 500


class RedisSharedState:
    """Reads and writes what replicas share."""

    def __init__(self, url: str) -> None:
        """Connect on first use; raises ConfigError where the address is not one of Redis."""
        self._redis = connect(url)

    async def read(self, deployment_ids: Collection[str]) -> Snapshot:
        """Return the pointer and these cool-downs, in one round trip; raises StoreError."""
        names = list(deployment_ids)
        with translated("read what replicas share"):
            pipeline = self._redis.pipeline(transaction=False)
            pipeline.time()
            pipeline.getrange(POINTER_KEY, 0, MAX_POINTER_BYTES)
            for name in names:
                pipeline.zscore(COOL_DOWNS_KEY, name)
            now, publication, *ends = await pipeline.execute()
        now_s = _seconds(now)
        known = ((name, end_s) for name, end_s in zip(names, ends, strict=True) if end_s)
        return Snapshot(
            cool_downs={
                name: CoolDown(end_s, end_s - now_s)
                for name, end_s in known
                if end_s > now_s and math.isfinite(end_s)
            },
            publication=publication or None,
        )

    async def is_rejected(self, release_key: str) -> bool:
        """Return whether a release was rejected; raises StoreError."""
        with translated("look up a rejection"):
            return bool(await self._redis.hexists(REJECTIONS_KEY, release_key))

    async def cool_down(self, deployment_id: str, duration_s: float) -> None:
        """Note the end of a rest; raises StoreError."""
        with translated("share a cool-down"):
            now_s = _seconds(await self._redis.time())
            pipeline = self._redis.pipeline(transaction=False)
            pipeline.zremrangebyscore(COOL_DOWNS_KEY, "-inf", now_s)
            # What ends later than any cool-down can would hide the one that is written below.
            latest_s = now_s + max(COOL_DOWNS_TTL_S, duration_s)
            pipeline.zremrangebyscore(COOL_DOWNS_KEY, f"({latest_s}", "+inf")
            pipeline.zadd(COOL_DOWNS_KEY, {deployment_id: now_s + duration_s}, gt=True)
            pipeline.expire(COOL_DOWNS_KEY, COOL_DOWNS_TTL_S)
            await pipeline.execute()

    async def reject(self, release_key: str, reason: str) -> None:
        """Note a rejection; raises StoreError."""
        with translated("share a rejection"):
            pipeline = self._redis.pipeline(transaction=False)
            pipeline.hset(REJECTIONS_KEY, release_key, reason[:MAX_REASON_CHARACTERS])
            pipeline.expire(REJECTIONS_KEY, REJECTIONS_TTL_S)
            await pipeline.execute()

    async def aclose(self) -> None:
        """Close the connections."""
        with translated("close its connections"):
            await self._redis.aclose()


def _seconds(now: tuple[int, int]) -> float:
    seconds, microseconds = now
    return seconds + microseconds / 1e6
