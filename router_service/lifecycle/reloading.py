"""Takes up another configuration or publication between two requests, or refuses it whole."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Protocol

import anyio.to_thread
from pydantic import BaseModel

from router_service import signals
from router_service.accounts.access import listening_host
from router_service.core.errors import ConfigError, ReloadRefusedError, SwitchcraftError
from router_service.core.releases import Canary, ExceededLimit, Publication
from router_service.lifecycle.building import EngineBuilder, Shared, pointer_directory
from router_service.lifecycle.engine import Engine
from router_service.lifecycle.syncing import Syncer
from router_service.settings import Settings
from router_service.telemetry.logs import FIELDS

FIRST_RETRY_S = 5.0
LONGEST_RETRY_S = 300.0
"""A pointer may be seen before the files that it names: volumes of a network cache for a minute."""

POINTER = "the pointer"
"""What errors call it: its place may hold a password."""

Kind = Literal["config", "artifact"]
_log = logging.getLogger("switchcraft.reload")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a gateway has come from, so that it can be made again."""

    read: Callable[[], Settings]
    """Reads the configuration anew; raises ConfigError."""
    builder: EngineBuilder
    publication: Publication | None = None
    """What its first engine was made of."""
    has_file: bool = True
    """Whether there is a file, which SIGHUP asks to be read again."""
    tell_others: Callable[[], None] = lambda: None
    """Has the other workers of this gateway reload, and does not wait for them."""


class Reloadable(Shared, Protocol):
    """What is reloaded; `lifecycle.gateway.Gateway` is one."""

    engine: Engine
    """What answers the next request."""
    syncer: Syncer

    async def swap(self, engine: Engine) -> None:
        """Answer from the next request on with another engine."""


class Report(BaseModel):
    """What a reload changed: dotted paths of settings, never their values."""

    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]
    """Settings that differ too, and that stay as they are until the process starts anew."""
    artifact: str
    """Name of the stable artifact."""


class Refusal(BaseModel):
    """The last thing that was not taken up."""

    kind: Kind
    reason: str
    time: str


class Reloader:
    """Makes the next engine of a gateway, one at a time, while the present one serves on."""

    def __init__(self, gateway: Reloadable, origin: Origin | None) -> None:
        """Reload for a gateway; without an origin there is nothing to reload from."""
        self._gateway = gateway
        self._origin = origin
        self._builder = origin.builder if origin else EngineBuilder()
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._followed: tuple[bytes, frozenset[str]] | None = None
        self._retry_at_s = 0.0
        self._pause_s = FIRST_RETRY_S
        self.publication = origin.publication if origin else None
        """What is served; None where it is `router.artifact`."""
        self.refusal: Refusal | None = None
        self._show_publication()

    @property
    def directory(self) -> Path | None:
        """Where the pointer is; None where it is in the shared state, or there is none."""
        return pointer_directory(self._gateway.engine.settings)

    @property
    def deployment_ids(self) -> frozenset[str]:
        """Every deployment of the engine that answers."""
        return self._gateway.engine.deployment_ids

    async def reload(self) -> Report:
        """Read the configuration anew and take it up; raises ReloadRefusedError with the reason."""
        if self._origin is None:
            raise ReloadRefusedError("this gateway was started without a configuration to read")
        async with self._lock:
            try:
                report = await self._reload(self._origin)
            except Exception as exc:
                self._refused("config", exc)
                raise ReloadRefusedError(_reason(exc)) from exc
            self._taken("config", ", ".join(report.changed) or "nothing has changed")
            return report

    async def reload_all(self) -> Report:
        """Reload here, and have the other workers reload what was taken up; raises as `reload`."""
        report = await self.reload()
        if self._origin is not None:
            self._origin.tell_others()
        return report

    @contextmanager
    def on_hang_up(self) -> Iterator[None]:
        """Reload at SIGHUP while the block runs, where there is a file; a refusal is logged.

        One that arrived while the process was starting is obeyed now. Without a file the signal
        ends the process as ever: a terminal that closes sends it too.
        """
        has_file = self._origin is not None and self._origin.has_file
        # Only there can signals be handled; elsewhere the gateway is a part of something else.
        if not has_file or threading.current_thread() is not threading.main_thread():
            yield
            return
        loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGHUP)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._start(self._reload_quietly()))
        if signals.take_hang_up():
            self._start(self._reload_quietly())
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
            signal.signal(
                signal.SIGHUP, before or signal.SIG_DFL
            )  # the default would kill a process that drains

    def follow(self, pointer: bytes | None, rejections: frozenset[str]) -> None:
        """Look at the pointer as it is now, and take it up beside what is going on."""
        is_published = self._gateway.engine.settings.router.publication is not None
        if pointer is None or not is_published or self._origin is None or self._lock.locked():
            return
        seen = (pointer, rejections)
        if seen == self._followed and time.monotonic() < self._retry_at_s:
            return
        if seen != self._followed:
            self._pause_s = FIRST_RETRY_S
        self._followed = seen
        self._start(
            self._take_up(lambda: _allowed(Publication.parse(pointer, POINTER), rejections))
        )

    def withdraw(self, canary: Canary, excess: ExceededLimit) -> None:
        """End a canary that exceeds a bound, here and with all replicas."""
        self._gateway.metrics.canary_withdrawals.labels(excess.limit).inc()
        label, key = canary.release.label, canary.release.key
        _log.error(
            "the canary %s is withdrawn: %s", label, excess.text,
            extra={FIELDS: {"event": "canary_withdrawn", "release": label, "bound": excess.limit}},
        )  # fmt: skip
        self._gateway.syncer.reject(key, excess.text)
        if (served := self.publication) is not None:
            self._start(self._take_up(lambda: _allowed(served, frozenset({key}))))

    async def aclose(self) -> None:
        """Give up what is under way."""
        for task in self._tasks:
            task.cancel()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)  # the loop itself holds tasks by weak references alone
        task.add_done_callback(self._tasks.discard)

    async def _reload(self, origin: Origin) -> Report:
        present = self._gateway.engine.settings
        read = await anyio.to_thread.run_sync(origin.read)
        settings = _without_restart(present, read)
        _check_address(present, settings)
        await self._replace(settings, self.publication)
        return Report(
            changed=tuple(_differences(present, settings)),
            needs_restart=tuple(_differences(settings, _completed(present, read))),
            artifact=self._gateway.engine.manifest.name,
        )

    async def _reload_quietly(self) -> None:
        try:
            await self.reload()
        except ReloadRefusedError:
            return  # logged, counted and shown by then

    async def _take_up(self, read: Callable[[], Publication]) -> None:
        async with self._lock:
            try:
                publication = read()
                if publication != self.publication:
                    await self._replace(self._gateway.engine.settings, publication)
                    self._taken("artifact", _told(publication))
            except Exception as exc:  # noqa: BLE001 - whatever is wrong with it, the present one serves on
                self._refused("artifact", exc)
                self._retry_at_s = time.monotonic() + self._pause_s
                self._pause_s = min(2 * self._pause_s, LONGEST_RETRY_S)
            else:
                self._retry_at_s = float("inf")

    async def _replace(self, settings: Settings, publication: Publication | None) -> None:
        engine = await anyio.to_thread.run_sync(
            self._builder.engine, settings, publication, self._gateway, self.withdraw
        )
        await self._gateway.swap(engine)
        self.publication = publication
        self._show_publication()

    def _taken(self, kind: Kind, what: str) -> None:
        self._count(kind, is_taken=True)
        fields = {"event": "reload", "kind": kind, "outcome": "taken"}
        _log.info("took up another %s: %s", kind, what, extra={FIELDS: fields})

    def _refused(self, kind: Kind, exc: Exception) -> None:
        self._count(kind, is_taken=False)
        reason = _reason(exc)
        self.refusal = Refusal(kind=kind, reason=reason, time=datetime.now(UTC).isoformat())
        fields = {"event": "reload", "kind": kind, "outcome": "refused"}
        _log.error(
            "refused another %s, the present one serves on: %s", kind, reason,
            extra={FIELDS: fields}, exc_info=None if isinstance(exc, SwitchcraftError) else exc,
        )  # fmt: skip

    def _count(self, kind: Kind, *, is_taken: bool) -> None:
        metrics = self._gateway.metrics
        metrics.reloads.labels(kind, "taken" if is_taken else "refused").inc()
        metrics.last_reload_successful.labels(kind).set(is_taken)
        metrics.last_reload_timestamp_seconds.labels(kind).set(time.time())

    def _show_publication(self) -> None:
        serial = self.publication.serial if self.publication else 0
        self._gateway.metrics.publication_serial.set(serial)


