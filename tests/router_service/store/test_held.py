"""Who holds which response, as a replica knows it."""

from __future__ import annotations

import asyncio

import pytest

from router_service.core.errors import StoreError
from router_service.store.base import UpstreamObject
from router_service.store.guarded import GuardedStore
from router_service.store.local import MemoryStore
from router_service.store.upstream_objects import MAX_ID_CHARACTERS, UpstreamObjectIndex, Viewer

HELD = UpstreamObject(id="resp_1", model="m", deployment_id="d")


class Shared:
    """A store that counts what it is asked, and may be away."""

    def __init__(self) -> None:
        self.records: dict[str, UpstreamObject] = {}
        self.asked: list[str] = []
        self.is_away = False

    async def put(self, record: UpstreamObject) -> None:
        """Keep a record."""
        self.records[record.id] = record

    async def add(self, record: UpstreamObject) -> bool:
        """Keep a record that is new."""
        return self.records.setdefault(record.id, record) is record

    async def get(self, record_id: str) -> UpstreamObject | None:
        """Return a record."""
        self.asked.append(record_id)
        if self.is_away:
            raise StoreError("look up a response", "it is away")
        return self.records.get(record_id)

    async def aclose(self) -> None:
        """Do nothing."""


def memory() -> MemoryStore[UpstreamObject]:
    """Return a store that forgets nothing in a test."""
    return MemoryStore(ttl_s=1, max_records=10, clock=lambda: 0.0)


def replica(shared: Shared) -> UpstreamObjectIndex:
    """Return what a replica knows, with a store that others share."""
    return UpstreamObjectIndex(memory(), GuardedStore(shared, lambda _: None))


def test_what_is_known_here_is_not_asked_for() -> None:
    """A response that this replica relayed is found without the shared store."""

    async def check() -> None:
        shared = Shared()
        held = replica(shared)
        held.note(HELD)
        assert held.find("resp_1") == HELD
        assert await held.fetch("resp_1") == HELD
        assert shared.asked == []

    asyncio.run(check())


def test_what_another_replica_noted_is_fetched_once() -> None:
    """What is not known here comes from the shared store, and is known from then on."""

    async def check() -> None:
        shared = Shared()
        one, other = replica(shared), replica(shared)
        one.note(HELD)
        await one.aclose()
        assert other.find("resp_1") is None
        assert await other.fetch("resp_1") == HELD
        assert other.find("resp_1") == HELD
        assert await other.fetch("resp_1") == HELD
        assert shared.asked == ["resp_1"]

    asyncio.run(check())


def test_unknown_responses() -> None:
    """What nobody knows is none; an id that cannot be one is not even asked for."""

    async def check() -> None:
        shared = Shared()
        held = replica(shared)
        assert await held.fetch("resp_none") is None
        assert await held.fetch("x" * (MAX_ID_CHARACTERS + 1)) is None
        assert shared.asked == ["resp_none"]
        assert await UpstreamObjectIndex(memory()).fetch("resp_none") is None

    asyncio.run(check())


def test_a_store_that_is_away_is_said() -> None:
    """Not to know because the store is away is an error of its own."""

    async def check() -> None:
        shared = Shared()
        shared.is_away = True
        with pytest.raises(StoreError):
            await replica(shared).fetch("resp_1")

    asyncio.run(check())


def test_the_first_creator_stays_the_owner() -> None:
    """An upstream that gives an id to another key changes nothing, here and in the shared store."""

    async def check() -> None:
        shared = Shared()
        one, other = replica(shared), replica(shared)
        mine = HELD.model_copy(update={"owner": "team-a"})
        theirs = HELD.model_copy(update={"owner": "team-b"})
        one.note(mine)
        one.note(theirs)
        assert one.find("resp_1") == mine
        await one.aclose()
        other.note(theirs)
        await other.aclose()
        assert await replica(shared).fetch("resp_1") == mine

    asyncio.run(check())


@pytest.mark.parametrize("identifier", ["", "x" * 201, "x" * 900_000, "a\nb", "\ud800", "\0"])
def test_what_is_no_id_is_not_kept(identifier: str) -> None:
    """A response id of 0.9 MB takes no memory, and one that cannot be written raises nothing."""
    held = UpstreamObjectIndex(memory())
    held.note(HELD.model_copy(update={"id": identifier}))
    assert held.find(identifier) is None


def test_who_sees_what() -> None:
    """A key sees its own, the admin key everything; what nobody owns depends on the gateway."""
    mine = HELD.model_copy(update={"owner": "team-a"})
    apart, alone = Viewer("team-a", sees_unowned=False), Viewer("team-a")
    admin, everyone = Viewer("admin"), Viewer(None)
    assert [viewer.sees(mine) for viewer in (apart, alone, admin, everyone)] == [
        True, True, True, False,
    ]  # fmt: skip
    assert not Viewer("team-b").sees(mine)
    for unowned in (None, HELD):  # the latter is as older versions wrote it
        assert [viewer.sees(unowned) for viewer in (apart, alone, admin, everyone)] == [
            False, True, True, True,
        ]  # fmt: skip
