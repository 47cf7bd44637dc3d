"""The address that a gateway may listen on, which depends on its keys."""

from __future__ import annotations

import logging

from router_service.core.addresses import is_loopback
from router_service.core.keys import is_weak
from router_service.settings import Settings

LOOPBACK = "127.0.0.1"

_log = logging.getLogger("switchcraft.access")


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
