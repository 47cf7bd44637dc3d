"""What replicas tell each other beside their requests: cool-downs, the pointer, rejections."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CoolDown:
    """A cool-down that some gateway has begun."""

    end_s: float
    """When it ends, by the shared state's own clock: tells one cool-down from the next."""
    left_s: float
    """Seconds until then."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a gateway reads of the shared state at one moment: nothing that it has not asked for."""

    cool_downs: Mapping[str, CoolDown] = field(default_factory=dict)
    """By deployment; those that are over are not here."""
    publication: bytes | None = None
    """The pointer as it is kept (`core.publication`), cut after `MAX_POINTER_BYTES` and one more;
    None if nothing is published."""


class SharedState(Protocol):
    """State that replicas share; every operation raises StoreError where it is unreachable."""

    async def read(self, deployment_ids: Collection[str]) -> Snapshot:
        """Return the pointer and the cool-downs of these deployments, in one round trip."""

    async def is_rejected(self, release_key: str) -> bool:
        """Return whether some replica has rejected a release."""

    async def cool_down(self, deployment_id: str, duration_s: float) -> None:
        """Let a deployment rest; of two durations the one that ends later counts.

        There is no other end to it: nobody asks the deployment before, so nobody knows better.
        """

    async def reject(self, release_key: str, reason: str) -> None:
        """Let no replica try a release again."""

    async def aclose(self) -> None:
        """Let go of connections."""


class MemorySharedState:
    """The same for a gateway of one replica; nothing is ever published in it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Hold nothing yet; `clock` returns seconds and never goes back."""
        self._clock = clock
        self._ends_s: dict[str, float] = {}
        self._rejections: dict[str, str] = {}

    async def read(self, deployment_ids: Collection[str]) -> Snapshot:
        """Return what this process has noted."""
        now_s = self._clock()
        self._ends_s = {name: end_s for name, end_s in self._ends_s.items() if end_s > now_s}
        found = {name: self._ends_s[name] for name in deployment_ids if name in self._ends_s}
        return Snapshot({name: CoolDown(end_s, end_s - now_s) for name, end_s in found.items()})

    async def is_rejected(self, release_key: str) -> bool:
        """Return whether this process has rejected a release."""
        return release_key in self._rejections

    async def cool_down(self, deployment_id: str, duration_s: float) -> None:
        """Note the end of a rest."""
        end_s = self._clock() + duration_s
        self._ends_s[deployment_id] = max(end_s, self._ends_s.get(deployment_id, end_s))

    async def reject(self, release_key: str, reason: str) -> None:
        """Note a rejection."""
        self._rejections[release_key] = reason

    async def aclose(self) -> None:
        """Do nothing: there is no connection."""
