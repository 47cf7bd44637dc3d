"""Serves in this process, or in several worker processes."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from router_service import signals
from router_service.access.keyring import has_stored_keys, permitted_listen_host
from router_service.core.errors import DatabaseError
from router_service.core.resources import bound_heap
from router_service.database.engine import Database
from router_service.runtime.gateway import Gateway
from router_service.serving.server import (
    DrainingServer,
    ServeOptions,
    log_address,
    open_listeners,
    uvicorn_config,
)
from router_service.serving.workers import run_workers
from router_service.settings import Settings
from router_service.store.opening import log_warnings
from router_service.telemetry.logs import FIELDS, configure_logging
from router_service.telemetry.metrics import SHARED_DIRECTORY, shared_metrics_directory

_log = logging.getLogger("switchcraft.server")


def serve(options: ServeOptions) -> None:
    """Serve until the process is asked to stop; without a configuration, use the sandbox.

    Raises ConfigError or ArtifactError, whose messages contain the remedy, before it serves.
    """
    bound_heap()
    configure_logging()
    settings = options.read_settings()
    configure_logging(settings.logging.level, settings.logging.format)
    if not settings.has_models:
        signals.release_hang_up()  # SIGHUP cannot reload without a configuration file
    if settings.unsupported:
        _log.warning(
            "%s: some settings have another effect here than in LiteLLM", settings.source,
            extra={FIELDS: {"settings": unsupported_table(settings)}},
        )  # fmt: skip
    options = replace(options, keeps_database=prepare_database(settings))
    host = permitted_listen_host(settings, has_stored_keys=has_stored_keys(settings))
    server = settings.server.model_copy(update={"host": host})
    log_warnings(server.shared_store)
    shares_metrics = server.workers > 1 or SHARED_DIRECTORY in os.environ
    with (
        shared_metrics_directory() if shares_metrics else nullcontext(),
        open_listeners(settings.model_copy(update={"server": server})) as listeners,
        sandbox_for(settings) as sandbox_url,
    ):
        options = replace(options, sandbox_url=sandbox_url)
        if server.workers > 1:
            run_workers(options, listeners, server, has_file=settings.has_models)
            return
        app = options.create_app()
        if signals.is_stopping():
            return
        gateway: Gateway = app.state.gateway
        DrainingServer(
            uvicorn_config(app, server), gateway.drain, lambda: log_address(server, listeners)
        ).run(list(listeners))


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


def unsupported_table(settings: Settings) -> list[dict[str, str]]:
    """Return a row for each LiteLLM setting that has another effect here, with all its lines."""
    rows: dict[tuple[str, str], list[str]] = {}
    for each in settings.unsupported:
        key = re.sub(r"\.\d+", "[]", each.where), each.problem
        rows.setdefault(key, []).append(str(each.line))
    return [
        {"setting": setting, "lines": ", ".join(lines), "effect here": effect}
        for (setting, effect), lines in rows.items()
    ]


@contextmanager
def sandbox_for(settings: Settings) -> Iterator[str | None]:
    """Run a sandbox and yield its address if the settings name no models; otherwise yield None."""
    if settings.has_models:
        yield None
        return
    # Imported only if it is needed: it takes 20 ms.
    from router_service.sandbox.provider import run_in_thread  # noqa: PLC0415

    with run_in_thread() as base_url:
        _log.warning(
            "no upstream is configured: a sandbox at %s answers for every model, and no real model "
            "is called; configure models in a YAML file and pass it with --config",
            base_url,
        )
        yield base_url
