"""Keeps a gateway in step with its replicas, beside its requests and never in their way."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import anyio
import anyio.to_thread

from router_service.core.errors import PublicationError, StoreError
from router_service.core.releases import Publication
from router_service.store.base import CoolDown, SharedState, Snapshot
from router_service.store.guarded import Backoff
from router_service.store.local import read_pointer
from router_service.telemetry.metrics import Metrics

PERIOD_S = 0.5
"""Between two looks: a fleet of a hundred gateways asks Redis 200 times a second."""

READ_TIMEOUT_S = 2.0
"""Longest wait for a pointer's file."""

_log = logging.getLogger("switchcraft.store")


Adopt = Callable[[Mapping[str, float], Collection[str]], None]
"""Takes the seconds left of each cool-down that has begun elsewhere, and those that are gone."""


class Follower(Protocol):
    """The gateway that is kept in step; it takes up what is published."""

    @property
    def deployment_ids(self) -> Collection[str]:
        """Every deployment whose cool-downs matter here."""

    @property
    def directory(self) -> Path | None:
        """Where the pointer is; None where it is in the shared state, or there is none."""

    def follow(self, pointer: bytes | None, rejections: frozenset[str]) -> None:
        """Look at the pointer as it is now; must return at once."""


class Syncer:
    """Tells the shared state what happened here, and this gateway what happened elsewhere.

    Requests read local memory alone. While the state is away this gateway goes by its own, and
    what it has to tell is kept and told when the state is back.
    """

    def __init__(
        self,
        state: SharedState,
        metrics: Metrics,
        *,
        adopt: Adopt,
        follower: Follower,
        on_look: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Sync by `run`.

        `on_look` is called after each look, whether the state was there or not.
        """
        self._state = state
        self._adopt = adopt
        self._follower = follower
        self._on_look = on_look
        self._clock = clock
        self._up = metrics.shared_state_up
        self._up.set(1)
        self._backoff = Backoff()
        self._untold_ends_s: dict[str, float] = {}
        self._untold_rejections: dict[str, str] = {}
        self._adopted_ends_s: dict[str, float] = {}
        self._rejected: frozenset[str] = frozenset()
        self._parsed: tuple[bytes | None, str | None] = (None, None)
        self._pointer = _PointerReader()
        self.is_reachable = True
        """Whether the state could be read last time."""

    def opened(self, deployment_id: str, duration_s: float) -> None:
        """Note a cool-down that begins here, for the others."""
        self._untold_ends_s[deployment_id] = self._clock() + duration_s

    def reject(self, release_key: str, reason: str) -> None:
        """Note a release that failed here, for the others."""
        self._untold_rejections[release_key] = reason

    async def run(self) -> None:
        """Sync until cancelled."""
        while True:
            try:
                await self.sync()
            except Exception:  # noqa: BLE001 - a fault of ours must not end the loop
                _log.exception("a look at the shared state failed")
            await asyncio.sleep(PERIOD_S)

    async def sync(self) -> None:
        """Tell and read once; does not raise where the state is away."""
        directory = self._follower.directory
        pointer = None if directory is None else await self._pointer.read(directory)
        snapshot = await self._exchange()
        if snapshot is not None:
            self._adopt_changes(snapshot.cool_downs)
            pointer = snapshot.publication if directory is None else pointer
        if pointer is not None and not await self._knows_rejection(pointer):
            pointer = None
        self._follower.follow(pointer, self._rejected | self._untold_rejections.keys())
        self._on_look()

    async def aclose(self) -> None:
        """Let go of the state."""
        with suppress(StoreError):
            await self._state.aclose()

    async def _exchange(self) -> Snapshot | None:
        """Return what is asked for, after telling what is new; None while the state is away."""
        if self._backoff.is_pausing(self._clock()):
            return None
        try:
            await self._tell()
            snapshot = await self._state.read(self._follower.deployment_ids)
        except StoreError as exc:
            self._failed(exc)
            return None
        self._backoff.succeeded()
        self._show(is_reachable=True)
        return snapshot

    async def _tell(self) -> None:
        for deployment_id, end_s in list(self._untold_ends_s.items()):
            left_s = end_s - self._clock()
            if left_s > 0:
                await self._state.cool_down(deployment_id, left_s)
            # Unless it began anew meanwhile.
            if self._untold_ends_s[deployment_id] == end_s:
                del self._untold_ends_s[deployment_id]
        for key, reason in list(self._untold_rejections.items()):
            await self._state.reject(key, reason)
            del self._untold_rejections[key]
            self._rejected |= {key}

    def _adopt_changes(self, cool_downs: Mapping[str, CoolDown]) -> None:
        """Adopt each cool-down once: an entry that stays for days stops nothing for days."""
        ends_s = {name: cool_down.end_s for name, cool_down in cool_downs.items()}
        begun = {
            name: cool_down.left_s
            for name, cool_down in cool_downs.items()
            if self._adopted_ends_s.get(name) != cool_down.end_s
        }
        ended = self._adopted_ends_s.keys() - ends_s.keys()
        self._adopted_ends_s = ends_s
        if begun or ended:
            self._adopt(begun, ended)

    async def _knows_rejection(self, pointer: bytes) -> bool:
        """Learn whether replicas have rejected the pointer's canary, as far as they can be asked.

        False if the state has failed between two questions: then this look is not acted on.
        """
        if pointer != self._parsed[0]:
            self._parsed = (pointer, _canary_key(pointer))
        key = self._parsed[1]
        if key is None or not self.is_reachable:
            return True
        try:
            is_rejected = await self._state.is_rejected(key)
        except StoreError as exc:
            self._failed(exc)
            return False
        self._rejected = frozenset({key}) if is_rejected else frozenset()
        return True

    def _failed(self, exc: StoreError) -> None:
        self._backoff.failed(self._clock())
        self._show(is_reachable=False, why=str(exc))

    def _show(self, *, is_reachable: bool, why: str = "") -> None:
        if is_reachable != self.is_reachable and is_reachable:
            _log.warning("the shared state is back")
        elif is_reachable != self.is_reachable:
            _log.warning("the shared state is away, this gateway goes by its own: %s", why)
        self.is_reachable = is_reachable
        self._up.set(is_reachable)


def _canary_key(pointer: bytes) -> str | None:
    """Return the key of a pointer's canary; None if it has none, or cannot be read."""
    try:
        canary = Publication.parse(pointer, "the pointer").canary
    except PublicationError:
        return None  # the follower says so
    return canary.release.key if canary else None


class _PointerReader:
    """Reads a directory's pointer in a thread of its own: a volume of the network may hang."""

    def __init__(self) -> None:
        self._thread = anyio.CapacityLimiter(1)
        self._problem = ""

    async def read(self, directory: Path) -> bytes | None:
        """Return its text; None where there is none, or it cannot be read in time."""
        problem = f"{directory} does not answer"
        with anyio.move_on_after(READ_TIMEOUT_S):
            try:
                text = await anyio.to_thread.run_sync(
                    read_pointer, directory, limiter=self._thread, abandon_on_cancel=True
                )
            except StoreError as exc:
                problem = str(exc)
            else:
                self._problem = ""
                return text
        if problem != self._problem:
            _log.warning("%s; what is served stays", problem)
        self._problem = problem
        return None
