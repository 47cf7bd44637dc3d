"""The cache: returns what was stored, within its bound."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from router_service.core.resources import ENTRY_BYTES, Cache

PUTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 400)))


@given(PUTS, st.integers(0, 2000))
def test_cache_stays_within_its_bound(puts: list[tuple[int, int]], max_bytes: int) -> None:
    """After any puts, the cache returns the latest value of a key, and all entries fit."""
    cache: Cache[int, int] = Cache(max_bytes)
    last = {}
    for place, (key, size_bytes) in enumerate(puts):
        cache.put(key, place, size_bytes)
        last[key] = place, size_bytes + ENTRY_BYTES
    found = {key for key in last if cache.get(key) is not None}
    assert cache.size_bytes == sum(last[key][1] for key in found) <= max_bytes
    assert all(cache.get(key) == last[key][0] for key in found)


def test_threads_share_a_cache() -> None:
    """With many threads, the size stays the sum of the entries."""
    cache: Cache[int, int] = Cache(20 * ENTRY_BYTES)

    def use(seed: int) -> None:
        for step in range(500):
            key = (seed * 31 + step * 17) % 40
            assert cache.get(key) in {None, key}
            cache.put(key, key, key)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(8)))
    sizes = [key + ENTRY_BYTES for key in range(40) if cache.get(key) is not None]
    assert cache.size_bytes == sum(sizes) <= 20 * ENTRY_BYTES
