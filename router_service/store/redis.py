"""Records in Redis, which replicas share."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic

from pydantic import ValidationError
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from router_service.core.addresses import check_redis_address
from router_service.core.errors import ConfigError, StoreError
from router_service.store.base import R

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
            await self._redis.set(self._key(record.id), record.model_dump_json(), ex=self._ttl_s)

    async def add(self, record: R) -> bool:
        """Keep a record where its id is not there, in one step; raises StoreError."""
        with translated(f"add a {self._kind.kind}"):
            key, value = self._key(record.id), record.model_dump_json()
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
