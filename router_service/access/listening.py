"""The address that a gateway may listen on, which depends on its keys."""

from __future__ import annotations

import logging
from contextlib import closing

from router_service.access.keyring import has_keys
from router_service.core.addresses import is_loopback
from router_service.core.errors import DatabaseError
from router_service.core.keys import is_weak
from router_service.database.engine import Database
from router_service.settings import Settings

LOOPBACK = "127.0.0.1"

_log = logging.getLogger("switchcraft.access")


def permitted_listen_host(settings: Settings, *, has_stored_keys: bool = False) -> str:
    """Return the address that the gateway may listen on, and log a warning if it is unsafe.

    Without any key, in the configuration or in the database, this is a loopback address. Raises
    ConfigError if a key can be guessed and the gateway would be reachable from other machines.
    """
    host, keys = settings.server.host, settings.keys.by_path()
    if not keys and has_stored_keys:
        return host
    if not keys:
        _log.warning(
            "no key is configured: any client that can connect may use this gateway and read its "
            "metrics; run `switchcraft keys create NAME --admin`, or set keys.api or "
            "general_settings.master_key"
        )
        if is_loopback(host):
            return host
        _log.warning(
            "listening only on %s instead of %s; restart the gateway when there is a key",
            LOOPBACK, host,
        )  # fmt: skip
        return LOOPBACK
    if keys.keys() == {"keys.metrics"} and not has_stored_keys:
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


def has_stored_keys(settings: Settings) -> bool:
    """Return whether the database has keys, without creating it; False if it cannot be read."""
    if settings.database.url is None:
        return False
    with closing(Database(settings.database.url.get_secret_value())) as database:
        try:
            if database.examine() is None:
                return False
            with database.read() as connection:
                return has_keys(connection)
        except DatabaseError:
            return False
