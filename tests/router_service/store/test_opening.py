"""Every store keeps records and shared state alike, and is opened by its URL."""

from __future__ import annotations

import asyncio

import pytest

from router_service.core.errors import ConfigError
from router_service.store.opening import open_store
from router_service.store.records import EvidenceMark, FeedbackMark, Records, UpstreamObject
from router_service.store.store import Retention, StoreLimits
from tests.router_service.store.conftest import Replicas
from tests.serving import wait_for_async
from tests.stores import LIMITS

pytestmark = pytest.mark.anyio


async def test_records_are_shared(replicas: Replicas) -> None:
    """The other replica reads a record, of any size and with any id, and later a newer one."""
    async with replicas() as stores:
        one, other = (Records(store, UpstreamObject, pytest.fail) for store in stores)
        stored = UpstreamObject(id="a", model="m", deployment_id="d", owner="team-a")
        for record in (stored, stored.model_copy(update={"model": "x" * 100_000})):
            await one.put(record)
            assert await other.get("a") == record
        assert await other.get("\ud800") is None
        assert await Records(stores[0], FeedbackMark, pytest.fail).get("a") is None, (
            "kinds are separate"
        )


async def test_records_expire(replicas: Replicas) -> None:
    """A record is unknown after its kind's time; another kind has its own time."""
    limits = StoreLimits(Retention(1, 10), {EvidenceMark.kind: Retention(60, 10)})

    async with replicas(limits) as stores:
        one, other = (Records(store, FeedbackMark, pytest.fail) for store in stores)
        kept = Records(stores[0], EvidenceMark, pytest.fail)
        await one.put(FeedbackMark(id="expires"))
        await kept.put(EvidenceMark(id="expires"))
        assert await other.get("expires") is not None

        async def has_expired() -> bool:
            return await other.get("expires") is None

        await wait_for_async(has_expired, "the record expires")
        assert await one.add(FeedbackMark(id="expires"))
        assert await kept.get("expires") is not None


async def test_only_the_first_of_several_adds_succeeds(replicas: Replicas) -> None:
    """If replicas add an id at the same time, only one of them learns that it is new."""
    async with replicas(StoreLimits(Retention(60, 10))) as stores:
        marks = [Records(store, FeedbackMark, pytest.fail) for store in stores * 4]
        added = await asyncio.gather(*(each.add(FeedbackMark(id="added")) for each in marks))
        assert sorted(added) == [False] * 7 + [True]


@pytest.mark.parametrize("url", ["http://:planted@h", "planted", "toy://planted", "redis://h:x"])
def test_unknown_address_is_a_configuration_error(url: str) -> None:
    """The error names the setting and the known schemes, and does not quote the address."""
    with pytest.raises(ConfigError, match=r"server\.redis_url") as caught:
        open_store(url, LIMITS)
    assert "planted" not in f"{caught.value!s}{caught.value!r}"
