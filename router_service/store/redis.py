"""Records and shared state in Redis, for gateways with several replicas.

Shared state has three keys: a sorted set of deployments by the end of their cool-downs, the
pointer to the published releases, which a publisher writes, and a hash of rejected releases. The
ends of cool-downs are measured by Redis' clock, so that the replicas' clocks do not matter.

Replicas of two versions may share the keys, so unknown content is ignored. A gateway reads only
members that it knows by name, and limited parts of values, so that other content under these keys
costs neither time nor memory.

Importing this module raises MissingExtraError if the extra `redis` is not installed.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Generic

from pydantic import ValidationError

from router_service.core.addresses import check_redis_address
from router_service.core.errors import ConfigError, MissingExtraError, StoreError
from router_service.core.releases import MAX_POINTER_BYTES, POINTER_KEY
from router_service.store.records import CoolDown, R, Snapshot

try:
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import RedisError, ResponseError
except ModuleNotFoundError as exc:
    raise MissingExtraError("the configuration", "server.redis_url", "redis") from exc

_log = logging.getLogger("switchcraft.store")

KEY_PREFIX = "switchcraft:"
MAX_RECORD_BYTES = 256 * 1024
"""Longest record that is read. A decision among 30 arms takes 4 KB, so no gateway writes a record
that is longer than this."""
SOCKET_TIMEOUT_S = 0.2
"""Longest wait for Redis, which usually answers within 2 ms. A longer wait counts as an outage."""

COOL_DOWNS_KEY = "switchcraft:cool-downs"
REJECTIONS_KEY = "switchcraft:rejections"

COOL_DOWNS_TTL_S = 24 * 3600
"""Time from the start of the last cool-down until Redis deletes all of them. No cool-down lasts as
long. A fleet that was shut down leaves no data behind."""
REJECTIONS_TTL_S = 90 * 24 * 3600
"""Time from the last rejection until Redis deletes all of them. A release that is published again
gets a new release key, so old rejections do not apply to it."""

MAX_REASON_CHARACTERS = 500


class RedisStore(Generic[R]):
    """Store for records of one kind, under `switchcraft:KIND:ID` until they expire."""

    def __init__(self, url: str, kind: type[R], *, ttl_s: int) -> None:
        """Connect on first use. Raise ConfigError if the address is not a Redis address."""
        self._redis = connect(url)
        self._kind = kind
        self._ttl_s = ttl_s

    async def put(self, record: R) -> None:
        """Store a record. Raise StoreError if Redis fails."""
        with translate_errors(f"keep a {self._kind.kind}"):
            await self._redis.set(self._key(record.id), record.model_dump_json(), ex=self._ttl_s)

    async def add(self, record: R) -> bool:
        """Store a record in one step if its id is new, and return whether it was stored.

        Raise StoreError if Redis fails.
        """
        with translate_errors(f"add a {self._kind.kind}"):
            key, value = self._key(record.id), record.model_dump_json()
            return bool(await self._redis.set(key, value, ex=self._ttl_s, nx=True))

    async def get(self, record_id: str) -> R | None:
        """Return a record, or None if it is unknown or damaged.

        Raise StoreError if Redis fails.
        """
        with translate_errors(f"look up a {self._kind.kind}"):
            value = await self._redis.getrange(self._key(record_id), 0, MAX_RECORD_BYTES)
        if not value:
            return None
        try:
            return self._kind.model_validate_json(value)
        except ValidationError as exc:  # a damaged record is not an outage of the store
            problem = exc.errors(include_input=False)[0]["msg"]
            kind = self._kind.kind
            _log.warning('damaged record in Redis is ignored: kind=%s cause="%s"', kind, problem)
            return None

    async def aclose(self) -> None:
        """Close the connections."""
        with translate_errors("close its connections"):
            await self._redis.aclose()

    def _key(self, record_id: str) -> bytes:
        # Some ids come from clients, and JSON allows lone surrogates in them.
        return f"{KEY_PREFIX}{self._kind.kind}:{record_id}".encode(errors="surrogatepass")


class RedisSharedState:
    """State that replicas share through Redis. Every operation raises StoreError if Redis fails."""

    def __init__(self, url: str) -> None:
        """Connect on first use. Raise ConfigError if the address is not a Redis address."""
        self._redis = connect(url)

    async def read(self, deployment_ids: Collection[str]) -> Snapshot:
        """Return the pointer and the cool-downs of these deployments, in one round trip."""
        names = list(deployment_ids)
        with translate_errors("read the shared state"):
            pipeline = self._redis.pipeline(transaction=False)
            pipeline.time()
            pipeline.getrange(POINTER_KEY, 0, MAX_POINTER_BYTES)
            for name in names:
                pipeline.zscore(COOL_DOWNS_KEY, name)
            now, publication, *ends = await pipeline.execute()
        now_s = _to_seconds(now)
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
        """Return whether a replica has rejected a release."""
        with translate_errors("look up a rejection"):
            return bool(await self._redis.hexists(REJECTIONS_KEY, release_key))

    async def cool_down(self, deployment_id: str, duration_s: float) -> None:
        """Start a cool-down, or extend one that ends earlier."""
        with translate_errors("share a cool-down"):
            now_s = _to_seconds(await self._redis.time())
            pipeline = self._redis.pipeline(transaction=False)
            pipeline.zremrangebyscore(COOL_DOWNS_KEY, "-inf", now_s)
            # Remove entries that end later than any cool-down can. Because of `gt`, such an entry
            # would not be replaced by the one that is written below.
            latest_s = now_s + max(COOL_DOWNS_TTL_S, duration_s)
            pipeline.zremrangebyscore(COOL_DOWNS_KEY, f"({latest_s}", "+inf")
            pipeline.zadd(COOL_DOWNS_KEY, {deployment_id: now_s + duration_s}, gt=True)
            pipeline.expire(COOL_DOWNS_KEY, COOL_DOWNS_TTL_S)
            await pipeline.execute()

    async def reject(self, release_key: str, reason: str) -> None:
        """Record that a release was rejected."""
        with translate_errors("share a rejection"):
            pipeline = self._redis.pipeline(transaction=False)
            pipeline.hset(REJECTIONS_KEY, release_key, reason[:MAX_REASON_CHARACTERS])
            pipeline.expire(REJECTIONS_KEY, REJECTIONS_TTL_S)
            await pipeline.execute()

    async def aclose(self) -> None:
        """Close the connections."""
        with translate_errors("close its connections"):
            await self._redis.aclose()


def connect(url: str) -> Redis:
    """Return a client that connects on first use, with short timeouts and without retries.

    Raise ConfigError if the address is not a Redis address.
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
            retry=Retry(NoBackoff(), 0),  # no retry here; the next operation connects again
        )
    except ValueError:
        problem = "must be an address that begins with redis://, rediss:// or unix://"
        # Not from exc, because urllib's message quotes what it takes for the port. If the password
        # contains a slash, the quoted text is a part of the password.
        raise ConfigError("the configuration", "server.redis_url", problem) from None


@contextmanager
def translate_errors(operation: str) -> Iterator[None]:
    """Convert the driver's errors within the block to StoreError, without the address of Redis."""
    try:
        yield
    except ResponseError as exc:  # e.g. a key holds another type, or an ACL forbids the command
        raise StoreError(operation, f"Redis refused the command ({str(exc)[:200]})") from exc
    # The driver does not convert all errors of the operating system and of asyncio to its own.
    except (RedisError, OSError, TimeoutError) as exc:
        raise StoreError(operation, f"Redis is unreachable ({type(exc).__name__})") from exc


def _to_seconds(now: tuple[int, int]) -> float:
    seconds, microseconds = now
    return seconds + microseconds / 1e6
