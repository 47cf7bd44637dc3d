"""Keeps a gateway in step with its replicas, beside its requests and never in their way."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import anyio
import anyio.to_thread

from router_service.core.errors import StoreError
from router_service.store.backoff import Backoff
from router_service.store.pointer import read_pointer
from router_service.store.shared import SharedState, Snapshot
from router_service.telemetry.metrics import Metrics

PERIOD_S = 0.5
"""Between two looks: a fleet of a hundred gateways asks Redis 200 times a second."""

READ_TIMEOUT_S = 2.0
"""Longest wait for a pointer's file."""

_log = logging.getLogger("switchcraft.store")


class Follower(Protocol):
    """Who takes up what is published."""

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
        adopt: Callable[[Mapping[str, float]], None],
        follower: Follower,
        on_look: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Sync by `run`; `adopt` gets the seconds that are left to each cool-down.

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
        self._rejected: frozenset[str] = frozenset()
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
        snapshot = await self._exchange()
        if snapshot is not None:
            self._adopt(snapshot.cool_downs)
            self._rejected = frozenset(snapshot.rejections)
        directory = self._follower.directory
        if directory is None:
            pointer = snapshot.publication if snapshot else None
        else:
            pointer = await self._pointer.read(directory)
        self._follower.follow(pointer, self._rejected | self._untold_rejections.keys())
        self._on_look()

    async def aclose(self) -> None:
        """Let go of the state."""
        with suppress(StoreError):
            await self._state.aclose()

    async def _exchange(self) -> Snapshot | None:
        """Return the state after telling it what is new; None while it is away."""
        if self._backoff.is_pausing(self._clock()):
            return None
        try:
            await self._tell()
            snapshot = await self._state.read()
        except StoreError as exc:
            self._backoff.failed(self._clock())
            self._show(is_reachable=False, why=str(exc))
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

    def _show(self, *, is_reachable: bool, why: str = "") -> None:
        if is_reachable != self.is_reachable and is_reachable:
            _log.warning("the shared state is back")
        elif is_reachable != self.is_reachable:
            _log.warning("the shared state is away, this gateway goes by its own: %s", why)
        self.is_reachable = is_reachable
        self._up.set(is_reachable)


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
