"""API keys and what they allow, and the address that a gateway without keys may listen on."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from pydantic import SecretStr

from router_service.core.keys import KeyRing, is_weak
from router_service.settings import ADMIN, METRICS, KeySettings, ServerSettings, Settings

LOOPBACK = "127.0.0.1"

_log = logging.getLogger("switchcraft.access")


@dataclass(frozen=True, slots=True)
class Access:
    """Keys of one configuration; without any key, every client that can connect is allowed."""

    api: KeyRing
    admin: KeyRing
    metrics: KeyRing
    is_open: bool = field(init=False)
    """Whether no key is configured."""

    def __post_init__(self) -> None:
        """Compute `is_open` once, because every request reads it."""
        has_key = bool(self.api or self.admin or self.metrics)
        object.__setattr__(self, "is_open", not has_key)

    @classmethod
    def from_settings(cls, keys: KeySettings) -> Access:
        """Create from the keys of a configuration."""

        def ring(named: Mapping[str, SecretStr | None]) -> KeyRing:
            given = {name: key.get_secret_value() for name, key in named.items() if key is not None}
            return KeyRing(given)

        return cls(ring(keys.api), ring({ADMIN: keys.admin}), ring({METRICS: keys.metrics}))

    def caller(self, key: bytes, *, needs_admin: bool) -> str | None:
        """Return the name of `key` if it allows the request, or else None.

        Only the admin key allows a request with `needs_admin`.
        """
        admin, api = self.admin.name_of(key), self.api.name_of(key)
        return admin if needs_admin else admin or api

    def scraper(self, key: bytes) -> str | None:
        """Return the name of `key` if it allows `GET /metrics`, or else None."""
        admin, metrics = self.admin.name_of(key), self.metrics.name_of(key)
        return admin or metrics


def is_loopback(host: str) -> bool:
    """Return whether a browser would resolve a host name or address to this machine."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def permitted_listen_host(settings: Settings) -> str:
    """Return the address that the gateway may listen on, and log a warning if it is unsafe.

    Without any key, this is a loopback address. Raises ConfigError if a key can be guessed and the
    gateway would be reachable from other machines.
    """
    host, keys = settings.server.host, settings.keys.by_path()
    if not keys:
        _log.warning(
            "no key is configured: any client that can connect may use this gateway and read its "
            "metrics; set keys.api or general_settings.master_key (see `switchcraft key`)"
        )
        if is_loopback(host):
            return host
        _log.warning("listening only on %s instead of %s, until a key is set", LOOPBACK, host)
        return LOOPBACK
    if keys.keys() == {"keys.metrics"}:
        _log.warning("keys.metrics is the only key, so no client can be served; set keys.api")
    for path, key in keys.items():
        if not is_weak(key):
            continue
        problem = (
            "the key is short or copied from an example, and can be guessed; create one with "
            "`switchcraft key`"
        )
        if not is_loopback(host):
            remedy = f"or set server.host or --host to {LOOPBACK}"
            raise settings.error(path, f"{problem}, {remedy}")
        _log.warning("%s: %s: %s", settings.source, path, problem)
    return host


def warn_about_open_redis(server: ServerSettings) -> None:
    """Log a warning if Redis runs on another machine and its URL has no password.

    A client that can write to Redis can choose the artifact, stop deployments and read decisions.
    """
    if server.redis_url is None:
        return
    url = urlsplit(server.redis_url.get_secret_value())
    host, password = url.hostname, url.password or parse_qs(url.query).get("password")
    if host and not password and not is_loopback(host):
        _log.warning(
            "server.redis_url has no password: any client that can connect to Redis can choose the "
            "artifact that serves; set requirepass in Redis, and use redis://:PASSWORD@HOST:6379/0"
        )
