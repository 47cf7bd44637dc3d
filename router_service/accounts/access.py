"""Who may ask for what: the keys, and the address that a gateway without any listens on."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from pydantic import SecretStr

from router_service.core.errors import ConfigError
from router_service.core.keys import KeyRing, is_weak
from router_service.settings import ADMIN, METRICS, KeySettings, ServerSettings, Settings

LOOPBACK = "127.0.0.1"

_log = logging.getLogger("switchcraft.access")


@dataclass(frozen=True, slots=True)
class Access:
    """The keys of one configuration; with none at all, everyone who can connect is let in."""

    api: KeyRing
    admin: KeyRing
    metrics: KeyRing

    @classmethod
    def of(cls, keys: KeySettings) -> Access:
        """Take the keys of a configuration."""
        return cls(_ring(keys.api), _ring({ADMIN: keys.admin}), _ring({METRICS: keys.metrics}))

    @property
    def is_open(self) -> bool:
        """Whether no key is configured."""
        return not self.api and not self.admin and not self.metrics

    def caller(self, key: bytes, *, needs_admin: bool) -> str | None:
        """Return the name of the key that allows a request, or None if it does not."""
        admin, api = self.admin.name_of(key), self.api.name_of(key)
        return admin if needs_admin else admin or api

    def scraper(self, key: bytes) -> str | None:
        """Return the name of the key that allows `GET /metrics`, or None if it does not."""
        admin, metrics = self.admin.name_of(key), self.metrics.name_of(key)
        return admin or metrics


def _ring(keys: Mapping[str, SecretStr | None]) -> KeyRing:
    given = {name: key.get_secret_value() for name, key in keys.items() if key is not None}
    return KeyRing(given)


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own, as a browser would resolve it."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def listening_host(settings: Settings) -> str:
    """Return the address that a configuration may be served at, and say where it is not its own.

    Without a key that is this machine's alone. Raises ConfigError where a key can be guessed, and
    others than this machine could try.
    """
    host, keys = settings.server.host, settings.keys.by_path()
    if not keys:
        return _host_without_keys(host)
    if keys.keys() == {"keys.metrics"}:
        _log.warning("keys.metrics is the only key, so no client can be served; set keys.api")
    for where, key in keys.items():
        if is_weak(key):
            _tell_of_weak_key(where, settings)
    return host


def warn_of_open_redis(server: ServerSettings) -> None:
    """Log a warning if the address of a Redis on another machine has no password.

    Whoever can write to Redis can choose the artifact, stop deployments and read decisions.
    """
    if server.redis_url is None:
        return
    url = urlsplit(server.redis_url.get_secret_value())
    host, password = url.hostname, url.password or parse_qs(url.query).get("password")
    if host and not password and not is_loopback(host):
        _log.warning(
            "server.redis_url has no password: whoever can connect to Redis can choose what the "
            "router serves; set requirepass in Redis, and write redis://:PASSWORD@HOST:6379/0"
        )


def _host_without_keys(host: str) -> str:
    told = "no key is configured: whoever can connect may use this gateway and read its metrics"
    _log.warning("%s; set keys.api or general_settings.master_key (see `switchcraft key`)", told)
    if is_loopback(host):
        return host
    _log.warning("it listens on %s alone, and not on %s, until a key is set", LOOPBACK, host)
    return LOOPBACK


def _tell_of_weak_key(where: str, settings: Settings) -> None:
    problem = "the key is short, or an example's, and can be guessed; make one: `switchcraft key`"
    if not is_loopback(settings.server.host):
        raise ConfigError(settings.source, where, f"{problem}, or listen on {LOOPBACK} alone")
    _log.warning("%s: %s: %s", settings.source, where, problem)
