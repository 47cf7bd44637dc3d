"""Applies a changed configuration or publication between two requests.

A change applies as a whole, or is rejected as a whole.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, Protocol

import anyio.to_thread
from pydantic import BaseModel

from router_service import signals
from router_service.access.keyring import StoredKeys, permitted_listen_host
from router_service.core.errors import InvalidRequestError, SwitchcraftError
from router_service.core.refusals import RELOAD_REFUSED
from router_service.core.releases import Canary, ExceededLimit, Publication
from router_service.runtime.engine import Engine, EngineBuilder
from router_service.runtime.syncing import Syncer
from router_service.settings import Settings
from router_service.telemetry.logs import FIELDS
from router_service.telemetry.metrics import Metrics
from router_service.upstream.breaker import CircuitBreakers

FIRST_RETRY_S = 5.0
LONGEST_RETRY_S = 300.0
"""First and longest pause before a failed publication is tried again. The pointer may be visible
before the files that it names, because network volumes cache for a minute."""

Kind = Literal["config", "artifact"]
_log = logging.getLogger("switchcraft.reload")


@dataclass(frozen=True, slots=True)
class ReloadSource:
    """Everything that is needed to build the gateway's engine again."""

    read_settings: Callable[[], Settings]
    """Reads the configuration; raises ConfigError."""
    builder: EngineBuilder
    publication: Publication | None = None
    """The publication of the first engine."""


class Reloadable(Protocol):
    """Gateway as the reloader sees it; `runtime.gateway.Gateway` implements it."""

    breakers: CircuitBreakers
    stored_keys: StoredKeys
    engine: Engine
    """The engine that answers the next request."""
    syncer: Syncer
    metrics: Metrics

    async def replace_engine(self, engine: Engine) -> None:
        """Answer with another engine from the next request on."""


class ReloadReport(BaseModel):
    """Settings that a reload changed, as dotted paths without their values."""

    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]
    """Settings that differ in the file and take effect only when the process restarts."""
    artifact: str
    """Name of the stable artifact."""


class ReloadFailure(BaseModel):
    """The last configuration or publication that was rejected."""

    kind: Kind
    reason: str
    time: str


