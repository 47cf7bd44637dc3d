"""Records in Redis, which replicas share."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Generic

from pydantic import ValidationError
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from router_service.core.addresses import check_redis_address
from router_service.core.errors import ConfigError, StoreError
from router_service.core.releases import MAX_POINTER_BYTES, POINTER_KEY
from router_service.store.base import CoolDown, R, Snapshot

_log = logging.getLogger("switchcraft.store")

KEY_PREFIX = "switchcraft:"
MAX_RECORD_BYTES = 256 * 1024
"""A decision among 30 arms has 4 KB; what is larger than this was not written by a gateway."""
SOCKET_TIMEOUT_S = 0.2
"""Redis answers within a millisecond or two; what takes longer is an outage."""


class RedisStore(Generic[R]):
    """Keeps records of one kind under `switchcraft:KIND:ID` until their time is over."""

    def __init__(self, url: str, kind: type[R], *, ttl_s: int) -> None:
        """Connect on first use; raises ConfigError where the address is not one of Redis."""
        self._redis = connect(url)
        self._kind = kind
        self._ttl_s = ttl_s

    async def put(self, record: R) -> None:
        """Keep a record; raises StoreError."""
        with translated(f"keep a {self._kind.kind}"):
            await self._redis.set(
                self._key(record.id), record.model_dump_json(by_alias=True), ex=self._ttl_s
            )

    async def add(self, record: R) -> bool:
        """Keep a record where its id is not there, in one step; raises StoreError."""
        with translated(f"add a {self._kind.kind}"):
            key, value = self._key(record.id), record.model_dump_json(by_alias=True)
            return bool(await self._redis.set(key, value, ex=self._ttl_s, nx=True))

    async def get(self, record_id: str) -> R | None:
        """Return a record, or None, also for one that is damaged; raises StoreError."""
        with translated(f"look up a {self._kind.kind}"):
            value = await self._redis.getrange(self._key(record_id), 0, MAX_RECORD_BYTES)
        if not value:
            return None
        try:
            return self._kind.model_validate_json(value)
        except ValidationError as exc:  # one record must not look like a store that is away
            problem = exc.errors(include_input=False)[0]["msg"]
            _log.warning(
                "a %s in Redis cannot be read, and is ignored: %s", self._kind.kind, problem
            )
            return None

    async def aclose(self) -> None:
        """Close the connections."""
        with translated("close its connections"):
            await self._redis.aclose()

    def _key(self, record_id: str) -> bytes:
        # Ids come from clients too, with any character that JSON can hold.
        return f"{KEY_PREFIX}{self._kind.kind}:{record_id}".encode(errors="surrogatepass")


def connect(url: str) -> Redis:
    """Return a client that connects on first use, and that never waits long nor tries again.

    Raises ConfigError where the address is not one of Redis.
    """
    try:
        check_redis_address(url)
    except ValueError as exc:
        raise ConfigError("the configuration", "server.redis_url", str(exc)) from None
    try:
        return Redis.from_url(
            url,
            socket_timeout=SOCKET_TIMEOUT_S,
            socket_connect_timeout=SOCKET_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),  # the next request is the retry
        )
    except ValueError:
        problem = "must be redis://, rediss:// or unix://"
        # Not from exc: urllib's message quotes what it takes for the port, and that is the password
        # where it has a slash.
        raise ConfigError("the configuration", "server.redis_url", problem) from None


@contextmanager
def translated(operation: str) -> Iterator[None]:
    """Turn what the driver raises into StoreError, without the address."""
    try:
        yield
    except ResponseError as exc:  # another type under a key, or a command that is not allowed
        raise StoreError(operation, f"Redis refused the command ({str(exc)[:200]})") from exc
    # The driver lets some of the system's and of asyncio's errors through.
    except (RedisError, OSError, TimeoutError) as exc:
        raise StoreError(operation, f"Redis is away ({type(exc).__name__})") from exc


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
