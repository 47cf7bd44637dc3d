"""Synchronization of a gateway with its replicas, in the background."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from router_service.core.errors import StoreError
from router_service.core.releases import Canary, Publication, Release
from router_service.runtime.syncing import READ_TIMEOUT_S, Syncer
from router_service.store.pointers import POINTER_FILE
from router_service.store.records import FIRST_PAUSE_S
from router_service.store.store import CoolDown
from tests.clock import Clock
from tests.stores import RemoteStore

pytestmark = pytest.mark.anyio

RELEASE = Release(name="two", path="two", manifest_sha256="0" * 64, created="2026-01-01T00:00:00Z")
PUBLICATION = Publication(serial=1, stable=RELEASE, canary=Canary(release=RELEASE))


class Unreliable(RemoteStore):
    """A store that may fail to read rejections."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.loses_rejections = False
        self.known: frozenset[str] = frozenset()

    async def cool_downs(self, deployment_ids: Collection[str]) -> Mapping[str, CoolDown]:
        """Return the cool-downs."""
        self.known = frozenset(deployment_ids)
        return await super().cool_downs(deployment_ids)

    def forget(self) -> None:
        """Delete everything, as an operator may delete Redis keys."""
        self._ends_s.clear()

    async def is_rejected(self, release_key: str) -> bool:
        """Return whether a release was rejected, or fail."""
        if self.loses_rejections:
            raise StoreError("read", "it is away")
        return await super().is_rejected(release_key)


class Gateway:
    """Breakers and a follower that only record calls."""

    def __init__(self, directory: Path | None = None) -> None:
        self.clock = Clock()
        self.state = Unreliable(self.clock)
        self.cool_downs: dict[str, float] = {}
        self.followed: list[tuple[bytes | None, frozenset[str]]] = []
        self.syncer = Syncer(
            self.state,
            adopt=self._adopt,
            deployment_ids=lambda: {"a", "long"},
            directory=directory,
            follow=self.follow,
            clock=self.clock,
        )

    def last(self) -> tuple[bytes | None, frozenset[str]]:
        """Return the last call of `follow`."""
        return self.followed[-1]

    def follow(self, pointer: bytes | None, rejections: frozenset[str]) -> None:
        """Record the call."""
        self.followed.append((pointer, rejections))

    def _adopt(self, begun: Mapping[str, float], ended: Collection[str]) -> None:
        self.cool_downs.update(begun)
        for name in ended:
            del self.cool_downs[name]


async def test_cool_down_is_adopted_once_and_ends_with_entry() -> None:
    """An unchanged entry is not adopted again, a later end is, and a deleted entry ends it."""
    gateway = Gateway()
    await gateway.state.cool_down("a", 10_000_000)
    await gateway.state.cool_down("unknown", 10)
    await gateway.syncer.sync()
    assert gateway.cool_downs == {"a": 10_000_000}
    assert gateway.state.known == {"a", "long"}, "nothing else is asked for"
    gateway.cool_downs["a"] = 0.0
    gateway.clock.now_s += 60
    await gateway.syncer.sync()
    assert gateway.cool_downs == {"a": 0.0}
    await gateway.state.cool_down("a", 20_000_000)
    await gateway.syncer.sync()
    assert gateway.cool_downs == {"a": 20_000_000}
    gateway.state.forget()
    await gateway.syncer.sync()
    assert gateway.cool_downs == {}


async def test_only_the_canarys_rejection_is_read(tmp_path: Path) -> None:
    """It is read before the pointer is followed; if the read fails, the pointer is ignored."""
    gateway = Gateway(tmp_path)
    pointer = PUBLICATION.to_json()
    (tmp_path / POINTER_FILE).write_bytes(pointer)
    await gateway.state.reject("another", "why")
    await gateway.syncer.sync()
    assert gateway.last() == (pointer, frozenset())
    await gateway.state.reject(RELEASE.key, "why")
    await gateway.syncer.sync()
    assert gateway.last() == (pointer, frozenset({RELEASE.key}))
    gateway.state.loses_rejections = True
    await gateway.syncer.sync()
    assert gateway.last() == (None, frozenset({RELEASE.key}))
    assert not gateway.syncer.is_reachable
    (tmp_path / POINTER_FILE).write_bytes(b"\xff")  # the follower reports that it is unreadable
    gateway.clock.now_s += FIRST_PAUSE_S
    await gateway.syncer.sync()
    assert gateway.last()[0] == b"\xff"


async def test_hanging_volume_delays_one_sync(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A read that hangs delays one synchronization, is logged once, and continues in its thread."""
    pipe = tmp_path / POINTER_FILE
    os.mkfifo(pipe)  # opening it waits for a writer
    gateway = Gateway(tmp_path)
    for _ in range(2):
        await gateway.syncer.sync()
    assert gateway.followed == [(None, frozenset())] * 2
    with pipe.open("wb") as writer:
        writer.write(b"late")
    problem = f"{tmp_path} did not answer within {READ_TIMEOUT_S:g} s"
    # Exporters that earlier tests have started may log in their own threads.
    own = [entry.message for entry in caplog.records if entry.name.startswith("switchcraft")]
    assert own == [f"{problem}; the gateway keeps its current publication"]
