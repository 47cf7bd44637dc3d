"""Starts the gateway: from the configuration to a server that answers."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from router_service import signals
from router_service.access.keyring import LOOPBACK, has_stored_keys, permitted_listen_host
from router_service.artifact import MANIFEST, read_manifest
from router_service.core.errors import DatabaseError
from router_service.core.resources import bound_heap
from router_service.database.engine import Database
from router_service.http.auth import UI_PATH
from router_service.runtime.engine import EngineBuilder
from router_service.runtime.gateway import Gateway
from router_service.runtime.reloading import ReloadSource
from router_service.serving.app import create_app
from router_service.serving.server import DrainingServer, open_listeners, uvicorn_config
from router_service.settings import LogFormat, Settings, read_settings
from router_service.store.opening import log_warnings
from router_service.telemetry.logs import FIELDS, configure_logging

_log = logging.getLogger("switchcraft.server")


def serve(
    config: Path | None, host: str | None, port: int | None, log_format: LogFormat | None
) -> None:
    """Serve until the process is asked to stop; without a configuration, use the sandbox.

    Raises ConfigError or ArtifactError, whose messages contain the remedy, before it serves.
    """
    bound_heap()
    configure_logging()
    read = partial(read_settings, config, host=host, port=port, log_format=log_format)
    settings = read()
    configure_logging(settings.logging.level, settings.logging.format)
    if not settings.has_models:
        signals.release_hang_up()  # SIGHUP cannot reload without a configuration file
    log_unsupported(settings)
    log_warnings(settings.server.shared_store)
    replaced: dict[str, object] = {}  # of the settings, now and in each reload
    if not prepare_database(settings):
        replaced["database"] = settings.database.model_copy(update={"url": None})
    host = permitted_listen_host(settings, has_stored_keys=has_stored_keys(settings))
    with open_listeners(settings, host) as listeners, sandbox_for(settings) as sandbox:
        replaced |= sandbox
        settings = settings.model_copy(update=replaced)
        builder = EngineBuilder()
        router, publication = builder.first_router(settings)
        source = ReloadSource(lambda: read().model_copy(update=replaced), builder, publication)
        app = create_app(settings, router, source)
        if signals.is_stopping():
            return
        gateway: Gateway = app.state.gateway
        on_started = partial(log_address, host, listeners[0])
        server = DrainingServer(uvicorn_config(app, settings.server), gateway.drain, on_started)
        server.run(list(listeners))


def prepare_database(settings: Settings) -> bool:
    """Create or migrate the database, and return whether the gateway can use it.

    It cannot if the default file is missing and cannot be created: then its database is lost when
    it ends. If any other database is unusable, keys may be unknown. The gateway then starts only if
    the configuration has keys of its own, and it tries again. Otherwise this raises ConfigError.
    """
    if settings.database.url is None:
        cause = "the user has no home directory"
    else:
        database = Database(settings.database.url.get_secret_value())
        try:
            database.prepare()
        except DatabaseError as exc:
            if not settings.has_default_database or database.has_content:
                if settings.keys.has_clients:
                    return True  # the database's thread logs the error, and tries again
                problem = (
                    f"{exc}. The configuration has no keys, with which the gateway could start "
                    "nevertheless: repair the database, correct its address, or set keys.api or "
                    "keys.admin"
                )
                raise settings.error("database.url", problem) from exc
            cause = str(exc)
        else:
            return True
        finally:
            database.close()
    _log.warning(
        "the database is in memory, so keys, budgets and usage are lost when the gateway ends; set "
        "database.url to a file on a writable local disk: cause=%r", cause,
    )  # fmt: skip
    return False


def log_unsupported(settings: Settings) -> None:
    """Log each LiteLLM setting that has another effect here, with all its lines."""
    rows: dict[tuple[str, str], list[str]] = {}
    for each in settings.unsupported:
        key = re.sub(r"\.\d+", "[]", each.where), each.problem
        rows.setdefault(key, []).append(str(each.line))
    table = [
        {"setting": setting, "lines": ", ".join(lines), "effect here": effect}
        for (setting, effect), lines in rows.items()
    ]
    if table:
        _log.warning(
            "%s: some settings have another effect here than in LiteLLM", settings.source,
            extra={FIELDS: {"settings": table}},
        )  # fmt: skip


@contextmanager
def sandbox_for(settings: Settings) -> Iterator[Mapping[str, object]]:
    """Run a sandbox if the settings name no models, and yield the settings that use it instead."""
    if settings.has_models:
        yield {}
        return
    # Imported only if it is needed: it takes 20 ms.
    from router_service.sandbox.provider import run_in_thread  # noqa: PLC0415

    with run_in_thread() as base_url:
        _log.warning(
            "no upstream is configured: a sandbox at %s answers for every model, and no real model "
            "is called; configure models in a YAML file and pass it with --config",
            base_url,
        )
        arms = read_manifest(settings.router.artifact / MANIFEST).arms
        sandbox = Settings.sandbox(base_url, arms)
        yield {name: getattr(sandbox, name) for name in ("models", "source", "is_sandbox")}


def log_address(host: str, listener: socket.socket) -> None:
    """Log the addresses of the API and of the web page."""
    is_everywhere = host in {"", "0.0.0.0", "::"}  # noqa: S104 - compared, not used
    shown = LOOPBACK if is_everywhere else host
    url = f"http://{f'[{shown}]' if ':' in shown else shown}:{listener.getsockname()[1]}"
    place = ", on every address of this machine" if is_everywhere else ""
    _log.info("serving at %s/v1%s; web page at %s%s", url, place, url, UI_PATH)
