"""Which deployment stores an object, and who may use it."""

from __future__ import annotations

import pytest

from router_service.core.decision_record import Storable
from router_service.core.errors import StoreError
from router_service.requests.ownership import (
    ObjectAccess,
    UpstreamObjectIndex,
)
from router_service.store.memory import MemoryStore
from router_service.store.records import GuardedStore, UpstreamObject

pytestmark = pytest.mark.anyio

HELD = UpstreamObject(id="resp_1", model="m", deployment_id="d")


class Shared:
    """A store that counts operations and may be unreachable."""

    def __init__(self) -> None:
        self.records: dict[str, UpstreamObject] = {}
        self.asked: list[str] = []
        self.is_away = False

    async def put(self, record: Storable) -> None:
        """Keep a record."""
        assert isinstance(record, UpstreamObject)
        self.records[record.id] = record

    async def add(self, record: Storable) -> bool:
        """Keep a record that is new."""
        assert isinstance(record, UpstreamObject)
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
    """Return a store whose records do not expire in a test."""
    return MemoryStore(UpstreamObject, ttl_s=1, max_records=10, clock=lambda: 0.0)


def replica(shared: Shared) -> UpstreamObjectIndex:
    """Return the index of a replica with a shared store."""
    return UpstreamObjectIndex(memory(), GuardedStore(shared, lambda _: None))


async def test_the_first_creator_stays_the_owner() -> None:
    """An upstream that returns an id to another key changes nothing in either store."""
    shared = Shared()
    one, other = replica(shared), replica(shared)
    mine = HELD.model_copy(update={"owner": "team-a"})
    theirs = HELD.model_copy(update={"owner": "team-b"})
    one.remember(mine)
    one.remember(theirs)
    assert one.find("resp_1") == mine
    await one.aclose()
    other.remember(theirs)
    await other.aclose()
    assert await replica(shared).fetch("resp_1") == mine


def test_access_to_objects() -> None:
    """A key may use its own objects, and the admin key all. Unowned ones depend on the gateway."""
    mine = HELD.model_copy(update={"owner": "team-a"})
    apart, alone = ObjectAccess("team-a", sees_unowned=False), ObjectAccess("team-a")
    admin, everyone = ObjectAccess("admin", sees_all=True), ObjectAccess(None)
    assert [viewer.sees(mine) for viewer in (apart, alone, admin, everyone)] == [
        True, True, True, False,
    ]  # fmt: skip
    assert not ObjectAccess("team-b").sees(mine)
    for unowned in (None, HELD):  # the latter is as older versions wrote it
        assert [viewer.sees(unowned) for viewer in (apart, alone, admin, everyone)] == [
            False, True, True, True,
        ]  # fmt: skip