class Reloader:
    """Builds a gateway's next engine, one at a time, while the present one keeps serving."""

    def __init__(self, gateway: Reloadable, source: ReloadSource | None) -> None:
        """Reload a gateway; without a source, every reload fails."""
        self._gateway = gateway
        self._source = source
        self._builder = source.builder if source else EngineBuilder()
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._followed: tuple[bytes, frozenset[str]] | None = None
        self._retry_at_s = 0.0
        self._pause_s = FIRST_RETRY_S
        self.publication = source.publication if source else None
        """The publication that is served, or None if `router.artifact` serves."""
        self.last_failure: ReloadFailure | None = None
        self._show_publication()

    async def reload(self) -> ReloadReport:
        """Read the configuration and apply it; raises InvalidRequestError with the reason."""
        if self._source is None:
            raise RELOAD_REFUSED.error(
                reason="this gateway has no configuration to read again; restart it to change "
                "settings"
            )
        async with self._lock:
            try:
                present = self._gateway.engine.settings
                read = await anyio.to_thread.run_sync(self._source.read_settings)
                # A running process keeps the settings that it cannot change.
                router = read.router.model_copy(update={"publication": present.router.publication})
                fixed = (
                    "server",
                    "database",
                    "usage",
                    "budgets",
                    "decision_log",
                    "tracing",
                    "logging",
                )
                kept = {name: getattr(present, name) for name in fixed}
                settings = read.model_copy(update={**kept, "router": router})
                has_stored_keys = not self._gateway.stored_keys.is_empty
                _check_listen_address(present, settings, has_stored_keys=has_stored_keys)
                await self._replace_engine(settings, self.publication)
            except Exception as exc:
                self._failed("config", exc)
                raise RELOAD_REFUSED.error(reason=_reason(exc)) from exc
            report = ReloadReport(
                changed=tuple(_differences(present, settings)),
                needs_restart=tuple(_differences(settings, read)),
                artifact=self._gateway.engine.manifest.name,
            )
            self._succeeded("config", ", ".join(report.changed) or "no setting has changed")
            return report

    @contextmanager
    def on_hang_up(self) -> Iterator[None]:
        """Reload at SIGHUP while the block runs, if there is a file; failures are logged.

        A SIGHUP that arrived during startup is handled now. Without a file the signal ends the
        process as usual: a terminal that closes sends it too.
        """
        has_file = self._source is not None and not self._gateway.engine.settings.is_sandbox
        # Only the main thread can handle signals. In another thread, the gateway is embedded in
        # another program.
        if not has_file or threading.current_thread() is not threading.main_thread():
            yield
            return

        async def reload_and_ignore_failure() -> None:
            with suppress(InvalidRequestError):  # already logged and counted
                await self.reload()

        loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGHUP)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._start(reload_and_ignore_failure()))
        if signals.take_hang_up():
            self._start(reload_and_ignore_failure())
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
            # The default action would kill a process that drains.
            signal.signal(signal.SIGHUP, before or signal.SIG_DFL)

    def follow(self, pointer: bytes | None, rejections: frozenset[str]) -> None:
        """Start to apply the publication that the pointer names, unless it is already served.

        `rejections` are the keys of releases that a replica has rejected.
        """
        if pointer is None or self._source is None or self._lock.locked():
            return
        seen = (pointer, rejections)
        if seen == self._followed and time.monotonic() < self._retry_at_s:
            return
        if seen != self._followed:
            self._pause_s = FIRST_RETRY_S
        self._followed = seen
        self._start(
            self._apply(
                lambda: _without_rejected_canary(
                    Publication.parse(pointer, "the pointer"), rejections
                )
            )
        )

    def roll_back(self, canary: Canary, excess: ExceededLimit) -> None:
        """Stop a canary release that exceeds a limit, here and on all replicas."""
        self._gateway.metrics.canary_withdrawals.labels(excess.limit).inc()
        label, key = canary.release.label, canary.release.key
        _log.error(
            "canary rolled back: release=%s cause=%r", label, excess.text,
            extra={FIELDS: {"event": "canary_withdrawn", "release": label, "bound": excess.limit}},
        )  # fmt: skip
        self._gateway.syncer.reject(key, excess.text)
        if (served := self.publication) is not None:
            self._start(self._apply(lambda: _without_rejected_canary(served, frozenset({key}))))

    async def aclose(self) -> None:
        """Cancel reloads that have not ended."""
        for task in self._tasks:
            task.cancel()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)  # the event loop holds only weak references to tasks
        task.add_done_callback(self._tasks.discard)

    async def _apply(self, read: Callable[[], Publication]) -> None:
        async with self._lock:
            try:
                publication = read()
                if publication != self.publication:
                    await self._replace_engine(self._gateway.engine.settings, publication)
                    labels = ", ".join(release.label for release in publication.releases)
                    self._succeeded("artifact", f"publication {publication.serial} of {labels}")
            except Exception as exc:  # noqa: BLE001 - the current engine must serve on
                self._failed("artifact", exc)
                self._retry_at_s = time.monotonic() + self._pause_s
                self._pause_s = min(2 * self._pause_s, LONGEST_RETRY_S)
            else:
                self._retry_at_s = float("inf")

    async def _replace_engine(self, settings: Settings, publication: Publication | None) -> None:
        gateway = self._gateway
        engine = await anyio.to_thread.run_sync(
            self._builder.engine,
            settings,
            publication,
            gateway.breakers,
            gateway.stored_keys,
            self.roll_back,
        )
        await gateway.replace_engine(engine)
        self.publication = publication
        self._show_publication()

    def _succeeded(self, kind: Kind, change: str) -> None:
        self._count(kind, succeeded=True)
        fields = {"event": "reload", "kind": kind, "outcome": "taken"}
        _log.info("reloaded %s: %s", kind, change, extra={FIELDS: fields})

    def _failed(self, kind: Kind, exc: Exception) -> None:
        self._count(kind, succeeded=False)
        reason = _reason(exc)
        self.last_failure = ReloadFailure(
            kind=kind, reason=reason, time=datetime.now(UTC).isoformat()
        )
        fields = {"event": "reload", "kind": kind, "outcome": "refused"}
        _log.error(
            "reload of %s failed, the gateway continues with the previous one: cause=%s",
            kind, reason,
            extra={FIELDS: fields}, exc_info=None if isinstance(exc, SwitchcraftError) else exc,
        )  # fmt: skip

    def _count(self, kind: Kind, *, succeeded: bool) -> None:
        metrics = self._gateway.metrics
        metrics.reloads.labels(kind, "taken" if succeeded else "refused").inc()
        metrics.last_reload_successful.labels(kind).set(succeeded)

    def _show_publication(self) -> None:
        serial = self.publication.serial if self.publication else 0
        self._gateway.metrics.publication_serial.set(serial)


def _without_rejected_canary(publication: Publication, rejections: frozenset[str]) -> Publication:
    canary = publication.canary
    if canary is None or canary.release.key not in rejections:
        return publication
    return publication.model_copy(update={"canary": None})


def _reason(exc: Exception) -> str:
    """Return a reason for operators; the internals of an unexpected error are only in the log."""
    return str(exc) if isinstance(exc, SwitchcraftError) else "an internal error; see the log"


def _check_listen_address(present: Settings, new: Settings, *, has_stored_keys: bool) -> None:
    """Raise ConfigError if the new keys do not permit listening on the process's address.

    The address may be open to other machines only if there are keys, and none can be guessed.
    """
    host = permitted_listen_host(new, has_stored_keys=has_stored_keys)
    if present.keys.by_path() and host != present.server.host:
        problem = "the last key was removed, but other machines can connect; keep a key, or restart"
        raise new.error("keys", problem)


def _differences(old: Settings, new: Settings) -> Iterator[str]:
    """Yield the dotted paths of the settings whose values differ."""
    before: dict[str, BaseModel] = {model.name: model for model in old.models}
    after: dict[str, BaseModel] = {model.name: model for model in new.models}
    yield from (f"model_list.{k}" for k in before | after if before.get(k) != after.get(k))
    about_file = {"is_sandbox", "lines", "source", "unsupported"}
    for section in sorted(Settings.model_fields.keys() - {"models", *about_file}):
        one, other = getattr(old, section), getattr(new, section)
        if isinstance(one, BaseModel):
            for field in type(one).model_fields:
                if getattr(one, field) != getattr(other, field):
                    yield f"{section}.{field}"
        elif one != other:
            yield section
