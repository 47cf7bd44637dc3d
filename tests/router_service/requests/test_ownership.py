"""Which deployment stores an object, and who may use it."""

from __future__ import annotations

import pytest

from router_service.requests.ownership import (
    ObjectAccess,
    UpstreamObjectIndex,
)
from router_service.store.memory import MemoryStore
from router_service.store.records import Records, UpstreamObject
from tests.stores import LIMITS, RemoteStore

pytestmark = pytest.mark.anyio

HELD = UpstreamObject(id="resp_1", model="m", deployment_id="d")


def replica(shared: RemoteStore) -> UpstreamObjectIndex:
    """Return the index of a replica with a shared store."""
    local = MemoryStore(LIMITS).records(UpstreamObject)
    return UpstreamObjectIndex(local, Records(shared, UpstreamObject, pytest.fail))


async def test_the_first_creator_stays_the_owner() -> None:
    """An upstream that returns an id to another key changes nothing in either store."""
    shared = RemoteStore()
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
