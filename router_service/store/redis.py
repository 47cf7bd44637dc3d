"""Decisions in Redis, which replicas share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import ValidationError
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from router_service.core.errors import ConfigError, StoreError
from router_service.store.base import DecisionRecord

KEY_PREFIX = "switchcraft:decision:"
SOCKET_TIMEOUT_S = 0.2
"""Redis answers within a millisecond or two; what takes longer is an outage."""


class RedisStore:
    """Keeps decisions under `switchcraft:decision:ID` until their time is over."""

    def __init__(self, url: str, *, ttl_s: int) -> None:
        """Connect on first use; raises ConfigError where the address is not one of Redis."""
        try:
            self._redis = Redis.from_url(
                url,
                socket_timeout=SOCKET_TIMEOUT_S,
                socket_connect_timeout=SOCKET_TIMEOUT_S,
                retry=Retry(NoBackoff(), 0),  # the next request is the retry
            )
        except ValueError as exc:
            problem = "must be redis://, rediss:// or unix://"
            raise ConfigError("the configuration", "server.redis_url", problem) from exc
        self._ttl_s = ttl_s

    async def put(self, record: DecisionRecord) -> None:
        """Keep a record; raises StoreError."""
        with _translated("keep a decision"):
            key, value = KEY_PREFIX + record.id, record.model_dump_json()
            await self._redis.set(key, value, ex=self._ttl_s)

    async def get(self, decision_id: str) -> DecisionRecord | None:
        """Return a record; raises StoreError, also for one that another version wrote."""
        with _translated("look up a decision"):
            value = await self._redis.get(KEY_PREFIX + decision_id)
            return None if value is None else DecisionRecord.model_validate_json(value)

    async def aclose(self) -> None:
        """Close the connections."""
        with _translated("close its connections"):
            await self._redis.aclose()


@contextmanager
def _translated(operation: str) -> Iterator[None]:
    try:
        yield
    # The driver lets some of the system's and of asyncio's errors through.
    except (RedisError, OSError, TimeoutError) as exc:
        raise StoreError(operation, f"Redis is away ({type(exc).__name__})") from exc
    except ValidationError as exc:
        raise StoreError(operation, "the record is of another version") from exc
