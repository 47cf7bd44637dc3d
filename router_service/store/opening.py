"""Which store a gateway uses: Redis, or its own memory.

A gateway without Redis never loads the Redis client, which would take 0.17 s, mostly for
OpenTelemetry's metrics if they are installed (python -X importtime).
"""

from __future__ import annotations

import logging
from importlib.util import find_spec
from urllib.parse import parse_qs, urlsplit

from router_service.core.addresses import check_redis_address, is_loopback
from router_service.core.errors import ConfigError, missing_extra
from router_service.store.memory import MemoryStore
from router_service.store.store import SETTING, Store, StoreLimits

_log = logging.getLogger("switchcraft.store")


def open_store(url: str | None, limits: StoreLimits) -> Store:
    """Return the store in the Redis at an address, or in the memory of this process without one.

    No connection is opened yet. Raise ConfigError, which does not quote the address, if it is not
    valid.
    """
    if url is None:
        return MemoryStore(limits)
    try:
        check_shared_address(url)
    except ValueError as exc:
        # Without `from exc`: the cause could quote a part of the address, which may be a password.
        raise ConfigError("the configuration", SETTING, str(exc)) from None
    from router_service.store.redis import RedisStore  # noqa: PLC0415

    return RedisStore(url, limits)


def check_shared_address(url: str) -> None:
    """Raise ValueError unless an address is that of a Redis, whose client must be installed.

    The message does not quote the address.
    """
    check_redis_address(url)
    if find_spec("redis") is None:
        raise ValueError(missing_extra("redis"))


def log_warnings(url: str | None) -> None:
    """Log a warning if Redis runs on another machine and its address has no password.

    A client that can write to Redis can stop deployments and read decisions.
    """
    parts = urlsplit(url or "")
    password = parts.password or parse_qs(parts.query).get("password")
    if parts.hostname and not password and not is_loopback(parts.hostname):
        _log.warning(
            "%s has no password: any client that can connect to Redis can stop deployments and "
            "read decisions; set requirepass in Redis, and use redis://:PASSWORD@HOST:6379/0",
            SETTING,
        )  # fmt: skip
