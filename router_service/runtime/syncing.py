"""Synchronizes a gateway with its replicas in the background, never within a request."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.to_thread

from router_service.core.errors import ArtifactError, StoreError
from router_service.core.releases import Publication
from router_service.store.pointers import Pointer
from router_service.store.records import Reachability
from router_service.store.store import CoolDown, Store

PERIOD_S = 0.5
"""Time between two synchronizations, with which 100 gateways send Redis 200 requests a second."""

START_S = 5.0
"""Time after the start within which failures are no outage yet. A process that starts is busy, and
may see the first answers too late."""

READ_TIMEOUT_S = 2.0
"""Longest wait for the pointer file."""

_log = logging.getLogger("switchcraft.store")


Adopt = Callable[[Mapping[str, float], Collection[str]], None]
"""Takes the cool-downs that began on other replicas (seconds left by deployment), and the
deployments whose cool-downs ended on those replicas."""


Follow = Callable[[bytes | None, frozenset[str]], None]
"""Starts to apply the publication that the pointer names, and returns at once. The second argument
has the keys of releases that a replica has rejected."""


class Syncer:
    """Exchanges cool-downs and rejected releases with the shared state, and reads the pointer.

    Requests read only local memory. While the shared state cannot be reached, the gateway uses its
    local state. Its changes from that time are written once the shared state is reachable again.
    """

    def __init__(
        self,
        state: Store,
        *,
        adopt: Adopt,
        deployment_ids: Callable[[], Collection[str]],
        directory: Path | None,
        follow: Follow,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to synchronize the cool-downs of these deployments.

        `directory` has the pointer; without one, `follow` gets None instead of its text.
        """
        self._state = state
        self._adopt = adopt
        self._deployment_ids = deployment_ids
        self._directory = directory
        self._follow = follow
        self._clock = clock
        self._reach = Reachability("shared state", "using local state")
        self._unsent_ends_s: dict[str, float] = {}
        self._unsent_rejections: dict[str, str] = {}
        self._adopted_ends_s: dict[str, float] = {}
        self._rejected: frozenset[str] = frozenset()
        self._parsed: tuple[bytes | None, str | None] = (None, None)
        self._pointer = _PointerReader()
        self._stopping = asyncio.Event()
        self._patient_until_s = -math.inf

    @property
    def is_reachable(self) -> bool:
        """Whether the last read of the shared state succeeded."""
        return self._reach.is_reachable

    def opened(self, deployment_id: str, duration_s: float) -> None:
        """Note a cool-down that began in this replica, to send it to the other replicas."""
        self._unsent_ends_s[deployment_id] = self._clock() + duration_s

    def reject(self, release_key: str, reason: str) -> None:
        """Note a release that failed in this replica, to send it to the other replicas."""
        self._unsent_rejections[release_key] = reason

    async def run(self) -> None:
        """Synchronize periodically until `stop`."""
        self._patient_until_s = self._clock() + START_S
        while not self._stopping.is_set():
            try:
                await self.sync()
            except Exception:  # noqa: BLE001 - a bug here must not end the synchronization
                _log.exception("synchronization with the shared state failed")
            with suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_S):
                    await self._stopping.wait()

    def stop(self) -> None:
        """End `run` after the synchronization that is under way, which is short.

        Cancelling `run` instead is not reliable: redis-py sends with `asyncio.wait_for`, which in
        Python 3.11 loses a cancellation that arrives when the send has just ended. The shutdown
        would then wait forever (https://github.com/python/cpython/issues/86296).
        """
        self._stopping.set()

    async def sync(self) -> None:
        """Exchange changes with the shared state once; does not raise if that is unreachable."""
        pointer = None
        if self._directory is not None:
            pointer = await self._pointer.read(self._directory)
        cool_downs = await self._exchange()
        if cool_downs is not None:
            # Each cool-down is adopted only once, so that an entry that stays in the shared state
            # for days does not block a deployment for days.
            ends_s = {name: cool_down.end_s for name, cool_down in cool_downs.items()}
            begun_s = {
                name: cool_down.left_s
                for name, cool_down in cool_downs.items()
                if self._adopted_ends_s.get(name) != cool_down.end_s
            }
            ended = self._adopted_ends_s.keys() - ends_s.keys()
            self._adopted_ends_s = ends_s
            if begun_s or ended:
                self._adopt(begun_s, ended)
        if pointer is not None and not await self._read_rejection(pointer):
            pointer = None
        self._follow(pointer, self._rejected | self._unsent_rejections.keys())

    async def _exchange(self) -> Mapping[str, CoolDown] | None:
        """Write local changes and return the cool-downs, or None if the state cannot be reached."""
        if self._reach.is_pausing(self._clock()):
            return None
        try:
            for deployment_id, end_s in list(self._unsent_ends_s.items()):
                left_s = end_s - self._clock()
                if left_s > 0:
                    await self._state.cool_down(deployment_id, left_s)
                # Keep the entry if another cool-down of this deployment began meanwhile.
                if self._unsent_ends_s[deployment_id] == end_s:
                    del self._unsent_ends_s[deployment_id]
            for key, reason in list(self._unsent_rejections.items()):
                await self._state.reject(key, reason)
                del self._unsent_rejections[key]
                self._rejected |= {key}
            cool_downs = await self._state.cool_downs(self._deployment_ids())
        except StoreError as exc:
            self._failed(exc)
            return None
        self._patient_until_s = -math.inf
        self._reach.record_success()
        return cool_downs

    async def _read_rejection(self, pointer: bytes) -> bool:
        """Read whether replicas rejected the pointer's canary release, if the state is reachable.

        Returns False if this read fails although the previous one succeeded. Then the caller
        ignores the pointer until the next synchronization.
        """
        if pointer != self._parsed[0]:
            try:
                canary = Publication.parse(pointer, "the pointer").canary
            except ArtifactError:
                canary = None  # the follower logs the problem
            self._parsed = (pointer, canary.release.key if canary else None)
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
        if self._clock() < self._patient_until_s:
            return
        self._reach.record_failure(self._clock(), exc)


class _PointerReader:
    """Reader of the pointer file in its own thread, because a network volume may hang."""

    def __init__(self) -> None:
        self._thread = anyio.CapacityLimiter(1)
        self._problem = ""

    async def read(self, directory: Path) -> bytes | None:
        """Return the pointer's text, or None if it is missing or cannot be read in time."""
        problem = f"{directory} did not answer within {READ_TIMEOUT_S:g} s"
        with anyio.move_on_after(READ_TIMEOUT_S):
            try:
                read = Pointer(directory).read_text
                text = await anyio.to_thread.run_sync(
                    read, limiter=self._thread, abandon_on_cancel=True
                )
            except ArtifactError as exc:
                problem = str(exc)
            else:
                self._problem = ""
                return text
        if problem != self._problem:
            _log.warning("%s; the gateway keeps its current publication", problem)
        self._problem = problem
        return None