def _allowed(publication: Publication, rejections: frozenset[str]) -> Publication:
    """Return a publication without a canary that was withdrawn."""
    canary = publication.canary
    if canary is None or canary.release.key not in rejections:
        return publication
    return publication.model_copy(update={"canary": None})


def _told(publication: Publication) -> str:
    releases = ", ".join(release.label for release in publication.releases)
    return f"publication {publication.serial} of {releases}"


def _reason(exc: Exception) -> str:
    """Return what a person may read; of a fault of ours no internals, which the log has."""
    return str(exc) if isinstance(exc, SwitchcraftError) else "an internal error; the log says why"


def _completed(present: Settings, read: Settings) -> Settings:
    """Return settings that name no models with those of the sandbox that plays them."""
    return read if read.models else read.model_copy(update={"models": present.models})


def _without_restart(present: Settings, read: Settings) -> Settings:
    """Return new settings but for what a running process cannot change."""
    router = read.router.model_copy(update={"publication": present.router.publication})
    fixed = ("server", "decision_log", "tracing", "logging")
    bound = {name: getattr(present, name) for name in fixed}
    changes = {**bound, "router": router}
    return _completed(present, read).model_copy(update=changes)


def _check_address(present: Settings, new: Settings) -> None:
    """Refuse settings under which this process would not have listened where it does.

    Where others than this machine can connect there must be a key, and none that can be guessed.
    """
    may_listen_at = listening_host(new)
    if present.keys.by_path() and may_listen_at != present.server.host:
        problem = "no key is left, and others than this machine can connect; keep one, or restart"
        raise ConfigError(new.source, "keys", problem)


def _differences(old: Settings, new: Settings) -> Iterator[str]:
    """Name what differs, by its dotted path in the file."""
    one, other = _by_name(old), _by_name(new)
    yield from (f"model_list.{name}" for name in one | other if one.get(name) != other.get(name))
    for section in sorted(Settings.model_fields.keys() - {"models", "source", "without_effect"}):
        yield from _differing_fields(section, getattr(old, section), getattr(new, section))


def _by_name(settings: Settings) -> dict[str, BaseModel]:
    return {model.name: model for model in settings.models}


def _differing_fields(section: str, old: object, new: object) -> Iterator[str]:
    if not isinstance(old, BaseModel):
        if old != new:
            yield section
        return
    for field in type(old).model_fields:
        if getattr(old, field) != getattr(new, field):
            yield f"{section}.{field}"
