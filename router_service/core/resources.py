"""Memory and time: a bounded cache, glibc's allocator, timing of stages, and abandoned work."""

from __future__ import annotations

import ctypes
import sys
from collections import OrderedDict
from collections.abc import Callable, Hashable
from enum import StrEnum
from threading import Lock, local
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from router_service.core.values import request_value

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
P = ParamSpec("P")
T = TypeVar("T")

ENTRY_BYTES = 200
"""Memory of an entry besides its key and value."""


class Cache(Generic[K, V]):
    """Cache that drops the least recently used entries; may be shared by threads.

    `cachetools.LRUCache` with `getsizeof` is not used: it still needs a lock and a wrapper that
    carries the size of the key, and `put` takes 2.8 us instead of 0.6 us, `get` 0.48 us instead of
    0.34 us. `functools.lru_cache` limits only the number of entries, but clients choose how large
    an entry is.
    """

    def __init__(self, max_bytes: int) -> None:
        """Create an empty cache; its entries never take more than `max_bytes` together."""
        self.max_bytes = max_bytes
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = Lock()
        self.size_bytes = 0

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: K, value: V, size_bytes: int) -> None:
        """Store a value, which takes `size_bytes` with its key, unless it exceeds `max_bytes`."""
        size_bytes += ENTRY_BYTES
        with self._lock:
            _, before_bytes = self._entries.pop(key, (None, 0))
            self.size_bytes -= before_bytes
            if size_bytes > self.max_bytes:
                return
            self._entries[key] = value, size_bytes
            self.size_bytes += size_bytes
            while self.size_bytes > self.max_bytes:
                _, (_, freed_bytes) = self._entries.popitem(last=False)
                self.size_bytes -= freed_bytes


class HeldMemory(Protocol):
    """Something that keeps data for later requests, within a limit."""

    @property
    def max_bytes(self) -> int:
        """The limit of `size_bytes`."""

    @property
    def size_bytes(self) -> int:
        """Memory that the data takes now."""


SHARED_CACHES: dict[str, Cache[Any, Any]] = {}
"""The caches that all engines of a process share, by name."""


def shared_cache(name: str, max_bytes: int) -> Cache[Any, Any]:
    """Return a new cache for all engines of the process, which operators see under this name."""
    cache = SHARED_CACHES[name] = Cache[Any, Any](max_bytes)
    return cache


# Parameters of mallopt(3).
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

_LARGE_BYTES = 128 * 1024
"""Blocks of at least this size are mapped separately, and returned to the system when freed. This
is glibc's initial threshold, which glibc would raise to up to 32 MB."""
_ARENAS = 2


def bound_heap() -> None:
    """Return large blocks to the system as soon as they are freed; call before starting threads.

    By default glibc keeps blocks of up to 32 MB in heaps, and each thread may have its own heap.
    After ten publications under load, 307 of 401 MB of heap were free but not returned.
    """
    mallopt = _find_glibc_function("mallopt")
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_ARENA_MAX, _ARENAS)


def return_freed() -> None:
    """Return free heap memory to the system: 33 MB after loading the shipped graph."""
    malloc_trim = _find_glibc_function("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def _find_glibc_function(name: str) -> ctypes._NamedFuncPointer | None:
    """Return a function of glibc, or None if the C library lacks it."""
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None), name, None)


Clock = Callable[[], float]
"""Returns seconds and never goes back."""


class StageName(StrEnum):
    """Stages of the gateway's own work on a request, in order."""

    BODY = "body"
    """Reading the body."""
    PARSE = "parse"
    QUEUE = "queue"
    """Waiting for a worker thread; if the body is large, this is before `PARSE`."""
    PACK = "pack"
    CLASSIFY = "classify"
    SELECT = "select"


@request_value(frozen=True, slots=True)
class Stage:
    """One stage of one request; `started_s` is in seconds of the clock that timed it."""

    name: StageName
    started_s: float
    seconds: float


class Timer:
    """Timer of consecutive stages: each begins when the previous one ends."""

    def __init__(self, clock: Clock) -> None:
        """Begin the first stage now."""
        self._clock = clock
        self._started_s = clock()
        self.stages: list[Stage] = []
        """The stages that have ended."""

    def end(self, name: StageName) -> None:
        """End the current stage, record it as `name`, and begin the next stage."""
        now_s = self._clock()
        self.stages.append(Stage(name, self._started_s, now_s - self._started_s))
        self._started_s = now_s


class AbandonedError(BaseException):
    """The result of the current work is no longer wanted, for example because its client left.

    It is not an Exception, so that no handler of failures takes it for one.
    """


class Work:
    """A computation in a thread that another thread may abandon."""

    __slots__ = ("is_abandoned",)

    def __init__(self) -> None:
        self.is_abandoned = False

    def run(self, compute: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of a function, whose `stop_if_abandoned` then heeds this object."""
        _thread.work = self
        try:
            return compute(*args, **kwargs)
        finally:
            _thread.work = None


def stop_if_abandoned() -> None:
    """Raise AbandonedError if nobody waits for the result of this thread's work any more.

    Long computations call it between their stages. It takes 0.1 us.
    """
    work: Work | None = getattr(_thread, "work", None)
    if work is not None and work.is_abandoned:
        raise AbandonedError


_thread = local()
