"""What was worked out for the same input before, within a bound on the memory that it takes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

ENTRY_BYTES = 200
"""What an entry takes beside its key and value."""


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """Lookups in a cache since it was made."""

    hits: int = 0
    misses: int = 0


class Cache(Generic[K, V]):
    """Values by equal keys; the ones that were asked for least lately go first.

    May be shared by threads. Bounded in bytes, for clients choose how large their requests are;
    `functools.lru_cache` counts entries.
    """

    def __init__(self, max_bytes: int) -> None:
        """Hold nothing yet, and never more than this by the sizes that are given."""
        self._max_bytes = max_bytes
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = Lock()
        self._hits = self._misses = 0
        self.size_bytes = 0

    @property
    def counts(self) -> CacheCounts:
        """Lookups so far."""
        return CacheCounts(self._hits, self._misses)

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None where there is none."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self._misses += 1
                return None
            self._hits += 1
            self._entries.move_to_end(key)
            return entry[0]

    def peek(self, key: K) -> V | None:
        """Return the same without counting it as a lookup."""
        entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def put(self, key: K, value: V, size_bytes: int) -> None:
        """Keep a value that takes so much memory with its key, unless that is beyond the bound."""
        size_bytes += ENTRY_BYTES
        with self._lock:
            _, before_bytes = self._entries.pop(key, (None, 0))
            self.size_bytes -= before_bytes
            if size_bytes > self._max_bytes:
                return
            self._entries[key] = value, size_bytes
            self.size_bytes += size_bytes
            while self.size_bytes > self._max_bytes:
                _, (_, freed_bytes) = self._entries.popitem(last=False)
                self.size_bytes -= freed_bytes
